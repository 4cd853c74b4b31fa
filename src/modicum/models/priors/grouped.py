"""The prior of group effects: u_l ~ N(0, Sigma), with standard deviations and correlations.

Sampled are the logarithms of the standard deviations, and the inverse hyperbolic tangents of
canonical partial correlations, of which the LKJ distribution is a product (Lewandowski, Kurowicka
and Joe 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models.arrow import ArrowCovariance, Covariance, diagonal
from modicum.models.priors.distributions import HALF_LOG_2PI, Prior
from modicum.models.priors.exact import NonCentred, Numbers, StandIn
from modicum.runtime import Array, jit

__all__ = ["Effects", "correlations", "covariance_factor", "partials_of"]

NEWTON_STEPS = 30
LEAST = 1.0  # precision of a sampled scale: its posterior is never taken to be wider
LEAST_SHARE = 0.05  # of a complete observation of the effects that is left of it


@dataclass(frozen=True)
class Effects:
    """Effects of the levels of one factor, and the parameters of their distribution.

    Numbers: the arguments of the standard deviations' priors, one array each per effect; then eta
    of the LKJ prior.

    Parameters
    ----------
    where
        Flat places of the effects, all levels of the first, then of the next.
    count
        Effects per level.
    sds, partials
        Flat places of log standard deviations, and of what makes correlations; empty: none.
    kinds
        Distributions of the standard deviations.
    """

    where: tuple[int, ...]
    count: int
    sds: tuple[int, ...]
    partials: tuple[int, ...]
    kinds: tuple[type[Prior], ...]

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self.where) // self.count

    @property
    def own(self) -> np.ndarray:
        """Flat places of the parameters of the prior's own."""
        return np.array([*self.sds, *self.partials])

    def log_density(self, t: jax.Array, numbers: Numbers) -> jax.Array:
        """log p(u | Sigma) + log p(Sigma), in what is sampled."""
        return self.log_effects(t) + _log_hyper(self.kinds, t[self.own], numbers)

    def log_effects(self, t: jax.Array) -> jax.Array:
        """log p(u | Sigma)."""
        u = t[np.array(self.where)].reshape(self.count, self.levels)
        own = t[self.own]
        lower = covariance_factor(own, self.count)
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
        """The mode of E log p(u, Sigma): of tau alone, tau^2 = S / (L - 1) for a flat prior."""
        uu, V = self._second_moments(t, covariance)
        settled = t.copy()
        mode, _ = _mode_of_own(self.kinds, self.count, self.levels, t[self.own], uu + V, numbers)
        settled[self.own] = np.asarray(mode)
        return settled

    def stand_ins(
        self, t: np.ndarray, covariance: Covariance, numbers: Numbers, own: bool
    ) -> Sequence[StandIn]:
        """Normal effects given Sigma; for Sigma what information the effects leave of it."""
        places, where = self.own, np.array(self.where)
        if self.partials:
            lower = np.asarray(covariance_factor(jnp.asarray(t[places]), self.count))
            inverse = np.linalg.inv(lower @ lower.T)
        else:
            inverse = np.diag(np.exp(-2 * t[places]))
        effects = StandIn(where, np.zeros(len(where)), np.full(len(where), inverse[0, 0]))
        if self.count > 1:
            lines = where.reshape(self.count, self.levels)
            effects = StandIn(lines, np.zeros(lines.shape), inverse)
        if not own:
            return [effects]
        uu, V = self._second_moments(t, covariance)
        arguments = (self.kinds, self.count, self.levels, t[places], uu + V, numbers)
        curvature = np.asarray(_mode_of_own(*arguments, 0)[1])
        share = 1 - np.sum(inverse * V) / (self.levels * self.count)
        bent = np.maximum(np.diag(curvature) * max(share, LEAST_SHARE), LEAST)
        return [effects, StandIn(places, t[places], bent)]

    def informed(self, t: np.ndarray, covariance: Covariance) -> np.ndarray:
        """lambda of each effect: the share of what is known of it that the data say, in 0 to 1."""
        variance = diagonal(covariance)[np.array(self.where)].reshape(self.count, self.levels)
        prior = np.exp(2 * t[np.array(self.sds)])[:, None]
        return np.asarray(np.clip(1 - variance / prior, 0.0, 1.0))

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> NonCentred:
        """Effects move with their standard deviation, by what data say of each: A_ll tau^2."""
        scale = np.repeat(np.array(self.sds), self.levels)
        ratio = information[np.array(self.where)] * np.exp(2 * t[scale])
        return NonCentred(np.array(self.where), scale, ratio)


