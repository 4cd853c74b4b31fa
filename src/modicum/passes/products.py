"""Products with the model matrix X of a chunk: X'f and X' diag(h) X, for dense or coded rows.

Rows with codes are never expanded into columns. X'f sums f by level; X' diag(h) X consists of
products of the dense columns, sums of h x by level, and sums of h by pairs of levels:
O(n (p^2 + k p + k^2)) operations for p numbers and k codes per row, instead of O(n d^2) for d
columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from modicum.models.matrix import CodedMatrix, ModelMatrix
from modicum.passes.blocks import sum_in_blocks
from modicum.runtime import Array

FEW = 32  # columns up to which products of a chunk are not formed in blocks


class Products(Protocol):
    """The matrix products that sums over rows need."""

    @property
    def columns(self) -> int:
        """Number of columns of the matrix."""
        ...

    def transposed(self, f: jax.Array) -> jax.Array:
        """f'X: (columns,) for f of shape (rows,), or (k, columns) for f of shape (rows, k)."""
        ...

    def weighted(self, h: jax.Array) -> jax.Array:
        """X' diag(h) X, (columns, columns), in float64."""
        ...


def products_with(matrix: ModelMatrix, intercept: bool, counts: jax.Array) -> Products:
    """Return the products with a matrix, whose last column is ones if it has an intercept.

    `counts` is 0 for rows whose f and h are 0.
    """
    if isinstance(matrix, CodedMatrix):
        return CodedProducts(matrix, intercept, counts)
    x = matrix.densely()
    return DenseProducts(x, _centre(x, counts) if intercept else None)


# Dense rows -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DenseProducts:
    """Products with dense rows.

    Products with float32 rows are formed in float32. This halves the time and leaves a relative
    error near 1e-6 in the Hessian, far below what affects mass matrices and control variates.
    """

    x: jax.Array
    centre: jax.Array | None

    @property
    def columns(self) -> int:
        """Number of columns of x."""
        return self.x.shape[1]

    def transposed(self, f: jax.Array) -> jax.Array:
        """f'X."""
        return f.T @ self.x

    def weighted(self, h: jax.Array) -> jax.Array:
        """X' diag(h) X in float64, computed from centred rows if there is a centre."""
        x, centre = self.x, self.centre
        if centre is None:
            return ((x * h[:, None].astype(x.dtype)).T @ x).astype(jnp.float64)
        c = centre.astype(jnp.float64)
        centred = x - centre
        block = ((centred * h[:, None].astype(x.dtype)).T @ centred).astype(jnp.float64)
        cross = jnp.outer(block[:, -1], c)  # the last column is ones, for the intercept
        return block + cross + cross.T + block[-1, -1] * jnp.outer(c, c)


def _centre(x: jax.Array, counts: Array) -> jax.Array | None:
    """Return the mean of rows with nonzero counts, 0 for the last column; None for float64 rows.

    A column such as a year, with mean 2,000 and sd 1, is nearly collinear with the intercept:
    float32 products would lose its information.
    """
    if x.dtype == jnp.float64:
        return None
    counts = (counts != 0).astype(x.dtype)
    return (counts @ x / jnp.maximum(counts.sum(), 1)).at[-1].set(0)


# Coded rows -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CodedProducts:
    """Products with rows of numbers and codes; sums by (pairs of) levels are in float64.

    Sums have one more row than there are columns: the first collects all reference levels.
    """

    matrix: CodedMatrix
    intercept: bool
    counts: jax.Array

    @property
    def columns(self) -> int:
        """Number of columns of the matrix, which is never formed."""
        return self.matrix.columns

    def transposed(self, f: jax.Array) -> jax.Array:
        """f'X."""
        matrix, f = self.matrix, f.astype(jnp.float64)
        total = jnp.zeros((1 + matrix.columns, *f.shape[1:]))
        for term in matrix.coding.terms:
            part = f.T if term.scale is None else f.T * matrix.scale(term)
            total = total.at[matrix.place(term)].add(part.T, mode="promise_in_bounds")
        numbers, places = matrix.numbers(), 1 + matrix.dense_places()
        return total.at[places].add(numbers.T.astype(jnp.float64) @ f)[1:].T

    def weighted(self, h: jax.Array) -> jax.Array:
        """X' diag(h) X: the sum of one half and its transpose."""
        h = h.astype(jnp.float64)
        places = 1 + self.matrix.dense_places()
        cross = self._codes_by_numbers(h).at[places].add(self._numbers_by_numbers(h) / 2)
        half = self._codes_by_codes(h).at[places].add(cross.T)[1:, 1:]
        return half + half.T

    def _codes_by_codes(self, h: jax.Array) -> jax.Array:
        """Sum h by pairs of levels: once for each pair of terms, half for a term with itself."""
        matrix, size = self.matrix, 1 + self.matrix.columns
        terms = [(matrix.place(t), matrix.scale(t)) for t in matrix.coding.terms]
        sums = jnp.zeros(size * size)
        for j, (place, scale) in enumerate(terms):
            sums = sums.at[place * (size + 1)].add(h * scale**2 / 2, mode="promise_in_bounds")
            for other, its_scale in terms[j + 1 :]:
                value = h * scale * its_scale
                sums = sums.at[place * size + other].add(value, mode="promise_in_bounds")
        return sums.reshape(size, size)

    def _codes_by_numbers(self, h: jax.Array) -> jax.Array:
        """Sum h x by level, with one row per level."""
        matrix = self.matrix
        weighted = h[:, None] * matrix.numbers().astype(jnp.float64)
        sums = jnp.zeros((1 + matrix.columns, weighted.shape[1]))
        for term in matrix.coding.terms:
            part = weighted if term.scale is None else weighted * matrix.scale(term)[:, None]
            sums = sums.at[matrix.place(term)].add(part, mode="promise_in_bounds")
        return sums

    def _numbers_by_numbers(self, h: jax.Array) -> jax.Array:
        """Return the products of dense columns: few columns in float64, many in blocks."""
        numbers = self.matrix.numbers()
        if numbers.shape[1] <= FEW:
            return DenseProducts(numbers.astype(jnp.float64), None).weighted(h)

        def of_block(part: tuple[jax.Array, jax.Array], counts: Array) -> jax.Array:
            x, its_h = part
            return DenseProducts(x, _centre(x, counts) if self.intercept else None).weighted(its_h)

        return sum_in_blocks(of_block, (numbers, h), self.counts)
