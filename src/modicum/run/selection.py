"""Read and prepare only the rows that a block of iterations needs, of those it requests.

A kernel requests as many rows as its step can need, because arrays have a fixed shape. The signed
method requests nine factors where it needs one on average. The numbers that the steps of a block
need are known ahead, and together they vary little, so their rows are packed into one array without
gaps, of which each step takes its slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from modicum.kernels.base import RowsRead
from modicum.kernels.slices import entry, locate, starts, take
from modicum.runtime import Pytree


@partial(
    jax.tree_util.register_dataclass, data_fields=("index", "start"), meta_fields=("requested",)
)
@dataclass(frozen=True)
class Selection:
    """The rows that a block of iterations reads, in the order of the iterations."""

    index: jax.Array  # of all requested rows, numbered from the first iteration's first to the last
    start: jax.Array  # where the rows of each iteration begin
    requested: int  # rows that an iteration requests

    def of(self, requested: Pytree) -> Pytree:
        """Return the selected rows of arrays with the leading axes (iterations, rows)."""
        return jax.tree.map(
            lambda field: field.reshape(-1, *field.shape[2:])[self.index], requested
        )

    def batch(self, selected: Pytree, iteration: jax.Array | int) -> Pytree:
        """Return an iteration's rows at the beginning of a batch of the size that it requested."""
        first = entry(self.start, iteration)
        return jax.tree.map(lambda field: take(field, first, self.requested), selected)


def select(read: RowsRead, most: int) -> Selection:
    """Select the rows that iterations read, at most `most` of them.

    Parameters
    ----------
    read
        The rows that each iteration reads, with a leading axis for iterations.
    most
        A number that they never exceed together.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from modicum.kernels.base import RowsRead
    >>> order = jnp.array([[0, 1, 2], [2, 0, 1]])
    >>> selection = select(RowsRead(order, jnp.array([2, 1])), 3)
    >>> requested = jnp.array([[10, 11, 12], [20, 21, 22]])
    >>> selection.batch(selection.of(requested), 1)[:1]  # the second iteration reads one row
    Array([22], dtype=int32)
    """
    requested = read.order.shape[1]
    place = jnp.arange(most + requested)  # a batch may reach beyond the last row that is read
    iteration, number, _ = locate(place, read.number)
    index = iteration * requested + read.order[iteration, jnp.minimum(number, requested - 1)]
    return Selection(index, starts(read.number), requested)
