"""Columns of a table become numbers: the one place where that happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum.errors import DataError, argument
from modicum.rows import levels as categorical
from modicum.rows.checks import WeightCheck, block_rows, missing, require_exact, require_finite
from modicum.rows.description import Array, Description, Field, Level
from modicum.rows.roles import Roles

if TYPE_CHECKING:
    import pyarrow as pa


def floating(types: Iterable[pa.DataType]) -> list[np.dtype[Any]]:
    """Return the floating types among the columns' types (a decimal counts as float64)."""
    from pyarrow import types as kinds

    found: list[np.dtype[Any]] = []
    for kind in types:
        if kinds.is_floating(kind):
            found.append(np.dtype(kind.to_pandas_dtype()))
        elif kinds.is_decimal(kind):
            found.append(np.dtype(np.float64))
    return found


def numbers(array: pa.Array, name: str, start: int, predictor: bool = True) -> Array:
    """Return an arrow column as a NumPy array of integers, booleans or floats; refuse others."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind) or _is_text(kind):
        raise DataError(_text_sentence(array, name, start, predictor))
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(missing(name, start + row))
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"column {name!r} holds values of type {kind} from row {start} on: "
            "convert it to a number first, or leave it out."
        )
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _text_sentence(array: pa.Array, name: str, start: int, predictor: bool) -> str:
    values = array.to_pylist()
    row = next((i for i, v in enumerate(values) if v is not None and not is_number(v)), None)
    if row is None:
        row = next((i for i, v in enumerate(values) if v is not None), 0)
    advice = (
        f"pass {argument('categorical', [name])} to code it as levels, or convert it to numbers"
        if predictor
        else "convert it to numbers (such as 0 and 1) first"
    )
    kind = "text" if isinstance(values[row], str) else "categories"
    return f"column {name!r} holds {kind} ({values[row]!r} in row {start + row}): {advice}."


def is_number(value: Any) -> bool:
    """Whether a text reads as a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


class Encoder:
    """Turns record batches into packed rows: predictors, outcome, offset, weight.

    Parameters
    ----------
    roles : Roles
        Which column is what.
    levels : mapping
        Levels of the categorical columns, the reference first.
    dtype : numpy.dtype
    """

    def __init__(
        self, roles: Roles, levels: Mapping[str, tuple[Level, ...]], dtype: np.dtype[Any]
    ) -> None:
        self.roles, self.levels, self.dtype = roles, levels, dtype
        columns: list[str] = []
        self._spans: dict[str, tuple[int, int]] = {}
        for name in roles.predictors:
            first = len(columns)
            columns += [f"{name}[{v}]" for v in levels[name][1:]] if name in levels else [name]
            self._spans[name] = (first, len(columns))
        parts = {"y": roles.outcome, "offset": roles.offset, "weight": roles.weight}
        self._scalars = {part: name for part, name in parts.items() if name is not None}
        self.columns = tuple(columns)
        self.fields = (Field("x", (len(columns),)), *(Field(part) for part in self._scalars))
        self._labels = self.columns + tuple(self._scalars.values())

    def describe(self, n: int) -> Description:
        """Describe `n` encoded rows."""
        outcome = self.roles.outcome
        return Description(n, self.dtype, self.fields, self.columns, outcome, dict(self.levels))

    def encode(self, batch: pa.RecordBatch | pa.Table, start: int) -> Array:
        """Packed rows (k, width) of a batch that begins at row `start`, every number checked."""
        out = np.empty((batch.num_rows, len(self._labels)), self.dtype)
        given: dict[int, Array] = {}
        for name, (first, last) in self._spans.items():
            column = _one(batch.column(name))
            if name in self.levels:
                categorical.treat(column, name, self.levels[name], out[:, first:last], start)
            else:
                given[first] = self._put(numbers(column, name, start), name, out[:, first], start)
        for j, name in enumerate(self._scalars.values(), start=len(self.columns)):
            values = numbers(_one(batch.column(name)), name, start, predictor=False)
            given[j] = self._put(values, name, out[:, j], start)
        require_finite(out, self._labels, start, lambda row, column: given[column][row])
        return out

    def _put(self, values: Array, name: str, out: Array, start: int) -> Array:
        require_exact(values, self.dtype, lambda _: name, start)
        with np.errstate(over="ignore"):
            out[:] = values
        return values

    def blocks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Array]:
        """Packed rows of all batches, in blocks that stay in cache."""
        weight = WeightCheck(self.roles.weight) if self.roles.weight else None
        start, step = 0, block_rows(len(self._labels))
        for batch in batches:
            for at in range(0, batch.num_rows, step):
                block = self.encode(batch.slice(at, step), start)
                if weight:
                    weight.add(block[:, -1], start)
                start += len(block)
                yield block
        if start == 0:
            raise DataError("there are no rows in the data: at least one is needed.")
        if weight:
            weight.finish()


def _one(column: Any) -> pa.Array:
    """Return a column of a batch or of a table as one array."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column
