"""The commands that work on a table, `modicum fit`, `ingest`, `summary`, `predict`, and options.

Every error that Modicum raises deliberately is printed as one sentence, with exit code 1. Any other
error is a bug, printed as one line, with exit code 2.
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

from modicum.cli.fitting import (
    REPORT,
    build_engine,
    build_method,
    build_model,
    chain_count,
    check_prob,
    chosen_columns,
    parse_groups,
    read_rows,
    require_path,
    result_folder,
    sample_rows,
    split,
    write_results,
)
from modicum.cli.output import (
    LINES,
    console,
    cost_line,
    debugging,
    describe_rows,
    errors,
    numbers,
    one_sentence,
    print_warnings,
    saved_posterior,
    show,
    summary_json,
    summary_table,
    word,
    write_predictions,
)
from modicum.files import place_name
from modicum.fit import FormulaModel, model_for, origin_of
from modicum.methods import DEFAULT, METHODS
from modicum.models import FAMILIES
from modicum.models.families import terms_by_class
from modicum.models.families.links import LINKS
from modicum.posterior.fit_rows import Groups
from modicum.posterior.predict import NewGroups
from modicum.results import WITHOUT_TABLE
from modicum.rows import ingest as write_store
from modicum.rows.formula import NewLevels
from modicum.rows.reading import TableFiles
from modicum.run.checkpoint import Checkpoint
from modicum.sample import RunSettings
from modicum_command import after_a_stop, stop_line, watch

DATA = "Parquet, CSV or Feather: a file, folder or glob"

# Options that several commands share --------------------------------------------------------

Predictors = Annotated[
    list[str] | None,
    typer.Option(help="Columns of x, as a,b,c or repeated; default: all not otherwise used."),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns to code as levels, as a,b,c or repeated; NAME=LEVEL chooses the reference."
    ),
]
Offset = Annotated[str | None, typer.Option(help="Column added to the linear predictor.")]
Weight = Annotated[str | None, typer.Option(help="Column of frequency weights.")]
DType = Annotated[str | None, typer.Option(help="float32 or float64.")]
Encoding = Annotated[str, typer.Option(help="Text encoding of CSV files, such as latin-1.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
Prob = Annotated[float, typer.Option(help="Posterior probability of the interval.")]
Run = Annotated[Path, typer.Argument(help="A folder that `fit` wrote, or a saved posterior.")]


BROKEN_PIPE = 128 + 13  # as a shell reports SIGPIPE

app = typer.Typer(
    help="Bayesian regression for tables with millions of rows.",
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
        if hasattr(stream, "reconfigure"):  # file names may contain any bytes
            stream.reconfigure(errors="backslashreplace")
    if "--debug" in sys.argv[1:]:
        debugging(True)
        sys.argv[1:] = [word for word in sys.argv[1:] if word != "--debug"]
    if not debugging():
        warnings.simplefilter("ignore")  # of libraries; Modicum's own are printed with the results
    code = _exit_code()
    if code:  # do not wait for threads that may still be compiling
        os._exit(code)


def _exit_code() -> int:
    """Run the command; report any exception it did not handle in one line."""
    try:
        try:
            app()
        except SystemExit as ended:
            sys.stdout.flush()
            sys.stderr.flush()
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        errors().print(stop_line(), markup=False)
        return 130
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # later flushes must not fail again
        if error.errno == errno.EPIPE:
            return BROKEN_PIPE
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
        )
        return 2
    return 0


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"modicum {version('modicum')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error; any position."),
    ] = False,
) -> None:
    del show_version  # handled by its callback
    if debug:
        debugging(True)


@app.command()
def fit(
    data: Annotated[str, typer.Argument(help=f"{DATA}; or a row store.")],
    formula: Annotated[
        str | None,
        typer.Argument(
            help="Such as 'late ~ carrier + bs(hour, df=6)'; without a formula, use --outcome and "
            "--predictors."
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    outcome: Annotated[str | None, typer.Option(help="Column of the outcome.")] = None,
    family: Annotated[str, typer.Option(help=f"One of {', '.join(FAMILIES)}.")] = "logistic",
    predictors: Predictors = None,
    categorical: Categorical = None,
    offset: Offset = None,
    weight: Weight = None,
    matrix: Annotated[
        list[str] | None,
        typer.Option("--matrix", help="NAME=FILE: pairs of neighbours for car(region, NAME)."),
    ] = None,
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
        typer.Option(help="The quantile to regress (asymmetric-laplace); default 0.5."),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(LINKS)} (binomial, ordinal); default logit."),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(help="Number of classes (softmax, ordinal); default: those that occur."),
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
            help="How a formula's group effects are treated: explicit, or integrate (out); "
            "default: whichever costs less."
        ),
    ] = None,
    no_collapse: Annotated[
        bool, typer.Option("--no-collapse", help="Evaluate equal rows one by one, not as one row.")
    ] = False,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = DEFAULT,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting of the method, such as design=uniform; may be repeated."
        ),
    ] = None,
    missing: Annotated[
        str, typer.Option(help="Rows with missing values, with a formula: refuse or drop.")
    ] = "refuse",
    draws: Annotated[int, typer.Option(help="Draws to keep per chain.")] = 1000,
    tune: Annotated[
        int | None,
        typer.Option(help="Warm-up iterations per chain; default 1000, if the method has one."),
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
        str, typer.Option(help="Where passes over the rows run: local, or ray (a cluster).")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Address of the Ray cluster: auto, HOST:PORT; default: start Ray here."),
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

    A fit that was killed or stopped with Ctrl-C continues when the same command is run again. OUT
    will hold `posterior`, `summary.csv`, and `rows`: the data as a row store, which is reused as
    long as DATA does not change.
    """
    with one_sentence():
        check_prob(prob)
        family_options = {
            "prior_scale": prior_scale,
            "intercept": not no_intercept,
            "scale": scale,
            "df": df,
            "quantile": quantile,
            "link": link,
            "classes": classes,
        }
        model = build_model(family, family_options, family_set or ())
        hold_effects = parse_groups(groups, formula)
        settings = RunSettings(
            method=build_method(method, set_ or ()),
            draws=draws,
            tune=tune,
            chains=chain_count(chains),
            random_seed=seed,
            progressbar=not quiet,
            checkpoint=checkpoint or out / "checkpoint",
            engine=build_engine(engine, address),
            collapse=not no_collapse,
        )
        columns = chosen_columns(outcome, predictors, offset, weight, categorical, dtype)
        require_path(data)
        say = console(quiet)
        with result_folder(out, overwrite, report) as about_to_write:
            after_a_stop("run the same command again to continue.")
            how = (overwrite, encoding, formula, missing, terms_by_class(model), matrix or ())
            rows = read_rows(data, columns, out, say, *how)
            say.print(describe_rows(rows, data))
            held, origin = FormulaModel(model, {}), WITHOUT_TABLE
            if formula is not None:
                no_chain = settings.sampler().may_draw_normals
                held = model_for(rows, model, None, hold_effects, no_chain)
                origin = origin_of(rows, held, TableFiles.of(data, encoding))
            post = sample_rows(held.model, rows, settings, say, origin)
            about_to_write()
            table = write_results(post, out, prob)
            if report:
                post.report(out / REPORT, prob=prob)
            after_a_stop(f"the results are in {out}.")
            if checkpoint is None:  # the next fit may have other settings
                Checkpoint.delete(out / "checkpoint")
        show(post, table, out, say, report)


