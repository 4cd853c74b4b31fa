"""The distributions that a user may choose as priors; hashable, and saved with a posterior.

A distribution is a frozen dataclass of plain numbers. The priors of many columns are one of the
same kind whose numbers are arrays (`together`): a pytree, so that other numbers compile nothing.

All distributions on the real line but the flat one are scale mixtures of normals. For a coefficient
with posterior second moment r^2, such a prior is approximated by the normal with precision
w(r) = -(log p)'(r) / r (`precision`). This is the E step of EM; the anchor uses it where a prior
has a kink or no useful mode.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Literal, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from modicum.arrays import HALF_LOG_2PI, log_gamma_of, log_sigmoid, namespace
from modicum.errors import SettingError, is_number
from modicum.runtime import Array

Domain = Literal["real", "positive", "correlation"]
FAR_QUANTILE = 0.99865  # three standard deviations above the mean of a normal


def is_positive(value: object) -> bool:
    """Whether `value` is a finite number above zero."""
    return is_number(value) and 0 < float(value) < np.inf  # type: ignore[arg-type]


class Prior(ABC):
    """A distribution, as a frozen dataclass of numbers.

    Subclasses define the support, the log-density, and how it prints.
    """

    support: ClassVar[Domain] = "real"
    quadratic: ClassVar[bool] = False  # whether the log-density is quadratic
    is_silent: ClassVar[bool] = False  # whether it is meant to decide where the data are silent
    joint: int = 0  # number of columns, from the first on, that have the prior together

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if field.name not in ("mean", "lower", "upper") and not is_positive(value):
                raise SettingError(
                    f"{field.name} of {type(self).__name__} must be a positive number, not "
                    f"{value!r}."
                )
            if not is_number(value) or not np.isfinite(float(value)):
                raise SettingError(
                    f"{field.name} of {type(self).__name__} must be a number, not {value!r}."
                )
            object.__setattr__(self, field.name, float(value))

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        jax.tree_util.register_pytree_node(cls, cls._flattened, cls._unflattened)

    def _flattened(self) -> tuple[tuple[object, ...], tuple[tuple[str, object], ...]]:
        """Return the leaves, which are the arguments of the density, and all else by name."""
        others = [field.name for field in fields(self) if field.name not in self.number_names()]  # type: ignore[arg-type]
        return self.numbers, tuple((name, getattr(self, name)) for name in others)

    @classmethod
    def _unflattened(
        cls, others: tuple[tuple[str, object], ...], numbers: Sequence[object]
    ) -> Self:
        prior = object.__new__(cls)  # without its checks, which are of plain numbers
        prior.__dict__.update(zip(cls.number_names(), numbers, strict=True), **dict(others))
        return prior

    @property
    def numbers(self) -> tuple[float, ...]:
        """The arguments of the density, in order."""
        return tuple(getattr(self, name) for name in self.number_names())

    @classmethod
    def number_names(cls) -> list[str]:
        """Names of the arguments of the density: all fields but the bounds."""
        return [field.name for field in fields(cls) if not field.kw_only]  # type: ignore[arg-type]

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the support."""
        return (0.0 if self.support == "positive" else -np.inf), np.inf

    @property
    def log_mass(self) -> float:
        """Logarithm of the share of the density's mass between the bounds."""
        return 0.0

    @abstractmethod
    def density(self, value: jax.Array) -> jax.Array:
        """Log-density, elementwise."""

    @property
    def centre(self) -> float:
        """The median of a symmetric distribution; a typical value of one on positive numbers."""
        return self.numbers[-1] if self.support == "positive" else getattr(self, "mean", 0.0)

    @property
    def width(self) -> float:
        """A third of the distance from the centre beyond which 0.27 % of the mass lies.

        For a normal this is the standard deviation. It is infinite if no value is unexpected.
        """
        return float("inf")

    @property
    def on_coordinate(self) -> tuple[float, float]:
        """Centre and width on the coordinate that is sampled: the logarithm of positive numbers."""
        return (0.0, float("inf")) if self.is_bounded else (self.centre, self.width)

    @property
    def is_normal(self) -> bool:
        """Whether the prior is normal on that coordinate, so that its width is an sd."""
        return self.is_quadratic and bool(self.numbers)

    @property
    def is_quadratic(self) -> bool:
        """Whether the log-density is quadratic on that coordinate."""
        return self.quadratic

    @property
    def is_bounded(self) -> bool:
        """Whether a coefficient with this prior cannot be any number."""
        return self.bounds != (-np.inf, np.inf)

    @property
    def left_to_data(self) -> bool:
        """Whether it has a unit that follows from the rows."""
        return False

    def precision(self, square: np.ndarray) -> np.ndarray:
        """w(r) at r^2 = `square`, the second moment about the mean; automatic without a formula."""
        r = np.sqrt(square)
        value = jnp.asarray(self.mean + r)  # type: ignore[attr-defined]
        slope = jax.grad(lambda value: jnp.sum(self.density(value)))(value)
        return np.asarray(-slope / r)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw independent values, for prior predictive checks."""
        raise SettingError(
            f"the prior {self} cannot be drawn from; give a proper prior of independent "
            "coefficients, such as mo.priors.Normal."
        )

    def check_count(self, count: int) -> None:  # noqa: B027 - optional
        """Refuse a prior that `count` coefficients cannot have."""

    @classmethod
    def by_kind(cls) -> Mapping[str, type[Prior]]:
        """Return the distributions by their names in files."""
        return DISTRIBUTIONS

    @property
    def _arguments(self) -> dict[str, float]:
        """The arguments by name, without bounds that are not given."""
        named = sorted(fields(self), key=lambda field: bool(field.kw_only))  # type: ignore[arg-type]
        values = {field.name: getattr(self, field.name) for field in named}
        ends = ("lower", "upper")
        return {k: v for k, v in values.items() if not (k in ends and v is None)}

    def __str__(self) -> str:
        parts = [f"{number:.4g}" for number in self.numbers]
        parts += [f"{k}={v:.4g}" for k, v in self._arguments.items() if k in ("lower", "upper")]
        return f"{hyphenated(type(self))}({', '.join(parts)})"


P = TypeVar("P", bound=Prior)


def as_tree(prior: P) -> P:
    """Return a prior whose numbers are arrays."""
    return jax.tree.map(np.asarray, prior)


def together(priors: Sequence[P]) -> P:
    """Return priors of one kind and with the same bounds as one, whose numbers are arrays."""
    return jax.tree.map(lambda *numbers: np.array(numbers), *map(as_tree, priors))


def hyphenated(kind: type) -> str:
    """Return the name of a class as users write it: "student-t" for StudentT."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


