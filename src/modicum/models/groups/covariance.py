"""The covariance S of a group's effects: parametrization, priors, and a factor T with T T' = S.

Standard deviations are sampled on the log scale, correlations as `models.correlations` describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from modicum.arrays import namespace
from modicum.models.correlations import (
    correlation_factor,
    correlations,
    partials_of,
    unnormalized_lkj,
)
from modicum.models.groups.small_matrices import lower_factor


@dataclass(frozen=True)
class Covariance:
    """The covariance of `size` effects.

    Parameters
    ----------
    size
        Effects per group.
    correlated
        Whether they may be correlated; otherwise S is diagonal.
    """

    size: int
    correlated: bool = True

    @property
    def pairs(self) -> int:
        """Number of correlations."""
        return self.size * (self.size - 1) // 2 if self.correlated else 0

    def correlation_factor(self, theta: Mapping[str, jax.Array]) -> jax.Array:
        """Return the Cholesky factor of the correlation matrix."""
        xp = namespace(theta["group_log_sd"])
        if not self.pairs:
            identity: jax.Array = xp.eye(self.size)
            return identity
        return correlation_factor(xp.asarray(theta["group_partial"]), self.size)

    def factor(self, theta: Mapping[str, jax.Array]) -> jax.Array:
        """Return T, lower triangular: effects are T v with v ~ N(0, I)."""
        xp = namespace(theta["group_log_sd"])
        sd: jax.Array = xp.exp(xp.asarray(theta["group_log_sd"]))
        return sd[:, None] * self.correlation_factor(theta)

    def log_prior(
        self, theta: Mapping[str, jax.Array], scales: tuple[float, ...], concentration: float
    ) -> jax.Array:
        """Log-density of half-normal sds and an LKJ correlation matrix, with Jacobians."""
        log_sd = jnp.asarray(theta["group_log_sd"])
        ratio = jnp.exp(log_sd) / jnp.asarray(scales)
        total = jnp.sum(-0.5 * ratio**2 + jnp.log(ratio) + 0.5 * jnp.log(2 / jnp.pi))
        if not self.pairs:
            return total
        return total + unnormalized_lkj(theta["group_partial"], self.size, concentration)

    def report(self, theta: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return standard deviations and correlations."""
        named = {"group_sd": jnp.exp(jnp.asarray(theta["group_log_sd"]))}
        if self.pairs:
            named["group_cor"] = correlations(theta["group_partial"], self.size)
        return named

    def restore(self, named: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Undo `report`."""
        theta = {"group_log_sd": jnp.log(jnp.asarray(named["group_sd"]))}
        if self.pairs:
            theta["group_partial"] = partials_of(named["group_cor"], self.size)
        return theta


def entries_of(factor: jax.Array, correlated: bool) -> jax.Array:
    """Return the free entries of S = T T': the lower triangle, or the diagonal."""
    S = factor @ factor.T
    size = len(S)
    return jnp.stack([S[i, j] for i in range(size) for j in range(i + 1) if correlated or i == j])


def factor_of_entries(entries: jax.Array, size: int, correlated: bool) -> jax.Array:
    """Undo `entries_of`: return the Cholesky factor."""
    S, k = jnp.zeros((size, size)), 0
    for i in range(size):
        for j in range(i + 1):
            if correlated or i == j:
                S, k = S.at[i, j].set(entries[k]), k + 1
    return lower_factor(S)
