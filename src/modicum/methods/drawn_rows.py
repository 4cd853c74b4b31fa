"""Which rows are read: samples of rows by their weights, and rows that every step reads.

Rows with the largest expected residuals can be evaluated in every step. Their residuals are then
exact, and the rest has less variance, so that fewer rows need to be drawn; but each of these
certainty rows costs an evaluation every time. Their number is found by doubling it for as long as
that makes an effective draw cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from modicum.kernels.designs import Drawn, WeightTables, certainty_rows, draw_on_host
from modicum.methods.method import Tuning
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


FIRST = 50  # certainty rows to try first
GAIN = 0.9  # cost relative to no certainty rows, above which they are not worth it


class Costed(Protocol):
    """Everything that was chosen along with a number of certainty rows, and its cost."""

    @property
    def cost(self) -> float:
        """Cost of an effective draw, in any unit."""
        ...


C = TypeVar("C", bound=Costed)


def cheapest_number(
    choose: Callable[[int], C], none: C, most: int, row_cost: float = 0.0, stop_ratio: float = 1.0
) -> tuple[int, C]:
    """Return the cheapest number of certainty rows, and what `choose` returns for it.

    Parameters
    ----------
    choose
        Maps a number of certainty rows to the choice of everything else.
    none
        The choice without certainty rows, which are taken only if they save a tenth of its cost.
    most
        The most certainty rows to consider.
    row_cost
        What a certainty row costs at least: numbers that cost more than `none` are not tried.
    stop_ratio
        Cost relative to that of half as many, above which doubling stops.
    """
    count, best, number = 0, none, FIRST
    while number <= most and number * row_cost < none.cost:
        choice = choose(number)
        if choice.cost >= (stop_ratio * best.cost if count else best.cost):
            break
        count, best, number = number, choice, 2 * number
    return (count, best) if best.cost < GAIN * none.cost else (0, none)


# Cost relative to that of half as many, above which doubling stops: near its minimum the cost
# hardly depends on the number, and every row must be held and read.
STOP_RATIO = 0.95


@dataclass(frozen=True)
class Tuned:
    """Settings that a pilot study chose together with a number of certainty rows.

    Attributes
    ----------
    certainty
        The number of certainty rows.
    cost
        Predicted evaluations of rows per effective draw.
    why
        The reason for each setting.
    """

    certainty: int = field(default=0, kw_only=True)
    cost: float = field(default=0.0, kw_only=True)
    why: dict[str, str] = field(default_factory=dict, kw_only=True)

    def explained(self, *names: str) -> Tuning:
        """Return the values of these settings with their reasons."""
        return {name: {"value": getattr(self, name), "why": self.why[name]} for name in names}


T = TypeVar("T", bound=Tuned)


def cheapest_certainty(
    choose: Callable[[int], T], setting: int | Literal["auto"], steps: int, most: int
) -> T:
    """Choose the number of certainty rows together with everything that depends on it.

    Parameters
    ----------
    choose
        Maps a number of certainty rows to the choice of everything else.
    setting
        The number of certainty rows, if the user set it.
    steps
        Leapfrog steps expected per iteration.
    most
        The most certainty rows to consider.
    """
    if setting != "auto":
        return with_reason(choose(setting), "set by hand")
    none = choose(0)
    count, best = cheapest_number(choose, none, most, row_cost=steps + 1, stop_ratio=STOP_RATIO)
    if not count:
        return with_reason(none, "certainty rows would not save a tenth of the evaluations")
    ratio = best.cost / none.cost
    share = f"{ratio:.0%}" if ratio > 0.01 else "less than 1%"
    why = f"an effective draw takes {share} of the evaluations that it takes without certainty rows"
    return with_reason(best, f"{why}, and more rows would save little")


def with_reason(choice: T, why: str) -> T:
    """Add the reason for the number of certainty rows."""
    return replace(choice, why=choice.why | {"certainty": why})
