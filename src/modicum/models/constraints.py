"""Constrained parameters: chains move in unconstrained space, reports stay within the bounds.

A constraint is a smooth one-to-one map between an array of free values and the values it allows.
The density of the free values u, which are sampled, is that of the values x(u) times |dx/du|, whose
logarithm every constraint computes. A simplex and a Cholesky factor of a correlation matrix have
fewer dimensions than entries: there dx covers all but the last entry, and the entries below the
diagonal, the same reference measures by which NumPyro and Stan write priors for them.
`ParameterLayout` applies constraints to the leaves of a pytree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite, log, sqrt
from typing import NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef
from scipy.special import betaln

from modicum.arguments import names_checked
from modicum.arrays import differentiable, log_sigmoid, namespace, sigmoid
from modicum.errors import SettingError, is_number, suggestion
from modicum.runtime import FASTEST_COMPILE, Array, Pytree, in_double_precision, jit

Shape = tuple[int, ...]
WITHIN = 1e-6  # tolerance of a starting value's sum about 1


def _numbers(array: jax.Array) -> np.finfo[np.floating]:
    """Return the machine limits of an array's floating type."""
    return np.finfo(jnp.result_type(array, float))


class Bijection(Protocol):
    """A one-to-one map from free values."""

    def constrain(self, free: jax.Array) -> jax.Array:
        """Map free values to others."""

    def free(self, value: jax.Array) -> jax.Array:
        """Undo `constrain`."""


