"""What a posterior knows of the rows of its fit, and the door for other rows: their layout."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from modicum.errors import DataError, SettingError, argument, count, first_few
from modicum.files import Json
from modicum.libraries import pandas as pd
from modicum.libraries import pyarrow as pa
from modicum.models.model import NEW
from modicum.rows import Coding, Rows, RowsSchema
from modicum.rows.checks import NewGroupError, NewLevelError, names_like
from modicum.rows.coding import Level
from modicum.rows.formula import FormulaEncoding, NewLevels
from modicum.rows.reading import TableFiles, encode_table, is_tabular, whole_field
from modicum.rows.sources import is_table

if TYPE_CHECKING:
    import polars as pl

Batch: TypeAlias = dict[str, np.ndarray]
RowsLike: TypeAlias = (
    "Rows | Mapping[str, ArrayLike] | pd.DataFrame | pl.DataFrame | pa.Table | TableFiles"
)
Groups: TypeAlias = Literal["known", "new", "any"]
CHUNK = 65_536  # rows read at a time
SHOWN = 5  # names listed in an error; the others are counted


@dataclass(frozen=True)
class FitRows:
    """What a posterior remembers of the rows it was fitted to.

    Parameters
    ----------
    schema
        Names, shapes, levels and reference levels.
    hashed
        Hash of the rows; or the rows themselves, which are then hashed on demand.
    dtype
        Data type of the rows: networks scale bytes differently from floats.
    """

    schema: RowsSchema
    hashed: str | Rows
    dtype: str

    @classmethod
    def of(cls, rows: Rows, keep: bool = False) -> FitRows:
        """Describe `rows`; with `keep`, hold them and compute their hash on demand."""
        return cls(rows.schema, rows if keep else rows.fingerprint(), rows.dtype.name)

    @property
    def fingerprint(self) -> str:
        """Hash of the rows."""
        return self.hashed if isinstance(self.hashed, str) else self.hashed.fingerprint()

    @property
    def encoding(self) -> FormulaEncoding | None:
        """How a formula made the rows from a table; None if they were made otherwise."""
        return self.schema.encoding

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for a file."""
        try:
            fingerprint = self.fingerprint
        except DataError:  # draws can be saved all the same, but no rows are known to be theirs
            fingerprint = "of rows that were changed"
        return {"fingerprint": fingerprint, "dtype": self.dtype, "schema": self.schema.to_dict()}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Json]) -> FitRows:
        """Undo `to_dict`; raise a `DataError` for anything else."""
        fingerprint, dtype = saved["fingerprint"], saved["dtype"]
        if not isinstance(fingerprint, str) or dtype not in ("float32", "float64", "uint8"):
            raise DataError("the saved description of the rows is damaged.")
        return cls(RowsSchema.from_dict(saved["schema"]), fingerprint, dtype)


