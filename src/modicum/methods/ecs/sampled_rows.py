"""A sample of rows by which sums over all rows are estimated before a run, or instead of one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modicum.designs import Drawn, WeightTables, sample_on_host
from modicum.models.base import Batch
from modicum.rows import Rows

__all__ = ["SampledRows"]


class SampledRows(NamedTuple):
    """Rows, or whole groups, drawn by their weights.

    Attributes
    ----------
    drawn
        Numbers of the rows, and their probabilities under the weighted design.
    batch
        The rows; their `probability` is the expected number of times each was drawn.
    certain
        How many of them, the first ones, are included with certainty.
    """

    drawn: Drawn
    batch: Batch
    certain: int

    @classmethod
    def of(
        cls, rng: np.random.Generator, rows: Rows, most: int, tables: WeightTables, floor: float
    ) -> SampledRows:
        """Sample `most` of the rows, or take all of them if they are fewer."""
        row_ids, chance, expected, certain = sample_on_host(rng, most, tables, floor)
        batch = rows.take(row_ids) | {"probability": expected}
        return cls(Drawn(row_ids, chance), batch, certain)  # type: ignore[arg-type]

    @property
    def number(self) -> int:
        """Number of rows."""
        return len(self.drawn.row_ids)

    def thinned(self, count: int) -> Batch:
        """Return the rows included with certainty, and up to `count` of the others, reweighted."""
        others = self.number - self.certain
        first = slice(0, self.certain + min(count, others))
        batch = {name: values[first] for name, values in self.batch.items()}
        expected = np.array(batch["probability"])
        expected[self.certain :] *= min(count, others) / max(others, 1)
        return batch | {"probability": expected}

    def first(self, count: int, rows: Rows) -> Batch:
        """Read the first `count` again: as contiguous rows, if they are groups."""
        row_ids = np.asarray(self.drawn.row_ids[:count])
        return rows.take(row_ids) | {"probability": self.batch["probability"][:count]}
