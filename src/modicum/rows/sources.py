"""Sources of tables: those in memory, those that can be read only once, and files of Arrow."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from modicum.errors import DataError, ResourceError, SettingError, first_line
from modicum.rows.checks import names_like, reads_as_number

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

# Rows decoded at a time: few enough for the memory, even with many columns, enough to be fast.
BATCH_ROWS = 1 << 16

T = TypeVar("T")


class Source(Protocol):
    """A table that can be read in order, some columns at a time, as often as needed."""

    names: tuple[str, ...]
    rows: int | None  # None if unknown until all rows are read

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns, as far as they are known before reading."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches with (at least) these columns, in the order of the rows."""

    def has_order(self, column: str) -> bool:
        """Whether the categories of a column have an order, which its levels then keep."""


def library(value: object) -> str:
    """Return the top-level package of the class of `value`, without importing it."""
    return type(value).__module__.partition(".")[0]


def is_table(value: object) -> bool:
    """Whether `value` is a data frame or an Arrow table."""
    kinds = ("DataFrame", "LazyFrame", "Table", "RecordBatch")
    return library(value) in ("pandas", "polars", "pyarrow") and type(value).__name__ in kinds


def is_series(value: object) -> bool:
    """Whether `value` is one column of a data frame or of an Arrow table."""
    methods = {"pandas": "to_frame", "polars": "to_frame", "pyarrow": "to_pylist"}
    return hasattr(value, methods.get(library(value), " ")) and not is_table(value)


def is_columns(value: object) -> bool:
    """Whether `value` is a mapping of names to columns, each of one value per row."""
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(name, str) for name in value)
        and all(isinstance(v, list | tuple) or getattr(v, "ndim", 0) == 1 for v in value.values())
        and not any(isinstance(v, list | tuple) and np.ndim(v[:1]) != 1 for v in value.values())
    )


def frame_of_columns(columns: Mapping[str, Any]) -> pd.DataFrame:  # columns of any library
    """Make a data frame of columns matched by position, ignoring their indices."""
    import pandas as pd

    if not is_columns(columns):
        raise SettingError(
            "a mapping passed as a table must map names to columns of one value per row, as in "
            "{'x': [1.0, 2.0], 'y': [0, 1]}."
        )
    lengths = {name: len(column) for name, column in columns.items()}
    first = next(iter(lengths))
    for name, length in lengths.items():
        if length != lengths[first]:
            raise DataError(
                f"column {name!r} has {length} rows and {first!r} has {lengths[first]}: all "
                "columns need the same number of rows."
            )
    plain = {k: v.to_pandas() if hasattr(v, "to_pandas") else v for k, v in columns.items()}
    return pd.DataFrame({k: pd.Series(v).reset_index(drop=True) for k, v in plain.items()})


