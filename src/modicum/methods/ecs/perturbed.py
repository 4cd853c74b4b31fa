"""HMC-ECS: Hamiltonian Monte Carlo with energy-conserving subsampling, tuned by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax.numpy as jnp

from modicum.kernels.delayed import DelayedAcceptanceContext, DelayedAcceptanceKernel
from modicum.methods.base import Outcome, Plan, Task
from modicum.methods.ecs.base import Composed, EnergyConserving, check_perturbed
from modicum.methods.ecs.checks import look_ahead, look_back
from modicum.methods.ecs.paper_schedule import burn_in
from modicum.methods.ecs.pilot import PAPER_BLOCKS, Study, choose_for, perturbed
from modicum.methods.ecs.tuning import Choice
from modicum.methods.full_data import WholeLogPosterior
from modicum.passes.full_likelihood import hold
from modicum.run import History
from modicum.runtime import in_double_precision

__all__ = ["HMCECS"]


@dataclass(frozen=True, kw_only=True)
class HMCECS(EnergyConserving):
    """Perturbed HMC-ECS (Dang, Quiroz, Kohn, Tran and Villani), with weighted rows by default.

    Every setting left at None is chosen from a pilot study of the residuals and explained in
    `Posterior.tuning`.

    Parameters
    ----------
    subsample
        Rows in the subsample, m.
    blocks
        Blocks of the subsample, G; a refresh proposes one block anew.
    refreshes
        Blocks proposed anew an iteration, K.
    design
        "weighted": rows drawn in proportion to their expected residual. "uniform": the papers'.
    order
        Order of the Taylor control variates: 0, 1 or 2.
    inner
        "hmc", "nuts", or any `Move`: a hashable function (key, point, logdensity, step_size,
        inverse_mass) -> (point, MoveInfo), such as a wrapped BlackJAX kernel.
    trajectory
        Step size times leapfrog steps of the inner HMC, in posterior standard deviations.
    jitter
        Share by which each trajectory of the inner HMC is randomly longer or shorter.
    target_accept
        Acceptance rate the step size is tuned for.
    step_size
        A fixed step size, in posterior standard deviations; None: tuned during warm-up.
    anchor
        "mode", or a flat vector of unconstrained parameters to expand about.
    floor
        Share of weighted draws that is uniform.
    precision
        "float64" or "float32": of the subsample's rows and residuals (sums are float64).
    memory_limit
        Bytes of rows that may be held in memory; larger data sets are read as the chains need their
        rows. By default half of the free memory, or 256 MiB for a row store.
    bias
        Largest shift of a posterior mean the perturbation may cause, in posterior standard
        deviations, by the pilot study.
    ddof
        1: unbiased variance estimate; 0: the paper's.
    exact
        None: the perturbed method. "delayed": every proposal is accepted or rejected by the
        log-likelihood of all rows, so that the posterior is exact at one pass an iteration.
    tuning
        "auto": anchor at the mode, m, G and K from a pilot study. "paper": the schedule of the
        paper's section 6.3, from the mean of a 1 % subset through 1,000 burn-in iterations.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.HMCECS(design="uniform", subsample=1300, inner="nuts").subsample
    1300
    """

    subsample: int | None = None
    bias: float = 0.05
    ddof: int = 1
    exact: Literal["delayed"] | None = None
    tuning: Literal["auto", "paper"] = "auto"
    name: ClassVar[str] = "hmc-ecs"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_perturbed(self)

    def compose(self, task: Task) -> Composed:
        """A perturbed estimator with m, G and K from the pilot study or the paper's schedule."""
        told: dict[str, Any] = {}
        if self.tuning == "paper":
            done = burn_in(self, task)
            study = Study(self, task, done.anchor)
            fixed = PAPER_BLOCKS | {"subsample": done.subsample}
            choice = choose_for(study, fixed, "as in the paper")
            told["burn-in variance"] = [float(f"{v:.4g}") for v in done.variance]
        else:
            study = Study(self, task, self.find_anchor(task))
            choice = choose_for(study)
        notes = look_ahead(self, study.pilot, choice, len(task.rows))
        return Composed(study, perturbed(self, choice), _explain(choice) | told, notes)

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """As every method of its kind; exactness on request puts all rows beside the subsample."""
        plan = super().plan(task)
        if self.exact is None:
            return plan
        source, chunks = hold(task.rows, self.memory_limit)
        kernel: Any = plan.kernel
        return replace(
            plan,
            kernel=DelayedAcceptanceKernel(kernel, WholeLogPosterior(task.target, source)),
            context=DelayedAcceptanceContext(plan.context, jnp.asarray(len(task.rows)), chunks),
            start_rows=plan.start_rows + len(task.rows),
        )

    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Close the accounts, and look back at the run."""
        self.account(task, plan, history)
        return Outcome(warnings=[] if self.exact else look_back(plan.kernel, history))


def _explain(choice: Choice) -> dict[str, Any]:
    values = {
        "subsample": choice.subsample,
        "blocks": choice.blocks,
        "refreshes": choice.refreshes,
    }
    told: dict[str, Any] = {
        name: {"value": value, "why": choice.why[name]} for name, value in values.items()
    }
    return told | {name: choice.why[name] for name in ("bias_bound", "variance")}
