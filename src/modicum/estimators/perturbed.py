"""The perturbed likelihood: lhat - sigma-hat^2 / 2 (HMC-ECS paper, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Estimate", "Perturbed"]


class Estimate(NamedTuple):
    """An estimate of log-likelihood minus the sum of the control variates."""

    log: jax.Array  # what takes part in the target density: dhat - sigma-hat^2 / 2
    difference: jax.Array  # dhat, unbiased for l - sum q (eq. 4.2)
    variance: jax.Array  # sigma-hat^2 (eq. 4.3)


@dataclass(frozen=True)
class Perturbed:
    """Average of D_i with half its estimated variance taken off, so that the bias is O(m^-2).

    Parameters
    ----------
    ddof
        1: the unbiased variance, divisor m (m - 1). 0: the paper's m^2.
    """

    ddof: int = 1

    def combine(self, values: jax.Array) -> Estimate:
        """Estimate from the D_i of the current subsample."""
        m = values.shape[0]
        mean = jnp.mean(values)
        variance = jnp.sum((values - mean) ** 2) / (m * (m - self.ddof))
        return Estimate(mean - variance / 2, mean, variance)
