"""Writing a store: shards of packed rows, in a folder that appears complete or not at all.

Its complete shards are a store under another name, from which an ingest that was killed goes on.

Rows may be sorted by one field, which is an external sort: in runs that fit in memory, one file per
run. The runs are then merged one range of values at a time: the rows of a range are contiguous in
each run, and ranges are chosen so that their rows fit in memory, by halving. The sort is stable.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import BinaryIO

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.files import place_name
from modicum.progress import Progressbar, phase
from modicum.rows.coding import Array
from modicum.rows.description import Description, RunningFingerprint
from modicum.rows.memory import RowStream
from modicum.rows.object_storage import place_of
from modicum.rows.rows import Rows
from modicum.rows.store import (
    SHARD_BYTES,
    UNFINISHED,
    Folder,
    Shard,
    ShardedBackend,
    StoreDescription,
    ends_of,
    npy_header,
    writable_store,
)

READ_ROWS = 1 << 16  # rows of complete shards read at a time


def write_store(
    rows: RowStream,
    store: str | os.PathLike[str],
    overwrite: bool,
    progressbar: Progressbar,
    shard_rows: int | None = None,
    sort_by: str | None = None,
    identity: str | None = None,
) -> Rows:
    """Write rows to a store, and open it.

    With the `identity` of the data and settings, a call continues an earlier one that was killed.
    """
    about, called = rows.description, place_name(store)
    if sort_by is not None:
        identity = None
    fingerprint = RunningFingerprint(about)
    with place_of(store).staged(overwrite, identity) as folder:
        begun = None if identity is None else _begun(folder, about, identity)
        writer = ShardWriter(folder, about, shard_rows, identity, begun)
        blocks: Iterable[Array] = map(about.pack, rows.chunks(writer.rows))
        if sort_by is not None:
            blocks = sorted_blocks(about, blocks, sort_by, folder.local)
        title = f"ingest {PurePath(called).name}"
        with contextlib.closing(writer), phase(title, rows.total, progressbar, "rows") as reading:
            for chunk in () if begun is None else begun.chunks(READ_ROWS):
                block = about.pack(chunk)
                fingerprint.update(block)
                reading.advance(len(block))
            del begun  # before its folder is renamed
            for block in blocks:
                with writable_store(called):
                    writer.write(block)
                fingerprint.update(block)
                reading.advance(len(block))
            with writable_store(called):
                shards = tuple(writer.finish())
                about = replace(about, n=writer.rows)
                folder.finish(StoreDescription(about, shards, fingerprint.finish(about)))
    return Rows.open(store)


def _begun(folder: Folder, about: Description, identity: str) -> ShardedBackend | None:
    """Return what an earlier, killed call has written, if there is any, as the store that it is."""
    try:
        begun = folder.opened(verify=True, name=UNFINISHED)
    except DataError:
        return None
    alike = replace(begun.description, n=about.n) == about
    return begun if alike and begun.fingerprint == identity else None


class ShardWriter:
    """Writes packed rows into ``rows-00000.npy``, ``rows-00001.npy``, ... of a folder."""

    def __init__(
        self,
        folder: Folder,
        description: Description,
        shard_rows: int | None,
        identity: str | None = None,
        begun: ShardedBackend | None = None,
    ) -> None:
        self._folder, self._about = folder, description
        self._shard_rows = shard_rows or max(1, SHARD_BYTES // description.row_bytes)
        self._file: BinaryIO | None = None
        self._identity = identity
        self.shards = [] if begun is None else list(begun.shards)
        self.rows = sum(shard.rows for shard in self.shards)

    def write(self, block: Array) -> None:
        """Append packed rows."""
        while len(block):
            file = self._file or self._begin()
            piece, block = np.split(block, [self._shard_rows - self._filled])
            data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
            file.write(data)
            self._digest.update(data)
            self._filled += len(piece)
            self.rows += len(piece)
            if self._filled == self._shard_rows:
                self._end()

    def finish(self) -> list[Shard]:
        """Close the last shard and return all of them."""
        if self._file is not None:
            self._end()
        return self.shards

    def close(self) -> None:
        """Close a file that is still being written, if any."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> BinaryIO:
        self._name = f"rows-{self._folder.number(len(self.shards)):05d}.npy"
        self._file = open(self._folder.local / self._name, "w+b", buffering=0)  # noqa: SIM115
        self._data = npy_header(self._file, 0, self._about)
        self._digest = hashlib.sha256()
        self._filled = 0
        return self._file

    def _end(self) -> None:
        file = self._file
        assert file is not None
        # NumPy pads headers, so that the number of rows can be filled in at the end.
        file.seek(0)
        if npy_header(file, self._filled, self._about) != self._data:
            raise AssertionError("the npy header changed its length")
        size = os.fstat(file.fileno()).st_size
        ends = ends_of(file, self._data, size)
        os.fsync(file.fileno())
        self.close()
        self._folder.send(self._name)
        shard = Shard(self._name, self._filled, size, self._digest.hexdigest(), ends)
        self.shards.append(shard)
        if self._identity is not None:
            self.record(self._identity)

    def record(self, identity: str) -> None:
        """List the complete shards but the last, so that there is always a row left to write."""
        done = tuple(self.shards[:-1])
        if done:
            about = replace(self._about, n=sum(shard.rows for shard in done))
            text = StoreDescription(about, done, identity).text()
            self._folder.save(UNFINISHED, text.encode())


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
        raise SettingError(
            f"sort_by must name a field with one number per row, not {field!r}; these are: "
            f"{', '.join(fields) or 'none'}."
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
