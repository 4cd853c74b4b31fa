"""The main loop: chunks of iterations, with progress, checkpoints and a clean stop."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from modicum.run.chains import Chains
from modicum.run.checkpoint import Checkpoint
from modicum.run.interrupt import stoppable
from modicum.run.monitor import Monitor

__all__ = ["History", "capacity_for", "run"]

CHUNK_SECONDS = 0.7  # about how often progress moves and checkpoints are written
Record = dict[str, np.ndarray]


@dataclass
class History:
    """What a run recorded.

    Attributes
    ----------
    position
        Draws in the kernel's coordinates, (chain, draw, d).
    stats
        One array (chain, draw) a statistic.
    warmup
        The same of warm-up, without the positions.
    complete
        False if the run was stopped early.
    notes
        What the user was told of the run itself.
    seconds
        Wall time of warm-up (compilation included) and of sampling.
    """

    position: np.ndarray
    stats: Record
    warmup: Record
    complete: bool
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class _Book:
    """Chunks as they come in; warm-up positions are dropped."""

    tune: int
    warmup: list[Record] = field(default_factory=list)
    sampling: list[Record] = field(default_factory=list)
    done: int = 0
    rows_touched: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"warm-up": 0.0, "sampling": 0.0})

    def enter(self, record: Record, seconds: float = 0.0) -> None:
        count = record["position"].shape[1]
        early = int(np.clip(self.tune - self.done, 0, count))
        self.seconds["warm-up"] += seconds * early / count
        self.seconds["sampling"] += seconds * (1 - early / count)
        if early:
            stats = {k: v[:, :early] for k, v in record.items() if k != "position"}
            self.warmup.append(stats)
        if early < count:
            self.sampling.append({k: v[:, early:] for k, v in record.items()})
        self.done += count
        self.rows_touched += int(record["rows_touched"].sum()) if "rows_touched" in record else 0

    def history(self, complete: bool) -> History:
        stats = _joined(self.sampling)
        position = stats.pop("position")
        warmup = _joined(self.warmup)
        return History(position, stats, warmup, complete, seconds=self.seconds)


def _joined(parts: list[Record]) -> Record:
    return {k: np.concatenate([p[k] for p in parts], axis=1) for k in parts[0]} if parts else {}


def capacity_for(numbers: int, total: int, stacked: int = 1) -> int:
    """Iterations one compiled call can hold: about 32 MB at `numbers` float64 an iteration.

    `stacked` chains that run as one share a gigabyte.
    """
    room = 2**22 if stacked == 1 else 2**27 // stacked
    return int(max(1, min(total, 8192, room // max(1, numbers))))


def run(
    chains: Chains,
    tune: int,
    draws: int,
    progressbar: bool = True,
    checkpoint: Checkpoint | None = None,
) -> History:
    """Run all chains for `tune + draws` iterations, or until the user interrupts.

    Raises
    ------
    KeyboardInterrupt
        If the user interrupts before the first draw after warm-up.
    """
    total, book = tune + draws, _Book(tune)
    if checkpoint is not None and checkpoint.iterations:
        parts, state = checkpoint.restore()
        chains.restore(state)
        for part in parts:
            book.enter(part)
    else:
        chains.begin()
    monitor = Monitor(tune, draws, len(chains.keys), progressbar)
    pace = _Pace(chains.capacity)
    with stoppable() as stop_asked, monitor:
        count = pace.first(total - book.done)
        while book.done < total and not stop_asked():
            started = time.monotonic()
            after = pace.next(total - book.done - count)
            record = chains.advance(book.done, count, next_count=after)
            book.enter(record, time.monotonic() - started)
            if checkpoint is not None:
                checkpoint.append(book.done, record, chains.leaves())
            monitor.update(book.done, record, book.rows_touched)
            pace.took(time.monotonic() - started, count)
            count = after
    chains.close()
    if book.done <= tune and draws:
        raise KeyboardInterrupt("stopped during warm-up, before the first draw")
    history = book.history(complete=book.done == total)
    if not history.complete:
        history.notes.append(
            f"stopped after {book.done - tune} of {draws} draws; the draws so far are returned."
        )
    return history


class _Pace:
    """How many iterations to run at a time, so that a chunk takes CHUNK_SECONDS."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.per_iteration: float | None = None
        self.timed = 0

    def first(self, left: int) -> int:
        return min(left, self.capacity, 4)

    def next(self, left: int) -> int:
        wanted = 4 if self.per_iteration is None else int(CHUNK_SECONDS / self.per_iteration)
        return min(left, int(np.clip(wanted, 1, self.capacity))) if left > 0 else 0

    def took(self, seconds: float, count: int) -> None:
        self.timed += 1
        if self.timed > 1:  # the first call compiled
            self.per_iteration = max(seconds / count, 1e-7)
