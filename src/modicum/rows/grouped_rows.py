"""Grouped rows: all rows that share a value of one field form one unit.

When group effects are integrated out, the group is the unit that has a log-likelihood and is
subsampled. Groups differ in size, so a batch of groups is *flat*: their rows one after the other,
and for each row the number of its group within the batch. Only what a chain holds at a time is
padded to the largest group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.rows.coding import Array
from modicum.rows.rows import Rows

SWEEP = 1 << 20  # rows whose groups are read at a time
FLAT_ROWS = 16_384  # rows per batch of a pass: intermediate values at all nodes fit in cache
MOST_GROUPS = 1024  # groups per batch of a pass


class NodePlaces(NamedTuple):
    """The modes of the groups' integrands, and the parameters at which they were found."""

    centre: Array  # (groups, effects)
    point: Array  # flat vector of parameters

    @classmethod
    def in_batch(cls, batch: Mapping[str, Any]) -> NodePlaces | None:  # NumPy or traced arrays
        """Return the modes in a batch of groups; None without modes."""
        if "group_centre" not in batch:
            return None
        return cls(batch["group_centre"], batch["group_point"])


@dataclass(frozen=True)
class GroupIndex:
    """Which rows are in which group.

    Attributes
    ----------
    field
        The field whose values are the groups.
    values
        The value of each group, ascending.
    start
        Position of each group's first row in group order, and the number of rows at the end.
    order
        Row numbers in group order; None if the rows are in that order already.
    """

    field: str
    values: Array
    start: Array
    order: Array | None

    @classmethod
    def of(cls, rows: Rows, field: str) -> GroupIndex:
        """Find the groups of `rows`: by a stable sort in memory; a store must be sorted already."""
        if field == "y":
            raise SettingError(
                "the rows cannot be grouped by their outcome 'y', which would leave nothing to "
                "explain; name another field."
            )
        if rows.fields.get(field) not in ((), None):
            raise SettingError(
                f"the field {field!r} has several numbers per row, and a group is one number; pass "
                "the groups as a separate field, Rows(x=..., y=..., group=numbers)."
            )
        if field not in rows.fields:
            raise DataError(
                f"the rows have no field '{field}' with one number per row to group by; make them "
                f"with Rows(x=..., y=..., {field}=...)."
            )
        parts, order = _values(rows, field), None
        if not rows.is_store:
            values = np.concatenate([part for _, part in parts])
            if np.any(values[1:] < values[:-1]):
                order = np.argsort(values, kind="stable")
                values = values[order]
                order = order.astype(np.uint32 if len(values) < 2**32 else np.int64)
            parts = iter([(0, values)])
        starts, firsts, last = [], [], None
        for at, part in parts:  # of a store, without holding the group of every row in memory
            before = np.r_[part[0] if last is None else last, part[:-1]]
            if np.any(part < before):
                raise DataError(
                    f"the rows of the store are not in the order of '{field}', and groups that are "
                    "integrated out must lie next to each other on disk; ingest them again with "
                    f"sort_by='{field}'."
                )
            begins = part != before
            begins[0] |= last is None
            starts.append(at + np.flatnonzero(begins))
            firsts.append(part[begins])
            last = part[-1]
        start = np.concatenate([*starts, [len(rows)]])
        return cls(field, np.concatenate(firsts), start, order)

    @property
    def size(self) -> Array:
        """Number of rows in each group."""
        return np.diff(self.start)

    def row_ids(self, positions: Array) -> Array:
        """Row numbers at `positions` of the group order."""
        return positions if self.order is None else self.order[positions].astype(np.intp)

    def rows_of(self, group_ids: Array) -> tuple[Array, Array]:
        """Positions of all rows of these groups, and for each row the index of its group."""
        size = self.size[group_ids]
        which = np.repeat(np.arange(len(group_ids)), size)
        first = np.cumsum(size) - size
        within = np.arange(len(which)) - first[which]
        return self.start[group_ids][which] + within, which


def _values(rows: Rows, field: str) -> Iterator[tuple[int, Array]]:
    """Yield, for each chunk, its first row number and the groups of its rows as integers."""
    at = 0
    for chunk in rows.chunks(SWEEP):
        part = chunk[field]
        numbers = part.astype(np.int64)
        if part.dtype.kind == "f" and np.any(numbers != part):
            row = at + int(np.argmax(numbers != part))
            raise DataError(
                f"the group of row {row} ('{field}' = {part[row - at]:g}) is not a whole number; "
                "number the groups, for instance with numpy.unique(..., return_inverse=True)."
            )
        yield at, numbers
        at += len(part)


