"""Signed HMC-ECS: exact expectations by the block-Poisson estimator."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal

from modicum.errors import CrudeControlVariateError, SettingError, is_number
from modicum.estimators import BlockPoisson, BlockPoissonTables
from modicum.kernels.energy_conserving import EnergyConservingKernel
from modicum.methods.base import Outcome, Plan, Task, Tuning
from modicum.methods.cost import slow_run
from modicum.methods.ecs.base import (
    EnergyConserving,
    check_blocks,
    check_counts,
    check_tuning,
)
from modicum.methods.ecs.checks import Case, look_ahead_signed, look_back_signed
from modicum.methods.ecs.paper_schedule import PAPER_BLOCKS, burn_in, explain_burn_in
from modicum.methods.ecs.perturbed import HMCECS
from modicum.methods.ecs.pilot import Composition, Study
from modicum.methods.ecs.tuning import Products, choose_products
from modicum.passes import Anchor
from modicum.run import History
from modicum.runtime import in_double_precision

__all__ = ["SignedHMCECS"]


@dataclass(frozen=True, kw_only=True)
class SignedHMCECS(EnergyConserving):
    """Signed HMC-ECS: unbiased likelihood estimates, whose signs weight the draws.

    The chain runs on the absolute value of a block-Poisson estimate of the likelihood; every
    estimate from its draws respects their signs, so that expectations are exact up to Monte Carlo
    error, whatever the control variates. Every setting left at None is chosen from a pilot study
    and explained in `Posterior.tuning`.

    Parameters
    ----------
    products
        Lambda: the expected number of factors of the likelihood estimate.
    batch
        Rows per factor, m_b; 30 as in the paper. None: as many as need the fewest rows in all.
    centre
        The difference l - sum q to be expected over the posterior; the soft lower bound of the
        paper's eq. 5.1 is a = centre - lambda.
    blocks
        Blocks of the subsample, each with an equal share of the products.
    refreshes
        Blocks proposed anew per iteration.
    design, order, inner, trajectory, jitter, target_accept, step_size, anchor, floor
        As for `HMCECS`.
    precision, memory_limit
        As for `HMCECS`.
    tuning
        "auto": anchor at the mode. "paper": the schedule of the paper's section 6.3, whose burn-in
        is run by the perturbed method; G = 100 and K = 1 unless they are set.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.SignedHMCECS(products=40, batch=20).products
    40
    """

    products: int | None = None
    batch: int | None = 30
    centre: float | None = None
    tuning: Literal["auto", "paper"] = "auto"
    name: ClassVar[str] = "hmc-ecs-signed"
    summary: ClassVar[str] = "HMC-ECS with signs: means that are exact up to Monte Carlo error"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts({"products": self.products, "batch": self.batch})
        if self.centre is not None and not is_number(self.centre):
            raise SettingError(
                f"centre must be a number, or None to have it chosen, not {self.centre!r}."
            )
        check_blocks(self.products, self.blocks, "{} products", "products")
        check_tuning(self.tuning, self.at_mode)

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """A block-Poisson estimator with lambda, a, G and K from the pilot study."""
        self.check_task(task)
        if self.order < 2:
            # Far out, where D is below -lambda, factors are negative and grow with the distance,
            # and no quadratic is there to outweigh them: |Lhat| has its mass there.
            raise CrudeControlVariateError(
                f"control variates of order {self.order} are too crude for the signed method: away "
                "from the anchor its estimate grows without bound, and chains that get there stay",
                "use order=2",
            )
        anchor, settings, why, burnt = self._start(task)
        study = Study(self, task, anchor)
        choice = choose_products(
            study.pilot,
            self.batch,
            study.steps,
            self.products,
            settings["blocks"],
            settings["refreshes"],
            self.centre,
            study.fresh,
        )
        choice = replace(choice, why=choice.why | why)
        case = Case(self, task.target, len(task.rows))
        # No rehearsal: a posterior that lies where the pilot study did not look costs signs, or
        # room for factors, and `look_back_signed` counts both.
        notes = look_ahead_signed(case, study.pilot, choice, self.products is None)
        rows = choice.products * choice.batch
        notes += slow_run(
            *(task, study.anchor.point, rows * (study.steps + 1)),
            work=f"{rows:,} rows per step",
            remedy=f"draw less, or {case.all_rows}",
        )
        estimator = BlockPoisson(choice.products, choice.batch, choice.blocks)
        parts = Composition(
            estimator,
            estimator.rows,
            choice.blocks,
            choice.refreshes,
            BlockPoissonTables(choice.centre),
        )
        return study.plan(parts, _explain(choice) | burnt, notes)

    def _start(self, task: Task) -> tuple[Anchor, dict[str, int | None], dict[str, str], Tuning]:
        """The anchor; G and K where they are set, and by whom; what the burn-in was like."""
        own = {"blocks": self.blocks, "refreshes": self.refreshes}
        if self.tuning == "auto":
            return self.find_anchor(task), own, {}, {}
        shared = {f.name: getattr(self, f.name) for f in fields(EnergyConserving)}
        done = burn_in(HMCECS(**shared | PAPER_BLOCKS, tuning="paper"), task)
        by_hand = {name for name, value in own.items() if value is not None}
        why, burnt = explain_burn_in(done, {"subsample", *by_hand})
        return done.anchor, {k: own[k] or v for k, v in PAPER_BLOCKS.items()}, why, burnt

    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Weight the draws by their signs, close the accounts, and look back at the run."""
        self.account(task, plan, history)
        kernel = plan.kernel
        assert isinstance(kernel, EnergyConservingKernel)
        assert isinstance(kernel.estimator, BlockPoisson)
        case = Case(self, task.target, len(task.rows))
        room = kernel.estimator.packed
        doubts = look_back_signed(case, room, kernel.blocks, kernel.refreshes, history)
        return Outcome(weights=history.stats["sign"], warnings=doubts)


def _explain(choice: Products) -> Tuning:
    values = {
        "products": choice.products,
        "batch": choice.batch,
        "blocks": choice.blocks,
        "refreshes": choice.refreshes,
        "centre": choice.centre,
    }
    rows = f"{choice.products * choice.batch:,} on average, {choice.batch} for each of the products"
    chosen: Tuning = {
        name: {"value": value, "why": choice.why[name]} for name, value in values.items()
    }
    sentences: Tuning = {name: choice.why[name] for name in ("variance", "sign")}
    return {"rows per evaluation": rows} | chosen | sentences
