"""Columns of a table become packed rows of numbers: the one place where that happens.

Which column plays which part (`Roles`), which levels the categorical ones have, and how all of
them are written side by side (`Encoder`).
"""

from __future__ import annotations

import re
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
from modicum.rows.coding import CodedTerm, Coding, code_type
from modicum.rows.description import (
    Array,
    Description,
    DType,
    Field,
    Level,
    RowsSchema,
    level_names,
    level_places,
)
from modicum.rows.sources import Source, TableSource, Unread, is_table

if TYPE_CHECKING:
    import pyarrow as pa

# More columns than this are no treatment coding any more, and would not fit in memory either.
MOST_LEVELS = 10_000
# Of a column of text that nobody called categorical.
MOST_UNTOLD = 500
# Fields that are no codes, and what a factor of such a name is called instead.
RESERVED = ("x", "y", "offset", "weight")
CODE = " (code)"
NUMBER = r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?"


class ColumnChoice(NamedTuple):
    """The columns the user named, as in `Rows.from_table`; nothing is checked yet."""

    outcome: str | None = "y"
    predictors: Sequence[str] | None = None
    offset: str | None = None
    weight: str | None = None
    categorical: Sequence[str] | Mapping[str, Level | None] = ()
    dense: bool = False


@dataclass(frozen=True)
class Roles:
    """The columns that are used, by part; `references` maps a categorical to its reference."""

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
    """Check the user's column names against the table's and give each its part."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"column {twice[0]!r} occurs more than once: rename one of them.")
    parts = {"outcome": choice.outcome, "offset": choice.offset, "weight": choice.weight}
    others = {part: _column(part, name, names) for part, name in parts.items() if name is not None}
    if len(set(others.values())) < len(others):
        raise SettingError(f"one column cannot play two parts: {others}.")
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
        again = Counter(chosen).most_common(1)[0][0]
        raise SettingError(f"predictor {again!r} is named twice: remove one.")
    return chosen


def _references(categorical: object) -> dict[str, Level | None]:
    if isinstance(categorical, Mapping):
        for name, level in categorical.items():
            if level is not None and not isinstance(level, str | int | float | np.generic):
                raise SettingError(
                    f"the reference level of column {name!r} must be a text or a number, not a "
                    f"{type(level).__name__}."
                )
        return dict(categorical)
    names = name_list("categorical", categorical)
    return dict.fromkeys(_text("categorical", name) for name in names)


def _text(part: str, name: object) -> str:
    if not isinstance(name, str):
        raise SettingError(f"{part} must be the name of a column, not {type(name).__name__}.")
    return name


def distinct(array: pa.Array, name: str, start: int = 0) -> tuple[list[Level], Array]:
    """Distinct values and, for each row, which of them it holds."""
    import pyarrow as pa

    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    if array.indices.null_count:
        row = int(np.argmax(array.indices.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(missing(name, start + row))
    values, codes = array.dictionary.to_pylist(), array.indices.to_numpy(zero_copy_only=False)
    for code, value in enumerate(values):
        unusable = not isinstance(value, str | int | float) or value != value
        if unusable and (codes == code).any():
            row = start + int(np.argmax(codes == code))
            if value is None or value != value:
                raise DataError(missing(name, row))
            raise DataError(
                f"categorical column {name!r} holds a {type(value).__name__} in row {row}: "
                "convert it to text or to whole numbers first."
            )
    return values, codes


def collect_levels(
    batches: Iterable[pa.RecordBatch], references: Mapping[str, Level | None]
) -> dict[str, tuple[Level, ...]]:
    """Levels that occur in each categorical column, the reference first, the others sorted."""
    # Dictionaries without values: sets that remember the order.
    occurring: dict[str, dict[Level, None]] = {name: {} for name in references}
    start = 0
    for batch in batches:
        for name, levels in occurring.items():
            values, codes = distinct(batch.column(name), name, start)
            levels.update(dict.fromkeys(values[code] for code in np.unique(codes)))
            if len(levels) > MOST_LEVELS:
                raise DataError(
                    f"categorical column {name!r} has more than {MOST_LEVELS} levels by row "
                    f"{start + batch.num_rows - 1}: group them, or leave the column out."
                )
        start += batch.num_rows
    return {name: ordered(name, levels, references[name]) for name, levels in occurring.items()}


def ordered(
    name: str, occurring: Iterable[Level], reference: Level | None = None
) -> tuple[Level, ...]:
    """Levels in order, the reference first; one level alone is refused."""
    levels = _sorted(name, occurring)
    if len(levels) < 2:
        raise DataError(
            f"categorical column {name!r} holds one level only ({levels[0]!r} from row 0 on): "
            "leave it out, the intercept already says it."
            if levels
            else f"categorical column {name!r} has no rows: at least one is needed."
        )
    if reference is None:
        return tuple(levels)
    matches = [v for v in levels if v == reference] or [
        v for v in levels if str(v) == str(reference)
    ]
    if not matches:
        raise SettingError(
            f"reference level {reference!r} does not occur in column {name!r}: "
            f"{names_like(reference, levels)}"
        )
    return (matches[0], *(v for v in levels if v is not matches[0]))


def _sorted(name: str, levels: Iterable[Level]) -> list[Level]:
    """Levels in order; text that reads as numbers throughout is ordered as numbers.

    A column of hours then has the same reference level from a CSV file, where levels are text,
    as from a Parquet file, where they are numbers.
    """
    values = list(levels)
    texts = [v for v in values if isinstance(v, str)]
    if texts and len(texts) < len(values):
        raise DataError(
            f"categorical column {name!r} holds text in some files and numbers in others: "
            "convert it to one kind first."
        )
    if texts and all(re.fullmatch(r"[+-]?[0-9]+([.][0-9]*)?", v) for v in texts):
        return sorted(texts, key=lambda v: (float(v), v))
    return sorted(values)  # all are texts, or all are numbers


def level_codes(array: pa.Array, name: str, levels: tuple[Level, ...], start: int) -> Array:
    """Return the place among `levels` of what each row of `array` holds."""
    values, codes = distinct(array, name, start)
    place = {level: i for i, level in enumerate(levels)}
    places: Array = np.array([place.get(value, -1) for value in values] or [-1])[codes]
    if len(places) and places.min() < 0:
        row = int(np.argmax(places < 0))
        raise DataError(
            f"categorical column {name!r} holds {values[codes[row]]!r} in row {start + row}, which "
            "was not there on the first reading: the source changed, read it again."
        )
    return places


def code_field(column: str) -> str:
    """Return the field that holds the codes of a column; the names of other fields are taken."""
    return f"{column}{CODE}" if column in RESERVED else column


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
    """Return an arrow column as a NumPy array of integers, booleans or floats; refuse others."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind) or _is_text(kind):
        raise DataError(_text_sentence(array, name, start, text_remedy))
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(missing(name, start + row))
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"column {name!r} holds values of type {kind} from row {start} on: "
            "convert it to a number first, or leave it out."
        )
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _text_sentence(array: pa.Array, name: str, start: int, remedy: str) -> str:
    values = array.to_pylist()
    row = next((i for i, v in enumerate(values) if v is not None and not reads_as_number(v)), None)
    if row is None:
        row = next((i for i, v in enumerate(values) if v is not None), 0)
    kind = "text" if isinstance(values[row], str) else "categories"
    return f"column {name!r} holds {kind} ({values[row]!r} in row {start + row}): {remedy}."


