"""Files: written whole or not at all, by one process at a time; arrays and JSON read warily."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import secrets
import socket
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import DTypeLike

from modicum.errors import ResourceError, SettingError

MAPPED_FROM = 1 << 30  # bytes of an array of numbers per row
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LOCKED_BYTE = 1 << 20  # after the text, since Windows does not let others read a locked byte
SCHEME = re.compile(r"\s*[A-Za-z][\w+.-]+:/")  # of a URI, also as a Path, which drops a slash
# What precedes the host of a URI; a secret may hold a slash that should have been escaped.
CREDENTIALS = re.compile(r"(:/+)([^/@]*:[^@]*@)?([^/@]*@)?")


def is_uri(value: object) -> bool:
    """Whether `value` is a URI, such as s3://bucket/folder."""
    return isinstance(value, str) and "://" in value


def place_name(place: str | os.PathLike[str]) -> str:
    """Return what messages and files call a path or a URI: without credentials and options.

    Examples
    --------
    >>> place_name("s3://KEY:SECRET@bucket/trips?region=us-east-1")
    's3://bucket/trips'
    """
    text = os.fspath(place)
    if not (is_uri(text) or SCHEME.match(text)):
        return text
    return CREDENTIALS.sub(r"\1", text, count=1).partition("?")[0]


def refuse_uri(
    path: str | os.PathLike[str],
    reason: str = "results and checkpoints are files of this machine: name a path",
) -> None:
    """Refuse a URI where a path is needed, rather than make a folder called ``s3:``."""
    if SCHEME.match(str(path)):
        raise SettingError(f"'{place_name(path)}' is a URI, but {reason}.")


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuse an output file that cannot be written, before the work begins."""
    try:
        target = Path(path)
    except TypeError:
        raise SettingError(f"the name of a file is needed, not {type(path).__name__}.") from None
    refuse_uri(path)
    try:
        if target.is_dir():
            raise SettingError(f"'{target}' is a folder: name a file in it.")
        if target.exists() and not target.is_file():
            raise SettingError(f"'{target}' is not a file: name another.")
        if not target.parent.is_dir():
            raise SettingError(
                f"there is no folder '{target.parent}' to write '{target.name}' to: make it first, "
                "or name another."
            )
        existing = target if target.exists() else target.parent
    except (OSError, ValueError) as error:  # an unreadable folder, a name that is too long
        raise _not_written(path, error) from error
    if not os.access(existing, os.W_OK):
        raise SettingError(f"'{target}' cannot be written (no permission): name another file.")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file beside `path` to write to, which takes its place at the end.

    If the block fails or the process is killed, `path` is as it was before. Each call has a
    temporary file of its own, so that of several threads that write one file the last one counts.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with whole_file(path) as part:
    ...     _ = part.write_text("complete")
    >>> path.read_text()
    'complete'
    """
    require_writable(path)
    target = Path(os.path.realpath(path))  # what a link points to, not the link
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with within_disk(path):
            yield part
            with open(part, "r+b") as file:
                os.fsync(file.fileno())
            os.replace(part, target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


@contextlib.contextmanager
def within_disk(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a full disk, or any other failure to write the file `path`, into a Modicum error."""
    try:
        yield
    except OSError as error:
        raise (
            full_disk(path) if error.errno in DISK_FULL else _not_written(path, error)
        ) from error


def full_disk(path: str | os.PathLike[str] | None) -> ResourceError:
    """Return an error that says a disk is full."""
    where = f"of '{os.fspath(path)}' " if path else ""
    return ResourceError(f"the disk {where}is full; free some space and try again.")


def _not_written(path: str | os.PathLike[str], error: Exception) -> SettingError:
    reason = getattr(error, "strerror", None) or error
    return SettingError(f"'{os.fspath(path)}' cannot be written ({reason}): name another file.")


# Arrays -------------------------------------------------------------------------------------


def number_per_row(shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an array to be filled, which from a gigabyte on is mapped to a temporary file.

    The system writes such pages to the disk when memory gets short, so that a billion rows need no
    more of it than ten million. Where the disk has no room, the array is in memory after all.
    """
    size = math.prod(np.atleast_1d(shape).tolist()) * np.dtype(dtype).itemsize
    if size < MAPPED_FROM:
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)  # or a full disk would end the process
            return np.memmap(file, dtype, "r+", shape=shape)
    except (OSError, AttributeError):  # no room, or not POSIX
        return np.empty(shape, dtype)


def check_members(archive: zipfile.ZipFile, size: int) -> None:
    """Raise a ValueError if a member is compressed, or claims to exceed the file's `size`."""
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > size:
            raise ValueError(f"{member.filename!r} claims to be larger than the file")


def stored_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read an array, after checking that its header agrees with the size of its member."""
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, fortran, dtype = readers[version](member)
        size = archive.getinfo(name).file_size - member.tell()
        if dtype.kind not in "biufcSU" or not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError("an array holds something other than numbers or text")
        if math.prod(shape) * dtype.itemsize != size:
            raise ValueError("an array's header does not agree with its size")
        # to the end of the member: only there does zipfile compare the checksum
        data = member.read(size + 1)
    return np.ndarray(shape, dtype, buffer=bytearray(data), order="F" if fortran else "C")


# JSON ---------------------------------------------------------------------------------------

# Dataclasses become plain JSON values and are read back by their annotations. A check returns its
# argument, or raises a TypeError or ValueError that says what was found instead.

Json: TypeAlias = Any  # what json.loads returns


def plain(value: Any) -> Json:  # any dataclass, or JSON
    """Return dataclasses, tuples and mappings as plain JSON values."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def restored(kind: Any, value: object) -> Any:  # a type, and a value of it
    """Undo `plain` for a value of type `kind`; raise KeyError, TypeError or ValueError otherwise.

    Whole numbers are at least 0. Entries that are absent, as in older files, have their defaults.
    """
    outer, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        entries, kinds = mapping(value), _annotations(kind)
        return kind(
            **{
                f.name: restored(kinds[f.name], entries[f.name])
                for f in fields(kind)
                if f.name in entries or f.default is f.default_factory is MISSING
            }
        )
    if outer is Mapping:
        return {name: restored(inner[1], entry) for name, entry in mapping(value).items()}
    if outer is tuple and inner[-1] is ...:
        if {str, int}.intersection(get_args(inner[0])).issuperset(map(type, sequence(value))):
            return tuple(sequence(value))  # levels, of which there may be millions
        return tuple(restored(inner[0], entry) for entry in sequence(value))
    if outer is tuple:
        return tuple(restored(k, v) for k, v in zip(inner, sequence(value), strict=True))
    if outer is UnionType and value is not None and len(inner) == 2 and NoneType in inner:
        return restored(inner[0], value)
    if outer is UnionType:
        if type(value) not in inner or value != value:
            raise TypeError(f"{short(value)} is neither text nor a number")
        return value
    if kind is bool and not isinstance(value, bool):
        raise TypeError(f"{short(value)} is neither true nor false")
    return text(value) if kind is str else integer(value, 0) if kind is int else value


_annotations = cache(get_type_hints)


def text(value: object) -> str:
    """Return `value`, which must be text."""
    if not isinstance(value, str):
        raise TypeError(f"{short(value)} is not text")
    return value


def integer(value: object, least: int) -> int:
    """Return `value`, which must be an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{short(value)} is not a whole number from {least}")
    return value


def sequence(value: object) -> list[object]:
    """Return `value` as a list; it must be a list or tuple."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{short(value)} is not a list")
    return list(value)


