"""The encoding of a table by a formula: learned once, applied to any batch of rows.

It holds levels, knots and centres as plain numbers, so that it can be saved in a file, and is
applied by Modicum's own interpreter, so that a malicious file can do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import cached_property

import numpy as np

from modicum.errors import DataError, ModicumError
from modicum.files import Json, mapping, plain, restored, sequence
from modicum.rows.checks import WeightCheck
from modicum.rows.coding import Array, DType, Level
from modicum.rows.formula.evaluation import (
    BatchColumns,
    Evaluated,
    NewLevels,
    as_type,
    complete_rows,
    counted,
    no_rows,
)
from modicum.rows.formula.expressions import Expression
from modicum.rows.formula.grouping import Grouping
from modicum.rows.formula.parsing import ParsedGroup
from modicum.rows.formula.smooths import State
from modicum.rows.formula.structure import Factor, MatrixLayout, Part, lay_out, reduced_parts
from modicum.rows.sources import Source, kind_of

MOST_NUMBERS = 1_000_000  # in the saved state of a transform


@dataclass(frozen=True)
class EncodedOutcome:
    """The outcome's expression and, if it is a class, its levels: codes 0, 1, ...

    `alphabetical` levels are text that the user has not ordered, so they are not ordered classes.
    """

    expression: str
    levels: tuple[Level, ...] = ()
    alphabetical: bool = False


@dataclass(frozen=True)
class Term:
    """A term of the formula: its name, its blocks of columns, and the parameter it explains."""

    name: str
    parts: tuple[Part, ...]
    parameter: str = ""  # the mean


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
    others
        Parameters besides the mean with formulas of their own, and whether each has an intercept.
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
    outcome: EncodedOutcome | None
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: tuple[tuple[str, bool], ...] = ()
    groups: tuple[ParsedGroup, ...] = ()
    groupings: tuple[Grouping, ...] = ()
    states: Mapping[str, State] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    drops: bool = False

    @cached_property
    def layout(self) -> MatrixLayout:
        """The columns of the model matrix and how rows store them."""
        number = {factor.expression: i for i, factor in enumerate(self.factors)}
        slopes = []
        for group in self.groups:
            terms = [tuple(number[text] for text in slope) for slope in group.slopes]
            spans = [factor.spans for factor in self.factors]
            parts = reduced_parts(terms, spans, group.intercept)
            slopes.append([part for of_term in parts for part in of_term])
        laid_out = [(term.name, term.parts, term.parameter) for term in self.terms]
        return lay_out(self.factors, laid_out, slopes)

    @property
    def smooths(self) -> tuple[tuple[str, tuple[str, ...], str, str], ...]:
        """Name, columns, term and parameter of every block of columns that is pooled."""
        found = []
        for term in self.terms:
            before = f"{term.parameter}." if term.parameter else ""
            for f in dict.fromkeys(f for part in term.parts for f, _ in part):
                for name, columns in self.factors[f].pooled:
                    named = tuple(before + column for column in columns)
                    found.append((before + name, named, before + term.name, term.parameter))
        return tuple(found)

    @property
    def largest_group(self) -> str | None:
        """The group with the most levels, by which a store is sorted; None without groups.

        Sorting makes the rows of a group contiguous, so that its effects can be integrated out.
        """
        sizes = {group.field: len(group.levels) for group in self.groupings}
        return max(sorted(sizes), key=sizes.__getitem__, default=None)

    def needed(
        self, outcome: bool = True, fields: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """Return the table columns to read for these further fields (None: all)."""
        known = self.only(outcome, fields)
        texts = [f.expression for f in known.factors]
        texts += [] if known.outcome is None else [known.outcome.expression]
        texts += [text for parts in known.fields.values() for text in parts]
        names = [name for text in texts for name in Expression(text).names]
        return tuple(dict.fromkeys([*names, *(n for g in known.groupings for n in g.columns)]))

    def only(self, outcome: bool, fields: Collection[str] | None = None) -> FormulaEncoding:
        """Return the encoding with or without an outcome, and with some further fields and groups.

        Rows to predict have no outcome, and may lack groups. None stands for all fields.
        """
        known = replace(
            self,
            outcome=self.outcome if outcome else None,
            fields={k: v for k, v in self.fields.items() if fields is None or k in fields},
            groupings=tuple(g for g in self.groupings if fields is None or g.field in fields),
        )
        if "layout" in vars(self):  # of the same factors and terms; large ones take a while
            vars(known)["layout"] = self.layout
        return known

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

    def chunks(
        self,
        source: Source,
        dtype: DType,
        *,
        drop: bool = False,
        newlevels: NewLevels | None = "refuse",
        first: int = 0,
    ) -> Iterator[dict[str, Array]]:
        """Encode all rows of a source, one batch at a time.

        Parameters
        ----------
        source
            A table with the columns of the fit, in any order, and possibly others.
        dtype
            Type of the numbers.
        drop
            Whether rows with missing values are dropped instead of refused.
        newlevels
            What to do with a level that the encoding does not know; None refuses it too, and
            does not suggest "reference".
        first
            The first row to encode, in a reading that continues an earlier one.
        """
        needed = self.needed()
        self.check_columns(source, needed)
        weight = self.fields.get("weight")
        check = None if weight is None else WeightCheck(Expression(weight[0]).label)
        any_rows = first > 0
        batches = source.batches(needed, first)
        chunks = complete_rows(batches, needed, drop, first) if needed else counted(source)
        for columns, _ in chunks:
            if len(columns) == 0:
                continue
            any_rows = True
            encoded = self._encode(columns, dtype, check, newlevels)
            yield encoded | {group.field: group.codes(columns) for group in self.groupings}
        if not any_rows and self.outcome is not None:  # there may be none to predict
            raise DataError(no_rows(drop))
        if check:
            check.finish()

    def check_columns(self, source: Source, needed: Sequence[str]) -> None:
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
        weight: WeightCheck | None,
        newlevels: NewLevels | None,
    ) -> dict[str, Array]:
        layout = self.layout
        evaluated = Evaluated(self.factors, self.states, columns, dtype, newlevels)
        rows: dict[str, Array] = {}
        if layout.numbers:
            values = [evaluated.product(numbers) for numbers in layout.numbers]
            labels = [evaluated.product_label(numbers) for numbers in layout.numbers]
            rows["x"] = as_type(values, dtype, labels, columns)
        elif not layout.codes:
            rows["x"] = np.empty((len(columns), 0), dtype)
        for codes in layout.codes:
            rows[codes.field] = evaluated.code(codes)
        if self.outcome is not None:
            expression = Expression(self.outcome.expression)
            y = evaluated.outcome(expression, self.outcome.levels)
            rows["y"] = as_type([y], dtype, [expression.label], columns)[:, 0]
        for name, texts in self.fields.items():
            summands = [Expression(text) for text in texts]
            parts = [evaluated.number(summand) for summand in summands]
            total = parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
            label = " + ".join(summand.label for summand in summands)
            rows[name] = as_type([total], dtype, [label], columns)[:, 0]
            if name == "weight" and weight is not None:
                weight.add(rows[name], columns.row_ids)
        return rows

    def __eq__(self, other: object) -> bool:  # states hold arrays, which compare by element
        return isinstance(other, FormulaEncoding) and self.to_dict() == other.to_dict()

    def to_dict(self) -> dict[str, Json]:
        """Return the encoding as plain JSON values."""
        entries = {f.name: getattr(self, f.name) for f in dataclass_fields(self)}
        states = {call: _plain(state) for call, state in self.states.items()}
        return {name: plain(entry) for name, entry in (entries | {"states": states}).items()}

    @classmethod
    def from_dict(cls, saved: object) -> FormulaEncoding:
        """Undo `to_dict`; raise `DataError` for anything else, and for forbidden expressions."""
        try:
            page = mapping(saved)
            states = {k: _state(v) for k, v in mapping(page["states"]).items()}
            encoding: FormulaEncoding = replace(
                restored(cls, {k: v for k, v in page.items() if k != "states"}), states=states
            )
            encoding.needed()  # parses, and thereby checks, every expression
            encoding.layout  # noqa: B018 - checks that terms and factors agree
        except ModicumError as error:
            raise DataError(f"the encoding in the file is not valid: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise DataError(f"the encoding in the file is damaged ({error}): fit again.") from None
        return encoding


# To JSON and back. Readers raise KeyError, TypeError or ValueError for invalid entries.


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
