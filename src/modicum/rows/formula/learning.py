"""The first reading of a table, which learns levels, knots and centres."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from modicum.errors import DataError, SettingError, suggestion
from modicum.libraries import pyarrow as pa
from modicum.rows.checks import WeightCheck, reads_as_number
from modicum.rows.coding import Level, LevelArray, level_key, level_names, loose_key
from modicum.rows.formula.encoding import EncodedOutcome, FormulaEncoding, Grouping, Term
from modicum.rows.formula.expressions import STRUCTURED, Expression
from modicum.rows.formula.interpreter import evaluate, explained, level_array
from modicum.rows.formula.neighbours import FEWEST, read_regions, steps, walk
from modicum.rows.formula.parsing import COUNT, Formula, ParsedGroup
from modicum.rows.formula.smooths import SMOOTHS, State, smooth_names
from modicum.rows.formula.structure import Factor, reduced_parts
from modicum.rows.formula.transforms import ColumnArray, learned_state
from modicum.rows.levels import (
    MOST_LEVELS,
    RESERVED,
    BatchColumns,
    complete_rows,
    no_rows,
    ordered,
    reference_first,
    refuse_fractions,
    refuse_stray_text,
)
from modicum.rows.sources import Source, kind_of

MOST_STEPS = 50  # levels of a monotonic effect, each with a parameter


def learn(
    formula: Formula,
    source: Source,
    *,
    weight: str | None = None,
    drop: bool = False,
    matrices: Mapping[str, object] | None = None,
) -> tuple[FormulaEncoding, int | None]:
    """Learn the encoding of a formula from a source, by reading it once.

    Only columns with levels and columns that transforms learn from are read, unless rows with
    missing values are to be dropped, which needs all columns.

    Parameters
    ----------
    formula
        The parsed formula.
    source
        The table.
    weight
        A column of weights.
    drop
        Whether rows with missing values are dropped.
    matrices
        Tables of neighbours, by the names that the formula has for them.

    Returns
    -------
    encoding
        How the table becomes rows.
    rows
        Number of complete rows; None if the reading did not count them.
    """
    fields: dict[str, tuple[str, ...]] = {name: (e.text,) for name, e in formula.fields}
    if formula.offsets:
        fields["offset"] = tuple(expression.text for expression in formula.offsets)
    if weight is not None:
        fields["weight"] = (Expression.column(weight).text,)
    counted = [name.removeprefix(COUNT) for name in fields if name.startswith(COUNT)]
    reading = _Reading(formula, fields, source, weight, drop, matrices)
    reading.read()
    factors = [reading.factor(expression) for expression in reading.factors]
    number = {factor.expression: i for i, factor in enumerate(factors)}
    spans = [factor.spans for factor in factors]
    encoded = []
    for predictor in formula.predictors:
        terms = [tuple(number[factor.text] for factor in term) for term in predictor.terms]
        scoped = reduced_parts(terms, spans, predictor.intercept)
        names = [":".join(factors[i].label for i in term) for term in terms]
        pairs = zip(names, scoped, strict=True)
        encoded += [Term(name, parts, predictor.parameter) for name, parts in pairs]
    encoding = FormulaEncoding(
        formula=formula.text,
        factors=tuple(factors),
        terms=tuple(encoded),
        intercept=formula.predictors[0].intercept,
        outcome=None if formula.outcome is None else reading.outcome(formula.outcome, counted),
        fields=fields,
        others=tuple((other.parameter, other.intercept) for other in formula.predictors[1:]),
        groups=formula.groups,
        groupings=reading.groupings.groupings(),
        states=reading.states,
        kinds=reading.kinds,
        dropped=reading.dropped if drop else None,
    )
    return encoding, reading.rows


class _Reading:
    """One pass over a source that collects levels and the columns that transforms learn from."""

    def __init__(
        self,
        formula: Formula,
        fields: Mapping[str, tuple[str, ...]],
        source: Source,
        weight: str | None,
        drop: bool,
        matrices: Mapping[str, object] | None,
    ) -> None:
        self._regions = read_regions(matrices)
        _check_regions(formula, self._regions)
        self._source, self._weight, self._drop = source, weight, drop
        self.factors = formula.factors
        self.groupings = GroupingLevels(formula.groups, from_csv=source.written)
        outcome = [] if formula.outcome is None else [formula.outcome]
        further = [Expression(text) for texts in fields.values() for text in texts]
        used = [name for e in (*self.factors, *further, *outcome) for name in e.names]
        self._needed = tuple(dict.fromkeys([*used, *self.groupings.names]))
        for name in self._needed:
            if name not in source.names and any(p.parameter == name for p in formula.predictors):
                raise SettingError(
                    f"the formulas explain {name!r}, which is also among their terms, as in a "
                    "nonlinear formula of brms: write such a model as a function of JAX (mo.Model) "
                    "or for NumPyro (mo.from_numpyro)."
                )
            if name not in source.names:
                raise SettingError(source.absent(name))
        types = source.types(self._needed)
        self.kinds = {n: kind_of(k) for n, k in zip(self._needed, types, strict=True)}
        for name, kind in self.kinds.items():
            if kind == "null":
                raise DataError(
                    f"column {name!r} holds no value in any row: fill it in, or leave it out."
                    if any(len(batch) for batch in source.batches([name]))
                    else "there are no rows in the data: at least one is needed."
                )
            if kind not in ("number", "levels", "boolean", "dates"):
                raise DataError(
                    f"column {name!r} holds values of type {kind}: convert it to numbers or to "
                    "text first, or leave it out."
                )
        self.states: dict[str, State] = {}
        self.rows: int | None = None
        self.dropped = 0
        learned = (*self.factors, *outcome)
        self._learners = [e for e in learned if e.stateful]
        self._values: dict[Expression, dict[str, Level]] = {
            e: {} for e in learned if not e.stateful and self._has_levels(e)
        }
        self._occurring: dict[Expression, set[str]] = {}
        self._numbers: dict[Expression, ColumnArray] = {}

    def _has_levels(self, expression: Expression) -> bool:
        """Whether an expression's values are levels, judging by its column or its first rows."""
        if expression.inner is not expression:
            return True
        if expression.bare is not None:
            return self.kinds[expression.bare] in ("levels", "boolean")
        for columns in self._batches(expression.names):
            value = evaluate(expression, columns, {})
            return isinstance(value, LevelArray) or getattr(value, "dtype", None) == np.dtype(bool)
        return False

    def _batches(self, names: Sequence[str]) -> Iterator[BatchColumns]:
        for columns, dropped in complete_rows(self._source.batches(names), names, self._drop):
            self.dropped += dropped
            if len(columns):
                yield columns

    def read(self) -> None:
        """Read the columns needed for learning."""
        weight = [] if self._weight is None or not self._learners else [self._weight]
        whole = list(dict.fromkeys([n for e in self._learners for n in e.names] + weight))
        levels = [name for expression in self._values for name in expression.names]
        names = tuple(dict.fromkeys([*levels, *whole, *self.groupings.names]))
        self.dropped = 0
        if not names and not self._drop:
            return
        for name in [e.by for e in self._learners if e.by is not None]:
            if self.kinds[name] == "number":
                raise DataError(
                    f"column {name!r} holds numbers where by= needs levels: convert it to text."
                )
        rows, row_ids, parts = 0, [], []
        for columns in self._batches(self._needed if self._drop else names):
            rows += len(columns)
            for expression, values in self._values.items():
                self._collect(expression, values, columns)
            self.groupings.collect(columns)
            if whole:
                row_ids.append(columns.row_ids)
                parts.append(pa.table(columns.batch).select(whole))
        self.rows = rows
        if rows == 0:
            raise DataError(no_rows(self._drop))
        if not whole:
            return
        table = pa.concat_tables(parts, promote_options="permissive")
        all_rows = BatchColumns(table, np.concatenate(row_ids))
        weights = all_rows.numbers(weight[0]).astype(np.float64) if weight else None
        if weights is not None:
            check = WeightCheck(weight[0])
            check.add(weights, all_rows.row_ids)
            check.finish()
        learn = partial(learned_state, weights)
        for expression in self._learners:
            evaluated = evaluate(expression, all_rows, self.states, learn)
            if isinstance(evaluated, LevelArray):
                raise SettingError(f"{expression.text} gives levels: use one that gives numbers.")
            if not isinstance(evaluated, ColumnArray):
                evaluated = ColumnArray(evaluated[:1, None], (), False)
            self._numbers[expression] = evaluated

    def _collect(
        self, expression: Expression, values: dict[str, Level], columns: BatchColumns
    ) -> None:
        array = level_array(expression.inner, columns, {})
        occurring = array.occurring
        if self._keeps_order(expression):  # the order is that of all categories, even absent ones
            self._occurring.setdefault(expression, set()).update(map(level_key, occurring))
            occurring = list(array.values)
        for value in occurring:
            values.setdefault(level_key(value), value)
        if len(values) > MOST_LEVELS:
            raise DataError(
                f"column {expression.label!r} has more than {MOST_LEVELS:,} levels by row "
                f"{columns.row(len(columns) - 1)}: group them, or leave it out."
            )

    def _keeps_order(self, expression: Expression) -> bool:
        column = expression.inner.bare
        return column is not None and self._source.has_order(column)

    def _levels(self, expression: Expression) -> tuple[Level, ...]:
        """Return the levels in order, the reference first."""
        values, call = self._values[expression], expression.categorical
        reference = None if call is None else call.reference
        if call is not None and call.levels:
            listed = {level_key(level) for level in call.levels}
            other = [value for key, value in values.items() if key not in listed]
            if other:
                raise DataError(
                    f"{expression.text} does not list the level {other[0]!r}, which the column "
                    "holds: add it, or leave such rows out."
                )
            return reference_first(expression.label, call.levels, reference)
        if self._keeps_order(expression):
            occurring = self._occurring[expression]
            levels = tuple(value for key, value in values.items() if key in occurring)
            return reference_first(expression.label, levels, reference)
        if call is None and expression.bare is not None:
            remedy = f"write C({expression.text}) to code the column as levels"
            refuse_stray_text(self._source, expression.bare, values.values(), remedy)
        return ordered(expression.label, values.values(), reference)

    def factor(self, expression: Expression) -> Factor:
        """Return the encoding of a factor."""
        text, label = expression.text, expression.label
        if expression.form in STRUCTURED:
            return self._structured(expression)
        if expression in self._values:
            call = expression.categorical
            contrast = None if call is None else call.contrast
            spans = True if call is None else call.spans
            return Factor(text, label, (), self._levels(expression), contrast, spans)
        value = self._numbers.get(expression)
        if value is None or not value.names:
            return Factor(text, label, (label,))
        if expression.form in SMOOTHS:
            state = self.states[expression.tidy]
            plain, blocks = smooth_names(state, label, expression.variables)
            return Factor(text, label, plain, blocks=blocks)
        names = tuple(f"{label}[{n}]" for n in value.names)
        return Factor(
            text, label, names, spans=value.spans, local=min(expression.local, len(names))
        )

    def _structured(self, expression: Expression) -> Factor:
        """Return the encoding of a random walk, or of regions with neighbours."""
        label, levels = expression.label, tuple(self._values[expression].values())
        if expression.regions is not None:
            regions, occurring = self._regions[expression.regions], self._occurring.get(expression)
            if occurring is not None:
                levels = tuple(level for level in levels if level_key(level) in occurring)
            levels, neighbours = regions.around(expression.inner.text, levels)
        elif expression.form == "mo":
            return self._monotonic(expression)
        else:
            with explained(expression.text):
                levels = self._in_order(expression, levels)
                neighbours = walk(levels)
        first = [str(levels[part[0]]) for part in neighbours.parts[1:]]
        plain = tuple(f"{label}[part of {level}]" for level in first)
        blocks = ((label, len(levels) - 1 - len(plain)),)
        return Factor(expression.text, label, plain, levels, blocks=blocks, neighbours=neighbours)

    def _monotonic(self, expression: Expression) -> Factor:
        """Return the encoding of a monotonic effect."""
        label, levels = expression.label, self._levels(expression)
        if not all(isinstance(level, int | float) for level in levels):
            self._require_order(expression, levels)
        if not FEWEST <= len(levels) <= MOST_STEPS:
            few = len(levels) < FEWEST
            remedy = expression.inner.text if few else f"s({expression.inner.text})"
            raise DataError(
                f"{expression.text} has {len(levels)} levels, and needs {FEWEST} to {MOST_STEPS}: "
                f"use {remedy} in its place."
            )
        names = tuple(f"{label}[{name}]" for name in level_names(levels)[1:])
        return Factor(expression.text, label, names, levels, steps=True)

    def _require_order(self, expression: Expression, levels: tuple[Level, ...]) -> None:
        """Refuse text that has no order."""
        if not self._keeps_order(expression) or self._is_alphabetical(expression, levels):
            column = expression.inner.bare
            if column is not None and self.kinds[column] == "dates":
                raise DataError(
                    f"column {column!r} holds dates, and {expression.text} goes from each whole "
                    f"number to the next: count them first, as in ({column} - "
                    f"{column}.min()).dt.days."
                )
            raise DataError(
                f"the levels of {expression.inner.text!r} are text in no order that is known, and "
                f"{expression.text} goes from each to the next: make the column numbers, or an "
                "ordered category, as pd.Categorical(column, [first, ..., last], ordered=True)."
            )

    def _in_order(self, expression: Expression, levels: tuple[Level, ...]) -> tuple[Level, ...]:
        """Return the levels of a random walk in order; refuse text that has none."""
        column = expression.inner.text
        low, high = expression.ends
        numbers = [level for level in levels if isinstance(level, int | float)]
        if len(numbers) == len(levels) and not self._keeps_order(expression):
            return steps(numbers, low, high)
        if low is not None or high is not None:
            raise ValueError(f"bounds are for numbers, and {column!r} holds categories")
        self._require_order(expression, levels)
        return levels

    def outcome(self, expression: Expression, counted: Sequence[str]) -> EncodedOutcome:
        """Return the encoding of the outcome; of counts, with the names of the other classes."""
        if expression.stateful:
            raise SettingError(
                f"the outcome {expression.text} is learned from the data: compute it first."
            )
        values = self._occurring.get(expression, self._values.get(expression, ()))
        if len(values) == 1:
            (only,) = values
            raise DataError(
                f"the outcome {expression.text!r} is {only!r} in every row, so there is nothing "
                "to explain: check the outcome."
            )
        levels = self._levels(expression) if expression in self._values else ()
        if counted and not levels:
            return EncodedOutcome(expression.text, (expression.label, *counted), counted=True)
        return EncodedOutcome(expression.text, levels, self._is_alphabetical(expression, levels))

    def _is_alphabetical(self, expression: Expression, levels: Sequence[Level]) -> bool:
        """Whether levels are text in alphabetical order that the user did not request."""
        call, column = expression.categorical, expression.inner.bare
        texts = [level for level in levels if isinstance(level, str)]
        if len(texts) < len(levels) or texts != sorted(texts) or (call and call.levels):
            return False
        kind = None if column is None else self._source.types([column])[0]
        return not all(map(reads_as_number, texts)) and not getattr(kind, "ordered", False)


