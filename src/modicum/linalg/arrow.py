"""Arrow matrices: one big block-diagonal corner with a dense border.

A dense matrix is an arrow without levels, and a diagonal one an arrow without a border: code that
takes any of them takes arrows (`ArrowMatrix.of`).

Each row involves the effects of a single level of a factor, so that in these effects the Hessian is
diagonal, or has a small block per level. All other parameters, b of them, form a dense border:

    P = [ D   C' ]      D: L blocks of c x c;  C: b x L c;  E: b x b
        [ C   E  ]

With D = K K' and the Schur complement E - C D^-1 C' = R R', the Cholesky factor of P is

    [ K         0 ]
    [ C K^-T    R ]

so that factoring takes O(L c b^2 + b^3) operations and O(L c b) memory: linear in the levels.
The whitening factor F, with F F' = P^-1, is the transposed inverse of that factor:

    F = [ K^-T   -G    ]      with G = D^-1 C' R^-T
        [ 0       R^-T ]
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.linalg.lapack import dpotrf

from modicum.arrays import as_either, namespace
from modicum.linalg.columns import ModelMatrix, model_matrix
from modicum.rows import CodedTerm, Coding
from modicum.runtime import Array

MOST_BORDER = 2_500  # most parameters besides the big factor's effects, whose block is dense
MOST_NUMBERS = 50_000_000  # most entries between effects and border, 400 MB per matrix


@dataclass(frozen=True)
class ArrowLayout:
    """The split of the flat vector into effects of the big factor and the border.

    Parameters
    ----------
    field
        The field of the rows that holds the codes of the factor.
    levels
        Number of its levels.
    firsts
        Flat index of the first level of each of its effects; the other levels follow.
    scales
        The column of x that each effect multiplies; None for an intercept.
    coding
        The columns of the border alone, numbered from zero.
    size
        Length of the flat vector.
    """

    field: str
    levels: int
    firsts: tuple[int, ...]
    scales: tuple[int | None, ...]
    coding: Coding
    size: int

    @cached_property
    def big(self) -> np.ndarray:
        """Flat indices of the effects, (levels, effects)."""
        return np.arange(self.levels)[:, None] + np.array(self.firsts)

    @cached_property
    def border(self) -> np.ndarray:
        """Flat indices of all other parameters, in order."""
        inside = np.zeros(self.size, bool)
        inside[self.big] = True
        return np.flatnonzero(~inside)

    def border_matrix(self, batch: Mapping[str, Array]) -> ModelMatrix:
        """Return the model matrix of some rows without the columns of the factor's effects."""
        return model_matrix(self.coding, batch)

    def own_columns(self, batch: Mapping[str, Array]) -> jax.Array:
        """Return the values that multiply the effects of each row's level, (rows, effects)."""
        xp = namespace(as_either(batch[self.field]))
        ones = xp.ones(np.shape(batch[self.field]))
        columns = [ones if s is None else xp.asarray(batch["x"])[..., s] for s in self.scales]
        return xp.stack(columns, axis=-1)


def arrow_layout(coding: Coding, common: int, size: int) -> ArrowLayout | None:
    """Return the layout for the factor with the most levels; None if the border is too large.

    Parameters
    ----------
    coding
        The coding of the model matrix: common columns, then one per effect and level.
    common
        Number of common columns.
    size
        Length of the flat vector: columns and all other parameters.
    """
    effects = [term for term in coding.terms if term.first >= common]
    largest = max(effects, key=lambda term: term.width)
    own = [term for term in effects if term.field == largest.field]
    if not arrow_fits(largest.width, len(own), size):
        return None
    inside = np.zeros(coding.size, bool)
    for term in own:
        inside[term.columns] = True
    place = np.cumsum(~inside) - 1
    others = tuple(
        CodedTerm(t.field, int(place[t.first]), t.width, t.reference, t.scale)
        for t in coding.terms
        if t not in own
    )
    border = Coding(tuple(int(place[j]) for j in coding.dense), others)
    firsts, scales = tuple(term.first for term in own), tuple(term.scale for term in own)
    return ArrowLayout(largest.field, largest.width, firsts, scales, border, size)


