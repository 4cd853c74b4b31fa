"""Passes by the workers of a Ray cluster.

Chunks of rows are a function of the rows alone. Some of them make a task, tasks go to the workers
in turn, so that a worker always reads the same chunks, and results are added by the driver in the
order of the chunks: the same sums, to the last bit, as one machine makes, with any number of
workers on processors of one kind. A worker that dies is replaced, and its tasks are done again.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from typing import Any, TypeVar

import numpy as np

from modicum.engines.base import EngineChoice
from modicum.engines.library import ray_library
from modicum.engines.shipping import packed
from modicum.engines.worker import Worker
from modicum.errors import ModicumError, ResourceError, SettingError, whole_number
from modicum.passes.engine import ChunkSum, added, chunk_bounds, joined
from modicum.progress import PATIENCE, Phase, Progressbar, phase
from modicum.rows import Rows
from modicum.rows.groups import GroupedRows

__all__ = ["Ray", "RayEngine"]

RESTARTS = 4  # of one worker, until its death is no accident
TOGETHER = 16  # chunks of a task, at most
REACHED = 5.0  # seconds in which an address must answer
NO_MEMORY = "a worker was stopped because its node had no memory left"
SILENCE = 900.0  # seconds without any result after which a cluster is given up


@dataclass(eq=False)
class Ray(EngineChoice):
    """Passes by the workers of a Ray cluster; chains run here.

    Needs the extra ``modicum[ray]``. Rows of a store are read by the workers themselves, under the
    same path on every node or from object storage, and they send chains the rows of the next
    iterations; rows in memory are sent once. The same seed gives the same draws as
    `Local`, bit for bit, with any number of workers on processors of one kind.

    Parameters
    ----------
    address
        Of a running cluster: "auto", "10.0.0.1:6379", "ray://10.0.0.1:10001". None: the one this
        process is connected to, or else a Ray of its own on this machine.
    workers
        How many; None: as many as the cluster has cores for.
    cpus
        Cores, and threads, of each.
    object_store
        Bytes of shared memory for a Ray of its own; None: as Ray chooses.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.engines.Ray(address="auto", workers=8)
    Ray(address='auto', workers=8, cpus=1, object_store=None)
    """

    address: str | None = None
    workers: int | None = None
    cpus: int = 1
    object_store: int | None = None
    _actors: list[Any] = field(default_factory=list, repr=False, init=False)
    _started: bool = field(default=False, repr=False, init=False)

    def __post_init__(self) -> None:
        if self.address is not None and not (isinstance(self.address, str) and self.address):
            raise SettingError(
                f"address must be that of a Ray cluster, such as 'auto', not {self.address!r}."
            )
        for name, value in (("workers", self.workers), ("object_store", self.object_store)):
            if value is not None:
                whole_number(name, value)
        whole_number("cpus", self.cpus)

    def connect(self, progressbar: Progressbar) -> RayEngine:
        """Return the engine of a run; workers are started with the first."""
        ray = ray_library()
        if not self._actors or not ray.is_initialized():
            self._start(ray)
        return RayEngine(self._actors, progressbar)

    def close(self) -> None:
        """Let the workers go, and with them a Ray that was started for them."""
        ray = ray_library()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
            if self._started:
                ray.shutdown()
        self._actors, self._started = [], False

    def _start(self, ray: Any) -> None:
        if not ray.is_initialized():
            self._initialise(ray)
        wanted = self.workers
        if wanted is None:
            cores = ray.cluster_resources().get("CPU", 1.0)
            wanted = max(1, int(cores // self.cpus))
        remote = ray.remote(Worker).options(
            num_cpus=self.cpus, max_restarts=RESTARTS, max_task_retries=-1
        )
        self._actors = [remote.remote(self.cpus) for _ in range(wanted)]
        there, missing = ray.wait(
            [actor.ready.remote() for actor in self._actors], num_returns=wanted, timeout=120
        )
        if missing:
            self.close()
            raise ResourceError(
                f"only {len(there)} of {wanted} workers of {self.cpus} cores could be started on "
                "the Ray cluster: ask for fewer (workers), or wait until it has room."
            )
        try:
            ray.get(there)
        except ray.exceptions.RayError as error:
            self.close()
            if isinstance(error, ray.exceptions.OutOfMemoryError):
                raise _dead(NO_MEMORY) from None
            raise _no_worker(error) from None

    def _initialise(self, ray: Any) -> None:
        with warnings.catch_warnings():
            # JAX warns of every fork; Ray's children become other programs at once.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            self._connect(ray)
        self._started = True

    def _connect(self, ray: Any) -> None:
        quiet = {"logging_level": "error", "log_to_driver": False}
        if self.address is None:
            cores = max(os.cpu_count() or 1, (self.workers or 0) * self.cpus)
            sized = {} if self.object_store is None else {"object_store_memory": self.object_store}
            # Ray would give its workers a niceness of 15, and with it what others leave of a core.
            os.environ.setdefault("RAY_worker_niceness", str(_niceness()))
            try:
                ray.init(num_cpus=cores, include_dashboard=False, **sized, **quiet)
            except Exception as error:  # of many kinds, by what is missing
                raise ResourceError(
                    f"no Ray could be started on this machine ({_first_line(str(error))}): free "
                    "some of its memory and cores, or use mo.engines.Local()."
                ) from None
            return
        _require_answer(self.address)
        try:
            ray.init(address=self.address, **quiet)
        except Exception as error:  # of many kinds, by what does not answer
            raise _no_cluster(self.address, str(error)) from None


def _niceness() -> int:
    """That of this process; 0 where the system has none."""
    return os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0


def _require_answer(address: str) -> None:
    """Refuse an address at which nobody listens: Ray would try for minutes."""
    if address in ("auto", "local"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit():
        raise SettingError(
            f"{address!r} is no address of a Ray cluster: give 'auto', 'host:port' or "
            "'ray://host:port'."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> SettingError:
    return SettingError(
        f"no Ray cluster can be used at {address!r} ({_first_line(reason)}): check the address, or "
        "start one with 'ray start --head'."
    )


def _no_worker(error: Exception) -> SettingError:
    lines = [line for line in str(error).splitlines() if "Error:" in line]
    return SettingError(
        "workers cannot be started on the Ray cluster "
        f"({_first_line(lines[-1] if lines else str(error))}): every node needs this version of "
        "Python, of Modicum and of what your model imports."
    )


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no answer"])[0].rstrip(".")


A = TypeVar("A")  # arguments of a function of chunks


class RayEngine:
    """Add up chunks by the workers of a cluster, in the order of the chunks."""

    def __init__(self, actors: list[Any], progressbar: Progressbar = True) -> None:
        self._actors, self.progressbar = actors, progressbar
        self._rows: weakref.WeakKeyDictionary[Rows, tuple[int, Any]] = weakref.WeakKeyDictionary()

    def map_reduce(
        self, chunk_sum: ChunkSum[A], arguments: A, rows: Rows, description: str = "pass"
    ) -> Any:
        """Return the sum of `chunk_sum` over all chunks, in float64 (see `Engine`)."""
        return added(self._parts(chunk_sum, arguments, rows, description, "float64"))

    def map_rows(
        self, chunk_map: ChunkSum[A], arguments: A, rows: Rows, description: str = "pass"
    ) -> np.ndarray:
        """Return float32 numbers per row (see `Engine`)."""
        return joined(self._parts(chunk_map, arguments, rows, description, "float32"), rows)

    def feed(self, rows: Rows) -> Rows:
        """Rows of a store as the workers read them; rows in memory are nearer than that."""
        if type(rows) is not Rows or not rows.is_store:
            return rows
        return Rows._at(rows._description, FedRows(rows, self), rows.fingerprint())

    def take(self, rows: Rows, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Rows at `row_ids`, any shape, each from the worker whose chunks it is in.

        One call for each worker, however many rows.
        """
        flat, source = row_ids.ravel(), self._source(rows)
        workers = len(self._actors)
        bounds = chunk_bounds(rows)
        starts = [bounds[task[0]][0] for task in _tasks(len(bounds), workers)]
        owner = (np.searchsorted(starts, flat, side="right") - 1) % workers
        calls = []
        for number in np.unique(owner):
            mine = np.flatnonzero(owner == number)
            calls.append((mine, self._actors[number].take.remote(source, flat[mine])))
        out = {
            name: np.empty((len(flat), *shape), rows.dtypes[name])
            for name, shape in rows.fields.items()
        }
        for mine, call in calls:
            for name, part in _answer(call, workers).items():
                out[name][mine] = part
        return {name: part.reshape(*row_ids.shape, *part.shape[1:]) for name, part in out.items()}

    def _parts(
        self, function: ChunkSum[A], arguments: A, rows: Rows, description: str, dtype: str
    ) -> Iterator[Any]:
        """Results of all chunks in order; a few tasks per worker are under way at a time."""
        ray, bounds = ray_library(), chunk_bounds(rows)
        work = (next(_NUMBERS), [ray.put(packed((function, arguments)))])
        source = self._source(rows)
        waiting: deque[tuple[Any, list[int]]] = deque()
        unit = "groups" if isinstance(rows, GroupedRows) else "rows"
        with phase(description, len(rows), self.progressbar, unit, PATIENCE) as going:
            since = time.monotonic()
            for turn, numbers in enumerate(_tasks(len(bounds), len(self._actors))):
                actor = self._actors[turn % len(self._actors)]
                waiting.append((actor.results.remote(work, source, numbers, dtype), numbers))
                if len(waiting) >= 2 * len(self._actors):
                    yield from self._next(waiting, bounds, going, since)
            while waiting:
                yield from self._next(waiting, bounds, going, since)

    def _next(
        self,
        waiting: deque[tuple[Any, list[int]]],
        bounds: list[tuple[int, int]],
        going: Phase,
        since: float,
    ) -> Iterator[Any]:
        task, numbers = waiting.popleft()
        yield from _answer(task, len(self._actors))
        done = bounds[numbers[-1]][1]
        rate = done / max(time.monotonic() - since, 1e-9)
        workers = f"{len(self._actors)} worker" + "s" * (len(self._actors) != 1)
        going.update(done, f"{workers} · {_short(rate)} {going.unit}/s")

    def _source(self, rows: Rows) -> tuple[int, Any]:
        """Where workers find the rows: in the folder of a store, or in the cluster's memory."""
        if rows not in self._rows:
            folder = getattr(rows._backend, "folder", None)
            plain = type(rows) is Rows and folder is not None
            place = str(folder) if plain else [ray_library().put(packed(rows))]
            self._rows[rows] = (next(_NUMBERS), place)
        return self._rows[rows]


