"""The search for the number of certainty rows, by doubling it for as long as that is cheaper.

Rows with the largest expected residuals can be evaluated in every step. Their residuals are then
exact, and the rest has less variance, so that fewer rows need to be drawn; but each certainty row
costs an evaluation every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

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
