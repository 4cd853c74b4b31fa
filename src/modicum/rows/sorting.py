"""An external sort of packed rows by one field: sorted runs on disk, then merged.

Rows are sorted in runs that fit in memory, one file per run. The runs are then merged one range of
values at a time: the rows of a range are contiguous in each run, and ranges are chosen so that
their rows fit in memory. The sort is stable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from modicum.errors import SettingError
from modicum.rows.description import Array, Description

RUN_BYTES = 1 << 27  # bytes per run, and bytes merged at a time
SAMPLES = 1024  # values sampled from each run to choose the ranges


def sorted_blocks(
    description: Description,
    blocks: Iterator[Array],
    field: str,
    folder: Path,
    run_bytes: int = RUN_BYTES,
) -> Iterator[Array]:
    """Yield the rows of `blocks` sorted by `field`; temporary files are kept in `folder`."""
    fields = [f.name for f in description.fields if f.shape == ()]
    if field not in fields:
        names = ", ".join(fields)
        raise SettingError(
            f"sort_by must name a field with one number per row, not {field!r}; these are: "
            f"{names or 'none'}."
        )
    most = max(1, run_bytes // description.row_bytes)
    runs: list[_Run] = []
    try:
        for number, block in enumerate(_gather_runs(blocks, most)):
            runs.append(_Run(description, block, field, folder / f".run-{number:05d}"))
        yield from _merge_runs(runs, most)
    finally:
        for run in runs:
            run.remove()


def _gather_runs(blocks: Iterator[Array], most: int) -> Iterator[Array]:
    """Join blocks into runs of `most` rows or a few more."""
    parts: list[Array] = []
    count = 0
    for block in blocks:
        parts.append(np.array(block))
        count += len(block)
        if count >= most:
            yield np.concatenate(parts)
            parts, count = [], 0
    if parts:
        yield np.concatenate(parts)


class _Run:
    """A file of sorted rows, and a file of their values of the sort field."""

    def __init__(self, description: Description, block: Array, field: str, path: Path) -> None:
        keys = np.asarray(description.split(block)[field])
        order = np.argsort(keys, kind="stable")
        self._file, self._key_file = path, path.with_suffix(".key")
        self._shape, self._type = block.shape, block.dtype
        self._key_type = keys.dtype
        block[order].tofile(self._file)
        keys = np.ascontiguousarray(keys[order])
        keys.tofile(self._key_file)
        self.samples = keys[:: max(1, len(keys) // SAMPLES)]

    @property
    def keys(self) -> Array:
        """The values of the sort field, ascending."""
        return np.memmap(self._key_file, self._key_type, "r", shape=self._shape[:1])

    def rows(self, start: int, stop: int) -> Array:
        """Rows from `start` up to `stop`."""
        mapped = np.memmap(self._file, self._type, "r", shape=self._shape)
        return np.array(mapped[start:stop])

    def remove(self) -> None:
        """Delete the files."""
        for path in (self._file, self._key_file):
            if path.exists():
                os.unlink(path)


def _merge_runs(runs: list[_Run], most: int) -> Iterator[Array]:
    """Yield all rows in order, one range of values at a time."""
    if not runs:
        return
    keys = np.unique(np.concatenate([run.samples for run in runs]))
    at = [0] * len(runs)
    for place in range(len(keys)):
        last = place == len(keys) - 1
        ends = [
            len(run.keys) if last else int(np.searchsorted(run.keys, keys[place + 1], side="left"))
            for run in runs
        ]
        waiting = sum(end - start for start, end in zip(at, ends, strict=True))
        if waiting < most // 2 and not last:
            continue
        parts = list(zip(runs, at, ends, strict=True))
        if waiting:
            yield from _merge_range(parts, most)
        at = ends


def _merge_range(parts: list[tuple[_Run, int, int]], most: int) -> Iterator[Array]:
    """Yield the rows of a range in order: at once, unless there are too many for memory."""
    total = sum(end - start for _, start, end in parts)
    low = min(run.keys[start] for run, start, end in parts if end > start)
    high = max(run.keys[end - 1] for run, start, end in parts if end > start)
    if low == high:  # a single value, however many rows it has: they are in order already
        for run, start, end in parts:
            for first in range(start, end, most):
                yield run.rows(first, min(first + most, end))
        return
    if total > 2 * most:  # split the range at its median value
        keys = np.unique(np.concatenate([run.keys[s:e] for run, s, e in parts]))
        middle = keys[len(keys) // 2]
        cut = [int(np.searchsorted(run.keys, middle, side="left")) for run, _, _ in parts]
        cut = [min(max(c, s), e) for c, (_, s, e) in zip(cut, parts, strict=True)]
        before = [(run, s, c) for (run, s, _), c in zip(parts, cut, strict=True)]
        after = [(run, c, e) for (run, _, e), c in zip(parts, cut, strict=True)]
        for half in (before, after):
            if any(e > s for _, s, e in half):
                yield from _merge_range(half, most)
        return
    rows = np.concatenate([run.rows(s, e) for run, s, e in parts])
    keys = np.concatenate([np.asarray(run.keys[s:e]) for run, s, e in parts])
    yield rows[np.argsort(keys, kind="stable")]