def _normal(value: jax.Array, mean: float | jax.Array, sd: float | jax.Array) -> jax.Array:
    """-((value - mean) / sd)^2 / 2, plus its constant."""
    z = (value - mean) / sd
    return -0.5 * z**2 - namespace(value).log(sd) - HALF_LOG_2PI


def _half_cauchy(value: jax.Array, scale: float | jax.Array) -> jax.Array:
    """-log(1 + (value / scale)^2), plus its constant."""
    xp = namespace(value)
    return -xp.log1p((value / scale) ** 2) - xp.log(scale) + np.log(2 / np.pi)


# On the real line --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BetweenBounds(Prior):
    """A distribution on the real line, or on its part between bounds, of a coefficient.

    With bounds, the density is divided by its mass there.
    """

    law: ClassVar[str]  # SciPy's name of the distribution, whose arguments are `numbers`
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.bounds
        if not low < high:
            raise SettingError(
                f"the bounds of {type(self).__name__} must have lower < upper, not {self.lower!r} "
                f"and {self.upper!r}."
            )
        if not np.isfinite(self.log_mass):
            raise SettingError(
                f"{self} has no mass between its bounds, as they are too far from its mean; move "
                "the bounds or the mean."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self._arguments.items())})"

    @property
    def distribution(self) -> Any:  # SciPy's frozen distributions have no public type
        """The distribution without bounds."""
        from scipy import stats  # slow to import, and seldom needed

        return getattr(stats, self.law)(*self.numbers)

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds; infinite where there are none."""
        low = -np.inf if self.lower is None else self.lower
        return low, np.inf if self.upper is None else self.upper

    @property
    def is_quadratic(self) -> bool:
        """Whether the log-density is quadratic, which bounds prevent."""
        return self.quadratic and not self.is_bounded

    @cached_property
    def log_mass(self) -> float:
        """Logarithm of the share of the density's mass between the bounds."""
        with np.errstate(divide="ignore"):
            return float(np.log(np.ptp(self._tails))) if self.is_bounded else 0.0

    @property
    def _tails(self) -> np.ndarray:
        """Chances beyond each bound, on the side of the mean where they keep their digits."""
        law, (low, high) = self.distribution, self.bounds
        return np.asarray(law.sf([low, high]) if self._above else law.cdf([low, high]))

    @property
    def _above(self) -> bool:
        return self.bounds[0] > self.mean  # type: ignore[attr-defined]

    def quantile(self, chance: np.ndarray) -> np.ndarray:
        """Return quantiles between the bounds."""
        first, last = self._tails
        at = first + chance * (last - first)
        return np.clip(
            self.distribution.isf(at) if self._above else self.distribution.ppf(at), *self.bounds
        )

    @property
    def centre(self) -> float:
        """The median."""
        return float(self.quantile(np.array(0.5))) if self.is_bounded else self.mean  # type: ignore[attr-defined]

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw independent values."""
        if self.is_bounded:
            return self.quantile(rng.random(shape))
        return np.asarray(self.distribution.rvs(size=shape, random_state=rng))


@dataclass(frozen=True, repr=False)
class Normal(BetweenBounds):
    """A normal distribution; its log-density is folded into the likelihood's quadratic.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.priors.Normal(0, 2.5)
    Normal(mean=0.0, sd=2.5)
    """

    mean: float = 0.0
    sd: float = 1.0
    law: ClassVar[str] = "norm"
    quadratic: ClassVar[bool] = True

    def density(self, value: jax.Array) -> jax.Array:
        """-((value - mean) / sd)^2 / 2, plus its constant."""
        return _normal(value, self.mean, self.sd)

    @property
    def width(self) -> float:
        """The standard deviation."""
        return self.sd


@dataclass(frozen=True, repr=False)
class StudentT(BetweenBounds):
    """Student's t distribution: like a normal near its centre, with heavier tails.

    Examples
    --------
    >>> import modicum as mo
    >>> print(mo.priors.StudentT(4, 0, 2.5))
    student-t(4, 0, 2.5)
    """

    df: float
    mean: float = 0.0
    scale: float = 1.0
    law: ClassVar[str] = "t"

    def density(self, value: jax.Array) -> jax.Array:
        """-(df + 1)/2 log(1 + z^2 / df), plus its constant."""
        xp, df = namespace(value), self.df
        z = (value - self.mean) / self.scale
        constant = log_gamma_of((df + 1) / 2) - log_gamma_of(df / 2) - 0.5 * xp.log(df * xp.pi)
        return constant - xp.log(self.scale) - (df + 1) / 2 * xp.log1p(z**2 / df)

    @property
    def width(self) -> float:
        """A third of the distance to the 0.99865 quantile."""
        from scipy.special import stdtrit

        return float(self.scale * stdtrit(self.df, FAR_QUANTILE) / 3)

    def precision(self, square: np.ndarray) -> np.ndarray:
        """(df + 1) / (df scale^2 + r^2)."""
        return np.asarray((self.df + 1) / (self.df * self.scale**2 + square))


@dataclass(frozen=True, repr=False)
class Laplace(BetweenBounds):
    """The double exponential distribution, with a kink at its mean: the Bayesian lasso's prior.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.priors.Laplace(0, 0.5)
    Laplace(mean=0.0, scale=0.5)
    """

    mean: float = 0.0
    scale: float = 1.0
    law: ClassVar[str] = "laplace"

    def density(self, value: jax.Array) -> jax.Array:
        """-|value - mean| / scale, plus its constant."""
        xp = namespace(value)
        return -xp.abs(value - self.mean) / self.scale - xp.log(2 * self.scale)

    @property
    def width(self) -> float:
        """A third of the distance to the 0.99865 quantile."""
        return float(-self.scale * np.log(2 * (1 - FAR_QUANTILE)) / 3)

    def precision(self, square: np.ndarray) -> np.ndarray:
        """1 / (scale r)."""
        return np.asarray(1 / (self.scale * np.sqrt(square)))


# Nodes in the logarithm of the local scale. For an integrand that is analytic within pi / 4 of the
# real line, the trapezoidal rule has an error of about exp(-2 pi (pi / 4) / step), 4e-6 here.
STEP, REACH = 0.4, 10.0
_NODES = np.arange(-REACH, REACH + STEP / 2, STEP)
_LOG_WEIGHTS = -np.logaddexp(_NODES, -_NODES)
_LOG_WEIGHTS -= np.logaddexp.reduce(_LOG_WEIGHTS)  # half-Cauchy in the logarithm: sech / pi


class ShrunkPrior(Prior):
    """A prior of many coefficients, beta_j / unit_j ~ N(0, sd_j^2), that shrinks most of them.

    The sd depends on a global scale tau, which all coefficients with the same prior share, and on a
    local scale of its own. Local scales are integrated out, by quadrature to about five digits; tau
    is sampled and reported.
    """

    is_silent: ClassVar[bool] = True
    of_noise: ClassVar[bool] = False  # whether the unit is the scale of the noise, where sampled
    unit: float | None
    resolution: float | None  # the last two arguments

    @property
    def left_to_data(self) -> bool:
        """Whether its unit or its resolution follows from the rows."""
        return self.unit is None or self.resolution is None

    @property
    def hyperparameters(self) -> tuple[float, ...]:
        """The arguments that all coefficients with the same tau share: not unit and resolution."""
        return self.numbers[:-2]

    @abstractmethod
    def mixture(self, xp: ModuleType, tau: Array) -> tuple[Array, Array]:
        """Log-weights and variances of the normals of which the density is a mixture."""

    @abstractmethod
    def log_scale(self, tau: jax.Array, count: int) -> jax.Array:
        """Log-density of tau, which `count` coefficients share."""

    @property
    @abstractmethod
    def log_typical(self) -> float:
        """Logarithm of a typical tau."""

    def with_units(self, unit: Array | float | None, resolution: Array | float | None) -> Self:
        """Return the prior of coefficients with other units and resolutions."""
        other = copy(self)
        object.__setattr__(other, "unit", unit)
        object.__setattr__(other, "resolution", resolution)
        return other

    def density(self, value: jax.Array, tau: jax.Array) -> jax.Array:  # type: ignore[override]
        """Log-density given tau: a mixture of normals."""
        unit = jnp.asarray(self.unit)
        log_terms, _ = self._terms(jnp, value / unit, tau)
        return logsumexp(log_terms, axis=-1) - HALF_LOG_2PI - jnp.log(unit)

    def precision(self, square: np.ndarray, tau: np.ndarray) -> np.ndarray:  # type: ignore[override]
        """E(1 / sd^2 | r), over the local scale."""
        unit = np.asarray(self.unit)
        log, sd = self._terms(np, np.sqrt(square) / unit, tau)
        share = np.exp(log - log.max(axis=-1, keepdims=True))
        mean = np.sum(share / sd**2, axis=-1) / share.sum(axis=-1)
        return np.asarray(mean / unit**2)

    def _terms(self, xp: ModuleType, z: Array, tau: Array) -> tuple[Array, Array]:
        """Log-densities at z of the normals in the mixture, less a constant, and their sds."""
        log_weights, variances = self.mixture(xp, tau)
        sd = xp.sqrt(variances + xp.asarray(self.resolution)[..., None] ** 2)
        return log_weights - 0.5 * (z[..., None] / sd) ** 2 - xp.log(sd), sd

    def __str__(self) -> str:
        numbers = ", ".join(f"{number:.4g}" for number in self.hyperparameters)
        return f"{hyphenated(type(self))}({numbers})"


@dataclass(frozen=True)
class Horseshoe(ShrunkPrior):
    """The regularised horseshoe (Piironen and Vehtari 2017): most coefficients near 0, some free.

    beta_j / unit_j ~ N(0, (tau lambda~_j)^2) with half-Cauchy scales: a local lambda_j for each
    coefficient and a global tau for all with the same prior. lambda~^2 = c^2 lambda^2 / (c^2 +
    tau^2 lambda^2), so a coefficient that escapes shrinkage has a normal prior of sd c, the slab.
    The local scales are integrated out, by quadrature to about five digits; tau is sampled, and
    reported as `horseshoe_scale`.

    Parameters
    ----------
    scale
        Scale of tau's half-Cauchy prior: the typical size of non-zero coefficients times the share
        of coefficients that are not zero.
    slab
        c, the standard deviation of large coefficients.
    unit
        Unit of `scale` and `slab` for a column; by default (None) the unit of the outcome over that
        of the column (its standard deviation, or the difference of its two values), so that columns
        may have different units.
    resolution
        Standard deviation, in the same unit, of a normal that the density is convolved with: it
        has a pole at 0, which Hamiltonian dynamics cannot cross. By default (None) about a tenth of
        a coefficient's standard error.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.priors.Horseshoe(scale=0.1)
    Horseshoe(scale=0.1, slab=2.5, unit=None, resolution=None)
    """

    scale: float = 1.0
    slab: float = 2.5
    unit: float | None = None
    resolution: float | None = None

    def mixture(self, xp: ModuleType, tau: Array) -> tuple[Array, Array]:
        """Half-Cauchy local scales, which the slab limits."""
        free = xp.asarray(tau)[..., None] * np.exp(_NODES)
        slab = xp.asarray(self.slab)[..., None]
        return _LOG_WEIGHTS, (slab * free) ** 2 / (slab**2 + free**2)

    def log_scale(self, tau: jax.Array, count: int) -> jax.Array:
        """Half-Cauchy."""
        return _half_cauchy(tau, self.scale)

    @property
    def log_typical(self) -> float:
        """Logarithm of its scale."""
        return float(np.log(self.scale))

    @property
    def width(self) -> float:
        """The width of the slab: no value within it is unexpected."""
        return self.slab * (self.unit or 1.0)


# Nodes of double exponential quadrature over (0, 1), as logits, and the logarithms of their steps.
_DE = np.arange(-8.0, 8.025, 0.05)
_LOGITS, _LOG_STEPS = np.pi / 2 * np.sinh(_DE), np.log(0.05 * np.pi / 2 * np.cosh(_DE))


@dataclass(frozen=True)
class R2D2(ShrunkPrior):
    """A prior of the share of variance R^2 that columns explain together (Zhang et al. 2022).

    beta_j / unit_j ~ N(0, phi_j W) with R^2 = W / (1 + W) ~ Beta(mean_R2 prec_R2, (1 - mean_R2)
    prec_R2) and shares phi ~ Dirichlet(cons_D2, ..., cons_D2), as in brms. The unit of a column is
    that of its predictor, the standard deviation of the noise where that is estimated, over its
    own. Shares are integrated out: given a rate rho, with a density of its own, the variances
    phi_j W are independent gamma(cons_D2, rho) variables. The scale rho^(-1/2) is sampled, and
    reported as `r2d2_scale`.

    Parameters
    ----------
    mean_R2
        Prior mean of R^2, between 0 and 1.
    prec_R2
        Its precision: the sum of the two arguments of the beta distribution.
    cons_D2
        Concentration of the shares: below 1 a few columns explain most. Times the number of columns
        it must be at least mean_R2 prec_R2.
    unit, resolution
        As in `Horseshoe`.

    Examples
    --------
    >>> import modicum as mo
    >>> print(mo.priors.R2D2(mean_R2=0.3))
    r2d2(0.3, 2, 0.5)
    """

    mean_R2: float = 0.5  # noqa: N815 - as in brms
    prec_R2: float = 2.0  # noqa: N815 - as in brms
    cons_D2: float = 0.5  # noqa: N815 - as in brms
    unit: float | None = None
    resolution: float | None = None
    of_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mean_R2 < 1:
            raise SettingError(f"mean_R2 of R2D2 must be below 1, not {self.mean_R2:g}.")

    def mixture(self, xp: ModuleType, tau: Array) -> tuple[Array, Array]:
        """Gamma local variances; what lies below the nodes counts as at the first."""
        shape = xp.asarray(self.cons_D2)[..., None]
        log = np.log(2 * STEP) + 2 * shape * _NODES - np.exp(2 * _NODES) - log_gamma_of(shape)
        rest = xp.log(xp.maximum(1 - xp.sum(xp.exp(log[..., 1:]), axis=-1, keepdims=True), 1e-12))
        log_weights = xp.concatenate([rest, log[..., 1:]], axis=-1)
        return log_weights, (xp.asarray(tau)[..., None] * np.exp(_NODES)) ** 2

    def log_scale(self, tau: jax.Array, count: int) -> jax.Array:
        """Log-density of tau = rho^(-1/2), where p(rho) is rho^(b - 1) 1F1(a + b; c + b; -rho).

        a and b are the arguments of the beta distribution, and c = count cons_D2. 1F1 is an
        integral over a beta(a + b, c - a) variable u of e^(-rho u); at c = a, u is 1.
        """
        mean, total, c = self.mean_R2, self.prec_R2, count * self.cons_D2
        a, b = mean * total, (1 - mean) * total
        rest = jnp.maximum(c - a, 0.01)
        log_u, log_v = log_sigmoid(jnp.asarray(_LOGITS)), log_sigmoid(jnp.asarray(-_LOGITS))
        log_beta = log_gamma_of(a + b) + log_gamma_of(rest) - log_gamma_of(a + b + rest)
        rho = tau**-2
        log_terms = (a + b) * log_u + rest * log_v + _LOG_STEPS - rho * jnp.exp(log_u)
        mass = log_gamma_of(b) + log_gamma_of(a) - log_gamma_of(a + b)
        mass += log_gamma_of(a + b + rest) - log_gamma_of(a + rest)
        log_rho = (b - 1) * jnp.log(rho) + logsumexp(log_terms) - log_beta - mass
        return log_rho + np.log(2) - 3 * jnp.log(tau)

    @property
    def log_typical(self) -> float:
        """Logarithm of the scale at which local variances add up to a typical W of ten shares."""
        mean = self.mean_R2
        return float(np.log(mean / (1 - mean) / (10 * self.cons_D2)) / 2)

    def check_count(self, count: int) -> None:
        """Refuse too few coefficients for shares of this concentration."""
        least = self.mean_R2 * self.prec_R2
        if count * self.cons_D2 < least - 0.01:
            raise SettingError(
                f"R2D2 needs a cons_D2 of at least mean_R2 prec_R2 over the number of "
                f"coefficients, here {least:g} / {count} = {least / count:.3g}, not "
                f"{self.cons_D2:g}; raise it, or lower prec_R2."
            )


@dataclass(frozen=True)
class Flat(Prior):
    """No prior: a constant density on the whole line. The data alone must identify the parameter.

    Examples
    --------
    >>> import modicum as mo
    >>> print(mo.priors.Flat())
    flat()
    """

    quadratic: ClassVar[bool] = True

    def density(self, value: jax.Array) -> jax.Array:
        """Zero."""
        return namespace(value).zeros_like(value)


# Of the steps between ordered levels -------------------------------------------------------


@dataclass(frozen=True)
class Monotonic(Prior):
    """K coefficients K b z: a normal mean step b, and shares z that are uniform on the simplex.

    It is the prior of a monotonic effect (Buerkner and Charpentier 2020); the columns are 1 from a
    level on. The first column has it, and the others `StepShare`. Without mean and sd, b has the
    prior that a coefficient would have, divided by K if that is the default.
    """

    steps: float
    mean: float | None = None
    sd: float | None = None
    quadratic: ClassVar[bool] = True

    @property
    def joint(self) -> int:  # type: ignore[override]
        """The number of steps."""
        return int(self.steps)

    @property
    def left_to_data(self) -> bool:
        """Whether b has the default prior."""
        return self.sd is None

    @classmethod
    def number_names(cls) -> list[str]:
        """Names of the arguments of the density of b."""
        return ["mean", "sd"]

    def density(self, value: jax.Array) -> jax.Array:
        """The density of b."""
        return _normal(value, *self.numbers)

    @property
    def width(self) -> float:
        """The standard deviation of b."""
        return self.numbers[1]

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw b."""
        mean, sd = self.numbers
        return mean + sd * rng.standard_normal(shape)

    def __str__(self) -> str:
        return str(Normal(*self.numbers))


