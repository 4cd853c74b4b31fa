"""The encoding of a table by a formula: learned once, applied to any batch of rows.

It holds levels, knots and centres as plain numbers, so that it can be saved in a file, and is
applied by Modicum's own interpreter, so that a malicious file can do no harm.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from modicum.errors import DataError, ModicumError, ResourceError, SettingError, argument
from modicum.rows.checks import WeightCheck, as_dtype
from modicum.rows.coding import Level, code_type
from modicum.rows.description import Array, Description, DType, Field
from modicum.rows.formula.evaluation import (
    BatchColumns,
    Evaluated,
    NewLevels,
    as_type,
    check_weights,
    complete_rows,
    counted,
    kind_of,
)
from modicum.rows.formula.expressions import CONTRASTS, Contrast, Expression
from modicum.rows.formula.grouping import Grouping
from modicum.rows.formula.parsing import GroupTerm
from modicum.rows.formula.structure import Factor, Layout, Part, lay_out
from modicum.rows.formula.transforms import State
from modicum.rows.json_entries import integer, mapping, sequence, text
from modicum.rows.memory import MemoryBackend, fill
from modicum.rows.sources import Source
from modicum.rows.table_encoding import floating

MOST_NUMBERS = 1_000_000  # in the saved state of a transform


@dataclass(frozen=True)
class Outcome:
    """The outcome's expression and, if it is a class, its levels: codes 0, 1, ...

    `alphabetical` levels are text that the user has not ordered, so they are not ordered classes.
    """

    expression: str
    levels: tuple[Level, ...] = ()
    alphabetical: bool = False


@dataclass(frozen=True)
class Term:
    """A term of the formula: its name and its blocks of columns."""

    name: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class FormulaEncoding:
    """How a table becomes rows: a formula, and the levels, knots and means learned for it.

    Parameters
    ----------
    formula
        Its text, for display only.
    factors, terms, intercept
        What the columns of the model are made of.
    outcome
        The outcome; None if the formula has none.
    fields
        Further fields of a row and their expressions: "offset" (several are summed), "weight", and
        those after | in the outcome.
    groups
        Group terms.
    groupings
        The factors of the group terms.
    states
        The state that each transform has learned, by the text of its call.
    kinds
        The kind of each column of the table: "number", "levels" or "boolean".
    drops
        Whether rows with missing values were dropped.
    """

    formula: str
    factors: tuple[Factor, ...]
    terms: tuple[Term, ...]
    intercept: bool
    outcome: Outcome | None
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: tuple[GroupTerm, ...] = ()
    groupings: tuple[Grouping, ...] = ()
    states: Mapping[str, State] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    drops: bool = False

    @cached_property
    def layout(self) -> Layout:
        """The columns of the model matrix and how rows store them."""
        return lay_out(self.factors, [(term.name, term.parts) for term in self.terms])

    def needed(
        self, outcome: bool = True, fields: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """Return the table columns to read for these further fields (None: all)."""
        names = [name for e in self.expressions(outcome, fields) for name in e.names]
        names += [n for g in self.groupings if _is_requested(g.field, fields) for n in g.columns]
        return tuple(dict.fromkeys(names))

    def expressions(
        self, outcome: bool = True, fields: Collection[str] | None = None
    ) -> tuple[Expression, ...]:
        """Return every expression computed per row, for these further fields (None: all)."""
        texts = [f.expression for f in self.factors]
        if outcome and self.outcome is not None:
            texts.append(self.outcome.expression)
        for name, parts in self.fields.items():
            if _is_requested(name, fields):
                texts += parts
        return tuple(Expression(text) for text in texts)

    def fields_of(self, names: Collection[str], outcome: bool) -> tuple[str, ...]:
        """Return the further fields of rows made from a table with these columns.

        An offset is always required. Weights are used only with outcomes, if the table has them.
        With an outcome, groups and the fields that belong to it (the number of trials) are
        required; without one they are used if present, and rows without groups are of new groups.
        """
        groups = [g.field for g in self.groupings if outcome or all(n in names for n in g.columns)]
        for name, texts in self.fields.items():
            is_present = all(n in names for text in texts for n in Expression(text).names)
            required = name == "offset" or (outcome and name != "weight")
            if required or (is_present and (outcome or name != "weight")):
                groups.append(name)
        return tuple(groups)

    def with_levels_of(self, source: Source) -> FormulaEncoding:
        """Return the encoding with the groups that only this table has, after those of the fit."""
        present = [g for g in self.groupings if set(g.columns) <= set(source.names)]
        new: dict[str, dict[str, Level]] = {g.field: {} for g in self.groupings}
        needed = tuple(dict.fromkeys(name for g in present for name in g.columns))
        for columns, _ in complete_rows(source.batches(needed), needed, True) if needed else ():
            for g in present:
                new[g.field] = g.unknown(columns) | new[g.field]  # the first way of writing it
        extended = [replace(g, levels=(*g.levels, *new[g.field].values())) for g in self.groupings]
        return replace(self, groupings=tuple(extended))

    def describe(
        self, n: int, dtype: DType, outcome: bool = True, extra: Collection[str] | None = None
    ) -> Description:
        """Describe `n` rows of this encoding, with these further fields (None: all)."""
        layout = self.layout
        # Without numbers and codes, an x of zero columns carries the number of rows.
        has_x = layout.numbers or not layout.codes
        fields = [Field("x", (len(layout.numbers),))] if has_x else []
        for codes in layout.codes:
            fields.append(Field(codes.field, (), code_type(codes.levels)))
        if outcome and self.outcome is not None:
            fields.append(Field("y"))
        fields += [Field(name) for name in self.fields if _is_requested(name, extra)]
        coded = {f.name for f in fields}
        for group in self.groupings:
            if group.field not in coded and _is_requested(group.field, extra):
                fields.append(Field(group.field, (), code_type(len(group.levels))))
        levels = {
            codes.field: self.factors[codes.parts[0][0]].levels
            for codes in layout.codes
            if len(codes.parts) == 1 and not codes.window
        }
        levels |= {g.field: g.levels for g in self.groupings if _is_requested(g.field, extra)}
        return Description(
            n=n,
            dtype=dtype,
            fields=tuple(fields),
            columns=layout.columns,
            outcome=None if self.outcome is None else self.outcome.expression,
            levels=levels,
            coding=layout.coding if layout.codes else None,
            terms={
                name: tuple(layout.columns[place] for place in places)
                for name, places in layout.terms.items()
            },
            origin=self.to_dict(),
        )

    def chunks(
        self,
        source: Source,
        dtype: DType,
        *,
        outcome: bool = True,
        fields: Collection[str] | None = None,
        drop: bool = False,
        newlevels: NewLevels = "refuse",
    ) -> Iterator[dict[str, Array]]:
        """Encode all rows of a source, one batch at a time.

        Parameters
        ----------
        source
            A table with the columns of the fit, in any order, and possibly others.
        dtype
            Type of the numbers.
        outcome
            Whether the rows get an outcome.
        fields
            The further fields of the rows; None for all.
        drop
            Whether rows with missing values are dropped instead of refused.
        newlevels
            What to do with a level that the encoding does not know.
        """
        needed = self.needed(outcome, fields)
        self._check_columns(source, needed)
        extra = [name for name in self.fields if _is_requested(name, fields)]
        groups = [g for g in self.groupings if _is_requested(g.field, fields)]
        check = WeightCheck(self.fields["weight"][0]) if "weight" in extra else None
        any_rows = False
        chunks = complete_rows(source.batches(needed), needed, drop) if needed else counted(source)
        for columns, _ in chunks:
            if len(columns) == 0:
                continue
            any_rows = True
            encoded = self._encode(columns, dtype, outcome, extra, check, newlevels)
            yield encoded | {group.field: group.codes(columns) for group in groups}
        if not any_rows and outcome:  # there may be nothing to predict
            raise DataError("there are no (complete) rows in the data: at least one is needed.")
        if check:
            check.finish()

    def _check_columns(self, source: Source, needed: Sequence[str]) -> None:
        """Refuse a table that lacks a column, or has text where the fit had numbers."""
        for name in needed:
            if name not in source.names:
                raise DataError(source.absent(name))
        for name, kind in zip(needed, source.types(needed), strict=True):
            before, now = self.kinds.get(name), kind_of(kind)
            if before == "number" and now == "levels":
                raise DataError(
                    f"column {name!r} held numbers in the fit and holds text or categories here: "
                    "convert it to numbers."
                )

    def _encode(
        self,
        columns: BatchColumns,
        dtype: DType,
        outcome: bool,
        extra: Sequence[str],
        weight: WeightCheck | None,
        newlevels: NewLevels,
    ) -> dict[str, Array]:
        layout, evaluated = (
            self.layout,
            Evaluated(self.factors, self.states, columns, dtype, newlevels),
        )
        rows: dict[str, Array] = {}
        if layout.numbers:
            values = [evaluated.product(numbers) for numbers in layout.numbers]
            labels = [evaluated.product_label(numbers) for numbers in layout.numbers]
            rows["x"] = as_type(values, dtype, labels, columns)
        elif not layout.codes:
            rows["x"] = np.empty((len(columns), 0), dtype)
        for codes in layout.codes:
            rows[codes.field] = evaluated.code(codes)
        if outcome and self.outcome is not None:
            expression = Expression(self.outcome.expression)
            y = evaluated.outcome(expression, self.outcome.levels)
            rows["y"] = as_type([y], dtype, [self.outcome.expression], columns)[:, 0]
        for name in extra:
            texts = self.fields[name]
            parts = [evaluated.number(Expression(text)) for text in texts]
            total = parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
            rows[name] = as_type([total], dtype, [" + ".join(texts)], columns)[:, 0]
            if name == "weight" and weight is not None:
                check_weights(weight, rows[name], columns)
        return rows

    def to_dict(self) -> dict[str, object]:
        """Return the encoding as plain JSON values."""
        outcome = self.outcome
        return {
            "formula": self.formula,
            "factors": [_factor_entry(factor) for factor in self.factors],
            "terms": [
                {"name": t.name, "parts": [[list(s) for s in part] for part in t.parts]}
                for t in self.terms
            ],
            "intercept": self.intercept,
            "outcome": None
            if outcome is None
            else {
                "expression": outcome.expression,
                "levels": list(outcome.levels),
                "alphabetical": outcome.alphabetical,
            },
            "fields": {name: list(texts) for name, texts in self.fields.items()},
            "groups": [
                {"group": list(g.group), "effects": list(g.effects), "correlated": g.correlated}
                for g in self.groups
            ],
            "groupings": [
                {"columns": list(g.columns), "levels": list(g.levels)} for g in self.groupings
            ],
            "states": {call: _plain(state) for call, state in self.states.items()},
            "kinds": dict(self.kinds),
            "drops": self.drops,
        }

    @classmethod
    def from_dict(cls, saved: object) -> FormulaEncoding:
        """Undo `to_dict`; raise `DataError` for anything else, and for forbidden expressions."""
        try:
            page = mapping(saved)
            encoding = cls(
                formula=text(page["formula"]),
                factors=tuple(_factor(entry) for entry in sequence(page["factors"])),
                terms=tuple(_term(entry) for entry in sequence(page["terms"])),
                intercept=_truth(page["intercept"]),
                outcome=None if page["outcome"] is None else _outcome(page["outcome"]),
                fields={k: _texts(v) for k, v in mapping(page["fields"]).items()},
                groups=tuple(_group(entry) for entry in sequence(page["groups"])),
                groupings=tuple(_grouping(entry) for entry in sequence(page["groupings"])),
                states={k: _state(v) for k, v in mapping(page["states"]).items()},
                kinds={k: text(v) for k, v in mapping(page["kinds"]).items()},
                drops=_truth(page["drops"]),
            )
            encoding.needed()  # parses, and thereby checks, every expression
            encoding.layout  # noqa: B018 - checks that terms and factors agree
        except ModicumError as error:
            raise DataError(f"the encoding in the file is not valid: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise DataError(f"the encoding in the file is damaged ({error}): fit again.") from None
        return encoding


def _is_requested(name: str, fields: Collection[str] | None) -> bool:
    """Whether a field is among the requested `fields` (None: all)."""
    return fields is None or name in fields


# To JSON and back. Readers raise KeyError, TypeError or ValueError for invalid entries.


def _factor_entry(factor: Factor) -> dict[str, object]:
    contrast = factor.contrast
    return {
        "expression": factor.expression,
        "label": factor.label,
        "columns": list(factor.columns),
        "levels": list(factor.levels),
        "contrast": None
        if contrast is None
        else {"name": contrast.name, "options": dict(contrast.options)},
        "spans": factor.spans,
        "local": factor.local,
    }


def _factor(saved: object) -> Factor:
    entry = mapping(saved)
    contrast = None
    if entry["contrast"] is not None:
        entries = mapping(entry["contrast"])
        name, options = text(entries["name"]), mapping(entries["options"])
        if name not in CONTRASTS or not set(options) <= {"reverse", "scale", "backward"}:
            raise ValueError(f"the contrasts {name[:40]!r} are unknown")
        contrast = Contrast(name, tuple((k, _truth(v)) for k, v in options.items()))
    factor = Factor(
        text(entry["expression"]),
        text(entry["label"]),
        _texts(entry["columns"]),
        _levels(entry["levels"]),
        contrast,
        _truth(entry["spans"]),
        integer(entry["local"], 0),
    )
    if factor.local > len(factor.columns):
        raise ValueError("a factor has fewer columns than a row uses")
    return factor


def _term(saved: object) -> Term:
    entry = mapping(saved)
    parts = []
    for part in map(sequence, sequence(entry["parts"])):
        pairs = [sequence(pair) for pair in part]
        parts.append(tuple((integer(number, 0), _truth(reduced)) for number, reduced in pairs))
    return Term(text(entry["name"]), tuple(parts))


def _outcome(saved: object) -> Outcome:
    entry = mapping(saved)
    alphabetical = _truth(entry.get("alphabetical", False))
    return Outcome(text(entry["expression"]), _levels(entry["levels"]), alphabetical)


def _group(saved: object) -> GroupTerm:
    entry = mapping(saved)
    return GroupTerm(_texts(entry["group"]), _texts(entry["effects"]), _truth(entry["correlated"]))


def _grouping(saved: object) -> Grouping:
    entry = mapping(saved)
    return Grouping(_texts(entry["columns"]), _levels(entry["levels"]))


def _texts(saved: object) -> tuple[str, ...]:
    return tuple(map(text, sequence(saved)))


def _truth(saved: object) -> bool:
    if not isinstance(saved, bool):
        raise TypeError("a value is neither true nor false")
    return saved


def _levels(saved: object) -> tuple[Level, ...]:
    levels = []
    for level in sequence(saved):
        if not isinstance(level, str | int | float) or level != level:
            raise TypeError("a level is neither text nor a number")
        levels.append(level)
    return tuple(levels)


def _plain(value: object) -> object:
    """Return a transform's state as JSON: keys may be numbers, arrays become lists."""
    if isinstance(value, Mapping):
        return {"keys": list(value), "values": [_plain(v) for v in value.values()]}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _state(saved: object) -> State:
    page = mapping(saved)
    state: State = {}
    for key, value in zip(sequence(page["keys"]), sequence(page["values"]), strict=True):
        if not isinstance(key, str | int):
            raise TypeError("the state of a transform has an invalid key")
        state[key] = _state_value(value)
    return state


