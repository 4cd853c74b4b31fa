"""Outcomes that are 0 or 1: logistic, probit and complementary log-log regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np

from modicum.arrays import sigmoid
from modicum.errors import ModicumWarning
from modicum.models.base import Batch, Params
from modicum.models.families.links import LINKS, Link
from modicum.models.families.random_outcomes import chances
from modicum.models.families.special import softplus
from modicum.models.linear import LinearPredictorModel
from modicum.models.priors import Moments
from modicum.models.separation import find_separation
from modicum.rows import Rows

Derivatives = tuple[jax.Array, ...]


@dataclass(frozen=True, repr=False)
class _Binary(LinearPredictorModel):
    """A family of outcomes that are 0 or 1, defined by the probability of a 1."""

    link: ClassVar[Link]
    on_numpy: ClassVar[bool] = True

    def pseudo_variance(self, data: Moments) -> float:
        """1 / (p (1 - p)) at the share of ones."""
        return 1 / max(data.y_mean * (1 - data.y_mean), 1 / (data.weight + 1))

    def decide(self, expected: np.ndarray) -> np.ndarray:
        """Predict 1 where its probability is above a half."""
        return np.asarray(expected > 0.5)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw Bernoulli outcomes."""
        del batch
        return 1.0 * (rng.random(eta.shape[:-1]) < chances(self.link, eta[..., 0]))

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns that separate ones from zeros."""
        intercept = np.atleast_1d(theta["intercept"]) if self.intercept else None
        beta = np.asarray(theta["beta"])[None]
        separation, passes = find_separation(rows, beta, intercept, reversed=True)
        return None if separation is None else separation.warning(), passes

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Allow only 0 and 1."""
        return (y != 0) & (y != 1), (
            "outcomes that are 0 or 1 (for other codes, say which value is the event, as in "
            "'y == 2 ~ x')"
        )


@dataclass(frozen=True, repr=False)
class Logistic(_Binary):
    """Logistic regression: y in {0, 1}, log-odds linear in x.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Logistic(prior_scale=2.5)
    Logistic(prior_scale=2.5, intercept=True, intercept_scale=None)
    """

    link: ClassVar[Link] = LINKS["logit"]

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """y eta - log(1 + e^eta)."""
        return y * eta[0] - softplus(eta[0])

    def derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """f to f''' in eta, with p the chance of a one."""
        p, q = sigmoid(eta), sigmoid(-eta)  # q = 1 - p without cancellation
        return self.value(eta, y), y - p, -p * q, -p * q * (q - p)

    def value(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """y eta - log(1 + e^eta)."""
        return y * eta - softplus(eta)

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """Polynomials in s = p (1 - p)."""
        p, q = sigmoid(eta), sigmoid(-eta)
        s = p * q
        return -s * (1 - 6 * s), -s * (q - p) * (1 - 12 * s), -s * (1 - 30 * s + 120 * s**2)

    def mean(self, eta: jax.Array) -> jax.Array:
        """Chance of a one."""
        return jax.nn.sigmoid(eta[0])


@dataclass(frozen=True, repr=False)
class _Linked(_Binary):
    """A binary family with a link other than the logit."""

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log p where y is 1, log(1 - p) where it is 0."""
        return y * self.link.log_success(eta[0]) + (1 - y) * self.link.log_failure(eta[0])

    def derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """f to f''' in eta."""
        return self._derivatives_up_to(3, eta, y)

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """Derivatives 4, 5 and 6."""
        return self._derivatives_up_to(6, eta, y)[4:]

    def _derivatives_up_to(self, order: int, eta: jax.Array, y: jax.Array) -> Derivatives:
        pairs = zip(self.link.success(eta, order), self.link.failure(eta, order), strict=True)
        return tuple(y * one + (1 - y) * zero for one, zero in pairs)

    def mean(self, eta: jax.Array) -> jax.Array:
        """Chance of a one."""
        return self.link.chance(eta[0])


@dataclass(frozen=True, repr=False)
class Probit(_Linked):
    """Probit regression: y in {0, 1}, the probability of a 1 is the normal cdf Phi(eta).

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> float(mo.models.Probit().mean(jnp.array([0.0])))
    0.5
    """

    link: ClassVar[Link] = LINKS["probit"]


@dataclass(frozen=True, repr=False)
class Cloglog(_Linked):
    """Complementary log-log regression: y in {0, 1}, 1 where an event of log-rate eta happened.

    The probability of a 1 is 1 - exp(-e^eta); exposure time enters as offset=log(time).

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> round(float(mo.models.Cloglog().mean(jnp.array([0.0]))), 4)
    0.6321
    """

    link: ClassVar[Link] = LINKS["cloglog"]
