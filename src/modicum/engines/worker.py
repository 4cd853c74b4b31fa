"""What a worker of a cluster does: open the rows, and make the results of some of their chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from modicum.engines.library import ray_library
from modicum.engines.shipping import unpacked
from modicum.errors import DataError
from modicum.passes.engine import chunk_results
from modicum.rows import Rows

__all__ = ["Worker"]

HELD = 2  # data sets: all rows, and the subset from which the mode is looked for


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