@dataclass(frozen=True)
class AlignedRows:
    """Rows that are read, chunk by chunk, with the fields and columns of a fit.

    Parameters
    ----------
    rows
        The rows.
    fields
        The fields of `rows` that the fit knows.
    columns
        For each column of the fit its index in `rows`, -1 for a level that does not occur there;
        None if the columns are the same.
    coding
        Coding by which codes of `rows` are expanded into columns; None if there are no codes, or
        the fit has the same ones.
    dtype
        "uint8" if the fit's rows were bytes and these are not, a floating type in the opposite
        case, None otherwise.
    known
        By grouping factor, the groups that are not new to the fit, where some may be.
    names
        The columns of x, where they are not those of `rows`.
    """

    rows: Rows
    fields: tuple[str, ...]
    columns: np.ndarray | None = None
    dtype: str | None = None
    coding: Coding | None = None
    known: Mapping[str, np.ndarray] = field(default_factory=dict)
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, rows: Rows) -> AlignedRows:
        """Take rows as they are, in the layout of the fit."""
        return cls(rows, tuple(rows.fields))

    def __len__(self) -> int:
        return len(self.rows)

    def whole(self) -> Batch:
        """Return all rows, of which there is at least one."""
        return next(self.chunks(len(self)))

    def chunks(self, size: int) -> Iterator[Batch]:
        """Yield all rows in order, `size` at a time."""
        start = 0
        for chunk in self.rows.chunks(size):
            batch = {name: chunk[name] for name in self.fields if name in chunk}
            if self.coding is not None:
                batch["x"] = self.coding.densely(chunk)
            if self.columns is not None:
                x = batch["x"]
                batch["x"] = np.where(self.columns < 0, 0, x[:, np.maximum(self.columns, 0)])
            if self.dtype is not None:
                batch = {name: self._cast(name, part, start) for name, part in batch.items()}
            start += len(next(iter(batch.values())))
            yield self.marked(batch)

    def marked(self, batch: Batch) -> Batch:
        """Add to a batch which of its rows are in groups that the fit did not have."""
        present = {name: known for name, known in self.known.items() if name in batch}
        return batch | {NEW + k: ~np.isin(batch[k], known) for k, known in present.items()}

    # columns, which can be set -----------------------------------------------------------------

    @property
    def as_it_is(self) -> AlignedRows:
        """The rows, before columns are set."""
        return self

    @property
    def places(self) -> dict[str, int]:
        """Index in x of each numeric column."""
        if self.names is not None:
            return {name: k for k, name in enumerate(self.names)}
        columns, coding = self.rows.columns, self.rows.schema.coding
        dense = range(len(columns)) if coding is None else coding.dense
        return {columns[column]: k for k, column in enumerate(dense)}

    def levels(self, name: str) -> tuple[Level, ...]:
        """Return the levels of a field that holds codes; empty for numbers."""
        is_coded = self.names is None and name in self.rows.fields
        return self.rows.levels.get(name, ()) if is_coded else ()

    def holds(self, name: str) -> bool:
        """Whether the rows have a column of this name."""
        return name in self.places or bool(self.levels(name))

    def values(self, name: str) -> np.ndarray:
        """Return the values of a column of x, or of a factor."""
        batch = self._holding(name)
        if name in self.places:
            return np.asarray(batch["x"][:, self.places[name]], float)
        levels = np.array(self.levels(name), dtype=object)
        return np.asarray(levels[batch[name].astype(int)])

    def setting(self, changes: Mapping[str, np.ndarray]) -> Batch:
        """Return the rows with columns of x, or the codes of factors, set to these values."""
        batch = self._holding(*changes)
        if "x" in batch:
            batch["x"] = np.array(batch["x"], float)
        for name, values in changes.items():
            if name in self.places:
                batch["x"][:, self.places[name]] = values
            else:
                code = {level: k for k, level in enumerate(self.levels(name))}
                codes = np.array([code[value] for value in values])
                batch[name] = codes.astype(batch[name].dtype)
        return batch

    def _holding(self, *names: str) -> Batch:
        """Return all rows; refuse columns that they do not have."""
        for name in names:
            if not self.holds(name):
                columns = [*self.places, *filter(self.levels, self.rows.levels)]
                raise SettingError(f"the rows have no column {name!r}: {names_like(name, columns)}")
        return self.whole()

    # groups ------------------------------------------------------------------------------------

    def groups_of(self, field: str, new: bool) -> np.ndarray:
        """Return the distinct groups of a factor that are new to the fit, or that it knew."""
        if field not in self.fields or (new and field not in self.known):
            return np.empty(0)
        parts = []
        for batch in self.chunks(CHUNK):
            is_new = batch.get(NEW + field, np.zeros(len(batch[field]), bool))
            parts.append(np.unique(batch[field][is_new == new]))
        return np.unique(np.concatenate(parts))

    def _cast(self, name: str, part: np.ndarray, start: int) -> np.ndarray:
        if self.dtype == "uint8":
            bad = ~((part >= 0) & (part <= 255) & (part == np.floor(part)))
            if bad.any():
                row = int(np.argwhere(bad)[0][0])
                raise DataError(
                    f"the rows of the fit were bytes (uint8), but the field {name!r} holds "
                    f"{part[bad][0]:g} in row {start + row}; give integers from 0 to 255, on the "
                    "scale of the fit's rows."
                )
        return part.astype(self.dtype)


