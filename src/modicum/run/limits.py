"""When the machine has no more: memory, address space, threads, room on a disk.

Libraries below say so in many ways, some of them by a status code of their own. A run says it in
one sentence that names the limit, as a `ResourceError`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from modicum.errors import ResourceError

__all__ = ["memory_limit", "within_limits"]

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # XLA's status, which begins the text of its errors
REMEDY = (
    "run fewer chains at a time, read the rows from a store (modicum ingest), or give the process "
    "more memory"
)


@contextmanager
def within_limits() -> Iterator[None]:
    """Turn what is raised when the machine has no more into one sentence."""
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
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        where = f"of '{error.filename}' " if error.filename else ""
        raise ResourceError(f"the disk {where}is full; make room and try again.") from error


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