def mapping(value: object) -> dict[str, object]:
    """Return `value`, which must be a JSON object."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{short(value)} is not an object")
    return value


def short(value: object) -> str:
    """Return a short text for a value of unknown size and depth, without traversing it."""
    simple = value is None or isinstance(value, str | int | float)
    text = repr(value) if simple else f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."


# Locks --------------------------------------------------------------------------------------


class Lock:
    """Holds a file for this process until `release`, or until the process dies.

    Parameters
    ----------
    path
        The file; created if it does not exist.
    called
        What it stands for, in the error if another process holds it.

    Attributes
    ----------
    left
        What the last holder left for the next one, if it did not `remove` the file.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.lock"
    >>> lock = Lock(path, "the folder")
    >>> lock.leave("half done")
    >>> lock.release()
    >>> Lock(path, "the folder").left
    'half done'
    """

    def __init__(self, path: Path, called: str) -> None:
        self.path, self.left = path, ""
        self._descriptor: int | None = None
        self.release: Callable[[], object] = lambda: None
        while not self._is_there():
            self.release()  # of a file that was removed before it was locked
            try:
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
                    raise
                return  # without write access no lock is needed
            self.release = weakref.finalize(self, os.close, self._descriptor)
            if not _locked(self._descriptor):
                self.release()
                raise SettingError(
                    f"{called} is in use by {_holder(path)}; wait until it ends, or choose another "
                    "folder."
                )
        self.leave(_text(path).partition("\n")[2])

    def _is_there(self) -> bool:
        """Whether the locked file is the one that others find."""
        try:
            return self._descriptor is not None and os.path.samestat(
                os.fstat(self._descriptor), os.stat(self.path)
            )
        except FileNotFoundError:
            return False

    def leave(self, text: str) -> None:
        """Leave a text for the next holder, in case this one cannot finish."""
        self.left = text
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n{text}".encode())

    def remove(self) -> None:
        """Remove the file, and release it: nothing is left to be done."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.release()


def _locked(descriptor: int) -> bool:
    """Try to take the lock; return True on success, or if the file system has no locks."""
    try:
        import fcntl
    except ImportError:
        import msvcrt

        os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _holder(path: Path) -> str:
    """Name the process that holds the lock ("process 4711"), and its machine if another."""
    try:
        number, host = _text(path).partition("\n")[0].split()
        where = "" if host == socket.gethostname() else f" on {host}"
        return f"process {int(number)}{where}"
    except (OSError, ValueError):
        return "another process"


def _text(path: Path) -> str:
    """Return the beginning of a lock's file."""
    with open(path, "rb") as file:
        return file.read(300).decode(errors="replace")
