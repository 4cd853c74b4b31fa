"""Underdamped Langevin dynamics by Euler-Maruyama: SGHMC as in the EWSG paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

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
class Underdamped(Integrator):
    """z' = z + h r,  r' = r - h (g(z) + gamma r) + sigma sqrt(h) xi (EWSG paper, eq. 3).

    Parameters
    ----------
    friction
        gamma. In whitened coordinates 2 is critical damping.
    sigma
        Noise amplitude; None: sqrt(2 gamma), which makes the temperature 1. Any other value
        samples the posterior raised to the power 2 gamma / sigma^2.

    Examples
    --------
    >>> from modicum.kernels.integrators import Underdamped
    >>> step = Underdamped(friction=10.0).response(0.01)
    >>> round(20 * step.variance(curvature=20.0), 3)
    1.021
    """

    friction: float = 2.0
    sigma: float | None = None

    def __post_init__(self) -> None:
        positive(friction=self.friction)
        if self.sigma is not None:
            positive(sigma=self.sigma)

    @property
    def amplitude(self) -> float:
        """sigma."""
        return sqrt(2 * self.friction) if self.sigma is None else self.sigma

    @property
    def temperature(self) -> float:
        """sigma^2 / (2 gamma), by the fluctuation-dissipation theorem."""
        return self.amplitude**2 / (2 * self.friction)

    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Draw a momentum at the temperature of the dynamics."""
        return IntegratorState(z, sqrt(self.temperature) * jax.random.normal(key, z.shape, z.dtype))

    def kick(
        self,
        xi: jax.Array,
        state: IntegratorState,
        gradient: jax.Array,
        h: jax.Array,
        context: StochasticGradientContext,
        diagonal: Callable[[], jax.Array],
    ) -> IntegratorState:
        """Update position and momentum, both with the old momentum (eq. 3)."""
        z, r = state
        noise = self.amplitude * jnp.sqrt(h) * xi
        return IntegratorState(z + h * r, r - h * (gradient + self.friction * r) + noise)

    def noise_match(self, state: IntegratorState, h: jax.Array | float) -> NoiseMatch:
        """x = (r' - r + h gamma r) / (sigma sqrt h) and a = sqrt(h) g / sigma (Theorem 2).

        With r' = r the first is the paper's choice, x = sqrt(h) gamma r / sigma (section 4.3).
        """
        r, tau = state.memory, self.amplitude * jnp.sqrt(h)
        drag = h * self.friction * r
        return NoiseMatch(h / tau, drag / tau, (drag - r) / tau)

    def response(self, h: float) -> Response:
        """Return the response of position and momentum."""
        free = np.array([[1.0, h], [0.0, 1 - h * self.friction]])
        noise = np.array([0.0, self.amplitude * sqrt(h)])
        return Response(free, np.array([0.0, h]), np.array([1.0, 0.0]), noise)
