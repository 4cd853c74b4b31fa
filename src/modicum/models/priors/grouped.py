"""The prior of group effects: u_l ~ N(0, Sigma), with standard deviations and correlations.

The sampled parameters are the logarithms of the standard deviations and the inverse hyperbolic
tangents of canonical partial correlations (`models.correlations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import HALF_LOG_2PI, expansion
from modicum.models.arrow import ArrowCovariance, Covariance, diagonal
from modicum.models.correlations import correlation_factor, unnormalized_lkj
from modicum.models.priors.distributions import Prior
from modicum.models.priors.exact import NonCentred, NormalApproximation, Numbers
from modicum.runtime import FASTEST_COMPILE, Array, jit

NEWTON_STEPS = 30
LEAST_PRECISION = 1.0  # least precision assumed for the posterior of a sampled log scale
LEAST_SHARE = 0.05  # least share of the information that observed effects would give


@dataclass(frozen=True)
class Effects:
    """Effects of the levels of one factor, and the parameters of their distribution.

    Numbers: the arguments of the standard deviations' priors, one array each per effect; then eta
    of the LKJ prior.

    Parameters
    ----------
    where
        Positions in t of the effects: all levels of the first effect, then of the next.
    count
        Effects per level.
    sds, partials
        Positions of log standard deviations and of transformed partial correlations; may be empty.
    kinds
        Distributions of the standard deviations.
    """

    where: tuple[int, ...]
    count: int
    sds: tuple[int, ...]
    partials: tuple[int, ...]
    kinds: tuple[type[Prior], ...]
    smooth: ClassVar[bool] = False  # the joint density of effects and scales has no useful mode

    @property
    def levels(self) -> int:
        """Number of levels."""
        return len(self.where) // self.count

    @property
    def hyperparameters(self) -> np.ndarray:
        """Positions of the hyperparameters."""
        return np.array([*self.sds, *self.partials])

    def log_density(self, t: jax.Array, numbers: Numbers) -> jax.Array:
        """log p(u | Sigma) + log p(Sigma), in the sampled coordinates."""
        return self.log_effects(t) + _log_hyper(self.kinds, t[self.hyperparameters], numbers)

    def log_effects(self, t: jax.Array) -> jax.Array:
        """log p(u | Sigma)."""
        u = t[np.array(self.where)].reshape(self.count, self.levels)
        lower = covariance_factor(t[self.hyperparameters], self.count)
        z = u / jnp.diag(lower)[:, None] if not self.partials else _solve(lower, u)
        log_det = jnp.sum(jnp.log(jnp.diag(lower)))
        return -0.5 * jnp.sum(z**2) - self.levels * (log_det + self.count * HALF_LOG_2PI)

    # The anchor -------------------------------------------------------------------------------

    def _second_moments(self, t: np.ndarray, covariance: Covariance) -> tuple[np.ndarray, ...]:
        """Sums over levels of u u' and of the effects' posterior covariances, (count, count)."""
        where = np.array(self.where).reshape(self.count, self.levels)
        u = t[where]
        if isinstance(covariance, ArrowCovariance):
            return u @ u.T, covariance.sum_over_levels(where)
        V = covariance[where[:, None, :], where[None, :, :]].sum(axis=-1)
        return u @ u.T, V

    def settle(self, t: np.ndarray, covariance: Covariance, numbers: Numbers) -> np.ndarray:
        """Set Sigma to the mode of E log p(u, Sigma); tau^2 = S / (L - 1) with a flat prior."""
        uu, V = self._second_moments(t, covariance)
        settled = t.copy()
        where = self.hyperparameters
        about = (self.kinds, self.count, self.levels, t[where], uu + V, numbers)
        mode, _ = _hyper_mode(*about, NEWTON_STEPS)
        settled[where] = np.asarray(mode)
        return settled

    def normal_approximations(
        self, t: np.ndarray, covariance: Covariance, numbers: Numbers, hyperparameters: bool
    ) -> Sequence[NormalApproximation]:
        """Normal effects given Sigma; for Sigma, the information with u integrated out."""
        places, where = self.hyperparameters, np.array(self.where)
        if self.partials:
            lower = np.asarray(_covariance_factor(t[places], self.count))
            inverse = np.linalg.inv(lower @ lower.T)
        else:
            inverse = np.diag(np.exp(-2 * t[places]))
        precision = np.full(len(where), inverse[0, 0])
        effects = NormalApproximation(where, np.zeros(len(where)), precision)
        if self.count > 1:
            lines = where.reshape(self.count, self.levels)
            effects = NormalApproximation(lines, np.zeros(lines.shape), inverse)
        if not hyperparameters:
            return [effects]
        uu, V = self._second_moments(t, covariance)
        arguments = (self.kinds, self.count, self.levels, t[places], uu + V, numbers)
        curvature = np.asarray(_hyper_mode(*arguments, 0)[1])
        share = 1 - np.sum(inverse * V) / (self.levels * self.count)
        precisions = np.maximum(np.diag(curvature) * max(share, LEAST_SHARE), LEAST_PRECISION)
        return [effects, NormalApproximation(places, t[places], precisions)]

    def informed(self, t: np.ndarray, covariance: Covariance) -> np.ndarray:
        """lambda of each effect: the share of its information that comes from data, in [0, 1]."""
        variance = diagonal(covariance)[np.array(self.where)].reshape(self.count, self.levels)
        prior = np.exp(2 * t[np.array(self.sds)])[:, None]
        return np.asarray(np.clip(1 - variance / prior, 0.0, 1.0))

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> NonCentred:
        """Effects move with their standard deviation, less the larger A_ll tau^2 is."""
        scale = np.repeat(np.array(self.sds), self.levels)
        ratio = information[np.array(self.where)] * np.exp(2 * t[scale])
        return NonCentred(np.array(self.where), scale, ratio)


def covariance_factor(hyper: jax.Array, count: int) -> jax.Array:
    """Cholesky factor of Sigma from the sampled hyperparameters."""
    sds = jnp.exp(hyper[:count])
    if hyper.shape[0] == count:
        return jnp.diag(sds)
    return sds[:, None] * correlation_factor(hyper[count:], count)


@jit(static=1, options=FASTEST_COMPILE)
def _covariance_factor(hyper: Array, count: int) -> jax.Array:
    return covariance_factor(jnp.asarray(hyper), count)


def _solve(lower: jax.Array, u: jax.Array) -> jax.Array:
    return jax.scipy.linalg.solve_triangular(lower, u, lower=True)


def _log_hyper(kinds: tuple[type[Prior], ...], hyper: jax.Array, numbers: Numbers) -> jax.Array:
    """Log-density of log standard deviations and of transformed partial correlations."""
    total, first, count = jnp.zeros(()), 0, len(kinds)
    for k, kind in enumerate(kinds):
        width = len(fields(kind))  # type: ignore[arg-type]
        arguments = [jnp.asarray(number) for number in numbers[first : first + width]]
        total, first = total + kind.density(jnp.exp(hyper[k]), *arguments) + hyper[k], first + width
    if hyper.shape[0] > count:
        total = total + unnormalized_lkj(hyper[count:], count, jnp.asarray(numbers[-1]))
    return total


@jit(static=(0, 1))
def _hyper_mode(
    kinds: tuple[type[Prior], ...],
    count: int,
    levels: Array | int,
    start: Array,
    second: Array,
    numbers: Numbers,
    steps: Array | int,
) -> tuple[jax.Array, jax.Array]:
    """Maximize E log p(u, Sigma) given second moments; return the mode and minus the Hessian."""

    def expected(hyper: jax.Array) -> jax.Array:
        lower = covariance_factor(hyper, count)
        half = _solve(lower, _solve(lower, jnp.asarray(second)).T)
        of_effects = -0.5 * jnp.trace(half) - levels * jnp.sum(jnp.log(jnp.diag(lower)))
        return of_effects + _log_hyper(kinds, hyper, numbers)

    def newton(_: int, hyper: jax.Array) -> jax.Array:
        gradient, hessian = expansion(expected)(hyper)[1:]
        values, vectors = jnp.linalg.eigh(-hessian)
        uphill = vectors @ ((vectors.T @ gradient) / jnp.maximum(jnp.abs(values), 0.1))
        return hyper + jnp.clip(uphill, -0.7, 0.7)

    mode = jax.lax.fori_loop(0, steps, newton, jnp.asarray(start))
    return mode, -jax.hessian(expected)(mode)
