"""Functions the families share, written so that they are fast and accurate in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp

__all__ = ["softplus"]


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x), half the cost of `jax.nn.softplus` together with its derivative."""
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


softplus.defjvps(lambda tangent, value, x: tangent * jax.nn.sigmoid(x))
