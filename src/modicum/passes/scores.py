"""Scores, gradients of the log-posterior, at many points: from all rows, or from a few per point.

With control variates about the mean t* of the points,

    score(t) = A + B (t - t*) + (n/m) sum_i [g_i(t) - g_i(t*) - H_i (t - t*)] + prior score,

m rows per point estimate it without bias (eq. 4.7 of the HMC-ECS paper). Rows are drawn anew for
every point, so that errors at different points are independent.
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

__all__ = ["scores"]

TOGETHER = 2**24  # numbers of rows held for a group of points


@in_double_precision
def scores(sums: Sums, points: np.ndarray, subsample: int | None, seed: int = 0) -> np.ndarray:
    """Gradients of the log-posterior at `points` (points, d), exact if `subsample` is None."""
    prior = np.asarray(_prior_scores(sums.target, points))
    if subsample is None:
        return sums.gradients(points, "scores") + prior
    return _estimated(sums, points, subsample, seed) + prior


def _estimated(sums: Sums, points: np.ndarray, subsample: int, seed: int) -> np.ndarray:
    """Unbiased log-likelihood gradients at each point, from rows of its own."""
    centre = points.mean(axis=0)
    second = len(centre) <= DENSE_LIMIT  # else the expansion stops at the gradient
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
        at = (number * group + np.arange(group)) % len(points)  # the last group is filled up
        batch = rows.take(rng.integers(0, n, size=(group, subsample)))
        residuals.append(np.asarray(_residuals(sums.target, second, points[at], centre, batch)))
    sums.ledger.add("scores", len(points) * subsample, "gradient")
    return np.asarray(expansion + (n / subsample) * np.concatenate(residuals)[: len(points)])


@jit(static=(0, 1))
def _residuals(
    target: Target, second: bool, points: Array, centre: Array, batches: Batch
) -> jax.Array:
    """What the expansion about `centre` leaves of the gradient of each point's rows."""

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
