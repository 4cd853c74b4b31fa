"""Families with a log link, and those of counts: Poisson and negative binomial regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import namespace
from modicum.errors import DataError, ModicumWarning
from modicum.models.families.links import (
    bounded_exp,
    draw_counts,
    log_beta_tails,
    log_factorial,
    log_gamma_tails,
    log_rising,
    log_softplus,
    log_some,
    softplus,
)
from modicum.models.linear_predictor import Derivatives, Draws, LinearPredictorModel, MeanOutcome
from modicum.models.model import BaseModel, Batch, Params
from modicum.models.observed import COUNTS, RATES
from modicum.models.priors.distributions import Normal
from modicum.models.priors.units import Moments
from modicum.models.separation import find_silent_counts
from modicum.rows import Rows

LARGEST_OFFSET = 700.0  # its exponential is still finite


@dataclass(frozen=True, repr=False)
class LogLink(LinearPredictorModel):
    """A family whose linear predictor is the logarithm of a mean (or of a typical outcome)."""

    counted: ClassVar[bool] = False  # whether zeros may all lie on one side of a column
    multiplies = "mean"

    def mean(self, eta: jax.Array) -> jax.Array:
        """e^eta."""
        return jnp.exp(eta[0])

    def log_above_zero(self, eta: jax.Array) -> jax.Array:
        """Log-probability that the outcome is not 0: that of a positive outcome is 0."""
        return jnp.zeros_like(eta[0])

    def draw_above_zero(
        self, rng: np.random.Generator, eta: np.ndarray, batch: Batch
    ) -> np.ndarray:
        """Draw outcomes given that they are not 0."""
        return self.draw_outcomes(rng, eta, batch)

    def outcome_unit(self, data: Moments) -> float:
        """Return 1, or more without an intercept: 2.5 units then reach the outcome's logarithm."""
        reach = 0.0 if self.intercept else self.intercept_prior(data).mean
        return float(np.hypot(1.0, reach / 2.5))

    def intercept_prior(self, data: Moments) -> Normal:
        """Return a wide prior about the log of total outcome over total exposure.

        If all outcomes are 0, the total counts as one half.
        """
        none = np.log(0.5) - data.log_exposure
        return Normal(float(data.log_rate if np.isfinite(data.log_rate) else none), 10.0)

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns along which all counts are 0, or all outcomes censored."""
        if not self.counted or self.modelled or self.observed:  # which may explain zeros
            return super().separation(rows, theta)
        return find_silent_counts(rows, self.intercept)

    def check_fields(self, chunk: Batch, first: int) -> None:
        """Refuse offsets that overflow as exposures."""
        offset = np.asarray(chunk.get("offset", 0.0))
        if offset.max() > LARGEST_OFFSET:
            at = int(np.argmax(offset > LARGEST_OFFSET))
            raise DataError(
                f"the offset is {offset[at]:g} in row {first + at}, so the exposure "
                f"exp({offset[at]:g}) overflows; an offset is the logarithm of the exposure: give "
                "np.log(exposure)."
            )


@dataclass(frozen=True, repr=False)
class _Counts(LogLink):
    counted: ClassVar[bool] = True
    multiplies = "rate"
    support = COUNTS

    def pseudo_variance(self, data: Moments) -> float:
        """Return one over the mean."""
        return 1 / max(data.y_mean, 1 / (data.weight + 1))


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
        return y * eta[0] - jnp.exp(eta[0]) - log_factorial(y, eta[0])

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """At most y events happen in a time that the wait for y + 1 of them, a gamma, exceeds."""
        number = jnp.floor(jnp.asarray(y, eta.dtype)) + 1
        sooner, later = log_gamma_tails(number, eta[0] - jnp.log(number))
        return later, sooner

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 3) -> Derivatives:
        """Derivatives in eta: all but the first are minus the rate."""
        rate = namespace(eta).exp(eta)
        f = y * eta - rate - log_factorial(y, eta)
        return (f, y - rate, *[-rate] * (highest - 1))

    def rise(
        self, eta: jax.Array, e: jax.Array, y: jax.Array, before: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """f(eta + e) - f(eta) and f'(eta + e), without log y!, which cancels."""
        rate = jnp.exp(eta)
        return y * e - rate * jnp.expm1(e), y - jnp.exp(eta + e)

    def variance(self, eta: jax.Array) -> jax.Array:
        """Equal to the mean."""
        return self.mean(eta)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw Poisson counts."""
        return draw_counts(rng, bounded_exp(eta[..., 0]))

    def log_above_zero(self, eta: jax.Array) -> jax.Array:
        """log(1 - e^-mu)."""
        return log_some(eta[0])

    def draw_above_zero(
        self, rng: np.random.Generator, eta: np.ndarray, batch: Batch
    ) -> np.ndarray:
        """Draw the time of the first event in a unit of time, and the number of later ones.

        That time is exponential given that it is below 1.
        """
        rate = bounded_exp(eta[..., 0])
        rest = rate + np.log1p(rng.random(rate.shape) * np.expm1(-rate))  # rate (1 - t)
        return 1 + draw_counts(rng, np.clip(rest, 0.0, rate))


@dataclass(frozen=True, repr=False)
class PoissonRates(Poisson):
    """Poisson regression of counts over exposures with exposures as weights, as in scikit-learn."""

    log_tails = BaseModel.log_tails  # a rate has none
    support = RATES  # weighted, y log(mu) - mu is that of the counts w y


@dataclass(frozen=True, repr=False)
class NegativeBinomial(_Counts):
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
    simpler: ClassVar[str] = "poisson"

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """As for Poisson counts, with overdispersion."""
        return np.log1p(1 / mean() + draws["overdispersion"])

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """With a = overdispersion: gamma(y + 1/a) / gamma(1/a) y!, (a mu)^y, (1 + a mu)^(-y - 1/a).

        As a goes to 0 it tends to the Poisson density, without cancellation.
        """
        eta, extra = eta
        size = jnp.exp(-extra)
        odds = eta + extra  # log of a mu
        arrangements = log_rising(size, y) - log_factorial(y, eta)
        return arrangements - y * softplus(-odds) - size * softplus(odds)

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """At most y failures come before success 1/a if the chance of success exceeds a beta."""
        number = jnp.floor(jnp.asarray(y, eta.dtype)) + 1
        return log_beta_tails(jnp.exp(-eta[1]), number, -eta[0] - eta[1])

    def variance(self, eta: jax.Array) -> jax.Array:
        """mu + a mu^2."""
        mu = self.mean(eta)
        return mu + jnp.exp(eta[1]) * mu**2

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw Poisson counts with gamma-distributed rates."""
        size = bounded_exp(-eta[..., 1])
        rate = bounded_exp(eta[..., 0]) * rng.standard_gamma(size) / size
        return draw_counts(rng, rate)

    def log_above_zero(self, eta: jax.Array) -> jax.Array:
        """log(1 - e^-h) with h = log(1 + a mu) / a."""
        return log_some(log_softplus(eta[0] + eta[1]) - eta[1])

    def draw_above_zero(
        self, rng: np.random.Generator, eta: np.ndarray, batch: Batch
    ) -> np.ndarray:
        """Draw as for Poisson counts: the time t of the first event, and the number of later ones.

        No event comes before t with probability (1 + a mu t)^(-1/a), and given t the rate is gamma
        of shape 1 + 1/a and scale a mu / (1 + a mu t).
        """
        size = bounded_exp(-eta[..., 1])
        whole = np.log1p(bounded_exp(eta[..., 0]) / size)  # log(1 + a mu)
        before = -np.log1p(rng.random(size.shape) * np.expm1(-size * whole)) / size
        rest = rng.standard_gamma(1 + size) * np.expm1(np.maximum(whole - before, 0.0))
        return 1 + draw_counts(rng, rest)
