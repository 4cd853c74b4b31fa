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
from itertools import groupby, pairwise
from typing import Literal, TypeAlias

import numpy as np

from modicum.errors import DataError, ModicumError, SettingError, argument
from modicum.files import Json, mapping, plain, restored, sequence
from modicum.rows.checks import NewGroupError, NewLevelError, WeightCheck, in_type
from modicum.rows.coding import (
    Array,
    DType,
    Level,
    LevelArray,
    code_type,
    level_key,
    level_places,
    loose_key,
)
from modicum.rows.formula.expressions import Expression
from modicum.rows.formula.interpreter import evaluate, level_array
from modicum.rows.formula.parsing import ParsedGroup
from modicum.rows.formula.smooths import State
from modicum.rows.formula.structure import (
    Codes,
    Factor,
    MatrixLayout,
    Numbers,
    Part,
    Scoped,
    lay_out,
    reduced_parts,
)
from modicum.rows.formula.transforms import ColumnArray
from modicum.rows.levels import BatchColumns, complete_rows, counted, no_rows
from modicum.rows.sources import Source, kind_of

MOST_NUMBERS = 1_000_000  # in the saved state of a transform


NewLevels: TypeAlias = Literal["refuse", "reference"]


@dataclass(frozen=True)
class EncodedOutcome:
    """The outcome's expression and, if it is a class, its levels: codes 0, 1, ...

    `alphabetical` levels are text that the user has not ordered, so they are not ordered classes.
    If `counted`, rows hold the number of times each class occurred, here that of the first.
    """

    expression: str
    levels: tuple[Level, ...] = ()
    alphabetical: bool = False
    counted: bool = False


@dataclass(frozen=True)
class Term:
    """A term of the formula: its name, its blocks of columns, and the parameter it explains."""

    name: str
    parts: tuple[Part, ...]
    parameter: str = ""  # the mean


