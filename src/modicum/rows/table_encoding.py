"""Encodes the columns of a table, each of which has a role, as packed rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from modicum.errors import DataError, SettingError, argument
from modicum.rows.checks import (
    WeightCheck,
    as_dtype,
    block_rows,
    missing,
    name_list,
    names_like,
    reads_as_number,
    require_exact,
    require_finite,
)
from modicum.rows.coding import CodedTerm, Coding, Level, code_type, level_names
from modicum.rows.description import Array, Description, DType, Field, RowsSchema
from modicum.rows.levels import (
    code_field,
    collect_levels,
    joined,
    level_codes,
    levels_like,
    refuse_stray_text,
    table_column,
)
from modicum.rows.sources import Source, TableSource, Unread, is_dictionary, is_table

if TYPE_CHECKING:
    import pyarrow as pa


class ColumnChoice(NamedTuple):
    """The columns the user named, as in `Rows.from_table`, not checked yet."""

    outcome: str | None = "y"
    predictors: Sequence[str] | None = None
    offset: str | None = None
    weight: str | None = None
    categorical: Sequence[str] | Mapping[str, Level | None] = ()
    dense: bool = False


@dataclass(frozen=True)
class Roles:
    """The columns by role; `references` maps categorical columns to their reference levels."""

    outcome: str | None
    predictors: tuple[str, ...]
    offset: str | None = None
    weight: str | None = None
    references: Mapping[str, Level | None] = field(default_factory=dict)

    @property
    def needed(self) -> tuple[str, ...]:
        """Every column that must be read."""
        others = (self.outcome, self.offset, self.weight)
        return tuple(dict.fromkeys(self.predictors + tuple(c for c in others if c is not None)))

    @property
    def categorical(self) -> tuple[str, ...]:
        """The categorical columns, in the order of the predictors."""
        return tuple(c for c in self.predictors if c in self.references)


def resolve(names: Sequence[str], choice: ColumnChoice) -> Roles:
    """Check the user's column names against the table's, and assign each column its role."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"column {twice[0]!r} occurs more than once: rename one of them.")
    parts = {"outcome": choice.outcome, "offset": choice.offset, "weight": choice.weight}
    others = {part: _column(part, name, names) for part, name in parts.items() if name is not None}
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
    return Roles(choice.outcome, predictors, choice.offset, choice.weight, references)


def _column(part: str, name: object, names: Sequence[str]) -> str:
    column = _text(part, name)
    if column not in names:
        raise SettingError(f"{part} column {name!r} is not in the data: {names_like(name, names)}")
    return column


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
    if isinstance(categorical, Mapping):
        for name, level in categorical.items():
            if level is not None and not isinstance(level, str | int | float | np.generic):
                raise SettingError(
                    f"the reference level of column {name!r} must be text or a number, not a "
                    f"{type(level).__name__}."
                )
        return dict(categorical)
    names = name_list("categorical", categorical)
    return dict.fromkeys(_text("categorical", name) for name in names)


def _text(part: str, name: object) -> str:
    if not isinstance(name, str):
        raise SettingError(f"{part} must be the name of a column, not {type(name).__name__}.")
    return name


MOST_UNDECLARED = 500  # levels of a text column that the user did not declare categorical


