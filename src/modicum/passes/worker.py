"""Actors of a Ray cluster: what is sent to them, and what their failures mean.

A worker opens the rows and computes the results of some of their chunks. Work is pickled: Modicum's
functions by name, others by value. A compiled function holds locks and cannot be pickled. It need
not be, since every worker has Modicum: it is sent as its module and name. Functions of a user's
model are sent by value, as Ray sends the functions of a script.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np

from modicum.errors import DataError, ModicumError, ResourceError, SettingError, first_line
from modicum.passes.engine import ChunkSum, chunk_results, chunk_rows
from modicum.rows import Rows
from modicum.rows.weight_classes import Classes, Extent, extent_of, rows_by_class
from modicum.runtime import Pytree


def ray_library(module: str = "ray") -> ModuleType:
    """Return the module, or say how to install Ray."""
    try:
        return import_module(module)
    except ImportError:
        raise SettingError(
            "mo.engines.Ray needs the package ray: pip install 'modicum[ray]'."
        ) from None


RESTARTS = 4  # restarts of one worker after which its deaths are no accident
SILENCE = 900.0  # seconds without any result after which the run gives up on a cluster
NO_MEMORY = "a worker was stopped because its node had no memory left"


def silence_of(workers: int) -> ResourceError:
    """Return an error that says no worker answers."""
    return ResourceError(
        f"none of the {workers} workers of the Ray cluster answered for {SILENCE / 60:.0f} "
        "minutes: inspect the cluster with 'ray status', and run again (with a checkpoint the run "
        "resumes where it stopped)."
    )


def fault_of(error: Exception) -> ModicumError:
    """Translate a worker's failure; errors raised by the model itself are re-raised unchanged."""
    ray = ray_library()
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        if isinstance(cause, ModicumError):
            return cause
        if isinstance(cause, ImportError):
            return SettingError(
                f"a worker of the Ray cluster cannot import what the model needs ({cause}): "
                "install it on every node, or define the model's functions in the script itself."
            )
        if isinstance(cause, MemoryError):
            return could_not_finish("memory ran out on a worker")
        raise error
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return could_not_finish(NO_MEMORY)
    message = first_line(error)
    return could_not_finish(f"a worker died, and so did its replacements ({message})")


def could_not_finish(cause: str) -> ResourceError:
    """Return an error that says why the cluster failed, and what to do."""
    return ResourceError(
        f"the Ray cluster could not finish its work: {cause}; use fewer workers per node or nodes "
        "with more memory, and run again (with a checkpoint the run resumes where it stopped)."
    )


Reference: TypeAlias = object  # a ray.ObjectRef to an answer, or to an object in the cluster
Answer: TypeAlias = Any  # what a worker returns, which depends on the request
Actor: TypeAlias = Any  # a handle of a `Worker`, or of another actor; Ray has no types


class Parcel(NamedTuple):
    """Something that a worker unpacks once and remembers by its number."""

    number: int
    content: str | list[Reference]  # the folder of a store, or a list with one packed object


class NumberRecipe(NamedTuple):
    """How a worker computes a number for each row of a shard."""

    work: Parcel  # function and arguments
    rows: Parcel
    shard: int  # rows per shard; the last may have fewer


