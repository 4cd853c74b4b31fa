"""Langevin dynamics with a running diagonal preconditioner: pSGLD (Li et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError, is_number
from modicum.kernels.base import StochasticGradientContext
from modicum.kernels.integrators.base import Integrator, IntegratorState, positive


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

    decay: float = 0.99
    floor: float = 1e-5
    gamma: bool = False
    has_momentum: ClassVar[bool] = False
    obstacle: ClassVar[str | None] = (
        "pSGLD scales its noise with the batch itself, so exponential weights, which compare "
        'batches under the same noise, are not defined for it; use integrator="langevin" or '
        '"underdamped".'
    )
    needs_raw_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not is_number(self.decay) or not 0 <= self.decay < 1:
            raise SettingError(f"decay must be at least 0 and below 1, not {self.decay!r}.")
        positive(floor=self.floor)

    def derivatives(self, size: int) -> int:
        """Number of derivatives of the batch gradient that Gamma needs."""
        return size if self.gamma else 0

    def start(self, key: jax.Array, z: jax.Array) -> IntegratorState:
        """Return a state without a mean square, which the first gradient initialises."""
        del key
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
