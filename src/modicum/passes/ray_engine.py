"""A Ray cluster: its workers are started, make passes, and keep numbers per row.

Chunks depend on the rows alone, and a task is a few consecutive chunks. Tasks are dealt to workers
round-robin, so that a worker always reads the same chunks, and the driver adds their results in the
order of the chunks. With any number of workers on processors of one kind, the sums equal those of a
single machine to the last bit. Every worker gives the same answer, so a task whose worker is silent
or dead goes to the next, and the first answer counts.

A weighted design (`modicum.kernels.designs.Weighted`) draws places in the order of all rows sorted
by class, from its key alone. Each shard of a million rows is sorted by the worker that passes over
it. The driver keeps the number of rows of each class in every shard, 256 numbers, from which it
finds the shard of a place and the place within that shard's order; the worker turns the latter into
a row. Sorting is stable and shards keep the order of their rows, so that places denote the same
rows as when one machine sorts them all, and sums of weights are added in the same order: draws are
the same to the last bit. A worker that replaces another recomputes the numbers of a shard when it
is first asked for them.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from math import ceil
from types import ModuleType
from typing import Literal, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import DTypeLike

from modicum.arguments import Count, check_settings
from modicum.errors import ModicumError, ResourceError, SettingError, count, first_line
from modicum.passes.engine import A, ChunkSum, Engine, EngineChoice, chunk_bounds
from modicum.passes.worker import (
    NO_MEMORY,
    RESTARTS,
    SILENCE,
    Actor,
    Answer,
    NumberRecipe,
    Parcel,
    RayHosts,
    Reference,
    Worker,
    could_not_finish,
    fault_of,
    packed,
    ray_library,
    silence_of,
)
from modicum.progress import PATIENCE, Progressbar, in_short, phase, say
from modicum.rows import Rows, weight_classes
from modicum.rows.memory import Backend
from modicum.rows.weight_classes import (
    CLASSES,
    Classes,
    Extent,
    KeptNumbers,
    OrderedBackend,
    ordered,
)
from modicum.runtime import Pytree

TOGETHER = 16  # most chunks per task
PATIENT = 30.0  # seconds after which a worker is asked whether it is alive
REPLY = 20.0  # seconds it has to reply before its task goes to another worker
PULSE = "pulse"  # a thread of each worker that replies while other threads compute
# Part of a pass: the worker to ask, the arguments, and how many rows are done after it.
Share: TypeAlias = tuple[int, tuple[object, ...], int]


@dataclass
class Call:
    """A request to a worker, repeated to others if that one is silent."""

    method: str
    arguments: tuple[object, ...]
    worker: int
    answers: list[Reference] = field(default_factory=list)


class RayEngine(Engine):
    """Add up chunks by the workers of a cluster, in the order of the chunks."""

    def __init__(
        self, actors: list[Actor], progressbar: Progressbar = True, chain_tasks: bool = False
    ) -> None:
        self._actors, self.progressbar, self._chain_tasks = actors, progressbar, chain_tasks
        self._rows: weakref.WeakKeyDictionary[Rows, Parcel] = weakref.WeakKeyDictionary()
        self._silent: set[int] = set()

    def __reduce__(self) -> tuple[type[RayEngine], tuple[list[Actor], bool]]:
        return RayEngine, (self._actors, False)

    def parts(
        self, function: ChunkSum[A], arguments: A, rows: Rows, description: str, dtype: DTypeLike
    ) -> Iterator[Pytree]:
        """Yield the results of all chunks in order."""
        bounds, source = chunk_bounds(rows), self.source(rows)
        work = self.parcel((function, arguments))
        tasks = (
            (turn, (work, source, numbers, dtype), bounds[numbers[-1]][1])
            for turn, numbers in enumerate(_tasks(len(bounds), len(self._actors)))
        )
        for answer in self.sweep("results", tasks, len(rows), description, f"{rows.unit}s"):
            yield from answer

    def keeps(self, rows: Rows) -> bool:
        """Whether workers keep per-row numbers: for stores of more than one shard."""
        return _is_plain_store(rows) and len(rows) > weight_classes.BLOCK

    def keep_rows(
        self, chunk_map: ChunkSum[A], arguments: A, rows: Rows, description: str = "pass"
    ) -> np.ndarray | KeptNumbers:
        """Have workers compute and keep a number per row (see `Engine`)."""
        if not self.keeps(rows):
            return self.map_rows(chunk_map, arguments, rows, description)
        return NumbersAtWorkers(self, self.parcel((chunk_map, arguments)), rows, description)

    def feed(self, rows: Rows) -> Rows:
        """Return rows that fetch from the workers; rows in memory are returned unchanged."""
        backend = rows._backend
        if not _is_plain_store(rows) or isinstance(backend, FedRows):
            return rows
        if isinstance(backend, OrderedBackend):
            if isinstance(backend.order, np.ndarray):
                return ordered(self.feed(backend.rows), backend.order)
            return rows  # its order is held by the workers
        return Rows._at(FedRows(rows, self))

    def hosts(self, kind: type, most: int) -> RayHosts | None:
        """Start up to `most` actors that run chains; None if chains run in this process."""
        return RayHosts.started(kind, most) if self._chain_tasks else None

    def take(self, rows: Rows, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows at `row_ids` (any shape), each from the worker whose chunk holds it."""
        flat = row_ids.ravel()
        parts = self.each_from(self.owners(rows, flat), "take", (self.source(rows),), (flat,))
        return _assembled(parts, row_ids.shape, rows)

    def owners(self, rows: Rows, row_ids: np.ndarray) -> np.ndarray:
        """Return the numbers of the workers that pass over these rows."""
        bounds, workers = chunk_bounds(rows), len(self._actors)
        starts = [bounds[task[0]][0] for task in _tasks(len(bounds), workers)]
        return (np.searchsorted(starts, row_ids, side="right") - 1) % workers

    def each_from(
        self,
        owner: np.ndarray,
        method: str,
        same: tuple[object, ...],
        by_place: tuple[np.ndarray, ...],
    ) -> Iterator[tuple[np.ndarray, Answer]]:
        """Ask each worker once about its places in `owner`; yield the places and its answer.

        Arguments are the `same` for all, followed by the entries of `by_place` at these places.
        """
        calls = []
        for number in np.unique(owner):
            places = np.flatnonzero(owner == number)
            own = (array[places] for array in by_place)
            calls.append((places, self._ask(int(number), method, (*same, *own))))
        return ((places, self._answer(call)) for places, call in calls)

    def sweep(
        self,
        method: str,
        shares: Iterable[Share],
        total: int,
        description: str,
        unit: str = "rows",
    ) -> Iterator[Answer]:
        """Yield the answers for all shares of a pass in order, with a few in flight per worker."""
        waiting: deque[tuple[Call, int]] = deque()
        workers = count(len(self._actors), "worker")
        with phase(description, total, self.progressbar, unit, PATIENCE) as progress:
            since = time.monotonic()

            def next_answer() -> Answer:
                call, done = waiting.popleft()
                answer = self._answer(call)
                rate = done / max(time.monotonic() - since, 1e-9)
                progress.update(done, f"{workers} · {in_short(rate)} {progress.unit}/s")
                return answer

            for worker, arguments, done in shares:
                waiting.append((self._ask(worker, method, arguments), done))
                if len(waiting) >= 2 * len(self._actors):
                    yield next_answer()
            while waiting:
                yield next_answer()

    def parcel(self, content: object) -> Parcel:
        """Put `content` into the cluster's memory, for all workers."""
        return Parcel(_number(), [ray_library().put(packed(content))])

    def source(self, rows: Rows) -> Parcel:
        """Return where workers find the rows: a store's folder, or the cluster's memory."""
        if rows not in self._rows:
            folder = rows._backend.folder
            if type(rows) is Rows and folder is not None:
                # the same number for every engine that opens this store
                number = _number(f"{folder} {rows.fingerprint()}")
                self._rows[rows] = Parcel(number, str(folder))
            else:
                self._rows[rows] = self.parcel(rows)
        return self._rows[rows]

    def _ask(self, turn: int, method: str, arguments: tuple[object, ...]) -> Call:
        """Ask the worker whose turn it is, or the next that is not silent."""
        worker = self._next_worker(turn)
        call = Call(method, arguments, turn % len(self._actors) if worker is None else worker)
        return self._send(call)

    def _send(self, call: Call) -> Call:
        request = getattr(self._actors[call.worker], call.method)
        call.answers.append(request.remote(*call.arguments))
        return call

    def _next_worker(self, turn: int) -> int | None:
        """Return the first worker from this turn on that is not silent; None if all are."""
        workers = len(self._actors)
        turns = ((turn + k) % workers for k in range(workers))
        return next((worker for worker in turns if worker not in self._silent), None)

    def _answer(self, call: Call) -> Answer:
        """Return the first answer of the workers that were asked; raise if all fail."""
        ray, heard = ray_library(), time.monotonic()
        while True:
            fault: ModicumError | None = None
            done, _ = ray.wait(call.answers, num_returns=1, timeout=PATIENT)
            if done:
                try:
                    return ray.get(done[0])
                except ray.exceptions.RayError as error:
                    fault = fault_of(error)
                    if not isinstance(error, ray.exceptions.RayActorError):
                        raise fault from None
                call.answers.remove(done[0])
            elif self._is_alive(call.worker):  # still computing, however long that takes
                heard = time.monotonic()
                continue
            self._silent.add(call.worker)
            other = self._next_worker(call.worker)
            if other is not None:
                call.worker = other
                self._send(call)
            elif fault is not None and not call.answers:
                raise fault
            elif time.monotonic() - heard > SILENCE:
                raise silence_of(len(self._actors))

    def _is_alive(self, worker: int) -> bool:
        """Whether a worker answers, which it can do while it computes."""
        pulse = self._actors[worker].ready.options(concurrency_group=PULSE).remote()
        answered, _ = ray_library().wait([pulse], timeout=REPLY)
        return bool(answered)


