"""Rows that live in memory: one C-contiguous array a field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from modicum.rows.description import Array, Description


class Backend(Protocol):
    """What `Rows` asks of the place where rows live; arguments are already checked."""

    where: str

    def take(self, indices: Array) -> dict[str, Array]:
        """Rows at `indices`, any shape."""

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Rows from `start` up to `stop`."""

    def chunks(self, size: int) -> Iterator[dict[str, Array]]:
        """All rows in order, `size` at a time."""


class MemoryBackend:
    """Fields as read-only arrays; slices are views."""

    where = "in memory"

    def __init__(self, description: Description, arrays: dict[str, Array]) -> None:
        self._description = description
        self._arrays = {name: _frozen(array) for name, array in arrays.items()}

    def take(self, indices: Array) -> dict[str, Array]:
        """Rows at `indices`, any shape."""
        return {name: np.take(array, indices, axis=0) for name, array in self._arrays.items()}

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Rows from `start` up to `stop`, as views."""
        return {name: array[start:stop] for name, array in self._arrays.items()}

    def chunks(self, size: int) -> Iterator[dict[str, Array]]:
        """All rows in order, `size` at a time, as views."""
        for start in range(0, self._description.n, size):
            yield self.slice(start, min(start + size, self._description.n))

    def __reduce__(self) -> Any:
        # Through the constructor, so that the copy is read-only too.
        return MemoryBackend, (self._description, self._arrays)


def fill(description: Description, blocks: Iterable[Array]) -> MemoryBackend:
    """Put packed blocks, which together hold all rows, in memory."""
    arrays = {
        f.name: np.empty((description.n, *f.shape), description.dtype) for f in description.fields
    }
    start = 0
    for block in blocks:
        for name, part in description.split(block).items():
            arrays[name][start : start + len(block)] = part
        start += len(block)
    return MemoryBackend(description, arrays)


def _frozen(array: Array) -> Array:
    # A view, so that the user's own array keeps its flag.
    view = array.view()
    view.flags.writeable = False
    return view
