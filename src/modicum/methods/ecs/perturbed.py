"""HMC-ECS: Hamiltonian Monte Carlo with energy-conserving subsampling.

It is tuned automatically or, for comparison, by the schedule of the HMC-ECS paper (section 6.3).
There the anchor starts at the posterior mean of a 1 % subset. During 1,000 burn-in iterations it
moves to the mean of recent draws every 200, each time at the cost of a pass; m is recalibrated
after the first 100. There are G = 100 blocks, one of which is refreshed per iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from modicum.arguments import Positive, among, at_least, one_of
from modicum.errors import (
    ConvergenceError,
    CrudeControlVariateError,
    ModicumWarning,
    NoModeError,
    SettingError,
)
from modicum.kernels.adaptation import schedule
from modicum.kernels.all_rows import DelayedAcceptanceContext, DelayedAcceptanceKernel
from modicum.kernels.energy_conserving import EnergyConservingKernel
from modicum.kernels.likelihood_estimates import LIKELIHOODS
from modicum.methods.cost import slow_run
from modicum.methods.ecs.composition import Composition, rows_of
from modicum.methods.ecs.pilot import Study, study_at_own_anchor
from modicum.methods.ecs.run_checks import (
    MISLED,
    UNFIT,
    Case,
    check_pilot_chains,
    check_short_chains,
    check_tails,
    look_ahead,
    look_back,
    withdraw_bound,
)
from modicum.methods.ecs.settings import (
    EnergyConserving,
    check_blocks,
    check_tuning,
)
from modicum.methods.ecs.subsample import Choice, choose
from modicum.methods.full_data import HMC
from modicum.methods.method import Chosen, Outcome, Plan, Task, Tuning, account
from modicum.methods.without_mode import FullLogPosterior, anchor_at_mean, may_have_mean
from modicum.passes import Anchor, Sums, anchor_at
from modicum.random import Stream, chain_keys, generator
from modicum.run.chains import Chains
from modicum.run.runner import History, capacity_for, run
from modicum.runtime import in_double_precision


@dataclass(frozen=True, kw_only=True)
class HMCECS(EnergyConserving):
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
    design
        "weighted": rows are drawn in proportion to their expected residual. "uniform": rows are
        drawn with equal probability, as in the papers.
    order
        Order of the Taylor control variates: 0, 1 or 2.
    inner
        "hmc", "nuts", or any `Move`: a hashable function (key, point, logdensity, step_size,
        inverse_mass) -> (point, MoveInfo), such as a wrapped BlackJAX kernel.
    trajectory
        Step size times steps of the inner HMC, in posterior standard deviations; None: 1.2, or
        pi / 2 with the split integrator.
    integrator
        Integrator of the inner HMC. "leapfrog"; "split": the normal approximation at the mode is
        integrated exactly, and steps only follow the deviation from it, so that fewer steps suffice
        and more proposals are accepted; "auto": "split" on a GPU if a chain can run as one program
        (see `fused`), else "leapfrog". On a GPU, `Posterior.tuning["integrator"]` says which.
    jitter
        Share by which each trajectory of the inner HMC is randomly longer or shorter.
    target_accept
        Acceptance rate for which the step size is tuned.
    step_size
        A fixed step size, in posterior standard deviations; None: tuned during warm-up.
    anchor
        The point about which control variates are expanded. "mode"; "mean": the mean of short
        chains on a subset, moved by passes over all rows, which also replaces the mode of a model
        of your own that has none, or one far from the posterior; or a flat vector of unconstrained
        parameters.
    floor
        Share of weighted draws that is uniform.
    certainty
        Number of rows that every evaluation reads, those with the largest expected residuals; the
        others are subsampled. "auto": the number, possibly 0, that makes an effective draw
        cheapest.
    levels
        Whether rare levels of factors, and other columns of few rows, have control variates of
        their own, which follow how the rows of a level move together. "auto": unless a chain may
        run as one program on a GPU, which lacks them. Only models with one linear predictor, the
        weighted design and order 2 have them.
    precision
        "float64" or "float32": type of the subsample's rows and residuals (sums are float64).
    whitening
        How to compute the product that whitens fresh rows, which is most of the work with hundreds
        of columns. "auto": from 256 dense columns on, use blocks of a triangular factor, in float32
        if that is accurate; "float64": the plain product, as with fewer columns.
    memory_limit
        Bytes of rows that may be held in memory; rows of larger data sets are read when chains
        need them. By default half of the free memory, or 256 MiB for a row store.
    fused
        "auto": on a GPU, after warm-up, a chain runs as one program that does many iterations per
        launch, in float32, if the model and the settings allow it; else iterations run one by one,
        as with False. `Posterior.tuning["path"]` says which. True: raise an error where "auto"
        would fall back.
    bias
        Largest shift of a posterior mean that the perturbation may cause, in posterior standard
        deviations, as estimated by the pilot study.
    estimator
        How residuals become a log-likelihood; "perturbed": their average less half its variance.
    ddof
        1: unbiased variance estimate; 0: the paper's.
    exact
        None: the perturbed method. "delayed": every proposal is accepted or rejected by the
        log-likelihood of all rows, so that the posterior is exact at one pass per iteration.
    tuning
        "auto": anchor at the mode, and m, G and K from a pilot study. "paper": the schedule of the
        paper's section 6.3, from the mean of a 1 % subset through 1,000 burn-in iterations.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.HMCECS(design="uniform", subsample=1300, inner="nuts").subsample
    1300
    """

    subsample: Annotated[int, at_least(2)] | None = None
    bias: Positive = 0.05
    estimator: Annotated[str, one_of(LIKELIHOODS)] = "perturbed"
    ddof: Annotated[int, among(0, 1), "0 is the paper's divisor"] = 1
    exact: Literal["delayed"] | None = None
    tuning: Literal["auto", "paper"] = "auto"
    name: ClassVar[str] = "hmc-ecs"
    summary: ClassVar[str] = "a few hundred rows per step, tuned automatically"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tuning(self.tuning, self)
        if self.exact and self.inner != "hmc":
            raise SettingError("exact='delayed' needs a reversible inner kernel: inner='hmc'.")
        check_blocks(self.subsample, self.blocks, "a subsample of {} rows", "rows")

    @in_double_precision
    def decide(self, task: Task) -> tuple[HMCECS, Plan]:
        """Plan at the mode, or at the mean of short chains if a user's model has no useful mode."""
        try:
            plan = self.plan(task)
        except NoModeError:
            if not may_have_mean(task):
                raise
            return self.about_mean(task)
        misled = self.at_mode and any(note.code in MISLED for note in plan.notes)
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

    @in_double_precision
    def plan(self, task: Task, study: Study | None = None) -> Plan:
        """Find the anchor, study rows unless `study` is given, choose m, compose the kernel."""
        self.check_task(task)
        tuning: Tuning = {}
        if self.tuning == "paper":
            schedule = burn_in(self, task)
            study = self.study(task, schedule.anchor)
            choice = self.choose(study, PAPER_BLOCKS | {"subsample": schedule.subsample})
            why, tuning = explain_burn_in(schedule, self._by_hand())
            choice = replace(choice, why=choice.why | why)
        else:
            study = study or study_at_own_anchor(self, task)
            if self.at_mean:
                tuning["anchor"] = anchor_at_mean(task).text
            choice = self._cheapest(study)
        composed = self.composition(choice)
        plan = composed.plan(study, _explain(choice) | tuning, self._look_ahead(study, choice))
        return plan if self.exact is None else self._with_all_rows(plan, study)

    def _cheapest(self, study: Study) -> Choice:
        by_hand = None if self.subsample is None else "subsample"
        return study.cheapest(lambda count: self.choose(study, certainty=count), by_hand)

    def study(self, task: Task, anchor: Anchor) -> Study:
        """Return the pilot study at an anchor."""
        return Study(self, task, anchor, self.tuning == "paper")

    def _by_hand(self) -> dict[str, int]:
        own = {"subsample": self.subsample, "blocks": self.blocks, "refreshes": self.refreshes}
        return {name: value for name, value in own.items() if value is not None}

    def choose(
        self, study: Study, settings: Mapping[str, int] | None = None, certainty: int = 0
    ) -> Choice:
        """Choose m, G and K, given the certainty rows, except where `settings` or the user did."""
        fixed = dict(settings or {}) | self._by_hand()
        return choose(
            study.pilot_with(certainty),
            study.steps,
            self.bias,
            self.ddof,
            fixed.get("subsample"),
            fixed.get("blocks"),
            fixed.get("refreshes"),
            study.fresh,
            study.task.grouped,
            certainty,
        )

    def composition(self, choice: Choice) -> Composition:
        """Return the likelihood estimator on m rows in G blocks."""
        estimator = LIKELIHOODS[self.estimator](self.ddof)
        sizes = (choice.subsample, choice.blocks, choice.refreshes)
        return Composition(estimator, *sizes, certainty=choice.certainty)

    def _look_ahead(self, study: Study, choice: Choice) -> list[ModicumWarning]:
        task, certain = study.task, choice.certainty
        pilot = study.pilot_with(certain)
        case = Case(self, task.target, len(task.rows))
        advice = self._advice(study)
        notes = look_ahead(case, pilot, choice, self.bias, self.subsample is None, advice)
        notes += check_short_chains(case, study.stuck)
        if self.exact is None:
            notes += self._look_farther(study, case, choice.subsample, certain)
        passes = len(task.rows) if self.exact else 0
        evaluations = (choice.subsample + certain) * (study.steps + 1) + passes
        work = f"{choice.subsample + certain:,} rows per step"
        if self.exact:
            work = f"exact='delayed' on all {len(task.rows):,} rows"
        remedy = f"use fewer draws, or {'leave `exact` out' if self.exact else case.all_rows}"
        return notes + slow_run(task, study.anchor.point, evaluations, work, remedy)

    @staticmethod
    def _look_farther(study: Study, case: Case, m: int, certain: int) -> list[ModicumWarning]:
        """Check where chains will go, by short chains, and where they might run off to."""
        chains = study.pilot_chains(certain)
        notes = [] if chains is None else check_pilot_chains(case, chains, m)
        return notes or check_tails(case, study.tails(certain), m)

    def _advice(self, study: Study) -> str | None:
        """Say what to do about too few rows, if that would help."""
        if self.subsample is None:
            return 'use tuning="auto"' if self.tuning == "paper" else None
        advised = replace(self, subsample=None).choose(study).subsample
        helps = 2 * advised <= len(study.task.rows)  # otherwise the advised size would be refused
        return "leave `subsample` out to choose it automatically" if helps else None

    def _with_all_rows(self, plan: Plan, study: Study) -> Plan:
        """Wrap the kernel in delayed acceptance, which evaluates proposals on all rows."""
        task = study.task
        log_posterior, chunks = FullLogPosterior.of(task, self.memory_limit)
        assert isinstance(plan.kernel, EnergyConservingKernel)
        exact: Chosen = {"value": 0.0, "why": "every proposal is evaluated on all rows"}
        return replace(
            plan,
            settled=None,
            kernel=DelayedAcceptanceKernel(plan.kernel, log_posterior),
            context=DelayedAcceptanceContext(plan.context, jnp.asarray(len(task.rows)), chunks),
            start_rows=plan.start_rows + len(task.rows),
            tuning=plan.tuning | {"bias_bound": exact},
        )

    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Account for the cost, and check the run."""
        account(task, plan, history, self.step_size, self.target_accept)
        if self.exact:
            return Outcome()
        kernel, study = plan.kernel, plan.memo
        assert isinstance(kernel, EnergyConservingKernel)
        assert isinstance(study, Study)
        case = Case(self, task.target, len(task.rows), study.draws_along_curves)
        size = (kernel.subsample, kernel.blocks, kernel.refreshes)
        return Outcome(warnings=look_back(case, *size, history))

    def withdraw_claims(self, plan: Plan, doubts: Sequence[ModicumWarning]) -> None:
        """Withdraw the bias bound if the run gave a reason to distrust it."""
        if not self.exact:
            withdraw_bound(plan.tuning, doubts)


def _explain(choice: Choice) -> Tuning:
    bound: Chosen = {
        "value": float(f"{choice.bias_bound:.2g}"),
        "why": choice.why["bias_bound"],
    }
    return (
        choice.explained("subsample", "blocks", "refreshes")
        | {"bias_bound": bound, "variance": choice.why["variance"]}
        | choice.explained("certainty")
    )


PAPER_BLOCKS = {"blocks": 100, "refreshes": 1}
STAGES = (100, 100, 200, 200, 200, 200)  # iterations between two moves of the anchor
SUBSET_SHARE, SMALLEST_SUBSET = 0.01, 1_000


@dataclass(frozen=True, eq=False)
class BurnIn:
    """Result of the burn-in.

    Attributes
    ----------
    anchor
        The anchor at the mean of the last draws.
    subsample
        The number of rows m, recalibrated unless set by hand.
    calibrated
        Values of m chosen at the first anchor and after 100 iterations; empty if m was set by hand.
    variance
        Estimated variance of the log-likelihood estimate at each iteration, averaged over chains.
    """

    anchor: Anchor
    subsample: int
    calibrated: tuple[int, ...]
    variance: np.ndarray


def burn_in(method: HMCECS, task: Task) -> BurnIn:
    """Run the schedule, or restore its result from a checkpoint."""

    def compute() -> dict[str, np.ndarray]:
        burned_in = _burn_in(method, task)
        own = {
            "subsample": np.asarray(burned_in.subsample),
            "calibrated": np.asarray(burned_in.calibrated, np.int64),
            "variance": burned_in.variance,
        }
        return burned_in.anchor.to_arrays() | own

    def read(arrays: dict[str, np.ndarray]) -> BurnIn:
        m, calibrated = int(arrays["subsample"]), tuple(int(m) for m in arrays["calibrated"])
        return BurnIn(Anchor.from_arrays(arrays), m, calibrated, arrays["variance"])

    return task.remember("anchor", compute, read)


def _burn_in(method: HMCECS, task: Task) -> BurnIn:
    if task.sums.rest is not None:
        raise SettingError(
            "tuning='paper' starts from a subset of the rows, which a digest does not have; leave "
            "`tuning` out."
        )
    anchor = anchor_at(task.sums, _subset_mean(task))
    m = method.subsample or 0
    # Stages are not checkpointed one by one: the result of the whole burn-in is.
    staged = replace(task, checkpoint=None)
    variance, calibrated = [], []
    for number, length in enumerate(STAGES):
        study = method.study(staged, anchor)
        if number <= 1 and method.subsample is None:  # before, and again after 100 iterations
            m = min(method.choose(study, PAPER_BLOCKS).subsample, len(task.rows) // 200 * 100)
            calibrated.append(m)
        parts = method.composition(method.choose(study, PAPER_BLOCKS | {"subsample": m}))
        history = _stage(study, parts, staged, length, number)
        variance.append(history.stats["variance_estimate"].mean(axis=0))
        recent = history.position[:, length // 2 :].mean(axis=(0, 1))
        anchor = anchor_at(task.sums, anchor.point + anchor.factor @ recent)
    return BurnIn(anchor, m, tuple(calibrated), np.concatenate(variance))


def explain_burn_in(burn_in: BurnIn, by_hand: Collection[str]) -> tuple[dict[str, str], Tuning]:
    """Explain m, G and K unless they were set by hand, and describe the burn-in."""
    why = dict.fromkeys([*PAPER_BLOCKS, "certainty"], "as in the paper")
    if burn_in.calibrated:
        why["subsample"] = (
            f"chosen by the pilot study after the first {STAGES[0]} iterations of burn-in; before "
            f"them, at the mean of a subset, {burn_in.calibrated[0]:,}"
        )
    tuning: Tuning = {
        "burn-in variance": [float(f"{v:.4g}") for v in burn_in.variance],
        "recalibration": [float(m) for m in burn_in.calibrated],
    }
    return {name: reason for name, reason in why.items() if name not in by_hand}, tuning


def _stage(study: Study, parts: Composition, task: Task, length: int, number: int) -> History:
    longest = max(STAGES)  # flags and capacity have one shape, so that all stages compile once
    chains = Chains(
        parts.kernel(study),
        parts.context(study),
        chain_keys(task.seed, task.chains, number + 1),
        schedule(length, longest - length, adapt_mass=False),
        capacity_for(task.target.size + parts.floats_per_iteration(study), longest),
        rows_of(study),
    )
    history = run(chains, 0, length, progressbar=False)
    task.ledger.add("burn-in", int(history.stats["rows_touched"].sum()), "gradient")
    return history


def _subset_mean(task: Task) -> np.ndarray:
    """Return the posterior mean given a random 1 % of the rows, by HMC on all of these."""
    n = len(task.rows)
    size = min(n, max(SMALLEST_SUBSET, 20 * task.target.size, int(SUBSET_SHARE * n)))
    row_ids = np.sort(generator(task.seed, Stream.PAPER_SUBSET).choice(n, size, replace=False))
    rows = task.rows.subset(row_ids)
    sums = Sums(task.target, rows, task.sums.engine, task.ledger)
    small = replace(task, rows=rows, sums=sums, tune=200, draws=200, checkpoint=None)
    plan = HMC().plan(small)
    keys = chain_keys(task.seed, 2, 0)
    capacity = capacity_for(task.target.size, 400)
    assert plan.kernel is not None
    chains = Chains(plan.kernel, plan.context, keys, plan.flags, capacity)
    history = run(chains, small.tune, small.draws, progressbar=False)
    for stats in (history.warmup, history.stats):
        task.ledger.add("subset", int(stats["rows_touched"].sum()), "gradient")
    return plan.anchor.point + plan.anchor.factor @ history.position.mean(axis=(0, 1))
