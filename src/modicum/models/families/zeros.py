"""Outcomes with many zeros: zero-inflated counts, outcomes beyond a hurdle, and Tweedie's sums.

A zero part goes with any family that has a log link: here with Poisson and negative binomial
counts, and with gamma and lognormal amounts. Its probability is the last predictor. A Tweedie
outcome is a sum of a random number of amounts, and 0 where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log, pi
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import logsumexp

from modicum.arguments import number
from modicum.arrays import as_either, log1m_exp
from modicum.models.families.counts import LogLink, NegativeBinomial, Poisson
from modicum.models.families.links import (
    LINKS,
    bounded_exp,
    chances,
    draw_counts,
    softplus,
    stirling_rest,
)
from modicum.models.families.positive import Gamma, Lognormal
from modicum.models.model import Batch
from modicum.models.observed import COUNTS, FROM_ZERO
from modicum.models.priors.distributions import Normal
from modicum.models.priors.units import Moments


@dataclass(frozen=True, repr=False)
class _Zeros(LogLink):
    others: ClassVar[LogLink]  # the family of outcomes that are not zeros of their own source

    @property
    def multiplies(self) -> str:  # type: ignore[override]
        """What e^coefficient multiplies: of the other outcomes."""
        return self.others.multiplies

    def pseudo_variance(self, data: Moments) -> float:
        """Return that of the other outcomes."""
        return self.others.pseudo_variance(data)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw the separate zeros with their probability, and the other outcomes otherwise."""
        zero = rng.random(eta.shape[:-1]) < chances(LINKS["logit"], eta[..., -1])
        return np.where(zero, 0.0, self.draw_others(rng, eta[..., :-1], batch))

    def draw_others(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw from the other family."""
        return self.others.draw_outcomes(rng, eta, batch)


@dataclass(frozen=True, repr=False)
class _Inflated(_Zeros):
    """Counts that are 0 with a probability pi, and otherwise those of the other family."""

    support = COUNTS
    counted: ClassVar[bool] = True

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """pi + (1 - pi) P(count <= y), and the rest."""
        below, above = self.others.log_tails(eta[:-1], y)
        log_count = -softplus(eta[-1])
        return jnp.logaddexp(-softplus(-eta[-1]), log_count + below), log_count + above

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log(pi + (1 - pi) p) for a zero, log(1 - pi) + log p for other counts."""
        zero, log_count = eta[-1], self.others.log_density(eta[:-1], y)
        log_either = jnp.where(y == 0, jnp.logaddexp(zero, log_count), log_count)
        return log_either - softplus(zero)

    def mean(self, eta: jax.Array) -> jax.Array:
        """(1 - pi) m, with m the other family's mean."""
        return jax.nn.sigmoid(-eta[-1]) * self.others.mean(eta[:-1])

    def variance(self, eta: jax.Array) -> jax.Array:
        """(1 - pi) (v + pi m^2), with m and v the other family's mean and variance."""
        m, v = self.others.moments(eta[:-1])
        return jax.nn.sigmoid(-eta[-1]) * (v + jax.nn.sigmoid(eta[-1]) * m**2)


@dataclass(frozen=True, repr=False)
class ZeroInflatedPoisson(_Inflated):
    """Counts that are 0 with probability `zero_inflation`, and otherwise Poisson with log-rate eta.

    A zero may come from either source. The probability is the same for all rows, unless it has a
    formula of its own (``zero_inflation ~ x``).

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.ZeroInflatedPoisson().extras
    ('logit_zero_inflation',)
    """

    others: ClassVar[LogLink] = Poisson()
    extras: ClassVar[tuple[str, ...]] = ("logit_zero_inflation",)


@dataclass(frozen=True, repr=False)
class ZeroInflatedNegativeBinomial(_Inflated):
    """Counts that are 0 with probability `zero_inflation`, and otherwise negative binomial.

    A zero may come from either source; eta is the log-mean of the negative binomial counts.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.ZeroInflatedNegativeBinomial().extras
    ('log_overdispersion', 'logit_zero_inflation')
    """

    others: ClassVar[LogLink] = NegativeBinomial()
    extras: ClassVar[tuple[str, ...]] = ("log_overdispersion", "logit_zero_inflation")
    simpler: ClassVar[str] = "zero-inflated-poisson"


@dataclass(frozen=True, repr=False)
class _Hurdle(_Zeros):
    """Outcomes that are 0 with a probability pi, and otherwise the other family's given not 0.

    All zeros are from the hurdle, whatever eta is: no column can be told to explain them.
    """

    support = FROM_ZERO

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """1 - pi times the chance of more than y given not 0, and the rest."""
        rest, some = eta[:-1], jnp.where(y > 0, y, 1.0)
        beyond = self.others.log_tails(rest, some)[1] - self.others.log_above_zero(rest)
        above = jnp.where(y > 0, beyond, 0.0) - softplus(eta[-1])
        return log1m_exp(-above), above

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log pi for a zero; for others log(1 - pi) plus their log-density given not 0."""
        zero, rest = eta[-1], eta[:-1]
        some = jnp.where(y == 0, 1, y)  # so that no slope is NaN
        log_other = self.others.log_density(rest, some) - self.others.log_above_zero(rest)
        return jnp.where(y == 0, zero, log_other) - softplus(zero)

    def mean(self, eta: jax.Array) -> jax.Array:
        """(1 - pi) m / P(y > 0), with m the other family's mean."""
        given = self.others.mean(eta[:-1]) * jnp.exp(-self.others.log_above_zero(eta[:-1]))
        return jax.nn.sigmoid(-eta[-1]) * given

    def variance(self, eta: jax.Array) -> jax.Array:
        """The mean times v / m + m - mean, with m and v the other family's mean and variance."""
        mean, (m, v) = self.mean(eta), self.others.moments(eta[:-1])
        return mean * (v / m + m - mean)

    def draw_others(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw from the other family, given not 0."""
        return self.others.draw_above_zero(rng, eta, batch)


@dataclass(frozen=True, repr=False)
class HurdlePoisson(_Hurdle):
    """Counts that are 0 with probability `zero_chance`, and otherwise Poisson given not 0.

    All zeros come from the hurdle. The probability is the same for all rows, unless it has a
    formula of its own (``zero_chance ~ x``).

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.HurdlePoisson().extras
    ('logit_zero_chance',)
    """

    others: ClassVar[LogLink] = Poisson()
    extras: ClassVar[tuple[str, ...]] = ("logit_zero_chance",)
    support = COUNTS


@dataclass(frozen=True, repr=False)
class HurdleNegativeBinomial(_Hurdle):
    """Counts that are 0 with probability `zero_chance`, otherwise negative binomial given not 0.

    All zeros come from the hurdle; eta is the log-mean of the counts before they are truncated.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.HurdleNegativeBinomial().extras
    ('log_overdispersion', 'logit_zero_chance')
    """

    others: ClassVar[LogLink] = NegativeBinomial()
    extras: ClassVar[tuple[str, ...]] = ("log_overdispersion", "logit_zero_chance")
    simpler: ClassVar[str] = "hurdle-poisson"
    support = COUNTS


@dataclass(frozen=True, repr=False)
class HurdleGamma(_Hurdle):
    """Amounts that are 0 with probability `zero_chance`, and otherwise gamma with log-mean eta.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.HurdleGamma().extras
    ('log_shape', 'logit_zero_chance')
    """

    others: ClassVar[LogLink] = Gamma()
    extras: ClassVar[tuple[str, ...]] = ("log_shape", "logit_zero_chance")


@dataclass(frozen=True, repr=False)
class HurdleLognormal(_Hurdle):
    """Amounts that are 0 with probability `zero_chance`, and otherwise lognormal with median e^eta.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.HurdleLognormal().extras
    ('log_scale', 'logit_zero_chance')
    """

    others: ClassVar[LogLink] = Lognormal()
    extras: ClassVar[tuple[str, ...]] = ("log_scale", "logit_zero_chance")


# beyond, the sum over numbers is hard to tabulate
POWER = number("a number from 1.05 to 1.95", lambda power: 1.05 <= power <= 1.95)
TERMS = 96  # of the sum over the number of amounts
REACH = 8.0, 10.0  # standard deviations below and above its largest term
SPAN = -30.0, 20.0  # of log c; beyond, the log of the sum is linear in it
PER_UNIT, DEGREE = 12, 9  # polynomials per unit of log c, and their degree


def _log_sum(log_c: np.ndarray, shape: float) -> np.ndarray:
    """Log of the sum over the number j of amounts, given the log of its most likely value c.

    By Stirling's formula the terms are e^(-(1 + shape) (j log(j / c) - j + c)) but for a factor
    near 1. Where c is large they are those of a normal density, whose integral is a sum in larger
    steps to all digits.
    """
    c = np.exp(log_c)[..., None]
    most = np.maximum(c, 1.0)
    sd = np.sqrt(most / (1 + shape))
    step = np.maximum(sum(REACH) * sd / (TERMS - 1), 1.0)
    first = np.maximum(most - REACH[0] * sd, 1.0)
    j = np.where(step > 1, first, np.floor(first)) + step * np.arange(TERMS)
    ratio = np.where(c > 1, np.log1p((j - c) / most), np.log(j) - log_c[..., None])
    near_one = stirling_rest(as_either(j)) + stirling_rest(as_either(shape * j))
    terms = -(1 + shape) * (j * ratio - (j - c)) - np.asarray(near_one)
    return logsumexp(terms + np.log(step), axis=-1) + 0.5 * log(shape) - log(2 * pi)


@lru_cache(maxsize=8)
def _tabulated(shape: float) -> np.ndarray:
    """Return `_log_sum` as polynomials, one line each: a sum of a hundred terms per row is slow."""
    pieces = round((SPAN[1] - SPAN[0]) * PER_UNIT)
    middles = SPAN[0] + (np.arange(pieces)[:, None] + 0.5) / PER_UNIT
    nodes = chebyshev.chebpts1(DEGREE + 1)
    values = _log_sum(middles + nodes / (2 * PER_UNIT), shape)
    lines = chebyshev.chebfit(nodes, values.T, DEGREE)
    return np.stack([chebyshev.cheb2poly(line) for line in lines.T])


@dataclass(frozen=True, repr=False)
class Tweedie(LogLink):
    """Tweedie regression with log link: a Poisson number of gamma amounts, added up.

    Outcomes are positive, or 0 where the number is 0: total claims of a policy, rain in a day. The
    variance is dispersion mu^power.

    Parameters
    ----------
    power
        How the variance grows with the mean, from 1.05 to 1.95: nearly Poisson counts times a
        unit, or nearly gamma variables.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Tweedie(power=1.6).extras
    ('log_dispersion',)
    """

    power: Annotated[float, POWER, "1 is for Poisson counts and 2 for gamma variables"] = 1.5

    extras: ClassVar[tuple[str, ...]] = ("log_dispersion",)
    extras_have_unit: ClassVar[bool] = True
    counted: ClassVar[bool] = True
    support = FROM_ZERO
    no_tails: ClassVar[str] = "its chances are sums over numbers of amounts (use hurdle-gamma)"

    @property
    def shape(self) -> float:
        """The shape of an amount, which has a gamma distribution."""
        return (2 - self.power) / (self.power - 1)

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Minus the mean number for a 0; for others the unit deviance, and a sum over numbers."""
        (eta, extra), q = eta, 2 - self.power
        none = -jnp.exp(q * eta - extra) / q
        log_y = jnp.log(jnp.where(y == 0, 1.0, jnp.asarray(y, eta.dtype)))
        s = log_y - eta
        deviance = jnp.expm1((1 - q) * s) / (1 - q) + jnp.expm1(-q * s) / q
        some = -jnp.exp(q * log_y - extra) * deviance - log_y
        return jnp.where(y == 0, none, some + self._log_sum(q * log_y - extra - log(q)))

    def _log_sum(self, log_c: jax.Array) -> jax.Array:
        """Log of the sum over the number of amounts, whose most likely value is c."""
        lines = jnp.asarray(_tabulated(self.shape), log_c.dtype)
        within = jnp.clip(log_c, *SPAN)
        place = (within - SPAN[0]) * PER_UNIT
        piece = jax.lax.stop_gradient(jnp.clip(jnp.floor(place), 0, len(lines) - 1))
        at, line = 2 * (place - piece) - 1, lines[piece.astype(int)]
        total = line[..., DEGREE]
        for k in reversed(range(DEGREE)):
            total = total * at + line[..., k]
        beyond = log_c - within  # one amount where c is small, and sd sqrt(c) where it is large
        return total + beyond * jnp.where(beyond < 0, 1 + self.shape, 0.5)

    def extra_prior(self, name: str, data: Moments) -> Normal:
        """Return a wide prior in the unit of the outcome."""
        centre = (2 - self.power) * self.intercept_prior(data).mean
        return Normal(centre, super().extra_prior(name, data).sd)

    def variance(self, eta: jax.Array) -> jax.Array:
        """Dispersion mu^power."""
        return jnp.exp(eta[1] + self.power * eta[0])

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw the number of amounts, and their sum, which is a gamma variable."""
        q, log_mean, log_dispersion = 2 - self.power, eta[..., 0], eta[..., 1]
        number = draw_counts(rng, bounded_exp(q * log_mean - log_dispersion) / q)
        unit = bounded_exp((1 - q) * log_mean + log_dispersion) * (1 - q)
        return rng.standard_gamma(number * self.shape) * unit
