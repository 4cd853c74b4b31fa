"""What commands print and write: summaries, predictions, warnings and errors."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from modicum.errors import DataError, ModicumError, SettingError, as_options, count
from modicum.files import place_name, require_writable, whole_file
from modicum.libraries import pandas as pd
from modicum.libraries import pyarrow as pa
from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum.rows.reading import TableFiles
from modicum.rows.sources import require_columns
from modicum.rows.tables import open_table
from modicum.run.interrupt import within_limits
from modicum_command import stop_line

LINES = 60  # lines of a summary to print; summary.csv has all


def describe_rows(rows: Rows, source: str) -> str:
    """Describe in a sentence or two the rows that were read."""
    parts = ", ".join(p for p in ("offset", "weight") if p in rows.fields)
    text = (
        f"Read {len(rows):,} rows from {place_name(source)}: outcome {rows.outcome or 'y'}, "
        f"{count(len(rows.columns), 'column')} of x{' and ' + parts if parts else ''}."
    )
    classes = rows.outcome_levels
    if classes:
        numbered = ", ".join(f"{i} is {level}" for i, level in enumerate(classes[:5]))
        text += f"\n  {rows.outcome}: {numbered}{', ...' if len(classes) > 5 else ''}"
    encoding = rows.schema.encoding  # grouping factors are pooled, and have no reference
    pooled = set() if encoding is None else {group.field for group in encoding.groupings}
    for name, levels in rows.levels.items():
        kind = "groups" if name in pooled else f"levels, compared with {levels[0]}"
        text += f"\n  {name}: {len(levels):,} {kind}"
    return text


def cost_line(post: Posterior) -> str:
    """Return the ledger as one line."""
    ledger = post.ledger
    by = ", ".join(f"{k} {n / ledger.rows:,.1f}" for k, n in ledger.by_purpose.items())
    text = (
        f"Rows touched: {ledger.evaluations:,}, that is {ledger.passes:,.1f} passes over "
        f"{ledger.data} ({by})."
    )
    if ledger.share is not None:
        text += f" Full-data HMC: {ledger.full_data:,}; this is {ledger.share:.2%} of that."
    return text


def summary_table(table: pd.DataFrame, lines: int = LINES) -> Table:
    """Format a summary, with as many decimals as the standard deviation warrants."""
    low, high = table.columns[2:4]
    printed = Table(box=None, pad_edge=False, header_style="bold")
    printed.add_column("", overflow="fold")
    for name in ("mean", "sd", low, high, "ess", "r_hat"):
        printed.add_column(name, justify="right", no_wrap=True)
    for label, line in table.head(lines).iterrows():
        cells = [_decimals(line[c], line["sd"]) for c in ("mean", "sd", low, high)]
        ess = min(line["ess_bulk"], line["ess_tail"])
        printed.add_row(str(label), *cells, f"{ess:,.0f}", f"{line['r_hat']:.3f}")
    return printed


def _decimals(value: float, sd: float) -> str:
    places = 3
    if math.isfinite(sd) and sd > 0:
        places = min(max(1 - math.floor(math.log10(sd)), 0), 8)
    return f"{value:.{places}f}"


def show(
    post: Posterior, table: pd.DataFrame, out: Path, say: Console, report: bool = False
) -> None:
    """Print the results of a fit, its cost and the files that were written."""
    s = post.settings
    warm_up = f" after {s['tune']:,} of warm-up" if s["tune"] else ""
    say.print(f"{s['method']}: {post.drawn}{warm_up}, seed {s['seed']}, in {s['seconds']:.1f} s.")
    say.print()
    say.print(summary_table(table))
    if len(table) > LINES:
        say.print(f"{len(table) - LINES} more lines are in summary.csv.")
    say.print()
    say.print(cost_line(post))
    names = ["posterior", "summary.csv", *(["report.html"] if report else [])]
    *first, last = (str(out / name) for name in names)
    say.print(f"Wrote {', '.join(first)} and {last}.")
    print_warnings(post)


def print_warnings(post: Posterior) -> None:
    """Print every warning on standard error."""
    for text in map(str, post.warnings):
        errors().print(f"[yellow]Warning:[/] {escape(text)}")


def console(quiet: bool) -> Console:
    """Return the console for results, which are printed as they are."""
    return Console(quiet=quiet, soft_wrap=True, markup=False, highlight=False, emoji=False)


def errors() -> Console:
    """Return the console for warnings and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def word(option: str, given: str | None, kind: Any) -> Any:  # a Literal, which has no type
    """Return the word that was given with an option, if any; refuse one that is not in `kind`."""
    words = get_args(kind)
    if given is not None and given not in words:
        raise SettingError(f"{option} must be {' or '.join(words)}, not {given}.")
    return given


