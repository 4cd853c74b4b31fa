"""The model matrix of a batch of rows: all its columns, or a few of them and codes.

Whatever multiplies by the columns of a row asks a model for its matrix of the batch. For rows with
codes the matrix is never formed: a product with it gathers one row of the other
factor per code, and the derivative of that is a scatter-add.
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

__all__ = ["CodedMatrix", "DenseMatrix", "ModelMatrix", "model_matrix"]


@dataclass(frozen=True, eq=False)
class DenseMatrix:
    """Rows with all their columns, (..., columns).

    NumPy's have the intercept's column of `ones` beside them: a copy of all others would cost.
    """

    x: Array
    ones: bool = False

    def __matmul__(self, other: jax.Array) -> jax.Array:
        if not self.ones:
            return namespace(other).asarray(self.x @ other)
        return namespace(other).asarray(self.x @ other[:-1] + other[-1])

    def in_double(self) -> DenseMatrix:
        """The same in float64."""
        return replace(self, x=namespace(self.x).asarray(self.x, np.float64))

    def with_ones(self) -> DenseMatrix:
        """The same with one more column, the intercept's."""
        if is_numpy(self.x):
            return replace(self, ones=True)
        x = jnp.asarray(self.x)
        return DenseMatrix(jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), x.dtype)], axis=-1))

    def densely(self) -> jax.Array:
        """The whole matrix, dense."""
        xp = namespace(self.x)
        x: jax.Array = xp.asarray(self.x)
        return xp.concatenate([x, xp.ones_like(x[..., :1])], axis=-1) if self.ones else x


@dataclass(frozen=True, eq=False)
class CodedMatrix:
    """Rows of a few numbers and a few codes.

    Parameters
    ----------
    coding
        Which columns they stand for.
    x
        The numbers, (..., columns of x); None where there are none.
    codes
        Codes of each field that has some, (...).
    dtype
        Type of the numbers.
    ones
        Whether one more column follows, the intercept's.
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

    def __matmul__(self, other: jax.Array) -> jax.Array:
        """The product with (columns,) or (columns, k), by gathering its rows."""
        xp = namespace(other)
        kind = xp.result_type(self.dtype, other)
        other = xp.asarray(other, kind)
        total: jax.Array | float = other[self.coding.size] if self.ones else 0.0
        if self.coding.dense:
            assert self.x is not None
            numbers = self.x[..., : len(self.coding.dense)].astype(kind)
            total = total + numbers @ other[xp.asarray(self.coding.dense)]
        # A row of zeros before the others is that of every reference level.
        padded = xp.concatenate([xp.zeros((1, *other.shape[1:]), kind), other])
        for term in self.coding.terms:
            part = _entries(padded, self.place(term))
            if term.scale is not None:
                scale = self.scale(term).astype(kind)
                part = part * (scale[..., None] if other.ndim == 2 else scale)
            total = total + part
        return xp.asarray(total)

    def quadratic(self, form: jax.Array) -> jax.Array:
        """x' S x of each row, with S symmetric: by gathering its entries, one per pair of parts.

        O((p + k)^2) operations per row of p numbers and k codes, however many columns there are.
        """
        xp = namespace(form)
        kind = xp.result_type(self.dtype, form)
        # A row and a column of zeros before the others are those of every reference level.
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

    def in_double(self) -> CodedMatrix:
        """The same with numbers in float64."""
        x = None if self.x is None else self.x.astype(np.float64)
        return replace(self, x=x, dtype=jnp.dtype(jnp.float64))

    def with_ones(self) -> CodedMatrix:
        """The same with one more column, the intercept's."""
        return replace(self, ones=True)

    def densely(self) -> jax.Array:
        """All columns, (..., columns): for a few rows at a time."""
        codes = next(iter(self.codes.values()))
        if is_numpy(codes):
            return self @ as_either(np.eye(self.columns, dtype=self.dtype))
        shape = codes.shape
        out = jnp.zeros((*shape, self.columns), self.dtype)
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
        """Where a row's column is, counted from one; 0 for the reference level."""
        codes = self.codes[term.field]
        xp = namespace(codes)
        code = codes.astype(np.intp if xp is np else jnp.int32)  # what indices are, in each
        if not term.reference:
            return code + (term.first + 1)
        return xp.where(code == 0, 0, code + term.first)

    def scale(self, term: CodedTerm) -> jax.Array:
        """The number in a row's column; a single one where all are ones."""
        if term.scale is None:
            return namespace(self.codes[term.field]).ones((), self.dtype)
        assert self.x is not None
        return self.x[..., term.scale]

    def numbers(self) -> jax.Array:
        """The dense columns, that of ones last, (..., columns)."""
        codes = next(iter(self.codes.values()))
        xp, shape = namespace(codes), codes.shape
        parts = [xp.ones((*shape, 1), self.dtype)] if self.ones else []
        if self.coding.dense:
            assert self.x is not None
            parts.insert(0, self.x[..., : len(self.coding.dense)])
        return xp.concatenate([xp.zeros((*shape, 0), self.dtype), *parts], axis=-1)

    def dense_places(self) -> np.ndarray:
        """Where the dense columns stand among all."""
        return np.array([*self.coding.dense, *([self.coding.size] if self.ones else [])], int)


ModelMatrix: TypeAlias = DenseMatrix | CodedMatrix


def model_matrix(coding: Coding | None, batch: Mapping[str, Array]) -> ModelMatrix:
    """Return the matrix of a batch of rows; without codes, x has all columns."""
    if coding is None or any(name not in batch for name in coding.fields):
        return DenseMatrix(batch["x"])
    codes = {name: _array(batch[name]) for name in coding.fields}
    x = None if batch.get("x") is None else _array(batch["x"])
    like = x if x is not None else _array(batch.get("y", np.zeros(())))
    return CodedMatrix(coding, x, codes, like.dtype)


def _array(values: Array) -> jax.Array:
    return namespace(values).asarray(values)


def _entries(table: jax.Array, where: jax.Array | tuple[jax.Array, ...]) -> jax.Array:
    """The entries of a table at places that are known to be in it."""
    if is_numpy(table):
        return table[where]
    return table.at[where].get(mode="promise_in_bounds")
