"""Scores (gradients of the log-posterior) at many points: from all rows, or a few per point.

With control variates about the mean t* of the points,

    score(t) = A + B (t - t*) + (n/m) sum_i [g_i(t) - g_i(t*) - H_i (t - t*)] + prior score,

is estimated without bias from m rows per point (eq. 4.7 of the HMC-ECS paper). Rows are drawn anew
for every point, so that errors at different points are independent.
"""

from __future__ import annotations

from math import ceil

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models import Target
from modicum.models.base import DENSE_LIMIT, Batch
from modicum.passes.sums import Sums
from modicum.random import Stream, generator
from modicum.runtime import Array, in_double_precision, jit

TOGETHER = 2**24  # floats of rows in memory for a group of points


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
    group = max(1, min(len(points), TOGETHER // (subsample * width)))
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
