"""A progress bar that counts rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def row_bar(title: str, total: int | None, show: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error and give a function that advances it by some rows."""
    if not show:
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
    from rich.text import Text

    class Count(ProgressColumn):
        """Rows so far, of how many, and how fast."""

        def render(self, task: Task) -> Text:
            of = "" if task.total is None else f"/{int(task.total):,}"
            speed = task.finished_speed or task.speed
            rate = "" if not speed else f", {speed:,.0f} rows/s"
            return Text(f"{int(task.completed):,}{of} rows{rate}")

    columns = ("{task.description}", BarColumn(bar_width=12), Count(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda rows: progress.advance(task, rows)
