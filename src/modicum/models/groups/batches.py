"""Rows of groups as arrays: several groups end to end, or one padded group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either
from modicum.models.base import Batch
from modicum.rows.groups import GroupedRows

BLOCK = 4096  # rows evaluated together at all nodes, which about fit in a core's cache
GROUP_FIELDS = {*GroupedRows.RESERVED[:-1], "probability"}  # fields of groups, not of rows


class FlatGroups(NamedTuple):
    """Rows of several groups one after the other, and sums over each group."""

    rows: Batch  # fields of the rows, (rows, ...)
    group: jax.Array  # group of each row; padding has a number beyond the last
    groups: int

    @classmethod
    def of(cls, batch: Batch) -> FlatGroups:
        """Convert a flat batch as `GroupedRows` makes them."""
        rows = {k: jnp.asarray(v) for k, v in batch.items() if k not in GROUP_FIELDS}
        return cls(rows, jnp.asarray(batch["group_of_row"]), len(batch["group_rows"]))

    @property
    def present(self) -> jax.Array:
        """True for rows, False for padding."""
        return self.group < self.groups

    def sum(self, values: jax.Array) -> jax.Array:
        """Sum over the rows of each group, (groups, ...)."""
        return jax.ops.segment_sum(values, self.group, self.groups, indices_are_sorted=True)

    def spread(self, values: jax.Array) -> jax.Array:
        """Return for each row the value of its group."""
        return values[jnp.minimum(self.group, self.groups - 1)]

    def spread_where_present(self, values: jax.Array) -> jax.Array:
        """Return for each row the value of its group, and zero for padding."""
        return _zero_padding(self.present, self.spread(values))


class NumPyGroups(NamedTuple):
    """`FlatGroups` for NumPy, without padding.

    Arrays have the rows along their fastest axis, which makes NumPy's inner loops long.
    """

    rows: Batch
    group: np.ndarray  # group of each row
    start: np.ndarray  # first row of each group

    @classmethod
    def of(cls, batch: Batch) -> NumPyGroups:
        """Convert a flat batch as `GroupedRows` makes them."""
        size = np.asarray(batch["group_rows"])
        size = size[size > 0]
        count = int(size.sum())
        rows = {k: np.asarray(v)[:count] for k, v in batch.items() if k not in GROUP_FIELDS}
        return cls(rows, np.repeat(np.arange(len(size)), size), np.cumsum(size) - size)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.start)

    @property
    def present(self) -> jax.Array:
        """True for every row: nothing is padding."""
        return as_either(np.ones(len(self.group), bool))

    def sum(self, values: jax.Array) -> jax.Array:
        """Sum over the rows of each group, (groups, ...)."""
        return as_either(np.add.reduceat(np.asarray(values), self.start, axis=0))

    def spread(self, values: jax.Array) -> jax.Array:
        """Return for each row the value of its group."""
        return as_either(np.take(np.asarray(values).T, self.group, axis=-1).T)

    def spread_where_present(self, values: jax.Array) -> jax.Array:
        """Return for each row the value of its group; there is no padding."""
        return self.spread(values)

    def in_blocks(self) -> Iterator[tuple[slice, NumPyGroups]]:
        """Yield a few groups at a time, with their slice of all groups."""
        ends = np.r_[self.start[1:], len(self.group)]
        first = 0
        while first < len(ends):
            begin = self.start[first]
            stop = max(first + 1, int(np.searchsorted(ends, begin + BLOCK, side="right")))
            own = slice(begin, ends[stop - 1])  # the rows of these groups
            rows = {name: values[own] for name, values in self.rows.items()}
            groups = slice(first, stop)
            yield groups, NumPyGroups(rows, self.group[own] - first, self.start[groups] - begin)
            first = stop


class PaddedGroup(NamedTuple):
    """`FlatGroups` for a single group, whose rows beyond the first `size` are padding."""

    rows: Batch
    size: jax.Array
    groups: int = 1

    @property
    def present(self) -> jax.Array:
        """True for rows, False for padding."""
        return jnp.arange(len(next(iter(self.rows.values())))) < self.size

    def sum(self, values: jax.Array) -> jax.Array:
        """Sum over all rows but padding, (1, ...)."""
        present = self.present.reshape(-1, *[1] * (values.ndim - 1))
        return jnp.sum(jnp.where(present, values, 0.0), axis=0, keepdims=True)

    def spread(self, values: jax.Array) -> jax.Array:
        """Return the group's value for each row."""
        count = len(next(iter(self.rows.values())))
        return jnp.broadcast_to(values[0], (count, *values.shape[1:]))

    def spread_where_present(self, values: jax.Array) -> jax.Array:
        """Return for each row the value of its group, and zero for padding."""
        return _zero_padding(self.present, self.spread(values))


def _zero_padding(present: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(present.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)


Groups: TypeAlias = FlatGroups | NumPyGroups | PaddedGroup
