"""Stochastic-gradient MCMC: an integrator, an estimator of the gradient, and a selector of batches.

One step: the integrator goes where the gradient is wanted, the estimator makes a gradient of each
drawn batch there, the selector picks one of them, the integrator uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from modicum.designs import Design, Drawn
from modicum.kernels.base import (
    Draw,
    GradientEstimator,
    StochasticGradientContext,
    scaled,
)
from modicum.kernels.integrators import Integrator, IntegratorState
from modicum.kernels.selectors import Selector
from modicum.models.base import Batch
from modicum.runtime import Array, Pytree

__all__ = ["StepFlags", "StochasticGradientKernel", "StochasticGradientState"]


class StepFlags(NamedTuple):
    """What is known of a step before the run."""

    step_size: Array
    refreshed: Array  # the momentum is drawn anew before it
    renewed: Array  # the estimator's memory was renewed by a pass before it


class StochasticGradientState(NamedTuple):
    """Where the chain is, and what its estimator remembers."""

    integrator: IntegratorState
    memory: Pytree


@dataclass(frozen=True)
class StochasticGradientKernel:
    """Any integrator with any gradient estimator, selector and design.

    Parameters
    ----------
    integrator, selector
        See `modicum.kernels.integrators` and `modicum.kernels.selectors`.
    estimator
        What makes a gradient of U = -log posterior of a batch (`modicum.estimators.gradients`).
    design
        How rows are drawn.
    batch
        Rows in a batch.
    precision
        Of the state and the gradients.
    random_start
        Where a chain with this key starts, in parameters; None: all at the context's `start`.
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
        """Batches a step draws."""
        return self.selector.batches(self.integrator)

    @property
    def cost(self) -> int:
        """Gradients of single rows a step evaluates, snapshots aside."""
        return self.batches * self.batch * int(self.estimator.evaluations)

    def initial_row_request(self, key: jax.Array, context: StochasticGradientContext) -> None:
        """A chain starts without rows."""

    def row_request(self, key: jax.Array, context: StochasticGradientContext) -> Drawn:
        """All candidate batches, each with a key of its own."""
        keys = jax.random.split(key, self.batches)
        return jax.vmap(lambda k: self.design.draw(k, self.batch, context.design))(keys)

    def prepare(self, batch: Batch, context: StochasticGradientContext) -> Pytree:
        """What the estimator makes of rows without the state, batch by batch."""
        return jax.vmap(lambda one_batch: self.estimator.prepare(one_batch, context))(batch)

    def init(
        self, key: jax.Array, batch: None, context: StochasticGradientContext
    ) -> StochasticGradientState:
        """Start at the context's point or a random one, or scattered about it."""
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

    def step(
        self,
        key: jax.Array,
        state: StochasticGradientState,
        flags: StepFlags,
        batch: Pytree,
        context: StochasticGradientContext,
    ) -> tuple[StochasticGradientState, Draw]:
        """Drift, gradients, choice, kick."""
        # A plain step uses its key for one thing, and need not split it.
        plain = self.batches == 1 and self.integrator.period is None
        refresh_key, select_key, kick_key = (key,) * 3 if plain else jax.random.split(key, 3)
        current, memory = state
        h = jnp.asarray(flags.step_size, current.z.dtype)
        if self.integrator.period is not None:
            fresh = self.integrator.refresh(refresh_key, current)
            current = jax.tree.map(partial(jnp.where, flags.refreshed), fresh, current)
        current = self.integrator.drift(current, h)
        gradients = self.gradients(current.z, batch, memory, context)
        gradient, info = self.selector.select(
            select_key, gradients, lambda: self.integrator.noise_match(current, h)
        )

        def diagonal() -> jax.Array:
            jacobian = jax.jacfwd(lambda z: self.gradients(z, batch, memory, context)[0])
            return jnp.diagonal(jacobian(current.z))

        after = self.integrator.kick(kick_key, current, gradient, h, context, diagonal)
        always = self.estimator.certain_rows(context)  # once, whatever the number of batches
        evaluated = self.cost * (1 + self.integrator.derivatives(current.z.shape[0]))
        touched = evaluated + always + jnp.where(flags.renewed, context.n, 0)
        draw = {"position": after.z, "step_size": h, "rows_touched": touched, **info}
        return StochasticGradientState(after, memory), draw

    def gradients(
        self, z: jax.Array, batches: Pytree, memory: Pytree, context: StochasticGradientContext
    ) -> jax.Array:
        """The gradient of U at z by each batch, (batches, d)."""
        if self.batches == 1:
            only = jax.tree.map(lambda field: field[0], batches)
            return self.estimator.gradient(z, only, memory, context)[None]
        return jax.vmap(lambda batch: self.estimator.gradient(z, batch, memory, context))(batches)
