"""Special functions that are accurate in their tails and cheap for JAX to differentiate.

JAX differentiates its own log-gamma by the digamma and zeta functions, which cost a hundred times
as much; here log-gamma is Stirling's series, whose derivatives are those of logarithms.
"""

from __future__ import annotations

from math import log

import jax
import jax.numpy as jnp

from modicum.arrays import HALF_LOG_2PI, differentiable, log_gamma_of, namespace, sigmoid

FAR = 10.0  # above this, seven terms of Stirling's series are exact in double precision
SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


@differentiable(slope=sigmoid)
def softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x); with its derivative, half the cost of `jax.nn.softplus`."""
    xp = namespace(x)
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def log1m_exp(x: jax.Array) -> jax.Array:
    """log(1 - e^-x) for x > 0 (Maechler 2012)."""
    xp = namespace(x)
    near, far = xp.minimum(x, 1.0), xp.maximum(x, 0.5)  # so that no branch overflows
    value: jax.Array = xp.where(x < log(2), xp.log(-xp.expm1(-near)), xp.log1p(-xp.exp(-far)))
    return value


def _leading(x: jax.Array) -> jax.Array:
    """Stirling's formula for log-gamma, without the series."""
    return (x - 0.5) * jnp.log(x) - x + HALF_LOG_2PI


def _series(x: jax.Array) -> jax.Array:
    """1 / 12x - 1 / 360x^3 + ..., for x from `FAR`."""
    inverse = 1 / x
    total = jnp.zeros_like(inverse)
    for term in reversed(SERIES):
        total = total * inverse**2 + term
    return total * inverse


def stirling_rest(x: jax.Array) -> jax.Array:
    """log-gamma minus Stirling's formula (x - 1/2) log x - x + log(2 pi) / 2, for x > 0."""
    x = jnp.asarray(x)
    near, far = jnp.minimum(x, FAR), jnp.maximum(x, FAR)
    steps = jnp.arange(FAR, dtype=near.dtype)
    below = jnp.sum(jnp.log(near[..., None] + steps), axis=-1)  # log of gamma(x + 10) / gamma(x)
    shifted = _leading(near + FAR) + _series(near + FAR) - below
    return jnp.where(x < FAR, shifted - _leading(near), _series(far))


def log_gamma(x: jax.Array) -> jax.Array:
    """Log-gamma for x > 0."""
    return _leading(x) + stirling_rest(x)


def log_rising(x: jax.Array, y: jax.Array) -> jax.Array:
    """log of gamma(x + y) / gamma(x), for x > 0 and y >= 0, however large x is."""
    leading = (x - 0.5) * jnp.log1p(y / x) + y * jnp.log(x + y) - y
    return leading + stirling_rest(x + y) - stirling_rest(x)


def log_factorial(y: jax.Array, eta: jax.Array) -> jax.Array:
    """log y! in the precision of eta: in float32 it could be off by whole units."""
    return log_gamma_of(namespace(eta).asarray(y, eta.dtype) + 1.0)
