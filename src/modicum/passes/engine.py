"""A pass over all rows: chunks summed by an engine, and blocks within a chunk.

`Engine` is the interface: given a function of a chunk of rows, it returns the float64 sum of the
function over all chunks. `LocalEngine` uses threads on this machine; `RayEngine` uses the workers
of a cluster (`passes.ray_engine`). `EngineChoice` is the argument `engine=`: settings from which
each run makes its engine. Chunks depend only on the rows, and their results are added in order, so
sums are the same to the last bit wherever they are computed.

On a CPU a chunk is evaluated in blocks, whose intermediate results stay in a core's cache: a pass
is then a quarter (gradients) to a third (Hessians) faster. An accelerator evaluates the chunk as a
whole.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from math import ceil
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from modicum.arguments import Count, check_settings
from modicum.errors import SettingError
from modicum.files import number_per_row
from modicum.models import Target
from modicum.progress import PATIENCE, Progressbar, phase
from modicum.rows import Rows
from modicum.rows.weight_classes import KeptNumbers
from modicum.runtime import (
    SCATTERS,
    Array,
    Pytree,
    in_double_precision,
    in_threads,
    jit,
    on_accelerator,
    on_device,
)

P = ParamSpec("P")
B = TypeVar("B")  # arrays with an entry per row, usually a batch

BLOCK = 1024  # rows of a block


def sum_in_blocks(function: Callable[[B, Array], R], batch: B, present: Array) -> R:
    """Sum `function(batch, present)` over blocks of rows; traceable, but not differentiable."""
    blocks = _cut(batch, present)
    if blocks is None:
        return function(batch, present)

    def add(total: R, block: tuple[B, Array]) -> tuple[R, None]:
        return jax.tree.map(jnp.add, total, function(*block)), None

    function = jax.jit(function)  # traced once, for both its shapes and the sum
    shapes = jax.eval_shape(function, *jax.tree.map(lambda field: field[0], blocks))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(add, zero, blocks)[0]


def map_in_blocks(function: Callable[[B], jax.Array], batch: B, present: Array) -> jax.Array:
    """Return one number per row, from `function(batch)` on each block."""
    blocks = _cut(batch, present)
    return function(batch) if blocks is None else jnp.concatenate(jax.lax.map(function, blocks[0]))


def _cut(batch: B, present: Array) -> tuple[B, Array] | None:
    """Add a leading axis for blocks to batch and present; None if they are not split."""
    rows = present.shape[0]
    if isinstance(batch, Mapping) and "group_of_row" in batch:
        return None  # `present` has an entry per group then, not per row
    if on_accelerator() or rows <= BLOCK or rows % BLOCK:
        return None
    return jax.tree.map(
        lambda field: jnp.reshape(field, (rows // BLOCK, BLOCK, *field.shape[1:])),
        (batch, present),
    )


def compiled_pass(
    function: Callable[Concatenate[Target, P], R],
) -> Callable[Concatenate[Target, P], R]:
    """Compile a function of a target and a chunk, with options for scatters if rows have codes."""
    plain, scattering = jit(static=0)(function), jit(static=0, options=SCATTERS)(function)

    @wraps(function)
    def compiled(target: Target, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return (scattering if target.scatters else plain)(target, *args, **kwargs)

    return compiled


NUMPY_THREADS = 4  # more wait for Python's lock: sixteen take half as long again
CHUNK_BYTES = 8 * 2**20  # size of a chunk in float64, so that it stays in the caches
A = TypeVar("A")  # arguments of a function of chunks
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])
ChunkSum: TypeAlias = Callable[[A, dict[str, np.ndarray], np.ndarray], Pytree]
"""A function of arguments, a chunk of rows and a mask of real rows; returns a pytree of arrays."""


class Hosts(Protocol):
    """Remote actors whose calls are repeated if an actor dies (`passes.worker`)."""

    accelerators: bool  # whether each has an accelerator

    def __len__(self) -> int: ...

    def share(self, settings: object, rows: object) -> list[object]:
        """Send objects that all hosts read; return references to them."""

    def calls(
        self, method: str, arguments: Sequence[tuple[object, ...]]
    ) -> list[Any]:  # what the method returns
        """Call the first hosts, one for each tuple of arguments; return their results."""

    def close(self) -> None:
        """Release the hosts."""


class Engine(ABC):
    """Sums functions of chunks over all rows.

    Results of chunks are added in their order, so sums are the same to the last bit however the
    work is distributed, and only a few of them are in memory at a time.
    """

    @abstractmethod
    def parts(
        self, function: ChunkSum[A], arguments: A, rows: Rows, description: str, dtype: DTypeLike
    ) -> Iterator[Pytree]:
        """Yield `function(arguments, batch, present)` of all chunks in order, as NumPy arrays.

        Every batch has the same shape; `present` is 1 for real rows and 0 for the padding of the
        last chunk.
        """

    def map_reduce(
        self, chunk_sum: ChunkSum[A], arguments: A, rows: Rows, description: str = "pass"
    ) -> Pytree:
        """Return the float64 sum of `chunk_sum(arguments, batch, present)` over all chunks."""
        total: Pytree = None
        for part in self.parts(chunk_sum, arguments, rows, description, "float64"):
            total = part if total is None else jax.tree.map(np.add, total, part)
        return total

    def map_rows(
        self, chunk_map: ChunkSum[A], arguments: A, rows: Rows, description: str = "pass"
    ) -> np.ndarray:
        """Return `chunk_map(arguments, batch, present)` of all chunks, concatenated, in float32.

        `chunk_map` returns one number, or an array of them, per row.
        """
        out = np.empty(0, np.float32)
        parts = self.parts(chunk_map, arguments, rows, description, "float32")
        for (start, stop), part in zip(chunk_bounds(rows), parts, strict=True):
            if not len(out):
                out = number_per_row((len(rows), *part.shape[1:]), np.float32)
            out[start:stop] = part[: stop - start]  # without the padding
        return out

    def keeps(self, rows: Rows) -> bool:
        """Whether `keep_rows` leaves numbers of these rows where the rows are."""
        return False

    def keep_rows(
        self, chunk_map: ChunkSum[A], arguments: A, rows: Rows, description: str = "pass"
    ) -> np.ndarray | KeptNumbers:
        """Compute the numbers of `map_rows`, one per row, and keep them where the rows are.

        Numbers on this machine are returned as an array.
        """
        return self.map_rows(chunk_map, arguments, rows, description)

    def feed(self, rows: Rows) -> Rows:
        """Return the same rows, for chains that prefetch some of them."""
        return rows

    def hosts(self, kind: type, most: int) -> Hosts | None:
        """Return up to `most` actors of class `kind` to run chains; None: run them locally."""
        return None


class LocalEngine(Engine):
    """Sum chunks on a few threads of this machine, which alternate between its accelerators."""

    def __init__(self, threads: int | None = None, progressbar: Progressbar = True) -> None:
        self.threads = threads or os.cpu_count() or 1
        self.progressbar = progressbar

    def parts(
        self, function: ChunkSum[A], arguments: A, rows: Rows, description: str, dtype: DTypeLike
    ) -> Iterator[Pytree]:
        """Yield the results of all chunks in order."""
        bounds = chunk_bounds(rows)
        unit = f"{rows.unit}s"
        with phase(description, len(rows), self.progressbar, unit, PATIENCE) as progress:
            numbers = range(len(bounds))
            parts = chunk_results(function, arguments, rows, numbers, dtype, self.threads)
            for (start, stop), part in zip(bounds, parts, strict=True):
                yield part
                progress.advance(stop - start)


def chunk_results(
    function: ChunkSum[A],
    arguments: A,
    rows: Rows,
    numbers: Iterable[int],
    dtype: DTypeLike,
    threads: int,
) -> Iterator[Pytree]:
    """Yield the results of the chunks with these numbers in order, computed by a few threads."""
    size, compute = chunk_rows(rows), in_double_precision(_one_chunk)
    if _is_numpy_code(function):
        threads = min(threads, NUMPY_THREADS)
    yield from in_threads(
        lambda i: compute(function, arguments, rows, i, size, dtype), numbers, threads
    )


def chunk_rows(rows: Rows) -> int:
    """Return the number of rows in a chunk, from the number and fields of the rows alone.

    Chunks are of nearly equal size; on a CPU, large chunks consist of whole blocks.
    """
    if rows.chunk_units is not None:
        return rows.chunk_units
    # numbers other than codes become float64
    codes = () if rows.coding is None else rows.coding.fields
    size = sum(
        int(np.prod(shape)) * (rows.dtypes[name].itemsize if name in codes else 8)
        for name, shape in rows.fields.items()
    )
    # An accelerator needs large chunks; on a CPU they should fit its caches.
    on_cpu = not on_accelerator()
    most, room = (65_536, CHUNK_BYTES) if on_cpu else (2**20, 2**29)
    if on_cpu and rows.coding is not None:
        # Each chunk has a sum for every pair of levels, so it needs enough rows to be worth it.
        pairs = rows.coding.size**2 // 8
        most = max(most // 2, min(64 * most, pairs))
        room = max(room, min(16 * room, 8 * pairs))
    # A chunk has a sum for every pair of columns: the rows of wide tables are 4 per column.
    largest = min(most, max(256, room // max(8, size), size // 2))
    even = ceil(len(rows) / ceil(len(rows) / largest))
    return BLOCK * ceil(even / BLOCK) if on_cpu and even > BLOCK else even


def chunk_bounds(rows: Rows) -> list[tuple[int, int]]:
    """Return the first row of each chunk and the one after its last; groups if rows are grouped."""
    return rows.bounds(chunk_rows(rows))


def of_numpy(function: F) -> F:
    """Mark a function of chunks as NumPy code, which accepts a last chunk of any length.

    It is not warned of numbers that are not finite, as compiled code is not: callers check them.
    """
    quiet = np.errstate(all="ignore")(function)
    quiet.of_numpy = True  # type: ignore[attr-defined]
    return quiet


def _is_numpy_code(function: ChunkSum[A]) -> bool:
    return hasattr(function.func if isinstance(function, partial) else function, "of_numpy")


def _one_chunk(
    function: ChunkSum[A], arguments: A, rows: Rows, index: int, size: int, dtype: DTypeLike
) -> Pytree:
    batch, present = rows.chunk(index, size, pad=not _is_numpy_code(function))
    with on_device(index):
        result = function(arguments, batch, present)
        return jax.tree.map(lambda a: np.asarray(a, dtype=dtype), result)


class EngineChoice(ABC):
    """Settings of an engine; the same object may serve several runs."""

    @abstractmethod
    def connect(self, progressbar: Progressbar) -> Engine:
        """Return the engine that makes the passes of a run."""


def engine_for(engine: object, progressbar: Progressbar) -> Engine:
    """Return the engine that `engine=` asks for; None means threads of this machine."""
    if engine is None:
        return LocalEngine(progressbar=progressbar)
    if isinstance(engine, type) and issubclass(engine, EngineChoice):
        engine = engine()
    if not isinstance(engine, EngineChoice):
        raise SettingError(
            "engine must be mo.engines.Local() or mo.engines.Ray(address=...), not "
            f"{type(engine).__name__}."
        )
    return engine.connect(progressbar)


@dataclass(frozen=True)
class Local(EngineChoice):
    """Passes by threads of this machine: the default.

    Parameters
    ----------
    threads
        Number of threads; None: one per core. Sums do not depend on it.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.engines.Local(threads=2)
    Local(threads=2)
    """

    threads: Count | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    def connect(self, progressbar: Progressbar) -> LocalEngine:
        """Return the engine of a run."""
        return LocalEngine(self.threads, progressbar)
