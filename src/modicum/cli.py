"""The command line: `modicum fit`, `ingest`, `summary` and `demo`.

Modicum's own modules are imported inside the commands, so that `--help` waits for as little as
possible. Every error that Modicum raises on purpose ends as one sentence and exit code 1.
"""

from __future__ import annotations

import glob
import json
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from modicum.models import BaseModel
    from modicum.posterior import Posterior
    from modicum.rows import Rows

__all__ = ["app", "main"]

FAMILIES = {
    "logistic": "Logistic",
    "gaussian": "Gaussian",
    "poisson": "Poisson",
    "student-t": "StudentT",
    "softmax": "Softmax",
}
LINES = 60  # a longer table is cut, and the rest left to summary.csv

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


# The options that several commands share ---------------------------------------------------

Outcome = Annotated[str | None, typer.Option(help="Column of the outcome.")]
Predictors = Annotated[
    list[str] | None,
    typer.Option(help="Columns of x, as a,b,c or repeated; default: all that have no other part."),
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
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
Prob = Annotated[float, typer.Option(help="Posterior probability of the interval.")]


@dataclass(frozen=True)
class ColumnChoice:
    """Which column of a table plays which part, as the command line was told."""

    outcome: str | None
    predictors: list[str] | None
    offset: str | None
    weight: str | None
    categorical: dict[str, str | None]
    dtype: str | None

    @classmethod
    def of(
        cls,
        outcome: str | None,
        predictors: Sequence[str] | None,
        offset: str | None,
        weight: str | None,
        categorical: Sequence[str] | None,
        dtype: str | None,
    ) -> ColumnChoice:
        """Take the options apart: commas, and reference levels."""
        pairs = [item.partition("=") for item in _split(categorical)]
        coded = {name: reference if eq else None for name, eq, reference in pairs}
        chosen = _split(predictors) if predictors else None
        return cls(outcome, chosen, offset, weight, coded, dtype)

    def unused(self) -> bool:
        """Whether nothing but perhaps the outcome was named."""
        return not (self.predictors or self.offset or self.weight or self.categorical)


def _split(items: Sequence[str] | None) -> list[str]:
    return [part.strip() for item in items or () for part in item.split(",") if part.strip()]


# Commands ----------------------------------------------------------------------------------


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
        float, typer.Option(help="Prior standard deviation of the coefficients.")
    ] = 2.5,
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
        typer.Option(help="hmc-ecs (the default: a few hundred rows a step), nuts or hmc."),
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
    with _one_sentence():
        model = build_model(family, prior_scale, not no_intercept, scale, df)
        choice = ColumnChoice.of(outcome, predictors, offset, weight, categorical, dtype)
        out.mkdir(parents=True, exist_ok=True)
        say = _console(quiet)
        rows = read_rows(data, choice, out, say)
        say.print(escape(described(rows, data)), highlight=False)
        folder = checkpoint or out / "checkpoint"
        settings = {"draws": draws, "tune": tune, "chains": chains, "random_seed": seed}
        post = _sample(model, rows, method, settings, folder, say)
        table = write_results(post, out, prob)
        if checkpoint is None and post.settings["complete"]:
            shutil.rmtree(folder)  # the posterior is safe, and the next fit may be another one
        _show(post, table, out, say)
        _tell_interrupted(post, folder)


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
    with _one_sentence():
        choice = ColumnChoice.of(outcome, predictors, offset, weight, categorical, dtype)
        say = _console(quiet)
        rows = _ingest(source, store, choice, say, overwrite)
        say.print(escape(described(rows, source)), highlight=False)
        say.print(f"The store is in {escape(str(store))}.", highlight=False)


@app.command()
def summary(
    run: Annotated[Path, typer.Argument(help="A folder `fit` wrote, or a saved posterior.")],
    prob: Prob = 0.9,
    everything: Annotated[bool, typer.Option("--all", help="However long the table is.")] = False,
) -> None:
    """Print the table of a saved posterior."""
    with _one_sentence():
        from modicum.errors import DataError
        from modicum.posterior import Posterior

        path = run / "posterior" if run.is_dir() else run
        if not path.is_file():
            raise DataError(f"there is no posterior at {path}: check the path, or finish the fit.")
        post = Posterior.load(path)
        say = _console(quiet=False)
        table = post.summary(prob=prob)
        say.print(summary_table(table, len(table) if everything else LINES))
        if len(table) > LINES and not everything:
            say.print(f"{len(table) - LINES} more lines: add --all.", highlight=False)
        say.print(escape(cost_line(post)), highlight=False)
        _tell_warnings(post)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo-output"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the flights and fewer draws.")
    ] = False,
) -> None:
    """Find out which flights out of New York arrive late, and draw a picture."""
    with _one_sentence():
        from modicum.demo import run_demo

        run_demo(out, quick)


