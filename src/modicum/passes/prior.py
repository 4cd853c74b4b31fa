"""Second-order expansions of the log-prior, and the normal approximation that replaces it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import expansion
from modicum.models import LinearPredictorModel, Target
from modicum.models.arrow import ArrowLayout, ArrowMatrix, Covariance, Symmetric
from modicum.models.priors.exact import ExactPrior, Numbers
from modicum.runtime import Array, in_double_precision, jit


@in_double_precision
def prior_slope(target: Target, t: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the log-prior and its gradient at `t`."""
    if target.normal_prior is not None:
        return target.normal_prior.expanded(t)[:2]
    value, gradient = _prior_slope(target, t)
    return float(value), np.asarray(gradient)


@in_double_precision
def expanded_prior(target: Target, t: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the log-prior, its gradient and its Hessian at `t`."""
    if target.normal_prior is not None:
        return target.normal_prior.expanded(t)
    value, gradient, hessian = _expanded_prior(target, t)
    return float(value), np.asarray(gradient), np.asarray(hessian)


@jit(static=0)
def _prior_slope(target: Target, t: Array) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(target.log_prior)(t)


@jit(static=0)
def _expanded_prior(target: Target, t: Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return expansion(target.log_prior)(t)


def folded_prior(
    target: Target, t: np.ndarray, smooth: bool = False
) -> tuple[float, np.ndarray, Symmetric]:
    """Return the quadratic part of the log-prior, its gradient and Hessian at `t`.

    With `smooth`, all parts that the search for the mode does not replace by normals.
    """
    smooth = smooth and target.exact_prior is not None and any(target.exact_prior[0].smooth)
    if target.arrow is not None:
        return _folded_arrow(target, target.arrow, t, smooth)
    if target.exact_prior is None and isinstance(target.model, LinearPredictorModel):
        return expanded_prior(target, t)  # the whole prior, already compiled
    return _folded(target, t, smooth)


@in_double_precision
def _folded(target: Target, t: np.ndarray, smooth: bool) -> tuple[float, np.ndarray, np.ndarray]:
    value, gradient, hessian = _folded_prior(target, t, smooth)
    return float(value), np.asarray(gradient), np.asarray(hessian)


@jit(static=(0, 2))
def _folded_prior(target: Target, t: Array, smooth: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    return expansion(lambda at: target.log_folded_prior(at, smooth))(t)


@in_double_precision
def _folded_arrow(
    target: Target, layout: ArrowLayout, t: np.ndarray, smooth: bool
) -> tuple[float, np.ndarray, ArrowMatrix]:
    """Like `folded_prior`, if a factor has many effects, whose own prior is not quadratic."""
    value, gradient, corner = _folded_border(target, layout, t, smooth)
    hessian = ArrowMatrix.zeros(layout.big, layout.border)
    full_gradient = np.zeros(len(t))
    full_gradient[layout.border] = np.asarray(gradient)
    return float(value), full_gradient, replace(hessian, corner=np.asarray(corner))


@jit(static=(0, 1, 3))
def _folded_border(
    target: Target, layout: ArrowLayout, t: Array, smooth: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    at = jnp.asarray(t)

    def folded(border: jax.Array) -> jax.Array:
        return target.log_folded_prior(at.at[layout.border].set(border), smooth)

    return expansion(folded)(at[layout.border])


@in_double_precision
def exact_log_priors(target: Target, points: np.ndarray) -> np.ndarray:
    """Return the non-quadratic part of the log-prior at each of `points`."""
    assert target.exact_prior is not None
    exact, numbers = target.exact_prior
    return np.array(_exact_log_priors(exact, points, numbers))


@jit(static=0)
def _exact_log_priors(exact: ExactPrior, points: Array, numbers: tuple[Numbers, ...]) -> jax.Array:
    return jax.vmap(lambda t: exact.log_density(t, numbers))(points)


@dataclass(frozen=True)
class StandInPrior:
    """The prior with the parts that are not smooth replaced by normals (`models.priors.exact`)."""

    target: Target
    mean: np.ndarray
    precision: Symmetric
    covariance: Covariance | None = None  # of the posterior with this prior, if known

    def expanded(self, t: np.ndarray) -> tuple[float, np.ndarray, Symmetric]:
        """Return value, gradient and Hessian at `t`."""
        value, gradient, hessian = folded_prior(self.target, t, smooth=True)
        pull = self.precision @ (t - self.mean)
        return (
            value - 0.5 * float((t - self.mean) @ pull),
            gradient - pull,
            plus(hessian, -self.precision),
        )


def flat_prior(target: Target) -> StandInPrior | None:
    """Return a flat stand-in prior to start with; None if the prior needs no stand-in."""
    if target.exact_prior is None or all(target.exact_prior[0].smooth):
        return None
    if target.arrow is not None:
        none: Symmetric = ArrowMatrix.zeros(target.arrow.big, target.arrow.border)
    else:
        none = np.zeros((target.size, target.size))
    return StandInPrior(target, np.zeros(target.size), none)


def plus(first: Symmetric, second: Symmetric) -> Symmetric:
    """Add two matrices, which are both dense or both arrows."""
    if isinstance(first, ArrowMatrix):
        assert isinstance(second, ArrowMatrix)
        return first + second
    assert isinstance(second, np.ndarray)
    return first + second
