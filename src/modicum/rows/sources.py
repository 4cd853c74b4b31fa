"""Sources: tables that can be read in order, some columns at a time, as often as needed.

Those in memory may be of any library that offers Arrow's stream (``__arrow_c_stream__``). Those in
files are in `modicum.rows.tables` and `modicum.rows.csv`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import numpy as np

from modicum.errors import DataError, SettingError, first_line
from modicum.libraries import pandas as pd
from modicum.libraries import pyarrow as pa
from modicum.rows.checks import common_length, names_like, reads_as_number

# Rows decoded at a time: few enough for the memory, even with many columns, enough to be fast.
BATCH_ROWS = 1 << 16

NOT_COLUMNS = {  # what formulas of R and brms have, and ours do not
    "Intercept": "leave it out, as there is an intercept unless the formula has a 0",
    "TRUE": "write True",
    "FALSE": "write False",
}


class Source(ABC):
    """A table that can be read in order, some columns at a time, as often as needed.

    Attributes
    ----------
    names
        Names of the columns.
    rows
        Number of rows; None if unknown until all of them are read.
    called
        What messages call it.
    remote
        Whether the rows come over a network.
    identity
        What changes when the data do; None if they may change without notice.
    written
        Whether levels are texts as someone has written them, of a CSV file.
    roles
        Columns that are an offset or a weight already.
    """

    names: tuple[str, ...]
    rows: int | None = None
    called: str = "the table"
    remote: bool = False
    identity: object = None
    written: bool = False
    roles: Sequence[str] = ()

    @abstractmethod
    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns, as far as they are known before reading."""

    def batches(self, columns: Sequence[str], first: int = 0) -> Iterator[pa.RecordBatch]:
        """Record batches with (at least) these columns, in order, from row `first` on."""
        yield from from_row(self.read(columns), first)

    @abstractmethod
    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches with (at least) these columns, in order."""

    def has_order(self, column: str) -> bool:
        """Whether the categories of a column have an order, which its levels then keep."""
        del column
        return False

    def with_text(self, columns: Sequence[str]) -> Source:
        """Return this table with the columns as text, if its format leaves their types open."""
        del columns
        return self

    def absent(self, name: str) -> str:
        """Return the error message for a column of the formula that the table does not have."""
        hint = NOT_COLUMNS.get(name) or self._hint(name)
        return f"column {name!r} of the formula is not in the data: {hint}"

    def _hint(self, name: str) -> str:
        return names_like(name, self.names)


def from_row(batches: Iterable[pa.RecordBatch], first: int) -> Iterator[pa.RecordBatch]:
    """Record batches from row `first` on."""
    for batch in batches:
        fresh = batch.slice(min(first, batch.num_rows))
        first -= batch.num_rows - fresh.num_rows
        if fresh.num_rows or not batch.num_rows:
            yield fresh


def library(value: object) -> str:
    """Return pandas, polars or pyarrow if `value` is theirs, else the package of its class."""
    packages = [kind.__module__.partition(".")[0] for kind in type(value).__mro__]
    return next((p for p in ("pandas", "polars", "pyarrow") if p in packages), packages[0])


def is_table(value: object) -> bool:
    """Whether `value` is a data frame or an Arrow table, of whatever library."""
    in_memory = hasattr(value, "__arrow_c_stream__") and hasattr(value, "columns")
    return in_memory or type(value).__name__ == "LazyFrame"


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


class TableSource(Source):
    """A table in memory, or columns by name; they are converted to Arrow when they are read."""

    def __init__(self, table: Any) -> None:  # of a library that need not be installed
        if type(table).__name__ == "LazyFrame":
            raise SettingError("a polars LazyFrame has no rows yet: pass frame.collect().")
        if isinstance(table, Mapping):
            if not is_columns(table):
                raise SettingError(
                    "a mapping passed as a table must map names to columns of one value per row, "
                    "as in {'x': [1.0, 2.0], 'y': [0, 1]}."
                )
            raw, rows = list(table), common_length("column", {k: len(v) for k, v in table.items()})
        else:
            if library(table) not in ("pandas", "polars", "pyarrow"):
                table = pa.table(table)
            raw = table.column_names if library(table) == "pyarrow" else list(table.columns)
            rows = len(table)
        self._table, self.rows = table, rows
        self.names = tuple(str(name) for name in raw)
        self._keys = dict(zip(self.names, raw, strict=True))
        self._converted: dict[str, pa.Array | pa.ChunkedArray] = {}  # columns that were converted

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Return the named columns as an Arrow table."""
        for name in columns:
            if name not in self._converted:
                self._converted[name] = arrow_column(self._values(name), name)
        return pa.table({name: self._converted[name] for name in columns})

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns."""
        return list(self.table(columns).schema.types)

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches with (at least) these columns, in order."""
        yield from self.table(columns).to_batches(max_chunksize=BATCH_ROWS)

    def has_order(self, column: str) -> bool:
        """Whether it is a pandas category or interval, polars Enum, or ordered dictionary."""
        values = self._values(column)
        if library(values) == "pyarrow":
            return keeps_order(values.type, self._table.schema)
        kind = type(getattr(values, "dtype", None)).__name__
        return kind in ("CategoricalDtype", "Enum", "IntervalDtype")

    def _hint(self, name: str) -> str:
        if library(self._table) == "pandas" and name in self._table.index.names:
            return "it is in the index of the data frame, so pass frame.reset_index()."
        return super()._hint(name)

    def _values(self, name: str) -> Any:  # a column of the library whose table it is
        refuse_repeated([name], self.names)
        return self._table[self._keys[name]]