def _state_value(value: object) -> object:
    if isinstance(value, dict):
        return _state(value)
    if isinstance(value, list):
        array = np.asarray(value, dtype=np.float64)  # raises for anything but numbers
        if array.size > MOST_NUMBERS or not np.isfinite(array).all():
            raise ValueError("the state of a transform is too long, or not finite")
        return array if array.ndim == 2 else array.tolist()
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    raise TypeError("the state of a transform holds something that is not a number")


MOST_OF_MEMORY = 0.8  # share of the machine's memory that rows may take; sampling needs some too


def encoded(
    encoding: FormulaEncoding,
    source: Source,
    *,
    outcome: bool,
    dtype: object = None,
    drop: bool = False,
    newlevels: NewLevels = "refuse",
) -> MemoryBackend:
    """Encode a table with the levels, knots and means learned from another.

    Parameters
    ----------
    encoding
        The learned encoding.
    source
        The table; its columns may be in any order, and there may be others.
    outcome
        Whether the rows get an outcome, and weights if the table has them; otherwise the table need
        not have those columns.
    dtype
        Type of the numbers.
    drop
        Whether rows with missing values are dropped instead of refused.
    newlevels
        Whether a level that the encoding does not know is refused or replaced by the reference.
    """
    if newlevels not in ("refuse", "reference"):
        raise SettingError(f"newlevels must be 'refuse' or 'reference', not {newlevels!r}.")
    fields = encoding.fields_of(source.names, outcome)
    kind = rows_type(encoding.needed(outcome, fields), source, dtype)
    description = encoding.describe(1, kind, outcome, fields)
    chunks = encoding.chunks(
        source, kind, outcome=outcome, fields=fields, drop=drop, newlevels=newlevels
    )
    return in_memory(description, chunks, None if drop else source.rows)


