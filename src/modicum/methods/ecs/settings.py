"""The base of perturbed and signed HMC-ECS: settings, the anchor, and cost accounting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, pi
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from modicum.errors import CrudeControlVariateError, SettingError, is_number, whole_number
from modicum.kernels.designs import DESIGNS
from modicum.kernels.moves import HMCMove, import_ahead
from modicum.kernels.protocols import Move
from modicum.methods.method import Method, Task, check_memory_limit
from modicum.methods.without_mode import NoMeanError, anchor_at_mean, may_have_mean
from modicum.models.model import DENSE_LIMIT
from modicum.passes import Anchor, anchor_at
from modicum.rows.grouped_rows import members_of
from modicum.run import RowPlacement, executables

Fused: TypeAlias = bool | Literal["auto"]
ANCHORS = ("mode", "mean")
Integrator: TypeAlias = Literal["auto", "leapfrog", "split"]
LEAPFROG_LENGTH = 1.2  # length of a trajectory, as in the HMC-ECS paper (section 6.3)
QUARTER_TURN = pi / 2  # length after which a standard normal is independent of its start


@dataclass(frozen=True, kw_only=True)
class EnergyConserving(Method):
    """Subsampling in which the dynamics and the accept step use the same rows.

    It holds the settings that do not depend on the estimator; see `HMCECS`.
    """

    blocks: int | None = None
    refreshes: int | None = None
    design: str = "weighted"
    order: int = 2
    inner: str | Move = "hmc"
    trajectory: float | None = None
    integrator: Integrator = "auto"
    jitter: float = 0.0
    target_accept: float = 0.8
    step_size: float | None = None
    anchor: str | tuple[float, ...] | np.ndarray = "mode"
    floor: float = 0.1
    certainty: int | Literal["auto"] = "auto"
    levels: bool | Literal["auto"] = "auto"
    precision: Literal["float64", "float32"] = "float64"
    whitening: Literal["auto", "float64"] = "auto"
    memory_limit: int | None = None
    fused: Fused = "auto"
    of_digests: ClassVar[bool] = True
    # Whether rows are weighted by the spread of pilot chains if the posterior is not normal.
    weighted_by_spread: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check()
        if not isinstance(self.anchor, str):  # hashable and fully shown by repr
            point = np.asarray(self.anchor, np.float64)
            object.__setattr__(self, "anchor", tuple(float(t) for t in point.ravel()))

    def _check(self) -> None:
        """Raise on invalid settings."""
        check_counts({"blocks": self.blocks, "refreshes": self.refreshes})
        # Blocks are replaced one by one, which rules out designs that draw a whole batch jointly.
        usable = [k for k, v in DESIGNS.items() if v.independent and v.needs != "clusters"]
        if self.design not in usable:
            names = " or ".join(map(repr, usable))
            raise SettingError(f"design must be {names}, not {self.design!r}.")
        if self.certainty != "auto":
            whole_number("certainty", self.certainty, 0)
        if self.levels not in ("auto", True, False):
            raise SettingError(f"levels must be 'auto', True or False, not {self.levels!r}.")
        check_memory_limit(self.memory_limit)
        check_fused(self.fused)
        if self.order not in (0, 1, 2):
            raise SettingError(f"order must be 0, 1 or 2, not {self.order!r}.")
        if isinstance(self.inner, str) and self.inner not in ("hmc", "nuts"):
            raise SettingError(f"inner must be 'hmc', 'nuts' or a Move, not {self.inner!r}.")
        if self.integrator not in ("auto", "leapfrog", "split"):
            raise SettingError(
                f"integrator must be 'auto', 'leapfrog' or 'split', not {self.integrator!r}."
            )
        if self.integrator != "auto" and self.inner != "hmc":
            raise SettingError(
                f"integrator={self.integrator!r} is for inner='hmc'; other moves have their own."
            )
        if self.precision not in ("float64", "float32"):
            raise SettingError("precision must be 'float64' or 'float32'.")
        if self.whitening not in ("auto", "float64"):
            raise SettingError(f"whitening must be 'auto' or 'float64', not {self.whitening!r}.")
        if isinstance(self.anchor, str) and self.anchor not in ANCHORS:
            raise SettingError(f"anchor must be 'mode', 'mean' or a point, not {self.anchor!r}.")
        check_positive({"trajectory": self.trajectory, "step_size": self.step_size})
        for name, share in (("target_accept", self.target_accept), ("floor", self.floor)):
            if not is_number(share) or not 0 < share < 1:
                raise SettingError(f"{name} must lie between 0 and 1.")
        if not is_number(self.jitter) or not 0 <= self.jitter < 1:
            raise SettingError("jitter must lie between 0 and 1.")

    def hmc(self, split: bool) -> HMCMove:
        """Return the inner HMC with either integrator, of the length set or usual for it."""
        usual = QUARTER_TURN if split else LEAPFROG_LENGTH
        length = usual if self.trajectory is None else self.trajectory
        return HMCMove(length, jitter=self.jitter, split=split)

    @property
    def at_mode(self) -> bool:
        """Whether control variates are expanded about the mode."""
        return isinstance(self.anchor, str) and self.anchor == "mode"

    @property
    def at_mean(self) -> bool:
        """Whether control variates are expanded about the mean of short chains."""
        return isinstance(self.anchor, str) and self.anchor == "mean"

    @property
    def anchor_name(self) -> str:
        """The anchor in a word: "mode", "mean" or "anchor"."""
        return str(self.anchor) if isinstance(self.anchor, str) else "anchor"

    def check_task(self, task: Task) -> None:
        """Refuse rows and models that HMC-ECS cannot handle with any setting."""
        task.check_fields("HMC-ECS")
        if task.target.size > DENSE_LIMIT and task.target.arrow is None:
            besides = " besides the effects of one factor" if task.target.model.has_groups else ""
            raise CrudeControlVariateError(
                f"HMC-ECS needs the Hessian of all {task.target.size:,} parameters, and the limit "
                f"is {DENSE_LIMIT:,}{besides}",
                "use method='nuts' on all rows",
            )

    def start_copying(self, task: Task) -> RowPlacement:
        """Start copying the rows for the chains: in the background, which takes one core."""
        return RowPlacement(members_of(task.rows), self.memory_limit)

    def find_anchor(self, task: Task) -> Anchor:
        """Return the anchor at the mode, at the mean, or at the user's point."""
        if self.inner != "hmc" or self.at_mean:
            import_ahead()
        executables.get_ready()
        if self.at_mode:
            return task.anchor_at_mode()
        if self.at_mean:
            if not may_have_mean(task):
                raise NoMeanError(
                    "anchor='mean' is for models of your own on thousands of rows, of which a "
                    "subset can locate the posterior; use anchor='mode', or method='nuts'."
                )
            return anchor_at_mean(task).anchor
        point = np.asarray(self.anchor, np.float64)
        if point.shape != task.start.shape:
            raise SettingError(
                f"the anchor has {point.size} entries, but the model has {task.start.size} "
                f"unconstrained parameters ({', '.join(task.names[:3])} ...)."
            )
        return task.remember(
            "anchor", lambda: anchor_at(task.sums, point).to_arrays(), Anchor.from_arrays
        )


