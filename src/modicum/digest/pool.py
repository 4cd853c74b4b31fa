"""The rows a digest keeps: a stratified sample of all rows, by how much each is expected to matter.

Rows are sorted into strata by the expected size of their residual. Of the n_c rows of stratum c,
m_c are drawn without replacement, so that (n_c / m_c) times the sum of the kept rows' values,
summed over strata, is unbiased for the sum over all rows. m_c is proportional to n_c times the
expected residual (Neyman's allocation); strata that matter most are kept whole and add no error.
One pass computes the expected residuals, and another counts how many rows equal each kept row.

Rows removed from the data are removed from the pool by their values. If r of k equal rows are
removed, the weight of every kept copy is multiplied by (k - r) / k, so that the pool is unbiased
for the remaining rows. From the sums, a row's expansion about *its* anchor must be subtracted, if
digests with different anchors were added: about another anchor it differs by third-order terms,
which add up over many rows. For removed rows that are in the pool, the anchor is known. For the
others, the share that came from each anchor is estimated: a removed row in the pool represents
multiplier - 1 removed rows outside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add

import jax.numpy as jnp
import numpy as np
from scipy.special import bdtr

from modicum.errors import DataError
from modicum.kernels.control_variates import control_variate
from modicum.kernels.designs import WeightTables, weight_tables
from modicum.kernels.protocols import Proxy
from modicum.kernels.whitening import Whitening
from modicum.ledger import Ledger
from modicum.methods.weights import expected_residuals
from modicum.models import Target
from modicum.passes import Engine, Quadratic, Sums
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.equal_rows import hashes
from modicum.rows.memory import MemoryBackend

EACH = 8  # kept rows per stratum, on average, at least


@dataclass(frozen=True)
class Pool:
    """A stratified sample that represents all rows.

    Attributes
    ----------
    rows
        The kept rows, sorted by stratum.
    share
        Fraction of each row's original weight: 1, or less if rows equal to it were removed.
    count
        Number of rows of the data that are equal to each row.
    stratum
        Stratum of each row.
    size, drawn
        Number of rows of each stratum in the data, and number of them drawn.
    part
        Index of the anchor about which each stratum's rows are expanded.
    """

    rows: Rows
    share: np.ndarray
    count: np.ndarray
    stratum: np.ndarray
    size: np.ndarray
    drawn: np.ndarray
    part: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def multiplier(self) -> np.ndarray:
        """Number of rows of the data that each row represents."""
        return np.asarray((self.size / self.drawn)[self.stratum] * self.share)

    def weighted(self, part: int | None = None) -> Rows:
        """Return the rows weighted by the number of rows they represent; of one part, if given."""
        fields = dict(self.rows.slice(0, len(self)))
        weight = self.multiplier * fields.get("weight", 1.0)
        description = self.rows._description
        if "weight" not in fields:
            description = replace(description, fields={**description.fields, "weight": ()})
        fields["weight"] = weight.astype(description.dtype)
        rows = Rows._at(MemoryBackend.of(description, fields))
        if part is None:
            return rows
        return rows.subset(np.flatnonzero(self.part[self.stratum] == part))

    def joined(self, other: Pool, parts: np.ndarray) -> Pool:
        """Join two pools of different rows; `parts` maps the parts of the other to new numbers."""
        own, theirs = (p.rows.slice(0, len(p)) for p in (self, other))
        fields = {name: np.concatenate([own[name], theirs[name]]) for name in own}
        counts = RowCounts(self.rows), RowCounts(other.rows)
        # Rows equal to one in the other pool are counted in both data sets together.
        in_other = counts[1].largest(other.count, counts[0])
        in_this = counts[0].largest(self.count, counts[1])
        return Pool(
            Rows._at(MemoryBackend.of(self.rows._description, fields)),
            np.concatenate([self.share, other.share]),
            np.concatenate([self.count + in_other, other.count + in_this]),
            np.concatenate([self.stratum, other.stratum + len(self.size)]),
            np.concatenate([self.size, other.size]),
            np.concatenate([self.drawn, other.drawn]),
            np.concatenate([self.part, parts[other.part]]),
        )

    def without(self, rows: Rows) -> Pool:
        """Return the pool after `rows` are removed from the data."""
        removed = RowCounts(self.rows).counted(rows)
        if np.any(removed > self.count):
            row = int(np.argmax(removed > self.count))
            raise DataError(
                f"{removed[row]:.0f} of the rows to remove are equal, but the digest holds only "
                f"{self.count[row]:.0f} such rows: remove each row once, with the values it had "
                "when the digest was made."
            )
        with np.errstate(invalid="ignore"):
            share = self.share * (self.count - removed) / self.count
        remaining = share > 0
        if not remaining.any():
            raise DataError("all rows of the digest would be removed: nothing is left to fit.")
        return replace(
            self,
            rows=self.rows.subset(np.flatnonzero(remaining)),
            share=share[remaining],
            count=(self.count - removed)[remaining],
            stratum=self.stratum[remaining],
        )

    def parts_used(self) -> tuple[Pool, np.ndarray]:
        """Return the pool with its parts renumbered, and the parts that still have rows."""
        parts = np.unique(self.part[self.stratum])
        place = np.minimum(np.searchsorted(parts, self.part), len(parts) - 1)
        return replace(self, part=place.astype(self.part.dtype)), parts

    def shared(self, other: Pool) -> tuple[int, int]:
        """Count equal rows that are unique in the data of each, and rows of the smaller pool."""
        ours, theirs = (p.rows.take(np.flatnonzero(p.count == 1)) for p in (self, other))
        hash_rows = partial(hashes, self.rows._description)
        equal = np.intersect1d(hash_rows(ours), hash_rows(theirs))
        return len(equal), min(len(self), len(other))

    def presence(self, rows: Rows) -> tuple[float, int]:
        """Bound the probability of finding so few of `rows` in the pool if all are in the data.

        Returns the bound and the number found. A row of stratum c is kept with probability
        m_c / n_c, so the number found is stochastically no smaller than a binomial variable with
        the smallest of these probabilities.
        """
        present = int(np.sum(RowCounts(rows).counted(self.rows) > 0))
        share = float(np.min(self.drawn / self.size))
        return float(bdtr(present, len(rows), share)), present

    def variance(self, values: np.ndarray) -> np.ndarray:
        """Design variance of the estimated sums of `values`, (draws, rows): one per draw.

        sum_c n_c^2 (1 - m_c / n_c) s_c^2 / m_c, where s_c^2 is the variance within stratum c;
        removed rows count as zeros.
        """
        scaled = values * self.share
        first = np.flatnonzero(np.diff(self.stratum, prepend=-1))
        which = self.stratum[first]
        n, m = self.size[which], self.drawn[which]
        total = np.add.reduceat(scaled, first, axis=1)
        squares = np.add.reduceat(scaled**2, first, axis=1)
        within = np.maximum(squares - total**2 / m, 0.0) / np.maximum(m - 1, 1)
        return np.asarray(within @ (n**2 * (1 - m / n) / m))


class RowCounts:
    """Counts how often the rows of a pool occur among other rows, by a hash of their values."""

    def __init__(self, rows: Rows) -> None:
        self.description = rows._description
        hashed = hashes(self.description, rows.slice(0, len(rows)))
        self.sorted, self.first, self.place = np.unique(
            hashed, return_index=True, return_inverse=True
        )

    def find(self, hashed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where each hash would be among the pool's distinct ones, and whether it is."""
        at = np.minimum(np.searchsorted(self.sorted, hashed), len(self.sorted) - 1)
        return at, self.sorted[at] == hashed

    def counted(self, rows: Rows) -> np.ndarray:
        """Return how many of `rows` are equal to each row of the pool."""
        total = np.zeros(len(self.sorted))
        for chunk in rows.chunks(1 << 16):
            total += self.among(chunk)
        return np.asarray(total[self.place])

    def among(
        self, batch: Mapping[str, np.ndarray], present: np.ndarray | None = None
    ) -> np.ndarray:
        """Return how many rows of a batch have each of the pool's distinct hashes."""
        hashed = hashes(self.description, batch)
        if present is not None:
            hashed = hashed[np.asarray(present, bool)]
        at, equal = self.find(hashed)
        return np.bincount(at[equal], minlength=len(self.sorted)).astype(np.float64)

    def largest(self, count: np.ndarray, sought: RowCounts) -> np.ndarray:
        """Return, for each row of `sought`, the largest `count` of an equal row here, or 0."""
        of_value = np.zeros(len(self.sorted))
        np.maximum.at(of_value, self.place, count)
        at, equal = self.find(sought.sorted)
        return np.asarray(np.where(equal, of_value[at], 0.0)[sought.place])


