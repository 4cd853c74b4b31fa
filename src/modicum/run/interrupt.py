"""What may end a run from outside: signals, and limits of memory, address space and disk.

While chains run, the first signal (Ctrl-C, or SIGTERM from a scheduler) asks them to stop at the
end of their chunk, so that nothing is lost; a second Ctrl-C stops at once. At any other time Ctrl-C
raises KeyboardInterrupt as usual. If Python swallows the exception, it is raised again: exceptions
inside garbage-collection callbacks and finalisers are printed and ignored, and JAX has such
callbacks.

Libraries report exhausted resources in many ways. A run turns them all into a `ResourceError` whose
message names the limit.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import jax

from modicum.errors import ResourceError
from modicum.files import DISK_FULL, full_disk

AGAIN = 0.02  # seconds until a swallowed interrupt is raised again


@dataclass
class Stop:
    """Whether a run was asked to stop, and by which signal."""

    signal: int | None = None
    chunks: bool = False  # whether chains are running, which stop at the end of a chunk

    @property
    def requested(self) -> bool:
        """Whether to stop at the end of the chunk."""
        return self.signal is not None

    @contextmanager
    def at_chunk_ends(self) -> Iterator[None]:
        """Within the block a signal only sets `requested`, which the main loop checks."""
        before, self.chunks = self.chunks, True
        try:
            yield
        finally:
            self.chunks = before

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C."""
        first, self.signal = self.signal is None, number
        if not (self.chunks and first):
            raise KeyboardInterrupt

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: end the process at once, unless chains are running."""
        self.signal = number
        if not self.chunks:
            self.pass_on()

    def pass_on(self) -> None:
        """If the signal was SIGTERM, end the process as SIGTERM does by default."""
        if self.signal == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)


_current: Stop | None = None  # of the main thread, which alone receives signals


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Handle signals within the block; a block inside another one shares its `Stop`.

    Only the default handlers of Python and the system are replaced; all others stay.
    """
    global _current
    if threading.current_thread() is not threading.main_thread():
        yield Stop()
        return
    if _current is not None:
        yield _current
        return
    _current = stop = Stop()
    with ExitStack() as undo:
        undo.callback(_forget)
        python = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) in python:
            undo.callback(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
            undo.enter_context(_reraise_swallowed())
            signal.signal(signal.SIGINT, stop.interrupt)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            undo.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, stop.terminate)
        yield stop


def _forget() -> None:
    global _current
    _current = None


@contextmanager
def _reraise_swallowed() -> Iterator[None]:
    """Raise a KeyboardInterrupt that Python swallows again a moment later."""
    before = sys.unraisablehook
    inside = True

    def raise_again(returned: threading.Event) -> None:
        returned.wait()  # the hook itself would swallow it too, and may take long
        time.sleep(AGAIN)
        if inside:
            signal.raise_signal(signal.SIGINT)  # the handler runs in the main thread

    def swallowed(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        returned = threading.Event()
        threading.Thread(target=raise_again, args=(returned,), daemon=True).start()
        returned.set()

    sys.unraisablehook = swallowed
    try:
        yield
    finally:
        inside = False
        sys.unraisablehook = before


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
    limit, used = memory_limit(), _address_space()
    needed = COMPILER + COMPILER_PER_CORE * (os.cpu_count() or 1)
    if limit is not None and used is not None and limit - used < needed:
        raise ResourceError(
            f"this process is limited to {limit // 1024:,} kB of address space (ulimit -v), of "
            f"which {max(0, limit - used) // 1024:,} kB are left, and compiling needs about "
            f"{needed // 1024:,} kB: raise the limit."
        )
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
    size = ""
    with suppress(AttributeError, OSError, ValueError):  # the system may not tell
        size = f" ({os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB)"
    return ResourceError(f"this machine ran out of memory{size}; {REMEDY}.")


def memory_limit() -> int | None:
    """Return the limit on the process's address space in bytes; None if there is none."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else int(soft)
