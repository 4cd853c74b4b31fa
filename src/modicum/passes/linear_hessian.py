"""Gradient and Hessian of a chunk for linear-predictor models, as matrix products.

With h the second derivatives of f in a row's predictors, the Hessian consists of blocks
X' diag(h_ab) X: one matrix product per pair of predictors instead of d Hessian-vector products.

Rows with codes are never expanded into columns. X'f sums f by level; X' diag(h) X consists of
products of the dense columns, sums of h x by level, and sums of h by pairs of levels:
O(n (p^2 + k p + k^2)) operations for p numbers and k codes per row, instead of O(n d^2) for d
columns.

If a factor has too many effects for a dense Hessian, sums are formed by its levels, since each row
has the effects of one of them: the block of each level, its products with the border, and the
border's own block (`models.arrow`). These are O(L c b) numbers for L levels of c effects and b
other parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import expansion
from modicum.models import LinearPredictorModel, Target
from modicum.models.arrowhead import ArrowLayout, ArrowMatrix, flat_vector
from modicum.models.matrix import CodedMatrix, ModelMatrix
from modicum.models.model import Batch
from modicum.passes.engine import BLOCK, compiled_pass, sum_in_blocks
from modicum.runtime import SCATTERS, Array, jit

FEW = 32  # columns up to which products of a chunk are not formed in blocks


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
        """f'X: (columns,) for f of shape (rows,), or (k, columns) for f of shape (rows, k)."""
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


Products: TypeAlias = DenseProducts | CodedProducts
"""The products that sums over rows need: f'X, and X' diag(h) X in float64."""


