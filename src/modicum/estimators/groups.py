"""Control variates of groups whose effects are integrated out.

l_j is nearly linear in the entries of S = T T', the effects' covariance, where these are small, and
far from quadratic in their logarithms. So chains move in the model's own coordinates, while the
control variate is expanded in phi: the coefficients and other parameters unchanged, and the entries
of S. Where S is large compared with the sampling variance of a group's effect, this fails: for
normal outcomes, l_j would be a function of the sum of both variances, and nearly quadratic in its
logarithm. So a variance s is expanded as c log(1 + s / c), which is s where it is small,
with c = 1 / (2 A) and A the usual information of a group. Of simulated binary groups of 2 to 5 rows
with an sd of 2, and 99 of 100 posterior draws, 0.8 groups then leave the variance that 15 would.

Two forms of the same residual. A chain keeps gradient and Hessian of each of its few groups, and
its groups are padded to the largest there is: what is done at all nodes is done for the rows that
are there, side by side. A pass sees every group once: it expands
along phi - phi* instead, where with p the nodes' probabilities at the anchor and h_k the sum over a
group's rows dl = E_p h' and d2l = E_p h'' + Var_p h', and no Hessian is formed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, log_sum_exp, namespace
from modicum.kernels.base import Proxy, scaled
from modicum.models import IntegratedEffects, Target
from modicum.models.base import Batch, Params
from modicum.models.covariance import entries_of, factor_of_entries
from modicum.models.group_batches import BESIDE, FlatGroups, NumPyGroups, PaddedGroup
from modicum.models.integrated import Integrands, Nodes
from modicum.passes import Anchor
from modicum.passes.groups import covariance_places, curvature_sum
from modicum.rows.groups import GroupedRows
from modicum.runtime import SCATTERS, jit, to_device

__all__ = [
    "FlatCache",
    "GroupTaylor",
    "PaddedCache",
    "expansion_coordinates",
    "group_proxy",
    "variance_unit",
]

USUAL_GROUPS = 256  # sample from which the usual size of a group is computed
DENSE = 1_000_000  # entries up to which sums over groups are matrix products


class FlatCache(NamedTuple):
    """Groups of a pass or a pilot study, their rows one after the other, at the anchor."""

    flat: FlatGroups | NumPyGroups
    eta: jax.Array  # common part of the predictor
    near: Integrands
    scale: jax.Array  # one over probability
    nodes: Nodes
    value: jax.Array  # l_j
    p: jax.Array  # probabilities of nodes
    slopes: tuple[jax.Array, jax.Array] | None  # f' and f'' (rows, nodes); None: there are extras


class PaddedCache(NamedTuple):
    """Groups of a chain, (groups, width, ...): only the first `size` rows of each are there."""

    rows: Batch
    size: jax.Array
    eta: jax.Array  # (groups, width)
    near: Integrands  # its `weighted` is (groups, width, effects)
    scale: jax.Array
    value: jax.Array  # l_j at the anchor, and its derivatives in phi
    slope: jax.Array
    curvature: jax.Array


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
        Rows that a group usually has: how many are evaluated at once.
    """

    target: Target
    order: int = 2
    typical: int = 64

    @classmethod
    def fitting(cls, target: Target, order: int, precision: str) -> GroupTaylor | None:
        """For models of this kind; None for others."""
        del precision  # float64: residuals are differences of log-likelihoods of groups
        if not isinstance(target.model, IntegratedEffects):
            return None
        return cls(replace(target, model=replace(target.model, nodes_at=None)), order)

    @property
    def model(self) -> IntegratedEffects:
        """The model."""
        model = self.target.model
        assert isinstance(model, IntegratedEffects)
        return model

    @property
    def fresh_cost(self) -> float:
        """Derivatives of a fresh group take some evaluations of it."""
        return 4.0

    def cache(self, batch: Batch, proxy: Proxy) -> FlatCache | PaddedCache:
        """Find integrands and predictors at the anchor."""
        centre = jnp.asarray(batch["group_centre"])
        scale = 1.0 / jnp.asarray(batch["probability"])
        if "group_of_row" in batch:
            return self.flat_cache(FlatGroups.of(batch), centre, scale, proxy)
        rows = {name: jnp.asarray(field) for name, field in batch.items() if name not in BESIDE}
        if "weight" in rows:
            rows["row_weight"] = rows.pop("weight")
        size = jnp.asarray(batch["group_rows"])
        near, *expansion = jax.vmap(partial(self._expansion, proxy))(rows, size, centre)
        eta = _linear(self.model, self.target.unravel(proxy.point), rows)
        rows.pop("offset", None)  # it is part of eta
        return PaddedCache(rows, size, eta, near, scale, *expansion)

    def flat_cache(
        self, flat: FlatGroups | NumPyGroups, centre: jax.Array, scale: jax.Array, proxy: Proxy
    ) -> FlatCache:
        """What is to be known of flat groups, by JAX or by NumPy."""
        model, theta = self.model, self.target.unravel(proxy.point)
        T, extras = model.covariance.factor(theta), model.extras_of(theta)
        near = model.integrands(theta, centre, flat)
        eta = model.linear(theta, flat.rows)
        nodes = model.nodes_near(near, T, 0.0)
        effects = flat.spread(nodes.v @ T.T)
        at_nodes = eta[:, None] + model.along_effects(flat.rows, effects)
        slopes = None
        if model.family.extras:
            f = model.of_row(at_nodes, extras, flat.rows)
        else:
            f, *slopes_of_f, _ = model.derivatives_of_row(at_nodes, flat.rows)
            slopes = (slopes_of_f[0], slopes_of_f[1])
        terms = nodes.log_weight + flat.sum(f)
        value = log_sum_exp(terms)
        p = namespace(terms).exp(terms - value[:, None])
        rows = {name: field for name, field in flat.rows.items() if name != "offset"}
        return FlatCache(flat._replace(rows=rows), eta, near, scale, nodes, value, p, slopes)

    def values(self, cached: FlatCache | PaddedCache, z: jax.Array, proxy: Proxy) -> jax.Array:
        """l_j less its expansion, over the group's probability."""
        if isinstance(cached, FlatCache):
            away = scaled(proxy.factor, z)
            return self.along(cached, away, proxy, self.factor_path(proxy, proxy.point + away))
        model, away = self.model, scaled(proxy.factor, z)
        theta = self.target.unravel(proxy.point + away)
        moved = self.target.unravel(away)
        e = _linear(model, moved, cached.rows)
        T, extras = model.covariance.factor(theta), model.extras_of(theta)
        shift = jnp.einsum("jw,jwa->ja", e, cached.near.weighted)
        nodes = model.nodes_near(cached.near, *jax.lax.stop_gradient((T, shift)))
        exact = _likelihoods(model, self.typical, (e, T, extras), nodes, cached)
        phi = partial(expansion_coordinates, self.target, unit=proxy.unit)
        step = phi(proxy.point + away) - phi(proxy.point)
        expansion = cached.value
        if self.order >= 1:
            expansion = expansion + cached.slope @ step
        if self.order >= 2:
            expansion = expansion + 0.5 * (cached.curvature @ step) @ step
        return cached.scale * (exact - expansion)

    def log_proxy(self, z: jax.Array, proxy: Proxy) -> jax.Array:
        """The quadratic in phi - phi*, and the prior."""
        t = proxy.point + scaled(proxy.factor, z)
        phi = partial(expansion_coordinates, self.target, unit=proxy.unit)
        away = phi(t) - phi(proxy.point)
        assert isinstance(proxy.B, jax.Array)
        return away @ (proxy.a + 0.5 * proxy.B @ away) + self.target.log_prior(t)

    def _expansion(
        self, proxy: Proxy, rows: Batch, size: jax.Array, centre: jax.Array
    ) -> tuple[Integrands, jax.Array, jax.Array, jax.Array]:
        """One group at the anchor: its integrand, and l_j with its derivatives in phi."""
        model, theta = self.model, self.target.unravel(proxy.point)
        group = PaddedGroup(rows, size)
        near = model.integrands(theta, centre[None], group)
        nodes = model.nodes_near(near, model.covariance.factor(theta), 0.0)
        read = self.target.likelihood
        present = jnp.ones(1, bool)
        value, A, B = curvature_sum(read, proxy.point[: read.size], group, nodes, present)
        others = (0, self.target.size - read.size)  # standard deviations of explicit effects
        A, B = jnp.pad(A, others), jnp.pad(B, (others, others))
        alone = Integrands(near.pull[0], near.information[0], near.weighted)
        return alone, value, *in_expansion_coordinates(self.target, proxy.point, A, B, proxy.unit)

    def along(
        self, cached: FlatCache, away: jax.Array, proxy: Proxy, T: tuple[jax.Array, ...]
    ) -> jax.Array:
        """The residuals of flat groups, expanded along phi - phi*.

        T is the factor of the effects' covariance at the anchor, and its two derivatives along
        phi - phi*.
        """
        model, target, flat = self.model, self.target, cached.flat
        theta, xp = target.unravel(proxy.point + away), namespace(away)

        def shift(T: jax.Array, nodes: Nodes) -> jax.Array:
            return model.along_effects(flat.rows, flat.spread(nodes.v @ T.T))

        eta = cached.eta[:, None]
        e = model.linear(target.unravel(away), flat.rows)
        there, extras = model.covariance.factor(theta), model.extras_of(theta)
        moved = model.nodes_near(cached.near, there, model.shift(cached.near, e, flat))
        f = model.of_row(eta + e[:, None] + shift(there, moved), extras, flat.rows)
        exact = log_sum_exp(moved.log_weight + flat.sum(f))
        first, second = e[:, None] + shift(T[1], cached.nodes), shift(T[2], cached.nodes)
        if cached.slopes is not None:
            f1 = cached.slopes[0] * first
            f2 = cached.slopes[1] * first**2 + cached.slopes[0] * second
        else:
            x, at = model.extras_of(target.unravel(proxy.point)), shift(T[0], cached.nodes)

            def line(s: jax.Array) -> jax.Array:
                others = tuple(old + s * (new - old) for new, old in zip(extras, x, strict=True))
                return model.of_row(eta + at + s * first + s**2 / 2 * second, others, flat.rows)

            _, f1, f2 = _derivatives(line)
        expansion, slope = cached.value, flat.sum(f1)
        mean = xp.sum(cached.p * slope, axis=1)
        if self.order >= 1:
            expansion = expansion + mean
        if self.order >= 2:
            variance = xp.sum(cached.p * (slope - mean[:, None]) ** 2, axis=1)
            expansion = expansion + 0.5 * (xp.sum(cached.p * flat.sum(f2), axis=1) + variance)
        return cached.scale * (exact - expansion)

    def path_of_variances(self, proxy: Proxy, away: np.ndarray) -> tuple[np.ndarray, ...]:
        """The same for independent effects, by NumPy.

        With s a variance and c its unit, phi = c log(1 + s / c), of which ds = (1 + s / c) dphi and
        d2s = (1 + s / c) dphi^2 / c; and T has the roots of the variances.
        """
        own = covariance_places(self.target)
        point = np.asarray(proxy.point)
        s, there = np.exp(2 * point[own]), np.exp(2 * (point + away)[own])
        if proxy.unit is None:
            first, second = there - s, np.zeros_like(s)
        else:
            unit = np.asarray(proxy.unit)
            ratio, step = 1 + s / unit, unit * (np.log1p(there / unit) - np.log1p(s / unit))
            first, second = ratio * step, ratio * step**2 / unit
        sd = np.sqrt(s)
        slope = first / (2 * sd)
        return np.diag(sd), np.diag(slope), np.diag((second / 2 - slope**2) / sd)

    def factor_path(self, proxy: Proxy, t: jax.Array) -> tuple[jax.Array, ...]:
        """T and its two derivatives along the straight line in the coordinates of S, at t*."""
        covariance, unravel = self.model.covariance, self.target.unravel

        def coordinates(t: jax.Array) -> jax.Array:
            entries = entries_of(covariance.factor(unravel(t)), covariance.correlated)
            return _bent(entries, proxy.unit)

        start = coordinates(proxy.point)
        away = coordinates(t) - start

        def path(s: jax.Array) -> jax.Array:
            entries = _straight(start + s * away, proxy.unit)
            return factor_of_entries(entries, covariance.size, covariance.correlated)

        return _derivatives(path)


