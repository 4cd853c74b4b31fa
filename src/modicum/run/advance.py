"""What is compiled: iterations are prepared, and then taken, up to `length` per call.

The random numbers and rows of iterations depend on their keys alone, so a call of `ahead` prepares
them for many iterations at once, and a call of `advance` takes the steps. As functions of their own
they compile in less time than one function of both, and one is compiled while the other is traced.

The number of iterations is an argument, not a shape, and each call gets the flags of its own
iterations. So warm-up, sampling and the last short chunk run the same compiled code, and so do runs
that differ only in length. The key of an iteration depends only on its number, so draws do not
depend on how a run is divided into calls.

Of every `thin` iterations the last is recorded, with the rows touched by all of them. A record is
overwritten until its window of iterations is complete, so it does not depend on calls either.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from modicum.kernels.base import (
    Draw,
    Kernel,
    RowRequest,
    SelectiveKernel,
    Settled,
    carried_fields,
)
from modicum.kernels.slices import entry, set_entry
from modicum.models.base import Batch
from modicum.random import iteration_keys, typed
from modicum.run.records import Packed, packed
from modicum.run.selection import Selection, select
from modicum.runtime import FASTEST_COMPILE, GPU_GRAPHS, Array, Pytree, jit

ChainKernel: TypeAlias = Kernel[Any, Any]
Span: TypeAlias = tuple[Array, Array]  # the first iteration, and the number of iterations
LENGTH = 256  # iterations per call, if memory allows


class Extent(NamedTuple):
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
    selection: Selection | None  # the rows that they read; None: all that they request
    prepared: Pytree  # these rows, prepared

    def of(self, k: jax.Array | int) -> tuple[Pytree, Pytree]:
        """Return random numbers and rows of the k-th iteration."""
        if self.selection is None:
            return entry((self.chances, self.prepared), k)
        return entry(self.chances, k), self.selection.batch(self.prepared, k)


def _read(rows: Batch, request: RowRequest) -> Batch:
    """Read the requested rows, and add the request's other arrays."""
    fields = {name: field[request.row_ids] for name, field in rows.items()}
    return fields | carried_fields(request)


def _begin(
    kernel: ChainKernel,
    context: Pytree,
    rows: Batch | None,
    batch: Batch | None,
    keys: Array,
) -> Progress:
    rows_key, init_key = typed(keys)
    request = kernel.initial_row_request(rows_key, context)
    if request is not None and batch is None:
        assert rows is not None
        batch = _read(rows, request)
    prepared = None
    if batch is not None:
        prepared = kernel.prepare(jax.lax.optimization_barrier(batch), context)
    state = kernel.init(init_key, prepared, context)
    return Progress(_strongly_typed(state), jnp.zeros((), int))


def _strongly_typed(results: Pytree) -> Pytree:
    """Give Python numbers a type, or what takes the results would be compiled a second time."""

    def typed_leaf(leaf: Pytree) -> jax.Array:
        is_weak = getattr(jax.typeof(leaf), "weak_type", False)
        return jnp.asarray(leaf, jnp.result_type(leaf)) if is_weak else leaf

    return jax.tree.map(typed_leaf, results)


def _ahead(
    kernel: ChainKernel,
    extent: Extent,
    context: Pytree,
    rows: Batch | None,
    batches: Batch | None,
    keys: tuple[jax.Array, jax.Array],
) -> Ahead:
    rows_keys, step_keys = keys
    chances = jax.vmap(lambda key: kernel.chances(key, context))(step_keys)
    selection = _selection(kernel, chances, extent.length)
    prepared = _prepared(kernel, context, rows, batches, rows_keys, selection)
    return Ahead(*_strongly_typed((chances, selection, prepared)))


def _advance(
    kernel: ChainKernel,
    extent: Extent,
    context: Pytree,
    flags: Pytree,
    span: Span,
    ready: Ahead,
    progress: Progress,
) -> tuple[Progress, Packed]:
    first, count = span
    length, thin = extent

    # called in two places, and traced once
    @jax.jit
    def step(i: jax.Array | int, state: Pytree) -> tuple[Pytree, Draw]:
        chances, batch = ready.of(i)
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