class FedRows(Backend):
    """A backend whose rows are read from a store by the workers of a cluster.

    Each worker is asked for rows of the chunks that it passes over, which it has read before.
    """

    def __init__(self, rows: Rows, engine: RayEngine) -> None:
        self._rows, self._engine = rows, engine
        self.description, self.fingerprint = rows._description, rows.fingerprint()
        self.where, self.folder = rows._backend.where, rows._backend.folder

    def take(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows at `row_ids` (any shape)."""
        return self._engine.take(self._rows, row_ids)

    def slice(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return the rows from `start` up to `stop`."""
        return self._rows.slice(start, stop)

    def chunks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield all rows in order, `size` at a time."""
        return self._rows.chunks(size)


# Numbers that stay with the workers ---------------------------------------------------------


class NumbersAtWorkers:
    """A number per row, computed and kept by the workers on first use (see `KeptNumbers`).

    Rows are cut into shards, along the boundaries of the blocks of `rows.weight_classes`.

    Parameters
    ----------
    engine, rows
        The workers and their rows.
    work
        Function and arguments of a pass that gives one number per row.
    description
        What the pass is for.
    """

    def __init__(self, engine: RayEngine, work: Parcel, rows: Rows, description: str) -> None:
        self.engine, self.rows, self._description = engine, rows, description
        self.recipe = NumberRecipe(work, engine.source(rows), weight_classes.BLOCK)
        self.starts = np.arange(0, len(rows), self.recipe.shard)
        self.stops = np.minimum(self.starts + self.recipe.shard, len(rows))
        self.owners = engine.owners(rows, (self.starts + self.stops) // 2)
        self._extent: Extent | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def sweep(self, method: str, *classes: Classes) -> Iterator[Answer]:
        """Ask the owner of each shard about its range of rows; yield the answers in order."""
        ranges = zip(self.owners.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True)
        shares = (
            (owner, (self.recipe, *classes, start, stop), stop) for owner, start, stop in ranges
        )
        return self.engine.sweep(method, shares, len(self), self._description)

    def extent(self) -> Extent:
        """Return what the classes depend on, over all rows; the pass is made once."""
        if self._extent is None:
            parts: list[Extent] = list(self.sweep("extent"))
            pairs = zip(self.starts, parts, strict=True)
            bad = next((int(start) + part.bad for start, part in pairs if part.bad >= 0), -1)
            self._extent = Extent(
                np.concatenate([part.sums for part in parts]),
                float(np.min([part.smallest for part in parts])),
                float(np.max([part.largest for part in parts])),
                bad,
            )
        return self._extent

    def sort(self, classes: Classes) -> tuple[np.ndarray, np.ndarray, OrderAtWorkers]:
        """Return the weight and size of each class, and the rows sorted by class."""
        mass, sizes = np.zeros(CLASSES), []
        for part, size in self.sweep("sort", classes):
            mass += part
            sizes.append(size)
        counts = np.stack(sizes)
        return mass, counts.sum(axis=0), OrderAtWorkers(self, classes, counts)


class OrderAtWorkers:
    """Row numbers sorted by class; each worker holds those of its shards (see `KeptOrder`).

    Parameters
    ----------
    counts
        Rows of each class in each shard, (shards, classes).
    """

    def __init__(self, shards: NumbersAtWorkers, classes: Classes, counts: np.ndarray) -> None:
        self._shards, self._classes = shards, classes
        # The order is made of pieces, class by class and shard by shard within a class: where
        # each piece begins and ends, and where it begins in the order of its own shard.
        self._ends = np.cumsum(counts.T.ravel())
        self._begins = self._ends - counts.T.ravel()
        self._within = (np.cumsum(counts, axis=1) - counts).T.ravel()

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, places: slice | np.ndarray) -> np.ndarray:
        """Return the row numbers (int64) at these places."""
        if isinstance(places, slice):
            places = np.arange(*places.indices(len(self)))
        row_ids = np.empty(places.size, np.int64)
        for at, part in self._ask("sorted_row_ids", places.ravel()):
            row_ids[at] = part
        return row_ids.reshape(places.shape)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole order, gathered from all workers: one number per row."""
        every = np.empty(len(self), np.uint32 if len(self) < 2**32 else np.int64)
        orders = self._shards.sweep("order", self._classes)
        number = len(self._shards.starts)
        for shard, (start, order) in enumerate(zip(self._shards.starts, orders, strict=True)):
            pieces = slice(shard, None, number)
            for at, end, within in zip(
                self._begins[pieces], self._ends[pieces], self._within[pieces], strict=True
            ):
                every[at:end] = order[within : within + end - at] + start
        return every if dtype is None else every.astype(dtype)

    def take(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows at these places (any shape), each from the worker that sorted it."""
        parts = self._ask("take_sorted", places.ravel())
        return _assembled(parts, places.shape, self._shards.rows)

    def _ask(self, method: str, places: np.ndarray) -> Iterator[tuple[np.ndarray, Answer]]:
        """Ask each worker once about the places in its shards."""
        shards = self._shards
        piece = np.searchsorted(self._ends, places, side="right")
        shard = piece % len(shards.starts)
        within = (places - self._begins[piece] + self._within[piece]).astype(np.uint32)
        same, by_place = (shards.recipe, self._classes), (shards.starts[shard], within)
        return shards.engine.each_from(shards.owners[shard], method, same, by_place)


def _assembled(
    parts: Iterable[tuple[np.ndarray, dict[str, np.ndarray]]], shape: tuple[int, ...], rows: Rows
) -> dict[str, np.ndarray]:
    """Put the rows that several workers sent in their places, with the leading axes `shape`."""
    out = {
        name: np.empty((int(np.prod(shape)), *own), rows.dtypes[name])
        for name, own in rows.fields.items()
    }
    for places, part in parts:
        for name, values in part.items():
            out[name][places] = values
    return {name: part.reshape(*shape, *part.shape[1:]) for name, part in out.items()}


def _is_plain_store(rows: Rows) -> bool:
    return type(rows) is Rows and rows.is_store


def _number(name: str | None = None) -> int:
    """Return a key under which workers remember something, unique among all drivers."""
    data = uuid4().bytes if name is None else name.encode()
    return int.from_bytes(blake2b(data, digest_size=7).digest())


def _tasks(chunks: int, workers: int) -> list[list[int]]:
    """Return the chunk numbers of each task, aiming at four tasks or more per worker."""
    together = max(1, min(TOGETHER, chunks // (4 * workers)))
    return [
        list(range(i * together, min((i + 1) * together, chunks)))
        for i in range(ceil(chunks / together))
    ]


REACHED = 5.0  # seconds within which an address must answer
START, LOOK = 120.0, 2.0  # seconds for workers to start, and between looks at the cluster's room


@dataclass(eq=False)
class Ray(EngineChoice):
    """Passes by the workers of a Ray cluster; chains run in this process or on the cluster.

    Needs the extra ``modicum[ray]``. The workers read the rows of a store themselves, under the
    same path on every node or from object storage, and send the chains the rows of their next
    iterations; rows in memory are sent to the cluster once. The same seed gives the same draws as
    `Local`, bit for bit, with any number of workers on processors of one kind.

    Parameters
    ----------
    address
        Address of a running cluster: "auto", "10.0.0.1:6379", "ray://10.0.0.1:10001". None: the
        cluster this process is connected to, or else a new one on this machine.
    workers
        Number of workers; None: as many as the cluster has cores for.
    cpus
        Cores, and threads, of each worker.
    object_store
        Bytes of shared memory for a new cluster on this machine; None: Ray's default.
    chains
        Where chains run: "driver" (in this process), or "tasks" of the cluster, one for each of
        its accelerators, or for its processors if it has none.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.engines.Ray(address="auto", workers=8)
    Ray(address='auto', workers=8, cpus=1, object_store=None, chains='driver')
    """

    address: str | None = None
    workers: Count | None = None
    cpus: Count = 1
    object_store: Count | None = None
    chains: Literal["driver", "tasks"] = "driver"
    _actors: list[Actor] = field(default_factory=list, repr=False, init=False)
    _started: bool = field(default=False, repr=False, init=False)

    def __post_init__(self) -> None:
        if self.address is not None and not (isinstance(self.address, str) and self.address):
            raise SettingError(
                f"address must name a Ray cluster, such as 'auto', not {self.address!r}."
            )
        check_settings(self)

    def connect(self, progressbar: Progressbar) -> RayEngine:
        """Return the engine of a run; the first run starts the workers."""
        ray = ray_library()
        if not self._actors or not ray.is_initialized():
            self._start(ray, progressbar)
        return RayEngine(self._actors, progressbar, self.chains == "tasks")

    def close(self) -> None:
        """Stop the workers, and Ray too if it was started for them."""
        ray = ray_library()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
            if self._started:
                ray.shutdown()
        self._actors, self._started = [], False

    def _start(self, ray: ModuleType, progressbar: Progressbar) -> None:
        """Start the workers; those that a lost or crowded cluster has no room for are left out."""
        if not ray.is_initialized():
            with warnings.catch_warnings():
                # JAX warns of every fork, but Ray's children exec another program at once.
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                self._connect(ray)
            self._started = True
        room = self._room(ray)
        workers = room if self.workers is None else self.workers
        remote = ray.remote(concurrency_groups={PULSE: 1})(Worker).options(
            num_cpus=self.cpus, max_restarts=RESTARTS, max_task_retries=-1
        )
        self._actors = [remote.remote(self.cpus) for _ in range(workers)]
        waiting = {actor.ready.remote(): actor for actor in self._actors}
        started: list[Actor] = []
        faults: list[Exception] = []
        until = time.monotonic() + START
        while waiting and time.monotonic() < until:
            answered, _ = ray.wait([*waiting], num_returns=len(waiting), timeout=LOOK)
            for answer in answered:
                actor = waiting.pop(answer)
                try:
                    ray.get(answer)
                    started.append(actor)
                except ray.exceptions.RayError as error:
                    faults.append(error)
            if started and len(started) >= self._room(ray) < room:
                break
        if not started:
            self.close()
            raise _no_worker(ray, faults, self.cpus)
        for actor in self._actors:
            if actor not in started:
                ray.kill(actor)
        self._actors = started
        if len(started) < workers:
            reason = f" ({first_line(faults[0])})" if faults else ""
            say(
                f"only {len(started)} of {workers} workers of {self.cpus} cores could be started "
                f"on the Ray cluster{reason}; they do all the work",
                progressbar,
            )

    def _room(self, ray: ModuleType) -> int:
        """Return the number of workers that all cores of the cluster make, at least 1."""
        return max(1, int(ray.cluster_resources().get("CPU", 1.0) // self.cpus))

    def _connect(self, ray: ModuleType) -> None:
        quiet = {"logging_level": "error", "log_to_driver": False}
        if self.address is None:
            cores = max(os.cpu_count() or 1, (self.workers or 0) * self.cpus)
            sized = {} if self.object_store is None else {"object_store_memory": self.object_store}
            # By default Ray starts its workers at niceness 15, where they get only idle time.
            niceness = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0
            os.environ.setdefault("RAY_worker_niceness", str(niceness))
            try:
                ray.init(num_cpus=cores, include_dashboard=False, **sized, **quiet)
            except Exception as error:  # Ray raises many kinds, depending on what is missing
                raise ResourceError(
                    f"Ray could not be started on this machine ({first_line(error)}): free "
                    "some memory and cores, or use mo.engines.Local()."
                ) from None
            return
        if self.address not in ("auto", "local"):
            host, colon, port = self.address.removeprefix("ray://").rpartition(":")
            if not colon or not host or not port.isdigit():
                raise SettingError(
                    f"{self.address!r} is not the address of a Ray cluster: give 'auto', "
                    "'host:port' or 'ray://host:port'."
                )
            try:
                socket.create_connection((host.strip("[]"), int(port)), REACHED).close()
            except (OSError, OverflowError) as error:
                raise _no_cluster(self.address, str(error)) from None
        try:
            ray.init(address=self.address, **quiet)
        except Exception as error:  # Ray raises many kinds, depending on what does not answer
            raise _no_cluster(self.address, str(error)) from None


def _no_cluster(address: str, reason: str) -> SettingError:
    return SettingError(
        f"cannot connect to a Ray cluster at {address!r} ({first_line(reason)}): check the "
        "address, or start one with 'ray start --head'."
    )


def _no_worker(ray: ModuleType, faults: list[Exception], cpus: int) -> ModicumError:
    """Return an error that says why no worker has started."""
    if not faults:
        return ResourceError(
            f"no worker of {cpus} cores could be started on the Ray cluster: wait until it has "
            "room, or ask for workers with fewer cores (cpus)."
        )
    if isinstance(faults[0], ray.exceptions.OutOfMemoryError):
        return could_not_finish(NO_MEMORY)
    lines = [line for line in str(faults[0]).splitlines() if "Error:" in line]
    return SettingError(
        "workers cannot be started on the Ray cluster "
        f"({first_line(lines[-1] if lines else str(faults[0]))}): every node needs the same "
        "versions of Python, Modicum and the packages that your model imports."
    )
