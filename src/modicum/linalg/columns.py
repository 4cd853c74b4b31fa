"""The model matrix of a batch of rows: dense columns, and columns of codes.

All products with the columns of a row go through a `ModelMatrix`: X b (`@`), X'f (`rmatvec`) and
X' diag(h) X (`sandwich`), of NumPy or of JAX arrays.

Rows with codes are never expanded into columns. X b gathers one entry of b per code, X'f sums f by
level, and X' diag(h) X consists of products of the dense columns, sums of h x by level, and sums of
h by pairs of levels: O(n (p^2 + k p + k^2)) operations for p numbers and k codes per row, instead
of O(n d^2) for d columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, is_numpy, namespace
from modicum.rows import CodedTerm, Coding
from modicum.runtime import Array

PROBES, CLOSE = 16, 1e-3  # rows that float32 is checked on, and its largest relative error


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
class ModelMatrix:
    """A matrix X with one row per row of a batch.

    Arrays of rows may have any leading axes, (...), but for `rmatvec`, `sandwich` and `by_level`.
    Products with dense float32 columns are formed in float32. This halves the time and leaves a
    relative error near 1e-6 in the Hessian, far below what affects mass matrices and control
    variates. Sums by (pairs of) levels are in float64.

    Parameters
    ----------
    x
        The numbers of the rows, (..., columns of x).
    coding
        How numbers and codes map to columns of the matrix; None: x holds all columns.
    codes
        Codes of each coded field, (...).
    ones
        Whether the intercept's column follows. It is formed only where it must: that would copy
        the others.
    """

    x: jax.Array
    coding: Coding | None = None
    codes: Mapping[str, jax.Array] = field(default_factory=dict)
    ones: bool = False

    @property
    def columns(self) -> int:
        """Number of columns."""
        return (self.x.shape[-1] if self.coding is None else self.coding.size) + self.ones

    def with_ones(self, ones: bool = True) -> ModelMatrix:
        """Return the matrix with the intercept's column appended, if there is one."""
        return replace(self, ones=ones)

    def in_double(self) -> ModelMatrix:
        """Return the matrix with dense columns in float64."""
        if self.x.dtype == np.float64:
            return self  # with the tables it has made
        return replace(self, x=_in_double(self.x))

    def densely(self) -> jax.Array:
        """Return all columns, (..., columns): for a few rows at a time."""
        if self.coding is None:
            return self._wide
        return self @ as_either(namespace(self.x).eye(self.columns, dtype=self.x.dtype))

    def __matmul__(self, b: jax.Array) -> jax.Array:
        """X b, for b of shape (columns,) or (columns, k): codes gather rows of b."""
        xp = namespace(b)
        b = xp.asarray(b, xp.result_type(self.x.dtype, b))
        return self.of_padded(below_zeros(b)) if self._terms else self._numbers_times(b)

    def of_padded(self, padded: jax.Array) -> jax.Array:
        """X b, for b below a row of zeros, which reference levels gather."""
        total = self._numbers_times(padded[1:])
        for term, _, _ in self._terms:
            part = _entries(padded, self._place(term))
            if term.scale is not None:
                scale = self._scale(term).astype(padded.dtype)
                part = part * (scale[..., None] if padded.ndim == 2 else scale)
            total = total + part
        return total

    def _numbers_times(self, b: jax.Array) -> jax.Array:
        total = self._numbers @ b[self._places]
        return namespace(b).asarray(total + b[-1] if self.ones else total)

    def rmatvec(self, f: jax.Array) -> jax.Array:
        """X'f, for f of shape (rows,) or (rows, k): sums over the rows of each level."""
        xp, total = namespace(f), (f.T @ self._numbers).T
        if self.ones:
            total = xp.concatenate([total, xp.sum(f, axis=0)[None]])
        if self.coding is None:
            return total
        f = _in_double(f)
        total = _add(xp.zeros((self.columns, *f.shape[1:])), self._wide_places, total)
        for _, columns, codes in self._terms:
            total = _add(total, columns, codes.sums(f))
        return total

    def sandwich(self, h: jax.Array) -> jax.Array:
        """X' diag(h) X in float64; h is 0 for rows that do not count.

        With codes, the sum of one half and its transpose.
        """
        dense = self._dense_sandwich(h)
        if self.coding is None:
            return dense
        h, places = _in_double(h), self._wide_places
        half = namespace(h).zeros((self.columns, self.columns))
        half = _add(half, np.ix_(places, places), dense / 2)
        weighted = h[:, None] * _in_double(self._wide)
        for j, (_, columns, codes) in enumerate(self._terms):
            half = _add(half, (columns, places), codes.sums(weighted))
            own = np.arange(columns.start, columns.stop)  # a row has no other level
            half = _add(half, (own, own), codes.sums(codes.scaled(h)) / 2)
            for _, its_columns, other in self._terms[:j]:
                half = _add(half, (columns, its_columns), codes.pair_sums(other, h))
        return half + half.T  # each pair was added once, a column with itself by half

    def _dense_sandwich(self, h: jax.Array) -> jax.Array:
        """Products of dense columns; float32 ones are centred if there is an intercept.

        A column such as a year, with mean 2,000 and sd 1, is nearly collinear with the intercept:
        float32 products would lose its information.
        """
        if is_numpy(self.x):
            return as_either(
                _sandwich_by_numpy(np.asarray(self._numbers), np.asarray(h), self.ones)
            )
        x = self._wide
        if not self.ones or x.dtype == jnp.float64:
            return ((x * h[:, None].astype(x.dtype)).T @ x).astype(jnp.float64)
        counts = (h != 0).astype(x.dtype)
        centre = (counts @ x / jnp.maximum(counts.sum(), 1)).at[-1].set(0)
        x = x - centre
        block = ((x * h[:, None].astype(x.dtype)).T @ x).astype(jnp.float64)
        return block + _shift(block[-1], centre.astype(jnp.float64))

    def by_level(self, codes: LevelColumns, weight: jax.Array) -> jax.Array:
        """Sums of weight x over the rows of each level of a factor, (levels, columns)."""
        total, every = namespace(weight).zeros((codes.levels, self.columns)), slice(None)
        dense = codes.sums(weight[:, None] * _in_double(self._wide))
        total = _add(total, (every, self._wide_places), dense)
        for _, columns, other in self._terms:
            total = _add(total, (every, columns), codes.pair_sums(other, weight))
        return total

    def quadratic(self, form: np.ndarray | jax.Array, factor: np.ndarray) -> jax.Array:
        """x' S x of each row, for S = L L' given as `form` and as `factor`.

        With codes it gathers one entry of S per pair of terms: O((p + k)^2) operations per row of p
        dense columns and k codes, however many columns in all.
        """
        if self.coding is None and is_numpy(self.x):
            return _squared_lengths(np.asarray(self.x), factor, self.ones)
        if self.coding is None:
            return jnp.sum((_in_double(self._wide) @ factor) ** 2, axis=1)
        xp = namespace(form)
        kind = xp.result_type(self.x.dtype, form)
        # Reference levels gather from a row and a column of zeros, put before the others.
        padded = xp.pad(xp.asarray(form, kind), ((1, 0), (1, 0)))
        numbers, places = self._wide.astype(kind), 1 + self._wide_places
        total = xp.sum(numbers @ padded[places][:, places] * numbers, axis=-1)
        beside = padded[:, places]
        terms = [(self._place(t), self._scale(t).astype(kind)) for t, _, _ in self._terms]
        for j, (place, scale) in enumerate(terms):
            mixed = xp.sum(_entries(beside, place) * numbers, axis=-1)
            for other, its_scale in terms[:j]:
                mixed += its_scale * _entries(padded, (place, other))
            own = _entries(padded, (place, place))
            total = total + scale * (scale * own + 2 * mixed)
        return total

    def largest(self, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the column with the largest |x_j| scale_j of each row, and its entry."""
        xp = namespace(self.x)
        scale = xp.asarray(scale)
        numbers, places = self._numbers, xp.arange(self.columns)[self._places]
        column = xp.zeros(numbers.shape[:-1], int)
        entry = size = xp.zeros(numbers.shape[:-1], scale.dtype)
        if numbers.shape[-1]:
            at = xp.argmax(xp.abs(numbers) * scale[places], axis=-1)
            column = places[at]
            entry = xp.take_along_axis(numbers, at[..., None], axis=-1)[..., 0]
            size = xp.abs(entry) * scale[column]
        padded = xp.concatenate([xp.zeros((1,), scale.dtype), scale])  # 0: the reference level
        for term, _, _ in self._terms:
            place, its_entry = self._place(term), self._scale(term).astype(scale.dtype)
            its_size = xp.abs(its_entry) * _entries(padded, place)
            larger = its_size > size
            column = xp.where(larger, place - 1, column)
            entry, size = xp.where(larger, its_entry, entry), xp.where(larger, its_size, size)
        return column, entry

    def times_own(self, vectors: jax.Array, which: jax.Array) -> jax.Array:
        """Multiply each row by its own vector, `vectors[which]`."""
        xp = namespace(which)
        own = xp.asarray(vectors)[which]
        total = xp.sum(self._numbers * own[..., self._places], axis=-1)
        if self.ones:
            total = total + own[..., -1]
        padded = xp.pad(vectors, ((0, 0), (1, 0)))  # 0: the reference level
        for term, _, _ in self._terms:
            total = total + self._scale(term) * _entries(padded, (which, self._place(term)))
        return total

    # Parts --------------------------------------------------------------------------------

    @property
    def _numbers(self) -> jax.Array:
        """Dense columns but the intercept's: the first of x, which may have others for scales."""
        return self.x if self.coding is None else self.x[..., : len(self.coding.dense)]

    @property
    def _places(self) -> np.ndarray | slice:
        """Positions of these among all columns."""
        return slice(self.x.shape[-1]) if self.coding is None else np.array(self.coding.dense, int)

    @cached_property
    def _wide(self) -> jax.Array:
        """All dense columns, the intercept's last."""
        if not self.ones:
            return self._numbers
        xp, numbers = namespace(self.x), self._numbers
        return xp.concatenate([numbers, xp.ones((*numbers.shape[:-1], 1), numbers.dtype)], axis=-1)

    @property
    def _wide_places(self) -> np.ndarray:
        """Positions of these among all columns."""
        every = np.arange(self.columns)
        return np.concatenate([every[self._places], every[self.columns - self.ones :]])

    @cached_property
    def _terms(self) -> list[tuple[CodedTerm, slice, LevelColumns]]:
        """Each term, its columns and its codes."""
        found = []
        for term in () if self.coding is None else self.coding.terms:
            entry = None if term.scale is None else self._scale(term)
            codes = LevelColumns(self._code(term), term.levels, term.reference, entry)
            found.append((term, term.columns, codes))
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
            return namespace(self.x).ones((), self.x.dtype)
        return self.x[..., term.scale]


def below_zeros(b: jax.Array) -> jax.Array:
    """Put b below a row of zeros, for `ModelMatrix.of_padded`."""
    xp = namespace(b)
    return xp.concatenate([xp.zeros((1, *b.shape[1:]), b.dtype), b])


def model_matrix(coding: Coding | None, batch: Mapping[str, Array]) -> ModelMatrix:
    """Return the model matrix of a batch of rows; without codes, x holds all columns."""
    if coding is None or any(name not in batch for name in coding.fields):
        return ModelMatrix(_array(batch["x"]))
    codes = {name: _array(batch[name]) for name in coding.fields}
    if batch.get("x") is not None:
        return ModelMatrix(_array(batch["x"]), coding, codes)
    outcome = _array(batch.get("y", np.zeros(())))
    like = next(iter(codes.values()), outcome)
    return ModelMatrix(namespace(like).zeros((*like.shape, 0), outcome.dtype), coding, codes)


# Dense columns in NumPy ---------------------------------------------------------------------


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


def _squared_lengths(x: np.ndarray, factor: np.ndarray, ones: bool) -> jax.Array:
    """|x L|^2 of each row in float32, unless too many digits cancel."""
    slopes, shift = factor, np.zeros(factor.shape[1])
    if ones:
        slopes, shift = factor[:-1], factor[-1]
    probes = slice(None, None, -(-len(x) // PROBES))
    centre = x[probes].mean(axis=0)  # columns far from zero would lose their digits
    away = np.empty(x.shape, np.float32)
    np.subtract(x, centre, out=away, casting="same_kind")
    z = away @ slopes.astype(np.float32)
    z += (centre @ slopes + shift).astype(np.float32)
    lengths = _sums_of_squares(z)
    exact = _sums_of_squares(x[probes] @ slopes + shift)
    if np.isfinite(lengths).all() and np.allclose(lengths[probes], exact, rtol=CLOSE, atol=0):
        return as_either(lengths.astype(np.float64))
    return as_either(_sums_of_squares(x @ slopes + shift))


def _sums_of_squares(z: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each row."""
    return np.asarray(np.einsum("ij,ij->i", z, z))


# Of either library ----------------------------------------------------------------------------


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