class TableSource:
    """A table in memory; columns are converted to Arrow when they are read."""

    def __init__(self, table: Any) -> None:  # of a library that need not be installed
        if type(table).__name__ == "LazyFrame":
            raise SettingError("a polars LazyFrame has no rows yet: pass frame.collect().")
        self._table = table
        raw = table.column_names if library(table) == "pyarrow" else list(table.columns)
        self.names = tuple(str(name) for name in raw)
        self._twice = {name for name, count in Counter(self.names).items() if count > 1}
        self._keys = dict(zip(self.names, raw, strict=True))
        self.rows: int | None = table.num_rows if library(table) == "pyarrow" else len(table)

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Return the named columns as an Arrow table."""
        import pyarrow as pa

        return pa.table({name: self._column(name) for name in columns})

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns."""
        return list(self.table(columns).schema.types)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns, in order."""
        yield from self.table(columns).to_batches(max_chunksize=BATCH_ROWS)

    def has_order(self, column: str) -> bool:
        """Whether it is a pandas category or interval, polars Enum, or ordered dictionary."""
        values = self._values(column)
        if library(values) == "pyarrow":
            category = is_dictionary(values.type) and _written_by_pandas(self._table.schema)
            return category or _ordered_dictionary(values.type)
        return type(values.dtype).__name__ in ("CategoricalDtype", "Enum", "IntervalDtype")

    def in_index(self, name: str) -> bool:
        """Whether `name` is in the index of a pandas frame instead of its columns."""
        index = getattr(self._table, "index", None)
        return library(self._table) == "pandas" and name in getattr(index, "names", ())

    def _values(self, name: str) -> Any:  # a column of the library whose table it is
        if name in self._twice:
            raise DataError(f"column {name!r} occurs more than once: rename one of them.")
        return self._table[self._keys[name]]

    def _column(self, name: str) -> pa.Array | pa.ChunkedArray:
        values = self._values(name)
        return values if library(values) == "pyarrow" else arrow_column(values, name)


def absent(source: Source, name: str) -> str:
    """Return the error message for a column of the formula that the table does not have."""
    hint = names_like(name, source.names)
    if isinstance(source, TableSource) and source.in_index(name):
        hint = "it is in the index of the data frame, so pass frame.reset_index()."
    return f"column {name!r} of the formula is not in the data: {hint}"


def arrow_column(series: Any, name: str) -> pa.Array | pa.ChunkedArray:  # of any library
    """Return a pandas or polars series as an Arrow array."""
    import pyarrow as pa

    try:
        if library(series) == "polars":
            return series.to_arrow()
        return pa.Array.from_pandas(_arrow_compatible(series))
    except Exception:  # of either library; the message names the offending value
        values = series.to_list()
        row = next((i for i, v in enumerate(values) if v is None or not reads_as_number(v)), 0)
        raise DataError(
            f"column {name!r} mixes types of values ({values[row]!r} in row {row}): "
            "convert it to numbers, or to text for a categorical column."
        ) from None


def _arrow_compatible(series: pd.Series) -> pd.Series:
    """Convert what Arrow does not take: sparse numbers, foreign byte orders, and intervals.

    Intervals (from `pd.cut`) become ordered text; other byte orders come from FITS or Stata files.
    """
    import pandas as pd

    if isinstance(series.dtype, np.dtype) and not series.dtype.isnative:
        return series.astype(series.dtype.newbyteorder("="))
    if isinstance(series.dtype, pd.SparseDtype):
        return series.astype(series.dtype.subtype)
    if isinstance(series.dtype, pd.IntervalDtype):
        series = series.astype("category")
    if not isinstance(series.dtype, pd.CategoricalDtype):
        return series
    intervals = isinstance(series.cat.categories.dtype, pd.IntervalDtype)
    return series.cat.rename_categories(str) if intervals else series


class _WithSchema:
    """Column types and orders from an Arrow schema."""

    _schema: pa.Schema

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns."""
        refuse_repeated(columns, self._schema.names)
        return [self._schema.field(name).type for name in columns]

    def has_order(self, column: str) -> bool:
        """Whether the column is an ordered dictionary, or a category written by pandas."""
        kind = self._schema.field(column).type
        return _ordered_dictionary(kind) or (
            is_dictionary(kind) and _written_by_pandas(self._schema)
        )


