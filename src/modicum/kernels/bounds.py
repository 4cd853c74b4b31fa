"""Lower bounds on the likelihoods of rows, for FlyMC.

The bound B_k <= L_k of a row is the exponential of a quadratic in its linear predictors, so that
the sum of log B_k over any number of rows is a quadratic in the coefficients, computed in one pass
(Maclaurin and Adams 2014, section 2.3). L_k = B_k + (L_k - B_k), and FlyMC's auxiliary variables
select one term per row: bright rows add log r_k = log((L_k - B_k) / B_k) (section 2).

The protocol comes first, then the bounds of three families. To add a bound, write a class at the
end of this file and add it to BOUNDS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from modicum.arrays import expansion
from modicum.errors import SettingError
from modicum.kernels.whitening import Whitening
from modicum.models import LinearPredictorModel, Target
from modicum.models.families import Logistic, Softmax, StudentT
from modicum.models.families.links import log_t_constant
from modicum.models.model import BaseModel, Batch
from modicum.passes import Anchor, Sums
from modicum.passes.hessians import assemble
from modicum.runtime import SCATTERS, Array, Pytree, jit, to_device

SMALLEST_GAP = 1e-300  # gap of a row whose bound is tight to the last bit
Family = TypeVar("Family", bound=LinearPredictorModel)


# The protocol of a bound ------------------------------------------------------------------


class BoundExpansion(NamedTuple):
    """A row's bound at some linear predictors: a constant, and a quadratic with its derivatives.

    Shapes (rows,), (rows,), (rows, q) and (rows, q, q).
    """

    constant: jax.Array
    value: jax.Array
    slope: jax.Array
    curvature: jax.Array


@dataclass(frozen=True)
class Bound(ABC, Generic[Family]):
    """The bounds of a family. Hashable; all functions take many rows at once.

    Predictors are those of `LinearPredictorModel.predictor_vector`: q linear ones, then the
    model's other parameters. `tight` is where each row's bound touches its likelihood, in a
    parametrization that each bound chooses.

    Parameters
    ----------
    model
        The family with its settings.
    """

    model: Family

    untuned: ClassVar[float]  # `tight` of bounds that are the same for all rows

    @abstractmethod
    def tight_at(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """Return `tight` of bounds that touch the likelihood at these predictors."""

    @abstractmethod
    def gap(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """log(L_k / B_k) of each row: not negative, up to rounding."""

    @abstractmethod
    def quadratic(self, eta: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """Return the quadratic of one row in its q linear predictors."""

    def constant(self, tight: jax.Array) -> jax.Array:
        """Return what each row adds to the sum of the quadratics; 0 by default."""
        return jnp.zeros(len(tight))

    def expand(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> BoundExpansion:
        """Return the parts whose sums over rows `collapse` turns into the sum of log B."""
        eta = predictors[:, : predictors.shape[1] - len(self.model.extras)]
        of_rows = jax.vmap(expansion(self.quadratic))(eta, y, tight)
        return BoundExpansion(self.constant(tight), *of_rows)

    def collapse(
        self,
        constant: jax.Array,
        weight: jax.Array | float,
        quadratic: jax.Array,
        extras: jax.Array,
    ) -> jax.Array:
        """sum_k log B_k from the sums of constants, weights and quadratics.

        `extras` are the model's parameters besides the coefficients, (..., extras).
        """
        return jnp.asarray(constant + quadratic)

    def log_bound(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """The logarithm of B_k of each row."""
        at = self.expand(predictors, y, tight)
        extras = predictors[:, at.slope.shape[1] :]
        return self.collapse(at.constant, 1.0, at.value, extras)


# Rows and their bounds --------------------------------------------------------------------


class Collapsed(NamedTuple):
    """The bounds of all rows, summed: a quadratic in the coefficients about the anchor."""

    constant: Array
    weight: Array  # the sum of the rows' frequency weights
    value: Array  # value of the quadratic at t*; its derivatives there follow
    slope: Array
    curvature: Array


class BoundSums(NamedTuple):
    """The anchor, and the bounds of all rows in whitened coordinates about it."""

    where: Whitening
    rows: Collapsed


class CachedRows(NamedTuple):
    """Cached rows, one entry per row."""

    fields: dict[str, jax.Array]
    tight: jax.Array  # where their bounds touch the likelihood


@dataclass(frozen=True)
class BoundedRows:
    """The rows of a chain over bright and dark rows: gaps, odds and the base density. Hashable.

    Parameters
    ----------
    target
        The model and its layout.
    bound
        Its lower bound.
    tuned
        Whether each row's bound is tight at the anchor, or the same for all rows.
    """

    target: Target
    bound: Bound[Pytree]
    tuned: bool = True

    def cache(self, batch: Batch, point: jax.Array) -> CachedRows:
        """Cache the rows and where their bounds are tight; `point` is the anchor t*."""
        names = ("x", "y", "offset", "weight")
        fields = {k: jnp.asarray(batch[k], jnp.float64) for k in names if k in batch}
        coding = self.target.coding
        fields |= {k: jnp.asarray(batch[k]) for k in (coding.fields if coding else ())}
        tight = self.bound.tight_at(self.predictors(fields, point), fields["y"])
        return CachedRows(fields, tight if self.tuned else jnp.full_like(tight, self.bound.untuned))

    def predictors(self, fields: Batch, t: jax.Array) -> jax.Array:
        """The predictors of each row at t, as `Bound` takes them."""
        return self.target.linear.predictor_vector(self.target.unravel(t), fields)

    def gap(self, cached: CachedRows, t: jax.Array) -> jax.Array:
        """log(L_k / B_k) of each row at t, times its frequency weight."""
        fields, tight = cached
        gap = self.bound.gap(self.predictors(fields, t), fields["y"], tight)
        return jnp.asarray(fields.get("weight", 1.0) * gap)

    def log_ratio(self, cached: CachedRows, z: jax.Array, sums: BoundSums) -> jax.Array:
        """Log-odds that a row is bright, log r_k = log(e^gap - 1), at whitened coordinates z."""
        gap = self.gap(cached, sums.where.unwhiten(z))
        gap = jnp.maximum(gap, SMALLEST_GAP)
        # Factored as e^gap (1 - e^-gap), since e^gap overflows where the bound is loose. 1 - e^-gap
        # costs a tenth of expm1, with a relative error below 1e-11.
        series = gap * (1 - gap / 2 * (1 - gap / 3))
        return gap + jnp.log(jnp.where(gap < 1e-4, series, 1 - jnp.exp(-gap)))

    def log_base(self, z: jax.Array, sums: BoundSums) -> jax.Array:
        """sum_k log B_k over all rows plus the log-prior, at whitened coordinates z."""
        t = sums.where.unwhiten(z)
        constant, weight, value, slope, curvature = map(jnp.asarray, sums.rows)
        quadratic = value + z @ (slope + 0.5 * (curvature @ z))
        extras = t[self.target.size - len(self.target.linear.extras) :]
        total = self.bound.collapse(constant, weight, quadratic, extras)
        return total + self.target.log_prior(t)


def collapse(sums: Sums, bounded: BoundedRows, anchor: Anchor) -> Collapsed:
    """Sum the bounds of all rows about the anchor in one pass; `log_base` reads the result."""
    sums.ledger.add("bound", len(sums.rows), "hessian", passes=1)
    of_chunk = _collapse_chunk if bounded.target.coding is None else _collapse_codes
    chunk_sum = partial(of_chunk, bounded)
    return sums.engine.map_reduce(chunk_sum, anchor.point, sums.rows, "bound")


def _collapsed(
    bounded: BoundedRows, point: jax.Array, batch: Batch, present: jax.Array
) -> Collapsed:
    model, (fields, tight) = bounded.target.linear, bounded.cache(batch, point)
    at = bounded.bound.expand(bounded.predictors(fields, point), fields["y"], tight)
    weight = jnp.where(present, fields.get("weight", 1.0), 0.0)
    slope, curvature = weight[:, None] * at.slope, weight[:, None, None] * at.curvature
    # float64 products whatever the rows' precision, because the collapsed sum must be exact
    a, b = assemble(model, model.matrix(fields), slope, curvature, slope.shape[1])
    return Collapsed(
        constant=jnp.sum(weight * at.constant),
        weight=jnp.sum(weight),
        value=jnp.sum(weight * at.value),
        slope=a,
        curvature=b,
    )


_collapse_chunk = jit(static=0)(_collapsed)
_collapse_codes = jit(static=0, options=SCATTERS)(_collapsed)


def whitened_sums(anchor: Anchor, collapsed: Collapsed) -> BoundSums:
    """Return the anchor and collapsed sums in whitened coordinates, as `BoundedRows` reads them."""
    L = anchor.dense_factor[: len(collapsed.slope)]  # coefficients come first in the flat vector
    curvature = L.T @ collapsed.curvature @ L
    whitened = collapsed._replace(
        slope=L.T @ collapsed.slope, curvature=(curvature + curvature.T) / 2
    )
    return BoundSums(Whitening.about(anchor.point, anchor.dense_factor), to_device(whitened))


# The bounds of families -------------------------------------------------------------------


@dataclass(frozen=True)
class LogisticBound(Bound[Logistic]):
    """The bound of Jaakkola and Jordan (1997); `tight` is xi, from 0.

    With e = (2y - 1) eta and any xi: log B = a e^2 + e/2 + c, a = -tanh(xi/2) / (4 xi),
    c = -a xi^2 + xi/2 - log(1 + e^xi); it touches log L at e = xi and e = -xi.

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> bound = LogisticBound(mo.models.Logistic())
    >>> gap = bound.gap(jnp.array([[1.5], [0.0]]), jnp.ones(2), jnp.full(2, 1.5))
    >>> [round(float(g), 3) for g in gap]
    [0.0, 0.02]
    """

    untuned: ClassVar[float] = 1.5  # Maclaurin and Adams (2014), section 3.1

    def tight_at(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """xi = |eta|."""
        return jnp.abs(predictors[:, 0])

    def gap(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """log cosh(xi/2) - log cosh(eta/2) - a (eta^2 - xi^2): the odd parts cancel."""
        eta = predictors[:, 0]
        return _log_cosh(tight / 2) - _log_cosh(eta / 2) - _a(tight) * (eta - tight) * (eta + tight)

    def quadratic(self, eta: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """The parabola a eta^2 + (y - 1/2) eta + c."""
        a = _a(tight)
        c = -a * tight**2 - _log_cosh(tight / 2) - jnp.log(2.0)
        return a * eta[0] ** 2 + (y - 0.5) * eta[0] + c


def _a(xi: jax.Array) -> jax.Array:
    """-tanh(xi/2) / (4 xi), which is -1/8 at 0."""
    small = xi < 1e-4
    safe = jnp.where(small, 1.0, xi)
    return jnp.where(small, -0.125 + xi**2 / 96, -jnp.tanh(safe / 2) / (4 * safe))


def _log_cosh(x: jax.Array) -> jax.Array:
    x = jnp.abs(x)
    return x + jnp.log1p(jnp.exp(-2 * x)) - jnp.log(2.0)


@dataclass(frozen=True)
class SoftmaxBound(Bound[Softmax]):
    """Boehning's bound (1992), a parabola of fixed curvature; `tight` is h0, where it touches.

    -Hessian of log L in the K - 1 predictors is never above A = (I - 11'/K) / 2, so
    log B = log L(h0) + g(h0)'(h - h0) - (h - h0)' A (h - h0) / 2 is below log L and touches it at
    h0.

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> bound = SoftmaxBound(mo.models.Softmax(classes=3))
    >>> at = jnp.array([[1.0, -1.0]])
    >>> bound.gap(at, jnp.zeros(1), at).tolist()
    [0.0]
    """

    untuned: ClassVar[float] = 0.0  # all classes are equally likely

    def tight_at(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """The predictors themselves."""
        return predictors

    def gap(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """Height of log L above the parabola; the predictor of the observed class cancels."""
        away = predictors - tight
        before = self.model.logits(tight)
        pi = jax.nn.softmax(before, axis=-1)[:, :-1]
        total = jax.nn.logsumexp(self.model.logits(predictors), axis=-1)
        rise = total - jax.nn.logsumexp(before, axis=-1)
        return jnp.sum(pi * away, axis=-1) + 0.5 * _form(away) - rise

    def quadratic(self, eta: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """The parabola that touches log L at h0."""
        f, slope = jax.value_and_grad(self.model.log_density)(tight, y)
        return f + slope @ (eta - tight) - 0.5 * _form(eta - tight)


def _form(away: jax.Array) -> jax.Array:
    """The form h' A h of each row, without the matrix."""
    return 0.5 * (jnp.sum(away**2, axis=-1) - jnp.sum(away, axis=-1) ** 2 / (away.shape[-1] + 1))


@dataclass(frozen=True)
class StudentTBound(Bound[StudentT]):
    """A normal density below the Student-t's; `tight` is u0, from 0.

    With u = ((y - eta) / s)^2, log L = K - log s - (nu + 1)/2 log(1 + u/nu) is convex in u; its
    tangent at u0 is the bound: K' - log s - kappa u, kappa = (nu + 1) / (2 (nu + u0)). In
    *standardised* residuals it holds for every scale at once, so the scale may be estimated too.

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> bound = StudentTBound(mo.models.StudentT(df=4.0, scale=2.0))
    >>> gap = bound.gap(jnp.zeros((2, 1)), jnp.array([2.0, 4.0]), jnp.ones(2))
    >>> [round(float(g), 3) for g in gap]
    [0.0, 0.325]
    """

    # a residual of one scale: the constant that leaves the fewest rows bright
    untuned: ClassVar[float] = 1.0

    def _squared(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        return ((y - predictors[:, 0]) / self._spread(predictors[:, 1:])) ** 2

    def _spread(self, extras: jax.Array) -> float | jax.Array:
        scale = self.model.scale
        return scale if scale is not None else jnp.exp(extras[..., 0])

    def tight_at(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """The squared standardized residuals at these predictors."""
        return self._squared(predictors, y)

    def gap(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """(nu + 1)/2 (w - log(1 + w)) with w = (u - u0) / (nu + u0)."""
        nu = self.model.known_df()
        w = (self._squared(predictors, y) - tight) / (nu + tight)
        return (nu + 1) / 2 * (w - jnp.log1p(w))

    def quadratic(self, eta: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """-kappa (y - eta)^2, still to be divided by s^2."""
        nu = self.model.known_df()
        return -(nu + 1) / (2 * (nu + tight)) * (y - eta[0]) ** 2

    def constant(self, tight: jax.Array) -> jax.Array:
        """K'."""
        nu = self.model.known_df()
        rest = (nu + 1) / 2 * (tight / (nu + tight) - jnp.log1p(tight / nu))
        return log_t_constant(nu) + rest

    def collapse(
        self,
        constant: jax.Array,
        weight: jax.Array | float,
        quadratic: jax.Array,
        extras: jax.Array,
    ) -> jax.Array:
        """Divide the summed quadratic by the squared scale, and subtract log s per row."""
        s = self._spread(extras)
        return jnp.asarray(constant - weight * jnp.log(s) + quadratic / s**2)


BOUNDS: dict[type[BaseModel], type[Bound[Pytree]]] = {
    Logistic: LogisticBound,
    StudentT: StudentTBound,
    Softmax: SoftmaxBound,
}


def bound_of(model: BaseModel) -> Bound[Pytree]:
    """Return the bound of a model's likelihood.

    Raises
    ------
    SettingError
        If none is known. A subclass may have changed the likelihood, so it has none either.
    """
    if type(model) not in BOUNDS or model.observed:
        names = ", ".join(family.__name__ for family in BOUNDS)
        raise SettingError(
            f"FlyMC needs a lower bound of each row's likelihood, which is known for {names}, but "
            f"not for {type(model).__name__}{' with ' * bool(model.observed)}"
            f"{' and '.join(model.observed)}; use method='hmc-ecs', or method='nuts' on all rows."
        )
    if model.constrained:
        raise SettingError(
            "FlyMC's bounds are quadratic in coefficients that may be any number, and the prior of "
            "one has bounds, or is that of mo(...); use method='hmc-ecs', or method='nuts' on all "
            "rows."
        )
    bound = BOUNDS[type(model)](model)
    if "log_df" in bound.model.extras:
        raise SettingError(
            "FlyMC's bound of Student-t noise is that of known degrees of freedom: give them, as "
            "in mo.models.StudentT(df=4), or use method='hmc-ecs', or method='nuts' on all rows."
        )
    if bound.model.modelled:
        raise SettingError(
            f"FlyMC's bounds are those of a single {bound.model.modelled[0]}, and it has a formula "
            "of its own; use method='hmc-ecs', or method='nuts' on all rows."
        )
    return bound
