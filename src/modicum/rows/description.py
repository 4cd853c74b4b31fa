"""The layout of a data set: fields, columns and levels, and their JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from modicum.errors import DataError
from modicum.rows.coding import CODE_TYPES, Coding, Level, level_names
from modicum.rows.json_entries import integer, mapping, sequence, short, text, text_or_none

Array: TypeAlias = npt.NDArray[Any]
DType: TypeAlias = np.dtype[Any]
# Types a data set may have; bytes are for images, which networks read directly.
STORED_TYPES = {"float32": np.float32, "float64": np.float64, "uint8": np.uint8}
# The kind of numbers a field was given as, by NumPy's dtype.kind.
KINDS = {"i": "integer", "u": "integer", "b": "boolean"}
MOST_AXES = 32  # of a field; NumPy arrays have at most 64, the first of which counts the rows


@dataclass(frozen=True)
class Field:
    """One named part of a row: `shape` is () for a scalar, (d,) for a vector of d numbers.

    `dtype` is the type of codes; None for numbers, which have the type of the data set. `kind` is
    "integer" or "boolean" if the numbers were given as such, None if they were floating.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: DType | None = None
    kind: str | None = field(default=None, compare=False)

    @property
    def width(self) -> int:
        """How many numbers the field takes in a packed row."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class RowsSchema:
    """The layout that another data set must have for its rows to be comparable with these.

    Parameters
    ----------
    columns : tuple of str
        Names of the columns of ``x``, in order; empty without a two-dimensional ``x``. If rows hold
        codes, names of the columns of the model matrix that numbers and codes represent.
    fields : mapping of str to tuple of int
        Every field's shape per row: () for a scalar, (d,) for ``x``.
    outcome : str or None
        The name of ``y`` in the user's table.
    levels : mapping of str to tuple of str
        All levels of each categorical column, the reference first, the others in the order of
        their columns in ``x``. Levels that are numbers are written as in column names: 6 is "6",
        as in ``hour[6]``.
    reference : mapping of str to str
        The reference level of each categorical column; it has no column in the model matrix.
    coding : Coding or None
        What the codes of rows mean; None for rows of numbers only.
    terms : mapping of str to tuple of str
        The columns of each term of the formula that made the rows.
    parts : mapping of str to str
        The columns of the user's table that became ``offset`` and ``weight``.
    origin : mapping or None
        The encoding of the formula that made the rows, as plain JSON values.
    kinds : mapping of str to str
        Fields that were given as integers ("integer") or booleans ("boolean"); user-defined models
        receive them as such. Schemas that differ only in `kinds` are equal.

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
    coding: Coding | None = None
    terms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, object] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict, compare=False)

    def to_dict(self) -> dict[str, object]:
        """Return the schema as plain JSON values."""
        coding = {} if self.coding is None else {"coding": self.coding.to_dict()}
        kinds = {"kinds": dict(self.kinds)} if self.kinds else {}
        return (
            coding
            | kinds
            | _origin_entries(self)
            | {
                "columns": list(self.columns),
                "fields": {name: list(shape) for name, shape in self.fields.items()},
                "outcome": self.outcome,
                "levels": {name: list(levels) for name, levels in self.levels.items()},
                "reference": dict(self.reference),
            }
        )

    @classmethod
    def from_dict(cls, saved: Mapping[str, object]) -> RowsSchema:
        """Undo `to_dict`; raise `DataError` for anything else."""
        try:
            saved = mapping(saved)
            schema = cls(
                columns=tuple(map(text, sequence(saved["columns"]))),
                fields={name: _shape(value) for name, value in mapping(saved["fields"]).items()},
                outcome=text_or_none(saved["outcome"]),
                levels={
                    name: tuple(map(text, sequence(value)))
                    for name, value in mapping(saved["levels"]).items()
                },
                reference={
                    name: text(value) for name, value in mapping(saved["reference"]).items()
                },
                coding=_coding(saved),
                kinds=_kinds(saved),
                **_origin(saved),
            )
            if any(schema.reference[name] not in levels for name, levels in schema.levels.items()):
                raise ValueError("a reference is not among the levels")
        except (KeyError, TypeError, ValueError):
            raise DataError(
                "the saved schema of the rows is damaged: read the rows again to make a new one."
            ) from None
        return schema


