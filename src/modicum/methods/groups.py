"""What methods do where the units are groups: nodes fixed at the mode, and groups drawn as rows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either
from modicum.designs import Design
from modicum.errors import ModicumWarning
from modicum.methods.base import Task
from modicum.models import IntegratedEffects, Target
from modicum.models.base import Batch
from modicum.models.groups.batches import FlatGroups, Groups, NumPyGroups
from modicum.passes import NEAR, Anchor, Sums, anchor_at_mode, common_start, with_nodes
from modicum.passes.scales import scale_doubts
from modicum.random import Stream, generator
from modicum.rows.groups import GroupedRows, NodePlaces
from modicum.runtime import SCATTERS, Array, Pytree, in_double_precision, jit, one_blas_thread

__all__ = [
    "DrawnGroups",
    "GroupDesign",
    "GroupTables",
    "of_groups",
    "quadrature_doubts",
    "uneven_groups",
    "with_fixed_nodes",
]


NEAR_ZERO = 0.5  # posterior sd of log group_sd from which its lower end is the prior's
CHECKED_GROUPS, CHECKED_DRAWS = 256, 16  # of which the quadrature is checked
COARSE = 0.1  # posterior standard deviations


def with_fixed_nodes(task: Task) -> Task:
    """The same task with quadrature nodes fixed at the mode; other tasks are returned unchanged.

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
    anchor = replace(anchor, notes=[*anchor.notes, *doubts_about_groups(sums, anchor)])
    return replace(task, target=target, rows=rows, sums=sums, start=anchor.point, anchor=anchor)


# Doubts -----------------------------------------------------------------------------------


def doubts_about_groups(sums: Sums, anchor: Anchor) -> list[ModicumWarning]:
    """Warnings about the groups before any chain runs."""
    model, groups = sums.target.model, sums.rows
    assert isinstance(model, IntegratedEffects)
    places = sums.target.unravel(np.arange(sums.target.size))["group_log_sd"]
    width = anchor.sd[places]
    sd = np.exp(anchor.point[places])
    return [
        note
        for k, name in enumerate(model.effect_names)
        for note in scale_doubts(
            f"group_sd[{name}]", len(groups), float(sd[k]), bool(width[k] > NEAR_ZERO)
        )
    ]


def uneven_groups(groups: GroupedRows, subsample: int) -> list[ModicumWarning]:
    """Say so where so many groups of the largest one's size are more than all rows.

    A chain has room for that, since any group may be drawn, and computes with all of it.
    """
    rows = len(groups.members)
    if subsample * groups.largest < rows:
        return []
    return [
        ModicumWarning(
            "groups-uneven",
            f"the largest group holds {groups.largest:,} of {rows:,} rows, and a step has room for "
            f"{subsample:,} groups of that size: it costs more than all rows would",
            "use method='nuts' on all rows",
            largest=groups.largest,
            rows=rows,
        )
    ]


@in_double_precision
def quadrature_doubts(sums: Sums, points: np.ndarray, seed: int) -> list[ModicumWarning]:
    """Compare some groups with twice the nodes, at draws of the posterior (flat, one per line).

    The error of all groups is a function of the parameters that is added to the log-posterior:
    its standard deviation bounds the shift of any posterior mean, in posterior standard deviations.
    Draws are those from the smallest to the largest standard deviation of effects, and the finer
    nodes are found at each of them: nodes that lie elsewhere than the integrand are noticed.
    """
    target, groups = sums.target.likelihood, sums.rows
    model = target.model
    points = points[np.all(np.isfinite(points), axis=1)]
    if not isinstance(model, IntegratedEffects) or len(points) < 2:
        return []
    first_sd = target.unravel(np.arange(target.size))["group_log_sd"][0]
    ranked = np.argsort(points[:, first_sd])
    points = points[ranked[np.linspace(0, len(ranked) - 1, CHECKED_DRAWS).astype(int)]]
    rng = generator(seed, Stream.NODE_CHECK)
    checked = min(len(groups), CHECKED_GROUPS)
    batch = groups.take(np.sort(rng.choice(len(groups), checked, replace=False)))
    finer = replace(target, model=replace(model, nodes=2 * model.per_effect))
    differences = _differences_by_numpy if target.on_numpy else _differences
    error = np.asarray(differences(finer, target, points, batch))
    sums.ledger.add("nodes", checked * CHECKED_DRAWS, "density")
    bound = float(np.std(error)) * len(groups) / checked
    if not bound > COARSE:
        return []
    return [
        ModicumWarning(
            "quadrature-coarse",
            f"with {model.per_effect} quadrature nodes per effect the integrals over groups are "
            f"off: by comparison with twice as many on {checked} groups, posterior means may be "
            f"wrong by up to {bound:.2g} posterior standard deviations",
            f"give IntegratedEffects more nodes (nodes={2 * model.per_effect}), or hold the "
            "effects explicitly (groups='explicit')",
            bound=bound,
            nodes=model.per_effect,
        )
    ]


