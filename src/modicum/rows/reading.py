"""Makes rows, in memory or in a store, from any kind of table: by roles of columns or by a formula.

`ingest` writes a store. Existing rows are a table too. The rows of a fit, some of which may be
dropped or sorted, are mapped back to the rows of their table.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeGuard

import numpy as np

from modicum.errors import SettingError, argument, whole_number
from modicum.files import is_uri, place_name
from modicum.libraries import pyarrow as pa
from modicum.progress import Progressbar, phase, say
from modicum.rows.checks import MissingValueError, as_dtype, block_rows, in_type
from modicum.rows.coding import Array, Level, level_names
from modicum.rows.fields import field_stream
from modicum.rows.formula import Formula, FormulaEncoding, learn, parse
from modicum.rows.formula.expressions import Expression
from modicum.rows.formula.neighbours import read_regions
from modicum.rows.formula.parsing import WEIGHTS
from modicum.rows.lake import cache_folder
from modicum.rows.levels import complete_rows
from modicum.rows.memory import RowStream, encoded, stream_of
from modicum.rows.object_storage import place_of
from modicum.rows.rows import CHUNK, Rows
from modicum.rows.sources import BATCH_ROWS, Source, is_columns, is_table
from modicum.rows.table_encoding import ChosenColumns, columns_of
from modicum.rows.tables import is_dataset, open_table
from modicum.rows.writing import write_store


def ingest(
    source: object,
    store: str | Path,
    outcome: str | None = "y",
    predictors: Sequence[str] | None = None,
    offset: str | None = None,
    weight: str | None = None,
    categorical: Sequence[str] | Mapping[str, Level | None] = (),
    dtype: object = "float32",
    shard_rows: int | None = None,
    progressbar: Progressbar = True,
    overwrite: bool = False,
    encoding: str = "utf-8",
    sort_by: str | None = None,
    dense: bool = False,
) -> Rows:
    r"""Write a row store from files, a table or arrays, and open it.

    The source is read in small batches, so the data need not fit in memory. The store appears
    under its name when it is complete; an ingest that fails leaves nothing there. If an ingest of
    files is killed or loses its connection, the next call with the same files and arguments
    continues after the last complete shard, unless rows are sorted.

    Parameters
    ----------
    source : path, table, mapping or Rows
        A Parquet, CSV or Arrow (Feather) file, a folder or glob of one kind of such files (read in
        the order of their names; ``year=2024`` in a folder's name is a column), the same on
        object storage (``s3://bucket/folder``, ``gs://...``), a list of them, a store, a pandas
        or polars data frame or LazyFrame, a pyarrow table or dataset (which may have a filter), a
        list or an iterator of tables, a mapping of field names to arrays (then the column
        arguments do not apply), or `Rows`.
    store : path
        The folder to create, or its URI on object storage (``s3://bucket/folder``), to which each
        shard is sent when it is finished.
    outcome, predictors, offset, weight, categorical, dense
        As in `Rows.from_table`. Categorical columns of CSV files are read as text: "01234" and
        "1234" are two levels.
    dtype : float32, float64, uint8 or None
        Type of all numbers; None as in `Rows`, or the type of the source if it is `Rows`.
    shard_rows : int, optional
        Rows per file of the store; by default about a gigabyte of them.
    progressbar : bool or callable
        As in `mo.sample`.
    overwrite : bool
        Replace an existing store, in one step when the new one is complete. A folder that holds
        anything else is never replaced.
    encoding : str
        Encoding of CSV files, by its Python name ("latin-1", "utf-16", ...). Other formats define
        their own.
    sort_by : str, optional
        A field with one number per row by which the rows are sorted, in bounded memory. The rows of
        a group are then contiguous, as models that integrate out group effects require. While
        sorting, the rows take twice their size on disk.

    Returns
    -------
    Rows

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("dose,well\n0.5,0\n1.5,1\n2.5,1\n")
    >>> rows = ingest(folder / "a.csv", folder / "store", outcome="well", progressbar=False)
    >>> rows.columns, rows.outcome, len(rows), rows.is_store
    (('dose',), 'well', 3, True)
    """
    if shard_rows is not None:
        whole_number("shard_rows", shard_rows)
    if not isinstance(store, str | os.PathLike):
        raise SettingError(f"the store must be a path, not a {type(store).__name__}.")
    choice = ChosenColumns(outcome, predictors, offset, weight, categorical, dense)
    place_of(store).refuse_existing(overwrite)
    if is_store(source):
        source = Rows.open(source)
    identity = None
    if isinstance(source, Rows | Mapping):
        if choice != ChosenColumns():
            raise SettingError(
                "outcome, predictors, offset, weight, categorical and dense choose columns of a "
                "table, but the source already has fields: leave them out."
            )
        rows = _fields_of(source, dtype)
    else:
        names = categorical if isinstance(categorical, Iterable) else ()
        table = open_table(source, encoding)
        table = table.with_text([name for name in names if isinstance(name, str)])
        # With weights, an ingest starts over: their check needs the weights of all rows.
        if weight is None:
            identity = identity_of(table, choice, dtype, encoding, shard_rows)
        rows = columns_of(table, choice, dtype)
    return write_store(rows, store, overwrite, progressbar, shard_rows, sort_by, identity)


def identity_of(source: object, *settings: object) -> str | None:
    """Return a hash of files and settings; None for data that may change without notice."""
    files = getattr(source, "identity", None)
    return None if files is None else hashlib.sha256(repr((files, settings)).encode()).hexdigest()


def _fields_of(source: Rows | Mapping[str, object], dtype: object) -> RowStream:
    """Return rows that have fields already, perhaps in a narrower type."""
    if isinstance(source, Mapping):
        arrays = {name: value for name, value in source.items() if name != "codes"}
        return field_stream(arrays, None, dtype, source.get("codes"))
    kind = source.dtype if dtype is None else as_dtype(dtype, [])
    about = replace(source._description, dtype=kind)
    fields = {name: about.fields[name] for name in about.numbers}
    labels = [label for name in fields for label in about.labels(name)]
    numbers = replace(about, fields=fields, codes={}, coding=None)

    def chunks(start: int) -> Iterator[dict[str, Array]]:
        for chunk in source.chunks(block_rows(about.width)):
            block = replace(numbers, dtype=source.dtype).pack(chunk)
            block = in_type(block, kind, labels, range(start, start + len(block)))
            yield chunk | numbers.split(block)
            start += len(block)

    return RowStream(about, chunks, len(source))


def is_store(source: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether `source` is the path or the URI of a row store."""
    return isinstance(source, str | os.PathLike) and place_of(source).holds_store


class RowsSource(Source):
    """The columns of rows by name: numbers of x, factors, and every other scalar field.

    The outcome has its original name, or "y" if it had none. A factor that was coded as columns of
    zeros and ones becomes one column again. `roles` are the offset and the weight of the rows.
    """

    def __init__(self, rows: Rows) -> None:
        rows.require_unchanged()
        self._rows = rows
        self.rows = len(rows)
        coding = rows.coding
        dense = range(len(rows.columns)) if coding is None else coding.dense
        columns = {rows.columns[place]: j for j, place in enumerate(dense)}
        self._factors: dict[str, tuple[Level, ...]] = {}
        self._dummies: dict[str, list[int]] = {}
        for name, levels in rows.levels.items():
            places = [columns.pop(f"{name}[{level}]", -1) for level in level_names(levels)[1:]]
            self._factors[name] = levels
            if min(places) >= 0:
                self._dummies[name] = places
        self._numbers = columns
        coded = set() if coding is None else set(coding.fields)
        scalars = [f for f, shape in rows.fields.items() if shape == () and f not in coded]
        named = {rows.outcome or "y": "y"} if "y" in scalars else {}
        self._scalars = {f: f for f in scalars if f != "y" and f not in named} | named
        self.names = (*self._numbers, *self._factors, *self._scalars)
        self.roles = [f for f in ("offset", "weight") if f in scalars and f not in columns]

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns."""
        return list(self._batch(self._rows.slice(0, 1), columns).schema.types)

    def has_order(self, column: str) -> bool:
        """Whether the column is a factor, whose levels are already in order."""
        return column in self._factors

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches with (at least) these columns, in order."""
        for chunk in self._rows.chunks(BATCH_ROWS):
            yield self._batch(chunk, columns)

    def _batch(self, chunk: dict[str, Array], columns: Sequence[str]) -> pa.RecordBatch:
        return pa.record_batch({name: self._column(chunk, name) for name in columns})

    def _column(self, chunk: dict[str, Array], name: str) -> pa.Array:
        if name in self._numbers:
            return pa.array(np.ascontiguousarray(chunk["x"][:, self._numbers[name]]))
        if name in self._scalars:
            return pa.array(np.ascontiguousarray(chunk[self._scalars[name]]))
        codes = chunk.get(name)
        if codes is None:
            places = self._dummies[name]
            codes = chunk["x"][:, places] @ np.arange(1, len(places) + 1)
        levels = pa.array(list(self._factors[name]))
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), levels)


Missing: TypeAlias = Literal["refuse", "drop"]


@dataclass(frozen=True)
class TableFiles:
    """The files of a table: their places, and their encoding if they are CSV files."""

    places: tuple[str | os.PathLike[str], ...]
    encoding: str = "utf-8"

    @classmethod
    def of(cls, table: object, encoding: str = "utf-8") -> object:
        """Return a table of files as such if their path alone does not tell all, or tells too much.

        That is, if they are not in UTF-8, or have URIs, which may hold credentials.
        """
        entries = table if isinstance(table, list | tuple) else [table]
        places = tuple(place for place in entries if isinstance(place, str | os.PathLike))
        tells_all = encoding.lower() in ("utf-8", "utf8") and not any(map(is_uri, places))
        return table if tells_all or len(places) < len(entries) else cls(places, encoding)

    def __repr__(self) -> str:
        return f"TableFiles({', '.join(map(place_name, self.places))}, {self.encoding})"


def read_formula(
    formula: str,
    data: object,
    *,
    offset: str | None = None,
    weights: str | None = None,
    missing: Missing = "refuse",
    store: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    dtype: object = None,
    encoding: str = "utf-8",
    progressbar: Progressbar = True,
    by_class: str | None = None,
    matrices: Mapping[str, object] | None = None,
) -> Rows:
    """Make rows from a table by a formula, in bounded memory.

    The table is read twice: first to learn levels, knots and centres, then to encode it, one batch
    of rows at a time.

    Parameters
    ----------
    formula, data
        As in `mo.fit`.
    offset, weights
        Columns of offsets and weights.
    missing
        Whether a row with a missing value is refused or dropped.
    store
        A folder, or its URI on object storage, to write the rows to, sorted by the largest group.
        None keeps them in memory, in the order of the table.
    overwrite
        Whether an existing store may be replaced.
    dtype
        Type of the numbers; None as in `Rows`.
    encoding
        Encoding of CSV files.
    progressbar
        As in `mo.sample`.
    by_class
        The predictor whose terms each class has for itself, if any (`FormulaEncoding.by_class`).
    matrices
        Tables of neighbours, by the names that the formula has for them.

    Examples
    --------
    >>> import pandas as pd
    >>> flights = pd.DataFrame(
    ...     {"late": [1, 0, 1, 0], "carrier": ["UA", "AA", "DL", "AA"], "dist": [1.0, 2, 3, 4]})
    >>> rows = read_formula("late ~ carrier + np.log(dist)", flights, progressbar=False)
    >>> rows.columns
    ('carrier[DL]', 'carrier[UA]', 'np.log(dist)')
    """
    _require_text(formula, data, offset=offset, weights=weights)
    if missing not in ("refuse", "drop"):
        raise SettingError(f"missing must be 'refuse' or 'drop', not {missing!r}.")
    if store is not None:
        place_of(store).refuse_existing(overwrite)
    first = _source(data, encoding)
    taken = [name for name in (offset, weights, *first.roles) if name is not None]
    parsed = _with_offset(parse(formula, first.names, taken), offset)
    used = {weights, *(name for expression in parsed.expressions for name in expression.names)}
    for role in first.roles:
        if role not in used:
            remedy = WEIGHTS.format(role) if role == "weight" else f"pass {argument(role, role)}"
            raise SettingError(
                f"the rows have a field {role!r}, which this fit would ignore: {remedy}, or make "
                "the rows without it."
            )
    # Columns used only in C(...) or as groups are text in a CSV file, in which 01234 is not 1234.
    levels = [name for group in parsed.groups for name in group.group]
    computed: set[str] = set()
    for expression in parsed.expressions:
        as_levels = expression.categorical is not None or expression.regions is not None
        if as_levels and expression.inner.bare is not None:
            levels.append(expression.inner.bare)
        else:
            computed.update(expression.names)
    source = first.with_text([name for name in dict.fromkeys(levels) if name not in computed])
    if store is None and source.remote:
        neighbours = sorted(read_regions(matrices).items())
        settings = (str(formula), offset, weights, missing, str(dtype), by_class, neighbours)
        called = identity_of(source, *settings, version("modicum")) or ""
        cache = cache_folder() / "lake" / called[:24]
        if is_store(cache):
            say(f"reading the rows of {source.called} from the cache, {cache}", progressbar)
            return Rows.open(cache)
        say(f"caching the rows of {source.called} as a row store in {cache}", progressbar)
        cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # they may be confidential
        store, overwrite = cache, True
    drop = missing == "drop"
    try:
        with phase("read levels", None, progressbar):
            learned, total = learn(parsed, source, weight=weights, drop=drop, matrices=matrices)
        known = learned if by_class is None else learned.by_class(by_class)
        rows = stream_of(known, source, dtype, source.rows if total is None else total, drop)
        if store is None:
            with phase("read rows", rows.total, progressbar, "rows") as reading:
                return Rows._at(rows.in_memory(reading.advance))
        # An unfinished store is not continued if rows are dropped, since its rows then do not tell
        # how far the table was read, nor with weights, whose check needs the weights of all rows.
        identity = None
        if not drop and weights is None:
            regions = [factor.neighbours for factor in known.factors]
            identity = identity_of(source, known.formula, known.others, regions, dtype)
        group = known.largest_group
        return write_store(rows, store, overwrite, progressbar, sort_by=group, identity=identity)
    except MissingValueError as fault:
        remedy = f"fill it in, or drop such rows with {argument('missing', 'drop')}"
        raise MissingValueError(fault.column, fault.row, fault.value, remedy) from None


def _require_text(formula: object, data: object, **columns: object) -> None:
    """Refuse a formula that is not text, and arrays passed where column names belong."""
    if not isinstance(formula, str):
        swapped = isinstance(data, str) and "~" in data
        raise SettingError(
            f"the formula must be text such as 'y ~ a + b', not {type(formula).__name__}"
            + ("; it comes first, and the table after it." if swapped else ".")
        )
    for name, column in columns.items():
        if column is not None and not isinstance(column, str):
            raise SettingError(
                f"{name} must be the name of a column, not {type(column).__name__}: add the "
                "numbers to the table as a column, and pass its name."
            )


def encode_table(
    encoding: FormulaEncoding,
    table: object,
    *,
    outcome: bool,
    new_groups: bool = False,
    **how: Any,  # arguments of `encoded`
) -> Rows:
    """Make rows from any table that `read_formula` takes, by an encoding learned from another.

    Groups that the encoding does not know are refused, or with `new_groups` follow those it knows.
    The other arguments are those of `modicum.rows.memory.encoded`.
    """
    source = source_of(table, encoding)
    known = encoding.with_levels_of(source) if new_groups else encoding
    return Rows._at(encoded(known, source, outcome=outcome, **how))


def is_tabular(value: object) -> bool:
    """Whether `value` is a table for a formula: a frame, columns, files, a `Source`, or a list."""
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(map(is_tabular, value))
    single = is_table(value) or is_dataset(value) or is_columns(value) or hasattr(value, "batches")
    return single or isinstance(value, str | os.PathLike | TableFiles)


def source_of(table: object, encoding: FormulaEncoding | None = None) -> Source:
    """Return any table that `read_formula` takes as a `Source`; CSV files as the fit read them."""
    kinds = {} if encoding is None else encoding.kinds
    return _source(table).with_text([name for name, kind in kinds.items() if kind == "levels"])


def _with_offset(formula: Formula, offset: str | None) -> Formula:
    """Add the offset given as an argument; refuse one that would count twice."""
    offsets = formula.offsets + (() if offset is None else (Expression.column(offset),))
    labels = [expression.label for expression in offsets]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise SettingError(f"the offset {twice[0]!r} is given twice: leave one of them out.")
    return replace(formula, offsets=offsets)


def _source(data: object, text_encoding: str = "utf-8") -> Source:
    if isinstance(data, TableFiles):
        places = data.places
        return _source(places[0] if len(places) == 1 else places, data.encoding)
    if is_store(data):
        data = Rows.open(data)
    if isinstance(data, Rows):
        return RowsSource(data)
    return open_table(data, text_encoding, formula=True)


def table_numbers(rows: Rows, table: object) -> Array | None:
    """Return the row number in `table` of each of `rows`, which a formula made from it.

    None if the rows are all rows of the table in its order, if they were not made by a formula, or
    if the table is not (any longer) the one they were made from.

    Parameters
    ----------
    rows
        Rows in the table's order or, as in a store, sorted by their largest group.
    table
        Any table that `mo.fit` takes; only the columns needed for matching are read, once.

    Examples
    --------
    >>> import pandas as pd
    >>> from modicum.rows.reading import read_formula
    >>> table = pd.DataFrame({"y": [1.0, None, 3.0], "x": [0.5, 1.5, 2.5]})
    >>> made = read_formula("y ~ x", table, missing="drop", progressbar=False)
    >>> table_numbers(made, table).tolist()
    [0, 2]
    """
    encoding = rows.schema.encoding
    if encoding is None:
        return None
    field = encoding.largest_group
    own = None if field is None else whole_field(rows, field)
    is_sorted = own is not None and bool(np.all(own[1:] >= own[:-1]))
    if not encoding.drops and not is_sorted:
        return None
    source = source_of(table, encoding)
    # A column may have been taken out of the table since.
    needed = [name for name in encoding.needed() if encoding.drops and name in source.names]
    factors = [
        g for g in encoding.groupings if g.field == field and {*g.columns} <= {*source.names}
    ]
    columns = list(dict.fromkeys([*needed, *(name for g in factors for name in g.columns)]))
    parts, coded = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for part, _ in complete_rows(source.batches(columns), columns, encoding.drops):
        parts.append(part.row_ids)
        coded += [group.places(part) for group in factors]
    numbers, codes = np.concatenate(parts), np.concatenate(coded)
    if len(numbers) != len(rows):
        return None
    if is_sorted:  # by a stable sort, which keeps the table's order within a group
        order = np.argsort(codes, kind="stable")
        numbers, codes = numbers[order], codes[order]
    return numbers if own is None or np.array_equal(own, codes) else None


def whole_field(rows: Rows, name: str) -> Array:
    """Return one field of all rows, without loading their other fields into memory."""
    return np.concatenate([np.array(chunk[name]) for chunk in rows.chunks(CHUNK)])
