"""The model matrix of a batch of rows: dense, or dense columns and codes.

All products with the columns of a row go through a `ModelMatrix`: X b (`@`), X'f (`rmatvec`) and
X' diag(h) X (`sandwich`), of NumPy or of JAX arrays. Another kind of columns is another subclass.

Rows with codes are never expanded into columns. X b gathers one entry of b per code, X'f sums f by
level, and X' diag(h) X consists of products of the dense columns, sums of h x by level, and sums of
h by pairs of levels: O(n (p^2 + k p + k^2)) operations for p numbers and k codes per row, instead
of O(n d^2) for d columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from modicum.arrays import as_either, is_numpy, namespace
from modicum.rows import CodedTerm, Coding
from modicum.runtime import Array

FEW = 32  # dense columns besides codes up to which their products are formed in float64
PROBES, CLOSE = 16, 1e-3  # rows that float32 is checked on, and its largest relative error


class ModelMatrix(ABC):
    """A matrix X with one row per row of a batch; `ones` says that the intercept's column follows.

    Arrays of rows may have any leading axes, (...), but for `rmatvec`, `sandwich` and `by_level`.
    """

    coding: Coding | None
    ones: bool

    @property
    @abstractmethod
    def columns(self) -> int:
        """Number of columns."""

    @abstractmethod
    def __matmul__(self, b: jax.Array) -> jax.Array:
        """X b, for b of shape (columns,) or (columns, k)."""

    @abstractmethod
    def rmatvec(self, f: jax.Array) -> jax.Array:
        """X'f, for f of shape (rows,), or of (rows, k) in JAX."""

    @abstractmethod
    def sandwich(self, h: jax.Array) -> jax.Array:
        """X' diag(h) X in float64; h is 0 for rows that do not count."""

    @abstractmethod
    def by_level(self, codes: LevelColumns, weight: jax.Array) -> jax.Array:
        """Sums of weight x over the rows of each level of a factor, (levels, columns)."""

    @abstractmethod
    def quadratic(self, form: np.ndarray | jax.Array, factor: np.ndarray) -> jax.Array:
        """x' S x of each row, for S = L L' given as `form` and as `factor`."""

    @abstractmethod
    def largest(self, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the column with the largest |x_j| scale_j of each row, and its entry."""

    @abstractmethod
    def times_own(self, vectors: jax.Array, which: jax.Array) -> jax.Array:
        """Multiply each row by its own vector, `vectors[which]`."""

    @abstractmethod
    def densely(self) -> jax.Array:
        """Return all columns, (..., columns): for a few rows at a time."""

    @abstractmethod
    def in_double(self) -> Self:
        """Return the matrix in float64."""

    def with_ones(self, ones: bool = True) -> Self:
        """Return the matrix with the intercept's column appended, if there is one."""
        return replace(self, ones=ones)  # type: ignore[type-var]  # subclasses are dataclasses


@dataclass(frozen=True, eq=False)
class DenseMatrix(ModelMatrix):
    """A matrix that holds all columns, (..., columns).

    `ones` stands for the intercept's column, which NumPy does not form: that would copy the others.
    Products with float32 rows are formed in float32. This halves the time and leaves a relative
    error near 1e-6 in the Hessian, far below what affects mass matrices and control variates.
    """

    x: Array
    ones: bool = False
    coding = None

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.x.shape[-1] + self.ones

    def __matmul__(self, b: jax.Array) -> jax.Array:
        """X b."""
        if self._without_ones:
            return namespace(b).asarray(self.x @ b[:-1] + b[-1])
        return namespace(b).asarray(self.densely() @ b)

    def rmatvec(self, f: jax.Array) -> jax.Array:
        """X'f."""
        if self._without_ones:
            return as_either(np.append(f @ self.x, np.sum(f)))
        return (f.T @ self.densely()).T

    def sandwich(self, h: jax.Array) -> jax.Array:
        """X' diag(h) X, of float32 rows from centred columns if there is an intercept.

        A column such as a year, with mean 2,000 and sd 1, is nearly collinear with the intercept:
        float32 products would lose its information.
        """
        if is_numpy(self.x):
            return as_either(_sandwich_by_numpy(np.asarray(self.x), np.asarray(h), self.ones))
        x = self.densely()
        if not self.ones or x.dtype == jnp.float64:
            return ((x * h[:, None].astype(x.dtype)).T @ x).astype(jnp.float64)
        counts = (h != 0).astype(x.dtype)
        centre = (counts @ x / jnp.maximum(counts.sum(), 1)).at[-1].set(0)
        x = x - centre
        block = ((x * h[:, None].astype(x.dtype)).T @ x).astype(jnp.float64)
        return block + _shift(block[-1], centre.astype(jnp.float64))

    def by_level(self, codes: LevelColumns, weight: jax.Array) -> jax.Array:
        """Sums of weight x over the rows of each level of a factor."""
        return codes.sums(weight[:, None] * self.densely().astype(jnp.float64))

    def quadratic(self, form: np.ndarray | jax.Array, factor: np.ndarray) -> jax.Array:
        """|x L|^2 of each row; by NumPy in float32, unless too many digits cancel."""
        if not is_numpy(self.x):
            return jnp.sum((self.densely().astype(jnp.float64) @ factor) ** 2, axis=1)
        rows = np.asarray(self.x)
        slopes, shift = factor, np.zeros(factor.shape[1])
        if self.ones:
            slopes, shift = factor[:-1], factor[-1]
        probes = slice(None, None, -(-len(rows) // PROBES))
        centre = rows[probes].mean(axis=0)  # columns far from zero would lose their digits
        away = np.empty(rows.shape, np.float32)
        np.subtract(rows, centre, out=away, casting="same_kind")
        z = away @ slopes.astype(np.float32)
        z += (centre @ slopes + shift).astype(np.float32)
        lengths = sums_of_squares(z)
        exact = sums_of_squares(rows[probes] @ slopes + shift)
        if np.isfinite(lengths).all() and np.allclose(lengths[probes], exact, rtol=CLOSE, atol=0):
            return as_either(lengths.astype(np.float64))
        return as_either(sums_of_squares(rows @ slopes + shift))

    def largest(self, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the column with the largest |x_j| scale_j of each row, and its entry."""
        xp = namespace(self.x)
        x: jax.Array = xp.asarray(self.x)
        column = xp.argmax(xp.abs(x) * scale[: x.shape[-1]], axis=-1)
        return column, xp.take_along_axis(x, column[..., None], axis=-1)[..., 0]

    def times_own(self, vectors: jax.Array, which: jax.Array) -> jax.Array:
        """Multiply each row by its own vector, `vectors[which]`."""
        xp = namespace(which)
        own = xp.asarray(vectors)[which]
        if self._without_ones:
            return xp.sum(self.x * own[..., :-1], axis=-1) + own[..., -1]
        return xp.sum(self.densely() * own, axis=-1)

    def densely(self) -> jax.Array:
        """Return all columns."""
        xp = namespace(self.x)
        x: jax.Array = xp.asarray(self.x)
        if not self.ones:
            return x
        return xp.concatenate([x, xp.ones((*x.shape[:-1], 1), x.dtype)], axis=-1)

    def in_double(self) -> DenseMatrix:
        """Return the matrix in float64."""
        return replace(self, x=namespace(self.x).asarray(self.x, np.float64))

    @property
    def _without_ones(self) -> bool:
        """Whether there is a column of ones that is not formed."""
        return self.ones and is_numpy(self.x)


def _sandwich_by_numpy(x: np.ndarray, h: np.ndarray, ones: bool) -> np.ndarray:
    """X' diag(h) X; if no h is positive, -Z'Z with Z = sqrt(-h) X, which is half the work."""
    columns = x.shape[1]
    centre = x.mean(axis=0) if ones and x.dtype != np.float64 else None
    x = x if centre is None else x - centre
    h = h.astype(x.dtype, copy=False)
    total = np.empty((columns + ones, columns + ones))
    if ones:
        total[:columns, columns] = total[columns, :columns] = h @ x
        total[columns, columns] = np.sum(h, dtype=np.float64)
    if np.all(h <= 0):
        # A copy is overwritten: to fill another array takes a tenth of the time of the product.
        Z = np.multiply(x, np.sqrt(-h)[:, None], out=None if centre is None else x)
        np.negative(Z.T @ Z, out=total[:columns, :columns])
    else:
        total[:columns, :columns] = (x * h[:, None]).T @ x
    if centre is not None:
        total += np.asarray(_shift(as_either(total[-1]), as_either(np.append(centre, 0.0))))
    return total


def _shift(last: jax.Array, centre: jax.Array) -> jax.Array:
    """Return what to add to products of centred columns, whose row for the ones is `last`."""
    xp, half = namespace(last), last + last[-1] / 2 * centre
    return xp.stack([half, centre], axis=1) @ xp.stack([centre, half])


def sums_of_squares(z: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each row."""
    return np.asarray(np.einsum("ij,ij->i", z, z))


class LevelColumns(NamedTuple):
    """Columns of which each row has one: that of its level, unless this is the reference, 0."""

    code: jax.Array
    levels: int
    reference: bool = False
    entry: jax.Array | None = None  # of each row in its column; None: 1

    def scaled(self, values: jax.Array) -> jax.Array:
        """Multiply values of rows, (rows, ...), by the entries."""
        return values if self.entry is None else (values.T * self.entry).T

    def sums(self, values: jax.Array) -> jax.Array:
        """Sums of values times entries over the rows of each level, (columns, ...)."""
        return _sums(self.code, self.scaled(values), self.levels)[self.reference :]

    def pair_sums(self, other: LevelColumns, values: jax.Array) -> jax.Array:
        """Sums of values times both entries by pairs of levels, (columns, other's columns)."""
        places, shape = self.code * other.levels + other.code, (self.levels, other.levels)
        table = _sums(places, other.scaled(self.scaled(values)), self.levels * other.levels)
        return table.reshape(shape)[self.reference :, other.reference :]


@dataclass(frozen=True, eq=False)
class CodedMatrix(ModelMatrix):
    """A matrix of dense columns and codes; sums by (pairs of) levels are in float64.

    Parameters
    ----------
    coding
        How the dense columns and codes map to columns of the matrix.
    x
        The dense columns, (..., columns of x); None where there are none.
    codes
        Codes of each coded field, (...).
    dtype
        Type of the entries.
    ones
        Whether the intercept's column follows.
    """

    coding: Coding
    x: jax.Array | None
    codes: Mapping[str, jax.Array]
    dtype: DTypeLike
    ones: bool = False

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.coding.size + self.ones

    def __matmul__(self, b: jax.Array) -> jax.Array:
        """X b, by gathering rows of b."""
        xp = namespace(b)
        kind = xp.result_type(self.dtype, b)
        b = xp.asarray(b, kind)
        total: jax.Array | float = b[self.coding.size] if self.ones else 0.0
        if self.coding.dense:
            assert self.x is not None
            numbers = self.x[..., : len(self.coding.dense)].astype(kind)
            total = total + numbers @ b[xp.asarray(self.coding.dense)]
        # Reference levels gather a row of zeros, put before the others.
        padded = xp.concatenate([xp.zeros((1, *b.shape[1:]), kind), b])
        for term in self.coding.terms:
            part = _entries(padded, self._place(term))
            if term.scale is not None:
                scale = self._scale(term).astype(kind)
                part = part * (scale[..., None] if b.ndim == 2 else scale)
            total = total + part
        if not self.coding.size:  # nothing was added that has a value per row
            total = total + xp.zeros((*self._row_shape, *b.shape[1:]), kind)
        return xp.asarray(total)

    def rmatvec(self, f: jax.Array) -> jax.Array:
        """X'f, by sums over the rows of each level."""
        f = _in_double(f)
        total = namespace(f).zeros((self.columns, *f.shape[1:]))
        total = _add(total, self.dense_places, _in_double(self.numbers).T @ f)
        for columns, codes in self._terms:
            total = _add(total, columns, codes.sums(f))
        return total

    def sandwich(self, h: jax.Array) -> jax.Array:
        """X' diag(h) X: the sum of one half and its transpose."""
        h, places = _in_double(h), self.dense_places
        half = namespace(h).zeros((self.columns, self.columns))
        half = _add(half, np.ix_(places, places), self._numbers_by_numbers(h) / 2)
        weighted = h[:, None] * _in_double(self.numbers)
        for j, (columns, codes) in enumerate(self._terms):
            half = _add(half, (columns, places), codes.sums(weighted))
            own = np.arange(columns.start, columns.stop)  # a row has no other level
            half = _add(half, (own, own), codes.sums(codes.scaled(h)) / 2)
            for its_columns, other in self._terms[:j]:
                half = _add(half, (columns, its_columns), codes.pair_sums(other, h))
        return half + half.T  # each pair was added once, a column with itself by half

    def by_level(self, codes: LevelColumns, weight: jax.Array) -> jax.Array:
        """Sums of weight x over the rows of each level of a factor."""
        total, every = namespace(weight).zeros((codes.levels, self.columns)), slice(None)
        numbers = codes.sums(weight[:, None] * _in_double(self.numbers))
        total = _add(total, (every, self.dense_places), numbers)
        for columns, other in self._terms:
            total = _add(total, (every, columns), codes.pair_sums(other, weight))
        return total

    def quadratic(self, form: np.ndarray | jax.Array, factor: np.ndarray) -> jax.Array:
        """x' S x of each row, by gathering one entry of S per pair of terms.

        O((p + k)^2) operations per row of p dense columns and k codes, however many columns in all.
        """
        xp = namespace(form)
        kind = xp.result_type(self.dtype, form)
        # Reference levels gather from a row and a column of zeros, put before the others.
        padded = xp.pad(xp.asarray(form, kind), ((1, 0), (1, 0)))
        numbers, places = self.numbers.astype(kind), 1 + self.dense_places
        total = xp.sum(numbers @ padded[places][:, places] * numbers, axis=-1)
        beside = padded[:, places]
        terms = [(self._place(t), self._scale(t).astype(kind)) for t in self.coding.terms]
        for j, (place, scale) in enumerate(terms):
            mixed = xp.sum(_entries(beside, place) * numbers, axis=-1)
            for other, its_scale in terms[:j]:
                mixed += its_scale * _entries(padded, (place, other))
            own = _entries(padded, (place, place))
            total = total + scale * (scale * own + 2 * mixed)
        return total

    def largest(self, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the column with the largest |x_j| scale_j of each row, and its entry."""
        xp = namespace(self._like)
        scale = xp.asarray(scale)
        padded = xp.concatenate([xp.zeros((1,), scale.dtype), scale])  # 0: the reference level
        numbers, places = self.numbers, xp.asarray(self.dense_places)
        column = xp.zeros(numbers.shape[:-1], int)
        entry = size = xp.zeros(numbers.shape[:-1], scale.dtype)
        if numbers.shape[-1]:
            at = xp.argmax(xp.abs(numbers) * scale[places], axis=-1)
            column = places[at]
            entry = xp.take_along_axis(numbers, at[..., None], axis=-1)[..., 0]
            size = xp.abs(entry) * scale[column]
        for term in self.coding.terms:
            place, its_entry = self._place(term), self._scale(term).astype(scale.dtype)
            its_size = xp.abs(its_entry) * _entries(padded, place)
            larger = its_size > size
            column = xp.where(larger, place - 1, column)
            entry, size = xp.where(larger, its_entry, entry), xp.where(larger, its_size, size)
        return column, entry

    def times_own(self, vectors: jax.Array, which: jax.Array) -> jax.Array:
        """Multiply each row by its own vector, `vectors[which]`."""
        xp = namespace(which)
        padded = xp.pad(vectors, ((0, 0), (1, 0)))  # 0: the reference level
        own = xp.asarray(vectors)[which][..., xp.asarray(self.dense_places)]
        total = xp.sum(self.numbers * own, axis=-1)
        for term in self.coding.terms:
            total = total + self._scale(term) * _entries(padded, (which, self._place(term)))
        return total

    def in_double(self) -> CodedMatrix:
        """Return the matrix with dense columns in float64."""
        if self.dtype == np.float64:
            return self  # with the tables it has made
        x = None if self.x is None else self.x.astype(np.float64)
        return replace(self, x=x, dtype=np.dtype(np.float64))

    def densely(self) -> jax.Array:
        """Form all columns."""
        return self @ as_either(namespace(self._like).eye(self.columns, dtype=self.dtype))

    @cached_property
    def numbers(self) -> jax.Array:
        """Dense columns, the intercept's last, (..., columns)."""
        xp, shape = namespace(self._like), self._row_shape
        parts = [xp.ones((*shape, 1), self.dtype)] if self.ones else []
        if self.coding.dense:
            assert self.x is not None
            parts.insert(0, self.x[..., : len(self.coding.dense)])
        return xp.concatenate([xp.zeros((*shape, 0), self.dtype), *parts], axis=-1)

    @cached_property
    def dense_places(self) -> np.ndarray:
        """Positions of the dense columns among all columns."""
        return np.array([*self.coding.dense, *([self.coding.size] if self.ones else [])], int)

    def _numbers_by_numbers(self, h: jax.Array) -> jax.Array:
        """Return the products of dense columns: of few columns in float64."""
        numbers = self.numbers
        if is_numpy(h) or numbers.shape[1] <= FEW:
            numbers = _in_double(numbers)
            return (numbers * h[:, None]).T @ numbers
        return DenseMatrix(numbers[:, :-1] if self.ones else numbers, self.ones).sandwich(h)

    @cached_property
    def _terms(self) -> list[tuple[slice, LevelColumns]]:
        """The columns of each term, and its codes."""
        found = []
        for term in self.coding.terms:
            entry = None if term.scale is None else self._scale(term)
            codes = LevelColumns(self._code(term), term.levels, term.reference, entry)
            found.append((term.columns, codes))
        return found

    def _code(self, term: CodedTerm) -> jax.Array:
        """Level of each row."""
        codes = self.codes[term.field]
        return codes.astype(np.intp if is_numpy(codes) else jnp.int32)  # each library's index type

    def _place(self, term: CodedTerm) -> jax.Array:
        """Column of each row's level, counted from one; 0 for the reference level."""
        code = self._code(term)
        if not term.reference:
            return code + (term.first + 1)
        return namespace(code).where(code == 0, 0, code + term.first)

    def _scale(self, term: CodedTerm) -> jax.Array:
        """Entry of each row in its level's column; a scalar 1 for plain indicators."""
        if term.scale is None:
            return namespace(self.codes[term.field]).ones((), self.dtype)
        assert self.x is not None
        return self.x[..., term.scale]

    @property
    def _like(self) -> jax.Array:
        """An array with a value or a vector per row: without codes, x, even if of no columns."""
        like = next(iter(self.codes.values()), self.x)
        assert like is not None
        return like

    @property
    def _row_shape(self) -> tuple[int, ...]:
        """Shape of the rows, (...)."""
        return self._like.shape if self.codes else self._like.shape[:-1]


def model_matrix(coding: Coding | None, batch: Mapping[str, Array]) -> DenseMatrix | CodedMatrix:
    """Return the model matrix of a batch of rows; without codes, x holds all columns."""
    if coding is None or any(name not in batch for name in coding.fields):
        return DenseMatrix(batch["x"])
    codes = {name: _array(batch[name]) for name in coding.fields}
    x = None if batch.get("x") is None else _array(batch["x"])
    like = x if x is not None else _array(batch.get("y", np.zeros(())))
    return CodedMatrix(coding, x, codes, like.dtype)


def _in_double(values: jax.Array) -> jax.Array:
    return namespace(values).asarray(values, np.float64)  # NumPy's astype would copy


def _array(values: Array) -> jax.Array:
    return namespace(values).asarray(values)


def _entries(table: jax.Array, where: jax.Array | tuple[jax.Array, ...]) -> jax.Array:
    """Index `table` at positions known to be in bounds."""
    if is_numpy(table):
        return table[where]
    return table.at[where].get(mode="promise_in_bounds")


def _add(table: jax.Array, where: Any, values: jax.Array) -> jax.Array:
    """Add values at positions that differ, in place if the table is a NumPy array."""
    if not is_numpy(table):
        return table.at[where].add(values)
    np.asarray(table)[where] += np.asarray(values)
    return table


def _sums(places: jax.Array, values: jax.Array, size: int) -> jax.Array:
    """Sum values (rows, ...) by their places, (size, ...)."""
    if not is_numpy(values):
        sums = jnp.zeros((size, *values.shape[1:]))
        return sums.at[places].add(values, mode="promise_in_bounds")
    if values.ndim == 1:
        return as_either(np.bincount(np.asarray(places), np.asarray(values), size))
    table = np.zeros((size, *values.shape[1:]))
    for column in np.ndindex(values.shape[1:]):
        own = (slice(None), *column)
        table[own] = np.bincount(np.asarray(places), np.asarray(values)[own], size)
    return as_either(table)
