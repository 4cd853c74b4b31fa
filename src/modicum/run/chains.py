"""All chains of a run: how many, and in which groups they run.

A few long chains suit a CPU. An accelerator takes as long for a thousand chains as for one, so many
short chains are better there. To check whether they have forgotten their starts, the chains of a
group, a superchain, all start at the same point (`modicum.diagnostics.nested_r_hat`).

One thread runs a group of chains, which are stacked along an axis. A few chains on a CPU are groups
of one. Many are as many groups as there are cores, and on an accelerator all chains are one group.

Chains may run on other hosts, some on each, one chunk of iterations per call. A call sends the
states at the start of a chunk and returns those at its end, so a host that replaces a dead one
continues from the last chunk. A chunk is a function of its states and of the chains' keys: on
processors of the same kind, draws equal those of chains in this process. While a chunk runs, its
host fetches the rows of the next one, as chains in this process do.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from math import gcd
from typing import Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from modicum.errors import DataError
from modicum.kernels.protocols import Settled
from modicum.models.model import Batch
from modicum.passes import Hosts
from modicum.passes.worker import fetched
from modicum.progress import logger
from modicum.random import words_at_start, words_of_iterations
from modicum.rows import Rows
from modicum.run import iterations as compiled
from modicum.run.iterations import (
    Batches,
    Fetcher,
    HostPacked,
    Packed,
    PinnedPages,
    Record,
    lengthened,
    side_by_side,
    unpacked,
)
from modicum.runtime import (
    Array,
    Compiled,
    Pytree,
    Threads,
    devices,
    free_memory,
    free_on_host,
    in_double_precision,
    make_room,
    on_accelerator,
    to_device,
    uncollected,
)

ChainCount: TypeAlias = int | Literal["auto"]
FEW = 4  # chains on a CPU
MANY = 1024  # chains on an accelerator
SUPERCHAINS = 16
LARGEST_SUBSAMPLE = 4096  # rows per chain for which memory on the device is reserved
STATS = 12  # statistics recorded with every draw
SHARE = 4  # 1 / SHARE of the free memory may be used


class Layout(NamedTuple):
    """Numbers of chains and superchains; None: each chain has its own starting point."""

    chains: int
    superchains: int | None = None

    def start_keys(self, keys: np.ndarray) -> np.ndarray:
        """Return the keys with which chains start: one per superchain, that of its first chain."""
        if self.superchains is None:
            return keys
        size = self.chains // self.superchains
        return np.repeat(keys[::size], size, axis=0)


def auto_layout(draws: int, size: int) -> Layout:
    """Choose the layout for the device, for chains of `draws` draws of `size` parameters.

    On an accelerator this is 1,024 chains, or as many as fit with subsamples of thousands of rows
    in a quarter of its free memory, and with their draws in a quarter of the host's.
    """
    if not on_accelerator():
        return Layout(FEW)
    draw_bytes = 8 * draws * (size + STATS)
    subsample_bytes = 8 * LARGEST_SUBSAMPLE * (size + STATS)
    most = min(
        MANY, free_on_host() // SHARE // draw_bytes, free_memory() // SHARE // subsample_bytes
    )
    if most < 2 * SUPERCHAINS:
        return Layout(FEW)
    return Layout(most - most % SUPERCHAINS, SUPERCHAINS)


Parallel = Literal["threads", "stacked"]
Span: TypeAlias = tuple[np.int64, np.int64]  # the first iteration, and how many
# A function that is being compiled.
Compilation: TypeAlias = tuple[jax.stages.Lowered, Future[jax.stages.Compiled]]
NOWHERE: Span = (np.int64(0), np.int64(0))  # no iterations
SHARE_OF_TABLE = 0.25  # share of the accelerator's free memory that a table of all rows may use
CHAINS_PER_CORE = 8  # beyond this, stacking chains beats one thread per chain


class ChainStates(ABC):
    """The states of all chains by group, and how they are saved, restored and renewed."""

    state: list[compiled.Progress]  # of each group, stacked along a leading axis
    _parts: list[slice]  # the chains of each group

    @abstractmethod
    def begin(self) -> None:
        """Initialise every chain."""

    def leaves(self) -> list[np.ndarray]:
        """Return the state as plain arrays with a leading axis for chains."""
        return jax.tree.leaves(self.whole())

    @in_double_precision
    def restore(self, leaves: Sequence[np.ndarray]) -> None:
        """Restore a state from `leaves`, with the structure of a newly started one."""
        if not self.state:
            self.begin()
        begun = self.leaves()
        if [(a.shape, a.dtype) for a in leaves] != [(a.shape, a.dtype) for a in begun]:
            raise DataError("the saved state belongs to a different run; start anew.")
        self._take(leaves)

    @in_double_precision
    def renew(self, function: Callable[[Pytree], Pytree]) -> None:
        """Apply `function` to the kernel's states of all chains, stacked along a leading axis."""
        whole = self.whole()
        self._take(jax.tree.leaves(whole._replace(state=function(whole.state))))

    def whole(self) -> compiled.Progress:
        """Return the states of all chains as one, stacked along a leading axis."""
        return jax.tree.map(lambda *parts: np.concatenate(parts), *self.state)

    def _take(self, leaves: Sequence[Array]) -> None:
        structure = jax.tree.structure(self.state[0])
        self.state = [
            jax.tree.unflatten(structure, [np.asarray(leaf)[part] for leaf in leaves])
            for part in self._parts
        ]


