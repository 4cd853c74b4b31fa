"""Stochastic-gradient MCMC with any integrator, gradient estimator and batch selector.

In each step the integrator drifts to the point where it needs the gradient, the estimator computes
a gradient from each drawn batch there, the selector picks one, and the integrator applies it. The
selector `Plain` uses the only batch drawn, and `Exponential` is the index chain of EWSG. To add a
selector, write a class here and add it to SELECTORS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from modicum.arguments import Count, check_settings
from modicum.errors import SettingError
from modicum.kernels.designs import Design, Drawn
from modicum.kernels.gradients import BaseGradientEstimator
from modicum.kernels.integrators import Integrator, IntegratorState, NoiseMatch
from modicum.kernels.protocols import Draw, Kernel, StochasticGradientContext
from modicum.kernels.whitening import scaled
from modicum.models.model import Batch
from modicum.runtime import Array, Pytree


class Selector(ABC):
    """Selects a gradient from candidates. Subclasses are frozen dataclasses without arrays."""

    @abstractmethod
    def batches(self, integrator: Integrator) -> int:
        """Return the number of batches a step draws; refuse unsupported integrators."""

    @abstractmethod
    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], NoiseMatch]
    ) -> tuple[jax.Array, Draw]:
        """Select a gradient from the candidates (batches, d); return it and its statistics."""


@dataclass(frozen=True)
class Plain(Selector):
    """One batch per step, without selection."""

    def batches(self, integrator: Integrator) -> int:
        """Return 1."""
        return 1

    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], NoiseMatch]
    ) -> tuple[jax.Array, Draw]:
        """Return the only gradient."""
        return gradients[0], {}


@dataclass(frozen=True)
class Exponential(Selector):
    """Exponentially weighted batches, by a Metropolis chain over them (EWSG paper, Algorithm 1).

    Batches are weighted by how well their step matches the step of the full gradient,
    p_I ~ exp(|x + a_I|^2 / 2) (eq. 4). To first order this increases the friction to balance the
    noise of the batch, so that the momentum keeps its temperature. The variance of the gradient
    grows as long as weights are even, and falls, in exchange for a bias, where they concentrate on
    a few rows (large h or n). The chain starts from a uniform batch.

    Parameters
    ----------
    index_steps
        Length M of the chain; M + 1 batches are drawn per step. From a uniform start one step is
        exact to first order in the weights.
    x
        The guess at the unknown next momentum r' in x: "current" r' = r, x = sqrt(h) gamma r /
        sigma (the paper's choice, section 4.3); "zero" x = 0; "one" x = 1; "rest" r' = 0.
    weights
        "exponential": exp(|x + a|^2 / 2), the paper's weights. "linear": exp(x . a), which does
        not change the force and is not biased by skewed gradients. Without a momentum, x is
        computed from an additional batch.

    Examples
    --------
    >>> from modicum.kernels.integrators import Langevin, Underdamped
    >>> from modicum.kernels.stochastic_gradient import Exponential
    >>> Exponential().batches(Underdamped()), Exponential(weights="linear").batches(Langevin())
    (2, 3)
    """

    index_steps: Count = 1
    x: Literal["current", "zero", "one", "rest"] = "current"
    weights: Literal["exponential", "linear"] = "exponential"

    def __post_init__(self) -> None:
        check_settings(self)
        if self.weights == "linear" and self.x == "zero":
            raise SettingError(
                "linear weights exp(x . a) are all equal with x='zero'; choose another x, or "
                "weights='exponential'."
            )

    def batches(self, integrator: Integrator) -> int:
        """Return M + 1, plus one if x is computed from a batch."""
        if integrator.obstacle:
            raise SettingError(integrator.obstacle)
        if not integrator.has_momentum and self.x in ("one", "rest"):
            raise SettingError(
                f"x={self.x!r} needs a momentum, which {type(integrator).__name__} does not have; "
                "leave out x."
            )
        reference = self.weights == "linear" and not integrator.has_momentum
        return self.index_steps + 1 + reference

    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], NoiseMatch]
    ) -> tuple[jax.Array, Draw]:
        """Run the index chain over the candidates; record its acceptance rate."""
        match = matching()
        first, proposed = gradients[0], gradients[1 : self.index_steps + 1]
        if len(gradients) > self.index_steps + 1:
            x = match.scale * gradients[-1]
        else:
            x = self.guess(match)
        log_uniform = jnp.log(jax.random.uniform(key, (self.index_steps,), gradients.dtype))

        def propose(current: jax.Array, candidate: Pytree) -> tuple[jax.Array, jax.Array]:
            new, limit = candidate
            accept = limit < self.log_ratio(match.scale * current, match.scale * new, x)  # eq. 5
            return jnp.where(accept, new, current), accept

        last, accepted = jax.lax.scan(propose, first, (proposed, log_uniform), unroll=4)
        return last, {"acceptance_rate_index": jnp.mean(accepted.astype(gradients.dtype))}

    def guess(self, match: NoiseMatch) -> jax.Array:
        """Return x, from the guess at the next momentum."""
        return {
            "current": match.x,
            "zero": jnp.zeros_like(match.x),
            "one": jnp.ones_like(match.x),
            "rest": match.rest,
        }[self.x]

    def log_ratio(self, current: jax.Array, proposed: jax.Array, x: jax.Array) -> jax.Array:
        """log p_J - log p_I (eq. 5): (a_J - a_I) . (x + (a_J + a_I) / 2)."""
        centre = x if self.weights == "linear" else x + (proposed + current) / 2
        return jnp.sum((proposed - current) * centre)


SELECTORS: dict[str, type[Selector]] = {"plain": Plain, "exponential": Exponential}


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
class StochasticGradientKernel(Kernel[StochasticGradientState, StochasticGradientContext]):
    """A stochastic-gradient kernel with any integrator, gradient estimator, selector and design.

    Parameters
    ----------
    integrator, selector
        See `modicum.kernels.integrators` and `modicum.kernels.stochastic_gradient`.
    estimator
        Estimates the gradient of U = -log posterior from a batch (`modicum.kernels.gradients`).
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
    estimator: BaseGradientEstimator
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
        place_key, dynamics_key = jax.random.split(key)
        start = context.start
        if self.random_start is not None:
            start_key, place_key = jax.random.split(place_key)
            start = self.random_start(start_key).astype(start.dtype) - context.where.point
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
            fresh = self.integrator.start(chances.refresh_key, current.z)
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
