"""What a Taylor expansion of f leaves over, to relative precision.

The difference f(eta* + e) - f - f' e - f'' e^2/2 of numbers of order one cannot be formed in
floating point when e is small: multiplied by n it would be noise. For small e the next terms of
the series are summed instead.
"""

from __future__ import annotations

import math
from functools import partial
from math import factorial
from typing import Any

import jax
import jax.numpy as jnp

from modicum.models import Gaussian, LinearPredictorModel, StudentT

__all__ = ["TERMS", "coefficients", "remainder"]

TERMS = 7  # f / 0! ... f^(6) / 6!


def coefficients(model: LinearPredictorModel, eta: jax.Array, y: jax.Array) -> jax.Array:
    """Taylor coefficients f^(j)(eta) / j! of each row, j = 0 ... 6; shape (7, rows)."""
    derivatives = (*model.derivatives(eta, y), *model.higher(eta, y))
    return jnp.stack([d / factorial(j) for j, d in enumerate(derivatives)])


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def remainder(
    model: LinearPredictorModel,
    order: int,
    e: jax.Array,
    eta: jax.Array,
    y: jax.Array,
    taylor: jax.Array,
) -> jax.Array:
    """f(eta + e) less its Taylor polynomial of `order`, elementwise.

    Differentiable in `e` alone: the expansion point and its coefficients do not move.
    """
    series = _series(e, taylor, order)[0]
    large = _large(model, e)

    def mixed() -> jax.Array:
        return jnp.where(large, _direct(model, order, e, eta, y, taylor)[0], series)

    # The plain difference costs transcendental functions: only where some e asks for it.
    return jax.lax.cond(jnp.any(large), mixed, lambda: series)


@remainder.defjvp
def _remainder_slope(
    model: LinearPredictorModel, order: int, at: Any, tangents: Any
) -> tuple[jax.Array, jax.Array]:
    e, eta, y, taylor = at
    series = _series(e, taylor, order)
    large = _large(model, e)

    def mixed() -> tuple[jax.Array, jax.Array]:
        direct = _direct(model, order, e, eta, y, taylor)
        return jnp.where(large, direct[0], series[0]), jnp.where(large, direct[1], series[1])

    value, slope = jax.lax.cond(jnp.any(large), mixed, lambda: series)
    return value, slope * tangents[0]


def _large(model: LinearPredictorModel, e: jax.Array) -> jax.Array:
    """Where the plain difference is more accurate than the seven-term series."""
    return jnp.abs(e) > _unit(model) * (0.1 if e.dtype == jnp.float64 else 0.3)


def _unit(model: LinearPredictorModel) -> float:
    """The unit in which e is large or small: the series' radius of convergence over pi.

    Pi is the radius of the logistic family; the Student-t's depends on the unit of y, and the
    Gaussian's series ends by itself.
    """
    if isinstance(model, Gaussian):
        return math.inf
    return model.known_scale() * math.sqrt(model.df) / math.pi if isinstance(model, StudentT) else 1


def _series(e: jax.Array, taylor: jax.Array, order: int) -> tuple[jax.Array, jax.Array]:
    """Horner sums of the terms above `order`, and of their derivatives."""
    value, slope = jnp.zeros_like(e), jnp.zeros_like(e)
    for j in reversed(range(order + 1, TERMS)):
        value, slope = value * e + taylor[j], slope * e + j * taylor[j]
    return value * e ** (order + 1), slope * e**order


def _direct(
    model: LinearPredictorModel,
    order: int,
    e: jax.Array,
    eta: jax.Array,
    y: jax.Array,
    taylor: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    f, slope, *_ = model.derivatives(eta + e, y)
    for j in range(order + 1):
        f = f - taylor[j] * e**j
        slope = slope - (j * taylor[j] * e ** (j - 1) if j else 0.0)
    # A family's NumPy constants may have made them float64.
    return f.astype(e.dtype), slope.astype(e.dtype)
