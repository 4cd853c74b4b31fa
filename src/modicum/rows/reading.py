"""From a formula and a table, wherever it lies, to rows: in memory, or in a store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from modicum.errors import ResourceError, SettingError, argument
from modicum.progress import Progressbar, phase
from modicum.rows.checks import as_dtype
from modicum.rows.csv import TypesWidened
from modicum.rows.description import Array, Description, DType
from modicum.rows.encoding import floating
from modicum.rows.fields import MemoryBackend, allocate
from modicum.rows.formula import Formula, FormulaEncoding, NewLevels, learn, parse
from modicum.rows.formula.expressions import Expression
from modicum.rows.ingestion import PackedBlocks, is_store, table_source, write_store
from modicum.rows.rows import Rows
from modicum.rows.rows_source import RowsSource
from modicum.rows.sources import Source
from modicum.rows.staging import refuse_existing

__all__ = ["Missing", "TableRows", "encode_table", "read_formula"]

Missing: TypeAlias = Literal["refuse", "drop"]
# Of the memory that is free; sampling needs some too.
MOST_OF_MEMORY = 0.8


class TableRows(NamedTuple):
    """Rows made of a table.

    Attributes
    ----------
    rows
        The rows; they keep the encoding.
    dropped
        Rows of the table that were left out because a value was missing.
    """

    rows: Rows
    dropped: int


def read_formula(
    formula: str,
    data: object,
    *,
    offset: str | None = None,
    weight: str | None = None,
    missing: Missing = "refuse",
    store: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    dtype: object = None,
    text_encoding: str = "utf-8",
    progressbar: Progressbar = True,
) -> TableRows:
    """Make rows of a table as a formula says, in bounded memory.

    The table is read twice: once to learn levels, knots and centres, and once to encode it, a
    batch of rows at a time.

    Parameters
    ----------
    formula, data
        As in `mo.fit`.
    offset, weight
        Columns.
    missing
        Whether a row with a missing value is refused, or dropped.
    store
        A folder to write the rows to; None: they are kept in memory.
    overwrite
        Whether a store there may be replaced.
    dtype
        Type of the numbers; None as in `Rows`.
    text_encoding
        Of CSV files.
    progressbar
        As in `mo.sample`.

    Examples
    --------
    >>> import pandas as pd
    >>> flights = pd.DataFrame(
    ...     {"late": [1, 0, 1, 0], "carrier": ["UA", "AA", "DL", "AA"], "dist": [1.0, 2, 3, 4]})
    >>> rows = read_formula("late ~ carrier + np.log(dist)", flights, progressbar=False).rows
    >>> rows.columns
    ('carrier[DL]', 'carrier[UA]', 'np.log(dist)')
    """
    if missing not in ("refuse", "drop"):
        raise SettingError(f"missing must be 'refuse' or 'drop', not {missing!r}.")
    if store is not None:
        refuse_existing(Path(os.path.realpath(store)), overwrite)  # before the data are read
    parsed = _with_offset(parse(formula, _source(data, text_encoding, ()).names), offset)
    source = _source(data, text_encoding, _levels_alone(parsed.expressions))
    while True:
        try:
            return _read(
                parsed, source, weight, missing == "drop", store, overwrite, dtype, progressbar
            )
        except TypesWidened:  # a CSV file's column turned out to hold more than whole numbers
            continue


def encode_table(
    encoding: FormulaEncoding,
    table: object,
    *,
    outcome: bool,
    dtype: object = None,
    newlevels: NewLevels = "refuse",
    text_encoding: str = "utf-8",
) -> Rows:
    """Make rows of another table by the encoding that was learned from the first.

    Parameters
    ----------
    encoding
        What was learned.
    table
        Any table `read_formula` takes: columns in any order, and perhaps others.
    outcome
        Whether the rows get an outcome (and weights, where the table has them); else the table
        need not have those columns.
    dtype
        Type of the numbers.
    newlevels
        Whether a level the encoding does not know is refused, or taken for the reference.
    text_encoding
        Of CSV files.
    """
    if newlevels not in ("refuse", "reference"):
        raise SettingError(f"newlevels must be 'refuse' or 'reference', not {newlevels!r}.")
    source = _source(table, text_encoding, _levels_alone(encoding.expressions()))
    weight = outcome and set(encoding.weight_columns) <= set(source.names)
    while True:
        try:
            kind = _dtype(encoding, source, dtype, outcome, weight)
            about = encoding.describe(1, kind, outcome, weight)
            chunks = encoding.chunks(
                source, kind, outcome=outcome, weight=weight, newlevels=newlevels
            )
            return _in_memory(about, chunks, source.rows)
        except TypesWidened:
            continue


def _read(
    formula: Formula,
    source: Source,
    weight: str | None,
    drop: bool,
    store: str | os.PathLike[str] | None,
    overwrite: bool,
    dtype: object,
    progressbar: Progressbar,
) -> TableRows:
    with phase("read levels", None, progressbar):
        learned = learn(formula, source, weight=weight, drop=drop)
    encoding = learned.encoding
    n = learned.rows if learned.rows is not None else source.rows
    kind = _dtype(encoding, source, dtype, True, True)
    about = encoding.describe(n or 1, kind)
    chunks = encoding.chunks(source, kind, drop=drop)
    if store is not None:
        blocks = PackedBlocks(about, (about.pack(chunk) for chunk in chunks), n)
        rows = write_store(lambda: blocks, store, overwrite, progressbar)
        return TableRows(rows, learned.dropped)
    with phase("read rows", n, progressbar, "rows") as reading:

        def counted() -> Iterator[dict[str, Array]]:
            for chunk in chunks:
                yield chunk
                reading.advance(len(next(iter(chunk.values()))))

        return TableRows(_in_memory(about, counted(), n), learned.dropped)


def _dtype(
    encoding: FormulaEncoding, source: Source, dtype: object, outcome: bool, weight: bool
) -> DType:
    needed = [name for name in encoding.needed(outcome, weight) if name in source.names]
    kind = as_dtype(dtype, floating(source.types(needed)))
    if kind.kind != "f":
        raise SettingError("the rows of a formula are float32 or float64: leave dtype out.")
    return kind


def _in_memory(about: Description, chunks: Iterator[dict[str, Array]], n: int | None) -> Rows:
    """Keep chunks as arrays; two copies are held only where the number of rows is not known."""
    if n is None:
        parts = list(chunks)
        arrays = {f.name: np.concatenate([p.pop(f.name) for p in parts]) for f in about.fields}
        about = replace(about, n=len(next(iter(arrays.values()))))
        return Rows._at(about, MemoryBackend(about, arrays))
    _require_memory(n * about.row_bytes)
    about = replace(about, n=n)
    arrays = {f.name: allocate((n, *f.shape), about.dtypes[f.name]) for f in about.fields}
    start = 0
    for chunk in chunks:
        stop = start + len(next(iter(chunk.values())))
        for name, part in chunk.items():
            arrays[name][start:stop] = part
        start = stop
    return Rows._at(about, MemoryBackend(about, arrays))


def _require_memory(size: int) -> None:
    """Refuse rows that memory cannot hold, before it is full."""
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system: the allocation may fail
        return
    if size > MOST_OF_MEMORY * free:
        raise ResourceError(
            f"the rows take {size / 1e9:.3g} GB, and this machine has {free / 1e9:.3g} GB of "
            f"memory: pass {argument('store', 'FOLDER')} to keep them on disk."
        )


def _with_offset(formula: Formula, offset: str | None) -> Formula:
    if offset is None:
        return formula
    return replace(formula, offsets=(*formula.offsets, Expression.column(offset)))


def _levels_alone(expressions: Iterable[Expression]) -> list[str]:
    """Columns that stand in C(...) only: a CSV file's "01234" and "1234" are then two levels."""
    coded: list[str] = []
    computed: set[str] = set()
    for expression in expressions:
        call = expression.categorical
        if call is not None and call.inner.bare is not None:
            coded.append(call.inner.bare)
        else:
            computed.update(expression.names)
    return [name for name in coded if name not in computed]


def _source(data: object, text_encoding: str, as_text: Sequence[str]) -> Source:
    if is_store(data):
        data = Rows.open(data)
    if isinstance(data, Rows):
        return RowsSource(data)
    return table_source(data, text_encoding, as_text, levels=True)
