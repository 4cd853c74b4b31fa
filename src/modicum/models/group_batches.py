"""Rows of groups as compiled functions see them: several groups end to end, or a padded one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from modicum.models.base import Batch
from modicum.rows.groups import GroupedRows

__all__ = ["FlatGroups", "PaddedGroup"]


class FlatGroups(NamedTuple):
    """Rows of several groups one after the other, and how to add up over a group."""

    rows: Batch  # fields of the rows, (rows, ...)
    group: jax.Array  # of each row; padding has a number beyond the last
    groups: int

    @classmethod
    def of(cls, batch: Batch) -> FlatGroups:
        """A flat batch as `GroupedRows` makes them."""
        own = GroupedRows.RESERVED[:-1]
        rows = {k: jnp.asarray(v) for k, v in batch.items() if k not in own and k != "probability"}
        return cls(rows, jnp.asarray(batch["group_of_row"]), len(batch["group_rows"]))

    @property
    def there(self) -> jax.Array:
        """Which rows are no padding."""
        return self.group < self.groups

    def sum(self, values: jax.Array) -> jax.Array:
        """Over the rows of each group, (groups, ...)."""
        return jax.ops.segment_sum(values, self.group, self.groups, indices_are_sorted=True)

    def spread(self, values: jax.Array) -> jax.Array:
        """The value of its group for each row."""
        return values[jnp.minimum(self.group, self.groups - 1)]


class PaddedGroup(NamedTuple):
    """`FlatGroups` of a single group, of which the first `size` rows are there."""

    rows: Batch
    size: jax.Array
    groups: int = 1

    @property
    def there(self) -> jax.Array:
        """Which rows are."""
        return jnp.arange(len(next(iter(self.rows.values())))) < self.size

    def sum(self, values: jax.Array) -> jax.Array:
        """Over the rows that are there, (1, ...)."""
        there = self.there.reshape(-1, *[1] * (values.ndim - 1))
        return jnp.sum(jnp.where(there, values, 0.0), axis=0, keepdims=True)

    def spread(self, values: jax.Array) -> jax.Array:
        """The value of the group for each row."""
        rows = len(next(iter(self.rows.values())))
        return jnp.broadcast_to(values[0], (rows, *values.shape[1:]))
