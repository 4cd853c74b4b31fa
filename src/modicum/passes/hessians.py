"""Gradient and Hessian of a chunk: of rows with linear predictors, or of groups of them.

With h the second derivatives of f in a row's predictors, the Hessian consists of blocks
X' diag(h_ab) X: one matrix product per pair of predictors instead of d Hessian-vector products.

A mode takes a few passes, and compiling a pass takes longer than running them. So for families with
formulas for their derivatives the sums are formed by NumPy, which each thread of the engine does in
blocks.

If a factor has too many effects for a dense Hessian, sums are formed by its levels, since each row
has the effects of one of them: the block of each level, its products with the border, and the
border's own block (`linalg.arrow`). These are O(L c b) numbers for L levels of c effects and b
other parameters.

A group whose effects are integrated out has l_j = log sum_k exp(h_jk). With p_jk the posterior
probabilities of a group's nodes and s_jk the gradient of h_jk, the gradient of l_j is E_p s and its
Hessian is E_p h'' + Cov_p(s): expectations over nodes, which a linear predictor makes cheap. A row
contributes f at x_i'beta + z_i'T v_jk to h_jk. In the covariance's parameters this predictor has
the derivatives z_i'T' v_jk and z_i'T'' v_jk; f has derivatives in its predictor and in the family's
other parameters.

For families with formulas for their derivatives, the same functions run on NumPy arrays, without a
compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, expansion, is_numpy, log_sum_exp, namespace
from modicum.linalg.arrow import ArrowLayout, ArrowMatrix, flat_vector
from modicum.linalg.columns import LevelColumns, ModelMatrix
from modicum.models import IntegratedEffects, LinearPredictorModel, Target
from modicum.models.integrated import Groups, Nodes, groups_of
from modicum.models.model import Batch
from modicum.models.priors.resolved import INTEGRATED
from modicum.passes.engine import compiled_pass, of_numpy, sum_in_blocks
from modicum.rows.grouped_rows import NodePlaces
from modicum.runtime import SCATTERS, Array, for_numpy, jit

# Floats per block (its weighted copy takes as much again), and the row limits of a block; a block
# has a sum for every pair of columns, so it needs several rows per column to be worth it.
BLOCK_NUMBERS, FEWEST_ROWS, MOST_ROWS, PER_COLUMN = 2**18, 1024, 8192, 4


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
    enough = max(FEWEST_ROWS, BLOCK_NUMBERS // numbers, PER_COLUMN * numbers)
    size = size or min(MOST_ROWS, enough)
    for first in range(0, count, size):
        yield {name: values[first : first + size] for name, values in fields.items()}


def map_by_numpy(
    function: Callable[[Batch], np.ndarray], batch: Batch, present: np.ndarray
) -> np.ndarray:
    """Return one number per row of a chunk, computed block by block."""
    return np.concatenate([function(block) for block in in_blocks(batch, present)])


@of_numpy
def hessian_by_numpy(
    target: Target, t: np.ndarray, batch: Batch, present: np.ndarray, second: bool = True
) -> tuple[np.ndarray, ...]:
    """Sum log-likelihood, gradient and, if `second`, Hessian at `t` over the present rows."""
    total = [np.zeros(()), np.zeros(len(t)), *([np.zeros((len(t), len(t)))] if second else [])]
    size = None if target.coding is None else len(present)  # tables of levels are formed once
    with np.errstate(all="ignore"):  # callers check whether the sums are finite
        for block in in_blocks(batch, present, size):
            matrix, wide, (f, f1, f2) = _derivatives_by_numpy(target, t, block)
            total[0] += np.sum(f)
            total[1] += wide.rmatvec(f1)
            if second:
                total[2] += matrix.sandwich(f2)
    return tuple(total)


def _derivatives_by_numpy(
    target: Target, t: np.ndarray, block: Batch
) -> tuple[ModelMatrix, ModelMatrix, list[jax.Array]]:
    """Return the rows, also in float64, and weighted f, f' and f'' of each."""
    model = target.linear
    matrix = model.full_matrix(block)
    wide = matrix.in_double()  # once, for both products
    eta = wide @ as_either(t) + block.get("offset", 0.0)
    found = list(model.derivatives(eta, model.outcome(block))[:3])
    if "weight" in block:
        weight = as_either(np.asarray(block["weight"], np.float64))
        found = [weight * of_row for of_row in found]
    return matrix, wide, found


