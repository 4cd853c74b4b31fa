"""A table of figures, and how it is shown. Nothing but the standard library is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

__all__ = ["Table", "interleaved", "shown", "verdict"]


@dataclass
class Table:
    """One table: a row a measurement, and a sentence or two below it.

    Examples
    --------
    >>> print(Table("Speed", ["what", "seconds"], [["a pass", 0.123456]]).markdown())
    ### Speed
    <BLANKLINE>
    | what | seconds |
    | --- | --- |
    | a pass | 0.123 |
    <BLANKLINE>
    """

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        """Set as Markdown."""
        lines = [f"### {self.title}", "", _line(self.columns), _line(["---"] * len(self.columns))]
        lines += [_line([shown(value) for value in row]) for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])


def shown(value: Any) -> str:
    """Return a cell as a reader wants it: three figures are enough.

    Examples
    --------
    >>> [shown(v) for v in (None, "hmc", 10_500_000, 64284.2, 0.0001234, True)]
    ['', 'hmc', '10,500,000', '64,284', '0.000123', 'yes']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.3g}"
    return str(value)


def verdict(value: float, limit: float) -> str:
    """Say whether `value` is no more than `limit`."""
    return "yes" if value <= limit else "NO"


def interleaved(functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each function; they take turns, so that a busy moment hits all."""
    for function in functions.values():
        function()  # compile, fill caches
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: median(seconds) for name, seconds in times.items()}


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
