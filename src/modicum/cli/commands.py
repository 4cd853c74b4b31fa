"""The commands of a user with a table: `modicum fit`, `ingest`, `summary` and `demo`.

Modicum's own modules are imported inside the commands, so that `--help` waits for as little as
possible. Every error that Modicum raises on purpose ends as one sentence and exit code 1.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from modicum.cli.columns import (
    Categorical,
    ColumnChoice,
    DType,
    Offset,
    Outcome,
    Predictors,
    Prob,
    Quiet,
    Weight,
)
from modicum.cli.fitting import (
    FAMILIES,
    build_model,
    ingest_table,
    read_rows,
    sample_rows,
    write_results,
)
from modicum.cli.messages import (
    LINES,
    console,
    cost_line,
    described,
    one_sentence,
    show,
    summary_table,
    tell_interrupted,
    tell_warnings,
)

__all__ = ["app", "main"]

app = typer.Typer(
    help="Bayesian regression on tall data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"modicum {version('modicum')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    del show_version  # its callback has done the work


@app.command()
def fit(
    data: Annotated[
        str,
        typer.Argument(help="Parquet, CSV or Feather: a file, folder or glob; or a row store."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    outcome: Outcome = None,
    family: Annotated[str, typer.Option(help=f"One of {', '.join(FAMILIES)}.")] = "logistic",
    predictors: Predictors = None,
    categorical: Categorical = None,
    offset: Offset = None,
    weight: Weight = None,
    prior_scale: Annotated[
        float | None,
        typer.Option(
            help="Prior standard deviation of the coefficients, in raw units; default: 2.5 in the "
            "units of the data."
        ),
    ] = None,
    no_intercept: Annotated[bool, typer.Option("--no-intercept", help="Add no intercept.")] = False,
    scale: Annotated[
        float | None,
        typer.Option(help="Known noise scale (gaussian, student-t); default: estimate it."),
    ] = None,
    df: Annotated[
        float | None, typer.Option(help="Degrees of freedom (student-t); default 4.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="hmc-ecs (the default: a few hundred rows a step), nuts, hmc or flymc."),
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws to keep, in each chain.")] = 1000,
    tune: Annotated[int, typer.Option(help="Warm-up before them, in each chain.")] = 1000,
    chains: Annotated[int, typer.Option(help="Independent chains.")] = 4,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same draws.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; default: OUT/checkpoint.")
    ] = None,
    dtype: DType = None,
    prob: Prob = 0.9,
    quiet: Quiet = False,
) -> None:
    """Fit a regression and write the posterior.

    Killed or stopped with Ctrl-C, the same command given again goes on where it was. OUT will hold
    `posterior`, `summary.csv`, and `rows`: the data as a row store, read from there again as long
    as DATA does not change.
    """
    with one_sentence():
        model = build_model(family, prior_scale, not no_intercept, scale, df)
        choice = ColumnChoice.of(outcome, predictors, offset, weight, categorical, dtype)
        out.mkdir(parents=True, exist_ok=True)
        say = console(quiet)
        rows = read_rows(data, choice, out, say)
        say.print(escape(described(rows, data)), highlight=False)
        folder = checkpoint or out / "checkpoint"
        settings = {"draws": draws, "tune": tune, "chains": chains, "random_seed": seed}
        post = sample_rows(model, rows, method, settings, folder, say)
        table = write_results(post, out, prob)
        if checkpoint is None and post.settings["complete"]:
            shutil.rmtree(folder)  # the posterior is safe, and the next fit may be another one
        show(post, table, out, say)
        tell_interrupted(post, folder)


@app.command()
def ingest(
    source: Annotated[str, typer.Argument(help="Parquet, CSV or Feather: file, folder or glob.")],
    store: Annotated[Path, typer.Argument(help="The folder to make.")],
    outcome: Annotated[str, typer.Option(help="Column of the outcome.")],
    predictors: Predictors = None,
    categorical: Categorical = None,
    offset: Offset = None,
    weight: Weight = None,
    dtype: DType = "float32",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store.")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn files into a row store, which `fit` and `mo.Rows.open` read without loading it."""
    with one_sentence():
        choice = ColumnChoice.of(outcome, predictors, offset, weight, categorical, dtype)
        say = console(quiet)
        rows = ingest_table(source, store, choice, say, overwrite)
        say.print(escape(described(rows, source)), highlight=False)
        say.print(f"The store is in {escape(str(store))}.", highlight=False)


@app.command()
def summary(
    run: Annotated[Path, typer.Argument(help="A folder `fit` wrote, or a saved posterior.")],
    prob: Prob = 0.9,
    everything: Annotated[bool, typer.Option("--all", help="However long the table is.")] = False,
) -> None:
    """Print the table of a saved posterior."""
    with one_sentence():
        from modicum.errors import DataError
        from modicum.posterior import Posterior

        path = run / "posterior" if run.is_dir() else run
        if not path.is_file():
            raise DataError(f"there is no posterior at {path}: check the path, or finish the fit.")
        post = Posterior.load(path)
        say = console(quiet=False)
        table = post.summary(prob=prob)
        say.print(summary_table(table, len(table) if everything else LINES))
        if len(table) > LINES and not everything:
            say.print(f"{len(table) - LINES} more lines: add --all.", highlight=False)
        say.print(escape(cost_line(post)), highlight=False)
        tell_warnings(post)


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
