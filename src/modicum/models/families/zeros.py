"""Outcomes with a separate source of zeros: zero-inflated counts, and outcomes beyond a hurdle.

A zero part goes with any family that has a log link: here with Poisson and negative binomial
counts, and with gamma and lognormal amounts. Its probability is the last predictor.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models.families.counts import NegativeBinomial, Poisson
from modicum.models.families.extras import ExtraParameter, LogLink
from modicum.models.families.links import LINKS, chances, softplus
from modicum.models.families.positive import Gamma, Lognormal
from modicum.models.model import Batch
from modicum.models.outcome_checks import count_fault, from_zero_fault
from modicum.models.priors import Moments


@dataclass(frozen=True, repr=False)
class _Zeros(ExtraParameter, LogLink):
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

    @abstractmethod
    def draw_others(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw outcomes from the other source."""


@dataclass(frozen=True, repr=False)
class _Inflated(_Zeros):
    """Counts that are 0 with a probability pi, and otherwise those of the other family."""

    outcome_fault = staticmethod(count_fault)
    counted: ClassVar[str | None] = "y"

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

    def draw_others(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw from the other family."""
        return self.others.draw_outcomes(rng, eta, batch)


@dataclass(frozen=True, repr=False)
class ZeroInflatedPoisson(_Inflated):
    """Counts that are 0 with probability `zero_inflation`, and otherwise Poisson with log-rate eta.

    A zero may come from either source. The probability is the same for all rows.

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


@dataclass(frozen=True, repr=False)
class _Hurdle(_Zeros):
    """Outcomes that are 0 with a probability pi, and otherwise the other family's given not 0.

    All zeros are from the hurdle, whatever eta is: no column can be told to explain them.
    """

    outcome_fault = staticmethod(from_zero_fault)

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

    All zeros come from the hurdle. The probability is the same for all rows.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.HurdlePoisson().extras
    ('logit_zero_chance',)
    """

    others: ClassVar[LogLink] = Poisson()
    extras: ClassVar[tuple[str, ...]] = ("logit_zero_chance",)
    outcome_fault = staticmethod(count_fault)


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
    outcome_fault = staticmethod(count_fault)


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
    bounded_by_variation: ClassVar[bool] = True


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
    bounded_by_variation: ClassVar[bool] = True
