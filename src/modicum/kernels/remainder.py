"""The remainder of a Taylor expansion of f, to full relative precision.

For small e the difference f(eta* + e) - f - f' e - f'' e^2/2 cancels: multiplied by n, its rounding
error would dominate. There the next terms of the series are summed instead.
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
from modicum.models import LinearPredictorModel

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
