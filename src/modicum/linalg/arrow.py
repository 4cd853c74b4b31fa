"""Arrow matrices: one big block-diagonal corner with a dense border.

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

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular
from scipy.linalg.lapack import dpotrf

from modicum.linalg.columns import DenseMatrix, ModelMatrix, model_matrix
from modicum.rows import CodedTerm, Coding
from modicum.runtime import Array

MOST_BORDER = 2_000  # most parameters besides the big factor's effects, whose block is dense
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

    def border_matrix(self, batch: dict[str, Array]) -> ModelMatrix:
        """Return the model matrix of some rows without the columns of the factor's effects."""
        if self.coding.terms:
            return model_matrix(self.coding, batch)
        if not self.coding.dense:
            like = jnp.asarray(batch[self.field])
            return DenseMatrix(jnp.zeros((*like.shape, 0)))
        return DenseMatrix(jnp.asarray(batch["x"])[..., np.argsort(self.coding.dense)])

    def own_columns(self, batch: dict[str, Array]) -> jax.Array:
        """Return the values that multiply the effects of each row's level, (rows, effects)."""
        ones = jnp.ones(jnp.shape(batch[self.field]))
        columns = [ones if s is None else jnp.asarray(batch["x"])[..., s] for s in self.scales]
        return jnp.stack(columns, axis=-1)


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


MOST_DECOUPLED = 3  # entries whose cross terms may be dropped