def aligned(
    rows: RowsLike,
    fit: FitRows | None,
    outcome: bool,
    newlevels: NewLevels = "refuse",
    groups: Groups | None = None,
    weights: bool | None = None,
) -> AlignedRows:
    """Bring `rows` into the layout of the rows of the fit, or refuse them.

    Named columns are matched by name; unnamed arrays are taken in the fit's order. A table is
    encoded as the fit's rows were, with its outcome if `outcome`, with its weights if `weights` (by
    default, with an outcome), and with groups that the fit did not have unless `groups` is "known"
    or None. If nothing is known of the fit's rows (None), rows are taken unchanged.
    """
    encoding = fit.encoding if fit is not None and is_tabular(rows) else None
    if groups == "any" and encoding is None:
        raise SettingError(
            f"{argument('groups', 'any')} needs a table, and a posterior of mo.fit; otherwise "
            "predict rows of known groups and rows of new groups separately."
        )
    if newlevels != "refuse" and encoding is None:
        raise SettingError(
            "newlevels applies only to tables given to a posterior of mo.fit, and these rows are "
            "already encoded, or the fit had no formula; leave it out."
        )
    how = {"newlevels": newlevels, "new_groups": groups in ("new", "any"), "weights": weights}
    rows, named = _as_rows(rows, fit, outcome, how)
    if outcome and not len(rows):
        raise DataError("there are no rows to compare with: at least one is needed.")
    if fit is None:
        return AlignedRows.of(rows)
    theirs, ours = rows.schema, fit.schema
    _check_offset(theirs, ours)
    known = {}
    if encoding is not None and groups in ("new", "any"):
        known = {g.field: np.arange(len(g.levels)) for g in encoding.groupings}
    columns = None
    if named and ours.columns and theirs.columns:
        columns = _columns_by_name(theirs, ours, known)
    same = columns is None and _coded_alike(theirs, ours)
    if columns is None and theirs.coding is None and ours.coding is not None:
        # unnamed columns must be as many as in the fit, levels of factors included
        x = theirs.fields.get("x")
        if x is not None and x != (len(ours.columns),):
            raise DataError(
                f"x has {count(x[0], 'column') if x else 'no columns'}, but the fit had "
                f"{len(ours.columns)} ({_listed(ours.columns)}), some of them for levels of "
                "factors; give the factors as codes={...}, or give all columns."
            )
    for name in theirs.fields:
        if name in ours.fields and (same or name != "x"):
            _check_shape(name, theirs, ours)
    coding = None if same else theirs.coding
    # the fields that the fit knows; those that `coding` expands become columns of x
    names = theirs.fields if coding is None else {*theirs.fields, "x"} - set(coding.fields)
    fields = tuple(name for name in names if name in {*ours.fields, "x", "y", "weight"})
    if not fields:
        raise DataError(
            f"the rows have the fields {_listed(list(theirs.fields))}, and the rows of the fit had "
            f"{_listed(list(ours.fields))}: they have no field in common."
        )
    dtype = fit.dtype if (rows.dtype.name == "uint8") != (fit.dtype == "uint8") else None
    in_order = columns is None and coding is None
    columns_of_x = None if in_order else ours.columns
    return AlignedRows(rows, fields, columns, dtype, coding, known, columns_of_x)


def _as_rows(
    rows: RowsLike, fit: FitRows | None, outcome: bool, how: Mapping[str, Any]
) -> tuple[Rows, bool]:
    """Encode a table and wrap arrays; also return whether the columns have names."""
    if is_table(rows) and fit is None:
        raise SettingError(
            "this posterior does not know the columns of its rows, so that it cannot encode a "
            "table: make rows with mo.Rows.from_table."
        )
    try:
        made = rows_like(rows, fit, outcome, **how)
    except NewGroupError as fault:
        if not outcome:
            raise
        remedy = "the density of an outcome depends on its group: leave such rows out"
        raise NewGroupError(fault.place, remedy) from None
    if made is not None:
        return made, True
    named = isinstance(rows, Mapping) and is_table(rows.get("x"))
    return _rows_of_arrays(rows, None if fit is None else fit.schema), named


