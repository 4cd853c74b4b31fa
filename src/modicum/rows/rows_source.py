"""Existing rows as a table, so that a formula can be applied to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from modicum.rows.description import Array
from modicum.rows.level_names import Level, level_names
from modicum.rows.rows import Rows
from modicum.rows.sources import BATCH_ROWS

if TYPE_CHECKING:
    import pyarrow as pa


class RowsSource:
    """The columns of rows by name: numbers of x, factors, and every other scalar field.

    The outcome has its original name, or "y" if it had none. A factor that was coded as columns of
    zeros and ones becomes one column again. `roles` are the offset and the weight of the rows.
    """

    def __init__(self, rows: Rows) -> None:
        rows.require_unchanged()
        self._rows = rows
        self.rows: int | None = len(rows)
        coding = rows.coding
        dense = range(len(rows.columns)) if coding is None else coding.dense
        columns = {rows.columns[place]: j for j, place in enumerate(dense)}
        self._factors: dict[str, tuple[Level, ...]] = {}
        self._dummies: dict[str, list[int]] = {}
        for name, levels in rows.levels.items():
            places = [columns.pop(f"{name}[{level}]", -1) for level in level_names(levels)[1:]]
            self._factors[name] = levels
            if min(places) >= 0:
                self._dummies[name] = places
        self._numbers = columns
        coded = set() if coding is None else set(coding.fields)
        scalars = [f for f, shape in rows.fields.items() if shape == () and f not in coded]
        named = {rows.outcome or "y": "y"} if "y" in scalars else {}
        self._scalars = {f: f for f in scalars if f != "y" and f not in named} | named
        self.names = (*self._numbers, *self._factors, *self._scalars)
        self.roles = [f for f in ("offset", "weight") if f in scalars and f not in columns]

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns."""
        return list(self._batch(self._rows.slice(0, 1), columns).schema.types)

    def has_order(self, column: str) -> bool:
        """Whether the column is a factor, whose levels are already in order."""
        return column in self._factors

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns, in order."""
        for chunk in self._rows.chunks(BATCH_ROWS):
            yield self._batch(chunk, columns)

    def _batch(self, chunk: dict[str, Array], columns: Sequence[str]) -> pa.RecordBatch:
        import pyarrow as pa

        return pa.record_batch({name: self._column(chunk, name) for name in columns})

    def _column(self, chunk: dict[str, Array], name: str) -> pa.Array:
        import pyarrow as pa

        if name in self._numbers:
            return pa.array(np.ascontiguousarray(chunk["x"][:, self._numbers[name]]))
        if name in self._scalars:
            return pa.array(np.ascontiguousarray(chunk[self._scalars[name]]))
        codes = chunk.get(name)
        if codes is None:
            places = self._dummies[name]
            codes = chunk["x"][:, places] @ np.arange(1, len(places) + 1)
        levels = pa.array(list(self._factors[name]))
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), levels)
