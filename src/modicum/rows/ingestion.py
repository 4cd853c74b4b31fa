"""`ingest`: from files or tables to a row store, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from modicum.errors import SettingError
from modicum.progress import phase
from modicum.rows.checks import as_dtype, block_rows, require_exact, require_finite
from modicum.rows.csv_source import TypesWidened
from modicum.rows.description import Array, Description
from modicum.rows.finding import find
from modicum.rows.given import GivenFields
from modicum.rows.rows import Rows
from modicum.rows.shards import SHARD_BYTES, ShardWriter
from modicum.rows.sources import Source
from modicum.rows.staging import staged
from modicum.rows.store import write_description
from modicum.rows.tables import read_source


def ingest(
    source: Any,
    store: str | Path,
    outcome: str | None = "y",
    predictors: Sequence[str] | None = None,
    offset: str | None = None,
    weight: str | None = None,
    categorical: Sequence[str] | Mapping[str, Any] = (),
    dtype: Any = "float32",
    shard_rows: int | None = None,
    progressbar: bool = True,
    overwrite: bool = False,
) -> Rows:
    r"""Write a row store from files, a table or arrays, and open it.

    The source is read in small batches, so the data need not fit in memory. The store appears
    under its name when it is complete; an ingest that fails or is killed leaves nothing there.

    Parameters
    ----------
    source : path, table, mapping or Rows
        A Parquet, CSV or Arrow (Feather) file, a folder or glob of one kind of such files (read in
        the order of their names), a store, a pandas or polars data frame, a pyarrow table, a
        mapping of field names to arrays (then the column arguments do not apply), or `Rows`.
    store : path
        The folder to make.
    outcome, predictors, offset, weight, categorical
        As in `Rows.from_table`.
    dtype : float32, float64, uint8 or None
        Type of all numbers; None as in `Rows`, or the type the source has if it is `Rows`.
    shard_rows : int, optional
        Rows of one file of the store; by default about a gigabyte of them.
    progressbar : bool
    overwrite : bool
        Replace an existing store, in one step when the new one is complete.

    Returns
    -------
    Rows

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("dose,well\n0.5,0\n1.5,1\n2.5,1\n")
    >>> rows = ingest(folder / "a.csv", folder / "store", outcome="well", progressbar=False)
    >>> rows.columns, rows.outcome, len(rows), rows.is_store
    (('dose',), 'well', 3, True)
    """
    if shard_rows is not None and (not isinstance(shard_rows, int) or shard_rows < 1):
        raise SettingError(f"shard_rows must be a positive integer or None, not {shard_rows!r}.")
    settings = (outcome, predictors, offset, weight, categorical, dtype)
    found = find(source, categorical)
    folder = Path(os.path.abspath(store))
    while True:
        try:
            with staged(folder, overwrite) as staging:
                _write(found, settings, staging, f"ingest {folder.name}", shard_rows, progressbar)
            return Rows.open(store)
        except TypesWidened:
            continue


def _write(
    source: Source | Rows | Mapping[str, Any],
    settings: tuple[Any, ...],
    folder: Path,
    title: str,
    shard_rows: int | None,
    progressbar: bool,
) -> None:
    description, blocks, total = _packed(source, settings)
    rows = shard_rows or max(1, SHARD_BYTES // description.row_bytes)
    writer = ShardWriter(folder, description.width, description.dtype, rows)
    try:
        with phase(title, total, progressbar, "rows") as reading:
            for block in blocks:
                writer.write(block)
                reading.advance(len(block))
        shards = writer.finish()
    finally:
        writer.close()
    write_description(folder, replace(description, n=writer.rows), shards)


def _packed(
    source: Source | Rows | Mapping[str, Any], settings: tuple[Any, ...]
) -> tuple[Description, Iterator[Array], int | None]:
    """Return the description, packed blocks, and the number of rows where it is known."""
    dtype = settings[-1]
    if isinstance(source, Rows | Mapping):
        if settings[:-1] != ("y", None, None, None, ()):
            raise SettingError(
                "outcome, predictors, offset, weight and categorical name columns of a table, and "
                "the source already has fields: leave them out."
            )
        if isinstance(source, Mapping):
            given = GivenFields(source, None, dtype)
            return given.description, given.blocks(), given.description.n
        kind = source.dtype if dtype is None else as_dtype(dtype, [])
        about = replace(source._description, dtype=kind)
        return about, _repacked(source, about), len(source)
    encoder, blocks = read_source(source, *settings)
    return encoder.describe(source.rows or 0), blocks, source.rows


def _repacked(rows: Rows, about: Description) -> Iterator[Array]:
    """Packed blocks of rows that were checked before, in a type that may be narrower."""
    before, start = rows._description, 0
    for chunk in rows.chunks(block_rows(about.width)):
        given = before.pack(chunk)
        if about.dtype.kind == "u":
            require_exact(given, about.dtype, lambda at: about.labels[at % about.width], start)
        with np.errstate(over="ignore"):
            block = given.astype(about.dtype, copy=False)
        require_finite(block, about.labels, start, lambda row, col, g=given: g[row, col])  # type: ignore[misc]
        start += len(block)
        yield block