def rows_like(
    data: object,
    fit: FitRows | None,
    outcome: bool,
    **how: Any,  # arguments of `encode_table`, for tables of a formula
) -> Rows | None:
    """Return rows as they are, and a table encoded as those of a fit; None for anything else."""
    if isinstance(data, Rows):
        return data
    if fit is not None and fit.encoding is not None and is_tabular(data):
        return encode_table(fit.encoding, data, outcome=outcome, **how)
    if fit is not None and is_table(data):
        return Rows.from_table_like(data, fit.schema, outcome, how.get("weights"))
    return None


def whole_rows_like(data: object, fit: FitRows | None, **how: Any) -> Rows | None:
    """Return what `rows_like` does, with outcomes, and with weights if those of the fit have them.

    Elsewhere weights are left to the rows: without them, a score counts every row once.
    """
    rows = rows_like(data, fit, True, **how)
    if rows is None or fit is None or "weight" not in fit.schema.fields or "weight" in rows.fields:
        return rows
    raise DataError(
        "the rows of the fit have weights and these have none, so that each would count once: give "
        "the column of weights too."
    )


def _coded_alike(theirs: RowsSchema, ours: RowsSchema) -> bool:
    """Whether factors are held in the same way, with the same levels.

    Groups are not columns and may be left out: the rows then belong to new groups.
    """
    factors = () if ours.coding is None else ours.coding.fields
    return theirs.coding == ours.coding and all(
        theirs.levels.get(name) == ours.levels.get(name) for name in factors
    )


def rows_of_fit(rows: object, fit: FitRows | None, purpose: str) -> Rows:
    """Return the rows a posterior was sampled with; if `rows` is a table, encode it."""
    encoding = None if fit is None else fit.encoding
    drop, field = (encoding.drops, encoding.largest_group) if encoding else (False, None)
    try:
        made = whole_rows_like(rows, fit, dtype=fit and fit.dtype, drop=drop)
    except NewLevelError as fault:
        if encoding is None:
            raise
        raise NewLevelError(fault.place, f"{purpose} needs the same rows") from None
    if made is None:
        raise SettingError(
            f"{purpose} needs the rows the posterior was sampled with, as mo.Rows, not "
            f"{type(rows).__name__}."
        )
    if fit is None or field is None or made is rows or made.fingerprint() == fit.fingerprint:
        return made
    codes = whole_field(made, field)
    ordered = made.subset(np.argsort(codes, kind="stable"))  # the order of rows in a store
    return ordered if ordered.fingerprint() == fit.fingerprint else made


def require_rows_of_fit(rows: Rows, fit: FitRows | None, number: int | None, purpose: str) -> None:
    """Refuse rows other than those of the fit (`number` of them, if known), saying why."""
    if number is not None and len(rows) != number:
        raise SettingError(
            f"the posterior was sampled with {number:,} rows, but {len(rows):,} were given; "
            f"{purpose} needs the same rows."
        )
    if fit is None or rows.fingerprint() == fit.fingerprint:
        return
    theirs, ours = rows.schema, fit.schema
    if rows.dtype.name != fit.dtype:
        fault = f"are {rows.dtype.name}, and the rows of the fit were {fit.dtype}"
    elif theirs.columns != ours.columns and set(theirs.columns) == set(ours.columns):
        fault = "have their columns in another order"
    elif theirs.columns != ours.columns:
        fault = _differing(theirs.columns, ours.columns)
    elif (theirs.coding is None) != (ours.coding is None):
        forms = ("columns of zeros and ones", "codes")
        this_form, other_form = forms if theirs.coding is None else forms[::-1]
        fault = f"hold levels as {this_form}, and the rows of the fit held them as {other_form}"
    else:
        fault = "hold different values"
    raise DataError(
        f"these are not the rows the posterior was sampled with: they {fault}; {purpose} needs "
        "the same rows."
    )


