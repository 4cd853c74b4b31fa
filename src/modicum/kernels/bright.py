"""The bright rows of a FlyMC chain: a sorted list of fixed length, and the rows proposed to it.

Row numbers are kept in ascending order and end in the number n, which stands for "no row": whether
a row is bright is a binary search, and an update merges two sorted lists.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Bright", "Overlap", "Proposed", "first_lit", "merge", "overlap", "skip_through"]


class Proposed(NamedTuple):
    """Rows to be read, and what travels with them."""

    rows: jax.Array  # where to read: always a row
    number: jax.Array  # the same in ascending order, or n where there is no row
    complete: jax.Array  # False where more rows were drawn than there was room for


class Bright(NamedTuple):
    """Rows with their numbers; a place without a row has the number n."""

    number: jax.Array
    rows: Any  # a pytree with one entry a row


def skip_through(key: jax.Array, rate: jax.Array, n: jax.Array, most: int) -> Proposed:
    """Draw each of n rows with probability `rate`, independently; keep the first `most`.

    The gaps between such rows are geometric, so the cost is that of the rows drawn (Maclaurin and
    Adams 2014, section 3.2); they come in ascending order.
    """
    u = jax.random.uniform(key, (most + 1,))
    gap = jnp.floor(jnp.log1p(-u) / jnp.log1p(-rate)).astype(int) + 1
    number = jnp.minimum(jnp.cumsum(gap) - 1, n)
    return Proposed(jnp.minimum(number[:-1], n - 1), number[:-1], number[-1] >= n)


class Overlap(NamedTuple):
    """Where rows of two ascending lists, bright and tried, stand in each other."""

    place_in_tried: jax.Array  # of each bright row: how many rows tried come before it
    is_tried: jax.Array  # which bright rows are tried too
    place_in_bright: jax.Array
    is_bright: jax.Array


def overlap(bright: jax.Array, tried: jax.Array, n: Any) -> Overlap:
    """Compare two ascending lists of row numbers by binary search."""
    return Overlap(*_places(bright, tried, n), *_places(tried, bright, n))


def _places(sought: jax.Array, among: jax.Array, n: Any) -> tuple[jax.Array, jax.Array]:
    place = jnp.searchsorted(among, sought)
    return place, (among[jnp.minimum(place, len(among) - 1)] == sought) & (sought < n)


def first_lit(rows: Bright, on: jax.Array, room: int, n: Any) -> Bright:
    """Those of `rows` that are `on`, the first `room` of them."""
    source = jnp.nonzero(on, size=room, fill_value=0)[0]
    number = jnp.where(jnp.arange(room) < jnp.sum(on), rows.number[source], n)
    return Bright(number, jax.tree.map(lambda values: values[source], rows.rows))


def merge(
    bright: Bright, stay: jax.Array, tried: Bright, join: jax.Array, both: Overlap, n: Any
) -> tuple[Bright, jax.Array]:
    """Rows of `bright` that stay and of `tried` that join, in ascending order, and their count.

    No row may both stay and join. Where there are more than places, the last are left out.
    """
    room, size = bright.number.shape[0], tried.number.shape[0]
    staying, joining = _running(stay), _running(join)
    # the place of a row: rows before it of its own list, and of the other
    of_bright = staying[:-1] + joining[both.place_in_tried]
    of_tried = joining[:-1] + staying[both.place_in_bright]
    place = jnp.concatenate([jnp.where(stay, of_bright, room), jnp.where(join, of_tried, room)])
    source = jnp.zeros(room, place.dtype).at[place].set(jnp.arange(room + size), mode="drop")
    count = staying[-1] + joining[-1]

    def pick(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.concatenate([old, new])[source]

    number = jnp.where(jnp.arange(room) < count, pick(bright.number, tried.number), n)
    return Bright(number, jax.tree.map(pick, bright.rows, tried.rows)), count


def _running(mask: jax.Array) -> jax.Array:
    """How many are True before each place, and in all."""
    return jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(mask)])
