"""Integrators: one step of a diffusion, given an estimate of the gradient of U.

Langevin dynamics, plain and preconditioned, and underdamped dynamics by three schemes. To add an
integrator, write a class here and add it to INTEGRATORS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sin, sqrt
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import BelowOne, Count, Positive, check_settings
from modicum.arrays import namespace
from modicum.errors import SettingError
from modicum.kernels.protocols import StochasticGradientContext
from modicum.kernels.whitening import scaled
from modicum.runtime import Array, Pytree


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

    free: Array
    kick: Array
    at: Array
    noise: Array

    def astype(self, dtype: np.dtype) -> Response:
        """Return the response in the precision of a chain."""
        return Response(*(jnp.asarray(part, dtype) for part in self))

    def variance(self, curvature: float = 1.0, gradient_noise: float = 0.0) -> float:
        """Stationary variance of z for U of this curvature and g of this variance; may be inf."""
        from scipy.linalg import solve_discrete_lyapunov

        step = self.free - curvature * np.outer(self.kick, self.at)
        if np.abs(np.linalg.eigvals(step)).max() >= 1:
            return np.inf
        fresh = np.outer(self.noise, self.noise)
        fresh = fresh + gradient_noise * np.outer(self.kick, self.kick)
        return float(solve_discrete_lyapunov(step, fresh)[0, 0])


class Integrator:
    """One step of a diffusion. Subclasses are frozen dataclasses without arrays.

    A step calls `drift`, evaluates the gradient at the position reached, and calls `kick`.
    """

    has_momentum: ClassVar[bool] = True
    needs_raw_gradients: ClassVar[bool] = False
    """Whether control variates, which make gradients small, would mislead the integrator."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def obstacle(self) -> str | None:
        """Why this integrator does not support exponential weights; None if it does."""
        return None

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
        return 0

    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Return the initial state at `z`, with a momentum at the temperature of the dynamics."""
        return IntegratorState(z, sqrt(self.temperature) * jax.random.normal(key, z.shape, z.dtype))

    def drift(self, state: IntegratorState, h: jax.Array) -> IntegratorState:
        """Move to the point where the gradient is needed."""
        return state

    def kick(
        self,
        xi: jax.Array,
        state: IntegratorState,
        gradient: jax.Array,
        h: jax.Array,
        context: StochasticGradientContext,
        diagonal: Callable[[], jax.Array],
    ) -> IntegratorState:
        """Apply the gradient of U and the noise `xi`, a standard normal vector: by `response`.

        `diagonal` computes the diagonal of the gradient's Jacobian on demand.
        """
        step = self._response(h).astype(state.z.dtype)

        def moved(line: jax.Array, kick: jax.Array, noise: jax.Array) -> jax.Array:
            free = line[0] * state.z
            if self.has_momentum:
                free = free + line[1] * state.memory
            return free - kick * gradient + noise * xi

        z, *momentum = map(moved, step.free, step.kick, step.noise)
        return IntegratorState(z, momentum[0] if momentum else ())

    def noise_match(self, state: IntegratorState, h: jax.Array | float) -> NoiseMatch:
        """Compare the gradient of the coming kick with its noise.

        The momentum, or else the position, becomes r' = k r - c g + tau xi.
        """
        step = self._response(h).astype(state.z.dtype)
        tau = step.noise[-1]
        if not self.has_momentum:
            unmoved = jnp.zeros_like(state.z)
            return NoiseMatch(step.kick[-1] / tau, unmoved, unmoved)
        r, kept = state.memory, step.free[-1, -1] * state.memory
        return NoiseMatch(step.kick[-1] / tau, (r - kept) / tau, -kept / tau)

    def response(self, h: float | jax.Array) -> Response | None:
        """Return the step along one coordinate, if it is linear in position, momentum, gradient.

        An integrator without one defines `kick`, and `noise_match` if there is one.
        """
        return None

    def _response(self, h: float | jax.Array) -> Response:
        step = self.response(h)
        if step is None:
            raise SettingError(
                f"{type(self).__name__} defines no `noise_match`, which exponential weights need."
            )
        return step

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
        step = self._response(h)
        return np.asarray(variance * (step.kick @ step.kick) / (step.noise @ step.noise))


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

    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Return a state without memory."""
        return IntegratorState(z, ())

    def response(self, h: float | jax.Array) -> Response:
        """z' = z - (e/2) g + sqrt(e) xi."""
        xp, c = namespace(h), h / 2 if self.halved else h
        return Response(xp.eye(1), xp.array([c]), xp.ones(1), xp.array([xp.sqrt(2 * c)]))


