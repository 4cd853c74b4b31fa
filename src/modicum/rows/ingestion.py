"""`ingest`: from files or tables to a row store, in bounded memory."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeGuard

import numpy as np

from modicum.errors import DataError, SettingError, whole_number
from modicum.progress import Progressbar, phase
from modicum.rows.checks import as_dtype, block_rows, require_exact, require_finite
from modicum.rows.csv import CsvSource, TypesWidened
from modicum.rows.description import Array, Description, Level
from modicum.rows.encoding import ColumnChoice, read_source
from modicum.rows.fields import FieldSet
from modicum.rows.fingerprint import RunningFingerprint
from modicum.rows.rows import Rows
from modicum.rows.sorting import sorted_blocks
from modicum.rows.sources import (
    DatasetSource,
    FileSource,
    Source,
    TableSource,
    is_dataset,
    is_table,
)
from modicum.rows.staging import staged, writing
from modicum.rows.store import DESCRIPTION, SHARD_BYTES, ShardWriter, StoreDescription

KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")


def ingest(
    source: object,
    store: str | Path,
    outcome: str | None = "y",
    predictors: Sequence[str] | None = None,
    offset: str | None = None,
    weight: str | None = None,
    categorical: Sequence[str] | Mapping[str, Level | None] = (),
    dtype: object = "float32",
    shard_rows: int | None = None,
    progressbar: Progressbar = True,
    overwrite: bool = False,
    encoding: str = "utf-8",
    sort_by: str | None = None,
    dense: bool = False,
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
    outcome, predictors, offset, weight, categorical, dense
        As in `Rows.from_table`. Categorical columns of CSV files are read as text: "01234" and
        "1234" are two levels.
    dtype : float32, float64, uint8 or None
        Type of all numbers; None as in `Rows`, or the type the source has if it is `Rows`.
    shard_rows : int, optional
        Rows of one file of the store; by default about a gigabyte of them.
    progressbar : bool or callable
        As in `mo.sample`.
    overwrite : bool
        Replace an existing store, in one step when the new one is complete. A folder that holds
        anything else is never replaced.
    encoding : str
        How CSV files are encoded, as Python names it ("latin-1", "utf-16", ...). Other files say
        so themselves.
    sort_by : str, optional
        A field with one number per row in whose order the rows are written, by an external sort in
        bounded memory: the rows of a group then lie side by side, as models need that integrate
        the effects of groups out. It takes as much disk again as the store while it works.

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
    if shard_rows is not None:
        whole_number("shard_rows", shard_rows)
    if not isinstance(store, str | os.PathLike):
        raise SettingError(f"the store must be a path, not a {type(store).__name__}.")
    choice = ColumnChoice(outcome, predictors, offset, weight, categorical, dense)
    table = _recognise(source, choice, encoding)
    while True:
        try:
            return write_store(
                lambda: _packed(table, choice, dtype),
                store,
                overwrite,
                progressbar,
                shard_rows,
                sort_by,
            )
        except TypesWidened:
            continue


class PackedBlocks(NamedTuple):
    """Rows ready to be written: what they are, their blocks, and how many there will be."""

    description: Description
    blocks: Iterator[Array]
    total: int | None  # None when only reading to the end would tell


def write_store(
    rows: Callable[[], PackedBlocks],
    store: str | os.PathLike[str],
    overwrite: bool,
    progressbar: Progressbar,
    shard_rows: int | None = None,
    sort_by: str | None = None,
) -> Rows:
    """Write the rows that `rows` returns, once it is known that they may be written there."""
    folder = Path(os.path.realpath(store))  # what a link points to is written, not the link
    with staged(folder, overwrite) as staging:
        ready = rows()
        if sort_by is not None:
            ordered = sorted_blocks(ready.description, ready.blocks, sort_by, staging)
            ready = ready._replace(blocks=ordered)
        _write(ready, staging, folder, shard_rows, progressbar)
    return Rows.open(store)


def _write(
    rows: PackedBlocks, staging: Path, store: Path, shard_rows: int | None, progressbar: Progressbar
) -> None:
    about = rows.description
    per_shard = shard_rows or max(1, SHARD_BYTES // about.row_bytes)
    writer = ShardWriter(staging, about, per_shard)
    fingerprint = RunningFingerprint(about)
    try:
        with phase(f"ingest {store.name}", rows.total, progressbar, "rows") as reading:
            for block in rows.blocks:
                with writing(store):
                    writer.write(block)
                fingerprint.update(block)
                reading.advance(len(block))
        with writing(store):
            shards = tuple(writer.finish())
            about = replace(about, n=writer.rows)
            StoreDescription(about, shards, fingerprint.finish(about)).write(staging)
    finally:
        writer.close()


def _packed(
    source: Source | Rows | Mapping[str, object], choice: ColumnChoice, dtype: object
) -> PackedBlocks:
    if isinstance(source, Rows | Mapping):
        if choice != ColumnChoice():
            raise SettingError(
                "outcome, predictors, offset, weight, categorical and dense are about the columns "
                "of a table, and the source already has fields: leave them out."
            )
        if isinstance(source, Mapping):
            arrays = {name: value for name, value in source.items() if name != "codes"}
            fields = FieldSet(arrays, None, dtype, source.get("codes"))
            return PackedBlocks(fields.description, fields.blocks(), fields.description.n)
        kind = source.dtype if dtype is None else as_dtype(dtype, [])
        about = replace(source._description, dtype=kind)
        return PackedBlocks(about, _repacked(source, about), len(source))
    encoder, blocks = read_source(source, choice, dtype)
    return PackedBlocks(encoder.describe(source.rows or 0), blocks, source.rows)


def _repacked(rows: Rows, about: Description) -> Iterator[Array]:
    """Packed blocks of rows that were checked before, in a type that may be narrower."""
    numbers = tuple(f for f in about.fields if f.dtype is None)
    labels = [label for f in numbers for label in about.labels(f)]
    after = replace(about, fields=numbers, coding=None)
    before, start = replace(after, dtype=rows.dtype), 0
    for chunk in rows.chunks(block_rows(about.width)):
        original = before.pack(chunk)
        if about.dtype.kind == "u":
            require_exact(original, about.dtype, lambda at: labels[at % len(labels)], start)
        with np.errstate(over="ignore"):
            block = original.astype(about.dtype, copy=False)
        require_finite(block, labels, start, lambda row, col, o=original: o[row, col])  # type: ignore[misc]
        start += len(block)
        yield block if about.coding is None else about.pack(chunk | after.split(block))


def _recognise(
    source: object, choice: ColumnChoice, encoding: str
) -> Source | Rows | Mapping[str, object]:
    """Tell what kind of source it is."""
    if isinstance(source, Rows | Mapping):
        return source
    if is_store(source):
        return Rows.open(source)
    names = choice.categorical if isinstance(choice.categorical, Iterable) else ()
    return table_source(source, encoding, [name for name in names if isinstance(name, str)])


def is_store(source: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether `source` is the path of a row store."""
    return isinstance(source, str | os.PathLike) and (Path(source) / DESCRIPTION).is_file()


