"""The perturbed likelihood: lhat - sigma-hat^2 / 2 (HMC-ECS paper, section 4).

To add another likelihood estimate from the same m rows, subclass `EveryRow` and add it to
`LIKELIHOODS` (`estimators/__init__.py`) under the name that `HMCECS(estimator=...)` takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from modicum.kernels.base import Draw, Estimate, Placement
from modicum.kernels.slices import put, take
from modicum.runtime import Pytree


@dataclass(frozen=True)
class EveryRow(ABC):
    """A likelihood estimate in which every row of the subsample takes part.

    A block is one part. A subclass defines `combine`, which turns the D_i into an estimate; it must
    be hashable, and must not depend on the order of the D_i.

    Parameters
    ----------
    ddof
        1 for the unbiased variance, with divisor m (m - 1); 0 for the paper's divisor m^2.
    """

    ddof: int = 1

    @abstractmethod
    def combine(self, values: jax.Array, present: jax.Array, tables: object) -> Estimate:
        """Estimate from the D_i of the current subsample."""

    def mean_and_variance(self, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the estimate dhat of the residuals' sum, and its estimated variance."""
        m = values.shape[0]
        mean = jnp.mean(values)  # eq. 4.2
        variance = jnp.sum((values - mean) ** 2) / (m * (m - self.ddof))  # eq. 4.3
        return mean, variance

    @property
    def parts(self) -> int:
        """One, since a block is not divided."""
        return 1

    def counts(self, key: jax.Array, blocks: int) -> jax.Array:
        """One part per block."""
        del key
        return jnp.ones(blocks, int)

    def most_parts(self, blocks: int) -> int:
        """One part per block."""
        return blocks

    def arrange(self, fresh: Pytree, counts: jax.Array) -> tuple[Pytree, jax.Array]:
        """Return the rows unchanged: every block has its own slot."""
        return fresh, jnp.arange(counts.size, dtype=jnp.uint32)

    def place(self, block: jax.Array, count: jax.Array, owners: jax.Array) -> Placement:
        """Return the block's own slot."""
        del count
        return Placement(block, owners, True)

    def replace(
        self,
        rows: jax.Array,
        fresh: jax.Array,
        slots: jax.Array,
        accept: bool | jax.Array = True,
    ) -> jax.Array:
        """Replace a block by a fresh one if `accept` is true."""
        size = fresh.shape[0]
        kept = take(rows, slots * size, size)
        return put(rows, jnp.where(accept, fresh, kept), slots * size)

    def raise_expectation(self, tables: Pytree, difference: jax.Array) -> Pytree:
        """Return the tables unchanged: they do not depend on the expected difference."""
        del difference
        return tables

    def describe(
        self, estimate: Estimate, values: jax.Array, present: jax.Array, tables: object
    ) -> Draw:
        """Report dhat and its estimated variance."""
        del values, present, tables
        return {
            "difference_estimate": estimate.difference,
            "variance_estimate": estimate.variance,
        }


class Perturbed(EveryRow):
    """Average of D_i with half its estimated variance taken off, so that the bias is O(m^-2)."""

    def combine(self, values: jax.Array, present: jax.Array, tables: object) -> Estimate:
        """lhat - sigma-hat^2 / 2 (eq. 4.5), minus the part of lhat that is known exactly."""
        del present, tables
        mean, variance = self.mean_and_variance(values)
        return Estimate(mean - variance / 2, mean, variance)
