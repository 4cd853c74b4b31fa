"""The model matrix of a batch of rows: dense, or dense columns and codes.

All products with the columns of a row go through the model matrix. For rows with codes the matrix
is never formed: a product gathers one row of the other factor per code, and its derivative is a
scatter-add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from modicum.arrays import as_either, is_numpy, namespace
from modicum.rows import CodedTerm, Coding
from modicum.runtime import Array


@dataclass(frozen=True, eq=False)
class DenseMatrix:
    """A matrix that holds all columns, (..., columns).

    With NumPy, `ones` stands for the intercept's column, so that adding it copies nothing.
    """

    x: Array
    ones: bool = False

    def __matmul__(self, other: jax.Array) -> jax.Array:
        if not self.ones:
            return namespace(other).asarray(self.x @ other)
        return namespace(other).asarray(self.x @ other[:-1] + other[-1])

    def in_double(self) -> DenseMatrix:
        """Return the matrix in float64."""
        return replace(self, x=namespace(self.x).asarray(self.x, np.float64))

    def with_ones(self) -> DenseMatrix:
        """Return the matrix with the intercept's column appended."""
        if is_numpy(self.x):
            return replace(self, ones=True)
        x = jnp.asarray(self.x)
        return DenseMatrix(jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), x.dtype)], axis=-1))

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
        if not self.ones:
            return xp.sum(self.x * own, axis=-1)
        return xp.sum(self.x * own[..., :-1], axis=-1) + own[..., -1]

    def densely(self) -> jax.Array:
        """Return all columns, (..., columns)."""
        xp = namespace(self.x)
        x: jax.Array = xp.asarray(self.x)
        ones = xp.ones((*x.shape[:-1], int(self.ones)), x.dtype)
        return xp.concatenate([x, ones], axis=-1) if self.ones else x