@compiled_pass
def linear_hessian_sum(
    target: Target, t: Array, batch: Batch, present: Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sum log-likelihood, gradient and Hessian at `t` over the present rows of a chunk."""
    if target.coding is not None:  # otherwise each block would add to all pairs of levels
        return _block_sum(target, t, batch, present)
    return sum_in_blocks(partial(_block_sum, target, t), batch, present)


def _block_sum(
    target: Target, t: Array, batch: Batch, present: Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sum log-likelihood, gradient and Hessian at `t` over the present rows of a block."""
    model, f, f1, f2 = _weighted_derivatives(target, t, batch, present)
    count = f1.shape[1] - len(model.extras)  # q
    gradient, hessian = assemble(model, model.matrix(batch), f1, f2, count)
    return f.sum(), gradient, hessian


def _weighted_derivatives(
    target: Target, t: Array, batch: Batch, present: Array
) -> tuple[LinearPredictorModel, jax.Array, jax.Array, jax.Array]:
    """Return the model, and f, f' and f'' of each row times its weight, which is 0 for padding."""
    model = target.model
    assert isinstance(model, LinearPredictorModel)
    predictors = model.predictor_vector(target.unravel(t), batch)
    f, f1, f2 = row_derivatives(model, predictors, model.outcome(batch))
    weight = jnp.where(present, batch.get("weight", 1.0), 0.0)
    return model, weight * f, weight[:, None] * f1, weight[:, None, None] * f2


def assemble(
    model: LinearPredictorModel, matrix: ModelMatrix, f1: jax.Array, f2: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Sum gradients and Hessians in t over rows, from the derivatives in each row's predictors.

    `f1` (rows, predictors) and `f2` (rows, predictors, predictors) have `count` linear predictors
    first, followed by the model's other parameters, which may be left out.
    """
    # the intercept is a last column of ones
    matrix = matrix.with_ones() if model.intercept else matrix
    products = products_with(matrix, model.intercept, f2[:, 0, 0])
    gradient = jnp.concatenate([products.transposed(f1[:, :count]).ravel(), f1[:, count:].sum(0)])
    hessian = _blocks(products, f2, count)
    order = _flat_order(model, count, products.columns, len(gradient))
    if order is not None:
        gradient, hessian = gradient[order], hessian[order][:, order]
    return gradient, hessian


def row_derivatives(
    model: LinearPredictorModel, predictors: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return f of each row, and its gradient and Hessian in the row's predictors."""
    if predictors.shape[1] == 1 and not model.predictor_per_class:  # Softmax of two classes
        f, f1, f2, _ = model.derivatives(predictors[:, 0], y)
        return f, f1[:, None], f2[:, None, None]
    return jax.vmap(expansion(model.log_density))(predictors, y)


def _blocks(products: Products, h: jax.Array, count: int) -> jax.Array:
    """Return the Hessian in the order (x of predictor 1, ..., x of predictor q, extras)."""
    width, extras = products.columns, h.shape[1] - count
    size = count * width + extras
    if size == width and isinstance(products, CodedProducts):
        return products.weighted(h[:, 0, 0])  # without a copy, since columns may be many
    # Concatenate blocks: setting them one by one takes longer to trace and to compile.
    blocks = [[products.weighted(h[:, a, b]) for b in range(a + 1)] for a in range(count)]
    lines = []
    for a in range(count):
        line = [*blocks[a][:a], *(blocks[b][a].T for b in range(a, count))]
        if extras:
            line.append(_transposed_columns(products, h[:, a, count:]))
        lines.append(line)
    if extras:
        lines.append([line[-1].T for line in lines] + [h[:, count:, count:].sum(0)])
    return jnp.concatenate([jnp.concatenate(line, axis=1) for line in lines]).astype(float)


def _transposed_columns(products: Products, h: jax.Array) -> jax.Array:
    """Return X'h for h of shape (rows, extras), column by column."""
    return jnp.stack([products.transposed(h[:, e]) for e in range(h.shape[1])], axis=1)


def _flat_order(
    model: LinearPredictorModel, count: int, width: int, size: int
) -> np.ndarray | None:
    """Return where entries of the flat vector (all beta, intercepts, extras) are in the blocks."""
    if count == 1 or not model.intercept:
        return None  # the two orders agree
    grid = np.arange(count * width).reshape(count, width)
    tail = np.arange(count * width, size)
    return np.concatenate([grid[:, :-1].ravel(), grid[:, -1], tail])


@jit(static=(0, 1), options=SCATTERS)
def arrow_hessian_sum(
    layout: ArrowLayout, target: Target, t: Array, batch: Batch, present: Array
) -> tuple[jax.Array, ...]:
    """Return log-likelihood and gradient of a chunk at `t`, and D, C' and E of its Hessian."""
    model, f, f1, f2 = _weighted_derivatives(target, t, batch, present)
    f1, f2, h = f1.astype(jnp.float64), f2.astype(jnp.float64), f2[:, 0, 0].astype(jnp.float64)

    matrix = layout.border_matrix(dict(batch))
    matrix = matrix.with_ones() if model.intercept else matrix
    level = jnp.asarray(batch[layout.field]).astype(jnp.int32)
    own = layout.own_columns(dict(batch)).astype(jnp.float64)
    shape = (layout.levels, len(layout.firsts))
    gradient = _level_sums(shape, level, f1[:, :1] * own)
    products = products_with(matrix, model.intercept, h)
    along = jnp.concatenate([products.transposed(f1[:, 0]), f1[:, 1:].sum(0)])
    blocks = _level_sums(
        (*shape, shape[1]), level, h[:, None, None] * own[:, :, None] * own[:, None]
    )

    cross = _cross(matrix, level, h[:, None] * own, shape)
    mixed = [_level_sums(shape, level, extra[:, None] * own)[..., None] for extra in f2[:, 0, 1:].T]
    cross = jnp.concatenate([cross, *mixed], axis=-1)
    corner = _blocks(products, f2, 1)  # E: columns of the border, then the other parameters
    in_order = flat_vector(layout.big, layout.border[: along.size], gradient, along)
    return f.sum(), jnp.asarray(in_order), blocks, cross, corner


def as_matrix(
    layout: ArrowLayout, blocks: np.ndarray, cross: np.ndarray, corner: np.ndarray
) -> ArrowMatrix:
    """Return the Hessian in all of t, with zeros for hyperparameters, which are the last."""
    others = len(layout.border) - len(corner)
    return ArrowMatrix(
        layout.big,
        layout.border,
        (blocks + blocks.swapaxes(1, 2)) / 2,
        np.pad(cross, ((0, 0), (0, 0), (0, others))),
        np.pad((corner + corner.T) / 2, ((0, others), (0, others))),
    )


def _level_sums(shape: tuple[int, ...], level: jax.Array, values: jax.Array) -> jax.Array:
    """Sum the values of the rows of each level."""
    return jnp.zeros(shape).at[level].add(values, mode="promise_in_bounds")


def _cross(
    matrix: ModelMatrix, level: jax.Array, weighted: jax.Array, shape: tuple[int, int]
) -> jax.Array:
    """Return C' in the columns of the border: the sums of h z x' over the rows of each level."""
    levels, effects = shape

    def sums(weight: jax.Array) -> jax.Array:
        if isinstance(matrix, CodedMatrix):
            return _sum_coded(levels, level, weight, matrix)
        return _sum_dense(levels, level, weight, matrix.densely())

    return jnp.stack([sums(weighted[:, k]) for k in range(effects)], axis=1)


def _sum_coded(levels: int, level: jax.Array, weight: jax.Array, matrix: CodedMatrix) -> jax.Array:
    """Sum weight x over the rows of each level, (levels, columns), for coded factors."""
    numbers = _sum_dense(levels, level, weight, matrix.numbers())
    # An additional first column collects all reference levels.
    width = 1 + matrix.columns
    flat = jnp.zeros(levels * width)
    for term in matrix.coding.terms:
        at = level * width + matrix.place(term)
        flat = flat.at[at].add(weight * matrix.scale(term), mode="promise_in_bounds")
    return flat.reshape(levels, width)[:, 1:].at[:, matrix.dense_places()].add(numbers)


def _sum_dense(levels: int, level: jax.Array, weight: jax.Array, numbers: jax.Array) -> jax.Array:
    """Sum weight x over the rows of each level, (levels, columns).

    This goes block by block, since a whole chunk in float64 would be large.
    """
    rows, columns = numbers.shape
    start = jnp.zeros((levels, columns))
    if rows <= BLOCK or rows % BLOCK:
        weighted = weight[:, None] * numbers.astype(jnp.float64)
        return start.at[level].add(weighted, mode="promise_in_bounds")

    def add(
        sums: jax.Array, block: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, None]:
        at, w, x = block
        weighted = w[:, None] * x.astype(jnp.float64)
        return sums.at[at].add(weighted, mode="promise_in_bounds"), None

    cut = (rows // BLOCK, BLOCK)
    blocks = (level.reshape(cut), weight.reshape(cut), numbers.reshape(*cut, columns))
    sums, _ = jax.lax.scan(add, start, blocks)
    return sums
