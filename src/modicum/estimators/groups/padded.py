"""Log-likelihoods of a chain's groups, which are padded to the size of the largest group.

Their gradient is an expectation over nodes, so no array of all rows at all nodes is kept for a
backward pass. Nodes are fixed under differentiation, as in passes: the integral does not depend on
their positions. Padding is not evaluated, since most groups are far smaller than the largest: rows
are packed into pieces of fixed length, and only as many pieces as needed are evaluated.
"""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.slices import locate, starts
from modicum.models import IntegratedEffects
from modicum.models.base import Batch
from modicum.models.groups.integrals import Integrands, Nodes

PIECES = 4  # pieces that groups of typical size fill
SHORTEST, LONGEST = 32, 1024  # rows of a piece
DENSE = 1_000_000  # entries up to which sums over groups are matrix products

Moving = tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]  # predictors' shift, T, extras


class PaddedCache(NamedTuple):
    """Groups of a chain, (groups, width, ...): rows of each beyond its `size` are padding."""

    rows: Batch
    size: jax.Array
    eta: jax.Array  # (groups, width)
    near: Integrands  # its `weighted` is (groups, width, effects)
    scale: jax.Array
    value: jax.Array  # l_j at the anchor, and its derivatives in phi
    slope: jax.Array
    curvature: jax.Array


class _Piece(NamedTuple):
    """Some of the rows, group after group, without padding."""

    group: jax.Array  # group of each row, (rows,)
    place: jax.Array  # position of each row within its group
    present: jax.Array  # False beyond the last row
    members: jax.Array | None  # indicators of groups, (rows, groups); None if too many

    @classmethod
    def of(cls, k: jax.Array, rows: int, cached: PaddedCache) -> _Piece:
        """Return the k-th piece of `rows` rows."""
        count, width = cached.eta.shape
        group, place, present = locate(k * rows + jnp.arange(rows), cached.size)
        place = jnp.clip(place, 0, width - 1)
        few = count * rows <= DENSE
        members = (group[:, None] == jnp.arange(count)) & present[:, None]
        return cls(group, place, present, members.astype(jnp.float64) if few else None)

    def total(self, values: jax.Array, count: int) -> jax.Array:
        """Sum over the rows of each group: (nodes, rows) to (nodes, groups)."""
        # Padding may be NaN, and zero times NaN is NaN.
        values = jnp.where(self.present, values, 0.0)
        if self.members is not None:
            return values @ self.members
        sums = jax.ops.segment_sum(values.T, self.group, count, indices_are_sorted=True)
        return sums.T

    def spread(self, values: jax.Array) -> jax.Array:
        """Return for each row the value of its group: (nodes, groups) to (nodes, rows)."""
        return values[:, self.group]


