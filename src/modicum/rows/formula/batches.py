"""The columns of one batch of a table: as numbers, or as levels and a code per row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from modicum.errors import DataError
from modicum.libraries import pyarrow as pa
from modicum.rows.checks import MissingValueError, require_exact
from modicum.rows.coding import Array, Level
from modicum.rows.levels import distinct, joined, numbers
from modicum.rows.sources import BATCH_ROWS, Source, kind_of


class LevelArray(NamedTuple):
    """A column of text, categories or booleans: its distinct values, and a code per row."""

    values: tuple[Level, ...]
    codes: Array


class BatchColumns:
    """The columns of one record batch, or of all, each converted on first use.

    Parameters
    ----------
    batch
        Rows without missing values in the columns of the formula.
    row_ids
        Row number of each row in the source.
    """

    def __init__(self, batch: pa.RecordBatch | pa.Table | None, row_ids: Array) -> None:
        self.batch, self.row_ids = batch, row_ids
        self._held: dict[str, Array | LevelArray] = {}

    def __len__(self) -> int:
        return len(self.row_ids)

    def row(self, index: int) -> int:
        """Return the row number in the source of a row of this batch."""
        return int(self.row_ids[index])

    def _arrow(self, name: str) -> pa.Array:
        assert self.batch is not None
        return joined(self.batch.column(name))

    def column(self, name: str) -> Array | LevelArray:
        """Return a column for use in an expression: floats, or levels (also for booleans)."""
        if name not in self._held:
            if kind_of(self._arrow(name).type) in ("levels", "boolean"):
                self._held[name] = self.levels(name)
            else:
                self._held[name] = self.exact(name, np.dtype(np.float64)).astype(np.float64)
        return self._held[name]

    def levels(self, name: str) -> LevelArray:
        """Return a column as levels, whatever its type."""
        values, codes = distinct(self._arrow(name), name, self.row_ids)
        return LevelArray(tuple(values), codes)

    def numbers(self, name: str) -> Array:
        """Return a column of numbers in its own type."""
        array = self._arrow(name)
        if kind_of(array.type) == "levels":
            raise DataError(
                f"column {name!r} holds text or categories ({array[0].as_py()!r} in row "
                f"{self.row(0)}) where the formula needs numbers: convert it first."
            )
        return numbers(array, name, self.row_ids, "convert it first")

    def exact(self, name: str, dtype: np.dtype[np.floating]) -> Array:
        """Return a column of numbers, refusing integers that `dtype` cannot hold exactly."""
        values = self.numbers(name)
        require_exact(values, dtype, [name], self.row_ids)
        return values


def complete_rows(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], drop: bool, first: int = 0
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
    first
        Row number of the first row.
    """
    start = first
    for batch in batches:
        row_ids = np.arange(start, start + batch.num_rows)
        absent = np.zeros(batch.num_rows, dtype=bool)
        for name in columns:
            array = joined(batch.column(name))
            holes = _holes(array)
            if holes is not None and not drop:
                is_null = array.null_count > 0 or kind_of(array.type) == "levels"
                value = "a missing value" if is_null else "NaN"
                raise MissingValueError(name, start + int(np.argmax(holes)), value)
            if holes is not None:
                absent |= holes
        start += batch.num_rows
        if absent.any():
            batch = batch.filter(pa.array(~absent))
            row_ids = row_ids[~absent]
        if batch.num_rows or absent.any():
            yield BatchColumns(batch, row_ids), int(absent.sum())


def no_rows(drop: bool) -> str:
    """Return the error message for a table without (complete) rows."""
    return (
        f"there are no {'complete rows' if drop else 'rows'} in the data: at least one is needed."
    )


def counted(source: Source) -> Iterator[tuple[BatchColumns, int]]:
    """Yield batches without columns, which only count the rows of a source."""
    start = 0
    if source.rows is None:
        sizes = [batch.num_rows for batch in source.batches(source.names[:1])]
    else:
        sizes = [min(BATCH_ROWS, source.rows - i) for i in range(0, source.rows, BATCH_ROWS)]
    for size in sizes:
        yield BatchColumns(None, np.arange(start, start + size)), 0
        start += size


def _holes(array: pa.Array) -> Array | None:
    """Return a mask of missing values; None without missing values."""
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
