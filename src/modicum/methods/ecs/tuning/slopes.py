"""Gradient noise: how much the gradients of the residuals differ between rows.

The measure is the largest eigenvalue of the covariance of the rows' gradients in whitened
coordinates, at some of the draws. Divided by m it is the noise of the gradient in posterior units.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from modicum.estimators.by_numpy import NumPyRows, needs_no_compiler
from modicum.estimators.groups.by_numpy import NumPyGroupValues, groups_need_no_compiler
from modicum.kernels.base import ControlVariate, Proxy
from modicum.kernels.coordinates import scaled
from modicum.methods.ecs.tuning.moments import representatives
from modicum.models.arrow import ArrowFactor
from modicum.models.base import Batch
from modicum.random import typed
from modicum.runtime import FASTEST_COMPILE, SCATTERS, Array, Pytree, jit, one_blas_thread

GROUP_DRAWS = 8  # draws at which NumPy evaluates groups
EXACT, POWERS = 16, 20  # most parameters for which the covariance is formed; else power iterations


def slopes_of_rows(
    cv: ControlVariate[Pytree],
    batch: Batch,
    proxy: Proxy,
    draws: np.ndarray,
    weight: np.ndarray,
    factor: np.ndarray,
) -> np.ndarray:
    """Return the largest eigenvalue of the covariance of the rows' gradients, one per draw.

    Parameters
    ----------
    weight
        The share of the design's draws that each row represents.
    factor
        Multiplier of each row's residual over `probability`; see `reweighted`.
    """
    if needs_no_compiler(cv) and not isinstance(proxy.factor, ArrowFactor):
        return _slopes_by_numpy(map(NumPyRows(cv, batch, proxy).gradients, draws), weight, factor)
    return np.asarray(_compiled(cv, batch, proxy, draws, weight, factor))


def slopes_of_groups(
    cv: ControlVariate[Pytree],
    batch: Batch,
    proxy: Proxy,
    draws: np.ndarray,
    weight: np.ndarray,
    factor: np.ndarray,
) -> np.ndarray:
    """Like `slopes_of_rows`, for a batch of groups."""
    if groups_need_no_compiler(cv) and proxy.a.shape[0] <= EXACT:
        gradients = NumPyGroupValues(cv, batch, proxy).gradients(draws[:GROUP_DRAWS])
        return _slopes_by_numpy(gradients, weight, factor)
    return np.asarray(_compiled_of_groups(cv, batch, proxy, draws, weight, factor))


def representative_rows(
    weight: np.ndarray, count: int, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return indices of `count` rows that represent all rows a design draws, and their shares.

    They are evenly spaced in the cumulative sum of, in equal parts, weights and second moments of
    `size`: a uniform design draws the most influential rows so rarely that weight alone would
    select none. If at most `count` rows are ever drawn, all of them are taken, padded with rows of
    share zero, so that the number of rows is always the same and code is compiled once.
    """
    drawn = np.flatnonzero(weight > 0)
    if len(drawn) <= count:
        at = np.r_[drawn, np.setdiff1d(np.arange(len(weight)), drawn)[: count - len(drawn)]]
        return at, weight[at]
    moment = weight * size**2
    importance = weight + (moment / moment.sum() if moment.sum() > 0 else 0.0)
    at = representatives(importance, count)
    share = weight[at] / importance[at]
    return at, share / share.sum()


def _slopes(
    cv: ControlVariate[Pytree],
    batch: Batch,
    proxy: Proxy,
    draws: Array,
    weight: Array,
    factor: Array,
) -> jax.Array:
    """Return the largest eigenvalue of the covariance of some rows' gradients, one per draw."""
    cached = cv.cache(batch, proxy)
    share = weight / weight.sum()

    def values(z: jax.Array, at: jax.Array) -> jax.Array:
        return jnp.asarray(factor * cv.values(cached, at + scaled(proxy.factor, z), proxy))

    def largest(z: jax.Array) -> jax.Array:
        if isinstance(proxy.factor, ArrowFactor):  # draws are t - t*, slopes in whitened z
            _, slope = jax.linearize(partial(values, at=z), jnp.zeros_like(z))
        else:
            _, slope = jax.linearize(lambda z: factor * cv.values(cached, z, proxy), z)
        if z.size <= EXACT:
            jacobian = jax.vmap(slope, out_axes=1)(jnp.eye(z.size))
            centred = jacobian - share @ jacobian
            return jnp.linalg.eigvalsh((centred * share[:, None]).T @ centred)[-1]
        back = jax.linear_transpose(slope, z)

        def times(
            _: jax.Array, previous: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            """Do a power iteration: return the covariance times v, normalised, and its length."""
            v, _ = previous
            along = slope(v)
            (after,) = back(share * (along - share @ along))
            length = jnp.linalg.norm(after)
            return after / jnp.maximum(length, 1e-300), length

        start = jax.random.normal(typed(jnp.zeros(2, jnp.uint32)), z.shape, z.dtype)
        first = (start / jnp.linalg.norm(start), jnp.zeros((), z.dtype))
        return jax.lax.fori_loop(0, POWERS, times, first)[1]

    return jax.lax.map(largest, draws)


def _slopes_by_numpy(
    gradients: Iterable[np.ndarray], weight: np.ndarray, factor: np.ndarray
) -> np.ndarray:
    """Like `_slopes`, in NumPy, from the gradients (rows, d) at each draw.

    Z'Z and ZZ' have the same largest eigenvalue, so that the smaller one is formed.
    """
    share = weight / weight.sum()
    largest = []
    for at_draw in gradients:
        scaled_up = factor[:, None] * at_draw
        with one_blas_thread.for_small(at_draw.shape[1]):
            Z = (scaled_up - share @ scaled_up) * np.sqrt(share)[:, None]
            square = Z.T @ Z if Z.shape[0] > Z.shape[1] else Z @ Z.T
            finite = np.all(np.isfinite(square))
            largest.append(np.linalg.eigvalsh(square)[-1] if finite else np.nan)
    return np.array(largest)


_compiled = jit(static=0, options=FASTEST_COMPILE)(_slopes)
_compiled_of_groups = jit(static=0, options=SCATTERS)(_slopes)
