"""Draws of integrated effects, afterwards, from the rows of their groups.

Given a draw of the coefficients and of the effects' covariance, groups are independent. Their
effects are drawn by independence-Metropolis steps whose proposals are N(centre, spread spread') of
each group at the anchor, along the posterior's draws.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models import IntegratedEffects, Target
from modicum.models.integrated import FlatGroups
from modicum.random import IMPL
from modicum.runtime import SCATTERS, in_double_precision, jit

__all__ = ["draw_effects", "effect_shift", "expected_given"]

STEPS = 4  # Metropolis steps from one draw of the posterior to the next
WIDER = 1.15  # proposals than the groups' own spread: nodes are those of the anchor
STEADY = 20  # steps before the first draw


@in_double_precision
def draw_effects(
    target: Target, batch: Any, points: np.ndarray, seed: int, chunk: int
) -> np.ndarray:
    """Effects of the groups of a chunk at each of the flat points: (points, groups, effects)."""
    key = jax.random.fold_in(jax.random.key(seed, impl=IMPL), chunk)
    return np.asarray(_draw_effects(target, batch, jnp.asarray(points), key))


@jit(static=0)
def expected_given(model: IntegratedEffects, draws: Any, found: Any, batch: Any) -> jax.Array:
    """Expected outcomes of rows at each draw, given the effects of their groups."""

    def of_draw(named: Any, effects: jax.Array) -> jax.Array:
        return model.expected_given(model.restore(named), effects, batch)

    return jax.vmap(of_draw)(draws, found)


@in_double_precision
def effect_shift(model: IntegratedEffects, effects: np.ndarray, batch: Any) -> np.ndarray:
    """What effects (draws, rows, effects) add to the predictors of rows, (draws, rows)."""
    seen = dict(batch) | {"y": np.zeros(effects.shape[1])}
    return np.sum(np.asarray(model.effect_columns(seen)) * effects, axis=2)


@jit(static=0, options=SCATTERS)
def _draw_effects(target: Target, batch: Any, points: jax.Array, key: jax.Array) -> jax.Array:
    """Effects T v of the groups of a chunk at each point, (points, groups, effects)."""
    model = target.model
    assert isinstance(model, IntegratedEffects)
    flat = FlatGroups.of(batch)
    z = model.effect_columns(flat.rows)
    centre = jnp.asarray(batch["group_centre"], jnp.float64)
    spread = WIDER * jnp.asarray(batch["group_spread"], jnp.float64)

    def log_ratio(theta: Any, eta: jax.Array, v: jax.Array, xi: jax.Array) -> jax.Array:
        """Log of target over proposal at v = centre + spread xi, of each group."""
        shift = jnp.sum(z * flat.spread(v @ model.covariance.factor(theta).T), axis=1)
        f = model.of_row(eta + shift, model.extras_of(theta), flat.rows)
        return flat.sum(f) - 0.5 * jnp.sum(v**2 - xi**2, axis=1)

    def step(theta: Any, eta: jax.Array, key: jax.Array, state: Any) -> Any:
        v, now = state
        normal_key, uniform_key = jax.random.split(key)
        xi = jax.random.normal(normal_key, v.shape)
        proposed = centre + jnp.einsum("jab,jb->ja", spread, xi)
        then = log_ratio(theta, eta, proposed, xi)
        accept = jnp.log(jax.random.uniform(uniform_key, now.shape)) < then - now
        return jnp.where(accept[:, None], proposed, v), jnp.where(accept, then, now)

    def at_point(steps: int, carry: jax.Array, item: Any) -> tuple[jax.Array, jax.Array]:
        t, key = item
        theta = target.unravel(t)
        eta = model.family.linear(theta, flat.rows).astype(jnp.float64)
        xi = jnp.einsum("jab,jb->ja", jnp.linalg.inv(spread), carry - centre)
        state = (carry, log_ratio(theta, eta, carry, xi))
        keys = jax.random.split(key, steps)
        v, _ = jax.lax.fori_loop(0, steps, lambda k, s: step(theta, eta, keys[k], s), state)
        return v, v @ model.covariance.factor(theta).T

    first, rest = jax.random.split(key)
    start, _ = at_point(STEADY, centre, (points[0], first))
    keys = jax.random.split(rest, len(points))
    _, found = jax.lax.scan(partial(at_point, STEPS), start, (points, keys))
    return found