def arrow_fits(levels: int, effects: int, size: int) -> bool:
    """Whether `size` parameters fit as effects of one big factor and a border."""
    border = size - levels * effects
    return border <= MOST_BORDER and levels * effects * border <= MOST_NUMBERS


@dataclass(frozen=True, eq=False)
class Arrow:
    """The parts of an arrow matrix, as NumPy or JAX arrays.

    Attributes
    ----------
    big, border
        Flat indices of the effects, (levels, effects), and of the border.
    blocks
        One block per level, (levels, effects, effects).
    cross
        Entries between the levels and the border, (levels, effects, border).
    corner
        The block of the border, (border, border).
    """

    big: Array
    border: Array
    blocks: Array
    cross: Array
    corner: Array
    ndim: ClassVar[int] = 2

    @property
    def levels(self) -> int:
        """Number of levels; 0 for a dense matrix."""
        return len(self.big)

    def flat(self, own: Array, rest: Array) -> Array:
        """Assemble a flat vector from its parts for the levels (`own`) and the border (`rest`)."""
        return flat_vector(self.big, self.border, own, rest)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ArrowMatrix(Arrow):
    """A symmetric matrix: `blocks` are D, `cross` is C' and `corner` is E."""

    @classmethod
    def of(cls, matrix: Symmetric) -> ArrowMatrix:
        """Return an arrow, or a dense matrix as one without levels."""
        if not isinstance(matrix, np.ndarray):
            return matrix
        return cls(*_dense_parts(len(matrix)), matrix)

    @classmethod
    def of_diagonal(cls, diagonal: np.ndarray, big: Array, border: Array) -> ArrowMatrix:
        """Return a diagonal matrix in the form of an arrow; its blocks and corner are writable."""
        blocks = diagonal[big][..., None] * np.eye(big.shape[1])
        return cls(big, border, blocks, _no_cross(big, border), np.diag(diagonal[border]))

    def diagonal_like(self, diagonal: np.ndarray) -> ArrowMatrix:
        """Return a diagonal matrix in the form of this one."""
        return ArrowMatrix.of_diagonal(diagonal, self.big, self.border)

    @property
    def plain(self) -> Symmetric:
        """The matrix itself, or an array if it is dense."""
        return self if self.levels else np.asarray(self.corner)

    @property
    def finite(self) -> bool:
        """Whether all entries are finite."""
        parts = (np.asarray(part) for part in (self.blocks, self.cross, self.corner))
        return all(bool(np.all(np.isfinite(part))) for part in parts)

    @property
    def size(self) -> int:
        """Number of rows, and of columns."""
        return int(self.big.size + self.border.size)

    def __add__(self, other: ArrowMatrix) -> ArrowMatrix:
        return replace(
            self,
            blocks=self.blocks + other.blocks,
            cross=_sum(self.cross, other.cross),
            corner=self.corner + other.corner,
        )

    def __neg__(self) -> ArrowMatrix:
        return self * -1.0

    def __mul__(self, number: float) -> ArrowMatrix:
        cross = self.cross if _is_broadcast_zero(self.cross) else number * self.cross
        return replace(self, blocks=number * self.blocks, cross=cross, corner=number * self.corner)

    def __matmul__(self, vector: Array) -> Array:
        """Multiply by a flat vector, or by several in columns."""
        own, rest = vector[self.big], vector[self.border]
        cross, columns = _as_matrix(self.cross), own if vector.ndim > 1 else own[..., None]
        above = (self.blocks @ columns).reshape(own.shape) + (cross @ rest).reshape(own.shape)
        flat = own.reshape(self.big.size, *vector.shape[1:])
        return self.flat(above, cross.T @ flat + self.corner @ rest)

    def scaled(self, times: np.ndarray) -> ArrowMatrix:
        """Multiply the lines and the columns by numbers, in the order of the flat vector."""
        own, rest = times[self.big], times[self.border]
        cross = own[..., None] * _as_matrix(self.cross).reshape(*own.shape, len(rest)) * rest
        blocks = own[:, :, None] * self.blocks * own[:, None, :]
        return replace(self, blocks=blocks, cross=cross, corner=np.outer(rest, rest) * self.corner)

    def dense(self) -> np.ndarray:
        """Return all entries, in the order of the flat vector."""
        full, cross = np.zeros((self.size, self.size)), _as_matrix(self.cross)
        full[self.big[:, :, None], self.big[:, None, :]] = self.blocks
        full[np.ix_(self.big.ravel(), self.border)] = cross
        full[np.ix_(self.border, self.big.ravel())] = cross.T
        full[np.ix_(self.border, self.border)] = self.corner
        return full

    def diagonal(self) -> np.ndarray:
        """Return the diagonal, in the order of the flat vector."""
        own = np.diagonal(np.asarray(self.blocks), axis1=1, axis2=2)
        return np.asarray(self.flat(own, np.diag(np.asarray(self.corner))))

    def leading(self, count: int) -> ArrowMatrix:
        """Drop the border entries with flat index `count` and above."""
        width = int(np.searchsorted(np.asarray(self.border), count))
        return replace(
            self,
            border=self.border[:width],
            cross=self.cross[..., :width],
            corner=self.corner[:width, :width],
        )

    def with_entry(self, place: int, value: float) -> ArrowMatrix:
        """Return a copy with one diagonal entry of the border replaced."""
        corner = np.array(self.corner)
        at = int(np.flatnonzero(np.asarray(self.border) == place)[0])
        corner[at, at] = value
        return replace(self, corner=corner)

    def add_normal(self, where: np.ndarray, precision: np.ndarray) -> None:
        """Add, in place, the precision of a normal prior of some entries.

        Either `where` is flat and `precision` is a diagonal or a matrix; or `where` has one row of
        indices per effect, and `precision` is the precision of the effects of any one level.
        """
        blocks, corner = np.asarray(self.blocks), np.asarray(self.corner)
        lines = np.atleast_2d(where)
        slots = self.slots(lines)
        if slots is not None:
            if where.ndim == 1:
                blocks[:, slots[0], slots[0]] += precision
            else:
                blocks[:, slots[:, None], slots] += precision
            return
        at = np.searchsorted(np.asarray(self.border), where)
        if where.ndim == 2:
            precision, at = np.kron(precision, np.eye(where.shape[1])), at.ravel()
        corner[np.ix_(at, at)] += np.diag(precision) if precision.ndim == 1 else precision

    def sum_over_levels(self, where: np.ndarray) -> np.ndarray:
        """Sum over the levels of the blocks of their effects; `where` is (effects, levels)."""
        slots = self.slots(where)
        if slots is not None:
            return np.asarray(np.asarray(self.blocks)[:, slots[:, None], slots].sum(axis=0))
        at = np.searchsorted(self.border, where)
        return np.asarray(np.asarray(self.corner)[at[:, None, :], at[None, :, :]].sum(axis=-1))

    def slots(self, lines: np.ndarray) -> np.ndarray | None:
        """Positions among a level's effects of those whose indices are `lines`; None: none are."""
        first = np.asarray(self.big)[:1].ravel()
        slots = [np.flatnonzero(first == line[0]) for line in lines]
        return np.concatenate(slots) if all(map(len, slots)) else None

    def extended(self, border: Array, diagonal: np.ndarray) -> ArrowMatrix:
        """Append entries with this diagonal to the border; nothing across is kept."""
        size = len(self.border)
        corner = np.diag(np.concatenate([np.zeros(size), diagonal]))
        corner[:size, :size] = self.corner
        return replace(self, border=border, cross=_no_cross(self.big, border), corner=corner)

    def border_alone(self) -> np.ndarray:
        """Schur complement E - C D^-1 C', the marginal precision of the border."""
        cross = np.asarray(self.cross)
        solved = np.linalg.solve(np.asarray(self.blocks), cross)
        return np.asarray(self.corner - _as_matrix(cross).T @ _as_matrix(solved))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ArrowFactor(Arrow):
    """The whitening factor F = [K^-T, -G; 0, R^-T]: F F' is the inverse of an arrow matrix.

    `blocks` are K^-T, `cross` is G and `corner` is R^-T.
    """

    def __matmul__(self, z: Array) -> Array:
        """F z, for a flat vector, or for the columns of a matrix."""
        columns = z if z.ndim == 2 else z[:, None]
        own, rest = columns[self.big], columns[self.border]
        above = self.blocks @ own - (_as_matrix(self.cross) @ rest).reshape(own.shape)
        return self.flat(above, self.corner @ rest).reshape(z.shape)

    @property
    def T(self) -> TransposedFactor:  # noqa: N802 - as arrays call it
        """F', which maps gradients to whitened coordinates."""
        return TransposedFactor(self)

    def whitened(self, away: jax.Array) -> Array:
        """F^-1 times a flat vector, compiled."""
        own, right = away[self.big], away[self.border]
        rest = jax.scipy.linalg.solve_triangular(self.corner, right)
        cross = _as_matrix(self.cross)
        above = own + (cross @ rest).reshape(own.shape)
        if self.blocks.shape[-1] == 1:
            return self.flat(above / self.blocks[..., 0], rest)
        return self.flat(jnp.linalg.solve(self.blocks, above[..., None])[..., 0], rest)

    def lines_whitened(self, away: np.ndarray) -> np.ndarray:
        """F^-1 times each row of `away`, (rows, size)."""
        out = np.empty_like(away)
        rest = np.linalg.solve(np.asarray(self.corner), away[:, self.border].T)  # (border, rows)
        out[:, self.border] = rest.T
        own = np.moveaxis(away[:, self.big], 0, -1)  # (levels, effects, rows)
        own = own + np.asarray(self.cross) @ rest
        out[:, self.big] = np.moveaxis(np.linalg.solve(np.asarray(self.blocks), own), -1, 0)
        return out

    @classmethod
    def of(cls, factor: Factor) -> ArrowFactor:
        """Return an arrow factor, or a dense or diagonal one in this form."""
        if not isinstance(factor, np.ndarray):
            return factor
        if factor.ndim == 2:
            return cls(*_dense_parts(len(factor)), factor)
        big, border = np.arange(len(factor))[:, None], np.arange(0)
        none = np.zeros((len(factor), 1, 0)), np.zeros((0, 0))
        return cls(big, border, factor[:, None, None], *none)

    @cached_property
    def covariance(self) -> ArrowMatrix:
        """F F', but for entries across, which are not formed."""
        blocks, cross, corner = (np.asarray(p) for p in (self.blocks, self.cross, self.corner))
        of_levels = blocks @ blocks.swapaxes(1, 2) + cross @ cross.swapaxes(1, 2)
        none = _no_cross(self.big, self.border)
        return ArrowMatrix(self.big, self.border, of_levels, none, corner @ corner.T)

    @property
    def sd(self) -> np.ndarray:
        """Square root of the diagonal of F F'."""
        blocks, cross, corner = (np.asarray(p) for p in (self.blocks, self.cross, self.corner))
        own = np.sum(blocks**2, axis=2) + np.sum(cross**2, axis=2)
        return np.asarray(np.sqrt(self.flat(own, np.sum(corner**2, axis=1))))