class Decoupled(NamedTuple):
    """The lower Cholesky factor of a matrix without the cross terms of some entries.

    Absolute eigenvalues, the other way to make a matrix positive definite, depend on the units of
    its entries: below a share of the largest one, they are only rounding errors.
    """

    lower: np.ndarray
    entries: tuple[int, ...]

    @classmethod
    def of(cls, matrix: np.ndarray, own: np.ndarray | None = None) -> Decoupled | None:
        """Drop cross terms of the entries that have no pivot, until all have one.

        Parameters
        ----------
        matrix
            A symmetric matrix.
        own
            What a decoupled entry leaves on the diagonal; None: the diagonal of `matrix`.

        Returns
        -------
        Decoupled or None
            None if more than `MOST_DECOUPLED` entries, or one that is not positive by itself, have
            no pivot.

        Examples
        --------
        >>> Decoupled.of(np.array([[4.0, 3.0], [3.0, 1.0]]))
        Decoupled(lower=array([[2., 0.],
               [0., 1.]]), entries=(1,))
        """
        own = np.diag(matrix) if own is None else own
        mended = matrix.copy()
        entries: tuple[int, ...] = ()
        for _ in range(MOST_DECOUPLED + 1):
            lower, order = dpotrf(mended, lower=1)  # order of the first minor that is not positive
            if order == 0:
                return cls(np.asarray(lower), entries)
            entry = order - 1
            if not own[entry] > 0:
                return None
            mended[entry], mended[:, entry] = 0.0, 0.0
            mended[entry, entry] = own[entry]
            entries = (*entries, entry)
        return None


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

    def flat(self, own: Array, rest: Array) -> Array:
        """Assemble a flat vector from its parts for the levels (`own`) and the border (`rest`)."""
        return flat_vector(self.big, self.border, own, rest)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ArrowMatrix(Arrow):
    """A symmetric matrix: `blocks` are D, `cross` is C' and `corner` is E."""

    @classmethod
    def zeros(cls, big: np.ndarray, border: np.ndarray) -> ArrowMatrix:
        """Return a matrix of zeros whose blocks and corner are writable."""
        levels, effects = big.shape
        # A prior has no entries across, so broadcast zeros do, and take no memory.
        cross = np.broadcast_to(0.0, (levels, effects, len(border)))
        blocks = np.zeros((levels, effects, effects))
        return cls(big, border, blocks, cross, np.zeros((len(border), len(border))))

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

    def __sub__(self, other: ArrowMatrix) -> ArrowMatrix:
        return self + -other

    def __neg__(self) -> ArrowMatrix:
        return self * -1.0

    def __mul__(self, number: float) -> ArrowMatrix:
        parts = (number * self.blocks, _times(number, self.cross), number * self.corner)
        return ArrowMatrix(self.big, self.border, *parts)

    def __matmul__(self, vector: Array) -> Array:
        """Multiply by a flat vector."""
        own, rest = vector[self.big], vector[self.border]
        cross = _as_matrix(self.cross)
        above = (self.blocks @ own[..., None])[..., 0] + (cross @ rest).reshape(own.shape)
        return self.flat(above, own.reshape(-1) @ cross + self.corner @ rest)

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
        slots = [np.flatnonzero(np.asarray(self.big)[0] == line[0]) for line in lines]
        if all(map(len, slots)):
            at = np.concatenate(slots)
            if where.ndim == 1:
                blocks[:, at[0], at[0]] += precision
            else:
                blocks[:, at[:, None], at] += precision
            return
        at = np.searchsorted(np.asarray(self.border), where)
        if where.ndim == 2:
            precision, at = np.kron(precision, np.eye(where.shape[1])), at.ravel()
        corner[np.ix_(at, at)] += np.diag(precision) if precision.ndim == 1 else precision

    def densely(self) -> np.ndarray:
        """Form the dense matrix, for small matrices."""
        out = np.zeros((self.size, self.size))
        for line, block, beside in zip(self.big, self.blocks, self.cross, strict=True):
            out[np.ix_(line, line)] = block
            out[np.ix_(line, self.border)] = beside
            out[np.ix_(self.border, line)] = np.asarray(beside).T
        out[np.ix_(self.border, self.border)] = self.corner
        return out

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
        """F z."""
        own, rest = z[self.big], z[self.border]
        cross = _as_matrix(self.cross)
        above = (self.blocks @ own[..., None])[..., 0] - (cross @ rest).reshape(own.shape)
        return self.flat(above, self.corner @ rest)

    @property
    def T(self) -> TransposedFactor:  # noqa: N802 - as arrays call it
        """F', which maps gradients to whitened coordinates."""
        return TransposedFactor(self)

    def times(self, z: np.ndarray) -> np.ndarray:
        """F z of each row of z, (rows, size)."""
        own, rest = z[:, self.big], z[:, self.border]
        blocks, cross = np.asarray(self.blocks), np.asarray(self.cross)
        above = np.einsum("lij,klj->kli", blocks, own)
        above -= (rest @ _as_matrix(cross).T).reshape(own.shape)
        out = np.empty_like(z)
        out[:, self.big], out[:, self.border] = above, rest @ np.asarray(self.corner).T
        return out

    def whitened(self, away: Array) -> Array:
        """F^-1 times a flat vector."""
        own, right = away[self.big], away[self.border]
        if isinstance(away, np.ndarray):
            rest = solve_triangular(self.corner, right)
        else:
            rest = jax.scipy.linalg.solve_triangular(self.corner, right)
        cross = _as_matrix(self.cross)
        above = own + (cross @ rest).reshape(own.shape)
        if self.blocks.shape[-1] == 1:
            return self.flat(above / self.blocks[..., 0], rest)
        solve = np.linalg.solve if isinstance(away, np.ndarray) else jnp.linalg.solve
        return self.flat(solve(self.blocks, above[..., None])[..., 0], rest)

    @cached_property
    def covariance(self) -> ArrowCovariance:
        """The blocks of F F'."""
        blocks, cross, corner = (np.asarray(p) for p in (self.blocks, self.cross, self.corner))
        of_levels = blocks @ blocks.swapaxes(1, 2) + cross @ cross.swapaxes(1, 2)
        return ArrowCovariance(
            np.asarray(self.big), np.asarray(self.border), of_levels, corner @ corner.T
        )

    @property
    def sd(self) -> np.ndarray:
        """Square root of the diagonal of F F'."""
        return np.asarray(np.sqrt(self.covariance.diagonal()))


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


