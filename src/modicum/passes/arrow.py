"""Gradient and Hessian of a chunk when a factor has too many effects for a dense Hessian.

Each row has the effects of one level of that factor, so sums are formed by level: the block of each
level, its products with the border, and the border's own block (`models.arrow`). These are O(L c b)
numbers for L levels of c effects and b other parameters.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models import LinearPredictorModel, Target
from modicum.models.arrow import ArrowLayout, ArrowMatrix, flat_vector
from modicum.models.base import Batch
from modicum.models.matrix import CodedMatrix, ModelMatrix
from modicum.passes.blocks import BLOCK
from modicum.passes.linear import row_derivatives
from modicum.passes.products import products_with
from modicum.runtime import SCATTERS, Array, jit


@jit(static=(0, 1), options=SCATTERS)
def arrow_hessian_sum(
    layout: ArrowLayout, target: Target, t: Array, batch: Batch, present: Array
) -> tuple[jax.Array, ...]:
    """Return log-likelihood and gradient of a chunk at `t`, and D, C' and E of its Hessian."""
    model = target.model
    assert isinstance(model, LinearPredictorModel)
    predictors = model.predictor_vector(target.unravel(t), batch)
    f, f1, f2 = row_derivatives(model, predictors, model.outcome(batch))
    weight = jnp.where(present, batch.get("weight", 1.0), 0.0)
    f, f1, f2 = weight * f, weight[:, None] * f1, weight[:, None, None] * f2
    f1, f2, h = f1.astype(jnp.float64), f2.astype(jnp.float64), f2[:, 0, 0].astype(jnp.float64)

    matrix = _with_ones(layout.border_matrix(dict(batch)), model)
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
    corner = _corner(products.weighted(h), [products.transposed(e) for e in f2[:, 0, 1:].T], f2)
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


def _with_ones(matrix: ModelMatrix, model: LinearPredictorModel) -> ModelMatrix:
    """Append a column of ones if there is an intercept."""
    return matrix.with_ones() if model.intercept else matrix


def _level_sums(shape: tuple[int, ...], level: jax.Array, values: jax.Array) -> jax.Array:
    """Sum the values of the rows of each level."""
    return jnp.zeros(shape).at[level].add(values, mode="promise_in_bounds")


def _corner(columns: jax.Array, mixed: list[jax.Array], f2: jax.Array) -> jax.Array:
    """Return E: the columns of the border, followed by the family's other parameters."""
    width, extras = columns.shape[0], len(mixed)
    corner = jnp.zeros((width + extras, width + extras)).at[:width, :width].set(columns)
    for e, line in enumerate(mixed):
        corner = corner.at[width + e, :width].set(line).at[:width, width + e].set(line)
    return corner.at[width:, width:].set(f2[:, 1:, 1:].sum(0))


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
