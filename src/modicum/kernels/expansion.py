"""Coordinates in which rows and groups are expanded, where they differ from the sampled ones.

A scale, a dispersion or a probability near 0 is sampled on the log scale, where the log-likelihood
may be far from quadratic; in the scale itself, its square or its reciprocal it may be nearly so.
With w = t - t* of such an entry, every row is expanded in

    v = (e^(p w) - 1) / p,    or in w itself for a power p of 0.

The sums at the anchor can be reused: if A and B are the gradient and Hessian in t, those in v are A
and B - diag(p A), since v has the derivatives 1 and p there. Trying a power takes no pass.

The log-likelihood l_j of a group is expanded in phi: the entries of S = T T', the effects'
covariance, and all other parameters unchanged. l_j is nearly linear in S where it is small, and far
from quadratic in its logarithms. Where S is large compared with the sampling variance of a group's
effect, this fails: for normal outcomes, l_j would be a function of the sum of both variances, and
nearly quadratic in its logarithm. So a variance s is expanded as c log(1 + s / c), which is about s
where s is small, with c = 1 / (2 A) and A the median information of a group. For simulated binary
groups of 2 to 5 rows with an sd of 2, a subsample of 0.8 groups then leaves the variance that 15
would at 99 of 100 posterior draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, namespace
from modicum.kernels.protocols import Bend, Proxy
from modicum.models import Target
from modicum.models.covariances import entries_of
from modicum.models.integrals import FlatGroups, NumPyGroups
from modicum.models.model import Batch
from modicum.passes import Anchor
from modicum.passes.group_hessian import covariance_places, factor_derivatives
from modicum.rows.grouped_rows import GroupedRows
from modicum.runtime import SCATTERS, jit, to_device

# Coordinates in which a parameter that is sampled on the log scale can be expanded.
POWERS = {
    "log": 0.0,
    "identity": 1.0,
    "square": 2.0,
    "reciprocal": -1.0,
    "reciprocal square": -2.0,
}


def bend(anchor: Anchor, where: Sequence[int] | np.ndarray, power: np.ndarray) -> Bend:
    """Return the tables for expanding the entries `where` of t in powers of their exponentials."""
    places = np.asarray(where, int)
    lines = anchor.dense_hessian[places]
    return Bend(
        to_device(places),
        to_device(np.asarray(power, np.float64)),
        to_device(anchor.A[places]),
        to_device(lines @ anchor.dense_factor),
        to_device(lines[:, places]),
    )


def bent_path(s: jax.Array, away: jax.Array, proxy: Proxy) -> jax.Array:
    """t at a fraction s of the way from t* to t* + `away`, on a line that is straight in v."""
    t = proxy.point + s * away
    if proxy.bend is None:
        return t
    where, power = proxy.bend.where, proxy.bend.power
    return t.at[where].set(proxy.point[where] + _inverse(s * _bent(away[where], power), power))


def bent_sum(z: jax.Array, proxy: Proxy) -> jax.Array:
    """Difference between the sum of the proxies in v and the quadratic in w = L z.

    With c = v - w at the bent entries, A'v + v'(B - diag(p A)) v / 2 is the quadratic in w plus
    A'c + c'Bw + c'Bc / 2 - sum p A v^2 / 2.
    """
    bend = proxy.bend
    if bend is None:
        return jnp.zeros(())
    w = proxy.factor[bend.where] @ z
    v = _bent(w, bend.power)
    c = v - w
    further = c @ (bend.slope + bend.curve @ z + 0.5 * bend.block @ c)
    return further - 0.5 * jnp.sum(bend.power * bend.slope * v**2)


def _bent(w: jax.Array, power: jax.Array) -> jax.Array:
    safe = jnp.where(power == 0, 1.0, power)
    return jnp.where(power == 0, w, jnp.expm1(safe * w) / safe)


def _inverse(v: jax.Array, power: jax.Array) -> jax.Array:
    safe = jnp.where(power == 0, 1.0, power)
    # a NaN in the branch not taken would propagate to the derivative
    inside = jnp.where(power == 0, 0.0, safe * v)
    return jnp.where(power == 0, v, jnp.log1p(inside) / safe)


USUAL_GROUPS = 256  # sample of groups from which the median information is computed


def expansion_coordinates(target: Target, t: jax.Array, unit: jax.Array | None = None) -> jax.Array:
    """phi(t): t with the covariance's parameters replaced by coordinates of S."""
    t, covariance = jnp.asarray(t), target.integrated.covariance
    entries = entries_of(covariance.factor(target.unravel(t)), covariance.correlated)
    own = entries if unit is None else unit * jnp.log1p(entries / unit)
    return t.at[covariance_places(target)].set(own)