class GroupingLevels:
    """Collects the levels of grouping factors, one batch at a time.

    Parameters
    ----------
    groups
        The group terms.
    from_csv
        Whether levels are texts of a CSV file, which may write one group as both "6" and "6.0".
    """

    def __init__(self, groups: Iterable[ParsedGroup], from_csv: bool = False) -> None:
        factors = dict.fromkeys(group.group for group in groups)
        for reserved in {":".join(names) for names in factors}.intersection(RESERVED):
            raise SettingError(
                f"a group cannot be called {reserved!r}, which is the name of another field of the "
                "rows; rename that column of the table."
            )
        self._values: dict[tuple[str, ...], dict[str, Level]] = {names: {} for names in factors}
        self._from_csv = from_csv
        self._texts: dict[str, dict[str, Level]] = {name: {} for name in self.names if from_csv}

    @property
    def names(self) -> tuple[str, ...]:
        """Columns to read."""
        return tuple(dict.fromkeys(name for names in self._values for name in names))

    def collect(self, columns: BatchColumns) -> None:
        """Add the levels of a batch."""
        for name, texts in self._texts.items():
            for value in columns.levels(name).values:
                before = texts.setdefault(loose_key(level_key(value)), value)
                if before != value:
                    raise DataError(
                        f"the group {name!r} is {before!r} in some rows and {value!r} in others, "
                        "which may be the same group: write it in one way."
                    )
        for names, levels in self._values.items():
            for value in columns.groups(names).values:
                levels.setdefault(level_key(value), value)

    def groupings(self) -> tuple[Grouping, ...]:
        """Return the grouping factors, with sorted levels."""
        groupings = []
        for names, levels in self._values.items():
            if len(levels) < 2:
                raise DataError(
                    f"the group {':'.join(names)!r} has a single level, so the variation of "
                    "its effects cannot be estimated; leave it out."
                )
            values = list(levels.values())
            if len(names) == 1:  # combinations are text
                refuse_fractions(names[0], values, self._from_csv)
                values = _integers(values) if self._from_csv else values
            groupings.append(Grouping(names, ordered(":".join(names), values)))
        return tuple(groupings)


WHOLE = re.compile(r"(0|-?[1-9][0-9]{0,14})([.]0)?")  # that a float holds exactly


def _integers(levels: list[Level]) -> list[Level]:
    """Return the texts of a CSV file as integers if all are written as such, without zeros ahead.

    Effects are then listed by the numbers that other readers of the file see.
    """
    plain = all(isinstance(level, str) and WHOLE.fullmatch(level) for level in levels)
    return [int(float(level)) for level in levels] if plain else levels


def _check_regions(formula: Formula, regions: Mapping[str, object]) -> None:
    """Refuse tables of neighbours that are not there, or that the formula does not use."""
    used = {factor.regions: factor.text for factor in formula.factors if factor.regions is not None}
    for name, text in used.items():
        if name not in regions:
            raise SettingError(
                f"{text} names a table of neighbours that was not given{suggestion(name, regions)}:"
                f" pass matrices={{{name!r}: pairs}} to mo.fit, or --matrix {name}=FILE on the "
                "command line."
            )
    for name in regions:
        if name not in used:
            raise SettingError(
                f"matrices holds {name!r}, which the formula does not use: write car(region, "
                f"{name}) there, or leave it out."
            )
