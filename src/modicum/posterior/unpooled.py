"""What the rows of a level say of its effect by themselves, without the other levels.

The effect u that maximises sum_i f(y_i, eta_i + z_i u) over the rows of the level, all else at its
posterior mean: where a model without pooling would put it. Levels whose outcomes are all alike
have none that is finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models import IntegratedEffects, LinearPredictorModel
from modicum.models.base import Batch
from modicum.models.groups import effect_columns
from modicum.posterior.draws import Draws
from modicum.posterior.effects import group_levels, terms_of
from modicum.posterior.fitted import Fit
from modicum.posterior.weighted import weighted_mean
from modicum.rows import Rows
from modicum.runtime import Array, in_double_precision, jit

__all__ = ["unpooled_effects"]

CHUNK = 65_536
STEPS = 40  # of Newton's method
LONGEST = 5.0  # step, in standard deviations of the effects or of what the rows say of one
SETTLED = 1e-3  # the last step of a level that has an estimate, in the same unit


@in_double_precision
def unpooled_effects(
    source: Draws,
    fit: Fit,
    rows: Rows,
    group: str,
    effect: str,
    levels: Sequence[object],
    pooled: np.ndarray,
    sd: float,
) -> np.ndarray:
    """The effects of some levels that fit their own rows best; infinite where none does.

    Parameters
    ----------
    source, fit, rows
        The draws, what was fitted, and to which rows.
    group, effect
        The factor, and which of its effects, as `Posterior.effects` calls them.
    levels
        Levels of the factor.
    pooled
        Posterior means of all their effects, (levels, effects): where the others are held.
    sd
        Standard deviation of the effects in the population, the unit of steps.
    """
    model = fit.model
    integrated = isinstance(model, IntegratedEffects) and group == model.group
    family = model.family if isinstance(model, IntegratedEffects) else model
    assert isinstance(family, LinearPredictorModel)
    terms = terms_of(model, group)
    k = [name for term in terms for name in term.sd_names].index(effect)
    batch, which = _rows_of(rows, group, _codes(model, rows, group, levels))
    weights = source.weights
    named = {
        name: weighted_mean(x, np.ones(x.shape[:2]) if weights is None else weights)
        for name, x in source.draws.items()
    }
    predictors = np.array(family.predictor_vector(model.restore(named), batch))
    x = np.asarray(batch.get("x", np.empty((len(which), 0))))
    z = np.column_stack([effect_columns(term, rows, x) for term in terms])
    if integrated:  # the predictors know nothing of them
        others = pooled * (np.arange(pooled.shape[1]) != k)
        predictors[:, 0] += np.sum(z * others[which], axis=1)
    else:
        predictors[:, 0] -= z[:, k] * pooled[which, k]
    frequency = np.asarray(batch.get("weight", np.ones(len(which))))
    seen = (predictors, np.asarray(family.outcome(batch)), z[:, k], frequency, which)
    return np.asarray(_maximised(family.without_priors(), *seen, pooled[:, k], sd))


def _codes(model: object, rows: Rows, group: str, levels: Sequence[object]) -> np.ndarray:
    """What rows hold for these levels: codes, or numbers of the rows' own."""
    if isinstance(model, IntegratedEffects) and group == model.group:
        groups = model.units(rows)
        names, values = group_levels(groups), groups.index.values
    else:
        names = np.asarray(rows.levels[group], object)
        values = np.arange(len(names))
    place = {str(name): value for name, value in zip(names.tolist(), values, strict=True)}
    return np.array([place[str(level)] for level in levels])


def _rows_of(rows: Rows, group: str, codes: np.ndarray) -> tuple[Batch, np.ndarray]:
    """The rows whose factor has one of these codes, and which of them each has."""
    order = np.argsort(codes)
    parts: list[dict[str, np.ndarray]] = []
    for chunk in rows.chunks(CHUNK):
        there = np.isin(chunk[group], codes)
        parts.append({name: np.asarray(values)[there] for name, values in chunk.items()})
    batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return batch, order[np.searchsorted(codes[order], batch[group])]


@jit(static=0)
def _maximised(
    family: LinearPredictorModel,
    predictors: Array,
    y: Array,
    z: Array,
    frequency: Array,
    which: Array,
    start: Array,
    sd: float,
) -> jax.Array:
    """Newton's method for each level by itself."""

    def density(shift: jax.Array, predictors: jax.Array, y: jax.Array) -> jax.Array:
        return family.log_density(predictors.at[0].add(shift), y)

    slope = jax.vmap(jax.grad(density))
    bend = jax.vmap(jax.grad(jax.grad(density)))

    def step(_: int, held: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        u = held[0]
        shift = z * u[which]
        along = jax.ops.segment_sum(frequency * z * slope(shift, predictors, y), which, len(start))
        curved = frequency * z**2 * bend(shift, predictors, y)
        information = jnp.maximum(-jax.ops.segment_sum(curved, which, len(start)), 1e-12 / sd**2)
        unit = jnp.minimum(sd, 1 / jnp.sqrt(information))
        longest = LONGEST * jnp.maximum(sd, 1 / jnp.sqrt(information))
        move = jnp.clip(along / information, -longest, longest)
        return u + move, jnp.abs(move) / unit

    first = (jnp.asarray(start), jnp.zeros(len(start)))
    u, moved = jax.lax.fori_loop(0, STEPS, step, first)
    return jnp.where(moved < SETTLED, u, jnp.sign(u) * jnp.inf)
