"""Moves of the parameters at a given step size: HMC, NUTS, MALA and a random walk.

Moves know only a log-density, so the same ones serve all rows and a subsample held fixed. NUTS,
MALA and the random walk are BlackJAX's. HMC is implemented here, for densities that return
by-products and starts whose density is not yet known. Its loop evaluates start, middle and end in
one place, which compiles faster than BlackJAX's HMC and saves an evaluation or two of the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from modicum.kernels.protocols import LogDensity, Move, MoveInfo, Point
from modicum.random import log_uniform, normal, symmetric_uniforms
from modicum.runtime import Pytree


def blackjax(part: str) -> Any:  # BlackJAX has no types
    """Import a part of BlackJAX at its first use.

    Importing any part imports all of it, which takes a quarter of a second, and some methods need
    none. The whole package is imported first, or waited for: importing a part while another thread
    imports the package can deadlock on the import locks, and then one of the two fails.
    """
    import_module("blackjax")
    return import_module(f"blackjax.{part}")


def import_ahead() -> None:
    """Import BlackJAX in a thread, while the caller makes passes over the rows."""
    threading.Thread(target=import_module, args=("blackjax",)).start()


DIVERGENT = 1_000.0  # increase of the energy that counts as a divergence
SLACK = 0.02  # share by which a split step may exceed the tuned step size, to save a step
Density: TypeAlias = Callable[[jax.Array], tuple[jax.Array, Pytree]]  # with by-products


def at_point(position: jax.Array, logdensity: LogDensity) -> Point:
    """Evaluate the log-density and its gradient at `position`."""
    return Point(position, *jax.value_and_grad(logdensity)(position))


class PathPoint(NamedTuple):
    """A point of a trajectory, and everything its density computed there."""

    position: jax.Array
    logdensity: jax.Array
    gradient: jax.Array
    by_product: Pytree


def move_afresh(
    move: Move,
    chances: PathChances | jax.Array,
    position: jax.Array,
    density: Density,
    step_size: jax.Array,
    inverse_mass: jax.Array,
) -> tuple[PathPoint, MoveInfo, jax.Array]:
    """Move from a position whose density is not yet known, keeping the density's by-products.

    `chances` is a key unless `is_plain_hmc`. `density(z)` returns the log-density and by-products.
    The last value returned is the number of evaluations: HMC needs none beyond those of its
    trajectory.
    """
    if isinstance(chances, PathChances):
        assert isinstance(move, HMCMove)
        point, info = move.travel(chances, position, density, step_size, inverse_mass)
        return point, info, info.n_steps + 1

    def plain(z: jax.Array) -> jax.Array:
        return density(z)[0]

    moved, info = move(chances, at_point(position, plain), plain, step_size, inverse_mass)
    value, by_product = density(moved.position)
    point = PathPoint(moved.position, value, moved.logdensity_grad, by_product)
    return point, info, info.n_steps + 2


# Hamiltonian Monte Carlo ------------------------------------------------------------------


@dataclass(frozen=True)
class HMCMove:
    """Hamiltonian Monte Carlo with a fixed trajectory length: L = ceil(trajectory / step size).

    Parameters
    ----------
    trajectory
        Step size times the number of leapfrog steps; 1.2 in the HMC-ECS paper (section 6.3).
    max_steps
        Maximum number of leapfrog steps, however small the step size.
    jitter
        Randomly lengthen or shorten each trajectory by up to this share, to break the resonances
        that a fixed length can have.
    split
        Follow the standard normal part of the density exactly (split Hamiltonian Monte Carlo):
        position and momentum rotate by the step size, as an angle, between kicks by the remaining
        part of the gradient. All steps of a trajectory are equal and add up to its length. Valid
        for any density, and cheaper the closer it is to standard normal: for a standard normal
        density every end is accepted, and trajectories of length pi / 2 give independent draws.
    """

    trajectory: float = 1.2
    max_steps: int = 100
    jitter: float = 0.0
    split: bool = False

    def __call__(
        self,
        key: jax.Array,
        point: Point,
        logdensity: LogDensity,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
        """Follow one trajectory and accept or reject its end."""
        start = PathPoint(point.position, point.logdensity, point.logdensity_grad, None)

        def density(z: jax.Array) -> tuple[jax.Array, None]:
            return logdensity(z), None

        uniform = symmetric_uniforms(key, (path_size(point.position),), point.position.dtype)
        end, info = self.travel(path_chances(uniform), start, density, step_size, inverse_mass)
        return Point(end.position, end.logdensity, end.gradient), info

    def travel(
        self,
        chances: PathChances,
        start: jax.Array | PathPoint,
        density: Density,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[PathPoint, MoveInfo]:
        """Like `__call__`, with by-products, from a start that need not be evaluated yet."""
        steps, h = self.steps(chances, step_size)
        return follow(chances, start, density, h, inverse_mass, steps, self.split)

    def steps(self, chances: PathChances, step_size: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the number of steps and their length."""
        length: float | jax.Array = self.trajectory
        if self.jitter:
            length *= 1 + self.jitter * chances.stretch
        if not self.split:
            steps = jnp.clip(jnp.ceil(length / step_size), 1, self.max_steps).astype(int)
            return steps, step_size
        steps = jnp.clip(jnp.ceil(length / step_size - SLACK), 1, self.max_steps).astype(int)
        # with `max_steps` steps a trajectory may fall short of its length
        return steps, jnp.minimum(length / steps, (1 + SLACK) * step_size)


