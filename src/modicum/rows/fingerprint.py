"""The fingerprint of a data set: a hash of all its numbers, the same in memory and in a store.

Rows are hashed in blocks of a fixed number of rows, field by field, and the block hashes are
hashed together. Threads can therefore share the work, and the fingerprint depends neither on how a
store is cut into shards nor on the order of the fields.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from modicum.rows.coding import Array
from modicum.rows.description import Description
from modicum.runtime import in_threads

# SHA-256, not BLAKE2: processors have instructions for it.
BLOCK_BYTES = 1 << 22
MOST_THREADS = 8


def fingerprint(
    description: Description, rows_between: Callable[[int, int], Mapping[str, Array]]
) -> str:
    """Hash all rows; `rows_between(start, stop)` returns a range of them and is thread-safe."""
    n, step = description.n, _block_rows(description)

    def block(start: int) -> bytes:
        return _block_hash(description, rows_between(start, min(start + step, n)))

    starts = range(0, n, step)
    threads = min(len(starts), os.cpu_count() or 1, MOST_THREADS)
    if threads == 1:
        return _digest(description, map(block, starts))
    return _digest(description, in_threads(block, starts, threads))


class RunningFingerprint:
    """Computes the fingerprint of rows that arrive in order, some at a time."""

    def __init__(self, description: Description) -> None:
        self._description, self._step = description, _block_rows(description)
        self._blocks: list[bytes] = []
        self._waiting: list[Array] = []
        self._filled = 0

    def update(self, packed: Array) -> None:
        """Add the next packed rows."""
        while len(packed):
            piece, packed = np.split(packed, [self._step - self._filled])
            self._waiting.append(np.array(piece))
            self._filled += len(piece)
            if self._filled == self._step:
                self._end_block()

    def finish(self, description: Description) -> str:
        """Return the fingerprint; `description` now has the final number of rows."""
        if self._waiting:
            self._end_block()
        return _digest(description, self._blocks)

    def _end_block(self) -> None:
        parts = self._description.split(np.concatenate(self._waiting))
        self._blocks.append(_block_hash(self._description, parts))
        self._waiting, self._filled = [], 0


def _block_rows(description: Description) -> int:
    return max(1, BLOCK_BYTES // description.row_bytes)


def _block_hash(description: Description, parts: Mapping[str, Array]) -> bytes:
    """Return the hashes of the fields of a block, in the order of their names."""
    hashes = []
    for name in sorted(parts):
        little = description.dtypes[name].newbyteorder("<")
        data = np.ascontiguousarray(parts[name], little).reshape(-1).view(np.uint8).data
        hashes.append(hashlib.sha256(data).digest())
    return b"".join(hashes)


def _digest(description: Description, blocks: Iterable[bytes]) -> str:
    facts: list[object] = [
        description.n,
        description.dtype.name,
        sorted(description.fields.items()),
    ]
    if description.coding is not None:  # equal codes may mean different columns
        facts.append(description.coding.to_dict())
    header = json.dumps(facts)
    digest = hashlib.sha256(header.encode())
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()[:32]
