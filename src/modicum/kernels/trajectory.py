"""Hamiltonian Monte Carlo with a given number of leapfrog steps, each point evaluated once.

A density may hand back what it computed on the way, and its value at the start need not be known:
the loop evaluates start, middle and end in one place, which makes it quicker to compile than
BlackJAX's HMC and spares an evaluation or two of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Density", "Evaluated", "Trajectory", "follow"]

DIVERGENT = 1_000.0  # a rise of the energy that says the integrator has gone astray
Density = Callable[[jax.Array], tuple[jax.Array, Any]]


class Evaluated(NamedTuple):
    """A point, and all that its density told there."""

    position: jax.Array
    logdensity: jax.Array
    gradient: jax.Array
    by_product: Any


class Trajectory(NamedTuple):
    """Where a trajectory led: its start or its end, as was decided."""

    point: Evaluated
    acceptance_rate: jax.Array
    diverging: jax.Array
    energy: jax.Array  # at the end, taken or not


def _evaluated(position: jax.Array, density: Density) -> Evaluated:
    """The log-density at `position`, its gradient and by-products."""
    (value, by_product), gradient = jax.value_and_grad(density, has_aux=True)(position)
    return Evaluated(position, value, gradient, by_product)


def follow(
    key: jax.Array,
    start: jax.Array | Evaluated,
    density: Density,
    step_size: jax.Array,
    inverse_mass: jax.Array,
    steps: jax.Array,
) -> Trajectory:
    """Follow one trajectory from `start`, and accept or reject its end.

    `density(z)` returns the log-density and by-products. A start that is no more than a position
    is evaluated first, by a leapfrog step of length zero.
    """
    at = jax.jit(lambda z: _evaluated(z, density))  # so that it is traced once
    if not isinstance(start, Evaluated) and jax.default_backend() != "cpu":
        start = at(start)  # on an accelerator what a loop carries is dearer than what is compiled
    position = start.position if isinstance(start, Evaluated) else start
    # One call for random numbers: (a^2 + b^2) / 2 of two normals is minus the log of a uniform.
    normal = jax.random.normal(key, (position.shape[0] + 2,), position.dtype)
    momentum, rest = normal[:-2] / jnp.sqrt(inverse_mass), normal[-2:]

    def leap(here: Evaluated, p: jax.Array, h: jax.Array) -> tuple[Evaluated, jax.Array]:
        p = p + h / 2 * here.gradient
        here = at(here.position + h * inverse_mass * p)
        return here, p + h / 2 * here.gradient

    def leap_or_begin(i: Any, carry: Any) -> Any:
        first, here, p = carry
        here, p = leap(here, p, jnp.where(i == 0, 0.0, step_size))
        return jax.tree.map(lambda new, old: jnp.where(i == 0, new, old), here, first), here, p

    if isinstance(start, Evaluated):
        first = start
        last, end = jax.lax.fori_loop(
            0, steps, lambda _, carry: leap(carry[0], carry[1], step_size), (start, momentum)
        )
    else:
        shapes = jax.eval_shape(at, position)
        blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        carry = (blank, blank._replace(position=position), momentum)
        first, last, end = jax.lax.fori_loop(0, steps + 1, leap_or_begin, carry)
    before, after = _kinetic(momentum, inverse_mass), _kinetic(end, inverse_mass)
    return _decide(first, last, before, after, -0.5 * jnp.sum(rest**2))


def _kinetic(momentum: jax.Array, inverse_mass: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(inverse_mass * momentum**2)


def _decide(
    first: Evaluated, last: Evaluated, before: Any, after: Any, log_uniform: jax.Array
) -> Trajectory:
    """Metropolis on the total energy; what is not a number is never accepted."""
    energy = after - last.logdensity
    gain = (before - first.logdensity) - energy
    lost = ~jnp.isfinite(energy) | jnp.isnan(gain)
    gain = jnp.where(lost, -jnp.inf, gain)
    accept = log_uniform < gain
    return Trajectory(
        jax.tree.map(lambda new, old: jnp.where(accept, new, old), last, first),
        jnp.exp(jnp.minimum(gain, 0.0)),
        gain < -DIVERGENT,
        energy,
    )
