"""Sums over rows removed from a digest, each expanded about its original anchor.

Digests that were added may have different anchors. A row contributed its expansion about *its*
anchor to the sums, and that is what must be subtracted: its expansion about another anchor differs
by third-order terms, which add up over many rows. For removed rows that are in the pool, the anchor
is known. For the others, the share that came from each anchor is estimated: a removed row in the
pool represents multiplier - 1 removed rows outside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modicum.digest.keeping import expansion
from modicum.digest.pool import Pool, hashes
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.passes import Engine, Quadratic, Sums
from modicum.rows import Rows


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
    total: Quadratic | None = None
    for part in np.unique(parts[parts >= 0]):
        rows_of_part = rows.subset(np.flatnonzero(parts == part))
        for k, anchor in enumerate(anchors):
            part_sums = expand_at(anchor, rows_of_part)
            unknown[k] = unknown[k] - part_sums
            if k == part:
                total = part_sums if total is None else total + part_sums
    if not (parts < 0).any():
        assert total is not None
        return RemovedSums(total)
    counts = np.bincount(parts[parts >= 0], minlength=len(anchors))
    others = np.bincount(pool.part, weights=pool.size, minlength=len(anchors))
    share = stands_for if stands_for.sum() > 0 else others
    share = share / share.sum()
    for k, rest in enumerate(unknown):
        part_of_it = Quadratic(rest.point, share[k] * rest.C, share[k] * rest.A, share[k] * rest.B)
        total = part_of_it if total is None else total + part_of_it
    assert total is not None
    smooth = (counts + 1) / (counts.sum() + len(anchors))  # an anchor without rows found gets some
    error = np.sqrt(smooth * (1 - smooth) / (counts.sum() + len(anchors)))
    return RemovedSums(
        total, tuple(rest - unknown[0] for rest in unknown[1:]), tuple(map(float, error[1:]))
    )


def _anchors_known(rows: Rows, pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's anchor, -1 if the pool lacks it, and how many other rows each accounts for.

    The second array has, for each anchor, the number of removed rows outside the pool that those in
    the pool represent.
    """
    pool_hashes = hashes(pool.rows._description, pool.rows.slice(0, len(pool)))
    distinct, first = np.unique(pool_hashes, return_index=True)
    part, others = pool.part[pool.stratum][first], np.maximum(pool.multiplier[first] - 1, 0.0)
    parts, stands_for = [], np.zeros(int(pool.part.max()) + 1)
    for chunk in rows.chunks(1 << 16):
        hashed = hashes(pool.rows._description, chunk)
        at = np.minimum(np.searchsorted(distinct, hashed), len(distinct) - 1)
        is_in_pool = distinct[at] == hashed
        parts.append(np.where(is_in_pool, part[at], -1))
        np.add.at(stands_for, part[at[is_in_pool]], others[at[is_in_pool]])
    return np.concatenate(parts), stands_for
