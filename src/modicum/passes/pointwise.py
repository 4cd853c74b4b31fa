"""The log-likelihood of each row at many points: of all rows in short, of a few rows in full.

No array holds all rows at all points. A pass over all rows keeps a few numbers per row; rows that
are asked for come in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models import Target
from modicum.models.base import Batch
from modicum.passes.blocks import compiled_pass, map_in_blocks
from modicum.passes.engine import padded_chunk
from modicum.passes.sums import Sums
from modicum.rows import Rows
from modicum.rows.groups import GroupedRows
from modicum.runtime import Array

__all__ = ["LeftOut", "approximately_left_out", "log_likelihoods"]

PIECE = 512  # rows whose log-likelihoods at all points are held at a time
TOGETHER = 16  # points that are evaluated at once


class LeftOut(NamedTuple):
    """What a few points say of each row, (rows,) each, in float32.

    Attributes
    ----------
    elpd
        Log predictive density with the row left out, by plain importance weights.
    lpd
        Log predictive density with the row among the data.
    variance
        Of the row's log-likelihood over the points.
    """

    elpd: np.ndarray
    lpd: np.ndarray
    variance: np.ndarray


def approximately_left_out(sums: Sums, points: np.ndarray, log_weight: np.ndarray) -> LeftOut:
    """By one pass over all rows, from points (points, d) with weights of their own."""
    sums.enter("leave-one-out", len(points), "density", passes=1)
    likelihood = sums.target.likelihood
    arguments = (np.ascontiguousarray(points[:, : likelihood.size]), log_weight)
    columns = sums.engine.map_rows(
        partial(_left_out, likelihood), arguments, sums.rows, "leave-one-out"
    )
    return LeftOut(*columns.T)


def log_likelihoods(
    target: Target, rows: Rows, row_ids: np.ndarray, points: np.ndarray
) -> Iterator[np.ndarray]:
    """Log-likelihoods (points, rows) of these rows, or groups, before frequency weights.

    They come piece after piece, in the order of `row_ids`.
    """
    likelihood = target.likelihood
    points = np.ascontiguousarray(points[:, : likelihood.size])
    for first in range(0, len(row_ids), PIECE):
        piece = rows.subset(row_ids[first : first + PIECE])
        grouped = isinstance(piece, GroupedRows)
        chunks = len(piece.chunk_starts) - 1 if isinstance(piece, GroupedRows) else 1
        for k in range(chunks):
            batch, present = padded_chunk(piece, k, 0 if grouped else PIECE)
            with jax.enable_x64(True):  # between two pieces the caller's own setting holds
                values = np.asarray(_log_likelihoods(likelihood, points, batch))
            yield values[:, present]


def _of_rows(target: Target, points: Array, batch: Batch) -> jax.Array:
    """(points, rows), in float64."""
    model = target.model

    def at_point(t: jax.Array) -> jax.Array:
        return model.log_likelihood(target.unravel(t), batch).astype(jnp.float64)

    values: jax.Array = jax.lax.map(at_point, points, batch_size=TOGETHER)
    return values


@compiled_pass
def _log_likelihoods(target: Target, points: Array, batch: Batch) -> jax.Array:
    return _of_rows(target, points, batch)


@compiled_pass
def _left_out(
    target: Target, arguments: tuple[Array, Array], batch: Batch, present: Array
) -> jax.Array:
    points, log_weight = arguments
    if target.scatters:
        return _short(log_weight, _of_rows(target, points, batch), batch)

    def of_block(block: Batch, present: Array) -> jax.Array:
        del present
        return _short(log_weight, _of_rows(target, points, block), block)

    return map_in_blocks(of_block, batch, present)


def _short(log_weight: Array, values: jax.Array, batch: Batch) -> jax.Array:
    """The columns of `LeftOut`, (rows, 3).

    Of a row that stands for several, one is left out; of one that counts less than one, all of it.
    """
    share = jnp.minimum(batch["weight"], 1.0) if "weight" in batch else 1.0
    log_weight = log_weight[:, None]
    without = jax.nn.log_softmax(log_weight - share * values, axis=0)
    weight = jax.nn.softmax(log_weight, axis=0)
    mean = jnp.sum(weight * values, axis=0)
    variance = jnp.sum(weight * (values - mean) ** 2, axis=0)
    elpd = jax.nn.logsumexp(without + values, axis=0)
    lpd = jax.nn.logsumexp(jnp.log(weight) + values, axis=0)
    return jnp.stack([elpd, lpd, variance], axis=1)
