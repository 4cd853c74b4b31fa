"""Columns of a table, or of one batch, as numbers or as levels; and the order of levels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.libraries import pyarrow as pa
from modicum.rows.checks import (
    MissingValueError,
    RowNumbers,
    names_like,
    reads_as_number,
    require_exact,
)
from modicum.rows.coding import Array, DType, Level, LevelArray, level_key, level_text
from modicum.rows.sources import BATCH_ROWS, Source, kind_of

# Columns with more levels are unlikely to be meant as treatment contrasts.
MOST_LEVELS = 10_000
# Fields that never hold codes; a factor of one of these names gets the suffix CODE.
RESERVED = ("x", "y", "offset", "weight")
CODE = " (code)"
# Texts that people write for a missing number but Arrow does not read as one.
STANDS_FOR_MISSING = {".", "?", "-", "--", "*", "missing", "none", "unknown", "na.", "n.a."}
FEW_FRACTIONS = 20  # at most this many levels may look like "1.5", as versions or doses do
WITH_COMMA = r"[+-]?[0-9]+(,[0-9]+)+([.][0-9]*)?"
# Numbers with a percent or currency sign, or with thousands apart: 5%, -$7.50, 12 €, 1'000.
MINUS, SIGNS, APART = "+\u2212-", "%‰$€£¥", " \u00a0\u202f'\u2019,"
DIGITS = rf"([0-9]+([{APART}][0-9]{{3}})*([.,][0-9]*)?|[.,][0-9]+)"
MARKED = rf"[{MINUS}]?[{SIGNS}]?[{MINUS}]?\s?{DIGITS}\s?[{SIGNS}]?"
NUMBER = r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?"


def floating(types: Iterable[pa.DataType]) -> list[DType]:
    """Return the floating types among the columns' types (a decimal counts as float64)."""
    return [
        np.dtype(kind.to_pandas_dtype() if pa.types.is_floating(kind) else np.float64)
        for kind in types
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    ]


def joined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column of a batch or of a table as one array."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def numbers(array: pa.Array, name: str, rows: RowNumbers, text_remedy: str) -> Array:
    """Return an Arrow column as a NumPy array of integers, booleans or floats; refuse others."""
    kind = kind_of(array.type)
    if kind == "levels" and len(array):
        values = array.to_pylist()
        there = [i for i, value in enumerate(values) if value is not None]
        row = next((i for i in there if not reads_as_number(values[i])), (there or [0])[0])
        said = "text" if isinstance(values[row], str) else "categories"
        raise DataError(
            f"column {name!r} holds {said} ({values[row]!r} in row {rows[row]}): {text_remedy}."
        )
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise MissingValueError(name, rows[row])
    if kind not in ("number", "boolean"):
        days = f" (as in ({name} - {name}.min()).dt.days) or to levels (C({name}) in a formula)"
        raise DataError(
            f"column {name!r} holds values of type {array.type}: convert it to a number first"
            f"{days if kind == 'dates' else ''}, or leave it out."
        )
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def ordered(
    name: str, occurring: Iterable[Level], reference: Level | None = None
) -> tuple[Level, ...]:
    """Return the levels sorted, the reference first; refuse a single level."""
    return reference_first(name, _sort_levels(name, occurring), reference)


def reference_first(
    name: str, levels: Sequence[Level], reference: Level | None = None
) -> tuple[Level, ...]:
    """Return the levels in their order, the reference moved to the front; refuse a single level."""
    in_order = {level_key(level): level for level in levels}
    if len(in_order) < 2:
        raise DataError(
            f"categorical column {name!r} holds one level only ({levels[0]!r}): leave it out, "
            "since the intercept already covers it."
            if levels
            else f"categorical column {name!r} has no rows: at least one is needed."
        )
    if reference is None:
        return tuple(in_order.values())
    matches = [k for k, v in in_order.items() if k == level_key(reference) or v == reference]
    if not matches:
        raise SettingError(
            f"reference level {reference!r} does not occur in column {name!r}: "
            f"{names_like(reference, levels)}"
        )
    return (in_order.pop(matches[0]), *in_order.values())


def _sort_levels(name: str, levels: Iterable[Level]) -> list[Level]:
    """Return the levels sorted; levels that are all numbers written as text sort as numbers.

    A column of hours then has the same reference level in a CSV file, where levels are text, as in
    a Parquet file, where they are numbers.
    """
    values = list(levels)
    texts = [v for v in values if isinstance(v, str)]
    if texts and len(texts) < len(values):
        raise DataError(
            f"categorical column {name!r} holds text in some files and numbers in others: "
            "convert it to one type first."
        )
    if texts and all(re.fullmatch(r"[+-]?[0-9]+([.][0-9]*)?", v) for v in texts):
        return sorted(texts, key=lambda v: (float(v), v))
    return sorted(values)  # all are texts, or all are numbers


def distinct(array: pa.Array, name: str, rows: RowNumbers) -> LevelArray:
    """Return a column as levels: its distinct values, and for each row the index of its own."""
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    if array.indices.null_count:
        row = int(np.argmax(array.indices.is_null().to_numpy(zero_copy_only=False)))
        raise MissingValueError(name, rows[row])
    values, codes = array.dictionary.to_pylist(), array.indices.to_numpy(zero_copy_only=False)
    values = [level_text(value) if isinstance(value, date) else value for value in values]
    for code, value in enumerate(values):
        unusable = not isinstance(value, str | int | float) or value != value
        if unusable and (codes == code).any():
            row = rows[int(np.argmax(codes == code))]
            if value is None or value != value:
                raise MissingValueError(name, row)
            raise DataError(
                f"categorical column {name!r} holds a {type(value).__name__} in row {row}: "
                "convert it to text or to whole numbers first."
            )
    return LevelArray(tuple(values), codes)


