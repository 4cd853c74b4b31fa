"""Figures of Modicum's parts in the documentation: pages' tables are written from one file.

The file is docs/benchmarks/parts.json. It has the tables that parts made, by name, each with when
and on what it was measured; `python -m modicum_lab.bench.parts NAME --docs` replaces those of a
part. Pages say by comments where tables go:

    <!-- figures: iterations-1 -->
    <!-- end of figures -->

`python -m modicum_lab.bench.figures` writes the tables of all pages of a checkout once more.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from modicum_lab.bench.machine import describe_machine
from modicum_lab.bench.tables import Table
from modicum_lab.markdown import table_lines

DOCS = Path("docs")
FILE = Path("benchmarks", "parts.json")  # in the folder of the documentation
PLACE = re.compile(r"<!-- figures: (\S+) -->\n.*?<!-- end of figures -->", re.DOTALL)

Kept: TypeAlias = dict[str, dict[str, Any]]  # tables by name, as in the file


def read(docs: Path = DOCS) -> Kept:
    """Return the tables of the file, by name."""
    kept: Kept = json.loads((docs / FILE).read_text(encoding="utf-8"))
    return kept


def with_figures(page: str, kept: Kept) -> str:
    r"""Return a page with its tables as they are in the file.

    Examples
    --------
    >>> table = {"columns": ["what", "s"], "rows": [["a pass", 0.5]], "note": "", "measured": "Now"}
    >>> print(with_figures("<!-- figures: a-1 -->\n<!-- end of figures -->", {"a-1": table}))
    <!-- figures: a-1 -->
    <BLANKLINE>
    | what | s |
    | --- | --- |
    | a pass | 0.5 |
    <BLANKLINE>
    Now.
    <BLANKLINE>
    <!-- end of figures -->
    """

    def written(place: re.Match[str]) -> str:
        table = kept[place[1]]
        below = " ".join(part for part in (table["note"], f"{table['measured']}.") if part)
        lines = table_lines(table["columns"], table["rows"], figures=3)
        return "\n".join(
            [f"<!-- figures: {place[1]} -->", "", *lines, "", below, "", "<!-- end of figures -->"]
        )

    return PLACE.sub(written, page)


def write_pages(docs: Path = DOCS) -> None:
    """Write the tables of every page from the file."""
    kept = read(docs)
    for path in docs.rglob("*.md"):
        page = path.read_text(encoding="utf-8")
        if (written := with_figures(page, kept)) != page:
            path.write_text(written, encoding="utf-8")


def keep(part: str, tables: Sequence[Table], measured: str, docs: Path = DOCS) -> None:
    """Put the tables of a part into the file, in place of earlier ones, and into the pages."""
    earlier = {k: v for k, v in read(docs).items() if k.rsplit("-", 1)[0] != part}
    now = {f"{part}-{k}": _record(table, measured) for k, table in enumerate(tables, 1)}
    text = json.dumps(dict(sorted((earlier | now).items())), indent=1, ensure_ascii=False)
    (docs / FILE).write_text(text + "\n", encoding="utf-8")
    write_pages(docs)


def _record(table: Table, measured: str) -> dict[str, Any]:
    rows = [[_rounded(cell) for cell in row] for row in table.rows]
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": rows,
        "note": table.note,
        "measured": measured,
    }


def _rounded(cell: object) -> object:
    """Return a cell with no more digits than anybody reads."""
    return float(f"{cell:.5g}") if isinstance(cell, float) else cell


def measured(command: str, machine: Mapping[str, Any], load: float) -> str:
    """Say when, on what and by which command figures were measured.

    Examples
    --------
    >>> about = {"device": "cpu: cpu", "cores": 2, "processor": "A",
    ...          "date": "2026-11-19 12:00 UTC", "versions": {"modicum": "0.1.0", "jax": "0.10.2"}}
    >>> measured("it", about, 0.26)
    'Measured by `it` on 2026-11-19, 2 cores of A (load before: 0.3), modicum 0.1.0, jax 0.10.2'
    """
    kind, _, card = machine["device"].partition(": ")
    where = f"{machine['cores']} cores of {machine['processor']}" if kind == "cpu" else card
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("modicum", "jax"))
    return (
        f"Measured by `{command}` on {machine['date'][:10]}, {where} (load before: {load:.1f}), "
        f"{versions}"
    )


def measured_now(command: str) -> str:
    """Say this before a measurement, when the load is that of other work."""
    return measured(command, describe_machine(), os.getloadavg()[0])


if __name__ == "__main__":
    write_pages()
