"""The bright rows of a FlyMC chain: a sorted list of fixed length, and the rows proposed to it.

Row numbers are kept in ascending order and end in the number n, which stands for "no row": whether
a row is bright is a binary search, and an update merges two sorted lists.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Bright", "Proposed", "merge", "places", "skip_through"]


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


def places(sought: jax.Array, among: jax.Array, n: Any) -> tuple[jax.Array, jax.Array]:
    """Where `sought` numbers belong in the ascending list `among`, and which of them are in it."""
    place = jnp.searchsorted(among, sought)
    found = (among[jnp.minimum(place, len(among) - 1)] == sought) & (sought < n)
    return place, found


def merge(
    bright: Bright, stay: jax.Array, fresh: Bright, join: jax.Array, n: Any
) -> tuple[Bright, jax.Array]:
    """Rows of `bright` that stay and of `fresh` that join, in ascending order, and their count.

    No row may both stay and join. Where there are more than places, the last are left out.
    """
    room, size = bright.number.shape[0], fresh.number.shape[0]
    staying, joining = _running(stay), _running(join)
    # the place of a row: rows before it of its own list, and of the other
    of_bright = staying[:-1] + joining[places(bright.number, fresh.number, n)[0]]
    of_fresh = joining[:-1] + staying[places(fresh.number, bright.number, n)[0]]
    place = jnp.concatenate([jnp.where(stay, of_bright, room), jnp.where(join, of_fresh, room)])
    source = jnp.zeros(room, place.dtype).at[place].set(jnp.arange(room + size), mode="drop")
    count = staying[-1] + joining[-1]

    def pick(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.concatenate([old, new])[source]

    number = jnp.where(jnp.arange(room) < count, pick(bright.number, fresh.number), n)
    return Bright(number, jax.tree.map(pick, bright.rows, fresh.rows)), count


def _running(mask: jax.Array) -> jax.Array:
    """How many are True before each place, and in all."""
    return jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(mask)])