def refuse_stray_text(source: Source, name: str, levels: Iterable[Level], remedy: str) -> None:
    """Refuse a text column that looks like numbers with a few faulty values, not like levels."""
    texts = [level for level in levels if isinstance(level, str)]
    commas = [level for level in texts if re.fullmatch(WITH_COMMA, level.strip())]
    numbers = sum(bool(re.fullmatch(NUMBER, level.strip())) for level in texts)
    number = re.compile(f"{NUMBER}|{WITH_COMMA}|{MARKED}")
    stray = {level for level in texts if not number.fullmatch(level.strip())}
    plain = re.compile(f"{NUMBER}|{WITH_COMMA}")
    marked = [level for level in texts if not plain.fullmatch(level.strip())]
    fractions = [level for level in texts if "." in level]
    written, fix = "", "convert it to numbers"
    if commas and len(commas) + numbers == len(texts):
        written = f"with a comma, such as {commas[0]!r}, which are text"
        fix = "read the table with decimal=',' (pandas) or thousands=',', or replace the commas"
    elif marked and not stray:
        written = f"that are written as text, such as {marked[0]!r}"
        fix = "remove what is not part of the number and convert it to numbers"
    elif fractions and numbers == len(texts) > FEW_FRACTIONS:
        written = f"that are written as text, such as {fractions[0]!r}"
    if written:
        raise DataError(f"column {name!r} holds numbers {written}: {fix}, or {remedy}.")
    if not stray or len(stray) == len(texts):
        return
    start = 0
    for batch in source.batches([name]):
        column = joined(batch.column(name)).to_pylist()
        row = next((row for row, value in enumerate(column) if value in stray), None)
        if row is not None:
            raise StrayTextError(name, column[row], start + row, "numbers", remedy)
        start += batch.num_rows


class StrayTextError(DataError):
    """A column holds a text among other values."""

    def __init__(self, column: str, value: str, row: int, among: str, remedy: str) -> None:
        self.column = column
        stands = value.strip().lower() in STANDS_FOR_MISSING
        fix = "leave it empty if it stands for a missing value" if stands else "correct it"
        super().__init__(
            f"column {column!r} holds text ({value!r} in row {row}) among {among}: {fix}, or "
            f"{remedy}."
        )


def code_field(column: str) -> str:
    """Return the field that holds the codes of a column, avoiding the names of other fields."""
    return f"{column}{CODE}" if column in RESERVED else column


def table_column(field: str, names: Sequence[str]) -> str:
    """Return the table column that a field of codes was made from: the inverse of `code_field`."""
    plain = field.removesuffix(CODE)
    return plain if field not in names and plain in RESERVED else field


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
        return distinct(self._arrow(name), name, self.row_ids)

    def groups(self, names: Sequence[str]) -> LevelArray:
        """Return the levels, or combinations of levels, that occur in one or several columns."""
        parts = [self.levels(name) for name in names]
        cell, widths = np.zeros(len(self), np.int64), [len(part.values) for part in parts]
        for part, width in zip(parts, widths, strict=True):
            cell = cell * width + part.codes
        cells, codes = np.unique(cell, return_inverse=True)
        if len(parts) == 1:
            return LevelArray(tuple(parts[0].values[i] for i in cells), codes)
        places = np.unravel_index(cells, widths)
        combined = zip(
            *([_part(p.values[i]) for i in at] for p, at in zip(parts, places, strict=True)),
            strict=True,
        )
        return LevelArray(tuple(":".join(texts) for texts in combined), codes)

    def numbers(self, name: str) -> Array:
        """Return a column of numbers in its own type."""
        remedy = "convert it to numbers (such as 0 and 1) first"
        return numbers(self._arrow(name), name, self.row_ids, remedy)

    def exact(self, name: str, dtype: np.dtype[np.floating]) -> Array:
        """Return a column of numbers, refusing integers that `dtype` cannot hold exactly."""
        values = self.numbers(name)
        require_exact(values, dtype, [name], self.row_ids)
        return values


def _part(level: Level) -> str:
    """Return a level as part of a combination; quoted if "p" of "q:r" might be "p:q" of "r"."""
    text = level_key(level)
    return '"{}"'.format(text.replace('"', '""')) if ":" in text or '"' in text else text


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


def refuse_fractions(group: str, levels: Iterable[Level], from_csv: bool = False) -> None:
    """Refuse groups whose levels are fractional numbers, which are measurements, not names.

    With `from_csv`, levels are texts, of which a measurement is one too.
    """
    levels = list(levels)
    if from_csv and all(isinstance(v, str) and re.fullmatch(NUMBER, v) for v in levels):
        levels = [float(level) for level in levels]
    for level in levels:
        if not isinstance(level, float | np.floating) or float(level).is_integer():
            continue
        if np.isinf(level):
            raise DataError(f"the group {group!r} holds {level:g}: replace it, or drop such rows.")
        raise DataError(
            f"the group {group!r} holds {level:g}, and fractional numbers are measurements rather "
            "than names of groups: cut them into classes (pandas.cut), convert them to text if "
            "they are names, or make the column a common term."
        )


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
        empty = array.dictionary.is_null(nan_is_null=True)
        if not array.indices.null_count and not empty.true_count:
            return None
        absent = empty.take(array.indices).fill_null(True)
    elif pa.types.is_floating(array.type) or array.null_count:
        absent = array.is_null(nan_is_null=True)
    else:
        return None
    holes: Array = absent.to_numpy(zero_copy_only=False)
    return holes if holes.any() else None
