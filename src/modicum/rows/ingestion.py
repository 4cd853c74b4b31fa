"""`ingest`: writes files or tables to a row store, in bounded memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from modicum.errors import SettingError, whole_number
from modicum.progress import Progressbar
from modicum.rows.checks import as_dtype, block_rows, in_type
from modicum.rows.coding import Level
from modicum.rows.csv import reread
from modicum.rows.description import Array, Description
from modicum.rows.fields import FieldSet
from modicum.rows.lake import is_remote, local_path
from modicum.rows.object_storage import holds_store
from modicum.rows.rows import Rows
from modicum.rows.sources import Source
from modicum.rows.store import DESCRIPTION
from modicum.rows.table_encoding import ColumnChoice, learn_columns
from modicum.rows.tables import open_table
from modicum.rows.writing import PackedRows, refuse_taken, write_store


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
    under its name when it is complete; an ingest that fails leaves nothing there. If an ingest of
    files is killed or loses its connection, the next call with the same files and arguments
    continues after the last complete shard, unless rows are sorted.

    Parameters
    ----------
    source : path, table, mapping or Rows
        A Parquet, CSV or Arrow (Feather) file, a folder or glob of one kind of such files (read in
        the order of their names; ``year=2024`` in a folder's name is a column), the same on
        object storage (``s3://bucket/folder``, ``gs://...``), a list of them, a store, a pandas
        or polars data frame or LazyFrame, a pyarrow table or dataset (which may have a filter), a
        list or an iterator of tables, a mapping of field names to arrays (then the column
        arguments do not apply), or `Rows`.
    store : path
        The folder to create, or its URI on object storage (``s3://bucket/folder``), to which each
        shard is sent when it is finished.
    outcome, predictors, offset, weight, categorical, dense
        As in `Rows.from_table`. Categorical columns of CSV files are read as text: "01234" and
        "1234" are two levels.
    dtype : float32, float64, uint8 or None
        Type of all numbers; None as in `Rows`, or the type of the source if it is `Rows`.
    shard_rows : int, optional
        Rows per file of the store; by default about a gigabyte of them.
    progressbar : bool or callable
        As in `mo.sample`.
    overwrite : bool
        Replace an existing store, in one step when the new one is complete. A folder that holds
        anything else is never replaced.
    encoding : str
        Encoding of CSV files, by its Python name ("latin-1", "utf-16", ...). Other formats define
        their own.
    sort_by : str, optional
        A field with one number per row by which the rows are sorted, in bounded memory. The rows of
        a group are then contiguous, as models that integrate out group effects require. While
        sorting, the rows take twice their size on disk.

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
    # With weights, an ingest starts over: their check needs the weights of all rows.
    identity = None if weight is not None else identity_of(table, choice, dtype, encoding)
    refuse_taken(store, overwrite)
    return reread(
        lambda: write_store(
            _packed(table, choice, dtype),
            store,
            overwrite,
            progressbar,
            shard_rows,
            sort_by,
            identity,
        )
    )


def identity_of(source: object, *settings: object) -> str | None:
    """Return a hash of files and settings; None for data that may change without notice."""
    files = getattr(source, "identity", None)
    return None if files is None else hashlib.sha256(repr((files, settings)).encode()).hexdigest()


def _packed(
    source: Source | Rows | Mapping[str, object], choice: ColumnChoice, dtype: object
) -> PackedRows:
    """Return the rows of a source, of which only those of a table can be read from the middle."""
    if isinstance(source, Rows | Mapping):
        if choice != ColumnChoice():
            raise SettingError(
                "outcome, predictors, offset, weight, categorical and dense choose columns of a "
                "table, but the source already has fields: leave them out."
            )
        if isinstance(source, Mapping):
            arrays = {name: value for name, value in source.items() if name != "codes"}
            fields = FieldSet(arrays, None, dtype, source.get("codes"))
            about = fields.description
            return PackedRows(about, lambda _: map(about.pack, fields.chunks()), about.n)
        kind = source.dtype if dtype is None else as_dtype(dtype, [])
        description = replace(source._description, dtype=kind)
        return PackedRows(description, lambda _: _repack_rows(source, description), len(source))
    encoding, kind = learn_columns(source, choice, dtype)
    description = encoding.describe(source.rows or 0, kind)

    def blocks(first: int) -> Iterator[Array]:
        return map(description.pack, encoding.encode(source, kind, first))

    return PackedRows(description, blocks, source.rows)


def _repack_rows(rows: Rows, description: Description) -> Iterator[Array]:
    """Yield packed blocks of existing rows in the type of `description`, which may be narrower."""
    numbers = tuple(f for f in description.fields if f.dtype is None)
    labels = [label for f in numbers for label in description.labels(f)]
    after = replace(description, fields=numbers, coding=None)
    before, start = replace(after, dtype=rows.dtype), 0
    for chunk in rows.chunks(block_rows(description.width)):
        block = before.pack(chunk)
        block = in_type(block, description.dtype, labels, range(start, start + len(block)))
        yield description.pack(chunk | after.split(block))
        start += len(block)


def _recognise(
    source: object, choice: ColumnChoice, encoding: str
) -> Source | Rows | Mapping[str, object]:
    """Return the source as rows, a mapping of fields, or a table to read in order."""
    if isinstance(source, Rows | Mapping):
        return source
    if is_store(source):
        return Rows.open(source)
    names = choice.categorical if isinstance(choice.categorical, Iterable) else ()
    return open_table(source, encoding, [name for name in names if isinstance(name, str)])


def is_store(source: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether `source` is the path or the URI of a row store."""
    if not isinstance(source, str | os.PathLike):
        return False
    if is_remote(source):
        return holds_store(source)
    return (local_path(source) / DESCRIPTION).is_file()