def _pieces(typical: int, cached: PaddedCache) -> tuple[int, jax.Array]:
    """Return the rows per piece, and the number of pieces that all rows fill."""
    count, width = cached.eta.shape
    rows = int(np.clip(typical * count // PIECES, SHORTEST, LONGEST))
    rows = 8 * ceil(min(rows, count * width) / 8)
    return rows, (jnp.sum(cached.size) + rows - 1) // rows


def _predictors(
    model: IntegratedEffects, piece: _Piece, moving: Moving, nodes: Nodes, cached: PaddedCache
) -> tuple[jax.Array, jax.Array, Batch]:
    """Predictors of a piece at all nodes (nodes, rows), z of its rows, and the rows."""
    e, T, _ = moving
    rows = {name: field[piece.group, piece.place] for name, field in cached.rows.items()}
    z = model.effect_columns(rows)
    effects = jnp.einsum("ab,jkb->akj", T, nodes.v)
    eta = (cached.eta + e)[piece.group, piece.place]
    for a in range(model.effects):
        eta = eta + z[:, a] * piece.spread(effects[a])
    return jax.lax.optimization_barrier(eta), z, rows  # computed once, not in every sum


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def group_likelihoods(
    model: IntegratedEffects, typical: int, moving: Moving, nodes: Nodes, cached: PaddedCache
) -> jax.Array:
    """l_j of each group of `cached`, at predictors that moved by `moving`.

    `typical` is the number of rows that a group usually has.
    """
    return jax.nn.logsumexp(_log_terms(model, typical, moving, nodes, cached), axis=1)


def _log_terms(
    model: IntegratedEffects, typical: int, moving: Moving, nodes: Nodes, cached: PaddedCache
) -> jax.Array:
    """log w_jk + sum_i f, (groups, nodes)."""
    rows, number = _pieces(typical, cached)
    count = len(cached.size)

    def add(k: jax.Array, sums: jax.Array) -> jax.Array:
        piece = _Piece.of(k, rows, cached)
        eta, _, seen = _predictors(model, piece, moving, nodes, cached)
        f = jax.vmap(lambda eta: model.row_values(eta, moving[2], seen))(eta)
        return sums + piece.total(f, count)

    zero = jnp.zeros(nodes.log_weight.shape[::-1])
    return nodes.log_weight + jax.lax.fori_loop(0, number, add, zero).T


@group_likelihoods.defjvp
def _likelihoods_slope(
    model: IntegratedEffects,
    typical: int,
    at: tuple[Moving, Nodes, PaddedCache],
    tangents: tuple[Moving, object, object],
) -> tuple[jax.Array, jax.Array]:
    terms = _log_terms(model, typical, *at)
    value = jax.nn.logsumexp(terms, axis=1)
    p = jnp.exp(terms - value[:, None])
    by_row, scores, by_extra = _scores(model, typical, *at, p.T)
    e, T, extras = tangents[0]
    change = jnp.sum(by_row * e, axis=1)
    # the derivative of z_i'T v_k in T_ab is z_ia v_kb
    change = change + jnp.einsum("akj,jk,jkb,ab->j", scores, p, at[1].v, T)
    for slope, extra in zip(by_extra, extras, strict=True):
        change = change + jnp.sum(p * slope.T, axis=1) * extra
    return value, change


def _scores(
    model: IntegratedEffects,
    typical: int,
    moving: Moving,
    nodes: Nodes,
    cached: PaddedCache,
    p: jax.Array,
) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
    """Derivatives of l_j in the predictor of each row, given the nodes' probabilities (nodes, j).

    Also, at each node, of sum_i f in the effects (effects, nodes, groups) and in each extra.
    """
    rows, number = _pieces(typical, cached)
    count, width = cached.eta.shape
    extras = moving[2]

    def add(k: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        by_row, scores, *by_extra = sums
        piece = _Piece.of(k, rows, cached)
        eta, z, seen = _predictors(model, piece, moving, nodes, cached)
        f1 = jax.vmap(lambda eta: model.row_slopes(eta, extras, seen))(eta)
        along = jnp.sum(piece.spread(p) * f1, axis=0)
        by_row = jax.lax.dynamic_update_slice_in_dim(by_row, along, k * rows, 0)
        added = [piece.total(f1 * z[:, a], count) for a in range(model.effects)]
        for i in range(len(extras)):

            def at_extra(x: jax.Array, i: int = i) -> jax.Array:
                others = (*extras[:i], x, *extras[i + 1 :])
                return jax.vmap(lambda eta: model.row_values(eta, others, seen))(eta)

            slope = jax.jvp(at_extra, (extras[i],), (jnp.ones_like(extras[i]),))[1]
            by_extra[i] = by_extra[i] + piece.total(slope, count)
        return by_row, scores + jnp.stack(added), *by_extra

    zero = jnp.zeros(p.shape)
    length = rows * ceil(count * width / rows)
    start = (jnp.zeros(length), jnp.stack([zero] * model.effects), *[zero] * len(extras))
    by_row, scores, *by_extra = jax.lax.fori_loop(0, number, add, start)
    at = jnp.minimum(starts(cached.size)[:, None] + jnp.arange(width), length - 1)
    padded = jnp.where(jnp.arange(width) < cached.size[:, None], by_row[at], 0.0)
    return padded, scores, by_extra