def packed(value: object) -> bytes:
    """Pickle an object, with device arrays as NumPy arrays."""
    pickler: Any = ray_library("ray.cloudpickle").Pickler  # Ray has no types

    class Pickler(pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:  # pickle's hook
            if isinstance(thing, jax.Array) and not isinstance(thing, jax.core.Tracer):
                return np.asarray, (np.asarray(thing),)
            name = _own_name(thing)
            if name is not None:
                return _named, (str(thing.__module__), name)
            return super().reducer_override(thing)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def unpacked(data: bytes) -> Answer:
    """Undo `packed`; the bytes come from this run's own driver, so unpickling is safe."""
    return pickle.loads(data)


def _own_name(shipped: object) -> str | None:
    """Return the name of a function in its module, if the module is one of Modicum's."""
    if not isinstance(shipped, FunctionType) or not shipped.__module__.startswith("modicum."):
        return None
    if shipped is _named:  # pickled as usual, since unpickling by name needs it
        return None
    in_module = vars(sys.modules[shipped.__module__])
    return next((name for name, value in in_module.items() if value is shipped), None)


def _named(module: str, name: str) -> object:
    return getattr(import_module(module), name)


T = TypeVar("T")
Work: TypeAlias = tuple[ChunkSum[Pytree], Pytree]  # a function of chunks, and its arguments

HELD = 2  # data sets held (all rows, and the subset that starts the mode search), and weights


class Worker:
    """A Ray actor; everything it holds can be sent again, so that it can be replaced at any time.

    Parameters
    ----------
    threads
        Number of threads to compute with.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._rows: dict[int, Rows] = {}
        self._work: dict[int, Work] = {}
        self._kept: dict[int, dict[int, np.ndarray]] = {}

    def ready(self) -> bool:
        """Confirm that the worker has started."""
        return True

    def node(self) -> str:
        """Return the id of the node that the worker runs on."""
        return str(ray_library().get_runtime_context().get_node_id())

    def results(self, work: Parcel, rows: Parcel, numbers: list[int], dtype: str) -> list[Pytree]:
        """Return the results of the chunks with these numbers."""
        function, arguments = self._unpacked(*work)
        opened = self._opened(*rows)
        results = chunk_results(function, arguments, opened, numbers, dtype, self._threads)
        return list(results)

    def take(self, rows: Parcel, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows with these numbers, which lie in chunks that this worker reads."""
        opened = self._opened(*rows)
        return {name: np.ascontiguousarray(part) for name, part in opened.take(row_ids).items()}

    # Per-row numbers that the worker keeps ----------------------------------------------------

    def extent(self, recipe: NumberRecipe, start: int, stop: int) -> Extent:
        """Compute and keep the numbers of a shard; return what their classes depend on."""
        numbers = self._numbers(recipe, start, stop)
        self._shards_of(recipe)[start] = numbers
        return extent_of(numbers)

    def sort(
        self, recipe: NumberRecipe, classes: Classes, start: int, stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sort a shard by class and keep its order; return the weight and size of each class."""
        mass, size, order = rows_by_class(self._numbers(recipe, start, stop), classes)
        self._shards_of(recipe)[start] = order
        return mass, size

    def sorted_row_ids(
        self, recipe: NumberRecipe, classes: Classes, shards: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Return row numbers at places in the orders of shards, given by their first rows."""
        row_ids = np.empty(len(places), np.int64)
        n = len(self._opened(*recipe.rows))
        for start in np.unique(shards):
            in_shard = shards == start
            order = self.order(recipe, classes, int(start), min(int(start) + recipe.shard, n))
            row_ids[in_shard] = order[places[in_shard]] + start
        return row_ids

    def take_sorted(
        self, recipe: NumberRecipe, classes: Classes, shards: np.ndarray, places: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the rows at places in the orders of shards."""
        return self.take(recipe.rows, self.sorted_row_ids(recipe, classes, shards, places))

    def order(self, recipe: NumberRecipe, classes: Classes, start: int, stop: int) -> np.ndarray:
        """Return a shard's order by class; recompute it if another worker had computed it."""
        shard = self._shards_of(recipe).get(start)
        if shard is None or shard.dtype != np.uint32:
            self.sort(recipe, classes, start, stop)
        return self._shards_of(recipe)[start]

    def _shards_of(self, recipe: NumberRecipe) -> dict[int, np.ndarray]:
        """Return the kept shards by their first row: float32 numbers per row, or uint32 order."""
        return _held(self._kept, recipe.work.number, dict)

    def _numbers(self, recipe: NumberRecipe, start: int, stop: int) -> np.ndarray:
        """Compute the numbers of a shard's rows, by whole chunks as in any pass."""
        shard = self._shards_of(recipe).get(start)
        if shard is not None and shard.dtype == np.float32:
            return shard
        rows = self._opened(*recipe.rows)
        function, arguments = self._unpacked(*recipe.work)
        size = chunk_rows(rows)
        chunks = range(start // size, (stop - 1) // size + 1)
        results = chunk_results(function, arguments, rows, chunks, "float32", self._threads)
        joined = np.empty(stop - start, np.float32)
        for number, result in zip(chunks, results, strict=True):
            low, high = max(number * size, start), min((number + 1) * size, stop)
            joined[low - start : high - start] = result[low - number * size : high - number * size]
        return joined

    def _unpacked(self, number: int, content: str | list[Reference]) -> Work:
        return _held(self._work, number, lambda: unpacked(ray_library().get(content[0])))

    def _opened(self, number: int, source: str | list[Reference]) -> Rows:
        return _held(self._rows, number, lambda: _rows_at(source))


def _held(cache: dict[int, T], number: int, make: Callable[[], T]) -> T:
    """Return what is held under a number, made if need be; the oldest makes room for it."""
    if number not in cache:
        while len(cache) >= HELD:
            cache.pop(next(iter(cache)))
        cache[number] = make()
    return cache[number]


def _rows_at(source: str | list[Reference]) -> Rows:
    if not isinstance(source, str):
        return unpacked(ray_library().get(source[0]))
    try:
        return Rows.open(source)
    except DataError as fault:
        where = ray_library().util.get_node_ip_address()
        raise DataError(
            f"a worker on {where} cannot open the rows ({str(fault).rstrip('.')}): the store must "
            "lie under the same path on every node, on a shared disk or as a copy."
        ) from None


class RayHosts:
    """Actors that run whole calls for the driver, such as chunks of chains (see `Hosts`).

    A call carries everything it needs, so that Ray can repeat it on the replacement of an actor
    that died.

    Attributes
    ----------
    accelerators
        Whether each actor has one of the cluster's accelerators.
    """

    def __init__(self, actors: list[Actor], accelerators: bool) -> None:
        self._actors, self.accelerators = actors, accelerators

    @classmethod
    def started(cls, kind: type, most: int) -> RayHosts:
        """Start up to `most` actors of class `kind`: one per accelerator, or core without any."""
        ray = ray_library()
        resources = ray.cluster_resources()
        accelerators = int(resources.get("GPU", 0))
        number = max(1, min(most, accelerators or int(resources.get("CPU", 1))))
        while most % number:  # every host gets the same number of chains
            number -= 1
        # Workers may have reserved all cores, but have little to do while chains run.
        remote = ray.remote(kind).options(
            num_cpus=0,
            num_gpus=int(accelerators > 0),
            max_restarts=RESTARTS,
            max_task_retries=-1,
            scheduling_strategy="SPREAD",
        )
        return cls([remote.remote() for _ in range(number)], accelerators > 0)

    def __len__(self) -> int:
        return len(self._actors)

    def share(self, settings: object, rows: object) -> list[Reference]:
        """Put what all hosts read into the cluster's memory, for `fetched` to get.

        Rows are pickled by Ray itself, since they may hold its handles.
        """
        ray = ray_library()
        return [ray.put(packed(settings)), ray.put(rows)]

    def calls(self, method: str, arguments: Sequence[tuple[object, ...]]) -> list[Answer]:
        """Call `method` of the first hosts, one tuple of arguments each; return their answers."""
        ray = ray_library()
        pairs = zip(self._actors, arguments, strict=False)
        references = [getattr(actor, method).remote(*own) for actor, own in pairs]
        _, missing = ray.wait(references, num_returns=len(references), timeout=SILENCE)
        if missing:
            raise silence_of(len(self._actors))
        try:
            return list(ray.get(references))
        except ray.exceptions.RayError as error:
            raise fault_of(error) from None

    def close(self) -> None:
        """Release the hosts."""
        ray = ray_library()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)


def fetched(shared: list[Reference]) -> tuple[Answer, Answer]:
    """Return the settings and rows that `RayHosts.share` put into the cluster's memory."""
    settings, rows = ray_library().get(list(shared))
    return unpacked(settings), rows
