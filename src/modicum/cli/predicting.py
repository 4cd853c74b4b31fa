"""What is asked of a saved posterior: its summary as JSON, and predictions for a table."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from modicum.errors import DataError, SettingError
from modicum.posterior import Posterior
from modicum.run import require_writable, within_disk

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

NEW_LEVELS = ("refuse", "reference")
WRITTEN = (".parquet", ".csv", ".feather")


def saved_posterior(run: Path) -> Posterior:
    """Load the posterior of a folder that `fit` wrote, or of a file."""
    path = run / "posterior" if run.is_dir() else run
    if not path.is_file():
        raise DataError(f"there is no posterior at {path}: check the path, or finish the fit.")
    return Posterior.load(path)


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
    """JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int | float | dict)


def write_predictions(
    post: Posterior,
    data: str,
    out: Path,
    draws: int,
    prob: float,
    newlevels: str,
    encoding: str,
    overwrite: bool,
) -> int:
    """Predict every row of files and write mean and interval; return how many rows there were."""
    from modicum.rows.reading import encode_table

    kind = out.suffix.lower()
    if kind not in WRITTEN:
        raise SettingError(f"--out must end in {', '.join(WRITTEN)}, and {out} does not.")
    if out.is_dir() or (out.exists() and not overwrite):
        raise SettingError(f"{out} is there already: add --overwrite, or name another file.")
    require_writable(out)
    if newlevels not in NEW_LEVELS:
        raise SettingError(f"--newlevels must be {' or '.join(NEW_LEVELS)}, not {newlevels}.")
    if post.fit_rows is None or post.fit_rows.encoding is None:
        raise SettingError(
            "this posterior is not of a fit with a formula, so that files cannot be encoded for "
            "it: fit again as modicum fit DATA 'y ~ ...', or predict rows in Python."
        )
    rows = encode_table(
        post.fit_rows.encoding,
        data,
        outcome=False,
        newlevels="reference" if newlevels == "reference" else "refuse",
        text_encoding=encoding,
    )
    made = post.predict(rows, draws=draws, prob=prob)
    columns = {"mean": made.mean, "lower": made.lower, "upper": made.upper}
    if made.mean.ndim > 1:  # one column per class
        classes = _classes(post, made.mean.shape[1])
        columns = {
            f"{name}[{label}]": values[:, k]
            for k, label in enumerate(classes)
            for name, values in columns.items()
        }
    import pyarrow as pa

    _write(pa.table(columns), out, kind)
    return len(made)


def _classes(post: Posterior, count: int) -> list[str]:
    levels = post.settings.get("outcome_levels")
    if isinstance(levels, dict) and len(levels) == count:
        return list(levels)
    return [str(k) for k in range(count)]


def _write(table: pa.Table, out: Path, kind: str) -> None:
    """Write beside the file first: it appears complete, or not at all."""
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    write = {
        ".parquet": pyarrow.parquet.write_table,
        ".csv": pyarrow.csv.write_csv,
        ".feather": pyarrow.feather.write_feather,
    }[kind]
    try:
        with within_disk(out):
            write(table, part)
            os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
