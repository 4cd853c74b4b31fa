"""Residuals of rows: the part of a log-likelihood that a quadratic about the mean misses.

A subsample estimates the sum over rows of l_k(theta) - q_k(theta), with q_k the second-order Taylor
expansion of the row's log-likelihood. Its error is small if rows are drawn in proportion to the
size of their residuals, and large if a few rows hold most of the residuals but are drawn as rarely
as all others. The expansion along delta = theta - mean uses central differences: with f(s) the
row's log-likelihood at mean + s delta,

    q = f(0) + [f(e) - f(-e)] / 2e + [f(e) + f(-e) - 2 f(0)] / 2e^2.
"""

from __future__ import annotations

import numpy as np

from modicum.ledger import Ledger
from modicum.passes import LocalEngine, units_of
from modicum.passes.pointwise import log_likelihoods
from modicum.posterior.checking.columns import random_rows
from modicum.posterior.draws import evenly_spaced, require_finite, thinned
from modicum.posterior.fitted import Subject, flat_points
from modicum.posterior.resampling import require_positive_sum

STEP = 0.1  # e: residuals are accurate to e^2, and rounding is 1e-16 / e^2
ROUNDING = 1e-13  # smaller residuals, relative to the row's log-likelihood, count as zero


def residual_sizes(subject: Subject, number: int, draws: int, random_seed: int) -> np.ndarray:
    """Return the root mean square residual over draws, of up to `number` random rows."""
    source, fit, rows = subject
    require_finite(source.draws, "a plot of residuals")
    source_draws, (weights,) = thinned(source, source.chains * source.num_draws)
    require_positive_sum(weights, "a plot of residuals")
    target, points = flat_points(fit, rows, source_draws)
    mean = np.average(points, axis=0, weights=weights)
    delta = points[evenly_spaced(len(points), draws)] - mean
    units = units_of(target, rows, LocalEngine(progressbar=False), Ledger(rows=len(rows)))
    ids = np.sort(random_rows(len(units), number, random_seed))
    evaluated_at = np.concatenate(
        [mean[None], mean + delta, mean + STEP * delta, mean - STEP * delta]
    )
    parts = []
    for values in log_likelihoods(target, units, ids, evaluated_at):
        centre, (value, above, below) = values[0], values[1:].reshape(3, len(delta), -1)
        slope = (above - below) / (2 * STEP)
        curvature = (above + below - 2 * centre) / STEP**2
        residual = value - centre - slope - curvature / 2
        size = np.sqrt(np.mean(residual**2, axis=0))
        parts.append(np.where(size > ROUNDING * np.maximum(np.abs(centre), 1.0), size, 0.0))
    sizes = np.concatenate(parts)
    if "weight" in units.fields:
        sizes = sizes * units.subset(ids).slice(0, len(ids))["weight"]
    return np.asarray(sizes)
