"""Evaluating a chunk of rows in blocks, whose intermediate results stay in a core's cache.

On a CPU this makes a pass a quarter (gradients) to a third (Hessians) faster. An accelerator
evaluates the chunk as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from modicum.models import Target
from modicum.runtime import SCATTERS, Array, jit

P = ParamSpec("P")
R = TypeVar("R")
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
    total: R = jax.lax.scan(add, zero, blocks)[0]
    return total


def map_in_blocks(function: Callable[[B, Array], jax.Array], batch: B, present: Array) -> jax.Array:
    """Return one number per row, from `function(batch, present)` on each block."""
    blocks = _cut(batch, present)
    if blocks is None:
        return function(batch, present)
    return jnp.concatenate(jax.lax.map(lambda block: function(*block), blocks))


def _cut(batch: B, present: Array) -> tuple[B, Array] | None:
    """Add a leading axis for blocks to batch and present; None if they are not split."""
    rows = present.shape[0]
    if isinstance(batch, Mapping) and "group_of_row" in batch:
        return None  # `present` has an entry per group then, not per row
    if jax.default_backend() != "cpu" or rows <= BLOCK or rows % BLOCK:
        return None
    blocks: tuple[B, Array] = jax.tree.map(
        lambda field: jnp.reshape(field, (rows // BLOCK, BLOCK, *field.shape[1:])),
        (batch, present),
    )
    return blocks


def compiled_pass(
    function: Callable[Concatenate[Target, P], R],
) -> Callable[Concatenate[Target, P], R]:
    """Compile a function of a target and a chunk, with options for scatters if rows have codes."""
    plain, scattering = jit(static=0)(function), jit(static=0, options=SCATTERS)(function)

    @wraps(function)
    def compiled(target: Target, /, *args: P.args, **kwargs: P.kwargs) -> R:
        suitable = scattering if target.scatters else plain
        return suitable(target, *args, **kwargs)

    return compiled
