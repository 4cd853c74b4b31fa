"""Gradient and Hessian of a chunk of groups whose effects are integrated out.

l_j = log sum_k exp(h_jk). With p_jk the posterior probabilities of a group's nodes and s_jk the
gradient of h_jk, the gradient of l_j is E_p s and its Hessian is E_p h'' + Cov_p(s): expectations
over nodes, which a linear predictor makes cheap. A row contributes f at x_i'beta + z_i'T v_jk to
h_jk. In the covariance's parameters this predictor has the derivatives z_i'T' v_jk and
z_i'T'' v_jk; f has derivatives in its predictor and in the family's other parameters.

For families with formulas for their derivatives, the same functions run on NumPy arrays, without a
compiler.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, is_numpy, log_sum_exp, namespace
from modicum.models import IntegratedEffects, Target
from modicum.models.integrals import FlatGroups, Groups, Nodes, NumPyGroups
from modicum.models.model import Batch
from modicum.passes.engine import of_numpy
from modicum.rows.grouped_rows import NodePlaces
from modicum.runtime import SCATTERS, Array, for_numpy, jit

# f of each row at one node, its gradient and Hessian in the predictor and the extras
Bends: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]


@jit(static=0, options=SCATTERS)
def group_places(target: Target, t: Array, batch: Batch, present: Array) -> jax.Array:
    """Find the mode of each group's integrand at `t`."""
    del present
    return target.integrated.places(target.unravel(t), FlatGroups.of(batch))


@of_numpy
def group_places_by_numpy(
    target: Target, t: np.ndarray, batch: Batch, present: np.ndarray
) -> np.ndarray:
    """Like `group_places`, in NumPy, for the groups that are present."""
    del present
    with np.errstate(all="ignore"):
        return np.asarray(target.integrated.places(target.unravel(t), NumPyGroups.of(batch)))


@jit(static=0, options=SCATTERS)
def group_hessian_sum(
    target: Target, t: Array, batch: Batch, present: Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sum log-likelihood, gradient and Hessian at `t` over the present groups of a chunk."""
    flat = FlatGroups.of(batch)
    nodes = target.integrated.nodes_of(target.unravel(t), flat, NodePlaces.in_batch(batch))
    return curvature_sum(target, jnp.asarray(t), flat, nodes, jnp.asarray(present))


@of_numpy
def group_hessian_by_numpy(
    target: Target, t: np.ndarray, batch: Batch, present: np.ndarray
) -> tuple[jax.Array, ...]:
    """Like `group_hessian_sum`, in NumPy."""
    flat, by_group = NumPyGroups.of(batch), NodePlaces.in_batch(batch)
    total: tuple[jax.Array, ...] = (as_either(np.zeros(())),) * 3
    with np.errstate(all="ignore"):  # callers check whether the sums are finite
        for own, block in flat.in_blocks():
            places = None if by_group is None else by_group._replace(centre=by_group.centre[own])
            nodes = target.integrated.nodes_of(target.unravel(t), block, places)
            block_present = as_either(present[own])
            part = curvature_sum(target, as_either(t), block, nodes, block_present)
            total = tuple(sum_ + added for sum_, added in zip(total, part, strict=True))
    return total


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
    order = np.argsort(_places_in_t(target))
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
    covariance, own = target.integrated.covariance, covariance_places(target)
    if namespace(t) is np:
        if covariance.pairs:
            return _factor_derivatives(target, t)
        T, count = np.asarray(covariance.factor(target.unravel(t))), len(own)
        first = np.zeros((count, *T.shape))
        first[range(count), range(count), range(count)] = np.diag(T)
        second = np.zeros((count, *first.shape))
        second[range(count), range(count)] = first
        return as_either(T), as_either(first), as_either(second)

    def factor(s: jax.Array) -> jax.Array:
        return covariance.factor(target.unravel(jnp.asarray(t).at[own].set(s)))

    slope = jax.jacfwd(factor)
    first, second = slope(t[own]), jax.jacfwd(slope)(t[own])
    return factor(t[own]), jnp.moveaxis(first, -1, 0), jnp.moveaxis(second, (-2, -1), (0, 1))


_factor_derivatives = for_numpy(jit(static=0)(factor_derivatives))


def _common_columns(model: IntegratedEffects, rows: Batch) -> jax.Array:
    """Return the columns of x, followed by a column of ones if there is an intercept."""
    X = model.family.matrix(rows).in_double().with_ones(model.family.intercept).densely()
    return as_either(np.asfortranarray(X)) if is_numpy(X) else X  # rows along the fastest axis


def covariance_places(target: Target) -> np.ndarray:
    """Return the indices of the covariance's parameters in the flat vector."""
    places = target.unravel(np.arange(target.size))
    own = [places[name] for name in ("group_log_sd", "group_partial") if name in places]
    return np.concatenate(own)


def _places_in_t(target: Target) -> np.ndarray:
    """Return flat indices of the coefficients, then the covariance's parameters, then extras."""
    theta = target.unravel(np.arange(target.size))
    names = ("beta", "intercept", "group_log_sd", "group_partial", *target.integrated.family.extras)
    return np.concatenate([np.ravel(theta[name]) for name in names if name in theta])
