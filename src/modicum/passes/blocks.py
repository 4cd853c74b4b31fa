"""A chunk of rows, a few at a time: what is made of them on the way stays in a core's cache.

On a CPU this takes a quarter (gradients) to a third (Hessians) off a pass. An accelerator has no
such caches, and wants the chunk whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from modicum.models import Target
from modicum.runtime import SCATTERS, jit

__all__ = ["BLOCK", "compiled_pass", "map_in_blocks", "sum_in_blocks"]

P = ParamSpec("P")
R = TypeVar("R")

BLOCK = 1024  # rows


def sum_in_blocks(function: Callable[[Any, Any], Any], batch: Any, present: Any) -> Any:
    """Sum `function(batch, present)` over blocks of the rows; traced, and not differentiable."""
    blocks = _cut(batch, present)
    if blocks is None:
        return function(batch, present)

    def add(total: Any, block: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*block)), None

    shapes = jax.eval_shape(function, *jax.tree.map(lambda field: field[0], blocks))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(add, zero, blocks)[0]


def map_in_blocks(function: Callable[[Any, Any], jax.Array], batch: Any, present: Any) -> jax.Array:
    """One number per row, by `function(batch, present)`, block by block."""
    blocks = _cut(batch, present)
    if blocks is None:
        return function(batch, present)
    return jnp.concatenate(jax.lax.map(lambda block: function(*block), blocks))


def _cut(batch: Any, present: Any) -> Any:
    """Batch and present with a leading axis for blocks; None where they stay whole."""
    rows = present.shape[0]
    if "group_of_row" in batch:  # rows of groups, of which `present` counts the groups
        return None
    if jax.default_backend() != "cpu" or rows <= BLOCK or rows % BLOCK:
        return None
    return jax.tree.map(
        lambda field: jnp.reshape(field, (rows // BLOCK, BLOCK, *field.shape[1:])),
        (batch, present),
    )


def compiled_pass(
    function: Callable[Concatenate[Target, P], R],
) -> Callable[Concatenate[Target, P], R]:
    """Compile a function of a target and a chunk of rows, in the way that suits the rows."""
    of_columns, of_codes = jit(static=0)(function), jit(static=0, options=SCATTERS)(function)

    @wraps(function)
    def compiled(target: Target, /, *args: P.args, **kwargs: P.kwargs) -> R:
        suitable = of_codes if target.scatters else of_columns
        return suitable(target, *args, **kwargs)

    return compiled
