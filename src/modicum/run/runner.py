"""The main loop: chunks of iterations, with progress, checkpoints and a clean stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from modicum.errors import DataError, ModicumWarning
from modicum.progress import Phase, Progressbar, duration, in_short, logger, phase, say
from modicum.run.chains import Chains, ChainTasks
from modicum.run.checkpoint import Checkpoint
from modicum.run.interrupt import Stop, stoppable
from modicum.run.iterations import LENGTH, Record, end_to_end, joined
from modicum.runtime import Pytree, on_accelerator

WATCHED = 16  # coordinates whose ESS and R-hat are monitored
EVERY = 1.5  # seconds between updates of ESS and R-hat
CALIBRATED, WATCH = 100, 1.0  # least iterations and seconds whose pace tells about the others
LONG = 10.0  # seconds; a run is told to take longer still
OFF = 2.0  # a time that was told is corrected once it is off by this factor


@dataclass
class Monitor:
    """Shows warm-up and sampling as phases with live diagnostics, unless `progressbar` is False."""

    tune: int
    draws: int
    chains: int
    progressbar: Progressbar
    units: str = "rows"
    _phase: Phase | None = None
    _watched: list[np.ndarray] = field(default_factory=list)
    _diagnosed: float = field(default_factory=time.monotonic)
    _text: str = ""
    _mark: tuple[int, float] | None = None  # iterations that were done, and when
    _end: float | None = None  # when the run was told to end

    def __enter__(self) -> Monitor:
        if self.progressbar:
            self._begin("warm-up" if self.tune else "sampling", self.tune or self.draws)
        return self

    def __exit__(self, *error: object) -> None:
        if self._phase is not None:
            self._phase.end()

    def _begin(self, name: str, total: int) -> Phase:
        if self._phase is not None:
            self._phase.update(self._phase.total or 0)
            self._phase.end()
        detail = f"{self.chains} chain{'s' * (self.chains != 1)}"
        self._phase = Phase(name, total, self.progressbar, detail=detail)
        self._phase.update(0)
        return self._phase

    def update(self, done: int, record: dict[str, np.ndarray], rows_touched: int) -> None:
        """Show that `done` iterations are done; `record` holds the latest (chain, draw, ...)."""
        current = self._phase
        if current is None:
            return
        if done > self.tune:
            if current.name != "sampling":
                current = self._begin("sampling", self.draws)
            fresh = min(record["position"].shape[1], done - self.tune)
            self._watched.append(record["position"][:, -fresh:, :WATCHED])
            if time.monotonic() - self._diagnosed > EVERY or done == self.tune + self.draws:
                self._diagnose()
        rate = record.get("acceptance_rate", np.empty(0))  # some methods have no acceptance step
        accept = f"accept {rate.mean():.2f} · " if rate.size else ""
        detail = f"{accept}{in_short(rows_touched)} {self.units} touched{self._text}"
        current.update(done - self.tune if done > self.tune else done, detail)

    def tell(self, done: int, now: float) -> None:
        """Say how long the rest takes at the latest pace, and again when that proves far off.

        What was predicted may be wrong for a busy machine or for long trajectories, and the first
        iterations of warm-up differ from later ones. To be called when a chunk is done.
        """
        if self._mark is None:  # before it, something may have been compiled
            self._mark = done, now
        began, started = self._mark
        if done - began < CALIBRATED or now - started < WATCH:
            return
        left = (now - started) / (done - began) * (self.tune + self.draws - done)
        expected = 0.0 if self._end is None else max(self._end - now, 0.0)
        self._mark = done, now
        if left <= LONG or expected / OFF < left < expected * OFF:
            return
        of = f"the first {done:,}" if self._end is None else f"the last {done - began:,}"
        say(f"about {duration(left)} to go, by the pace of {of} iterations", self.progressbar)
        self._end = now + left

    def _diagnose(self) -> None:
        from modicum.diagnostics import ess, r_hat

        self._watched = [np.concatenate(self._watched, axis=1)]
        watched = self._watched[0]
        if watched.shape[1] >= 20:
            sizes, ratios = ess(watched), r_hat(watched)  # NaN for one chain, or a stuck one
            self._text = ""
            if np.isfinite(sizes).any():
                self._text += f" · ESS {np.nanmin(sizes):,.0f}"
            if np.isfinite(ratios).any():
                self._text += f" · R-hat {np.nanmax(ratios):.3f}"
        self._diagnosed = time.monotonic()


CHUNK_SECONDS = 0.7  # approximate time between updates of progress and checkpoint


@dataclass
class History:
    """Draws and statistics of a run.

    Attributes
    ----------
    position
        Draws in the kernel's coordinates, (chain, draw, d).
    stats
        One array (chain, draw) per statistic.
    warmup
        Statistics of warm-up, one array (chain, iteration) each.
    complete
        False if the run was stopped early.
    notes
        Warnings about the run itself.
    seconds
        Wall time of warm-up (compilation included) and of sampling.
    """

    position: np.ndarray
    stats: Record
    warmup: Record
    complete: bool
    notes: list[ModicumWarning] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def every(self, thin: int) -> History:
        """Keep every `thin`-th draw, the last of each window."""
        if thin == 1:
            return self
        stats = {name: values[:, thin - 1 :: thin] for name, values in self.stats.items()}
        return replace(self, position=self.position[:, thin - 1 :: thin], stats=stats)


@dataclass(frozen=True)
class PeriodicHook:
    """An update of the chains' states between iterations, such as a pass over all rows.

    It runs before iterations 0, `every`, 2 `every` ..., whatever the chunks and however often the
    run is stopped and resumed.

    Attributes
    ----------
    every
        Number of iterations between updates.
    renew
        Maps the kernel's states, stacked along a leading axis for chains, to new ones. It must
        depend on nothing else that changes.
    """

    every: int
    renew: Callable[[Pytree], Pytree]


@dataclass
class _Book:
    """Collects the records of chunks; warm-up positions are dropped."""

    tune: int  # recorded iterations of warm-up
    in_double: bool = False  # whether to convert positions to float64 in the end
    warmup: list[Record] = field(default_factory=list)
    sampling: list[Record] = field(default_factory=list)
    done: int = 0
    rows_touched: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"warm-up": 0.0, "sampling": 0.0})

    def enter(self, record: Record, seconds: float = 0.0) -> None:
        count = record["position"].shape[1]
        early = int(np.clip(self.tune - self.done, 0, count))
        share = early / count if count else float(self.done < self.tune)
        self.seconds["warm-up"] += seconds * share
        self.seconds["sampling"] += seconds * (1 - share)
        if early:
            stats = {k: v[:, :early] for k, v in record.items() if k != "position"}
            self.warmup.append(stats)
        if early < count:
            self.sampling.append({k: v[:, early:] for k, v in record.items()})
        self.done += count
        self.rows_touched += int(record["rows_touched"].sum()) if "rows_touched" in record else 0

    def history(self, complete: bool) -> History:
        positions = [part.pop("position") for part in self.sampling]
        position = end_to_end(positions, np.float64 if self.in_double else None)
        stats, warmup = joined(self.sampling), joined(self.warmup)
        return History(position, stats, warmup, complete, seconds=self.seconds)


def capacity_for(numbers: int, total: int, stacked: int = 1) -> int:
    """Return the capacity of a call: about 32 MB at `numbers` float64 per iteration.

    `stacked` chains share that, or a gigabyte on an accelerator. On a CPU the capacity is a power
    of two if memory allows, so that runs of similar length share compiled code; not on an
    accelerator, where the whole array is copied.
    """
    on_cpu = not on_accelerator()
    room = (2**22 if stacked == 1 or on_cpu else 2**27) // stacked
    length = max(LENGTH, 2 ** max(0, total - 1).bit_length()) if on_cpu else total
    return int(max(1, min(length, 8192, room // max(1, numbers))))


def run(
    chains: Chains | ChainTasks,
    tune: int,
    draws: int,
    progressbar: Progressbar = True,
    checkpoint: Checkpoint | None = None,
    hook: PeriodicHook | None = None,
    partial: bool = False,
) -> History:
    """Run all chains until `tune + draws` iterations are recorded, or the user interrupts.

    Only every `chains.thin`-th iteration is recorded. With `partial`, a run that is stopped after
    its first draw returns the draws so far.

    Raises
    ------
    KeyboardInterrupt
        If the user interrupts before the first draw after warm-up, or without `partial`.
    """
    total = (tune + draws) * chains.thin
    try:
        with stoppable() as stop:
            with phase("compile", None, progressbar):
                book, done = _start_or_resume(chains, tune, total, checkpoint)
            monitor = Monitor(tune, draws, len(chains.keys), progressbar, chains.units)
            with stop.at_chunk_ends(), monitor:
                done = _run_chunks(chains, done, total, book, stop, monitor, checkpoint, hook)
            if stop.signal == signal.SIGTERM:
                where = "nothing was saved, since the run had no checkpoint"
                if checkpoint is not None:
                    where = f"the same call continues from '{checkpoint.folder}'"
                logger.warning(
                    "stopped by SIGTERM after %d of %d iterations; %s.", done, total, where
                )
                stop.pass_on()
    finally:
        chains.close()
    if done < total and book.done <= tune:
        raise KeyboardInterrupt("stopped during warm-up, before the first draw")
    if done < total and not partial:
        raise KeyboardInterrupt("stopped while the run was being prepared")
    history = book.history(complete=done == total)
    if not history.complete:
        history.notes.append(
            ModicumWarning(
                "stopped",
                f"stopped after {book.done - tune} of {draws} draws; the draws so far are returned",
                draws=book.done - tune,
            )
        )
    return history


def _start_or_resume(
    chains: Chains | ChainTasks, tune: int, total: int, checkpoint: Checkpoint | None
) -> tuple[_Book, int]:
    """Start the chains, or restore them from the checkpoint; return iterations done too."""
    book = _Book(tune, in_double=chains.settled is not None)
    if checkpoint is None or not checkpoint.iterations:
        chains.begin()
        return book, 0
    done = checkpoint.iterations
    parts, state = checkpoint.restore()
    if done > total or not _agree(parts, len(chains.keys), done // chains.thin):
        raise DataError(
            f"the draws in the checkpoint '{checkpoint.folder}' do not belong to this run; delete "
            "the folder to start anew."
        )
    chains.restore(state)
    for part in parts:
        book.enter(part)
    return book, done


def _agree(parts: list[Record], chains: int, recorded: int) -> bool:
    """Whether parts have the given number of chains, and together of recorded iterations."""
    # compare kinds of dtype, since fused iterations record float32 and warm-up float64
    shapes = [{name: (v.dtype.kind, v.shape[2:]) for name, v in part.items()} for part in parts]
    if any("position" not in shape or shape != shapes[0] for shape in shapes):
        return False
    lengths = [{v.shape[:2] for v in part.values()} for part in parts]
    if any(len(length) != 1 or min(map(len, length)) != 2 for length in lengths):
        return False
    pairs = [next(iter(length)) for length in lengths]
    return {c for c, _ in pairs} == {chains} and sum(n for _, n in pairs) == recorded


def _run_chunks(
    chains: Chains | ChainTasks,
    done: int,
    total: int,
    book: _Book,
    stop: Stop,
    monitor: Monitor,
    checkpoint: Checkpoint | None,
    hook: PeriodicHook | None,
) -> int:
    """Run chunks until all iterations are done or a stop is requested; return how many are."""
    settled = chains.settled is not None
    pace = _Pace(chains.capacity, total, hook, book.tune * chains.thin, settled)
    count = pace.next(done)
    while done < total and not stop.requested:
        started = time.monotonic()
        if hook is not None and done % hook.every == 0:
            chains.renew(hook.renew)
        after = pace.next(done + count)
        records = chains.advance(done, count, next_count=after)
        done += count
        seconds = time.monotonic() - started
        if checkpoint is not None:
            checkpoint.append(done, joined(records), chains.leaves())
        for record in records:
            book.enter(record, seconds / len(records))
            monitor.update(book.done, record, book.rows_touched)
        monitor.tell(book.done, time.monotonic())
        pace.took(time.monotonic() - started, count)
        count = after
    return done


@dataclass
class _Pace:
    """Chooses the number of iterations per chunk, so that a chunk takes about CHUNK_SECONDS.

    No chunk holds both warm-up and draws, whose iterations may differ in cost. The first chunk
    after warm-up of a `settled` run is as long as the capacity, since its iterations cost little.
    """

    capacity: int
    total: int
    hook: PeriodicHook | None
    tune: int
    settled: bool
    per_iteration: float | None = None
    timed: int = 0

    def next(self, done: int) -> int:
        """Return the length of the chunk that begins after `done` iterations."""
        count = 4 if self.per_iteration is None else int(CHUNK_SECONDS / self.per_iteration)
        if self.settled and done == self.tune:
            count = self.capacity
        count = int(np.clip(count, 1, self.capacity))
        if self.hook is not None:
            count = min(count, self.hook.every - done % self.hook.every)
        if done < self.tune:
            count = min(count, self.tune - done)
        return max(0, min(count, self.total - done))

    def took(self, seconds: float, count: int) -> None:
        """Record how long a chunk of `count` iterations took."""
        self.timed += 1
        if self.timed > 1:  # the first call includes compilation
            self.per_iteration = max(seconds / count, 1e-7)
