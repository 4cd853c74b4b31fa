"""A folder appears under its name complete, or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from modicum.errors import SettingError, argument

DESCRIPTION = "rows.json"


@contextlib.contextmanager
def staged(store: Path, overwrite: bool) -> Iterator[Path]:
    """Give a hidden folder beside `store` to write into; it takes the store's name at the end.

    If the block raises, the folder is removed. If the process is killed, the folder stays, and is
    removed by the next call for the same store.
    """
    refuse_existing(store, overwrite)
    folder = store.parent / f".{store.name}.ingest-{secrets.token_hex(4)}"
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        _clean(store)
        folder.mkdir()
    except OSError as error:
        raise SettingError(
            f"{store} cannot be written ({error.strerror}): choose another place."
        ) from None
    lock = _lock(folder)  # held for life: the system lets go of it when the process dies
    try:
        yield folder
        _sync(folder)
        _replace(folder, store, overwrite)
        _sync(store.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the unfinished folder, or the replaced store
        if lock is not None:
            os.close(lock)


def refuse_existing(store: Path, overwrite: bool) -> None:
    """Refuse a store that exists, unless it may be replaced and is a store indeed."""
    if not store.exists() or (store.is_dir() and not any(store.iterdir())):
        return
    if not (store / DESCRIPTION).is_file():
        raise SettingError(f"{store} exists and is not a row store: choose another name.")
    if not overwrite:
        raise SettingError(
            f"{store} exists: open it with Rows.open, or pass {argument('overwrite', True)} to "
            "replace it."
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