@jit(static=(0, 1), options=SCATTERS)
def _differences(finer: Target, target: Target, points: Array, batch: Batch) -> jax.Array:
    flat, known = FlatGroups.of(batch), NodePlaces.in_batch(batch)
    return jax.lax.map(partial(_difference, finer, target, flat, known), jnp.asarray(points))


def _difference(
    finer: Target, target: Target, flat: Groups, known: NodePlaces | None, t: jax.Array
) -> jax.Array:
    """Difference of the sum over groups with nodes found at t and with those that are known."""
    assert isinstance(finer.model, IntegratedEffects)
    assert isinstance(target.model, IntegratedEffects)
    theta = target.unravel(t)
    exact = finer.model.group_likelihoods(theta, flat, None)
    return (exact - target.model.group_likelihoods(theta, flat, known)).sum()


def _differences_by_numpy(
    finer: Target, target: Target, points: np.ndarray, batch: Batch
) -> np.ndarray:
    """The same without a compiler, block after block."""
    known = NodePlaces.in_batch(batch)
    assert known is not None

    def of_block(part: tuple[slice, NumPyGroups]) -> np.ndarray:
        own, block = part
        places = known._replace(centre=known.centre[own])
        with np.errstate(all="ignore"):
            at = [_difference(finer, target, block, places, as_either(t)) for t in points]
        return np.array(at)

    with one_blas_thread(), ThreadPoolExecutor(os.cpu_count()) as threads:
        return np.sum(list(threads.map(of_block, NumPyGroups.of(batch).in_blocks())), axis=0)


# Groups drawn as rows -----------------------------------------------------------------------


class DrawnGroups(NamedTuple):
    """Groups that were drawn, as their rows: a request for rows."""

    row_ids: jax.Array  # (groups, width); rows beyond a group's are copies of its last
    probability: jax.Array
    group_rows: jax.Array
    group_centre: jax.Array


class GroupTables(NamedTuple):
    """Those of the design that draws groups, and what is known of each group."""

    design: Pytree
    order: Array | None  # numbers of the rows in group order; None: 0, 1, 2, ...
    start: Array  # of each group, in that order
    size: Array
    centre: Array


@dataclass(frozen=True)
class GroupDesign:
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

    def draw(self, key: jax.Array, count: int, tables: GroupTables) -> DrawnGroups:
        """Draw `count` groups, with replacement."""
        drawn = self.groups.draw(key, count, tables.design)
        group, size = drawn.row_ids, tables.size[drawn.row_ids]
        within = jnp.minimum(jnp.arange(self.width), size[:, None] - 1)
        place = tables.start[group][:, None] + within
        row_ids = place if tables.order is None else tables.order[place].astype(place.dtype)
        beside = (size, tables.centre[group])
        return DrawnGroups(row_ids, drawn.probability, *beside)


def of_groups(
    design: Design[Any], tables: Pytree, rows: GroupedRows
) -> tuple[GroupDesign, GroupTables]:
    """The design that requests the rows of the groups that `design` draws."""
    assert rows.nodes is not None, "nodes are fixed before groups are drawn"
    index = rows.index
    known = (index.order, index.start[:-1], index.size, rows.nodes.centre)
    return GroupDesign(design, rows.largest), GroupTables(tables, *known)
