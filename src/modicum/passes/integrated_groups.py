"""Groups whose effects are integrated out: places of their nodes, and the effects given the rest.

Nodes are placed at the anchor in one pass and kept with the groups. Given a draw of the
coefficients and of the effects' covariance, groups are independent. Means and variances of their
effects are sums over the nodes of their integrals. Effects are drawn by independence-Metropolis
steps with proposals slightly wider than the normal approximation to each group's integrand at that
draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.ledger import Ledger
from modicum.models import Target
from modicum.models.integrated import FlatGroups
from modicum.models.model import Batch, Params
from modicum.passes.engine import Engine
from modicum.passes.hessians import group_places, group_places_by_numpy
from modicum.passes.mode import find_mode
from modicum.passes.sums import Sums
from modicum.random import Stream, key
from modicum.rows import Rows
from modicum.rows.grouped_rows import GroupedRows, NodePlaces, as_groups
from modicum.runtime import SCATTERS, Array, for_numpy, jit

CLOSE = 0.5  # tolerance of a start for the mode, in posterior standard deviations


def with_nodes(sums: Sums, t: np.ndarray) -> tuple[Target, GroupedRows]:
    """Find the mode of each group's integrand at `t` in one pass; keep it with the groups."""
    target, groups = sums.target, as_groups(sums.rows)
    sums.enter("nodes", 1, "gradient", passes=1)
    chunk_places = group_places_by_numpy if sums.by_numpy else group_places
    point = np.array(t, np.float64)[: target.likelihood.size]
    places = sums.engine.map_rows(partial(chunk_places, target.likelihood), point, groups, "nodes")
    nodes = NodePlaces(places, point)
    fixed = replace(target.integrated, nodes_at=tuple(float(value) for value in t))
    return replace(target, model=fixed), groups.with_nodes(nodes)


def units_of(target: Target, rows: Rows, engine: Engine, ledger: Ledger) -> Rows:
    """Return the units of a fitted model: its rows, or its groups with the nodes of the fit."""
    units = target.model.units(rows)
    if target.model.integrated_group is None or target.integrated.nodes_at is None:
        return units
    return with_nodes(Sums(target, units, engine, ledger), np.array(target.integrated.nodes_at))[1]


def common_start(sums: Sums, start: np.ndarray, seed: int) -> np.ndarray:
    """Find a start for the mode: coefficients as if there were no groups, and small effects."""
    model, groups = sums.target.integrated, sums.rows
    ledger = Ledger(rows=len(groups.members))
    target, first = Target.of(model.family, groups.members)
    if target.size == 0:  # y ~ 0 + (1 | g), without a scale
        return start
    plain = Sums(target, groups.members, sums.engine, ledger)
    at, _ = find_mode(plain, first, seed, within=CLOSE)
    sums.enter("mode", ledger.sweeps, "hessian", passes=ledger.sweeps)
    theta: Params = dict(sums.target.unravel(start)) | target.unravel(at.point)
    return sums.target.ravel(theta)


Steps: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]
"""Effects v, log of target over proposal there, and proposals accepted so far."""
STEPS = 4  # Metropolis steps between draws of the posterior
WIDER = 1.15  # width of proposals relative to the normal approximation
STEADY = 20  # burn-in steps before the first draw


class DrawnEffects(NamedTuple):
    """Effects of groups at each point, and the acceptance rate of their proposals."""

    effects: np.ndarray  # (points, groups, effects)
    acceptance: np.ndarray  # mean acceptance rate of each group


def draw_effects(
    target: Target, batch: Batch, points: np.ndarray, seed: int, chunk: int
) -> DrawnEffects:
    """Draw the effects of the groups of a chunk at each of the flat points."""
    stream = jax.random.fold_in(key(seed, Stream.EFFECTS), chunk)
    return DrawnEffects(*_draw_effects(target, batch, points, stream))


