"""A store appears under its name complete, or not at all, and replaces nothing unasked."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from modicum.errors import DataError, SettingError, argument
from modicum.rows.store import DESCRIPTION, SHARD_NAME, read_json


@contextlib.contextmanager
def staged(store: Path, overwrite: bool) -> Iterator[Path]:
    """Give a hidden folder beside `store` to write into; it takes the store's name at the end.

    If the block raises, the folder is removed. If the process is killed, the folder stays, and is
    removed by the next call for the same store.
    """
    folder = store.parent / f".{store.name}.ingest-{secrets.token_hex(4)}"
    with writing(store):
        refuse_existing(store, overwrite)
        store.parent.mkdir(parents=True, exist_ok=True)
        _clean(store)
        folder.mkdir()
    lock = _lock(folder)  # held for life: the system lets go of it when the process dies
    try:
        yield folder
        _sync(folder)
        with writing(store):
            _replace(folder, store, overwrite)
        _sync(store.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the unfinished folder, or the replaced store
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def writing(store: Path) -> Iterator[None]:
    """Say which store the system does not let us write, why, and what helps in that case."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space, or choose another place" if full else "choose another place"
        raise SettingError(f"{store} cannot be written ({error.strerror}): {remedy}.") from None


def refuse_existing(store: Path, overwrite: bool) -> None:
    """Refuse a name that is taken, unless by a store that may be replaced and nothing else."""
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
            f"{store} exists: open it with Rows.open, or pass {argument('overwrite', True)} to "
            "replace it."
        )
    for path in store.iterdir():
        if path.name != DESCRIPTION and not SHARD_NAME.fullmatch(path.name):
            raise SettingError(
                f"{store} cannot be replaced, because it also holds {path.name}, which is no part "
                "of a row store: move that file elsewhere, or choose another name."
            )


def _lock(folder: Path) -> int | None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system: stale folders stay until removed by hand
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


def _clean(store: Path) -> None:
    """Remove what killed ingests of the same store left: folders nobody holds any more."""
    for folder in store.parent.glob(f".{_literal(store.name)}.ingest-*"):
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


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, where the system can (Linux)."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return int(swap(here, os.fsencode(one), here, os.fsencode(other), exchange)) == 0


def _sync(folder: Path) -> None:
    """Have a folder's names reach the disk, where folders can be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
