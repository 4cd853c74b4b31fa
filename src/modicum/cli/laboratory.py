"""The commands that show and measure Modicum itself: `demo`, `reproduce` and `bench`.

They are built on `modicum_lab`, which is imported when one of them is called.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console
from rich.markup import escape

from modicum.cli.commands import Quiet, app
from modicum.cli.output import console, errors, one_sentence
from modicum.errors import ModicumError, ModicumWarning, SettingError, count
from modicum_command import unwatch

if TYPE_CHECKING:
    from modicum_lab.papers import Experiment, Scale


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo-output"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the flights and fewer draws.")
    ] = False,
) -> None:
    """Find out which flights out of New York arrive late, and draw a picture."""
    with one_sentence():
        from modicum_lab.demo import run_demo

        run_demo(out, quick)


@app.command()
def reproduce(
    paper: Annotated[str | None, typer.Argument(help="hmc-ecs or ewsg.")] = None,
    experiment: Annotated[str | None, typer.Argument(help="One of --list; default: all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (seconds each), laptop (minutes), gpu (minutes on one), paper (full size)."
        ),
    ] = "laptop",
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and the page.")] = Path(
        "papers-output"
    ),
    seed: Annotated[int, typer.Option(help="The same seed gives the same draws.")] = 1,
    docs: Annotated[
        bool, typer.Option("--docs", help="Then write docs/gallery of this checkout from OUT.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run the experiments of a paper: tables, figures, and a page that shows them all.

    OUT will hold a folder for each experiment, and `index.html`. Running an experiment again
    replaces its earlier results.
    """
    with one_sentence():
        from modicum_lab.papers.pages import write_gallery, write_page

        experiments = _experiments(paper, experiment, scale)
        if list_:
            _list_experiments(experiments, console(quiet=False))
            return
        if paper is None:
            raise SettingError("name the paper: modicum reproduce hmc-ecs, or ewsg.")
        gallery = _docs_folder() / "gallery" if docs else None
        say = console(quiet)
        failed = 0
        for number, each in enumerate(experiments, 1):
            say.print(f"[{number}/{len(experiments)}] {each.name}: {each.title}")
            failed += not _reproduce(each, scale, out, seed, say)  # type: ignore[arg-type]
            page = write_page(out)  # after each, so that it can be read while others still run
        if experiments:
            say.print(f"The page is {page}.")
        if gallery is not None:
            say.print(f"The gallery is {write_gallery(out, gallery)}.")
        if failed:
            raise typer.Exit(1)


def _experiments(paper: str | None, name: str | None, scale: str) -> list[Experiment]:
    """Return the requested experiments; refuse an unknown paper, experiment or scale."""
    from modicum_lab.papers.experiments import PAPERS, Scale, experiments_of

    if scale not in get_args(Scale):
        raise SettingError(f"scale must be one of {', '.join(get_args(Scale))}, not {scale!r}.")
    if paper is None:
        return [each for paper in PAPERS for each in experiments_of(paper)]
    return experiments_of(paper, name)


def _list_experiments(experiments: list[Experiment], say: Console) -> None:
    """Print one line per experiment."""
    wide = max((len(each.name) for each in experiments), default=0)
    for each in experiments:
        say.print(f"{each.paper:<7}  {each.name:<{wide}}  {each.title}")


def _reproduce(experiment: Experiment, scale: Scale, out: Path, seed: int, say: Console) -> bool:
    from modicum_lab.papers.report import write_failure, write_result

    started = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModicumWarning)  # results keep the warnings
            result = experiment.run(scale, seed)
            seconds = time.monotonic() - started
            folder = write_result(experiment, result, out, scale, seed, seconds)
    except ModicumError as error:
        write_failure(experiment, out, scale, seed, str(error))
        errors().print(f"[red]{experiment.name}:[/] [red]{escape(str(error))}[/]")
        return False
    contents = f"{count(len(result.tables), 'table')}, {count(len(result.figures), 'figure')}"
    say.print(f"  {contents} in {folder}, {seconds:.0f} s")
    return True


@app.command()
def bench(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("bench-output"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: a couple of minutes.")
    ] = False,
    problem: Annotated[
        list[str] | None, typer.Option(help="Only this problem; may be repeated.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="Only this sampler and Modicum; may be repeated.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds of sampling per contender; default 20 (quick: 5).")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Runs of each contender; default 3 (quick: 1).")
    ] = None,
    huge: Annotated[
        bool, typer.Option("--huge", help="Also 100 million rows from disk (needs 24 GB there).")
    ] = False,
    docs: Annotated[
        bool,
        typer.Option("--docs", help="Put the results into docs/benchmarks of this checkout."),
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List problems and samplers.")] = False,
    quiet: Quiet = False,
) -> None:
    """Compare Modicum with other samplers on this machine.

    OUT will hold `bench.md`, `bench.json` and three pictures. The full suite takes more than an
    hour on two cores. Samplers that are not installed are skipped: pip install 'modicum[peers]'.
    """
    with one_sentence():
        if list_:
            _list_bench(console(quiet=False))
            return
        from modicum_lab.bench.front_page import write_docs
        from modicum_lab.bench.limits import limits_of, limits_table
        from modicum_lab.bench.report import write_report
        from modicum_lab.bench.suite import plan, run_suite

        folder = _docs_folder() if docs else None
        if seconds is not None and not seconds > 0:
            raise SettingError(f"seconds must be a positive number, not {seconds:g}.")
        if repeats is not None and repeats < 1:
            raise SettingError(f"repeats must be at least 1, not {repeats}.")
        unwatch()  # on Ctrl-C the suite writes what it has measured so far
        say = console(quiet)
        todo = plan(quick, problem or [], peer or [], seconds, repeats, huge)
        results = run_suite(todo, lambda text: say.print(text))
        written = write_docs(results, folder, quick) if folder else write_report(results, out)
        say.print(limits_table(limits_of(results.measured)).markdown())
        say.print(f"The report is {written}.")


def _list_bench(say: Console) -> None:
    """Print problems and samplers, one per line."""
    from modicum_lab.bench.contenders import CONTENDERS
    from modicum_lab.bench.problems import PROBLEMS

    wide = max(len(name) for name in (*PROBLEMS, *CONTENDERS))
    say.print("Problems (--problem):")
    for name, problem in PROBLEMS.items():
        say.print(f"  {name:<{wide}}  {problem.title}")
    say.print("Samplers (--peer):")
    for name, peer in CONTENDERS.items():
        absent = f" (not installed: {peer.absent})" if peer.absent else ""
        say.print(f"  {name:<{wide}}  {peer.title + absent}")


def _docs_folder() -> Path:
    """Return the folder docs of the current folder, which must be a checkout of Modicum."""
    folder = Path("docs")
    if not folder.is_dir():
        raise SettingError("--docs needs a checkout of Modicum: there is no folder docs here.")
    return folder