# What a fit is made of ---------------------------------------------------------------------


def build_model(
    family: str, prior_scale: float, intercept: bool, scale: float | None, df: float | None
) -> BaseModel:
    """Return the family by its name, with settings that apply to it."""
    from modicum import models
    from modicum.errors import SettingError, suggestion

    name = family.lower().replace("_", "-")
    if name not in FAMILIES:
        raise SettingError(
            f"there is no family {family!r}{suggestion(family, FAMILIES)}; "
            f"the families are {', '.join(FAMILIES)}."
        )
    extra = {k: v for k, v in {"scale": scale, "df": df}.items() if v is not None}
    takes = {"gaussian": {"scale"}, "student-t": {"scale", "df"}}.get(name, set())
    for option in extra:
        if option not in takes:
            raise SettingError(f"--{option} does not apply to the family {name}: leave it out.")
    made: BaseModel = getattr(models, FAMILIES[name])(
        prior_scale=prior_scale, intercept=intercept, **extra
    )
    return made


def read_rows(data: str, choice: ColumnChoice, out: Path, say: Console) -> Rows:
    """Open a row store, or ingest files into OUT/rows; an ingest is not repeated needlessly."""
    from modicum.errors import SettingError
    from modicum.rows import Rows

    if (Path(data) / "rows.json").is_file():
        rows = Rows.open(data)
        if not choice.unused() or choice.outcome not in (None, rows.outcome):
            raise SettingError(
                f"{data} is a row store, whose columns were chosen when it was made (outcome "
                f"{rows.outcome!r}): leave out the options that name columns."
            )
        return rows
    if choice.outcome is None:
        raise SettingError("name the column of the outcome: --outcome NAME.")
    store, note = out / "rows", out / "rows-source.json"
    origin = json.loads(json.dumps({"files": _files(data), **asdict(choice)}))
    if store.is_dir() and note.is_file() and json.loads(note.read_text()) == origin:
        return Rows.open(store)
    note.unlink(missing_ok=True)
    rows = _ingest(data, store, choice, say, overwrite=True)
    note.write_text(json.dumps(origin, indent=1))
    return rows


def _files(data: str) -> list[list[Any]]:
    """Name, size and time of every file `data` means: they tell whether it has changed."""
    path = Path(data)
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.is_file()]
    else:
        found = [path] if path.is_file() else [Path(p) for p in glob.glob(data, recursive=True)]
    return [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in sorted(found)]


def _ingest(source: str, store: Path, choice: ColumnChoice, say: Console, overwrite: bool) -> Rows:
    from modicum.rows import ingest as ingest_rows

    return ingest_rows(
        source,
        store,
        outcome=choice.outcome,
        predictors=choice.predictors,
        offset=choice.offset,
        weight=choice.weight,
        categorical=choice.categorical,
        dtype=choice.dtype,
        progressbar=_live(say),
        overwrite=overwrite,
    )


def _sample(
    model: BaseModel,
    rows: Rows,
    method: str | None,
    settings: dict[str, Any],
    checkpoint: Path,
    say: Console,
) -> Posterior:
    from modicum.errors import ModicumWarning
    from modicum.sample import sample

    if method is not None:  # else the default of `sample`, whatever that is
        settings = settings | {"method": method}
    if (checkpoint / "run.json").is_file():
        say.print(f"Going on from the checkpoint in {escape(str(checkpoint))}.", highlight=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)  # the posterior keeps them: told below
        try:
            return sample(model, rows, checkpoint=checkpoint, progressbar=_live(say), **settings)
        except KeyboardInterrupt:  # before the first draw; afterwards the draws so far come back
            _errors().print("[yellow]Stopped:[/] the same command goes on where it was.")
            raise typer.Exit(130) from None


def write_results(post: Posterior, out: Path, prob: float) -> pd.DataFrame:
    """Write OUT/posterior and OUT/summary.csv; return the summary."""
    table = post.summary(prob=prob)
    post.save(out / "posterior")
    table.to_csv(out / "summary.csv", index_label="parameter")
    return table


# What is said ------------------------------------------------------------------------------