@app.command()
def ingest(
    source: Annotated[str, typer.Argument(help=f"{DATA}.")],
    store: Annotated[str, typer.Argument(help="The folder to create, or its URI.")],
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
    """Turn files into a row store, which `fit` and `mo.Rows.open` read without loading it all."""
    with one_sentence():
        columns = chosen_columns(outcome, predictors, offset, weight, categorical, dtype)
        how = {"encoding": encoding, "overwrite": overwrite, "progressbar": not quiet}
        rows, say = write_store(source, store, **columns | how), console(quiet)
        say.print(describe_rows(rows, source))
        say.print(f"The store is in {place_name(store)}.")


@app.command()
def summary(
    run: Run,
    prob: Prob = 0.9,
    everything: Annotated[bool, typer.Option("--all", help="Print the whole table.")] = False,
    exponentiate: Annotated[
        bool, typer.Option("--exponentiate", help="Of e^coefficient: odds or rate ratios.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON: parameters, warnings, cost and settings.")
    ] = False,
) -> None:
    """Print the table of a saved posterior."""
    with one_sentence():
        check_prob(prob)
        post = saved_posterior(run)
        say = console(quiet=False)
        table = post.summary(prob=prob, exponentiate=exponentiate)
        if as_json:
            typer.echo(summary_json(post, table))
            return
        say.print(summary_table(table, len(table) if everything else LINES))
        if len(table) > LINES and not everything:
            say.print(f"{len(table) - LINES} more lines: add --all.")
        say.print(cost_line(post))
        print_warnings(post)


@app.command()
def hypothesis(
    run: Run,
    hypotheses: Annotated[
        list[str], typer.Argument(help="Such as 'carrier[DL] < carrier[EV]'; one or several.")
    ],
    prob: Prob = 0.9,
) -> None:
    """Print how probable hypotheses about the parameters of a saved posterior are."""
    with one_sentence():
        check_prob(prob)
        table = saved_posterior(run).hypothesis(hypotheses, prob)
        typer.echo(table.to_string(float_format="{:.4g}".format, index_names=False))


@app.command()
def predict(
    run: Run,
    data: Annotated[str, typer.Argument(help=f"{DATA}, in the columns of the fit.")],
    out: Annotated[Path, typer.Option(help="File to write: .parquet, .csv or .feather.")],
    draws: Annotated[
        int | None, typer.Option(help="Posterior draws to use; default: all, fewer for many rows.")
    ] = None,
    newlevels: Annotated[
        str,
        typer.Option(help="Levels that the fit did not have: refuse or reference."),
    ] = "refuse",
    groups: Annotated[
        str | None,
        typer.Option(
            help="Groups: known (those of the fit), new, or any (whichever applies to the row); "
            "default: known if DATA has the groups' columns, else averaged over."
        ),
    ] = None,
    newgroups: Annotated[
        str | None,
        typer.Option(
            help="Intervals of new groups: one (of a single group, the default with --groups) or "
            "average (of the average over groups)."
        ),
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(help="Predict chances of survival instead: beyond these times, as 30,90,365."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Columns of DATA to write beside the predictions, as id,date."),
    ] = None,
    quantiles: Annotated[
        str | None,
        typer.Option(help="Further quantiles of the expected outcome, as 0.025,0.5,0.975."),
    ] = None,
    encoding: Encoding = "utf-8",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    prob: Prob = 0.9,
    quiet: Quiet = False,
) -> None:
    """Predict the expected outcome of every row of a table, with an interval.

    RUN must be a fit with a formula. The file will have one row per row of DATA, in the same order:
    the columns named by `--keep`, the mean, the ends of the interval, and the quantiles.
    """
    with one_sentence():
        check_prob(prob)
        require_path(data)
        rows = write_predictions(
            run,
            data,
            out,
            split(keep),
            encoding,
            overwrite,
            draws=draws,
            prob=prob,
            newlevels=word("--newlevels", newlevels, NewLevels),
            groups=word("--groups", groups, Groups),
            newgroups=word("--newgroups", newgroups, NewGroups),
            kind="mean" if times is None else "survival",
            times=numbers("--times", times, "30,90,365"),
            quantiles=numbers("--quantiles", quantiles, "0.025,0.5,0.975") or (),
        )
        console(quiet).print(f"Wrote {rows:,} predictions to {out}.")