def _linear(model: IntegratedEffects, theta: Params, rows: Batch) -> jax.Array:
    """The common predictor of padded rows, (groups, width): one product for all."""
    count, width = rows["y"].shape[:2]
    flat = {name: field.reshape(count * width, *field.shape[2:]) for name, field in rows.items()}
    return model.family.linear(theta, flat).reshape(count, width).astype(jnp.float64)


def _derivatives(path: Callable[[jax.Array], jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A function of one number at 0, and its first two derivatives there."""
    one, zero = jnp.ones(()), jnp.zeros(())
    (value, first), (_, second) = jax.jvp(lambda s: jax.jvp(path, (s,), (one,)), (zero,), (one,))
    return value, first, second


# Log-likelihoods of padded groups ---------------------------------------------------------
#
# Their gradient is an expectation over nodes: nothing of all rows at all nodes is kept for a
# backward sweep. Nodes are fixed under differentiation, as in passes: the integral does not depend
# on where they are. Only rows that are there are evaluated, a piece at a time, as many pieces as
# they fill: groups are padded to the largest there is, and most are far smaller.

Moving = tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]  # predictors' shift, T, extras
PIECES = 4  # that rows of the usual number fill
SHORTEST, LONGEST = 32, 1024  # rows of a piece


class _Piece(NamedTuple):
    """Some of the rows that are there: group after group, without what is beyond their ends."""

    group: jax.Array  # of each row, (rows,)
    place: jax.Array  # within its group
    there: jax.Array
    members: jax.Array | None  # 1 for the rows of each group, (rows, groups); None: too many

    @classmethod
    def of(cls, k: jax.Array, rows: int, cached: PaddedCache) -> _Piece:
        """The k-th piece of so many rows."""
        count, width = cached.eta.shape
        end = jnp.cumsum(cached.size)
        slot = k * rows + jnp.arange(rows)
        group = jnp.sum(slot[:, None] >= end, axis=1)
        there = group < count
        group = jnp.minimum(group, count - 1)
        place = jnp.clip(slot - (end - cached.size)[group], 0, width - 1)
        few = count * rows <= DENSE
        members = (group[:, None] == jnp.arange(count)) & there[:, None]
        return cls(group, place, there, members.astype(jnp.float64) if few else None)

    def total(self, values: jax.Array, count: int) -> jax.Array:
        """Over the rows of each group that are there: (nodes, rows) to (nodes, groups)."""
        kept = jnp.where(self.there, values, 0.0)  # padding may be NaN, and so is zero times NaN
        if self.members is not None:
            return kept @ self.members
        sums = jax.ops.segment_sum(kept.T, self.group, count, indices_are_sorted=True)
        return sums.T

    def spread(self, values: jax.Array) -> jax.Array:
        """The value of its group for each row: (nodes, groups) to (nodes, rows)."""
        return values[:, self.group]


def _pieces(typical: int, cached: PaddedCache) -> tuple[int, jax.Array]:
    """Rows of a piece, and how many pieces the rows that are there fill."""
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
    return jax.lax.optimization_barrier(eta), z, rows  # made once, not in every sum


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _likelihoods(
    model: IntegratedEffects, typical: int, moving: Moving, nodes: Nodes, cached: PaddedCache
) -> jax.Array:
    """l_j of each group."""
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
        f = jax.vmap(lambda eta: model.of_row(eta, moving[2], seen))(eta)
        return sums + piece.total(f, count)

    zero = jnp.zeros(nodes.log_weight.shape[::-1])
    return nodes.log_weight + jax.lax.fori_loop(0, number, add, zero).T


@_likelihoods.defjvp
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

    And at each node those of sum_i f in the effects (effects, nodes, groups), and in each extra.
    """
    rows, number = _pieces(typical, cached)
    count, width = cached.eta.shape
    extras = moving[2]

    def add(k: jax.Array, held: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        by_row, scores, *by_extra = held
        piece = _Piece.of(k, rows, cached)
        eta, z, seen = _predictors(model, piece, moving, nodes, cached)
        f1 = jax.vmap(lambda eta: model.slope_of_row(eta, extras, seen))(eta)
        along = jnp.sum(piece.spread(p) * f1, axis=0)
        by_row = jax.lax.dynamic_update_slice_in_dim(by_row, along, k * rows, 0)
        added = [piece.total(f1 * z[:, a], count) for a in range(model.effects)]
        for i in range(len(extras)):

            def at_extra(x: jax.Array, i: int = i) -> jax.Array:
                others = (*extras[:i], x, *extras[i + 1 :])
                return jax.vmap(lambda eta: model.of_row(eta, others, seen))(eta)

            slope = jax.jvp(at_extra, (extras[i],), (jnp.ones_like(extras[i]),))[1]
            by_extra[i] = by_extra[i] + piece.total(slope, count)
        return by_row, scores + jnp.stack(added), *by_extra

    zero = jnp.zeros(p.shape)
    most = rows * ceil(count * width / rows)
    start = (jnp.zeros(most), jnp.stack([zero] * model.effects), *[zero] * len(extras))
    by_row, scores, *by_extra = jax.lax.fori_loop(0, number, add, start)
    first = jnp.cumsum(cached.size) - cached.size
    at = jnp.minimum(first[:, None] + jnp.arange(width), most - 1)
    padded = jnp.where(jnp.arange(width) < cached.size[:, None], by_row[at], 0.0)
    return padded, scores, by_extra


# Coordinates ------------------------------------------------------------------------------


def _bent(entries: jax.Array, unit: jax.Array | None) -> jax.Array:
    """c log(1 + s / c) of variances s; their own where no unit c is known."""
    return entries if unit is None else unit * jnp.log1p(entries / unit)


def _straight(bent: jax.Array, unit: jax.Array | None) -> jax.Array:
    """Undo `_bent`."""
    return bent if unit is None else unit * jnp.expm1(bent / unit)


def expansion_coordinates(target: Target, t: jax.Array, unit: jax.Array | None = None) -> jax.Array:
    """phi(t): t with coordinates of S in place of the covariance's own parameters."""
    own = covariance_places(target)
    t = jnp.asarray(t)
    return t.at[own].set(_entries(target, t, unit, t[own]))


def _entries(target: Target, t: jax.Array, unit: jax.Array | None, own: jax.Array) -> jax.Array:
    model = target.model
    assert isinstance(model, IntegratedEffects)
    covariance = model.covariance
    theta = target.unravel(jnp.asarray(t).at[covariance_places(target)].set(own))
    return _bent(entries_of(covariance.factor(theta), covariance.correlated), unit)


def in_expansion_coordinates(
    target: Target,
    t: jax.Array,
    gradient: jax.Array,
    hessian: jax.Array,
    unit: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Derivatives in phi of a function with these derivatives in t.

    With J = dphi/dt, A_t = J'A and B_t = J'B J + sum_k A_k phi_k''; J differs from the identity for
    the covariance's parameters only.
    """
    own = covariance_places(target)
    t = jnp.asarray(t)
    entries = partial(_entries, target, t, unit)
    inverse = jnp.linalg.inv(jax.jacfwd(entries)(t[own]))
    A = gradient.at[own].set(inverse.T @ gradient[own])
    bent = jax.hessian(lambda s: entries(s) @ A[own])(t[own])
    B = hessian.at[np.ix_(own, own)].add(-bent)
    B = B.at[:, own].set(B[:, own] @ inverse)
    B = B.at[own].set(inverse.T @ B[own])
    return A, B


_converted = jit(static=0)(in_expansion_coordinates)


def _converted_by_numpy(
    target: Target, t: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, unit: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same for independent effects: phi = c log(1 + s / c) of s = e^2t."""
    own = covariance_places(target)
    s = np.exp(2 * t[own])
    slope, bend = 2 * s / (1 + s / unit), 4 * s / (1 + s / unit) ** 2
    by_own = np.ones(len(t))
    by_own[own] = 1 / slope
    A = gradient * by_own
    B = hessian.copy()
    B[own, own] -= bend * A[own]
    return A, B * by_own * by_own[:, None]


def group_proxy(anchor: Anchor, target: Target, order: int, unit: jax.Array | None = None) -> Proxy:
    """The anchor's sums in phi, with variances in this unit (see `variance_unit`)."""
    assert isinstance(anchor.B, np.ndarray)
    sums = (anchor.point, anchor.A, anchor.B)
    if unit is None:
        A, B = map(np.asarray, _converted(target.likelihood, *to_device(sums)))
    else:
        A, B = _converted_by_numpy(target.likelihood, *sums, np.asarray(unit))
    A, B = A * (order >= 1), (B + B.T) / 2 * (order >= 2)
    point, factor, A, B = to_device((anchor.point, anchor.factor, A, B))
    return Proxy(point, factor, A, B, warp=anchor.warp(target), unit=unit)


def variance_unit(target: Target, point: np.ndarray, groups: GroupedRows) -> jax.Array | None:
    """c of each effect: half of what a usual group leaves of its variance, by the data alone.

    None for correlated effects, which have covariances too.
    """
    model = target.model
    assert isinstance(model, IntegratedEffects)
    assert groups.nodes is not None
    if model.effects > 1 and model.covariance.correlated:
        return None
    group_ids = np.linspace(0, len(groups) - 1, min(len(groups), USUAL_GROUPS)).astype(int)
    batch = groups.take(group_ids)
    if target.on_numpy:
        information = _information(target, as_either(point), NumPyGroups.of(batch), batch)
    else:
        information = _compiled_information(target, to_device(point), batch)
    usual = np.median(np.asarray(information), axis=0)
    unit: jax.Array = to_device(0.5 / np.maximum(usual, 1e-8))
    return unit


def _information(
    target: Target, point: jax.Array, flat: FlatGroups | NumPyGroups, batch: Batch
) -> jax.Array:
    """Information of each group about each of its effects, (groups, effects)."""
    model = target.model
    assert isinstance(model, IntegratedEffects)
    near = model.integrands(target.unravel(point), as_either(batch["group_centre"]), flat)
    return namespace(point).diagonal(near.information, axis1=1, axis2=2)


@jit(static=0, options=SCATTERS)
def _compiled_information(target: Target, point: jax.Array, batch: Batch) -> jax.Array:
    return _information(target, point, FlatGroups.of(batch), batch)
