"""The compiled inner loop: advance chains by up to `capacity` iterations in one call.

The number of iterations is an argument, not a shape, and each call gets the flags of its own
iterations. So warm-up, sampling and the last short chunk run the same compiled code, and so do runs
that differ only in length. The key of an iteration depends only on its number, so draws do not
depend on how a run is divided into chunks.

Of every `thin` iterations the last is recorded, with the rows touched by all of them. A record is
overwritten until its window of iterations is complete, so it does not depend on chunks either.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32

from modicum.kernels.base import (
    Draw,
    Kernel,
    RowRequest,
    SelectiveKernel,
    Settled,
    carried_fields,
)
from modicum.kernels.slices import entry, set_entry, take
from modicum.models.base import Batch
from modicum.random import typed
from modicum.run.records import Packed, packed
from modicum.run.selection import Selection, select
from modicum.runtime import FASTEST_COMPILE, GPU_GRAPHS, Array, Pytree, jit

__all__ = [
    "BLOCK",
    "Extent",
    "Progress",
    "advance",
    "advance_settled",
    "advance_together",
    "begin",
    "begin_together",
    "first_keys",
    "initial_row_request",
    "initial_row_requests",
    "row_requests",
    "row_requests_together",
    "table_of",
]

ChainKernel: TypeAlias = Kernel[Any, Any]
Span: TypeAlias = tuple[Array, Array]  # the first iteration, and the number of iterations
BLOCK = 64  # iterations whose rows are read and prepared together, if memory allows


class Extent(NamedTuple):
    """Sizes of a compiled call: a static argument."""

    capacity: int  # maximum number of iterations: a multiple of `block`, or less than `block`
    block: int = BLOCK  # iterations whose rows are prepared together
    thin: int = 1


class Progress(NamedTuple):
    """State of a chain in its run."""

    state: Pytree  # state of the kernel
    touched: jax.Array  # rows touched since the last recorded iteration


def _keys(chain_key: Array, iteration: Array | int) -> tuple[jax.Array, jax.Array]:
    """Return two keys for an iteration: for choosing its rows, and for its step.

    The generator turns each of the blocks (iteration, 0) and (iteration, 1) into a key. Folding in
    and splitting would call it twice, and each call adds a few tenths of a second of compile time.
    """
    number = jnp.asarray(iteration).astype(jnp.uint32)
    counts = jnp.stack([number, number, jnp.uint32(0), jnp.uint32(1)])
    rows_key, step_key = threefry_2x32(chain_key, counts).reshape(2, 2).T
    return typed(rows_key), typed(step_key)


def _start_keys(chain_key: Array) -> tuple[jax.Array, jax.Array]:
    return _keys(chain_key, 2**32 - 1)


@jit(options=FASTEST_COMPILE)
def first_keys(chain_keys: Array) -> jax.Array:
    """Return the words of the keys that a kernel's `init` receives, (chains, 2)."""
    return jax.vmap(lambda key: jax.random.key_data(_start_keys(key)[1]))(jnp.asarray(chain_keys))


def _read(rows: Batch, request: RowRequest) -> Batch:
    """Read the requested rows, and add the request's other arrays."""
    fields = {name: field[request.row_ids] for name, field in rows.items()}
    return fields | carried_fields(request)


def _begin(
    kernel: ChainKernel,
    context: Pytree,
    rows: Batch | None,
    batch: Batch | None,
    chain_key: Array,
) -> Progress:
    rows_key, init_key = _start_keys(chain_key)
    request = kernel.initial_row_request(rows_key, context)
    if request is not None and batch is None:
        assert rows is not None
        batch = _read(rows, request)
    prepared = None
    if batch is not None:
        prepared = kernel.prepare(jax.lax.optimization_barrier(batch), context)
    state = kernel.init(init_key, prepared, context)
    # Python numbers in a state are weakly typed, so the loop would be compiled a second time.
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)
    return Progress(state, jnp.zeros((), int))