class FedRows:
    """Rows of a store, of which the workers of a cluster take some at a time.

    A worker is asked for rows of the chunks that it passes over, so that it has read them before.
    """

    def __init__(self, rows: Rows, engine: RayEngine) -> None:
        self._rows, self._engine = rows, engine
        self.where = rows._backend.where
        self.folder = rows._backend.folder  # type: ignore[attr-defined]

    def take(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Rows at `row_ids`, any shape."""
        return self._engine.take(self._rows, row_ids)

    def slice(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows from `start` up to `stop`."""
        return self._rows.slice(start, stop)

    def chunks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """All rows in order, `size` at a time."""
        return self._rows.chunks(size)


_NUMBERS = count()


def _tasks(chunks: int, workers: int) -> list[list[int]]:
    """Numbers of the chunks of each task: several where there are many, and four per worker."""
    together = max(1, min(TOGETHER, chunks // (4 * workers)))
    return [
        list(range(i * together, min((i + 1) * together, chunks)))
        for i in range(ceil(chunks / together))
    ]


def _answer(task: Any, workers: int) -> Any:
    """What a task returns; what befell it, in a sentence."""
    ray = ray_library()
    try:
        done, _ = ray.wait([task], timeout=SILENCE)
        if not done:
            raise ResourceError(
                f"none of the {workers} workers of the Ray cluster answered for "
                f"{SILENCE / 60:.0f} minutes: look at it with 'ray status', and run again (with a "
                "checkpoint the run goes on where it was)."
            )
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ModicumError):
            raise cause from None
        if isinstance(cause, ImportError):
            raise SettingError(
                f"a worker of the Ray cluster cannot import what the model needs ({cause}): "
                "install it on every node, or define the model's functions in the script itself."
            ) from None
        if isinstance(cause, MemoryError):
            raise _dead("memory ran out on a worker") from None
        raise
    except ray.exceptions.OutOfMemoryError:
        raise _dead(NO_MEMORY) from None
    except ray.exceptions.RayError as error:
        said = _first_line(str(error))
        raise _dead(f"a worker died, and so did those that took its place ({said})") from None


def _dead(what: str) -> ResourceError:
    return ResourceError(
        f"the Ray cluster could not finish its work: {what}; take fewer workers per node or nodes "
        "with more memory, and run again (with a checkpoint the run goes on where it was)."
    )


def _short(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.1f}{unit}"
    return f"{rate:.0f}"
