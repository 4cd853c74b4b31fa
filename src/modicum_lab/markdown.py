"""Markdown tables, with numbers rounded to significant digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral, Real


def shown(value: object, figures: int = 4) -> str:
    """Return a cell as text, with numbers rounded to `figures` significant digits.

    Examples
    --------
    >>> [shown(v) for v in (None, "hmc", 10_500_000, 642.84, 0.000123456, True)]
    ['', 'hmc', '10,500,000', '642.8', '0.0001235', 'yes']
    >>> shown(64284.2, figures=3)
    '64,284'
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        number = float(value)
        return f"{number:,.0f}" if 10**figures <= abs(number) < 1e15 else f"{number:.{figures}g}"
    return str(value)


def table_lines(
    columns: Sequence[str], rows: Iterable[Iterable[object]], figures: int = 4
) -> list[str]:
    """Return the lines of a Markdown table.

    Examples
    --------
    >>> table_lines(["method", "CT"], [["hmc", 1.23456]])
    ['| method | CT |', '| --- | --- |', '| hmc | 1.235 |']
    """
    head = [_line(columns), _line(["---"] * len(columns))]
    return [*head, *(_line([shown(value, figures) for value in row]) for row in rows)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