def is_plain_hmc(move: Move) -> bool:
    """Whether a move follows trajectories as `HMCMove` does; a subclass may do otherwise."""
    return type(move) is HMCMove


def longest_step(move: Move) -> float | None:
    """Return the step size above which a move no longer changes; None if there is none."""
    if isinstance(move, HMCMove) and move.split:
        return move.trajectory * (1 + move.jitter)
    return None


class PathChances(NamedTuple):
    """The random numbers of one trajectory."""

    momentum: jax.Array  # standard normal, in units of the mass
    log_uniform: jax.Array  # decides whether the end is accepted
    stretch: jax.Array  # from (-1, 1): change of the length, in units of the jitter


def path_size(position: jax.Array) -> int:
    """Return how many uniform numbers `path_chances` needs for a trajectory from `position`."""
    return position.shape[0] + 2


def path_chances(uniform: jax.Array) -> PathChances:
    """Turn uniform numbers from (-1, 1) into the random numbers of one trajectory."""
    return PathChances(normal(uniform[:-2]), log_uniform(uniform[-2]), uniform[-1])


def follow(
    chances: PathChances,
    start: jax.Array | PathPoint,
    density: Density,
    step_size: jax.Array,
    inverse_mass: jax.Array,
    steps: jax.Array,
    split: bool = False,
) -> tuple[PathPoint, MoveInfo]:
    """Follow one trajectory from `start`; return its end if accepted, and its start if rejected.

    `density(z)` returns the log-density and by-products. If `start` is a bare position, a leapfrog
    step of length zero evaluates it first. A `split` trajectory needs unit mass.
    """

    @jax.jit  # traced once
    def at(z: jax.Array) -> PathPoint:
        (value, by_product), gradient = jax.value_and_grad(density, has_aux=True)(z)
        return PathPoint(z, value, gradient, by_product)

    if not isinstance(start, PathPoint) and jax.default_backend() != "cpu":
        start = at(start)  # on an accelerator, carrying more through the loop costs more
    position = start.position if isinstance(start, PathPoint) else start
    momentum = chances.momentum / jnp.sqrt(inverse_mass)

    # Leapfrog steps of eq. 3.6 (HMC-ECS paper, Algorithm 1).
    def leap(state: PathPoint, p: jax.Array, h: jax.Array) -> tuple[PathPoint, jax.Array]:
        p = p + h / 2 * state.gradient
        state = at(state.position + h * inverse_mass * p)
        return state, p + h / 2 * state.gradient

    # The standard normal part, of gradient -z, rotates (z, p) by h; the rest of the gradient kicks.
    def turn(state: PathPoint, p: jax.Array, h: jax.Array) -> tuple[PathPoint, jax.Array]:
        z, p = state.position, p + h / 2 * (state.gradient + state.position)
        state = at(jnp.cos(h) * z + jnp.sin(h) * p)
        return state, jnp.cos(h) * p - jnp.sin(h) * z + h / 2 * (state.gradient + state.position)

    step = turn if split else leap

    def leap_or_begin(i: jax.Array, carry: Pytree) -> Pytree:
        first, state, p = carry
        state, p = step(state, p, jnp.where(i == 0, 0.0, step_size))
        return jax.tree.map(lambda new, old: jnp.where(i == 0, new, old), state, first), state, p

    if isinstance(start, PathPoint):
        first = start
        last, end = jax.lax.fori_loop(
            0, steps, lambda _, carry: step(carry[0], carry[1], step_size), (start, momentum)
        )
    else:
        shapes = jax.eval_shape(at, position)
        blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        carry = (blank, blank._replace(position=position), momentum)
        first, last, end = jax.lax.fori_loop(0, steps + 1, leap_or_begin, carry)
    before, after = (0.5 * jnp.sum(inverse_mass * p**2) for p in (momentum, end))  # eq. 3.4
    energy = after - last.logdensity
    gain = (before - first.logdensity) - energy  # eq. 3.7
    lost = ~jnp.isfinite(energy) | jnp.isnan(gain)  # NaN is never accepted
    gain = jnp.where(lost, -jnp.inf, gain)
    accept = chances.log_uniform < gain
    point = jax.tree.map(lambda new, old: jnp.where(accept, new, old), last, first)
    rate = jnp.exp(jnp.minimum(gain, 0.0))
    return point, MoveInfo(rate, gain < -DIVERGENT, energy, steps, jnp.asarray(False))


