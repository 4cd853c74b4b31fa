"""What a worker of a cluster does: open the rows, and make the results of some of their chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from modicum.engines.library import ray_library
from modicum.engines.sharded_weights import Kept
from modicum.engines.shipping import unpacked
from modicum.errors import DataError
from modicum.passes.engine import chunk_results, chunk_rows
from modicum.rows import Rows
from modicum.rows.weight_classes import Classes, Extent, extent_of, sorted_by_class

__all__ = ["Worker"]

HELD = 2  # data sets (all rows, and the subset from which the mode is looked for), and weights


class Worker:
    """An actor. It holds what can be sent again, so that another may take its place at any time.

    Parameters
    ----------
    threads
        That it computes with.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._rows: dict[int, Rows] = {}
        self._work: tuple[int, Any] = (-1, None)
        self._kept: dict[int, dict[int, np.ndarray]] = {}

    def ready(self) -> bool:
        """Whether it is there: an answer says so."""
        return True

    def node(self) -> str:
        """Where it runs."""
        return str(ray_library().get_runtime_context().get_node_id())

    def results(
        self, work: tuple[int, Any], rows: tuple[int, Any], numbers: list[int], dtype: str
    ) -> list[Any]:
        """Results of the chunks of these numbers.

        Both the work (what `packed` made of function and arguments) and the rows (a folder, or the
        rows themselves) come with a number under which they are remembered.
        """
        function, arguments = self._unpacked(*work)
        held = self._opened(*rows)
        results = chunk_results(function, arguments, held, numbers, dtype, self._threads)
        return list(results)

    def take(self, rows: tuple[int, Any], row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Rows at these numbers, which are those of chunks that come to this worker."""
        held = self._opened(*rows)
        return {name: np.ascontiguousarray(part) for name, part in held.take(row_ids).items()}

    # Numbers per row that are kept -----------------------------------------------------------

    def extent(self, kept: Kept, start: int, stop: int) -> Extent:
        """Make the numbers of a shard, keep them, and say what their classes depend on."""
        numbers = self._numbers(kept, start, stop)
        self._shards_of(kept)[start] = numbers
        return extent_of(numbers)

    def sort(
        self, kept: Kept, classes: Classes, start: int, stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sort a shard by class, keep the order in place of the numbers: weight, size of each."""
        mass, size, order = sorted_by_class(self._numbers(kept, start, stop), classes)
        self._shards_of(kept)[start] = order
        return mass, size

    def sorted_row_ids(
        self, kept: Kept, classes: Classes, shards: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Row numbers at places in the orders of shards (which begin at these rows)."""
        row_ids = np.empty(len(places), np.int64)
        n = len(self._opened(*kept.rows))
        for start in np.unique(shards):
            here = shards == start
            order = self.order(kept, classes, int(start), min(int(start) + kept.shard, n))
            row_ids[here] = order[places[here]] + start
        return row_ids

    def take_sorted(
        self, kept: Kept, classes: Classes, shards: np.ndarray, places: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Rows at places in the orders of shards."""
        return self.take(kept.rows, self.sorted_row_ids(kept, classes, shards, places))

    def order(self, kept: Kept, classes: Classes, start: int, stop: int) -> np.ndarray:
        """Places of a shard's rows, sorted by class; made anew where another had made it."""
        held = self._shards_of(kept).get(start)
        if held is None or held.dtype != np.uint32:
            self.sort(kept, classes, start, stop)
        return self._shards_of(kept)[start]

    def _shards_of(self, kept: Kept) -> dict[int, np.ndarray]:
        """By their first rows: float32 numbers per row, or their order, uint32."""
        number = kept.work[0]
        if number not in self._kept:
            while len(self._kept) >= HELD:
                self._kept.pop(next(iter(self._kept)))
            self._kept[number] = {}
        return self._kept[number]

    def _numbers(self, kept: Kept, start: int, stop: int) -> np.ndarray:
        """Numbers of the rows of a shard: of all chunks that it has part of, as in any pass."""
        held = self._shards_of(kept).get(start)
        if held is not None and held.dtype == np.float32:
            return held
        rows = self._opened(*kept.rows)
        function, arguments = self._unpacked(*kept.work)
        size = chunk_rows(rows)
        chunks = range(start // size, (stop - 1) // size + 1)
        results = chunk_results(function, arguments, rows, chunks, "float32", self._threads)
        joined = np.empty(stop - start, np.float32)
        for number, result in zip(chunks, results, strict=True):
            low, high = max(number * size, start), min((number + 1) * size, stop)
            joined[low - start : high - start] = result[low - number * size : high - number * size]
        return joined

    def _unpacked(self, number: int, parcel: Any) -> Any:
        if self._work[0] != number:
            self._work = (number, unpacked(ray_library().get(parcel[0])))
        return self._work[1]

    def _opened(self, number: int, source: Any) -> Rows:
        if number not in self._rows:
            while len(self._rows) >= HELD:
                self._rows.pop(next(iter(self._rows)))
            self._rows[number] = _rows_at(source)
        return self._rows[number]


def _rows_at(source: Any) -> Rows:
    if not isinstance(source, str):
        rows = unpacked(ray_library().get(source[0]))
        assert isinstance(rows, Rows)
        return rows
    try:
        return Rows.open(source)
    except DataError as fault:
        where = ray_library().util.get_node_ip_address()
        raise DataError(
            f"a worker on {where} cannot open the rows ({str(fault).rstrip('.')}): the store must "
            "lie under the same path on every node, on a shared disk or as a copy."
        ) from None
