"""How much memory a block of code took, watched from a thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["Peak", "anonymous_memory"]

EVERY = 0.01  # seconds


def anonymous_memory() -> int:
    """Bytes of this process that no file backs: the file cache is the system's to give and take.

    Where the system does not tell (it is Linux that does), all resident bytes.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    try:
        import psutil
    except ImportError:
        import resource  # the peak so far, which is what is asked for in the end

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(psutil.Process().memory_info().rss)


class Peak:
    """The most anonymous memory while a block runs, and how long the block took.

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

    def __exit__(self, *exc: Any) -> None:
        self.seconds = time.perf_counter() - self._start
        self._done.set()
        self._thread.join()
        self.bytes = max(self.bytes, anonymous_memory())
