"""Fields given as arrays, series or data frames: described and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.libraries import pyarrow as pa
from modicum.rows.checks import (
    WeightCheck,
    as_dtype,
    block_rows,
    common_length,
    in_type,
    name_list,
    reads_as_number,
)
from modicum.rows.coding import Array, DType, Level, LevelArray, code_type, treatment
from modicum.rows.description import KINDS, Description, RowsSchema
from modicum.rows.levels import MOST_LEVELS, distinct, joined, numbers, ordered, reference_first
from modicum.rows.memory import RowStream
from modicum.rows.sources import TableSource, arrow_column, is_series, is_table, library

# Fields of one number per row; but an offset may hold one per class, and user-defined models may
# have a y of any shape.
SCALARS = ("y", "offset", "weight")


class NumberField:
    """A field of numbers: one array of any shape, or the columns of a data frame or a series."""

    def __init__(self, name: str, value: Any) -> None:  # of a library that may not be installed
        self.title: str | None = None  # the name of a series
        self.columns: tuple[str, ...] = ()  # of a frame or a series
        self.shape: tuple[int, ...] = ()
        if is_series(value):
            self.title = str(value.name) if getattr(value, "name", None) else None
            column = arrow_column(value, name)
            self._arrays = _column_arrays(pa.table({name: column}), name in SCALARS)
            self.columns = (name,)
        elif is_table(value):
            source = TableSource(value)
            self._arrays = _column_arrays(source.table(source.names), False)
            self.columns, self.shape = source.names, (len(source.names),)
        else:
            self._arrays = [_as_array(name, value)]
            self.shape = self._arrays[0].shape[1:]
        if 0 in self.shape:
            shape = (len(value), *self.shape)
            raise DataError(f"field {name!r} has shape {shape}: it has no columns.")
        if name in SCALARS and self.shape == (1,):  # which would broadcast against (n,) to (n, n)
            self.title, self.shape = self.columns[0] if self.columns else None, ()
        self.n = len(self._arrays[0])
        dtypes = [array.dtype for array in self._arrays]
        self.floating = [dtype for dtype in dtypes if dtype.kind == "f"]
        kinds = {KINDS.get(dtype.kind) for dtype in dtypes}
        self.kind = kinds.pop() if len(kinds) == 1 else None

    def part(self, start: int, stop: int, dtype: DType, labels: Sequence[str]) -> Array:
        """Rows from `start` up to `stop`; a view if type and layout already fit."""
        rows, parts = range(start, stop), [array[start:stop] for array in self._arrays]
        if len(parts) == 1:
            array = in_type(parts[0], dtype, self.columns or labels, rows)
            return array.reshape(len(array), *self.shape)
        named = zip(parts, self.columns, strict=True)
        return np.stack([in_type(part, dtype, [name], rows) for part, name in named], axis=1)

    def ready(self, dtype: DType) -> Array | None:
        """Return the array that the user gave if type and layout already fit; otherwise None."""
        array = self._arrays[0]
        fits = not self.columns and array.dtype == dtype and array.flags.c_contiguous
        return array.reshape(self.n, *self.shape) if fits else None


def _column_arrays(table: pa.Table, scalar: bool) -> list[Array]:
    """Return the columns of a table, which must be numbers."""
    table_remedy = "use Rows.from_table with categorical=[{!r}], or convert it to numbers"
    remedy = "convert it to numbers (such as 0 and 1) first" if scalar else table_remedy
    return [
        numbers(joined(table.column(name)), name, range(table.num_rows), remedy.format(name))
        for name in table.column_names
    ]


def coded_factor(name: str, value: object, levels: tuple[Level, ...] | None) -> LevelArray:
    """Code the level of each row: text, whole numbers, or a categorical series.

    Levels that are not given are those that occur, in the order of the categories if `value` is
    categorical, otherwise sorted; the first is the reference. Codes have the smallest type.
    """
    column = _level_column(name, value)
    given = distinct(column, name, range(len(column)))
    if levels is None:
        in_order = pa.types.is_dictionary(column.type)  # the user's own order
        levels = (reference_first if in_order else ordered)(name, given.occurring)
    if len(levels) > MOST_LEVELS:
        raise DataError(
            f"the factor {name!r} has {len(levels):,} levels, more than {MOST_LEVELS:,}: group "
            "them, or leave it out."
        )
    places = given.places(levels)
    if np.any(places < 0):
        row = int(np.argmax(places < 0))
        raise DataError(
            f"column {name!r} holds {given.values[given.codes[row]]!r} in row {row}, which the "
            "rows of the fit did not; leave such rows out, or fit again with rows that have them."
        )
    return LevelArray(levels, places.astype(code_type(len(levels))))


def _level_column(name: str, value: Any) -> pa.Array:  # a categorical column of any library
    """Return the level of each row as an Arrow array."""
    if is_table(value) or isinstance(value, str | PathLike | Mapping):
        raise DataError(f"the factor {name!r} must be one level per row, not a table or text.")
    if library(value) not in ("pandas", "polars", "pyarrow"):
        # As objects: NumPy would turn a list that mixes text and numbers into text.
        value = np.asarray(value, dtype=getattr(value, "dtype", object))
        value = value[:, 0] if value.shape[1:] == (1,) else value
        if value.ndim != 1:
            raise DataError(f"the factor {name!r} must hold one level per row.")
    return joined(arrow_column(value, name))


def field_stream(
    fields: Mapping[str, object],
    columns: object,
    dtype: object,
    codes: object = None,
    like: RowsSchema | None = None,
) -> RowStream:
    """Return rows of fields as the user gave them: described together, converted on demand.

    Rows `like` those of a fit, whose levels and columns they have, are to be predicted: there may
    be none.
    """
    values = {name: value for name, value in fields.items() if value is not None}
    factors = _factors(codes, values)
    if not values and not factors:
        raise SettingError("there are no fields: pass at least one, such as Rows(x=X, y=y).")
    for name in (*values, *factors):
        if not isinstance(name, str):
            raise SettingError(f"field names must be text, not {name!r}.")
    _refuse_other_order({**values, **factors})
    numbers = {name: _field(name, value) for name, value in values.items()}
    known = {} if like is None else like.levels
    coded = {k: coded_factor(k, value, known.get(k)) for k, value in factors.items()}
    coded_rows = {name: factor.codes for name, factor in coded.items()}
    lengths = {name: field.n for name, field in numbers.items()}
    n = common_length("field", lengths | {name: len(codes) for name, codes in coded_rows.items()})
    if n == 0 and like is None:
        first = next(iter((*values, *factors)))
        raise DataError(f"field {first!r} has no rows: at least one is needed.")
    about = Description(
        n=n,
        dtype=as_dtype(dtype, [f for field in numbers.values() for f in field.floating]),
        fields={k: field.shape for k, field in numbers.items()} | dict.fromkeys(coded, ()),
        codes={name: codes.dtype for name, codes in coded_rows.items()},
        columns=_column_names(numbers.get("x"), columns),
        outcome=numbers["y"].title if "y" in numbers else None,
        kinds={name: field.kind for name, field in numbers.items() if field.kind is not None},
    )
    about = _with_factors(about, coded) if coded else about
    if coded and like is not None and like.coding is not None:
        about = about.like(like)

    def chunks(_: int) -> Iterator[dict[str, Array]]:
        """Convert and check the rows, one block at a time; arrays that fit are viewed."""
        step, labels = block_rows(about.width), {name: about.labels(name) for name in numbers}
        check = WeightCheck("weight") if "weight" in numbers and n else None
        for start in range(0, n, step):
            stop = min(start + step, n)
            parts = {
                name: field.part(start, stop, about.dtype, labels[name])
                for name, field in numbers.items()
            }
            if check:
                check.add(parts["weight"], range(start, stop))
            yield parts | {name: codes[start:stop] for name, codes in coded_rows.items()}
        if check:
            check.finish()

    ready = {name: field.ready(about.dtype) for name, field in numbers.items()}
    lent = {name: array for name, array in ready.items() if array is not None}
    return RowStream(about, chunks, n, lent | coded_rows)


def _refuse_other_order(values: Mapping[str, Any]) -> None:  # fields as they were passed
    """Refuse frames or series whose rows have the same labels in different orders.

    Fields are matched by position. Different labels carry no information, but the same labels in
    another order show that one of the two fields was sorted or shuffled alone.
    """
    indexed = {
        name: value.index
        for name, value in values.items()
        if library(value) == "pandas" and type(value).__name__ in ("DataFrame", "Series")
    }
    for name, index in indexed.items():
        first, base = next(iter(indexed.items()))
        if index is base or len(index) != len(base) or index.equals(base):
            continue
        if sorted(map(str, index)) == sorted(map(str, base)):
            raise DataError(
                f"{name!r} has the same index as {first!r} in another order, but rows are matched "
                f"by position: put them in one order, as by {name}.loc[{first}.index], or drop the "
                "index with .to_numpy() if the rows match as they are."
            )


def _factors(codes: object, fields: Mapping[str, object]) -> dict[str, object]:
    """Return the factors by name; refuse anything but a mapping or a table."""
    if codes is None:
        return {}
    if is_table(codes):
        codes = {str(name): codes[name] for name in TableSource(codes).names}  # type: ignore[index]
    if not isinstance(codes, Mapping):
        raise SettingError(
            "codes must map the name of each factor to its levels, one per row, such as "
            f"codes={{'carrier': carrier}}, not {type(codes).__name__}."
        )
    for name in codes:
        if name in fields or name in ("x", *SCALARS):
            raise SettingError(
                f"the factor {name!r} has the name of a field: call it something else."
            )
    return dict(codes)


def _with_factors(description: Description, factors: Mapping[str, LevelArray]) -> Description:
    """Add factors to a description: after the columns of x, in treatment contrasts."""
    shape = description.fields.get("x", (0,))
    if len(shape) != 1:
        raise DataError("with codes, x must be a matrix: one vector of numbers per row.")
    levels = {name: factor.values for name, factor in factors.items()}
    coding = treatment(shape[0], {name: len(of) for name, of in levels.items()})
    names = [f"{name}[{level}]" for name, of in levels.items() for level in of[1:]]
    columns = (*description.columns, *names)
    clash = [name for name, count in Counter(columns).items() if count > 1]
    if clash:
        raise DataError(
            f"two columns would be named {clash[0]!r}, one of them for a level of a factor: rename "
            "the other."
        )
    return replace(description, columns=columns, levels=levels, coding=coding)


def _field(name: str, value: object) -> NumberField:
    if isinstance(value, str | PathLike):
        raise SettingError(
            f"field {name!r} is a path: use Rows.open for a store, modicum.rows.ingest for files."
        )
    field = NumberField(name, value)
    # A softmax regression has an offset per class.
    may_be_vector = name == "y" or (name == "offset" and len(field.shape) == 1)
    if name in SCALARS and field.shape != () and not may_be_vector:
        raise DataError(
            f"field {name!r} has shape {(field.n, *field.shape)}: it must hold one number per row."
        )
    return field


def _column_names(x: NumberField | None, columns: object) -> tuple[str, ...]:
    if x is None or len(x.shape) != 1:
        if columns is not None:
            raise SettingError(
                "columns names the columns of a two-dimensional x, but there is no such x."
            )
        return ()
    if columns is None:
        return x.columns or tuple(f"x{j}" for j in range(x.shape[0]))
    names = tuple(str(name) for name in name_list("columns", columns))
    if len(names) != x.shape[0]:
        raise SettingError(f"columns has {len(names)} names and x has {x.shape[0]} columns.")
    if len(set(names)) < len(names):
        raise SettingError("columns holds the same name twice: give each column its own name.")
    return names


def _as_array(name: str, value: object) -> Array:
    if hasattr(value, "toarray"):
        raise DataError(f"field {name!r} is a sparse matrix: pass {name}.toarray().")
    if np.ma.isMaskedArray(value) and np.ma.getmaskarray(value).any():
        row = int(np.argwhere(np.ma.getmaskarray(value))[0][0])
        raise DataError(f"column {name!r} holds a masked value in row {row}: drop or fill it.")
    try:
        array = np.asarray(value)
    except ValueError:
        raise DataError(_ragged_message(name, value)) from None
    if array.dtype.name.startswith(("bfloat16", "float8")):  # JAX types, which NumPy lacks
        array = array.astype(np.float32)
    if array.ndim == 0:
        raise DataError(
            f"field {name!r} is a single {type(value).__name__}, not rows: pass an array."
        )
    if array.dtype.kind not in "fiub":
        raise DataError(_not_numbers_message(name, array))
    return array


def _ragged_message(name: str, value: Any) -> str:  # anything a user passed
    shapes = [np.shape(np.asarray(row, dtype=object)) for row in value]
    row = next(i for i, shape in enumerate(shapes) if shape != shapes[0]) if shapes else 0
    return f"column {name!r} changes its length in row {row}: all rows need the same length."


def _not_numbers_message(name: str, array: Array) -> str:
    if array.dtype.kind == "c":
        return f"column {name!r} holds complex numbers: pass real ones."
    if array.dtype.kind in "Mm":
        return f"column {name!r} holds dates or times: convert them to numbers first."
    flat = array.reshape(array.shape[0], -1)
    for row, values in enumerate(flat.tolist()):
        for value in values:
            if not reads_as_number(value):
                text = "a missing value (None)" if value is None else repr(value)[:40]
                return f"column {name!r} holds {text} in row {row}: every value must be a number."
    return (
        f"column {name!r} holds numbers as text or objects: "
        f"convert it with numpy.asarray({name}, dtype=float)."
    )
