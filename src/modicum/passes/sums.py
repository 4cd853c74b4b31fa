"""Sums over all rows, at one point to second order or at many points, and values of some rows.

Evaluations are counted in the ledger. No array holds all rows at all points: a pass over all rows
keeps a few numbers per row, and values for requested rows are returned in pieces.

Scores, gradients of the log-posterior, are computed from all rows or from a few per point. With
control variates about the mean t* of the points,

    score(t) = A + B (t - t*) + (n/m) sum_i [g_i(t) - g_i(t*) - H_i (t - t*)] + prior score,

is estimated without bias from m rows per point (eq. 4.7 of the HMC-ECS paper). Rows are drawn anew
for every point, so that errors at different points are independent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import expansion
from modicum.ledger import Kind, Ledger
from modicum.linalg.arrow import ArrowMatrix, Symmetric
from modicum.models import Target
from modicum.models.model import DENSE_LIMIT, Batch
from modicum.passes.engine import (
    Engine,
    chunk_bounds,
    chunk_rows,
    compiled_pass,
    map_in_blocks,
    sum_in_blocks,
)
from modicum.passes.hessians import (
    arrow_hessian_by_numpy,
    arrow_hessian_sum,
    as_matrix,
    group_hessian_by_numpy,
    group_hessian_sum,
    hessian_by_numpy,
    linear_hessian_sum,
    values_by_numpy,
)
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.runtime import (
    COMPILED,
    Array,
    Pytree,
    for_numpy,
    free_memory,
    in_double_precision,
    jit,
    to_device,
)


@dataclass(frozen=True)
class Quadratic:
    """C + A'(t - point) + (t - point)' B (t - point) / 2.

    Quadratics of several data sets can be added although their points differ: moving one to another
    point changes its coefficients, but not the function.

    Examples
    --------
    >>> import numpy as np
    >>> about_0 = Quadratic(np.zeros(1), 1.0, np.array([2.0]), np.array([[-4.0]]))
    >>> about_1 = about_0.moved(np.ones(1))
    >>> about_1.C, about_1.A, (about_0 - about_1).C
    (1.0, array([-2.]), 0.0)
    """

    point: np.ndarray
    C: float
    A: np.ndarray
    B: np.ndarray

    def moved(self, point: np.ndarray) -> Quadratic:
        """Return the same function, expanded about another point."""
        dt = point - self.point
        if not dt.any():
            return self
        bent = self.B @ dt
        return Quadratic(point, float(self.C + dt @ (self.A + bent / 2)), self.A + bent, self.B)

    def values(self, t: np.ndarray) -> np.ndarray:
        """Return the values at points t of shape (..., d)."""
        dt = t - self.point
        return np.asarray(self.C + np.sum(dt * (self.A + dt @ self.B / 2), axis=-1))

    def slopes(self, t: np.ndarray) -> np.ndarray:
        """Return the gradients at points t of shape (..., d)."""
        return np.asarray(self.A + (t - self.point) @ self.B)

    def __add__(self, other: Quadratic) -> Quadratic:
        """Return the sum, expanded about the point of the first."""
        moved = other.moved(self.point)
        return Quadratic(self.point, self.C + moved.C, self.A + moved.A, self.B + moved.B)

    def __neg__(self) -> Quadratic:
        return Quadratic(self.point, -self.C, -self.A, -self.B)

    def __sub__(self, other: Quadratic) -> Quadratic:
        return self + -other


# Rows, rows in groups, and rows times points, up to which NumPy takes less time than compiling.
# Compiled passes take a tenth of the time per row on sixteen cores, and half of it on two, since
# NumPy's threads wait for each other; compiling takes one or two seconds.
FEW_ROWS, FEW_IN_GROUPS, FEW_VALUES = 5_000_000, 1_000_000, 2_000_000


@dataclass
class Clock:
    """Seconds per row of the fastest pass of each kind, since the first includes compilation.

    Attributes
    ----------
    per_row
        Seconds per row, by kind of evaluation.
    """

    per_row: dict[Kind, float] = field(default_factory=dict)
    _before: float = field(default_factory=lambda: COMPILED.seconds)

    @property
    def compiling(self) -> float:
        """Seconds of compilation since the clock was started."""
        return COMPILED.seconds - self._before

    def took(self, kind: Kind, n: int, seconds: float) -> None:
        """Record the time of a pass."""
        per_row = seconds / max(n, 1)
        self.per_row[kind] = min(per_row, self.per_row.get(kind, per_row))


TargetSum: TypeAlias = Callable[[Target, np.ndarray, Batch, np.ndarray], tuple[Array, ...]]
"""A function of target, point, chunk and a mask of its real rows; returns sums over these."""


@dataclass(frozen=True)
class Sums:
    """Sums over all rows of one data set, each entered in the ledger.

    The log-likelihood does not depend on hyperparameters: its derivatives there are 0.

    Parameters
    ----------
    target, rows
        The log-likelihood, and the rows over which it is summed.
    engine
        Computes the sums.
    ledger
        Counts row evaluations.
    rest
        The log-likelihood of rows not in `rows`, which every sum includes; None: there are none.
    clock
        Measures passes over these rows and their subsets.
    """

    target: Target
    rows: Rows
    engine: Engine
    ledger: Ledger
    rest: Quadratic | None = None
    clock: Clock = field(default_factory=Clock, compare=False)

    def value(self, t: np.ndarray, purpose: str) -> float:
        """Log-likelihood at `t`."""
        return float(self.values(t[None], purpose)[0])

    def values(self, points: np.ndarray, purpose: str) -> np.ndarray:
        """Log-likelihood at many points, (points, d), in one pass: eq. 4.4 of the HMC-ECS paper."""
        few = len(points) * len(self.rows) <= FEW_VALUES and self.target.coding is None
        chunk_sum = values_by_numpy if few and self.gradient_on_numpy else _values_sum
        (values,) = self._sweep(chunk_sum, points, purpose, "density")
        return np.asarray(values + self._rest_values(points))

    def gradient(self, t: np.ndarray, purpose: str) -> tuple[float, np.ndarray]:
        """Log-likelihood and its gradient at `t` (C and A)."""
        by_numpy = partial(hessian_by_numpy, second=False)
        chunk_sum: TargetSum = by_numpy if self.gradient_on_numpy else chunk_gradient
        value, gradient = self._sweep(chunk_sum, t, purpose, "gradient")
        gradient = self._bent(t, gradient + self._rest_slopes(t))[0]
        return float(value) + float(self._rest_values(t)), self._padded(gradient)

    def gradients(self, points: np.ndarray, purpose: str) -> np.ndarray:
        """Gradient of the log-likelihood at many points, (points, d), in one pass."""
        (gradients,) = self._sweep(_gradients_sum, points, purpose, "gradient")
        gradients = gradients + self._rest_slopes(points)
        bent = [self._bent(t, gradient)[0] for t, gradient in zip(points, gradients, strict=True)]
        return self._padded(np.stack(bent))

    def curvature(self, t: np.ndarray, purpose: str) -> tuple[float, np.ndarray, Symmetric]:
        """C, A and B at `t` as `hessian` returns them, but B is an arrow if the target has one."""
        layout = self.target.arrow
        if layout is None:
            return self.hessian(t, purpose)
        by_numpy = self.gradient_on_numpy
        of_chunk = partial(arrow_hessian_by_numpy if by_numpy else arrow_hessian_sum, layout)
        value, gradient, *parts = self._sweep(of_chunk, t, purpose, "hessian")
        gradient, hessian = self._bent(t, gradient, as_matrix(layout, *parts))
        return float(value), self._padded(gradient), hessian

    def hessian(self, t: np.ndarray, purpose: str) -> tuple[float, np.ndarray, np.ndarray]:
        """Log-likelihood, gradient and Hessian at `t` (C, A and B)."""
        chunk_sum: TargetSum = _hessian_sum
        if self.target.model.integrated_group is not None:
            chunk_sum = group_hessian_by_numpy if self.by_numpy else group_hessian_sum
        elif self.target.model.has_predictors:
            chunk_sum = hessian_by_numpy if self.by_numpy else linear_hessian_sum
        value, gradient, hessian = self._sweep(chunk_sum, t, purpose, "hessian")
        symmetric = hessian / 2 + hessian.T / 2  # halved first, since the sum may overflow
        if self.rest is not None:
            value, symmetric = value + self._rest_values(t), symmetric + self.rest.B
            gradient = gradient + self._rest_slopes(t)
        gradient, symmetric = self._bent(t, gradient, symmetric)
        padded = self._padded(self._padded(symmetric).T)
        return float(value), self._padded(gradient), padded

    @property
    def by_numpy(self) -> bool:
        """Whether passes run in NumPy, without a compiler."""
        grouped = self.rows.grouped
        number = len(self.rows.members if grouped else self.rows)
        few = number <= (FEW_IN_GROUPS if grouped else FEW_ROWS)
        return self.target.of_coefficients.on_numpy and few

    @property
    def gradient_on_numpy(self) -> bool:
        """Whether a gradient takes no compiler: of a linear predictor, by NumPy formulas."""
        return self.by_numpy and self.target.model.has_predictors

    def of_some(self, rng: np.random.Generator, size: int) -> Sums:
        """Return the sums over so many random rows, or groups."""
        ids = np.sort(rng.choice(len(self.rows), size, replace=False))
        return replace(self, rows=self.rows.subset(ids))

    def enter(self, purpose: str, times: int, kind: Kind, passes: int) -> None:
        """Enter in the ledger that every row was evaluated `times` times, in `passes` sweeps."""
        is_pass = len(self.rows) == self.ledger.rows  # a sweep over a subset is not a pass
        self.ledger.add(purpose, times * len(self.rows), kind, passes=passes if is_pass else 0)

    def _sweep(
        self, chunk_sum: TargetSum, t: np.ndarray, purpose: str, kind: Kind
    ) -> tuple[np.ndarray, ...]:
        """Make a pass at one point (d,), whose time the clock keeps, or at several."""
        self.enter(purpose, len(t) if t.ndim == 2 else 1, kind, passes=1)
        function = partial(chunk_sum, self.target.of_coefficients)
        started = time.perf_counter()
        sums: tuple[np.ndarray, ...] = self.engine.map_reduce(
            function, self._of_likelihood(t), self.rows, purpose
        )
        if t.ndim == 1:
            self.clock.took(kind, len(self.rows), time.perf_counter() - started)
        return sums

    def _rest_values(self, t: np.ndarray) -> np.ndarray | float:
        return 0.0 if self.rest is None else self.rest.values(self._of_likelihood(t))

    def _rest_slopes(self, t: np.ndarray) -> np.ndarray | float:
        return 0.0 if self.rest is None else self.rest.slopes(self._of_likelihood(t))

    def _of_likelihood(self, t: np.ndarray) -> np.ndarray:
        """Return the entries that the likelihood depends on, which are the first.

        Sums are those of a function of the coefficients, in place of their free values.
        """
        own = np.asarray(t, np.float64)[..., : self.target.likelihood.size]
        if not self.target.model.constrained:
            return own
        (coefficients,) = _coefficients(self.target.likelihood, np.atleast_2d(own))
        return np.asarray(coefficients.reshape(own.shape))

    def _bent(
        self, t: np.ndarray, gradient: np.ndarray, hessian: Any = None
    ) -> tuple[np.ndarray, Any]:
        """Return derivatives in t from those in the coefficients c(t): J'g, and J'HJ + g'c''.

        c is t but for constrained coefficients, which are few.
        """
        if not self.target.model.constrained:
            return gradient, hessian
        likelihood, where = self.target.likelihood, self.target.likelihood.bent_places
        J, curved = map(np.asarray, bending(likelihood, t[: likelihood.size], gradient))
        gradient = gradient.copy()
        gradient[where] = J.T @ gradient[where]
        if hessian is None:
            return gradient, None
        matrix = ArrowMatrix.of(hessian)
        own = np.searchsorted(matrix.border, where)  # none is an effect of many levels
        cross, corner = np.array(matrix.cross), np.array(matrix.corner)
        cross[..., own] = cross[..., own] @ J
        corner[own] = J.T @ corner[own]
        corner[:, own] = corner[:, own] @ J
        corner[np.ix_(own, own)] += curved
        return gradient, replace(matrix, cross=cross, corner=corner).plain

    def _padded(self, sums: np.ndarray) -> np.ndarray:
        """Append zeros for the other entries, along the last axis."""
        others = self.target.size - sums.shape[-1]
        if not others:
            return sums
        return np.concatenate([sums, np.zeros((*sums.shape[:-1], others))], axis=-1)


@for_numpy
@jit(static=0)
def _coefficients(target: Target, points: Array) -> tuple[jax.Array]:
    return (jax.vmap(target.coefficients)(points),)


@for_numpy
@jit(static=0)
def bending(target: Target, t: Array, slope: Array) -> tuple[jax.Array, jax.Array]:
    """Return J of the constrained coefficients in their free values, and the Hessian of slope'c."""
    at, where = jnp.asarray(t), target.bent_places

    def coefficients(free: jax.Array) -> jax.Array:
        return target.coefficients(at.at[where].set(free))[where]

    along = jax.hessian(lambda free: slope[where] @ coefficients(free))
    return jax.jacfwd(coefficients)(at[where]), along(at[where])


