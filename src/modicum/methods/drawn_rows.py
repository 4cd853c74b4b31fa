"""Which rows are read: samples of rows by their weights, and rows that every step reads.

Rows with the largest expected residuals can be evaluated in every step. Their residuals are then
exact, and the rest has less variance, so that fewer rows need to be drawn; but each of these
certainty rows costs an evaluation every time. Their number is found by doubling it for as long as
that makes an effective draw cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from modicum.kernels.designs import Drawn, WeightTables, certainty_rows, draw_on_host
from modicum.models.model import Batch
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
        cls, rng: np.random.Generator, rows: Rows, most: int, tables: WeightTables
    ) -> SampledRows:
        """Sample `most` of the rows, or take all of them if they are fewer."""
        row_ids, chance, expected, certain = sample_on_host(rng, most, tables)
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


def sample_on_host(rng: np.random.Generator, count: int, tables: WeightTables) -> SampledIds:
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
        rest = certainty_rows(tables, number).rest
    drawn = draw_on_host(rng, count - number, rest)
    certain = certainty_rows(tables, number)
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


FIRST = 50  # certainty rows to try first
GAIN = 0.9  # cost relative to no certainty rows, above which they are not worth it


def cheapest_number(
    cost: Callable[[int], float], most: int, row_cost: float = 0.0, stop_ratio: float = 1.0
) -> tuple[int, float]:
    """Return the cheapest number of certainty rows, and its cost relative to having none.

    Parameters
    ----------
    cost
        Cost of an effective draw with a number of certainty rows, in any unit. They are taken only
        if they save a tenth of it.
    most
        The most certainty rows to consider.
    row_cost
        What a certainty row costs at least: numbers that cost more than having none are not tried.
    stop_ratio
        Cost relative to that of half as many, above which doubling stops.
    """
    none = best = cost(0)
    count, number = 0, FIRST
    while number <= most and number * row_cost < none:
        tried = cost(number)
        if tried >= (stop_ratio * best if count else best):
            break
        count, best, number = number, tried, 2 * number
    return (count, best / none) if best < GAIN * none else (0, 1.0)
