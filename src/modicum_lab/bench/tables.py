"""Tables of measurements, and interleaved timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from modicum_lab.markdown import table_lines


@dataclass
class Table:
    """One table: one row per measurement, and a note below it.

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
        """Return the table as Markdown."""
        lines = [f"### {self.title}", "", *table_lines(self.columns, self.rows, figures=3)]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])


def verdict(value: float, limit: float) -> str:
    """Say whether `value` is no more than `limit`."""
    return "yes" if value <= limit else "NO"


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each function; runs alternate, so that load affects all."""
    for function in functions.values():
        function()  # compile, fill caches
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            function()
            times[name].append(clock() - start)
    return {name: median(seconds) for name, seconds in times.items()}
