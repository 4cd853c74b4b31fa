"""Storage behind rows; above all memory: one read-only array per field.

Arrays are filled by chunks or encoded from a table.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from modicum.errors import DataError, SettingError, argument
from modicum.rows.checks import as_dtype
from modicum.rows.coding import Array, DType
from modicum.rows.description import Description, describe
from modicum.rows.formula.encoding import FormulaEncoding, NewLevels
from modicum.rows.levels import floating
from modicum.rows.sources import Source

# Numbers that the seal of a large array adds up. A prime: blocks then cut rows at every column, so
# that exchanged columns show, and a change that all numbers share (a sign) does not cancel.
SEALED_TOGETHER = 4099
MOST_OF_MEMORY = 0.8  # share of the machine's memory that rows may take; sampling needs some too
SEALED_SINGLY = 1 << 16  # up to this many numbers, each is in the seal by itself


class Backend(ABC):
    """Storage behind `Rows`, which checks the arguments.

    Attributes
    ----------
    description
        What it holds.
    where
        Where it is, as said in messages.
    folder
        The folder or URI of a store; None for rows that are not in a store.
    fingerprint
        The fingerprint of the rows, once it is known.
    """

    description: Description
    where: str
    folder: Path | str | None = None
    fingerprint: str | None = None

    @property
    def unchanged(self) -> bool:
        """Whether the rows are those that were checked."""
        return True

    @abstractmethod
    def take(self, row_ids: Array) -> dict[str, Array]:
        """Rows at `row_ids`, any shape."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Rows from `start` up to `stop`."""

    def chunks(self, size: int) -> Iterator[dict[str, Array]]:
        """All rows in order, `size` at a time."""
        n = self.description.n
        for start in range(0, max(1, n), size):  # of no rows, one empty chunk
            yield self.slice(start, min(start + size, n))


