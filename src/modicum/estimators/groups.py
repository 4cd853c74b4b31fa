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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.base import Proxy, scaled
from modicum.models import IntegratedEffects, Target
from modicum.models.base import Batch, Params
from modicum.models.covariance import entries_of, factor_of_entries
from modicum.models.group_batches import FlatGroups, PaddedGroup
from modicum.models.integrated import Integrands, Nodes
from modicum.passes import Anchor
from modicum.passes.groups import curvature_sum
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
    """Groups of a pass or a pilot study, their rows one after the other."""

    rows: Batch
    group: jax.Array  # of each row
    eta: jax.Array  # common part of the predictor at the anchor
    near: Integrands
    scale: jax.Array  # one over probability


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
        Rows per group that there is usually room for; others are evaluated all the same.
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
        model = self.model
        own = {*GroupedRows.RESERVED[:-1], "probability"}
        rows = {name: jnp.asarray(f) for name, f in batch.items() if name not in own}
        if "weight" in rows:
            rows["row_weight"] = rows.pop("weight")
        centre = jnp.asarray(batch["group_centre"])
        scale = 1.0 / jnp.asarray(batch["probability"])
        theta = self.target.unravel(proxy.point)
        if "group_of_row" in batch:
            flat = FlatGroups.of(batch)
            near = model.integrands(theta, centre, flat)
            eta = model.family.linear(theta, rows).astype(jnp.float64)
            rows.pop("offset", None)  # it is part of eta
            return FlatCache(rows, flat.group, eta, near, scale)
        size = jnp.asarray(batch["group_rows"])
        near, *expansion = jax.vmap(partial(self._expansion, proxy))(rows, size, centre)
        eta = _linear(model, theta, rows)
        rows.pop("offset", None)
        return PaddedCache(rows, size, eta, near, scale, *expansion)

    def values(self, cached: FlatCache | PaddedCache, z: jax.Array, proxy: Proxy) -> jax.Array:
        """l_j less its expansion, over the group's probability."""
        if isinstance(cached, FlatCache):
            return self._along(cached, scaled(proxy.factor, z), proxy)
        model, away = self.model, scaled(proxy.factor, z)
        theta = self.target.unravel(proxy.point + away)
        moved = self.target.unravel(away)
        e = _linear(model, moved, cached.rows)
        T, extras = model.covariance.factor(theta), model.extras_of(theta)
        shift = jnp.einsum("jw,jwa->ja", e, cached.near.weighted)
        nodes = model.nodes_near(cached.near, T, shift)
        exact = _likelihoods(model, self.typical, (e, T, extras, nodes), cached)
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
        nodes = model.nodes_near(near, model.covariance.factor(theta), jnp.zeros(()))
        read = self.target.likelihood
        present = jnp.ones(1, bool)
        value, A, B = curvature_sum(read, proxy.point[: read.size], group, nodes, present)
        others = (0, self.target.size - read.size)  # standard deviations of explicit effects
        A, B = jnp.pad(A, others), jnp.pad(B, (others, others))
        alone = Integrands(near.pull[0], near.information[0], near.weighted)
        return alone, value, *in_expansion_coordinates(self.target, proxy.point, A, B, proxy.unit)

    def _along(self, cached: FlatCache, away: jax.Array, proxy: Proxy) -> jax.Array:
        """The residuals of a flat batch, expanded along phi - phi*."""
        model, target = self.model, self.target
        theta, anchor = target.unravel(proxy.point + away), target.unravel(proxy.point)
        flat = FlatGroups(cached.rows, cached.group, len(cached.scale))
        columns = model.effect_columns(flat.rows)

        def shift(T: jax.Array, nodes: Nodes) -> jax.Array:
            effects = flat.spread(jnp.einsum("ab,jkb->jka", T, nodes.v))
            return jnp.einsum("ia,ika->ik", columns, effects)

        eta = cached.eta[:, None]
        e = model.family.linear(target.unravel(away), flat.rows).astype(jnp.float64)[:, None]
        T = self._factor_path(proxy, proxy.point + away)
        extras, x = model.extras_of(theta), model.extras_of(anchor)
        there = model.covariance.factor(theta)
        moved = model.nodes_near(cached.near, there, flat.sum(e * cached.near.weighted))
        f = model.of_row(eta + e + shift(there, moved), extras, flat.rows)
        exact = jax.nn.logsumexp(moved.log_weight + flat.sum(f), axis=1)
        nodes = model.nodes_near(cached.near, T[0], jnp.zeros(()))
        at = (eta + shift(T[0], nodes), e + shift(T[1], nodes), shift(T[2], nodes))

        def along(s: jax.Array) -> jax.Array:
            others = tuple(old + s * (new - old) for new, old in zip(extras, x, strict=True))
            return model.of_row(at[0] + s * at[1] + 0.5 * s**2 * at[2], others, flat.rows)

        f0, f1, f2 = _derivatives(along)
        terms = nodes.log_weight + flat.sum(f0)
        expansion = jax.nn.logsumexp(terms, axis=1)
        p = jnp.exp(terms - expansion[:, None])
        slope = flat.sum(f1)
        mean = jnp.sum(p * slope, axis=1)
        if self.order >= 1:
            expansion = expansion + mean
        if self.order >= 2:
            variance = jnp.sum(p * (slope - mean[:, None]) ** 2, axis=1)
            expansion = expansion + 0.5 * (jnp.sum(p * flat.sum(f2), axis=1) + variance)
        return cached.scale * (exact - expansion)

    def _factor_path(self, proxy: Proxy, t: jax.Array) -> tuple[jax.Array, ...]:
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
# Their gradient is an expectation over nodes, and is made with the value: a padded row has the
# weight 0 in both, and nothing of all rows at all nodes is kept for a backward sweep.

