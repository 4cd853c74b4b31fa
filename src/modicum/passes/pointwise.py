"""Log-likelihoods of rows, and scores, at many points.

No array holds all rows at all points: a pass over all rows keeps a few numbers per row, and values
for requested rows are returned in pieces.

Scores, gradients of the log-posterior, are computed from all rows or from a few per point. With
control variates about the mean t* of the points,

    score(t) = A + B (t - t*) + (n/m) sum_i [g_i(t) - g_i(t*) - H_i (t - t*)] + prior score,

is estimated without bias from m rows per point (eq. 4.7 of the HMC-ECS paper). Rows are drawn anew
for every point, so that errors at different points are independent.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models import Target
from modicum.models.model import DENSE_LIMIT, Batch
from modicum.passes.engine import compiled_pass, map_in_blocks
from modicum.passes.sums import Sums
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.runtime import Array, in_double_precision, jit

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
        for k in range(len(piece.bounds(PIECE))):
            batch, present = piece.chunk(k, PIECE)
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


_log_likelihoods = compiled_pass(_evaluate)


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


NUMBERS_AT_ONCE = 2**24  # floats of rows in memory for a group of points


@in_double_precision
def scores(sums: Sums, points: np.ndarray, subsample: int | None, seed: int = 0) -> np.ndarray:
    """Return gradients of the log-posterior at `points` (points, d); exact without `subsample`."""
    prior = np.asarray(_prior_scores(sums.target, points))
    if subsample is None:
        return sums.gradients(points, "scores") + prior
    return _estimated(sums, points, subsample, seed) + prior


def _estimated(sums: Sums, points: np.ndarray, subsample: int, seed: int) -> np.ndarray:
    """Estimate the log-likelihood gradient at each point without bias, from its own rows."""
    centre = points.mean(axis=0)
    second = len(centre) <= DENSE_LIMIT  # whether the expansion has a second-order term
    if second:
        _, gradient, hessian = sums.hessian(centre, "anchor")
        expansion = gradient + (points - centre) @ hessian
    else:
        expansion = np.broadcast_to(sums.gradient(centre, "anchor")[1], points.shape)
    rng, n, rows = generator(seed, Stream.SCORE_ROWS), len(sums.rows), sums.rows
    width = max(1, rows.row_bytes // rows.dtype.itemsize)
    group = max(1, min(len(points), NUMBERS_AT_ONCE // (subsample * width)))
    residuals = []
    for number in range(ceil(len(points) / group)):
        at = (number * group + np.arange(group)) % len(points)  # wraps around in the last group
        batch = rows.take(rng.integers(0, n, size=(group, subsample)))
        residuals.append(np.asarray(_residuals(sums.target, second, points[at], centre, batch)))
    sums.ledger.add("scores", len(points) * subsample, "gradient")
    return np.asarray(expansion + (n / subsample) * np.concatenate(residuals)[: len(points)])


@jit(static=(0, 1))
def _residuals(
    target: Target, second: bool, points: Array, centre: Array, batches: Batch
) -> jax.Array:
    """Return the gradient of each point's rows minus its expansion about `centre`."""

    def of_point(point: Array, batch: Batch) -> jax.Array:
        gradient = jax.grad(lambda t: jnp.sum(target.log_likelihood(t, batch)))
        if not second:
            return gradient(point) - gradient(centre)
        at_centre, along = jax.jvp(gradient, (centre,), (point - centre,))
        return gradient(point) - at_centre - along

    return jax.vmap(of_point)(points, batches)


@jit(static=0)
def _prior_scores(target: Target, points: Array) -> jax.Array:
    return jax.vmap(jax.grad(target.log_prior))(points)
