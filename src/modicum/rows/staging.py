"""Atomic creation of a store: complete or not at all, replacing another only on request."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from modicum.errors import DataError, SettingError, argument
from modicum.rows.lake import LakeError
from modicum.rows.store import DESCRIPTION, SHARD_NAME, read_json

_LOCKS = importlib.util.find_spec("fcntl") is not None


@contextlib.contextmanager
def staged(store: Path, overwrite: bool, identity: str | None = None) -> Iterator[Path]:
    """Yield a hidden folder beside `store` to write into; it is renamed to `store` at the end.

    If the block raises, the folder is removed. If the process is killed, the folder stays; the next
    call for the same store continues in it if the `identity` is the same, and else removes it.
    """
    called = secrets.token_hex(4) if identity is None else identity[:16]
    folder = store.parent / f".{store.name}.ingest-{called}"
    with writing(store):
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
        with writing(store):
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
def writing(store: Path | str) -> Iterator[None]:
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
