"""Settings of HMC-ECS that make no sense are refused in a sentence.

What the methods of energy-conserving subsampling share: all but their estimator.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

import numpy as np

from modicum.errors import (
    CrudeControlVariateError,
    ModicumWarning,
    SettingError,
    is_number,
    whole_number,
)
from modicum.kernels.adaptation import schedule
from modicum.methods.base import Method, Plan, Task
from modicum.methods.ecs.pilot import Composition, Study, where_rows_live
from modicum.passes import Anchor, anchor_at
from modicum.passes.mode import DENSE_LIMIT
from modicum.run import History
from modicum.runtime import in_double_precision

__all__ = [
    "DESIGNS",
    "Composed",
    "EnergyConserving",
    "check_common",
    "check_perturbed",
    "check_signed",
]

DESIGNS = {
    "weighted": "rows are drawn in proportion to their expected residual over the posterior",
    "uniform": "every row alike, as in the papers",
}


def check_common(method: Any) -> None:
    """Refuse settings of any energy-conserving method that cannot work."""
    _check_counts(method, {"blocks": 1, "refreshes": 1})
    if method.design not in DESIGNS:
        raise SettingError(f"design must be 'weighted' or 'uniform', not {method.design!r}.")
    if method.order not in (0, 1, 2):
        raise SettingError(f"order must be 0, 1 or 2, not {method.order!r}.")
    if isinstance(method.inner, str) and method.inner not in ("hmc", "nuts"):
        raise SettingError(f"inner must be 'hmc', 'nuts' or a Move, not {method.inner!r}.")
    if method.precision not in ("float64", "float32"):
        raise SettingError("precision must be 'float64' or 'float32'.")
    if isinstance(method.anchor, str) and method.anchor != "mode":
        raise SettingError(f"anchor must be 'mode' or a point, not {method.anchor!r}.")
    _check_positive(method, ("trajectory", "step_size"))
    for name in ("target_accept", "floor"):
        value = getattr(method, name)
        if not is_number(value) or not 0 < value < 1:
            raise SettingError(f"{name} must lie between 0 and 1.")
    if not is_number(method.jitter) or not 0 <= method.jitter < 1:
        raise SettingError("jitter must lie between 0 and 1.")


def check_perturbed(method: Any) -> None:
    """Refuse settings of an `HMCECS` that cannot work."""
    _check_counts(method, {"subsample": 2})
    _check_positive(method, ("bias",))
    if method.ddof not in (0, 1):
        raise SettingError("ddof must be 1, or 0 for the paper's divisor.")
    if method.tuning not in ("auto", "paper"):
        raise SettingError(f"tuning must be 'auto' or 'paper', not {method.tuning!r}.")
    if method.tuning == "paper" and method.anchor != "mode":
        raise SettingError("tuning='paper' finds its own anchor; leave `anchor` out.")
    if method.exact not in (None, "delayed"):
        raise SettingError(f"exact must be None or 'delayed', not {method.exact!r}.")
    if method.exact and method.inner != "hmc":
        raise SettingError("exact='delayed' needs a reversible inner kernel: inner='hmc'.")
    _check_blocks(method.subsample, method.blocks, "a subsample of {} rows", "rows")


def check_signed(method: Any) -> None:
    """Refuse settings of a `SignedHMCECS` that cannot work."""
    _check_counts(method, {"products": 1, "batch": 1})
    if method.centre is not None and not is_number(method.centre):
        raise SettingError(
            f"centre must be a number, or None to have it chosen, not {method.centre!r}."
        )
    _check_blocks(method.products, method.blocks, "{} products", "products")


def _check_counts(method: Any, least: dict[str, int]) -> None:
    for name, smallest in least.items():
        value = getattr(method, name)
        if value is None:
            continue
        whole_number(name, value, smallest)


def _check_positive(method: Any, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(method, name)
        if value is not None and not (is_number(value) and value > 0):
            raise SettingError(f"{name} must be a positive number.")


def _check_blocks(number: int | None, blocks: int | None, called: str, unit: str) -> None:
    if number is not None and blocks is not None and number % blocks:
        raise SettingError(
            f"{called.format(number)} cannot be divided into {blocks} blocks; "
            f"take {blocks * ceil(number / blocks)} {unit} or another number of blocks."
        )


@dataclass
class Composed:
    """A study, what was composed by it, and what to tell about the choice."""

    study: Study
    parts: Composition
    tuning: dict[str, Any]
    notes: list[ModicumWarning] = field(default_factory=list)


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
            flags=schedule(task.tune, task.draws, False, adapt_step=self.step_size is None),
            anchor=study.anchor,
            rows=where_rows_live(task),
            floats_per_iteration=study.floats_per_iteration(parts),
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