def _rows_of_arrays(batch: object, fit: RowsSchema | None) -> Rows:
    """Make rows from a dict of arrays, which checks lengths, types and missing values.

    Factors, under "codes" or their own names, have the levels of the fit.
    """
    if not isinstance(batch, Mapping):
        raise SettingError(
            "rows must be mo.Rows, a table, or a dict of arrays such as {'x': X}, not "
            f"{type(batch).__name__}."
        )
    wrong = [name for name in batch if not isinstance(name, str) or name in ("columns", "dtype")]
    if wrong:
        raise SettingError(f"{wrong[0]!r} is not a field name; give arrays such as {{'x': X}}.")
    if not batch:
        raise SettingError("there are no arrays: give arrays such as {'x': X}.")
    kind = "uint8" if getattr(batch.get("x"), "dtype", None) == np.uint8 else None
    return Rows.with_levels(batch, fit or RowsSchema((), {}), kind)


def _check_offset(theirs: RowsSchema, ours: RowsSchema) -> None:
    """Refuse a missing or an extra offset, which would change every prediction."""
    if "offset" in ours.fields and "offset" not in theirs.fields:
        raise DataError(
            "the rows of the fit had an offset and these have none; add the field 'offset' (zeros "
            "for no offset)."
        )
    if "offset" in theirs.fields and "offset" not in ours.fields:
        raise DataError(
            "these rows have an offset and the rows of the fit had none; leave out the field "
            "'offset'."
        )


def _check_shape(name: str, theirs: RowsSchema, ours: RowsSchema) -> None:
    shape, needed = theirs.fields[name], ours.fields[name]
    if shape == needed:
        return
    if name == "x" and len(shape) == len(needed) == 1:
        raise DataError(
            f"x has {count(shape[0], 'column')}, but the rows of the fit had {needed[0]} "
            f"({_listed(ours.columns)}); give the same columns."
        )
    shapes = [f"shape {s} per row" if s else "one number per row" for s in (shape, needed)]
    raise DataError(
        f"the field {name!r} has {shapes[0]}, but the rows of the fit had {shapes[1]}; give it the "
        "same shape."
    )


def _columns_by_name(
    theirs: RowsSchema, ours: RowsSchema, grouped: Collection[str]
) -> np.ndarray | None:
    """Return the index of each column of the fit in these rows; None if they are the same.

    The levels of `grouped` factors, which have no columns, may be new.
    """
    absent: set[str] = set()
    for name, levels in theirs.levels.items():
        if name in ours.levels and name not in grouped:
            unseen = [level for level in theirs.levels[name] if level not in ours.levels[name]]
            if unseen:
                raise DataError(
                    f"column {name!r} holds {_listed(unseen)}, which the rows of the fit did not; "
                    "leave such rows out, or fit again with rows that have these levels."
                )
            reference, other = ours.reference[name], theirs.reference[name]
            if other != reference:
                raise DataError(
                    f"column {name!r} is coded against the reference level {other!r}, but the "
                    f"fit's was {reference!r}; give the table itself, or make the rows with "
                    f"categorical={{{name!r}: {reference!r}}}."
                )
            absent |= {f"{name}[{v}]" for v in ours.levels[name] if v not in levels}
    for name in ours.levels:
        if name in theirs.columns:
            raise DataError(
                f"column {name!r} was categorical in the fit and holds numbers here; make the rows "
                f"with categorical={{{name!r}: {ours.reference[name]!r}}}."
            )
    place = {column: i for i, column in enumerate(theirs.columns)}
    missing = [c for c in ours.columns if c not in place and c not in absent]
    if missing or any(c not in ours.columns for c in place):
        raise DataError(
            f"the rows {_differing(theirs.columns, [c for c in ours.columns if c not in absent])}; "
            "name the columns as the fit did, or give a bare array, {'x': X}, whose columns are "
            "taken in the fit's order."
        )
    if theirs.columns == ours.columns:
        return None
    return np.array([place.get(column, -1) for column in ours.columns])


def _differing(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """Say which of our columns theirs lack, and which they add."""
    lacking = [c for c in ours if c not in set(theirs)]
    extra = [c for c in theirs if c not in set(ours)]
    parts = []
    if lacking:
        parts.append(f"lack {count(len(lacking), 'column')} of the fit ({_listed(lacking)})")
    if extra:
        parts.append(f"have {count(len(extra), 'column')} the fit did not ({_listed(extra)})")
    return " and ".join(parts)


def _listed(names: Sequence[object]) -> str:
    return first_few([*map(repr, names)], SHOWN)
