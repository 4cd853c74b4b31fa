"""Gradient and Hessian of a chunk for linear-predictor models, as matrix products.

With h the second derivatives of f in a row's predictors, the Hessian consists of blocks
X' diag(h_ab) X: one matrix product per pair of predictors instead of d Hessian-vector products.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import expansion
from modicum.models import LinearPredictorModel, Softmax, Target
from modicum.models.base import Batch
from modicum.models.matrix import ModelMatrix
from modicum.passes.blocks import compiled_pass, sum_in_blocks
from modicum.passes.products import CodedProducts, Products, products_with
from modicum.runtime import Array


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
    model = target.model
    assert isinstance(model, LinearPredictorModel)
    theta = target.unravel(t)
    predictors = model.predictor_vector(theta, batch)
    count = predictors.shape[1] - len(model.extras)  # q
    f, f1, f2 = row_derivatives(model, predictors, model.outcome(batch))
    weight = jnp.where(present, batch.get("weight", 1.0), 0.0)
    f, f1, f2 = weight * f, weight[:, None] * f1, weight[:, None, None] * f2

    gradient, hessian = assemble(model, model.matrix(batch), f1, f2, count)
    return f.sum(), gradient, hessian


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
    if predictors.shape[1] == 1 and not isinstance(model, Softmax):  # Softmax of two classes
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
