"""The layout of a data set: fields, columns, levels and their JSON form; and its fingerprint.

The fingerprint is a hash of all numbers, the same in memory and in a store. Rows are hashed in
blocks of a fixed number of rows, field by field, and the block hashes are hashed together. Threads
can therefore share the work, and the fingerprint depends neither on how a store is cut into shards
nor on the order of the fields.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from modicum.errors import DataError, ModicumError
from modicum.files import Json, integer, mapping, plain, restored, sequence, short, text
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
from modicum.runtime import in_threads

# The kind of numbers a field was given as, by NumPy's dtype.kind.
KINDS = {"i": "integer", "u": "integer", "b": "boolean"}
MOST_AXES = 32  # of a field; NumPy arrays have at most 64, the first of which counts the rows


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
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    coding: Coding | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    encoding: FormulaEncoding | None = None
    kinds: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def reference(self) -> dict[str, Level]:
        """The reference level of each categorical column; it has no column in the matrix."""
        return {name: levels[0] for name, levels in self.levels.items()}

    @property
    def terms(self) -> dict[str, tuple[str, ...]]:
        """The columns of each term of the formula that made the rows."""
        if self.encoding is None:
            return {}
        laid_out = self.encoding.layout
        return {k: tuple(laid_out.columns[i] for i in at) for k, at in laid_out.terms.items()}

    @property
    def origin(self) -> dict[str, Json] | None:
        """The encoding as plain JSON values."""
        return None if self.encoding is None else self.encoding.to_dict()

    def to_dict(self) -> dict[str, Json]:
        """Return the schema as plain JSON values."""
        names = (f.name for f in fields(RowsSchema) if f.name != "encoding")
        return {name: plain(getattr(self, name)) for name in names} | {"origin": self.origin}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Json]) -> RowsSchema:
        """Undo `to_dict`; raise `DataError` for anything else."""
        try:
            return _read_schema(mapping(saved))
        except ModicumError:
            raise
        except (KeyError, IndexError, TypeError, ValueError):
            raise DataError(
                "the saved schema of the rows is damaged: read the rows again to make a new one."
            ) from None


@dataclass(frozen=True, kw_only=True)
class Description(RowsSchema):
    """Everything about a data set except its numbers: a schema, a size, and types.

    A *packed* row holds the fields side by side, in the order of `fields`: `width` numbers of one
    type or, if some fields are codes, one record of several types. Stores hold packed rows; `pack`
    and `split` convert between fields and packed rows. Levels are the values of the user's table.

    Parameters
    ----------
    n : int
        Number of rows.
    dtype : numpy.dtype
        The type shared by all fields that are not codes: floating, or bytes.
    codes : mapping of str to numpy.dtype
        The types of the fields that are codes.
    """

    n: int
    dtype: DType
    codes: Mapping[str, DType] = field(default_factory=dict)

    @cached_property
    def dtypes(self) -> dict[str, DType]:
        """The type of each field."""
        return {name: self.codes.get(name, self.dtype) for name in self.fields}

    @property
    def numbers(self) -> list[str]:
        """The fields that are not codes."""
        return [name for name in self.fields if name not in self.codes]

    @cached_property
    def packed_type(self) -> DType:
        """Dtype of an array of packed rows: that of the numbers, or a record type."""
        if not self.codes:
            return self.dtype
        # Record fields are numbered, since npy headers cannot hold every name.
        named = enumerate(self.fields.items())
        return np.dtype([(f"f{i}", self.dtypes[name], shape) for i, (name, shape) in named])

    @property
    def stored_type(self) -> DType:
        """Dtype of packed rows in files, which are little-endian."""
        return self.packed_type.newbyteorder("<")

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of one packed row: () if it is a record."""
        return () if self.codes else (self.width,)

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """Start and stop of each field within a packed row."""
        widths = [math.prod(shape) for shape in self.fields.values()]
        ends = list(accumulate(widths, initial=0))
        return dict(zip(self.fields, pairwise(ends), strict=True))

    @cached_property
    def width(self) -> int:
        """Numbers per packed row."""
        return sum(map(math.prod, self.fields.values()))

    @property
    def schema(self) -> RowsSchema:
        """The layout that another data set must have for its rows to be comparable with these."""
        entries = {f.name: getattr(self, f.name) for f in fields(RowsSchema)}
        entries["levels"] = {name: level_names(values) for name, values in self.levels.items()}
        return RowsSchema(**entries)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(math.prod(shape) * self.dtypes[k].itemsize for k, shape in self.fields.items())

    def labels(self, name: str) -> tuple[str, ...]:
        """Label of each number in a field: column names for x, numbered labels otherwise."""
        shape = self.fields[name]
        if name == "x" and self.coding is not None:
            scales = range(len(self.coding.dense), math.prod(shape))
            dense = (self.columns[place] for place in self.coding.dense)
            return (*dense, *(f"x[{j}]" for j in scales))
        if name == "x" and len(self.columns) == math.prod(shape):
            return self.columns
        if shape == ():
            return (name,)
        return tuple(f"{name}[{', '.join(map(str, at))}]" for at in np.ndindex(*shape))

    def like(self, schema: RowsSchema) -> Description:
        """Return this description with the columns and coding of `schema`, whose levels it uses."""
        fit_coding = schema.coding
        assert fit_coding is not None
        absent = [name for name in fit_coding.fields if name not in self.fields]
        if absent:
            raise DataError(
                f"the rows lack the factor {absent[0]!r}, which the rows of the fit had: give the "
                "level of each row."
            )
        width, theirs = (about.fields.get("x", (0,))[0] for about in (self, schema))
        if width != theirs:
            raise DataError(
                f"x has {width} columns besides the factors, but the rows of the fit had {theirs}; "
                "give the same columns."
            )
        return replace(self, columns=schema.columns, coding=fit_coding)

    def split(self, block: Array) -> dict[str, Array]:
        """Return the fields of packed rows as views; `block` is (..., width), or (...) records."""
        if self.codes:
            return {name: block[f"f{i}"] for i, name in enumerate(self.fields)}
        lead = block.shape[:-1]
        parts = {}
        for name, shape in self.fields.items():
            first, last = self.spans[name]
            part = block[..., first] if shape == () else block[..., first:last]
            parts[name] = part if len(shape) < 2 else part.reshape(lead + shape)
        return parts

    def pack(self, parts: Mapping[str, Array]) -> Array:
        """Pack the fields of k rows: (k, width), or (k,) records."""
        k = len(next(iter(parts.values())))
        block = np.empty((k, *self.packed_shape), self.packed_type)
        if self.codes:
            for i, name in enumerate(self.fields):
                block[f"f{i}"] = parts[name]
            return block
        for name, (first, last) in self.spans.items():
            block[:, first:last] = parts[name].reshape(k, last - first)
        return block

    def to_json(self) -> dict[str, Json]:
        """Return the description as plain JSON values."""
        return self.to_dict() | {
            "rows": self.n,
            "dtype": self.dtype.name,
            "fields": [
                {"name": name, "shape": list(shape), "span": list(self.spans[name])}
                | ({"dtype": self.codes[name].name} if name in self.codes else {})
                for name, shape in self.fields.items()
            ],
            "levels": {k: {"reference": v[0], "levels": list(v)} for k, v in self.levels.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Description:
        """Undo `to_json`; raise KeyError, TypeError or ValueError, naming the entry, otherwise.

        Descriptions without levels (in older stores) have no categorical columns.
        """
        listed = [mapping(entry) for entry in sequence(data["fields"])]
        named = {text(entry["name"]): entry["shape"] for entry in listed}
        levels = {k: _levels(k, v) for k, v in mapping(data.get("levels", {})).items()}
        if not named or len(named) != len(listed):
            raise ValueError("the fields do not have distinct names")
        schema = _read_schema({**data, "fields": named, "levels": levels})
        description = cls(
            n=integer(data["rows"], 1),
            dtype=_stored_type(data["dtype"], STORED_TYPES),
            codes={
                name: _stored_type(entry["dtype"], CODE_TYPES)
                for name, entry in zip(named, listed, strict=True)
                if "dtype" in entry
            },
            **vars(schema),
        )
        if [tuple(sequence(entry["span"])) for entry in listed] != list(description.spans.values()):
            raise ValueError("spans disagree with shapes")
        description.check_columns()
        return description

    def check_columns(self) -> None:
        """Raise a ValueError if names, fields and coding disagree about the columns."""
        x = self.fields.get("x", ())
        width = x[0] if len(x) == 1 else 0
        if self.coding is None:
            if len(self.columns) != width:
                raise ValueError("x has another number of columns than names")
            return
        widths = [len(self.coding.dense)]
        widths += [term.scale + 1 for term in self.coding.terms if term.scale is not None]
        codes = {name for name in self.codes if self.fields[name] == ()}
        if len(self.columns) != self.coding.size or max(widths) > width:
            raise ValueError("the coding has another number of columns than names")
        if not codes.issuperset(self.coding.fields):
            raise ValueError("the coding names codes that are not a field")


def describe(encoding: FormulaEncoding, n: int, dtype: DType) -> Description:
    """Describe `n` rows that a formula makes."""
    layout = encoding.layout
    groupings = {g.field: g.levels for g in encoding.groupings}
    codes = {c.field: code_type(c.levels) for c in layout.codes}
    codes |= {k: code_type(len(v)) for k, v in groupings.items() if k not in codes}
    # Without numbers and codes, an x of zero columns carries the number of rows.
    has_x = layout.numbers or not layout.codes
    names = [c.field for c in layout.codes]
    names += ["y"] if encoding.outcome is not None else []
    levels = {
        c.field: encoding.factors[c.parts[0][0]].levels
        for c in layout.codes
        if len(c.parts) == 1 and not c.window
    }
    return Description(
        n=n,
        dtype=dtype,
        fields=({"x": (len(layout.numbers),)} if has_x else {})
        | dict.fromkeys([*names, *encoding.fields, *groupings], ()),
        codes=codes,
        columns=layout.columns,
        outcome=None if encoding.outcome is None else encoding.outcome.expression,
        levels=levels | groupings,
        coding=None if layout.coding == Coding(layout.coding.dense) else layout.coding,
        encoding=encoding,
    )


# From JSON. Readers raise KeyError, TypeError or ValueError for invalid entries.


def _read_schema(saved: Mapping[str, Json]) -> RowsSchema:
    origin = saved.get("origin")
    encoding = None if origin is None else FormulaEncoding.from_dict(origin)
    page = {name: entry for name, entry in saved.items() if name != "encoding"}
    schema: RowsSchema = replace(restored(RowsSchema, page), encoding=encoding)
    if any(len(shape) > MOST_AXES for shape in schema.fields.values()):
        raise ValueError(f"a field has more than {MOST_AXES} axes")
    for kind in schema.kinds.values():
        if kind not in KINDS.values():
            raise ValueError(f"a field is of kind {short(kind)}")
    return schema


def _stored_type(value: object, known: Mapping[str, Any]) -> DType:
    if text(value) not in known:
        raise ValueError(f"numbers or codes have type {value!r}")
    return np.dtype(known[text(value)])


def _levels(name: str, value: object) -> tuple[Level, ...]:
    entry = mapping(value)
    levels: tuple[Level, ...] = restored(tuple[Level, ...], entry["levels"])
    if len(levels) < 2 or len(set(levels)) < len(levels) or entry["reference"] != levels[0]:
        raise ValueError(f"the levels of column {name!r} are not valid")
    return levels


# SHA-256, not BLAKE2: processors have instructions for it.
BLOCK_BYTES = 1 << 22
MOST_THREADS = 8


def fingerprint(
    description: Description, rows_between: Callable[[int, int], Mapping[str, Array]]
) -> str:
    """Hash all rows; `rows_between(start, stop)` returns a range of them and is thread-safe."""
    n, step = description.n, _block_rows(description)

    def block(start: int) -> bytes:
        return _block_hash(description, rows_between(start, min(start + step, n)))

    starts = range(0, n, step)
    threads = min(len(starts), os.cpu_count() or 1, MOST_THREADS)
    if threads == 1:
        return _digest(description, map(block, starts))
    return _digest(description, in_threads(block, starts, threads))


class RunningFingerprint:
    """Computes the fingerprint of rows that arrive in order, some at a time."""

    def __init__(self, description: Description) -> None:
        self._description, self._step = description, _block_rows(description)
        self._blocks: list[bytes] = []
        self._waiting: list[Array] = []
        self._filled = 0

    def update(self, packed: Array) -> None:
        """Add the next packed rows."""
        while len(packed):
            piece, packed = np.split(packed, [self._step - self._filled])
            self._waiting.append(np.array(piece))
            self._filled += len(piece)
            if self._filled == self._step:
                self._end_block()

    def finish(self, description: Description) -> str:
        """Return the fingerprint; `description` now has the final number of rows."""
        if self._waiting:
            self._end_block()
        return _digest(description, self._blocks)

    def _end_block(self) -> None:
        parts = self._description.split(np.concatenate(self._waiting))
        self._blocks.append(_block_hash(self._description, parts))
        self._waiting, self._filled = [], 0


def _block_rows(description: Description) -> int:
    return max(1, BLOCK_BYTES // description.row_bytes)


def _block_hash(description: Description, parts: Mapping[str, Array]) -> bytes:
    """Return the hashes of the fields of a block, in the order of their names."""
    hashes = []
    for name in sorted(parts):
        little = description.dtypes[name].newbyteorder("<")
        data = np.ascontiguousarray(parts[name], little).reshape(-1).view(np.uint8).data
        hashes.append(hashlib.sha256(data).digest())
    return b"".join(hashes)


def _digest(description: Description, blocks: Iterable[bytes]) -> str:
    facts: list[object] = [
        description.n,
        description.dtype.name,
        sorted(description.fields.items()),
    ]
    if description.coding is not None:  # equal codes may mean different columns
        facts.append(plain(description.coding))
    digest = hashlib.sha256(json.dumps(facts).encode())
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()[:32]
