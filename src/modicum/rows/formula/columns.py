"""Columns of a record batch as expressions read them: numbers, booleans or levels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import DataError
from modicum.rows.checks import MissingValueError, require_exact
from modicum.rows.description import Array
from modicum.rows.formula.interpreter import LevelArray
from modicum.rows.levels import distinct, joined
from modicum.rows.sources import BATCH_ROWS, Source
from modicum.rows.table_encoding import numbers

if TYPE_CHECKING:
    import pyarrow as pa


def kind_of(kind: pa.DataType) -> str:
    """Return the kind of a column: "number", "levels", "boolean", or its Arrow type."""
    from pyarrow import types as kinds

    if kinds.is_boolean(kind):
        return "boolean"
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        return "number"
    text = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    return "levels" if text or kinds.is_dictionary(kind) else str(kind)


class BatchColumns:
    """The columns of one record batch, each converted on first use.

    Parameters
    ----------
    batch
        Rows without missing values in the columns of the formula.
    row_ids
        Row number of each row in the source.
    """

    def __init__(self, batch: pa.RecordBatch, row_ids: Array) -> None:
        self.batch, self.row_ids = batch, row_ids
        self._cached: dict[str, Array | LevelArray] = {}

    def __len__(self) -> int:
        return len(self.row_ids)

    def row(self, index: int) -> int:
        """Return the row number in the source of a row of this batch."""
        return int(self.row_ids[index])

    def column(self, name: str) -> Array | LevelArray:
        """Return a column for use in an expression: floats, or levels (also for booleans)."""
        if name not in self._cached:
            array = joined(self.batch.column(name))
            if kind_of(array.type) in ("levels", "boolean"):
                self._cached[name] = self.levels(name)
            else:
                raw = self.numbers(name)
                self._require_exact(raw, np.dtype(np.float64), name)
                self._cached[name] = raw.astype(np.float64)
        return self._cached[name]

    def levels(self, name: str) -> LevelArray:
        """Return a column as levels, whatever its type."""
        try:
            values, codes = distinct(joined(self.batch.column(name)), name, 0)
        except DataError:
            # Row by row, so that the error names the row number in the source.
            for index in range(len(self)):
                distinct(joined(self.batch.column(name).slice(index, 1)), name, self.row(index))
            raise
        return LevelArray(tuple(values), codes)

    def numbers(self, name: str) -> Array:
        """Return a column of numbers in its own type."""
        array = joined(self.batch.column(name))
        if kind_of(array.type) == "levels":
            raise DataError(
                f"column {name!r} holds text or categories ({array[0].as_py()!r} in row "
                f"{self.row(0)}) where the formula needs numbers: convert it first."
            )
        return numbers(array, name, self.row(0), "convert it first")

    def exact(self, name: str, dtype: np.dtype[np.floating]) -> Array:
        """Return a column of numbers, refusing integers that `dtype` cannot hold exactly."""
        raw = self.numbers(name)
        self._require_exact(raw, dtype, name)
        return raw

    def _require_exact(self, values: Array, dtype: np.dtype[np.floating], name: str) -> None:
        try:
            require_exact(values, dtype, lambda _: name, 0)
        except DataError:
            for index in range(len(self)):
                require_exact(values[index : index + 1], dtype, lambda _: name, self.row(index))
            raise


class HeldColumns:
    """Whole columns of numbers, from which splines and centring learn."""

    def __init__(self, columns: dict[str, Array]) -> None:
        self._columns = columns

    def column(self, name: str) -> Array:
        """Return a column of floats."""
        return self._columns[name]

    def row(self, index: int) -> int:
        """Return the number of a row."""
        return index


def complete_rows(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], drop: bool
) -> Iterator[tuple[BatchColumns, int]]:
    """Yield each batch without its incomplete rows, and the number of incomplete rows.

    Parameters
    ----------
    batches
        Record batches in order.
    columns
        Columns to check for missing values, null or NaN.
    drop
        Whether to drop incomplete rows; otherwise an error names column and row of the first.
    """
    import pyarrow as pa

    start = 0
    for batch in batches:
        row_ids = np.arange(start, start + batch.num_rows)
        absent = np.zeros(batch.num_rows, dtype=bool)
        for name in columns:
            holes = _holes(joined(batch.column(name)))
            if holes is not None and not drop:
                raise MissingValueError(name, start + int(np.argmax(holes)))
            if holes is not None:
                absent |= holes
        start += batch.num_rows
        if absent.any():
            batch = batch.filter(pa.array(~absent))
            row_ids = row_ids[~absent]
        if batch.num_rows or absent.any():
            yield BatchColumns(batch, row_ids), int(absent.sum())


def counted(source: Source) -> Iterator[tuple[BatchColumns, int]]:
    """Yield batches without columns, which only count the rows of a source."""
    import pyarrow as pa

    nothing, start = pa.record_batch({}), 0
    if source.rows is None:
        sizes = [batch.num_rows for batch in source.batches(source.names[:1])]
    else:
        sizes = [min(BATCH_ROWS, source.rows - i) for i in range(0, source.rows, BATCH_ROWS)]
    for size in sizes:
        yield BatchColumns(nothing, np.arange(start, start + size)), 0
        start += size


def _holes(array: pa.Array) -> Array | None:
    """Return a mask of missing values; None without missing values."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        inner = array.dictionary
        empty = inner.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        if array.indices.null_count == 0 and not empty.any():
            return None
        holes: Array = array.indices.is_null().to_numpy(zero_copy_only=False)
        codes = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        if len(empty):
            holes = holes | empty[codes]
    elif pa.types.is_floating(array.type) or array.null_count:
        holes = array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    else:
        return None
    return holes if holes.any() else None
