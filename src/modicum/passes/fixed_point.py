"""Fixed-point iteration for priors that are not normal, and for their hyperparameters.

The log-likelihood is replaced by a quadratic, so no pass over the rows is needed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from modicum.models import Target
from modicum.models.arrow import (
    ArrowCholesky,
    ArrowCovariance,
    ArrowMatrix,
    Covariance,
    Decoupled,
    Symmetric,
    diagonal,
)
from modicum.passes.curvature import Curvature, whitening_factor
from modicum.passes.prior import StandInPrior, folded_prior, plus
from modicum.runtime import one_blas_thread

MAX_SETTLING = 100
SETTLED = 3e-3  # tolerance in posterior standard deviations; nothing depends on its exact value
LEAST_INFORMATION = 1e-4  # minimum information about an entry, for the initial stand-in prior
FREE = 8  # fixed points that hyperparameters go to however far away they are
LONGEST = 0.25  # their longest step after that, in logarithms of scales


class Settling:
    """Fixed points from one Newton step to the next, which approach a common one.

    Each belongs to the quadratic at one point. If the data say little, quadratics at different
    points may lead to very different scales, in turn small and large. After `FREE` fixed points,
    hyperparameters therefore move by `LONGEST` at most, and by less where they turned back.
    """

    def __init__(self, target: Target, prior: StandInPrior):
        self.prior = prior
        self.held_back = False  # whether the last fixed point was not reached
        self._target = target
        self._size = target.likelihood.size
        self._fixed_points = 0
        self._longest = np.full(target.size - self._size, LONGEST)
        self._last = np.zeros(target.size - self._size)

    def next(self, at: Curvature) -> Curvature:
        """Return `at` with the hyperparameters of its fixed point, or on the way to it."""
        self._fixed_points += 1
        limit = self._longest if self._fixed_points > FREE else None
        settled, self.prior = settle(at, self._target, self.prior, limit)
        step = settled.point[self._size :] - at.point[self._size :]
        if limit is not None:
            short = np.abs(step) > 0.999 * limit  # but for rounding, steps of `limit`
            self.held_back = bool(np.any(short))
            self._longest = np.where(short & (step * self._last < 0), limit / 2, limit)
        self._last = step
        return settled


def settle(
    at: Curvature,
    target: Target,
    before: StandInPrior | None = None,
    longest: np.ndarray | None = None,
) -> tuple[Curvature, StandInPrior]:
    """Iterate a stand-in prior and the hyperparameters to a fixed point, without a pass.

    The log-likelihood is replaced by its quadratic at `at`. Two steps alternate: first the mode and
    covariance of the posterior under the normal stand-in, then the stand-in and the marginal modes
    of the hyperparameters, given these. The iteration starts from `before`. No hyperparameter
    moves further than `longest`.
    """
    with one_blas_thread.for_small(len(at.point)):
        return _settled(at, target, before, longest)


def _settled(
    at: Curvature, target: Target, before: StandInPrior | None, longest: np.ndarray | None
) -> tuple[Curvature, StandInPrior]:
    assert target.exact_prior is not None
    exact, numbers = target.exact_prior
    _, slope, bent = folded_prior(target, at.point, smooth=True)
    size = target.likelihood.size  # hyperparameters come after
    t, information = at.point.copy(), -plus(at.B, bent)
    V = None if before is None else before.covariance
    if V is None:
        V = _covariance_like(1 / np.maximum(diagonal(information), LEAST_INFORMATION), at.B)
    mean, precision = exact.normal_approximation(t, V, numbers)
    for _ in range(MAX_SETTLING):
        pull = (at.A + slope - precision @ (at.point - mean))[:size]
        V, towards = _normal(information, precision, pull, V, size)
        last = t
        t = np.concatenate([at.point[:size] + towards, t[size:]])
        t = exact.settle(t, V, numbers)
        mean, precision = exact.normal_approximation(t, V, numbers, hyperparameters=False)
        if np.all(np.abs(t - last) < SETTLED * np.sqrt(diagonal(V))):
            break
    if longest is not None:
        t[size:] = at.point[size:] + np.clip(t[size:] - at.point[size:], -longest, longest)
    mean, precision = exact.normal_approximation(t, V, numbers)
    V = _with_variances(V, 1 / diagonal(precision)[size:])
    # The pass was made at `at.point`: only the hyperparameters move.
    moved = np.concatenate([at.point[:size], t[size:]])
    prior = StandInPrior(target, mean, precision, V)
    value, gradient, hessian = prior.expanded(moved)
    at = replace(at, point=moved, log_prior=value, prior_gradient=gradient, prior_hessian=hessian)
    return at, prior


def _normal(
    information: Symmetric, precision: Symmetric, pull: np.ndarray, V: Covariance, size: int
) -> tuple[Covariance, np.ndarray]:
    """Update V with the posterior covariance of the first `size` entries.

    That is the inverse of information (data) plus precision (prior). Return V and its product with
    `pull`.
    """
    if isinstance(information, ArrowMatrix):
        assert isinstance(precision, ArrowMatrix)
        factored = ArrowCholesky.mending((information + precision).leading(size))
        covariance = factored.factor().covariance
        border = np.asarray(information.border)
        own = diagonal(V)[border[len(covariance.border) :]]
        return covariance.extended(border, own), factored.solve(pull)
    assert isinstance(precision, np.ndarray)
    assert isinstance(V, np.ndarray)
    V[:size, :size] = _inverse(information[:size, :size] + precision[:size, :size])
    return V, V[:size, :size] @ pull


def _covariance_like(variance: np.ndarray, matrix: Symmetric) -> Covariance:
    """Return a diagonal covariance, dense or an arrow like `matrix`."""
    if isinstance(matrix, ArrowMatrix):
        places = np.asarray(matrix.big), np.asarray(matrix.border)
        return ArrowCovariance.of_variances(variance, *places)
    return np.diag(variance)


def _with_variances(V: Covariance, variance: np.ndarray) -> Covariance:
    """Replace the variances of the last entries, which are independent of all others."""
    size = len(diagonal(V)) - len(variance)
    if isinstance(V, ArrowCovariance):
        width = int(np.searchsorted(V.border, size))
        first = replace(V, border=V.border[:width], corner=V.corner[:width, :width])
        return first.extended(V.border, variance)
    V[size:, size:] = np.diag(variance)
    return V


def _inverse(precision: np.ndarray) -> np.ndarray:
    unit = np.eye(len(precision))
    try:
        return np.asarray(cho_solve(cho_factor(precision), unit))
    except np.linalg.LinAlgError:  # far from the mode, or entries of which nothing is known
        decoupled = Decoupled.of(precision)
    if decoupled is not None:
        return np.asarray(cho_solve((decoupled.lower, True), unit))
    factor, _ = whitening_factor(precision)
    return np.asarray(factor @ factor.T)
