"""Rows while chains run: on the device, or prefetched from memory or a store.

Rows can be prefetched because the rows that a kernel requests depend on its keys alone.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import jax
import numpy as np

from modicum.kernels.base import RowRequest, carried_fields
from modicum.random import words_at_start, words_of_iterations
from modicum.rows import Rows
from modicum.run import advance as compiled
from modicum.runtime import Pytree, aligned, free_memory, in_double_precision

SMALL_STORE = 2**28  # bytes up to which the rows of a store are read into memory
Batches: TypeAlias = dict[str, np.ndarray]


class RowPlacement:
    """Copies rows in a background thread, to be placed on the device.

    Most of the time of a copy goes into touching new memory, which is the work of one core. Rows
    larger than `limit` bytes are not copied but fetched as needed. By default the limit is half of
    the free memory for rows in memory, and 256 MiB for a store.
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
        """Wait for the copy and return the rows on the device, or the rows themselves."""
        if self._copy is None:
            return self._rows
        # not in the thread, which does not have the caller's default device and precision
        placed: dict[str, jax.Array] = jax.device_put(self._copy.result())
        return placed


def place_rows(rows: Rows, limit: int | None = None) -> dict[str, jax.Array] | Rows:
    """Put the rows on the device if they fit in `limit` bytes; otherwise return them as is."""
    return RowPlacement(rows, limit).result()


@dataclass
class Fetcher:
    """Reads the rows of the next iterations while the chains run the current ones.

    Batches have a leading axis for chains, and a second one for iterations.

    Parameters
    ----------
    kernel, context, keys
        The kernel that requests rows, its context, and one key per chain.
    rows
        The rows to read from.
    capacity
        Number of iterations to which batches are padded, since compiled loops have one shape.
    stacked
        Whether chains are stacked, so that one call returns the requests of all.
    start_keys
        The keys with which chains begin, if they differ from `keys`.
    """

    kernel: compiled.ChainKernel
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
        """Read the rows for `init`, without an axis for iterations; None if it needs none."""
        keys = words_at_start(self.keys if self.start_keys is None else self.start_keys)
        if self.stacked:
            requests = compiled.initial_row_requests(self.kernel, self.context, keys)
            return None if requests is None else self._read(requests)
        by_chain = [compiled.initial_row_request(self.kernel, self.context, key) for key in keys]
        return None if by_chain[0] is None else self._read(_joined(by_chain))

    def of(self, first: int, count: int) -> Batches:
        """Return the rows of iterations `first` to `first + count`, prefetched or read now."""
        if self._ahead is not None and self._ahead[:2] == (first, count):
            return self._ahead[2].result()
        return self._fetch(first, count)

    def ask(self, first: int, count: int) -> None:
        """Start to prefetch the rows of these iterations."""
        fetch = in_double_precision(self._fetch)
        self._ahead = (first, count, self._reader.submit(fetch, first, count))

    def close(self) -> None:
        """Shut the thread down."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, first: int, count: int) -> Batches:
        keys = words_of_iterations(self.keys, np.arange(first, first + self.capacity))
        if self.stacked:
            requests = compiled.row_requests_together(self.kernel, self.context, keys)
        else:
            of_chain = partial(compiled.row_requests, self.kernel, self.context)
            requests = _joined([of_chain(key) for key in keys])
        batches = self._read(jax.tree.map(lambda part: np.asarray(part)[:, :count], requests))
        return {name: lengthened(values, self.capacity, axis=1) for name, values in batches.items()}

    def _read(self, requests: RowRequest | None) -> Batches:
        """Read the rows of all chains at once, and add the requests' other arrays."""
        on_host = jax.tree.map(np.asarray, requests)
        return self.rows.take(on_host.row_ids) | carried_fields(on_host)


def _joined(requests: list[RowRequest | None]) -> RowRequest:
    """Stack the requests of the chains along a leading axis."""
    return jax.tree.map(lambda *parts: np.stack(parts), *requests)


def lengthened(values: np.ndarray, size: int, axis: int = 0) -> np.ndarray:
    """Pad an array with zeros along an axis up to `size`, if it is shorter."""
    if values.shape[axis] == size:
        return values
    missing = [(0, size - length if k == axis else 0) for k, length in enumerate(values.shape)]
    return np.pad(values, missing)
