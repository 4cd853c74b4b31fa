"""Rows drawn with known probabilities, and sums over all rows of what is known of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from modicum.random import Stream, generator

__all__ = ["Estimate", "RowSample"]

EVEN = 0.1  # share of the sample that is drawn without regard to the approximation


class Estimate(NamedTuple):
    """A sum over all rows, and the variance that drawing rows leaves in it."""

    value: float
    variance: float


@dataclass(frozen=True)
class RowSample:
    """Rows drawn with replacement, each once, or all rows.

    Attributes
    ----------
    row_ids
        Numbers of the rows (or groups), ascending, in the order that all models share.
    times
        How often each was drawn; None: these are all rows.
    probability
        Of each in one draw.
    """

    row_ids: np.ndarray
    times: np.ndarray | None
    probability: np.ndarray

    @classmethod
    def of_all(cls, number: int) -> RowSample:
        """All rows, none of them by chance."""
        return cls(np.arange(number), None, np.ones(number))

    @classmethod
    def drawn(cls, size: np.ndarray, number: int, seed: int) -> RowSample:
        """Draw rows by their `size`, some without regard to it."""
        total = size.sum(dtype=float)
        even = EVEN if total > 0 else 1.0
        share = even / len(size) + (1 - even) * size.astype(float) / (total or 1.0)
        edges = np.cumsum(share)
        uniform = generator(seed, Stream.LEFT_OUT_ROWS).random(number) * edges[-1]
        ids = np.searchsorted(edges, uniform, side="right")
        row_ids, times = np.unique(np.minimum(ids, len(size) - 1), return_counts=True)
        return cls(row_ids, times, share[row_ids] / edges[-1])

    def total(self, rest: np.ndarray) -> Estimate:
        """The sum of `rest` over all rows, of its values at those of the sample."""
        if self.times is None:
            return Estimate(float(rest.sum()), 0.0)
        m = int(self.times.sum())
        expanded = rest / self.probability
        value = float(self.times @ expanded) / m
        return Estimate(value, float(self.times @ (expanded - value) ** 2) / (m * max(m - 1, 1)))