@dataclass
class Chains(ChainStates):
    """The states of all chains, and how to advance them.

    Parameters
    ----------
    kernel, context
        The Markov step and the arrays it reads.
    keys
        One key per chain.
    flags
        One entry per iteration, warm-up and sampling together.
    capacity
        Most iterations per call of `advance`.
    rows
        The rows the kernel requests: on the device (a dict of arrays), or a `Rows` to fetch from
        ahead of time, or None for a kernel that requests none.
    parallel
        "threads" (one thread per chain) or "stacked"; by default threads for a few chains on a CPU.
    thin
        Keep every `thin`-th iteration.
    length
        Most iterations that are prepared together, and taken by one compiled call.
    units
        What the kernel requests, as a noun for the progress bar: "rows" or "groups".
    start_keys
        Initial keys, if some chains start at the same point; by default `keys`.
    settled
        On an accelerator, runs many iterations per call once no more flags are set.
    settled_length
        Most iterations per call of `settled`.
    group
        Chains per stacked group; by default, one group per core or accelerator.
    """

    kernel: compiled.ChainKernel
    context: Pytree
    keys: np.ndarray
    flags: Pytree
    capacity: int
    rows: Batch | Rows | None = None
    parallel: Parallel | None = None
    thin: int = 1
    length: int = compiled.LENGTH
    units: str = "rows"
    start_keys: np.ndarray | None = None
    settled: Settled | None = None
    settled_length: int = 0
    group: int | None = None
    state: list[compiled.Progress] = field(default_factory=list, init=False)  # one entry per group

    def __post_init__(self) -> None:
        if self.parallel is None:
            self.parallel = default_parallel(len(self.keys))
        self.length = min(self.length, self.capacity)
        self.capacity -= self.capacity % self.length
        self._flags = jax.tree.map(np.asarray, self.flags)
        number = len(self.keys)
        if self.group is None:
            self.group = number // _groups(number) if self.parallel == "stacked" else 1
        size = self.group
        self._parts = [slice(first, first + size) for first in range(0, number, size)]
        groups = range(len(self._parts))
        self._group_keys: list[Array] = [self._of_group(self.keys, g) for g in groups]
        begin_with = self.keys if self.start_keys is None else self.start_keys
        self._group_starts = [self._of_group(words_at_start(begin_with), g) for g in groups]
        self._pool = Threads(min(len(self._parts), os.cpu_count() or 1))
        self._pages = PinnedPages()
        self._fetcher, held = None, self.rows
        if isinstance(held, Rows):
            fixed = (self.kernel, self.context, self.keys)
            self._fetcher, held = Fetcher(*fixed, held, self.capacity, begin_with), None
        self._copies = [(self.context, held)]
        self._tables: list[jax.Array] = []  # of `settled`, where there is room: one per copy
        self._extent = compiled.CallLength(self.length, self.thin)
        self._quiet_from = 0
        self.obstacle = self._obstacle()
        if self.obstacle:
            self.settled = None
        if self.settled is not None:
            flagged = [np.flatnonzero(flag) for flag in jax.tree.leaves(self._flags)]
            self._quiet_from = max((int(at[-1]) + 1 for at in flagged if len(at)), default=0)
            if self._fetcher:
                self.settled_length = self.capacity

    def _obstacle(self) -> str:
        """Return why `settled` cannot be used, or "" if it can."""
        if not self._through_pinned_pages:
            return "chains are not stacked"
        if self.thin > 1:
            return "draws are thinned"
        return "" if self.settled_length >= 1 else "the rows of an iteration leave no room"

    # The two calls ------------------------------------------------------------------------

    @in_double_precision
    def begin(self) -> None:
        """Initialise every chain."""
        make_room()
        self._spread()
        batches = self._fetcher.at_start() if self._fetcher else None
        with uncollected():
            # one iteration, in the shapes of any call
            one = self._of_call(self._fetcher.of(0, 1)) if self._fetcher else None
            self._compile(batches, one)
        groups = range(len(self._parts))
        self.state = [compiled.begin(*self._first_arguments(g, batches)) for g in groups]

    def _compile(self, batches: Batches | None, one: Batches | None) -> None:
        """Compile each function while the next is traced, and before threads race to do so."""

        def lower(function: Compiled[..., Pytree], *arguments: Pytree) -> Compilation:
            lowered = function.lower(*arguments)
            return lowered, self._pool.submit(lowered.compile)

        places = range(len(self._copies))
        to_prepare = [
            lower(compiled.ahead, *self._ahead_arguments(g, NOWHERE, one)) for g in places
        ]
        first = lower(compiled.begin, *self._first_arguments(0, batches))
        blank = [_shapes(lowered.out_info) for lowered, _ in (to_prepare[0], first)]
        steps = [lower(compiled.advance, *self._arguments(g, NOWHERE, *blank)) for g in places]
        if self._through_pinned_pages:
            self._pages.reserve(self._bytes_recorded(steps[0][0].out_info[1]))
        if self.settled is not None:
            self._compile_settled(blank[1])
        for _, compilation in (first, *to_prepare, *steps):
            compilation.result()

    def _spread(self) -> None:
        """Copy context and rows to every device that runs a group of chains."""
        places = devices()[: len(self._parts)]
        if len(places) > 1:
            self._copies = [jax.device_put(self._copies[0], device) for device in places]
        if self._through_pinned_pages:  # else the host would copy keys for every call
            to = [place if len(places) > 1 else None for place in places]
            self._group_keys = [
                jax.device_put(keys, to[g % len(to)]) for g, keys in enumerate(self._group_keys)
            ]

    def _first_arguments(self, g: int, batches: Batches | None) -> tuple[Pytree, ...]:
        """Return the arguments of the first call for group `g`."""
        read = self._of_group(batches, g)
        return (self.kernel, *self._at_device(g), read, self._group_starts[g])

    def _tabulate(self, settled: Settled) -> list[jax.Array]:
        """Prepare all rows for `settled`, once per device; [] if memory is short."""
        tables = []
        for context, rows in self._copies:
            if rows is None:
                return []
            shape = jax.eval_shape(settled.table, rows, context)
            if shape.size * shape.dtype.itemsize > SHARE_OF_TABLE * free_memory():
                return []
            tables.append(compiled.table_of(settled, context, rows))
        return tables

    def _compile_settled(self, state: Pytree) -> None:
        """Compile `settled`; fall back to the plain loop if the device cannot run it."""
        assert self.settled is not None
        one = self._fetcher.of(0, 1) if self._fetcher else None
        batches = self._of_call(one, 0, self.settled_length)
        try:
            self._tables = self._tabulate(self.settled)
            for g in range(len(self._copies)):
                loop = compiled.advance_settled.lower(
                    *self._settled_arguments(g, NOWHERE, batches, state)
                )
                loop.compile()
        except Exception as error:  # what is raised depends on device and version
            self.obstacle = "the program could not be compiled for this device"
            logger.info("%s: %s", self.obstacle, error)
            self.settled, self._tables = None, []

    @in_double_precision
    def advance(self, first: int, count: int, next_count: int = 0) -> list[Record]:
        """Run iterations `first` to `first + count`; return what they recorded, (chain, ...).

        There is one record per compiled call. Rows for the `next_count` iterations after these are
        fetched meanwhile. With thinning only the windows that ended are returned.
        """
        batches = self._fetcher.of(first, count) if self._fetcher else None
        if self._fetcher and next_count:
            self._fetcher.ask(first + count, next_count)
        span = (np.int64(first), np.int64(count))
        run = self._advance_group
        futures = [
            self._pool.submit(run, g, span, batches, state) for g, state in enumerate(self.state)
        ]
        results = [future.result() for future in futures]
        self.state = [state for state, _ in results]
        of_groups = [records for _, records in results]
        return side_by_side(of_groups) if len(of_groups) > 1 else of_groups[0]

    def _advance_group(
        self, g: int, span: Span, batches: Batches | None, state: compiled.Progress
    ) -> tuple[compiled.Progress, list[Record]]:
        """Advance group `g`; its records have a leading axis for chains.

        On an accelerator, records of a call are copied while the next one runs.
        """
        records: list[tuple[Packed, int]] = []
        for start, size in self._windows(*map(int, span)):
            part = np.int64(start), np.int64(size)
            before = start - int(span[0])
            if self.settled is not None and start >= self._quiet_from:
                read = self._of_call(batches, before, self.settled_length)
                arguments = self._settled_arguments(g, part, read, state)
                state, record = compiled.advance_settled(*arguments)
            else:
                read = self._of_call(batches, before)
                ready = compiled.ahead(*self._ahead_arguments(g, part, read))
                state, record = compiled.advance(*self._arguments(g, part, ready, state))
            if self._through_pinned_pages:
                record = self._pages.send(record)
            else:
                jax.block_until_ready(record)  # before the next call's rows take up memory
            ended = (start + size) // self.thin - start // self.thin
            records.append((record, ended))
        return state, [unpacked(self._arrived(*each)) for each in records]

    def _arrived(self, record: Packed, count: int) -> HostPacked:
        """Wait for a record, and return its first `count` slots."""
        if self._through_pinned_pages:
            return self._pages.arrived(record, count)
        return {names: np.asarray(values)[:, :count] for names, values in record.items()}

    def _of_call(
        self, batches: Batches | None, start: int = 0, length: int | None = None
    ) -> Batches | None:
        """Return the rows of a compiled call from those of all iterations, beginning at `start`."""
        end = start + (length or self.length)
        return jax.tree.map(
            lambda values: lengthened(values[:, start:end], end - start, axis=1), batches
        )

    def _bytes_recorded(self, record: Packed) -> int:
        """Return how many bytes all iterations record, given the record of one call."""
        slots = record["position",].shape[1]
        of_slot = sum(v.size * v.dtype.itemsize for v in record.values()) // slots
        return int(of_slot * len(jax.tree.leaves(self._flags)[0]) // self.thin)

    def _windows(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the first iteration and the length of each call of the compiled loops."""
        start, end = first, first + count
        while start < end:
            most = self.length
            if self.settled is not None and start >= self._quiet_from:
                # equal windows: a short one would leave pages half empty
                most = -(-(end - start) // -(-(end - start) // self.settled_length))
            elif self.settled is not None:
                most = min(most, self._quiet_from - start)
            yield start, min(most, end - start)
            start += min(most, end - start)

    @property
    def _through_pinned_pages(self) -> bool:
        return self.parallel == "stacked" and on_accelerator()

    def _ahead_arguments(self, g: int, span: Span, batches: Batches | None) -> tuple[Pytree, ...]:
        """Return the arguments that prepare iterations of group `g`."""
        read, words = self._of_group(batches, g), self._words(g, span[0], self.length)
        return (self.kernel, *self._at_device(g), read, words)

    def _words(self, g: int, first: np.int64, length: int) -> Array:
        """Return the keys of iterations of group `g`, as words."""
        if self._through_pinned_pages:
            return compiled.words_on_device(self._group_keys[g], np.asarray(first), length)
        return words_of_iterations(self.keys[self._parts[g]], first + np.arange(length))

    def _arguments(self, g: int, span: Span, ready: Pytree, state: Pytree) -> tuple[Pytree, ...]:
        """Return the arguments of the steps of group `g`, with flags as many as a call takes."""
        (context, _), first = self._at_device(g), int(span[0])
        window = slice(first, first + self.length)
        flags = jax.tree.map(lambda all_: lengthened(all_[window], self.length), self._flags)
        return (self.kernel, self._extent, context, flags, span, ready, state)

    def _settled_arguments(
        self, g: int, span: Span, batches: Batches | None, state: Pytree
    ) -> tuple[Pytree, ...]:
        """Return the arguments of `settled` for group `g`."""
        context, rows = self._at_device(g)
        source = self._tables[g % len(self._tables)] if self._tables else rows
        words = self._words(g, span[0], self.settled_length)
        read = self._of_group(batches, g)
        return (self.settled, context, source, span[1], read, state, words)

    def close(self) -> None:
        """Shut the threads down."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._fetcher:
            self._fetcher.close()

    def _at_device(self, g: int) -> tuple[Pytree, Batch | None]:
        """Return context and rows on the device of group `g`; groups cycle through the devices."""
        return self._copies[g % len(self._copies)]

    # Groups -------------------------------------------------------------------------------

    def _of_group(self, arrays: Pytree, g: int) -> Pytree:
        """Return the part of group `g`, along the axis for chains."""
        return jax.tree.map(lambda values: values[self._parts[g]], arrays)

    def _take(self, leaves: Sequence[Array]) -> None:
        super()._take(leaves)
        self.state = to_device(self.state)


def _shapes(results: Pytree) -> Pytree:
    """Return the shapes of results, for lowering a function that takes them."""
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), results)


