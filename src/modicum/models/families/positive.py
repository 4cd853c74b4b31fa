"""Positive outcomes: gamma, inverse Gaussian and lognormal regression, and times to an event.

Exponential, Weibull, log-logistic and lognormal regression are accelerated failure-time models,
whose times are often censored: eta is the logarithm of a typical time, and a coefficient of 0.1
makes times a tenth longer. The first two are also proportional-hazards models, with log hazard
ratio -beta (times the shape, for Weibull). Means, variances and drawn outcomes are those of the
time to the event, which censoring does not change: it only hides some of the times.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import zeta

from modicum.arrays import HALF_LOG_2PI, as_either, namespace
from modicum.models.families.counts import LogLink
from modicum.models.families.links import (
    LINKS,
    Link,
    bounded_exp,
    draw_log_gammas,
    log_gamma,
    log_gamma_tails,
    log_wald_tails,
    stirling_rest,
)
from modicum.models.families.real import Gaussian
from modicum.models.linear_predictor import (
    Derivatives,
    Draws,
    LinearPredictorModel,
    MeanOutcome,
)
from modicum.models.model import Batch
from modicum.models.observed import POSITIVE, TIMES
from modicum.models.priors.distributions import Normal
from modicum.models.priors.units import Moments


@dataclass(frozen=True, repr=False)
class Gamma(LogLink):
    """Gamma regression with log link: positive outcomes whose sd is proportional to their mean.

    The variance is mu^2 / shape (statsmodels' scale is one over the shape).

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Gamma().extras
    ('log_shape',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_shape",)
    support = POSITIVE

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tails of a gamma variable."""
        return log_gamma_tails(jnp.exp(eta[1]), jnp.log(jnp.asarray(y, eta.dtype)) - eta[0])

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """k (s - e^s + 1) + log(k) / 2 - log y, s = log(y / mu), minus Stirling's remainder."""
        eta, extra = eta
        y = jnp.asarray(y, eta.dtype)
        k, s = jnp.exp(extra), jnp.log(y) - eta
        constant = 0.5 * extra - HALF_LOG_2PI - stirling_rest(k)
        return k * (s - jnp.expm1(s)) + constant - jnp.log(y)

    def variance(self, eta: jax.Array) -> jax.Array:
        """mu^2 / shape."""
        return jnp.exp(2 * eta[0] - eta[1])

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw gamma variables with mean e^eta."""
        shape = bounded_exp(eta[..., 1])
        return bounded_exp(eta[..., 0] + draw_log_gammas(rng, shape) - eta[..., 1])


@dataclass(frozen=True, repr=False)
class InverseGaussian(LogLink):
    """Inverse Gaussian regression with log link: positive outcomes with a long right tail.

    The variance is mu^3 / shape (statsmodels' scale is one over the shape). The default prior of
    log(shape) is about the logarithm of the mean outcome, since the shape has its unit.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.InverseGaussian().extras
    ('log_shape',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_shape",)
    support = POSITIVE
    extras_have_unit: ClassVar[bool] = True

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tails of an inverse Gaussian variable."""
        log_ratio = jnp.log(jnp.asarray(y, eta.dtype)) - eta[0]
        return log_wald_tails(jnp.exp(eta[1] - eta[0]), log_ratio)

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log(shape / 2 pi y^3) / 2 - shape (y / mu - 1)^2 / 2y."""
        eta, extra = eta
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
        mu, shape = bounded_exp(eta[..., 0]), bounded_exp(eta[..., 1])
        w = mu / (2 * shape) * rng.standard_normal(mu.shape) ** 2
        ratio = 1 + w + np.sqrt(w) * np.sqrt(w + 2)  # larger root over the mean
        return np.where(rng.random(mu.shape) * (1 + 1 / ratio) < 1, mu / ratio, mu * ratio)


SMALL = 0.02  # below this, ten terms of the series are exact in double precision
SERIES = tuple((-1) ** n * (2**n - 2) / n * float(zeta(n)) for n in range(2, 12))  # of u^n


@dataclass(frozen=True, repr=False)
class _Accelerated(LogLink):
    """Outcomes e^(eta + noise / shape), with the noise of a link's latent variable."""

    link: ClassVar[Link] = LINKS["cloglog"]

    def log_shape(self, eta: jax.Array) -> jax.Array | float:
        """Logarithm of the shape: the extra parameter, or 0."""
        return eta[1] if self.extras else 0.0

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw outcomes, without censoring."""
        shape = bounded_exp(np.asarray(self.log_shape(as_either(np.moveaxis(eta, -1, 0)))))
        return bounded_exp(eta[..., 0] + self.link.draw(rng, eta.shape[:-1]) / shape)

    def scaled(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Return the noise of an outcome: z = shape (log y - eta)."""
        log_ratio = jnp.log(jnp.asarray(y, eta[0].dtype)) - eta[0]
        return jnp.exp(self.log_shape(eta)) * log_ratio if self.extras else log_ratio

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log(shape / y) plus the log-density of the noise."""
        log_y = jnp.log(jnp.asarray(y, eta[0].dtype))
        return self.log_shape(eta) - log_y + self.link.log_density(self.scaled(eta, y))

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tails of the noise."""
        z = self.scaled(eta, y)
        return self.link.log_success(z), self.link.log_failure(z)


@dataclass(frozen=True, repr=False)
class Lognormal(_Accelerated):
    """Lognormal regression: the logarithm of the outcome is normal, its mean linear in x.

    So e^eta is the median of the outcome and `scale` the standard deviation of its logarithm.
    Expected outcomes are means, e^(eta + scale^2 / 2).

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Lognormal().extras
    ('log_scale',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_scale",)
    support = POSITIVE
    link: ClassVar[Link] = LINKS["probit"]

    def log_shape(self, eta: jax.Array) -> jax.Array:
        """The shape is one over the scale."""
        return -eta[1]

    def mean(self, eta: jax.Array) -> jax.Array:
        """e^(eta + scale^2 / 2)."""
        return jnp.exp(eta[0] + 0.5 * jnp.exp(2 * eta[1]))

    def variance(self, eta: jax.Array) -> jax.Array:
        """The square of the mean, times e^(scale^2) - 1."""
        return self.mean(eta) ** 2 * jnp.expm1(jnp.exp(2 * eta[1]))

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """The square of the scale."""
        return draws["scale"] ** 2

    def at_known_scale(self) -> NormalLogs | None:
        """Return the model of the logarithms with a scale of 1, as `Gaussian` does."""
        if self.modelled or self.row_fields != ("y",):
            return None
        shared = {field.name: getattr(self, field.name) for field in fields(LinearPredictorModel)}
        return NormalLogs(**shared, scale=1.0)


@dataclass(frozen=True, repr=False)
class NormalLogs(Gaussian):
    """Normal logarithms of the outcomes: lognormal regression but for the product of these."""

    of_logs: ClassVar[bool] = True

    def outcome(self, batch: Batch) -> jax.Array:
        """Logarithm of the outcome of each row."""
        y = super().outcome(batch)
        return namespace(y).log(y)


@dataclass(frozen=True, repr=False)
class _Survival(_Accelerated):
    """Times to an event."""

    support = TIMES
    multiplies = "time"


@dataclass(frozen=True, repr=False)
class Exponential(_Survival):
    """Exponential times: constant hazard, log of the mean time linear in x.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rows = mo.Rows(x=np.zeros((2, 1)), y=np.array([3.0, 5.0]), event=np.array([1, 0]))
    >>> mo.models.Exponential().check(rows)
    """

    on_numpy: ClassVar[bool] = True
    formula_fields: ClassVar[tuple[str, ...]] = ("event",)

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """-eta - y e^-eta."""
        return -eta[0] - y * jnp.exp(-eta[0])

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 3) -> Derivatives:
        """Derivatives in eta, with alternating signs; without -eta for a censored time."""
        time, event = (y[..., 0], y[..., 1]) if self.observed else (y, 1.0)
        r = time * namespace(eta).exp(-eta)
        return (-event * eta - r, r - event, *[-r, r, -r, r, -r][: highest - 1])

    def variance(self, eta: jax.Array) -> jax.Array:
        """The square of the mean."""
        return jnp.exp(2 * eta[0])


@dataclass(frozen=True, repr=False)
class Weibull(_Survival):
    """Weibull times: the log of the time by which 63% of events have happened is linear in x.

    The survival probability at y is exp(-(y / e^eta)^shape); hazards rise for a shape above 1.
    Expected outcomes are mean times, e^eta gamma(1 + 1 / shape).

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Weibull().extras
    ('log_shape',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_shape",)

    def mean(self, eta: jax.Array) -> jax.Array:
        """e^eta gamma(1 + 1 / shape)."""
        return jnp.exp(eta[0] + log_gamma(1 + jnp.exp(-eta[1])))

    def variance(self, eta: jax.Array) -> jax.Array:
        """e^(2 eta) (gamma(1 + 2 / shape) - gamma(1 + 1 / shape)^2)."""
        return self.mean(eta) ** 2 * jnp.expm1(_log_square_ratio(jnp.exp(-eta[1])))


@dataclass(frozen=True, repr=False)
class Loglogistic(_Survival):
    """Log-logistic times: the log of the median time is linear in x; hazards may rise and fall.

    The survival probability at y is 1 / (1 + (y / e^eta)^shape), so that a coefficient multiplies
    the odds of surviving, too. The mean is infinite up to a shape of 1, the variance up to 2.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Loglogistic().extras
    ('log_shape',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_shape",)

    link: ClassVar[Link] = LINKS["logit"]

    def mean(self, eta: jax.Array) -> jax.Array:
        """e^eta u / sin(u), with u = pi / shape; infinite from u = pi on."""
        u = jnp.pi * jnp.exp(-eta[1])
        inside = jnp.where(u < jnp.pi, u, 1.0)
        return jnp.where(u < jnp.pi, jnp.exp(eta[0]) * (inside / jnp.sin(inside)), jnp.inf)

    def variance(self, eta: jax.Array) -> jax.Array:
        """The mean times e^eta (tan(u) - u) / sin(u), infinite from u = pi / 2 on."""
        u = jnp.pi * jnp.exp(-eta[1])
        inside = jnp.where(2 * u < jnp.pi, u, 1.0)
        ratio = (jnp.tan(inside) - inside) / jnp.sin(inside)
        return jnp.where(2 * u < jnp.pi, self.mean(eta) * jnp.exp(eta[0]) * ratio, jnp.inf)


def _log_square_ratio(u: jax.Array) -> jax.Array:
    """log of gamma(1 + 2u) / gamma(1 + u)^2; for small u by its power series, not to cancel."""
    near, far = jnp.minimum(u, SMALL), jnp.maximum(u, SMALL)
    series = jnp.zeros_like(near)
    for term in reversed(SERIES):
        series = (series + term) * near
    return jnp.where(u < SMALL, series * near, log_gamma(1 + 2 * far) - 2 * log_gamma(1 + far))
