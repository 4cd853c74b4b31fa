"""`modicum bench`: measure, and write the report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

__all__ = ["bench", "list_bench"]


def list_bench(say: Console) -> None:
    """Problems and peers, one a line."""
    from modicum_lab.bench.contenders import CONTENDERS
    from modicum_lab.bench.problems import PROBLEMS

    wide = max(len(name) for name in (*PROBLEMS, *CONTENDERS))
    say.print("Problems (--problem):", highlight=False)
    for name, problem in PROBLEMS.items():
        say.print(f"  {name:<{wide}}  {escape(problem.title)}", highlight=False)
    say.print("Samplers (--peer):", highlight=False)
    for name, one in CONTENDERS.items():
        absent = "" if one.missing() is None else f" ({one.package} is not installed)"
        say.print(f"  {name:<{wide}}  {escape(one.title + absent)}", highlight=False)


def bench(
    out: Path,
    quick: bool,
    problems: list[str],
    peers: list[str],
    seconds: float | None,
    repeats: int | None,
    huge: bool,
    page: str,
    say: Console,
) -> None:
    """Run the suite and write its files; `page` is the name of the Markdown and JSON files."""
    from modicum.errors import SettingError
    from modicum_lab.bench.limits import limits_of, limits_table
    from modicum_lab.bench.report import write_report
    from modicum_lab.bench.suite import plan, run_suite

    if seconds is not None and not seconds > 0:
        raise SettingError(f"seconds must be a positive number, not {seconds:g}.")
    if repeats is not None and repeats < 1:
        raise SettingError(f"repeats must be at least 1, not {repeats}.")
    todo = plan(quick, problems, peers, seconds, repeats, huge)
    results = run_suite(todo, lambda text: say.print(text, markup=False, highlight=False))
    written = write_report(results, out, page)
    say.print(limits_table(limits_of(results.measured)).markdown(), markup=False, highlight=False)
    say.print(f"The report is {escape(str(written))}.", highlight=False)
