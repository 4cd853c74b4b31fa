"""The log-likelihood of each row at many points: summaries for all rows, values for a few rows.

No array holds all rows at all points. A pass over all rows keeps a few numbers per row; values for
requested rows are returned in pieces.
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

PIECE = 512  # rows whose log-likelihoods at all points are held at a time
TOGETHER = 16  # points evaluated at a time


class LeftOut(NamedTuple):
    """Leave-one-out summaries of each row, from a few points, (rows,) each, in float32.

    Attributes
    ----------
    elpd
        Log predictive density with the row left out, by plain importance weights.
    lpd
        Log predictive density with the row included in the data.
    variance
        Variance of the row's log-likelihood over the points.
    """

    elpd: np.ndarray
    lpd: np.ndarray
    variance: np.ndarray


def approximately_left_out(sums: Sums, points: np.ndarray, log_weight: np.ndarray) -> LeftOut:
    """Summarise each row in one pass over all rows, from weighted points (points, d)."""
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
    """Yield log-likelihoods (points, rows) of these rows, or groups, without frequency weights.

    They come in pieces, in the order of `row_ids`.
    """
    likelihood = target.likelihood
    points = np.ascontiguousarray(points[:, : likelihood.size])
    for first in range(0, len(row_ids), PIECE):
        piece = rows.subset(row_ids[first : first + PIECE])
        grouped = isinstance(piece, GroupedRows)
        chunks = len(piece.chunk_starts) - 1 if isinstance(piece, GroupedRows) else 1
        for k in range(chunks):
            batch, present = padded_chunk(piece, k, 0 if grouped else PIECE)
            with jax.enable_x64(True):  # not while the generator is suspended
                values = np.asarray(_log_likelihoods(likelihood, points, batch))
            yield values[:, present]


def _evaluate(target: Target, points: Array, batch: Batch) -> jax.Array:
    """Return log-likelihoods (points, rows), in float64."""
    model = target.model

    def at_point(t: jax.Array) -> jax.Array:
        return model.log_likelihood(target.unravel(t), batch).astype(jnp.float64)

    values: jax.Array = jax.lax.map(at_point, points, batch_size=TOGETHER)
    return values


@compiled_pass
def _log_likelihoods(target: Target, points: Array, batch: Batch) -> jax.Array:
    return _evaluate(target, points, batch)


@compiled_pass
def _left_out(
    target: Target, arguments: tuple[Array, Array], batch: Batch, present: Array
) -> jax.Array:
    points, log_weight = arguments
    if target.scatters:
        return _summarise(log_weight, _evaluate(target, points, batch), batch)

    def of_block(block: Batch, present: Array) -> jax.Array:
        del present
        return _summarise(log_weight, _evaluate(target, points, block), block)

    return map_in_blocks(of_block, batch, present)


def _summarise(log_weight: Array, values: jax.Array, batch: Batch) -> jax.Array:
    """Return the columns of `LeftOut`, (rows, 3).

    If a row's frequency weight is above 1, one copy is left out; if below, all of the row.
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
