"""Moves of a single step: BlackJAX's Metropolis-adjusted Langevin algorithm and random walk.

`step_size` is the standard deviation of the proposal's noise in both, in units of the inverse mass.
"""

from __future__ import annotations

from dataclasses import dataclass

import blackjax.mcmc.mala as blackjax_mala
import blackjax.mcmc.random_walk as blackjax_walk
import jax
import jax.numpy as jnp

from modicum.kernels.moves import LogDensity, MoveInfo, Point

__all__ = ["MALAMove", "RandomWalkMove"]


@dataclass(frozen=True)
class MALAMove:
    """One Langevin step, accepted or rejected; an acceptance rate of .574 is the best."""

    def __call__(
        self,
        key: jax.Array,
        point: Point,
        logdensity: LogDensity,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
        """Propose along the gradient, with noise."""
        scale = jnp.sqrt(inverse_mass)
        state = blackjax_mala.MALAState(
            point.position / scale, point.logdensity, point.logdensity_grad * scale
        )
        # BlackJAX's step is that of the diffusion: noise of variance 2 steps.
        state, info = blackjax_mala.build_kernel()(
            key, state, lambda y: logdensity(y * scale), step_size**2 / 2
        )
        # A rejected point is handed back as it came, not as scaled there and back.
        moved = type(point)(state.position * scale, state.logdensity, state.logdensity_grad / scale)
        point = jax.tree.map(lambda a, b: jnp.where(info.is_accepted, a, b), moved, point)
        # no chance at all is what NaN, infinity or a wild leap leads to
        return point, _told(point, info.acceptance_rate, info.acceptance_rate == 0)


@dataclass(frozen=True)
class RandomWalkMove:
    """One random-walk Metropolis step, without gradients; .234 is the best acceptance rate."""

    def __call__(
        self,
        key: jax.Array,
        point: Point,
        logdensity: LogDensity,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
        """Propose a normal leap."""
        leap = blackjax_walk.normal(step_size * jnp.sqrt(inverse_mass))
        state = blackjax_walk.RWState(point.position, point.logdensity)
        state, info = blackjax_walk.build_additive_step()(key, state, logdensity, leap)
        # No gradient was asked for: zeros keep the point's shape.
        point = type(point)(state.position, state.logdensity, jnp.zeros_like(state.position))
        return point, _told(point, info.acceptance_rate, jnp.asarray(False))


def _told(point: Point, rate: jax.Array, diverging: jax.Array) -> MoveInfo:
    return MoveInfo(
        acceptance_rate=rate,
        diverging=diverging,
        energy=-point.logdensity,
        n_steps=jnp.ones((), int),
        reached_max_treedepth=jnp.asarray(False),
    )