def check_counts(counts: Mapping[str, int | None], least: int = 1) -> None:
    """Raise unless every count is None or a whole number of at least `least`."""
    for name, value in counts.items():
        if value is not None:
            whole_number(name, value, least)


def check_positive(numbers: Mapping[str, float | None]) -> None:
    """Raise unless every setting is None or a positive number."""
    for name, value in numbers.items():
        if value is not None and not (is_number(value) and value > 0):
            raise SettingError(f"{name} must be a positive number.")


def check_blocks(number: int | None, blocks: int | None, phrase: str, unit: str) -> None:
    """Raise unless `blocks` divides `number`; `phrase` describes it, such as "{} products"."""
    if number is not None and blocks is not None and number % blocks:
        raise SettingError(
            f"{phrase.format(number)} cannot be divided into {blocks} blocks; "
            f"use {blocks * ceil(number / blocks)} {unit} or another number of blocks."
        )


def check_tuning(tuning: str, method: EnergyConserving) -> None:
    """Refuse an unknown schedule, or one that would ignore the user's settings."""
    if tuning not in ("auto", "paper"):
        raise SettingError(f"tuning must be 'auto' or 'paper', not {tuning!r}.")
    if tuning == "paper" and not method.at_mode:
        raise SettingError("tuning='paper' finds its own anchor; leave `anchor` out.")
    if tuning == "paper" and method.certainty not in ("auto", 0):
        raise SettingError("tuning='paper' draws all its rows; leave `certainty` out.")


def check_fused(fused: object) -> None:
    """Raise unless the setting is a bool or "auto"."""
    if not isinstance(fused, bool) and fused != "auto":
        raise SettingError(f'fused must be True, False or "auto", not {fused!r}.')