def in_expansion_coordinates(
    target: Target,
    t: jax.Array,
    gradient: jax.Array,
    hessian: jax.Array,
    unit: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Convert the gradient and Hessian of a function from t to phi, in JAX or NumPy.

    With J = dphi/dt, A_t = J'A and B_t = J'B J + sum_k A_k phi_k''; J differs from the identity for
    the covariance's parameters only, where S has the derivatives of T T'.
    """
    xp, covariance = namespace(t), target.integrated.covariance
    T, first, second = factor_derivatives(target, t)
    slopes = first @ T.T
    bends = second @ T.T + first[:, None] @ xp.swapaxes(first, 1, 2)[None]
    size = covariance.size
    entries = np.tril_indices(size) if covariance.correlated else np.diag_indices(size)
    slope = (slopes + xp.swapaxes(slopes, -1, -2))[:, *entries].T
    bend = xp.moveaxis((bends + xp.swapaxes(bends, -1, -2))[:, :, *entries], -1, 0)
    if unit is not None:  # the entries are variances s, and phi = c log(1 + s / c)
        ratio = 1 + xp.diagonal(T @ T.T) / unit
        slope = slope / ratio[:, None]
        bend = bend / ratio[:, None, None]
        bend = bend - slope[:, :, None] * slope[:, None, :] / unit[:, None, None]
    own = np.eye(t.shape[0])[covariance_places(target)]
    inverse = np.eye(t.shape[0]) + own.T @ (xp.linalg.inv(slope) - np.eye(len(own))) @ own
    A = inverse.T @ gradient
    bent = xp.tensordot(own @ A, bend, axes=1)
    return A, inverse.T @ (hessian - own.T @ bent @ own) @ inverse


def group_proxy(anchor: Anchor, target: Target, order: int, unit: jax.Array | None = None) -> Proxy:
    """Return the anchor's sums in phi, with variances in `unit` (see `variance_unit`)."""
    point, A, B = map(as_either, (anchor.point, anchor.A, anchor.dense_hessian))
    variance = None if unit is None else as_either(np.asarray(unit))
    A, B = in_expansion_coordinates(target.likelihood, point, A, B, variance)
    A, B = A * (order >= 1), (B + B.T) / 2 * (order >= 2)
    point, factor, A, B = to_device((anchor.point, anchor.factor, A, B))
    return Proxy(point, factor, A, B, warp=anchor.warp(target), unit=unit)


def variance_unit(target: Target, point: np.ndarray, groups: GroupedRows) -> jax.Array | None:
    """Return c of each effect: half its sampling variance in a group of median information.

    None for correlated effects, which have covariances too.
    """
    model = target.integrated
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
    near = target.integrated.integrands(
        target.unravel(point), as_either(batch["group_centre"]), flat
    )
    return namespace(point).diagonal(near.information, axis1=1, axis2=2)


@jit(static=0, options=SCATTERS)
def _compiled_information(target: Target, point: jax.Array, batch: Batch) -> jax.Array:
    return _information(target, point, FlatGroups.of(batch), batch)