@dataclass(frozen=True)
class StepShare(Prior):
    """The prior of further columns of a monotonic effect, which `Monotonic` describes."""

    is_silent: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True

    def density(self, value: jax.Array) -> jax.Array:
        """Zero: the density is that of all shares."""
        return namespace(value).zeros_like(value)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw in proportion to the share."""
        return rng.standard_exponential(shape)

    def __str__(self) -> str:
        return "dirichlet(1)"


# On positive numbers -----------------------------------------------------------------------


@dataclass(frozen=True)
class LogNormal(Prior):
    """The log-normal distribution; its log-density is quadratic in the logarithm, which is sampled.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.priors.LogNormal(0, 2.5)
    LogNormal(mean=0.0, sd=2.5)
    """

    mean: float = 0.0
    sd: float = 1.0
    support: ClassVar[Domain] = "positive"
    quadratic: ClassVar[bool] = True

    def density(self, value: jax.Array) -> jax.Array:
        """Log-density of the logarithm, minus the logarithm."""
        log_value = namespace(value).log(value)
        return _normal(log_value, self.mean, self.sd) - log_value

    @property
    def centre(self) -> float:
        """The median."""
        return float(np.exp(self.mean))

    @property
    def on_coordinate(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm."""
        return self.mean, self.sd

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw independent values."""
        return rng.lognormal(self.mean, self.sd, shape)


@dataclass(frozen=True)
class HalfNormal(Prior):
    """The half-normal distribution: the absolute value of a normal with mean 0.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.priors.HalfNormal(1)
    HalfNormal(sd=1.0)
    """

    sd: float = 1.0
    support: ClassVar[Domain] = "positive"

    def density(self, value: jax.Array) -> jax.Array:
        """Twice the density of the normal."""
        return _normal(value, 0.0, self.sd) + np.log(2)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw independent values."""
        return np.abs(self.sd * rng.standard_normal(shape))