@of_numpy
def arrow_hessian_by_numpy(
    layout: ArrowLayout, target: Target, t: np.ndarray, batch: Batch, present: np.ndarray
) -> tuple[jax.Array, ...]:
    """Like `arrow_hessian_sum`, in NumPy: tables of levels are formed once."""
    with np.errstate(all="ignore"):
        (block,) = in_blocks(batch, present, len(present))
        _, _, (f, f1, f2) = _derivatives_by_numpy(target, t, block)
        return _by_level(layout, target.linear, block, f, f1[:, None], f2[:, None, None])


@of_numpy
def values_by_numpy(
    target: Target, points: np.ndarray, batch: Batch, present: np.ndarray
) -> tuple[np.ndarray]:
    """Sum the log-likelihood at many points over the present rows of a chunk without codes."""
    model, values = target.linear, np.zeros(len(points))
    for block in in_blocks(batch, present):
        matrix = model.full_matrix(block).in_double()
        eta = np.asarray(matrix @ as_either(points.T))
        eta += np.reshape(block.get("offset", 0.0), (-1, 1))
        y = np.repeat(model.outcome(block), len(points), axis=0)
        f = np.reshape(model.value(as_either(eta.ravel()), as_either(y)), eta.shape)
        values += np.asarray(block.get("weight", np.ones(len(f))), np.float64) @ f
    return (values,)


# Compiled ---------------------------------------------------------------------------------


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
    model, *found = weighted_derivatives(target, t, batch, present)
    return _by_level(layout, model, batch, *found)


def _by_level(
    layout: ArrowLayout,
    model: LinearPredictorModel,
    batch: Batch,
    f: jax.Array,
    f1: jax.Array,
    f2: jax.Array,
) -> tuple[jax.Array, ...]:
    """Sum over rows and levels, from the derivatives in each row's predictor and parameters."""
    xp = namespace(f1)
    f1, f2 = xp.asarray(f1, np.float64), xp.asarray(f2, np.float64)
    border = layout.border_matrix(batch).with_ones(model.intercept)
    code = as_either(batch[layout.field])
    level = LevelColumns(code.astype(np.intp if is_numpy(code) else jnp.int32), layout.levels)
    z, h = xp.asarray(layout.own_columns(batch), np.float64), f2[:, :1, 0]

    along = xp.concatenate([border.rmatvec(f1[:, 0]), f1[:, 1:].sum(0)])
    gradient = flat_vector(
        layout.big, layout.border[: along.size], level.sums(f1[:, :1] * z), along
    )
    blocks = level.sums(h[..., None] * z[:, :, None] * z[:, None])
    cross = [border.by_level(level, weight)[:, None] for weight in (h * z).T]
    across = cross[0] if len(cross) == 1 else xp.concatenate(cross, axis=1)  # tables may be large
    if f2.shape[2] > 1:  # effects with the other parameters
        mixed = level.sums(z[:, :, None] * f2[:, :1, 1:])
        across = xp.concatenate([across, mixed], axis=-1)
    corner = _blocks(border, f2, 1)  # E: columns of the border, then the other parameters
    return f.sum(), as_either(gradient), blocks, across, corner


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


# f of each row at one node, its gradient and Hessian in the predictor and the extras
Bends: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]


def _group_places(target: Target, t: Array, batch: Batch, present: Array) -> jax.Array:
    """Find the mode of each group's integrand at `t`."""
    return target.integrated.places(target.unravel(t), groups_of(batch, t))


group_places = jit(static=0, options=SCATTERS)(_group_places)
group_places_by_numpy = of_numpy(_group_places)


def _group_hessian(target: Target, t: Array, batch: Batch, present: Array) -> tuple[jax.Array, ...]:
    """Sum log-likelihood, gradient and Hessian at `t` over the present groups of a chunk."""
    by_group = NodePlaces.in_batch(batch)
    total: tuple[jax.Array, ...] = (as_either(np.zeros(())),) * 3
    for own, block in groups_of(batch, t).in_blocks():
        places = None if by_group is None else by_group._replace(centre=by_group.centre[own])
        nodes = target.integrated.nodes_of(target.unravel(t), block, places)
        part = curvature_sum(target, as_either(t), block, nodes, as_either(present[own]))
        total = tuple(sum_ + added for sum_, added in zip(total, part, strict=True))
    return total