@for_numpy
@jit(static=0, options=SCATTERS)
def effect_moments(target: Target, batch: Batch, points: Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the effects of a chunk's groups at each point, (points, groups, r)."""
    model = target.integrated
    flat, places = FlatGroups.of(batch), NodePlaces.in_batch(batch)

    def at_point(t: jax.Array) -> tuple[jax.Array, jax.Array]:
        theta = target.unravel(t)
        nodes = model.nodes_of(theta, flat, places)
        u = nodes.v @ model.factor(theta).T
        eta, extras = model.linear(theta, flat.rows), model.extras_of(theta)

        def log_term(u: jax.Array) -> jax.Array:
            along = model.along_effects(flat.rows, flat.spread(u))
            return flat.sum(model.row_values(eta + along, extras, flat.rows))

        # node by node, so that no array of all rows and all nodes is formed
        terms = jax.lax.map(log_term, jnp.moveaxis(u, 1, 0))
        p = jax.nn.softmax(nodes.log_weight + terms.T, axis=1)
        mean = jnp.einsum("jk,jka->ja", p, u)
        return mean, jnp.einsum("jk,jka->ja", p, (u - mean[:, None]) ** 2)

    return jax.lax.map(at_point, points)


@for_numpy
@jit(static=0, options=SCATTERS)
def _draw_effects(
    target: Target, batch: Batch, points: Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draw the effects T v of a chunk's groups at each point; return acceptance rates too."""
    model = target.integrated
    flat = FlatGroups.of(batch)
    z = model.effect_columns(flat.rows)
    anchor = target.unravel(jnp.asarray(batch["group_point"]))
    near = model.integrands(anchor, jnp.asarray(batch["group_centre"]), flat)

    def at_point(
        steps: int, start: jax.Array, item: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        t, key = item
        theta = target.unravel(t)
        eta = model.linear(theta, flat.rows)
        T, extras = model.factor(theta), model.extras_of(theta)
        e = eta - model.linear(anchor, flat.rows)
        centre, spread = model.widths(near, T, model.shift(near, e, flat))

        def log_ratio(v: jax.Array, xi: jax.Array) -> jax.Array:
            """Log of target over proposal at v = centre + spread xi, of each group."""
            f = model.row_values(eta + jnp.sum(z * flat.spread(v @ T.T), axis=1), extras, flat.rows)
            return flat.sum(f) - 0.5 * jnp.sum(v**2 - xi**2, axis=1)

        v, accepted = _metropolis(log_ratio, centre, WIDER * spread, start, key, steps)
        return v, (v @ T.T, accepted)

    first, rest = jax.random.split(key)
    centre = jnp.asarray(batch["group_centre"], jnp.float64)
    start, _ = at_point(STEADY, centre, (points[0], first))
    keys = jax.random.split(rest, len(points))
    _, (effects, accepted) = jax.lax.scan(partial(at_point, STEPS), start, (points, keys))
    return effects, jnp.mean(accepted, axis=0)


def _metropolis(
    log_ratio: Callable[[jax.Array, jax.Array], jax.Array],
    centre: jax.Array,
    spread: jax.Array,
    start: jax.Array,
    key: jax.Array,
    steps: int,
) -> tuple[jax.Array, jax.Array]:
    """Take independence-Metropolis steps, one chain per group; return its end and acceptance rate.

    Proposals are v = centre + spread xi with standard normal xi, and `log_ratio` is the log of
    target over proposal at (v, xi).
    """

    def step(k: int, state: Steps) -> Steps:
        v, now, accepted = state
        normal_key, uniform_key = jax.random.split(keys[k])
        xi = jax.random.normal(normal_key, v.shape)
        proposed = centre + jnp.einsum("jab,jb->ja", spread, xi)
        proposed_ratio = log_ratio(proposed, xi)
        accept = jnp.log(jax.random.uniform(uniform_key, now.shape)) < proposed_ratio - now
        v = jnp.where(accept[:, None], proposed, v)
        return v, jnp.where(accept, proposed_ratio, now), accepted + accept

    keys = jax.random.split(key, steps)
    xi = jnp.einsum("jab,jb->ja", jnp.linalg.inv(spread), start - centre)
    state = (start, log_ratio(start, xi), jnp.zeros(len(start)))
    v, _, accepted = jax.lax.fori_loop(0, steps, step, state)
    return v, accepted / steps
