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

from modicum.errors import ResourceError
from modicum.files import DISK_FULL, full_disk

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
        raise full_disk(error.filename) from error


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