class Constraint(ABC):
    """The set of values a parameter may have, and its map from free (unconstrained) values.

    Constraints are hashable and have no fixed shape: leading axes are a batch.
    """

    support: str  # in words, for messages

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refuse `mo.positive()` or `mo.simplex(3)`, which other packages write."""
        raise SettingError(
            f"{self!r} is a constraint, not a function: give it without parentheses, as in "
            'constraints={"sigma": mo.positive}; the shape of the parameter is that of its '
            "starting value in `init`, or is given as `shapes`."
        )

    def free_shape(self, shape: Shape) -> Shape:
        """Shape of the free values for values of `shape`; ValueError if `shape` is not allowed."""
        return shape

    @abstractmethod
    def constrain(self, free: jax.Array) -> jax.Array:
        """Map free values to constrained ones."""

    @abstractmethod
    def log_jacobian(self, free: jax.Array) -> jax.Array:
        """Logarithm of |d values / d free|, a scalar."""

    @abstractmethod
    def free(self, value: jax.Array) -> jax.Array:
        """Undo `constrain`; a value that was rounded to its bound has a finite free value."""

    @abstractmethod
    def allows(self, value: np.ndarray) -> bool:
        """Whether the value lies within the bounds."""

    def free_name(self, name: str) -> str:
        """Name of the free value of a parameter called `name`."""
        return f"free {name}"


@dataclass(frozen=True)
class _Real(Constraint):
    support = "real numbers"

    def constrain(self, free: jax.Array) -> jax.Array:
        return free

    def log_jacobian(self, free: jax.Array) -> jax.Array:
        return jnp.zeros((), jnp.result_type(free, float))

    def free(self, value: jax.Array) -> jax.Array:
        return value

    def allows(self, value: np.ndarray) -> bool:
        return bool(np.all(np.isfinite(value)))

    def free_name(self, name: str) -> str:
        return name

    def __repr__(self) -> str:
        return "real"


@dataclass(frozen=True)
class Interval(Constraint):
    """Numbers between two bounds, one of which may be infinite; see `interval`."""

    low: float
    high: float

    @property
    def support(self) -> str:  # type: ignore[override]
        """The bounds, in words."""
        if self.high == np.inf:
            return "positive numbers" if self.low == 0 else f"numbers above {self.low:g}"
        if self.low == -np.inf:
            return f"numbers below {self.high:g}"
        return f"numbers between {self.low:g} and {self.high:g}"

    def constrain(self, free: jax.Array) -> jax.Array:
        """Map by an exponential from one bound, or by a logistic function between two.

        A value that rounds to the bound itself becomes the next number inside.
        """
        xp = namespace(free)
        if isfinite(self.low) and isfinite(self.high):
            value = self.low + (self.high - self.low) * sigmoid(free)
        elif self.high == np.inf:
            value = self.low + xp.exp(free)
        else:
            value = self.high - xp.exp(free)
        kind = _numbers(free)
        tiny = kind.tiny  # smaller numbers are subnormal, and processors may flush them to 0
        first = np.nextafter(kind.dtype.type(self.low), np.inf) if self.low else tiny
        last = np.nextafter(kind.dtype.type(self.high), -np.inf) if self.high else -tiny
        return xp.clip(value, first, None if self.high == np.inf else last)

    def log_slopes(self, free: jax.Array) -> jax.Array:
        """u, or log(high - low) + log s(u) + log s(-u) with the logistic function s."""
        if not (isfinite(self.low) and isfinite(self.high)):
            return free
        return log_sigmoid(free) + log_sigmoid(-free) + np.log(self.high - self.low)

    def log_jacobian(self, free: jax.Array) -> jax.Array:
        """Sum of `log_slopes`."""
        return jnp.sum(self.log_slopes(free))

    def free(self, value: jax.Array) -> jax.Array:
        """Logarithm of the distance to one bound, or of the ratio of the distances to both."""
        tiny = _numbers(value).tiny
        distances = value - self.low, self.high - value
        above, below = (jnp.log(jnp.maximum(distance, tiny)) for distance in distances)
        if self.high == np.inf:
            return above
        return below if self.low == -np.inf else above - below

    def allows(self, value: np.ndarray) -> bool:
        """Whether all values lie strictly between the bounds."""
        return bool(np.all((value > self.low) & (value < self.high)))

    def free_name(self, name: str) -> str:
        """Call the free value log(name) or logit(name), where it is one."""
        if (self.low, self.high) == (0, np.inf):
            return f"log({name})"
        return f"logit({name})" if (self.low, self.high) == (0, 1) else f"free {name}"

    def __repr__(self) -> str:
        if (self.low, self.high) == (0, np.inf):
            return "positive"
        return f"interval({self.low:g}, {self.high:g})"


@dataclass(frozen=True)
class _Ordered(Constraint):
    support = "numbers in increasing order along the last axis"

    def free_shape(self, shape: Shape) -> Shape:
        if not shape:
            raise ValueError("a vector")
        return shape

    def constrain(self, free: jax.Array) -> jax.Array:
        """Add positive gaps, whose logarithms are free, to the first value."""
        steps = jnp.concatenate([free[..., :1], jnp.exp(free[..., 1:])], axis=-1)
        return jnp.cumsum(steps, axis=-1)

    def log_jacobian(self, free: jax.Array) -> jax.Array:
        return jnp.sum(free[..., 1:])

    def free(self, value: jax.Array) -> jax.Array:
        gaps = jnp.log(jnp.maximum(jnp.diff(value, axis=-1), _numbers(value).tiny))
        return jnp.concatenate([value[..., :1], gaps], axis=-1)

    def allows(self, value: np.ndarray) -> bool:
        return bool(np.all(np.diff(value, axis=-1) > 0))

    def __repr__(self) -> str:
        return "ordered"


@dataclass(frozen=True)
class _Simplex(Constraint):
    """x = softmax(V u), the isometric log-ratio: V has orthonormal columns that sum to 0.

    Unlike in stick-breaking, no entry is special, and u = 0 is the centre.
    """

    support = "positive numbers that sum to 1 along the last axis"

    def free_shape(self, shape: Shape) -> Shape:
        if not shape or shape[-1] < 2:
            raise ValueError("a vector of at least two numbers")
        return (*shape[:-1], shape[-1] - 1)

    def _logits(self, free: jax.Array) -> jax.Array:
        """V u by cumulative sums: z_i = sum_(n >= i) w_n - (i - 1) w_(i - 1)."""
        n = jnp.arange(1, free.shape[-1] + 1, dtype=jnp.result_type(free, float))
        w = free / jnp.sqrt(n * (n + 1))
        none = jnp.zeros((*free.shape[:-1], 1), w.dtype)
        later = jnp.flip(jnp.cumsum(jnp.flip(w, -1), axis=-1), -1)
        return jnp.concatenate([later, none], -1) - jnp.concatenate([none, n * w], -1)

    def constrain(self, free: jax.Array) -> jax.Array:
        share = jax.nn.softmax(self._logits(free), axis=-1)
        return jnp.maximum(share, _numbers(share).tiny)

    def log_jacobian(self, free: jax.Array) -> jax.Array:
        """sum log x + log(K) / 2."""
        log_share = jax.nn.log_softmax(self._logits(free), axis=-1)
        log_volumes = jnp.sum(log_share, axis=-1) + np.log(sqrt(log_share.shape[-1]))
        return jnp.sum(log_volumes)

    def free(self, value: jax.Array) -> jax.Array:
        z = jnp.log(jnp.maximum(value, _numbers(value).tiny))
        n = jnp.arange(1, z.shape[-1], dtype=z.dtype)
        return (jnp.cumsum(z, axis=-1)[..., :-1] - n * z[..., 1:]) / jnp.sqrt(n * (n + 1))

    def allows(self, value: np.ndarray) -> bool:
        return bool(np.all(value > 0) and np.all(np.abs(value.sum(axis=-1) - 1) < WITHIN))

    def __repr__(self) -> str:
        return "simplex"


@dataclass(frozen=True)
class _Steps:
    """K b z, with a number b and a simplex z of K entries: steps of one sign, b on average."""

    def constrain(self, free: jax.Array) -> jax.Array:
        return free.shape[-1] * free[..., :1] * simplex.constrain(free[..., 1:])

    def free(self, value: jax.Array) -> jax.Array:
        """Undo `constrain`; where all steps are 0, their shares are equal."""
        total = jnp.sum(value, axis=-1, keepdims=True)
        is_zero = total == 0
        share = jnp.where(is_zero, 1 / value.shape[-1], value / jnp.where(is_zero, 1.0, total))
        return jnp.concatenate([total / value.shape[-1], simplex.free(share)], axis=-1)


# Standard deviations of a few effects are sampled on the log scale. Of their correlations, the
# numbers x are inverse hyperbolic tangents of canonical partial correlations r = tanh(x), which are
# independent under the LKJ distribution (Lewandowski, Kurowicka and Joe 2009). They are in the
# order of the entries below the diagonal, row by row, along the last axis; other axes are a batch.
# 1 - r^2 is always computed from x: next to 1, r itself has lost the digits.


@differentiable(slope=lambda x: -2 * namespace(x).tanh(x))
def log_unexplained(x: jax.Array) -> jax.Array:
    """log(1 - tanh(x)^2), with the derivatives also at 0, where |x| has none."""
    xp = namespace(x)
    size = xp.abs(x)
    return 2 * (log(2) - size - xp.log1p(xp.exp(-2 * size)))


def correlation_factor(x: jax.Array, count: int) -> jax.Array:
    """Cholesky factors (..., count, count) of correlation matrices; NumPy arrays from NumPy's.

    Every row has length 1: partial correlations divide what the entries before them left over.
    """
    xp, below = namespace(x), np.tri(count, k=-1, dtype=bool)
    place = np.zeros((count, count), int)
    place[below] = np.arange(x.shape[-1])
    u = xp.where(below, x[..., place], 0.0)
    # Entry (i, j): half the sum of log(1 - r^2) of row i over the columns before j.
    log_left = 0.5 * xp.sum(xp.where(below, log_unexplained(u)[..., None, :], 0.0), axis=-1)
    return xp.tril((xp.tanh(u) + np.eye(count, dtype=u.dtype)) * xp.exp(log_left))


def partials_of_factor(factor: jax.Array) -> jax.Array:
    """Undo `correlation_factor`; the result is finite also for a diagonal that vanished."""
    factor = jnp.asarray(factor, jnp.result_type(factor, float))
    later = jnp.flip(jnp.cumsum(jnp.flip(factor[..., 1:] ** 2, -1), axis=-1), -1)
    left = jnp.sqrt(jnp.maximum(later, np.finfo(factor.dtype).tiny))
    x = jnp.arcsinh(factor[..., :-1] / left)  # sinh(x) = r / sqrt(1 - r^2)
    return x[(..., *np.tril_indices(factor.shape[-1], -1))]


@dataclass(frozen=True)
class Correlations:
    """Correlations of `count` effects, below the diagonal row by row, along the last axis."""

    count: int

    def constrain(self, free: jax.Array) -> jax.Array:
        """Return the correlations, given the numbers x."""
        factor = correlation_factor(free, self.count)
        return (factor @ factor.swapaxes(-1, -2))[(..., *np.tril_indices(self.count, -1))]

    def free(self, value: jax.Array) -> jax.Array:
        """Return x; a correlation that was rounded to 1 becomes the number before it."""
        below, (i, j) = jnp.asarray(value), np.tril_indices(self.count, -1)
        last = 1 - np.finfo(below.dtype).epsneg
        below = jnp.clip(below, -last, last)
        matrix = jnp.eye(self.count, dtype=below.dtype).at[i, j].set(below).at[j, i].set(below)
        return partials_of_factor(jnp.linalg.cholesky(matrix))


def partial_exponents(count: int, eta: float | jax.Array) -> np.ndarray | jax.Array:
    """alpha of each partial correlation r under an LKJ prior: (1 + r) / 2 is Beta(alpha, alpha)."""
    column = np.tril_indices(count, -1)[1]
    return eta + (count - 2 - column) / 2


def draw_partials(count: int, eta: float, rng: np.random.Generator, number: int) -> np.ndarray:
    """Draw the numbers x of `number` LKJ(eta) correlation matrices."""
    alpha = np.asarray(partial_exponents(count, eta))
    r = 2 * rng.beta(alpha, alpha, size=(number, len(alpha))) - 1
    return np.asarray(np.arctanh(r))


def unnormalized_lkj(x: jax.Array, count: int, eta: float | jax.Array) -> jax.Array:
    """Log-density of the numbers x of an LKJ(eta) correlation matrix, without its constant.

    It is (1 - r^2)^(alpha - 1) of each partial correlation r, times dr/dx = 1 - r^2.
    """
    xp = namespace(x)
    terms = partial_exponents(count, eta) * log_unexplained(xp.asarray(x))
    return xp.sum(terms, axis=-1)


def unnormalized_lkj_integral(count: int, eta: float) -> float:
    """Logarithm of the integral of exp(`unnormalized_lkj`)."""
    alpha = np.asarray(partial_exponents(count, eta))
    return float(np.sum((2 * alpha - 1) * log(2) + betaln(alpha, alpha)))


def covariance_factor(hyper: jax.Array, count: int) -> jax.Array:
    """Cholesky factors of Sigma from log sds and, if effects are correlated, the numbers x."""
    xp = namespace(hyper)
    sds: jax.Array = xp.exp(hyper[..., :count])
    if hyper.shape[-1] == count:
        return sds[..., None] * np.eye(count)
    return sds[..., None] * correlation_factor(hyper[..., count:], count)


@dataclass(frozen=True)
class _CholeskyCorr(Constraint):
    """Rows of unit length from canonical partial correlations tanh(u) (Lewandowski et al.)."""

    support = "lower triangular matrices with a positive diagonal and rows of length 1"

    def free_shape(self, shape: Shape) -> Shape:
        if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < 2:
            raise ValueError("a square matrix of at least two rows")
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)

    def constrain(self, free: jax.Array) -> jax.Array:
        return correlation_factor(free, _rows_of(free))

    def log_jacobian(self, free: jax.Array) -> jax.Array:
        """Sum over the entries below the diagonal."""
        row, column = np.tril_indices(_rows_of(free), -1)
        log_slopes = log_unexplained(free)
        return jnp.sum(jnp.asarray(1 + (row - 1 - column) / 2, log_slopes.dtype) * log_slopes)

    def free(self, value: jax.Array) -> jax.Array:
        return partials_of_factor(value)

    def allows(self, value: np.ndarray) -> bool:
        lower = np.all(np.triu(value, 1) == 0) and np.all(np.diagonal(value, 0, -2, -1) > 0)
        return bool(lower and np.all(np.abs((value**2).sum(axis=-1) - 1) < WITHIN))

    def __repr__(self) -> str:
        return "cholesky_corr"


def _rows_of(free: jax.Array) -> int:
    """Rows of a matrix that has this many entries below the diagonal."""
    return (1 + round(sqrt(1 + 8 * free.shape[-1]))) // 2


@names_checked
def interval(low: float, high: float) -> Interval:
    """Constrain a parameter to lie between `low` and `high`, one of which may be infinite.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.interval(0, 1), mo.interval(2, float("inf")).support
    (interval(0, 1), 'numbers above 2')
    """
    ends = []
    for name, end in (("low", low), ("high", high)):
        if not is_number(end) and end not in (np.inf, -np.inf):
            raise SettingError(f"{name} of an interval must be a number, not {end!r}.")
        ends.append(float(end))
    if not ends[0] < ends[1]:
        raise SettingError(f"an interval needs low < high, not {low!r} and {high!r}.")
    if ends == [-np.inf, np.inf]:
        raise SettingError("an interval from -inf to inf is no constraint: leave it out.")
    return Interval(*ends)


real: Constraint = _Real()
positive: Constraint = Interval(0.0, np.inf)
ordered: Constraint = _Ordered()
simplex: Constraint = _Simplex()
cholesky_corr: Constraint = _CholeskyCorr()
monotonic_steps: Bijection = _Steps()


@dataclass(frozen=True)
class Entries:
    """Maps of some entries along the last axis of an array; all others are real.

    Examples
    --------
    >>> some = Entries((((1,), positive),))
    >>> some.constrain(np.zeros(2)).tolist()
    [0.0, 1.0]
    """

    parts: tuple[tuple[tuple[int, ...], Bijection], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.parts)

    def constrain(self, free: jax.Array) -> jax.Array:
        """Map free values to allowed ones."""
        values = jnp.asarray(free)
        for where, bijection in self.parts:
            own = np.array(where)
            values = values.at[..., own].set(bijection.constrain(values[..., own]))
        return values

    def free(self, values: jax.Array) -> jax.Array:
        """Undo `constrain`."""
        return _freed(self, values)

    def with_slopes(self, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the allowed values of one vector of free values, and their derivatives."""
        values, slopes = _with_slopes(self, free)
        return np.asarray(values), np.asarray(slopes)