def described(rows: Rows, source: str) -> str:
    """Say in a sentence or two what was read."""
    parts = ", ".join(p for p in ("offset", "weight") if p in rows.fields)
    text = (
        f"Read {len(rows):,} rows from {source}: outcome {rows.outcome or 'y'}, "
        f"{_count(len(rows.columns), 'column')} of x{' and ' + parts if parts else ''}."
    )
    for name, levels in rows.levels.items():
        text += f"\n  {name}: {len(levels)} levels, compared with {levels[0]}"
    return text


def done_line(post: Posterior) -> str:
    """Say what was drawn, how, and how long it took."""
    s = post.settings
    return (
        f"{s['method']}: {_count(post.chains, 'chain')} of {_count(post.num_draws, 'draw')} after "
        f"{s['tune']:,} of warm-up, seed {s['seed']}, in {s['seconds']:.1f} s."
    )


def cost_line(post: Posterior) -> str:
    """Put the ledger in one line."""
    ledger = post.ledger
    by = ", ".join(f"{k} {n / ledger.rows:,.1f}" for k, n in ledger.by_purpose.items())
    text = (
        f"Rows touched: {ledger.evaluations:,}, that is {ledger.passes:,.1f} passes over "
        f"{ledger.rows:,} rows ({by})."
    )
    if ledger.share is not None:
        text += f" Full-data HMC: {ledger.full_data:,}; this is {ledger.share:.2%} of that."
    return text


def summary_table(table: pd.DataFrame, lines: int = LINES) -> Table:
    """Set a summary as a table, with as many decimals as the standard deviation calls for."""
    low, high = table.columns[2:4]
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("", overflow="fold")
    for name in ("mean", "sd", low, high, "ess", "r_hat"):
        shown.add_column(name, justify="right", no_wrap=True)
    for label, line in table.head(lines).iterrows():
        cells = [_decimals(line[c], line["sd"]) for c in ("mean", "sd", low, high)]
        least = min(line["ess_bulk"], line["ess_tail"])
        shown.add_row(escape(str(label)), *cells, f"{least:,.0f}", f"{line['r_hat']:.3f}")
    return shown


def _decimals(value: float, sd: float) -> str:
    import math

    places = 3
    if math.isfinite(sd) and sd > 0:
        places = min(max(1 - math.floor(math.log10(sd)), 0), 8)
    return f"{value:.{places}f}"


def _show(post: Posterior, table: pd.DataFrame, out: Path, say: Console) -> None:
    say.print(escape(done_line(post)), highlight=False)
    say.print()
    say.print(summary_table(table))
    if len(table) > LINES:
        say.print(f"{len(table) - LINES} more lines are in summary.csv.", highlight=False)
    say.print()
    say.print(escape(cost_line(post)), highlight=False)
    written = f"Wrote {out / 'posterior'} and {out / 'summary.csv'}."
    say.print(escape(written), highlight=False)
    _tell_warnings(post)


def _tell_warnings(post: Posterior) -> None:
    for text in post.warnings:
        _errors().print(f"[yellow]Warning:[/] {escape(text)}", highlight=False)


def _tell_interrupted(post: Posterior, checkpoint: Path) -> None:
    if not post.settings["complete"]:
        _errors().print(
            f"[yellow]Stopped early:[/] these are the first {post.num_draws:,} draws of each "
            f"chain; the same command goes on from {escape(str(checkpoint))}.",
            highlight=False,
        )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def _console(quiet: bool) -> Console:
    return Console(quiet=quiet, soft_wrap=True)


def _errors() -> Console:
    return Console(stderr=True, soft_wrap=True)


def _live(say: Console) -> bool:
    """Whether someone watches: a bar in a log file is noise."""
    return say.is_terminal and not say.quiet


# Errors ------------------------------------------------------------------------------------

# Messages speak Python; here the reader types options.
SPOKEN = (
    (r"pass categorical=\['([^']*)'\]", r"pass --categorical \1"),
    (r"pass overwrite=True", "add --overwrite"),
    (r"dtype='float64'", "--dtype float64"),
)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn the errors a user can mend into one red sentence on standard error."""
    from modicum.errors import ModicumError

    try:
        yield
    except (ModicumError, OSError) as error:
        text = str(error)
        for said, meant in SPOKEN:
            text = re.sub(said, meant, text)
        _errors().print(f"[red]Error:[/] [red]{escape(text)}[/]", highlight=False)
        raise typer.Exit(1) from None
