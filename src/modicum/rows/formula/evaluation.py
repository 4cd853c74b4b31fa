"""The columns of one batch of a table, and the factors, outcomes and codes made from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from modicum.errors import DataError, SettingError, argument
from modicum.libraries import pyarrow as pa
from modicum.rows.checks import MissingValueError, NewLevelError, in_type, require_exact
from modicum.rows.coding import Array, DType, Level, code_type, level_places
from modicum.rows.formula.expressions import Expression
from modicum.rows.formula.interpreter import ColumnArray, LevelArray, evaluate
from modicum.rows.formula.smooths import State
from modicum.rows.formula.structure import Codes, Factor, Numbers
from modicum.rows.levels import distinct, joined, numbers
from modicum.rows.sources import BATCH_ROWS, Source, kind_of


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


NewLevels: TypeAlias = Literal["refuse", "reference"]


class Evaluated:
    """The factors of one batch, each evaluated on first use."""

    def __init__(
        self,
        factors: Sequence[Factor],
        states: Mapping[str, State],
        columns: BatchColumns,
        dtype: DType,
        newlevels: NewLevels | None,
    ) -> None:
        self._factors, self._columns, self._dtype = factors, columns, dtype
        self._states, self._newlevels = dict(states), newlevels
        self._numeric: dict[tuple[int, bool], Array] = {}
        self._coded: dict[int, Array] = {}
        self._windows: dict[tuple[int, bool], tuple[Array, Array]] = {}

    def product(self, numbers: Numbers) -> Array:
        """Return a column of x: a product of columns of factors, or a column of a window."""
        parts = numbers.parts
        if numbers.window:
            ((number, reduced, at),) = parts
            return self._window(number, reduced)[1][:, at]
        values = [self._numbers(f, reduced)[:, at] for f, reduced, at in parts]
        if len(values) == 1:
            return values[0]
        return np.prod([np.asarray(v, dtype=np.float64) for v in values], axis=0)

    def product_label(self, numbers: Numbers) -> str:
        """Return the name of a column of x in error messages."""
        parts = numbers.parts
        if numbers.window:
            return self._factors[parts[0][0]].label
        return ":".join(self._factors[f].names(reduced)[at] for f, reduced, at in parts)

    def _numbers(self, number: int, reduced: bool) -> Array:
        """Return the columns (rows, k) of a numeric factor, or of a factor's levels as numbers."""
        key = (number, reduced)
        if key in self._numeric:
            return self._numeric[key]
        factor = self._factors[number]
        if factor.levels:
            columns = factor.matrix(reduced)[self._codes(number)]
        else:
            columns = self._columns_of(factor)
            columns = columns[:, 1:] if reduced and factor.spans else columns
        self._numeric[key] = columns
        return columns

    def _window(self, number: int, reduced: bool) -> tuple[Array, Array]:
        """Return each row's first column that may differ from 0, and the values from there on."""
        key = (number, reduced)
        if key not in self._windows:
            factor, values = self._factors[number], self._numbers(number, reduced)
            size = factor.local
            begin = np.minimum(np.argmax(values != 0, axis=1), values.shape[1] - size)
            inside = np.take_along_axis(values, begin[:, None] + np.arange(size), axis=1)
            if np.count_nonzero(inside) < np.count_nonzero(values):
                raise DataError(f"the encoding of {factor.label} is damaged: fit again.")
            self._windows[key] = begin, inside
        return self._windows[key]

    def _columns_of(self, factor: Factor) -> Array:
        expression = Expression(factor.expression)
        if expression.bare is not None:
            return self._columns.exact(expression.bare, self._dtype)[:, None]
        value = evaluate(expression, self._columns, self._states)
        if isinstance(value, ColumnArray):
            columns = value.values
        elif isinstance(value, LevelArray):
            raise DataError(
                f"{factor.label} held numbers in the fit and holds levels here: convert it to "
                "numbers."
            )
        else:
            columns = np.broadcast_to(np.asarray(value, dtype=float), len(self._columns))[:, None]
        if columns.shape[1] != len(factor.names(False)):
            raise DataError(f"the encoding of {factor.label} is damaged: fit again.")
        return columns

    def number(self, expression: Expression) -> Array:
        """Return one number per row."""
        if expression.bare is not None:
            return self._columns.exact(expression.bare, self._dtype)
        value = evaluate(expression, self._columns, self._states)
        if isinstance(value, LevelArray | ColumnArray):
            raise DataError(f"{expression.label} is not one number per row: use a column that is.")
        return np.broadcast_to(np.asarray(value, dtype=float), len(self._columns))

    def outcome(self, expression: Expression, levels: tuple[Level, ...]) -> Array:
        """Return outcomes: numbers, or the codes of classes."""
        if levels:
            return self._places(expression, expression.label, levels, False)
        return self.number(expression)

    def code(self, codes: Codes) -> Array:
        """Return the codes of a factor or of a combination of factors."""
        if codes.window:
            code = self._window(*codes.parts[0])[0]
        elif len(codes.parts) == 1:
            code = self._codes(codes.parts[0][0])
        else:
            cell, reference = np.zeros(len(self._columns), np.intp), np.zeros(1, bool)
            step = 1
            for (number, reduced), width in zip(codes.parts, codes.widths, strict=True):
                place = self._codes(number) - reduced
                reference = reference | (place < 0)
                cell, step = cell + step * place, step * width
            code = np.where(reference, 0, cell + 1) if codes.reference else cell
        return code.astype(code_type(codes.levels))

    def _codes(self, number: int) -> Array:
        if number not in self._coded:
            factor = self._factors[number]
            expression = Expression(factor.expression)
            self._coded[number] = self._places(expression, factor.label, factor.levels, True)
        return self._coded[number]

    def _places(
        self, expression: Expression, label: str, levels: tuple[Level, ...], lenient: bool
    ) -> Array:
        """Return the index of each row's level in the levels of the fit."""
        inner = expression.inner
        array = level_array(inner, self._columns, self._states)
        places = np.array(level_places(levels, array.values) or [-1])[array.codes]
        if not len(places) or places.min() >= 0:
            return places
        at = int(np.argmax(places < 0))
        level, row = array.values[array.codes[at]], self._columns.row(at)
        texts = all(isinstance(v, str) for v in levels)
        if self._newlevels and texts != isinstance(level, str) and inner.bare is not None:
            kinds = ("text", "numbers") if texts else ("numbers or booleans", "text")
            raise DataError(
                f"column {inner.bare!r} held {kinds[0]} in the fit and holds {kinds[1]} here "
                f"({level!r} in row {row}): convert it."
            )
        if lenient and self._newlevels == "reference":
            return np.maximum(places, 0)
        remedy = "leave such rows out, or fit again with rows that have them"
        if lenient and self._newlevels:
            setting = argument("newlevels", "reference")
            remedy += f", or predict them as the reference level with {setting}"
        place = f"column {label!r} holds {level!r} in row {row}, which the rows of the fit did not"
        raise NewLevelError(place, remedy)


def level_array(
    expression: Expression, columns: BatchColumns, states: dict[str, State]
) -> LevelArray:
    """Return an expression's values as levels: those of a column, or distinct values."""
    if expression.bare is not None:
        return columns.levels(expression.bare)
    value = evaluate(expression, columns, states)
    if isinstance(value, LevelArray):
        return value
    if isinstance(value, ColumnArray):
        raise SettingError(f"{expression.text} has several columns, so it cannot be levels.")
    distinct, codes = np.unique(np.broadcast_to(value, len(columns)), return_inverse=True)
    return LevelArray(tuple(distinct.tolist()), codes)


def as_type(
    values: list[Array], dtype: DType, labels: Sequence[str], columns: BatchColumns
) -> Array:
    """Stack columns in the type of the rows; refuse values that it cannot hold."""
    out = np.empty((len(columns), len(values)), dtype)
    for j, value in enumerate(values):
        out[:, j] = in_type(value, dtype, labels[j : j + 1], columns.row_ids)
    return out
