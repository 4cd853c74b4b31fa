"""Methods on groups of rows: quadrature nodes fixed at the mode, and groups drawn like rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, is_numpy
from modicum.errors import ModicumWarning, listed
from modicum.kernels.designs import Design
from modicum.methods.method import Task
from modicum.models import Target
from modicum.models.integrated import groups_of
from modicum.models.model import Batch
from modicum.passes import NEAR, Anchor, Sums, anchor_at_mode, common_start, with_nodes
from modicum.passes.hyperparameters import scale_doubts
from modicum.random import Stream, generator
from modicum.rows.grouped_rows import GroupedRows, NodePlaces, as_groups
from modicum.runtime import SCATTERS, Array, Pytree, in_double_precision, jit

NEAR_ZERO = 0.5  # posterior sd of log group_sd above which the prior decides its lower end
CHECKED_GROUPS, CHECKED_DRAWS = 256, 16  # on which the quadrature is checked
COARSE = 0.1  # largest shift of a posterior mean, in posterior sd, that quadrature may cause


def with_fixed_nodes(task: Task) -> Task:
    """Fix the quadrature nodes of a task at the mode; tasks without nodes are returned unchanged.

    Nodes and anchor agree at this mode: the search placed nodes at every point on its way, and at
    the last point the gradient with its nodes is zero.
    """
    if not task.grouped or as_groups(task.rows).nodes is not None:
        return task

    def find() -> Anchor:
        start = common_start(task.sums, task.start, task.seed)
        return anchor_at_mode(task.sums, start, task.names, task.seed, within=NEAR)

    anchor = task.remember("anchor", Anchor, find)
    target, rows = with_nodes(task.sums, anchor.point)
    sums = Sums(target, rows, task.sums.engine, task.ledger)
    anchor = replace(anchor, notes=[*anchor.notes, *doubts_about_groups(sums, anchor)])
    return replace(task, target=target, rows=rows, sums=sums, start=anchor.point, anchor=anchor)


# Doubts -----------------------------------------------------------------------------------


def doubts_about_groups(sums: Sums, anchor: Anchor) -> list[ModicumWarning]:
    """Return warnings about the groups, before any chain runs."""
    model, groups = sums.target.integrated, sums.rows
    places = sums.target.unravel(np.arange(sums.target.size))["group_log_sd"]
    width = anchor.sd[places]
    sd = np.exp(anchor.point[places])
    return [
        note
        for k, name in enumerate(model.term.sd_names)
        for note in scale_doubts(
            f"group_sd[{name}]", len(groups), float(sd[k]), bool(width[k] > NEAR_ZERO)
        )
    ]


@listed
def uneven_groups(groups: GroupedRows, subsample: int) -> Iterator[ModicumWarning]:
    """Warn if `subsample` groups as large as the largest one hold more rows than there are.

    Since any group may be drawn, every step allots that many rows and computes with all of them.
    """
    n = len(groups.members)
    if subsample * groups.largest < n:
        return
    yield ModicumWarning(
        "groups-uneven",
        f"the largest group holds {groups.largest:,} of {n:,} rows, and a step computes as "
        f"for {subsample:,} groups of that size, which costs more than all rows",
        "use method='nuts' on all rows",
        largest=groups.largest,
        rows=n,
    )


@in_double_precision
@listed
def quadrature_doubts(sums: Sums, points: np.ndarray, seed: int) -> Iterator[ModicumWarning]:
    """Warn if twice as many nodes change the integrals of some groups at posterior draws.

    `points` are flat draws, one per row. The error of all groups is a function of the parameters
    that is added to the log-posterior: its standard deviation bounds the shift of any posterior
    mean, in posterior standard deviations. The draws used range from the smallest to the largest
    standard deviation of effects, and the finer nodes are placed anew at each of them, so that
    nodes that miss the integrand are noticed.
    """
    target, groups = sums.target.likelihood, sums.rows
    points = points[np.all(np.isfinite(points), axis=1)]
    if target.model.integrated_group is None or len(points) < 2:
        return
    model = target.integrated
    first_sd = target.unravel(np.arange(target.size))["group_log_sd"][0]
    ranked = np.argsort(points[:, first_sd])
    points = points[ranked[np.linspace(0, len(ranked) - 1, CHECKED_DRAWS).astype(int)]]
    rng = generator(seed, Stream.NODE_CHECK)
    checked = min(len(groups), CHECKED_GROUPS)
    batch = groups.take(np.sort(rng.choice(len(groups), checked, replace=False)))
    finer = replace(target, model=replace(model, nodes=2 * model.per_effect))
    differences = _differences if target.on_numpy else _compiled_differences
    with np.errstate(all="ignore"):
        error = np.asarray(differences(finer, target, as_either(points), batch))
    sums.ledger.add("nodes", checked * CHECKED_DRAWS, "density")
    bound = float(np.std(error)) * len(groups) / checked
    if not bound > COARSE:
        return
    yield ModicumWarning(
        "quadrature-coarse",
        f"{model.per_effect} quadrature nodes per effect are too few for the integrals over "
        f"groups: compared with twice as many on {checked} groups, posterior means may be off "
        f"by up to {bound:.2g} posterior standard deviations",
        f"give IntegratedEffects more nodes (nodes={2 * model.per_effect}), or sample the "
        "effects explicitly (groups='explicit')",
        bound=bound,
        nodes=model.per_effect,
    )


def _differences(finer: Target, target: Target, points: jax.Array, batch: Batch) -> jax.Array:
    """Sum over groups with finer nodes placed at each point, less the sum with the known nodes."""
    groups, known = groups_of(batch, points), NodePlaces.in_batch(batch)

    def at_point(t: jax.Array) -> jax.Array:
        theta, total = target.unravel(t), as_either(np.zeros(()))
        for own, block in groups.in_blocks():
            places = None if known is None else known._replace(centre=known.centre[own])
            exact = finer.integrated.group_likelihoods(theta, block, None)
            total += (exact - target.integrated.group_likelihoods(theta, block, places)).sum()
        return total

    if is_numpy(points):
        return as_either(np.array([at_point(t) for t in points]))
    return jax.lax.map(at_point, points)


_compiled_differences = jit(static=(0, 1), options=SCATTERS)(_differences)


# Groups drawn like rows ---------------------------------------------------------------------


class DrawnGroups(NamedTuple):
    """A request for all rows of the groups that were drawn."""

    row_ids: jax.Array  # (groups, width); padded with copies of each group's last row
    probability: jax.Array
    group_rows: jax.Array
    group_centre: jax.Array


class GroupTables(NamedTuple):
    """The tables of the design that draws groups, and the place of each group's rows."""

    design: Pytree
    order: Array | None  # row numbers in group order; None: 0, 1, 2, ...
    start: Array  # where each group begins in that order
    size: Array
    centre: Array


@dataclass(frozen=True)
class GroupDesign:
    """A design over groups that requests all rows of the groups it draws.

    Parameters
    ----------
    groups
        The design that draws groups.
    width
        Rows of the largest group, so that all requests have the same shape.
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
        return DrawnGroups(row_ids, drawn.probability, size, tables.centre[group])


def group_tables(tables: Pytree, rows: GroupedRows) -> GroupTables:
    """Return the tables of a design that draws groups, with the places of their rows."""
    assert rows.nodes is not None, "nodes are fixed before groups are drawn"
    index = rows.index
    return GroupTables(tables, index.order, index.start[:-1], index.size, rows.nodes.centre)