# predictors' shift, T, extras, nodes; and l_j with its slopes in them
Moving = tuple[jax.Array, jax.Array, tuple[jax.Array, ...], Nodes]
Slopes = tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...], Nodes]


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _likelihoods(
    model: IntegratedEffects, typical: int, moving: Moving, cached: PaddedCache
) -> jax.Array:
    """l_j of each group."""
    return _with_slopes(model, typical, moving, cached)[0]


@_likelihoods.defjvp
def _likelihoods_slope(
    model: IntegratedEffects,
    typical: int,
    at: tuple[Moving, PaddedCache],
    tangents: tuple[Moving, object],
) -> tuple[jax.Array, jax.Array]:
    value, by_row, by_factor, by_extra, by_node = _with_slopes(model, typical, *at)
    e, T, extras, nodes = tangents[0]
    change = jnp.sum(by_row * e, axis=1) + jnp.einsum("jab,ab->j", by_factor, T)
    change = change + jnp.sum(by_node.v * nodes.v, axis=(1, 2))
    change = change + jnp.sum(by_node.log_weight * nodes.log_weight, axis=1)
    for slope, extra in zip(by_extra, extras, strict=True):
        change = change + slope * extra
    return value, change


def _with_slopes(
    model: IntegratedEffects, typical: int, moving: Moving, cached: PaddedCache
) -> Slopes:
    """l_j, and its derivatives in the predictor of each row, in T, in the extras and the nodes.

    The rows that are there are evaluated side by side: in the usual room, and only where they do
    not fit there in room for groups as large as the largest.
    """
    count, width = cached.eta.shape
    usual = typical * count
    if 2 * usual > count * width:
        return _in_room(model, count * width, moving, cached)
    fits = jnp.sum(cached.size) <= usual
    result: Slopes = jax.lax.cond(
        fits,
        partial(_in_room, model, usual),
        partial(_in_room, model, count * width),
        moving,
        cached,
    )
    return result


def _in_room(model: IntegratedEffects, room: int, moving: Moving, cached: PaddedCache) -> Slopes:
    """The same where at most `room` rows are there."""
    e, T, extras, nodes = moving
    count, width = cached.eta.shape
    size = cached.size
    first = jnp.cumsum(size) - size
    slot = jnp.arange(room)
    group = jnp.sum(slot[:, None] >= first + size, axis=1)
    there = group < count
    group = jnp.minimum(group, count - 1)
    place = jnp.clip(slot - first[group], 0, width - 1)
    rows = {name: field[group, place] for name, field in cached.rows.items()}
    sums = _Sums(group, there, count)
    z = model.effect_columns(rows)
    effects = sums.spread(jnp.einsum("ab,jkb->jka", T, nodes.v))
    shift = effects[..., 0] * z[:, :1]
    for a in range(1, model.effects):
        shift = shift + effects[..., a] * z[:, a : a + 1]
    eta = jax.lax.optimization_barrier((cached.eta + e)[group, place][:, None] + shift)

    def f(eta: jax.Array, *extras: jax.Array) -> jax.Array:
        return model.of_row(eta, extras, rows)

    both = jax.jvp(lambda eta: f(eta, *extras), (eta,), (jnp.ones_like(eta),))
    value_at, f1 = jax.lax.optimization_barrier(both)  # made once, not in every sum
    terms = nodes.log_weight + sums.total(value_at)
    value = jax.nn.logsumexp(terms, axis=1)
    p = jnp.exp(terms - value[:, None])
    by_row = jnp.sum(sums.spread(p) * f1, axis=1)
    # sum_i z_ia sum_k p_jk f1_ik v_jkb, over the rows first
    scores = jnp.stack([sums.total(f1 * z[:, a : a + 1]) for a in range(model.effects)], axis=1)
    by_factor = jnp.einsum("jak,jk,jkb->jab", scores, p, nodes.v)
    by_node = Nodes(jnp.einsum("ab,jak,jk->jkb", T, scores, p), p)
    by_extra = []
    for k in range(len(extras)):
        unit = tuple(jnp.where(i == k, 1.0, 0.0) for i in range(len(extras)))
        slope = jax.jvp(lambda *x: f(eta, *x), extras, unit)[1]
        by_extra.append(jnp.sum(p * sums.total(slope), axis=1))
    at = jnp.minimum(first[:, None] + jnp.arange(width), room - 1)
    padded = jnp.where(jnp.arange(width) < size[:, None], by_row[at], 0.0)
    return value, padded, by_factor, tuple(by_extra), by_node


