"""The perturbed likelihood: lhat - sigma-hat^2 / 2 (HMC-ECS paper, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from modicum.kernels.base import Draw, Estimate
from modicum.runtime import Pytree

__all__ = ["Perturbed"]


@dataclass(frozen=True)
class Perturbed:
    """Average of D_i with half its estimated variance taken off, so that the bias is O(m^-2).

    Every row takes part: a block is one part, and always present.

    Parameters
    ----------
    ddof
        1: the unbiased variance, divisor m (m - 1). 0: the paper's m^2.
    """

    ddof: int = 1

    @property
    def parts(self) -> int:
        """A block is one."""
        return 1

    def present(self, key: jax.Array, blocks: int) -> jax.Array:
        """All of them."""
        del key
        return jnp.ones(blocks, bool)

    def pack(self, subsample: Pytree, present: jax.Array) -> tuple[Pytree, jax.Array]:
        """Nothing is absent."""
        return subsample, present

    def unpack(self, values: jax.Array, present: jax.Array) -> jax.Array:
        """Nothing was moved."""
        del present
        return values

    def combine(self, values: jax.Array, present: jax.Array, tables: object) -> Estimate:
        """Estimate from the D_i of the current subsample."""
        del present, tables
        m = values.shape[0]
        mean = jnp.mean(values)  # eq. 4.2
        variance = jnp.sum((values - mean) ** 2) / (m * (m - self.ddof))  # eq. 4.3
        return Estimate(mean - variance / 2, mean, variance)

    def describe(self, values: jax.Array, present: jax.Array, tables: object) -> Draw:
        """dhat and its estimated variance."""
        estimate = self.combine(values, present, tables)
        return {
            "difference_estimate": estimate.difference,
            "variance_estimate": estimate.variance,
        }
