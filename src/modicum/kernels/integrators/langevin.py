"""Overdamped Langevin dynamics: SGLD, and the overdamped form of EWSG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.base import StochasticGradientContext
from modicum.kernels.integrators.base import Integrator, IntegratorState, NoiseMatch, Response

Step = TypeVar("Step", float, jax.Array)


@dataclass(frozen=True)
class Langevin(Integrator):
    """Euler-Maruyama steps of dz = -grad U dt + sqrt(2) dW.

    Parameters
    ----------
    halved
        True: z - (e/2) g + N(0, e) (Welling and Teh 2011; HMC-ECS paper, section 6.2). False:
        z - h g + N(0, 2h) (EWSG paper, section F). The step is the same, with e = 2h.

    Examples
    --------
    >>> from modicum.kernels.integrators import Langevin
    >>> round(Langevin().response(0.02).variance(curvature=20.0), 4)  # 1 / (20 (1 - 0.02 20/4))
    0.0556
    """

    halved: bool = True
    has_momentum: ClassVar[bool] = False

    def _drift(self, h: Step) -> Step:
        return h / 2 if self.halved else h

    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Return a state without memory."""
        del key
        return IntegratorState(z, ())

    def kick(
        self,
        xi: jax.Array,
        state: IntegratorState,
        gradient: jax.Array,
        h: jax.Array,
        context: StochasticGradientContext,
        diagonal: Callable[[], jax.Array],
    ) -> IntegratorState:
        """z' = z - (e/2) g + sqrt(e) xi."""
        c = self._drift(h)
        return IntegratorState(state.z - c * gradient + jnp.sqrt(2 * c) * xi, ())

    def noise_match(self, state: IntegratorState, h: jax.Array | float) -> NoiseMatch:
        """x = (z' - z) / sqrt(2h), a = sqrt(h/2) g; z' = z is the natural guess."""
        zero = jnp.zeros_like(state.z)
        return NoiseMatch(jnp.sqrt(self._drift(jnp.asarray(h)) / 2), zero, zero)

    def response(self, h: float) -> Response:
        """Return the response of the position."""
        c = self._drift(h)
        unit = np.ones(1)
        return Response(np.eye(1), c * unit, unit, np.sqrt(2 * c) * unit)