@dataclass(frozen=True, eq=False)
class ArrowCovariance:
    """The blocks of levels and of the border of a covariance matrix; no others are formed."""

    big: np.ndarray
    border: np.ndarray
    blocks: np.ndarray
    corner: np.ndarray

    @classmethod
    def of_variances(cls, variance: np.ndarray, big: np.ndarray, border: np.ndarray) -> Covariance:
        """Return a diagonal covariance matrix."""
        blocks = variance[big][..., None] * np.eye(big.shape[1])
        return cls(big, border, blocks, np.diag(variance[border]))

    def diagonal(self) -> np.ndarray:
        """Variances, in the order of the flat vector."""
        own = np.diagonal(self.blocks, axis1=1, axis2=2)
        return np.asarray(flat_vector(self.big, self.border, own, np.diag(self.corner)))

    def extended(self, border: np.ndarray, variance: np.ndarray) -> ArrowCovariance:
        """Append uncorrelated entries with these variances to the border."""
        size = len(self.border)
        corner = np.diag(np.concatenate([np.zeros(size), variance]))
        corner[:size, :size] = self.corner
        return replace(self, border=border, corner=corner)

    def sum_over_levels(self, where: np.ndarray) -> np.ndarray:
        """Sum over the levels of the covariances of their effects; `where` (effects, levels)."""
        slots = [np.flatnonzero(self.big[0] == line[0]) for line in where]
        if all(map(len, slots)):
            at = np.concatenate(slots)
            return np.asarray(self.blocks[:, at[:, None], at].sum(axis=0))
        at = np.searchsorted(self.border, where)
        return np.asarray(self.corner[at[:, None, :], at[None, :, :]].sum(axis=-1))


Symmetric: TypeAlias = np.ndarray | ArrowMatrix
Factor: TypeAlias = np.ndarray | ArrowFactor
Covariance: TypeAlias = np.ndarray | ArrowCovariance


def diagonal(matrix: Symmetric | Covariance) -> np.ndarray:
    """Return the diagonal of a dense or arrow matrix."""
    return np.diag(matrix) if isinstance(matrix, np.ndarray) else matrix.diagonal()