def log_likelihood_sum(target: Target, t: Array, batch: Batch, present: Array) -> jax.Array:
    """Sum the log-likelihood over the present rows of a chunk, in float64."""
    return jnp.sum(jnp.where(present, target.log_likelihood(t, batch), 0.0).astype(jnp.float64))


@compiled_pass
def _values_sum(target: Target, points: Array, batch: Batch, present: Array) -> tuple[jax.Array]:
    at_point = partial(log_likelihood_sum, target)
    return (jax.lax.map(lambda t: at_point(t, batch, present), points, batch_size=16),)


def value_and_slope(
    target: Target, t: Array, batch: Batch, present: Array
) -> tuple[jax.Array, jax.Array]:
    """Sum the log-likelihood and its gradient over the present rows of a chunk."""
    of_block = partial(jax.value_and_grad(log_likelihood_sum, argnums=1), target, t)
    if target.coding is not None:  # scatters have no large intermediate results
        return of_block(batch, present)
    return sum_in_blocks(of_block, batch, present)


chunk_gradient = compiled_pass(value_and_slope)


@compiled_pass
def _gradients_sum(target: Target, points: Array, batch: Batch, present: Array) -> tuple[jax.Array]:
    at_point = jax.grad(partial(log_likelihood_sum, target))
    return (jax.lax.map(lambda t: at_point(t, batch, present), points, batch_size=16),)


