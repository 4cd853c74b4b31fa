"""Rows in memory: one read-only array per field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from modicum.errors import DataError
from modicum.rows.description import Array, Description, DType

__all__ = ["MemoryBackend", "allocate", "fill"]


class MemoryBackend:
    """Fields as read-only arrays; slices are views."""

    where = "in memory"

    def __init__(self, description: Description, arrays: dict[str, Array]) -> None:
        self.description = description
        self._arrays = {name: _frozen(array) for name, array in arrays.items()}

    def take(self, row_ids: Array) -> dict[str, Array]:
        """Rows at `row_ids`, any shape."""
        return {name: np.take(array, row_ids, axis=0) for name, array in self._arrays.items()}

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Rows from `start` up to `stop`, as views."""
        return {name: array[start:stop] for name, array in self._arrays.items()}

    def chunks(self, size: int) -> Iterator[dict[str, Array]]:
        """All rows in order, `size` at a time, as views."""
        for start in range(0, self.description.n, size):
            yield self.slice(start, min(start + size, self.description.n))

    def __reduce__(self) -> tuple[type[MemoryBackend], tuple[Description, dict[str, Array]]]:
        # Through the constructor, so that the unpickled arrays are read-only too.
        return MemoryBackend, (self.description, self._arrays)


def fill(description: Description, chunks: Iterable[Mapping[str, Array]]) -> MemoryBackend:
    """Copy chunks of fields, which together hold all rows, into arrays."""
    arrays = {
        f.name: allocate((description.n, *f.shape), description.dtypes[f.name])
        for f in description.fields
    }
    start = 0
    for chunk in chunks:
        stop = start + len(next(iter(chunk.values())))
        for name, part in chunk.items():
            arrays[name][start:stop] = part
        start = stop
    return MemoryBackend(description, arrays)


def allocate(shape: tuple[int, ...], dtype: DType) -> Array:
    """Return an empty array; if memory is too small, raise an error that says how much it takes."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):  # NumPy raises a ValueError beyond the address space
        size = np.prod([float(length) for length in shape]) * dtype.itemsize
        raise DataError(
            f"{shape[0]:,} rows of {dtype.name} take {size / 1e9:,.3g} GB, which is more memory "
            "than is available: write them to a store with modicum.rows.ingest, or pass "
            "dtype='float32'."
        ) from None


def _frozen(array: Array) -> Array:
    # A view, so that the user's own array stays writable.
    view = array.view()
    view.flags.writeable = False
    return view
