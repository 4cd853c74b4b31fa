"""Logarithms of distribution functions, accurate in both tails and differentiable to any order.

JAX has no second derivatives of the incomplete gamma and beta functions in their parameters, and
their logarithms underflow far out. Both are integrals of log-concave densities, in the logarithm or
the log-odds of their argument, and so is the inverse Gaussian's distribution function. One rule
integrates from a point away from the mode, where the integrand falls; the other tail is the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import lgamma, log, pi

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import HALF_LOG_2PI, log1m_exp
from modicum.models.families.links import softplus, stirling_rest

Tails = tuple[jax.Array, jax.Array]  # log P(Y <= y) and log P(Y > y)
DROP = 40.0  # fall of the log-density beyond which e^-40 of the integral is left out
LADDER = 2.0 ** np.arange(-40, 15)  # lengths to integrate over
NODES = 48


def _rule() -> tuple[np.ndarray, np.ndarray]:
    """Return nodes in (0, 1) that are dense towards 0, and the logarithms of their weights."""
    x, w = np.polynomial.legendre.leggauss(NODES)
    x = (x + 1) / 2
    return x**2, np.log(w * x)


def log_tails(
    log_density: Callable[[jax.Array], jax.Array], mode: jax.Array | float, at: jax.Array
) -> Tails:
    """Integrate a log-concave density up to a number, and from there on.

    Parameters
    ----------
    log_density
        An elementwise function of a vector; its parameters are numbers.
    mode
        Where it is largest.
    at
        The number.
    """
    right = at >= mode
    lengths = jnp.where(right, 1.0, -1.0) * LADDER.astype(at.dtype)
    falls = log_density(at) - log_density(at + lengths) > DROP
    # Nodes at distances that do not depend on parameters: only the integrand is differentiated.
    length = jax.lax.stop_gradient(lengths[jnp.where(falls.any(), jnp.argmax(falls), -1)])
    nodes, log_weights = (each.astype(at.dtype) for each in _rule())
    outer = jax.nn.logsumexp(log_density(at + length * nodes) + log_weights)
    outer = outer + jnp.log(jnp.abs(length))
    inner = log1m_exp(jnp.maximum(-outer, 1e-15))
    return jnp.where(right, inner, outer), jnp.where(right, outer, inner)


def log_gamma_tails(shape: jax.Array, log_ratio: jax.Array) -> Tails:
    """Tails of a gamma variable with this shape at e^log_ratio times its mean."""
    constant = 0.5 * jnp.log(shape) - HALF_LOG_2PI - stirling_rest(shape)
    return log_tails(lambda s: shape * (s - jnp.expm1(s)) + constant, 0.0, log_ratio)


def log_beta_tails(a: jax.Array, b: jax.Array, log_odds: jax.Array) -> Tails:
    """Tails of a beta variable, given the log-odds of the point."""
    most = jnp.log(a) - jnp.log(b)
    rest = stirling_rest(a + b) - stirling_rest(a) - stirling_rest(b)
    constant = 0.5 * (jnp.log(a) + jnp.log(b) - jnp.log(a + b)) - HALF_LOG_2PI + rest
    peak = a * softplus(-most) + b * softplus(most)
    return log_tails(lambda t: peak - a * softplus(-t) - b * softplus(t) + constant, most, log_odds)


def log_wald_tails(shape: jax.Array, log_ratio: jax.Array) -> Tails:
    """Tails of an inverse Gaussian at e^log_ratio times its mean; the shape is over that mean."""
    constant = 0.5 * jnp.log(shape) - HALF_LOG_2PI
    most = -jnp.arcsinh(0.5 / shape)
    return log_tails(lambda s: constant - s / 2 - 2 * shape * jnp.sinh(s / 2) ** 2, most, log_ratio)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_t_cdf(z: jax.Array, df: float) -> jax.Array:
    """log P(T <= z) of a Student-t variable: df / (df + T^2) is a beta variable."""
    size = jnp.abs(z)
    far, near = jnp.maximum(size, 1.0), jnp.minimum(size, 1.0)
    half = jnp.asarray(0.5, far.dtype)
    tail = log_beta_tails(df * half, half, log(df) - 2 * jnp.log(far))[0] - log(2.0)
    nodes, log_weights = (each.astype(far.dtype) for each in _rule())
    within = near * jnp.sum(jnp.exp(_log_t_density(near * nodes, df) + log_weights))
    below = jnp.where(size > 1, tail, jnp.log(0.5 - within))
    return jnp.where(z < 0, below, jnp.log1p(-jnp.exp(below)))


def _log_t_density(z: jax.Array, df: float) -> jax.Array:
    constant = lgamma((df + 1) / 2) - lgamma(df / 2) - 0.5 * log(df * pi)
    return constant - (df + 1) * jnp.log(jnp.hypot(1.0, z / df**0.5))


@log_t_cdf.defjvp
def _log_t_cdf_jvp(
    df: float, at: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    value = log_t_cdf(at[0], df)
    return value, tangents[0] * jnp.exp(_log_t_density(at[0], df) - value)
