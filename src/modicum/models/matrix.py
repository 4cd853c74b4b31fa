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

from modicum.rows import CodedTerm, Coding
from modicum.runtime import Array

__all__ = ["CodedMatrix", "DenseMatrix", "ModelMatrix", "model_matrix"]


@dataclass(frozen=True, eq=False)
class DenseMatrix:
    """Rows whose columns are all there, (..., columns)."""

    x: Array

    def __matmul__(self, other: jax.Array) -> jax.Array:
        return jnp.asarray(self.x @ other)

    def in_double(self) -> DenseMatrix:
        """The same in float64."""
        return DenseMatrix(jnp.asarray(self.x, jnp.float64))

    def with_ones(self) -> DenseMatrix:
        """The same with one more column, the intercept's."""
        x = jnp.asarray(self.x)
        return DenseMatrix(jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), x.dtype)], axis=-1))

    def densely(self) -> jax.Array:
        """All columns."""
        return jnp.asarray(self.x)


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
        """How many there are."""
        return self.coding.size + self.ones

    def __matmul__(self, other: jax.Array) -> jax.Array:
        """The product with (columns,) or (columns, k), by gathering its rows."""
        kind = jnp.result_type(self.dtype, other)
        other = jnp.asarray(other, kind)
        total: jax.Array | float = other[self.coding.size] if self.ones else 0.0
        if self.coding.dense:
            assert self.x is not None
            numbers = self.x[..., : len(self.coding.dense)].astype(kind)
            total = total + numbers @ other[jnp.asarray(self.coding.dense)]
        # A row of zeros before the others is that of every reference level.
        padded = jnp.concatenate([jnp.zeros((1, *other.shape[1:]), kind), other])
        for term in self.coding.terms:
            part = padded.at[self.place(term)].get(mode="promise_in_bounds")
            if term.scale is not None:
                scale = self.scale(term).astype(kind)
                part = part * (scale[..., None] if other.ndim == 2 else scale)
            total = total + part
        return jnp.asarray(total)

    def quadratic(self, form: jax.Array) -> jax.Array:
        """x' S x of each row, with S symmetric: by gathering its entries, one per pair of parts.

        O((p + k)^2) operations per row of p numbers and k codes, however many columns there are.
        """
        kind = jnp.result_type(self.dtype, form)
        # A row and a column of zeros before the others are those of every reference level.
        padded = jnp.pad(jnp.asarray(form, kind), ((1, 0), (1, 0)))
        numbers, places = self.numbers().astype(kind), 1 + self.dense_places()
        total = jnp.sum(numbers @ padded[places][:, places] * numbers, axis=-1)
        beside = padded[:, places]
        terms = [(self.place(t), self.scale(t).astype(kind)) for t in self.coding.terms]
        for j, (place, scale) in enumerate(terms):
            mixed = jnp.sum(beside.at[place].get(mode="promise_in_bounds") * numbers, axis=-1)
            for other, its_scale in terms[:j]:
                mixed += its_scale * padded.at[place, other].get(mode="promise_in_bounds")
            own = padded.at[place, place].get(mode="promise_in_bounds")
            total = total + scale * (scale * own + 2 * mixed)
        return total

    def in_double(self) -> CodedMatrix:
        """The same with numbers in float64."""
        x = None if self.x is None else self.x.astype(jnp.float64)
        return replace(self, x=x, dtype=jnp.dtype(jnp.float64))

    def with_ones(self) -> CodedMatrix:
        """The same with one more column, the intercept's."""
        return replace(self, ones=True)

    def densely(self) -> jax.Array:
        """All columns, (..., columns): for a few rows at a time."""
        shape = next(iter(self.codes.values())).shape
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
        code = self.codes[term.field].astype(jnp.int32)
        if not term.reference:
            return code + (term.first + 1)
        return jnp.where(code == 0, 0, code + term.first)

    def scale(self, term: CodedTerm) -> jax.Array:
        """The number in a row's column; a single one where all are ones."""
        if term.scale is None:
            return jnp.ones((), self.dtype)
        assert self.x is not None
        return self.x[..., term.scale]

    def numbers(self) -> jax.Array:
        """The dense columns, that of ones last, (..., columns)."""
        shape = next(iter(self.codes.values())).shape
        parts = [jnp.ones((*shape, 1), self.dtype)] if self.ones else []
        if self.coding.dense:
            assert self.x is not None
            parts.insert(0, self.x[..., : len(self.coding.dense)])
        return jnp.concatenate([jnp.zeros((*shape, 0), self.dtype), *parts], axis=-1)

    def dense_places(self) -> np.ndarray:
        """Where the dense columns stand among all."""
        return np.array([*self.coding.dense, *([self.coding.size] if self.ones else [])], int)


ModelMatrix: TypeAlias = DenseMatrix | CodedMatrix


def model_matrix(coding: Coding | None, batch: Mapping[str, Array]) -> ModelMatrix:
    """Return the matrix of a batch of rows; without codes, x has all columns."""
    if coding is None or any(name not in batch for name in coding.fields):
        return DenseMatrix(batch["x"])
    x = None if batch.get("x") is None else jnp.asarray(batch["x"])
    like = x if x is not None else jnp.asarray(batch.get("y", 0.0))
    codes = {name: jnp.asarray(batch[name]) for name in coding.fields}
    return CodedMatrix(coding, x, codes, like.dtype)