class Encoder:
    """Turns record batches into packed rows: predictors, outcome, offset, weight.

    Parameters
    ----------
    roles : Roles
        The role of each column.
    levels : mapping
        Levels of the categorical columns, the reference first.
    dtype : numpy.dtype
    from_table : bool
        Whether the caller has an argument `categorical` that error messages can recommend.
    dense : bool
        Whether categorical columns become columns of zeros and ones instead of codes.
    """

    def __init__(
        self,
        roles: Roles,
        levels: Mapping[str, tuple[Level, ...]],
        dtype: DType,
        from_table: bool = True,
        dense: bool = False,
    ) -> None:
        self.roles, self.dtype = roles, dtype
        self._levels, self._from_table = levels, from_table
        self._coded = not dense and bool(levels)
        columns: list[str] = []
        self._spans: dict[str, slice] = {}  # columns of each predictor
        for name in roles.predictors:
            first = len(columns)
            of = level_names(levels[name])[1:] if name in levels else ()
            columns += [f"{self._field(name)}[{v}]" for v in of] or [name]
            self._spans[name] = slice(first, len(columns))
        clash = [name for name, count in Counter(columns).items() if count > 1]
        if clash:
            raise DataError(
                f"two columns of x would be named {clash[0]!r}, one of them for a level of a "
                "categorical column: rename the other."
            )
        self.columns = tuple(columns)
        parts = {"y": roles.outcome, "offset": roles.offset, "weight": roles.weight}
        self._scalars = {part: name for part, name in parts.items() if name is not None}
        self.coding = self._coding() if self._coded else None
        dense_places = range(len(columns)) if self.coding is None else self.coding.dense
        labels = [columns[place] for place in dense_places]
        self._width = len(labels)  # of x
        self._labels = (*labels, *self._scalars.values())

    def _field(self, name: str) -> str:
        return code_field(name) if self._coded else name

    def _coding(self) -> Coding:
        """Return the coding of numbers and codes, in the order of the predictors."""
        places = [span.start for name, span in self._spans.items() if name not in self._levels]
        return Coding(
            tuple(places),
            tuple(
                CodedTerm(code_field(name), span.start, span.stop - span.start)
                for name, span in self._spans.items()
                if name in self._levels
            ),
        )

    def describe(self, n: int) -> Description:
        """Describe `n` encoded rows."""
        roles = self.roles
        names = {"offset": roles.offset, "weight": roles.weight}
        fields = [Field("x", (self._width,))] if self._width else []
        if self._coded:
            for name, levels in self._levels.items():
                fields.append(Field(code_field(name), (), code_type(len(levels))))
        return Description(
            n=n,
            dtype=self.dtype,
            fields=(*fields, *map(Field, self._scalars)),
            columns=self.columns,
            outcome=roles.outcome,
            levels={self._field(name): levels for name, levels in self._levels.items()},
            coding=self.coding,
            parts={part: name for part, name in names.items() if name is not None},
        )

    def encode(self, batch: pa.RecordBatch | pa.Table, start: int) -> dict[str, Array]:
        """Return the fields of a batch whose first row is `start`, with all values checked."""
        out = np.empty((batch.num_rows, len(self._labels)), self.dtype)
        originals: dict[int, Array] = {}
        fields: dict[str, Array] = {}
        at = 0  # column of x
        for name, span in self._spans.items():
            column = joined(batch.column(name))
            if name not in self._levels:
                values = numbers(column, name, start, self._text_remedy(name))
                originals[at] = self._put(values, name, out[:, at], start)
                at += 1
                continue
            places = level_codes(column, name, self._levels[name], start)
            if self._coded:
                fields[code_field(name)] = places.astype(code_type(len(self._levels[name])))
            else:
                others = np.arange(1, len(self._levels[name]))
                out[:, at : at + len(others)] = places[:, None] == others
                at += span.stop - span.start
        for j, (part, name) in enumerate(self._scalars.items(), start=self._width):
            column = joined(batch.column(name))
            values = numbers(column, name, start, "convert it to numbers (such as 0 and 1) first")
            originals[j] = self._put(values, name, out[:, j], start)
            fields[part] = out[:, j]
        require_finite(out, self._labels, start, lambda row, column: originals[column][row])
        return fields | ({"x": out[:, : self._width]} if self._width else {})

    def _text_remedy(self, name: str) -> str:
        if self._from_table:
            coded = argument("categorical", [name])
            return f"pass {coded} to code it as levels, or convert it to numbers"
        return f"use Rows.from_table with categorical=[{name!r}], or convert it to numbers"

    def _put(self, values: Array, name: str, out: Array, start: int) -> Array:
        require_exact(values, self.dtype, lambda _: name, start)
        with np.errstate(over="ignore"):
            out[:] = values
        return values

    def blocks(self, unread: Unread) -> Iterator[Array]:
        """Yield the unread rows as packed blocks that fit in cache."""
        weight = WeightCheck(self.roles.weight) if self.roles.weight else None
        description = self.describe(1)
        start, step = unread.first, block_rows(description.width)
        for batch in unread.batches(self.roles.needed):
            for at in range(0, batch.num_rows, step):
                fields = self.encode(batch.slice(at, step), start)
                if weight:
                    weight.add(fields["weight"], start)
                block = description.pack(fields)
                start += len(block)
                yield block
        if start == 0 and self.roles.outcome is not None:  # there may be nothing to predict
            raise DataError("there are no rows in the data: at least one is needed.")
        if weight:
            weight.finish()


def read_source(
    source: Source, choice: ColumnChoice, dtype: object, rest: Unread | None = None
) -> tuple[Encoder, Iterator[Array]]:
    """Return the encoder for a source, and the packed blocks of its rows, in order.

    A source with categorical columns is read twice, the first time only those columns. If `rest` is
    given, the blocks are only those of its unread rows.
    """
    columns = resolve(source.names, choice)
    if source.rows == 0:
        raise DataError("there are no rows in the data: at least one is needed.")
    roles = _with_text_categorical(columns, source)
    plain = [name for name in roles.needed if name not in roles.categorical]
    kind = as_dtype(dtype, floating(source.types(plain)))
    levels = {}
    if roles.categorical:
        references = {name: roles.references[name] for name in roles.categorical}
        levels = collect_levels(source.batches(roles.categorical), references)
        for name in roles.categorical:
            if name not in columns.references:
                remedy = f"pass {argument('categorical', [name])} to code the column as levels"
                refuse_stray_text(source, name, levels[name], remedy)
                _refuse_many(name, levels[name])
    encoder = Encoder(roles, levels, kind, dense=choice.dense)
    unread = Unread(source) if rest is None else rest
    return encoder, encoder.blocks(unread)