@dataclass(frozen=True, eq=False)
class TransposedFactor:
    """F' of an `ArrowFactor`."""

    factor: ArrowFactor

    def __matmul__(self, gradient: Array) -> Array:
        factor = self.factor
        own, rest = gradient[factor.big], gradient[factor.border]
        above = (factor.blocks.swapaxes(1, 2) @ own[..., None])[..., 0]
        cross = _as_matrix(factor.cross)
        return factor.flat(above, factor.corner.T @ rest - own.reshape(-1) @ cross)


Symmetric: TypeAlias = np.ndarray | ArrowMatrix
Factor: TypeAlias = np.ndarray | ArrowFactor


def in_two(factor: Factor) -> tuple[np.ndarray, ArrowFactor | None]:
    """Return L as a product of a plain factor and an arrow, one of which is 1 (None: no arrow)."""
    return (factor, None) if isinstance(factor, np.ndarray) else (np.ones(()), factor)


def diagonal(matrix: Symmetric) -> np.ndarray:
    """Return the diagonal of a dense or arrow matrix."""
    return ArrowMatrix.of(matrix).diagonal()


def plus(first: Symmetric, second: Symmetric) -> Symmetric:
    """Add two matrices, which are both dense or both arrows."""
    return (ArrowMatrix.of(first) + ArrowMatrix.of(second)).plain


