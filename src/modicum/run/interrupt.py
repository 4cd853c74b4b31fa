"""Signal handling during a run: Ctrl-C, and SIGTERM from a scheduler.

While chains run, the first signal asks them to stop at the end of their chunk, so that nothing is
lost; a second Ctrl-C stops at once. At any other time Ctrl-C raises KeyboardInterrupt as usual. If
Python swallows the exception, it is raised again: exceptions inside garbage-collection callbacks
and finalisers are printed and ignored, and JAX has such callbacks.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

AGAIN = 0.02  # seconds until a swallowed interrupt is raised again


class Stop:
    """Whether a run was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.chunks = False  # whether chains are running, which stop at the end of a chunk

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
        del frame
        first, self.signal = self.signal is None, number
        if not (self.chunks and first):
            raise KeyboardInterrupt

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: end the process at once, unless chains are running."""
        del frame
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