@dataclass(frozen=True)
class Grouping:
    """A grouping factor: the columns that define it, and its levels in order.

    Parameters
    ----------
    columns
        The table columns whose levels, or combinations of levels, are the groups.
    levels
        The levels; combinations are text such as "UA:N14228", with quotes around a level that
        holds a colon.
    """

    columns: tuple[str, ...]
    levels: tuple[Level, ...]

    @property
    def field(self) -> str:
        """The field of the rows that holds the codes."""
        return ":".join(self.columns)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {level_key(level): i for i, level in enumerate(self.levels)}

    def places(self, columns: BatchColumns) -> Array:
        """Return the index of each row's level; -1 for unknown levels."""
        return self._places(columns.groups(self.columns))

    def _places(self, array: LevelArray) -> Array:
        places = np.array([self._place.get(level_key(v), -1) for v in array.values] or [-1])
        if places.min() < 0:  # tables may write the same level differently
            unknown = np.flatnonzero(places < 0)
            places[unknown] = level_places(self.levels, [array.values[int(i)] for i in unknown])
        return np.asarray(places[array.codes])

    def unknown(self, columns: BatchColumns) -> dict[str, Level]:
        """Return the levels of a batch that are not among these, by a key that equal ones share."""
        values = columns.groups(self.columns).values
        places = self._places(LevelArray(values, np.arange(len(values))))
        new = [value for value, place in zip(values, places, strict=True) if place < 0]
        return {loose_key(level_key(value)): value for value in new}

    def codes(self, columns: BatchColumns) -> Array:
        """Return the code of each row of a batch; refuse unknown levels."""
        array = columns.groups(self.columns)
        group_codes = self._places(array)
        if len(group_codes) and group_codes.min() < 0:
            at = int(np.argmax(group_codes < 0))
            nested = len(self.columns) > 1
            holder = f"the group {self.field!r}" if nested else f"column {self.field!r}"
            inner = f"the column {self.columns[-1]!r}" if nested else "that column"
            raise NewGroupError(
                f"{holder} holds {array.values[array.codes[at]]!r} in row {columns.row(at)}, a "
                "group that the rows of the fit did not have",
                "to predict for new groups, use "
                f"{argument('groups', 'any')} if some groups are new, {argument('groups', 'new')} "
                f"if all are, or leave {inner} out of the table"
                + (", which keeps the effects of known groups" if nested else ""),
            )
        return group_codes.astype(code_type(len(self.levels)))


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
    dropped
        How many rows of the table lacked a value and were left out; None if such rows are refused.
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
    dropped: int | None = None

    @property
    def drops(self) -> bool:
        """Whether rows with missing values are left out."""
        return self.dropped is not None

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
    def steps(self) -> dict[str, int]:
        """The terms with monotonic effects, and the number of their steps."""
        found = {}
        for term in self.terms:
            factors = [self.factors[f] for part in term.parts for f, _ in part]
            steps = [len(factor.columns) for factor in factors if factor.steps]
            if not steps:
                continue
            key = f"{term.parameter}." * bool(term.parameter) + term.name
            if len(self.layout.terms[key]) > steps[0]:
                raise SettingError(
                    f"the term {term.name} would have a monotonic effect for each of several "
                    "columns: let mo(...) interact with a number, or leave the interaction out."
                )
            found[key] = steps[0]
        return found

    def by_class(self, own: str) -> FormulaEncoding:
        """Return the encoding in which every class but the last has a predictor of its own.

        Its terms are those of the predictor `own`: of the mean's (empty), or those in ``cs(...)``.
        The names are then those of the classes, or of the cutpoints between classes. Without
        pooled terms those of the mean stay: predictors of the same columns need no copies of them.
        """
        known = [name for name, _ in self.others]
        has_terms = own in known if own else not known and bool(self.groups or self.smooths)
        if not has_terms or self.outcome is None:
            return self
        if not self.outcome.levels:
            text, what = self.outcome.expression, f"{own}(...)" if own else "groups and smooths"
            raise SettingError(
                f"{what} {'enters' if own else 'enter'} the predictor of each class, and the "
                f"outcome {text!r} holds numbers: write C({text}) ~ ..., which makes them classes."
            )
        levels = tuple(map(str, self.outcome.levels))
        names = tuple("|".join(pair) for pair in pairwise(levels)) if own else levels[:-1]
        shared = tuple(t for t in self.terms if t.parameter != own)
        copied = tuple(t for t in self.terms if t.parameter == own)
        others = tuple(other for other in self.others if other[0] != own)
        return replace(
            self,
            terms=(*shared, *(replace(t, parameter=name) for name in names for t in copied)),
            intercept=False,
            others=(*others, *((name, self.intercept) for name in names)),
            groups=self.groups
            if own
            else tuple(replace(g, parameter=name) for name in names for g in self.groups),
        )

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
        names = [name for expression in known._expressions for name in expression.names]
        return tuple(dict.fromkeys([*names, *(n for g in known.groupings for n in g.columns)]))

    @property
    def _expressions(self) -> list[Expression]:
        """Everything that is computed from columns."""
        texts = [f.expression for f in self.factors]
        texts += [] if self.outcome is None else [self.outcome.expression]
        texts += [text for parts in self.fields.values() for text in parts]
        return list(map(Expression, texts))

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

    def fields_of(self, names: Collection[str], outcome: bool, weights: bool) -> tuple[str, ...]:
        """Return the further fields of rows made from a table with these columns.

        An offset is always required. Weights are used where they are asked for and the table has
        them.
        With an outcome, groups and the fields that belong to it (the number of trials) are
        required; without one they are used if present, and rows without groups are of new groups.
        """
        groups = [g.field for g in self.groupings if outcome or all(n in names for n in g.columns)]
        for name, texts in self.fields.items():
            is_present = all(n in names for text in texts for n in Expression(text).names)
            required = name == "offset" or (outcome and name != "weight")
            if required or (is_present and (weights or name != "weight")):
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
            encoded = self._encode(columns, dtype, newlevels)
            if check:
                check.add(encoded["weight"], columns.row_ids)
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
        numeric = {n for e in self._expressions if e.as_levels is None for n in e.names}
        for name, kind in zip(needed, source.types(needed), strict=True):
            before, now = self.kinds.get(name), kind_of(kind)
            if name in numeric and before == "number" and now == "levels":
                raise DataError(
                    f"column {name!r} held numbers in the fit and holds text or categories here: "
                    "convert it to numbers."
                )

    def _encode(
        self, columns: BatchColumns, dtype: DType, newlevels: NewLevels | None
    ) -> dict[str, Array]:
        layout = self.layout
        evaluated = Evaluated(self, columns, dtype, newlevels)
        rows: dict[str, Array] = {}
        if layout.numbers or not layout.codes:
            rows["x"] = np.empty((len(columns), len(layout.numbers)), dtype)
            done = 0
            for alone, run in groupby(layout.numbers, lambda numbers: numbers.alone):
                own = list(run)  # all columns of a smooth at once
                if alone is not None:
                    at = [numbers.parts[0][2] for numbers in own]
                    rows["x"][:, done : done + len(own)] = evaluated.columns(alone, at)
                else:
                    for j, numbers in enumerate(own, done):
                        rows["x"][:, j] = evaluated.product(numbers)
                done += len(own)
        for codes in layout.codes:
            rows[codes.field] = evaluated.code(codes)
        if self.outcome is not None:
            rows["y"] = evaluated.encoded_outcome(self.outcome)
        for name, texts in self.fields.items():
            rows[name] = evaluated.sum(list(map(Expression, texts)))
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


