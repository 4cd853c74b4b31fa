"""Resource limits: memory, address space, threads, disk space.

Libraries report exhaustion in many ways. A run turns them into a `ResourceError`, one sentence that
names the limit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from modicum.errors import ResourceError

__all__ = ["DISK_FULL", "memory_limit", "within_disk", "within_limits"]

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # XLA's status, which begins the text of its errors
COMPILER, COMPILER_PER_CORE = 500_000_000, 100_000_000  # address space of a compilation, and more
REMEDY = (
    "run fewer chains at a time, read the rows from a store (modicum ingest), or give the process "
    "more memory"
)


@contextmanager
def within_limits() -> Iterator[None]:
    """Turn errors about exhausted resources into one sentence.

    A compiler that gets no memory aborts the process, so a run that has too little is refused.
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


@contextmanager
def within_disk(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a full disk into a `ResourceError` that names the file `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise _full_disk(path) from error


def _full_disk(path: str | os.PathLike[str] | None) -> ResourceError:
    where = f"of '{os.fspath(path)}' " if path else ""
    return ResourceError(f"the disk {where}is full; make room and try again.")


def _refuse_small_room() -> None:
    limit, used = memory_limit(), _address_space()
    needed = COMPILER + COMPILER_PER_CORE * (os.cpu_count() or 1)
    if limit is not None and used is not None and limit - used < needed:
        raise ResourceError(
            f"this process may use {limit // 1024:,} kB of address space (ulimit -v), of which "
            f"{max(0, limit - used) // 1024:,} kB are left, and compiling needs about "
            f"{needed // 1024:,} kB: raise the limit."
        )


def _address_space() -> int | None:
    """Bytes of address space the process has; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _out_of_memory() -> ResourceError:
    limit = memory_limit()
    if limit is not None:
        return ResourceError(
            f"the memory this process may use ran out: its limit is {limit // 1024:,} kB "
            f"(ulimit -v); {REMEDY}."
        )
    return ResourceError(f"this machine's memory ran out{_size()}; {REMEDY}.")


def memory_limit() -> int | None:
    """Bytes of address space the process may have; None where there is no limit."""
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