@contextmanager
def one_sentence() -> Iterator[None]:
    """Print errors that a user can fix as one red sentence on standard error."""
    try:
        with as_options(), within_limits():
            yield
    except ModicumError as error:
        raise _exit_with(str(error), error) from None
    except BrokenPipeError:
        raise  # nobody reads the output any more: `main` exits silently
    except OSError as error:
        raise _exit_with(_file_message(error), error) from None
    except KeyboardInterrupt:
        errors().print(f"[yellow]{escape(stop_line())}[/]")
        raise typer.Exit(130) from None


def _exit_with(text: str, error: Exception) -> BaseException:
    """Print the message and return the exception to raise: an exit, or `error` with --debug."""
    if debugging():
        return error
    line = " ".join(text.split("\n"))
    errors().print(f"[red]Error:[/] [red]{escape(line)}[/]")
    return typer.Exit(1)


def _file_message(error: OSError) -> str:
    """Return a message that names the file and the problem."""
    if error.filename is None or error.strerror is None:
        return f"a file could not be read or written: {error}."
    path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
    return f"'{path}' could not be read or written ({error.strerror}): check the path."


_debug = False


def debugging(switch: bool | None = None) -> bool:
    """Whether errors are shown with their traceback; `switch` sets it."""
    global _debug
    _debug = _debug if switch is None else switch
    return _debug


FILE_TYPES = (".parquet", ".csv", ".feather")


def saved_posterior(run: Path) -> Posterior:
    """Load a posterior from a folder that `fit` wrote, or from a file."""
    path = run / "posterior" if run.is_dir() else run
    if not path.is_file():
        raise DataError(f"there is no posterior at {path}: check the path, or finish the fit.")
    return Posterior.load(path)


def summary_json(post: Posterior, table: pd.DataFrame) -> str:
    """Return the summary, the warnings, the cost and the settings as JSON."""
    finite = table.astype(object).where(np.isfinite(table), None)  # JSON has no NaN
    page = {
        "parameters": finite.to_dict("index"),
        "warnings": [doubt.to_dict() for doubt in post.warnings],
        "rows": post.settings.get("rows", post.ledger.rows),
        "evaluations": post.ledger.evaluations,
        "passes": post.ledger.passes,
        "settings": {k: v for k, v in post.settings.items() if _is_plain(v)},
    }
    return json.dumps(page, indent=1)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int | float | dict)


def numbers(option: str, given: str | None, example: str) -> list[float] | None:
    """Return the numbers given with an option, separated by commas as in the example."""
    try:
        return None if given is None else [float(number) for number in given.split(",")]
    except ValueError:
        wrong = f"{option} must be numbers such as {example}, not {given}."
        raise SettingError(wrong) from None


def write_predictions(
    run: Path,
    data: str,
    out: Path,
    keep: Sequence[str],
    encoding: str,
    overwrite: bool,
    **settings: Any,  # of `Posterior.predict`, which checks them
) -> int:
    """Predict every row of files, write kept columns and predictions, and return how many."""
    kind = out.suffix.lower()
    if kind not in FILE_TYPES:
        raise SettingError(f"--out must end in one of {', '.join(FILE_TYPES)}, not {out}.")
    if out.is_dir() or (out.exists() and not overwrite):
        raise SettingError(f"{out} already exists: add --overwrite, or name another file.")
    require_writable(out)
    post, store = saved_posterior(run), run / "rows"
    if post.encoding is None:
        raise SettingError(
            "this posterior is not from a fit with a formula, so files cannot be encoded for it: "
            "fit again as modicum fit DATA 'y ~ ...', or predict rows in Python."
        )
    post = replace(post, rows=Rows.open(store)) if store.is_dir() else post
    kept = _kept_columns(data, encoding, keep)
    predicted = post.predict(TableFiles((data,), encoding), **settings)
    columns = predicted.columns()
    for name in keep:
        if name in columns:
            raise SettingError(
                f"--keep {name}: the predictions have a column of that name: rename yours."
            )
    write = {
        ".parquet": pa.parquet.write_table,
        ".csv": pa.csv.write_csv,
        ".feather": pa.feather.write_feather,
    }[kind]
    with whole_file(out) as part:
        write(pa.table({**kept, **columns}), part)
    return len(predicted)


def _kept_columns(data: str, encoding: str, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Read columns of files as they are; those of CSV files as text, so that 007 stays 007."""
    if not names:
        return {}
    source = open_table(data, encoding).with_text(names)
    require_columns(place_name(data), names, source.names)
    batches = (batch.select(names) for batch in source.batches(names))
    schema = pa.schema(zip(names, source.types(names), strict=True))  # there may be no batch
    return dict(zip(names, pa.Table.from_batches(batches, schema).columns, strict=True))
