"""Progress bars: quiet for what is quick, and never drawn where nobody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["pass_progress"]

PATIENCE = 2.0  # seconds a pass may take before it shows a bar


@contextmanager
def pass_progress(description: str, total: int, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts rows; a bar appears once the pass proves to be long."""
    started = time.monotonic()
    done = 0
    bar = None
    task = None

    def advance(count: int) -> None:
        nonlocal done, bar, task
        done = min(total, done + count)
        if not enabled or time.monotonic() - started < PATIENCE:
            return
        if bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.progress import TimeRemainingColumn as Remaining

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            bar = Progress(*columns, TextColumn("rows"), Remaining(), transient=True)
            bar.start()
            task = bar.add_task(description, total=total)
        if task is not None:
            bar.update(task, completed=done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()
