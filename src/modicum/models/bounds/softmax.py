"""Boehning's bound (1992) for multinomial logistic regression: a parabola of fixed curvature.

-Hessian of log L in the K - 1 predictors is never above A = (I - 11'/K) / 2, so
log B = log L(h0) + g(h0)'(h - h0) - (h - h0)' A (h - h0) / 2 is below log L and touches it at h0.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from modicum.models.bounds.base import Bound, Expansion
from modicum.models.functions import with_reference

__all__ = ["SoftmaxBound"]


@dataclass(frozen=True)
class SoftmaxBound(Bound):
    """Boehning's bound; `tight` is h0, the vector of predictors where it touches.

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> bound = SoftmaxBound(mo.models.Softmax(classes=3))
    >>> at = jnp.array([[1.0, -1.0]])
    >>> bound.gap(at, jnp.zeros(1), at).tolist()
    [0.0]
    """

    def tight_at(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """The predictors themselves."""
        del y
        return predictors

    def untuned(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """Zero: all classes alike."""
        del y
        return jnp.zeros_like(predictors)

    def gap(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """How far log L is above the parabola; the outcome's own predictor cancels."""
        del y
        away = predictors - tight
        before = with_reference(tight)
        pi = jax.nn.softmax(before, axis=-1)[:, :-1]
        total = jax.nn.logsumexp(with_reference(predictors), axis=-1)
        rise = total - jax.nn.logsumexp(before, axis=-1)
        return jnp.sum(pi * away, axis=-1) + 0.5 * _form(away) - rise

    def expand(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> Expansion:
        """The parabola and its derivatives."""
        q = predictors.shape[1]
        f, slope, *_ = self.model.derivatives(tight, y)
        away = predictors - tight
        value = f + jnp.sum(slope * away, axis=-1) - 0.5 * _form(away)
        curvature = jnp.broadcast_to(-_curvature(q), (len(f), q, q))
        return Expansion(jnp.zeros_like(f), value, slope - away @ _curvature(q), curvature)


def _curvature(q: int) -> jax.Array:
    return 0.5 * (jnp.eye(q) - 1 / (q + 1))


def _form(away: jax.Array) -> jax.Array:
    """The form h' A h of each row, without the matrix."""
    return 0.5 * (jnp.sum(away**2, axis=-1) - jnp.sum(away, axis=-1) ** 2 / (away.shape[1] + 1))