class Encoder:
    """Turns record batches into packed rows: predictors, outcome, offset, weight.

    Parameters
    ----------
    roles : Roles
        Which column is what.
    levels : mapping
        Levels of the categorical columns, the reference first.
    dtype : numpy.dtype
    from_table : bool
        Whether the user could have said that a column is categorical.
    dense : bool
        Whether categorical columns become columns of zeros and ones; else they stay codes.
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
        self._spans: dict[str, slice] = {}  # of each predictor, among all columns
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
        """Numbers and codes in the order of the predictors."""
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
        """Fields of a batch that begins at row `start`, every number checked."""
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
        """Packed rows of all that is unread, in blocks that stay in cache."""
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
        if start == 0:
            raise DataError("there are no rows in the data: at least one is needed.")
        if weight:
            weight.finish()


def joined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column of a batch or of a table as one array."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def read_source(
    source: Source, choice: ColumnChoice, dtype: object, rest: Unread | None = None
) -> tuple[Encoder, Iterator[Array]]:
    """Return the encoder for a source, and the packed blocks of its rows, in order.

    A source with categorical columns is read twice, the first time only those columns. Blocks are
    of the `rest` of its rows, where some have been read before.
    """
    columns = resolve(source.names, choice)
    if source.rows == 0:
        raise DataError("there are no rows in the data: at least one is needed.")
    roles = _with_text(columns, source)
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


def _with_text(roles: Roles, source: Source) -> Roles:
    """Text and categories among the predictors are categorical without being told."""
    types = zip(roles.predictors, source.types(roles.predictors), strict=True)
    text = [name for name, kind in types if _is_text(kind) or _is_dictionary(kind)]
    return replace(roles, references={**dict.fromkeys(text), **roles.references})


def _refuse_many(name: str, levels: tuple[Level, ...]) -> None:
    if len(levels) > MOST_UNTOLD:
        raise DataError(
            f"column {name!r} holds text with {len(levels):,} levels, and each would have a "
            "coefficient: let it be a group of mo.fit, (1 | column), leave the column out, or pass "
            f"{argument('categorical', [name])} if that is meant."
        )


def refuse_stray_text(source: Source, name: str, levels: Iterable[Level], remedy: str) -> None:
    """Refuse a column of numbers in which a few values are text: it is no column of levels."""
    texts = [level for level in levels if isinstance(level, str)]
    stray = [level for level in texts if not re.fullmatch(NUMBER, level.strip())]
    if not stray or len(stray) == len(texts):
        return
    start = 0
    for batch in source.batches([name]):
        values, codes = distinct(joined(batch.column(name)).drop_null(), name, start)
        for code in np.unique(codes):
            if values[code] in stray:
                column = joined(batch.column(name)).to_pylist()
                row = start + column.index(values[code])
                raise DataError(
                    f"column {name!r} holds text ({values[code]!r} in row {row}) among numbers: "
                    f"mend the value, or {remedy}."
                )
        start += batch.num_rows


def _is_dictionary(kind: pa.DataType) -> bool:
    from pyarrow import types as kinds

    return bool(kinds.is_dictionary(kind))


def read_table_like(
    table: object, schema: RowsSchema, outcome: bool
) -> tuple[Description, Iterator[Array]]:
    """Describe and encode a table with the columns, levels and references of other rows."""
    if not schema.columns:
        raise SettingError("the other rows have no named columns: give arrays instead of a table.")
    for part in ("offset", *(["outcome"] if outcome and schema.outcome is None else [])):
        if part == "outcome" or (part in schema.fields and part not in schema.parts):
            raise SettingError(
                f"the other rows do not say which column of the table is the {part}: make rows "
                f"of it with Rows.from_table(table, {part}=...)."
            )
    source = TableSource(table)
    column_of = {field: _table_column(field, source.names) for field in schema.levels}
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
    if source.rows == 0:
        raise DataError("there are no rows in the data: at least one is needed.")
    plain = [name for name in roles.needed if name not in roles.categorical]
    known = {column_of[field]: levels for field, levels in schema.levels.items()}
    levels = {name: _levels_like(source, name, known[name]) for name in roles.categorical}
    kind = as_dtype(None, floating(source.types(plain)))
    encoder = Encoder(roles, levels, kind, dense=schema.coding is None)
    # The names are those of the other rows, however this table writes its levels.
    description = replace(
        encoder.describe(source.rows or 0), columns=schema.columns, levels=dict(schema.levels)
    )
    return description, encoder.blocks(Unread(source))


def _table_column(field: str, names: Sequence[str]) -> str:
    """Return the column of a table that a field of codes was made of; undoes `code_field`."""
    plain = field.removesuffix(CODE)
    return plain if field not in names and plain in RESERVED else field


def _levels_like(source: Source, name: str, known: Sequence[str]) -> tuple[Level, ...]:
    """Levels in a known order, each as this table writes it: 6 or "6"."""
    as_written: dict[str, Level] = {}
    start = 0
    for batch in source.batches([name]):
        values, codes = distinct(batch.column(name), name, start)
        places = level_places(known, values)
        for code in np.unique(codes):
            if places[code] < 0:
                raise DataError(
                    f"column {name!r} holds {values[code]!r} in row "
                    f"{start + int(np.argmax(codes == code))}, which the rows of the fit did not; "
                    "leave such rows out, or fit again with rows that have them."
                )
            as_written[known[places[code]]] = values[code]
        start += batch.num_rows
    return tuple(as_written.get(level, level) for level in known)


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
