"""The commands of a user with a table: `modicum fit`, `ingest` and `summary`.

Every error that Modicum raises on purpose ends as one sentence and exit code 1. Anything else is a
fault of ours, and one line too, with exit code 2.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from modicum.cli.columns import (
    Categorical,
    ColumnChoice,
    DType,
    Encoding,
    Offset,
    Outcome,
    Predictors,
    Prob,
    Quiet,
    Weight,
)
from modicum.cli.fitting import (
    REPORT,
    build_engine,
    build_method,
    build_model,
    chain_count,
    checked_groups,
    checked_prob,
    ingest_table,
    prepare_folder,
    read_formula_rows,
    read_rows,
    require_path,
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
from modicum.cli.predicting import NEW_LEVELS, saved_posterior, summary_json, write_predictions
from modicum.fit import FormulaModel, model_for, with_formula
from modicum.methods import DEFAULT, METHODS
from modicum.models import FAMILIES
from modicum.models.families.links import LINKS
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
    formula: Annotated[
        str | None,
        typer.Argument(
            help="Such as 'late ~ carrier + bs(hour, df=6)'; without one, --outcome and "
            "--predictors say what is fitted."
        ),
    ] = None,
    *,
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
        typer.Option(
            help="Known noise scale (gaussian, student-t, asymmetric-laplace); default: estimate "
            "it."
        ),
    ] = None,
    df: Annotated[
        float | None, typer.Option(help="Degrees of freedom (student-t); default 4.")
    ] = None,
    quantile: Annotated[
        float | None,
        typer.Option(help="Which one is regressed (asymmetric-laplace); default 0.5."),
    ] = None,
    link: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(LINKS)} (binomial); default logit.")
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(help="How many there are (softmax, ordinal); default: those that occur."),
    ] = None,
    family_set: Annotated[
        list[str] | None,
        typer.Option(
            help="A further setting of the family, such as smoothing=0.2; may be repeated."
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="How effects of a formula's groups are held: explicit, or integrate (out); "
            "default: by what each would cost."
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(help=f"One of {', '.join(METHODS)}; default: {DEFAULT}."),
    ] = DEFAULT,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting of the method, such as design=uniform; may be repeated.",
        ),
    ] = None,
    missing: Annotated[
        str, typer.Option(help="Rows with missing values, with a formula: refuse or drop.")
    ] = "refuse",
    draws: Annotated[int, typer.Option(help="Draws to keep, in each chain.")] = 1000,
    tune: Annotated[
        int | None,
        typer.Option(help="Warm-up before them, in each chain; default 1000, where there is one."),
    ] = None,
    chains: Annotated[str, typer.Option(help="Independent chains: a number, or auto.")] = "4",
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same draws.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; default: OUT/checkpoint.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write OUT/report.html: the fit on one page.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Who makes the passes over the rows: local, or ray (a cluster).")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Of the Ray cluster: auto, HOST:PORT; default: a Ray of its own."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the results of an earlier fit in OUT.")
    ] = False,
    dtype: DType = None,
    encoding: Encoding = "utf-8",
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
        options = {
            "prior_scale": prior_scale,
            "intercept": not no_intercept,
            "scale": scale,
            "df": df,
            "quantile": quantile,
            "link": link,
            "classes": classes,
        }
        model = build_model(family, options, family_set or ())
        held = checked_groups(groups, formula)
        chosen = build_method(method, set_ or ())
        passing = build_engine(engine, address)
        choice = ColumnChoice.of(outcome, predictors, offset, weight, categorical, dtype)
        require_path(data)
        prepare_folder(out, overwrite, report)
        after_a_stop("the same command goes on where it was.")
        say = console(quiet)
        made, asked = None, FormulaModel(model, {})
        if formula is None:
            rows = read_rows(data, choice, out, say, overwrite, encoding)
        else:
            made = read_formula_rows(data, formula, choice, missing, out, say, overwrite, encoding)
            rows, asked = made.rows, model_for(made.rows, model, groups=held)
        say.print(escape(described(rows, data)), highlight=False)
        folder = checkpoint or out / "checkpoint"
        lengths = {"draws": draws, "tune": tune, "chains": chain_count(chains)}
        settings = lengths | {"random_seed": seed, "engine": passing}
        post = sample_rows(asked.model, rows, chosen, settings, folder, say)
        if made is not None:
            post = replace(with_formula(post, made, asked), table=data)
        table = write_results(post, out, prob)
        if report:
            post.report(out / REPORT, prob=prob)
        after_a_stop(f"the results are in {out}.")
        if checkpoint is None:  # the posterior is safe, and the next fit may be another one
            Checkpoint.delete(folder)
        show(post, table, out, say, report)


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
    encoding: Encoding = "utf-8",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store.")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn files into a row store, which `fit` and `mo.Rows.open` read without loading it."""
    with one_sentence():
        choice = ColumnChoice.of(outcome, predictors, offset, weight, categorical, dtype)
        say = console(quiet)
        rows = ingest_table(source, store, choice, say, overwrite, encoding)
        say.print(escape(described(rows, source)), highlight=False)
        say.print(f"The store is in {escape(str(store))}.", highlight=False)


@app.command()
def summary(
    run: Annotated[Path, typer.Argument(help="A folder `fit` wrote, or a saved posterior.")],
    prob: Prob = 0.9,
    everything: Annotated[bool, typer.Option("--all", help="However long the table is.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON: parameters, warnings, cost and settings.")
    ] = False,
) -> None:
    """Print the table of a saved posterior."""
    with one_sentence():
        checked_prob(prob)
        post = saved_posterior(run)
        say = console(quiet=False)
        table = post.summary(prob=prob)
        if as_json:
            typer.echo(summary_json(post, table))
            return
        say.print(summary_table(table, len(table) if everything else LINES))
        if len(table) > LINES and not everything:
            say.print(f"{len(table) - LINES} more lines: add --all.", highlight=False)
        say.print(escape(cost_line(post)), highlight=False)
        tell_warnings(post)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A folder `fit` wrote, or a saved posterior.")],
    data: Annotated[str, typer.Argument(help=f"{DATA}, in the columns of the fit.")],
    out: Annotated[Path, typer.Option(help="File to write: .parquet, .csv or .feather.")],
    draws: Annotated[int, typer.Option(help="Posterior draws to use.")] = 200,
    newlevels: Annotated[
        str, typer.Option(help=f"Levels the fit did not have: {' or '.join(NEW_LEVELS)}.")
    ] = "refuse",
    encoding: Encoding = "utf-8",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    prob: Prob = 0.9,
    quiet: Quiet = False,
) -> None:
    """Predict the expected outcome of every row of a table, with an interval.

    RUN is of a fit with a formula. The file will have one row for each row of DATA, in order: the
    mean and the ends of the interval.
    """
    with one_sentence():
        checked_prob(prob)
        require_path(data)
        post = saved_posterior(run)
        rows = write_predictions(post, data, out, draws, prob, newlevels, encoding, overwrite)
        say = console(quiet)
        say.print(f"Wrote {rows:,} predictions to {escape(str(out))}.", highlight=False)
