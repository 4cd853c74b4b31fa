"""The block-Poisson likelihood estimate: unbiased, but possibly negative (section 5).

The estimate is a product of a Poisson number of factors, each from its own mini-batch, and its
expectation is the likelihood itself rather than its logarithm. Factors can be negative. The chain
runs on |Lhat|, and expectations are corrected by the sign of each draw (eq. 5.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, pdtrc, xlogy

from modicum.kernels.base import Draw, Estimate
from modicum.runtime import Pytree

__all__ = ["BlockPoisson", "BlockPoissonTables", "most_factors", "poisson_chance"]

UNLIKELY = 1e-6  # probability of a Poisson count beyond the capacity
# The chain has lambda + d - centre factors on average. ROOM leaves space for a larger d in the
# tails of the posterior; less is needed where the centre follows d.
ROOM, ROOM_FOLLOWING = 1.25, 1.05


def most_factors(mean: float) -> int:
    """Capacity that a Poisson number of factors exceeds with probability at most 1e-6.

    Examples
    --------
    >>> most_factors(1.0), most_factors(20.0)
    (9, 45)
    """
    counts = np.arange(int(mean + 12 * np.sqrt(mean) + 30))
    return int(np.argmax(pdtrc(counts, mean) <= UNLIKELY))  # the smallest such count


def poisson_chance(counts: np.ndarray, mean: float) -> np.ndarray:
    """Probability of each count of a Poisson variable."""
    return np.asarray(np.exp(xlogy(counts, mean) - mean - gammaln(counts + 1.0)))


class BlockPoissonTables(NamedTuple):
    """What the estimator needs to know about the data."""

    centre: float | jax.Array  # expected difference l - sum q, minus a coreset's


@dataclass(frozen=True)
class BlockPoisson:
    """A product of lambda blocks of Poisson(1) many factors (dhat - a) / lambda (eq. 5.1).

    Only the multiset of factors matters, so a block of the subsample holds the factors of several
    of the paper's products together: a Poisson(lambda / blocks) number of them, each computed from
    `batch` rows. The soft lower bound is a = centre - lambda, which minimizes the variance where
    `centre` (in the tables) equals the difference l - sum q. The estimate is unbiased for any bound
    that does not depend on u, so the bound may follow that difference as the parameters move. It
    must: where l - sum q falls below a constant bound, all factors are negative, |Lhat| grows with
    the distance, and chains that get there stay.

    Parameters
    ----------
    products
        lambda: the expected number of factors.
    batch
        Rows per factor.
    blocks
        Blocks of the subsample.
    room
        Capacity for the expected number of factors, in units of lambda.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from modicum.estimators import BlockPoisson, BlockPoissonTables
    >>> estimator = BlockPoisson(products=20, batch=2, blocks=4)
    >>> present = estimator.present(jax.random.key(1), 4)
    >>> values = jnp.zeros(2 * present.size)  # zero residuals: all factors are one
    >>> float(estimator.combine(values, present, BlockPoissonTables(0.0)).log)
    0.0
    """

    products: int
    batch: int
    blocks: int
    room: float = ROOM

    @property
    def parts(self) -> int:
        """Capacity of a block, in factors."""
        return most_factors(self.room * self.products / self.blocks)

    @property
    def rows(self) -> int:
        """Capacity of the subsample, in rows."""
        return self.blocks * self.parts * self.batch

    @property
    def packed(self) -> int:
        """Capacity for factors when only those that take part are kept."""
        return min(most_factors(self.room * self.products), self.blocks * self.parts)

    def present(self, key: jax.Array, blocks: int) -> jax.Array:
        """Draw a Poisson number of factors per block, the paper's X_l, given that they fit."""
        share = poisson_chance(np.arange(self.parts + 1), self.products / self.blocks)
        below = jnp.asarray(np.cumsum(share / share.sum()))
        counts = jnp.searchsorted(below, jax.random.uniform(key, (blocks,)), side="right")
        return (jnp.arange(self.parts) < counts[:, None]).reshape(-1)

    def pack(self, subsample: Pytree, present: jax.Array) -> tuple[Pytree, jax.Array]:
        """Keep only the factors that take part, so that no work is spent on empty slots."""
        first, end = self._spans(present)
        at, number = jnp.arange(self.packed), end[-1]
        # Sums over a few blocks, because `jnp.nonzero` would scan all slots and scatter.
        block = jnp.sum(at[:, None] >= end, axis=1)
        slot = jnp.where(at < number, (block * self.parts + at) - first[block], 0)

        def gather(rows: jax.Array) -> jax.Array:
            parts = rows.reshape(present.size, self.batch, *rows.shape[1:])
            return parts[slot].reshape(-1, *rows.shape[1:])

        return jax.tree.map(gather, subsample), at < number

    def unpack(self, values: jax.Array, present: jax.Array) -> jax.Array:
        """Undo `pack`; empty slots hold zeros, which are never read."""
        first, _ = self._spans(present)
        at = (first[:, None] + jnp.arange(self.parts)).reshape(-1)
        at = jnp.minimum(at, self.packed - 1)  # subsamples beyond capacity are never accepted
        parts = values.reshape(self.packed, self.batch)[at]
        return jnp.where(present[:, None], parts, 0.0).reshape(-1)

    def _spans(self, present: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start and end of each block's factors among those that take part."""
        counts = present.reshape(-1, self.parts).sum(axis=1)
        before = jnp.tri(self.blocks, dtype=counts.dtype)  # a block and those before it
        end = jnp.sum(before * counts, axis=1)
        return end - counts, end

    def about(self, tables: BlockPoissonTables, difference: jax.Array) -> BlockPoissonTables:
        """Move the bound with the expected difference."""
        return tables._replace(centre=tables.centre + difference)

    def _factors(
        self, values: jax.Array, present: jax.Array, tables: BlockPoissonTables
    ) -> jax.Array:
        """f = (dhat - a) / lambda with a + lambda the centre; one where there is no factor."""
        dhat = values.reshape(present.size, self.batch).mean(axis=1)  # eq. 4.2
        return jnp.where(present, 1 + (dhat - tables.centre) / self.products, 1.0)

    def combine(
        self, values: jax.Array, present: jax.Array, tables: BlockPoissonTables
    ) -> Estimate:
        """log |Lhat| - sum q = a + lambda + sum log |f| (eq. 5.1)."""
        factors = self._factors(values, present, tables)
        logs = jnp.log(jnp.abs(factors))
        centre, number = tables.centre, jnp.sum(present)
        # A subsample with more factors than the capacity is rejected.
        log = jnp.where(number > self.packed, -jnp.inf, centre + logs.sum())
        mean = self.products * (factors - 1).sum() / jnp.maximum(number, 1) + centre
        # A compound Poisson sum: E sum log^2 |f| is the variance of log |Lhat|.
        return Estimate(log, mean, jnp.sum(logs**2))

    def describe(
        self,
        estimate: Estimate,
        values: jax.Array,
        present: jax.Array,
        tables: BlockPoissonTables,
    ) -> Draw:
        """The sign, and how close the estimate is to changing it."""
        factors = self._factors(values, present, tables)
        return {
            "sign": 1.0 - 2.0 * (jnp.sum(factors < 0) % 2),  # S of eq. 5.3
            "smallest_factor": jnp.min(jnp.abs(factors)),
            "factors": jnp.sum(present),
            "difference_estimate": estimate.difference,
            "variance_estimate": estimate.variance,
        }