def arrow_column(column: Any, name: str) -> pa.Array | pa.ChunkedArray:  # of any library
    """Return a column as an Arrow array."""
    if library(column) == "pyarrow":
        return column
    values = column if library(column) == "polars" else pd.Series(column)
    try:
        if library(values) == "polars":
            return values.to_arrow()
        return pa.Array.from_pandas(_arrow_compatible(values))
    except Exception:  # of either library; the message names the offending value
        listed = values.to_list()
        row = next((i for i, v in enumerate(listed) if v is None or not reads_as_number(v)), 0)
        raise DataError(
            f"column {name!r} mixes types of values ({listed[row]!r} in row {row}): "
            "convert it to numbers, or to text for a categorical column."
        ) from None


def _arrow_compatible(series: pd.Series) -> pd.Series:
    """Convert what Arrow does not take: sparse numbers, foreign byte orders, and intervals.

    Intervals (from `pd.cut`) become ordered text; other byte orders come from FITS or Stata files.
    """
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


class LazySource(TableSource):
    """A polars LazyFrame: computed in batches each time its columns are read.

    Names and types are those of a table of its columns without rows.
    """

    def __init__(self, frame: Any) -> None:  # of a library that may not be installed
        with _polars():
            super().__init__(frame.head(0).collect())
        self._frame, self.rows = frame, None

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches with (at least) these columns, in order."""
        with _polars():
            chosen = self._frame.select(list(columns))
            if hasattr(chosen, "collect_batches"):
                frames = chosen.collect_batches(chunk_size=BATCH_ROWS)
            else:
                frames = [chosen.collect(engine="streaming")]
            for frame in frames:
                yield from frame.to_arrow().to_batches(max_chunksize=BATCH_ROWS)


@contextmanager
def _polars() -> Iterator[None]:
    """Turn an error of a polars computation into a `DataError` of one sentence."""
    try:
        yield
    except Exception as error:
        raise DataError(
            f"the polars LazyFrame cannot be computed ({first_line(error)}): try frame.collect()."
        ) from None


def kind_of(kind: pa.DataType) -> str:
    """Return the kind of a column: "number", "levels", "boolean", "dates", or its Arrow type."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "dates"
    return "levels" if is_text(kind) or pa.types.is_dictionary(kind) else str(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text, be they strings or categories."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(kind) for is_kind in kinds)


def keeps_order(kind: pa.DataType, schema: pa.Schema) -> bool:
    """Whether a column is an ordered dictionary, or a category written by pandas."""
    return pa.types.is_dictionary(kind) and (kind.ordered or b"pandas" in (schema.metadata or {}))


def require_columns(place: str | PurePath, columns: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a file or a table that lacks one of the columns."""
    for name in columns:
        if name not in names:
            raise DataError(f"column {name!r} is not in {place}: {names_like(name, names)}")
    refuse_repeated(columns, names, f" in {place}")


def refuse_repeated(columns: Sequence[str], names: Sequence[str], place: str = "") -> None:
    """Refuse columns whose name occurs more than once."""
    occurring = Counter(names)
    for name in columns:
        if occurring[name] > 1:
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
    for name in columns:
        kinds = {part: kind_of(schema.field(name).type) for part, schema in schemas.items()}
        booleans = [part for part, kind in kinds.items() if kind == "boolean"]
        numbers = [part for part, kind in kinds.items() if kind == "number"]
        if booleans and numbers:
            raise DataError(
                f"column {name!r} holds booleans in {booleans[0]} and numbers in {numbers[0]}, and "
                "nothing says which number means True: convert it to one type."
            )
