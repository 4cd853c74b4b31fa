"""The compiled inner loop: advance chains by up to `capacity` iterations in one call.

The number of iterations is an argument, not a shape: warm-up, sampling and the last short chunk
run the same compiled code. The key of an iteration depends on its number alone, so draws do not
depend on how a run is cut into chunks.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from modicum.kernels.base import Kernel, Wanted, travelling

__all__ = ["advance", "advance_together", "begin", "begin_together", "wanted", "wanted_at_start"]


def _keys(chain_key: jax.Array, iteration: Any) -> tuple[jax.Array, jax.Array]:
    """Two keys an iteration: which rows it reads, and what it does with them."""
    rows_key, step_key = jax.random.split(jax.random.fold_in(chain_key, iteration))
    return rows_key, step_key


def _start_keys(chain_key: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows_key, init_key = jax.random.split(jax.random.fold_in(chain_key, 2**31 - 1))
    return rows_key, init_key


def _read(rows: Any, wanted: Wanted) -> Any:
    """Rows by index, with what travels with them."""
    return {name: field[wanted.rows] for name, field in rows.items()} | travelling(wanted)


def _begin(kernel: Kernel, context: Any, rows: Any, batch: Any, chain_key: jax.Array) -> Any:
    rows_key, init_key = _start_keys(chain_key)
    drawn = kernel.wants_at_start(rows_key, context)
    if drawn is not None and batch is None:
        batch = _read(rows, drawn)
    if batch is not None:
        batch = kernel.prepare(jax.lax.optimization_barrier(batch), context)
    state = kernel.init(init_key, batch, context)
    # Python numbers in a state are weakly typed, which would compile the loop once more.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)


def _advance(
    kernel: Kernel,
    capacity: int,
    context: Any,
    rows: Any,
    signals: Any,
    span: tuple[Any, Any],
    batches: Any,
    state: Any,
    chain_key: jax.Array,
) -> tuple[Any, Any]:
    first, count = span
    if batches is None:  # rows on the device: read those of all iterations at once
        drawn = _wanted(kernel, context, chain_key, first + jnp.arange(capacity))
        batches = None if drawn is None else _read(rows, drawn)
    if batches is not None:
        # The barrier keeps the compiler from merging this with how the rows came: draws must not
        # depend, in their last bit, on where the rows live.
        batches = jax.lax.optimization_barrier(batches)
        batches = jax.vmap(lambda batch: kernel.prepare(batch, context))(batches)

    def one(i: Any, state: Any) -> tuple[Any, Any]:
        step_key = _keys(chain_key, first + i)[1]
        signal = jax.tree.map(lambda a: a[first + i], signals)
        batch = jax.tree.map(lambda field: field[i], batches)
        return kernel.step(step_key, state, signal, batch, context)

    def body(i: Any, carry: Any) -> Any:
        state, record = carry
        state, draw = one(i, state)
        return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), record, draw)

    shapes = jax.eval_shape(one, 0, state)[1]
    record = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, (state, record))


def _wanted(kernel: Kernel, context: Any, chain_key: jax.Array, iterations: Any) -> Any:
    return jax.vmap(lambda i: kernel.wants(_keys(chain_key, i)[0], context))(iterations)


def _wanted_at_start(kernel: Kernel, context: Any, chain_key: jax.Array) -> Any:
    return kernel.wants_at_start(_start_keys(chain_key)[0], context)


# One chain, for a thread of its own ...
begin = partial(jax.jit, static_argnums=0)(_begin)
advance = partial(jax.jit, static_argnums=(0, 1))(_advance)
wanted = partial(jax.jit, static_argnums=0)(_wanted)
wanted_at_start = partial(jax.jit, static_argnums=0)(_wanted_at_start)


# ... and all chains as a leading axis, for an accelerator.
@partial(jax.jit, static_argnums=0)
def begin_together(kernel: Kernel, context: Any, rows: Any, batch: Any, chain_keys: Any) -> Any:
    """`begin` for chains stacked along a leading axis."""
    return jax.vmap(partial(_begin, kernel, context, rows))(batch, chain_keys)


@partial(jax.jit, static_argnums=(0, 1))
def advance_together(
    kernel: Kernel,
    capacity: int,
    context: Any,
    rows: Any,
    signals: Any,
    span: tuple[Any, Any],
    batches: Any,
    state: Any,
    chain_keys: Any,
) -> tuple[Any, Any]:
    """`advance` for chains stacked along a leading axis."""
    one = partial(_advance, kernel, capacity, context, rows, signals, span)
    return jax.vmap(one)(batches, state, chain_keys)