@jit(static=0)
def _hessian_sum(target: Target, t: Array, batch: Batch, present: Array) -> tuple[jax.Array, ...]:
    return expansion(partial(log_likelihood_sum, target))(t, batch, present)


Slope: TypeAlias = tuple[jax.Array, jax.Array]  # a log-likelihood, and its gradient


@dataclass(frozen=True, eq=False)
class Streamed:
    """Chunks read by the host while the compiled function runs: memory does not grow with n."""

    rows: Rows
    size: int

    def chunk(self, item: jax.Array) -> tuple[Batch, jax.Array]:
        """Return (batch, present) of the chunk whose number is `item`."""
        batch, present = self.rows.chunk(0, self.size)  # all chunks have its shapes and types
        types = {name: jax.dtypes.canonicalize_dtype(part.dtype) for name, part in batch.items()}

        def in_words(batch: Batch) -> dict[str, np.ndarray]:
            return {name: _words(part, types[name]) for name, part in batch.items()}

        def read(index: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
            # NumPy only: JAX must not be called from inside its own callback
            batch, present = self.rows.chunk(int(index), self.size)
            return in_words(batch), present

        shapes = jax.tree.map(
            lambda part: jax.ShapeDtypeStruct(part.shape, part.dtype), (in_words(batch), present)
        )
        found, there = jax.pure_callback(read, shapes, item, vmap_method="sequential")
        converted = {
            name: jax.lax.bitcast_convert_type(part, types[name])
            if types[name].itemsize == WIDE
            else part
            for name, part in found.items()
        }
        return converted, there


WIDE = 8  # bytes of a number that JAX would round in a callback, whose thread has no 64-bit types


def _words(values: Array, kind: np.dtype) -> np.ndarray:
    """Return values of this type; numbers of 64 bits as pairs of words."""
    values = np.ascontiguousarray(values, kind)
    return values[..., None].view(np.uint32) if kind.itemsize == WIDE else values


def hold(rows: Rows, limit: int | None = None) -> tuple[Streamed | None, Pytree]:
    """Put the rows on the device if they fit in `limit` bytes; otherwise prepare to stream them.

    Return the source and its array argument. By default the limit is half of the free memory.
    """
    size = chunk_rows(rows)
    count = len(chunk_bounds(rows))
    if rows.nbytes > (free_memory() // 2 if limit is None else limit):
        return Streamed(rows, size), jnp.arange(count)
    shapes = rows.chunk(0, size)[0]
    filled = {name: np.zeros((count, *part.shape), part.dtype) for name, part in shapes.items()}
    present = np.zeros((count, size), bool)
    for i in range(count):
        batch, present[i] = rows.chunk(i, size)
        for name, values in batch.items():
            filled[name][i] = values
    return None, to_device((filled, present))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def log_likelihood(
    target: Target, source: Streamed | None, t: jax.Array, chunks: Pytree
) -> jax.Array:
    """Log-likelihood of all rows at `t`; the same sweep computes its gradient."""
    return _sweep(target, source, t, chunks)[0]


def _sweep(target: Target, source: Streamed | None, t: jax.Array, chunks: Pytree) -> Slope:
    def add(total: Slope, item: Pytree) -> tuple[Slope, None]:
        batch, present = item if source is None else source.chunk(item)
        part = value_and_slope(target, t, batch, present)
        return jax.tree.map(jnp.add, total, part), None

    zero = (jnp.zeros((), jnp.float64), jnp.zeros_like(t))
    return jax.lax.scan(add, zero, chunks)[0]


def _backward(
    target: Target, source: Streamed | None, slope: jax.Array, tangent: jax.Array
) -> tuple[jax.Array, None]:
    return tangent * slope, None


log_likelihood.defvjp(_sweep, _backward)


PIECE = 512  # rows whose log-likelihoods at all points are held at a time
TOGETHER = 16  # points evaluated at a time


class LeftOut(NamedTuple):
    """Leave-one-out summaries of each row, from a few points, (rows,) each, in float32.

    Attributes
    ----------
    elpd
        Log predictive density with the row left out, by plain importance weights.
    lpd
        Log predictive density with the row included in the data.
    variance
        Variance of the row's log-likelihood over the points.
    """

    elpd: np.ndarray
    lpd: np.ndarray
    variance: np.ndarray


def approximately_left_out(sums: Sums, points: np.ndarray, log_weight: np.ndarray) -> LeftOut:
    """Summarise each row in one pass over all rows, from weighted points (points, d)."""
    sums.enter("leave-one-out", len(points), "density", passes=1)
    likelihood = sums.target.likelihood
    arguments = (np.ascontiguousarray(points[:, : likelihood.size]), log_weight)
    columns = sums.engine.map_rows(
        partial(_left_out, likelihood), arguments, sums.rows, "leave-one-out"
    )
    return LeftOut(*columns.T)


def log_likelihoods(
    target: Target, rows: Rows, row_ids: np.ndarray, points: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield log-likelihoods (points, rows) of these rows, or groups, without frequency weights.

    They come in pieces, in the order of `row_ids`.
    """
    likelihood = target.likelihood
    points = np.ascontiguousarray(points[:, : likelihood.size])
    for first in range(0, len(row_ids), PIECE):
        piece = rows.subset(row_ids[first : first + PIECE])
        for k in range(len(piece.bounds(PIECE))):
            batch, present = piece.chunk(k, PIECE)
            with jax.enable_x64(True):  # not while the generator is suspended
                values = np.asarray(_log_likelihoods(likelihood, points, batch))
            yield values[:, present]


def _evaluate(target: Target, points: Array, batch: Batch) -> jax.Array:
    """Return log-likelihoods (points, rows), in float64."""
    model = target.model

    def at_point(t: jax.Array) -> jax.Array:
        return model.log_likelihood(target.unravel(t), batch).astype(jnp.float64)

    return jax.lax.map(at_point, points, batch_size=TOGETHER)


_log_likelihoods = compiled_pass(_evaluate)


@compiled_pass
def _left_out(
    target: Target, arguments: tuple[Array, Array], batch: Batch, present: Array
) -> jax.Array:
    points, log_weight = arguments

    def of_block(block: Batch) -> jax.Array:
        return _summarise(log_weight, _evaluate(target, points, block), block)

    return of_block(batch) if target.scatters else map_in_blocks(of_block, batch, present)


def _summarise(log_weight: Array, values: jax.Array, batch: Batch) -> jax.Array:
    """Return the columns of `LeftOut`, (rows, 3).

    If a row's frequency weight is above 1, one copy is left out; if below, all of the row.
    """
    share = jnp.minimum(batch["weight"], 1.0) if "weight" in batch else 1.0
    log_weight = log_weight[:, None]
    without = jax.nn.log_softmax(log_weight - share * values, axis=0)
    weight = jax.nn.softmax(log_weight, axis=0)
    mean = jnp.sum(weight * values, axis=0)
    variance = jnp.sum(weight * (values - mean) ** 2, axis=0)
    elpd = jax.nn.logsumexp(without + values, axis=0)
    lpd = jax.nn.logsumexp(jnp.log(weight) + values, axis=0)
    return jnp.stack([elpd, lpd, variance], axis=1)


NUMBERS_AT_ONCE = 2**24  # floats of rows in memory for a group of points


@in_double_precision
def scores(sums: Sums, points: np.ndarray, subsample: int | None, seed: int = 0) -> np.ndarray:
    """Return gradients of the log-posterior at `points` (points, d); exact without `subsample`."""
    prior = np.asarray(_prior_scores(sums.target, points))
    if subsample is None:
        return sums.gradients(points, "scores") + prior
    return _estimated(sums, points, subsample, seed) + prior


def _estimated(sums: Sums, points: np.ndarray, subsample: int, seed: int) -> np.ndarray:
    """Estimate the log-likelihood gradient at each point without bias, from its own rows."""
    centre = points.mean(axis=0)
    second = len(centre) <= DENSE_LIMIT  # whether the expansion has a second-order term
    if second:
        _, gradient, hessian = sums.hessian(centre, "anchor")
        expansion = gradient + (points - centre) @ hessian
    else:
        expansion = np.broadcast_to(sums.gradient(centre, "anchor")[1], points.shape)
    rng, n, rows = generator(seed, Stream.SCORE_ROWS), len(sums.rows), sums.rows
    width = max(1, rows.row_bytes // rows.dtype.itemsize)
    group = max(1, min(len(points), NUMBERS_AT_ONCE // (subsample * width)))
    residuals = []
    for number in range(ceil(len(points) / group)):
        at = (number * group + np.arange(group)) % len(points)  # wraps around in the last group
        batch = rows.take(rng.integers(0, n, size=(group, subsample)))
        residuals.append(np.asarray(_residuals(sums.target, second, points[at], centre, batch)))
    sums.ledger.add("scores", len(points) * subsample, "gradient")
    return np.asarray(expansion + (n / subsample) * np.concatenate(residuals)[: len(points)])


@jit(static=(0, 1))
def _residuals(
    target: Target, second: bool, points: Array, centre: Array, batches: Batch
) -> jax.Array:
    """Return the gradient of each point's rows minus its expansion about `centre`."""

    def of_point(point: Array, batch: Batch) -> jax.Array:
        gradient = jax.grad(lambda t: jnp.sum(target.log_likelihood(t, batch)))
        if not second:
            return gradient(point) - gradient(centre)
        at_centre, along = jax.jvp(gradient, (centre,), (point - centre,))
        return gradient(point) - at_centre - along

    return jax.vmap(of_point)(points, batches)


@jit(static=0)
def _prior_scores(target: Target, points: Array) -> jax.Array:
    return jax.vmap(jax.grad(target.log_prior))(points)