@dataclass(frozen=True, eq=False)
class CodedMatrix:
    """A matrix of dense columns and codes.

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

    @property
    def _like(self) -> jax.Array:
        """An array with a value or a vector per row: without codes, x, even if of no columns."""
        like = next(iter(self.codes.values()), self.x)
        assert like is not None
        return like

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of the rows, (...)."""
        return self._like.shape if self.codes else self._like.shape[:-1]

    def __matmul__(self, other: jax.Array) -> jax.Array:
        """Multiply by (columns,) or (columns, k), by gathering rows of `other`."""
        xp = namespace(other)
        kind = xp.result_type(self.dtype, other)
        other = xp.asarray(other, kind)
        total: jax.Array | float = other[self.coding.size] if self.ones else 0.0
        if self.coding.dense:
            assert self.x is not None
            numbers = self.x[..., : len(self.coding.dense)].astype(kind)
            total = total + numbers @ other[xp.asarray(self.coding.dense)]
        # Reference levels gather a row of zeros, put before the others.
        padded = xp.concatenate([xp.zeros((1, *other.shape[1:]), kind), other])
        for term in self.coding.terms:
            part = _entries(padded, self.place(term))
            if term.scale is not None:
                scale = self.scale(term).astype(kind)
                part = part * (scale[..., None] if other.ndim == 2 else scale)
            total = total + part
        if not self.coding.size:  # nothing was added that has a value per row
            total = total + xp.zeros((*self.row_shape, *other.shape[1:]), kind)
        return xp.asarray(total)

    def quadratic(self, form: jax.Array) -> jax.Array:
        """x' S x of each row, with S symmetric, by gathering one entry of S per pair of terms.

        O((p + k)^2) operations per row of p dense columns and k codes, however many columns in all.
        """
        xp = namespace(form)
        kind = xp.result_type(self.dtype, form)
        # Reference levels gather from a row and a column of zeros, put before the others.
        padded = xp.pad(xp.asarray(form, kind), ((1, 0), (1, 0)))
        numbers, places = self.numbers().astype(kind), 1 + self.dense_places()
        total = xp.sum(numbers @ padded[places][:, places] * numbers, axis=-1)
        beside = padded[:, places]
        terms = [(self.place(t), self.scale(t).astype(kind)) for t in self.coding.terms]
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
        numbers, places = self.numbers(), xp.asarray(self.dense_places())
        column = xp.zeros(numbers.shape[:-1], int)
        entry = size = xp.zeros(numbers.shape[:-1], scale.dtype)
        if numbers.shape[-1]:
            at = xp.argmax(xp.abs(numbers) * scale[places], axis=-1)
            column = places[at]
            entry = xp.take_along_axis(numbers, at[..., None], axis=-1)[..., 0]
            size = xp.abs(entry) * scale[column]
        for term in self.coding.terms:
            place, its_entry = self.place(term), self.scale(term).astype(scale.dtype)
            its_size = xp.abs(its_entry) * _entries(padded, place)
            larger = its_size > size
            column = xp.where(larger, place - 1, column)
            entry, size = xp.where(larger, its_entry, entry), xp.where(larger, its_size, size)
        return column, entry

    def times_own(self, vectors: jax.Array, which: jax.Array) -> jax.Array:
        """Multiply each row by its own vector, `vectors[which]`."""
        xp = namespace(which)
        padded = xp.pad(vectors, ((0, 0), (1, 0)))  # 0: the reference level
        own = xp.asarray(vectors)[which][..., xp.asarray(self.dense_places())]
        total = xp.sum(self.numbers() * own, axis=-1)
        for term in self.coding.terms:
            total = total + self.scale(term) * _entries(padded, (which, self.place(term)))
        return total

    def in_double(self) -> CodedMatrix:
        """Return the matrix with dense columns in float64."""
        x = None if self.x is None else self.x.astype(np.float64)
        return replace(self, x=x, dtype=jnp.dtype(jnp.float64))

    def with_ones(self) -> CodedMatrix:
        """Return the matrix with the intercept's column appended."""
        return replace(self, ones=True)

    def densely(self) -> jax.Array:
        """Form all columns, (..., columns): for a few rows at a time."""
        if is_numpy(self._like):
            return self @ as_either(np.eye(self.columns, dtype=self.dtype))
        out = jnp.zeros((*self.row_shape, self.columns), self.dtype)
        if self.coding.dense:
            assert self.x is not None
            out = out.at[..., jnp.asarray(self.coding.dense)].set(
                self.x[..., : len(self.coding.dense)]
            )
        for term in self.coding.terms:
            code = self.codes[term.field].astype(jnp.int32) - term.reference
            hot = jax.nn.one_hot(code, term.width, dtype=self.dtype)
            if term.scale is not None:
                hot = hot * self.scale(term)[..., None]
            out = out.at[..., term.columns].add(hot)
        return out.at[..., -1].set(1) if self.ones else out

    def place(self, term: CodedTerm) -> jax.Array:
        """Column of each row's level, counted from one; 0 for the reference level."""
        codes = self.codes[term.field]
        xp = namespace(codes)
        code = codes.astype(np.intp if xp is np else jnp.int32)  # each library's index type
        if not term.reference:
            return code + (term.first + 1)
        return xp.where(code == 0, 0, code + term.first)

    def scale(self, term: CodedTerm) -> jax.Array:
        """Entry of each row in its level's column; a scalar 1 for plain indicators."""
        if term.scale is None:
            return namespace(self.codes[term.field]).ones((), self.dtype)
        assert self.x is not None
        return self.x[..., term.scale]

    def numbers(self) -> jax.Array:
        """Dense columns, the intercept's last, (..., columns)."""
        xp, shape = namespace(self._like), self.row_shape
        parts = [xp.ones((*shape, 1), self.dtype)] if self.ones else []
        if self.coding.dense:
            assert self.x is not None
            parts.insert(0, self.x[..., : len(self.coding.dense)])
        return xp.concatenate([xp.zeros((*shape, 0), self.dtype), *parts], axis=-1)

    def dense_places(self) -> np.ndarray:
        """Positions of the dense columns among all columns."""
        return np.array([*self.coding.dense, *([self.coding.size] if self.ones else [])], int)


ModelMatrix: TypeAlias = DenseMatrix | CodedMatrix


def model_matrix(coding: Coding | None, batch: Mapping[str, Array]) -> ModelMatrix:
    """Return the model matrix of a batch of rows; without codes, x holds all columns."""
    if coding is None or any(name not in batch for name in coding.fields):
        return DenseMatrix(batch["x"])
    codes = {name: _array(batch[name]) for name in coding.fields}
    x = None if batch.get("x") is None else _array(batch["x"])
    like = x if x is not None else _array(batch.get("y", np.zeros(())))
    return CodedMatrix(coding, x, codes, like.dtype)


def _array(values: Array) -> jax.Array:
    return namespace(values).asarray(values)


def _entries(table: jax.Array, where: jax.Array | tuple[jax.Array, ...]) -> jax.Array:
    """Index `table` at positions known to be in bounds."""
    if is_numpy(table):
        return table[where]
    return table.at[where].get(mode="promise_in_bounds")