def default_parallel(chains: int = 1) -> Parallel:
    """Threads for a few chains on a CPU; stacked for many, and on an accelerator."""
    fits_threads = chains <= CHAINS_PER_CORE * (os.cpu_count() or 1)
    return "stacked" if on_accelerator() or not fits_threads else "threads"


def _groups(chains: int) -> int:
    """Return how many equal groups to stack chains in: up to one per core or accelerator."""
    most = len(devices()) if on_accelerator() else os.cpu_count() or 1
    return max(g for g in range(1, min(most, chains) + 1) if chains % g == 0)


# On other hosts ---------------------------------------------------------------------------

OWN = ("keys", "start_keys", "rows")  # settings that differ between hosts, or are sent separately


class ChainShare(NamedTuple):
    """What a host builds its chains from: shared settings, and the keys of its chains."""

    shared: list[object]  # references to the settings and the rows
    keys: np.ndarray
    start_keys: np.ndarray | None


class ChainHost:
    """An actor that runs some of the chains."""

    def __init__(self) -> None:
        self._chains: Chains | None = None
        self._reached: tuple[int, int] | None = None  # what its states are, as `advance` has it

    def process(self) -> int:
        """Return the id of its process."""
        return os.getpid()

    def begin(self, share: ChainShare) -> compiled.Progress:
        """Initialise the chains; return their states, stacked along a leading axis."""
        chains = self._built(share)
        chains.begin()
        self._reached = (0, 0)
        return chains.whole()

    def advance(
        self,
        share: ChainShare,
        state: compiled.Progress,
        reached: tuple[int, int],
        counts: tuple[int, int],
    ) -> tuple[list[Record], compiled.Progress]:
        """Run iterations from these states; return the records and the new states.

        `reached` numbers the first iteration, and how often the driver has renewed the states;
        `counts` are the numbers of iterations to run and to fetch rows for meanwhile.
        """
        chains, (first, renewals) = self._built(share), reached
        if self._reached != reached:  # this host replaces a dead one, or states were renewed
            chains.restore(jax.tree.leaves(state))
        self._reached = None
        records = chains.advance(first, *counts)
        self._reached = (first + counts[0], renewals)
        return records, chains.whole()

    def _built(self, share: ChainShare) -> Chains:
        if self._chains is None:
            settings, rows = fetched(share.shared)
            self._chains = Chains(
                **settings, keys=share.keys, start_keys=share.start_keys, rows=rows
            )
        return self._chains


