"""Resource limits: memory, address space, threads, disk space.

Libraries report exhausted resources in many ways. A run turns them all into a `ResourceError` whose
message names the limit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from modicum.errors import ResourceError, SettingError

__all__ = ["DISK_FULL", "memory_limit", "require_writable", "within_disk", "within_limits"]

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # XLA's status, with which its error messages begin
# address space in bytes that a compilation needs, and what it needs in addition per core
COMPILER, COMPILER_PER_CORE = 500_000_000, 100_000_000
REMEDY = (
    "run fewer chains at a time, read the rows from a store (modicum ingest), or give the process "
    "more memory"
)


@contextmanager
def within_limits() -> Iterator[None]:
    """Turn errors about exhausted resources into a `ResourceError`.

    The compiler aborts the process if it cannot get memory, so a run with too little is refused.
    """
    _refuse_small_room()
    try:
        yield
    except MemoryError as error:
        raise _out_of_memory() from error
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith(OUT_OF_MEMORY):
            raise
        raise _out_of_memory() from error
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise _out_of_memory() from error
        if error.errno not in DISK_FULL:
            raise
        raise _full_disk(error.filename) from error


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuse an output file that cannot be written, before the work begins."""
    try:
        target = Path(path)
    except TypeError:
        raise SettingError(f"the name of a file is needed, not {type(path).__name__}.") from None
    try:
        if target.is_dir():
            raise SettingError(f"'{target}' is a folder: name a file in it.")
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


@contextmanager
def within_disk(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a full disk, or any other failure to write the file `path`, into a Modicum error."""
    try:
        yield
    except OSError as error:
        raise (
            _full_disk(path) if error.errno in DISK_FULL else _not_written(path, error)
        ) from error


def _not_written(path: str | os.PathLike[str], error: Exception) -> SettingError:
    reason = getattr(error, "strerror", None) or error
    return SettingError(f"'{os.fspath(path)}' cannot be written ({reason}): name another file.")


def _full_disk(path: str | os.PathLike[str] | None) -> ResourceError:
    where = f"of '{os.fspath(path)}' " if path else ""
    return ResourceError(f"the disk {where}is full; free some space and try again.")


def _refuse_small_room() -> None:
    limit, used = memory_limit(), _address_space()
    needed = COMPILER + COMPILER_PER_CORE * (os.cpu_count() or 1)
    if limit is not None and used is not None and limit - used < needed:
        raise ResourceError(
            f"this process is limited to {limit // 1024:,} kB of address space (ulimit -v), of "
            f"which {max(0, limit - used) // 1024:,} kB are left, and compiling needs about "
            f"{needed // 1024:,} kB: raise the limit."
        )


def _address_space() -> int | None:
    """Return the process's address space in bytes; None if the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _out_of_memory() -> ResourceError:
    limit = memory_limit()
    if limit is not None:
        return ResourceError(
            f"this process ran out of memory: its limit is {limit // 1024:,} kB (ulimit -v); "
            f"{REMEDY}."
        )
    return ResourceError(f"this machine ran out of memory{_size()}; {REMEDY}.")


def memory_limit() -> int | None:
    """Return the limit on the process's address space in bytes; None if there is none."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _size() -> str:
    try:
        return f" ({os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB)"
    except (AttributeError, OSError, ValueError):
        return ""