class GroupedRows(Rows):
    """Rows whose units are groups: `len` counts groups, and `take` takes group numbers.

    A flat batch holds the fields of all rows of its groups, and also `group_of_row` (numbered
    within the batch; padding rows have the number of groups), `group_rows` (rows of each group),
    and, once they are known, `group_centre` and `group_point` (`NodePlaces`). The field `weight` is
    renamed `row_weight`, since it belongs to rows and not to groups.

    Parameters
    ----------
    members
        The individual rows.
    index
        Which rows are in which group.
    nodes
        Where the quadrature nodes of the groups are, once they are known.
    """

    unit: ClassVar[str] = "group"
    RESERVED = ("group_of_row", "group_rows", "group_centre", "group_point", "row_weight")

    def __init__(self, members: Rows, index: GroupIndex, nodes: NodePlaces | None = None) -> None:
        self._backend = members._backend
        self._members, self.index, self.nodes = members, index, nodes
        reserved = [name for name in self.RESERVED if name in members.fields]
        if reserved:
            raise SettingError(
                f"the field name '{reserved[0]}' is reserved for grouped rows; rename that field."
            )

    @property
    def members(self) -> Rows:
        """The individual rows."""
        return self._members

    def with_nodes(self, nodes: NodePlaces) -> GroupedRows:
        """Return these groups with quadrature nodes placed at `nodes`."""
        same = copy(self)
        same.nodes = nodes
        return same

    @property
    def row_bytes(self) -> int:
        """Average bytes per group."""
        return max(1, self.members.nbytes // len(self))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.members.nbytes

    @property
    def largest(self) -> int:
        """Rows of the largest group."""
        return int(self.index.size.max())

    def __len__(self) -> int:
        return len(self.index.values)

    def __repr__(self) -> str:
        return f"GroupedRows({len(self):,} groups by '{self.index.field}' of {self.members!r})"

    # Batches ------------------------------------------------------------------------------

    def take(self, group_ids: object) -> dict[str, Array]:
        """Return the groups with these numbers as one flat batch."""
        ids = np.asarray(group_ids, np.intp).ravel()
        return self._batch(ids, len(ids), 0)

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Return the groups from `start` up to `stop` as one flat batch."""
        return self.take(np.arange(start, stop))

    def chunks(self, size: int) -> Iterator[dict[str, Array]]:
        """Return an iterator over all groups in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.slice(start, min(start + size, len(self)))

    def subset(self, group_ids: Array) -> GroupedRows:
        """Return some of the groups, in memory."""
        ids = np.asarray(group_ids, np.intp)
        positions, _ = self.index.rows_of(ids)
        members = self.members.subset(self.index.row_ids(positions))
        start = np.r_[0, np.cumsum(self.index.size[ids])]
        nodes = self.nodes and self.nodes._replace(centre=self.nodes.centre[ids])
        index = GroupIndex(self.index.field, self.index.values[ids], start, None)
        subset = GroupedRows(members, index, nodes)
        # The same shapes, for which functions are compiled already.
        subset.flat_rows, subset.flat_groups = self.flat_rows, self.flat_groups
        return subset

    # Passes -------------------------------------------------------------------------------

    @cached_property
    def chunk_starts(self) -> Array:
        """The first group of each chunk of a pass, and the number of groups at the end.

        A chunk holds as many whole groups as fit into `flat_rows` rows and `flat_groups` groups.
        """
        start, starts, at = self.index.start, [0], 0
        while at < len(self):
            most = np.searchsorted(start, start[at] + self.flat_rows, side="right") - 1
            at = int(min(most, at + self.flat_groups, len(self)))
            starts.append(at)
        return np.array(starts)

    @cached_property
    def flat_rows(self) -> int:
        """Row capacity of a chunk."""
        rounded_up = 256 * -(-len(self.members) // 256)
        return max(self.largest, min(FLAT_ROWS, rounded_up))

    @cached_property
    def flat_groups(self) -> int:
        """Group capacity of a chunk, which grows if one giant group makes chunks large."""
        wide = MOST_GROUPS * -(-self.flat_rows // FLAT_ROWS)
        return min(wide, len(self))

    @property
    def chunk_units(self) -> int:  # type: ignore[override]
        """Groups in a padded chunk."""
        return self.flat_groups

    def bounds(self, size: int = 0) -> list[tuple[int, int]]:
        """Return the first group of each chunk and the one after its last, whatever the `size`."""
        del size
        return list(pairwise(map(int, self.chunk_starts)))

    def chunk(self, index: int, size: int = 0, pad: bool = True) -> tuple[dict[str, Array], Array]:
        """Return chunk `index`, padded to a common shape, and a mask of the groups in it."""
        del size, pad
        first, stop = (int(k) for k in self.chunk_starts[index : index + 2])
        batch = self._batch(np.arange(first, stop), self.flat_groups, self.flat_rows)
        return batch, np.arange(self.flat_groups) < stop - first

    def _batch(self, ids: Array, groups: int, rows: int) -> dict[str, Array]:
        """Return groups as one flat batch, padded to at least `groups` groups and `rows` rows."""
        positions, which = self.index.rows_of(ids)
        missing = max(0, rows - len(which))
        which = np.r_[which, np.full(missing, groups)].astype(np.int32)
        positions = np.r_[positions, np.full(missing, positions[0])]
        batch = self.members.take(self.index.row_ids(positions))
        if "weight" in batch:
            batch["row_weight"] = batch.pop("weight")
        padded = np.r_[ids, np.full(groups - len(ids), ids[0])]  # with copies of the first group
        size = self.index.size[padded]
        size[len(ids) :] = 0
        batch |= {"group_of_row": which, "group_rows": size.astype(np.int32)}
        if self.nodes is not None:
            batch["group_centre"] = self.nodes.centre[padded]
            batch["group_point"] = self.nodes.point
        return batch


def as_groups(rows: Rows) -> GroupedRows:
    """Return rows that are `grouped` as what they are."""
    assert isinstance(rows, GroupedRows)
    return rows
