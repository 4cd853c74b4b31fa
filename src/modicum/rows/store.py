"""Rows stored in a folder: shards of packed rows, written once and memory-mapped.

A store is ``rows.json``, which describes it, and ``rows-00000.npy``, ``rows-00001.npy``, ... The
files may come from an untrusted source, so the description is checked against the shards.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import hashlib
import json
import mmap
import os
import re
import secrets
import shutil
import stat
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from modicum.errors import DataError, SettingError, argument
from modicum.files import Lock, integer, restored
from modicum.rows.coding import Array
from modicum.rows.description import Description
from modicum.rows.lake import LakeError
from modicum.rows.memory import Backend

DESCRIPTION, FORMAT = "rows.json", "modicum-rows"
UNFINISHED = "progress.json"  # describes the shards of a store that is being written
LOCK = ".lock"  # ends the name of the file that says that a folder is being written
NUMBERS, RECORDS = 1, 2  # versions: rows of one type; records of several types, with codes
MOST_DESCRIPTION_BYTES = 1 << 28  # no valid description is larger, however many levels it has
SHARD_NAME = re.compile(r"rows-[0-9]{5,9}[.]npy")
SHARD_BYTES = 1 << 30
END_BYTES = 1 << 16  # bytes at either end of a shard that the quick check reads
AGAIN = "ingest the source again"
REASONS: dict[type[Exception], str] = {  # why rows.json cannot be read at all
    UnicodeDecodeError: "it is not UTF-8 text",
    json.JSONDecodeError: "it is not JSON",
    RecursionError: "it is nested too deeply",
}

# madvise flags for mapped pages; 0 (normal) on systems without the flag.
RANDOM = getattr(mmap, "MADV_RANDOM", 0)
SEQUENTIAL = getattr(mmap, "MADV_SEQUENTIAL", 0)
WILL_NEED = getattr(mmap, "MADV_WILLNEED", 0)
DONT_NEED = getattr(mmap, "MADV_DONTNEED", 0)

# Most bytes of mapped pages that sweeps, and reads of scattered rows, keep in the process.
HELD_BYTES, HELD_SCATTERED = 1 << 27, 1 << 28
AROUND = 1 << 16  # bytes that Linux maps around a row of a file that is in its page cache


@dataclass(frozen=True)
class Shard:
    """What ``rows.json`` records about one file: its rows, its size, and checksums of its data."""

    file: str
    rows: int
    bytes: int
    checksum: str
    ends: str

    def __post_init__(self) -> None:
        if not SHARD_NAME.fullmatch(self.file):  # a bare name: nothing outside the folder is opened
            raise ValueError(f"{self.file[:80]!r} is not the name of a shard")
        integer(min(self.rows, self.bytes), 1)


SHARDS = tuple[Shard, ...]  # as `restored` reads them


@dataclass(frozen=True)
class StoreDescription:
    """The contents of ``rows.json``: description of the rows, shards, and fingerprint."""

    rows: Description
    shards: tuple[Shard, ...]
    fingerprint: str | None = None  # None in older stores

    def text(self) -> str:
        """Return the text of ``rows.json``."""
        entries = {
            "format": FORMAT,
            "version": NUMBERS if self.rows.coding is None else RECORDS,
            **self.rows.to_json(),
            "fingerprint": self.fingerprint,
            "shards": [asdict(shard) for shard in self.shards],
        }
        return json.dumps(entries, indent=1)

    @classmethod
    def read(cls, folder: Folder, name: str = DESCRIPTION) -> StoreDescription:
        """Read ``rows.json``; refuse anything but a complete description of a store."""
        entries = read_entries(folder, name)
        if entries.get("version") not in (NUMBERS, RECORDS):
            version = str(entries.get("version"))[:40]
            raise DataError(
                f"{folder.called} has store version {version} and this Modicum reads versions "
                f"{NUMBERS} and {RECORDS}: upgrade Modicum, or {AGAIN}."
            )
        try:
            rows = Description.from_json(entries)
            shards = restored(SHARDS, entries["shards"])
            if sum(shard.rows for shard in shards) != rows.n:
                raise ValueError("the rows of the shards do not add up")
            if len({shard.file for shard in shards}) < len(shards):
                raise ValueError("a shard is listed twice")
            return cls(rows, shards, restored(str | None, entries.get("fingerprint")))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(folder, error) from None


def read_entries(folder: Folder, name: str = DESCRIPTION) -> dict[str, object]:
    """Return the entries of ``rows.json``; refuse a file that Modicum has not written."""
    try:
        entries = json.loads(folder.load(name).decode("utf-8"))
        if not isinstance(entries, dict) or entries.get("format") != FORMAT:
            raise ValueError(f"it does not say that its format is {FORMAT}")
        return entries
    except DataError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{folder.called} is not a row store (it has no {DESCRIPTION}): make one with ingest."
        ) from None
    except OSError as error:
        raise DataError(
            f"{folder.called}/{DESCRIPTION} cannot be read ({error.strerror}): check its "
            "permissions and its disk."
        ) from None
    except (ValueError, RecursionError) as error:
        raise _damaged(folder, error) from None


def _damaged(folder: Folder, error: Exception) -> DataError:
    """Return the error for a ``rows.json`` that cannot be understood."""
    reason = f"entry {error} is missing" if isinstance(error, KeyError) else str(error)
    reason = REASONS.get(type(error), reason)
    return DataError(f"{folder.called}/{DESCRIPTION} is damaged ({reason}): {AGAIN}.")


class Folder:
    """Where a store is, or will be: a folder of this machine, or a `Bucket` on object storage.

    Attributes
    ----------
    called
        Its name in messages.
    local
        The folder on disk that holds a shard while it is written.
    """

    def __init__(self, local: Path) -> None:
        self.local, self.called = local, str(local)

    @property
    def holds_store(self) -> bool:
        """Whether there is a complete store."""
        return (self.local / DESCRIPTION).is_file()

    def opened(self, verify: bool = False, name: str = DESCRIPTION) -> ShardedBackend:
        """Open the store, whose description is the file `name`; `verify` reads all of it."""
        return StoreBackend(self.local, verify, name)

    def load(self, name: str) -> bytes:
        """Return the contents of a small file; raise FileNotFoundError if it does not exist."""
        status = (self.local / name).stat()
        # Reading a pipe would block, and a folder cannot be read.
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_DESCRIPTION_BYTES:
            raise ValueError("it is not a file of a sensible size")
        return (self.local / name).read_bytes()

    def check(self, shard: Shard, description: Description, verify: bool = False) -> int:
        """Refuse a truncated or altered shard; return where its data begin.

        The size, the header and both ends of the data are always checked, the rest with `verify`.
        """
        path = self.local / shard.file
        with _reading(self.local, shard.file):
            if path.exists() and not path.is_file():  # opening a pipe would block for ever
                raise DataError(f"shard {shard.file} of {self.called} is not a file: {AGAIN}.")
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                return check_file(file, size, self.called, shard, description, verify)

    def names(self) -> list[str]:
        """Names of the files in the folder."""
        return os.listdir(self.local)

    def refuse_existing(self, overwrite: bool) -> None:
        """Refuse a path that exists, unless it is a store that may be replaced."""
        store = self.local
        if not store.exists() or (store.is_dir() and not any(store.iterdir())):
            return
        try:
            read_entries(self)
        except DataError:
            raise SettingError(
                f"{store} exists and is not a row store: choose another name, or remove it "
                "yourself."
            ) from None
        if not overwrite:
            raise self.taken()
        for name in self.names():
            if name != DESCRIPTION and not SHARD_NAME.fullmatch(name):
                raise SettingError(
                    f"{store} cannot be replaced, because it also holds {name}, which is not part "
                    "of a row store: move that file elsewhere, or choose another name."
                )

    def taken(self) -> SettingError:
        """Return the error for a store that may not be replaced."""
        return SettingError(
            f"{self.called} exists: open it with Rows.open, name another folder, or, in ingest, "
            f"pass {argument('overwrite', True)} to replace it."
        )

    @contextlib.contextmanager
    def staged(self, overwrite: bool, identity: str | None = None) -> Iterator[Folder]:
        """Yield a hidden folder beside this one to write into, which takes its place at the end.

        If the block raises, the folder is removed. If the process is killed, the folder stays; the
        next call for the same store continues in it if the `identity` is the same, and else removes
        it.
        """
        store = Path(os.path.realpath(self.local))  # what a link points to, not the link
        called = secrets.token_hex(4) if identity is None else identity[:16]
        folder = store.parent / f".{store.name}.ingest-{called}"
        with writable_store(store):
            self.refuse_existing(overwrite)
            store.parent.mkdir(parents=True, exist_ok=True)
            _clean(store, keep=folder)
            lock = Lock(folder.with_name(f"{folder.name}{LOCK}"), f"'{store}'")
            folder.mkdir(exist_ok=identity is not None)
        stays = False
        try:
            yield Folder(folder)
            _sync(folder)
            with writable_store(store):
                self.refuse_existing(overwrite)  # it may have appeared meanwhile
                _replace(folder, store)
            _sync(store.parent)
        except (KeyboardInterrupt, LakeError):
            stays = identity is not None  # for the next call to continue
            raise
        finally:
            if not stays:
                shutil.rmtree(folder, ignore_errors=True)  # it may hold the replaced store
                lock.remove()
            lock.release()

    def number(self, shards: int) -> int:
        """Number of the next shard, after `shards` of them: one of a killed ingest is replaced."""
        return shards

    def send(self, name: str) -> None:
        """Move a complete shard from `local` to its destination."""

    def save(self, name: str, data: bytes) -> None:
        """Write a small file, whole or not at all."""
        aside = self.local / f"{name}.part"
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.local / name)

    def remove(self, name: str) -> None:
        """Remove a file; ignore failures, since a leftover file does no harm."""
        with contextlib.suppress(OSError):
            os.unlink(self.local / name)

    def finish(self, description: StoreDescription) -> None:
        """Write the description, which makes a store, and remove what is not part of it."""
        self.save(DESCRIPTION, description.text().encode())
        current = {DESCRIPTION, *(shard.file for shard in description.shards)}
        for name in self.names():
            is_ours = name.startswith(UNFINISHED) or SHARD_NAME.fullmatch(name)
            if name not in current and is_ours:
                self.remove(name)


@contextlib.contextmanager
def writable_store(store: Path | str) -> Iterator[None]:
    """Turn an OSError into a one-sentence `SettingError` that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space, or choose another place" if full else "choose another place"
        raise SettingError(f"{store} cannot be written ({error.strerror}): {remedy}.") from None


