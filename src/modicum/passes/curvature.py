"""The posterior to second order: the log-prior's expansion, Newton's step, the whitening factor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular

from modicum.arrays import expansion
from modicum.linalg.arrow import (
    ArrowCholesky,
    ArrowLayout,
    ArrowMatrix,
    Factor,
    Symmetric,
    plus,
)
from modicum.models import Target
from modicum.passes.sums import Sums
from modicum.runtime import Array, for_numpy, jit


def prior_slope(target: Target, t: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the log-prior and its gradient at `t`."""
    if target.normal_prior is not None:
        return target.normal_prior.expanded(t)[:2]
    return _prior_slope(target, t)


def expanded_prior(target: Target, t: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the log-prior, its gradient and its Hessian at `t`."""
    if target.normal_prior is not None:
        return target.normal_prior.expanded(t)
    return _expanded_prior(target, t)


def posterior_slope(sums: Sums, t: np.ndarray, purpose: str) -> tuple[float, np.ndarray]:
    """Return the log-posterior and its gradient at `t`, in one pass."""
    value, gradient = sums.gradient(t, purpose)
    prior, prior_gradient = prior_slope(sums.target, t)
    return value + prior, gradient + prior_gradient


@for_numpy
@jit(static=0)
def _prior_slope(target: Target, t: Array) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(target.log_prior)(t)


@for_numpy
@jit(static=0)
def _expanded_prior(target: Target, t: Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return expansion(target.log_prior)(t)


def folded_prior(
    target: Target, t: np.ndarray, smooth: bool = False
) -> tuple[float, np.ndarray, Symmetric]:
    """Return the quadratic part of the log-prior, its gradient and Hessian at `t`.

    With `smooth`, all parts that the search for the mode does not replace by normals.
    """
    smooth = smooth and target.exact_prior is not None and any(target.exact_prior.smooth)
    plain = target.model.has_predictors and target.arrow is None and target.exact_prior is None
    if plain:
        return expanded_prior(target, t)  # the whole prior, already compiled
    layout, normal = target.arrow, None if smooth else target.quadratic_prior
    if normal is None:
        value, gradient, hessian = _folded_prior(target, layout, t, smooth)
    else:
        value, gradient, hessian = normal.expanded(t[target.own_entries])
    if layout is None:
        return value, gradient, hessian
    full_gradient = np.zeros(len(t))  # effects of many levels have a prior that is not quadratic
    arrow = ArrowMatrix.of_diagonal(full_gradient, layout.big, layout.border)
    full_gradient[layout.border] = gradient
    return value, full_gradient, replace(arrow, corner=hessian)


@for_numpy
@jit(static=(0, 1, 3))
def _folded_prior(
    target: Target, layout: ArrowLayout | None, t: Array, smooth: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Expand in all entries, or in those of the border where a factor has many effects."""
    at = jnp.asarray(t)
    own = slice(None) if layout is None else layout.border
    return expansion(lambda x: target.log_folded_prior(at.at[own].set(x), smooth))(at[own])


@dataclass(frozen=True)
class StandInPrior:
    """The prior with the parts that are not smooth replaced by normals (`models.priors.exact`)."""

    target: Target
    mean: np.ndarray
    precision: Symmetric
    covariance: ArrowMatrix | None = None  # of the posterior with this prior, if known

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
    if target.exact_prior is None or all(target.exact_prior.smooth):
        return None
    mean, layout = np.zeros(target.size), target.arrow
    if layout is None:
        return StandInPrior(target, mean, np.zeros((target.size, target.size)))
    return StandInPrior(target, mean, ArrowMatrix.of_diagonal(mean, layout.big, layout.border))


@dataclass(frozen=True)
class Curvature:
    """Log-likelihood sums and the log-prior with its derivatives at one point."""

    point: np.ndarray
    C: float
    A: np.ndarray
    B: Symmetric
    log_prior: float
    prior_gradient: np.ndarray
    prior_hessian: Symmetric

    @property
    def log_posterior(self) -> float:
        """Unnormalised log-posterior."""
        return self.C + self.log_prior

    @property
    def gradient(self) -> np.ndarray:
        """Gradient of the log-posterior."""
        return self.A + self.prior_gradient

    @property
    def precision(self) -> Symmetric:
        """Minus the Hessian of the log-posterior."""
        return -plus(self.B, self.prior_hessian)

    @property
    def dense_precision(self) -> np.ndarray:
        """The precision, which must be dense."""
        precision = self.precision
        assert isinstance(precision, np.ndarray)
        return precision

    @cached_property
    def whitening(self) -> tuple[np.ndarray, bool]:
        """The whitening factor of the precision, which must be dense, and whether it was mended."""
        return whitening_factor(self.dense_precision)

    @property
    def concave(self) -> bool:
        """Whether the precision is positive definite."""
        return not ArrowCholesky.mending(ArrowMatrix.of(self.precision)).mended

    @property
    def finite(self) -> bool:
        """Whether the log-posterior and its derivatives are finite."""
        known = all(np.all(np.isfinite(part)) for part in (self.log_posterior, self.gradient))
        return known and ArrowMatrix.of(self.precision).finite

    def newton_step(self, damping: float = 0.0) -> np.ndarray:
        """Return a step towards the mode, uphill even if the Hessian is not negative definite.

        `damping` shortens the step, in units of the prior, where the data say little: otherwise a
        rare level at saturated probabilities would jump (Levenberg's rule).
        """
        P = self.precision
        return solve_uphill(plus(P, self._prior_unit * damping) if damping else P, self.gradient)

    @cached_property
    def _prior_unit(self) -> Symmetric:
        """The prior's precision, which is not diagonal if the intercept is centred."""
        precision = ArrowMatrix.of(-self.prior_hessian)
        try:
            ArrowCholesky.of(precision)
        except np.linalg.LinAlgError:
            # flat or not concave somewhere: use the diagonal, with entries of at least 0.01
            least = np.maximum(np.abs(precision.diagonal()), 0.01)
            return precision.diagonal_like(least).plain
        return precision.plain

    @cached_property
    def gradient_norm(self) -> float:
        """Norm of the gradient in whitened coordinates (the Newton decrement)."""
        return float(np.sqrt(max(0.0, self.gradient @ self.newton_step())))


def curvature(
    sums: Sums, t: np.ndarray, purpose: str, prior: StandInPrior | None = None
) -> Curvature:
    """Expand to second order at `t` in one pass; `prior` replaces the target's prior."""
    if prior is not None:
        return Curvature(t, *sums.curvature(t, purpose), *prior.expanded(t))
    return Curvature(t, *sums.hessian(t, purpose), *expanded_prior(sums.target, t))


def solve_uphill(precision: Symmetric, gradient: np.ndarray) -> np.ndarray:
    """Return Newton's step, or a step uphill if the precision is not positive definite."""
    return ArrowCholesky.mending(ArrowMatrix.of(precision)).solve(gradient)


def whitening(precision: Symmetric) -> tuple[Factor, bool]:
    """Return L with L L' the inverse of `precision`, and whether `precision` had to be repaired."""
    matrix = ArrowMatrix.of(precision)
    if not matrix.levels:
        return whitening_factor(np.asarray(matrix.corner))
    factored = ArrowCholesky.mending(matrix)
    return factored.factor(), factored.mended


def whitening_factor(precision: np.ndarray, least: float = 0.0) -> tuple[np.ndarray, bool]:
    """Return L with L L' the inverse of `precision`, and whether `precision` had to be repaired.

    A repaired precision has absolute curvatures, of at least `least`.
    """
    try:
        lower = cholesky(precision, lower=True)
        return solve_triangular(lower, np.eye(len(lower)), lower=True).T, False
    except np.linalg.LinAlgError:
        values, vectors = eigh(precision)
        clipped = np.maximum(np.abs(values), max(least, 1e-8 * np.abs(values).max()))
        return vectors / np.sqrt(clipped), True


def parameter_name(names: tuple[str, ...], i: int) -> str:
    """Return the name of the i-th parameter, or its number if it has no name."""
    return names[i] if i < len(names) else f"parameter {i}"
