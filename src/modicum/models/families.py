"""The linear-predictor families: logistic, Poisson, Gaussian and Student-t regression, softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import factorial, inf, sqrt
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from modicum.errors import DataError, ModicumWarning, SettingError, whole_number
from modicum.models.base import Labels, Params
from modicum.models.linear import LinearPredictorModel
from modicum.models.outcomes import CHUNK, class_fault, count_classes
from modicum.models.priors import Moments, Normal, is_positive
from modicum.models.separation import find_separation
from modicum.rows import Rows

__all__ = ["Gaussian", "Logistic", "Poisson", "Softmax", "StudentT"]

Derivatives = tuple[jax.Array, ...]
LARGEST_OFFSET = 700.0  # of which the exponential is still a number


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x), half the cost of `jax.nn.softplus` together with its derivative."""
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


softplus.defjvps(lambda tangent, value, x: tangent * jax.nn.sigmoid(x))


def with_reference(eta: jax.Array) -> jax.Array:
    """Predictors (..., K - 1) followed by that of the reference class, which is 0."""
    return jnp.concatenate([eta, jnp.zeros_like(eta[..., :1])], axis=-1)


@dataclass(frozen=True, repr=False)
class Logistic(LinearPredictorModel):
    """Logistic regression: y in {0, 1}, log-odds linear in x.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Logistic(prior_scale=2.5)
    Logistic(prior_scale=2.5, intercept=True, intercept_scale=None)
    """

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """y eta - log(1 + e^eta)."""
        return y * eta[0] - softplus(eta[0])

    def derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """f to f''' in eta, with p the chance of a one."""
        p, q = jax.nn.sigmoid(eta), jax.nn.sigmoid(-eta)  # q = 1 - p without cancellation
        return y * eta - softplus(eta), y - p, -p * q, -p * q * (q - p)

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """Polynomials in s = p (1 - p)."""
        p, q = jax.nn.sigmoid(eta), jax.nn.sigmoid(-eta)
        s = p * q
        return -s * (1 - 6 * s), -s * (q - p) * (1 - 12 * s), -s * (1 - 30 * s + 120 * s**2)

    def pseudo_variance(self, of: Moments) -> float:
        """1 / (p (1 - p)) at the share of ones."""
        return 1 / max(of.y_mean * (1 - of.y_mean), 1 / (of.weight + 1))

    def mean(self, eta: jax.Array) -> jax.Array:
        """Chance of a one."""
        return jax.nn.sigmoid(eta[0])

    def decide(self, expected: np.ndarray) -> np.ndarray:
        """One where its chance is above a half."""
        return np.asarray(expected > 0.5)

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Whether columns give the outcome away, ones against zeros."""
        intercept = np.atleast_1d(theta["intercept"]) if self.intercept else None
        beta = np.asarray(theta["beta"])[None]
        found, passes = find_separation(rows, beta, intercept, reversed=True)
        return None if found is None else found.warning(), passes

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Only 0 and 1."""
        return (y != 0) & (y != 1), "outcomes that are 0 or 1"


