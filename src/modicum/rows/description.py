"""The layout of a data set: fields, columns and levels, and their JSON form."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from modicum.errors import DataError, ModicumError
from modicum.rows.coding import (
    CODE_TYPES,
    STORED_TYPES,
    Array,
    Coding,
    DType,
    Level,
    code_type,
    level_names,
)
from modicum.rows.formula.encoding import FormulaEncoding
from modicum.rows.json_entries import (
    Json,
    integer,
    mapping,
    plain,
    restored,
    sequence,
    short,
    text,
)

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
    coding : Coding or None
        What the codes of rows mean; None for rows of numbers only.
    terms : mapping of str to tuple of str
        The columns of each term of the formula that made the rows.
    parts : mapping of str to str
        The columns of the user's table that became ``offset`` and ``weight``.
    encoding : FormulaEncoding or None
        The formula that made the rows, with the levels, knots and means learned for it.
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
    coding: Coding | None = None
    terms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    encoding: FormulaEncoding | None = None
    kinds: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def reference(self) -> dict[str, str]:
        """The reference level of each categorical column; it has no column in the matrix."""
        return {name: levels[0] for name, levels in self.levels.items()}

    @property
    def origin(self) -> dict[str, Json] | None:
        """The encoding as plain JSON values."""
        return None if self.encoding is None else self.encoding.to_dict()

    def to_dict(self) -> dict[str, Json]:
        """Return the schema as plain JSON values."""
        names = ("columns", "fields", "outcome", "levels", "reference")
        return _optional_entries(self) | {name: plain(getattr(self, name)) for name in names}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Json]) -> RowsSchema:
        """Undo `to_dict`; raise `DataError` for anything else."""
        try:
            entries = mapping(saved)
            schema = cls(
                **{name: restored(kind, entries[name]) for name, kind in _ENTRIES.items()},
                **_options(entries),
                kinds=_kinds(entries),
            )
            _check_axes(schema.fields.values())
            if schema.reference != mapping(entries["reference"]):
                raise ValueError("a reference is not the first of the levels")
        except ModicumError:
            raise
        except (KeyError, IndexError, TypeError, ValueError):
            raise DataError(
                "the saved schema of the rows is damaged: read the rows again to make a new one."
            ) from None
        return schema


_ENTRIES = {
    "columns": tuple[str, ...],
    "fields": Mapping[str, tuple[int, ...]],
    "outcome": str | None,
    "levels": Mapping[str, tuple[str, ...]],
}


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
    terms, parts, encoding
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
    encoding: FormulaEncoding | None = None

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
        return RowsSchema(
            columns=self.columns,
            fields={f.name: f.shape for f in self.fields},
            outcome=self.outcome,
            levels={name: level_names(values) for name, values in self.levels.items()},
            coding=self.coding,
            terms=self.terms,
            parts=self.parts,
            encoding=self.encoding,
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
        if f.name == "x" and len(self.columns) == f.width:
            return self.columns
        if f.shape == ():
            return (f.name,)
        return tuple(f"{f.name}[{', '.join(map(str, at))}]" for at in np.ndindex(*f.shape))

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

    def to_json(self) -> dict[str, Json]:
        """Return the description as plain JSON values."""
        return {
            "rows": self.n,
            "dtype": self.dtype.name,
            "fields": [
                {"name": f.name, "shape": list(f.shape), "span": list(self.spans[f.name])}
                | ({} if f.dtype is None else {"dtype": f.dtype.name})
                for f in self.fields
            ],
            "columns": list(self.columns),
            "outcome": self.outcome,
            "levels": {k: {"reference": v[0], "levels": list(v)} for k, v in self.levels.items()},
        } | _optional_entries(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Description:
        """Undo `to_json`; raise KeyError, TypeError or ValueError, naming the entry, otherwise.

        Descriptions without levels (in older stores) have no categorical columns.
        """
        kind = text(data["dtype"])
        if kind not in STORED_TYPES:
            raise ValueError(f"rows have type {kind!r}")
        fields, kinds = [mapping(f) for f in sequence(data["fields"])], _kinds(data)
        names = [text(f["name"]) for f in fields]
        shapes = [restored(tuple[int, ...], f["shape"]) for f in fields]
        _check_axes(shapes)
        codes = [_code_type(f.get("dtype")) for f in fields]
        description = cls(
            n=integer(data["rows"], 1),
            dtype=np.dtype(STORED_TYPES[kind]),
            fields=tuple(map(Field, names, shapes, codes, map(kinds.get, names))),
            columns=restored(tuple[str, ...], data["columns"]),
            outcome=restored(str | None, data["outcome"]),
            levels={k: _levels(k, v) for k, v in mapping(data.get("levels", {})).items()},
            **_options(data),
        )
        if not fields or len(description.spans) != len(fields):
            raise ValueError("the fields do not have distinct names")
        if [tuple(sequence(f["span"])) for f in fields] != list(description.spans.values()):
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


def describe(
    encoding: FormulaEncoding,
    n: int,
    dtype: DType,
    outcome: bool = True,
    extra: Collection[str] | None = None,
) -> Description:
    """Describe `n` rows that a formula makes, with these further fields (None: all)."""
    layout = encoding.layout
    further = [name for name in encoding.fields if extra is None or name in extra]
    groupings = {g.field: g.levels for g in encoding.groupings if extra is None or g.field in extra}
    # Without numbers and codes, an x of zero columns carries the number of rows.
    has_x = layout.numbers or not layout.codes
    fields = [Field("x", (len(layout.numbers),))] if has_x else []
    fields += [Field(codes.field, (), code_type(codes.levels)) for codes in layout.codes]
    fields += [Field("y")] if outcome and encoding.outcome is not None else []
    fields += map(Field, further)
    coded = {f.name for f in fields}
    fields += [Field(k, (), code_type(len(v))) for k, v in groupings.items() if k not in coded]
    levels = {
        codes.field: encoding.factors[codes.parts[0][0]].levels
        for codes in layout.codes
        if len(codes.parts) == 1 and not codes.window
    }
    return Description(
        n=n,
        dtype=dtype,
        fields=tuple(fields),
        columns=layout.columns,
        outcome=None if encoding.outcome is None else encoding.outcome.expression,
        levels=levels | groupings,
        coding=layout.coding if layout.codes else None,
        terms={
            name: tuple(layout.columns[place] for place in places)
            for name, places in layout.terms.items()
        },
        encoding=encoding,
    )


# To JSON and back. Readers raise KeyError, TypeError or ValueError for invalid entries.


def _optional_entries(about: RowsSchema | Description) -> dict[str, Json]:
    options = {"coding": about.coding, "kinds": about.kinds, "terms": about.terms}
    entries = {k: plain(v) for k, v in (options | {"parts": about.parts}).items() if v}
    return entries if about.encoding is None else entries | {"origin": about.encoding.to_dict()}


def _options(saved: Mapping[str, Json]) -> dict[str, Any]:
    coding, origin = saved.get("coding"), saved.get("origin")
    return {
        "coding": None if coding is None else Coding.from_dict(coding),
        "terms": restored(Mapping[str, tuple[str, ...]], saved.get("terms", {})),
        "parts": restored(Mapping[str, str], saved.get("parts", {})),
        "encoding": None if origin is None else FormulaEncoding.from_dict(origin),
    }


def _code_type(value: object) -> DType | None:
    if value is None:
        return None
    if text(value) not in CODE_TYPES:
        raise ValueError(f"codes have type {value!r}")
    return np.dtype(CODE_TYPES[text(value)])


def _kinds(saved: Mapping[str, Json]) -> dict[str, str]:
    kinds: dict[str, str] = restored(Mapping[str, str], saved.get("kinds", {}))
    for kind in kinds.values():
        if kind not in KINDS.values():
            raise ValueError(f"a field is of kind {short(kind)}")
    return kinds


def _check_axes(shapes: Iterable[tuple[int, ...]]) -> None:
    for shape in shapes:
        if len(shape) > MOST_AXES:
            raise ValueError(f"a field has {len(shape)} axes")


def _levels(name: str, value: object) -> tuple[Level, ...]:
    entry = mapping(value)
    levels: tuple[Level, ...] = restored(tuple[Level, ...], entry["levels"])
    if len(levels) < 2 or len(set(levels)) < len(levels) or entry["reference"] != levels[0]:
        raise ValueError(f"the levels of column {name!r} are not valid")
    return levels
