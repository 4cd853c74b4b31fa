"""Gradient and Hessian of a chunk for linear-predictor models, as matrix products.

With h the second derivatives of f in a row's predictors, the Hessian consists of blocks
X' diag(h_ab) X: one matrix product per pair of predictors instead of d Hessian-vector products.

A mode takes a few passes, and compiling a pass takes longer than running them. So for families with
formulas for their derivatives the sums are formed by NumPy, which each thread of the engine does in
blocks.

If a factor has too many effects for a dense Hessian, sums are formed by its levels, since each row
has the effects of one of them: the block of each level, its products with the border, and the
border's own block (`linalg.arrow`). These are O(L c b) numbers for L levels of c effects and b
other parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, expansion
from modicum.linalg.arrow import ArrowLayout, ArrowMatrix, flat_vector
from modicum.linalg.columns import LevelColumns, ModelMatrix
from modicum.models import LinearPredictorModel, Target
from modicum.models.model import Batch
from modicum.passes.engine import FEW, compiled_pass, of_numpy, sum_in_blocks
from modicum.runtime import SCATTERS, Array, jit

# Floats per block (its weighted copy takes as much again), and the row limits of a block.
BLOCK_NUMBERS, FEWEST_ROWS, MOST_ROWS = 2**18, 1024, 8192


def in_blocks(
    batch: Batch, present: np.ndarray, size: int | None = None
) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the present rows in blocks, for NumPy; padding, which comes last, is dropped.

    They are small enough for the caches, and large enough that threads seldom wait for each other
    between two NumPy operations.
    """
    count = int(np.count_nonzero(present))
    fields = {name: np.asarray(values)[:count] for name, values in batch.items()}
    numbers = sum(int(np.prod(values.shape[1:])) for values in fields.values())
    size = size or min(MOST_ROWS, max(FEWEST_ROWS, BLOCK_NUMBERS // numbers))
    for first in range(0, count, size):
        yield {name: values[first : first + size] for name, values in fields.items()}


def map_by_numpy(
    function: Callable[[Batch], np.ndarray], batch: Batch, present: np.ndarray
) -> np.ndarray:
    """Return one number per row of a chunk, computed block by block."""
    with np.errstate(all="ignore"):  # callers check whether the result is finite
        return np.concatenate([function(block) for block in in_blocks(batch, present)])


@of_numpy
def hessian_by_numpy(
    target: Target, t: np.ndarray, batch: Batch, present: np.ndarray, second: bool = True
) -> tuple[np.ndarray, ...]:
    """Sum log-likelihood, gradient and, if `second`, Hessian at `t` over the present rows."""
    model = target.linear
    total = [np.zeros(()), np.zeros(len(t)), *([np.zeros((len(t), len(t)))] if second else [])]
    size = None if target.coding is None else len(present)  # tables of levels are formed once
    with np.errstate(all="ignore"):  # callers check whether the sums are finite
        for block in in_blocks(batch, present, size):
            matrix = model.matrix(block).with_ones(model.intercept)
            wide = matrix.in_double()  # once, for both products
            eta = wide @ as_either(t) + block.get("offset", 0.0)
            f, f1, f2, _ = model.derivatives(eta, model.outcome(block))
            if "weight" in block:
                weight = as_either(np.asarray(block["weight"], np.float64))
                f, f1, f2 = weight * f, weight * f1, weight * f2
            total[0] += np.sum(f)
            total[1] += wide.rmatvec(f1)
            if second:
                total[2] += matrix.sandwich(f2)
    return tuple(total)


@of_numpy
def values_by_numpy(
    target: Target, points: np.ndarray, batch: Batch, present: np.ndarray
) -> tuple[np.ndarray]:
    """Sum the log-likelihood at many points over the present rows of a chunk without codes."""
    model, values = target.linear, np.zeros(len(points))
    with np.errstate(all="ignore"):
        for block in in_blocks(batch, present):
            matrix = model.matrix(block).with_ones(model.intercept).in_double()
            eta = np.asarray(matrix @ as_either(points.T))
            eta += np.reshape(block.get("offset", 0.0), (-1, 1))
            y = np.repeat(model.outcome(block), len(points), axis=0)
            f = np.reshape(model.value(as_either(eta.ravel()), as_either(y)), eta.shape)
            values += np.asarray(block.get("weight", np.ones(len(f))), np.float64) @ f
    return (values,)


# Compiled ---------------------------------------------------------------------------------


@partial(compiled_pass, briefly=FEW)
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
    model, f, f1, f2 = weighted_derivatives(target, t, batch, present)
    count = f1.shape[1] - len(model.extras)  # q
    gradient, hessian = assemble(model, model.matrix(batch), f1, f2, count)
    return f.sum(), gradient, hessian


def weighted_derivatives(
    target: Target, t: Array, batch: Batch, present: Array | bool = True
) -> tuple[LinearPredictorModel, jax.Array, jax.Array, jax.Array]:
    """Return the model, and f, f' and f'' of each row times its weight, which is 0 for padding."""
    model = target.linear
    predictors, y = model.predictor_vector(target.unravel(t), batch), model.outcome(batch)
    if model.in_eta_alone and predictors.shape[1] == 1 and not model.predictor_per_class:
        f, f1, f2, _ = model.derivatives(predictors[:, 0], y)
        f1, f2 = f1[:, None], f2[:, None, None]
    else:
        f, f1, f2 = jax.vmap(expansion(model.row_density))(predictors, y)
    weight = jnp.where(present, batch.get("weight", 1.0), 0.0)
    weight = jnp.broadcast_to(weight, f.shape)
    return model, weight * f, weight[:, None] * f1, weight[:, None, None] * f2


def assemble(
    model: LinearPredictorModel, matrix: ModelMatrix, f1: jax.Array, f2: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Sum gradients and Hessians in t over rows, from the derivatives in each row's predictors.

    `f1` (rows, predictors) and `f2` (rows, predictors, predictors) have `count` linear predictors
    first, followed by the model's other parameters, which may be left out.
    """
    if model.modelled:
        return _by_predictor(model, matrix, f1, f2)
    matrix = matrix.with_ones(model.intercept)
    along = matrix.rmatvec(f1[:, :count]).T.ravel()
    gradient = jnp.concatenate([along, f1[:, count:].sum(0)])
    hessian = _blocks(matrix, f2, count)
    if count == 1 or not model.intercept:
        return gradient, hessian
    # The flat vector has all beta, then the intercepts; blocks have an intercept each.
    grid = np.arange(along.size).reshape(count, -1)
    tail = np.arange(along.size, gradient.size)
    order = np.concatenate([grid[:, :-1].ravel(), grid[:, -1], tail])
    return gradient[order], hessian[order][:, order]


def _by_predictor(
    model: LinearPredictorModel, matrix: ModelMatrix, f1: jax.Array, f2: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Sum gradients and Hessians where each column enters one of several predictors (SPEC 21.1)."""
    matrix, count = matrix.with_ones(), f1.shape[1]
    # As if all columns entered all predictors; of these, each column has one.
    grid = np.arange(count * matrix.columns).reshape(count, -1)
    order = np.concatenate([grid[:, :-1].T[model.entering.T], grid[model.intercepts, -1]])
    gradient = matrix.rmatvec(f1).T.ravel()
    return gradient[order], _blocks(matrix, f2, count)[order][:, order]


def _blocks(matrix: ModelMatrix, h: jax.Array, count: int) -> jax.Array:
    """Return the Hessian in the order (x of predictor 1, ..., x of predictor q, extras)."""
    extras = h.shape[1] - count
    if count == 1 and not extras:
        return matrix.sandwich(h[:, 0, 0])  # without a copy, since columns may be many
    # Concatenate blocks: setting them one by one takes longer to trace and to compile.
    blocks = [[matrix.sandwich(h[:, a, b]) for b in range(a + 1)] for a in range(count)]
    lines = []
    for a in range(count):
        line = [*blocks[a][:a], *(blocks[b][a].T for b in range(a, count))]
        if extras:
            beside = [matrix.rmatvec(h[:, a, e]) for e in range(count, count + extras)]
            line.append(jnp.stack(beside, axis=1))
        lines.append(line)
    if extras:
        lines.append([line[-1].T for line in lines] + [h[:, count:, count:].sum(0)])
    return jnp.concatenate([jnp.concatenate(line, axis=1) for line in lines]).astype(float)


@jit(static=(0, 1), options=SCATTERS)
def arrow_hessian_sum(
    layout: ArrowLayout, target: Target, t: Array, batch: Batch, present: Array
) -> tuple[jax.Array, ...]:
    """Return log-likelihood and gradient of a chunk at `t`, and D, C' and E of its Hessian."""
    model, f, f1, f2 = weighted_derivatives(target, t, batch, present)
    f1, f2 = f1.astype(jnp.float64), f2.astype(jnp.float64)
    border = layout.border_matrix(dict(batch)).with_ones(model.intercept)
    level = LevelColumns(jnp.asarray(batch[layout.field]).astype(jnp.int32), layout.levels)
    z, h = layout.own_columns(dict(batch)).astype(jnp.float64), f2[:, :1, 0]

    along = jnp.concatenate([border.rmatvec(f1[:, 0]), f1[:, 1:].sum(0)])
    gradient = flat_vector(
        layout.big, layout.border[: along.size], level.sums(f1[:, :1] * z), along
    )
    blocks = level.sums(h[..., None] * z[:, :, None] * z[:, None])
    cross = jnp.stack([border.by_level(level, weight) for weight in (h * z).T], axis=1)
    mixed = level.sums(z[:, :, None] * f2[:, :1, 1:])  # effects with the other parameters
    cross = jnp.concatenate([cross, mixed], axis=-1)
    corner = _blocks(border, f2, 1)  # E: columns of the border, then the other parameters
    return f.sum(), jnp.asarray(gradient), blocks, cross, corner


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
