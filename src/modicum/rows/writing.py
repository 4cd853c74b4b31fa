"""Writing a store: shards of packed rows, in a folder that appears complete or not at all.

A journal lists the complete shards, so that an ingest that was killed resumes after them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import importlib.util
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from modicum.errors import DataError, SettingError, argument
from modicum.rows.description import Array, Description
from modicum.rows.json_entries import mapping, sequence
from modicum.rows.lake import LakeError
from modicum.rows.store import (
    DESCRIPTION,
    SEQUENTIAL,
    SHARD_NAME,
    Mapped,
    Shard,
    StoreDescription,
    check_shard,
    ends_of,
    npy_header,
    read_json,
)

JOURNAL = "progress.json"
JOURNAL_ROWS = 1 << 16  # rows of complete shards read at a time when an ingest resumes


class Journal:
    """The list of complete shards of an unfinished store, from which a killed ingest resumes.

    Parameters
    ----------
    folder
        Folder of the unfinished store.
    description
        Description of its rows.
    identity
        Identity of the data and settings; a journal with another identity is ignored.
    """

    def __init__(self, folder: Folder, description: Description, identity: str) -> None:
        self._folder, self._about = folder, description
        self._identity = hashlib.sha256(
            json.dumps([identity, description.to_json() | {"rows": 0}]).encode()
        ).hexdigest()
        self.shards = self._read()

    def _read(self) -> tuple[Shard, ...]:
        try:
            saved = mapping(json.loads(self._folder.load(JOURNAL)))
            if saved["identity"] != self._identity:
                return ()
            # The last shard is written again, so that there is always a row left to write.
            shards = tuple(Shard.from_json(entry) for entry in sequence(saved["shards"])[:-1])
            for shard in shards:
                self._folder.check(shard, self._about, verify=True)
        except (OSError, ValueError, TypeError, KeyError, DataError):  # start over
            return ()
        return shards

    def write(self, shards: list[Shard]) -> None:
        """Record that these shards are complete."""
        entries = {"identity": self._identity, "shards": [asdict(shard) for shard in shards]}
        self._folder.save(JOURNAL, json.dumps(entries).encode())

    def blocks(self) -> Iterator[Array]:
        """Yield the packed rows of the complete shards."""
        for shard in self.shards:
            yield from self._folder.blocks(shard, self._about)


class Folder(Protocol):
    """The folder a store is written to, on disk or on object storage."""

    @property
    def local(self) -> Path:
        """The folder on disk that holds a shard while it is written."""
        ...

    def number(self, shards: int) -> int:
        """Number of the next shard, after `shards` of them."""
        ...

    def send(self, name: str) -> None:
        """Move a complete file from `local` to its destination."""
        ...

    def load(self, name: str) -> bytes:
        """Return the contents of a small file."""
        ...

    def save(self, name: str, data: bytes) -> None:
        """Write a small file atomically."""
        ...

    def finish(self, description: StoreDescription) -> None:
        """Write the description, the last file of a store, and remove the journal."""
        ...

    def check(self, shard: Shard, description: Description, verify: bool) -> int:
        """Refuse a shard that was altered; return where its data begin (see `check_shard`)."""
        ...

    def blocks(self, shard: Shard, description: Description) -> Iterator[Array]:
        """Yield the packed rows of a shard, some at a time."""
        ...


class Directory:
    """A folder on disk."""

    def __init__(self, folder: Path) -> None:
        self.local = folder

    def number(self, shards: int) -> int:
        """Number shards consecutively; an incomplete shard of a killed ingest is overwritten."""
        return shards

    def send(self, name: str) -> None:
        """Do nothing: shards are written in place."""

    def load(self, name: str) -> bytes:
        """Return the contents of a small file."""
        return (self.local / name).read_bytes()

    def save(self, name: str, data: bytes) -> None:
        """Write a small file atomically."""
        aside = self.local / f"{name}.part"
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.local / name)

    def finish(self, description: StoreDescription) -> None:
        """Write the description, the last file of a store, and remove the journal."""
        description.write(self.local)
        for path in self.local.glob(f"{JOURNAL}*"):
            path.unlink(missing_ok=True)

    def check(self, shard: Shard, description: Description, verify: bool) -> int:
        """Check a shard; see `check_shard`."""
        return check_shard(self.local, shard, description, verify)

    def blocks(self, shard: Shard, description: Description) -> Iterator[Array]:
        """Yield the packed rows of a shard, some at a time."""
        data = self.check(shard, description, verify=False)
        matrix = Mapped(self.local / shard.file, data, shard.rows, description, SEQUENTIAL).matrix
        for start in range(0, shard.rows, JOURNAL_ROWS):
            yield matrix[start : start + JOURNAL_ROWS]


class ShardWriter:
    """Writes packed rows into ``rows-00000.npy``, ``rows-00001.npy``, ... of a folder."""

    def __init__(
        self,
        folder: Folder,
        description: Description,
        shard_rows: int,
        journal: Journal | None = None,
    ) -> None:
        self._folder, self._about = folder, description
        self._shard_rows = shard_rows
        self._file: BinaryIO | None = None
        self._journal = journal
        self.shards: list[Shard] = [] if journal is None else list(journal.shards)
        self.rows = sum(shard.rows for shard in self.shards)

    def write(self, block: Array) -> None:
        """Append packed rows."""
        while len(block):
            if self._file is None:
                self._begin()
            piece, block = np.split(block, [self._shard_rows - self._filled])
            data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
            assert self._file is not None
            self._file.write(data)
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

    def _begin(self) -> None:
        self._name = f"rows-{self._folder.number(len(self.shards)):05d}.npy"
        self._file = open(self._folder.local / self._name, "w+b", buffering=0)  # noqa: SIM115
        self._data = npy_header(self._file, 0, self._about)
        self._digest = hashlib.sha256()
        self._filled = 0

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
        if self._journal is not None and self._filled == self._shard_rows:
            self._journal.write(self.shards)


_LOCKS = importlib.util.find_spec("fcntl") is not None


@contextlib.contextmanager
def staged(store: Path, overwrite: bool, identity: str | None = None) -> Iterator[Path]:
    """Yield a hidden folder beside `store` to write into; it is renamed to `store` at the end.

    If the block raises, the folder is removed. If the process is killed, the folder stays; the next
    call for the same store continues in it if the `identity` is the same, and else removes it.
    """
    called = secrets.token_hex(4) if identity is None else identity[:16]
    folder = store.parent / f".{store.name}.ingest-{called}"
    with writable_store(store):
        refuse_existing(store, overwrite)
        store.parent.mkdir(parents=True, exist_ok=True)
        _clean(store, keep=folder)
        folder.mkdir(exist_ok=identity is not None)
    lock = _lock(folder)  # held until the end; the system releases it if the process dies
    if lock is None and identity is not None and _LOCKS:
        raise SettingError(f"{store} is being written by another process: wait for it.")
    try:
        yield folder
        _sync(folder)
        with writable_store(store):
            _replace(folder, store, overwrite)
        _sync(store.parent)
    except (KeyboardInterrupt, LakeError):
        if identity is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise  # with an identity the folder stays, for the next call to continue
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)  # the replaced store
    finally:
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def writable_store(store: Path | str) -> Iterator[None]:
    """Turn an OSError into a one-sentence `SettingError` that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space, or choose another place" if full else "choose another place"
        raise SettingError(f"{store} cannot be written ({error.strerror}): {remedy}.") from None