def choose(
    tables: WeightTables, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw about `size` rows; return row numbers, their strata, and each stratum's n_c and m_c.

    The strata are the classes of the weighted design, merged if few rows are kept. At least two
    rows of each stratum are kept, or all of them.
    """
    of_class, probability = np.asarray(tables.size), np.asarray(tables.probability)
    kinds = np.flatnonzero(of_class)
    n, mass = of_class[kinds].astype(np.float64), (of_class * probability)[kinds]
    # Merge neighbouring classes if few rows of each would be kept.
    count = max(1, min(len(kinds), size // EACH))
    place = np.floor(count * (np.cumsum(mass) - mass) / mass.sum()) if count < len(kinds) else kinds
    first = np.flatnonzero(np.diff(place, prepend=-1))
    n, mass = np.add.reduceat(n, first), np.add.reduceat(mass, first)
    start = np.asarray(tables.start)[kinds[first]]
    drawn = _allocation(n, mass, min(size, int(n.sum())))
    places, strata = [], []
    for c, (at, rows, m) in enumerate(zip(start, n, drawn, strict=True)):
        within = np.sort(rng.choice(int(rows), int(m), replace=False))
        places.append(int(at) + within)
        strata.append(np.full(int(m), c, np.int32))
    assert tables.order is not None
    row_ids = np.asarray(tables.order[np.concatenate(places)], np.int64)
    return row_ids, np.concatenate(strata), n, drawn


def _allocation(n: np.ndarray, mass: np.ndarray, size: int) -> np.ndarray:
    """Return how many rows to draw from each stratum: in proportion to its mass, at most all."""
    most, least = n, np.minimum(n, 2.0)
    low, high = 0.0, float(np.max(n / np.maximum(mass, 1e-300)))
    for _ in range(200):  # bisect for the factor of proportion that gives `size` rows
        middle = (low + high) / 2
        if np.clip(middle * mass, least, most).sum() > size:
            high = middle
        else:
            low = middle
    return np.asarray(np.clip(np.rint(low * mass), least, most))


PILOT = 8  # draws at which residuals of models without a linear predictor are evaluated
FLOOR = 0.1  # share of the pool that is drawn uniformly from all rows


def expansion(sums: Sums, point: np.ndarray) -> Quadratic:
    """Return sums over all rows to second order about `point`, in the likelihood's parameters."""
    size = sums.target.likelihood.size
    C, A, B = sums.hessian(np.append(point, np.zeros(sums.target.size - len(point))), "digest")
    return Quadratic(point, C, A[:size], B[:size, :size])


def proxy_at(point: np.ndarray, factor: np.ndarray) -> Proxy:
    """Return a proxy for residuals at t = point + factor z, without sums over rows."""
    return Proxy(Whitening(jnp.asarray(point), jnp.asarray(factor)), jnp.zeros(len(point)), None)


def keep(
    sums: Sums, point: np.ndarray, factor: np.ndarray, centre: np.ndarray, size: int, seed: int
) -> Pool:
    """Choose the rows of a pool, for a posterior normal about point + factor centre.

    Parameters
    ----------
    sums
        All rows, and the engine that passes over them.
    point
        The anchor, in all parameters of the target.
    factor
        L, with L L' the posterior's covariance.
    centre
        Posterior mean in whitened coordinates.
    size
        Number of rows to keep.
    seed
        Random seed.
    """
    rows = sums.rows
    if len(rows) <= size:
        row_ids, strata = np.arange(len(rows)), np.zeros(len(rows), np.int32)
        n = drawn = np.array([float(len(rows))])
    else:
        form = control_variate(sums.target, 2)
        d = len(point)
        proxy = proxy_at(point, factor)
        pilot = centre + generator(seed, Stream.PILOT_DRAWS).standard_normal((PILOT, d))
        rng = generator(seed, Stream.DIGEST_ROWS)
        tables = weight_tables(expected_residuals(sums, form, proxy, pilot), FLOOR)
        row_ids, strata, n, drawn = choose(tables, size, rng)
    pool = rows.subset(row_ids)
    # how many of all rows are equal to each row of the pool, itself included
    sought = RowCounts(pool)
    sums.ledger.add("digest", len(sums.rows), "density", passes=1)
    (counts,) = sums.engine.map_reduce(_count_in_batch, sought, sums.rows, "count")
    count = np.asarray(counts)[sought.place]
    part = np.zeros(len(n), np.int32)
    return Pool(pool, np.ones(len(row_ids)), count, strata, n, drawn, part)


def _count_in_batch(
    sought: RowCounts, batch: Mapping[str, np.ndarray], present: np.ndarray
) -> tuple[np.ndarray]:
    return (sought.among(batch, present),)


@dataclass(frozen=True)
class RemovedSums:
    """Sums over the rows removed from a digest.

    Attributes
    ----------
    sums
        Expansion of all removed rows.
    apart
        For each anchor after the first, the expansion about it minus that about the first, summed
        over rows whose anchor is unknown.
    uncertain
        For each of these anchors, the standard error of the share of such rows that came from it.
    """

    sums: Quadratic
    apart: tuple[Quadratic, ...] = ()
    uncertain: tuple[float, ...] = ()

    def error(self, point: np.ndarray, factor: np.ndarray) -> float:
        """Return how far the unknown shares may move a posterior mean, in posterior sds.

        The posterior is taken as normal about `point` with covariance factor factor'.
        """
        moves = (
            np.max(np.abs(factor[: len(apart.A)].T @ apart.slopes(point))) * share
            for apart, share in zip(self.apart, self.uncertain, strict=True)
        )
        return float(max(moves, default=0.0))


def removed_sums(
    target: Target, rows: Rows, pool: Pool, anchors: np.ndarray, engine: Engine
) -> RemovedSums:
    """Sum the expansions of `rows`, which are removed from the digest, about their anchors."""

    def expand_at(anchor: np.ndarray, subset: Rows) -> Quadratic:
        return expansion(Sums(target, subset, engine, Ledger(rows=len(subset))), anchor)

    if len(anchors) == 1:
        return RemovedSums(expand_at(anchors[0], rows))
    parts, stands_for = _anchors_known(rows, pool)
    unknown = [expand_at(anchor, rows) for anchor in anchors]
    found = []  # of the rows that came from each anchor
    for part in np.unique(parts[parts >= 0]):
        rows_of_part = rows.subset(np.flatnonzero(parts == part))
        known = [expand_at(anchor, rows_of_part) for anchor in anchors]
        unknown = [rest - own for rest, own in zip(unknown, known, strict=True)]
        found.append(known[part])
    if not (parts < 0).any():
        return RemovedSums(reduce(add, found))
    counts = np.bincount(parts[parts >= 0], minlength=len(anchors))
    others = np.bincount(pool.part, weights=pool.size, minlength=len(anchors))
    share = stands_for if stands_for.sum() > 0 else others
    for s, rest in zip(share / share.sum(), unknown, strict=True):
        found.append(Quadratic(rest.point, s * rest.C, s * rest.A, s * rest.B))
    smooth = (counts + 1) / (counts.sum() + len(anchors))  # an anchor without rows found gets some
    error = np.sqrt(smooth * (1 - smooth) / (counts.sum() + len(anchors)))
    apart = tuple(rest - unknown[0] for rest in unknown[1:])
    return RemovedSums(reduce(add, found), apart, tuple(map(float, error[1:])))


def _anchors_known(rows: Rows, pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's anchor, -1 if the pool lacks it, and how many other rows each accounts for.

    The second array has, for each anchor, the number of removed rows outside the pool that those in
    the pool represent.
    """
    counts = RowCounts(pool.rows)
    part = pool.part[pool.stratum][counts.first]
    others = np.maximum(pool.multiplier[counts.first] - 1, 0.0)
    parts, stands_for = [], np.zeros(int(pool.part.max()) + 1)
    for chunk in rows.chunks(1 << 16):
        at, is_in_pool = counts.find(hashes(counts.description, chunk))
        parts.append(np.where(is_in_pool, part[at], -1))
        np.add.at(stands_for, part[at[is_in_pool]], others[at[is_in_pool]])
    return np.concatenate(parts), stands_for