def rows_type(needed: Sequence[str], source: Source, dtype: object) -> DType:
    """Return the type of the numbers: `dtype`, or by default that of the floating columns."""
    names = [name for name in needed if name in source.names]
    kind = as_dtype(dtype, floating(source.types(names)))
    if kind.kind != "f":
        raise SettingError("the rows of a formula are float32 or float64: leave dtype out.")
    return kind


def in_memory(
    description: Description, chunks: Iterable[dict[str, Array]], n: int | None
) -> MemoryBackend:
    """Collect chunks in arrays; this takes memory for two copies only if `n` is unknown."""
    if n is None:
        parts = list(chunks)
        if not parts:
            return fill(replace(description, n=0), ())
        arrays = {
            f.name: np.concatenate([p.pop(f.name) for p in parts]) for f in description.fields
        }
        description = replace(description, n=len(next(iter(arrays.values()))))
        return MemoryBackend(description, arrays)
    _require_memory(n * description.row_bytes)
    return fill(replace(description, n=n), chunks)


def _require_memory(size: int) -> None:
    """Refuse rows that do not fit in memory."""
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not POSIX: the allocation itself may fail
        return
    if size > MOST_OF_MEMORY * free:
        raise ResourceError(
            f"the rows take {size / 1e9:.3g} GB, and this machine has {free / 1e9:.3g} GB of "
            f"memory: pass {argument('store', 'FOLDER')} to keep them on disk."
        )