def refuse_existing(store: Path, overwrite: bool) -> None:
    """Refuse an existing path, unless it is a store that may be replaced."""
    if not store.exists() or (store.is_dir() and not any(store.iterdir())):
        return
    try:
        read_json(store)
    except DataError:
        raise SettingError(
            f"{store} exists and is not a row store: choose another name, or remove it yourself."
        ) from None
    if not overwrite:
        raise SettingError(
            f"{store} exists: open it with Rows.open, name another folder, or, in ingest, "
            f"pass {argument('overwrite', True)} to replace it."
        )
    for path in store.iterdir():
        if path.name != DESCRIPTION and not SHARD_NAME.fullmatch(path.name):
            raise SettingError(
                f"{store} cannot be replaced, because it also holds {path.name}, which is not part "
                "of a row store: move that file elsewhere, or choose another name."
            )


def _lock(folder: Path) -> int | None:
    try:
        import fcntl
    except ImportError:  # not POSIX: stale folders stay until the user removes them
        return None
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def _clean(store: Path, keep: Path) -> None:
    """Remove folders left by killed ingests of the same store, which nobody locks any more."""
    for folder in store.parent.glob(f".{_literal(store.name)}.ingest-*"):
        if folder == keep:
            continue
        lock = _lock(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _replace(folder: Path, store: Path, overwrite: bool) -> None:
    if not store.exists() or not any(store.iterdir()):
        os.rename(folder, store)
        return
    refuse_existing(store, overwrite)  # it may have appeared while the rows were written
    if not _exchange(folder, store):
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
