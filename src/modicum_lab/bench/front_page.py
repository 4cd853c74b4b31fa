"""Figures of the benchmark on README and on the first page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from modicum_lab.bench.accuracy import judge_all
from modicum_lab.bench.limits import BROUGHT, OURS
from modicum_lab.bench.report import from_json, limits, write_report
from modicum_lab.bench.suite import Results
from modicum_lab.markdown import shown

TITLES = {  # first cells of the table: the problem
    "Covertype": "covertype",
    "New York flights": "flights",
    "motor claims": "claims",
    "HIGGS-shaped": "higgs-1m",
}
DISK = "iterations per second, disk over memory, plain-100m"
FIRST = "flights"  # of which the site's first page speaks


def figures(results: Results, problem: str) -> list[str]:
    """Return seconds to 1,000 effective draws, ours and NumPyro's, and the errors of means."""
    runs = {m.contender: m for m in results.measured if m.problem == problem and m.chains is None}
    both = [runs[name] for name in (OURS, BROUGHT)]
    seconds = [m.middle("cold") for m in both]
    errors = [judge_all(m.runs, results.references[problem]).mean for m in both]
    return [shown(value, 3) for value in (*seconds, *errors)]


def readme(page: str, results: Results) -> str:
    """Return README with the figures of the run."""

    def line(found: re.Match[str]) -> str:
        name = TITLES[found[1]]
        about = results.problems[name]
        cells = [found[1], f"{about['rows']:,} x {about['size']}", *figures(results, name)]
        return f"| {' | '.join(cells)} |"

    titles = "|".join(TITLES)
    page = re.sub(rf"^\| ({titles}) \| .*$", line, page, flags=re.MULTILINE)
    (disk,) = (shown(x.measured, 3) for x in limits(results) if x.what.startswith(DISK))
    return re.sub(r"there are [\d.,]+ times", f"there are {disk} times", page)


def first_page(page: str, results: Results) -> str:
    """Return the first page of the documentation with the figures of the run."""
    ours, theirs, error, other = figures(results, FIRST)
    for said, now in (
        (r"\*\*[\d.,]+ seconds against [\d.,]+\.\*\*", f"**{ours} seconds against {theirs}.**"),
        (r"Modicum takes [\d.,]+\n", f"Modicum takes {ours}\n"),
        (r"HMCECS takes\n[\d.,]+\. Post", f"HMCECS takes\n{theirs}. Post"),
        (r"off by [\d.,]+ posterior", f"off by {error} posterior"),
        (r"at most, and by [\d.,]+\. ", f"at most, and by {other}. "),
    ):
        page = re.sub(said, now, page)
    return page


def write_docs(results: Results, docs: Path, quick: bool) -> Path:
    """Write the page of the last results, with earlier ones of other problems, and the figures.

    Quick results have a page of their own, and no figures on other pages.
    """
    place = docs / "benchmarks" / ("quick" if quick else "")
    kept = place / "last.json"
    if kept.is_file():
        results = results.after(from_json(kept.read_text(encoding="utf-8")))
    if not quick:
        for name, with_figures in PAGES.items():
            path = docs.parent / name
            page = with_figures(path.read_text(encoding="utf-8"), results)
            path.write_text(page, encoding="utf-8")
    return write_report(results, place, "last")


PAGES: dict[str, Callable[[str, Results], str]] = {
    "README.md": readme,
    "docs/index.md": first_page,
}
"""Pages with figures of the run, by their paths in a checkout."""
