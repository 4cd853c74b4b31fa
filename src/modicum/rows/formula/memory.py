"""Encodes tables into memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from modicum.errors import ResourceError, SettingError, argument
from modicum.rows.checks import as_dtype
from modicum.rows.description import Array, Description, DType
from modicum.rows.formula.encoding import FormulaEncoding
from modicum.rows.formula.evaluation import NewLevels
from modicum.rows.memory import MemoryBackend, fill
from modicum.rows.sources import Source
from modicum.rows.table_encoding import floating

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
