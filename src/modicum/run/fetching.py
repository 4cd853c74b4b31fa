"""Rows read ahead of the chains: what a kernel wants depends on its keys alone."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from modicum.kernels.base import Kernel, travelling
from modicum.rows import Rows
from modicum.run import advance as compiled
from modicum.runtime import in_double_precision

__all__ = ["Fetcher", "lengthened"]

Batches = dict[str, np.ndarray]


@dataclass
class Fetcher:
    """Reads the rows of the next iterations while the chains are at the last ones.

    What it hands out has a leading axis for chains, and a second one for iterations.

    Parameters
    ----------
    kernel, context, keys
        What wants rows, what it reads besides, and a key a chain.
    rows
        Where they are.
    capacity
        The iterations its arrays have room for: compiled loops have one shape.
    stacked
        Whether all chains are asked at once.
    """

    kernel: Kernel
    context: Any
    keys: np.ndarray
    rows: Rows
    capacity: int
    stacked: bool
    _ahead: tuple[int, int, Future[Batches]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._reader = ThreadPoolExecutor(1)

    def at_start(self) -> Batches | None:
        """Rows the chains start with, without an axis for iterations; None if they need none."""
        if self.stacked:
            drawn = compiled.wanted_at_start_together(self.kernel, self.context, self.keys)
            return None if drawn is None else self._read(drawn)
        each = [compiled.wanted_at_start(self.kernel, self.context, key) for key in self.keys]
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
        """Let the thread go."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, first: int, count: int) -> Batches:
        iterations = np.arange(first, first + self.capacity)
        if self.stacked:
            together = compiled.wanted_together
            drawn = together(self.kernel, self.context, self.keys, iterations)
        else:
            wanted = partial(compiled.wanted, self.kernel, self.context)
            drawn = _joined([wanted(key, iterations) for key in self.keys])
        read = self._read(jax.tree.map(lambda part: np.asarray(part)[:, :count], drawn))
        return {name: lengthened(values, self.capacity, axis=1) for name, values in read.items()}

    def _read(self, drawn: Any) -> Batches:
        """Rows of all chains in one bulk read, with what travels with them."""
        wanted = jax.tree.map(np.asarray, drawn)
        return self.rows.take(wanted.row_ids) | travelling(wanted)


def _joined(each: list[Any]) -> Any:
    """What each chain wants, with a leading axis for chains."""
    return jax.tree.map(lambda *parts: np.stack(parts), *each)


def lengthened(values: np.ndarray, size: int, axis: int = 0) -> np.ndarray:
    """Zeros appended along an axis, up to `size`; an array that has it stays as it is."""
    if values.shape[axis] == size:
        return values
    missing = [(0, size - length if k == axis else 0) for k, length in enumerate(values.shape)]
    return np.pad(values, missing)
