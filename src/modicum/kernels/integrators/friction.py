"""SGHMC as in Chen et al. (2014) and the HMC-ECS paper: friction against gradient noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sin, sqrt

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError, is_number, whole_number
from modicum.kernels.base import StochasticGradientContext
from modicum.kernels.coordinates import scaled
from modicum.kernels.integrators.base import (
    Integrator,
    IntegratorState,
    NoiseMatch,
    Response,
    positive,
)


@dataclass(frozen=True)
class Friction(Integrator):
    """z' = z + e p,  p' = p - e g(z') - e C p + N(0, 2 (C - B) e) (HMC-ECS paper, section 6.2).

    The mass matrix is the identity in the chain's coordinates; if these are whitened, that is the
    paper's M = (posterior covariance)^-1. With v = e p, alpha = e C and beta = e B the step is
    Chen et al.'s v <- (1 - alpha) v - eta g + N(0, 2 (alpha - beta) eta), eta = e^2.

    Parameters
    ----------
    friction
        C.
    noise
        B, an estimate of e Cov(g) / 2 to be subtracted from the injected noise; 0 in the paper.
    period
        Steps after which the momentum is drawn anew, L; None: never.
    in_parameters
        Whether C and B refer to the parameters rather than the whitened coordinates, as in the
        paper, where C = I and M = precision.
    """

    friction: float = 1.0
    noise: float = 0.0
    period: int | None = None
    in_parameters: bool = False

    def __post_init__(self) -> None:
        positive(friction=self.friction)
        if not is_number(self.noise) or not 0 <= self.noise < self.friction:
            raise SettingError(
                f"noise must be at least 0 and below the friction ({self.friction}), not "
                f"{self.noise!r}: the injected noise has the variance 2 (friction - noise) e."
            )
        if self.period is not None:
            whole_number("period", self.period)

    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Draw a momentum at temperature one."""
        return IntegratorState(z, jax.random.normal(key, z.shape, z.dtype))

    def drift(self, state: IntegratorState, h: jax.Array) -> IntegratorState:
        """Move to the new position, where the gradient is evaluated."""
        return IntegratorState(state.z + h * state.memory, state.memory)

    def kick(
        self,
        xi: jax.Array,
        state: IntegratorState,
        gradient: jax.Array,
        h: jax.Array,
        context: StochasticGradientContext,
        diagonal: Callable[[], jax.Array],
    ) -> IntegratorState:
        """p' = p - e g(z') - e C p + N(0, 2 (C - B) e)."""
        z, p = state
        drag = p
        if self.in_parameters:  # C I of the parameters is C L'L of the coordinates
            factor = context.factor
            drag, xi = scaled(factor.T, scaled(factor, p)), scaled(factor.T, xi)
        noise = jnp.sqrt(2 * (self.friction - self.noise) * h) * xi
        return IntegratorState(z, p - h * gradient - h * self.friction * drag + noise)

    def noise_match(self, state: IntegratorState, h: jax.Array | float) -> NoiseMatch:
        """Compare gradient and noise as `Underdamped` does, with C for gamma."""
        if self.in_parameters:
            raise SettingError(
                "exponential weights need noise of the same variance in all directions; leave out "
                "in_parameters."
            )
        p, tau = state.memory, jnp.sqrt(2 * (self.friction - self.noise) * h)
        drag = h * self.friction * p
        return NoiseMatch(h / tau, drag / tau, (drag - p) / tau)

    def response(self, h: float) -> Response | None:
        """Return the response of position and momentum."""
        if self.in_parameters:
            return None  # directions differ
        free = np.array([[1.0, h], [0.0, 1 - h * self.friction]])
        noise = np.array([0.0, sqrt(2 * (self.friction - self.noise) * h)])
        return Response(free, np.array([0.0, h]), np.array([1.0, h]), noise)

    def noise_ratio(
        self,
        h: float,
        mean: np.ndarray,
        variance: np.ndarray,
        context: StochasticGradientContext,
    ) -> np.ndarray:
        """e^2 Cov(g) over 2 (C - B) e plus the equivalent noise of redrawn momenta.

        Within a trajectory of length T = L e a standard normal rotates by T. So noise of variance s
        per step adds s (T - sin(2T) / 2) / 2e to the variance of z, and a fresh momentum adds
        sin(T)^2: as much as noise of 2e sin(T)^2 / (T - sin(2T) / 2) per step.
        """
        squares: float | np.ndarray = 1.0
        if self.in_parameters:
            factor = np.asarray(context.factor)
            squares = np.sum(factor**2, axis=0) if factor.ndim == 2 else factor**2
        drawn_anew = 0.0
        if self.period is not None:
            T = self.period * h
            drawn_anew = 2 * sin(T) ** 2 / (T - sin(2 * T) / 2)
        return np.asarray(variance * h / (2 * (self.friction - self.noise) * squares + drawn_anew))
