"""The command `modicum`, from its first millisecond: signals, and limits of the system.

Importing Modicum takes seconds, and Ctrl-C must end the command then too. This package is apart
from `modicum` because importing any part of that imports JAX; what is here needs the standard
library alone.

A signal ends the command at once: whatever it writes appears under its name complete or not at
all, so that nothing is half done at any moment, and a fit goes on from its checkpoint. The signal
is heard by a thread of its own, because the main one may be inside a compiler for many seconds, and
because an exception raised there may be swallowed.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

__all__ = ["after_a_stop", "main", "stop_line", "unwatch", "watch"]

SHOW_CURSOR = "\r\x1b[K\x1b[?25h"  # and clear the line that a bar was drawn on

ADDRESS_SPACE = 3_500_000_000  # of JAX, pyarrow and their threads; little of it is ever touched
ADDRESS_SPACE_PER_CORE = 100_000_000

_watching = False
_after = "nothing was written."


def main() -> None:
    """Run the command line."""
    _refuse_small_limit()
    watch()
    from modicum.cli import main as run

    run()


def _refuse_small_limit() -> None:
    """Refuse a limit on address space under which imports or the compiler would abort."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = ADDRESS_SPACE + ADDRESS_SPACE_PER_CORE * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < needed:
        _write(
            f"Error: this process may use {limit // 1024:,} kB of address space (ulimit -v), and "
            f"Modicum needs about {needed // 1024:,} kB: raise the limit, or run it elsewhere.\n"
        )
        os._exit(1)


def watch() -> None:
    """End the command when SIGINT or SIGTERM comes, whatever it is doing."""
    global _watching
    if _watching or threading.current_thread() is not threading.main_thread():
        return
    _watching = True
    heard, news = os.pipe()
    os.set_blocking(news, False)
    signal.set_wakeup_fd(news, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_to_the_thread)
    threading.Thread(target=_end_when_heard, args=(heard,), daemon=True).start()


def unwatch() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again, for a command that makes use of it."""
    global _watching
    if _watching:
        _watching = False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def after_a_stop(sentence: str) -> None:
    """Say from now on, if the command is stopped, what has become of its work."""
    global _after
    _after = sentence


def stop_line(number: int = signal.SIGINT) -> str:
    """The one line a stopped command leaves."""
    by = " by SIGTERM" if number == signal.SIGTERM else ""
    return f"Stopped{by}: {_after}"


def _leave_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Do nothing: the number was written to the pipe before this was called."""


def _end_when_heard(heard: int) -> None:
    while True:
        for number in os.read(heard, 16):
            if number in (signal.SIGINT, signal.SIGTERM):
                on_terminal = os.isatty(2)
                _write(f"{SHOW_CURSOR if on_terminal else ''}{stop_line(number)}\n")
                os._exit(128 + number)


def _write(text: str) -> None:
    """Write to standard error without its buffer, whose lock the main thread may hold."""
    try:
        os.write(2, text.encode(errors="backslashreplace"))
    except OSError:  # nobody is there to read it
        return
