"""Gradient and Hessian of a chunk of groups whose effects are integrated out.

l_j = log sum_k exp(h_jk), so that with p_jk the posterior probabilities of a group's nodes and s_jk
the gradient of h_jk, the gradient of l_j is E_p s, and its Hessian E_p h'' + Cov_p(s): expectations
over nodes of what a linear predictor makes cheap.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models import IntegratedEffects, Target
from modicum.models.base import Batch, Params
from modicum.models.group_batches import FlatGroups, PaddedGroup
from modicum.models.integrated import Nodes
from modicum.runtime import SCATTERS, Array, jit

__all__ = ["curvature_sum", "group_hessian_sum", "group_places"]

Moments: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]


@jit(static=0, options=SCATTERS)
def group_places(target: Target, t: Array, batch: Batch, present: Array) -> jax.Array:
    """Where the integrand of each group has its mode at `t`."""
    del present
    model = target.model
    assert isinstance(model, IntegratedEffects)
    return model.places(target.unravel(t), batch)


@jit(static=0, options=SCATTERS)
def group_hessian_sum(
    target: Target, t: Array, batch: Batch, present: Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-likelihood, gradient and Hessian at `t` of the groups of a chunk that are present."""
    model = target.model
    assert isinstance(model, IntegratedEffects)
    nodes = model.nodes_of(target.unravel(t), batch)
    return curvature_sum(target, jnp.asarray(t), FlatGroups.of(batch), nodes, jnp.asarray(present))


def curvature_sum(
    target: Target, t: jax.Array, flat: FlatGroups | PaddedGroup, nodes: Nodes, present: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same of groups with known nodes."""
    model = target.model
    assert isinstance(model, IntegratedEffects)
    theta = target.unravel(t)
    terms = _terms(model, theta, flat, nodes)
    value = jax.nn.logsumexp(terms, axis=1)
    # What is not there has no weight, in any of the sums below.
    p = jnp.where(present[:, None], jnp.exp(terms - value[:, None]), 0.0)
    common, inner = _places_in_t(target)
    X = _common_columns(model, flat.rows)
    z = model.effect_columns(flat.rows)
    eta = model.family.linear(theta, flat.rows).astype(jnp.float64)

    def of_row(w: jax.Array, at: jax.Array, effects: jax.Array, row: Batch) -> jax.Array:
        """f of one row at one node, in its common predictor and the parameters beside beta."""
        moved = target.unravel(t.at[inner].set(w[1:]))
        shift = at @ (model.covariance.factor(moved) @ effects)
        batch = jax.tree.map(lambda field: field[None], row)
        return model.of_row((w[0] + shift)[None], model.extras_of(moved), batch)[0]

    first = jax.vmap(jax.grad(of_row), (0, 0, 0, 0))
    second = jax.vmap(jax.hessian(of_row), (0, 0, 0, 0))
    w = jnp.concatenate([eta[:, None], jnp.broadcast_to(t[inner], (len(eta), len(inner)))], axis=1)
    seen = {k: flat.rows[k] for k in (*model.family.outcome_fields, "row_weight") if k in flat.rows}

    def add(total: Moments, node: tuple[jax.Array, jax.Array]) -> tuple[Moments, None]:
        curved, mean, square = total
        v, share = node
        at = (w, z, flat.spread(v), seen)
        slope = first(*at)
        rows_share = jnp.where(flat.there, flat.spread(share), 0.0)
        curved = curved + rows_share[:, None, None] * second(*at)
        score = flat.sum(jnp.concatenate([slope[:, :1] * X, slope[:, 1:]], axis=1))
        weighted = share[:, None] * score
        return (curved, mean + weighted, square + weighted.T @ score), None

    size = X.shape[1] + len(inner)
    count = 1 + len(inner)
    zero = (
        jnp.zeros((len(eta), count, count)),
        jnp.zeros((flat.groups, size)),
        jnp.zeros((size,) * 2),
    )
    (curved, mean, square), _ = jax.lax.scan(add, zero, (jnp.moveaxis(nodes.v, 1, 0), p.T))
    hessian = _joined(X, curved) + square - mean.T @ mean
    order = np.argsort(np.concatenate([common, inner]))
    total = jnp.sum(jnp.where(present, value, 0.0))
    return total, mean.sum(0)[order], hessian[order][:, order]


def _terms(
    model: IntegratedEffects, theta: Params, flat: FlatGroups | PaddedGroup, nodes: Nodes
) -> jax.Array:
    """log w_jk + sum_i f, node after node: nothing of all rows at all nodes is held."""
    eta = model.family.linear(theta, flat.rows).astype(jnp.float64)
    z, T = model.effect_columns(flat.rows), model.covariance.factor(theta)
    extras = model.extras_of(theta)

    def of_node(v: jax.Array) -> jax.Array:
        shift = jnp.sum(z * flat.spread(v @ T.T), axis=1)
        return flat.sum(model.of_row(eta + shift, extras, flat.rows))

    return nodes.log_weight + jax.lax.map(of_node, jnp.moveaxis(nodes.v, 1, 0)).T


def _common_columns(model: IntegratedEffects, rows: Batch) -> jax.Array:
    """The columns of x, and one of ones where there is an intercept."""
    matrix = model.family.matrix(rows).in_double()
    return (matrix.with_ones() if model.family.intercept else matrix).densely()


def _places_in_t(target: Target) -> tuple[np.ndarray, np.ndarray]:
    """Places in the flat vector of the coefficients of the common columns, and of all others."""
    theta = target.unravel(np.arange(target.size))
    common = [np.ravel(theta[name]) for name in ("beta", "intercept") if name in theta]
    places = np.concatenate(common)
    return places, np.setdiff1d(np.arange(target.size), places)


def _joined(X: jax.Array, curved: jax.Array) -> jax.Array:
    """Second derivatives in each row's predictor and the other parameters, in those of beta."""
    corner = (X * curved[:, :1, 0]).T @ X
    cross = X.T @ curved[:, 0, 1:]
    last = curved[:, 1:, 1:].sum(0)
    return jnp.block([[corner, cross], [cross.T, last]])