@dataclass(frozen=True)
class HalfCauchy(Prior):
    """The half-Cauchy distribution: half of its mass lies beyond `scale`.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.priors.HalfCauchy(1)
    HalfCauchy(scale=1.0)
    """

    scale: float = 1.0
    support: ClassVar[Domain] = "positive"

    def density(self, value: jax.Array) -> jax.Array:
        """-log(1 + (value / scale)^2), plus its constant."""
        return _half_cauchy(value, self.scale)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw independent values."""
        return np.abs(self.scale * rng.standard_cauchy(shape))


@dataclass(frozen=True)
class Exponential(Prior):
    """An exponential distribution: mean 1 / rate.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.priors.Exponential(2)
    Exponential(rate=2.0)
    """

    rate: float = 1.0
    support: ClassVar[Domain] = "positive"

    def density(self, value: jax.Array) -> jax.Array:
        """Log rate - rate value."""
        return namespace(value).log(self.rate) - self.rate * value

    @property
    def centre(self) -> float:
        """The mean."""
        return 1 / self.rate

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw independent values."""
        return rng.exponential(1 / self.rate, shape)


@dataclass(frozen=True)
class Gamma(Prior):
    """A gamma distribution: mean shape / rate.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.priors.Gamma(2, 0.5)
    Gamma(shape=2.0, rate=0.5)
    """

    shape: float
    rate: float = 1.0
    support: ClassVar[Domain] = "positive"

    def density(self, value: jax.Array) -> jax.Array:
        """(shape - 1) log value - rate value, plus its constant."""
        xp, shape = namespace(value), self.shape
        constant = shape * xp.log(self.rate) - log_gamma_of(shape)
        return constant + (shape - 1) * xp.log(value) - self.rate * value

    @property
    def centre(self) -> float:
        """The mean."""
        return self.shape / self.rate

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw independent values."""
        return rng.gamma(self.shape, 1 / self.rate, shape)


@dataclass(frozen=True)
class LKJ(Prior):
    """Correlation matrices, density det(R)^(eta - 1): uniform if eta = 1, closer to I if larger.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.priors.LKJ(2)
    LKJ(eta=2.0)
    """

    eta: float = 2.0
    support: ClassVar[Domain] = "correlation"

    def density(self, value: jax.Array) -> jax.Array:
        """Log-density as a function of log det(R), up to a constant."""
        return (self.eta - 1) * value


DISTRIBUTIONS: dict[str, type[Prior]] = {
    kind.__name__: kind
    for kind in (
        *(Normal, StudentT, Laplace, Horseshoe, R2D2, Flat, Monotonic, StepShare),
        *(LogNormal, HalfNormal, HalfCauchy, Exponential, Gamma, LKJ),
    )
}
