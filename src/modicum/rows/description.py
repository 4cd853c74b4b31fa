"""What a row is made of: the names, shapes and places of its fields, and their JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from modicum.errors import DataError

Array: TypeAlias = npt.NDArray[Any]
Level: TypeAlias = str | int | float | bool
# Types that rows are held in; bytes are for images, which networks read as they are.
STORED_TYPES = {"float32": np.float32, "float64": np.float64, "uint8": np.uint8}


@dataclass(frozen=True)
class Field:
    """One named part of a row: `shape` is () for a scalar, (d,) for a vector of d numbers."""

    name: str
    shape: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers the field takes in a packed row."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class RowsSchema:
    """What another data set must match for its rows to mean the same.

    Parameters
    ----------
    columns : tuple of str
        Names of the columns of ``x``, in order; empty without a two-dimensional ``x``.
    fields : mapping of str to tuple of int
        Every field's shape per row: () for a scalar, (d,) for ``x``.
    outcome : str or None
        The name ``y`` had in the user's table.
    levels : mapping of str to tuple of str
        All levels of each categorical column, the reference first, the others in the order of
        their columns in ``x``. A level that is a number stands here as it does in the column's
        name: 6 as "6" in ``hour[6]``.
    reference : mapping of str to str
        The reference level of each categorical column, which has no column of its own.

    Examples
    --------
    >>> import pandas as pd
    >>> from modicum.rows import Rows
    >>> flights = pd.DataFrame({"late": [1, 0, 1], "hour": [6, 5, 7]})
    >>> schema = Rows.from_table(flights, outcome="late", categorical=["hour"]).schema
    >>> schema.columns, schema.levels, schema.reference
    (('hour[6]', 'hour[7]'), {'hour': ('5', '6', '7')}, {'hour': '5'})
    >>> RowsSchema.from_dict(schema.to_dict()) == schema
    True
    """

    columns: tuple[str, ...]
    fields: Mapping[str, tuple[int, ...]]
    outcome: str | None = None
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reference: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain JSON values."""
        return {
            "columns": list(self.columns),
            "fields": {name: list(shape) for name, shape in self.fields.items()},
            "outcome": self.outcome,
            "levels": {name: list(levels) for name, levels in self.levels.items()},
            "reference": dict(self.reference),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> RowsSchema:
        """Undo `to_dict`; what it did not write is a `DataError`."""
        try:
            outcome = saved["outcome"]
            made = cls(
                columns=tuple(map(_text, saved["columns"])),
                fields={_text(k): tuple(map(int, v)) for k, v in saved["fields"].items()},
                outcome=None if outcome is None else _text(outcome),
                levels={_text(k): tuple(map(_text, v)) for k, v in saved["levels"].items()},
                reference={_text(k): _text(v) for k, v in saved["reference"].items()},
            )
            if any(made.reference[name] not in levels for name, levels in made.levels.items()):
                raise ValueError("a reference that is no level")
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(
                "the saved schema of the rows is damaged: read the rows again to make a new one."
            ) from None
        return made


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {type(value).__name__}")
    return value


@dataclass(frozen=True)
class Description:
    """All there is to say about a data set without its numbers.

    A *packed* row is one record of `width` numbers that holds the fields side by side, in the
    order of `fields`. The store writes packed rows; `pack` and `split` go between the two forms.

    Parameters
    ----------
    n : int
        Number of rows.
    dtype : numpy.dtype
        The one type of every field: floating, or bytes.
    fields : tuple of Field
    columns : tuple of str
        Names of the columns of ``x``; empty without a two-dimensional ``x``.
    outcome : str or None
        The name ``y`` had in the user's table.
    levels : mapping of str to tuple
        The levels of each categorical column, the reference level first.
    """

    n: int
    dtype: np.dtype[Any]
    fields: tuple[Field, ...]
    columns: tuple[str, ...] = ()
    outcome: str | None = None
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """First and one-past-last number of each field in a packed row."""
        ends = np.cumsum([f.width for f in self.fields]).tolist()
        return {f.name: (e - f.width, e) for f, e in zip(self.fields, ends, strict=True)}

    @cached_property
    def width(self) -> int:
        """How many numbers a packed row has."""
        return sum(f.width for f in self.fields)

    @property
    def schema(self) -> RowsSchema:
        """What another data set must match for its rows to mean the same."""
        levels = {name: tuple(map(str, values)) for name, values in self.levels.items()}
        return RowsSchema(
            columns=self.columns,
            fields={f.name: f.shape for f in self.fields},
            outcome=self.outcome,
            levels=levels,
            reference={name: values[0] for name, values in levels.items()},
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * self.dtype.itemsize

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What to call each number of a packed row when something is wrong with it."""
        return tuple(name for f in self.fields for name in field_labels(f, self.columns))

    def split(self, block: Array) -> dict[str, Array]:
        """Fields of packed rows (..., width), as views."""
        lead = block.shape[:-1]
        parts = {}
        for f in self.fields:
            first, last = self.spans[f.name]
            part = block[..., first] if f.shape == () else block[..., first:last]
            parts[f.name] = part if len(f.shape) < 2 else part.reshape(lead + f.shape)
        return parts

    def pack(self, parts: Mapping[str, Array]) -> Array:
        """Packed rows (k, width) of the fields of k rows."""
        k = len(next(iter(parts.values())))
        block = np.empty((k, self.width), self.dtype)
        for name, (first, last) in self.spans.items():
            block[:, first:last] = parts[name].reshape(k, last - first)
        return block

    def to_json(self) -> dict[str, Any]:
        """Return the description as plain JSON values."""
        return {
            "rows": self.n,
            "dtype": self.dtype.name,
            "fields": [
                {"name": f.name, "shape": list(f.shape), "span": list(self.spans[f.name])}
                for f in self.fields
            ],
            "columns": list(self.columns),
            "outcome": self.outcome,
            "levels": {k: {"reference": v[0], "levels": list(v)} for k, v in self.levels.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Description:
        """Read what `to_json` wrote; any exception means that it did not write this."""
        made = cls(
            n=int(data["rows"]),
            dtype=np.dtype(STORED_TYPES[data["dtype"]]),
            fields=tuple(Field(f["name"], tuple(map(int, f["shape"]))) for f in data["fields"]),
            columns=tuple(data["columns"]),
            outcome=data["outcome"],
            levels={k: tuple(v["levels"]) for k, v in data["levels"].items()},
        )
        if any(tuple(f["span"]) != made.spans[f["name"]] for f in data["fields"]):
            raise ValueError("spans disagree with shapes")
        return made


def field_labels(f: Field, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Names of a field's numbers: the columns of x have their own, others are numbered."""
    if f.name == "x" and len(columns) == f.width:
        return columns
    if f.shape == ():
        return (f.name,)
    return tuple(f"{f.name}[{', '.join(map(str, at))}]" for at in np.ndindex(*f.shape))