class _Sums:
    """Sums over the rows of a few groups, as products with the membership matrix.

    With many groups, rows are scattered and gathered instead.
    """

    def __init__(self, group: jax.Array, there: jax.Array, count: int) -> None:
        self._group, self._there, self._count = group, there, count
        few = count * len(group) <= DENSE
        members = (group == jnp.arange(count)[:, None]) & there
        self._members = members.astype(jnp.float64) if few else None

    def total(self, values: jax.Array) -> jax.Array:
        """Over the rows of each group that are there, (groups, nodes)."""
        if self._members is not None:
            # Padding may be NaN, and zero times NaN is NaN.
            return self._members @ jnp.where(self._there[:, None], values, 0.0)
        kept = jnp.where(self._there[:, None], values, 0.0)
        return jax.ops.segment_sum(kept, self._group, self._count, indices_are_sorted=True)

    def spread(self, values: jax.Array) -> jax.Array:
        """The value of its group for each row."""
        if self._members is None:
            return values[self._group]
        flat = self._members.T @ values.reshape(self._count, -1)
        return flat.reshape(-1, *values.shape[1:])


# Coordinates ------------------------------------------------------------------------------


def _covariance_places(target: Target) -> np.ndarray:
    """Places in the flat vector of the covariance's own parameters."""
    places = target.unravel(np.arange(target.size))
    own = [places[name] for name in ("group_log_sd", "group_partial") if name in places]
    return np.concatenate(own)


def _bent(entries: jax.Array, unit: jax.Array | None) -> jax.Array:
    """c log(1 + s / c) of variances s; their own where no unit c is known."""
    return entries if unit is None else unit * jnp.log1p(entries / unit)


def _straight(bent: jax.Array, unit: jax.Array | None) -> jax.Array:
    """Undo `_bent`."""
    return bent if unit is None else unit * jnp.expm1(bent / unit)


def expansion_coordinates(target: Target, t: jax.Array, unit: jax.Array | None = None) -> jax.Array:
    """phi(t): t with coordinates of S in place of the covariance's own parameters."""
    own = _covariance_places(target)
    t = jnp.asarray(t)
    return t.at[own].set(_entries(target, t, unit, t[own]))


def _entries(target: Target, t: jax.Array, unit: jax.Array | None, own: jax.Array) -> jax.Array:
    model = target.model
    assert isinstance(model, IntegratedEffects)
    covariance = model.covariance
    theta = target.unravel(jnp.asarray(t).at[_covariance_places(target)].set(own))
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
    own = _covariance_places(target)
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


def group_proxy(anchor: Anchor, target: Target, order: int, unit: jax.Array | None = None) -> Proxy:
    """The anchor's sums in phi, with variances in this unit (see `variance_unit`)."""
    point = to_device(anchor.point)
    A, B = to_device((anchor.A, anchor.B))
    A, B = _converted(target.likelihood, point, A, B, unit)
    return Proxy(
        point,
        to_device(anchor.factor),
        A if order >= 1 else jnp.zeros_like(A),
        (B + B.T) / 2 if order >= 2 else jnp.zeros_like(B),
        warp=anchor.warp(target),
        unit=unit,
    )


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
    information = np.asarray(_information(target, jnp.asarray(point), batch))
    usual = np.median(information, axis=0)
    unit: jax.Array = to_device(0.5 / np.maximum(usual, 1e-8))
    return unit


@jit(static=0, options=SCATTERS)
def _information(target: Target, point: jax.Array, batch: Batch) -> jax.Array:
    """Information of each group about each of its effects, (groups, effects)."""
    model = target.model
    assert isinstance(model, IntegratedEffects)
    theta = target.unravel(point)
    near = model.integrands(theta, batch["group_centre"], FlatGroups.of(batch))
    return jnp.diagonal(near.information, axis1=1, axis2=2)
