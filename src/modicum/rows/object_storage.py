"""Row stores on object storage: shards are written whole, and read in ranges of bytes.

A store consists of the same files as on disk. ``rows.json`` is written last, in one step, and turns
the files into a store. When a store is replaced, the new shards have new names, and the old ones
are removed once the new description exists. Only the shard being written takes local disk space.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TypeVar

import numpy as np

from modicum.errors import DataError, SettingError, first_line
from modicum.files import place_name
from modicum.libraries import pyarrow as pa
from modicum.rows.coding import Array
from modicum.rows.description import Description
from modicum.rows.lake import LakeError, file_system, is_remote, local_path, with_retries
from modicum.rows.store import (
    DESCRIPTION,
    MOST_DESCRIPTION_BYTES,
    SHARD_NAME,
    UNFINISHED,
    Folder,
    Shard,
    ShardedBackend,
    check_file,
)

PIECE = 1 << 23  # bytes read or sent at a time
NEAR = 1 << 16  # gaps of at most this many bytes between rows are read too, to save requests
REQUESTS = 32  # concurrent requests
T = TypeVar("T")


def place_of(store: str | PathLike[str]) -> Folder:
    """Return the folder that a path names, or the one on object storage that a URI names."""
    return Bucket(str(store)) if is_remote(store) else Folder(local_path(store).absolute())


class Bucket(Folder):
    """A folder on object storage; requests that fail are retried, then raise a `DataError`.

    Attributes
    ----------
    called
        Its name in messages, without credentials and options.
    local
        The local folder of the shard being written; see `staged`.
    """

    def __init__(self, uri: str) -> None:
        self._system, path = file_system(uri)
        self._uri, self._path = uri, path.rstrip("/")
        self.called = place_name(uri).rstrip("/")
        self.local = Path()
        self._last = -1

    # Reading ---------------------------------------------------------------------------------

    @property
    def holds_store(self) -> bool:
        """Whether there is a complete store."""
        try:
            return self.size(DESCRIPTION) is not None
        except LakeError:  # reading it as a table will raise the error
            return False

    def opened(self, verify: bool = False, name: str = DESCRIPTION) -> ShardedBackend:
        """Open the store, whose description is the file `name`; `verify` reads all of it."""
        return RemoteBackend(self._uri, verify, name)

    def names(self) -> list[str]:
        """Names of the files in the folder."""
        selector = pa.fs.FileSelector(self._path, allow_not_found=True)
        infos = self._call(DESCRIPTION, lambda: self._system.get_file_info(selector))
        return [info.base_name for info in infos if info.base_name]

    def size(self, name: str) -> int | None:
        """Size of a file in bytes; None if it does not exist."""
        info = self._call(name, lambda: self._system.get_file_info(f"{self._path}/{name}"))
        return int(info.size) if info.is_file else None

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading; its `read_at` is thread-safe."""
        return self._call(name, lambda: self._system.open_input_file(f"{self._path}/{name}"))

    def read(self, file: pa.NativeFile, name: str, start: int, count: int) -> bytes:
        """Read `count` bytes of an open file, from `start` on."""

        def once() -> bytes:
            data: bytes = file.read_at(count, start)
            if len(data) != count:
                raise OSError(f"{len(data)} bytes came, not {count}")
            return data

        return self._call(name, once)

    def load(self, name: str) -> bytes:
        """Return the contents of a small file; raise FileNotFoundError if it does not exist."""
        if self.size(name) is None:
            raise FileNotFoundError(name)
        with self.open(name) as file:
            return self._call(name, lambda: bytes(file.read(MOST_DESCRIPTION_BYTES)))

    def check(self, shard: Shard, description: Description, verify: bool = False) -> int:
        """Refuse a shard that was altered; return where its data begin."""

        def once() -> int:
            with self._system.open_input_file(f"{self._path}/{shard.file}") as file:
                return check_file(file, file.size(), self.called, shard, description, verify)

        return self._call(shard.file, once)

    def _call(self, name: str, call: Callable[[], T]) -> T:
        try:
            return with_retries(call)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, FileNotFoundError) or self._is_gone(name):
                raise DataError(
                    f"{self.called}/{name} does not exist: ingest the source again, or reopen the "
                    "store if it was replaced in the meantime."
                ) from None
            raise LakeError(
                f"{self.called}/{name} cannot be read ({first_line(error)}): check the connection, "
                "and that you may read it."
            ) from None

    def _is_gone(self, name: str) -> bool:
        """Whether a file that could not be read is known not to exist."""
        try:
            info = self._system.get_file_info(f"{self._path}/{name}")
            return bool(info.type == pa.fs.FileType.NotFound)
        except (pa.ArrowException, OSError):
            return False

    # Writing ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def staged(self, overwrite: bool, identity: str | None = None) -> Iterator[Bucket]:
        """Prepare to write a store; shards are written to a local folder, one at a time.

        Shards of an unfinished store stay, for the next call to continue from; other leftover
        shards are removed when the store is complete.
        """
        del identity
        self.refuse_existing(overwrite)
        numbers = [int(name[5:-4]) for name in self.names() if SHARD_NAME.fullmatch(name)]
        self._last = max(numbers, default=-1)
        with tempfile.TemporaryDirectory(prefix="modicum-") as folder:
            self.local = Path(folder)
            yield self

    def refuse_existing(self, overwrite: bool) -> None:
        """Refuse a folder of other files, or a store that may not be replaced."""
        names = self.names()
        for name in names:
            if name not in (DESCRIPTION, UNFINISHED) and not SHARD_NAME.fullmatch(name):
                raise SettingError(
                    f"{self.called} holds {name}, which is not part of a row store: choose another "
                    "name for the store."
                )
        if DESCRIPTION in names and not overwrite:
            raise self.taken()

    def number(self, shards: int) -> int:
        """Number of the next shard: an unused one, so that an existing store stays intact."""
        del shards
        self._last += 1
        return self._last

    def send(self, name: str) -> None:
        """Send a complete file, and remove the local copy."""
        path = self.local / name

        def pieces() -> Iterator[bytes]:
            with open(path, "rb") as file:
                while piece := file.read(PIECE):
                    yield piece

        self._put(name, pieces, path.stat().st_size)
        path.unlink()

    def save(self, name: str, data: bytes) -> None:
        """Write a small file, whole or not at all."""
        self._put(name, lambda: iter([data]), len(data))

    def remove(self, name: str) -> None:
        """Remove a file if it exists; ignore failures, since a leftover file does no harm."""
        with contextlib.suppress(pa.ArrowException, OSError):
            self._system.delete_file(f"{self._path}/{name}")

    def _put(self, name: str, pieces: Callable[[], Iterator[bytes]], size: int) -> None:
        def once() -> None:
            with self._system.open_output_stream(f"{self._path}/{name}") as stream:
                for piece in pieces():
                    stream.write(piece)
            arrived = self._system.get_file_info(f"{self._path}/{name}").size
            if arrived != size:
                raise OSError(f"{arrived} bytes arrived, not {size}")

        try:
            with_retries(once)
        except (pa.ArrowException, OSError) as error:
            raise LakeError(
                f"{self.called}/{name} cannot be written ({first_line(error)}): check the "
                "connection, that the bucket exists, and that you may write to it."
            ) from None


