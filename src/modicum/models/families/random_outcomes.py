"""Helpers with which families draw random outcomes.

Outcomes are drawn on the host, by NumPy: its generators are exact at any rate and shape, and need
no compilation. Exponentials of predictors are clipped to e^200, so that none overflows.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from modicum.arrays import as_either
from modicum.models.families.links import Link

Numbers: TypeAlias = np.ndarray  # of float64
LARGEST_LOG = 200.0  # its exponential, and the cube of that, are finite
MANY = 1e12  # larger counts are normal to the precision of float64


def chances(link: Link, eta: Numbers) -> Numbers:
    """Probability of a success at each linear predictor."""
    with np.errstate(over="ignore"):
        return np.asarray(link.chance(as_either(eta)))


def bounded_exp(log: Numbers) -> Numbers:
    """Return e^log, clipped to be neither 0 nor infinite."""
    return np.asarray(np.exp(np.clip(log, -LARGEST_LOG, LARGEST_LOG)))


def draw_counts(rng: np.random.Generator, rate: Numbers) -> Numbers:
    """Draw Poisson counts as floats, also at rates too large for integers."""
    small = rng.poisson(np.minimum(rate, MANY)).astype(float)
    if not np.any(rate > MANY):
        return small
    many = np.rint(rate + np.sqrt(rate) * rng.standard_normal(rate.shape))
    return np.where(rate > MANY, many, small)


def draw_counts_above_zero(rng: np.random.Generator, rate: Numbers) -> Numbers:
    """Draw Poisson counts given that they are not 0.

    The first event in a unit of time happens at t, exponential given t < 1; the number of later
    events is Poisson with mean rate (1 - t).
    """
    rest = rate + np.log1p(rng.random(rate.shape) * np.expm1(-rate))  # rate (1 - t)
    return 1 + draw_counts(rng, np.clip(rest, 0.0, rate))


def draw_log_gammas(rng: np.random.Generator, shape: Numbers) -> Numbers:
    """Draw logarithms of gamma variables, which are finite even where the variables underflow.

    gamma(a) = gamma(a + 1) u^(1 / a), with u uniform (Marsaglia and Tsang 2000).
    """
    more = np.log(rng.standard_gamma(np.add(shape, 1.0)))
    return np.asarray(more - rng.standard_exponential(np.shape(shape)) / shape)
