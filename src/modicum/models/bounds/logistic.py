"""The bound of Jaakkola and Jordan (1997) for logistic regression.

With e = (2y - 1) eta and any xi: log B = a e^2 + e/2 + c, a = -tanh(xi/2) / (4 xi),
c = -a xi^2 + xi/2 - log(1 + e^xi); it touches log L at e = xi and e = -xi.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from modicum.models.bounds.base import Bound, Expansion

__all__ = ["LogisticBound"]

UNTUNED = 1.5  # xi where nothing is known (Maclaurin and Adams 2014, section 3.1)


@dataclass(frozen=True)
class LogisticBound(Bound):
    """Jaakkola and Jordan's bound; `tight` is xi, from 0.

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> bound = LogisticBound(mo.models.Logistic())
    >>> gap = bound.gap(jnp.array([[1.5], [0.0]]), jnp.ones(2), jnp.full(2, 1.5))
    >>> [round(float(g), 3) for g in gap]
    [0.0, 0.02]
    """

    def tight_at(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """Xi = |eta|."""
        del y
        return jnp.abs(predictors[:, 0])

    def untuned(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """Xi = 1.5."""
        del y
        return jnp.full_like(predictors[:, 0], UNTUNED)

    def gap(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """As log cosh(xi/2) - log cosh(eta/2) - a (eta^2 - xi^2): the odd part has gone."""
        del y
        eta = predictors[:, 0]
        return _log_cosh(tight / 2) - _log_cosh(eta / 2) - _a(tight) * (eta - tight) * (eta + tight)

    def expand(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> Expansion:
        """The parabola a eta^2 + (y - 1/2) eta + c."""
        eta, a = predictors[:, 0], _a(tight)
        c = -a * tight**2 - _log_cosh(tight / 2) - jnp.log(2.0)
        value = a * eta**2 + (y - 0.5) * eta + c
        slope = 2 * a * eta + (y - 0.5)
        return Expansion(
            jnp.zeros_like(eta),
            value,
            slope[:, None],
            jnp.broadcast_to(2 * a, eta.shape)[:, None, None],
        )


def _a(xi: jax.Array) -> jax.Array:
    """-tanh(xi/2) / (4 xi), which is -1/8 at 0."""
    small = xi < 1e-4
    safe = jnp.where(small, 1.0, xi)
    return jnp.where(small, -0.125 + xi**2 / 96, -jnp.tanh(safe / 2) / (4 * safe))


def _log_cosh(x: jax.Array) -> jax.Array:
    x = jnp.abs(x)
    return x + jnp.log1p(jnp.exp(-2 * x)) - jnp.log(2.0)