def all_finite(matrix: Symmetric) -> bool:
    """Whether all entries are finite."""
    if isinstance(matrix, ArrowMatrix):
        parts = [np.asarray(part) for part in (matrix.blocks, matrix.cross, matrix.corner)]
    else:
        parts = [matrix]
    return all(bool(np.all(np.isfinite(part))) for part in parts)


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
    lower
        R.
    mended
        Whether the matrix had to be made positive definite.
    """

    big: np.ndarray
    border: np.ndarray
    inverse: np.ndarray
    half: np.ndarray
    lower: np.ndarray
    mended: bool = False

    @classmethod
    def of(cls, matrix: ArrowMatrix) -> ArrowCholesky:
        """Factor `matrix`; raise LinAlgError if it is not positive definite."""
        if not np.all(np.isfinite(matrix.blocks)):
            raise np.linalg.LinAlgError("the matrix is not finite")
        inverse, half, rest = _eliminated(matrix, np.asarray(matrix.blocks))
        return cls(*_places(matrix), inverse, half, cholesky(rest, lower=True))

    @classmethod
    def mending(cls, matrix: ArrowMatrix, least: float = 0.0) -> ArrowCholesky:
        """Factor `matrix`, mended if it is not positive definite.

        Entries of the border are decoupled; if that is not enough, eigenvalues are made positive.
        """
        try:
            return cls.of(matrix)
        except np.linalg.LinAlgError:
            decoupled = cls._decoupling(matrix)
            if decoupled is not None:
                return decoupled
            values, vectors = np.linalg.eigh(np.asarray(matrix.blocks))
            blocks = (vectors * _raised(values, least)[:, None, :]) @ vectors.swapaxes(1, 2)
            inverse, half, rest = _eliminated(matrix, blocks)
            values, vectors = eigh(rest)
            lower = cholesky((vectors * _raised(values, least)) @ vectors.T, lower=True)
            return cls(*_places(matrix), inverse, half, lower, True)

    @classmethod
    def _decoupling(cls, matrix: ArrowMatrix) -> ArrowCholesky | None:
        """Factor `matrix` without cross terms of a few entries of the border, if that helps."""
        try:
            inverse, half, rest = _eliminated(matrix, np.asarray(matrix.blocks))
        except np.linalg.LinAlgError:
            return None
        decoupled = Decoupled.of(rest, np.diag(np.asarray(matrix.corner)))
        if decoupled is None:
            return None
        half[..., list(decoupled.entries)] = 0.0
        return cls(*_places(matrix), inverse, half, decoupled.lower, True)

    @property
    def half_log_det(self) -> float:
        """Half the logarithm of the determinant."""
        of_blocks = -np.log(np.diagonal(self.inverse, axis1=1, axis2=2)).sum()
        return float(of_blocks + np.log(np.diag(self.lower)).sum())

    def half_solve(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inverse of the factor times a flat vector, as the parts of the levels and the border."""
        own = (self.inverse @ vector[self.big][..., None])[..., 0]
        across = own.reshape(-1) @ _as_matrix(self.half)
        return own, solve_triangular(self.lower, vector[self.border] - across, lower=True)

    def solve(self, vector: np.ndarray) -> np.ndarray:
        """P^-1 times a flat vector."""
        own, rest = self.half_solve(vector)
        rest = solve_triangular(self.lower, rest, lower=True, trans=1)
        across = (_as_matrix(self.half) @ rest).reshape(own.shape)
        above = (self.inverse.swapaxes(1, 2) @ (own - across)[..., None])[..., 0]
        return np.asarray(flat_vector(self.big, self.border, above, rest))

    def factor(self) -> ArrowFactor:
        """Return the whitening factor F."""
        flat = _as_matrix(self.half)
        between = solve_triangular(self.lower, flat.T, lower=True).T.reshape(self.half.shape)
        blocks = self.inverse.swapaxes(1, 2)
        corner = solve_triangular(self.lower, np.eye(len(self.lower)), lower=True).T
        return ArrowFactor(self.big, self.border, blocks, blocks @ between, corner)


def _places(matrix: ArrowMatrix) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(matrix.big), np.asarray(matrix.border)


def _eliminated(matrix: ArrowMatrix, blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """K^-1, K^-1 C' and the Schur complement of the border, for these blocks K K'."""
    inverse = np.linalg.inv(np.linalg.cholesky(blocks))
    half = inverse @ matrix.cross
    flat = _as_matrix(half)
    return inverse, half, np.asarray(matrix.corner - flat.T @ flat)


def _raised(values: np.ndarray, least: float) -> np.ndarray:
    """Absolute eigenvalues, bounded away from zero."""
    size = np.abs(values)
    return np.asarray(np.maximum(size, max(least, 1e-8 * float(size.max()))))


# Assembling -------------------------------------------------------------------------------


def flat_vector(big: Array, border: Array, own: Array, rest: Array) -> Array:
    """Assemble a flat vector with `own` at the indices `big` and `rest` at `border`."""
    size = own.size + rest.size
    if isinstance(own, np.ndarray) and isinstance(rest, np.ndarray):
        out = np.empty(size)
        out[big], out[border] = own, rest
        return out
    zeros = jnp.zeros(size, jnp.result_type(own, rest))
    return zeros.at[big].set(own).at[border].set(rest)


def _as_matrix(cross: Array) -> Array:
    """Reshape `cross` to a matrix with one row per level and effect."""
    return cross.reshape(-1, cross.shape[-1])


def _is_broadcast_zero(cross: Array) -> bool:
    """Whether `cross` is a single broadcast zero, as `ArrowMatrix.zeros` makes it."""
    return isinstance(cross, np.ndarray) and not any(cross.strides) and cross.size > 1


def _sum(first: Array, second: Array) -> Array:
    if _is_broadcast_zero(second):
        return first
    return second if _is_broadcast_zero(first) else first + second


def _times(number: float, cross: Array) -> Array:
    return cross if _is_broadcast_zero(cross) else number * cross
