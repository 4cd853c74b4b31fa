"""The number of certainty rows: the one that makes an effective draw cheapest.

Rows with the largest expected residuals can be evaluated in every step. Their residuals are then
exact, and the rest has less variance, so that fewer rows need to be drawn; but each certainty row
costs an evaluation every time. The pilot study predicts which effect is larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

__all__ = ["FIRST", "Certainty", "Costed", "cheapest_certainty"]

FIRST = 50  # certainty rows to try first; the number doubles as long as that is cheaper
GAIN = 0.9  # cost relative to no certainty rows, above which they are not worth it
# Cost relative to that of half as many, above which doubling stops: near its minimum the cost
# hardly depends on the number, and every row must be held and read.
AGAIN = 0.95


class Costed(Protocol):
    """A choice of rows with its cost."""

    @property
    def cost(self) -> float:
        """Evaluations of rows per effective draw."""
        ...


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
        Maps a number of certainty rows to the choice of everything else.
    setting
        The number of certainty rows, if the user set it.
    steps
        Leapfrog steps expected per iteration.
    most
        The most certainty rows to consider.
    """
    if setting != "auto":
        return Certainty(setting, choose(setting), "set by hand")
    none = best = choose(0)
    count, number = 0, FIRST
    while number <= most and number * (steps + 1) < none.cost:
        choice = choose(number)
        if choice.cost >= (AGAIN * best.cost if count else best.cost):
            break
        count, best, number = number, choice, 2 * number
    if not best.cost < GAIN * none.cost:
        return Certainty(0, none, "certainty rows would not save a tenth of the evaluations")
    ratio = best.cost / none.cost
    share = f"{ratio:.0%}" if ratio > 0.01 else "less than 1%"
    why = f"an effective draw takes {share} of the evaluations that it takes without certainty rows"
    return Certainty(count, best, f"{why}, and more rows would save little")
