"""Commands on a saved posterior: its summary as JSON, and predictions for a table."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from modicum.errors import DataError, SettingError
from modicum.files import require_writable, whole_file
from modicum.posterior import Posterior
from modicum.posterior.alignment import Groups
from modicum.posterior.row_effects import NewGroups
from modicum.rows import Rows
from modicum.rows.formula import NewLevels
from modicum.rows.reading import TableFiles

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

NEW_LEVELS = ("refuse", "reference")
GROUPS = ("known", "new", "any")
NEW_GROUPS = ("one", "average")
FILE_TYPES = (".parquet", ".csv", ".feather")


def saved_posterior(run: Path) -> Posterior:
    """Load a posterior from a folder that `fit` wrote, or from a file."""
    path = run / "posterior" if run.is_dir() else run
    if not path.is_file():
        raise DataError(f"there is no posterior at {path}: check the path, or finish the fit.")
    return Posterior.load(path)


def with_rows(post: Posterior, run: Path) -> Posterior:
    """Attach the rows of the fit to a posterior, if `fit` has kept them beside it.

    Predictions need them to draw the effects of groups that were integrated out.
    """
    store = run / "rows"
    return replace(post, rows=Rows.open(store)) if store.is_dir() else post


def summary_json(post: Posterior, table: pd.DataFrame) -> str:
    """Return the summary, the warnings, the cost and the settings as JSON."""
    lines = {
        str(name): {column: _number(value) for column, value in line.items()}
        for name, line in table.to_dict("index").items()
    }
    page = {
        "parameters": lines,
        "warnings": [doubt.to_dict() for doubt in post.warnings],
        "rows": post.ledger.rows,
        "evaluations": post.ledger.evaluations,
        "passes": post.ledger.passes,
        "settings": {k: v for k, v in post.settings.items() if _is_plain(v)},
    }
    return json.dumps(page, indent=1)


def _number(value: float) -> float | None:
    """Return a number for JSON, which has no NaN: None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int | float | dict)


def write_predictions(
    post: Posterior,
    data: str,
    out: Path,
    draws: int | None,
    prob: float,
    newlevels: str,
    groups: str | None,
    newgroups: str | None,
    encoding: str,
    overwrite: bool,
) -> int:
    """Predict every row of files, write mean and interval, and return the number of rows."""
    kind = out.suffix.lower()
    if kind not in FILE_TYPES:
        raise SettingError(f"--out must end in one of {', '.join(FILE_TYPES)}, not {out}.")
    if out.is_dir() or (out.exists() and not overwrite):
        raise SettingError(f"{out} already exists: add --overwrite, or name another file.")
    require_writable(out)
    if newlevels not in NEW_LEVELS:
        raise SettingError(f"--newlevels must be {' or '.join(NEW_LEVELS)}, not {newlevels}.")
    if post.fit_rows is None or post.fit_rows.encoding is None:
        raise SettingError(
            "this posterior is not from a fit with a formula, so files cannot be encoded for it: "
            "fit again as modicum fit DATA 'y ~ ...', or predict rows in Python."
        )
    if groups not in (None, *GROUPS):
        raise SettingError(f"--groups must be {' or '.join(GROUPS)}, not {groups}.")
    if newgroups not in (None, *NEW_GROUPS):
        raise SettingError(f"--newgroups must be {' or '.join(NEW_GROUPS)}, not {newgroups}.")
    predicted = post.predict(
        TableFiles((data,), encoding),
        draws=draws,
        prob=prob,
        newlevels=cast("NewLevels", newlevels),
        groups=cast("Groups | None", groups),
        newgroups=cast("NewGroups | None", newgroups),
    )
    import pyarrow as pa

    _write(pa.table(predicted.columns()), out, kind)
    return len(predicted)


def _write(table: pa.Table, out: Path, kind: str) -> None:
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    write = {
        ".parquet": pyarrow.parquet.write_table,
        ".csv": pyarrow.csv.write_csv,
        ".feather": pyarrow.feather.write_feather,
    }[kind]
    with whole_file(out) as part:
        write(table, part)
