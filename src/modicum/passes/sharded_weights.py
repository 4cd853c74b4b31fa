"""Per-row numbers that stay with the workers, and rows sorted by weight class across workers.

A weighted design (`designs.Weighted`) draws places in the order of all rows sorted by
class, from its key alone. Each shard of a million rows is sorted by the worker that passes over it.
The driver keeps the number of rows of each class in every shard, 256 numbers, from which it finds
the shard of a place and the place within that shard's order; the worker turns the latter into a
row. Sorting is stable and shards keep the order of their rows, so that places denote the same rows
as when one machine sorts them all, and sums of weights are added in the same order: draws are the
same to the last bit.

A worker that replaces another recomputes the numbers of a shard when it is first asked for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from modicum.passes.worker import Actor, Answer, NumberRecipe, Parcel, Reference, RemoteMethod
from modicum.rows import Rows, weight_classes
from modicum.rows.weight_classes import CLASSES, Classes, Extent

# Certainty rows lie at the end of the order; this many places there are looked up at once.
TAIL = 20_000


class Share(NamedTuple):
    """Part of a pass: the worker to ask, the request, and how many rows are done after it."""

    worker: int
    ask: Callable[[Actor], Reference]
    done: int


class Workers(Protocol):
    """The workers of a cluster, as `RayEngine` implements them."""

    def source(self, rows: Rows) -> Parcel:
        """Return where workers find the rows."""
        ...

    def owners(self, rows: Rows, row_ids: np.ndarray) -> np.ndarray:
        """Return the numbers of the workers that pass over these rows."""
        ...

    def each_from(
        self, owner: np.ndarray, ask: Callable[[Actor, np.ndarray], Reference]
    ) -> Iterator[tuple[np.ndarray, Answer]]:
        """Ask each worker once about its places in `owner`; yield the places and its answer."""
        ...

    def sweep(self, shares: Iterable[Share], total: int, description: str) -> Iterator[Answer]:
        """Yield the answers for all shares of a pass in order."""
        ...


class Shards:
    """Rows cut into shards, along the boundaries of the blocks of `rows.weight_classes`."""

    def __init__(self, workers: Workers, rows: Rows, size: int) -> None:
        self.workers, self.rows, self.size = workers, rows, size
        self.starts = np.arange(0, len(rows), size)
        self.stops = np.minimum(self.starts + size, len(rows))
        self.owners = workers.owners(rows, (self.starts + self.stops) // 2)

    def sweep(
        self, ask: Callable[[Actor, int, int], Reference], description: str
    ) -> Iterator[Answer]:
        """Ask the owner of each shard about its range of rows; yield the answers in order."""

        def shares() -> Iterator[Share]:
            for owner, first, end in zip(self.owners, self.starts, self.stops, strict=True):

                def ask_about_shard(
                    actor: Actor, start: int = int(first), stop: int = int(end)
                ) -> Reference:
                    return ask(actor, start, stop)

                yield Share(int(owner), ask_about_shard, int(end))

        return self.workers.sweep(shares(), len(self.rows), description)


class NumbersAtWorkers:
    """A number per row, computed and kept by the workers on first use (see `KeptNumbers`)."""

    def __init__(self, workers: Workers, work: Parcel, rows: Rows, description: str) -> None:
        self._shards, self._description = Shards(workers, rows, weight_classes.BLOCK), description
        self._recipe = NumberRecipe(work, workers.source(rows), self._shards.size)
        self._extent: Extent | None = None

    def __len__(self) -> int:
        return len(self._shards.rows)

    def extent(self) -> Extent:
        """Return what the classes depend on, over all rows; the pass is made once."""
        if self._extent is None:
            recipe = self._recipe
            parts: list[Extent] = list(
                self._shards.sweep(
                    lambda actor, *shard: actor.extent.remote(recipe, *shard), self._description
                )
            )
            pairs = zip(self._shards.starts, parts, strict=True)
            bad = next((int(start) + part.bad for start, part in pairs if part.bad >= 0), -1)
            self._extent = Extent(
                np.concatenate([part.sums for part in parts]),
                float(np.min([part.smallest for part in parts])),
                float(np.max([part.largest for part in parts])),
                bad,
            )
        return self._extent

    def sort(self, classes: Classes) -> tuple[np.ndarray, np.ndarray, OrderAtWorkers]:
        """Return the weight and size of each class, and the rows sorted by class."""
        recipe = self._recipe
        mass, sizes = np.zeros(CLASSES), []
        for part, size in self._shards.sweep(
            lambda actor, *shard: actor.sort.remote(recipe, classes, *shard), self._description
        ):
            mass += part
            sizes.append(size)
        counts = np.stack(sizes)
        return mass, counts.sum(axis=0), OrderAtWorkers(self._shards, recipe, classes, counts)


class OrderAtWorkers:
    """Row numbers sorted by class; each worker holds those of its shards (see `KeptOrder`).

    Parameters
    ----------
    counts
        Rows of each class in each shard, (shards, classes).
    """

    def __init__(
        self, shards: Shards, recipe: NumberRecipe, classes: Classes, counts: np.ndarray
    ) -> None:
        self._shards, self._recipe, self._classes = shards, recipe, classes
        # The order is made of pieces, class by class and shard by shard within a class: where
        # each piece begins and ends, and where it begins in the order of its own shard.
        self._ends = np.cumsum(counts.T.ravel())
        self._begins = self._ends - counts.T.ravel()
        self._within = (np.cumsum(counts, axis=1) - counts).T.ravel()
        self._tail = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._shards.rows)

    def __getitem__(self, places: slice | np.ndarray) -> np.ndarray:
        """Return the row numbers (int64) at these places."""
        n = len(self)
        if isinstance(places, slice):
            first, stop, step = places.indices(n)
            if stop == n and step == 1 and n - first <= TAIL:  # asked for repeatedly, so cached
                if len(self._tail) < n - first:
                    self._tail = self._row_ids(np.arange(max(0, n - TAIL), n))
                return self._tail[len(self._tail) - (n - first) :]
            places = np.arange(first, stop, step)
        flat = self._row_ids(np.asarray(places).ravel())
        return flat.reshape(np.shape(places))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole order, gathered from all workers: one number per row."""
        del copy
        every = np.empty(len(self), np.uint32 if len(self) < 2**32 else np.int64)
        recipe, classes = self._recipe, self._classes
        orders = self._shards.sweep(
            lambda actor, *shard: actor.order.remote(recipe, classes, *shard), "design"
        )
        number = len(self._shards.starts)
        for shard, (start, order) in enumerate(zip(self._shards.starts, orders, strict=True)):
            pieces = slice(shard, None, number)
            for at, end, within in zip(
                self._begins[pieces], self._ends[pieces], self._within[pieces], strict=True
            ):
                every[at:end] = order[within : within + end - at] + start
        return every if dtype is None else every.astype(dtype)

    def take(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows at these places (any shape), each from the worker that sorted it."""
        flat, rows = places.ravel(), self._shards.rows
        return in_shape(rows_from(self._ask("take_sorted", flat), len(flat), rows), places.shape)

    def _row_ids(self, places: np.ndarray) -> np.ndarray:
        row_ids = np.empty(len(places), np.int64)
        for at, part in self._ask("sorted_row_ids", places):
            row_ids[at] = part
        return row_ids

    def _ask(
        self, method_name: Literal["sorted_row_ids", "take_sorted"], places: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Answer]]:
        """Ask each worker once about the places in its shards."""
        piece = np.searchsorted(self._ends, places, side="right")
        shard = piece % len(self._shards.starts)
        within = (places - self._begins[piece] + self._within[piece]).astype(np.uint32)
        starts = self._shards.starts[shard]

        def ask(actor: Actor, at: np.ndarray) -> Reference:
            method: RemoteMethod = getattr(actor, method_name)
            return method.remote(self._recipe, self._classes, starts[at], within[at])

        return self._shards.workers.each_from(self._shards.owners[shard], ask)


def rows_from(
    parts: Iterable[tuple[np.ndarray, dict[str, np.ndarray]]], number: int, rows: Rows
) -> dict[str, np.ndarray]:
    """Assemble the rows that several workers sent, each in its place."""
    out = {
        name: np.empty((number, *shape), rows.dtypes[name]) for name, shape in rows.fields.items()
    }
    for places, part in parts:
        for name, values in part.items():
            out[name][places] = values
    return out


def in_shape(fields: dict[str, np.ndarray], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Reshape the leading axis of every field to `shape`."""
    return {name: part.reshape(*shape, *part.shape[1:]) for name, part in fields.items()}