def table_source(
    source: object, encoding: str, as_text: Sequence[str] = (), levels: bool = False
) -> Source:
    """Return a table in memory, a dataset, or files as something that can be read in order.

    Parameters
    ----------
    source
        The table, or its path.
    encoding
        Of CSV files.
    as_text
        Columns of CSV files whose levels stay as they are written.
    levels
        Whether a column of a CSV file that is not numbers throughout is text; else it is refused.
    """
    if is_table(source):
        return TableSource(source)
    if is_dataset(source):
        return DatasetSource(source)
    if not isinstance(source, str | os.PathLike):
        raise SettingError(
            f"a {type(source).__name__} cannot be read as a table: pass a path, a data frame, a "
            "pyarrow table or dataset, a mapping of arrays, or Rows."
        )
    files = _files(Path(source))
    kinds = {_kind(file) for file in files}
    if len(kinds) > 1:
        raise SettingError(
            f"{source} holds several kinds of files: name one kind, as in '*.parquet'."
        )
    kind = kinds.pop()
    if kind == "csv":
        return CsvSource(files, as_text, encoding, levels)
    return FileSource(files, parquet=kind == "parquet")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and not any(p[0] in "._" for p in file.relative_to(path).parts)
        )
        for file in files:
            if any("=" in part for part in file.relative_to(path).parts[:-1]):
                raise SettingError(
                    f"{path} keeps columns in the names of its folders ({file.parent.name}): write "
                    "them into the files first, or pass a glob of the files to do without them."
                )
    else:
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
        files = [file for file in files if file.is_file()]
    if not files:
        raise DataError(f"there is no file at {path}: check the path.")
    return files


def _kind(file: Path) -> str:
    suffixes = [s.lower() for s in file.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    kind = KINDS.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise SettingError(f"{file} has no known ending: one of {', '.join(KINDS)} is expected.")
    return kind
