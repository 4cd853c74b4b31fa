"""Covariance matrices of a few effects, from unconstrained numbers: sds and correlations.

Standard deviations are sampled on the log scale. Of the correlations, the numbers x are inverse
hyperbolic tangents of canonical partial correlations r = tanh(x), which are independent under the
LKJ distribution (Lewandowski, Kurowicka and Joe 2009). They are in the order of the entries below
the diagonal, row by row, along the last axis; other axes are a batch. 1 - r^2 is always computed
from x: next to 1, r itself has lost the digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import betaln

from modicum.arrays import differentiable, namespace


@differentiable(slope=lambda x: -2 * namespace(x).tanh(x))
def log_unexplained(x: jax.Array) -> jax.Array:
    """log(1 - tanh(x)^2), with the derivatives also at 0, where |x| has none."""
    xp = namespace(x)
    size = xp.abs(x)
    value: jax.Array = 2 * (log(2) - size - xp.log1p(xp.exp(-2 * size)))
    return value


def correlation_factor(x: jax.Array, count: int) -> jax.Array:
    """Cholesky factors (..., count, count) of correlation matrices; NumPy arrays from NumPy's.

    Every row has length 1: partial correlations divide what the entries before them left over.
    """
    xp, below = namespace(x), np.tri(count, k=-1, dtype=bool)
    place = np.zeros((count, count), int)
    place[below] = np.arange(x.shape[-1])
    u = xp.where(below, x[..., place], 0.0)
    # Entry (i, j): half the sum of log(1 - r^2) of row i over the columns before j.
    log_left = 0.5 * xp.sum(xp.where(below, log_unexplained(u)[..., None, :], 0.0), axis=-1)
    factor: jax.Array = xp.tril((xp.tanh(u) + np.eye(count, dtype=u.dtype)) * xp.exp(log_left))
    return factor


def partials_of_factor(factor: jax.Array) -> jax.Array:
    """Undo `correlation_factor`; the result is finite also for a diagonal that vanished."""
    factor = jnp.asarray(factor, jnp.result_type(factor, float))
    later = jnp.flip(jnp.cumsum(jnp.flip(factor[..., 1:] ** 2, -1), axis=-1), -1)
    left = jnp.sqrt(jnp.maximum(later, np.finfo(factor.dtype).tiny))
    x = jnp.arcsinh(factor[..., :-1] / left)  # sinh(x) = r / sqrt(1 - r^2)
    return x[(..., *np.tril_indices(factor.shape[-1], -1))]


def log_jacobian_of_factor(x: jax.Array, count: int) -> jax.Array:
    """Logarithm of |d factor / dx| for the entries below the diagonal, summed over the batch."""
    row, column = np.tril_indices(count, -1)
    log_slopes = log_unexplained(x)
    return jnp.sum(jnp.asarray(1 + (row - 1 - column) / 2, log_slopes.dtype) * log_slopes)


def correlations(x: jax.Array, count: int) -> jax.Array:
    """Correlations below the diagonal, row by row, along the last axis."""
    factor = correlation_factor(x, count)
    return (factor @ factor.swapaxes(-1, -2))[(..., *np.tril_indices(count, -1))]


def partials_of(below: jax.Array, count: int) -> jax.Array:
    """Undo `correlations`; a correlation that was rounded to 1 becomes the number before it."""
    below, (i, j) = jnp.asarray(below), np.tril_indices(count, -1)
    last = 1 - np.finfo(below.dtype).epsneg
    below = jnp.clip(below, -last, last)
    matrix = jnp.eye(count, dtype=below.dtype).at[i, j].set(below).at[j, i].set(below)
    return partials_of_factor(jnp.linalg.cholesky(matrix))


def partial_exponents(count: int, eta: float | jax.Array) -> np.ndarray | jax.Array:
    """alpha of each partial correlation r under an LKJ prior: (1 + r) / 2 is Beta(alpha, alpha)."""
    column = np.tril_indices(count, -1)[1]
    return eta + (count - 2 - column) / 2


def draw_partials(count: int, eta: float, rng: np.random.Generator, number: int) -> np.ndarray:
    """Draw the numbers x of `number` LKJ(eta) correlation matrices."""
    alpha = np.asarray(partial_exponents(count, eta))
    r = 2 * rng.beta(alpha, alpha, size=(number, len(alpha))) - 1
    return np.asarray(np.arctanh(r))


def unnormalized_lkj(x: jax.Array, count: int, eta: float | jax.Array) -> jax.Array:
    """Log-density of the numbers x of an LKJ(eta) correlation matrix, without its constant.

    It is (1 - r^2)^(alpha - 1) of each partial correlation r, times dr/dx = 1 - r^2.
    """
    xp = namespace(x)
    terms = partial_exponents(count, eta) * log_unexplained(xp.asarray(x))
    total: jax.Array = xp.sum(terms, axis=-1)
    return total


def unnormalized_lkj_integral(count: int, eta: float) -> float:
    """Logarithm of the integral of exp(`unnormalized_lkj`)."""
    alpha = np.asarray(partial_exponents(count, eta))
    return float(np.sum((2 * alpha - 1) * log(2) + betaln(alpha, alpha)))


def inverse(S: jax.Array) -> jax.Array:
    """Inverses of positive definite matrices (..., r, r) for r up to 3."""
    xp, size = namespace(S), S.shape[-1]
    if size == 1:
        return 1 / S
    if size == 2:
        a, b, c = S[..., 0, 0], S[..., 0, 1], S[..., 1, 1]
        inverse: jax.Array = xp.stack([xp.stack([c, -b], -1), xp.stack([-b, a], -1)], -2)
        return inverse / (a * c - b**2)[..., None, None]
    rows = [S[..., k, :] for k in range(3)]
    cofactors: jax.Array = xp.stack(
        [xp.cross(rows[(k + 1) % 3], rows[(k + 2) % 3]) for k in range(3)], -1
    )
    return cofactors / xp.sum(rows[0] * cofactors[..., 0], axis=-1)[..., None, None]


def lower_factor(S: jax.Array) -> jax.Array:
    """Cholesky factors of positive definite matrices (..., r, r), from their lower triangles."""
    xp, size = namespace(S), S.shape[-1]
    zero = xp.zeros(S.shape[:-2])
    L: list[list[jax.Array]] = []
    for i in range(size):
        row: list[jax.Array] = []
        for j in range(i + 1):
            entry = S[..., i, j]
            for k in range(j):
                entry = entry - row[k] * (L[j] if j < i else row)[k]
            row.append(xp.sqrt(entry) if i == j else entry / L[j][j])
        L.append(row)
    padded = [xp.stack([*row, *[zero] * (size - len(row))], -1) for row in L]
    factor: jax.Array = xp.stack(padded, -2)
    return factor


def covariance_factor(hyper: jax.Array, count: int) -> jax.Array:
    """Cholesky factors of Sigma from log sds and, if effects are correlated, the numbers x."""
    xp = namespace(hyper)
    sds: jax.Array = xp.exp(hyper[..., :count])
    if hyper.shape[-1] == count:
        return sds[..., None] * np.eye(count)
    return sds[..., None] * correlation_factor(hyper[..., count:], count)


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

    def hyper(self, theta: Mapping[str, jax.Array]) -> jax.Array:
        """Return log sds and, if effects are correlated, the numbers x, in one vector."""
        xp = namespace(theta["group_log_sd"])
        names = ("group_log_sd", *(["group_partial"] if self.pairs else []))
        joined: jax.Array = xp.concatenate([xp.asarray(theta[name]) for name in names])
        return joined

    def factor(self, theta: Mapping[str, jax.Array]) -> jax.Array:
        """Return T, lower triangular: effects are T v with v ~ N(0, I)."""
        return covariance_factor(self.hyper(theta), self.size)

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
