"""A sample of rows by which sums over all rows are estimated before a run, or instead of one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modicum.designs import Drawn, WeightTables, certainty_rows, draw_on_host
from modicum.models.base import Batch
from modicum.rows import Rows


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


class SampledIds(NamedTuple):
    """Ids of certainty rows, followed by those of drawn rows.

    A sum over all rows is estimated by the sum of values / expected over these.
    """

    row_ids: np.ndarray
    probability: np.ndarray  # under the weighted design over all rows
    expected: np.ndarray  # expected number of times each was drawn: 1 for certainty rows
    certain: int  # number of certainty rows, which come first


def sample_on_host(
    rng: np.random.Generator, count: int, tables: WeightTables, floor: float = 0.1
) -> SampledIds:
    """Sample `count` rows, taking rows that would be drawn repeatedly exactly once.

    A few rows may have nearly all of the weight, and `count` draws would be copies of these. If
    there are no more than `count` rows, all are taken.
    """
    assert tables.order is not None, "chains draw places, and nobody else does"
    n = len(tables.order)
    if n <= count:
        row_ids = np.asarray(tables.order).astype(np.int64)
        return SampledIds(row_ids, _probability_at(np.arange(n), tables), np.ones(n), n)
    number, rest = 0, tables
    for _ in range(8):  # the more rows are set apart, the more often the others are drawn
        size, chance = np.asarray(rest.size), np.asarray(rest.probability)
        often = min(count // 2, number + int(size[chance * (count - number) >= 1].sum()))
        if often == number:
            break
        number = often
        rest = certainty_rows(tables, number, floor).rest
    drawn = draw_on_host(rng, count - number, rest)
    certain = certainty_rows(tables, number, floor)
    among_rest = np.asarray(drawn.probability)
    before = (
        (among_rest - certain.even) / certain.slope
        if certain.slope
        else np.full(len(among_rest), 1 / n)
    )
    largest = np.arange(n - number, n)
    return SampledIds(
        np.r_[certain.row_ids, np.asarray(drawn.row_ids, np.int64)],
        np.r_[_probability_at(largest, tables), before],
        np.r_[np.ones(number), (count - number) * among_rest],
        number,
    )


def _probability_at(places: np.ndarray, tables: WeightTables) -> np.ndarray:
    """Probability of the rows at these places of `order`."""
    filled = np.flatnonzero(np.asarray(tables.size))
    kind = np.searchsorted(np.asarray(tables.start)[filled], places, side="right") - 1
    return np.asarray(tables.probability)[filled[kind]]