class RemoteBackend(ShardedBackend):
    """Fields of shards on object storage; safe to read from many threads."""

    def __init__(self, uri: str, verify: bool = False, name: str = DESCRIPTION) -> None:
        self._bucket = Bucket(uri)
        super().__init__(self._bucket, name)
        self.folder, self._pool = uri, ThreadPoolExecutor(REQUESTS)
        self._files = list(self._pool.map(partial(self._opened, verify), self.shards))

    def _opened(self, verify: bool, shard: Shard) -> tuple[pa.NativeFile, int]:
        """Check and open a shard; return where its data begin, too."""
        data = self._bucket.check(shard, self.description, verify)
        return self._bucket.open(shard.file), data

    def take(self, row_ids: Array) -> dict[str, Array]:
        """Rows at `row_ids`, any shape; rows close to each other share a request."""
        distinct, place = np.unique(row_ids, return_inverse=True)
        block = self._empty(len(distinct))

        def read(request: tuple[int, int]) -> None:
            first, last = request  # indices into `distinct`
            start = distinct[first]
            block[first:last] = self._block(start, distinct[last - 1] + 1)[
                distinct[first:last] - start
            ]

        # ranges of close rows in one shard, of at most PIECE bytes
        begin = distinct * self.description.row_bytes
        shard = np.searchsorted(self._starts, distinct, side="right")
        apart = np.diff(begin) > NEAR
        for part in (shard, begin // PIECE):
            apart |= np.diff(part) > 0
        cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(distinct)]
        list(self._pool.map(read, pairwise(cuts if len(distinct) else ())))
        return self.description.split(block[place.reshape(row_ids.shape)])

    def _piece(self, shard: int, start: int, stop: int) -> Array:
        about, (file, data) = self.description, self._files[shard]
        first, count = data + start * about.row_bytes, (stop - start) * about.row_bytes
        read = self._bucket.read(file, self.shards[shard].file, first, count)
        return np.frombuffer(read, about.stored_type).reshape(-1, *about.packed_shape)

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Rows from `start` up to `stop`, in pieces that are read concurrently."""
        step = max(1, PIECE // self.description.row_bytes)
        starts = range(start, stop, step)
        if len(starts) < 2:
            return self.description.split(self._block(start, stop))
        parts = self._pool.map(lambda first: self._block(first, min(first + step, stop)), starts)
        return self.description.split(np.concatenate(list(parts)))

    def chunks(self, size: int) -> Iterator[dict[str, Array]]:
        """All rows in order, `size` at a time, reading one chunk ahead."""
        n = self.description.n
        with ThreadPoolExecutor(1) as ahead:
            starts = range(0, n, size)
            coming = ahead.submit(self.slice, 0, min(size, n))
            for start in starts:
                chunk = coming.result()
                if start + size < n:
                    coming = ahead.submit(self.slice, start + size, min(start + 2 * size, n))
                yield chunk
