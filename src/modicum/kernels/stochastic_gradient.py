"""Stochastic-gradient MCMC with any integrator, gradient estimator and batch selector.

In each step the integrator drifts to the point where it needs the gradient, the estimator computes
a gradient from each drawn batch there, the selector picks one, and the integrator applies it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from modicum.designs import Design, Drawn
from modicum.kernels.base import Draw, GradientEstimator, StochasticGradientContext
from modicum.kernels.coordinates import scaled
from modicum.kernels.integrators import Integrator, IntegratorState
from modicum.kernels.selectors import Selector
from modicum.models.base import Batch
from modicum.runtime import Array, Pytree


class StepFlags(NamedTuple):
    """Schedule of a step, fixed before the run."""

    step_size: Array
    refreshed: Array  # whether the momentum is drawn anew before the step
    renewed: Array  # whether a pass renews the estimator's memory before the step


class StepChances(NamedTuple):
    """The random numbers of one step, and keys for more."""

    refresh_key: jax.Array
    select_key: jax.Array
    xi: jax.Array  # noise of the kick, standard normal


class StochasticGradientState(NamedTuple):
    """State of the chain, and the memory of its gradient estimator."""

    integrator: IntegratorState
    memory: Pytree


@dataclass(frozen=True)
class StochasticGradientKernel:
    """A stochastic-gradient kernel with any integrator, gradient estimator, selector and design.

    Parameters
    ----------
    integrator, selector
        See `modicum.kernels.integrators` and `modicum.kernels.selectors`.
    estimator
        Estimates the gradient of U = -log posterior from a batch (`modicum.estimators.gradients`).
    design
        Draws the rows.
    batch
        Rows in a batch.
    precision
        Floating-point type of the state and the gradients.
    random_start
        Maps a chain's key to its starting parameters; None: start at the context's `start`.
    """

    integrator: Integrator
    estimator: GradientEstimator[Pytree]
    selector: Selector
    design: Design[Pytree]
    batch: int
    precision: Literal["float64", "float32"] = "float64"
    random_start: Callable[[jax.Array], jax.Array] | None = None

    @property
    def batches(self) -> int:
        """Number of batches per step."""
        return self.selector.batches(self.integrator)

    @property
    def cost(self) -> int:
        """Row gradients evaluated per step, not counting snapshots."""
        return self.batches * self.batch * int(self.estimator.evaluations)

    def initial_row_request(self, key: jax.Array, context: StochasticGradientContext) -> None:
        """Request nothing: a chain starts without rows."""

    def row_request(self, key: jax.Array, context: StochasticGradientContext) -> Drawn:
        """Request all candidate batches, each drawn with its own key."""
        keys = jax.random.split(key, self.batches)
        return jax.vmap(lambda k: self.design.draw(k, self.batch, context.design))(keys)

    def prepare(self, batch: Batch, context: StochasticGradientContext) -> Pytree:
        """Prepare each batch for the estimator."""
        return jax.vmap(lambda one_batch: self.estimator.prepare(one_batch, context))(batch)

    def init(
        self, key: jax.Array, batch: None, context: StochasticGradientContext
    ) -> StochasticGradientState:
        """Start at the context's `start` or a random point, plus scatter."""
        del batch
        place_key, dynamics_key = jax.random.split(key)
        start = context.start
        if self.random_start is not None:
            start_key, place_key = jax.random.split(place_key)
            start = self.random_start(start_key).astype(start.dtype) - context.point
        away = jax.random.normal(place_key, start.shape, start.dtype)
        z = start + scaled(context.spread, away)
        return StochasticGradientState(
            self.integrator.start(dynamics_key, z), self.estimator.start(z, context)
        )

    def chances(self, key: jax.Array, context: StochasticGradientContext) -> StepChances:
        """Draw the noise of a kick; a step draws its other random numbers."""
        # A plain step uses its key for one purpose only, and need not split it.
        plain = self.batches == 1 and self.integrator.period is None
        refresh_key, select_key, kick_key = (key,) * 3 if plain else jax.random.split(key, 3)
        start = context.start
        xi = jax.random.normal(kick_key, start.shape, start.dtype)
        return StepChances(refresh_key, select_key, xi)

    def step(
        self,
        chances: StepChances,
        state: StochasticGradientState,
        flags: StepFlags,
        batch: Pytree,
        context: StochasticGradientContext,
    ) -> tuple[StochasticGradientState, Draw]:
        """Drift, estimate gradients, select one, and kick."""
        current, memory = state
        h = jnp.asarray(flags.step_size, current.z.dtype)
        if self.integrator.period is not None:
            fresh = self.integrator.refresh(chances.refresh_key, current)
            current = jax.tree.map(partial(jnp.where, flags.refreshed), fresh, current)
        current = self.integrator.drift(current, h)
        gradients = self.gradients(current.z, batch, memory, context)
        gradient, info = self.selector.select(
            chances.select_key, gradients, lambda: self.integrator.noise_match(current, h)
        )

        def diagonal() -> jax.Array:
            jacobian = jax.jacfwd(lambda z: self.gradients(z, batch, memory, context)[0])
            return jnp.diagonal(jacobian(current.z))

        after = self.integrator.kick(chances.xi, current, gradient, h, context, diagonal)
        always = self.estimator.certain_rows(context)  # once, for any number of batches
        evaluated = self.cost * (1 + self.integrator.derivatives(current.z.shape[0]))
        touched = evaluated + always + jnp.where(flags.renewed, context.n, 0)
        draw = {"position": after.z, "step_size": h, "rows_touched": touched, **info}
        return StochasticGradientState(after, memory), draw

    def gradients(
        self, z: jax.Array, batches: Pytree, memory: Pytree, context: StochasticGradientContext
    ) -> jax.Array:
        """Estimate the gradient of U at z from each batch; return shape (batches, d)."""
        if self.batches == 1:
            only = jax.tree.map(lambda field: field[0], batches)
            return self.estimator.gradient(z, only, memory, context)[None]
        return jax.vmap(lambda batch: self.estimator.gradient(z, batch, memory, context))(batches)