# BlackJAX's moves -------------------------------------------------------------------------


@dataclass(frozen=True)
class NUTSMove:
    """The no-U-turn sampler, which chooses the length of each trajectory.

    Parameters
    ----------
    max_depth
        Maximum number of doublings of a trajectory.
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
        kernel = blackjax("mcmc.nuts").build_kernel()
        moved, info = kernel(key, point, logdensity, step_size, inverse_mass, self.max_depth)
        full = (info.num_trajectory_expansions >= self.max_depth) & ~info.is_turning
        rate = info.acceptance_rate
        return Point(*moved), MoveInfo(
            acceptance_rate=jnp.where(jnp.isfinite(rate), rate, 0.0),
            diverging=info.is_divergent,
            energy=info.energy,
            n_steps=info.num_integration_steps,
            reached_max_treedepth=full & ~info.is_divergent,
        )


@dataclass(frozen=True)
class MALAMove:
    """One Metropolis-adjusted Langevin step; its optimal acceptance rate is 0.574."""

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
        state = blackjax("mcmc.mala").MALAState(
            point.position / scale, point.logdensity, point.logdensity_grad * scale
        )
        # BlackJAX's step size is that of the diffusion: the noise has the variance 2 step sizes.
        state, info = blackjax("mcmc.mala").build_kernel()(
            key, state, lambda y: logdensity(y * scale), step_size**2 / 2
        )
        # Return a rejected point unchanged, without the rounding of scaling there and back.
        moved = Point(state.position * scale, state.logdensity, state.logdensity_grad / scale)
        point = jax.tree.map(lambda a, b: jnp.where(info.is_accepted, a, b), moved, point)
        # an acceptance rate of zero results from NaN, infinity or a huge proposal
        return point, _single_step(point, info.acceptance_rate, info.acceptance_rate == 0)


@dataclass(frozen=True)
class RandomWalkMove:
    """One random-walk Metropolis step, without gradients; its optimal acceptance rate is 0.234."""

    def __call__(
        self,
        key: jax.Array,
        point: Point,
        logdensity: LogDensity,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
        """Propose a normal increment."""
        leap = blackjax("mcmc.random_walk").normal(step_size * jnp.sqrt(inverse_mass))
        state = blackjax("mcmc.random_walk").RWState(point.position, point.logdensity)
        state, info = blackjax("mcmc.random_walk").build_additive_step()(
            key, state, logdensity, leap
        )
        # The gradient is not computed: zeros keep the point's structure.
        point = Point(state.position, state.logdensity, jnp.zeros_like(state.position))
        return point, _single_step(point, info.acceptance_rate, jnp.asarray(False))


def _single_step(point: Point, rate: jax.Array, diverging: jax.Array) -> MoveInfo:
    return MoveInfo(
        acceptance_rate=rate,
        diverging=diverging,
        energy=-point.logdensity,
        n_steps=jnp.ones((), int),
        reached_max_treedepth=jnp.asarray(False),
    )