def _clean(store: Path, keep: Path) -> None:
    """Remove folders left by killed ingests of the same store, which nobody locks any more."""
    for left in store.parent.glob(f".{glob.escape(store.name)}.ingest-*{LOCK}"):
        folder = left.with_name(left.name.removesuffix(LOCK))
        if folder != keep:
            with contextlib.suppress(SettingError):  # its ingest is under way
                lock = Lock(left, f"'{store}'", unsure=False)
                shutil.rmtree(folder, ignore_errors=True)
                lock.remove()


def _replace(folder: Path, store: Path) -> None:
    """Give a folder the name of a store, and the store that was there the folder's."""
    if not store.exists() or not any(store.iterdir()):
        os.rename(folder, store)
    elif not _exchange(folder, store):
        aside = folder.with_name(folder.name + "-old")
        os.rename(store, aside)
        os.rename(folder, store)
        os.rename(aside, folder)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two paths atomically, if the system can (Linux)."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    at_fdcwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return int(swap(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), exchange)) == 0


def _sync(folder: Path) -> None:
    """Flush a folder's entries to disk, if the system can open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def npy_header(file: BinaryIO, rows: int, description: Description) -> int:
    """Write the header of a shard; return where its data begin."""
    descr = npy.dtype_to_descr(description.stored_type)
    shape = (rows, *description.packed_shape)
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.tell()


def ends_of(file: BinaryIO, data: int, size: int) -> str:
    """Return a digest of the first and the last bytes of the data, which begin at `data`."""
    digest = hashlib.blake2b(digest_size=16)
    for at in (data, max(data, size - END_BYTES)):
        file.seek(at)
        digest.update(file.read(min(END_BYTES, size - at)))
    return digest.hexdigest()


def check_file(
    file: BinaryIO, size: int, folder: str, shard: Shard, description: Description, verify: bool
) -> int:
    """Check an open shard file of `size` bytes; see `Folder.check`."""
    if size != shard.bytes:
        state = "truncated" if size < shard.bytes else "too long"
        raise DataError(
            f"shard {shard.file} of {folder} is {state} ({size} bytes, not {shard.bytes}): {AGAIN}."
        )
    altered = DataError(f"shard {shard.file} of {folder} was altered: {AGAIN}.")
    try:
        if npy.read_magic(file) != (1, 0):
            raise altered
        header = npy.read_array_header_1_0(file)
    except Exception:  # NumPy's header parser raises anything for a damaged header
        raise altered from None
    data = file.tell()
    if header != ((shard.rows, *description.packed_shape), False, description.stored_type):
        raise altered
    if data + shard.rows * description.row_bytes != size or ends_of(file, data, size) != shard.ends:
        raise altered
    if verify and _checksum(file, data, shard.checksum) != shard.checksum:
        raise altered
    return data


def _checksum(file: BinaryIO, data: int, expected: str) -> str:
    """Return the checksum of all data, by the hash function of the expected one."""
    # Older stores have BLAKE2 checksums; SHA-256 is faster, since processors support it.
    digest = hashlib.blake2b(digest_size=16) if len(expected) == 32 else hashlib.sha256()
    file.seek(data)
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


@contextlib.contextmanager
def _reading(folder: Path, file: str) -> Iterator[None]:
    """Turn an OSError into a one-sentence `DataError` that names the shard and what to do."""
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOENT: AGAIN,
            errno.EMFILE: "raise the limit on open files (ulimit -n), or ingest with more rows per "
            "shard (shard_rows)",
            errno.ENOMEM: "raise the limit on address space (ulimit -v)",
        }.get(error.errno or 0, "check its permissions and its disk")
        raise DataError(
            f"shard {file} of {folder} cannot be read ({error.strerror}): {remedy}."
        ) from None


def shards_between(starts: Array, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the shards that hold rows from `start` up to `stop`, each with its range of own rows.

    Shard i holds the rows from ``starts[i]`` up to ``starts[i + 1]``.
    """
    shard = int(np.searchsorted(starts, start, side="right")) - 1
    while start < stop:
        first, last = (int(i) for i in starts[shard : shard + 2])
        yield shard, start - first, min(stop, last) - first
        start, shard = last, shard + 1


