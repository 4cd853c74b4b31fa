"""What methods do where the units are groups: nodes fixed at the mode, and groups drawn as rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.designs import Design, Drawn, RowFacts
from modicum.kernels.base import Pytree
from modicum.methods.base import Task
from modicum.passes import NEAR, Anchor, Sums, anchor_at_mode, common_start, with_nodes
from modicum.rows.groups import GroupedRows
from modicum.runtime import Array

__all__ = ["DrawnGroups", "GroupDesign", "GroupTables", "of_groups", "with_fixed_nodes"]


def with_fixed_nodes(task: Task) -> Task:
    """The same task with quadrature nodes fixed at the mode; others are returned as they are.

    At the mode found here nodes and anchor agree: nodes were found at every point on the way, and
    at the last one its gradient, with these nodes, is zero.
    """
    if not isinstance(task.rows, GroupedRows) or task.rows.nodes is not None:
        return task

    def compute() -> dict[str, np.ndarray]:
        start = common_start(task.sums, task.start, task.seed)
        where = (task.sums, start, task.names, task.seed)
        return anchor_at_mode(*where, within=NEAR).to_arrays()

    anchor = task.remember("anchor", compute, Anchor.from_arrays)
    target, rows = with_nodes(task.sums, anchor.point)
    sums = Sums(target, rows, task.sums.engine, task.ledger)
    return replace(task, target=target, rows=rows, sums=sums, start=anchor.point, anchor=anchor)


class DrawnGroups(NamedTuple):
    """Groups that were drawn, as their rows: a request for rows."""

    row_ids: jax.Array  # (groups, width); rows beyond a group's are copies of its last
    probability: jax.Array
    group_rows: jax.Array
    group_centre: jax.Array
    group_spread: jax.Array


class GroupTables(NamedTuple):
    """Those of the design that draws groups, and what is known of each group."""

    design: Pytree
    order: Array | None  # numbers of the rows in group order; None: 0, 1, 2, ...
    start: Array  # of each group, in that order
    size: Array
    centre: Array
    spread: Array


@dataclass(frozen=True)
class GroupDesign(Design[GroupTables]):
    """A design over groups, which requests all rows of the groups it draws.

    Parameters
    ----------
    groups
        How groups are drawn.
    width
        Rows of the largest group: requests have one shape.
    """

    groups: Design[Any]
    width: int
    layout: ClassVar[Callable[..., Any]] = GroupTables

    def tables(self, facts: RowFacts) -> GroupTables:
        """Made by `of_groups`, which knows the groups."""
        raise NotImplementedError

    def draw(self, key: jax.Array, count: int, tables: GroupTables) -> Drawn:
        """Draw `count` groups, with replacement."""
        drawn = self.groups.draw(key, count, tables.design)
        group, size = drawn.row_ids, tables.size[drawn.row_ids]
        within = jnp.minimum(jnp.arange(self.width), size[:, None] - 1)
        place = tables.start[group][:, None] + within
        row_ids = place if tables.order is None else tables.order[place].astype(place.dtype)
        beside = (size, tables.centre[group], tables.spread[group])
        return DrawnGroups(row_ids, drawn.probability, *beside)  # type: ignore[return-value]


def of_groups(
    design: Design[Any], tables: Pytree, rows: GroupedRows
) -> tuple[GroupDesign, GroupTables]:
    """The design that requests the rows of the groups that `design` draws."""
    assert rows.nodes is not None, "nodes are fixed before groups are drawn"
    index = rows.index
    known = (index.order, index.start[:-1], index.size, *rows.nodes)
    return GroupDesign(design, rows.largest), GroupTables(tables, *known)
