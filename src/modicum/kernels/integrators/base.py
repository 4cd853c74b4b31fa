"""What an integrator is: one step of a diffusion, given an estimate of the gradient of U."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import numpy as np

from modicum.errors import SettingError, is_number
from modicum.kernels.base import StochasticGradientContext
from modicum.runtime import Pytree

__all__ = ["Integrator", "IntegratorState", "NoiseMatch", "Response", "positive"]


class IntegratorState(NamedTuple):
    """Where a chain is."""

    z: jax.Array  # its coordinates
    memory: Pytree  # its momentum, or what else the integrator carries; () for nothing


class NoiseMatch(NamedTuple):
    """How gradient and noise enter the part of a step that is random (EWSG paper, Theorem 2).

    That part is r' = m - c g + tau xi. With a = (c / tau) g, the density of r' depends on the batch
    through |x + a|^2, x = (r' - m) / tau.
    """

    scale: jax.Array | float  # c / tau
    x: jax.Array  # with r' = r, the paper's choice
    rest: jax.Array  # with r' = 0


class Response(NamedTuple):
    """A step along one coordinate, w' = free w - kick g + noise xi with w = (z, momentum).

    The gradient g is that at `at` . w: at the old position, or at one on the way.
    """

    free: np.ndarray
    kick: np.ndarray
    at: np.ndarray
    noise: np.ndarray

    def variance(self, curvature: float = 1.0, gradient_noise: float = 0.0) -> float:
        """Stationary variance of z where U has this curvature, and g this variance; or infinity."""
        from scipy.linalg import solve_discrete_lyapunov

        step = self.free - curvature * np.outer(self.kick, self.at)
        if np.abs(np.linalg.eigvals(step)).max() >= 1:
            return np.inf
        fresh = np.outer(self.noise, self.noise)
        fresh = fresh + gradient_noise * np.outer(self.kick, self.kick)
        return float(solve_discrete_lyapunov(step, fresh)[0, 0])


class Integrator(ABC):
    """One step of a diffusion. Frozen dataclasses: hashable, without arrays.

    A step is `drift`, then the gradient at the position reached, then `kick`.
    """

    has_momentum: ClassVar[bool] = True
    obstacle: ClassVar[str | None] = None
    """Why exponential weights cannot be had with this integrator."""
    needs_raw_gradients: ClassVar[bool] = False
    """Whether control variates, which make gradients small, would mislead it."""

    @property
    def period(self) -> int | None:
        """Steps from one fresh momentum to the next; None: it is never drawn anew."""
        return None

    @property
    def temperature(self) -> float:
        """The dynamics sample the posterior raised to the power 1 / temperature."""
        return 1.0

    def derivatives(self, size: int) -> int:
        """Derivatives of the batch's gradient that a step takes, with `size` coordinates."""
        del size
        return 0

    @abstractmethod
    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Begin at `z`."""

    def refresh(self, key: jax.Array, state: IntegratorState) -> IntegratorState:
        """Draw what `start` draws anew."""
        return self.start(key, state.z)

    def drift(self, state: IntegratorState, h: jax.Array) -> IntegratorState:
        """Go where the gradient is wanted."""
        del h
        return state

    @abstractmethod
    def kick(
        self,
        key: jax.Array,
        state: IntegratorState,
        gradient: jax.Array,
        h: jax.Array,
        context: StochasticGradientContext,
        diagonal: Callable[[], jax.Array],
    ) -> IntegratorState:
        """Use the gradient of U. `diagonal` computes that of its Jacobian, for those who ask."""

    def noise_match(self, state: IntegratorState, h: jax.Array | float) -> NoiseMatch:
        """How the gradient of the coming kick compares with its noise."""
        raise SettingError(self.obstacle or "this integrator has no noise to compare with.")

    def response(self, h: float) -> Response | None:
        """The step along one coordinate, where it is linear in position, momentum and gradient."""
        del h
        return None

    def noise_ratio(
        self,
        h: float,
        mean: np.ndarray,
        variance: np.ndarray,
        context: StochasticGradientContext,
    ) -> np.ndarray:
        """Gradient noise over injected noise, one number per coordinate.

        `mean` and `variance` are those of the gradient of U over batches. While the ratio S is
        small, plain batches make variances of the posterior 1 + S times too large.
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
