"""`modicum reproduce`: run experiments one by one, and say how each went."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console
from rich.markup import escape

from modicum.cli.messages import count, errors

if TYPE_CHECKING:
    from modicum_lab.papers import Experiment, Scale

__all__ = ["chosen", "list_experiments", "reproduce_all"]


def chosen(paper: str | None, name: str | None, scale: str) -> list[Experiment]:
    """The experiments asked for; a paper, a name or a scale that is not known is refused."""
    from modicum.errors import SettingError
    from modicum_lab.papers.experiments import PAPERS, Scale, experiments_of

    if scale not in get_args(Scale):
        raise SettingError(f"scale must be one of {', '.join(get_args(Scale))}, not {scale!r}.")
    if paper is None:
        return [one for each in PAPERS for one in experiments_of(each)]
    return experiments_of(paper, name)


def list_experiments(experiments: list[Experiment], say: Console) -> None:
    """One line an experiment."""
    wide = max((len(one.name) for one in experiments), default=0)
    for one in experiments:
        say.print(f"{one.paper:<7}  {one.name:<{wide}}  {escape(one.title)}", highlight=False)


def reproduce_all(
    experiments: list[Experiment], scale: Scale, out: Path, seed: int, say: Console
) -> int:
    """Run each, write its files, and bring the page up to date; return how many failed."""
    from modicum_lab.papers.pages import write_page

    failed = 0
    for number, one in enumerate(experiments, 1):
        say.print(f"[{number}/{len(experiments)}] {one.name}: {one.title}", markup=False)
        failed += not _reproduce(one, scale, out, seed, say)
        page = write_page(out)  # after each, so that the first can be read while the rest run
    if experiments:
        say.print(f"The page is {escape(str(page))}.", highlight=False)
    return failed


def _reproduce(one: Experiment, scale: Scale, out: Path, seed: int, say: Console) -> bool:
    from modicum.errors import ModicumError, ModicumWarning
    from modicum_lab.papers.report import write_failure, write_result

    started = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModicumWarning)  # results keep what is to be said
            result = one.run(scale, seed)
            seconds = time.monotonic() - started
            folder = write_result(one, result, out, scale, seed, seconds)
    except ModicumError as error:
        write_failure(one, out, scale, seed, str(error))
        errors().print(f"[red]{one.name}:[/] [red]{escape(str(error))}[/]", highlight=False)
        return False
    made = f"{count(len(result.tables), 'table')}, {count(len(result.figures), 'figure')}"
    say.print(f"  {made} in {escape(str(folder))}, {seconds:.0f} s", highlight=False)
    return True
