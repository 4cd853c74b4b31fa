"""The coordinates of a stochastic-gradient chain, whitened or not, and where it starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import ref

import jax
import jax.numpy as jnp
import numpy as np

from modicum.designs import DESIGNS
from modicum.errors import ConvergenceError, ModicumWarning, SettingError
from modicum.methods.base import Coordinates, Parameters, Task
from modicum.models import BaseModel, Target
from modicum.models.base import DENSE_LIMIT
from modicum.passes import Anchor
from modicum.rows import Rows

Start = str | tuple[float, ...] | np.ndarray | None


@dataclass(frozen=True)
class RandomStart:
    """A start drawn by the model for each key, so that chains of a network begin apart.

    It is part of a kernel, which is a key of the compilation cache. So two of them are equal if
    their parameters and rows have the same layout, and the rows, which are read only during
    compilation, are held by a weak reference.
    """

    target: Target
    fields: tuple[tuple[str, tuple[int, ...]], ...]
    rows: ref[Rows] = field(compare=False)

    def __call__(self, key: jax.Array) -> jax.Array:
        """Return the flat vector of parameters."""
        rows = self.rows()
        assert rows is not None
        leaves = jax.tree.leaves(self.target.model.random_start(rows, key))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])


class PlacementSettings(Protocol):
    """The settings of a method that determine coordinates and starts of its chains."""

    @property
    def design(self) -> str:
        """How rows are drawn."""
        ...

    @property
    def whiten(self) -> bool | None:
        """Whether chains move in whitened coordinates."""
        ...

    @property
    def start(self) -> Start:
        """Where chains start."""
        ...

    @property
    def spread(self) -> float | None:
        """Scatter of the starts."""
        ...


@dataclass(frozen=True)
class Placement:
    """Coordinates of a run, and where its chains start in them."""

    coordinates: Coordinates
    anchor: Anchor | None  # with the factor of the coordinates
    whitened: bool
    start: np.ndarray  # in the chain's coordinates
    spread: np.ndarray  # factor of the scatter about `start`
    random_start: RandomStart | None = None  # replaces `start`
    notes: list[ModicumWarning] = field(default_factory=list)


def place_chains(method: PlacementSettings, task: Task, control_variates: bool) -> Placement:
    """Find the mode if it is needed, and place the chains."""
    d = task.target.size
    whiten = d <= DENSE_LIMIT if method.whiten is None else method.whiten
    uses = {
        "whiten=True": whiten,
        "control variates": control_variates,
        f"design={method.design!r}": DESIGNS[method.design].needs == "expected",
        "start='mode'": isinstance(method.start, str) and method.start == "mode",
    }
    reasons = [name for name, is_used in uses.items() if is_used]
    if reasons and d > DENSE_LIMIT:
        raise SettingError(
            f"{reasons[0]} needs the Hessian of all {d:,} parameters, and the limit is "
            f"{DENSE_LIMIT:,}; leave it out, and use whiten=False and a start of your own."
        )
    at_mode = _anchor(task, reasons[0]) if reasons else None
    coordinates, anchor = _coordinates(at_mode, whiten, d)
    start, scatter = _start(method, task, coordinates, at_mode, whiten)
    random_start = None if whiten or not _is_models(method.start, at_mode) else _random_start(task)
    notes = [] if at_mode is None else at_mode.notes
    return Placement(coordinates, anchor, whiten, start, scatter, random_start, notes)


def _is_models(start: Start, at_mode: Anchor | None) -> bool:
    """Whether chains start at the model's start."""
    return at_mode is None if start is None else isinstance(start, str) and start == "model"


def _random_start(task: Task) -> RandomStart | None:
    """Return random starts, if the model draws them."""
    if type(task.target.model).random_start is BaseModel.random_start:
        return None
    return RandomStart(task.target, tuple(task.rows.fields.items()), ref(task.rows))


def _anchor(task: Task, reason: str) -> Anchor:
    try:
        return task.anchor_at_mode()
    except ConvergenceError as fault:
        raise ConvergenceError(
            f"{fault} ({reason} needs the mode; whiten=False, a step_size for the parameters "
            "themselves and a plain minibatch do not.)"
        ) from fault


def _coordinates(at_mode: Anchor | None, whiten: bool, d: int) -> tuple[Coordinates, Anchor | None]:
    if at_mode is None:
        return Parameters(np.zeros(d)), None
    if whiten:
        return at_mode, at_mode
    # Parameters relative to the mode; the anchor's sums are needed in these coordinates.
    return Parameters(at_mode.point, record=at_mode.record), replace(at_mode, factor=np.eye(d))


def _start(
    method: PlacementSettings,
    task: Task,
    coordinates: Coordinates,
    at_mode: Anchor | None,
    whiten: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return where chains start, and the factor of their scatter."""
    start = method.start
    if start is None:
        start = "model" if _is_models(start, at_mode) else "mode"
    if isinstance(start, str) and start == "mode":
        assert at_mode is not None
        spread = 1.0 if method.spread is None else method.spread
        scatter = np.ones(()) if whiten else at_mode.dense_factor  # a draw about the mode
        return np.zeros(task.target.size), spread * scatter
    named = {"zero": np.zeros(task.target.size), "model": task.start}
    point = named[start] if isinstance(start, str) else np.asarray(start, np.float64)
    if point.shape != task.start.shape:
        raise SettingError(
            f"the start has {point.size} entries, but the model has {task.start.size} "
            f"unconstrained parameters ({', '.join(task.names[:3])} ...)."
        )
    away = point - coordinates.point
    factor = coordinates.factor
    assert isinstance(factor, np.ndarray)  # effects of groups are refused
    z = np.linalg.solve(factor, away) if whiten else away
    return z, np.asarray(0.0 if method.spread is None else method.spread)
