"""Positive outcomes with a log link: gamma and inverse Gaussian regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import HALF_LOG_2PI
from modicum.models.base import Batch
from modicum.models.families.extras import ExtraParameter, LogLink, positive_fault
from modicum.models.families.random_outcomes import bounded_exp, draw_log_gammas
from modicum.models.families.special import stirling_rest
from modicum.models.outcomes import refuse_constant
from modicum.models.priors import Moments, Normal
from modicum.rows import Rows


@dataclass(frozen=True, repr=False)
class Gamma(ExtraParameter, LogLink):
    """Gamma regression with log link: positive outcomes whose sd is proportional to their mean.

    The variance is mu^2 / shape (statsmodels' scale is one over the shape).

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Gamma().extras
    ('log_shape',)
    """

    extra: ClassVar[str] = "shape"

    def density(self, eta: jax.Array, extra: jax.Array, y: jax.Array) -> jax.Array:
        """k (s - e^s + 1) + log(k) / 2 - log y, s = log(y / mu), minus Stirling's remainder."""
        y = jnp.asarray(y, eta.dtype)
        k, s = jnp.exp(extra), jnp.log(y) - eta
        constant = 0.5 * extra - HALF_LOG_2PI - stirling_rest(k)
        return k * (s - jnp.expm1(s)) + constant - jnp.log(y)

    def variance(self, eta: jax.Array) -> jax.Array:
        """mu^2 / shape."""
        return jnp.exp(2 * eta[0] - eta[1])

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw gamma variables with mean e^eta."""
        del batch
        shape = bounded_exp(eta[..., 1])
        return bounded_exp(eta[..., 0] + draw_log_gammas(rng, shape) - eta[..., 1])

    def check_variation(self, rows: Rows) -> None:
        """Refuse an outcome that never varies: nothing would bound the shape."""
        if self.intercept:
            refuse_constant(self, rows)

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Allow only numbers above 0."""
        return positive_fault(y)


@dataclass(frozen=True, repr=False)
class InverseGaussian(ExtraParameter, LogLink):
    """Inverse Gaussian regression with log link: positive outcomes with a long right tail.

    The variance is mu^3 / shape (statsmodels' scale is one over the shape). The default prior of
    log(shape) is about the logarithm of the mean outcome, since the shape has its unit.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.InverseGaussian().extras
    ('log_shape',)
    """

    extra: ClassVar[str] = "shape"
    has_unit: ClassVar[bool] = True

    def density(self, eta: jax.Array, extra: jax.Array, y: jax.Array) -> jax.Array:
        """log(shape / 2 pi y^3) / 2 - shape (y / mu - 1)^2 / 2y."""
        y = jnp.asarray(y, eta.dtype)
        log_y = jnp.log(y)
        apart = jnp.expm1(log_y - eta) ** 2 / y
        return 0.5 * (extra - 3 * log_y) - HALF_LOG_2PI - 0.5 * jnp.exp(extra) * apart

    def extra_prior(self, name: str, data: Moments) -> Normal:
        """Return a wide prior in the unit of the outcome."""
        return Normal(self.intercept_prior(data).mean, super().extra_prior(name, data).sd)

    def variance(self, eta: jax.Array) -> jax.Array:
        """mu^3 / shape."""
        return jnp.exp(3 * eta[0] - eta[1])

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw one of the two roots for a chi-square (Michael, Schucany and Haas 1976).

        NumPy's `wald` cancels where the mean is much larger than the shape.
        """
        del batch
        mu, shape = bounded_exp(eta[..., 0]), bounded_exp(eta[..., 1])
        w = mu / (2 * shape) * rng.standard_normal(mu.shape) ** 2
        ratio = 1 + w + np.sqrt(w) * np.sqrt(w + 2)  # larger root over the mean
        return np.where(rng.random(mu.shape) * (1 + 1 / ratio) < 1, mu / ratio, mu * ratio)

    def check_variation(self, rows: Rows) -> None:
        """Refuse an outcome that never varies: nothing would bound the shape."""
        if self.intercept:
            refuse_constant(self, rows)

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Allow only numbers above 0."""
        return positive_fault(y)
