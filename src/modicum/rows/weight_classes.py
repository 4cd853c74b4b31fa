"""Rows sorted into a few hundred classes by weight, and the rows in that order.

A row's weight follows from one number, its expected residual. These numbers are an array here, or
are kept where the rows are (`KeptNumbers`), as is the order (`KeptOrder`). Either way, sums are
added and rows sorted block by block, so that classes and order agree to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from modicum.files import number_per_row
from modicum.rows.memory import Backend
from modicum.rows.rows import Rows
from modicum.runtime import in_threads

CLASSES = 256
BLOCK = 1 << 20  # rows sorted at a time, and rows per shard of kept numbers: temporaries stay small
PART = 8_192  # rows per partial sum of expected residuals


class Classes(NamedTuple):
    """How a row's expected residual becomes a weight, and the weight a class."""

    share: float  # weight = share * expected + even
    even: float
    smallest: float  # log weight of the first class
    spacing: float  # of log weights, from one class to the next

    def of(self, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the class and weight of each row."""
        weight = self.share * expected.astype(np.float64) + self.even
        with np.errstate(divide="ignore"):
            place = np.maximum(np.log(weight), self.smallest) - self.smallest
        return np.minimum(np.rint(place / self.spacing), CLASSES - 1).astype(np.uint8), weight


class Extent(NamedTuple):
    """Sums and range of expected residuals, from which the classes are chosen."""

    sums: np.ndarray  # one per PART rows
    smallest: float
    largest: float
    bad: int  # index of the first that is not finite; -1 if all are


class KeptOrder(Protocol):
    """Row numbers sorted by class, kept where the rows are; `np.asarray` gathers them all."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice | np.ndarray, /) -> np.ndarray:
        """Row numbers at these places of the order."""

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray: ...

    def take(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at these places, an array of any shape."""


class KeptNumbers(Protocol):
    """One non-negative float32 number per row, kept where the rows are."""

    def __len__(self) -> int: ...

    def extent(self) -> Extent:
        """Sums and range of the numbers of all rows."""

    def sort(self, classes: Classes) -> tuple[np.ndarray, np.ndarray, KeptOrder]:
        """Return the weight and size of each class, and the rows sorted by class.

        Weights are summed as for an array: by `rows_by_class`, one BLOCK of rows at a time, in
        order.
        """


def extent_of(expected: np.ndarray | KeptNumbers) -> Extent:
    """Return sums and range of expected residuals.

    Partial sums are over PART rows, which never span two blocks, and are added in order, so that
    the total is the same wherever the numbers are kept.
    """
    if not isinstance(expected, np.ndarray):
        return expected.extent()
    if expected.dtype == np.float32:
        end = len(expected) // PART * PART
        parts = expected[:end].reshape(-1, PART).sum(axis=1, dtype=np.float64)
        sums = np.append(parts, np.sum(expected[end:], dtype=np.float64))
    else:  # numbers of groups, which are never kept elsewhere
        sums = np.atleast_1d(np.sum(expected, dtype=np.float64))
    bad = -1
    if not np.isfinite(sums).all():
        bad = int(np.argmin(np.isfinite(expected)))
    return Extent(sums, float(expected.min()), float(expected.max()), bad)


def rows_by_class(
    expected: np.ndarray, classes: Classes
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weight and size of each class, and row numbers sorted by class.

    Blocks are counted, and then sorted, by several threads.
    """
    n = len(expected)
    kinds = number_per_row(n, np.uint8)
    blocks = [slice(first, min(first + BLOCK, n)) for first in range(0, n, BLOCK)]

    def count(block: slice) -> tuple[np.ndarray, np.ndarray]:
        kinds[block], weight = classes.of(expected[block])
        counts = np.bincount(kinds[block], minlength=CLASSES)
        return np.bincount(kinds[block], weights=weight, minlength=CLASSES), counts

    masses, counts = zip(*in_threads(count, blocks), strict=True)
    size = np.sum(counts, axis=0)
    order = number_per_row(n, np.uint32 if n < 2**32 else np.int64)
    starts = np.cumsum(size) - size + np.cumsum(counts, axis=0) - counts  # (blocks, classes)

    def sort(number: int) -> None:
        inside = np.argsort(kinds[blocks[number]], kind="stable")
        ends = np.cumsum(counts[number])
        for kind in np.flatnonzero(counts[number]):
            found = inside[ends[kind] - counts[number][kind] : ends[kind]]
            start = starts[number, kind]
            order[start : start + len(found)] = found + blocks[number].start

    list(in_threads(sort, range(len(blocks))))
    mass = np.zeros(CLASSES)
    for part in masses:  # in the order of blocks, as where numbers are kept elsewhere
        mass += part
    return mass, size, order


# Rows in an order ---------------------------------------------------------------------------


class OrderedBackend(Backend):
    """Rows in another order: row k is the row at place k of `order`. Nothing is copied.

    Where the order is kept, the rows in it are read too.
    """

    def __init__(self, rows: Rows, order: np.ndarray | KeptOrder) -> None:
        self.rows, self.order, self.description = rows, order, rows._description
        self.where, self.folder = rows._backend.where, rows._backend.folder

    def take(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Rows at places of the order, any shape."""
        if isinstance(self.order, np.ndarray):
            return self.rows.take(self.order[row_ids])
        return self.order.take(row_ids)

    def slice(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows from place `start` up to `stop`."""
        return self.take(np.arange(start, stop))


def ordered(rows: Rows, order: np.ndarray | KeptOrder) -> Rows:
    """Return rows in another order: an array of row numbers, or an order kept with the rows."""
    return Rows._at(OrderedBackend(rows, order))
