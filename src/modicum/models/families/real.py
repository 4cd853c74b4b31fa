"""Real outcomes: linear regression with normal or Student-t noise, and quantile regression."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from math import factorial, inf, lgamma, log, log1p, pi, sqrt
from typing import Annotated, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, i0e
from numpy.typing import ArrayLike
from scipy.special import polygamma, psi

from modicum.arguments import Positive, Share, number
from modicum.arrays import HALF_LOG_2PI, differentiable, namespace
from modicum.errors import SettingError
from modicum.models.coefficients import MOST_SKEW
from modicum.models.families.counts import LogLink
from modicum.models.families.links import (
    bounded_exp,
    draw_log_gammas,
    log_beta_tails,
    log_normal_cdf,
    log_skew_normal_tails,
    log_t_cdf,
    log_t_constant,
    softplus,
)
from modicum.models.linear_predictor import Derivatives, Draws, LinearPredictorModel, MeanOutcome
from modicum.models.model import Batch
from modicum.models.observed import ANGLES, CENSORED, KNOWN_NOISE, REAL, refuse_remote
from modicum.models.priors.distributions import Normal
from modicum.models.priors.units import Moments
from modicum.rows import Rows

UNBENT = 1e-4  # share of the largest skewness below which a series in it is the density


@dataclass(frozen=True, repr=False)
class ScaleFamily(LinearPredictorModel):
    """A family for real outcomes with a scale that is known, or estimated on the log scale.

    An estimated scale has a log-normal prior. The unit of the outcome is sd(y), or, without an
    intercept, the root mean square of y; the predictor at the mean of the columns has a normal
    prior about mean(y) with an sd of 2.5 units by default.

    Parameters
    ----------
    scale
        The scale of the noise, in the units of y; None: estimated.
    scale_prior
        Standard deviation of log(scale) about 0, in the units of y. None: the
        logarithm of that unit is the mean of log(scale), and 2.5 its standard deviation.
    """

    _: KW_ONLY
    scale: Positive | None = None
    scale_prior: Positive | None = None

    on_numpy: ClassVar[bool] = True  # at a known scale
    extras_have_unit: ClassVar[bool] = True
    support = REAL
    scale_at: ClassVar[int] = 1  # where among the predictors of a row the log-scale is

    @property
    def extras(self) -> tuple[str, ...]:  # type: ignore[override]
        """`log_scale`, unless the scale is known."""
        return () if self.scale is not None or "se" in self.observed else ("log_scale",)

    @classmethod
    def partial_fields(cls) -> tuple[str, ...]:
        """Return the fields of censoring and truncation, and those of known errors."""
        return (*super().partial_fields(), *KNOWN_NOISE)

    def observed_in(self, rows: Rows) -> tuple[str, ...]:
        """Refuse known errors of rows beside a known scale."""
        fields = super().observed_in(rows)
        if self.scale is not None and set(fields) & set(KNOWN_NOISE):
            raise SettingError(
                "the scale of the noise is given as scale= and by the rows' standard errors: leave "
                "one of them out."
            )
        return fields

    def with_error(self, eta: jax.Array, known: Mapping[str, jax.Array]) -> jax.Array:
        """Replace the log-scale by that of the known noise, or add an error to the noise."""
        xp = namespace(eta)
        if "se" in known:
            log_scale = xp.broadcast_to(xp.log(known["se"]), eta.shape[:-1])
        elif "added_se" in known:
            square = xp.exp(2 * eta[..., self.scale_at]) + known["added_se"] ** 2
            log_scale = 0.5 * xp.log(square)
        else:
            return eta
        return xp.concatenate([eta[..., : self.scale_at], log_scale[..., None]], axis=-1)

    def scale_about_zero(self, name: str) -> float | None:
        """Prior standard deviation of log(scale), where it is given, too."""
        return self.scale_prior if name == "log_scale" else super().scale_about_zero(name)

    def outcome_unit(self, data: Moments) -> float:
        """Return sd(y); for a constant outcome its size, or 1."""
        size = data.y_sd if self.intercept else float(np.hypot(data.y_sd, data.y_mean))
        return size or abs(data.y_mean) or 1.0

    def intercept_prior(self, data: Moments) -> Normal:
        """Return N(mean(y), (2.5 units of y)^2)."""
        return Normal(data.y_mean, 2.5 * self.outcome_unit(data))

    def extra_prior(self, name: str, data: Moments) -> Normal:
        """Return the prior of log(scale), about the logarithm of the outcome's unit."""
        if name != "log_scale":
            return super().extra_prior(name, data)
        return Normal(float(np.log(self.outcome_unit(data))), 2.5)

    def without_priors(self) -> Self:
        """Return the likelihood alone."""
        return replace(super().without_priors(), scale_prior=None)

    def spread(self, eta: jax.Array) -> jax.Array | float:
        """Return the scale, known or from the predictors of one row."""
        if self.scale is None and len(eta) <= self.scale_at:
            raise SettingError(
                "the variance of an outcome depends on the standard error of its row."
            )
        return self.scale if self.scale is not None else jnp.exp(eta[self.scale_at])

    def known_scale(self) -> float:
        """Return the known scale, for derivatives in eta alone."""
        assert self.scale is not None, "derivatives in eta alone are those of a known scale"
        return self.scale

    def mean(self, eta: jax.Array) -> jax.Array:
        """Return the centre of the outcome."""
        return eta[0]

    def variance(self, eta: jax.Array) -> jax.Array:
        """The square of the scale."""
        return jnp.asarray(self.spread(eta) ** 2)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Add scaled noise to the centre."""
        s = self.scale if self.scale is not None else bounded_exp(eta[..., self.scale_at])
        return eta[..., 0] + s * self.draw_noise(rng, eta)

    @abstractmethod
    def draw_noise(self, rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
        """Draw noise with a scale of one, at vectors of predictors."""

    def check_variation(self, rows: Rows) -> None:
        """Refuse an outcome that varies only in its last digits, too."""
        super().check_variation(rows)
        refuse_remote(rows)


@dataclass(frozen=True, repr=False)
class Gaussian(ScaleFamily):
    """Linear regression with normal noise of a known or estimated scale.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Gaussian(scale=1.0).extras, mo.models.Gaussian().extras
    ((), ('log_scale',))
    """

    formula_fields: ClassVar[tuple[str, ...]] = ("se",)

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Normal log-density."""
        s = self.spread(eta)
        return -0.5 * ((y - eta[0]) / s) ** 2 - jnp.log(s) - 0.5 * np.log(2 * np.pi)

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """log Phi(z) and log Phi(-z)."""
        z = (y - eta[0]) / self.spread(eta)
        return log_normal_cdf(z), log_normal_cdf(-z)

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 3) -> Derivatives:
        """Derivatives in eta at a known scale; f''' is zero, so order 2 is exact."""
        xp = namespace(eta)
        s: jax.Array | float
        if self.observed:
            y, s, log_s = y[..., 0], y[..., 1], xp.log(y[..., 1])
        else:
            s, log_s = self.known_scale(), log(self.known_scale())
        r = (y - eta) / s
        constant, zeros = xp.full_like(eta, -1 / s**2), xp.zeros_like(eta)
        f = -0.5 * r**2 - log_s - 0.5 * np.log(2 * np.pi)
        return (f, r / s, constant, *[zeros] * (highest - 2))

    def at_known_scale(self) -> Gaussian | None:
        """Return the family with a scale of 1, unless it is known.

        None if rows differ in it, or if outcomes are more than numbers.
        """
        if self.modelled or self.row_fields != ("y",):
            return None
        return self if self.scale is not None else replace(self, scale=1.0)

    def draw_noise(self, rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
        """Draw normal noise."""
        return rng.standard_normal(eta.shape[:-1])

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """The square of the scale."""
        if set(self.observed) & set(KNOWN_NOISE):
            return super().noise_variance(draws, mean)
        return np.asarray(draws["scale"] if self.scale is None else self.scale) ** 2

    def series_radius(self) -> float:
        """Infinite: the series is finite."""
        return inf


@dataclass(frozen=True, repr=False)
class SkewNormal(ScaleFamily):
    """Linear regression with skew-normal noise: eta is the mean, `scale` the standard deviation.

    With the slant alpha of the density 2 phi(w) Phi(alpha w), the information is singular at
    alpha = 0, where alpha does what the mean does. With mean, standard deviation and `skewness`
    (between -0.995 and 0.995) as parameters it is not (Azzalini 1985). `SkewNormal.alpha` gives
    the slant. By default the skewness is G tanh(v / 2), with G = 0.995 and v ~ N(0, 2^2).

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.SkewNormal().extras
    ('log_scale', 'tanh_skewness')
    >>> round(float(mo.models.SkewNormal.alpha(0.9)), 2)
    6.3
    """

    on_numpy: ClassVar[bool] = False

    @property
    def extras(self) -> tuple[str, ...]:  # type: ignore[override]
        """`log_scale`, unless it is known, and the coordinate of the skewness."""
        return (*super().extras, "tanh_skewness")

    @classmethod
    def partial_fields(cls) -> tuple[str, ...]:
        """Leave out known errors, which change the skewness of the sum."""
        return CENSORED

    @staticmethod
    def alpha(skewness: ArrayLike) -> np.ndarray:
        """Return the slant of some skewnesses."""
        share = np.asarray(skewness) / MOST_SKEW
        ratio, rest = np.abs(share) ** (2 / 3), 1 - np.abs(share) ** (2 / 3)
        return np.asarray(np.sign(share) * np.sqrt(pi / (pi - 2) * ratio / rest))

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Log of 2 phi(w) Phi(alpha w) / omega; without skewness, its series in the skewness.

        Beyond its linear term the density is of the order skewness^(4/3), which has no curvature
        at 0, and is left out where it is below 10^-6.
        """
        z, skew, few, w, slant, width = self._bent(eta, y)
        z2, s = z**2, self.spread(eta)
        normal = -0.5 * z2 - HALF_LOG_2PI - jnp.log(s)
        series = skew / 6 * z * (z2 - 3) - skew**2 / 72 * (9 * z2**2 - 36 * z2 + 15)
        bent = log(2) - 0.5 * w**2 + log_normal_cdf(slant * w)
        return jnp.where(few, normal + series, bent - HALF_LOG_2PI - jnp.log(s * width))

    def _bent(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        """Return z in sds from the mean, the skewness, whether it is small, w, alpha, omega."""
        v, z = eta[-1], (y - eta[0]) / self.spread(eta)
        share = jnp.tanh(v / 2)
        few = jnp.abs(share) < UNBENT
        sign, size = jnp.sign(v), jnp.where(few, 1.0, jnp.abs(v))
        log_share = jnp.log1p(-jnp.exp(-size)) - jnp.log1p(jnp.exp(-size))
        root = jnp.exp(log_share / 3) / sqrt(pi / 2 - 1)
        width = jnp.sqrt(1 + root**2)  # omega, in standard deviations
        slant = sign * sqrt(pi / 2) * root / jnp.sqrt(-jnp.expm1(2 / 3 * log_share))
        return z, MOST_SKEW * share, few, (z + sign * root) / width, slant, width

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tails by Owen's T; with little skewness those of the normal and a term linear in it."""
        z, skew, few, w, slant, _ = self._bent(eta, y)
        logs, bend = jnp.stack([log_normal_cdf(z), log_normal_cdf(-z)]), skew / 6 * (z**2 - 1)
        series = logs + bend * jnp.array([-1.0, 1.0]) * jnp.exp(-0.5 * z**2 - HALF_LOG_2PI - logs)
        below, above = jnp.where(few, series, jnp.stack(log_skew_normal_tails(w, slant)))
        return below, above

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """The square of the scale."""
        return np.asarray(draws["scale"] if self.scale is None else self.scale) ** 2

    def draw_noise(self, rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
        """Draw delta |u| + sqrt(1 - delta^2) v, with u and v normal, from its mean in its sds."""
        alpha = self.alpha(MOST_SKEW * np.tanh(np.clip(eta[..., -1], -36, 36) / 2))
        delta = alpha / np.hypot(1, alpha)
        mean = delta * sqrt(2 / pi)
        noise = delta * np.abs(rng.standard_normal(delta.shape)) - mean
        noise += np.sqrt(1 - delta**2) * rng.standard_normal(delta.shape)
        return np.asarray(noise / np.sqrt(1 - mean**2))


@dataclass(frozen=True, repr=False)
class GaussianLog(LogLink):
    """Gaussian regression with log link: e^eta is the mean of the outcome, its noise normal.

    As R's ``gaussian(link = "log")``: effects multiply the mean, but the noise has the same scale
    in all rows. (For noise that is multiplied too, `Lognormal`.)

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.GaussianLog().extras
    ('log_scale',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_scale",)
    extras_have_unit: ClassVar[bool] = True
    support = REAL

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Normal log-density about e^eta."""
        apart = jnp.exp(-eta[1]) * (y - jnp.exp(eta[0]))
        return -0.5 * apart**2 - eta[1] - HALF_LOG_2PI

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """log Phi(z) and log Phi(-z)."""
        z = jnp.exp(-eta[1]) * (y - jnp.exp(eta[0]))
        return log_normal_cdf(z), log_normal_cdf(-z)

    def extra_prior(self, name: str, data: Moments) -> Normal:
        """Return the prior of log(scale), about the logarithm of sd(y)."""
        return Normal(float(np.log(data.y_sd or abs(data.y_mean) or 1.0)), 2.5)

    def variance(self, eta: jax.Array) -> jax.Array:
        """The square of the scale."""
        return jnp.exp(2 * eta[1])

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Add normal noise to e^eta."""
        noise = bounded_exp(eta[..., 1]) * rng.standard_normal(eta.shape[:-1])
        return bounded_exp(eta[..., 0]) + noise


@dataclass(frozen=True, repr=False)
class StudentT(ScaleFamily):
    """Robust linear regression: Student-t noise with `df` degrees of freedom.

    Parameters
    ----------
    df
        Degrees of freedom. None: estimated; their logarithm has a normal prior with the mean and
        the standard deviation that it has under a gamma(2, 0.1) prior of `df`.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.StudentT(df=5.0, scale=2.0).df
    5.0
    >>> mo.models.StudentT(df=None).extras
    ('log_df', 'log_scale')
    """

    df: Positive | None = 4.0

    @property
    def extras(self) -> tuple[str, ...]:  # type: ignore[override]
        """`log_df` and `log_scale`, unless they are known."""
        return (*["log_df"] * (self.df is None), *super().extras)

    @property
    def scale_at(self) -> int:  # type: ignore[override]
        """After the centre, and the degrees of freedom where they are estimated."""
        return 2 if self.df is None else 1

    def observed_in(self, rows: Rows) -> tuple[str, ...]:
        """Refuse outcomes known in part, whose chances cannot be differentiated by `df`."""
        fields = super().observed_in(rows)
        if self.df is None and set(fields) & set(CENSORED):
            raise SettingError(
                "degrees of freedom cannot be estimated from outcomes that are known in part: give "
                "them, as in mo.models.StudentT(df=4)."
            )
        return fields

    def extra_prior(self, name: str, data: Moments) -> Normal:
        """Return the prior of log(df), which most of all doubts noise of very heavy tails."""
        if name != "log_df":
            return super().extra_prior(name, data)
        return Normal(float(psi(2)) + log(10), sqrt(polygamma(1, 2)))

    def degrees(self, eta: jax.Array) -> jax.Array | float:
        """Return the degrees of freedom, known or from the predictors of one row."""
        return self.df if self.df is not None else jnp.exp(eta[1])

    def known_df(self) -> float:
        """Return the known degrees of freedom, for derivatives in eta alone."""
        assert self.df is not None, "derivatives in eta alone are those of known degrees of freedom"
        return self.df

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Student-t log-density."""
        s, nu = self.spread(eta), self.degrees(eta)
        tail = (nu + 1) / 2 * jnp.log1p(((y - eta[0]) / s) ** 2 / nu)
        return log_t_constant(nu) - jnp.log(s) - tail

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tails of a t variable, which are alike; without derivatives by estimated degrees."""
        z = (y - eta[0]) / self.spread(eta)
        if self.df is not None:
            return log_t_cdf(z, self.df), log_t_cdf(-z, self.df)
        nu = self.degrees(eta)
        below = 0.5 * betainc(nu / 2, 0.5, nu / (nu + z**2))
        less = jnp.log(jnp.where(z < 0, below, 1 - below))
        return less, jnp.log(jnp.where(z < 0, 1 - below, below))

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 3) -> Derivatives:
        """Derivatives in eta at a known scale; f'' is positive for |r| > s sqrt(nu).

        The k-th is (nu + 1) (k - 1)! Re (r + i s sqrt(nu))^-k.
        """
        s, nu = self.known_scale(), self.known_df()
        r, v = y - eta, nu * s**2
        constant = log_t_constant(nu) - log(s)
        f = constant - (nu + 1) / 2 * namespace(eta).log1p(r**2 / v)
        f1 = (nu + 1) * r / (v + r**2)
        f2 = (nu + 1) * (r**2 - v) / (v + r**2) ** 2
        f3 = 2 * (nu + 1) * r * (r**2 - 3 * v) / (v + r**2) ** 3
        if highest == 3:
            return f, f1, f2, f3
        xp, far = namespace(eta), s * np.sqrt(nu)
        below = r + 1j * far if xp is np else jax.lax.complex(r, xp.full_like(eta, far))
        inverse = 1 / below
        higher = ((nu + 1) * factorial(k - 1) * xp.real(inverse**k) for k in (4, 5, 6))
        return (f, f1, f2, f3, *higher)

    def variance(self, eta: jax.Array) -> jax.Array:
        """s^2 df / (df - 2); infinite up to df = 2."""
        nu = jnp.asarray(self.degrees(eta))
        return jnp.where(nu > 2, nu / jnp.maximum(nu - 2, 1e-9), inf) * super().variance(eta)

    def draw_noise(self, rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
        """Draw Student-t noise."""
        df = self.df if self.df is not None else bounded_exp(eta[..., 1])
        return rng.standard_t(df, eta.shape[:-1])

    def series_radius(self) -> float:
        """Distance to the poles at r = +- i s sqrt(nu), for a row with residual 0."""
        return self.known_scale() * sqrt(self.known_df())


@dataclass(frozen=True, repr=False)
class VonMises(LinearPredictorModel):
    """Directions: angles from -pi to pi, the tangent of half their mean direction linear in x.

    So the mean direction is 2 arctan(eta), as in brms: measure angles from a direction opposite to
    which there are few. Expected outcomes are mean directions.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.VonMises().extras
    ('log_concentration',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_concentration",)
    no_tails: ClassVar[str] = "angles go round in a circle, on which none is below another"
    support = ANGLES

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """k (cos(y - mu) - 1) - log(2 pi e^-k I0(k))."""
        k = jnp.exp(eta[1])
        return -2 * k * jnp.sin(0.5 * y - jnp.arctan(eta[0])) ** 2 - jnp.log(2 * pi * i0e(k))

    def intercept_prior(self, data: Moments) -> Normal:
        """Return a prior under which no direction is unlikely."""
        return Normal(0.0, 2.5)

    def mean(self, eta: jax.Array) -> jax.Array:
        """The mean direction."""
        return 2 * jnp.arctan(eta[0])

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw angles about the mean direction."""
        return rng.vonmises(2 * np.arctan(eta[..., 0]), bounded_exp(eta[..., 1]))


BLUNT = 0.5  # width, in scales, over which the curvature of the kink is spread


def _check_function(tau: float) -> Callable[[jax.Array], jax.Array]:
    """The check function u (tau - 1[u < 0]), with a surrogate second derivative.

    The true second derivative is 0 almost everywhere, and says nothing about the curvature of a sum
    over rows. It is replaced by that of a rounded kink, for whitening and control variates: the
    difference estimator is unbiased for any quadratic.
    """
    slope = differentiable(slope=_blunt_curve)(lambda u: tau - (u < 0))
    return differentiable(slope=slope)(lambda u: u * (tau - (u < 0)))


def _blunt_curve(u: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(u / BLUNT) * jax.nn.sigmoid(-u / BLUNT) / BLUNT


@dataclass(frozen=True, repr=False)
class AsymmetricLaplace(ScaleFamily):
    """Quantile regression: eta is the `quantile` of the outcome (Yu and Moyeed 2001).

    The log-likelihood is minus the check function of the residual over the scale, and has a kink
    where a residual is 0. A Taylor expansion fails there: HMC-ECS uses another quadratic and needs
    more rows as the table grows, or NUTS runs on all of them. With `smoothing` the kink is rounded
    off, and a few rows per step are enough: the density is then the extended log-F of Fasiolo,
    Wood, Zaffran, Nedellec and Goude (2021), whose eta is the quantile up to an error that falls
    with the square of `smoothing`. The likelihood is a working one: intervals are calibrated only
    if the outcomes really have this distribution. Expected outcomes are quantiles, not means.

    Parameters
    ----------
    quantile
        The quantile, between 0 and 1; 0.5 is the median.
    smoothing
        Width over which the kink is rounded off, in units of the scale; 0 keeps the kink.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.AsymmetricLaplace(quantile=0.9).has_mode
    False
    """

    quantile: Annotated[Share, "0.5 is the median"] = 0.5
    smoothing: Annotated[float, number("0 or a positive number", lambda v: v >= 0)] = 0.0

    on_numpy: ClassVar[bool] = False

    @property
    def has_mode(self) -> bool:  # type: ignore[override]
        """Whether Newton's method can find the mode, which may lie on a kink."""
        return self.smoothing > 0

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log(tau (1 - tau) / s) - check(u), u = (y - eta) / s, or its smoothed version."""
        s = self.spread(eta)
        u = (y - eta[0]) / s
        if not self.smoothing:
            check = _check_function(self.quantile)(u)
        else:
            check = self.quantile * u + self.smoothing * softplus(-u / self.smoothing)
        return self.log_constant() - jnp.log(s) - check

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Exponential tails, or those of the log-odds of a beta variable."""
        tau, width = self.quantile, self.smoothing
        u = (y - eta[0]) / self.spread(eta)
        if width:
            a, b = (jnp.asarray(width * share, u.dtype) for share in (1 - tau, tau))
            return log_beta_tails(a, b, u / width)
        low = u < 0
        own = jnp.where(low, log(tau), log1p(-tau)) - u * jnp.where(low, tau - 1, tau)
        other = jnp.log1p(-jnp.exp(own))
        return jnp.where(low, own, other), jnp.where(low, other, own)

    def log_constant(self) -> float:
        """Logarithm of the density's normalising constant at a scale of one."""
        tau, width = self.quantile, self.smoothing
        if not width:
            return log(tau * (1 - tau))
        both = lgamma(tau * width) + lgamma((1 - tau) * width) - lgamma(width)
        return -log(width) - both

    def moments(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance of the outcome, whose quantile is eta."""
        s, tau, width = self.spread(eta), self.quantile, self.smoothing
        if not width:
            centre, square = 1 / tau - 1 / (1 - tau), 1 / tau**2 + 1 / (1 - tau) ** 2
        else:  # moments of a log-gamma variable: digamma and trigamma of its shape
            above, below = (1 - tau) * width, tau * width
            centre = width * float(psi(above) - psi(below))
            square = width**2 * float(polygamma(1, above) + polygamma(1, below))
        return eta[0] + centre * s, jnp.asarray(square * s**2)

    def variance(self, eta: jax.Array) -> jax.Array:
        """Variance of the outcome, from `moments`."""
        return self.moments(eta)[1]

    def draw_noise(self, rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
        """Draw a difference of exponential variables, or of logarithms of gamma variables."""
        tau, width, shape = self.quantile, self.smoothing, eta.shape[:-1]
        if not width:
            above, below = rng.standard_exponential((2, *shape))
            return np.asarray(above / tau - below / (1 - tau))
        above, below = (
            draw_log_gammas(rng, np.full(shape, width * share)) for share in (1 - tau, tau)
        )
        return width * (above - below)

    def series_radius(self) -> float:
        """Distance to the poles of the smoothed check function; 0 with a kink."""
        return pi * self.known_scale() * self.smoothing
