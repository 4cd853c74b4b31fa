"""The commands that measure Modicum itself: `modicum reproduce` and `modicum bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modicum.cli.columns import Quiet
from modicum.cli.commands import app
from modicum.cli.messages import console, docs_folder, one_sentence

__all__ = ["bench", "reproduce"]


@app.command()
def reproduce(
    paper: Annotated[str | None, typer.Argument(help="hmc-ecs or ewsg.")] = None,
    experiment: Annotated[str | None, typer.Argument(help="One of --list; default: all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds each), laptop (minutes) or paper (full size).")
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

    OUT will hold a folder for each experiment, and `index.html`. An experiment run again takes the
    place of its earlier run there.
    """
    with one_sentence():
        from modicum.cli.reproducing import chosen, list_experiments, reproduce_all
        from modicum.errors import SettingError

        experiments = chosen(paper, experiment, scale)
        if list_:
            list_experiments(experiments, console(quiet=False))
            return
        if paper is None:
            raise SettingError("name the paper: modicum reproduce hmc-ecs, or ewsg.")
        gallery = docs_folder() / "gallery" if docs else None
        say = console(quiet)
        failed = reproduce_all(experiments, scale, out, seed, say)  # type: ignore[arg-type]
        if gallery is not None:
            from modicum_lab.papers.pages import write_gallery

            say.print(f"The gallery is {write_gallery(out, gallery)}.", highlight=False)
        if failed:
            raise typer.Exit(1)


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
        float | None, typer.Option(help="Seconds of sampling a contender; default 20 (quick: 5).")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Runs of each, in turns; default 3 (quick: 1).")
    ] = None,
    huge: Annotated[
        bool, typer.Option("--huge", help="Also 100 million rows from disk (needs 24 GB there).")
    ] = False,
    docs: Annotated[
        bool,
        typer.Option("--docs", help="Write docs/benchmarks/last.md of this checkout."),
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List problems and samplers.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure Modicum beside what you would use instead, on this machine.

    OUT will hold `bench.md`, `bench.json` and three pictures. Everything takes more than an hour on
    two cores. Samplers that are not installed are left out: pip install 'modicum[bench]'.
    """
    with one_sentence():
        from modicum.cli import benching

        if list_:
            benching.list_bench(console(quiet=False))
            return
        place, page = (docs_folder() / "benchmarks", "last") if docs else (out, "bench")
        chosen = problem or [], peer or []
        benching.bench(place, quick, *chosen, seconds, repeats, huge, page, console(quiet))
