"""Base class of integrators: one step of a diffusion, given an estimate of the gradient of U."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import numpy as np

from modicum.errors import SettingError, is_number
from modicum.kernels.base import StochasticGradientContext
from modicum.runtime import Pytree


class IntegratorState(NamedTuple):
    """State of a chain."""

    z: jax.Array  # its coordinates
    memory: Pytree  # its momentum, or other state of the integrator; () for none


class NoiseMatch(NamedTuple):
    """Gradient and noise in the random part of a step (EWSG paper, Theorem 2).

    That part is r' = m - c g + tau xi. With a = (c / tau) g, the density of r' depends on the batch
    through |x + a|^2, x = (r' - m) / tau.
    """

    scale: jax.Array | float  # c / tau
    x: jax.Array  # x with r' = r, the paper's choice
    rest: jax.Array  # x with r' = 0


class Response(NamedTuple):
    """A step along one coordinate, w' = free w - kick g + noise xi with w = (z, momentum).

    The gradient g is evaluated at `at` . w: the old position, or one reached during the step.
    """

    free: np.ndarray
    kick: np.ndarray
    at: np.ndarray
    noise: np.ndarray

    def variance(self, curvature: float = 1.0, gradient_noise: float = 0.0) -> float:
        """Stationary variance of z for U of this curvature and g of this variance; may be inf."""
        from scipy.linalg import solve_discrete_lyapunov

        step = self.free - curvature * np.outer(self.kick, self.at)
        if np.abs(np.linalg.eigvals(step)).max() >= 1:
            return np.inf
        fresh = np.outer(self.noise, self.noise)
        fresh = fresh + gradient_noise * np.outer(self.kick, self.kick)
        return float(solve_discrete_lyapunov(step, fresh)[0, 0])


class Integrator(ABC):
    """One step of a diffusion. Subclasses are frozen dataclasses without arrays.

    A step calls `drift`, evaluates the gradient at the position reached, and calls `kick`.
    """

    has_momentum: ClassVar[bool] = True
    obstacle: ClassVar[str | None] = None
    """Why this integrator does not support exponential weights."""
    needs_raw_gradients: ClassVar[bool] = False
    """Whether control variates, which make gradients small, would mislead the integrator."""

    @property
    def period(self) -> int | None:
        """Steps between draws of a fresh momentum; None: the momentum is never drawn anew."""
        return None

    @property
    def temperature(self) -> float:
        """Temperature: the dynamics sample the posterior raised to the power 1 / temperature."""
        return 1.0

    def derivatives(self, size: int) -> int:
        """Number of derivatives of the batch gradient per step, with `size` coordinates."""
        del size
        return 0

    @abstractmethod
    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Return the initial state at `z`."""

    def refresh(self, key: jax.Array, state: IntegratorState) -> IntegratorState:
        """Redraw the random part of the initial state."""
        return self.start(key, state.z)

    def drift(self, state: IntegratorState, h: jax.Array) -> IntegratorState:
        """Move to the point where the gradient is needed."""
        del h
        return state

    @abstractmethod
    def kick(
        self,
        xi: jax.Array,
        state: IntegratorState,
        gradient: jax.Array,
        h: jax.Array,
        context: StochasticGradientContext,
        diagonal: Callable[[], jax.Array],
    ) -> IntegratorState:
        """Apply the gradient of U and the noise `xi`, a standard normal vector.

        `diagonal` computes the diagonal of the gradient's Jacobian on demand.
        """

    def noise_match(self, state: IntegratorState, h: jax.Array | float) -> NoiseMatch:
        """Compare the gradient of the coming kick with its noise."""
        raise SettingError(
            self.obstacle
            or f"{type(self).__name__} defines no `noise_match`, which exponential weights need."
        )

    def response(self, h: float) -> Response | None:
        """Return the step along one coordinate, if it is linear in position, momentum, gradient."""
        del h
        return None

    def noise_ratio(
        self,
        h: float,
        mean: np.ndarray,
        variance: np.ndarray,
        context: StochasticGradientContext,
    ) -> np.ndarray:
        """Variance of gradient noise over that of injected noise, one number per coordinate.

        `mean` and `variance` are moments of the gradient of U over batches. While the ratio S is
        small, plain batches inflate posterior variances by a factor of 1 + S.
        """
        del mean, context
        step = self.response(h)
        assert step is not None
        return np.asarray(variance * (step.kick @ step.kick) / (step.noise @ step.noise))


def positive(**settings: float) -> None:
    """Refuse settings that are not positive numbers."""
    for name, value in settings.items():
        if not is_number(value) or not value > 0:
            raise SettingError(f"{name} must be a positive number, not {value!r}.")
