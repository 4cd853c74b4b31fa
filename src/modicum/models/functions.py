"""Functions the families share, written so that they are fast and accurate in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp

__all__ = ["softplus", "with_reference"]


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x), half the cost of `jax.nn.softplus` together with its derivative."""
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


softplus.defjvps(lambda tangent, value, x: tangent * jax.nn.sigmoid(x))


def with_reference(eta: jax.Array) -> jax.Array:
    """Predictors (..., K - 1) followed by that of the reference class, which is 0."""
    return jnp.concatenate([eta, jnp.zeros_like(eta[..., :1])], axis=-1)
