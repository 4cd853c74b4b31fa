"""How long a run will take, roughly, said before it starts."""

from __future__ import annotations

import os
import time

import numpy as np

from modicum.errors import ModicumWarning
from modicum.ledger import Ledger
from modicum.methods.base import Task
from modicum.passes import LocalEngine, Sums
from modicum.passes.engine import chunk_rows

__all__ = ["duration", "seconds_per_row", "slow_run"]

PATIENCE = 120.0  # seconds from which a run is called slow
QUICK = 3e10  # row evaluations times parameters that are not worth a measurement


def slow_run(
    task: Task, point: np.ndarray, evaluations: float, work: str, remedy: str
) -> list[ModicumWarning]:
    """Warn of a run that will take minutes.

    Parameters
    ----------
    task
        What was asked for.
    point
        Where a gradient is timed.
    evaluations
        Rows that an iteration of one chain evaluates.
    work
        What takes so long, such as "NUTS on all 500,000 rows".
    remedy
        What would be quicker.
    """
    total = evaluations * (task.tune + task.draws) * task.chains
    if total * task.target.size < QUICK:
        return []
    together = min(task.chains, os.cpu_count() or 1)
    seconds = total / together * seconds_per_row(task, point)
    if seconds < PATIENCE:
        return []
    return [
        ModicumWarning(
            "slow",
            f"{work} will take about {duration(seconds)} ({task.tune + task.draws:,} iterations "
            f"of {task.chains} chains)",
            remedy,
            seconds=seconds,
        )
    ]


def seconds_per_row(task: Task, point: np.ndarray) -> float:
    """Time the gradient of one row, by passes over the first rows; they are in no account."""
    few = min(len(task.rows), chunk_rows(task.rows))
    rows = task.rows.subset(np.arange(few))
    sums = Sums(task.target, rows, LocalEngine(progressbar=False), Ledger(rows=few))
    sums.gradient(point, "timing")  # compiles
    started = time.perf_counter()
    sums.gradient(point, "timing")
    return (time.perf_counter() - started) / few


def duration(seconds: float) -> str:
    """Say how long something takes, in the unit one would choose.

    Examples
    --------
    >>> [duration(seconds) for seconds in (0.2, 4.4, 200, 9000, 400_000)]
    ['0.2 s', '4 s', '3 minutes', '2 hours', '5 days']
    """
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
