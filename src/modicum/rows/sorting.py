"""An external sort of packed rows by one field: sorted runs on disk, then merged.

Rows are sorted in runs that fit in memory, one file per run. The runs are then merged one range of
values at a time: the rows of a range are contiguous in each run, and ranges are chosen so that
their rows fit in memory, by halving. The sort is stable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from modicum.errors import SettingError
from modicum.rows.coding import Array
from modicum.rows.description import Description

RUN_BYTES = 1 << 27  # bytes per run, and bytes merged at a time
SAMPLES = 1024  # values of each run from which the middle of a range is chosen


def sorted_blocks(
    description: Description,
    blocks: Iterable[Array],
    field: str,
    folder: Path,
    run_bytes: int = RUN_BYTES,
) -> Iterator[Array]:
    """Yield the rows of `blocks` sorted by `field`; temporary files are kept in `folder`."""
    fields = [name for name, shape in description.fields.items() if shape == ()]
    if field not in fields:
        names = ", ".join(fields)
        raise SettingError(
            f"sort_by must name a field with one number per row, not {field!r}; these are: "
            f"{names or 'none'}."
        )
    most = max(1, run_bytes // description.row_bytes)
    with tempfile.TemporaryDirectory(prefix=".runs-", dir=folder) as place:
        runs = [
            _Run(block, description.split(block)[field], f"{place}/{number}")
            for number, block in enumerate(_gather_runs(blocks, most))
        ]
        yield from _merge([(run, 0, len(run.keys)) for run in runs], most)


def _gather_runs(blocks: Iterable[Array], most: int) -> Iterator[Array]:
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
    """Sorted rows, and their values of the sort field, in two files."""

    def __init__(self, block: Array, keys: Array, path: str) -> None:
        order = np.argsort(keys, kind="stable")
        self._rows, self._keys = f"{path}-rows.npy", f"{path}-keys.npy"
        np.save(self._rows, block[order])
        np.save(self._keys, keys[order])

    @property
    def keys(self) -> Array:
        """The values of the sort field, ascending."""
        return np.load(self._keys, mmap_mode="r")

    def rows(self, start: int, stop: int) -> Array:
        """Rows from `start` up to `stop`."""
        return np.array(np.load(self._rows, mmap_mode="r")[start:stop])


def _merge(parts: list[tuple[_Run, int, int]], most: int) -> Iterator[Array]:
    """Yield the rows of a range of values in order: at once, unless memory is too small for them.

    Each part is a run, and its first and last row in that range.
    """
    parts = [(run, start, end) for run, start, end in parts if end > start]
    if not parts:
        return
    ends = [run.keys[[start, end - 1]] for run, start, end in parts]
    low, high = np.min(ends), np.max(ends)
    if low == high:  # a single value, however many rows it has: they are in order already
        for run, start, end in parts:
            for first in range(start, end, most):
                yield run.rows(first, min(first + most, end))
        return
    if sum(end - start for _, start, end in parts) > 2 * most:  # split the range at its middle
        some = [run.keys[s : e : max(1, (e - s) // SAMPLES)] for run, s, e in parts]
        values = np.unique(np.concatenate([*some, *ends]))
        middle = values[len(values) // 2]  # not the lowest, so that both halves hold rows
        cuts = [s + int(np.searchsorted(run.keys[s:e], middle)) for run, s, e in parts]
        for half in (
            [(run, s, cut) for (run, s, _), cut in zip(parts, cuts, strict=True)],
            [(run, cut, e) for (run, _, e), cut in zip(parts, cuts, strict=True)],
        ):
            yield from _merge(half, most)
        return
    rows = np.concatenate([run.rows(s, e) for run, s, e in parts])
    keys = np.concatenate([np.asarray(run.keys[s:e]) for run, s, e in parts])
    yield rows[np.argsort(keys, kind="stable")]