def _advance(
    kernel: ChainKernel,
    extent: Extent,
    context: Pytree,
    rows: Batch | None,
    flags: Pytree,
    span: Span,
    batches: Batch | None,
    progress: Progress,
    chain_key: Array,
) -> tuple[Progress, Packed]:
    """Run the iterations of `span`; return the chain's progress and what they recorded."""
    first, count = span
    capacity, block, thin = extent
    block = min(block, capacity)

    # Functions called in two places are wrapped in `jax.jit`, so that they are traced once.
    @jax.jit
    def ahead(b: jax.Array | int) -> Ahead:
        # the keys of a whole block at once, since small operations are costly
        numbers = first + b * block + jnp.arange(block)
        rows_keys, step_keys = jax.vmap(partial(_keys, chain_key))(numbers)
        chances = jax.vmap(lambda key: kernel.chances(key, context))(step_keys)
        selection = _selection(kernel, chances, block)
        read = batches
        if batches is not None:
            read = jax.tree.map(lambda field: take(field, b * block, block), batches)
        return Ahead(
            chances, selection, _prepared(kernel, context, rows, read, rows_keys, selection)
        )

    @jax.jit
    def step(
        i: jax.Array | int, k: jax.Array | int, state: Pytree, ready: Ahead
    ) -> tuple[Pytree, Draw]:
        chances, batch = ready.of(k)
        return kernel.step(chances, state, entry(flags, i), batch, context)

    def body(i: jax.Array, k: jax.Array, ready: Ahead, carry: Pytree) -> Pytree:
        (state, touched), record = carry
        state, draw = step(i, k, state, ready)
        if thin > 1 and "rows_touched" in draw:
            touched = jnp.where((first + i) % thin == 0, 0, touched) + draw["rows_touched"]
            draw = draw | {"rows_touched": touched}
        slot = (first + i) // thin - first // thin if thin > 1 else i
        return Progress(state, touched), set_entry(record, slot, packed(draw))

    def through_block(b: jax.Array, carry: Pytree) -> Pytree:
        ready = ahead(b)

        def inside(k: jax.Array, carry: Pytree) -> Pytree:
            return body(b * block + k, k, ready, carry)

        return jax.lax.fori_loop(0, jnp.minimum(block, count - b * block), inside, carry)

    slots = capacity if thin == 1 else capacity // thin + 2
    record = _empty(lambda state: packed(step(0, 0, state, ahead(0))[1]), progress.state, slots)
    blocks = (count + block - 1) // block
    return jax.lax.fori_loop(0, blocks, through_block, (progress, record))


def _empty(record_of: Callable[[Pytree], Packed], state: Pytree, slots: int) -> Packed:
    """Return zeros for `slots` of what `record_of` returns for a state, without computing it."""
    shapes = jax.eval_shape(record_of, state)
    return jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape), leaf.dtype), shapes)


class Ahead(NamedTuple):
    """What is known about a block of iterations ahead of their steps."""

    chances: Pytree  # their random numbers
    selection: Selection | None  # the rows that they read; None: all that they request
    prepared: Pytree  # these rows, prepared

    def of(self, k: jax.Array | int) -> tuple[Pytree, Pytree]:
        """Return random numbers and rows of the k-th iteration."""
        if self.selection is None:
            return entry((self.chances, self.prepared), k)
        return entry(self.chances, k), self.selection.batch(self.prepared, k)


def _selection(kernel: ChainKernel, chances: Pytree, block: int) -> Selection | None:
    """Select the rows that a block of iterations reads; None if it reads all it requests."""
    if not isinstance(kernel, SelectiveKernel):
        return None
    read = jax.vmap(kernel.rows_read)(chances)
    return None if read is None else select(read, kernel.most_rows(block))


def _prepared(
    kernel: ChainKernel,
    context: Pytree,
    rows: Batch | None,
    batches: Batch | None,
    rows_keys: jax.Array,
    selection: Selection | None,
) -> Pytree:
    """Read (unless `batches` has them) and prepare the rows of a block's iterations at once."""
    fresh = batches
    if fresh is None:
        requests = jax.vmap(lambda key: kernel.row_request(key, context))(rows_keys)
        if requests is None:
            return None
        assert rows is not None
        fresh = _read(rows, requests if selection is None else selection.of(requests))
    elif selection is not None:
        fresh = selection.of(fresh)
    # The barrier keeps the compiler from fusing this with the reading of rows: draws must not
    # depend, not even in the last bit, on where the rows are stored.
    fresh = jax.lax.optimization_barrier(fresh)
    if selection is not None:
        return kernel.prepare(fresh, context)
    return jax.vmap(lambda batch: kernel.prepare(batch, context))(fresh)