class MappedShards:
    """All shards, mapped for one way of reading; their pages are released from time to time.

    Parameters
    ----------
    folder, shards, begins
        Where the shards are, and where their data begin.
    description
        What they hold.
    advice
        The madvise flag for this way of reading.
    most
        Number of rows after which all pages are released. A reader that still uses some gets them
        from the page cache again.

    Attributes
    ----------
    matrices
        The packed rows of each shard, as plain arrays: three times faster than np.memmap.
    """

    def __init__(
        self,
        folder: Path,
        shards: Sequence[Shard],
        begins: Sequence[int],
        description: Description,
        advice: int,
        most: int,
    ) -> None:
        self.matrices: list[Array] = []
        self._maps, self._begins = [], begins
        for number, (shard, data) in enumerate(zip(shards, begins, strict=True)):
            with _reading(folder, shard.file), open(folder / shard.file, "rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            kind, shape = description.stored_type, (shard.rows, *description.packed_shape)
            self.matrices.append(np.ndarray(shape, kind, self._maps[-1], data))
            self.advise(number, advice, 0, shard.rows)
        self.most, self._touched, self._lock = max(1, most), 0, threading.Lock()

    def advise(self, shard: int, advice: int, start: int, stop: int) -> None:
        """Pass a madvise flag for the pages of a shard's rows from `start` up to `stop`."""
        if not advice or stop <= start:
            return
        data, row = self._begins[shard], self.matrices[shard].strides[0]
        first = (data + start * row) // mmap.PAGESIZE * mmap.PAGESIZE
        with contextlib.suppress(OSError):  # refused advice only costs speed
            self._maps[shard].madvise(advice, first, data + stop * row - first)

    def touch(self, count: int) -> None:
        """Count rows about to be read, and release the pages of those before if there are many."""
        with self._lock:
            self._touched += count
            if self._touched <= self.most:
                return
            self._touched = 0
        for shard, matrix in enumerate(self.matrices):
            self.advise(shard, DONT_NEED, 0, len(matrix))


class ShardedBackend(Backend):
    """Fields as columns of shards, wherever these are."""

    def __init__(self, folder: Folder, name: str) -> None:
        stored = StoreDescription.read(folder, name)
        self.description, self.fingerprint = stored.rows, stored.fingerprint
        self.where = f"in {folder.called}"
        self.shards = stored.shards
        self._starts = np.cumsum([0] + [shard.rows for shard in stored.shards])

    @abstractmethod
    def _piece(self, shard: int, start: int, stop: int) -> Array:
        """Packed rows of one shard."""

    def _block(self, start: int, stop: int) -> Array:
        """Packed rows from `start` up to `stop`; a copy only if they span several shards."""
        pieces = [self._piece(*place) for place in shards_between(self._starts, start, stop)]
        if len(pieces) == 1:
            return pieces[0]
        joined = np.concatenate([self._empty(0), *pieces])
        joined.flags.writeable = False
        return joined

    def _empty(self, *shape: int) -> Array:
        """Memory for packed rows."""
        return np.empty((*shape, *self.description.packed_shape), self.description.packed_type)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.folder,)  # a memory map cannot be pickled, its path can


