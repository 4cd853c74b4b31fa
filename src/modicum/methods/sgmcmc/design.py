"""Designs of stochastic-gradient methods: uniform, weighted by expected gradients, clusters."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from modicum.designs import DESIGNS, Design, RowFacts
from modicum.errors import SettingError
from modicum.estimators import control_variate, proxy
from modicum.kernels.base import Pytree
from modicum.methods.base import Task
from modicum.methods.weights import design_tables, expected_residuals
from modicum.models.base import Batch
from modicum.models.matrix import model_matrix
from modicum.passes import Anchor
from modicum.passes.blocks import map_in_blocks
from modicum.random import Stream, generator
from modicum.rows import Coding
from modicum.runtime import Array, jit

__all__ = ["design_of"]

CLUSTERED_ROWS = 20_000  # rows k-means learns its centres from
FLOOR = 0.1  # share of weighted draws that is uniform
UNCLUSTERED = ("weight", "offset", "probability")


class Designed(Protocol):
    """The settings of a method that say how rows are drawn."""

    @property
    def design(self) -> str:
        """The design's name."""
        ...

    @property
    def clusters(self) -> int:
        """How many clusters a stratified design has."""
        ...

    @property
    def batch(self) -> int:
        """Rows drawn at a time."""
        ...


def design_of(
    method: Designed, task: Task, anchor: Anchor | None, order: int
) -> tuple[Design[Any], Pytree]:
    """The design a method names, and its tables."""
    design = DESIGNS[method.design]()

    def expected() -> np.ndarray:
        assert anchor is not None
        return _expected(task, anchor, order)

    def clusters() -> np.ndarray:
        return _clusters(task, int(method.clusters))

    facts = RowFacts(len(task.rows), int(method.batch), expected, clusters, FLOOR)
    return design, jax.tree.map(jnp.asarray, design_tables(task, design, facts))


def _expected(task: Task, anchor: Anchor, order: int) -> np.ndarray:
    """Expected residuals of this order: in size they are like the gradients of a batch."""
    target = task.target
    draws = generator(task.seed, Stream.PILOT_DRAWS).standard_normal((8, target.size))
    return expected_residuals(
        task.sums, control_variate(target, order), proxy(anchor, target, order), draws
    )


def _clusters(task: Task, count: int) -> np.ndarray:
    """Cluster of each row, by k-means on the rows' fields (Fu and Zhang 2017).

    Columns are brought to unit scale; one that hardly varies beside the others stays small.
    """
    from scipy.cluster.vq import kmeans2  # slow to import, and seldom needed

    rows, n = task.rows, len(task.rows)
    if count > n:
        raise SettingError(f"{n:,} rows cannot make {count:,} clusters; ask for fewer.")
    rng = generator(task.seed, Stream.CLUSTERS)
    some = np.sort(rng.choice(n, min(n, CLUSTERED_ROWS), replace=False))
    columns = np.asarray(_columns(_formed(rows.coding, rows.take(some))), np.float64)
    spread = columns.std(axis=0)
    scale = np.maximum(spread, 0.1 * spread.max()) if spread.max() > 0 else np.ones_like(spread)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a cluster may well be left empty
        centres, _ = kmeans2(columns / scale, count, minit="++", rng=rng)
    to_nearest = partial(_nearest, rows.coding)
    nearest = task.sums.engine.map_rows(to_nearest, (centres, scale), rows, "clusters")
    return nearest.astype(np.int64)


def _columns(batch: Batch) -> jax.Array:
    kept = [values for name, values in sorted(batch.items()) if name not in UNCLUSTERED]
    return jnp.concatenate([jnp.reshape(v, (len(v), -1)) for v in kept], axis=1)


def _formed(coding: Coding | None, batch: Batch) -> Batch:
    """Fields whose codes, where there are some, are columns of x."""
    if coding is None:
        return batch
    others = {name: values for name, values in batch.items() if name not in coding.fields}
    return others | {"x": model_matrix(coding, batch).densely()}


@jit(static=0)
def _nearest(
    coding: Coding | None, arguments: tuple[Array, Array], batch: Batch, present: Array
) -> jax.Array:
    if coding is None:
        return _nearest_centre(arguments, batch)
    return map_in_blocks(  # columns are formed of a few rows at a time
        lambda part, _: _nearest_centre(arguments, _formed(coding, part)), batch, present
    )


def _nearest_centre(arguments: tuple[Array, Array], batch: Batch) -> jax.Array:
    centres, scale = arguments
    at = _columns(batch) / scale
    # |a - c|^2 less |a|^2, which is the same for all centres
    return jnp.argmin(jnp.sum(centres**2, axis=1) - 2 * at @ centres.T, axis=1)