@dataclass(frozen=True)
class Description:
    """Everything about a data set except its numbers.

    A *packed* row holds the fields side by side, in the order of `fields`: `width` numbers of one
    type or, if some fields are codes, one record of several types. Stores hold packed rows; `pack`
    and `split` convert between fields and packed rows.

    Parameters
    ----------
    n : int
        Number of rows.
    dtype : numpy.dtype
        The type shared by all fields that are not codes: floating, or bytes.
    fields : tuple of Field
    columns : tuple of str
        Names of the columns of ``x``; empty without a two-dimensional ``x``. With a `coding`, names
        of all columns of the model matrix.
    outcome : str or None
        The name of ``y`` in the user's table.
    levels : mapping of str to tuple
        The levels of each categorical column, the reference level first.
    coding : Coding or None
        What the codes mean; None for rows of numbers only.
    terms, parts, origin
        As in `RowsSchema`.
    """

    n: int
    dtype: DType
    fields: tuple[Field, ...]
    columns: tuple[str, ...] = ()
    outcome: str | None = None
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    coding: Coding | None = None
    terms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, object] | None = None

    @property
    def kinds(self) -> dict[str, str]:
        """Fields that were given as integers or booleans, with "integer" or "boolean"."""
        return {f.name: f.kind for f in self.fields if f.kind is not None}

    @cached_property
    def dtypes(self) -> dict[str, DType]:
        """The type of each field."""
        return {f.name: self.dtype if f.dtype is None else f.dtype for f in self.fields}

    @cached_property
    def packed_type(self) -> DType:
        """Dtype of an array of packed rows: that of the numbers, or a record type."""
        if not self._has_codes:
            return self.dtype
        # Record fields are numbered, since npy headers cannot hold every name.
        parts = [(f"f{i}", self.dtypes[f.name], f.shape) for i, f in enumerate(self.fields)]
        return np.dtype(parts)

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of one packed row: () if it is a record."""
        return () if self._has_codes else (self.width,)

    @cached_property
    def _has_codes(self) -> bool:
        return any(f.dtype is not None for f in self.fields)

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """Start and stop of each field within a packed row."""
        ends = accumulate(f.width for f in self.fields)
        return {f.name: (e - f.width, e) for f, e in zip(self.fields, ends, strict=True)}

    @cached_property
    def width(self) -> int:
        """Numbers per packed row."""
        return sum(f.width for f in self.fields)

    @property
    def schema(self) -> RowsSchema:
        """The layout that another data set must have for its rows to be comparable with these."""
        levels = {name: level_names(values) for name, values in self.levels.items()}
        return RowsSchema(
            columns=self.columns,
            fields={f.name: f.shape for f in self.fields},
            outcome=self.outcome,
            levels=levels,
            reference={name: values[0] for name, values in levels.items()},
            coding=self.coding,
            terms=self.terms,
            parts=self.parts,
            origin=self.origin,
            kinds=self.kinds,
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(f.width * self.dtypes[f.name].itemsize for f in self.fields)

    def labels(self, f: Field) -> tuple[str, ...]:
        """Label of each number in a field: column names for x, numbered labels otherwise."""
        if f.name == "x" and self.coding is not None:
            scales = range(len(self.coding.dense), f.width)
            dense = (self.columns[place] for place in self.coding.dense)
            return (*dense, *(f"x[{j}]" for j in scales))
        return field_labels(f, self.columns)

    def like(self, schema: RowsSchema) -> Description:
        """Return this description with the columns and coding of `schema`, whose levels it uses."""
        field_names, fit_coding = {f.name for f in self.fields}, schema.coding
        assert fit_coding is not None
        absent = [name for name in fit_coding.fields if name not in field_names]
        if absent:
            raise DataError(
                f"the rows lack the factor {absent[0]!r}, which the rows of the fit had: give the "
                "level of each row."
            )
        shapes = {f.name: f.shape for f in self.fields}
        width, theirs = (fields.get("x", (0,))[0] for fields in (shapes, schema.fields))
        if width != theirs:
            raise DataError(
                f"x has {width} columns besides the factors, but the rows of the fit had {theirs}; "
                "give the same columns."
            )
        return replace(self, columns=schema.columns, coding=fit_coding)

    def split(self, block: Array) -> dict[str, Array]:
        """Return the fields of packed rows as views; `block` is (..., width), or (...) records."""
        if self._has_codes:
            return {f.name: block[f"f{i}"] for i, f in enumerate(self.fields)}
        lead = block.shape[:-1]
        parts = {}
        for f in self.fields:
            first, last = self.spans[f.name]
            part = block[..., first] if f.shape == () else block[..., first:last]
            parts[f.name] = part if len(f.shape) < 2 else part.reshape(lead + f.shape)
        return parts

    def pack(self, parts: Mapping[str, Array]) -> Array:
        """Pack the fields of k rows: (k, width), or (k,) records."""
        k = len(next(iter(parts.values())))
        block = np.empty((k, *self.packed_shape), self.packed_type)
        if self._has_codes:
            for i, f in enumerate(self.fields):
                block[f"f{i}"] = parts[f.name]
            return block
        for name, (first, last) in self.spans.items():
            block[:, first:last] = parts[name].reshape(k, last - first)
        return block

    def to_json(self) -> dict[str, object]:
        """Return the description as plain JSON values."""
        return (
            {
                "rows": self.n,
                "dtype": self.dtype.name,
                "fields": [
                    {"name": f.name, "shape": list(f.shape), "span": list(self.spans[f.name])}
                    | ({} if f.dtype is None else {"dtype": f.dtype.name})
                    for f in self.fields
                ],
                "columns": list(self.columns),
                "outcome": self.outcome,
                "levels": {
                    k: {"reference": v[0], "levels": list(v)} for k, v in self.levels.items()
                },
            }
            | ({} if self.coding is None else {"coding": self.coding.to_dict()})
            | ({"kinds": self.kinds} if self.kinds else {})
            | _origin_entries(self)
        )

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Description:
        """Undo `to_json`; raise KeyError, TypeError or ValueError, naming the entry, otherwise.

        Descriptions without levels (in older stores) have no categorical columns.
        """
        kind = text(data["dtype"])
        if kind not in STORED_TYPES:
            raise ValueError(f"rows have type {kind!r}")
        fields = [mapping(f) for f in sequence(data["fields"])]
        kinds = _kinds(data)
        description = cls(
            n=integer(data["rows"], 1),
            dtype=np.dtype(STORED_TYPES[kind]),
            fields=tuple(
                Field(
                    text(f["name"]),
                    _shape(f["shape"]),
                    _code_type(f.get("dtype")),
                    kinds.get(text(f["name"])),
                )
                for f in fields
            ),
            columns=tuple(map(text, sequence(data["columns"]))),
            outcome=text_or_none(data["outcome"]),
            levels={k: _levels(k, v) for k, v in mapping(data.get("levels", {})).items()},
            coding=_coding(data),
            **_origin(data),
        )
        if not fields or len(description.spans) != len(fields):
            raise ValueError("the fields do not have distinct names")
        if any(tuple(sequence(f["span"])) != description.spans[text(f["name"])] for f in fields):
            raise ValueError("spans disagree with shapes")
        description.check_columns()
        return description

    def check_columns(self) -> None:
        """Raise a ValueError if names, fields and coding disagree about the columns."""
        shapes = {f.name: f.shape for f in self.fields}
        x = shapes.get("x", ())
        if self.coding is None:
            if len(self.columns) != (x[0] if len(x) == 1 else 0):
                raise ValueError("x has another number of columns than names")
            return
        width = x[0] if len(x) == 1 else 0
        widths = [len(self.coding.dense)]
        widths += [term.scale + 1 for term in self.coding.terms if term.scale is not None]
        codes = {f.name for f in self.fields if f.dtype is not None and f.shape == ()}
        if len(self.columns) != self.coding.size or max(widths) > width:
            raise ValueError("the coding has another number of columns than names")
        if not codes.issuperset(self.coding.fields):
            raise ValueError("the coding names codes that are not a field")


class _Origin(TypedDict):
    """What `RowsSchema` and `Description` keep about the table that rows were made from."""

    terms: Mapping[str, tuple[str, ...]]
    parts: Mapping[str, str]
    origin: Mapping[str, object] | None


def _origin_entries(origin: RowsSchema | Description) -> dict[str, object]:
    entries: dict[str, object] = {}
    if origin.terms:
        entries["terms"] = {name: list(columns) for name, columns in origin.terms.items()}
    if origin.parts:
        entries["parts"] = dict(origin.parts)
    if origin.origin is not None:
        entries["origin"] = dict(origin.origin)
    return entries


def _origin(saved: Mapping[str, object]) -> _Origin:
    terms, origin = mapping(saved.get("terms", {})), saved.get("origin")
    return {
        "terms": {name: tuple(map(text, sequence(of))) for name, of in terms.items()},
        "parts": {part: text(name) for part, name in mapping(saved.get("parts", {})).items()},
        "origin": None if origin is None else mapping(origin),
    }


def _coding(saved: Mapping[str, object]) -> Coding | None:
    return Coding.from_dict(saved["coding"]) if saved.get("coding") is not None else None


def _code_type(value: object) -> DType | None:
    if value is None:
        return None
    if text(value) not in CODE_TYPES:
        raise ValueError(f"codes have type {value!r}")
    return np.dtype(CODE_TYPES[text(value)])


def _kinds(saved: Mapping[str, object]) -> dict[str, str]:
    kinds = {name: text(kind) for name, kind in mapping(saved.get("kinds", {})).items()}
    for kind in kinds.values():
        if kind not in KINDS.values():
            raise ValueError(f"a field is of kind {short(kind)}")
    return kinds


def _shape(value: object) -> tuple[int, ...]:
    shape = tuple(integer(length, 0) for length in sequence(value))
    if len(shape) > MOST_AXES:
        raise ValueError(f"a field has {len(shape)} axes")
    return shape


def _levels(name: str, value: object) -> tuple[Level, ...]:
    entry = mapping(value)
    levels: list[Level] = []
    for level in sequence(entry["levels"]):
        if not isinstance(level, str | int | float) or level != level:
            raise TypeError(f"{short(level)} is not a level")
        levels.append(level)
    if len(levels) < 2 or len(set(levels)) < len(levels) or entry["reference"] != levels[0]:
        raise ValueError(f"the levels of column {name!r} are not valid")
    return tuple(levels)


def field_labels(f: Field, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return a label per number of a field: column names for x, numbered labels otherwise."""
    if f.name == "x" and len(columns) == f.width:
        return columns
    if f.shape == ():
        return (f.name,)
    return tuple(f"{f.name}[{', '.join(map(str, at))}]" for at in np.ndindex(*f.shape))
