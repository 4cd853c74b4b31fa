"""Log-likelihoods from the rows of a subsample: the perturbed and the block-Poisson estimate.

The perturbed likelihood is lhat - sigma-hat^2 / 2 (HMC-ECS paper, section 4). To add another
likelihood estimate from the same m rows, subclass `EveryRow` and add it to LIKELIHOODS under the
name that `ECSExpert(estimator=...)` takes.

The block-Poisson estimate is unbiased, but possibly negative (section 5). It is a product of a
Poisson number of factors, each from its own mini-batch, and its expectation is the likelihood
itself rather than its logarithm. Factors can be negative. The chain runs on |Lhat|, and
expectations are corrected by the sign of each draw (eq. 5.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, pdtrc, xlogy

from modicum.arrays import locate, put, put_each, take
from modicum.kernels.protocols import Draw
from modicum.random import unrelated_key
from modicum.runtime import Pytree

Tables = TypeVar("Tables")


class Estimate(NamedTuple):
    """An estimate of log-likelihood minus the sum of the control variates."""

    log: jax.Array  # its part of the target density: log |Lhat| - sum q
    difference: jax.Array  # dhat, an estimate of l - sum q (eq. 4.2)
    variance: jax.Array  # estimated variance of `log`


EMPTY = np.uint32(2**32 - 1)  # the block of a slot that holds no part


class Slots(NamedTuple):
    """Where the parts of a fresh block go in the subsample."""

    slots: jax.Array  # slot of each part; beyond the last slot for parts beyond the block's number
    owners: jax.Array  # block of each slot once they are there
    fits: jax.Array | bool  # whether there are enough slots


class Estimator(ABC, Generic[Tables]):
    """Estimates the likelihood from the residuals of a subsample. Hashable.

    The subsample consists of blocks, and a block of parts, whose number may be random. All parts
    have the same number of rows. They are kept in slots, some of which may be empty, since arrays
    have a fixed shape. What the estimator needs to know about the data is passed as `tables`.
    Unless an estimator says otherwise, a block is one part and has its own slot.
    """

    @property
    def parts(self) -> int:
        """Largest number of parts in a block."""
        return 1

    def counts(self, key: jax.Array, blocks: int) -> jax.Array:
        """Draw the number of parts of each of `blocks` fresh blocks.

        `key` itself serves other numbers: use `unrelated_key`.
        """
        return jnp.ones(blocks, int)

    def arrange(self, fresh: Pytree, counts: jax.Array) -> tuple[Pytree, jax.Array]:
        """Put the parts of all blocks into slots; return their rows and the block of each slot.

        `fresh` has room for the largest number of parts in every block.
        """
        return fresh, jnp.arange(counts.size, dtype=jnp.uint32)

    def place(self, block: jax.Array, count: jax.Array, owners: jax.Array) -> Slots:
        """Find slots for the `count` parts of a fresh block that takes the place of `block`."""
        return Slots(block, owners, True)

    def replace(
        self,
        rows: jax.Array,
        fresh: jax.Array,
        slots: jax.Array,
        accept: bool | jax.Array = True,
    ) -> jax.Array:
        """Put the rows of a fresh block, with room for all parts, into slots if `accept`."""
        size = fresh.shape[0]
        kept = take(rows, slots * size, size)
        return put(rows, jnp.where(accept, fresh, kept), slots * size)

    @abstractmethod
    def combine(self, values: jax.Array, present: jax.Array, tables: Tables) -> Estimate:
        """Estimate from the D of every row; `present` tells which slots are not empty."""

    def describe(
        self, estimate: Estimate, values: jax.Array, present: jax.Array, tables: Tables
    ) -> Draw:
        """Return the statistics to record, one number per name, of what `combine` returned."""
        return {
            "difference_estimate": estimate.difference,
            "variance_estimate": estimate.variance,
        }

    def raise_expectation(self, tables: Tables, difference: jax.Array) -> Tables:
        """Return tables whose expectation of D is higher by `difference`."""
        return tables


@dataclass(frozen=True)
class EveryRow(Estimator[object]):
    """A likelihood estimate in which every row of the subsample takes part.

    A subclass defines `combine`, which turns the D_i into an estimate; it must be hashable, and
    must not depend on the order of the D_i.

    Parameters
    ----------
    ddof
        1 for the unbiased variance, with divisor m (m - 1); 0 for the paper's divisor m^2.
    """

    ddof: int = 1

    def mean_and_variance(self, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the estimate dhat of the residuals' sum, and its estimated variance."""
        m = values.shape[0]
        mean = jnp.mean(values)  # eq. 4.2
        variance = jnp.sum((values - mean) ** 2) / (m * (m - self.ddof))  # eq. 4.3
        return mean, variance


class Perturbed(EveryRow):
    """Average of D_i with half its estimated variance taken off, so that the bias is O(m^-2)."""

    def combine(self, values: jax.Array, present: jax.Array, tables: object) -> Estimate:
        """lhat - sigma-hat^2 / 2 (eq. 4.5), minus the part of lhat that is known exactly."""
        mean, variance = self.mean_and_variance(values)
        return Estimate(mean - variance / 2, mean, variance)


UNLIKELY = 1e-6  # probability of a Poisson count beyond the capacity of the subsample
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


Centre: TypeAlias = float | jax.Array  # expected difference l - sum q, minus a coreset's