def _widened(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the first schema, but null and narrow floats give way to the types of other files."""
    from pyarrow import types

    schema = schemas[0]
    for at, field in enumerate(schema):
        kind = field.type
        for other in schemas[1:]:
            place = other.get_field_index(field.name)
            found = kind if place < 0 else other.field(place).type
            wider = types.is_floating(kind) and types.is_floating(found)
            if types.is_null(kind) or (wider and found.bit_width > kind.bit_width):
                kind = found
        schema = schema.set(at, field.with_type(kind))
    return schema


class FileSource(_WithSchema):
    """Parquet or Arrow (Feather) files, one after the other."""

    def __init__(self, paths: Sequence[Path], parquet: bool) -> None:
        self.paths, self._parquet = paths, parquet
        self.rows: int | None = 0 if parquet else None
        schemas = []
        for path in paths:
            file = self._open(path)
            schemas.append(file.schema_arrow if parquet else file.schema)
            if self.rows is not None:
                self.rows += file.metadata.num_rows
        self._schema = _widened(schemas)
        self.names = tuple(self._schema.names)

    def _open(self, path: Path) -> pq.ParquetFile | pa.RecordBatchFileReader:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            if self._parquet:
                # Small buffers: a batch takes memory for itself, not for its whole row group.
                return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
            return pa.ipc.open_file(pa.memory_map(str(path)))
        except (pa.ArrowException, OSError) as error:
            kind = "a Parquet" if self._parquet else "an Arrow (Feather)"
            raise DataError(
                f"{path} cannot be read as {kind} file ({first_line(error)}): check its format, "
                "and that it is complete."
            ) from None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns, in order."""
        return self.batches_from(columns, 0)

    def batches_from(self, columns: Sequence[str], first: int) -> Iterator[pa.RecordBatch]:
        """Record batches from row `first` on; Parquet files before it are not read again."""
        for path in self.paths:
            file = self._open(path)
            schema = file.schema_arrow if self._parquet else file.schema
            require_columns(path, columns, schema.names)
            refuse_booleans_and_numbers(
                columns, {str(self.paths[0]): self._schema, str(path): schema}
            )
            if self._parquet and first >= file.metadata.num_rows > 0:
                first -= file.metadata.num_rows
                continue
            for batch in self._file_batches(path, file, columns):
                fresh = batch.slice(min(first, batch.num_rows)) if first else batch
                first -= batch.num_rows - fresh.num_rows
                if fresh.num_rows or not batch.num_rows:
                    yield fresh

    def _file_batches(
        self, path: Path, file: pq.ParquetFile | pa.RecordBatchFileReader, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            if self._parquet:
                yield from file.iter_batches(BATCH_ROWS, columns=list(columns))
            else:
                for i in range(file.num_record_batches):
                    batch = file.get_batch(i).select(list(columns))
                    batch.validate(full=True)  # memory-mapped data have not been checked yet
                    yield batch
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is damaged ({first_line(error)}): write it again.") from None


class DatasetSource(_WithSchema):
    """A pyarrow dataset: any files, partitions included, that Arrow can read as one table."""

    def __init__(self, dataset: Any) -> None:  # of a library that may not be installed
        self._dataset = dataset
        self._schema = dataset.schema
        self.names = tuple(self._schema.names)
        self.rows: int | None = None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns, in order."""
        import pyarrow as pa

        # Read little ahead: by default Arrow decodes sixteen batches of four files at once.
        ahead = {"batch_readahead": 1, "fragment_readahead": 1}
        try:
            scan = self._dataset.scanner(columns=list(columns), batch_size=BATCH_ROWS, **ahead)
            yield from scan.to_batches()
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"the dataset cannot be read ({first_line(error)}): check it."
            ) from None


class Unread:
    """A source from row `first` on, for a reading that continues an earlier one.

    Attributes
    ----------
    first
        The first row to read; it may be set until reading begins.
    """

    def __init__(self, source: Source) -> None:
        self._source, self.first = source, 0
        self.names, self.rows = source.names, source.rows

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns."""
        return self._source.types(columns)

    def has_order(self, column: str) -> bool:
        """Whether the source has an order for the column's categories."""
        return self._source.has_order(column)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns, from row `first` on."""
        skip = self.first
        directly = getattr(self._source, "batches_from", None)
        if directly is not None and skip:
            yield from directly(columns, skip)
            return
        for batch in self._source.batches(columns):
            fresh = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - fresh.num_rows
            if fresh.num_rows:
                yield fresh


class LazySource:
    """A polars LazyFrame: computed in batches each time its columns are read."""

    def __init__(self, frame: Any) -> None:  # of a library that may not be installed
        self._frame = frame
        schema = _polars(lambda: frame.collect_schema())
        self.names = tuple(schema.names())
        self.rows: int | None = None
        self._first = _polars(lambda: frame.head(0).collect())

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns."""
        return list(self._first.select(list(columns)).to_arrow().schema.types)

    def has_order(self, column: str) -> bool:
        """Whether the column is an Enum."""
        return type(self._first[column].dtype).__name__ == "Enum"

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns, in order."""
        chosen = self._frame.select(list(columns))
        if hasattr(chosen, "collect_batches"):
            frames = _polars(lambda: chosen.collect_batches(chunk_size=BATCH_ROWS))
        else:
            frames = iter([_polars(lambda: chosen.collect(engine="streaming"))])
        while True:
            frame = _polars(lambda: next(frames, None))
            if frame is None:
                return
            yield from frame.to_arrow().to_batches(max_chunksize=BATCH_ROWS)


def _polars(compute: Callable[[], T]) -> T:
    """Run a polars computation; its errors become a `DataError` of one sentence."""
    try:
        return compute()
    except Exception as error:
        raise DataError(
            f"the polars LazyFrame cannot be computed ({first_line(error)}): try frame.collect()."
        ) from None


def is_dataset(value: object) -> bool:
    """Whether `value` is a pyarrow dataset."""
    return type(value).__module__.startswith("pyarrow._dataset") and hasattr(value, "scanner")


def is_dictionary(kind: pa.DataType) -> bool:
    """Whether columns of this type are dictionary-encoded."""
    from pyarrow import types as kinds

    return bool(kinds.is_dictionary(kind))


def _ordered_dictionary(kind: pa.DataType) -> bool:
    return is_dictionary(kind) and bool(kind.ordered)


def _written_by_pandas(schema: pa.Schema) -> bool:
    return b"pandas" in (schema.metadata or {})


def require_columns(path: PurePath, columns: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a file that lacks one of the columns."""
    for name in columns:
        if name not in names:
            raise DataError(f"column {name!r} is not in {path}: {names_like(name, names)}")
    refuse_repeated(columns, names, f" in {path}")


def refuse_repeated(columns: Sequence[str], names: Sequence[str], place: str = "") -> None:
    """Refuse columns whose name occurs more than once."""
    for name in columns:
        if names.count(name) > 1:
            raise DataError(f"column {name!r} occurs more than once{place}: rename one of them.")


def refuse_booleans_and_numbers(columns: Sequence[str], schemas: Mapping[str, pa.Schema]) -> None:
    """Refuse columns that are booleans in one part of a table, and numbers in another.

    Parameters
    ----------
    columns
        The columns to compare.
    schemas
        Names and types of columns, by the name of the part.
    """
    from pyarrow import types

    for name in columns:
        kinds = {part: schema.field(name).type for part, schema in schemas.items()}
        booleans = [part for part, kind in kinds.items() if types.is_boolean(kind)]
        numbers = [
            part
            for part, kind in kinds.items()
            if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
        ]
        if booleans and numbers:
            raise DataError(
                f"column {name!r} holds booleans in {booleans[0]} and numbers in {numbers[0]}, and "
                "nothing says which number means True: convert it to one type."
            )


def refuse_twice(paths: Sequence[str]) -> None:
    """Refuse a list that names a file twice: its rows would count twice."""
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise SettingError(
                f"{path} is in the list twice, so its rows would count twice: name it once."
            )
        seen.add(path)


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
            super().__init__([path], parquet=False)
        except BaseException:
            self._gone()  # at once: the error's traceback keeps this object
            raise
        self.rows = rows


def _spool(tables: Iterable[object], path: Path) -> int:
    import pyarrow as pa

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
            if writer is None or schema is None:
                schema = part.schema
                with _temporary():
                    writer = pa.ipc.new_file(str(path), schema)
            part = _cast_to_first(part, schema, number)
            with _temporary():
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
    import pyarrow as pa

    for name in schema.names:
        if name not in part.column_names:
            raise DataError(
                f"column {name!r} is not in table {number}: {names_like(name, part.column_names)}"
            )
    refuse_booleans_and_numbers(schema.names, {"table 0": schema, f"table {number}": part.schema})
    try:
        return part.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise DataError(
            f"table {number} holds other types of values than the first ({first_line(error)}): "
            "convert its columns to the types of the first."
        ) from None
