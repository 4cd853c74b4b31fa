"""Rows by their places in some order of them, which is not theirs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from modicum.rows.rows import Rows

__all__ = ["OrderedBackend", "ordered"]


class OrderedBackend:
    """Row `order[k]` of other rows as row k; nothing is copied."""

    travels = True  # by itself, to whoever runs chains

    def __init__(self, rows: Rows, order: np.ndarray) -> None:
        self.rows, self.order = rows, order
        self.where = rows._backend.where
        if rows.is_store:
            self.folder = rows._backend.folder  # type: ignore[attr-defined]

    def take(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Rows at places of the order, any shape."""
        return self.rows.take(self.order[row_ids])

    def slice(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows from place `start` up to `stop`."""
        return self.rows.take(self.order[start:stop])

    def chunks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """All rows in this order, `size` at a time."""
        n = len(self.order)
        return (self.slice(start, min(start + size, n)) for start in range(0, n, size))


def ordered(rows: Rows, order: np.ndarray) -> Rows:
    """The rows in another order."""
    return Rows._at(rows._description, OrderedBackend(rows, order))
