"""The commands of a user with a table: `modicum fit`, `ingest` and `summary`.

Every error that Modicum raises on purpose ends as one sentence and exit code 1. Anything else is a
fault of ours, and one line too, with exit code 2.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
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
    build_model,
    checked_prob,
    ingest_table,
    prepare_folder,
    read_rows,
    sample_rows,
    write_results,
)
from modicum.cli.messages import (
    LINES,
    console,
    cost_line,
    debugging,
    described,
    errors,
    one_sentence,
    show,
    summary_table,
    tell_warnings,
)
from modicum.errors import DataError
from modicum.methods import DEFAULT, METHODS
from modicum.models import FAMILIES
from modicum.run import Checkpoint
from modicum_command import after_a_stop, stop_line, watch

__all__ = ["app", "main"]

NOBODY_READS = 128 + 13  # as a shell reports SIGPIPE
DATA = "Parquet, CSV or Feather: a file, folder or glob"

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
    watch()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names of files may hold any bytes
            stream.reconfigure(errors="backslashreplace")
    if "--debug" in sys.argv[1:]:
        debugging(True)
        sys.argv[1:] = [word for word in sys.argv[1:] if word != "--debug"]
    if not debugging():
        warnings.simplefilter("ignore")  # of libraries; Modicum's own are told with the results
    code = _exit_code()
    if code:  # threads may still compile what nobody waits for
        os._exit(code)


def _exit_code() -> int:
    """Run the command; say in one line what it could not end by itself."""
    try:
        try:
            app()
        except SystemExit as ended:
            sys.stdout.flush()
            sys.stderr.flush()
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        errors().print(stop_line(), markup=False, highlight=False)
        return 130
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be flushed goes there
        if error.errno == errno.EPIPE:
            return NOBODY_READS
        errors().print(f"Error: standard output: {error.strerror}.", markup=False)
        return 1
    except Exception as error:
        if debugging():
            raise
        text = " ".join(str(error).split())
        errors().print(
            f"modicum: internal error, please report it: {type(error).__name__}: {text}; run with "
            "--debug for the traceback",
            markup=False,
            highlight=False,
        )
        return 2
    return 0


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"modicum {version('modicum')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error came from; may stand anywhere.")
    ] = False,
) -> None:
    del show_version  # its callback has done the work
    if debug:
        debugging(True)


@app.command()
def fit(
    data: Annotated[
        str,
        typer.Argument(help=f"{DATA}; or a row store."),
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
        typer.Option(help=f"One of {', '.join(METHODS)}; default: {DEFAULT}."),
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws to keep, in each chain.")] = 1000,
    tune: Annotated[int, typer.Option(help="Warm-up before them, in each chain.")] = 1000,
    chains: Annotated[int, typer.Option(help="Independent chains.")] = 4,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same draws.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; default: OUT/checkpoint.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the results of an earlier fit in OUT.")
    ] = False,
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
        checked_prob(prob)
        model = build_model(family, prior_scale, not no_intercept, scale, df)
        choice = ColumnChoice.of(outcome, predictors, offset, weight, categorical, dtype)
        prepare_folder(out, overwrite)
        after_a_stop("the same command goes on where it was.")
        say = console(quiet)
        rows = read_rows(data, choice, out, say, overwrite)
        say.print(escape(described(rows, data)), highlight=False)
        folder = checkpoint or out / "checkpoint"
        settings = {"draws": draws, "tune": tune, "chains": chains, "random_seed": seed}
        post = sample_rows(model, rows, method, settings, folder, say)
        table = write_results(post, out, prob)
        after_a_stop(f"the results are in {out}.")
        if checkpoint is None:  # the posterior is safe, and the next fit may be another one
            Checkpoint.delete(folder)
        show(post, table, out, say)


@app.command()
def ingest(
    source: Annotated[str, typer.Argument(help=f"{DATA}.")],
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
        from modicum.posterior import Posterior

        checked_prob(prob)
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