def _row_requests(
    kernel: ChainKernel, context: Pytree, chain_key: Array, iterations: Array
) -> RowRequest | None:
    """Return the rows that iterations read, with a leading axis for iterations."""
    return jax.vmap(lambda i: kernel.row_request(_keys(chain_key, i)[0], context))(iterations)


def _initial_row_request(
    kernel: ChainKernel, context: Pytree, chain_key: Array
) -> RowRequest | None:
    return kernel.initial_row_request(_start_keys(chain_key)[0], context)


# One chain, which runs in its own thread ...
begin = jit(static=0, options=FASTEST_COMPILE)(_begin)
advance = jit(static=(0, 1))(_advance)
row_requests = jit(static=0)(_row_requests)
initial_row_request = jit(static=0)(_initial_row_request)


# ... and many chains as a leading axis.
@jit(static=0)
def begin_together(
    kernel: ChainKernel,
    context: Pytree,
    rows: Batch | None,
    batch: Batch | None,
    chain_keys: Array,
) -> Progress:
    """`begin` for chains stacked along a leading axis."""
    return jax.vmap(partial(_begin, kernel, context, rows))(batch, chain_keys)


@jit(static=(0, 1), on_gpu=GPU_GRAPHS)
def advance_together(
    kernel: ChainKernel,
    extent: Extent,
    context: Pytree,
    rows: Batch | None,
    flags: Pytree,
    span: Span,
    batches: Batch | None,
    progress: Progress,
    chain_keys: Array,
) -> tuple[Progress, Packed]:
    """`advance` for chains stacked along a leading axis."""
    advance_chain = partial(_advance, kernel, extent, context, rows, flags, span)
    return jax.vmap(advance_chain)(batches, progress, chain_keys)


@jit(static=(0, 1))
def advance_settled(
    settled: Settled,
    length: int,
    context: Pytree,
    rows: Batch | jax.Array | None,
    span: Span,
    batches: Batch | None,
    progress: Progress,
    chain_keys: Array,
) -> tuple[Progress, Packed]:
    """Like `advance_together`, after warm-up: `settled` runs up to `length` iterations at once.

    `rows` may be the table of all rows that `settled` made.
    """
    first, count = span
    numbers = jnp.asarray(first) + jnp.arange(length)
    of_chain = jax.vmap(_keys, in_axes=(None, 0))
    rows_keys, step_keys = jax.vmap(of_chain, in_axes=(0, None))(chain_keys, numbers)
    fresh = _fresh(settled, context, rows, batches, rows_keys)
    state, draws = settled.advance(step_keys, progress.state, fresh, jnp.asarray(count), context)
    return progress._replace(state=state), jax.vmap(jax.vmap(packed))(draws)


def _fresh(
    settled: Settled,
    context: Pytree,
    rows: Batch | jax.Array | None,
    batches: Batch | None,
    rows_keys: jax.Array,
) -> jax.Array:
    """Read the rows that all iterations of all chains request, in the form `settled` takes."""
    kernel = settled.plain
    if batches is None:
        requests = jax.vmap(jax.vmap(lambda key: kernel.row_request(key, context)))(rows_keys)
        assert requests is not None
        assert rows is not None
        if isinstance(rows, jax.Array):
            return settled.of_table(rows, requests)
        batches = _read(rows, requests)
    prepared = jax.vmap(jax.vmap(lambda batch: kernel.prepare(batch, context)))(batches)
    return settled.of_prepared(prepared)


@jit(static=0)
def table_of(settled: Settled, context: Pytree, rows: Batch) -> jax.Array:
    """Return the table of all rows, in the form `settled` takes."""
    return settled.table(rows, context)


@jit(static=0)
def row_requests_together(
    kernel: ChainKernel, context: Pytree, chain_keys: Array, iterations: Array
) -> RowRequest | None:
    """`row_requests` for chains stacked along a leading axis."""
    return jax.vmap(lambda key: _row_requests(kernel, context, key, iterations))(chain_keys)


@jit(static=0)
def initial_row_requests(
    kernel: ChainKernel, context: Pytree, chain_keys: Array
) -> RowRequest | None:
    """`initial_row_request` for chains stacked along a leading axis."""
    return jax.vmap(lambda key: _initial_row_request(kernel, context, key))(chain_keys)
