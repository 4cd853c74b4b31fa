"""Where rows live while chains run: on the device, or fetched ahead of the chains.

Rows can be read ahead because the rows that a kernel requests depend on its keys alone.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import jax
import numpy as np

from modicum.kernels.base import Kernel, RowRequest, carried_fields
from modicum.passes.full_likelihood import free_memory
from modicum.rows import Rows
from modicum.run import advance as compiled
from modicum.runtime import Pytree, aligned, in_double_precision

__all__ = ["Fetcher", "RowPlacement", "lengthened", "place_rows"]

SMALL_STORE = 2**28  # bytes up to which the rows of a store are simply read into memory
Batches: TypeAlias = dict[str, np.ndarray]


class RowPlacement:
    """Rows on their way to the device, copied in a thread while the caller does something else.

    Memory that nobody has touched is most of what a copy takes, and one core's work. Rows that do
    not fit in `limit` bytes stay, to be fetched from. By default the limit is half of the free
    memory for rows in memory, and 256 MiB for a store.
    """

    def __init__(self, rows: Rows, limit: int | None = None) -> None:
        self._rows = rows
        self._copy: Future[Batches] | None = None
        if limit is None:
            limit = SMALL_STORE if rows.is_store else free_memory() // 2
        if rows.nbytes <= limit:
            thread = ThreadPoolExecutor(1)
            self._copy = thread.submit(lambda: aligned(dict(rows.slice(0, len(rows)))))
            thread.shutdown(wait=False)

    def result(self) -> dict[str, jax.Array] | Rows:
        """Rows on the device, waited for, or the rows themselves."""
        if self._copy is None:
            return self._rows
        # here, since the thread knows nothing of the caller's device and precision
        placed: dict[str, jax.Array] = jax.device_put(self._copy.result())
        return placed


def place_rows(rows: Rows, limit: int | None = None) -> dict[str, jax.Array] | Rows:
    """Put the rows on the device if they fit in `limit` bytes; else they stay."""
    return RowPlacement(rows, limit).result()


@dataclass
class Fetcher:
    """Reads the rows of the next iterations while the chains run the current ones.

    What it hands out has a leading axis for chains, and a second one for iterations.

    Parameters
    ----------
    kernel, context, keys
        The kernel that requests rows, what else it reads, and one key per chain.
    rows
        Where they are.
    capacity
        The iterations its arrays have room for: compiled loops have one shape.
    stacked
        Whether all chains are asked at once.
    start_keys
        The keys with which chains begin, where these are others.
    """

    kernel: Kernel[Any, Any]
    context: Pytree
    keys: np.ndarray
    rows: Rows
    capacity: int
    stacked: bool
    start_keys: np.ndarray | None = None
    _ahead: tuple[int, int, Future[Batches]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._reader = ThreadPoolExecutor(1)

    def at_start(self) -> Batches | None:
        """Rows the chains start with, without an axis for iterations; None if they need none."""
        keys = self.keys if self.start_keys is None else self.start_keys
        if self.stacked:
            requests = compiled.initial_row_requests(self.kernel, self.context, keys)
            return None if requests is None else self._read(requests)
        each = [compiled.initial_row_request(self.kernel, self.context, key) for key in keys]
        return None if each[0] is None else self._read(_joined(each))

    def of(self, first: int, count: int) -> Batches:
        """Rows of iterations `first` to `first + count`, waited for if they were asked for."""
        if self._ahead is not None and self._ahead[:2] == (first, count):
            return self._ahead[2].result()
        return self._fetch(first, count)

    def ask(self, first: int, count: int) -> None:
        """Begin to read the rows of these iterations."""
        fetch = in_double_precision(self._fetch)
        self._ahead = (first, count, self._reader.submit(fetch, first, count))

    def close(self) -> None:
        """Shut the thread down."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, first: int, count: int) -> Batches:
        iterations = np.arange(first, first + self.capacity)
        if self.stacked:
            together = compiled.row_requests_together
            requests = together(self.kernel, self.context, self.keys, iterations)
        else:
            of_chain = partial(compiled.row_requests, self.kernel, self.context)
            requests = _joined([of_chain(key, iterations) for key in self.keys])
        read = self._read(jax.tree.map(lambda part: np.asarray(part)[:, :count], requests))
        return {name: lengthened(values, self.capacity, axis=1) for name, values in read.items()}

    def _read(self, requests: RowRequest | None) -> Batches:
        """Rows of all chains in one bulk read, with what comes along."""
        on_host = jax.tree.map(np.asarray, requests)
        return self.rows.take(on_host.row_ids) | carried_fields(on_host)


def _joined(each: list[RowRequest | None]) -> RowRequest:
    """What each chain requests, with a leading axis for chains."""
    return jax.tree.map(lambda *parts: np.stack(parts), *each)


def lengthened(values: np.ndarray, size: int, axis: int = 0) -> np.ndarray:
    """Pad an array with zeros along an axis up to `size`, if it is shorter."""
    if values.shape[axis] == size:
        return values
    missing = [(0, size - length if k == axis else 0) for k, length in enumerate(values.shape)]
    return np.pad(values, missing)
