"""Expansions of rows and groups: their coordinates, where not the sampled ones, and remainders.

A scale, a dispersion or a probability near 0 is sampled on the log scale, where the log-likelihood
may be far from quadratic; in the scale itself, its square or its reciprocal it may be nearly so.
With w = t - t* of such an entry, every row is expanded in

    v = (e^(p w) - 1) / p,    or in w itself for a power p of 0.

The sums at the anchor can be reused: if A and B are the gradient and Hessian in t, those in v are A
and B - diag(p A), since v has the derivatives 1 and p there. Trying a power takes no pass.
Coefficients c within bounds are sampled by free values, and rows are expanded in c: with v =
J^-1 (c - c*), where J = dc/dt at t*, those in v are A and B - (A'J^-1 c)''.

The log-likelihood l_j of a group is expanded in phi: the entries of S = T T', the effects'
covariance, and all other parameters unchanged. l_j is nearly linear in S where it is small, and far
from quadratic in its logarithms. Where S is large compared with the sampling variance of a group's
effect, this fails: for normal outcomes, l_j would be a function of the sum of both variances, and
nearly quadratic in its logarithm. So a variance s is expanded as c log(1 + s / c), which is about s
where s is small, with c = 1 / (2 A) and A the median information of a group. For simulated binary
groups of 2 to 5 rows with an sd of 2, a subsample of 0.8 groups then leaves the variance that 15
would at 99 of 100 posterior draws.

Remainders of a Taylor expansion have full relative precision. For small e the difference f(eta* +
e) - f - f' e - f'' e^2/2 cancels: multiplied by n, its rounding error would dominate. There the
next terms of the series are summed instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from math import factorial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, is_numpy, namespace, power
from modicum.kernels.protocols import Bend, Proxy
from modicum.kernels.whitening import Whitening, warp_of
from modicum.models import LinearPredictorModel, Target
from modicum.models.integrated import entries_of, groups_of
from modicum.models.model import Batch
from modicum.passes import Anchor
from modicum.passes.hessians import covariance_places, factor_derivatives
from modicum.passes.sums import bending
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


def bend(
    target: Target, anchor: Anchor, where: Sequence[int] | np.ndarray, power: np.ndarray
) -> Bend:
    """Return the tables for expanding the entries `where` of t in powers of their exponentials.

    Constrained coefficients of the target are expanded in themselves.
    """
    constrained = target.likelihood.bent_places
    places = np.concatenate([np.asarray(where, int), constrained])
    lines = anchor.dense_hessian[places]
    made = Bend(
        to_device(places),
        to_device(np.asarray(power, np.float64)),
        to_device(anchor.A[places]),
        to_device(lines @ anchor.dense_factor),
        to_device(lines[:, places]),
    )
    if not len(constrained):
        return made
    point, slope = anchor.point[: target.likelihood.size], np.zeros(target.likelihood.size)
    J, _ = bending(target.likelihood, point, slope)
    slope[constrained] = np.linalg.solve(J.T, anchor.A[constrained])
    _, curved = bending(target.likelihood, point, slope)
    return made._replace(inverse=to_device(np.linalg.inv(J)), curved=to_device(curved))


def bent_path(s: jax.Array, point: jax.Array, away: jax.Array, bend: Bend | None) -> jax.Array:
    """t at a fraction s of the way from t* to t* + `away`, on a line that is straight in v.

    Coefficients are in t themselves, rather than their free values.
    """
    t = point + s * away
    if bend is None:
        return t
    where, power = bend.where[: len(bend.power)], bend.power
    return t.at[where].set(point[where] + _inverse(s * _bent(away[where], power), power))


def bent_sum(target: Target, z: jax.Array, proxy: Proxy) -> jax.Array:
    """Difference between the sum of the proxies in v and the quadratic in w = L z.

    With c = v - w at the bent entries, A'v + v'(B - diag(p A)) v / 2 is the quadratic in w plus
    A'c + c'Bw + c'Bc / 2 - sum p A v^2 / 2.
    """
    bend = proxy.bend
    assert bend is not None
    w, powers = proxy.where.factor[bend.where] @ z, len(bend.power)
    v = _bent(w[:powers], bend.power)
    twice = jnp.sum(bend.power * bend.slope[:powers] * v**2)
    if bend.inverse is not None and bend.curved is not None:
        away = coefficients_away(target, z, proxy)[1]
        own = bend.inverse @ away[bend.where[powers:]]
        v, twice = jnp.concatenate([v, own]), twice + own @ (bend.curved @ own)
    c = v - w
    return c @ (bend.slope + bend.curve @ z + 0.5 * bend.block @ c) - 0.5 * twice


def coefficients_away(target: Target, z: jax.Array, proxy: Proxy) -> tuple[jax.Array, jax.Array]:
    """Return t* and t - t*, with coefficients in place of their free values."""
    at = target.coefficients(proxy.where.point[: target.size])
    return at, target.coefficients(proxy.where.unwhiten(z)[: target.size]) - at


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
    t, model = jnp.asarray(t), target.integrated
    entries = entries_of(model.factor(target.unravel(t)), model.term.has_correlations)
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
    xp, model = namespace(t), target.integrated
    T, first, second = factor_derivatives(target, t)
    slopes = first @ T.T
    bends = second @ T.T + first[:, None] @ xp.swapaxes(first, 1, 2)[None]
    size = model.effects
    entries = np.tril_indices(size) if model.term.has_correlations else np.diag_indices(size)
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
    where = Whitening.about(anchor.point, anchor.factor, warp_of(anchor, target))
    return Proxy(where, to_device(A), to_device(B), unit=unit)


def variance_unit(target: Target, point: np.ndarray, groups: GroupedRows) -> jax.Array | None:
    """Return c of each effect: half its sampling variance in a group of median information.

    None for correlated effects, which have covariances too.
    """
    model = target.integrated
    assert groups.nodes is not None
    if model.term.has_correlations:
        return None
    group_ids = np.linspace(0, len(groups) - 1, min(len(groups), USUAL_GROUPS)).astype(int)
    batch = groups.take(group_ids)
    if target.on_numpy:
        information = _information(target, as_either(point), batch)
    else:
        information = _compiled_information(target, to_device(point), batch)
    usual = np.median(np.asarray(information), axis=0)
    return to_device(0.5 / np.maximum(usual, 1e-8))


def _information(target: Target, point: jax.Array, batch: Batch) -> jax.Array:
    """Information of each group about each of its effects, (groups, effects)."""
    theta, centre = target.unravel(point), as_either(batch["group_centre"])
    near = target.integrated.integrands(theta, centre, groups_of(batch, point))
    return namespace(point).diagonal(near.information, axis1=1, axis2=2)


_compiled_information = jit(static=0, options=SCATTERS)(_information)


TERMS = 7  # f / 0! ... f^(6) / 6!
Coefficients: TypeAlias = jax.Array | Sequence[jax.Array]  # item j: coefficient j of every row
Pair: TypeAlias = tuple[jax.Array, jax.Array]  # a value and its derivative


class About(NamedTuple):
    """What f of each row is expanded about."""

    eta: jax.Array  # its predictor
    y: jax.Array
    taylor: Coefficients  # Taylor coefficients of f at eta


def coefficients(model: LinearPredictorModel, eta: jax.Array, y: jax.Array) -> jax.Array:
    """Taylor coefficients f^(j)(eta) / j! of each row, j = 0 ... 6; shape (7, rows)."""
    derivatives = model.derivatives(eta, y, 6)
    return namespace(eta).stack([d / factorial(j) for j, d in enumerate(derivatives)])


def remainder(model: LinearPredictorModel, order: int, e: jax.Array, about: About) -> jax.Array:
    """f(eta + e) minus its Taylor polynomial of `order`, elementwise.

    The last axis of `e` is that of rows. Differentiable in `e` alone: the expansion point and its
    coefficients are fixed.
    """
    if not is_numpy(e):
        return _traced_remainder(model, order, e, about)
    values = np.asarray(series_value(e, about.taylor, order))
    large = np.asarray(far_apart(model, e))
    if large.any():
        at, far = np.nonzero(large)[-1], e[large]
        taylor = [term[at] for term in about.taylor[: order + 1]]
        rise = model.value(about.eta[at] + far, about.y[at]) - taylor[0]
        values[large] = less_polynomial(rise, far, taylor, order)
    return as_either(values)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _traced_remainder(
    model: LinearPredictorModel, order: int, e: jax.Array, about: About
) -> jax.Array:
    near = series(e, about.taylor, order)[0]
    large = far_apart(model, e)

    def mixed() -> jax.Array:
        return jnp.where(large, direct(model, order, e, about)[0], near)

    # The plain difference costs transcendental functions, so compute it only if some e needs it.
    return jax.lax.cond(jnp.any(large), mixed, lambda: near)


@_traced_remainder.defjvp
def _remainder_slope(
    model: LinearPredictorModel,
    order: int,
    at: tuple[jax.Array, About],
    tangents: tuple[jax.Array, About],
) -> Pair:
    value, slope = remainder_and_slope(model, order, *at)
    return value, slope * tangents[0]


def remainder_and_slope(
    model: LinearPredictorModel,
    order: int,
    e: jax.Array,
    about: About,
    any_of: Callable[[jax.Array], jax.Array] = jnp.any,
    far: Callable[..., Pair] | None = None,
) -> Pair:
    """Return the remainder and its derivative in `e`.

    `any_of` is `jnp.any` or an equivalent; `far` computes the difference where e is large.
    """
    near = series(e, about.taylor, order)
    large = far_apart(model, e)

    def mixed() -> Pair:
        beyond = (far or direct)(model, order, e, about)
        return jnp.where(large, beyond[0], near[0]), jnp.where(large, beyond[1], near[1])

    return jax.lax.cond(any_of(large), mixed, lambda: near)


def remainder_by_numpy(
    model: LinearPredictorModel, order: int, e: jax.Array, about: About
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the remainder and two derivatives in `e`, of NumPy arrays with one axis."""
    taylor = about.taylor
    f, slope, bend, *_ = model.derivatives(about.eta + e, about.y)
    near = series(e, taylor, order)
    far = _beyond_polynomial(f - taylor[0], slope, e, taylor, order)
    for j in range(2, order + 1):
        bend = bend - j * (j - 1) * taylor[j] * power(e, j - 2)
    large = far_apart(model, e)
    value, along = (np.where(large, x, y) for x, y in zip(far, near, strict=True))
    return value, along, np.asarray(bend)


