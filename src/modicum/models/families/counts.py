"""Counts: Poisson and negative binomial regression, also with a separate source of zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import namespace
from modicum.models.families.extras import ExtraParameter, LogLink
from modicum.models.families.links import (
    LINKS,
    bounded_exp,
    chances,
    draw_counts,
    draw_counts_above_zero,
    log_factorial,
    log_rising,
    log_some,
    softplus,
)
from modicum.models.linear_predictor import Derivatives, Draws, MeanOutcome
from modicum.models.model import Batch
from modicum.models.outcome_checks import count_fault, rate_fault


@dataclass(frozen=True, repr=False)
class _Counts(LogLink):
    counted: ClassVar[str | None] = "y"
    multiplies = "rate"
    outcome_fault = staticmethod(count_fault)


@dataclass(frozen=True, repr=False)
class Poisson(_Counts):
    """Poisson regression with log link: counts, log-rate linear in x (exposure as log-offset).

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> years = np.array([0.5, 1.0, 2.0])
    >>> rows = mo.Rows(x=np.zeros((3, 1)), y=np.array([0, 1, 1]), offset=np.log(years))
    >>> mo.models.Poisson().check(rows)
    """

    on_numpy: ClassVar[bool] = True

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """That of the lognormal with the mean and variance of the counts, divided by the mean."""
        return np.log1p(1 / mean())

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """y eta - e^eta - log y!."""
        return y * eta[0] - jnp.exp(eta[0]) - log_factorial(y, eta)

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 3) -> Derivatives:
        """Derivatives in eta: all but the first are minus the rate."""
        rate = namespace(eta).exp(eta)
        f = y * eta - rate - log_factorial(y, eta)
        return (f, y - rate, *[-rate] * (highest - 1))

    def rise(
        self, eta: jax.Array, e: jax.Array, y: jax.Array, before: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """f(eta + e) - f(eta) and f'(eta + e), without log y!, which cancels."""
        del before
        rate = jnp.exp(eta)
        return y * e - rate * jnp.expm1(e), y - jnp.exp(eta + e)

    def variance(self, eta: jax.Array) -> jax.Array:
        """Equal to the mean."""
        return self.mean(eta)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw Poisson counts."""
        del batch
        return draw_counts(rng, bounded_exp(eta[..., 0]))


@dataclass(frozen=True, repr=False)
class PoissonRates(Poisson):
    """Poisson regression of counts over exposures with exposures as weights, as in scikit-learn."""

    outcome_fault = staticmethod(rate_fault)  # weighted, y log(mu) - mu is that of the counts w y


@dataclass(frozen=True, repr=False)
class NegativeBinomial(ExtraParameter, _Counts):
    """Negative binomial regression with log link: counts that vary more than Poisson's.

    The variance is mu + overdispersion mu^2 (statsmodels calls it alpha; its inverse is the shape
    of brms and rstanarm). Exposure enters as log-offset.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.NegativeBinomial().extras
    ('log_overdispersion',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_overdispersion",)

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """As for Poisson counts, with overdispersion."""
        return np.log1p(1 / mean() + draws["overdispersion"])

    def density(self, eta: jax.Array, extra: jax.Array, y: jax.Array) -> jax.Array:
        """With a = overdispersion: gamma(y + 1/a) / gamma(1/a) y!, (a mu)^y, (1 + a mu)^(-y - 1/a).

        As a goes to 0 it tends to the Poisson density, without cancellation.
        """
        size = jnp.exp(-extra)
        odds = eta + extra  # log of a mu
        arrangements = log_rising(size, y) - log_factorial(y, eta)
        return arrangements - y * softplus(-odds) - size * softplus(odds)

    def variance(self, eta: jax.Array) -> jax.Array:
        """mu + a mu^2."""
        mu = self.mean(eta)
        return mu + jnp.exp(eta[1]) * mu**2

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw Poisson counts with gamma-distributed rates."""
        del batch
        size = bounded_exp(-eta[..., 1])
        rate = bounded_exp(eta[..., 0]) * rng.standard_gamma(size) / size
        return draw_counts(rng, rate)


@dataclass(frozen=True, repr=False)
class _Zeros(ExtraParameter, _Counts):
    draw_others = staticmethod(draw_counts)  # of rows without an extra zero

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw the extra zeros with their probability, and counts otherwise."""
        del batch
        zero = rng.random(eta.shape[:-1]) < chances(LINKS["logit"], eta[..., 1])
        counts = self.draw_others(rng, bounded_exp(eta[..., 0]))
        return np.where(zero, 0.0, counts)


@dataclass(frozen=True, repr=False)
class ZeroInflatedPoisson(_Zeros):
    """Counts that are 0 with probability `zero_inflation`, and otherwise Poisson with log-rate eta.

    A zero may come from either source. The probability is the same for all rows.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.ZeroInflatedPoisson().extras
    ('logit_zero_inflation',)
    """

    extras: ClassVar[tuple[str, ...]] = ("logit_zero_inflation",)

    def density(self, eta: jax.Array, extra: jax.Array, y: jax.Array) -> jax.Array:
        """log(pi + (1 - pi) e^-mu) for a zero, log(1 - pi) plus the Poisson's for other counts."""
        mu = jnp.exp(eta)
        zero = jnp.logaddexp(extra, -mu)
        log_count = y * eta - mu - log_factorial(y, eta)
        return jnp.where(y == 0, zero, log_count) - softplus(extra)

    def mean(self, eta: jax.Array) -> jax.Array:
        """(1 - pi) mu."""
        return jax.nn.sigmoid(-eta[1]) * jnp.exp(eta[0])

    def variance(self, eta: jax.Array) -> jax.Array:
        """(1 - pi) mu (1 + pi mu)."""
        return self.mean(eta) * (1 + jax.nn.sigmoid(eta[1]) * jnp.exp(eta[0]))


@dataclass(frozen=True, repr=False)
class HurdlePoisson(_Zeros):
    """Counts that are 0 with probability `zero_chance`, and otherwise Poisson given not 0.

    All zeros come from the hurdle. The probability is the same for all rows.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.HurdlePoisson().extras
    ('logit_zero_chance',)
    """

    extras: ClassVar[tuple[str, ...]] = ("logit_zero_chance",)
    draw_others = staticmethod(draw_counts_above_zero)
    counted: ClassVar[str | None] = None  # every zero is from the hurdle, whatever its rate

    def density(self, eta: jax.Array, extra: jax.Array, y: jax.Array) -> jax.Array:
        """log pi for a zero; for others log(1 - pi) plus the Poisson's minus log(1 - e^-mu)."""
        mu = jnp.exp(eta)
        log_count = y * eta - mu - log_factorial(y, eta) - log_some(eta)
        return jnp.where(y == 0, extra, log_count) - softplus(extra)

    def mean(self, eta: jax.Array) -> jax.Array:
        """(1 - pi) mu / (1 - e^-mu)."""
        return jax.nn.sigmoid(-eta[1]) * jnp.exp(eta[0] - log_some(eta[0]))

    def variance(self, eta: jax.Array) -> jax.Array:
        """m (1 + mu - m) with m the mean: the mean square of a Poisson count is mu (1 + mu)."""
        mean = self.mean(eta)
        return mean * (1 + jnp.exp(eta[0]) - mean)
