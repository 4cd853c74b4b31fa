"""BAOAB: a splitting of underdamped Langevin dynamics with highly accurate positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, sqrt

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.base import StochasticGradientContext
from modicum.kernels.integrators.base import (
    Integrator,
    IntegratorState,
    NoiseMatch,
    Response,
    positive,
)


@dataclass(frozen=True)
class Baoab(Integrator):
    """Kick, half drift, exact friction and noise, half drift (Leimkuhler and Matthews 2013).

    The two half kicks between two steps use the same gradient and are combined into one: positions
    are those of BAOAB, at one gradient per step. For quadratic U their variance is exact.

    Parameters
    ----------
    friction
        gamma. In whitened coordinates 2 is critical damping.
    """

    friction: float = 2.0

    def __post_init__(self) -> None:
        positive(friction=self.friction)

    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Draw a momentum at temperature one."""
        return IntegratorState(z, jax.random.normal(key, z.shape, z.dtype))

    def kick(
        self,
        xi: jax.Array,
        state: IntegratorState,
        gradient: jax.Array,
        h: jax.Array,
        context: StochasticGradientContext,
        diagonal: Callable[[], jax.Array],
    ) -> IntegratorState:
        """Take a full B step, a half A step, an O step and a half A step."""
        z, r = state
        decay = jnp.exp(-self.friction * h)
        r = r - h * gradient
        half = z + h / 2 * r
        r = decay * r + jnp.sqrt(-jnp.expm1(-2 * self.friction * h)) * xi
        return IntegratorState(half + h / 2 * r, r)

    def noise_match(self, state: IntegratorState, h: jax.Array | float) -> NoiseMatch:
        """r' = c (r - h g) + sqrt(1 - c^2) xi, c = exp(-gamma h)."""
        r, decay = state.memory, jnp.exp(-self.friction * h)
        tau = jnp.sqrt(-jnp.expm1(-2 * self.friction * h))
        return NoiseMatch(decay * h / tau, (r - decay * r) / tau, -decay * r / tau)

    def response(self, h: float) -> Response:
        """Return the response of position and momentum."""
        decay = exp(-self.friction * h)
        tau = sqrt(1 - decay**2)
        drift = h / 2 * (1 + decay)
        free = np.array([[1.0, drift], [0.0, decay]])
        kick = np.array([h * drift, h * decay])
        return Response(free, kick, np.array([1.0, 0.0]), np.array([h / 2 * tau, tau]))
