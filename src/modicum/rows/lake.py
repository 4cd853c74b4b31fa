"""Where files are: paths, folders, globs and URIs of object storage, as Arrow lists them."""

from __future__ import annotations

import fnmatch
import glob
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from modicum.errors import DataError, SettingError, first_line
from modicum.files import is_uri, place_name, refuse_uri
from modicum.libraries import pyarrow as pa

T = TypeVar("T")
ATTEMPTS, FIRST_PAUSE = 4, 0.5  # attempts per read; seconds before the second, then doubled


class LakeError(DataError):
    """A file could not be read to its end, perhaps only temporarily."""


def with_retries(call: Callable[[], T]) -> T:
    """Return what `call` returns, retrying after failures that may be temporary."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return call()
        except (FileNotFoundError, PermissionError):
            raise
        except (pa.ArrowException, OSError):
            pause(attempt)
    return call()


def pause(attempt: int) -> None:
    """Wait after a failed attempt, numbered from 0."""
    time.sleep(FIRST_PAUSE * 2**attempt)


def unreadable(path: str, error: BaseException, parquet: bool | None = None) -> LakeError:
    """Return the error for a file that cannot be read, or not to its end."""
    kind = {True: " as a Parquet file", False: " as an Arrow (Feather) file", None: ""}[parquet]
    return LakeError(
        f"{path} cannot be read{kind} ({first_line(error)}): check that it exists, is complete, "
        "and that you may read it."
    )


def is_remote(value: object) -> bool:
    """Whether `value` is a URI that does not point to a local file."""
    return is_uri(value) and not str(value).startswith("file:")


def local_path(place: str | os.PathLike[str]) -> Path:
    """Return the local path that a path or a URI such as file:///data/rows points to."""
    if is_uri(place):
        return Path(file_system(str(place))[1])
    refuse_uri(place, "a Path drops one of its slashes: pass it as text")
    return Path(place)


def cache_folder() -> Path:
    """Return the folder that caches remote rows: ``modicum`` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "modicum"


def file_system(uri: str) -> tuple[pa.fs.FileSystem, str]:
    """Return the file system of a URI, and the path within it."""
    try:
        system, path = pa.fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        called = place_name(uri)
        raise SettingError(
            f"{called!r} cannot be read ({first_line(error).replace(uri, called)}): give a path, "
            "or a URI such as s3://bucket/folder or gs://bucket/folder."
        ) from None
    if not path.strip("/"):
        raise SettingError(
            f"{place_name(uri)!r} names no file or folder: write s3://bucket/folder."
        )
    return system, path


class Listing(NamedTuple):
    """Files of one file system, in the order of their names.

    Attributes
    ----------
    system
        The file system.
    files
        Path within it, size and modification time of each file.
    base
        The folder that contains all files; folder names below it, such as ``year=2024``, are
        columns. None if no folder names are.
    called
        What messages call them.
    remote
        Whether any of the files is remote.
    """

    system: pa.fs.FileSystem
    files: list[pa.fs.FileInfo]
    base: str | None
    called: str
    remote: bool

    @classmethod
    def of(cls, places: Sequence[str | os.PathLike[str]]) -> Listing:
        """List the files at paths or URIs: files, folders, or globs."""
        called = place_name(places[0]) + (" ..." if len(places) > 1 else "")
        try:
            found = [_at_uri(str(p)) if is_uri(p) else _at_path(Path(p)) for p in places]
        except (pa.ArrowException, OSError) as error:
            raise unreadable(called, error) from None
        systems, parts, bases = zip(*found, strict=True)
        files = [file for part in parts for file in part]
        if any(system != systems[0] for system in systems):
            raise SettingError(
                "all files must lie on one file system: read them one after the other."
            )
        if not files:
            raise DataError(f"there is no file at {called}: check the path.")
        remote = any(map(is_remote, places))
        listing = cls(systems[0], files, _common(places, bases), called, remote)
        names = [str(name) for name, *_ in listing.identity]
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise SettingError(
                f"{twice} is in the list twice, so its rows would count twice: name it once."
            )
        return listing

    @property
    def paths(self) -> list[str]:
        """Path of each file within the file system."""
        return [f.path for f in self.files]

    @property
    def identity(self) -> list[list[str | int]]:
        """Name, size and modification time of every file, which change when the data do."""
        names = self.paths if self.remote else map(os.path.realpath, self.paths)
        return [[name, f.size, f.mtime_ns] for name, f in zip(names, self.files, strict=True)]

    @property
    def holds_columns(self) -> bool:
        """Whether names of folders are columns."""
        return self.base is not None and any("=" in f.path[len(self.base) :] for f in self.files)


def _common(places: Sequence[object], bases: Sequence[str | None]) -> str | None:
    """Return the folder below which names of folders are columns: not in a list of local paths."""
    known = [base for base in bases if base is not None]
    if len(known) < len(bases) or (len(places) > 1 and not any(map(is_uri, places))):
        return None
    base = os.path.commonpath(known) if len(known) > 1 else known[0]
    while "=" in base:  # folder names above the files may be columns too
        base = base.rpartition("/")[0]
    return base


def _at_path(path: Path) -> tuple[pa.fs.FileSystem, list[pa.fs.FileInfo], str | None]:
    """Return the files at a path, and its folder if names of folders below it are columns."""
    if path.is_file():
        files = [path]
    elif path.is_dir():
        inside = (f for f in path.rglob("*") if not _hidden(f.relative_to(path).parts))
        files = sorted(f for f in inside if f.is_file())
    else:
        files = sorted(f for f in map(Path, glob.glob(str(path), recursive=True)) if f.is_file())
    if not files:
        refuse_uri(path, "a Path drops one of its slashes: pass it as text")
        raise DataError(f"there is no file at {path}: check the path.")
    folders = {parent.name for f in files for parent in f.parents if path in parent.parents}
    base = os.path.abspath(path) if any("=" in folder for folder in folders) else None
    system = pa.fs.LocalFileSystem()
    return system, system.get_file_info([os.path.abspath(file) for file in files]), base


def _at_uri(uri: str) -> tuple[pa.fs.FileSystem, list[pa.fs.FileInfo], str]:
    """Return the files at a URI (of a file, a folder or a glob), and the folder they are in."""
    system, path = file_system(uri)
    globbed = any(c in path for c in "*?[")
    base = path.rstrip("/")
    while any(c in base for c in "*?["):
        base = base.rpartition("/")[0]
    info = system.get_file_info(base)
    if not globbed and info.type == pa.fs.FileType.File:
        return system, [info], base.rpartition("/")[0]
    if info.type == pa.fs.FileType.NotFound:
        raise DataError(f"there is no file at {path}: check the path.")
    inside = system.get_file_info(pa.fs.FileSelector(base, recursive=True))
    files = [f for f in inside if f.is_file and not _hidden(f.path[len(base) :].split("/"))]
    if globbed:
        pattern = path.replace("**/", "*")
        files = [f for f in files if fnmatch.fnmatchcase(f.path, pattern)]
    return system, sorted(files, key=lambda f: str(f.path)), base


def _hidden(parts: Iterable[str]) -> bool:
    return any(part[:1] in ("_", ".") for part in parts)