def covariance_factor(own: jax.Array, count: int) -> jax.Array:
    """Cholesky factor of Sigma from what is sampled."""
    sds = jnp.exp(own[:count])
    if own.shape[0] == count:
        return jnp.diag(sds)
    return sds[:, None] * _cholesky(jnp.tanh(own[count:]), count)


def _cholesky(partials: jax.Array, count: int) -> jax.Array:
    """Cholesky factor of a correlation matrix from canonical partial correlations."""
    rows, k = [jnp.zeros(count).at[0].set(1.0)], 0
    for r in range(1, count):
        row, left = jnp.zeros(count), jnp.ones(())
        for c in range(r):
            row = row.at[c].set(partials[k] * jnp.sqrt(left))
            left, k = left * (1 - partials[k] ** 2), k + 1
        rows.append(row.at[r].set(jnp.sqrt(left)))
    return jnp.stack(rows)


def correlations(own: jax.Array, count: int) -> jax.Array:
    """Correlations below the diagonal, row by row, from the sampled numbers."""
    factor = _cholesky(jnp.tanh(own), count)
    return (factor @ factor.T)[np.tril_indices(count, -1)]


def partials_of(below: jax.Array, count: int) -> jax.Array:
    """Undo `correlations`."""
    i, j = np.tril_indices(count, -1)
    matrix = jnp.eye(count).at[i, j].set(below).at[j, i].set(below)
    factor = jnp.linalg.cholesky(matrix)
    sampled = []
    for r in range(1, count):
        left = jnp.ones(())
        for c in range(r):
            partial_ = factor[r, c] / jnp.sqrt(left)
            sampled.append(jnp.arctanh(partial_))
            left = left * (1 - partial_**2)
    return jnp.stack(sampled)


def _solve(lower: jax.Array, u: jax.Array) -> jax.Array:
    return jax.scipy.linalg.solve_triangular(lower, u, lower=True)


def _log_hyper(kinds: tuple[type[Prior], ...], own: jax.Array, numbers: Numbers) -> jax.Array:
    """Log-density of log standard deviations and of what makes correlations."""
    total, first, count = jnp.zeros(()), 0, len(kinds)
    for k, kind in enumerate(kinds):
        width = len(fields(kind))  # type: ignore[arg-type]
        arguments = [jnp.asarray(number) for number in numbers[first : first + width]]
        total, first = total + kind.density(jnp.exp(own[k]), *arguments) + own[k], first + width
    if own.shape[0] > count:
        eta, log_left = jnp.asarray(numbers[-1]), jnp.log1p(-(jnp.tanh(own[count:]) ** 2))
        column = np.concatenate([np.arange(r) for r in range(1, count)])
        total = total + jnp.sum((eta + (count - 2 - column) / 2) * log_left)
    return total


@jit(static=(0, 1))
def _mode_of_own(
    kinds: tuple[type[Prior], ...],
    count: int,
    levels: Array | int,
    start: Array,
    second: Array,
    numbers: Numbers,
    steps: Array | int = NEWTON_STEPS,
) -> tuple[jax.Array, jax.Array]:
    """Maximise E log p(u, Sigma) given the effects' second moments; minus its Hessian there."""

    def expected(own: jax.Array) -> jax.Array:
        lower = covariance_factor(own, count)
        half = _solve(lower, _solve(lower, jnp.asarray(second)).T)
        of_effects = -0.5 * jnp.trace(half) - levels * jnp.sum(jnp.log(jnp.diag(lower)))
        return of_effects + _log_hyper(kinds, own, numbers)

    def newton(_: int, own: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(-jax.hessian(expected)(own))
        uphill = vectors @ (
            (vectors.T @ jax.grad(expected)(own)) / jnp.maximum(jnp.abs(values), 0.1)
        )
        return own + jnp.clip(uphill, -0.7, 0.7)

    mode = jax.lax.fori_loop(0, steps, newton, jnp.asarray(start))
    return mode, -jax.hessian(expected)(mode)
