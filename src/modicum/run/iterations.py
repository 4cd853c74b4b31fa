"""Iterations: their rows are read ahead, compiled functions take their steps, their records return.

The random numbers and rows of iterations depend on their keys alone, so a call of `ahead` prepares
them for many iterations at once, and a call of `advance` takes the steps. As functions of their own
they compile in less time than one function of both, and one is compiled while the other is traced.
Rows are on the device, or prefetched from memory or a store while chains run.

The number of iterations is an argument, not a shape, and each call gets the flags of its own
iterations. So warm-up, sampling and the last short chunk run the same compiled code, and so do runs
that differ only in length. The key of an iteration depends only on its number, so draws do not
depend on how a run is divided into calls.

Of every `thin` iterations the last is recorded, with the rows touched by all of them. A record is
overwritten until its window of iterations is complete, so it does not depend on calls either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import entry, set_entry
from modicum.kernels.protocols import Draw, Kernel, RowRequest, Settled, carried_fields
from modicum.models.model import Batch
from modicum.progress import logger
from modicum.random import iteration_keys, typed, words_at_start, words_of_iterations
from modicum.rows import Rows
from modicum.runtime import (
    FASTEST_COMPILE,
    GPU_GRAPHS,
    Array,
    Pytree,
    Threads,
    free_memory,
    in_blocks,
    jit,
    to_device,
)

MOST_PINNED = 2**32  # bytes of pinned memory that the draws of one run may use
RESERVED = 2**28  # bytes that are reserved at a time
COPIED = 2**20  # numbers that a thread copies at a time
# Statistics of one dtype as one array, keyed by their names: on the device, and on the host.
Packed: TypeAlias = dict[tuple[str, ...], jax.Array]
HostPacked: TypeAlias = dict[tuple[str, ...], np.ndarray]
Record: TypeAlias = dict[str, np.ndarray]


def packed(draw: Draw) -> Packed:
    """Stack the statistics of each dtype: one array to write per iteration, not a dozen.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from modicum.run.iterations import packed
    >>> draw = {"position": jnp.zeros(3), "lp": jnp.asarray(-1.0), "energy": jnp.asarray(2.0)}
    >>> {names: values.shape for names, values in packed(draw).items()}
    {('position',): (3,), ('energy', 'lp'): (2,)}
    """
    groups: dict[np.dtype, list[str]] = {}
    for name in sorted(draw):
        if name != "position":
            groups.setdefault(jnp.asarray(draw[name]).dtype, []).append(name)
    together = {tuple(names): jnp.stack([draw[n] for n in names]) for names in groups.values()}
    return {("position",): draw["position"], **together}


def unpacked(record: HostPacked) -> Record:
    """Undo `packed` for records with leading axes for chains and iterations."""
    apart = {"position": record["position",]}
    for names, values in record.items():
        if names != ("position",):
            apart |= {name: values[..., k] for k, name in enumerate(names)}
    return apart


def joined(parts: Sequence[Record]) -> Record:
    """Concatenate records of consecutive iterations."""
    return {k: end_to_end([p[k] for p in parts]) for k in parts[0]} if parts else {}


def end_to_end(parts: Sequence[np.ndarray], dtype: type[np.float64] | None = None) -> np.ndarray:
    """Concatenate arrays (chain, iteration, ...), which may be gigabytes, along iterations."""

    def of_chains(some: slice) -> np.ndarray:
        return np.concatenate([part[some] for part in parts], axis=1, dtype=dtype)

    return in_blocks(of_chains, len(parts[0]), COPIED // max(1, sum(p[0].size for p in parts)))


def side_by_side(of_groups: Sequence[Sequence[Record]]) -> list[Record]:
    """Concatenate the records of groups of chains, part by part, along the chains."""
    return [
        {name: np.concatenate([record[name] for record in records]) for name in records[0]}
        for records in zip(*of_groups, strict=True)
    ]


# From an accelerator ----------------------------------------------------------------------


@dataclass
class PinnedPages:
    """Pinned host memory, into which an accelerator copies its records.

    Plain copies from an accelerator go through small buffers, at a thirtieth of the speed of pinned
    memory; and copying draws from there to new pages would take several times as long as the
    iterations. So draws stay where they arrive until the run ends and all are joined. Pinned memory
    is scarce and slow to allocate: it is reserved while loops are compiled, and once a run has used
    its share, later draws are copied.
    """

    left: int = MOST_PINNED  # bytes

    def reserve(self, size: int) -> None:
        """Make JAX's allocator reserve `size` bytes, or as many as a run may use."""
        held = []
        try:
            for _ in range(-(-min(size, self.left) // RESERVED)):  # pieces are made on the device
                piece = self.send({("piece",): jnp.zeros(RESERVED, jnp.uint8)})
                held.append(jax.block_until_ready(piece))
        except RuntimeError as error:  # no room: memory is then allocated as draws arrive
            logger.info("pinned memory was not reserved: %s", error)

    def send(self, record: Packed) -> Packed:
        """Start to copy a record asynchronously, while iterations continue."""
        device = next(iter(next(iter(record.values())).devices()))
        pinned = "pinned_host" in {memory.kind for memory in device.addressable_memories()}
        kind = "pinned_host" if pinned else None
        return jax.device_put(record, jax.sharding.SingleDeviceSharding(device, memory_kind=kind))

    def arrived(self, record: Packed, count: int) -> HostPacked:
        """Wait for a record that was sent, and return its first `count` slots."""
        slots, size = record["position",].shape[1], sum(v.nbytes for v in record.values())
        stay = size <= self.left and 2 * count > slots  # a few slots would block all the memory
        self.left -= size if stay else 0
        views = {names: np.asarray(values)[:, :count] for names, values in record.items()}
        return views if stay else {names: view.copy() for names, view in views.items()}


R = TypeVar("R")
ChainKernel: TypeAlias = Kernel[Any, Any]
Span: TypeAlias = tuple[Array, Array]  # the first iteration, and the number of iterations
LENGTH = 256  # iterations per call, if memory allows


class CallLength(NamedTuple):
    """Sizes of a compiled call: a static argument."""

    length: int  # most iterations
    thin: int = 1


class Progress(NamedTuple):
    """State of a chain in its run."""

    state: Pytree  # state of the kernel
    touched: jax.Array  # rows touched since the last recorded iteration


class Ahead(NamedTuple):
    """What is known about the iterations of a call ahead of their steps."""

    chances: Pytree  # their random numbers
    prepared: Pytree  # the rows that they read, prepared


def _read(rows: Batch, request: RowRequest) -> Batch:
    """Read the requested rows, and add the request's other arrays."""
    fields = {name: field[request.row_ids] for name, field in rows.items()}
    return fields | carried_fields(request)


def _strongly_typed(results: Pytree) -> Pytree:
    """Give Python numbers a type, or what takes the results would be compiled a second time."""

    def typed_leaf(leaf: Pytree) -> jax.Array:
        is_weak = getattr(jax.typeof(leaf), "weak_type", False)
        return jnp.asarray(leaf, jnp.result_type(leaf)) if is_weak else leaf

    return jax.tree.map(typed_leaf, results)


# The chains of a group are stacked along a leading axis.


def _of_chains(function: Callable[..., R], *arrays: Pytree) -> R:
    """Apply a function of one chain to the chains of a group.

    A chain alone runs by itself: conditions of stacked chains take both branches.
    """
    if jax.tree.leaves(arrays)[0].shape[0] > 1:
        return jax.vmap(function)(*arrays)
    of_the_only_one = function(*jax.tree.map(lambda array: array[0], arrays))
    return jax.tree.map(lambda result: result[None], of_the_only_one)


@jit(static=0, options=FASTEST_COMPILE)
def begin(
    kernel: ChainKernel, context: Pytree, rows: Batch | None, batch: Batch | None, words: Array
) -> Progress:
    """Start the chains with these keys."""

    def of_chain(batch: Batch | None, words: Array) -> Progress:
        rows_key, init_key = typed(words)
        request = kernel.initial_row_request(rows_key, context)
        if request is not None and batch is None:
            assert rows is not None
            batch = _read(rows, request)
        prepared = None
        if batch is not None:
            prepared = kernel.prepare(jax.lax.optimization_barrier(batch), context)
        state = kernel.init(init_key, prepared, context)
        return Progress(_strongly_typed(state), jnp.zeros((), int))

    return _of_chains(of_chain, batch, words)


@jit(static=0)
def ahead(
    kernel: ChainKernel,
    context: Pytree,
    rows: Batch | None,
    batches: Batch | None,
    words: Array,
) -> Ahead:
    """Prepare the iterations with these keys, whose words are (chains, iterations, 2 keys, 2).

    Their rows are read, unless `batches` has them, and prepared all at once.
    """

    def of_chain(fresh: Batch | None, words: jax.Array) -> Ahead:
        keys = typed(words)
        chances = jax.vmap(lambda key: kernel.chances(key, context))(keys[:, 1])
        if fresh is None:
            requests = jax.vmap(lambda key: kernel.row_request(key, context))(keys[:, 0])
            if requests is None:
                return Ahead(*_strongly_typed((chances, None)))
            assert rows is not None
            fresh = _read(rows, requests)
        # The barrier keeps the compiler from fusing this with the reading of rows: draws must not
        # depend, not even in the last bit, on where the rows are stored.
        fresh = jax.lax.optimization_barrier(fresh)
        prepared = jax.vmap(lambda batch: kernel.prepare(batch, context))(fresh)
        return Ahead(*_strongly_typed((chances, prepared)))

    return _of_chains(of_chain, batches, words)


@jit(static=(0, 1), on_gpu=GPU_GRAPHS)
def advance(
    kernel: ChainKernel,
    extent: CallLength,
    context: Pytree,
    flags: Pytree,
    span: Span,
    ready: Ahead,
    progress: Progress,
) -> tuple[Progress, Packed]:
    """Take the steps of iterations that are ready; return the states and the records."""
    first, count = span
    length, thin = extent

    def of_chain(ready: Ahead, progress: Progress) -> tuple[Progress, Packed]:
        # called in two places, and traced once
        @jax.jit
        def step(i: jax.Array | int, state: Pytree) -> tuple[Pytree, Draw]:
            chances, batch = entry(ready, i)
            return kernel.step(chances, state, entry(flags, i), batch, context)

        def body(i: jax.Array, carry: Pytree) -> Pytree:
            (state, touched), record = carry
            state, draw = step(i, state)
            if thin > 1 and "rows_touched" in draw:
                touched = jnp.where((first + i) % thin == 0, 0, touched) + draw["rows_touched"]
                draw = draw | {"rows_touched": touched}
            slot = (first + i) // thin - first // thin if thin > 1 else i
            return Progress(state, touched), set_entry(record, slot, packed(draw))

        slots = length if thin == 1 else length // thin + 2
        shapes = jax.eval_shape(lambda state: packed(step(0, state)[1]), progress.state)
        record = jax.tree.map(lambda s: jnp.zeros((slots, *s.shape), s.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (progress, record))

    return _of_chains(of_chain, ready, progress)


@jit(static=2)
def words_on_device(chain_keys: Array, first: Array, length: int) -> jax.Array:
    """Return what `words_of_iterations` does: an accelerator would wait for NumPy."""

    def of_iteration(chain_key: Array, number: jax.Array) -> jax.Array:
        return jnp.stack([*map(jax.random.key_data, iteration_keys(chain_key, number))])

    numbers = jnp.asarray(first) + jnp.arange(length)
    of_chain = jax.vmap(of_iteration, in_axes=(None, 0))
    return jax.vmap(of_chain, in_axes=(0, None))(jnp.asarray(chain_keys), numbers)


@jit(static=0)
def advance_settled(
    settled: Settled,
    context: Pytree,
    rows: Batch | jax.Array | None,
    count: Array,
    batches: Batch | None,
    progress: Progress,
    words: Array,
) -> tuple[Progress, Packed]:
    """Like `ahead` and `advance`, after warm-up: `settled` runs `count` iterations at once.

    `rows` may be the table of all rows that `settled` made.
    """
    keys, kernel = typed(words), settled.plain

    def prepare(batches: Batch) -> Pytree:
        return jax.vmap(jax.vmap(lambda batch: kernel.prepare(batch, context)))(batches)

    if batches is not None:
        fresh = settled.of_prepared(prepare(batches))
    else:
        requests = jax.vmap(jax.vmap(lambda key: kernel.row_request(key, context)))(keys[..., 0])
        assert requests is not None
        assert rows is not None
        if isinstance(rows, jax.Array):
            fresh = settled.of_table(rows, requests)
        else:
            fresh = settled.of_prepared(prepare(_read(rows, requests)))
    state, draws = settled.advance(keys[..., 1], progress.state, fresh, jnp.asarray(count), context)
    return progress._replace(state=state), jax.vmap(jax.vmap(packed))(draws)


@jit(static=0)
def table_of(settled: Settled, context: Pytree, rows: Batch) -> jax.Array:
    """Return the table of all rows, in the form `settled` takes."""
    return settled.table(rows, context)


@jit(static=0)
def row_requests(kernel: ChainKernel, context: Pytree, keys: Array) -> RowRequest | None:
    """Return the rows that iterations read, with leading axes for chains and iterations."""
    return jax.vmap(jax.vmap(lambda words: kernel.row_request(typed(words)[0], context)))(keys)


@jit(static=0)
def initial_row_requests(kernel: ChainKernel, context: Pytree, keys: Array) -> RowRequest | None:
    """Return the rows that chains read before their first iteration, with an axis for chains."""
    return jax.vmap(lambda words: kernel.initial_row_request(typed(words)[0], context))(keys)


SMALL_STORE = 2**28  # bytes up to which the rows of a store are read into memory
Batches: TypeAlias = dict[str, np.ndarray]
Placed: TypeAlias = Future[dict[str, jax.Array] | Rows]


def place_rows(rows: Rows, limit: int | None = None) -> Placed:
    """Copy rows to the device by a background thread if they fit in `limit` bytes.

    Most of the time of a copy goes into touching new memory, which is the work of one core. Larger
    rows are returned as they are, and fetched as needed. By default the limit is half of the free
    memory for rows in memory, and 256 MiB for a store.
    """
    if limit is None:
        limit = SMALL_STORE if rows.is_store else free_memory() // 2
    fits, thread = rows.nbytes <= limit, Threads(1)
    placed = thread.submit(lambda: to_device(dict(rows.slice(0, len(rows)))) if fits else rows)
    thread.shutdown(wait=False)
    return placed


@dataclass
class Fetcher:
    """Reads the rows of the next iterations while the chains run the current ones.

    Batches have a leading axis for chains, and a second one for iterations.

    Parameters
    ----------
    kernel, context, keys
        The kernel that requests rows, its context, and one key per chain.
    rows
        The rows to read from.
    capacity
        Most iterations at a time, for which requests are computed.
    start_keys
        The keys with which chains begin.
    """

    kernel: ChainKernel
    context: Pytree
    keys: np.ndarray
    rows: Rows
    capacity: int
    start_keys: np.ndarray
    _ahead: tuple[int, int, Future[Batches]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._reader = Threads(1)

    def at_start(self) -> Batches | None:
        """Read the rows for `init`, without an axis for iterations; None if it needs none."""
        keys = words_at_start(self.start_keys)
        requests = initial_row_requests(self.kernel, self.context, keys)
        return None if requests is None else self._read(requests)

    def of(self, first: int, count: int) -> Batches:
        """Return the rows of iterations `first` to `first + count`, prefetched or read now."""
        if self._ahead is not None and self._ahead[:2] == (first, count):
            return self._ahead[2].result()
        return self._fetch(first, count)

    def ask(self, first: int, count: int) -> None:
        """Start to prefetch the rows of these iterations."""
        self._ahead = (first, count, self._reader.submit(self._fetch, first, count))

    def close(self) -> None:
        """Shut the thread down."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, first: int, count: int) -> Batches:
        keys = words_of_iterations(self.keys, np.arange(first, first + self.capacity))
        requests = row_requests(self.kernel, self.context, keys)
        return self._read(jax.tree.map(lambda part: np.asarray(part)[:, :count], requests))

    def _read(self, requests: RowRequest | None) -> Batches:
        """Read the rows of all chains at once, and add the requests' other arrays."""
        on_host = jax.tree.map(np.asarray, requests)
        return self.rows.take(on_host.row_ids) | carried_fields(on_host)


def lengthened(values: np.ndarray, size: int, axis: int = 0) -> np.ndarray:
    """Pad an array with zeros along an axis up to `size`, if it is shorter."""
    if values.shape[axis] == size:
        return values
    missing = [(0, size - length if k == axis else 0) for k, length in enumerate(values.shape)]
    return np.pad(values, missing)
