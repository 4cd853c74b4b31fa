"""Control variates of groups whose effects are integrated out.

They are expanded in the coordinates phi of `expansion`. The residual has two forms. A chain keeps
the gradient and Hessian of each of its few groups, padded to the size of the largest. A pass sees
every group once and expands along phi - phi* instead: with p the nodes' probabilities at the anchor
and h_k the sum over a group's rows, dl = E_p h' and d2l = E_p h'' + Var_p h', and no Hessian is
formed.

The gradient of a chain's groups is an expectation over nodes, so no array of all rows at all nodes
is kept for a backward pass. Nodes are fixed under differentiation, as in passes: the integral does
not depend on their positions. Padding is not evaluated, since most groups are far smaller than the
largest: rows are packed into pieces of fixed length, and only as many pieces as needed are
evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import along, as_either, locate, log_sum_exp, namespace, starts
from modicum.kernels.expansion import expansion_coordinates, in_expansion_coordinates
from modicum.kernels.protocols import Proxy
from modicum.models import IntegratedEffects, Target
from modicum.models.integrated import (
    GROUP_FIELDS,
    FlatGroups,
    Integrands,
    Nodes,
    NumPyGroups,
    PaddedGroup,
)
from modicum.models.model import Batch, Params
from modicum.passes.hessians import curvature_sum

PIECES = 4  # pieces that groups of typical size fill
SHORTEST, LONGEST = 32, 1024  # rows of a piece
STEP = 1e-3  # step of numerical derivatives, in posterior standard deviations
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
        return jax.ops.segment_sum(values.T, self.group, count, indices_are_sorted=True).T

    def spread(self, values: jax.Array) -> jax.Array:
        """Return for each row the value of its group: (nodes, groups) to (nodes, rows)."""
        return values[:, self.group]


def _pieces(form: GroupTaylor, cached: PaddedCache) -> tuple[int, jax.Array]:
    """Return the rows per piece, and the number of pieces that all rows fill."""
    count, width = cached.eta.shape
    rows = int(np.clip(form.typical * count // PIECES, SHORTEST, LONGEST))
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


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _likelihoods(form: GroupTaylor, moving: Moving, nodes: Nodes, cached: PaddedCache) -> jax.Array:
    """l_j of each group of `cached`, at predictors that moved by `moving`."""
    return jax.nn.logsumexp(_log_terms(form, moving, nodes, cached), axis=1)


def _log_terms(form: GroupTaylor, moving: Moving, nodes: Nodes, cached: PaddedCache) -> jax.Array:
    """log w_jk + sum_i f, (groups, nodes)."""
    rows, number = _pieces(form, cached)
    model, count = form.model, len(cached.size)

    def add(k: jax.Array, sums: jax.Array) -> jax.Array:
        piece = _Piece.of(k, rows, cached)
        eta, _, seen = _predictors(model, piece, moving, nodes, cached)
        f = jax.vmap(lambda eta: model.row_values(eta, moving[2], seen))(eta)
        return sums + piece.total(f, count)

    zero = jnp.zeros(nodes.log_weight.shape[::-1])
    return nodes.log_weight + jax.lax.fori_loop(0, number, add, zero).T


@_likelihoods.defjvp
def _likelihoods_slope(
    form: GroupTaylor,
    at: tuple[Moving, Nodes, PaddedCache],
    tangents: tuple[Moving, object, object],
) -> tuple[jax.Array, jax.Array]:
    terms = _log_terms(form, *at)
    value = jax.nn.logsumexp(terms, axis=1)
    p = jnp.exp(terms - value[:, None])
    by_row, scores, by_extra = _scores(form, *at, p.T)
    e, T, extras = tangents[0]
    change = jnp.sum(by_row * e, axis=1)
    # the derivative of z_i'T v_k in T_ab is z_ia v_kb
    change = change + jnp.einsum("akj,jk,jkb,ab->j", scores, p, at[1].v, T)
    for slope, extra in zip(by_extra, extras, strict=True):
        change = change + jnp.sum(p * slope.T, axis=1) * extra
    return value, change


def _scores(
    form: GroupTaylor, moving: Moving, nodes: Nodes, cached: PaddedCache, p: jax.Array
) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
    """Derivatives of l_j in the predictor of each row, given the nodes' probabilities (nodes, j).

    Also, at each node, of sum_i f in the effects (effects, nodes, groups) and in each extra.
    """
    rows, number = _pieces(form, cached)
    count, width = cached.eta.shape
    model, extras = form.model, moving[2]

    def add(k: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        by_row, scores, *by_extra = sums
        piece = _Piece.of(k, rows, cached)
        eta, z, seen = _predictors(model, piece, moving, nodes, cached)
        f1 = jax.vmap(lambda eta: model.row_derivatives(eta, extras, seen)[1])(eta)
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


class FlatCache(NamedTuple):
    """Groups of a pass or a pilot study, their rows one after the other, at the anchor."""

    flat: FlatGroups | NumPyGroups
    eta: jax.Array  # common part of the predictor
    near: Integrands
    scale: jax.Array  # one over probability
    nodes: Nodes
    value: jax.Array  # l_j
    p: jax.Array  # probabilities of nodes
    slopes: tuple[jax.Array, jax.Array] | None  # f' and f'' (rows, nodes); None if with extras


@dataclass(frozen=True)
class GroupTaylor:
    """Control variates of groups, expanded in the entries of the effects' covariance.

    Its proxy's `a` and `B` are the gradient and Hessian of the log-likelihood in phi, not in
    whitened coordinates.

    Parameters
    ----------
    target
        A model with integrated effects, and its layout.
    order
        0, 1 or 2.
    typical
        Typical number of rows of a group, which sets how many rows are evaluated at once.
    """

    target: Target
    order: int = 2
    typical: int = 64

    @property
    def model(self) -> IntegratedEffects:
        """The model."""
        return self.target.integrated

    @property
    def fresh_cost(self) -> float:
        """Cost of a fresh group's derivatives, in evaluations of a cached group."""
        return 4.0

    def cache(self, batch: Batch, proxy: Proxy) -> FlatCache | PaddedCache:
        """Compute integrands and predictors at the anchor."""
        centre = jnp.asarray(batch["group_centre"])
        scale = 1.0 / jnp.asarray(batch["probability"])
        if "group_of_row" in batch:
            return self.flat_cache(FlatGroups.of(batch), centre, scale, proxy)
        rows = {
            name: jnp.asarray(field) for name, field in batch.items() if name not in GROUP_FIELDS
        }
        if "weight" in rows:
            rows["row_weight"] = rows.pop("weight")
        size = jnp.asarray(batch["group_rows"])
        near, *expansion = jax.vmap(partial(self._expansion, proxy))(rows, size, centre)
        eta = _linear(self.model, self.target.unravel(proxy.where.point), rows)
        rows.pop("offset", None)  # it is part of eta
        return PaddedCache(rows, size, eta, near, scale, *expansion)

    def flat_cache(
        self, flat: FlatGroups | NumPyGroups, centre: jax.Array, scale: jax.Array, proxy: Proxy
    ) -> FlatCache:
        """Cache flat groups, with JAX or NumPy."""
        model, theta = self.model, self.target.unravel(proxy.where.point)
        T, extras = model.factor(theta), model.extras_of(theta)
        near = model.integrands(theta, centre, flat)
        eta = model.linear(theta, flat.rows)
        nodes = model.nodes_near(near, T, 0.0)
        effects = flat.spread(nodes.v @ T.T)
        at_nodes = eta[:, None] + model.along_effects(flat.rows, effects)
        slopes = None
        if not model.family.in_eta_alone:
            f = model.row_values(at_nodes, extras, flat.rows)
        else:
            f, f1, f2 = model.row_derivatives(at_nodes, extras, flat.rows)
            slopes = f1, f2
        terms = nodes.log_weight + flat.sum(f)
        value = log_sum_exp(terms)
        p = namespace(terms).exp(terms - value[:, None])
        rows = {name: field for name, field in flat.rows.items() if name != "offset"}
        return FlatCache(flat._replace(rows=rows), eta, near, scale, nodes, value, p, slopes)

    def blocks(self, batch: Batch, proxy: Proxy) -> Iterator[FlatCache]:
        """Cache flat groups a few at a time, in NumPy."""
        centre, scale = np.asarray(batch["group_centre"]), 1 / np.asarray(batch["probability"])
        for own, block in NumPyGroups.of(batch).in_blocks():
            yield self.flat_cache(block, as_either(centre[own]), as_either(scale[own]), proxy)

    def places(self, z: jax.Array, proxy: Proxy) -> jax.Array:
        """Return draws as blocks take them: as they are."""
        return z

    def values_at(self, cached: FlatCache, places: jax.Array, proxy: Proxy) -> jax.Array:
        """Return `values` there."""
        return self.values(cached, places, proxy)

    def gradients(self, cached: FlatCache, z: np.ndarray, proxy: Proxy) -> np.ndarray:
        """Gradient of D of each group at z, (groups, d), by central differences in NumPy.

        They are accurate enough: D has about a dozen correct digits.
        """
        steps = STEP * np.eye(len(z))
        points = as_either(np.concatenate([z + steps, z - steps]))
        ahead, behind = np.split(np.asarray(self.values(cached, points, proxy)), 2)
        return np.asarray((ahead - behind).T / (2 * STEP))

    def values(self, cached: FlatCache | PaddedCache, z: jax.Array, proxy: Proxy) -> jax.Array:
        """l_j minus its expansion, over the group's probability; in NumPy also at several z."""
        if z.ndim == 2:
            return as_either(np.stack([np.asarray(self.values(cached, at, proxy)) for at in z]))
        if isinstance(cached, FlatCache):
            return self._along_path(cached, proxy.where.away(z), proxy)
        model, away = self.model, proxy.where.away(z)
        theta = self.target.unravel(proxy.where.point + away)
        e = _linear(model, self.target.unravel(away), cached.rows)
        T, extras = model.factor(theta), model.extras_of(theta)
        shift = jnp.einsum("jw,jwa->ja", e, cached.near.weighted)
        nodes = model.nodes_near(cached.near, *jax.lax.stop_gradient((T, shift)))
        exact = _likelihoods(self, (e, T, extras), nodes, cached)
        phi = partial(expansion_coordinates, self.target, unit=proxy.unit)
        step = phi(proxy.where.point + away) - phi(proxy.where.point)
        expansion = cached.value
        if self.order >= 1:
            expansion = expansion + cached.slope @ step
        if self.order >= 2:
            expansion = expansion + 0.5 * (cached.curvature @ step) @ step
        return cached.scale * (exact - expansion)

    def log_proxy(self, z: jax.Array, proxy: Proxy) -> jax.Array:
        """Return the quadratic in phi - phi* plus the log-prior."""
        t = proxy.where.unwhiten(z)
        phi = partial(expansion_coordinates, self.target, unit=proxy.unit)
        away = phi(t) - phi(proxy.where.point)
        assert isinstance(proxy.B, jax.Array)
        return away @ (proxy.a + 0.5 * proxy.B @ away) + self.target.log_prior(t)

    @partial(jax.jit, static_argnums=0, inline=True)  # traced once for several uses
    def _expansion(
        self, proxy: Proxy, rows: Batch, size: jax.Array, centre: jax.Array
    ) -> tuple[Integrands, jax.Array, jax.Array, jax.Array]:
        """Expand one group at the anchor: its integrand, and l_j with derivatives in phi."""
        model, theta = self.model, self.target.unravel(proxy.where.point)
        group = PaddedGroup(rows, size)
        near = model.integrands(theta, centre[None], group)
        nodes = model.nodes_near(near, model.factor(theta), 0.0)
        likelihood = self.target.likelihood
        present = jnp.ones(1, bool)
        value, A, B = curvature_sum(
            likelihood, proxy.where.point[: likelihood.size], group, nodes, present
        )
        others = (0, self.target.size - likelihood.size)  # standard deviations of explicit effects
        A, B = jnp.pad(A, others), jnp.pad(B, (others, others))
        alone = Integrands(near.pull[0], near.information[0], near.weighted)
        in_phi = in_expansion_coordinates(self.target, proxy.where.point, A, B, proxy.unit)
        return alone, value, *in_phi

    def _along_path(self, cached: FlatCache, away: jax.Array, proxy: Proxy) -> jax.Array:
        """Residuals of flat groups, expanded along phi - phi*."""
        model, target, flat = self.model, self.target, cached.flat
        T = self.factor_path(proxy, away)
        theta, xp = target.unravel(proxy.where.point + away), namespace(away)

        def shift(T: jax.Array, nodes: Nodes) -> jax.Array:
            return model.along_effects(flat.rows, flat.spread(nodes.v @ T.T))

        eta = cached.eta[:, None]
        e = model.linear(target.unravel(away), flat.rows)
        T_moved, extras = model.factor(theta), model.extras_of(theta)
        moved = model.nodes_near(cached.near, T_moved, model.shift(cached.near, e, flat))
        f = model.row_values(eta + e[:, None] + shift(T_moved, moved), extras, flat.rows)
        exact = log_sum_exp(moved.log_weight + flat.sum(f))
        first, second = e[:, None] + shift(T[1], cached.nodes), shift(T[2], cached.nodes)
        if cached.slopes is not None:
            f1 = cached.slopes[0] * first
            f2 = cached.slopes[1] * first**2 + cached.slopes[0] * second
        else:
            x, at = model.extras_of(target.unravel(proxy.where.point)), shift(T[0], cached.nodes)

            def line(s: jax.Array) -> jax.Array:
                others = tuple(old + s * (new - old) for new, old in zip(extras, x, strict=True))
                return model.row_values(eta + at + s * first + s**2 / 2 * second, others, flat.rows)

            _, f1, f2 = along(line)
        expansion, slope = cached.value, flat.sum(f1)
        mean = xp.sum(cached.p * slope, axis=1)
        if self.order >= 1:
            expansion = expansion + mean
        if self.order >= 2:
            variance = xp.sum(cached.p * (slope - mean[:, None]) ** 2, axis=1)
            expansion = expansion + 0.5 * (xp.sum(cached.p * flat.sum(f2), axis=1) + variance)
        return cached.scale * (exact - expansion)

    def factor_path(self, proxy: Proxy, away: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """T at t* and its first two derivatives along the path to t* + `away`, straight in phi.

        They are those of a Cholesky factor of S: with Phi(A) the lower triangle of A, whose
        diagonal is halved, T' = T Phi(T^-1 S' T^-T) and T'' = T Phi(T^-1 (S'' - 2 T' T'^T) T^-T).
        """
        xp, unravel = namespace(away), self.target.unravel
        factor, unit = self.model.factor, proxy.unit
        T, moved = factor(unravel(proxy.where.point)), factor(unravel(proxy.where.point + away))
        S, then = T @ T.T, moved @ moved.T
        first, second = then - S, xp.zeros_like(S)
        if unit is not None:  # phi = c log(1 + s / c), of independent effects with variances s
            s = xp.diagonal(S)
            ratio, step = 1 + s / unit, unit * xp.log1p((xp.diagonal(then) - s) / (unit + s))
            first, second = xp.diag(ratio * step), xp.diag(ratio * step**2 / unit)
        inverse = xp.linalg.inv(T)

        def slope(change: jax.Array) -> jax.Array:
            inside = xp.tril(inverse @ change @ inverse.T)
            return T @ (inside - 0.5 * xp.diag(xp.diagonal(inside)))

        along = slope(first)
        return T, along, slope(second - 2 * along @ along.T)


def _linear(model: IntegratedEffects, theta: Params, rows: Batch) -> jax.Array:
    """Common predictor of padded rows, (groups, width), by one product for all groups."""
    count, width = rows["y"].shape[:2]
    flat = {name: field.reshape(count * width, *field.shape[2:]) for name, field in rows.items()}
    return model.family.linear(theta, flat).reshape(count, width).astype(jnp.float64)
