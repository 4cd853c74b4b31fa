"""Counts with a separate source of zeros: zero-inflated and hurdle Poisson regression."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import ModicumWarning
from modicum.models.base import Batch, Params
from modicum.models.families.counts import count_fault
from modicum.models.families.extras import LOGIT, Coordinate, ExtraParameter, LogLink
from modicum.models.families.links import LINKS, log_some
from modicum.models.families.random_outcomes import (
    bounded_exp,
    chances,
    draw_counts,
    draw_counts_above_zero,
)
from modicum.models.families.special import log_factorial, softplus
from modicum.models.separation import find_silent_counts
from modicum.rows import Rows


@dataclass(frozen=True, repr=False)
class _Zeros(ExtraParameter, LogLink):
    coordinate: ClassVar[Coordinate] = LOGIT

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw the extra zeros with their probability, and counts otherwise."""
        del batch
        zero = rng.random(eta.shape[:-1]) < chances(LINKS["logit"], eta[..., 1])
        counts = self.draw_others(rng, bounded_exp(eta[..., 0]))
        return np.where(zero, 0.0, counts)

    @abstractmethod
    def draw_others(self, rng: np.random.Generator, rate: np.ndarray) -> np.ndarray:
        """Draw the counts of rows without an extra zero."""

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Allow only whole numbers from 0."""
        return count_fault(y)


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

    extra: ClassVar[str] = "zero_inflation"

    def draw_others(self, rng: np.random.Generator, rate: np.ndarray) -> np.ndarray:
        """Draw Poisson counts."""
        return draw_counts(rng, rate)

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns along which all counts are 0."""
        del theta
        return find_silent_counts(rows, self.intercept)

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

    extra: ClassVar[str] = "zero_chance"

    def draw_others(self, rng: np.random.Generator, rate: np.ndarray) -> np.ndarray:
        """Draw Poisson counts above zero."""
        return draw_counts_above_zero(rng, rate)

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