# Factoring --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ArrowCholesky:
    """The Cholesky factor of a positive definite arrow matrix.

    Attributes
    ----------
    inverse
        K^-1 of each level, (levels, effects, effects).
    half
        K^-1 C' of each level, (levels, effects, border).
    corner
        R, or R' and False, as `scipy.linalg.cho_solve` takes it.
    mended
        Whether the matrix had to be made positive definite.
    """

    big: np.ndarray
    border: np.ndarray
    inverse: np.ndarray
    half: np.ndarray
    corner: tuple[np.ndarray, bool]
    mended: bool = False

    @classmethod
    def of(cls, matrix: ArrowMatrix) -> ArrowCholesky:
        """Factor `matrix`; raise LinAlgError if it is not positive definite."""
        if not matrix.finite:
            raise np.linalg.LinAlgError("the matrix is not finite")
        inverse, half, rest = _eliminated(matrix, np.asarray(matrix.blocks))
        return cls(*_places(matrix), inverse, half, (np.linalg.cholesky(rest), True))

    @classmethod
    def mending(cls, matrix: ArrowMatrix) -> ArrowCholesky:
        """Factor `matrix`, mended if it is not positive definite.

        Far from the mode the log-posterior of a family with a scale is not concave, since the scale
        there makes up for what the coefficients do not explain. Such entries of the border are
        decoupled from the others: coefficients then move as at a fixed scale, whatever the units of
        columns and outcomes. If that is not enough, curvatures are absolute.
        """
        blocks = np.asarray(matrix.blocks)
        decoupled: tuple[np.ndarray, list[int]] | None = None
        with suppress(np.linalg.LinAlgError):
            inverse, half, rest = _eliminated(matrix, blocks)
            try:
                return cls(*_places(matrix), inverse, half, cho_factor(rest))
            except np.linalg.LinAlgError:
                decoupled = _decoupled(rest, np.diag(np.asarray(matrix.corner)))
        if decoupled is not None:
            lower, entries = decoupled
            half[..., entries] = 0.0
            return cls(*_places(matrix), inverse, half, (lower, True), True)
        if matrix.levels:
            blocks = _absolute(blocks)
        inverse, half, rest = _eliminated(matrix, blocks)
        corner = cho_factor(_absolute(rest), lower=True)
        return cls(*_places(matrix), inverse, half, corner, True)

    @property
    def half_log_det(self) -> float:
        """Half the logarithm of the determinant."""
        of_blocks = -np.log(np.diagonal(self.inverse, axis1=1, axis2=2)).sum()
        return float(of_blocks + np.log(np.diag(self.corner[0])).sum())

    def half_solve(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inverse of the factor times a flat vector, as the parts of the levels and the border."""
        own, right = self._above(vector)
        R, lower = self.corner
        return own, solve_triangular(R, right, lower=lower, trans=0 if lower else 1)

    def solve(self, vector: np.ndarray, border: np.ndarray | None = None) -> np.ndarray:
        """P^-1 times a flat vector; `border` is the block of the border in P^-1, if known."""
        own, right = self._above(vector)
        rest = cho_solve(self.corner, right) if border is None else border @ right
        across = (_as_matrix(self.half) @ rest).reshape(own.shape)
        above = (self.inverse.swapaxes(1, 2) @ (own - across)[..., None])[..., 0]
        return np.asarray(flat_vector(self.big, self.border, above, rest))

    def _above(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Eliminate the levels: K^-1 times their part of a vector, and what is left of the rest."""
        own = (self.inverse @ vector[self.big][..., None])[..., 0]
        return own, vector[self.border] - own.reshape(-1) @ _as_matrix(self.half)

    def covariance(self) -> ArrowMatrix:
        """P^-1, but for entries across, which are not formed."""
        corner = np.asarray(cho_solve(self.corner, np.eye(len(self.border))))
        transposed = self.inverse.swapaxes(1, 2)
        across = transposed @ self.half  # D^-1 C'
        weighted = (_as_matrix(across) @ corner).reshape(across.shape)  # one product, not one each
        blocks = transposed @ self.inverse + weighted @ across.swapaxes(1, 2)
        return ArrowMatrix(self.big, self.border, blocks, _no_cross(self.big, self.border), corner)

    def factor(self) -> ArrowFactor:
        """Return the whitening factor F."""
        R, lower = self.corner
        trans = 0 if lower else 1
        flat, unit = _as_matrix(self.half), np.eye(len(R))
        between = solve_triangular(R, flat.T, lower=lower, trans=trans).T.reshape(self.half.shape)
        blocks = self.inverse.swapaxes(1, 2)
        corner = solve_triangular(R, unit, lower=lower, trans=trans).T
        return ArrowFactor(self.big, self.border, blocks, blocks @ between, corner)


def _places(matrix: ArrowMatrix) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(matrix.big), np.asarray(matrix.border)


def _dense_parts(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return all parts of a dense matrix as an arrow but for its corner."""
    blocks, cross = np.zeros((0, 1, 1)), np.zeros((0, 1, size))
    return np.zeros((0, 1), int), np.arange(size), blocks, cross


def _eliminated(matrix: ArrowMatrix, blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """K^-1, K^-1 C' and the Schur complement of the border, for these blocks K K'."""
    inverse = np.linalg.inv(np.linalg.cholesky(blocks))
    half = inverse @ matrix.cross
    flat, corner = _as_matrix(half), np.asarray(matrix.corner)
    return inverse, half, corner - flat.T @ flat if matrix.levels else corner


MOST_DECOUPLED = 3  # entries whose cross terms may be dropped


def _decoupled(matrix: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, list[int]] | None:
    """Drop cross terms of the entries that have no pivot, until all have one.

    Return the lower Cholesky factor, and these entries, which leave `own` on the diagonal; None if
    they are more than `MOST_DECOUPLED`, or if one is not positive by itself. Absolute eigenvalues,
    the other way to make a matrix positive definite, depend on the units of its entries: below a
    share of the largest one, they are only rounding errors.

    >>> _decoupled(np.array([[4.0, 3.0], [3.0, 1.0]]), np.array([4.0, 1.0]))
    (array([[2., 0.],
           [0., 1.]]), [1])
    """
    mended, entries = matrix.copy(), list[int]()
    for _ in range(MOST_DECOUPLED + 1):
        lower, order = dpotrf(mended, lower=1)  # order of the first minor that is not positive
        if order == 0:
            return np.asarray(lower), entries
        entry = order - 1
        if not own[entry] > 0:
            return None
        mended[entry], mended[:, entry] = 0.0, 0.0
        mended[entry, entry] = own[entry]
        entries.append(entry)
    return None


def _absolute(matrices: np.ndarray) -> np.ndarray:
    """Return symmetric matrices with absolute eigenvalues, bounded away from zero."""
    values, vectors = np.linalg.eigh(matrices)
    size = np.abs(values)
    floor = max(1e-8 * float(size.max()), np.finfo(np.float64).tiny)
    return np.asarray((vectors * np.maximum(size, floor)[..., None, :]) @ vectors.swapaxes(-1, -2))


# Assembling -------------------------------------------------------------------------------


def flat_vector(big: Array, border: Array, own: Array, rest: Array) -> Array:
    """Assemble flat vectors with `own` at the indices `big` and `rest` at `border`."""
    shape = (big.size + border.size, *rest.shape[1:])
    if isinstance(own, np.ndarray) and isinstance(rest, np.ndarray):
        out = np.empty(shape)
        out[big], out[border] = own, rest
        return out
    zeros = jnp.zeros(shape, jnp.result_type(own, rest))
    return zeros.at[big].set(own).at[border].set(rest)


def _as_matrix(cross: Array) -> Array:
    """Reshape `cross` to a matrix with one row per level and effect."""
    return cross.reshape(prod(cross.shape[:-1]), cross.shape[-1])  # there may be no columns


def _no_cross(big: Array, border: Array) -> np.ndarray:
    """Return entries across that are all zero: a broadcast zero, which takes no memory."""
    return np.broadcast_to(0.0, (*big.shape, len(border)))


def _is_broadcast_zero(cross: Array) -> bool:
    """Whether `cross` is a single broadcast zero."""
    return isinstance(cross, np.ndarray) and not any(cross.strides) and cross.size > 1


def _sum(first: Array, second: Array) -> Array:
    if _is_broadcast_zero(second):
        return first
    return second if _is_broadcast_zero(first) else first + second