@dataclass(frozen=True)
class BlockPoisson(Estimator[Centre]):
    """A product of lambda blocks of Poisson(1) many factors (dhat - a) / lambda (eq. 5.1).

    Only the multiset of factors matters, so a block of the subsample holds the factors of several
    of the paper's products together: a Poisson(lambda / blocks) number of them, each computed from
    `batch` rows. The soft lower bound is a = centre - lambda, which minimizes the variance where
    the centre (the tables) equals the difference l - sum q. The estimate is unbiased for any bound
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
    >>> import jax.numpy as jnp
    >>> from modicum.kernels.likelihood_estimates import BlockPoisson
    >>> estimator = BlockPoisson(products=20, batch=2, blocks=4)
    >>> present = jnp.arange(estimator.slots) < 20
    >>> values = jnp.zeros(2 * present.size)  # zero residuals: all factors are one
    >>> float(estimator.combine(values, present, 0.0).log)
    0.0
    """

    products: int
    batch: int
    blocks: int
    room: float = ROOM

    @property
    def parts(self) -> int:
        """Largest number of factors in a block."""
        return most_factors(self.room * self.products / self.blocks)

    @property
    def rows(self) -> int:
        """Rows of fresh blocks with as many factors as they may have."""
        return self.blocks * self.parts * self.batch

    @property
    def slots(self) -> int:
        """Capacity of the subsample, in factors."""
        return min(most_factors(self.room * self.products), self.blocks * self.parts)

    def counts(self, key: jax.Array, blocks: int) -> jax.Array:
        """Draw a Poisson number of factors per block, the paper's X_l, given that they fit."""
        share = poisson_chance(np.arange(self.parts + 1), self.products / self.blocks)
        below = jnp.asarray(np.cumsum(share / share.sum()))
        uniform = jax.random.uniform(unrelated_key(key), (blocks,))
        return jnp.searchsorted(below, uniform, side="right").astype(int)

    def arrange(self, fresh: Pytree, counts: jax.Array) -> tuple[Pytree, jax.Array]:
        """Put the factors of all blocks into slots, in their order.

        With probability 1e-6 there are more than slots, and the last are left out. Only the start
        of a chain is then affected: `place` tells whether a later block fits.
        """
        block, number, filled = locate(jnp.arange(self.slots), counts)
        owners = jnp.where(filled, block, EMPTY).astype(jnp.uint32)
        part = jnp.where(filled, block * self.parts + number, 0)  # an empty slot takes any rows

        def gather(rows: jax.Array) -> jax.Array:
            parts = rows.reshape(-1, self.batch, *rows.shape[1:])
            return parts[part].reshape(-1, *rows.shape[1:])

        return jax.tree.map(gather, fresh), owners

    def place(self, block: jax.Array, count: jax.Array, owners: jax.Array) -> Slots:
        """Find slots for a fresh block's factors: the first that are empty or the block's own."""
        free = (owners == block) | (owners == EMPTY)
        number = jnp.cumsum(free)  # free slots up to each
        part = jnp.arange(self.parts)
        slots = jnp.sum(number <= part[:, None], axis=1)  # index of the free slot for each part
        slots = jnp.where(part < count, slots, self.slots)
        taken = jnp.where(number <= count, block, EMPTY)
        return Slots(slots, jnp.where(free, taken, owners), count <= number[-1])

    def replace(
        self,
        rows: jax.Array,
        fresh: jax.Array,
        slots: jax.Array,
        accept: bool | jax.Array = True,
    ) -> jax.Array:
        """Put the rows of a fresh block into these slots if `accept` is true."""
        parts = fresh.reshape(self.parts, self.batch, *fresh.shape[1:])
        nowhere = rows.shape[0] + jnp.arange(self.parts)  # beyond the end, where nothing is put
        places = jnp.where(accept & (slots < self.slots), slots * self.batch, nowhere)
        return put_each(rows, parts, places)

    def raise_expectation(self, tables: Centre, difference: jax.Array) -> Centre:
        """Move the bound with the expected difference."""
        return tables + difference

    def _factors(self, values: jax.Array, present: jax.Array, centre: Centre) -> jax.Array:
        """f = (dhat - a) / lambda with a + lambda the centre; one where there is no factor."""
        dhat = values.reshape(present.size, self.batch).mean(axis=1)  # eq. 4.2
        return jnp.where(present, 1 + (dhat - centre) / self.products, 1.0)

    def combine(self, values: jax.Array, present: jax.Array, tables: Centre) -> Estimate:
        """log |Lhat| - sum q = a + lambda + sum log |f| (eq. 5.1)."""
        factors = self._factors(values, present, tables)
        logs = jnp.log(jnp.abs(factors))
        mean = self.products * (factors - 1).sum() / jnp.maximum(jnp.sum(present), 1) + tables
        # A compound Poisson sum: E sum log^2 |f| is the variance of log |Lhat|.
        return Estimate(tables + logs.sum(), mean, jnp.sum(logs**2))

    def describe(
        self, estimate: Estimate, values: jax.Array, present: jax.Array, tables: Centre
    ) -> Draw:
        """The sign, and how close the estimate is to changing it."""
        factors = self._factors(values, present, tables)
        return {
            "sign": 1.0 - 2.0 * (jnp.sum(factors < 0) % 2),  # S of eq. 5.3
            "smallest_factor": jnp.min(jnp.abs(factors)),
            "factors": jnp.sum(present),
            **super().describe(estimate, values, present, tables),
        }


LIKELIHOODS: dict[str, EveryRow] = {"perturbed": Perturbed(), "paper": Perturbed(ddof=0)}
"""Log-likelihood estimates by the name that `ECSExpert(estimator=...)` takes."""
