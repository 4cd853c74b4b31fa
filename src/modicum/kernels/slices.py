"""Slices of arrays at positions that compiled code computes.

JAX's own indexing allows for negative positions, with some operations per array that are traced,
lowered and compiled: a fifth of all operations in the loop of HMC-ECS. Positions here are unsigned,
which spares them. They must not be negative, nor slices reach beyond the end.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.runtime import Array, Pytree

__all__ = ["entry", "put", "put_each", "set_entry", "take"]

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
    return jax.lax.dynamic_slice(array, _corner(array, position), (count, *array.shape[1:]))


def put(array: jax.Array, part: jax.Array, position: Position) -> jax.Array:
    """Replace the entries from `position` on by those of `part`."""
    return jax.lax.dynamic_update_slice(array, part, _corner(array, position))


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
    places = _unsigned(positions)[:, None]
    return jax.lax.scatter(
        array,
        places,
        parts,
        numbers,
        unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )


def _corner(array: jax.Array, position: Position) -> list[Array | np.uint32]:
    """Return the position of a slice along every axis of `array`."""
    return [_unsigned(position), *(np.uint32(0) for _ in array.shape[1:])]


def _unsigned(position: Position) -> jax.Array:
    return jnp.asarray(position).astype(UNSIGNED)
