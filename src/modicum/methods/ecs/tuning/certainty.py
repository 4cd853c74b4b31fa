"""How many rows are certain: as many as make an effective draw cheapest.

Rows with the largest expected residuals can be evaluated always. Their residuals are then known,
and what is left to be estimated varies less, so that fewer rows need to be drawn; but they cost an
evaluation each, every time. Which outweighs which is predicted from the pilot study.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

__all__ = ["FIRST", "Certainty", "Costed", "cheapest_certainty"]

FIRST = 50  # rows; twice as many are considered next, as long as that is cheaper
GAIN = 0.9  # of the cost without, above which nothing is gained


class Costed(Protocol):
    """A choice of rows with what it costs."""

    @property
    def cost(self) -> float:
        """Evaluations of rows per effective draw."""
        ...


C = TypeVar("C", bound=Costed)


@dataclass(frozen=True)
class Certainty(Generic[C]):
    """How many rows are certain, what else was chosen with that number, and why."""

    count: int
    choice: C
    why: str


def cheapest_certainty(
    choose: Callable[[int], C], setting: int | Literal["auto"], steps: int, most: int
) -> Certainty[C]:
    """Choose how many rows are certain together with all that depends on it.

    Parameters
    ----------
    choose
        The choice of all else, given how many rows are certain.
    setting
        That number, where it is set by hand.
    steps
        Leapfrog steps expected per iteration.
    most
        Rows that may be certain.
    """
    if setting != "auto":
        return Certainty(setting, choose(setting), "set by hand")
    none = best = choose(0)
    count, number = 0, FIRST
    while number <= most and number * (steps + 1) < none.cost:
        choice = choose(number)
        if choice.cost >= best.cost:
            break
        count, best, number = number, choice, 2 * number
    if not best.cost < GAIN * none.cost:
        return Certainty(0, none, "no number of them would save a tenth of the evaluations")
    ratio = best.cost / none.cost
    share = f"{ratio:.0%}" if ratio > 0.01 else "less than 1%"
    why = f"the number at which an effective draw takes the fewest evaluations, {share} of those"
    return Certainty(count, best, f"{why} without")
