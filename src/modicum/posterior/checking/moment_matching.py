"""Leave out rows whose removal moves the posterior beyond the reach of its draws.

No weights help if the draws do not cover the posterior without the row. Newton's method finds that
posterior's mode, from the mode with the row, in a few passes; and the row's predictive density is
the ratio of two normalising constants, Z with the row and Z_i without it,

    log p(y_i | y_-i) = log Z - log Z_i,

each an average of importance weights at points of a normal fitted to its posterior, with all rows
evaluated at all points in one pass. Pareto k shows whether the normals fit. (Paananen,
Piironen, Bürkner and Vehtari 2021 move the draws until their moments match, in passes per row.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modicum.ledger import Ledger
from modicum.models.base import DENSE_LIMIT
from modicum.passes import LocalEngine, Sums
from modicum.passes.pointwise import log_likelihoods
from modicum.passes.prior import expanded_prior
from modicum.posterior.checking.evidence import NormalProposal, average, log_joint
from modicum.random import Stream, generator

POINTS = 1_000  # at which all rows are evaluated, per row that is left out
WORST_TAIL = 1 - 1 / np.log10(POINTS)  # largest reliable Pareto k for this number of points
MOST_UNITS = 20  # rows left out this way; if more need it, the model is at fault
STEPS = 50  # most Newton steps, including halved ones
CLOSE = 1e-3  # Newton's method stops at a step this long, in posterior standard deviations
ROUNDING = 1e-12  # relative decrease of a log-density that counts as rounding


class LeftOutAnew(NamedTuple):
    """Log predictive density of rows that were left out, and Pareto k of their weights."""

    elpd: np.ndarray
    pareto_k: np.ndarray


def leave_out_anew(
    sums: Sums,
    mean: np.ndarray,
    row_ids: np.ndarray,
    share: np.ndarray,
    random_seed: int,
) -> LeftOutAnew:
    """Leave out a `share` of each of these rows (or groups); k is infinite where that fails.

    `mean` is the posterior mean.
    """
    result = LeftOutAnew(np.full(len(row_ids), np.nan), np.full(len(row_ids), np.inf))
    if len(mean) > DENSE_LIMIT:
        return result
    units = [(int(row), float(part)) for row, part in zip(row_ids, share, strict=True)]
    about = _expand(sums, mean).normal()
    if about is None:
        return result
    rng = generator(random_seed, Stream.LEFT_OUT_POINTS)
    without = [(k, _normal_without(sums, about.mean, *unit)) for k, unit in enumerate(units)]
    placed = [(k, normal) for k, normal in without if normal is not None]
    normals = [about, *(normal for _, normal in placed)]
    drawn = np.stack([normal.draw(rng, POINTS) for normal in normals])
    log_ratio = log_joint(sums, drawn.reshape(-1, len(mean)), "leave-one-out").reshape(-1, POINTS)
    log_ratio -= [normal.log_density(at) for normal, at in zip(normals, drawn, strict=True)]
    for (k, _), points, ratio in zip(placed, drawn[1:], log_ratio[1:], strict=True):
        row, part = units[k]
        above, tail = average(log_ratio[0] + (1 - part) * _row_values(sums, row, drawn[0]))
        below, tail_below = average(ratio - part * _row_values(sums, row, points))
        result.elpd[k] = above.value - below.value
        result.pareto_k[k] = max(tail, tail_below)
    return result


class _Expansion(NamedTuple):
    """A log-density expanded about a point: value, gradient and negative Hessian."""

    value: float
    centre: np.ndarray
    slope: np.ndarray
    precision: np.ndarray

    def normal(self) -> NormalProposal | None:
        """Return the normal with this log-density; None if the precision is not positive."""
        if not np.isfinite(self.precision).all():
            return None
        try:
            factor = np.linalg.inv(np.linalg.cholesky(self.precision)).T
        except np.linalg.LinAlgError:
            return None
        return NormalProposal(self.centre + factor @ (factor.T @ self.slope), factor)


def _normal_without(sums: Sums, start: np.ndarray, row: int, share: float) -> NormalProposal | None:
    """Return the normal at the mode of the posterior without a row; None if there is no mode."""
    alone = sums.rows.subset(np.array([row]))
    weight = share
    if "weight" in alone.fields:
        weight = share / float(alone.slice(0, 1)["weight"][0])
    own = Sums(sums.target, alone, LocalEngine(progressbar=False), Ledger(rows=1))
    best, base, step = -np.inf, start, np.zeros_like(start)
    for _ in range(STEPS):
        at = base + step
        with_row, removed = _expand(sums, at), own.hessian(at, "leave-one-out")
        value = with_row.value - weight * removed[0]
        if not value >= best - ROUNDING * abs(best):  # overshot: halve the step
            step = step / 2
            continue
        slope = with_row.slope - weight * removed[1]
        normal = _Expansion(value, at, slope, with_row.precision + weight * removed[2]).normal()
        if normal is None:
            return None
        best, base, step = value, at, normal.mean - at
        if np.linalg.norm(np.linalg.solve(normal.factor, step)) < CLOSE:
            return normal
    return None


def _expand(sums: Sums, at: np.ndarray) -> _Expansion:
    value, slope, hessian = sums.hessian(at, "leave-one-out")
    prior, prior_uphill, prior_hessian = expanded_prior(sums.target, at)
    return _Expansion(value + prior, at, slope + prior_uphill, -(hessian + prior_hessian))


def _row_values(sums: Sums, row: int, points: np.ndarray) -> np.ndarray:
    (values,) = log_likelihoods(sums.target, sums.rows, np.array([row]), points)
    return values[:, 0]
