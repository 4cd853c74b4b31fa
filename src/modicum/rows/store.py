"""Rows that live in a folder: memory-mapped shards of packed rows."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modicum.errors import DataError
from modicum.rows.description import Array, Description
from modicum.rows.shards import Shard, check_shard, shard_json
from modicum.rows.staging import DESCRIPTION

FORMAT, VERSION = "modicum-rows", 1

# Advice to the system about mapped pages; 0 (normal) where it has no such advice.
RANDOM = getattr(mmap, "MADV_RANDOM", 0)
SEQUENTIAL = getattr(mmap, "MADV_SEQUENTIAL", 0)
WILL_NEED = getattr(mmap, "MADV_WILLNEED", 0)
DONT_NEED = getattr(mmap, "MADV_DONTNEED", 0)

# Mapped pages that sweeps leave behind in the process at most.
HELD_BYTES = 1 << 27


def write_description(folder: Path, description: Description, shards: Sequence[Shard]) -> None:
    """Write ``rows.json``, the last file of a store."""
    about = {"format": FORMAT, "version": VERSION, **description.to_json()}
    with open(folder / DESCRIPTION, "w", encoding="utf-8") as file:
        json.dump({**about, "shards": [shard_json(s) for s in shards]}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def read_description(folder: Path) -> tuple[Description, list[Shard]]:
    """Read ``rows.json`` and refuse what is not a whole description of a store."""
    try:
        about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except OSError:
        raise DataError(
            f"{folder} is not a row store (it has no {DESCRIPTION}): make one with ingest."
        ) from None
    except ValueError:
        about = None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DataError(f"{folder / DESCRIPTION} is damaged: ingest the source again.")
    if about.get("version") != VERSION:
        raise DataError(
            f"{folder} has store version {about.get('version')} and this Modicum reads version "
            f"{VERSION}: upgrade Modicum, or ingest the source again."
        )
    try:
        description = Description.from_json(about)
        shards = [Shard(**s) for s in about["shards"]]
        if sum(s.rows for s in shards) != description.n or description.n < 1:
            raise ValueError("the shards do not add up")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{folder / DESCRIPTION} is damaged: ingest the source again.") from None
    return description, shards


class Mapped:
    """One shard, mapped read-only; `matrix` is a plain view, three times faster than a memmap."""

    def __init__(
        self, path: Path, data: int, rows: int, width: int, dtype: np.dtype[Any], advice: int
    ) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data, self._row = data, width * dtype.itemsize
        kind = dtype.newbyteorder("<")
        self.matrix: Array = np.frombuffer(self._map, kind, rows * width, data).reshape(rows, width)
        self.advise(advice, 0, rows)

    def advise(self, advice: int, start: int, stop: int) -> None:
        """Tell the system what will happen to the pages of some rows."""
        if not advice or stop <= start:
            return
        first = (self._data + start * self._row) // mmap.PAGESIZE * mmap.PAGESIZE
        length = self._data + stop * self._row - first
        with contextlib.suppress(OSError):  # advice not taken costs speed, nothing else
            self._map.madvise(advice, first, length)


class StoreBackend:
    """Fields as columns of memory-mapped shards; safe to read from many threads.

    Each shard is mapped twice: once for scattered rows, where reading ahead would only waste
    time, and once for sweeps, whose pages are let go behind the reader so that a pass over a
    large store does not fill the process's memory.
    """

    def __init__(self, folder: Path, verify: bool = False) -> None:
        self.description, shards = read_description(folder)
        about = self.description
        self.where = f"in {folder}"
        self.folder = folder
        self._scattered: list[Mapped] = []
        self._swept: list[Mapped] = []
        for shard in shards:
            data = check_shard(folder, shard, about.width, about.dtype, verify)
            where = (folder / shard.file, data, shard.rows, about.width, about.dtype)
            self._scattered.append(Mapped(*where, advice=RANDOM))
            self._swept.append(Mapped(*where, advice=SEQUENTIAL))
        self._starts = np.cumsum([0] + [shard.rows for shard in shards])
        self._lock = threading.Lock()
        self._recent: deque[tuple[int, int]] = deque()
        self._held, self._hold = 0, HELD_BYTES // about.row_bytes

    def take(self, indices: Array) -> dict[str, Array]:
        """Rows at `indices`, any shape."""
        if len(self._scattered) == 1:
            return self.description.split(self._scattered[0].matrix.take(indices, axis=0))
        block = np.empty((*indices.shape, self.description.width), self.description.dtype)
        owner = np.searchsorted(self._starts, indices, side="right") - 1
        for shard in np.unique(owner):
            mine = owner == shard
            local = indices[mine] - self._starts[shard]
            block[mine] = self._scattered[shard].matrix.take(local, axis=0)
        return self.description.split(block)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[Mapped, int, int]]:
        """Shards that hold rows from `start` up to `stop`, with the rows of each."""
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first, last = (int(i) for i in self._starts[shard : shard + 2])
            yield self._swept[shard], start - first, min(stop, last) - first
            start, shard = last, shard + 1

    def _advise(self, advice: int, start: int, stop: int) -> None:
        for mapped, first, last in self._pieces(start, stop):
            mapped.advise(advice, first, last)

    def _block(self, start: int, stop: int) -> Array:
        views = [mapped.matrix[first:last] for mapped, first, last in self._pieces(start, stop)]
        if not views:
            return self._swept[0].matrix[:0]
        if len(views) == 1:
            return views[0]
        joined = np.concatenate(views)
        joined.flags.writeable = False
        return joined

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Rows from `start` up to `stop`: views, unless they cross the border of a shard."""
        self._advise(WILL_NEED, start, stop)
        self._let_go(start, stop)
        return self.description.split(self._block(start, stop))

    def chunks(self, size: int) -> Iterator[dict[str, Array]]:
        """All rows in order, `size` at a time, reading one chunk ahead."""
        n = self.description.n
        for start in range(0, n, size):
            stop = min(start + size, n)
            chunk = self.slice(start, stop)
            self._advise(WILL_NEED, stop, min(stop + size, n))
            yield chunk

    def _let_go(self, start: int, stop: int) -> None:
        """Note the rows being read, and unmap those read longest ago."""
        old = []
        with self._lock:
            self._recent.append((start, stop))
            self._held += stop - start
            while self._held > self._hold and len(self._recent) > 1:
                old.append(self._recent.popleft())
                self._held -= old[-1][1] - old[-1][0]
        for first, last in old:
            # A reader that still holds these rows finds them again in the file cache.
            self._advise(DONT_NEED, first, last)