def any_by_maximum(large: jax.Array) -> jax.Array:
    """`jnp.any` by a maximum, which accelerator kernels support."""
    return jnp.max(jnp.where(large, jnp.float32(1), jnp.float32(0))) > 0


def far_apart(model: LinearPredictorModel, e: jax.Array) -> jax.Array:
    """Where the plain difference is more accurate than the seven-term series."""
    unit = model.series_radius() / math.pi
    return namespace(e).abs(e) > unit * (0.1 if e.dtype == np.float64 else 0.3)


def series(e: jax.Array, taylor: Coefficients, order: int) -> Pair:
    """Horner sums of the terms above `order`, and of their derivatives."""
    last = TERMS - 1
    slope = last * taylor[last]
    for j in reversed(range(order + 1, last)):
        slope = slope * e + j * taylor[j]
    return series_value(e, taylor, order), slope * e**order


def series_value(e: jax.Array, taylor: Coefficients, order: int) -> jax.Array:
    """Horner sum of the terms above `order`."""
    value = taylor[TERMS - 1]
    for j in reversed(range(order + 1, TERMS - 1)):
        value = value * e + taylor[j]
    return value * power(e, order + 1)


def direct(model: LinearPredictorModel, order: int, e: jax.Array, about: About) -> Pair:
    """Return the plain difference and its derivative in `e`, for large e."""
    f, slope, *_ = model.derivatives(about.eta + e, about.y)
    return _beyond_polynomial(f - about.taylor[0], slope, e, about.taylor, order)


def by_rise(model: LinearPredictorModel, order: int, e: jax.Array, about: About) -> Pair:
    """Like `direct`, by the family's `rise`, which accelerator kernels can compute."""
    rise = model.rise(about.eta, e, about.y, about.taylor[0])
    return _beyond_polynomial(*rise, e, about.taylor, order)


def _beyond_polynomial(
    rise: jax.Array, slope: jax.Array, e: jax.Array, taylor: Coefficients, order: int
) -> Pair:
    """Return the remainder and its derivative from f(eta + e) - f(eta) and f'(eta + e)."""
    for j in range(1, order + 1):
        slope = slope - j * taylor[j] * power(e, j - 1)
    # A family's NumPy constants may have made them float64.
    return less_polynomial(rise, e, taylor, order).astype(e.dtype), slope.astype(e.dtype)


def less_polynomial(rise: jax.Array, e: jax.Array, taylor: Coefficients, order: int) -> jax.Array:
    """Subtract the other terms of the Taylor polynomial from `rise`, f(eta + e) - f(eta)."""
    for j in range(1, order + 1):
        rise = rise - taylor[j] * power(e, j)
    return rise
