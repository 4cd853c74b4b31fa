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
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from modicum.rows.description import Array, Description

# SHA-256, not BLAKE2: processors have instructions for it.
BLOCK_BYTES = 1 << 22
MOST_THREADS = 8


def fingerprint(
    description: Description, rows_between: Callable[[int, int], Mapping[str, Array]]
) -> str:
    """Hash all rows; `rows_between(start, stop)` returns a range of them and is thread-safe."""
    n, step = description.n, _block_rows(description)

    def block(start: int) -> bytes:
        hashes = _field_hashes(description)
        _update(hashes, rows_between(start, min(start + step, n)), description)
        return _join_hashes(hashes)

    starts = range(0, n, step)
    threads = min(len(starts), os.cpu_count() or 1, MOST_THREADS)
    if threads == 1:
        return _digest(description, map(block, starts))
    with ThreadPoolExecutor(threads) as pool:
        return _digest(description, pool.map(block, starts))


class RunningFingerprint:
    """Computes the fingerprint of rows that arrive in order, some at a time."""

    def __init__(self, description: Description) -> None:
        self._description = description
        self._step = _block_rows(description)
        self._blocks: list[bytes] = []
        self._hashes, self._filled, self._rows = _field_hashes(description), 0, 0

    def update(self, packed: Array) -> None:
        """Add the next packed rows."""
        while len(packed):
            piece, packed = np.split(packed, [self._step - self._filled])
            _update(self._hashes, self._description.split(piece), self._description)
            self._filled += len(piece)
            self._rows += len(piece)
            if self._filled == self._step:
                self._end_block()

    def finish(self, description: Description) -> str:
        """Return the fingerprint; `description` now has the final number of rows."""
        if self._filled:
            self._end_block()
        return _digest(description, self._blocks)

    def _end_block(self) -> None:
        self._blocks.append(_join_hashes(self._hashes))
        self._hashes, self._filled = _field_hashes(self._description), 0


def _block_rows(description: Description) -> int:
    return max(1, BLOCK_BYTES // description.row_bytes)


def _field_hashes(description: Description) -> dict[str, hashlib._Hash]:
    return {f.name: hashlib.sha256() for f in description.fields}


def _update(
    hashes: Mapping[str, hashlib._Hash], parts: Mapping[str, Array], description: Description
) -> None:
    for name, part in parts.items():
        little = description.dtypes[name].newbyteorder("<")
        hashes[name].update(np.ascontiguousarray(part, little).reshape(-1).view(np.uint8).data)


def _join_hashes(hashes: Mapping[str, hashlib._Hash]) -> bytes:
    return b"".join(hashes[name].digest() for name in sorted(hashes))


def _digest(description: Description, blocks: Iterable[bytes]) -> str:
    shapes = sorted((f.name, f.shape) for f in description.fields)
    facts: list[object] = [description.n, description.dtype.name, shapes]
    if description.coding is not None:  # equal codes may mean different columns
        facts.append(description.coding.to_dict())
    header = json.dumps(facts)
    digest = hashlib.sha256(header.encode())
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()[:32]
