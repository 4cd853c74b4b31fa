"""Second-order expansion of the log-posterior: Newton's step, and the whitening factor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, eigh, solve_triangular

from modicum.models.arrow import (
    ArrowCholesky,
    ArrowMatrix,
    Decoupled,
    Factor,
    Symmetric,
    all_finite,
)
from modicum.passes.prior import StandInPrior, expanded_prior, plus
from modicum.passes.sums import Sums


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

    @property
    def finite(self) -> bool:
        """Whether the log-posterior and its derivatives are finite."""
        parts = (self.log_posterior, self.gradient)
        return all(bool(np.all(np.isfinite(part))) for part in parts) and all_finite(self.precision)

    def newton_step(self, damping: float = 0.0) -> np.ndarray:
        """Return a step towards the mode, uphill even if the Hessian is not negative definite.

        `damping` shortens the step, in units of the prior, where the data say little: otherwise a
        rare level at saturated probabilities would jump (Levenberg's rule).
        """
        ridge = self._prior_unit * damping if damping else None
        precision = self.precision if ridge is None else plus(self.precision, ridge)
        return solve_uphill(precision, self.gradient)

    @cached_property
    def _prior_unit(self) -> Symmetric:
        """The prior's precision, which is not diagonal if the intercept is centred."""
        precision = -self.prior_hessian
        if isinstance(precision, ArrowMatrix):
            return _positive_diagonal(precision)
        try:
            cholesky(precision)
        except (np.linalg.LinAlgError, ValueError):
            # flat or not concave somewhere: use the diagonal, with entries of at least 0.01
            return np.diag(np.maximum(np.abs(np.diag(precision)), 0.01))
        return precision

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
    """Return Newton's step, or a step uphill if the precision is not positive definite.

    The log-posterior of a family with a scale is not concave far from the mode, since the scale
    there makes up for what the coefficients do not explain. Such parameters are decoupled from
    the others: coefficients then move as at a fixed scale, whatever the units of columns and
    outcomes. If that is not enough, the step has absolute curvatures.
    """
    if isinstance(precision, ArrowMatrix):
        return ArrowCholesky.mending(precision).solve(gradient)
    try:
        return np.asarray(cho_solve(cho_factor(precision), gradient))
    except np.linalg.LinAlgError:
        decoupled = Decoupled.of(precision)
    if decoupled is not None:
        return np.asarray(cho_solve((decoupled.lower, True), gradient))
    values, vectors = eigh(precision)
    floor = max(1e-8 * np.abs(values).max(), np.finfo(np.float64).tiny)
    return np.asarray(vectors @ ((vectors.T @ gradient) / np.maximum(np.abs(values), floor)))


def _positive_diagonal(matrix: ArrowMatrix) -> ArrowMatrix:
    """Return the matrix; if not positive definite, its diagonal, with entries of at least 0.01."""
    try:
        ArrowCholesky.of(matrix)
    except np.linalg.LinAlgError:
        positive = ArrowMatrix.zeros(np.asarray(matrix.big), np.asarray(matrix.border))
        least = np.maximum(np.abs(matrix.diagonal()), 0.01)
        effects = positive.big.shape[1]
        blocks = least[positive.big][..., None] * np.eye(effects)
        return replace(positive, blocks=blocks, corner=np.diag(least[positive.border]))
    return matrix


def whitening(precision: Symmetric) -> tuple[Factor, bool]:
    """Return L with L L' the inverse of `precision`, and whether `precision` had to be repaired."""
    if isinstance(precision, ArrowMatrix):
        factored = ArrowCholesky.mending(precision)
        return factored.factor(), factored.mended
    return whitening_factor(precision)


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
