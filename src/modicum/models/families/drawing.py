"""Random outcomes: what families share where they draw them.

Outcomes are drawn on the host, by NumPy: its generators are exact at any rate and shape, and there
is nothing to compile. Exponentials of predictors are held within e^200, so that none overflows.
"""

from __future__ import annotations

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np

from modicum.models.families.links import Link
from modicum.runtime import in_double_precision

__all__ = ["bounded_exp", "chances", "draw_counts", "draw_counts_above_zero", "draw_log_gammas"]

Numbers: TypeAlias = np.ndarray  # of float64
LARGEST_LOG = 200.0  # of which the exponential is a number, and its cube
MANY = 1e12  # counts that are normal to every digit that a float64 has left


@in_double_precision
def chances(link: Link, eta: Numbers) -> Numbers:
    """The chance of a success at each linear predictor."""
    return np.asarray(link.chance(jnp.asarray(eta)))


def bounded_exp(log: Numbers) -> Numbers:
    """e^log, neither 0 nor infinite."""
    return np.asarray(np.exp(np.clip(log, -LARGEST_LOG, LARGEST_LOG)))


def draw_counts(rng: np.random.Generator, rate: Numbers) -> Numbers:
    """Poisson counts, as floating numbers: of rates too large for integers too."""
    small = rng.poisson(np.minimum(rate, MANY)).astype(float)
    if not np.any(rate > MANY):
        return small
    many = np.rint(rate + np.sqrt(rate) * rng.standard_normal(rate.shape))
    return np.where(rate > MANY, many, small)


def draw_counts_above_zero(rng: np.random.Generator, rate: Numbers) -> Numbers:
    """Poisson counts given that they are not 0.

    The first event of the unit of time happens at t, exponential given t < 1; what follows is
    Poisson of rate (1 - t) again.
    """
    rest = rate + np.log1p(rng.random(rate.shape) * np.expm1(-rate))  # rate (1 - t)
    return 1 + draw_counts(rng, np.clip(rest, 0.0, rate))


def draw_log_gammas(rng: np.random.Generator, shape: Numbers) -> Numbers:
    """Logarithms of gamma variables, which are numbers also where the variables are as good as 0.

    gamma(a) = gamma(a + 1) u^(1 / a), with u uniform (Marsaglia and Tsang 2000).
    """
    more = np.log(rng.standard_gamma(np.add(shape, 1.0)))
    return np.asarray(more - rng.standard_exponential(np.shape(shape)) / shape)
