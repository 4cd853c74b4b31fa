"""Warm-up of Hamiltonian moves: dual averaging of the step size, and BlackJAX's mass matrix.

The schedule is passed as per-iteration flags, so that warm-up and sampling share one compiled step
and a run can stop and resume anywhere in either.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.moves import blackjax
from modicum.runtime import Array

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
