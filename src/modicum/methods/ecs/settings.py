"""The base of perturbed and signed HMC-ECS: settings, the anchor, and cost accounting."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, pi
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np

from modicum.arguments import BelowOne, Bytes, Count, Point, Positive, Share, among, at_least
from modicum.errors import CrudeControlVariateError, SettingError
from modicum.kernels.designs import DESIGNS
from modicum.kernels.moves import HMCMove, import_ahead
from modicum.methods.method import Method, OwnMove, Task
from modicum.methods.without_mode import NoMeanError, anchor_at_mean, may_have_mean
from modicum.models.model import DENSE_LIMIT
from modicum.passes import Anchor, anchor_at
from modicum.run.iterations import RowPlacement

Fused: TypeAlias = bool | Literal["auto"]
Integrator: TypeAlias = Literal["auto", "leapfrog", "split"]
LEAPFROG_LENGTH = 1.2  # length of a trajectory, as in the HMC-ECS paper (section 6.3)
QUARTER_TURN = pi / 2  # length after which a standard normal is independent of its start


@dataclass(frozen=True, kw_only=True)
class EnergyConserving(Method):
    """Subsampling in which the dynamics and the accept step use the same rows.

    It holds the settings that do not depend on the estimator; see `HMCECS`.
    """

    blocks: Count | None = None
    refreshes: Count | None = None
    design: str = "weighted"
    order: Annotated[int, among(0, 1, 2)] = 2
    inner: Literal["hmc", "nuts"] | OwnMove = "hmc"
    trajectory: Positive | None = None
    integrator: Integrator = "auto"
    jitter: BelowOne = 0.0
    target_accept: Share = 0.8
    step_size: Positive | None = None
    anchor: Literal["mode", "mean"] | Point = "mode"
    floor: Share = 0.1
    certainty: Annotated[int, at_least(0)] | Literal["auto"] = "auto"
    levels: bool | Literal["auto"] = "auto"
    precision: Literal["float64", "float32"] = "float64"
    whitening: Literal["auto", "float64"] = "auto"
    memory_limit: Bytes | None = None
    fused: Fused = "auto"
    of_digests: ClassVar[bool] = True
    # Whether rows are weighted by the spread of pilot chains if the posterior is not normal.
    weighted_by_spread: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.anchor, str):  # hashable and fully shown by repr
            point = np.asarray(self.anchor, np.float64)
            object.__setattr__(self, "anchor", tuple(float(t) for t in point.ravel()))
        # Blocks are replaced one by one, which rules out designs that draw a whole batch jointly.
        usable = [k for k, v in DESIGNS.items() if v.independent and v.needs != "clusters"]
        if self.design not in usable:
            names = " or ".join(map(repr, usable))
            raise SettingError(f"design must be {names}, not {self.design!r}.")
        if self.integrator != "auto" and self.inner != "hmc":
            raise SettingError(
                f"integrator={self.integrator!r} is for inner='hmc'; other moves have their own."
            )

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
        return RowPlacement(task.rows.members, self.memory_limit)

    def find_anchor(self, task: Task) -> Anchor:
        """Return the anchor at the mode, at the mean, or at the user's point."""
        if self.inner != "hmc" or self.at_mean:
            import_ahead()
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


def check_blocks(number: int | None, blocks: int | None, phrase: str, unit: str) -> None:
    """Raise unless `blocks` divides `number`; `phrase` describes it, such as "{} products"."""
    if number is not None and blocks is not None and number % blocks:
        raise SettingError(
            f"{phrase.format(number)} cannot be divided into {blocks} blocks; "
            f"use {blocks * ceil(number / blocks)} {unit} or another number of blocks."
        )


def check_tuning(tuning: str, method: EnergyConserving) -> None:
    """Refuse a schedule that would ignore the user's settings."""
    if tuning == "paper" and not method.at_mode:
        raise SettingError("tuning='paper' finds its own anchor; leave `anchor` out.")
    if tuning == "paper" and method.certainty not in ("auto", 0):
        raise SettingError("tuning='paper' draws all its rows; leave `certainty` out.")
