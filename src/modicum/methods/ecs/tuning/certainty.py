"""The number of certainty rows: the one that makes an effective draw cheapest.

The pilot study predicts the subsample that is needed besides so many rows, and what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from modicum.methods.certainty import Costed, cheapest_number

# Cost relative to that of half as many, above which doubling stops: near its minimum the cost
# hardly depends on the number, and every row must be held and read.
STOP_RATIO = 0.95

C = TypeVar("C", bound=Costed)


@dataclass(frozen=True)
class Certainty(Generic[C]):
    """The number of certainty rows, the settings chosen along with it, and the reason."""

    count: int
    choice: C
    why: str


def cheapest_certainty(
    choose: Callable[[int], C], setting: int | Literal["auto"], steps: int, most: int
) -> Certainty[C]:
    """Choose the number of certainty rows together with everything that depends on it.

    Parameters
    ----------
    choose
        Maps a number of certainty rows to the choice of everything else, whose cost is in
        evaluations of rows per effective draw.
    setting
        The number of certainty rows, if the user set it.
    steps
        Leapfrog steps expected per iteration.
    most
        The most certainty rows to consider.
    """
    if setting != "auto":
        return Certainty(setting, choose(setting), "set by hand")
    none = choose(0)
    count, best = cheapest_number(choose, none, most, row_cost=steps + 1, stop_ratio=STOP_RATIO)
    if not count:
        return Certainty(0, none, "certainty rows would not save a tenth of the evaluations")
    ratio = best.cost / none.cost
    share = f"{ratio:.0%}" if ratio > 0.01 else "less than 1%"
    why = f"an effective draw takes {share} of the evaluations that it takes without certainty rows"
    return Certainty(count, best, f"{why}, and more rows would save little")
