"""HMC-ECS, Hamiltonian Monte Carlo with energy-conserving subsampling: perturbed and signed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Literal

import jax.numpy as jnp

from modicum.arguments import Count, FromTwo, Positive
from modicum.errors import (
    ConvergenceError,
    CrudeControlVariateError,
    ModicumWarning,
    NoModeError,
    SettingError,
)
from modicum.kernels.all_rows import DelayedAcceptanceContext, DelayedAcceptanceKernel
from modicum.kernels.energy_conserving import EnergyConservingKernel
from modicum.kernels.likelihood_estimates import LIKELIHOODS, BlockPoisson
from modicum.methods.cost import slow_run
from modicum.methods.ecs.composition import BurnIn, EnergyConserving, Examined, check_blocks
from modicum.methods.ecs.paper_schedule import PAPER_BLOCKS, burn_in
from modicum.methods.ecs.run_checks import (
    ALL_ROWS,
    MISLED,
    UNFIT,
    Case,
    check_pilot_chains,
    check_short_chains,
    check_tails,
    look_ahead,
    look_ahead_signed,
    look_back,
    look_back_signed,
    withdraw_bound,
)
from modicum.methods.ecs.signed_products import ProductChoice, choose_products
from modicum.methods.ecs.subsample import Choice, choose
from modicum.methods.method import Chosen, Outcome, Plan, Task, account
from modicum.methods.pilot.study import Study
from modicum.methods.without_mode import FullLogPosterior, may_have_mean
from modicum.run.runner import History
from modicum.runtime import in_double_precision


@dataclass(frozen=True, kw_only=True)
class HMCECS(EnergyConserving[Choice]):
    """Perturbed HMC-ECS (Dang, Quiroz, Kohn, Tran and Villani), with weighted rows by default.

    Every setting left at None is chosen by a pilot study of the residuals and explained in
    `Posterior.tuning`.

    Parameters
    ----------
    subsample
        Rows in the subsample, m.
    blocks
        Blocks of the subsample, G; a refresh proposes one block anew.
    refreshes
        Blocks proposed anew per iteration, K.
    bias
        Largest shift of a posterior mean that the perturbation may cause, in posterior standard
        deviations, as estimated by the pilot study.
    certainty
        Number of rows that every evaluation reads, those with the largest expected residuals; the
        others are subsampled. "auto": the number, possibly 0, that makes an effective draw
        cheapest.
    design
        "weighted": rows are drawn in proportion to their expected residual. "uniform": rows are
        drawn with equal probability, as in the papers.
    order
        Order of the Taylor control variates: 0, 1 or 2.
    anchor
        The point about which control variates are expanded. "mode"; "mean": the mean of short
        chains on a subset, moved by passes over all rows, which also replaces the mode of a model
        of your own that has none, or one far from the posterior; or a flat vector of unconstrained
        parameters.
    inner
        "hmc", "nuts", or any `Move`: a hashable function (key, point, logdensity, step_size,
        inverse_mass) -> (point, MoveInfo), such as a wrapped BlackJAX kernel.
    target_accept
        Acceptance rate for which the step size is tuned.
    step_size
        A fixed step size, in posterior standard deviations; None: tuned during warm-up.
    exact
        None: the perturbed method. "delayed": every proposal is accepted or rejected by the
        log-likelihood of all rows, so that the posterior is exact at one pass per iteration.
    memory_limit
        Bytes of rows that may be held in memory; rows of larger data sets are read when chains
        need them. By default half of the free memory, or 256 MiB for a row store.
    expert
        Further settings, `mo.ECSExpert`.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.HMCECS(design="uniform", subsample=1300, inner="nuts").subsample
    1300
    """

    subsample: FromTwo | None = None
    bias: Positive = 0.05
    exact: Literal["delayed"] | None = None
    name: ClassVar[str] = "hmc-ecs"
    summary: ClassVar[str] = "a few hundred rows per step, tuned automatically"
    number: ClassVar[str] = "subsample"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exact and self.inner != "hmc":
            raise SettingError("exact='delayed' needs a reversible inner kernel: inner='hmc'.")
        check_blocks(self.subsample, self.blocks, "rows")

    @in_double_precision
    def decide(self, task: Task) -> tuple[HMCECS, Plan]:
        """Plan at the mode, or at the mean of short chains if a user's model has no useful mode."""
        try:
            plan = self.plan(task)
        except NoModeError:
            if not may_have_mean(task):
                raise
            return self.about_mean(task)
        misled = self.anchor == "mode" and any(note.code in MISLED for note in plan.notes)
        if misled and may_have_mean(task):
            with suppress(ConvergenceError, CrudeControlVariateError):
                method, elsewhere = self.about_mean(task)
                if not any(note.code in UNFIT for note in elsewhere.notes):
                    return method, elsewhere
        return self, plan

    def about_mean(self, task: Task) -> tuple[HMCECS, Plan]:
        """Return the method with its anchor at the mean of short chains, and its plan."""
        method = replace(self, anchor="mean")
        return method, method.plan(task)

    def choose(self, study: Study, certainty: int, fixed: Mapping[str, int]) -> Choice:
        """Choose m, G and K, unless they are `fixed`, given the number of certainty rows."""
        return choose(
            study.pilot_with(certainty),
            self.steps(study),
            self.bias,
            LIKELIHOODS[self.expert.estimator],
            study.about.control_variate.fresh_cost,
            study.task.grouped,
            certainty,
            **fixed,
        )

    def burn_in(self, task: Task) -> BurnIn:
        """Run the schedule of the paper."""
        return burn_in(self, task)

    def look_ahead(self, study: Study, choice: Choice) -> tuple[list[ModicumWarning], float]:
        """Check the number of rows; by short chains where these will go, and might run off to."""
        task, certain, m = study.task, choice.certainty, choice.subsample
        pilot = study.pilot_with(certain)
        case, advice = Case.of(study), self._advice(study)
        notes = look_ahead(case, pilot, choice, self.bias, self.subsample is None, advice)
        notes += check_short_chains(case, study.stuck)
        chains = None
        if self.exact is None:
            chains = study.chains(certain)
            farther = [] if chains is None else check_pilot_chains(case, chains, m)
            notes += farther or check_tails(case, study.tails(certain, chains), m)
        passes = len(task.rows) if self.exact else 0
        evaluations = (m + certain) * (self.steps(study) + 1) + passes
        work = f"{m + certain:,} {case.units} per step"
        if self.exact:
            work = f"exact='delayed' on all {len(task.rows):,} rows"
        remedy = f"use fewer draws, or {'leave `exact` out' if self.exact else ALL_ROWS}"
        notes += slow_run(task, evaluations, work, remedy)
        return notes, study.distance(chains)

    def _advice(self, study: Study) -> str | None:
        """Say what to do about too few rows, if that would help."""
        if self.subsample is None:
            return 'use tuning="auto"' if self.scheduled else None
        others = {name: value for name, value in self.by_hand.items() if name != "subsample"}
        advised = self.choose(study, 0, others).subsample
        helps = 2 * advised <= len(study.task.rows)  # otherwise the advised size would be refused
        return "leave `subsample` out to choose it automatically" if helps else None

    @in_double_precision
    def compose(self, examined: Examined[Choice]) -> Plan:
        """Return the plan of a run; if it is exact, with proposals evaluated on all rows."""
        plan, task = super().compose(examined), examined.study.task
        if self.exact is None:
            return plan
        log_posterior, chunks = FullLogPosterior.of(task, self.memory_limit)
        assert isinstance(plan.kernel, EnergyConservingKernel)
        exact = Chosen(value=0.0, why="every proposal is evaluated on all rows")
        return replace(
            plan,
            settled=None,
            kernel=DelayedAcceptanceKernel(plan.kernel, log_posterior),
            context=DelayedAcceptanceContext(plan.context, jnp.asarray(len(task.rows)), chunks),
            start_rows=plan.start_rows + len(task.rows),
            tuning=plan.tuning | {"bias_bound": exact},
            finish=self._account,
        )

    def look_back(
        self, case: Case, kernel: EnergyConservingKernel, history: History
    ) -> list[ModicumWarning]:
        """Check the run by its recorded statistics."""
        size = (kernel.subsample, kernel.blocks, kernel.refreshes)
        return look_back(case, *size, history)

    def _account(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Account for the cost of a run that all rows have checked."""
        account(task, plan, history, self.step_size, self.target_accept)
        return Outcome()

    def withdraw_claims(self, plan: Plan, doubts: Sequence[ModicumWarning]) -> None:
        """Withdraw the bias bound if the run gave a reason to distrust it."""
        if not self.exact:
            withdraw_bound(plan.tuning, doubts)


@dataclass(frozen=True, kw_only=True)
class SignedHMCECS(EnergyConserving[ProductChoice]):
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
    design, order, inner, target_accept, step_size, anchor, certainty, memory_limit
        As for `HMCECS`.
    expert
        Further settings, `mo.ECSExpert`. With tuning="paper", burn-in is by the perturbed method,
        and G = 100 and K = 1 unless they are set.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.SignedHMCECS(products=40, batch=20).products
    40
    """

    products: Count | None = None
    batch: Count | None = None
    centre: Annotated[float | None, "None chooses it automatically"] = None
    name: ClassVar[str] = "hmc-ecs-signed"
    summary: ClassVar[str] = "HMC-ECS with signs: means that are exact up to Monte Carlo error"
    number: ClassVar[str] = "products"
    # Weighting by the posterior's spread draws rows of its far tails less often: their factors then
    # vary so much in the tails that a chain on Covertype got stuck.
    by_spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expert.estimator != "perturbed":
            raise SettingError("the signed method has an estimator of its own; leave it out.")
        check_blocks(self.products, self.blocks, "products")

    def check_task(self, task: Task) -> None:
        """Refuse control variates of low order too.

        Far from the anchor, where D is below -lambda, factors are negative and grow with the
        distance, and no quadratic outweighs them: |Lhat| has most of its mass there.
        """
        super().check_task(task)
        if self.order < 2:
            raise CrudeControlVariateError(
                f"control variates of order {self.order} are too crude for the signed method: away "
                "from the anchor its estimate grows without bound, and chains that get there stay",
                "use order=2",
            )

    def choose(self, study: Study, certainty: int, fixed: Mapping[str, int]) -> ProductChoice:
        """Choose products, blocks and refreshes, unless they are `fixed`."""
        fixed_bound = self.centre is not None or self.scheduled
        return choose_products(
            study.pilot_with(certainty),
            self.batch,
            self.steps(study),
            self.centre,
            study.about.control_variate.fresh_cost,
            certainty,
            None if fixed_bound else study.coreset_with(certainty),
            **{name: value for name, value in fixed.items() if name != HMCECS.number},
        )

    def burn_in(self, task: Task) -> BurnIn:
        """Run the schedule of the perturbed method."""
        shared = {f.name: getattr(self, f.name) for f in fields(EnergyConserving)}
        return HMCECS(**shared | PAPER_BLOCKS).burn_in(task)

    def look_ahead(self, study: Study, choice: ProductChoice) -> tuple[list[ModicumWarning], float]:
        """Check the number of products.

        No pilot chains are needed: a posterior that lies where the pilot study did not look shows
        in negative signs, or in full factors, and `look_back_signed` counts both.
        """
        case, pilot = Case.of(study), study.pilot_with(choice.certainty)
        notes = look_ahead_signed(case, pilot, choice, self.products is None)
        notes += check_short_chains(case, study.stuck)
        rows = choice.products * choice.batch + choice.always
        evaluations, remedy = rows * (self.steps(study) + 1), f"use fewer draws, or {ALL_ROWS}"
        notes += slow_run(study.task, evaluations, f"{rows:,} {case.units} per step", remedy)
        return notes, study.distance(None)

    def look_back(
        self, case: Case, kernel: EnergyConservingKernel, history: History
    ) -> list[ModicumWarning]:
        """Check the run by its recorded statistics."""
        assert isinstance(kernel.estimator, BlockPoisson)
        room = kernel.estimator.slots
        return look_back_signed(case, room, kernel.blocks, kernel.refreshes, history)
