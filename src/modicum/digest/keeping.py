"""Computes what a digest keeps: sums over all rows at a point, and a pool of rows.

One pass sums the expansion about the point, one computes the expected size of each row's residual,
and a third, on the host, counts how many rows are equal to each row of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from modicum.designs import weight_tables
from modicum.digest.pool import Pool, RowCounts, choose
from modicum.estimators import control_variate
from modicum.kernels.base import Proxy
from modicum.methods.weights import expected_residuals
from modicum.passes import Quadratic, Sums
from modicum.random import Stream, generator
from modicum.rows import Rows

PILOT = 8  # draws at which residuals of models without a linear predictor are evaluated
FLOOR = 0.1  # share of the pool that is drawn uniformly from all rows


def expansion(sums: Sums, point: np.ndarray) -> Quadratic:
    """Return sums over all rows to second order about `point`, in the likelihood's parameters."""
    size = sums.target.likelihood.size
    C, A, B = sums.hessian(np.append(point, np.zeros(sums.target.size - len(point))), "digest")
    return Quadratic(point, C, A[:size], B[:size, :size])


def proxy_at(point: np.ndarray, factor: np.ndarray) -> Proxy:
    """Return a proxy for residuals at t = point + factor z, without sums over rows."""
    return Proxy(jnp.asarray(point), jnp.asarray(factor), jnp.zeros(len(point)), None)


def keep(
    sums: Sums, point: np.ndarray, factor: np.ndarray, centre: np.ndarray, size: int, seed: int
) -> Pool:
    """Choose the rows of a pool, for a posterior normal about point + factor centre.

    Parameters
    ----------
    sums
        All rows, and the engine that passes over them.
    point
        The anchor, in all parameters of the target.
    factor
        L, with L L' the posterior's covariance.
    centre
        Posterior mean in whitened coordinates.
    size
        Number of rows to keep.
    seed
        Random seed.
    """
    rows = sums.rows
    if len(rows) <= size:
        row_ids, strata = np.arange(len(rows)), np.zeros(len(rows), np.int32)
        n = drawn = np.array([float(len(rows))])
    else:
        form = control_variate(sums.target, 2)
        d = len(point)
        proxy = proxy_at(point, factor)
        pilot = centre + generator(seed, Stream.PILOT_DRAWS).standard_normal((PILOT, d))
        rng = generator(seed, Stream.DIGEST_ROWS)
        tables = weight_tables(expected_residuals(sums, form, proxy, pilot), FLOOR)
        row_ids, strata, n, drawn = choose(tables, size, rng)
    pool = rows.subset(row_ids)
    count = _counts(sums, pool)
    part = np.zeros(len(n), np.int32)
    return Pool(pool, np.ones(len(row_ids)), count, strata, n, drawn, part)


def _counts(sums: Sums, pool: Rows) -> np.ndarray:
    """Return how many of all rows are equal to each row of the pool, itself included."""
    sought = RowCounts.of(pool)
    sums.ledger.add("digest", len(sums.rows), "density", passes=1)
    (counts,) = sums.engine.map_reduce(_count_in_batch, sought, sums.rows, "count")
    return np.asarray(counts)[sought.place]


def _count_in_batch(
    sought: RowCounts, batch: Mapping[str, np.ndarray], present: np.ndarray
) -> tuple[np.ndarray]:
    return (sought.among(batch, present),)
