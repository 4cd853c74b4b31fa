"""Coordinates phi in which the log-likelihoods of groups are expanded.

l_j is nearly linear in the entries of S = T T', the effects' covariance, where these are small, and
far from quadratic in their logarithms. So chains move in the model's own coordinates, while the
control variate is expanded in phi: the entries of S, and all other parameters unchanged. Where S is
large compared with the sampling variance of a group's effect, this fails: for normal outcomes, l_j
would be a function of the sum of both variances, and nearly quadratic in its logarithm. So a
variance s is expanded as c log(1 + s / c), which is about s where s is small, with c = 1 / (2 A)
and A the median information of a group. For simulated binary groups of 2 to 5 rows
with an sd of 2, a subsample of 0.8 groups then leaves the variance that 15 would at 99 of 100
posterior draws.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, namespace
from modicum.kernels.base import Proxy
from modicum.models import IntegratedEffects, Target
from modicum.models.base import Batch
from modicum.models.groups.batches import FlatGroups, NumPyGroups
from modicum.models.groups.covariance import entries_of
from modicum.passes import Anchor
from modicum.passes.groups import covariance_places
from modicum.rows.groups import GroupedRows
from modicum.runtime import SCATTERS, jit, to_device

USUAL_GROUPS = 256  # sample of groups from which the median information is computed


def from_variances(entries: jax.Array, unit: jax.Array | None) -> jax.Array:
    """c log(1 + s / c) of variances s; s itself where there is no unit c."""
    return entries if unit is None else unit * jnp.log1p(entries / unit)


def to_variances(coordinates: jax.Array, unit: jax.Array | None) -> jax.Array:
    """Undo `from_variances`."""
    return coordinates if unit is None else unit * jnp.expm1(coordinates / unit)


def expansion_coordinates(target: Target, t: jax.Array, unit: jax.Array | None = None) -> jax.Array:
    """phi(t): t with the covariance's parameters replaced by coordinates of S."""
    own = covariance_places(target)
    t = jnp.asarray(t)
    return t.at[own].set(_entries(target, t, unit, t[own]))


def _entries(target: Target, t: jax.Array, unit: jax.Array | None, own: jax.Array) -> jax.Array:
    model = target.model
    assert isinstance(model, IntegratedEffects)
    covariance = model.covariance
    theta = target.unravel(jnp.asarray(t).at[covariance_places(target)].set(own))
    return from_variances(entries_of(covariance.factor(theta), covariance.correlated), unit)


def in_expansion_coordinates(
    target: Target,
    t: jax.Array,
    gradient: jax.Array,
    hessian: jax.Array,
    unit: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Convert the gradient and Hessian of a function from t to phi.

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


_compiled_conversion = jit(static=0)(in_expansion_coordinates)


def _in_expansion_coordinates_by_numpy(
    target: Target, t: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, unit: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`in_expansion_coordinates` for independent effects: phi = c log(1 + s / c), s = e^2t."""
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
    """Return the anchor's sums in phi, with variances in `unit` (see `variance_unit`)."""
    assert isinstance(anchor.B, np.ndarray)
    sums = (anchor.point, anchor.A, anchor.B)
    if unit is None:
        A, B = map(np.asarray, _compiled_conversion(target.likelihood, *to_device(sums)))
    else:
        A, B = _in_expansion_coordinates_by_numpy(target.likelihood, *sums, np.asarray(unit))
    A, B = A * (order >= 1), (B + B.T) / 2 * (order >= 2)
    point, factor, A, B = to_device((anchor.point, anchor.factor, A, B))
    return Proxy(point, factor, A, B, warp=anchor.warp(target), unit=unit)


def variance_unit(target: Target, point: np.ndarray, groups: GroupedRows) -> jax.Array | None:
    """Return c of each effect: half its sampling variance in a group of median information.

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