@dataclass(frozen=True, repr=False)
class Poisson(LinearPredictorModel):
    """Poisson regression with log link: counts, log-rate linear in x (exposure as log-offset).

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> years = np.array([0.5, 1.0, 2.0])
    >>> rows = mo.Rows(x=np.zeros((3, 1)), y=np.array([0, 1, 1]), offset=np.log(years))
    >>> mo.models.Poisson().check(rows)
    """

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """y eta - e^eta - log y!."""
        return y * eta[0] - jnp.exp(eta[0]) - _log_factorial(y, eta)

    def derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """f to f''' in eta: all but the first two are minus the rate."""
        rate = jnp.exp(eta)
        return y * eta - rate - _log_factorial(y, eta), y - rate, -rate, -rate

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """Minus the rate, again and again."""
        rate = jnp.exp(eta)
        return -rate, -rate, -rate

    def pseudo_variance(self, of: Moments) -> float:
        """One over the mean count."""
        return 1 / max(of.y_mean, 1 / (of.weight + 1))

    def mean(self, eta: jax.Array) -> jax.Array:
        """Rate."""
        return jnp.exp(eta[0])

    def check_offset(self, rows: Rows) -> None:
        """Refuse, besides offsets of the wrong shape, those that overflow as exposures."""
        super().check_offset(rows)
        start = 0
        for chunk in rows.chunks(CHUNK) if "offset" in rows.fields else ():
            offset = np.asarray(chunk["offset"])
            if offset.max() > LARGEST_OFFSET:
                first = int(np.argmax(offset > LARGEST_OFFSET))
                raise DataError(
                    f"the offset is {offset[first]:g} in row {start + first}, and the exposure it "
                    f"stands for, exp({offset[first]:g}), is more than a number can hold; an "
                    "offset is the logarithm of the exposure: give np.log(exposure)."
                )
            start += len(offset)

    def intercept_prior(self, of: Moments) -> Normal:
        """Return a wide prior about the logarithm of outcomes over exposures.

        Where all outcomes are 0, half a count stands for them.
        """
        none = np.log(0.5) - of.log_exposure
        return Normal(float(of.log_rate if np.isfinite(of.log_rate) else none), 10.0)

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Only whole numbers from 0."""
        return (y < 0) | (y != np.floor(y)), "counts (whole numbers from 0)"


def _log_factorial(y: jax.Array, eta: jax.Array) -> jax.Array:
    # in the precision of eta: counts stored in float32 would lose whole units of log y!
    return gammaln(jnp.asarray(y, eta.dtype) + 1.0)


@dataclass(frozen=True, repr=False)
class _ScaleFamily(LinearPredictorModel):
    """A family of a real outcome with a scale: known, or estimated on its logarithm.

    An estimated scale has a log-normal prior. By default log(scale) has mean log sd(y) and standard
    deviation 2.5; with `scale_prior` given, log(scale) ~ N(0, scale_prior^2) in the units of y.
    The unit of the outcome is sd(y), or, without an intercept, the root mean square of y; the
    predictor at the mean of the columns has mean(y) and 2.5 units as its default prior.
    """

    scale: float | None = None
    scale_prior: float | None = None

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

    def outcome_unit(self, of: Moments) -> float:
        """Return sd(y); of an outcome that never varies its size, or 1."""
        size = of.y_sd if self.intercept else float(np.hypot(of.y_sd, of.y_mean))
        return size or abs(of.y_mean) or 1.0

    def intercept_prior(self, of: Moments) -> Normal:
        """Return mean(y) and 2.5 units of y."""
        return Normal(of.y_mean, 2.5 * self.outcome_unit(of))

    def extra_prior(self, name: str, of: Moments) -> Normal:
        """Return that of log(scale): about the logarithm of the outcome's unit."""
        del name
        return Normal(float(np.log(self.outcome_unit(of))), 2.5)

    def without_priors(self) -> Self:
        """Return the likelihood alone."""
        return replace(super().without_priors(), scale_prior=None)

    def spread(self, eta: jax.Array) -> Any:
        """Return the scale, known or from the predictors of one row."""
        return self.scale if self.scale is not None else jnp.exp(eta[1])

    def known_scale(self) -> float:
        """Return the scale where derivatives in eta alone are asked for."""
        if self.scale is None:
            raise SettingError("derivatives in eta alone need a known scale; give scale=.")
        return self.scale

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Report `scale` rather than its logarithm."""
        named = super().report(theta)
        if "log_scale" in named:
            named["scale"] = jnp.exp(named.pop("log_scale"))
        return named

    def restore(self, named: Mapping[str, Any]) -> Params:
        """Take the logarithm of a reported scale."""
        theta = super().restore(named)
        if "scale" in theta:
            theta["log_scale"] = jnp.log(theta.pop("scale"))
        return theta

    def mean(self, eta: jax.Array) -> jax.Array:
        """Return the centre of the outcome."""
        return eta[0]

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Any real number will do."""
        return np.zeros(y.shape, dtype=bool), "real numbers"


@dataclass(frozen=True, repr=False)
class Gaussian(_ScaleFamily):
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
        constant = jnp.full_like(eta, -1 / s**2)
        f = -0.5 * r**2 - np.log(s) - 0.5 * np.log(2 * np.pi)
        return f, r / s, constant, jnp.zeros_like(eta)

    def series_radius(self) -> float:
        """Infinite: the series ends by itself."""
        return inf

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """Zero: the log-density is quadratic."""
        return jnp.zeros_like(eta), jnp.zeros_like(eta), jnp.zeros_like(eta)


