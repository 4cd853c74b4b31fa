"""What the user hands to `Rows`, field by field: arrays, lists, series and data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from modicum.errors import DataError
from modicum.rows.checks import block_rows, require_exact, require_finite
from modicum.rows.description import Array
from modicum.rows.encode import Encoder, floating, is_number
from modicum.rows.roles import resolve
from modicum.rows.sources import TableSource, arrow_column, is_series, library


class ArrayField:
    """A field given as an array or something NumPy makes one of."""

    columns: tuple[str, ...] = ()
    title: str | None = None

    def __init__(self, name: str, value: Any) -> None:
        self._array = array = _as_array(name, value)
        self.n, self.shape = array.shape[0], array.shape[1:]
        self.floating = [array.dtype] if array.dtype.kind == "f" else []

    def squeeze(self) -> None:
        """Drop a trailing axis of one."""
        self._array = self._array[:, 0]
        self.shape = ()

    def part(self, start: int, stop: int, dtype: np.dtype[Any], labels: Sequence[str]) -> Array:
        """Rows from `start` up to `stop`; a view where type and layout already fit."""
        given = self._array[start:stop]
        require_exact(given, dtype, lambda at: labels[at % len(labels)], start)
        with np.errstate(over="ignore"):
            made: Array = np.ascontiguousarray(given, dtype=dtype)
        flat = made.reshape(len(made), len(labels))
        require_finite(flat, labels, start, lambda row, col: given[row].reshape(-1)[col])
        return made

    def whole(self, dtype: np.dtype[Any], labels: Sequence[str]) -> Array:
        """All rows, without a copy where type and layout already fit."""
        fits = self._array.dtype == dtype and self._array.flags.c_contiguous
        made = self._array if fits else np.empty(self._array.shape, dtype)
        step = block_rows(len(labels))
        for start in range(0, self.n, step):
            part = self.part(start, start + step, dtype, labels)
            if not fits:
                made[start : start + step] = part
        return made


class FrameField:
    """A field given as a data frame, or as a series (one number a row)."""

    def __init__(self, name: str, value: Any) -> None:
        series = is_series(value)
        if series:
            import pyarrow as pa

            self.title = str(value.name) if getattr(value, "name", None) else None
            column = value if library(value) == "pyarrow" else arrow_column(value, name)
            value = pa.table({name: column})
        else:
            self.title = None
        source = TableSource(value)
        roles = resolve(source.names, None, None, None, None, ())
        self._roles, self._table = roles, source.table(roles.predictors)
        self.floating = floating(self._table.schema.types)
        self.n, self.columns = self._table.num_rows, source.names
        self.shape: tuple[int, ...] = () if series else (len(source.names),)

    def squeeze(self) -> None:
        """Drop a trailing axis of one."""
        self.title = self.title or self.columns[0]
        self.shape = ()

    def part(self, start: int, stop: int, dtype: np.dtype[Any], labels: Sequence[str]) -> Array:
        """Rows from `start` up to `stop`."""
        piece = self._table.slice(start, stop - start)
        return Encoder(self._roles, {}, dtype).encode(piece, start).reshape(-1, *self.shape)

    def whole(self, dtype: np.dtype[Any], labels: Sequence[str]) -> Array:
        """All rows."""
        made = np.empty((self.n, *self.shape), dtype)
        step = block_rows(len(labels))
        for start in range(0, self.n, step):
            made[start : start + step] = self.part(start, start + step, dtype, labels)
        return made


def _as_array(name: str, value: Any) -> Array:
    if hasattr(value, "toarray"):
        raise DataError(f"field {name!r} is a sparse matrix: pass {name}.toarray().")
    if np.ma.isMaskedArray(value) and np.ma.getmaskarray(value).any():
        row = int(np.argwhere(np.ma.getmaskarray(value))[0][0])
        raise DataError(f"column {name!r} holds a masked value in row {row}: drop or fill it.")
    try:
        array = np.asarray(value)
    except ValueError:
        raise DataError(_ragged(name, value)) from None
    if array.dtype.name.startswith(("bfloat16", "float8")):  # of JAX; NumPy does not know them
        array = array.astype(np.float32)
    if array.ndim == 0:
        raise DataError(
            f"field {name!r} is a single {type(value).__name__}, not rows: pass an array."
        )
    if array.dtype.kind not in "fiub":
        raise DataError(_not_numbers(name, array))
    if 0 in array.shape[1:]:
        raise DataError(f"field {name!r} has shape {array.shape}: it has no columns.")
    return array


def _ragged(name: str, value: Sequence[Any]) -> str:
    shapes = [np.shape(np.asarray(row, dtype=object)) for row in value]
    row = next(i for i, shape in enumerate(shapes) if shape != shapes[0]) if shapes else 0
    return f"column {name!r} changes its length in row {row}: all rows need the same length."


def _not_numbers(name: str, array: Array) -> str:
    if array.dtype.kind == "c":
        return f"column {name!r} holds complex numbers from row 0 on: pass real ones."
    if array.dtype.kind in "Mm":
        return f"column {name!r} holds dates or times from row 0 on: convert them to numbers first."
    flat = array.reshape(array.shape[0], -1)
    for row, values in enumerate(flat.tolist()):
        for value in values:
            if not is_number(value):
                what = "a missing value (None)" if value is None else repr(value)
                return f"column {name!r} holds {what} in row {row}: every value must be a number."
    return (
        f"column {name!r} holds numbers as text or objects from row 0 on: "
        f"convert it with {name}.astype(float)."
    )
