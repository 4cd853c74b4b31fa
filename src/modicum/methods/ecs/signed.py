"""Signed HMC-ECS: exact expectations by the block-Poisson estimator."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Literal

from modicum.arguments import Count
from modicum.errors import CrudeControlVariateError
from modicum.kernels.energy_conserving import EnergyConservingKernel
from modicum.kernels.likelihood_estimates import BlockPoisson, BlockPoissonTables
from modicum.methods.cost import slow_run
from modicum.methods.ecs.composition import Composition
from modicum.methods.ecs.perturbed import HMCECS, PAPER_BLOCKS, burn_in, explain_burn_in
from modicum.methods.ecs.pilot import Study, study_at_own_anchor
from modicum.methods.ecs.run_checks import (
    Case,
    check_short_chains,
    look_ahead_signed,
    look_back_signed,
)
from modicum.methods.ecs.settings import (
    EnergyConserving,
    check_blocks,
    check_tuning,
)
from modicum.methods.ecs.signed_products import ProductChoice, choose_products
from modicum.methods.method import Outcome, Plan, Task, Tuning, account
from modicum.run.runner import History
from modicum.runtime import in_double_precision


@dataclass(frozen=True, kw_only=True)
class SignedHMCECS(EnergyConserving):
    """Signed HMC-ECS: unbiased likelihood estimates, whose signs weight the draws.

    The chain targets the absolute value of a block-Poisson estimate of the likelihood, and every
    summary of its draws uses their signs, so that expectations are exact up to Monte Carlo error,
    whatever the control variates. Every setting left at None is chosen by a pilot study and
    explained in `Posterior.tuning`.

    Parameters
    ----------
    products
        Lambda: the expected number of factors of the likelihood estimate.
    batch
        Rows per factor, m_b; the paper uses 30. None: the number, at least 5, that makes an
        effective draw cheapest.
    centre
        Expected difference l - sum q over the posterior; the soft lower bound of the paper's
        eq. 5.1 is a = centre - lambda, the same everywhere. None: the bound varies with the
        parameters like the difference, predicted by a few rows that every evaluation reads (a
        coreset).
    blocks
        Blocks of the subsample, each with an equal share of the products.
    refreshes
        Blocks proposed anew per iteration.
    design, order, inner, trajectory, integrator, jitter, target_accept, step_size, anchor, floor
        As for `HMCECS`.
    certainty, levels, precision, whitening, memory_limit, fused
        As for `HMCECS`.
    tuning
        "auto": anchor at the mode. "paper": the schedule of the paper's section 6.3, with burn-in
        by the perturbed method, and G = 100 and K = 1 unless they are set.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.SignedHMCECS(products=40, batch=20).products
    40
    """

    products: Count | None = None
    batch: Count | None = None
    centre: Annotated[float | None, "None chooses it automatically"] = None
    tuning: Literal["auto", "paper"] = "auto"
    name: ClassVar[str] = "hmc-ecs-signed"
    summary: ClassVar[str] = "HMC-ECS with signs: means that are exact up to Monte Carlo error"
    # Weighting by the posterior's spread draws rows of its far tails less often: their factors then
    # vary so much in the tails that a chain on Covertype got stuck.
    weighted_by_spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_blocks(self.products, self.blocks, "{} products", "products")
        check_tuning(self.tuning, self)

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Plan a block-Poisson estimator with lambda, a, G and K from the pilot study."""
        self.check_task(task)
        if self.order < 2:
            # Far from the anchor, where D is below -lambda, factors are negative and grow with the
            # distance, and no quadratic outweighs them: |Lhat| has most of its mass there.
            raise CrudeControlVariateError(
                f"control variates of order {self.order} are too crude for the signed method: away "
                "from the anchor its estimate grows without bound, and chains that get there stay",
                "use order=2",
            )
        tuning: Tuning = {}
        if self.tuning == "paper":
            study, choice, tuning = self._tuned_by_schedule(task)
        else:
            study = study_at_own_anchor(self, task)
            by_hand = None if self.products is None else "products"
            choice = study.cheapest(lambda count: self._choose(study, count), by_hand)
        case = Case(self, task.target, len(task.rows))
        # No pilot chains are needed: a posterior that lies where the pilot study did not look
        # shows in negative signs, or in full factors, and `look_back_signed` counts both.
        pilot = study.pilot_with(choice.certainty)
        notes = look_ahead_signed(case, pilot, choice, self.products is None)
        notes += check_short_chains(case, study.stuck)
        rows = choice.products * choice.batch + choice.always
        notes += slow_run(
            *(task, study.anchor.point, rows * (study.steps + 1)),
            work=f"{rows:,} rows per step",
            remedy=f"use fewer draws, or {case.all_rows}",
        )
        parts = Composition(
            choice.estimator,
            choice.estimator.rows,
            choice.blocks,
            choice.refreshes,
            BlockPoissonTables(choice.centre),
            choice.certainty,
            choice.coreset,
        )
        return parts.plan(study, _explain(choice) | tuning, notes)

    def _tuned_by_schedule(self, task: Task) -> tuple[Study, ProductChoice, Tuning]:
        """Choose settings at the anchor of the perturbed method's burn-in, and describe that."""
        shared = {f.name: getattr(self, f.name) for f in fields(EnergyConserving)}
        schedule = burn_in(HMCECS(**shared | PAPER_BLOCKS, tuning="paper"), task)
        study = Study(self, task, schedule.anchor, scheduled=True)
        blocks, refreshes = (getattr(self, name) or n for name, n in PAPER_BLOCKS.items())
        choice = replace(self, blocks=blocks, refreshes=refreshes)._choose(study, 0)
        by_hand = {name for name in PAPER_BLOCKS if getattr(self, name) is not None}
        why, tuning = explain_burn_in(schedule, {"subsample", *by_hand})
        return study, replace(choice, why=choice.why | why), tuning

    def _choose(self, study: Study, certainty: int) -> ProductChoice:
        """Choose products, blocks and refreshes, given the number of certainty rows."""
        fixed_bound = self.centre is not None or self.tuning == "paper"
        return choose_products(
            study.pilot_with(certainty),
            self.batch,
            study.steps,
            self.products,
            self.blocks,
            self.refreshes,
            self.centre,
            study.fresh,
            certainty,
            None if fixed_bound else study.coreset_with(certainty),
        )

    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Weight draws by their signs, account for the cost, and check the run."""
        account(task, plan, history, self.step_size, self.target_accept)
        kernel = plan.kernel
        assert isinstance(kernel, EnergyConservingKernel)
        assert isinstance(kernel.estimator, BlockPoisson)
        assert isinstance(plan.memo, Study)
        case = Case(self, task.target, len(task.rows), plan.memo.draws_along_curves)
        room = kernel.estimator.slots
        doubts = look_back_signed(case, room, kernel.blocks, kernel.refreshes, history)
        return Outcome(weights=history.stats["sign"], warnings=doubts)


def _explain(choice: ProductChoice) -> Tuning:
    coreset = choice.coreset
    rows = f"{choice.products * choice.batch:,} on average, {choice.batch} for each of the products"
    if choice.certainty:
        rows += f", and {choice.certainty:,} certainty rows"
    if coreset is not None:
        rows += f", and {len(coreset)} rows of the coreset"
    chosen = choice.explained("products", "batch", "blocks", "refreshes", "centre")
    sentences: Tuning = {name: choice.why[name] for name in ("variance", "sign")}
    always = choice.explained("certainty")
    if coreset is not None:
        why = "rows with weights whose residuals follow l - sum q, and the lower bound with them"
        always["coreset"] = {"value": len(coreset), "why": why}
    return {"rows per evaluation": rows} | chosen | sentences | always