group_hessian_sum = jit(static=0, options=SCATTERS)(_group_hessian)
group_hessian_by_numpy = of_numpy(_group_hessian)


def curvature_sum(
    target: Target, t: jax.Array, flat: Groups, nodes: Nodes, present: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sum log-likelihood, gradient and Hessian at `t` over groups with known nodes."""
    rows, xp = _Rows.of(target, t, flat), namespace(t)
    total = rows.nothing()
    if xp is np:
        by_node = np.moveaxis(np.asarray(nodes.v), 1, 0)
        bends = [rows.bends(as_either(v)) for v in by_node]
        sums = np.stack([flat.sum(f) for f, _, _ in bends], axis=1)
        value, p = _probabilities(nodes.log_weight + sums, present)
        for k, f in enumerate(bends):
            total = rows.add(total, as_either(by_node[k]), p[:, k], f)
    else:
        nodes_first = jnp.moveaxis(nodes.v, 1, 0)
        # node by node, so that no array of all rows and all nodes is formed
        terms = jax.lax.map(lambda v: flat.sum(rows.bends(v)[0]), nodes_first)
        value, p = _probabilities(nodes.log_weight + terms.T, present)

        def add(moments: _Moments, node: tuple[jax.Array, jax.Array]) -> tuple[_Moments, None]:
            return rows.add(moments, *node, rows.bends(node[0])), None

        total, _ = jax.lax.scan(add, total, (nodes_first, p.T))
    cross = rows.X.T @ total.curved[:, 1:]
    corner = (rows.X * total.curved[:, :1]).T @ rows.X
    hessian = xp.block([[corner, cross], [cross.T, total.others]])
    hessian = hessian + total.square - total.mean.T @ total.mean
    # flat indices of the coefficients, then the parameters of the covariance, then extras
    theta = target.unravel(np.arange(target.size))
    names = ("beta", "intercept", "group_log_sd", "group_partial", *target.integrated.family.extras)
    order = np.argsort(np.concatenate([np.ravel(theta[name]) for name in names if name in theta]))
    value = xp.sum(xp.where(present, value, 0.0))
    return value, total.mean.sum(0)[order], hessian[order][:, order]


class _Moments(NamedTuple):
    """Expectations over nodes, accumulated node by node.

    c denotes the parameters other than coefficients: those of the covariance, then the extras.
    """

    curved: jax.Array  # E_p f'' of each row in its predictor, and mixed with c, (rows, 1 + c)
    others: jax.Array  # E_p f'' in c, over all rows
    mean: jax.Array  # E_p s of each group, in the coefficients and c
    square: jax.Array  # E_p s s', over all groups


class _Rows(NamedTuple):
    """Rows of groups at some parameters, to be evaluated node by node."""

    model: IntegratedEffects
    flat: Groups
    X: jax.Array  # columns of the coefficients
    z: jax.Array  # columns of the effects
    eta: jax.Array
    extras: tuple[jax.Array, ...]
    factor: jax.Array  # T
    slopes: jax.Array  # first derivatives of T in the covariance's parameters
    bents: jax.Array  # second derivatives

    @classmethod
    def of(cls, target: Target, t: jax.Array, flat: Groups) -> _Rows:
        """Prepare the rows at the flat vector t."""
        model, theta = target.integrated, target.unravel(t)
        X, z = _common_columns(model, flat.rows), model.effect_columns(flat.rows)
        at = (model.linear(theta, flat.rows), model.extras_of(theta))
        return cls(model, flat, X, z, *at, *factor_derivatives(target, t))

    def nothing(self) -> _Moments:
        """Return moments of zero, to add to."""
        xp, others = namespace(self.eta), len(self.slopes) + len(self.extras)
        size = self.X.shape[1] + others
        return _Moments(
            xp.zeros((len(self.eta), 1 + others)),
            xp.zeros((others, others)),
            xp.zeros((self.flat.groups, size)),
            xp.zeros((size, size)),
        )

    def bends(self, v: jax.Array) -> Bends:
        """Evaluate f and its derivatives at one node, v of each group."""
        shift = namespace(v).sum(self.z * self.flat.spread(v @ self.factor.T), axis=1)
        return self.model.bends(self.eta + shift, self.extras, self.flat.rows)

    def add(self, total: _Moments, v: jax.Array, share: jax.Array, f: Bends) -> _Moments:
        """Add one node with these probabilities.

        The derivative of a group's effects u = T v in the covariance's parameters is w = dT v. The
        sums of f' z and f'' z z' over the group's rows suffice for these parameters.
        """
        xp, flat, z = namespace(share), self.flat, self.z
        w = xp.einsum("cab,jb->jca", self.slopes, v)
        _, first, second = f
        f1, f2, mixed = first[:, :1], second[:, 0, :1], second[:, 0, 1:]
        pull, bend = flat.sum(f1 * z), flat.sum((f2 * z)[:, :, None] * z[:, None, :])
        score = [flat.sum(f1 * self.X), xp.einsum("jca,ja->jc", w, pull)]
        moved = share[:, None, None] * w
        own = xp.einsum("jca,jab,jdb->cd", moved, bend, w)
        own = own + xp.einsum("cdab,ja,jb->cd", self.bents, share[:, None] * pull, v)
        # by row: probability, and probability times the predictor's slopes in the covariance
        present = flat.present[:, None]
        p = xp.where(present, flat.spread(share)[:, None], 0.0)
        along = xp.where(present, xp.sum(flat.spread(moved) * z[:, None, :], axis=2), 0.0)
        curved = [f2 * p, f2 * along]
        others = own
        if self.extras:
            across = flat.sum(z[:, :, None] * mixed[:, None, :])
            own_extras = xp.einsum("jca,jae->ce", moved, across)
            corner = xp.tensordot(share, flat.sum(second[:, 1:, 1:]), axes=1)
            others = xp.block([[own, own_extras], [own_extras.T, corner]])
            score.append(flat.sum(first[:, 1:]))
            curved.append(mixed * p)
        slope = xp.concatenate(score, axis=1)
        weighted = share[:, None] * slope
        return _Moments(
            total.curved + xp.concatenate(curved, axis=1),
            total.others + others,
            total.mean + weighted,
            total.square + weighted.T @ slope,
        )


def _probabilities(terms: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return l_j, and the probabilities of nodes, which are zero for padding."""
    value, xp = log_sum_exp(terms), namespace(terms)
    return value, xp.where(present[:, None], xp.exp(terms - value[:, None]), 0.0)


def factor_derivatives(target: Target, t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return T, and its first and second derivatives in the covariance's parameters.

    Axes for these parameters are the leading ones.
    """
    model, own = target.integrated, covariance_places(target)
    if namespace(t) is np:
        if model.term.has_correlations:
            return _factor_derivatives(target, t)
        T, count = np.asarray(model.factor(target.unravel(t))), len(own)
        first = np.zeros((count, *T.shape))
        first[range(count), range(count), range(count)] = np.diag(T)
        second = np.zeros((count, *first.shape))
        second[range(count), range(count)] = first
        return as_either(T), as_either(first), as_either(second)

    def factor(s: jax.Array) -> jax.Array:
        return model.factor(target.unravel(jnp.asarray(t).at[own].set(s)))

    slope = jax.jacfwd(factor)
    first, second = slope(t[own]), jax.jacfwd(slope)(t[own])
    return factor(t[own]), jnp.moveaxis(first, -1, 0), jnp.moveaxis(second, (-2, -1), (0, 1))


_factor_derivatives = for_numpy(jit(static=0)(factor_derivatives))


def _common_columns(model: IntegratedEffects, rows: Batch) -> jax.Array:
    """Return the columns of x, followed by a column of ones if there is an intercept."""
    X = model.family.full_matrix(rows).in_double().densely()
    return as_either(np.asfortranarray(X)) if is_numpy(X) else X  # rows along the fastest axis


def covariance_places(target: Target) -> np.ndarray:
    """Return the indices of the covariance's parameters in the flat vector."""
    return np.concatenate([target.places[name] for name in INTEGRATED if name in target.places])
