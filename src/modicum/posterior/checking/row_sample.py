"""Sample rows with known probabilities, and estimate sums over all rows from the sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from modicum.random import Stream, generator

EVEN = 0.1  # share of the sample that is drawn uniformly


class Estimate(NamedTuple):
    """An estimated sum over all rows, and its variance due to sampling rows."""

    value: float
    variance: float


@dataclass(frozen=True)
class RowSample:
    """Distinct rows that were drawn with replacement, or all rows.

    Attributes
    ----------
    row_ids
        Indices of the rows (or groups), ascending, in the order that all models share.
    times
        How often each was drawn; None if the sample is all rows.
    probability
        Probability of each row in one draw.
    """

    row_ids: np.ndarray
    times: np.ndarray | None
    probability: np.ndarray

    @classmethod
    def of_all(cls, number: int) -> RowSample:
        """Return the sample that is all rows."""
        return cls(np.arange(number), None, np.ones(number))

    @classmethod
    def drawn(cls, size: np.ndarray, number: int, seed: int) -> RowSample:
        """Draw rows with probability proportional to `size`, and a few uniformly."""
        total = size.sum(dtype=float)
        even = EVEN if total > 0 else 1.0
        share = even / len(size) + (1 - even) * size.astype(float) / (total or 1.0)
        edges = np.cumsum(share)
        uniform = generator(seed, Stream.LEFT_OUT_ROWS).random(number) * edges[-1]
        ids = np.searchsorted(edges, uniform, side="right")
        row_ids, times = np.unique(np.minimum(ids, len(size) - 1), return_counts=True)
        return cls(row_ids, times, share[row_ids] / edges[-1])

    def total(self, rest: np.ndarray) -> Estimate:
        """Estimate the sum of `rest` over all rows from its values at the sample."""
        if self.times is None:
            return Estimate(float(rest.sum()), 0.0)
        m = int(self.times.sum())
        expanded = rest / self.probability
        value = float(self.times @ expanded) / m
        return Estimate(value, float(self.times @ (expanded - value) ** 2) / (m * max(m - 1, 1)))