class Evaluated:
    """The factors of one batch, each evaluated on first use, and what rows hold of them."""

    def __init__(
        self,
        encoding: FormulaEncoding,
        columns: BatchColumns,
        dtype: DType,
        newlevels: NewLevels | None,
    ) -> None:
        self._factors, self._columns, self._dtype = encoding.factors, columns, dtype
        self._states, self._newlevels = dict(encoding.states), newlevels
        self._numeric: dict[Scoped, Array] = {}
        self._coded: dict[int, Array] = {}
        self._windows: dict[Scoped, tuple[Array, Array]] = {}

    def columns(self, scoped: Scoped, places: Sequence[int]) -> Array:
        """Return some columns of a factor, (rows, k)."""
        names = self._factors[scoped[0]].names(scoped[1])
        return self._typed(self._numbers(scoped)[:, places], *(names[at] for at in places))

    def product(self, numbers: Numbers) -> Array:
        """Return a column of x: a product of columns of factors, or a column of a window."""
        if numbers.window:
            ((number, reduced, at),) = numbers.parts
            values, label = self._window((number, reduced))[1][:, at], self._factors[number].label
        else:
            factors = [self._numbers((f, reduced))[:, at] for f, reduced, at in numbers.parts]
            values = np.prod([np.asarray(column, np.float64) for column in factors], axis=0)
            names = (self._factors[f].names(reduced)[at] for f, reduced, at in numbers.parts)
            label = ":".join(names)
        return self._typed(values, label)

    def sum(self, summands: Sequence[Expression]) -> Array:
        """Return one number per row, the sum of several."""
        parts = []
        for expression in summands:
            columns = self._matrix(expression)
            if columns is None or columns.shape[1] > 1:
                raise DataError(
                    f"{expression.label} is not one number per row: use a column that is."
                )
            parts.append(columns[:, 0])
        total = parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
        return self._typed(total, " + ".join(summand.label for summand in summands))

    def encoded_outcome(self, outcome: EncodedOutcome) -> Array:
        """Return outcomes: numbers, or the codes of classes."""
        expression = Expression(outcome.expression)
        if not outcome.levels or outcome.counted:
            return self.sum([expression])
        places = self._places(expression, expression.label, outcome.levels, False)
        return self._typed(places, expression.label)

    def _typed(self, values: Array, *labels: str) -> Array:
        """Return numbers in the type of the rows; refuse those that it cannot hold."""
        return in_type(values, self._dtype, labels, self._columns.row_ids)

    def _numbers(self, scoped: Scoped) -> Array:
        """Return the columns (rows, k) of a numeric factor, or of a factor's levels as numbers."""
        if scoped in self._numeric:
            return self._numeric[scoped]
        factor, reduced = self._factors[scoped[0]], scoped[1]
        if factor.levels:
            columns = factor.matrix(reduced)[self._codes(scoped[0])]
        else:
            found = self._matrix(Expression(factor.expression))
            if found is None:
                raise DataError(
                    f"{factor.label} held numbers in the fit and holds levels here: convert it to "
                    "numbers."
                )
            if found.shape[1] != len(factor.names(False)):
                raise DataError(f"the encoding of {factor.label} is damaged: fit again.")
            columns = found[:, 1:] if reduced and factor.spans else found
        self._numeric[scoped] = columns
        return columns

    def _matrix(self, expression: Expression) -> Array | None:
        """Return the numbers of an expression, (rows, k); None if it has levels."""
        if expression.bare is not None:
            return self._columns.exact(expression.bare, self._dtype)[:, None]
        value = evaluate(expression, self._columns, self._states)
        if isinstance(value, LevelArray):
            return None
        if isinstance(value, ColumnArray):
            return value.values
        return np.broadcast_to(np.asarray(value, dtype=float), len(self._columns))[:, None]

    def _window(self, scoped: Scoped) -> tuple[Array, Array]:
        """Return each row's first column that may differ from 0, and the values from there on."""
        if scoped not in self._windows:
            factor, values = self._factors[scoped[0]], self._numbers(scoped)
            size = factor.local
            begin = np.minimum(np.argmax(values != 0, axis=1), values.shape[1] - size)
            inside = np.take_along_axis(values, begin[:, None] + np.arange(size), axis=1)
            if np.count_nonzero(inside) < np.count_nonzero(values):
                raise DataError(f"the encoding of {factor.label} is damaged: fit again.")
            self._windows[scoped] = begin, inside
        return self._windows[scoped]

    def code(self, codes: Codes) -> Array:
        """Return the codes of a factor or of a combination of factors."""
        if codes.window:
            code = self._window(codes.parts[0])[0]
        elif len(codes.parts) == 1:
            code = self._codes(codes.parts[0][0])
        else:
            cell, reference = np.zeros(len(self._columns), np.intp), np.zeros(1, bool)
            step = 1
            for (number, reduced), width in zip(codes.parts, codes.widths, strict=True):
                place = self._codes(number) - reduced
                reference = reference | (place < 0)
                cell, step = cell + step * place, step * width
            code = np.where(reference, 0, cell + 1) if codes.reference else cell
        return code.astype(code_type(codes.levels))

    def _codes(self, number: int) -> Array:
        if number not in self._coded:
            factor = self._factors[number]
            expression = Expression(factor.expression)
            lenient = not factor.is_structured
            self._coded[number] = self._places(expression, factor.label, factor.levels, lenient)
        return self._coded[number]

    def _places(
        self, expression: Expression, label: str, levels: tuple[Level, ...], lenient: bool
    ) -> Array:
        """Return the index of each row's level in the levels of the fit."""
        inner = expression.inner
        array = level_array(inner, self._columns, self._states)
        places = array.places(levels)
        if not len(places) or places.min() >= 0:
            return places
        at = int(np.argmax(places < 0))
        level, row = array.values[array.codes[at]], self._columns.row(at)
        texts = all(isinstance(v, str) for v in levels)
        if self._newlevels and texts != isinstance(level, str) and inner.bare is not None:
            kinds = ("text", "numbers") if texts else ("numbers or booleans", "text")
            raise DataError(
                f"column {inner.bare!r} held {kinds[0]} in the fit and holds {kinds[1]} here "
                f"({level!r} in row {row}): convert it."
            )
        if lenient and self._newlevels == "reference":
            return np.maximum(places, 0)
        remedy = "leave such rows out, or fit again with rows that have them"
        if lenient and self._newlevels:
            setting = argument("newlevels", "reference")
            remedy += f", or predict them as the reference level with {setting}"
        place = f"column {label!r} holds {level!r} in row {row}, which the rows of the fit did not"
        raise NewLevelError(place, remedy)


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
