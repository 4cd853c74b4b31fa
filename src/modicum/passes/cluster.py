"""Starting the workers of a Ray cluster, or connecting to one that runs."""

from __future__ import annotations

import os
import socket
import time
import warnings
from dataclasses import dataclass, field
from types import ModuleType
from typing import Literal

from modicum.arguments import Count, check_settings
from modicum.errors import ModicumError, ResourceError, SettingError, first_line
from modicum.passes.engine import EngineChoice
from modicum.passes.ray_engine import PULSE, RayEngine
from modicum.passes.worker import (
    NO_MEMORY,
    RESTARTS,
    Actor,
    Worker,
    could_not_finish,
    ray_library,
)
from modicum.progress import Progressbar, say

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
        started, faults = self._started_of(ray, room)
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

    def _started_of(self, ray: ModuleType, room: int) -> tuple[list[Actor], list[Exception]]:
        """Wait for the workers; return those that answer, and why others failed.

        If the cluster has less room than the `room` it had, a node was lost, and workers that the
        other nodes have no room for are not waited for.
        """
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
        return started, faults

    def _room(self, ray: ModuleType) -> int:
        """Return the number of workers that all cores of the cluster make, at least 1."""
        return max(1, int(ray.cluster_resources().get("CPU", 1.0) // self.cpus))

    def _connect(self, ray: ModuleType) -> None:
        quiet = {"logging_level": "error", "log_to_driver": False}
        if self.address is None:
            cores = max(os.cpu_count() or 1, (self.workers or 0) * self.cpus)
            sized = {} if self.object_store is None else {"object_store_memory": self.object_store}
            # By default Ray starts its workers at niceness 15, where they get only idle time.
            os.environ.setdefault("RAY_worker_niceness", str(_niceness()))
            try:
                ray.init(num_cpus=cores, include_dashboard=False, **sized, **quiet)
            except Exception as error:  # Ray raises many kinds, depending on what is missing
                raise ResourceError(
                    f"Ray could not be started on this machine ({first_line(error)}): free "
                    "some memory and cores, or use mo.engines.Local()."
                ) from None
            return
        _require_answer(self.address)
        try:
            ray.init(address=self.address, **quiet)
        except Exception as error:  # Ray raises many kinds, depending on what does not answer
            raise _no_cluster(self.address, str(error)) from None


def _niceness() -> int:
    """Return the niceness of this process; 0 if the system has no such concept."""
    return os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0


def _require_answer(address: str) -> None:
    """Refuse an address where nothing listens: Ray would retry for minutes."""
    if address in ("auto", "local"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit():
        raise SettingError(
            f"{address!r} is not the address of a Ray cluster: give 'auto', 'host:port' or "
            "'ray://host:port'."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


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