def _with_text_categorical(roles: Roles, source: Source) -> Roles:
    """Treat text and categories among the predictors as categorical."""
    types = zip(roles.predictors, source.types(roles.predictors), strict=True)
    text = [name for name, kind in types if _is_text(kind) or is_dictionary(kind)]
    return replace(roles, references={**dict.fromkeys(text), **roles.references})


def _refuse_many(name: str, levels: tuple[Level, ...]) -> None:
    if len(levels) > MOST_UNDECLARED:
        raise DataError(
            f"column {name!r} holds text with {len(levels):,} levels, and each would have a "
            "coefficient: make it a group in mo.fit, (1 | column), leave the column out, or pass "
            f"{argument('categorical', [name])} if you mean that."
        )


def read_table(
    table: object, choice: ColumnChoice, dtype: object
) -> tuple[Description, Iterator[Array]]:
    """Describe and encode a table in memory."""
    if not is_table(table):
        raise SettingError(
            f"from_table takes a pandas, polars or pyarrow table, not {type(table).__name__}: "
            "for arrays use Rows(x=..., y=...), for files modicum.rows.ingest."
        )
    source = TableSource(table)
    encoder, blocks = read_source(source, choice, dtype)
    return encoder.describe(source.rows or 0), blocks


def read_table_like(
    table: object, schema: RowsSchema, outcome: bool
) -> tuple[Description, Iterator[Array]]:
    """Describe and encode a table with the columns, levels and references of other rows."""
    if not schema.columns:
        raise SettingError("the other rows have no named columns: pass arrays instead of a table.")
    for part in ("offset", *(["outcome"] if outcome and schema.outcome is None else [])):
        if part == "outcome" or (part in schema.fields and part not in schema.parts):
            raise SettingError(
                f"the other rows do not say which column of the table is the {part}: make the rows "
                f"with Rows.from_table(table, {part}=...)."
            )
    source = TableSource(table)
    column_of = {field: table_column(field, source.names) for field in schema.levels}
    coded = {f"{f}[{v}]": column_of[f] for f, levels in schema.levels.items() for v in levels[1:]}
    predictors = list(dict.fromkeys(coded.get(column, column) for column in schema.columns))
    weight = schema.parts.get("weight")
    choice = ColumnChoice(
        schema.outcome if outcome else None,
        predictors,
        schema.parts.get("offset"),
        weight if outcome and weight in source.names else None,
        {column_of[field]: level for field, level in schema.reference.items()},
    )
    roles = resolve(source.names, choice)
    plain = [name for name in roles.needed if name not in roles.categorical]
    of_schema = {column_of[field]: levels for field, levels in schema.levels.items()}
    levels = {name: levels_like(source, name, of_schema[name]) for name in roles.categorical}
    kind = as_dtype(None, floating(source.types(plain)))
    encoder = Encoder(roles, levels, kind, dense=schema.coding is None)
    # Use the names of the other rows, however this table writes its levels.
    description = replace(
        encoder.describe(source.rows or 0), columns=schema.columns, levels=dict(schema.levels)
    )
    return description, encoder.blocks(Unread(source))


def floating(types: Iterable[pa.DataType]) -> list[DType]:
    """Return the floating types among the columns' types (a decimal counts as float64)."""
    from pyarrow import types as kinds

    dtypes: list[DType] = []
    for kind in types:
        if kinds.is_floating(kind):
            dtypes.append(np.dtype(kind.to_pandas_dtype()))
        elif kinds.is_decimal(kind):
            dtypes.append(np.dtype(np.float64))
    return dtypes


def numbers(array: pa.Array, name: str, start: int, text_remedy: str) -> Array:
    """Return an Arrow column as a NumPy array of integers, booleans or floats; refuse others."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind) or _is_text(kind):
        raise DataError(_text_message(array, name, start, text_remedy))
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(missing(name, start + row))
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"column {name!r} holds values of type {kind}: convert it to a number first, or leave "
            "it out."
        )
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _text_message(array: pa.Array, name: str, start: int, remedy: str) -> str:
    values = array.to_pylist()
    row = next((i for i, v in enumerate(values) if v is not None and not reads_as_number(v)), None)
    if row is None:
        row = next((i for i, v in enumerate(values) if v is not None), 0)
    kind = "text" if isinstance(values[row], str) else "categories"
    return f"column {name!r} holds {kind} ({values[row]!r} in row {start + row}): {remedy}."
