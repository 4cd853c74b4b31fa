"""The report of a run: Markdown tables, JSON with everything, and plots."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modicum_lab.bench.accuracy import KeptReference, judge_all
from modicum_lab.bench.contenders import CONTENDERS
from modicum_lab.bench.limits import OURS, SIZES, USUAL, Limit, limits_of, limits_table
from modicum_lab.bench.measurements import Measurements
from modicum_lab.bench.runs import EFFECTIVE
from modicum_lab.bench.suite import HUGE, Results
from modicum_lab.bench.tables import Table

COLUMNS = (
    "sampler",
    "ESS per second",
    "Modicum's over it",
    f"s to {EFFECTIVE:,} effective draws",
    "its over Modicum's",
    f"rows to {EFFECTIVE:,} effective draws",
    "memory, GB",
    "mean off, sd",
    "sd off, %",
    "answer",
    "runs (spread)",
)
LEGEND = (
    "ESS per second: effective draws (the fewest of any parameter, bulk) per second of sampling. "
    f"Seconds and rows to {EFFECTIVE:,} effective draws: from a cold start after imports, with "
    "mode, compilation and warm-up. A peer that runs one chain is credited with perfect copies of "
    "it on the cores it leaves idle. Errors are the largest of any parameter. An answer is *wrong* "
    "where a mean is off by more than 0.1 posterior sd or an sd by more than 7 %, *slightly off* "
    "where by less, each beyond what Monte Carlo error explains. Spread: (largest - least) / "
    "median of ESS per second over the runs. Memory includes the data where they are held. In bold "
    "is who is right and sooner than Modicum by default (or by HMC-ECS if only that was run)."
)


SEVERAL_RUNS = (
    "Problems were run at different times: each part says of which problems it is, when, on what "
    "and how they were run. Ratios are of times of one run."
)


def markdown(results: Results, pictures: Sequence[str] = ()) -> str:
    """Return the whole report as Markdown."""
    runs = results.by_run()
    parts = [
        "# Benchmarks",
        *(runs if len(runs) == 1 else [SEVERAL_RUNS]),
        limits_table(limits(results)).markdown(),
        *(f"![{name}]({name}.png)" for name in pictures),
        LEGEND,
    ]
    for about, run in runs.items():
        problems, growing = _several(run), [t for t in _scaling(run) if len(t.rows) > 1]
        named = [*problems, *(["Modicum as sizes grow"] if growing else [])]
        if named and len(runs) > 1:
            parts += [f"## {', '.join(named)} ({when(about)})", about]
        parts += [_problem(name, run).markdown() for name in problems]
        parts += [table.markdown() for table in growing]
    left = _left_out(results)
    if left:
        listed = "\n".join(f"- {sentence}" for sentence in left)
        parts += ["### Notes, and what was left out", listed]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def when(about: str) -> str:
    """Return the date of a run.

    Examples
    --------
    >>> when("Measured 2026-11-15 12:29 UTC on a processor")
    '2026-11-15'
    """
    return about.split()[1]


def limits(results: Results) -> list[Limit]:
    """Return the ratios that can be computed within a run, of every run."""
    return [limit for run in results.by_run().values() for limit in limits_of(run.measured)]


def _several(results: Results) -> list[str]:
    """Return the problems with several contenders; the others are for the scaling tables."""
    counts = Counter(m.problem for m in results.measured if m.chains is None)
    return [name for name in results.problems if counts[name] > 1]


def _problem(name: str, results: Results) -> Table:
    """Tabulate one problem, with one line per contender."""
    about, reference = results.problems[name], results.references.get(name)
    lines = [m for m in results.measured if m.problem == name and m.chains is None and m.runs]
    lines.sort(key=lambda m: list(CONTENDERS).index(m.contender))
    usual = [m for name in USUAL for m in lines if m.contender == name]
    ours = next((m for m in lines if m.contender == OURS), usual[0] if usual else None)
    soonest = usual[0].middle("cold") if usual else 0.0
    table = Table(about["title"], COLUMNS)
    table.rows = [_line(m, ours, reference, soonest) for m in lines]
    table.note = f"Data: {about['rows']:,} rows, d = {about['size']}; {about['description']}. "
    table.note += "No reference: too many rows." if reference is None else _source(reference)
    return table


def _source(reference: KeptReference) -> str:
    error = f"{reference.largest_error:.2g} sd"
    return f"Reference: {reference.source}; its own error is at most {error}."


def _line(
    m: Measurements, ours: Measurements | None, reference: KeptReference | None, soonest: float
) -> list[Any]:
    rate, cold, spread = m.middle("rate"), m.middle("cold"), m.spread("rate")
    ratios: tuple[Any, Any] = (None, None)
    if ours is not None:
        ratios = ours.middle("rate") / rate, cold / ours.middle("cold")
    judged = None if reference is None else judge_all(m.runs, reference)
    errors = (None, None, "") if judged is None else (judged.mean, 100 * judged.sd, judged.mark)
    runs = f"{len(m.runs)}" + ("" if math.isnan(spread) else f" ({spread:.0%})")
    title, memory = CONTENDERS[m.contender].title, m.middle("memory") / 1e9
    if judged is not None and judged.mark == "right" and cold < soonest:
        title = f"**{title}**"
    return [title, rate, ratios[0], cold, ratios[1], m.middle("rows"), memory, *errors, runs]


def _scaling(results: Results) -> list[Table]:
    """Tabulate Modicum's default as n, d and the number of chains grow."""
    columns = ["rows", "d", "chains", "microseconds per iteration", "ESS per second",
               f"s to {EFFECTIVE:,} effective draws", "memory, GB"]  # fmt: skip
    ours = [m for m in results.measured if m.contender == OURS and m.runs]
    huge = [m for m in results.measured if m.problem in HUGE and m.runs]
    groups = {
        "As rows grow": [m for m in ours if m.problem in SIZES and m.chains is None],
        "As parameters grow": [m for m in ours if m.problem.startswith("plain-d")],
        "As chains grow": [m for m in ours if m.chains is not None],
        "A tenth of the rows in memory, and all from disk": huge if len(huge) > 1 else [],
    }
    tables = []
    for title, group in groups.items():
        table = Table(f"Modicum HMC-ECS. {title}", columns)
        for m in group:
            about, first = results.problems[m.problem], m.runs[0]
            table.rows.append(
                [about["rows"], about["size"], first.chains, 1e6 * m.middle("iteration"),
                 m.middle("rate"), m.middle("cold"), m.middle("memory") / 1e9]
            )  # fmt: skip
        tables.append(table)
    return tables


