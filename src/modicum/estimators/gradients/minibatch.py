"""The plain minibatch gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from modicum.estimators.gradients.base import GradientEstimator
from modicum.kernels.coordinates import unwhiten

__all__ = ["Minibatch", "minibatch_gradient"]


@dataclass(frozen=True)
class Minibatch(GradientEstimator):
    """-grad log p(t) - (1/b) sum_i grad l_i(t) / w_i, with w_i = 1/n for uniform rows."""

    def gradient(self, z: jax.Array, batch: Any, memory: Any, context: Any) -> jax.Array:
        """One reverse sweep over the rows of the batch."""
        del memory
        return minibatch_gradient(self.target, z, batch, context)


def minibatch_gradient(target: Any, z: jax.Array, batch: Any, context: Any) -> jax.Array:
    """Gradient of U at z, the batch's rows standing for all."""

    def log_posterior(z: jax.Array) -> jax.Array:
        t = unwhiten(z, context)
        rows = {name: field for name, field in batch.items() if name != "probability"}
        values = target.log_likelihood(t, rows)
        return target.log_prior(t) + jnp.mean(values / batch["probability"])

    return -jax.grad(log_posterior)(z)
