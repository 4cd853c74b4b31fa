"""HMC-ECS: Hamiltonian Monte Carlo with energy-conserving subsampling, tuned by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from modicum.errors import CrudeControlVariateError, SettingError
from modicum.kernels.adaptation import schedule
from modicum.kernels.delayed import DelayedAcceptanceKernel
from modicum.methods.base import Method, Outcome, Plan, Task
from modicum.methods.ecs_guards import look_ahead, look_back
from modicum.methods.ecs_paper import PAPER_BLOCKS, burn_in
from modicum.methods.ecs_settings import DESIGNS, check
from modicum.methods.ecs_study import Study, where_rows_live
from modicum.methods.full_data import WholeLogPosterior
from modicum.passes import Anchor, anchor_at
from modicum.passes.mode import DENSE_LIMIT
from modicum.passes.whole import hold
from modicum.precision import in_double_precision
from modicum.run import History
from modicum.tuning import Choice

__all__ = ["HMCECS"]


@dataclass(frozen=True)
class HMCECS(Method):
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
    bias
        Largest shift of a posterior mean the perturbation may cause, in posterior standard
        deviations, by the pilot study.
    ddof
        1: unbiased variance estimate; 0: the paper's.
    floor
        Share of weighted draws that is uniform.
    precision
        "float64" or "float32": of the subsample's rows and residuals (sums are float64).
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
    blocks: int | None = None
    refreshes: int | None = None
    design: Literal["weighted", "uniform"] = "weighted"
    order: int = 2
    inner: Any = "hmc"
    trajectory: float = 1.2
    jitter: float = 0.0
    target_accept: float = 0.8
    step_size: float | None = None
    anchor: Any = "mode"
    bias: float = 0.05
    ddof: int = 1
    floor: float = 0.1
    precision: Literal["float64", "float32"] = "float64"
    exact: Literal["delayed"] | None = None
    tuning: Literal["auto", "paper"] = "auto"
    name: ClassVar[str] = "hmc-ecs"

    def __post_init__(self) -> None:
        check(self)
        if not isinstance(self.anchor, str):  # hashable and fully shown by repr
            point = np.asarray(self.anchor, np.float64)
            object.__setattr__(self, "anchor", tuple(float(t) for t in point.ravel()))

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Anchor, weights, pilot study, choice of m, G and K, kernel."""
        if "probability" in task.rows.fields:
            raise SettingError(
                "HMC-ECS calls the chance with which a row was drawn `probability`; give the "
                "field of that name another one."
            )
        if task.target.size > DENSE_LIMIT:
            raise CrudeControlVariateError(
                f"HMC-ECS forms the Hessian of all {task.target.size:,} parameters, which is "
                f"possible up to {DENSE_LIMIT:,}; use method='nuts' on all rows."
            )
        if self.tuning == "paper":
            anchor, subsample = burn_in(self, task)
            study = Study(self, task, anchor)
            choice = study.choose(PAPER_BLOCKS | {"subsample": subsample}, "as in the paper")
        else:
            anchor = self._anchor(task)
            study = Study(self, task, anchor)
            choice = study.choose()
        notes = look_ahead(self, study.pilot, choice, len(task.rows))
        kernel: Any = study.kernel(choice)
        context = study.context()
        if self.exact == "delayed":
            source, chunks = hold(task.rows)
            context |= {"data": chunks, "rows": jnp.asarray(len(task.rows))}
            kernel = DelayedAcceptanceKernel(kernel, WholeLogPosterior(task.target, source))
        return Plan(
            kernel=kernel,
            context=context,
            signals=schedule(task.tune, task.draws, False, adapt_step=self.step_size is None),
            anchor=anchor,
            rows=where_rows_live(task),
            numbers=study.numbers(choice),
            tuning=_explain(choice, self),
            notes=[*anchor.notes, *notes],
        )

    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Enter what full-data HMC would have cost, and look back at the run."""
        steps = sum(int(part["n_steps"].sum()) for part in (history.warmup, history.stats) if part)
        task.ledger.full_data = task.ledger.by_purpose.get("mode", 0) + steps * len(task.rows)
        plan.tuning["step_size"] = {
            "value": float(np.mean(history.stats["step_size"])),
            "why": "set by hand"
            if self.step_size is not None
            else f"dual averaging for an acceptance rate of {self.target_accept}",
        }
        found = [] if self.exact else look_back(plan.kernel, history)
        return Outcome(warnings=found)

    def _anchor(self, task: Task) -> Anchor:
        if self.anchor == "mode":
            return task.anchor_at_mode()
        point = np.asarray(self.anchor)
        if point.shape != task.start.shape:
            raise SettingError(
                f"the anchor has {point.size} entries, but the model has {task.start.size} "
                f"unconstrained parameters ({', '.join(task.names[:3])} ...)."
            )
        arrays = task.remember("anchor", lambda: anchor_at(task.sums, point).to_arrays())
        return Anchor.from_arrays(arrays)


def _explain(choice: Choice, method: HMCECS) -> dict[str, Any]:
    values = {
        "subsample": choice.subsample,
        "blocks": choice.blocks,
        "refreshes": choice.refreshes,
    }
    told: dict[str, Any] = {
        name: {"value": value, "why": choice.why[name]} for name, value in values.items()
    }
    told["design"] = {"value": method.design, "why": DESIGNS[method.design]}
    return told | {name: choice.why[name] for name in ("bias_bound", "variance")}