@dataclass(frozen=True, repr=False)
class StudentT(_ScaleFamily):
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

    def log_constant(self) -> jax.Array:
        """Logarithm of the density's normalising constant at a scale of one."""
        nu = self.df
        return gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)

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
        f = self.log_constant() - np.log(s) - (nu + 1) / 2 * jnp.log1p(r**2 / v)
        f1 = (nu + 1) * r / (v + r**2)
        f2 = (nu + 1) * (r**2 - v) / (v + r**2) ** 2
        f3 = 2 * (nu + 1) * r * (r**2 - 3 * v) / (v + r**2) ** 3
        return f, f1, f2, f3

    def series_radius(self) -> float:
        """To the poles at r = +- i s sqrt(nu), for the row with the smallest residual."""
        return self.known_scale() * sqrt(self.df)

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """The k-th derivative is (nu + 1) (k - 1)! Re (r + i s sqrt(nu))^-k."""
        s, nu = self.known_scale(), self.df
        inverse = 1 / jax.lax.complex(y - eta, jnp.full_like(eta, s * np.sqrt(nu)))
        return tuple((nu + 1) * factorial(k - 1) * jnp.real(inverse**k) for k in (4, 5, 6))


@dataclass(frozen=True, repr=False)
class Softmax(LinearPredictorModel):
    """Multinomial logistic regression: classes 0, 1, ..., K - 1, the last one the reference.

    `classes` may be left out: it is then one more than the largest outcome, and every class has
    to occur. Draws are called `beta` (K - 1 classes by columns) and `intercept` (K - 1 classes).

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rows = mo.Rows(x=np.eye(3), y=np.array([0, 1, 2]))
    >>> mo.models.Softmax(classes=3).start(rows)["beta"].shape
    (2, 3)
    """

    classes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None:
            whole_number("classes", self.classes, 2)

    def predictors(self, rows: Rows) -> int:
        """One per class but the reference."""
        if self.classes is not None:
            return self.classes - 1
        return count_classes(rows) - 1

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """eta_y - log sum exp(eta), the reference class at 0."""
        padded = jnp.append(eta, 0.0)
        return padded[y.astype(int)] - jax.nn.logsumexp(padded)

    def derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """f, gradient, Hessian and third derivatives in the q predictors, by row.

        Shapes (rows,), (rows, q), (rows, q, q), (rows, q, q, q).
        """
        q = eta.shape[-1]
        pi = jnp.exp(eta - jax.nn.logsumexp(with_reference(eta), axis=-1, keepdims=True))
        hot = jax.nn.one_hot(y.astype(int), q + 1, dtype=eta.dtype)[..., :q]
        centred = jnp.eye(q) - pi[..., None, :]  # row a: e_a - pi
        covariance = jnp.einsum("...c,...ca,...cb->...ab", pi, centred, centred)
        reference = 1 - pi.sum(-1)
        covariance += reference[..., None, None] * pi[..., :, None] * pi[..., None, :]
        third = jnp.einsum("...c,...ca,...cb,...cd->...abd", pi, centred, centred, centred)
        third -= reference[..., None, None, None] * jnp.einsum("...a,...b,...c->...abc", pi, pi, pi)
        return jax.vmap(self.log_density)(eta, y), hot - pi, -covariance, -third

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """Not of use: softmax control variates are differentiated automatically."""
        raise SettingError("Softmax has several predictors; its expansion stops at order 3.")

    def mean(self, eta: jax.Array) -> jax.Array:
        """Chance of each class, the reference last."""
        return jax.nn.softmax(jnp.append(eta, 0.0))

    def decide(self, expected: np.ndarray) -> np.ndarray:
        """The most probable class."""
        return np.argmax(expected, axis=-1)

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Whether columns give the class away, each against the others."""
        intercept = np.asarray(theta["intercept"]) if self.intercept else None
        beta = np.asarray(theta["beta"])
        found, passes = find_separation(rows, beta, intercept, reversed=False)
        return None if found is None else found.warning(), passes

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Whole numbers from 0 to K - 1."""
        return class_fault(y, self.classes)

    def check_outcome(self, rows: Rows) -> None:
        """Refuse, besides outcomes out of support, an outcome of one class only."""
        super().check_outcome(rows)
        if self.predictors(rows) < 1:
            raise SettingError("the outcome has a single class; Softmax needs two or more.")

    def labels(self, rows: Rows) -> Labels:
        """Classes, then columns."""
        classes = tuple(f"class {k}" for k in range(self.predictors(rows)))
        return {"beta": (classes, tuple(rows.columns)), "intercept": (classes,)}
