"""The maximum-likelihood effect of each level, by Newton's method for all levels at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from modicum.models.linear_predictor import LinearPredictorModel
from modicum.runtime import Array, jit

STEPS = 40  # Newton steps
LONGEST = 5.0  # longest step, in sds of the effects or standard errors of one, whichever is larger
SETTLED = 1e-3  # longest last step of a converged level, in the smaller of these units


@jit(static=0)
def level_modes(
    family: LinearPredictorModel,
    predictors: Array,
    y: Array,
    z: Array,
    frequency: Array,
    which: Array,
    start: Array,
    sd: float,
) -> jax.Array:
    """Maximize the log-likelihood of each level's rows in its effect; infinite without a maximum.

    Parameters
    ----------
    family
        The family, for its log-density.
    predictors, y
        Predictors (without the effect) and outcomes of the rows.
    z, frequency, which
        Multiplier of the effect, frequency weight and level of each row.
    start
        Starting effect of each level.
    sd
        Standard deviation of the effects in the population.
    """

    def density(shift: jax.Array, predictors: jax.Array, y: jax.Array) -> jax.Array:
        return family.log_density(predictors.at[0].add(shift), y)

    slope = jax.vmap(jax.grad(density))
    bend = jax.vmap(jax.grad(jax.grad(density)))

    def step(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        u = state[0]
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
