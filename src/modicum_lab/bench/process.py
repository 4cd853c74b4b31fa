"""Run a function in a fresh interpreter, and measure the memory that code takes."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


class ChildError(RuntimeError):
    """The call returned nothing; the message is the last line of its error output."""


def in_process(module: str, function: str, *arguments: Any, timeout: float | None = None) -> Any:
    """Call `module.function(*arguments)` in a fresh interpreter; return its result through JSON.

    Examples
    --------
    >>> in_process("math", "hypot", 3, 4)
    5.0
    """
    command = [sys.executable, "-W", "ignore", "-m", "modicum_lab.bench.process"]
    try:
        done = subprocess.run(
            [*command, module, function, json.dumps(arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"it was stopped after {timeout:,.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        killed = done.returncode == -signal.SIGKILL
        silent = (
            "the system killed it, as it does when memory runs out"
            if killed
            else (f"it ended with code {done.returncode}")
        )
        raise ChildError(lines[-1][:300] if lines and not killed else silent)
    return json.loads(done.stdout.splitlines()[-1])


def _serve() -> None:
    module, function, arguments = sys.argv[1:]
    answer = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    print(json.dumps(answer))


EVERY = 0.01  # seconds between two readings of the memory


def anonymous_memory() -> int:
    """Return the bytes of this process that no file backs: the system can drop the file cache.

    On systems other than Linux, return all resident bytes.
    """
    if (held := _of_status("RssAnon")) is not None:
        return held
    try:
        import psutil
    except ImportError:
        return peak_memory()  # the peak so far, which serves the purpose
    return int(psutil.Process().memory_info().rss)


def peak_memory() -> int:
    """Return the most bytes that this process has held.

    On Linux `getrusage` would count what the process that started this one held.
    """
    import resource

    peak = _of_status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if peak is None else peak


PEAK_IN_R = """
peak <- 0  # the same, of a process that runs R; 0: not known
if (file.exists("/proc/self/status")) {
  said <- grep("VmHWM", readLines("/proc/self/status"), value = TRUE)
  peak <- 1024 * as.numeric(gsub("[^0-9]", "", said))
}
"""


def _of_status(entry: str) -> int | None:
    """Return bytes that Linux tells of this process; None on other systems."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = (line.partition(":") for line in status.read_text().splitlines())
    return next(1024 * int(said.split()[0]) for name, _, said in lines if name == entry)


class Peak:
    """Measure peak anonymous memory and time of a block of code.

    Examples
    --------
    >>> with Peak() as peak:
    ...     held = bytearray(1000)
    >>> peak.bytes > 0 and peak.seconds > 0
    True
    """

    def __enter__(self) -> Peak:
        self.bytes, self.seconds = anonymous_memory(), 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._start = time.perf_counter()
        return self

    def _watch(self) -> None:
        while not self._done.wait(EVERY):
            self.bytes = max(self.bytes, anonymous_memory())

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self._done.set()
        self._thread.join()
        self.bytes = max(self.bytes, anonymous_memory())


if __name__ == "__main__":
    _serve()