# Compiled as a whole: operation by operation would compile dozens of functions.


@jit(static=0, options=FASTEST_COMPILE)
def _freed(entries: Entries, values: jax.Array) -> jax.Array:
    free = jnp.asarray(values)
    for where, bijection in entries.parts:
        own = np.array(where)
        free = free.at[..., own].set(bijection.free(free[..., own]))
    return free


@jit(static=0, options=FASTEST_COMPILE)
def _with_slopes(entries: Entries, free: Array) -> tuple[jax.Array, jax.Array]:
    point = jnp.asarray(free)
    return entries.constrain(point), jax.jacfwd(entries.constrain)(point)


NO_CONSTRAINTS = Entries()


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and constraints of the parameters, which lie in a pytree of `structure`."""

    structure: PyTreeDef
    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    constraints: tuple[Constraint, ...]

    @classmethod
    def of(cls, init: Pytree, constraints: Mapping[str, Constraint]) -> ParameterLayout:
        """Return the layout of the starting point `init`; refuse constraints that do not fit it."""
        named = {name: np.asarray(leaf) for name, leaf in named_leaves(init).items()}
        for name in constraints:
            if name not in named:
                raise SettingError(
                    f"there is a constraint for {name!r}, which is not a parameter"
                    f"{suggestion(name, named)}; the parameters are {', '.join(named)}."
                )
        in_order = tuple(constraints.get(name, real) for name in named)
        shapes = tuple(leaf.shape for leaf in named.values())
        layout = cls(jax.tree.structure(init), tuple(named), shapes, in_order)
        layout.free_shapes()  # refuses shapes that a constraint cannot have
        return layout

    @property
    def bounded(self) -> bool:
        """Whether any parameter has a constraint."""
        return any(constraint is not real for constraint in self.constraints)

    def free_shapes(self) -> tuple[Shape, ...]:
        """Shapes of the free values."""
        shapes = []
        for name, shape, constraint in zip(self.names, self.shapes, self.constraints, strict=True):
            try:
                shapes.append(constraint.free_shape(shape))
            except ValueError as needed:
                raise SettingError(
                    f"{name!r} has the constraint {constraint!r}, which needs {needed}, but its "
                    f"shape is {shape}; change its value in `init`, or its shape in `shapes`."
                ) from None
        return tuple(shapes)

    def constrain(self, free: Pytree) -> Pytree:
        """Map free values to parameters within their bounds."""
        if not self.bounded:
            return free
        leaves = jax.tree.leaves(free)
        values = [c.constrain(leaf) for c, leaf in zip(self.constraints, leaves, strict=True)]
        return jax.tree.unflatten(self.structure, values)

    def log_jacobian(self, free: Pytree) -> jax.Array:
        """Log-determinant of the Jacobian of `constrain`."""
        pairs = zip(self.constraints, jax.tree.leaves(free), strict=True)
        return jnp.sum(jnp.stack([c.log_jacobian(leaf) for c, leaf in pairs if c is not real]))

    def free(self, values: Pytree) -> Pytree:
        """Undo `constrain`."""
        leaves = jax.tree.leaves(values)
        free = [
            leaf if c is real else c.free(jnp.asarray(leaf, float))
            for c, leaf in zip(self.constraints, leaves, strict=True)
        ]
        return jax.tree.unflatten(self.structure, free)

    @in_double_precision
    def free_point(self, point: Pytree, called: str) -> Pytree:
        """Map a point given by the user to free values in float64; refuse one that does not fit.

        `called` names the point in error messages.
        """
        named = named_leaves(point)
        shapes = {name: np.shape(leaf) for name, leaf in named.items()}
        alike = jax.tree.structure(point) == self.structure
        if not alike or tuple(shapes.values()) != self.shapes:
            ours = ", ".join(f"{n}: {s}" for n, s in zip(self.names, self.shapes, strict=True))
            theirs = ", ".join(f"{n}: {s}" for n, s in shapes.items())
            raise SettingError(
                f"{called} must have the names and shapes of the model's parameters ({ours}), but "
                f"one has {theirs}."
            )
        for (name, leaf), constraint in zip(named.items(), self.constraints, strict=True):
            value = np.asarray(leaf)
            if value.dtype.kind not in "fiub" or not np.all(np.isfinite(value)):
                raise SettingError(
                    f"{called} must hold finite real numbers, but '{name}' does not; give each "
                    "parameter a value to start from."
                )
            if not constraint.allows(value):
                text = np.array2string(value, precision=3, threshold=4, edgeitems=2)
                raise SettingError(
                    f"{called} has {name} = {text}, but its constraint allows {constraint.support}."
                )
        free = self.free(point)
        return jax.tree.map(lambda leaf: np.asarray(leaf, dtype=np.float64), free)

    def flat_names(self) -> tuple[str, ...]:
        """Name each free value, in the order of the flat vector."""
        names: list[str] = []
        parameters = zip(self.names, self.shapes, self.free_shapes(), self.constraints, strict=True)
        for name, shape, free_shape, constraint in parameters:
            places = [", ".join(map(str, place)) for place in np.ndindex(*free_shape)]
            scalars = [f"{name}[{place}]" if place else name for place in places]
            alike = free_shape == shape
            names += [constraint.free_name(s) if alike else f"free {s}" for s in scalars]
        return tuple(names)


def named_leaves(theta: Pytree) -> dict[str, jax.Array]:
    """Name each leaf of a pytree by its path: {"layer": {"w": ...}} gives "layer.w"."""
    paths = jax.tree_util.tree_flatten_with_path(theta)[0]
    name = partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name(path) or "theta": leaf for path, leaf in paths}
