"""Slices and blocks of arrays at positions that compiled code computes.

JAX's own indexing allows for negative positions, with some operations per array that are traced,
lowered and compiled: a fifth of all operations in the loop of HMC-ECS. Positions here are unsigned,
which spares them. They must not be negative, nor slices reach beyond the end.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp

from modicum.runtime import Array, Pytree

Position: TypeAlias = Array | int
UNSIGNED = jnp.uint32


def entry(tree: Pytree, position: Position) -> Pytree:
    """Entry `position` of each array in `tree`, along its leading axis.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> entry({"x": jnp.arange(6).reshape(3, 2)}, 1)["x"]
    Array([2, 3], dtype=int32)
    """
    place = _unsigned(position)
    return jax.tree.map(lambda array: jax.lax.squeeze(take(array, place, 1), (0,)), tree)


def set_entry(tree: Pytree, position: Position, new: Pytree) -> Pytree:
    """Replace entry `position` of each array in `tree` by its counterpart in `new`."""
    place = _unsigned(position)
    return jax.tree.map(lambda array, part: put(array, part[None], place), tree, new)


def take(array: jax.Array, position: Position, count: int) -> jax.Array:
    """Return `count` entries from `position` on."""
    return jax.lax.dynamic_slice_in_dim(array, _unsigned(position), count)


def put(array: jax.Array, part: jax.Array, position: Position) -> jax.Array:
    """Replace the entries from `position` on by those of `part`."""
    return jax.lax.dynamic_update_slice_in_dim(array, part, _unsigned(position), 0)


def put_each(array: jax.Array, parts: jax.Array, positions: jax.Array) -> jax.Array:
    """Replace the entries from each of the `positions` on; parts that would not fit are left out.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> put_each(jnp.zeros(5), jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([3, 9]))
    Array([0., 0., 0., 1., 2.], dtype=float32)
    """
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, parts.ndim)),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(0,),
    )
    return jax.lax.scatter(
        array,
        _unsigned(positions)[:, None],
        parts,
        numbers,
        unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )


def starts(counts: jax.Array) -> jax.Array:
    """Return the position at which each block begins; blocks have these `counts` of entries."""
    return jnp.cumsum(counts) - counts


def locate(positions: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the block in which each position falls; blocks have these `counts` of entries.

    Returns
    -------
    block
        Index of the block; the last one for positions beyond its end.
    within
        Position relative to the beginning of the block.
    inside
        False for positions beyond the end of the last block.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> block, within, inside = locate(jnp.arange(5), jnp.array([1, 0, 3]))
    >>> block.tolist(), within.tolist()
    ([0, 2, 2, 2, 2], [0, 0, 1, 2, 3])
    >>> inside.tolist()
    [True, True, True, True, False]
    """
    end = jnp.cumsum(counts)
    block = jnp.minimum(jnp.sum(positions[:, None] >= end, axis=1), counts.shape[0] - 1)
    return block, positions - (end - counts)[block], positions < end[-1]


def _unsigned(position: Position) -> jax.Array:
    return jnp.asarray(position).astype(UNSIGNED)