class StoreBackend(ShardedBackend):
    """Fields as columns of memory-mapped shards; safe to read from many threads.

    Each shard is mapped twice: once for scattered rows, where reading ahead would only waste
    time, and once for sweeps. Pages are released behind the reader, so that a pass over a large
    store does not fill the process's memory.
    """

    def __init__(self, folder: Path, verify: bool = False, name: str = DESCRIPTION) -> None:
        super().__init__(Folder(folder), name)
        self.folder, about = folder, self.description
        begins = [Folder(folder).check(shard, about, verify) for shard in self.shards]
        where, sweep = (folder, self.shards, begins, about), HELD_BYTES // about.row_bytes
        self._scattered = MappedShards(*where, RANDOM, HELD_SCATTERED // AROUND)
        self._swept = MappedShards(*where, SEQUENTIAL, sweep)

    def take(self, row_ids: Array) -> dict[str, Array]:
        """Rows at `row_ids`, any shape; many are read in parts, releasing pages in between."""
        most = self._scattered.most
        if row_ids.size <= most:
            return self.description.split(self._scattered_rows(row_ids))
        flat = row_ids.ravel()
        block = self._empty(len(flat))
        for first in range(0, len(flat), most):
            block[first : first + most] = self._scattered_rows(flat[first : first + most])
        return self.description.split(block.reshape(*row_ids.shape, *block.shape[1:]))

    def _scattered_rows(self, row_ids: Array) -> Array:
        self._scattered.touch(row_ids.size)
        matrices = self._scattered.matrices
        if len(matrices) == 1:
            return matrices[0].take(row_ids, axis=0)
        block = self._empty(*row_ids.shape)
        owner = np.searchsorted(self._starts, row_ids, side="right") - 1
        for shard in np.unique(owner):
            in_shard = owner == shard
            local = row_ids[in_shard] - self._starts[shard]
            block[in_shard] = matrices[shard].take(local, axis=0)
        return block

    def _piece(self, shard: int, start: int, stop: int) -> Array:
        return self._swept.matrices[shard][start:stop]

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Rows from `start` up to `stop`: views, unless they span several shards."""
        self._swept.touch(stop - start)
        ahead = min(2 * stop - start, self.description.n)  # of a sweep, the next chunk too
        for shard, first, last in shards_between(self._starts, start, ahead):
            self._swept.advise(shard, WILL_NEED, first, last)
        return self.description.split(self._block(start, stop))
