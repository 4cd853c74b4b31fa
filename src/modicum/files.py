"""Files: written whole or not at all, by one process at a time; arrays and JSON read warily."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import socket
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import DTypeLike

from modicum.errors import AbsentFileError, DataError, ResourceError, SettingError

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

# Dataclasses and named tuples become plain JSON values, and arrays, and are read back by their
# annotations. A class of several kinds has a class method `by_kind`, classes by name, and is
# written with its name; other classes have `to_dict` and `from_dict`. A check returns its argument,
# or raises a TypeError or ValueError that says what was found instead.

Json: TypeAlias = Any  # what json.loads returns


def plain(value: Any) -> Json:  # any dataclass, or JSON
    """Return dataclasses, tuples and mappings as plain JSON values; arrays stay as they are."""
    if is_dataclass(value):
        named = {"kind": type(value).__name__} if hasattr(value, "by_kind") else {}
        return named | {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def restored(kind: Any, value: object) -> Any:  # a type, and a value of it
    """Undo `plain` for a value of type `kind`; raise KeyError, TypeError or ValueError otherwise.

    Whole numbers are at least 0. Entries that are absent, as in older files, have their defaults.
    """
    if hasattr(kind, "by_kind"):
        kind = kind.by_kind()[text(mapping(value)["kind"])]
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
    if isinstance(kind, type) and hasattr(kind, "_fields"):  # a named tuple
        kinds = _annotations(kind)
        pairs = zip(kind._fields, sequence(value), strict=True)
        return kind(*(restored(kinds[name], entry) for name, entry in pairs))
    if isinstance(kind, type) and hasattr(kind, "from_dict"):
        return kind.from_dict(mapping(value))
    if outer is list:
        return [restored(inner[0], entry) for entry in sequence(value)]
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
    if outer is UnionType and isinstance(value, dict):
        return restored(next(k for k in inner if is_dataclass(k)), value)
    if outer is UnionType and not hasattr(value, "__array__"):
        if type(value) not in inner or value != value:
            raise TypeError(f"{short(value)} is neither text nor a number")
        return value
    if kind is np.ndarray and not hasattr(value, "__array__"):
        raise TypeError(f"{short(value)} is not an array")
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


# Archives -----------------------------------------------------------------------------------

DEEPEST = 100  # levels of nesting allowed; `Archive.write` uses a handful
T = TypeVar("T")


@dataclass(frozen=True)
class Archive:
    """A kind of file: a zip file of ``.npy`` arrays and a JSON page, without pickles.

    Files are not trusted. Members are stored, not deflated, so none can be larger than the file
    itself; an array's header must agree with the size of its member before memory is allocated;
    and anything that `write` would not have written is a `DataError`.

    Attributes
    ----------
    name, version
        Format name and version, as written on the page.
    page
        Name of the member that is the page.
    thing
        What the file holds, with its article, for error messages.
    """

    name: str
    version: int
    page: str
    thing: str

    def write(
        self,
        path: str | os.PathLike[str],
        parts: Mapping[str, object],
        plain: Mapping[str, Json],
    ) -> None:
        """Write atomically, through a temporary file next to `path`.

        A full disk is a `ResourceError`, a folder that does not exist a `SettingError`. `parts` may
        contain arrays at any depth; `plain` is JSON already.
        """
        arrays: list[np.ndarray] = []
        encoded = {name: numbered(part, arrays) for name, part in parts.items()}
        page = {"format": self.name, "version": self.version, **encoded, **plain}
        with whole_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(self.page, json.dumps(page, indent=1))
            for i, array in enumerate(arrays):
                with archive.open(f"{i}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    def read(
        self,
        path: str | os.PathLike[str],
        parts: tuple[str, ...],
        make: Callable[[dict[str, Json], dict[str, Json]], T],
    ) -> T:
        """Read a file that `write` wrote; return ``make(decoded parts, whole page)``."""
        refuse_uri(path)
        try:
            with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
                check_members(archive, os.fstat(file.fileno()).st_size)
                page = self._checked(json.loads(archive.read(self.page)))
                decoded = {
                    part: filled(page[part], lambda i: stored_array(archive, f"{i}.npy"))
                    for part in parts
                }
                return make(decoded, page)
        except _VersionError as error:
            raise DataError(f"{path} {error}") from None
        except FileNotFoundError:
            raise AbsentFileError(f"there is no file at {path}: check the path.") from None
        except IsADirectoryError:
            raise DataError(f"{path} is a folder: name {self.thing}, which is one file.") from None
        except PermissionError:
            raise DataError(f"{path} cannot be read: check its permissions.") from None
        except Exception as error:  # any other error means that `write` did not write this file
            reason = str(error).rstrip(".") or type(error).__name__
            raise DataError(
                f"{path} is not {self.thing} saved by Modicum, or it is damaged ({reason})."
            ) from error

    def _checked(self, page: dict[str, Json]) -> dict[str, Json]:
        """Return the page of a file of this kind and version."""
        if page["format"] != self.name:
            raise ValueError("it names another format")
        version = page["version"]
        if type(version) is not int or version < 1:
            raise ValueError("its version is not a number")
        if version != self.version:
            age, remedy = ("a newer", "upgrade Modicum") if version > self.version else (
                "an older", "use that version"
            )  # fmt: skip
            raise _VersionError(
                f"was saved by {age} Modicum (format {version}, and this one reads "
                f"{self.version}); {remedy} to load it."
            )
        return page


class _VersionError(Exception):
    """The file has another version; the message says which, and what to do."""


def numbered(value: object, arrays: list[np.ndarray]) -> Json:
    """Turn a value into JSON, with numbers for arrays, which `arrays` collects, and reprs."""
    if isinstance(value, dict):
        return {"dict": [[str(k), numbered(v, arrays)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [numbered(v, arrays) for v in value]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "biufcSU":
            arrays.append(array)
            return {"array": len(arrays) - 1}
    return repr(value)


def filled(value: Json, array: Callable[[int], np.ndarray], depth: int = 0) -> Json:
    """Undo `numbered`; `array` returns an array by its number."""
    if isinstance(value, list) or depth > DEEPEST:
        raise ValueError("its page is not laid out as Modicum does")
    if isinstance(value, str):
        value.encode()  # refuse lone surrogates, which cannot be written anywhere
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "array":
        if type(inside) is not int:
            raise TypeError("an array is not numbered")
        return array(inside)
    if kind == "dict":
        items = {k: filled(v, array, depth + 1) for k, v in inside}
        for name in items:
            if not isinstance(name, str):
                raise TypeError("a name is not text")
            name.encode()
        return items
    if kind not in ("list", "tuple"):
        raise ValueError("its page is not laid out as Modicum does")
    entries = [filled(v, array, depth + 1) for v in inside]
    return tuple(entries) if kind == "tuple" else entries


# Locks --------------------------------------------------------------------------------------


class Lock:
    """Holds a file for this process until `release`, or until the process dies.

    Parameters
    ----------
    path
        The file; created if it does not exist.
    called
        What it stands for, in the error if another process holds it.
    unsure
        Whether to go on where the file system has no locks, so that nobody can know.

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

    def __init__(self, path: Path, called: str, unsure: bool = True) -> None:
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
            if not _locked(self._descriptor, unsure):
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


def _locked(descriptor: int, unsure: bool) -> bool:
    """Try to take the lock; return True on success, and `unsure` if the file system has none."""
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
        return unsure
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
