"""What the methods of energy-conserving subsampling share: all but their estimator."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from modicum.errors import CrudeControlVariateError, SettingError
from modicum.kernels.adaptation import schedule
from modicum.methods.base import Method, Plan, Task
from modicum.methods.ecs_settings import DESIGNS, check_common
from modicum.methods.ecs_study import Composition, Study, where_rows_live
from modicum.passes import Anchor, anchor_at
from modicum.passes.mode import DENSE_LIMIT
from modicum.precision import in_double_precision
from modicum.run import History

__all__ = ["Composed", "EnergyConserving"]


@dataclass
class Composed:
    """A study, what was composed by it, and what to tell about the choice."""

    study: Study
    parts: Composition
    tuning: dict[str, Any]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class EnergyConserving(Method):
    """Subsampling whose dynamics and accept step use the same rows.

    The settings that do not depend on the estimator; see `HMCECS`.
    """

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
    floor: float = 0.1
    precision: Literal["float64", "float32"] = "float64"

    def __post_init__(self) -> None:
        check_common(self)
        if not isinstance(self.anchor, str):  # hashable and fully shown by repr
            point = np.asarray(self.anchor, np.float64)
            object.__setattr__(self, "anchor", tuple(float(t) for t in point.ravel()))

    @abstractmethod
    def compose(self, task: Task) -> Composed:
        """Study the residuals, choose the subsample, compose estimator and subsample."""

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Anchor, weights, pilot study, choice of the subsample, kernel."""
        _check_task(task)
        composed = self.compose(task)
        study, parts = composed.study, composed.parts
        design = {"value": self.design, "why": DESIGNS[self.design]}
        return Plan(
            kernel=study.kernel(parts),
            context=study.context(parts),
            signals=schedule(task.tune, task.draws, False, adapt_step=self.step_size is None),
            anchor=study.anchor,
            rows=where_rows_live(task),
            numbers=study.numbers(parts),
            start_rows=parts.subsample,
            tuning=composed.tuning | {"design": design},
            notes=[*study.anchor.notes, *composed.notes],
        )

    def account(self, task: Task, plan: Plan, history: History) -> None:
        """Enter what full-data HMC would have cost, and the step size that was found."""
        steps = sum(int(part["n_steps"].sum()) for part in (history.warmup, history.stats) if part)
        task.ledger.full_data = task.ledger.by_purpose.get("mode", 0) + steps * len(task.rows)
        plan.tuning["step_size"] = {
            "value": float(np.mean(history.stats["step_size"])),
            "why": "set by hand"
            if self.step_size is not None
            else f"dual averaging for an acceptance rate of {self.target_accept}",
        }

    def find_anchor(self, task: Task) -> Anchor:
        """Return the anchor asked for."""
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


def _check_task(task: Task) -> None:
    task.check_fields("HMC-ECS")
    if task.target.size > DENSE_LIMIT:
        raise CrudeControlVariateError(
            f"HMC-ECS forms the Hessian of all {task.target.size:,} parameters, which is "
            f"possible up to {DENSE_LIMIT:,}; use method='nuts' on all rows."
        )
