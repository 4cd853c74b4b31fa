"""How a kernel moves the parameters at a given step size: HMC, and BlackJAX's NUTS.

Both know only a log-density. The same moves serve all rows and a subsample held fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import blackjax.mcmc.hmc as blackjax_hmc
import blackjax.mcmc.nuts as blackjax_nuts
import jax
import jax.numpy as jnp

from modicum.kernels.trajectory import Density, Evaluated, follow

__all__ = [
    "HMCMove",
    "LogDensity",
    "Move",
    "MoveInfo",
    "NUTSMove",
    "Point",
    "at_point",
    "move_afresh",
]

Point: TypeAlias = Any  # BlackJAX's HMCState: position, log-density and its gradient
LogDensity: TypeAlias = Callable[[jax.Array], jax.Array]


class MoveInfo(NamedTuple):
    """What a move tells about itself."""

    acceptance_rate: jax.Array
    diverging: jax.Array
    energy: jax.Array
    n_steps: jax.Array  # gradients it took
    reached_max_treedepth: jax.Array


class Move(Protocol):
    """Anything that leaves exp(logdensity) invariant. Hashable."""

    def __call__(
        self,
        key: jax.Array,
        point: Point,
        logdensity: LogDensity,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
        """Return the next point."""
        ...


def at_point(position: jax.Array, logdensity: LogDensity) -> Point:
    """Evaluate the log-density and its gradient at `position`."""
    return blackjax_hmc.init(position, logdensity)


def move_afresh(
    move: Move,
    key: jax.Array,
    position: jax.Array,
    density: Density,
    step_size: jax.Array,
    inverse_mass: jax.Array,
) -> tuple[Evaluated, MoveInfo, jax.Array]:
    """Move from a position where the density is not known, keeping its by-products.

    `density(z)` returns the log-density and what else it computed. The last of what is returned
    is the number of evaluations: HMC needs none but those of its trajectory.
    """
    if type(move) is HMCMove:  # a class made of it may move in its own way
        point, info = move.travel(key, position, density, step_size, inverse_mass)
        return point, info, info.n_steps + 1

    def plain(z: jax.Array) -> jax.Array:
        return density(z)[0]

    moved, info = move(key, at_point(position, plain), plain, step_size, inverse_mass)
    value, by_product = density(moved.position)
    point = Evaluated(moved.position, value, moved.logdensity_grad, by_product)
    return point, info, info.n_steps + 2


@dataclass(frozen=True)
class HMCMove:
    """Hamiltonian Monte Carlo with a fixed trajectory length: L = ceil(trajectory / step size).

    Parameters
    ----------
    trajectory
        Step size times the number of leapfrog steps; 1.2 in the HMC-ECS paper (section 6.3).
    max_steps
        The most leapfrog steps, however small the step size.
    jitter
        Each trajectory is longer or shorter by up to this share, at random: it breaks the
        resonances a fixed length can have.
    """

    trajectory: float = 1.2
    max_steps: int = 100
    jitter: float = 0.0

    def __call__(
        self,
        key: jax.Array,
        point: Point,
        logdensity: LogDensity,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
        """Follow one trajectory and accept or reject its end."""
        start = Evaluated(point.position, point.logdensity, point.logdensity_grad, None)

        def density(z: jax.Array) -> tuple[jax.Array, None]:
            return logdensity(z), None

        there, info = self.travel(key, start, density, step_size, inverse_mass)
        return type(point)(there.position, there.logdensity, there.gradient), info

    def travel(
        self,
        key: jax.Array,
        start: jax.Array | Evaluated,
        density: Density,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Evaluated, MoveInfo]:
        """The same from a start that may still have to be evaluated, with by-products."""
        length: Any = self.trajectory
        if self.jitter:
            key, length_key = jax.random.split(key)
            length *= 1 + self.jitter * jax.random.uniform(length_key, minval=-1.0, maxval=1.0)
        steps = jnp.clip(jnp.ceil(length / step_size), 1, self.max_steps).astype(int)
        path = follow(key, start, density, step_size, inverse_mass, steps)
        return path.point, MoveInfo(
            path.acceptance_rate, path.diverging, path.energy, steps, jnp.asarray(False)
        )


@dataclass(frozen=True)
class NUTSMove:
    """The no-U-turn sampler: trajectories that stop by themselves.

    Parameters
    ----------
    max_depth
        The most doublings of a trajectory.
    """

    max_depth: int = 10

    def __call__(
        self,
        key: jax.Array,
        point: Point,
        logdensity: LogDensity,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
        """Build one trajectory and draw a point from it."""
        kernel = blackjax_nuts.build_kernel()
        point, info = kernel(key, point, logdensity, step_size, inverse_mass, self.max_depth)
        full = (info.num_trajectory_expansions >= self.max_depth) & ~info.is_turning
        rate = info.acceptance_rate
        return point, MoveInfo(
            acceptance_rate=jnp.where(jnp.isfinite(rate), rate, 0.0),
            diverging=info.is_divergent,
            energy=info.energy,
            n_steps=info.num_integration_steps,
            reached_max_treedepth=full & ~info.is_divergent,
        )
