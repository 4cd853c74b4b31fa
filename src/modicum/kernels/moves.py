"""Moves of the parameters, HMC, NUTS and a random walk, and how warm-up tunes them.

Moves know only a log-density, so the same ones serve all rows and a subsample held fixed. NUTS and
the random walk are BlackJAX's. HMC is implemented here, for densities that return by-products and
starts whose density is not yet known. Its loop evaluates start, middle and end in one place, which
compiles faster than BlackJAX's HMC and saves an evaluation or two of the rows. (If the start is
evaluated apart, short runs of HMC-ECS take a fifth more processor time, long ones a tenth less.)
HMC of one step is the Metropolis-adjusted Langevin algorithm.

Warm-up tunes the step size by dual averaging, and BlackJAX's mass matrix. The schedule is passed as
per-iteration flags, so that warm-up and sampling share one compiled step and a run can stop and
resume anywhere in either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.protocols import LogDensity, Move, MoveInfo, Point
from modicum.random import log_uniform, normal, symmetric_uniforms
from modicum.runtime import Array, Pytree, on_accelerator


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


def move_afresh(
    move: Move,
    chances: PathChances | jax.Array,
    position: jax.Array,
    density: Density,
    step_size: jax.Array,
    inverse_mass: jax.Array,
) -> tuple[Point, MoveInfo, jax.Array]:
    """Move from a position whose density is not yet known, keeping the density's by-products.

    `chances` is a key unless the move is `HMCMove` itself. `density(z)` returns the log-density and
    by-products. The last value returned is the number of evaluations: HMC needs none beyond those
    of its trajectory.
    """
    if isinstance(chances, PathChances):
        assert isinstance(move, HMCMove)
        point, info = move.travel(chances, position, density, step_size, inverse_mass)
        return point, info, info.n_steps + 1

    def plain(z: jax.Array) -> jax.Array:
        return density(z)[0]

    moved, info = move(chances, at_point(position, plain), plain, step_size, inverse_mass)
    value, by_product = density(moved.position)
    return Point(moved.position, value, moved.logdensity_grad, by_product), info, info.n_steps + 2


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

        def density(z: jax.Array) -> tuple[jax.Array, None]:
            return logdensity(z), None

        uniform = symmetric_uniforms(key, (path_size(point.position),), point.position.dtype)
        return self.travel(path_chances(uniform), point, density, step_size, inverse_mass)

    def travel(
        self,
        chances: PathChances,
        start: jax.Array | Point,
        density: Density,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
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
    start: jax.Array | Point,
    density: Density,
    step_size: jax.Array,
    inverse_mass: jax.Array,
    steps: jax.Array,
    split: bool = False,
) -> tuple[Point, MoveInfo]:
    """Follow one trajectory from `start`; return its end if accepted, and its start if rejected.

    `density(z)` returns the log-density and by-products. If `start` is a bare position, a leapfrog
    step of length zero evaluates it first. A `split` trajectory needs unit mass.
    """

    @jax.jit  # traced once
    def at(z: jax.Array) -> Point:
        (value, by_product), gradient = jax.value_and_grad(density, has_aux=True)(z)
        return Point(z, value, gradient, by_product)

    if not isinstance(start, Point) and on_accelerator():
        start = at(start)  # on an accelerator, carrying more through the loop costs more
    position = start.position if isinstance(start, Point) else start
    momentum = chances.momentum / jnp.sqrt(inverse_mass)

    # Leapfrog steps of eq. 3.6 (HMC-ECS paper, Algorithm 1).
    def leap(state: Point, p: jax.Array, h: jax.Array) -> tuple[Point, jax.Array]:
        p = p + h / 2 * state.logdensity_grad
        state = at(state.position + h * inverse_mass * p)
        return state, p + h / 2 * state.logdensity_grad

    # The standard normal part, of gradient -z, rotates (z, p) by h; the rest of the gradient kicks.
    def turn(state: Point, p: jax.Array, h: jax.Array) -> tuple[Point, jax.Array]:
        z, p = state.position, p + h / 2 * (state.logdensity_grad + state.position)
        state = at(jnp.cos(h) * z + jnp.sin(h) * p)
        kick = h / 2 * (state.logdensity_grad + state.position)
        return state, jnp.cos(h) * p - jnp.sin(h) * z + kick

    step = turn if split else leap

    def leap_or_begin(i: jax.Array, carry: Pytree) -> Pytree:
        first, state, p = carry
        state, p = step(state, p, jnp.where(i == 0, 0.0, step_size))
        return jax.tree.map(lambda new, old: jnp.where(i == 0, new, old), state, first), state, p

    if isinstance(start, Point):
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
        moved, info = kernel(key, point[:3], logdensity, step_size, inverse_mass, self.max_depth)
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
        return point, MoveInfo(
            acceptance_rate=info.acceptance_rate,
            diverging=jnp.asarray(False),
            energy=-point.logdensity,
            n_steps=jnp.ones((), int),
            reached_max_treedepth=jnp.asarray(False),
        )


BlackJAXState: TypeAlias = Any  # BlackJAX has no types
# Hoffman and Gelman (2014), section 3.2.1, and the values they recommend.
DELAY, GAMMA, KAPPA = 10, 0.05, 0.75


class AdaptationFlags(NamedTuple):
    """What warm-up does at one iteration (all False while sampling)."""

    adapting: Array  # adapt the step size to the acceptance rate
    slow: Array  # collect positions for the mass matrix
    window_end: Array  # update the mass matrix
    restart: Array  # learn the step size afresh, since the new mass is of other units
    last: Array  # fix the step size at its average


class DualAveraging(NamedTuple):
    """Nesterov's dual averaging of the step size, as in NUTS.

    Implemented here because importing BlackJAX takes longer than the whole warm-up of HMC-ECS.
    """

    log_step_size: jax.Array
    log_average: jax.Array  # average log step size, with more weight on later ones
    iteration: jax.Array
    error: jax.Array  # average of target minus acceptance rate
    pull: jax.Array  # log step size towards which early iterations are shrunk

    @classmethod
    def start(cls, step_size: jax.Array) -> DualAveraging:
        """Start at `step_size`, shrunk towards ten times as much, since short steps cost more."""
        return cls(
            jnp.log(step_size), jnp.zeros(()), jnp.ones((), int), jnp.zeros(()),
            jnp.log(10 * step_size),
        )  # fmt: skip

    def updated(self, error: jax.Array) -> DualAveraging:
        """Learn from one iteration; `error` is the target minus its acceptance rate."""
        k, late = self.iteration, self.iteration + DELAY
        average_error = (1 - 1 / late) * self.error + error / late
        log_step_size = self.pull - jnp.sqrt(k) / GAMMA * average_error
        weight = k ** (-KAPPA)
        log_average = weight * self.log_step_size + (1 - weight) * self.log_average
        return DualAveraging(log_step_size, log_average, k + 1, average_error, self.pull)


class Adaptation(NamedTuple):
    """What warm-up has learned so far, and its running averages."""

    step_size: jax.Array
    inverse_mass: jax.Array
    averaging: DualAveraging
    mass: BlackJAXState | None  # None if the mass is not adapted


def schedule(
    tune: int, draws: int, adapt_mass: bool, adapt_step: bool = True, whitened: bool = True
) -> AdaptationFlags:
    """Return the flags of `tune` warm-up iterations in Stan's windows, and of `draws` draws.

    If parameters are not `whitened`, the step size is learned afresh with every mass, as in Stan:
    it changes by orders of magnitude, which the average of earlier ones would take too long to
    forget. In whitened coordinates a new mass changes it little, and fifty iterations after a
    restart it still oscillates so widely that its average is too short (acceptance .89 for a target
    of .8).
    """
    if not adapt_step:
        return AdaptationFlags(*(np.zeros(tune + draws, bool) for _ in AdaptationFlags._fields))
    stage = np.zeros((tune, 2), bool)
    if tune and adapt_mass:
        stage = np.asarray(blackjax("adaptation.window_adaptation").build_schedule(tune), bool)
    warm = AdaptationFlags(
        adapting=np.ones(tune, bool),
        slow=stage[:, 0],
        window_end=stage[:, 1],
        restart=stage[:, 1] & (not whitened),
        last=np.arange(tune) == tune - 1,
    )
    return AdaptationFlags(*(np.concatenate([part, np.zeros(draws, bool)]) for part in warm))


def typical_step_size(size: int) -> float:
    """Return the step size at which HMC on a standard normal of `size` dimensions accepts .8.

    Methods count on it when they weigh costs before the run; warm-up finds the real one.
    """
    return float(1.4 * size**-0.25)


def start_adaptation(
    size: int, step_size: float | None = None, adapt_mass: bool = True, dense: bool = False
) -> Adaptation:
    """Return the initial state: unit mass, and the given step size or a guess.

    Without `adapt_mass` the mass is constant, and no code is compiled to adapt it. A `dense`
    inverse mass is a matrix, (d, d).
    """
    # The optimal step size for a standard normal scales like this.
    step_size = size**-0.25 if step_size is None else step_size
    averaging = DualAveraging.start(jnp.asarray(step_size))
    mass = _mass_adaptation(dense)[0](size) if adapt_mass else None
    unit = jnp.eye(size) if dense else jnp.ones(size)
    return Adaptation(jnp.asarray(step_size), unit, averaging, mass)


def adapt(
    state: Adaptation,
    flags: AdaptationFlags,
    position: jax.Array,
    acceptance_rate: jax.Array,
    target_accept: float,
    longest: float | None = None,
) -> Adaptation:
    """Learn from one iteration according to its flags; `longest` is the largest useful step."""

    def learned() -> Adaptation:
        averaging, mass = state.averaging.updated(target_accept - acceptance_rate), state.mass
        inverse_mass = state.inverse_mass
        if longest is not None:  # keep steps that are too long out of the average
            log_step = jnp.minimum(averaging.log_step_size, jnp.log(longest))
            averaging = averaging._replace(log_step_size=log_step)
        if mass is not None:
            dense = inverse_mass.ndim == 2
            _, collect, renew = _mass_adaptation(dense)
            mass = jax.lax.cond(flags.slow, lambda: collect(mass, position), lambda: mass)
            afresh = DualAveraging.start(jnp.exp(averaging.log_average))
            averaging = jax.tree.map(partial(jnp.where, flags.restart), afresh, averaging)
            new = _renewed if dense else renew
            mass = jax.lax.cond(flags.window_end, lambda: new(mass), lambda: mass)
            inverse_mass = mass.inverse_mass_matrix
        settled = jnp.where(
            flags.last, jnp.exp(averaging.log_average), jnp.exp(averaging.log_step_size)
        )
        return Adaptation(settled, inverse_mass, averaging, mass)

    return jax.lax.cond(flags.adapting, learned, lambda: state)


def _mass_adaptation(dense: bool) -> Any:  # BlackJAX has no types
    """Return BlackJAX's functions that start, collect positions for, and renew a mass matrix."""
    return blackjax("adaptation.mass_matrix").mass_matrix_adaptation(not dense)


def _renewed(mass: BlackJAXState) -> BlackJAXState:
    """Shrink the covariance of a window towards its diagonal, with the weight of five draws.

    Stan shrinks it towards 0.001 I, for parameters of order 1. With tall data posterior standard
    deviations are .003 and less, so 0.001 I would dominate the matrix.
    """
    _, _, renew = _mass_adaptation(dense=True)
    moments = blackjax("adaptation.mass_matrix").welford_algorithm(False)[2]
    covariance, count, _ = moments(mass.wc_state)
    variance = jnp.diag(covariance)
    moved = jnp.where(variance > 0, variance, jnp.diag(mass.inverse_mass_matrix))
    shrunk = (count * covariance + 5 * jnp.diag(moved)) / (count + 5)
    return renew(mass)._replace(inverse_mass_matrix=shrunk)
