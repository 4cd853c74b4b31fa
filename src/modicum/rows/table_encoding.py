"""Tables encoded by the roles of their columns, as `Rows.from_table` and `ingest` encode them.

Every predictor is a term of its own: numbers as they are, levels in treatment contrasts. Rows made
in this way hold no formula; the encoding of another table is made from their columns and levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from modicum.errors import DataError, SettingError, argument
from modicum.rows.checks import as_dtype, name_list, names_like
from modicum.rows.coding import DType, Level
from modicum.rows.description import RowsSchema, describe
from modicum.rows.formula.encoding import EncodedOutcome, FormulaEncoding, Term
from modicum.rows.formula.expressions import Contrast, Expression
from modicum.rows.formula.structure import Factor
from modicum.rows.levels import (
    MOST_LEVELS,
    code_field,
    distinct,
    floating,
    ordered,
    refuse_stray_text,
    table_column,
)
from modicum.rows.memory import RowStream
from modicum.rows.sources import Source, kind_of, refuse_repeated

MOST_UNDECLARED = 500  # levels of a text column that the user did not declare categorical


class ChosenColumns(NamedTuple):
    """The columns the user named, as in `Rows.from_table`; `resolve` checks them."""

    outcome: str | None = "y"
    predictors: Sequence[str] | None = None
    offset: str | None = None
    weight: str | None = None
    categorical: Sequence[str] | Mapping[str, Level | None] = ()
    dense: bool = False


class Roles(NamedTuple):
    """The columns by role; `references` maps categorical columns to their reference levels."""

    outcome: str | None
    predictors: tuple[str, ...]
    parts: dict[str, str]  # columns of the offset and the weight
    references: dict[str, Level | None]
    dense: bool

    @property
    def scalars(self) -> list[str]:
        """The columns of the outcome, the offset and the weight."""
        return [*([] if self.outcome is None else [self.outcome]), *self.parts.values()]

    @property
    def numbers(self) -> list[str]:
        """The columns that hold numbers."""
        return [*(name for name in self.predictors if name not in self.references), *self.scalars]


def resolve(names: Sequence[str], choice: ChosenColumns) -> Roles:
    """Check the user's column names against the table's, and assign each column its role."""
    refuse_repeated(names, names)
    named = {"outcome": choice.outcome, "offset": choice.offset, "weight": choice.weight}
    others = {part: _column(part, name, names) for part, name in named.items() if name is not None}
    if len(set(others.values())) < len(others):
        raise SettingError(f"one column cannot have two roles: {others}.")
    predictors = _predictors(names, choice.predictors, others)
    references = _references(choice.categorical)
    for name in references:
        if _column("categorical", name, names) not in predictors:
            raise SettingError(
                f"categorical column {name!r} is not among the predictors: add it to them, or "
                "leave it out of categorical."
            )
    outcome = others.pop("outcome", None)
    return Roles(outcome, predictors, others, references, choice.dense)


def _column(part: str, name: object, names: Sequence[str]) -> str:
    column = _text(part, name)
    if column not in names:
        raise SettingError(f"{part} column {name!r} is not in the data: {names_like(name, names)}")
    return column


def _text(part: str, name: object) -> str:
    if not isinstance(name, str):
        raise SettingError(f"{part} must be the name of a column, not {type(name).__name__}.")
    return name


def _predictors(
    names: Sequence[str], predictors: object, others: Mapping[str, str]
) -> tuple[str, ...]:
    if predictors is None:
        chosen = tuple(name for name in names if name not in others.values())
    else:
        chosen = tuple(
            _column("predictor", name, names) for name in name_list("predictors", predictors)
        )
        for part, name in others.items():
            if part != "offset" and name in chosen:
                raise SettingError(
                    f"the {part} column {name!r} is among the predictors: remove it."
                )
    if not chosen:
        raise SettingError("there are no predictors: name at least one column.")
    if len(set(chosen)) < len(chosen):
        twice = Counter(chosen).most_common(1)[0][0]
        raise SettingError(f"predictor {twice!r} is named twice: remove one.")
    return chosen


def _references(categorical: object) -> dict[str, Level | None]:
    if not isinstance(categorical, Mapping):
        names = name_list("categorical", categorical)
        return dict.fromkeys(_text("categorical", name) for name in names)
    for name, level in categorical.items():
        if level is not None and not isinstance(level, str | int | float | np.generic):
            raise SettingError(
                f"the reference level of column {name!r} must be text or a number, not a "
                f"{type(level).__name__}."
            )
    return dict(categorical)


def _encoding(roles: Roles, levels: Mapping[str, tuple[Level, ...]]) -> FormulaEncoding:
    """Return the encoding of columns with these roles and levels, the reference first."""
    text = {name: Expression.column(name).text for name in (*roles.predictors, *roles.scalars)}
    # With a contrast, each level but the reference becomes a column of zeros and ones.
    contrast = Contrast("treatment") if roles.dense else None
    factors = [
        Factor(text[name], name if contrast else code_field(name), (), levels[name], contrast)
        if name in levels
        else Factor(text[name], name, (name,))
        for name in roles.predictors
    ]
    return FormulaEncoding(
        formula="",
        factors=tuple(factors),
        terms=tuple(Term(f.label, (((i, bool(f.levels)),),)) for i, f in enumerate(factors)),
        intercept=True,
        outcome=None if roles.outcome is None else EncodedOutcome(text[roles.outcome]),
        fields={part: (text[name],) for part, name in roles.parts.items()},
    )


def _stream(
    source: Source, roles: Roles, levels: Mapping[str, tuple[Level, ...]], dtype: DType
) -> RowStream:
    """Return the rows of a table, which hold no formula."""
    encoding = _encoding(roles, levels)
    about = replace(
        describe(encoding, source.rows or 0, dtype),
        outcome=roles.outcome,
        levels={f.label: f.levels for f in encoding.factors if f.levels},
        parts=roles.parts,
        encoding=None,
    )
    chunks = partial(encoding.chunks, source, dtype, newlevels=None)
    return RowStream(about, lambda first: chunks(first=first), source.rows)


def columns_of(source: Source, choice: ChosenColumns, dtype: object) -> RowStream:
    """Return the rows that a table's columns make, after reading their levels.

    Only categorical columns are read, which text and categories among the predictors are.
    """
    roles = resolve(source.names, choice)
    if source.rows == 0:
        raise DataError("there are no rows in the data: at least one is needed.")
    kinds = dict(zip(roles.predictors, source.types(roles.predictors), strict=True))
    text = [name for name, kind in kinds.items() if kind_of(kind) == "levels"]
    declared = roles.references
    roles = roles._replace(references={**dict.fromkeys(text), **declared})
    kind = as_dtype(dtype, floating(source.types(roles.numbers)))
    levels = _collect_levels(source, roles)
    for name in levels:
        if name not in declared:
            asked = f"pass {argument('categorical', [name])}"
            remedy = f"{asked} to code the column as levels"
            refuse_stray_text(source, name, levels[name], remedy)
            if len(levels[name]) > MOST_UNDECLARED:
                raise DataError(
                    f"column {name!r} holds text with {len(levels[name]):,} levels, and each would "
                    "have a coefficient: make it a group in mo.fit, (1 | column), leave the column "
                    f"out, or {asked} if you mean that."
                )
    return _stream(source, roles, levels, kind)


def _collect_levels(source: Source, roles: Roles) -> dict[str, tuple[Level, ...]]:
    """Return the levels that occur in each column, the reference first, the others sorted."""
    names = [name for name in roles.predictors if name in roles.references]
    # Dictionaries without values serve as ordered sets.
    occurring: dict[str, dict[Level, None]] = {name: {} for name in names}
    start = 0
    for batch in source.batches(names) if names else ():
        for name, levels in occurring.items():
            rows = range(start, start + batch.num_rows)
            levels.update(dict.fromkeys(distinct(batch.column(name), name, rows).occurring))
            if len(levels) > MOST_LEVELS:
                raise DataError(
                    f"categorical column {name!r} has more than {MOST_LEVELS} levels by row "
                    f"{start + batch.num_rows - 1}: group them, or leave the column out."
                )
        start += batch.num_rows
    return {name: ordered(name, occurring[name], roles.references[name]) for name in names}


def columns_like(source: Source, schema: RowsSchema, outcome: bool, weights: bool) -> RowStream:
    """Return the rows that a table makes with the columns, levels and references of other rows."""
    if not schema.columns:
        raise SettingError("the other rows have no named columns: pass arrays instead of a table.")
    for part in ("offset", *(["outcome"] if outcome and schema.outcome is None else [])):
        if part == "outcome" or (part in schema.fields and part not in schema.parts):
            raise SettingError(
                f"the other rows do not say which column of the table is the {part}: make the rows "
                f"with Rows.from_table(table, {part}=...)."
            )
    column_of = {field: table_column(field, source.names) for field in schema.levels}
    coded = {f"{f}[{v}]": column_of[f] for f, levels in schema.levels.items() for v in levels[1:]}
    weight = schema.parts.get("weight")
    choice = ChosenColumns(
        schema.outcome if outcome else None,
        list(dict.fromkeys(coded.get(column, column) for column in schema.columns)),
        schema.parts.get("offset"),
        weight if weights and weight in source.names else None,
        dict.fromkeys(column_of.values()),
        schema.coding is None,
    )
    roles = resolve(source.names, choice)
    levels = {column_of[field]: levels for field, levels in schema.levels.items()}
    kind = as_dtype(None, floating(source.types(roles.numbers)))
    stream = _stream(source, roles, levels, kind)
    # Use the names of the other rows, however this table writes its levels.
    about = replace(stream.description, columns=schema.columns, levels=dict(schema.levels))
    return stream._replace(description=about)