@dataclass(frozen=True)
class Preconditioned(Integrator):
    """z - (e/2) (P g - Gamma) + N(0, e P), P = 1 / (floor + sqrt V), V a running mean square.

    V <- decay V + (1 - decay) gbar^2, with gbar = g / n the batch's mean gradient per row, which
    includes the prior's contribution (that of one row at most).

    Parameters
    ----------
    decay
        Decay of the running mean square; alpha in the paper.
    floor
        Keeps P finite; lambda in the paper.
    gamma
        Whether to add Gamma_i = dP_i / dz_i, without which even small steps sample a density that
        differs from the posterior. The paper omits it in practice. It takes d derivatives of the
        gradient per step, each of which the ledger counts like a gradient of the batch; a budget
        in `passes` does not include them.
    """

    decay: BelowOne = 0.99
    floor: Positive = 1e-5
    gamma: bool = False
    has_momentum: ClassVar[bool] = False
    needs_raw_gradients: ClassVar[bool] = True

    @property
    def obstacle(self) -> str:
        """Its noise depends on the batch."""
        return (
            "pSGLD scales its noise with the batch itself, so exponential weights, which compare "
            'batches under the same noise, are not defined for it; use integrator="langevin" or '
            '"underdamped".'
        )

    def derivatives(self, size: int) -> int:
        """Number of derivatives of the batch gradient that Gamma needs."""
        return size if self.gamma else 0

    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Return a state without a mean square, which the first gradient initialises."""
        return IntegratorState(z, (jnp.zeros_like(z), jnp.zeros((), bool)))

    def kick(
        self,
        xi: jax.Array,
        state: IntegratorState,
        gradient: jax.Array,
        h: jax.Array,
        context: StochasticGradientContext,
        diagonal: Callable[[], jax.Array],
    ) -> IntegratorState:
        """Update the RMSprop preconditioner, then take a Langevin step in its metric."""
        square, begun = state.memory
        n = context.n.astype(state.z.dtype)
        mean = gradient / n
        decay = jnp.where(begun, self.decay, 0.0).astype(state.z.dtype)
        square = decay * square + (1 - decay) * mean**2
        root = jnp.sqrt(square)
        P = 1 / (self.floor + root)
        drift = P * gradient
        if self.gamma:
            # dP/dz = -P^2 d(sqrt V)/dz, where only the newest term of V depends on z.
            slope = (1 - decay) * mean * diagonal() / n / jnp.maximum(root, 1e-30)
            drift = drift + P**2 * slope
        z = state.z - h / 2 * drift + jnp.sqrt(h * P) * xi
        return IntegratorState(z, (square, jnp.ones((), bool)))

    def noise_ratio(
        self,
        h: float,
        mean: np.ndarray,
        variance: np.ndarray,
        context: StochasticGradientContext,
    ) -> np.ndarray:
        """(e/2)^2 P^2 Cov(g) over e P, with P at the stationary mean of V."""
        root = np.sqrt(mean**2 + variance) / float(context.n)
        return np.asarray(h / 4 * variance / (self.floor + root))


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

    friction: Positive = 2.0
    sigma: Positive | None = None

    @property
    def amplitude(self) -> float:
        """sigma."""
        return sqrt(2 * self.friction) if self.sigma is None else self.sigma

    @property
    def temperature(self) -> float:
        """sigma^2 / (2 gamma), by the fluctuation-dissipation theorem."""
        return self.amplitude**2 / (2 * self.friction)

    def response(self, h: float | jax.Array) -> Response:
        """Update position and momentum, both with the old momentum (eq. 3).

        x = sqrt(h) gamma r / sigma and a = sqrt(h) g / sigma follow (Theorem 2, section 4.3).
        """
        return _damped(h, self.friction, self.amplitude * namespace(h).sqrt(h), gradient_at=0.0)


def _damped(
    h: float | jax.Array, friction: float, tau: jax.Array, gradient_at: float | jax.Array
) -> Response:
    """Return a step z' = z + h r, r' = r - h (g + friction r) + tau xi, g at z + gradient_at r."""
    xp = namespace(h)
    free = xp.array([[1.0, h], [0.0, 1 - h * friction]])
    kick, at, noise = (xp.array(pair) for pair in ([0.0, h], [1.0, gradient_at], [0.0, tau]))
    return Response(free, kick, at, noise)


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

    friction: Positive = 1.0
    noise: float = 0.0
    period: Count | None = None
    in_parameters: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.noise < self.friction:
            raise SettingError(
                f"noise must be at least 0 and below the friction ({self.friction}), not "
                f"{self.noise!r}: the injected noise has the variance 2 (friction - noise) e."
            )

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
            factor = context.where.factor
            drag, xi = scaled(factor.T, scaled(factor, p)), scaled(factor.T, xi)
        noise = jnp.sqrt(2 * (self.friction - self.noise) * h) * xi
        return IntegratorState(z, p - h * gradient - h * self.friction * drag + noise)

    @property
    def obstacle(self) -> str | None:
        """With friction in the parameters, the variance of the noise depends on the direction."""
        if not self.in_parameters:
            return None
        return (
            "exponential weights need noise of the same variance in all directions; leave out "
            "in_parameters."
        )

    def response(self, h: float | jax.Array) -> Response | None:
        """Return the response of position and momentum."""
        if self.in_parameters:
            return None  # directions differ
        tau = namespace(h).sqrt(2 * (self.friction - self.noise) * h)
        return _damped(h, self.friction, tau, gradient_at=h)

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
            factor = np.asarray(context.where.factor)
            squares = np.sum(factor**2, axis=0) if factor.ndim == 2 else factor**2
        drawn_anew = 0.0
        if self.period is not None:
            T = self.period * h
            drawn_anew = 2 * sin(T) ** 2 / (T - sin(2 * T) / 2)
        return np.asarray(variance * h / (2 * (self.friction - self.noise) * squares + drawn_anew))


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

    friction: Positive = 2.0

    def response(self, h: float | jax.Array) -> Response:
        """Take a full B step, a half A step, an O step and a half A step."""
        xp = namespace(h)
        decay = xp.exp(-self.friction * h)
        tau, drift = xp.sqrt(-xp.expm1(-2 * self.friction * h)), h / 2 * (1 + decay)
        free = xp.array([[1.0, drift], [0.0, decay]])
        kick, noise = xp.array([h * drift, h * decay]), xp.array([h / 2 * tau, tau])
        return Response(free, kick, xp.array([1.0, 0.0]), noise)


INTEGRATORS: dict[str, type[Integrator]] = {
    "langevin": Langevin,
    "preconditioned": Preconditioned,
    "underdamped": Underdamped,
    "friction": Friction,
    "baoab": Baoab,
}