def _selection(kernel: ChainKernel, chances: Pytree, length: int) -> Selection | None:
    """Select the rows that iterations read; None if they read all they request."""
    if not isinstance(kernel, SelectiveKernel):
        return None
    read = jax.vmap(kernel.rows_read)(chances)
    return None if read is None else select(read, kernel.most_rows(length))


def _prepared(
    kernel: ChainKernel,
    context: Pytree,
    rows: Batch | None,
    batches: Batch | None,
    rows_keys: jax.Array,
    selection: Selection | None,
) -> Pytree:
    """Read (unless `batches` has them) and prepare the rows of all iterations at once."""
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


def _row_requests(kernel: ChainKernel, context: Pytree, keys: Array) -> RowRequest | None:
    """Return the rows that iterations read, with a leading axis for iterations."""
    return jax.vmap(lambda each: kernel.row_request(typed(each)[0], context))(keys)


def _initial_row_request(kernel: ChainKernel, context: Pytree, keys: Array) -> RowRequest | None:
    return kernel.initial_row_request(typed(keys)[0], context)


# One chain, which runs in its own thread; its keys come as words, (iterations, 2 keys, 2 words) ...
@jit(static=(0, 1))
def ahead(
    kernel: ChainKernel,
    extent: Extent,
    context: Pytree,
    rows: Batch | None,
    batches: Batch | None,
    words: Array,
) -> Ahead:
    """Prepare the iterations with these keys."""
    keys = typed(words)
    return _ahead(kernel, extent, context, rows, batches, (keys[:, 0], keys[:, 1]))


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
    keys: Array,
) -> Progress:
    """`begin` for chains stacked along a leading axis."""
    return jax.vmap(partial(_begin, kernel, context, rows))(batch, keys)


@jit(static=(0, 1))
def ahead_together(
    kernel: ChainKernel,
    extent: Extent,
    context: Pytree,
    rows: Batch | None,
    batches: Batch | None,
    first: Array,
    chain_keys: Array,
) -> Ahead:
    """`ahead` for chains stacked along a leading axis, from iteration `first` on.

    Keys are made here: an accelerator would wait for NumPy.
    """
    of_chain = partial(_ahead, kernel, extent, context, rows)
    return jax.vmap(of_chain)(batches, _keys(chain_keys, first, extent.length))


def _keys(chain_keys: Array, first: Array, length: int) -> tuple[jax.Array, jax.Array]:
    """Return two keys per iteration of each chain, (chains, iterations)."""
    numbers = jnp.asarray(first) + jnp.arange(length)
    of_chain = jax.vmap(iteration_keys, in_axes=(None, 0))
    return jax.vmap(of_chain, in_axes=(0, None))(jnp.asarray(chain_keys), numbers)


@jit(static=(0, 1), on_gpu=GPU_GRAPHS)
def advance_together(
    kernel: ChainKernel,
    extent: Extent,
    context: Pytree,
    flags: Pytree,
    span: Span,
    ready: Ahead,
    progress: Progress,
) -> tuple[Progress, Packed]:
    """`advance` for chains stacked along a leading axis."""
    of_chain = partial(_advance, kernel, extent, context, flags, span)
    return jax.vmap(of_chain)(ready, progress)


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
    rows_keys, step_keys = _keys(chain_keys, first, length)
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
def row_requests_together(kernel: ChainKernel, context: Pytree, keys: Array) -> RowRequest | None:
    """`row_requests` for chains stacked along a leading axis."""
    return jax.vmap(partial(_row_requests, kernel, context))(keys)


@jit(static=0)
def initial_row_requests(kernel: ChainKernel, context: Pytree, keys: Array) -> RowRequest | None:
    """`initial_row_request` for chains stacked along a leading axis."""
    return jax.vmap(partial(_initial_row_request, kernel, context))(keys)
