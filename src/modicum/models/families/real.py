"""Real outcomes: linear regression with normal or Student-t noise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from math import factorial, inf, log, sqrt
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from scipy import special

from modicum.arrays import is_numpy, namespace
from modicum.errors import SettingError
from modicum.models.base import Batch, Params
from modicum.models.families.random_outcomes import bounded_exp
from modicum.models.linear import LinearPredictorModel
from modicum.models.outcomes import refuse_constant, refuse_remote
from modicum.models.priors import Moments, Normal, is_positive
from modicum.rows import Rows
from modicum.runtime import Array

Derivatives = tuple[jax.Array, ...]


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
    scale: float | None = None
    scale_prior: float | None = None

    on_numpy: ClassVar[bool] = True  # at a known scale

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale is not None and not is_positive(self.scale):
            raise SettingError("scale must be a positive number, or None to estimate it.")
        if self.scale_prior is not None and not is_positive(self.scale_prior):
            raise SettingError("scale_prior must be a positive number, or None.")

    @property
    def extras(self) -> tuple[str, ...]:  # type: ignore[override]
        """`log_scale`, unless the scale is known."""
        return () if self.scale is not None else ("log_scale",)

    def extra_scale(self, name: str) -> float | None:
        """Prior standard deviation of log(scale), where it is given."""
        del name
        return self.scale_prior

    def outcome_unit(self, data: Moments) -> float:
        """Return sd(y); for a constant outcome its size, or 1."""
        size = data.y_sd if self.intercept else float(np.hypot(data.y_sd, data.y_mean))
        return size or abs(data.y_mean) or 1.0

    def intercept_prior(self, data: Moments) -> Normal:
        """Return N(mean(y), (2.5 units of y)^2)."""
        return Normal(data.y_mean, 2.5 * self.outcome_unit(data))

    def extra_prior(self, name: str, data: Moments) -> Normal:
        """Return the prior of log(scale), about the logarithm of the outcome's unit."""
        del name
        return Normal(float(np.log(self.outcome_unit(data))), 2.5)

    def without_priors(self) -> Self:
        """Return the likelihood alone."""
        return replace(super().without_priors(), scale_prior=None)

    def spread(self, eta: jax.Array) -> jax.Array | float:
        """Return the scale, known or from the predictors of one row."""
        return self.scale if self.scale is not None else jnp.exp(eta[1])

    def known_scale(self) -> float:
        """Return the known scale, for derivatives in eta alone."""
        if self.scale is None:
            raise SettingError("derivatives in eta alone need a known scale; give scale=.")
        return self.scale

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Report `scale` rather than its logarithm."""
        named = super().report(theta)
        if "log_scale" in named:
            named["scale"] = jnp.exp(named.pop("log_scale"))
        return named

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Take the logarithm of a reported scale."""
        theta = super().restore(named)
        if "scale" in theta:
            theta["log_scale"] = jnp.log(theta.pop("scale"))
        return theta

    def mean(self, eta: jax.Array) -> jax.Array:
        """Return the centre of the outcome."""
        return eta[0]

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Add scaled noise to the centre."""
        del batch
        log_scale = eta[..., 1] if self.scale is None else np.full(eta.shape[:-1], log(self.scale))
        return eta[..., 0] + bounded_exp(log_scale) * self.draw_noise(rng, eta.shape[:-1])

    @abstractmethod
    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw noise with a scale of one."""

    def check_variation(self, rows: Rows) -> None:
        """Refuse an outcome that varies only in its last digits, or not at all.

        A constant outcome is refused only where the scale of its noise is to be estimated.
        """
        if self.scale is None and self.intercept:
            refuse_constant(self, rows)
        refuse_remote(rows)

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Allow any real number."""
        return np.zeros(y.shape, dtype=bool), "real numbers"


@dataclass(frozen=True, repr=False)
class Gaussian(ScaleFamily):
    """Linear regression with normal noise of a known or estimated scale.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Gaussian(scale=1.0).extras, mo.models.Gaussian().extras
    ((), ('log_scale',))
    """

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Normal log-density."""
        s = self.spread(eta)
        return -0.5 * ((y - eta[0]) / s) ** 2 - jnp.log(s) - 0.5 * np.log(2 * np.pi)

    def derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """f to f''' in eta at a known scale; f''' is zero, so order 2 is exact."""
        s = self.known_scale()
        r = (y - eta) / s
        xp = namespace(eta)
        constant = xp.full_like(eta, -1 / s**2)
        f = -0.5 * r**2 - np.log(s) - 0.5 * np.log(2 * np.pi)
        return f, r / s, constant, xp.zeros_like(eta)

    def variance(self, eta: jax.Array) -> jax.Array:
        """The square of the scale."""
        return jnp.asarray(self.spread(eta) ** 2)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw normal noise."""
        return rng.standard_normal(shape)

    def series_radius(self) -> float:
        """Infinite: the series is finite."""
        return inf

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """Zero: the log-density is quadratic."""
        return (namespace(eta).zeros_like(eta),) * 3


@dataclass(frozen=True, repr=False)
class StudentT(ScaleFamily):
    """Robust linear regression: Student-t noise with `df` degrees of freedom.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.StudentT(df=5.0, scale=2.0).df
    5.0
    """

    df: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_positive(self.df):
            raise SettingError("df (the degrees of freedom) must be a positive number.")

    def log_constant(self, numpy: bool = False) -> jax.Array:
        """Logarithm of the density's normalising constant at a scale of one."""
        nu, of = self.df, special.gammaln if numpy else gammaln
        constant: jax.Array = of((nu + 1) / 2) - of(nu / 2) - 0.5 * np.log(nu * np.pi)
        return constant

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Student-t log-density."""
        s, nu = self.spread(eta), self.df
        return (
            self.log_constant()
            - jnp.log(s)
            - (nu + 1) / 2 * jnp.log1p(((y - eta[0]) / s) ** 2 / nu)
        )

    def derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """f to f''' in eta at a known scale; f'' is positive for |r| > s sqrt(nu)."""
        s, nu = self.known_scale(), self.df
        r, v = y - eta, nu * s**2
        constant = self.log_constant(is_numpy(eta)) - np.log(s)
        f = constant - (nu + 1) / 2 * namespace(eta).log1p(r**2 / v)
        f1 = (nu + 1) * r / (v + r**2)
        f2 = (nu + 1) * (r**2 - v) / (v + r**2) ** 2
        f3 = 2 * (nu + 1) * r * (r**2 - 3 * v) / (v + r**2) ** 3
        return f, f1, f2, f3

    def variance(self, eta: jax.Array) -> jax.Array:
        """s^2 df / (df - 2); infinite up to df = 2."""
        factor = self.df / (self.df - 2) if self.df > 2 else inf
        return jnp.asarray(factor * self.spread(eta) ** 2)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw Student-t noise."""
        return rng.standard_t(self.df, shape)

    def series_radius(self) -> float:
        """Distance to the poles at r = +- i s sqrt(nu), for a row with residual 0."""
        return self.known_scale() * sqrt(self.df)

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """The k-th derivative is (nu + 1) (k - 1)! Re (r + i s sqrt(nu))^-k."""
        s, nu = self.known_scale(), self.df
        xp, far = namespace(eta), s * np.sqrt(nu)
        below = y - eta + 1j * far if xp is np else jax.lax.complex(y - eta, xp.full_like(eta, far))
        inverse = 1 / below
        return tuple((nu + 1) * factorial(k - 1) * xp.real(inverse**k) for k in (4, 5, 6))
