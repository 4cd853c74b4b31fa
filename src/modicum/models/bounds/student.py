"""The tangent bound of the Student-t density, a normal density.

With u = ((y - eta) / s)^2, log L = K - log s - (nu + 1)/2 log(1 + u/nu) is convex in u; its tangent
at u0 is the bound: K' - log s - kappa u, kappa = (nu + 1) / (2 (nu + u0)). In *standardised*
residuals it holds for every scale at once, so the scale may be estimated too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from modicum.models.bounds.base import Bound, Expansion

__all__ = ["StudentTBound"]


@dataclass(frozen=True)
class StudentTBound(Bound):
    """A tangent in the squared standardised residual; `tight` is u0, from 0.

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> bound = StudentTBound(mo.models.StudentT(df=4.0, scale=2.0))
    >>> gap = bound.gap(jnp.zeros((2, 1)), jnp.array([2.0, 4.0]), jnp.ones(2))
    >>> [round(float(g), 3) for g in gap]
    [0.0, 0.325]
    """

    def _squared(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        return ((y - predictors[:, 0]) / self._spread(predictors[:, 1:])) ** 2

    def _spread(self, extras: jax.Array) -> Any:
        known = self.model.scale
        return known if known is not None else jnp.exp(extras[..., 0])

    def tight_at(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """The squared residuals there."""
        return self._squared(predictors, y)

    def untuned(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """u0 = 1, a residual of one scale: of all constants it leaves the fewest rows bright."""
        del y
        return jnp.ones_like(predictors[:, 0])

    def gap(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """(nu + 1)/2 (w - log(1 + w)) with w = (u - u0) / (nu + u0)."""
        nu = self.model.df
        w = (self._squared(predictors, y) - tight) / (nu + tight)
        return (nu + 1) / 2 * (w - jnp.log1p(w))

    def expand(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> Expansion:
        """-kappa (y - eta)^2, still to be divided by s^2; the constant is K'."""
        nu, r = self.model.df, y - predictors[:, 0]
        kappa = (nu + 1) / (2 * (nu + tight))
        constant = self.model.log_constant() - (nu + 1) / 2 * jnp.log1p(tight / nu) + kappa * tight
        curvature = jnp.broadcast_to(-2 * kappa, r.shape)[:, None, None]
        return Expansion(constant, -kappa * r**2, (2 * kappa * r)[:, None], curvature)

    def collapse(self, constant: Any, weight: Any, quadratic: Any, extras: jax.Array) -> jax.Array:
        """The scale enters once for all rows."""
        s = self._spread(extras)
        return jnp.asarray(constant - weight * jnp.log(s) + quadratic / s**2)
