"""Warm-up of Hamiltonian moves: dual averaging of the step size, and BlackJAX's mass matrix.

The schedule travels as per-iteration flags, so that warm-up and sampling are one compiled step
and a run can stop and resume anywhere in either.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels import blackjax_modules as blackjax
from modicum.runtime import Array

__all__ = ["Adaptation", "AdaptationFlags", "adapt", "schedule", "start_adaptation"]


BlackJAXState: TypeAlias = Any  # BlackJAX has no types
# Hoffman and Gelman (2014), section 3.2.1, and the values they recommend.
DELAY, GAMMA, KAPPA = 10, 0.05, 0.75


class AdaptationFlags(NamedTuple):
    """What warm-up does at one iteration (all False while sampling)."""

    adapting: Array  # the step size follows the acceptance rate
    slow: Array  # positions are collected for the mass matrix
    window_end: Array  # the mass matrix is renewed
    last: Array  # the averaged step size is fixed for good


class DualAveraging(NamedTuple):
    """Nesterov's dual averaging of the step size, as in NUTS.

    Written out here because importing BlackJAX takes longer than the whole warm-up of HMC-ECS.
    """

    log_step_size: jax.Array
    log_average: jax.Array  # of step sizes, later ones weighted more
    iteration: jax.Array
    error: jax.Array  # average of target less acceptance rate
    pull: jax.Array  # log step size that early iterations are drawn towards

    @classmethod
    def start(cls, step_size: jax.Array) -> DualAveraging:
        """Begin at `step_size`, and favour steps ten times as long: short ones cost more."""
        return cls(
            jnp.log(step_size), jnp.zeros(()), jnp.ones((), int), jnp.zeros(()),
            jnp.log(10 * step_size),
        )  # fmt: skip

    def updated(self, error: jax.Array) -> DualAveraging:
        """Learn from one iteration; `error` is the target less its acceptance rate."""
        k, late = self.iteration, self.iteration + DELAY
        average_error = (1 - 1 / late) * self.error + error / late
        log_step_size = self.pull - jnp.sqrt(k) / GAMMA * average_error
        weight = k ** (-KAPPA)
        log_average = weight * self.log_step_size + (1 - weight) * self.log_average
        return DualAveraging(log_step_size, log_average, k + 1, average_error, self.pull)


class Adaptation(NamedTuple):
    """What warm-up has learned, and what it still needs to learn from."""

    step_size: jax.Array
    inverse_mass: jax.Array
    averaging: DualAveraging
    mass: BlackJAXState | None  # None where the mass is not adapted


def schedule(tune: int, draws: int, adapt_mass: bool, adapt_step: bool = True) -> AdaptationFlags:
    """Flags of `tune` warm-up iterations in Stan's windows, then `draws` without any."""
    if not adapt_step:
        return AdaptationFlags(*(np.zeros(tune + draws, bool) for _ in AdaptationFlags._fields))
    stage = np.zeros((tune, 2), bool)
    if tune and adapt_mass:
        stage = np.asarray(blackjax.windows.build_schedule(tune), bool)
    warm = AdaptationFlags(
        adapting=np.ones(tune, bool),
        slow=stage[:, 0],
        window_end=stage[:, 1],
        last=np.arange(tune) == tune - 1,
    )
    return AdaptationFlags(*(np.concatenate([part, np.zeros(draws, bool)]) for part in warm))


def start_adaptation(
    size: int, step_size: float | None = None, adapt_mass: bool = True, dense: bool = False
) -> Adaptation:
    """Before anything is known: unit mass, and a step size that was set or is guessed.

    Without `adapt_mass` the mass stays as it is, and nothing is compiled to change it. A `dense`
    inverse mass is a matrix, (d, d).
    """
    # The optimal step of a standard normal shrinks like this.
    step_size = size**-0.25 if step_size is None else step_size
    averaging = DualAveraging.start(jnp.asarray(step_size))
    mass = blackjax.mass_matrix.mass_matrix_adaptation(not dense)[0](size) if adapt_mass else None
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
    """Learn from one iteration as its flags say; `longest` is the largest step of any use."""
    return jax.lax.cond(
        flags.adapting,
        lambda: _learn(state, flags, position, acceptance_rate, target_accept, longest),
        lambda: state,
    )


def _learn(
    state: Adaptation,
    flags: AdaptationFlags,
    position: jax.Array,
    acceptance_rate: jax.Array,
    target_accept: float,
    longest: float | None,
) -> Adaptation:
    averaging, mass = state.averaging.updated(target_accept - acceptance_rate), state.mass
    inverse_mass = state.inverse_mass
    if longest is not None:  # what is averaged must not make up for steps that were too long
        log_step = jnp.minimum(averaging.log_step_size, jnp.log(longest))
        averaging = averaging._replace(log_step_size=log_step)
    if mass is not None:
        _, collect, renew = blackjax.mass_matrix.mass_matrix_adaptation(inverse_mass.ndim == 1)
        mass = jax.lax.cond(flags.slow, lambda: collect(mass, position), lambda: mass)
        # The step size is not learned afresh, as Stan does: in whitened coordinates a new mass
        # changes it little, and fifty iterations after a restart it still swings so widely that
        # its average is too short (acceptance .89 for a target of .8).
        new = renew if inverse_mass.ndim == 1 else _renewed
        mass = jax.lax.cond(flags.window_end, lambda: new(mass), lambda: mass)
        inverse_mass = mass.inverse_mass_matrix
    settled = jnp.where(
        flags.last, jnp.exp(averaging.log_average), jnp.exp(averaging.log_step_size)
    )
    return Adaptation(settled, inverse_mass, averaging, mass)


def _renewed(mass: BlackJAXState) -> BlackJAXState:
    """The covariance of a window, shrunk towards its diagonal by five draws' worth.

    Stan shrinks it towards 0.001 I, for parameters of order 1. On tall data a posterior standard
    deviation is .003 and less, and that would be most of the matrix.
    """
    _, _, renew = blackjax.mass_matrix.mass_matrix_adaptation(False)
    covariance, count, _ = blackjax.mass_matrix.welford_algorithm(False)[2](mass.wc_state)
    variance = jnp.diag(covariance)
    moved = jnp.where(variance > 0, variance, jnp.diag(mass.inverse_mass_matrix))
    shrunk = (count * covariance + 5 * jnp.diag(moved)) / (count + 5)
    return renew(mass)._replace(inverse_mass_matrix=shrunk)