class MemoryBackend(Backend):
    """Fields as read-only arrays; slices are views.

    Parameters
    ----------
    description
        What the arrays hold.
    arrays
        The array of each field.
    lent
        Whether the caller's user may hold some of the arrays, and write to them.
    """

    where = "in memory"

    def __init__(
        self, description: Description, arrays: dict[str, Array], lent: bool = False
    ) -> None:
        self.description = description
        self._arrays = {name: _frozen(array) for name, array in arrays.items()}
        self._seals = self._sealed() if lent else None

    @classmethod
    def of(cls, description: Description, arrays: dict[str, Array]) -> MemoryBackend:
        """Hold as many rows as the arrays have, described as others."""
        return cls(replace(description, n=len(next(iter(arrays.values())))), arrays)

    def _sealed(self) -> dict[str, str]:
        return {name: _seal(array) for name, array in self._arrays.items()}

    @property
    def unchanged(self) -> bool:
        """Whether the arrays hold the numbers that they held at first."""
        return self._seals is None or self._seals == self._sealed()

    def take(self, row_ids: Array) -> dict[str, Array]:
        """Rows at `row_ids`, any shape."""
        return {name: np.take(array, row_ids, axis=0) for name, array in self._arrays.items()}

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Rows from `start` up to `stop`, as views."""
        return {name: array[start:stop] for name, array in self._arrays.items()}

    def __reduce__(self) -> tuple[object, ...]:
        # Through the constructor, so that the unpickled arrays are read-only too.
        return MemoryBackend, (self.description, self._arrays), {"fingerprint": self.fingerprint}


class RowStream(NamedTuple):
    """Rows yet to be read: what they are, their chunks from a given row on, and their number."""

    description: Description
    chunks: Callable[[int], Iterator[dict[str, Array]]]
    total: int | None  # None if unknown until all rows are read
    lent: Mapping[str, Array] | None = None  # arrays to use without a copy; the user may hold them

    def in_memory(self, advance: Callable[[int], object] = int) -> MemoryBackend:
        """Read all rows into arrays, with memory for two copies only if their number is unknown.

        `advance` is called with the number of rows that were read.
        """
        about, parts = self.description, self._heard(advance)
        if self.total is None:
            none = {k: np.empty((0, *shape), about.dtypes[k]) for k, shape in about.fields.items()}
            held = list(parts) or [none]
            arrays = {
                name: np.concatenate([part.pop(name) for part in held]) for name in about.fields
            }
            return MemoryBackend.of(about, arrays)
        ready, start = self.lent or {}, 0
        made = {
            name: allocate((self.total, *shape), about.dtypes[name])
            for name, shape in about.fields.items()
            if name not in ready
        }
        for part in parts:
            stop = start + len(next(iter(part.values())))
            for name, array in made.items():
                array[start:stop] = part[name]
            start = stop
        arrays = {name: made[name] if name in made else ready[name] for name in about.fields}
        return MemoryBackend(replace(about, n=self.total), arrays, lent=self.lent is not None)

    def _heard(self, advance: Callable[[int], object]) -> Iterator[dict[str, Array]]:
        for chunk in self.chunks(0):
            yield chunk
            advance(len(next(iter(chunk.values()))))


def allocate(shape: tuple[int, ...], dtype: DType) -> Array:
    """Return an empty array; refuse one that takes nearly all memory, or more."""
    size = np.prod([float(length) for length in shape]) * dtype.itemsize
    try:
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not POSIX: the allocation itself may fail
        memory = math.inf
    try:
        if size > MOST_OF_MEMORY * memory:
            raise MemoryError
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):  # NumPy raises a ValueError beyond the address space
        raise DataError(
            f"{shape[0]:,} rows of {dtype.name} take {size / 1e9:,.3g} GB, which is more memory "
            f"than is available: pass {argument('store', 'FOLDER')} to keep them on disk, write "
            "them to a store with modicum.rows.ingest, or pass dtype='float32'."
        ) from None


def _seal(array: Array) -> str:
    """Return a checksum of an array at the speed of memory, to notice that it was written to."""
    wide = 8 if array.nbytes % 8 == 0 and array.ctypes.data % 8 == 0 else array.itemsize
    bits = array.reshape(-1).view(f"u{wide}")
    step = 1 if bits.size <= SEALED_SINGLY else SEALED_TOGETHER
    sums = np.add.reduceat(bits, np.arange(0, bits.size, step), dtype=np.uint64)
    return hashlib.sha256(sums.data).hexdigest()


def _frozen(array: Array) -> Array:
    # A view, so that the user's own array stays writable.
    view = array.view()
    view.flags.writeable = False
    return view


def encoded(
    encoding: FormulaEncoding,
    source: Source,
    *,
    outcome: bool,
    weights: bool | None = None,
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
        Whether the rows get an outcome; otherwise the table need not have its columns.
    weights
        Whether the rows get weights, if the table has them; by default, if they get an outcome.
    dtype
        Type of the numbers.
    drop
        Whether rows with missing values are dropped instead of refused.
    newlevels
        Whether a level that the encoding does not know is refused or replaced by the reference.
    """
    weights = outcome if weights is None else weights
    known = encoding.only(outcome, encoding.fields_of(source.names, outcome, weights))
    stream = stream_of(known, source, dtype, None if drop else source.rows, drop, newlevels)
    named = None if encoding.outcome is None else encoding.outcome.expression
    about = replace(stream.description, outcome=named, encoding=encoding)
    return stream._replace(description=about).in_memory()


def stream_of(
    encoding: FormulaEncoding,
    source: Source,
    dtype: object,
    total: int | None,
    drop: bool = False,
    newlevels: NewLevels = "refuse",
) -> RowStream:
    """Return the rows that an encoding makes of a table."""
    needed = [name for name in encoding.needed() if name in source.names]
    kind = as_dtype(dtype, floating(source.types(needed)))
    if kind.kind != "f":
        raise SettingError("the rows of a formula are float32 or float64: leave dtype out.")
    chunks = partial(encoding.chunks, source, kind, drop=drop, newlevels=newlevels)
    return RowStream(describe(encoding, total or 1, kind), lambda first: chunks(first=first), total)
