"""The engine that sends work to the workers of a Ray cluster, and copes with missing answers.

Tasks depend on the rows and the number of workers alone, and every worker gives the same answer to
the last bit. So a task whose worker is silent or dead goes to the next; the first answer counts.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from math import ceil
from uuid import uuid4

import numpy as np

from modicum.engines.faults import SILENCE, fault_of, silence_of
from modicum.engines.hosts import RayHosts, started_hosts
from modicum.engines.ray_library import ray_library
from modicum.engines.sharded_weights import (
    Actor,
    NumbersAtWorkers,
    Share,
    in_shape,
    rows_from,
)
from modicum.engines.shipping import Answer, Parcel, Reference, packed
from modicum.errors import ModicumError
from modicum.passes.engine import A, ChunkSum, added, chunk_bounds, joined
from modicum.progress import PATIENCE, Progressbar, phase
from modicum.rows import Rows, weight_classes
from modicum.rows.groups import GroupedRows
from modicum.rows.weight_classes import ArrayOrder, KeptNumbers, OrderedBackend, ordered
from modicum.runtime import Pytree

TOGETHER = 16  # most chunks per task
PATIENT = 30.0  # seconds after which a worker is asked whether it is alive
REPLY = 20.0  # seconds it has to reply before its task goes to another worker
PULSE = "pulse"  # a thread of each worker that replies while other threads compute


@dataclass
class Call:
    """A request to a worker, repeated to others if that one is silent."""

    ask: Callable[[Actor], Reference]
    worker: int
    answers: list[Reference] = field(default_factory=list)


class RayEngine:
    """Add up chunks by the workers of a cluster, in the order of the chunks."""

    def __init__(
        self, actors: list[Actor], progressbar: Progressbar = True, chain_tasks: bool = False
    ) -> None:
        self._actors, self.progressbar, self._chain_tasks = actors, progressbar, chain_tasks
        self._rows: weakref.WeakKeyDictionary[Rows, Parcel] = weakref.WeakKeyDictionary()
        self._silent: set[int] = set()

    def __reduce__(self) -> tuple[type[RayEngine], tuple[list[Actor], bool]]:
        return RayEngine, (self._actors, False)

    def map_reduce(
        self, chunk_sum: ChunkSum[A], arguments: A, rows: Rows, description: str = "pass"
    ) -> Pytree:
        """Return the sum of `chunk_sum` over all chunks, in float64 (see `Engine`)."""
        return added(self._parts(chunk_sum, arguments, rows, description, "float64"))

    def map_rows(
        self, chunk_map: ChunkSum[A], arguments: A, rows: Rows, description: str = "pass"
    ) -> np.ndarray:
        """Return float32 numbers per row (see `Engine`)."""
        return joined(self._parts(chunk_map, arguments, rows, description, "float32"), rows)

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
            order = backend.order  # an order that is not an array is held by the workers
            if isinstance(order, ArrayOrder):
                return ordered(self.feed(order.rows), order.row_ids)
            return rows
        return Rows._at(rows._description, FedRows(rows, self), rows.fingerprint())

    def take(self, rows: Rows, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows at `row_ids` (any shape), each from the worker whose chunk holds it."""
        flat, source = row_ids.ravel(), self.source(rows)

        def ask(actor: Actor, places: np.ndarray) -> Reference:
            return actor.take.remote(source, flat[places])

        batch = rows_from(self.each_from(self.owners(rows, flat), ask), len(flat), rows)
        return in_shape(batch, row_ids.shape)

    def owners(self, rows: Rows, row_ids: np.ndarray) -> np.ndarray:
        """Return the numbers of the workers that pass over these rows."""
        bounds, workers = chunk_bounds(rows), len(self._actors)
        starts = [bounds[task[0]][0] for task in _tasks(len(bounds), workers)]
        return (np.searchsorted(starts, row_ids, side="right") - 1) % workers

    def each_from(
        self, owner: np.ndarray, ask: Callable[[Actor, np.ndarray], Reference]
    ) -> Iterator[tuple[np.ndarray, Answer]]:
        """Ask each worker once about its places in `owner`; yield the places and its answer."""
        calls = []
        for number in np.unique(owner):
            places = np.flatnonzero(owner == number)

            def ask_about(actor: Actor, places: np.ndarray = places) -> Reference:
                return ask(actor, places)

            calls.append((places, self._ask(int(number), ask_about)))
        return ((places, self._answer(call)) for places, call in calls)

    def _parts(
        self, function: ChunkSum[A], arguments: A, rows: Rows, description: str, dtype: str
    ) -> Iterator[Answer]:
        """Yield the results of all chunks in order."""
        bounds, source = chunk_bounds(rows), self.source(rows)
        work = self.parcel((function, arguments))

        def tasks() -> Iterator[Share]:
            for turn, numbers in enumerate(_tasks(len(bounds), len(self._actors))):

                def ask(actor: Actor, numbers: list[int] = numbers) -> Reference:
                    return actor.results.remote(work, source, numbers, dtype)

                yield Share(turn, ask, bounds[numbers[-1]][1])

        unit = "groups" if isinstance(rows, GroupedRows) else "rows"
        for answer in self.sweep(tasks(), len(rows), description, unit):
            yield from answer

    def sweep(
        self, shares: Iterable[Share], total: int, description: str, unit: str = "rows"
    ) -> Iterator[Answer]:
        """Yield the answers for all shares of a pass in order, with a few in flight per worker."""
        waiting: deque[tuple[Call, int]] = deque()
        workers = f"{len(self._actors)} worker" + "s" * (len(self._actors) != 1)
        with phase(description, total, self.progressbar, unit, PATIENCE) as progress:
            since = time.monotonic()

            def next_answer() -> Answer:
                call, done = waiting.popleft()
                answer = self._answer(call)
                rate = done / max(time.monotonic() - since, 1e-9)
                progress.update(done, f"{workers} · {_short(rate)} {progress.unit}/s")
                return answer

            for share in shares:
                waiting.append((self._ask(share.worker, share.ask), share.done))
                if len(waiting) >= 2 * len(self._actors):
                    yield next_answer()
            while waiting:
                yield next_answer()

    def parcel(self, content: object) -> Parcel:
        """Put `content` into the cluster's memory, for all workers."""
        return Parcel(_number(), [ray_library().put(packed(content))])

    def hosts(self, kind: type, most: int) -> RayHosts | None:
        """Start up to `most` actors that run chains; None if chains run in this process."""
        return started_hosts(kind, most) if self._chain_tasks else None

    def _ask(self, turn: int, ask: Callable[[Actor], Reference]) -> Call:
        """Ask the worker whose turn it is, or the next that is not silent."""
        worker = self._next_worker(turn)
        worker = turn % len(self._actors) if worker is None else worker
        return Call(ask, worker, [ask(self._actors[worker])])

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
                call.answers.append(call.ask(self._actors[other]))
            elif fault is not None and not call.answers:
                raise fault
            elif time.monotonic() - heard > SILENCE:
                raise silence_of(len(self._actors))

    def _is_alive(self, worker: int) -> bool:
        """Whether a worker answers, which it can do while it computes."""
        pulse = self._actors[worker].ready.options(concurrency_group=PULSE).remote()
        answered, _ = ray_library().wait([pulse], timeout=REPLY)
        return bool(answered)

    def source(self, rows: Rows) -> Parcel:
        """Return where workers find the rows: a store's folder, or the cluster's memory."""
        if rows not in self._rows:
            folder = getattr(rows._backend, "folder", None)
            plain = type(rows) is Rows and folder is not None
            if plain:  # the same number for every engine that opens this store
                number = _number(f"{folder} {rows.fingerprint()}")
                self._rows[rows] = Parcel(number, str(folder))
            else:
                self._rows[rows] = self.parcel(rows)
        return self._rows[rows]


def _is_plain_store(rows: Rows) -> bool:
    return type(rows) is Rows and rows.is_store


class FedRows:
    """A backend whose rows are read from a store by the workers of a cluster.

    Each worker is asked for rows of the chunks that it passes over, which it has read before.
    """

    travels = True  # it can be sent to the processes that run chains

    def __init__(self, rows: Rows, engine: RayEngine) -> None:
        self._rows, self._engine = rows, engine
        self.where = rows._backend.where
        self.folder = rows._backend.folder  # type: ignore[attr-defined]

    def take(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows at `row_ids` (any shape)."""
        return self._engine.take(self._rows, row_ids)

    def slice(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return the rows from `start` up to `stop`."""
        return self._rows.slice(start, stop)

    def chunks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield all rows in order, `size` at a time."""
        return self._rows.chunks(size)


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


def _short(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.1f}{unit}"
    return f"{rate:.0f}"
