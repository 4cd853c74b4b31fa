"""Rows sorted into a few hundred classes by weight, and the rows in that order.

A weight follows from one number per row, its expected residual. The numbers are an array, or stay
where the rows are (`KeptNumbers`), and so does the order (`KeptOrder`): sums are added and rows
sorted block by block, so that classes and order are the same to the last bit either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from modicum.rows.rows import Rows

__all__ = [
    "BLOCK",
    "CLASSES",
    "ArrayOrder",
    "Classes",
    "Extent",
    "KeptNumbers",
    "KeptOrder",
    "OrderedBackend",
    "RowOrder",
    "classes_of_rows",
    "extent_of",
    "order_of_classes",
    "ordered",
    "sorted_by_class",
]

CLASSES = 256
BLOCK = 1 << 20  # rows sorted at a time, so that temporaries stay small: a shard of kept numbers
PART = 8_192  # rows whose expected residuals are added at a time


class Classes(NamedTuple):
    """How a row's expected residual becomes a weight, and the weight a class."""

    share: float  # weight = share * expected + even
    even: float
    smallest: float  # log weight of the first class
    spacing: float  # from one class to the next

    def of(self, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Class and weight of each row."""
        weight = self.share * expected.astype(np.float64) + self.even
        with np.errstate(divide="ignore"):
            place = np.maximum(np.log(weight), self.smallest) - self.smallest
        return np.minimum(np.rint(place / self.spacing), CLASSES - 1).astype(np.uint8), weight


class Extent(NamedTuple):
    """What the classes of some expected residuals depend on."""

    sums: np.ndarray  # of every PART rows
    smallest: float
    largest: float
    bad: int  # place of the first that is not finite; -1: none


class KeptOrder(Protocol):
    """Numbers of rows sorted by class, kept where the rows are.

    `np.asarray` gathers them all.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice | np.ndarray, /) -> np.ndarray:
        """Row numbers at some places of the order."""
        ...

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray: ...

    def take(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at these places, an array of any shape."""
        ...


class KeptNumbers(Protocol):
    """A float32 number from 0 per row, kept where the rows are."""

    def __len__(self) -> int: ...

    def extent(self) -> Extent:
        """Sum and range of the numbers of all rows."""
        ...

    def sort(self, classes: Classes) -> tuple[np.ndarray, np.ndarray, KeptOrder]:
        """Weight and size of each class, and the rows sorted by class.

        Weights are added up as for numbers that are here: by `sorted_by_class` of every BLOCK
        rows, block after block.
        """
        ...


def extent_of(expected: np.ndarray | KeptNumbers) -> Extent:
    """Sums, smallest and largest of expected residuals.

    Sums of parts are added one after another, so that the total is the same wherever rows are:
    parts never lie in two blocks.
    """
    if not isinstance(expected, np.ndarray):
        return expected.extent()
    if expected.dtype == np.float32:
        end = len(expected) // PART * PART
        parts = expected[:end].reshape(-1, PART).sum(axis=1, dtype=np.float64)
        sums = np.append(parts, np.sum(expected[end:], dtype=np.float64))
    else:  # of groups, which are never kept elsewhere
        sums = np.atleast_1d(np.sum(expected, dtype=np.float64))
    bad = -1
    if not np.isfinite(sums).all():
        bad = int(np.argmin(np.isfinite(expected)))
    return Extent(sums, float(expected.min()), float(expected.max()), bad)


def sorted_by_class(
    expected: np.ndarray, classes: Classes
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weight and size of each class, and places of rows sorted by class, of up to BLOCK rows."""
    kind, weight = classes.of(expected)
    mass = np.bincount(kind, weights=weight, minlength=CLASSES)
    order = np.argsort(kind, kind="stable").astype(np.uint32)
    return mass, np.bincount(kind, minlength=CLASSES), order


def classes_of_rows(expected: np.ndarray, classes: Classes) -> tuple[np.ndarray, np.ndarray]:
    """Class of each row, and weight of each class."""
    kinds = np.empty(len(expected), np.uint8)
    mass = np.zeros(CLASSES)
    for first in range(0, len(expected), BLOCK):
        kind, weight = classes.of(expected[first : first + BLOCK])
        kinds[first : first + BLOCK] = kind
        mass += np.bincount(kind, weights=weight, minlength=CLASSES)
    return kinds, mass


def order_of_classes(kinds: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Row numbers sorted by class: a counting sort in blocks."""
    order = np.empty(len(kinds), np.uint32 if len(kinds) < 2**32 else np.int64)
    place = np.cumsum(size) - size
    for first in range(0, len(kinds), BLOCK):
        block = kinds[first : first + BLOCK]
        inside = np.argsort(block, kind="stable")
        counts = np.bincount(block, minlength=len(size))
        cut = np.cumsum(counts)
        for kind in np.flatnonzero(counts):
            row_ids = inside[cut[kind] - counts[kind] : cut[kind]] + first
            order[place[kind] : place[kind] + counts[kind]] = row_ids
        place = place + counts
    return order


# Rows in an order ---------------------------------------------------------------------------


class RowOrder(Protocol):
    """An order of rows, and who reads the rows at its places; a `KeptOrder` is one."""

    def __len__(self) -> int: ...

    def take(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at these places, an array of any shape."""
        ...


@dataclass(frozen=True, eq=False)
class ArrayOrder:
    """Row `row_ids[k]` of `rows` at place k."""

    rows: Rows
    row_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.row_ids)

    def take(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at these places, an array of any shape."""
        return self.rows.take(self.row_ids[places])


class OrderedBackend:
    """The row at place k of an order as row k; nothing is copied."""

    travels = True  # to the processes that run chains

    def __init__(self, rows: Rows, order: RowOrder) -> None:
        self.order = order
        self.where = rows._backend.where
        if rows.is_store:
            self.folder = rows._backend.folder  # type: ignore[attr-defined]

    def take(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Rows at places of the order, any shape."""
        return self.order.take(row_ids)

    def slice(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows from place `start` up to `stop`."""
        return self.order.take(np.arange(start, stop))

    def chunks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """All rows in this order, `size` at a time."""
        n = len(self.order)
        return (self.slice(start, min(start + size, n)) for start in range(0, n, size))


def ordered(rows: Rows, order: np.ndarray | RowOrder) -> Rows:
    """The rows in another order: an array of row numbers, or one that somebody else keeps."""
    if isinstance(order, np.ndarray):
        order = ArrayOrder(rows, order)
    return Rows._at(rows._description, OrderedBackend(rows, order))
