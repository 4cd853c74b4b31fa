"""Tables of any kind as a `Source`; above all Parquet and Arrow files, which are read as one.

All footers are read first, so that types are settled before any row is read: a column that holds
integers in one file and floats in another is read as floats, and a file that lacks a requested
column is refused rather than read as missing values. Reading resumes where a connection broke.

Names of folders, such as ``year=2024``, are columns. If a file holds a column of that name too,
its values must be the folder's, and have its own type: the folder ``month=01`` of files with a
text column ``month`` holds "01", not 1.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeGuard

from modicum.errors import DataError, ResourceError, SettingError, first_line
from modicum.libraries import pyarrow as pa
from modicum.rows.csv import CsvSource
from modicum.rows.lake import ATTEMPTS, Listing, pause, unreadable
from modicum.rows.sources import (
    BATCH_ROWS,
    LazySource,
    Source,
    TableSource,
    from_row,
    is_series,
    is_table,
    is_text,
    keeps_order,
    library,
    refuse_booleans_and_numbers,
    refuse_repeated,
    require_columns,
)

FOOTERS = 16  # footers read at the same time
KINDS = {
    ".parquet": "parquet", ".pq": "parquet",
    ".csv": "csv", ".tsv": "csv",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
# Read little ahead: by default Arrow decodes sixteen batches of four files at once.
IN_SMALL_PIECES = {"batch_size": BATCH_ROWS, "batch_readahead": 1, "fragment_readahead": 1}
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")


def open_table(table: object, encoding: str = "utf-8", formula: bool = False) -> Source:
    """Return a table in memory, a dataset, or files as a `Source`.

    Parameters
    ----------
    table
        The table, or its place.
    encoding
        Encoding of CSV files.
    formula
        Whether a formula says which columns are levels, or the argument `categorical`.
    """
    if isinstance(table, Source):
        return table
    if type(table).__name__ == "LazyFrame" and library(table) == "polars":
        return LazySource(table)
    if is_table(table) or isinstance(table, Mapping):
        return TableSource(table)
    if is_dataset(table):
        return DatasetSource(table)
    if _is_place(table):
        places = [table]
    elif isinstance(table, list | tuple) and table and all(map(_is_place, table)):
        places = list(table)
    elif isinstance(table, Iterator | list | tuple):
        return SpooledSource(table)
    elif hasattr(table, "__arrow_c_stream__") and not is_series(table):
        return SpooledSource(pa.RecordBatchReader.from_stream(table))
    else:
        raise SettingError(
            f"a {type(table).__name__} cannot be read as a table: pass a path, a data frame, a "
            "pyarrow table or dataset, a list or an iterator of them, a mapping of arrays, or Rows."
        )
    listing = Listing.of(places)
    kinds = {_kind(path) for path in listing.paths}
    if kinds == {"csv"} and not listing.holds_columns:
        paths = [PurePosixPath(path) for path in listing.paths]
        return CsvSource(paths, listing.system, encoding, formula)
    if len(kinds) > 1 or kinds == {"csv"}:
        raise SettingError(
            f"the files at {listing.called} are read as one table, and must all be Parquet or all "
            "Arrow (Feather) files, or CSV files outside folders such as year=2024: name one kind, "
            "as in '*.parquet', or write CSV as Parquet."
        )
    return FileSource(listing, parquet=kinds == {"parquet"})


def is_dataset(value: object) -> bool:
    """Whether `value` is a pyarrow dataset."""
    return type(value).__module__.startswith("pyarrow._dataset") and hasattr(value, "scanner")


def _is_place(value: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(value, str | os.PathLike)


def _kind(file: str) -> str:
    suffixes = [s.lower() for s in PurePath(file).suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    kind = KINDS.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise SettingError(
            f"{file} is not of a known file type: its name must end in one of {', '.join(KINDS)}."
        )
    return kind


# Tables -------------------------------------------------------------------------------------


class DatasetSource(Source):
    """A pyarrow dataset: any files, partitions included, that Arrow can read as one table."""

    def __init__(self, dataset: Any) -> None:  # of a library that may not be installed
        self._dataset = dataset
        self.names = tuple(dataset.schema.names)

    def _schema(self, columns: Sequence[str]) -> pa.Schema:
        """Return the names and types of some columns."""
        refuse_repeated(columns, self.names)
        schema = self._dataset.schema
        return pa.schema([schema.field(name) for name in columns], schema.metadata)

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns."""
        return list(self._schema(columns).types)

    def has_order(self, column: str) -> bool:
        """Whether the column is an ordered dictionary, or a category written by pandas."""
        schema = self._schema([column])
        return keeps_order(schema.field(0).type, schema)

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches with (at least) these columns, in order."""
        try:
            scan = self._dataset.scanner(columns=list(columns), **IN_SMALL_PIECES)
            yield from scan.to_batches()
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"the dataset cannot be read ({first_line(error)}): check it."
            ) from None


class FileSource(DatasetSource):
    """Parquet or Arrow files of one file system, one after the other.

    Parameters
    ----------
    listing
        The files. Folder names such as ``year=2024`` add columns to the table; a file that holds
        such a column too, with another value, is refused.
    parquet
        Whether they are Parquet files.
    """

    def __init__(self, listing: Listing, parquet: bool) -> None:
        self.called, self.remote, self.identity = listing.called, listing.remote, listing.identity
        self._parquet = parquet
        kind = pa.dataset.ParquetFileFormat() if parquet else pa.dataset.IpcFileFormat()
        self._fragments = [kind.make_fragment(path, listing.system) for path in listing.paths]
        try:
            self._in_folders = _folder_values(listing, kind)
            with ThreadPoolExecutor(FOOTERS) as pool:
                footers = list(pool.map(self._footer, self._fragments))
        except (pa.ArrowException, OSError) as error:
            raise unreadable(self.called, error, parquet) from None
        self._schemas = [schema for schema, _ in footers]
        self._counts = [count for _, count in footers]
        self.names = tuple(self._schemas[0].names)
        self.rows = None if None in self._counts else sum(c or 0 for c in self._counts)

    def _footer(self, fragment: pa.dataset.Fragment) -> tuple[pa.Schema, int | None]:
        """Return a file's schema, with columns from folder names, and its row count if known."""
        physical, values = fragment.physical_schema, self._in_folders.get(fragment.path, {})
        named = [pa.field(name, pa.scalar(value).type) for name, value in values.items()]
        schema = pa.schema([*physical, *(f for f in named if f.name not in physical.names)])
        count = fragment.metadata.num_rows if hasattr(fragment, "metadata") else None
        return schema.with_metadata(physical.metadata), count

    def _schema(self, columns: Sequence[str]) -> pa.Schema:
        """Return one type for each column: numbers widen, and incompatible types are refused."""
        parts = dict(zip([f.path for f in self._fragments], self._schemas, strict=True))
        for path, schema in parts.items():
            require_columns(path, columns, schema.names)
        refuse_booleans_and_numbers(columns, parts)
        fields = []
        for name in columns:
            kind = self._schemas[0].field(name).type
            for path, schema in parts.items():
                other = schema.field(name).type
                try:
                    kind = kind if other == kind else _common_type(kind, other)
                except pa.ArrowException:
                    raise DataError(
                        f"the files at {self.called} do not hold the same types of values (column "
                        f"{name!r} is {other} in {path}, and {kind} before it): write them again "
                        "with one schema, or read them separately."
                    ) from None
            fields.append(pa.field(name, kind))
        return pa.schema(fields, self._schemas[0].metadata)

    def batches(self, columns: Sequence[str], first: int = 0) -> Iterator[pa.RecordBatch]:
        """Record batches from row `first` on; files before it are not opened again."""
        schema = self._schema(columns)
        for fragment, count in zip(self._fragments, self._counts, strict=True):
            if count is not None and first >= count:
                first -= count
                continue
            yield from self._file_batches(fragment, schema, first)
            first = 0 if count is not None or not first else max(0, first - fragment.count_rows())

    def _file_batches(
        self, fragment: pa.dataset.Fragment, schema: pa.Schema, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of one file from row `first` on; reading resumes after a failure."""
        position, attempt = first, 0
        while True:
            try:
                for batch in from_row(self._scan(fragment, schema), position):
                    yield batch
                    position += batch.num_rows
                return
            except (pa.ArrowException, OSError) as error:
                attempt += 1
                is_lost = isinstance(error, FileNotFoundError | PermissionError)
                if is_lost or attempt >= ATTEMPTS or not self.remote:
                    raise unreadable(fragment.path, error, self._parquet) from None
                pause(attempt - 1)

    def _scan(self, fragment: pa.dataset.Fragment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        options = {}
        if self._parquet:  # read a batch without its whole row group
            options["fragment_scan_options"] = pa.dataset.ParquetFragmentScanOptions(
                use_buffered_stream=True, buffer_size=1 << 20, pre_buffer=False
            )
        own = pa.schema([f for f in schema if f.name in fragment.physical_schema.names])
        values = self._in_folders.get(fragment.path, {})
        scan = fragment.scanner(schema=own, columns=own.names, **IN_SMALL_PIECES, **options)
        for batch in scan.to_batches():
            try:
                batch.validate(full=not self._parquet)  # offsets of Arrow files are as written
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"{fragment.path} is damaged ({first_line(error)}): write it again."
                ) from None
            for name, value in values.items():
                if name in own.names:
                    _refuse_contradiction(fragment.path, name, batch.column(name), value)
                elif name in schema.names:
                    field = schema.field(name)
                    column = pa.repeat(value, batch.num_rows).cast(field.type)
                    batch = batch.append_column(field, column)
            yield batch.select(schema.names)


def _folder_values(listing: Listing, kind: pa.dataset.FileFormat) -> dict[str, dict[str, Any]]:
    """Return the columns that names of folders hold, with their values, by the path of a file."""
    if listing.base is None:
        return {}
    options = pa.dataset.FileSystemFactoryOptions(
        partition_base_dir=listing.base,
        partitioning=pa.dataset.HivePartitioning.discover(),
        exclude_invalid_files=False,
    )
    factory = pa.dataset.FileSystemDatasetFactory(listing.system, listing.paths, kind, options)
    in_file, in_names = factory.inspect_schemas()
    for at, name in enumerate(in_names.names):
        # Arrow takes names of digits for numbers, also where the first file holds text.
        if name in in_file.names and is_text(in_file.field(name).type):
            in_names = in_names.set(at, pa.field(name, pa.string()))
    files = factory.finish(in_names).get_fragments()
    return {f.path: pa.dataset.get_partition_keys(f.partition_expression) for f in files}


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type that holds the values of both; raise an Arrow error if there is none."""
    if is_text(one) and is_text(other):
        # Libraries write text as strings or as large strings, and categories as dictionaries.
        return pa.large_string()
    schemas = [pa.schema([("", kind)]) for kind in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


def _refuse_contradiction(path: str, name: str, column: pa.Array, value: object) -> None:
    """Refuse a column of a file that holds anything but the `value` in the name of its folder."""
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    try:
        expected = pa.scalar(value).cast(column.type)
        agrees = (
            column.is_null()
            if value is None
            else pa.compute.equal(column, expected).fill_null(False)
        )
    except pa.ArrowException:  # the folder's value is of another kind than the column's
        agrees = pa.array([False] * len(column))
    at = pa.compute.index(agrees, False).as_py()
    if at >= 0:
        raise DataError(
            f"{path} holds {column[at].as_py()!r} in column {name!r}, and {value!r} according to "
            "the name of its folder: correct one of them, rename the column or the folder, or pass "
            "pyarrow.dataset.dataset(...) of the folder, which ignores the names of folders."
        )


# Tables that can be iterated only once ---------------------------------------------------------


class SpooledSource(FileSource):
    """Tables that can be iterated only once, written to a temporary file.

    Parameters
    ----------
    tables
        pandas or polars frames, or Arrow tables or record batches, of one schema.
    """

    def __init__(self, tables: Iterable[object]) -> None:
        with _temporary():
            folder = tempfile.mkdtemp(prefix="modicum-tables-")
        self._gone = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / "tables.arrow"
        try:
            rows = _spool(tables, path)
            super().__init__(Listing.of([path]), parquet=False)
        except BaseException:
            self._gone()  # at once: the error's traceback keeps this object
            raise
        self.rows, self.identity = rows, None


def _spool(tables: Iterable[object], path: Path) -> int:
    writer, schema, rows = None, None, 0
    try:
        for number, table in enumerate(tables):
            if not is_table(table):
                raise SettingError(
                    f"entry {number} is a {type(table).__name__}, but all entries must be data "
                    "frames or Arrow tables, or all must be paths."
                )
            source = TableSource(table)
            part = source.table(source.names)
            schema = schema or part.schema
            part = _cast_to_first(part, schema, number)
            with _temporary():
                writer = writer or pa.ipc.new_file(str(path), schema)
                writer.write_table(part, max_chunksize=BATCH_ROWS)
            rows += part.num_rows
    finally:
        if writer is not None:
            with _temporary():
                writer.close()
    if not rows:
        raise DataError(
            "there are no rows in the tables: at least one is needed, and an iterator that has "
            "been read has none left, so give the tables again, or as a list."
        )
    return rows


@contextlib.contextmanager
def _temporary() -> Iterator[None]:
    """Turn a failure to write the temporary file into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            "tables that can be read only once are written to a temporary file, which cannot be "
            f"done ({first_line(error)}): free some space in the temporary folder, or name another "
            "by the environment variable TMPDIR."
        ) from None


def _cast_to_first(part: pa.Table, schema: pa.Schema, number: int) -> pa.Table:
    """Cast a table to the schema of the first; refuse other columns and values that do not fit."""
    require_columns(f"table {number}", schema.names, part.column_names)
    refuse_booleans_and_numbers(schema.names, {"table 0": schema, f"table {number}": part.schema})
    try:
        return part.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise DataError(
            f"table {number} holds other types of values than the first ({first_line(error)}): "
            "convert its columns to the types of the first."
        ) from None