@dataclass
class ChainTasks(ChainStates):
    """All chains of a run, on hosts, with the interface of `Chains`.

    Parameters
    ----------
    chains
        The chains, as they would run in this process.
    hosts
        Where they run. Chains that are stacked stay on one host, so some hosts may be idle.
    """

    chains: Chains
    hosts: Hosts

    def __post_init__(self) -> None:
        chains = self.chains
        assert chains.group is not None
        number = gcd(len(self.hosts), len(chains.keys) // chains.group)
        self.keys, self.thin, self.units = chains.keys, chains.thin, chains.units
        self.capacity, self.settled = chains.capacity, chains.settled
        self.obstacle = chains.obstacle
        names = [f.name for f in fields(Chains) if f.init and f.name not in OWN]
        settings = {name: getattr(chains, name) for name in names}
        on_device = isinstance(chains.rows, dict)
        rows = jax.tree.map(np.asarray, chains.rows) if on_device else chains.rows
        shared = self.hosts.share(settings, rows)
        size = len(self.keys) // number
        self._parts = [slice(first, first + size) for first in range(0, len(self.keys), size)]
        starts = chains.start_keys
        self._shares = [
            ChainShare(shared, self.keys[part], None if starts is None else starts[part])
            for part in self._parts
        ]
        self.state: list[compiled.Progress] = []
        self._renewals = 0

    def begin(self) -> None:
        """Initialise every chain."""
        self.state = self.hosts.calls("begin", [(share,) for share in self._shares])

    def advance(self, first: int, count: int, next_count: int = 0) -> list[Record]:
        """Run iterations `first` to `first + count` (see `Chains.advance`)."""
        reached, counts = (first, self._renewals), (count, next_count)
        pairs = zip(self._shares, self.state, strict=True)
        results = self.hosts.calls("advance", [(*pair, reached, counts) for pair in pairs])
        self.state = [state for _, state in results]
        return side_by_side([records for records, _ in results])

    def close(self) -> None:
        """Release the hosts."""
        self.chains.close()
        self.hosts.close()

    def _take(self, leaves: Sequence[Array]) -> None:
        super()._take(leaves)
        self._renewals += 1