def _left_out(results: Results) -> list[str]:
    sentences = [
        f"{CONTENDERS[m.contender].title} on {m.problem}: {m.reason}."
        for m in results.measured
        if m.reason
    ]
    return [*results.notes, *sentences]


def to_json(results: Results) -> str:
    """Return all measurements as JSON, for later comparison."""
    ratios = [asdict(limit) for limit in limits(results)]
    return json.dumps(_rounded(asdict(results) | {"limits": ratios})) + "\n"


def _rounded(value: object) -> object:
    """Round every float to seven digits, which halves the file and loses no information."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def from_json(text: str) -> Results:
    """Undo `to_json`."""
    saved = json.loads(text)
    saved.pop("limits")
    saved["references"] = {k: KeptReference(**v) for k, v in saved["references"].items()}
    saved["measured"] = [Measurements.from_dict(m) for m in saved["measured"]]
    return Results(**saved)


def write_report(results: Results, out: Path, name: str = "bench") -> Path:
    """Write NAME.md, NAME.json and the plots to a folder; return the path of the page."""
    from modicum_lab.bench.pictures import write_pictures

    out.mkdir(parents=True, exist_ok=True)
    kept = to_json(results)
    (out / f"{name}.json").write_text(kept, encoding="utf-8")
    results = from_json(kept)  # with its digits, so that page and file agree
    pictures = write_pictures(results, out)
    page = out / f"{name}.md"
    page.write_text(markdown(results, pictures), encoding="utf-8")
    return page
