"""Scales of groups at the anchor: the width of their posterior, and warnings about them.

The log-likelihood is replaced by its quadratic at the anchor, so that coefficients and effects can
be integrated out at any scale.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import solve_triangular

from modicum.errors import ModicumWarning
from modicum.models import Target
from modicum.models.arrow import (
    ArrowCholesky,
    ArrowCovariance,
    ArrowMatrix,
    Covariance,
    Symmetric,
    diagonal,
)
from modicum.models.priors.grouped import Effects
from modicum.passes.curvature import Curvature
from modicum.passes.improper import parameter_name
from modicum.passes.prior import exact_log_priors, folded_prior, plus
from modicum.runtime import one_blas_thread

GRID = np.linspace(-8.0, 6.0, 22)  # in units of the widths by EM, which are too narrow near zero
FARTHER, LOWEST = 6, -12.0  # points by which the grid is extended downwards, and its lowest end
TAIL = 5.0  # the grid is extended until the log density is this far below its maximum
WIDEST = 2.0  # largest sd of log tau; beyond it the prior alone limits the posterior

FEW = 5  # levels below which their standard deviation is mostly determined by its prior
UNTOLD = 1.0  # standard errors between 0 and an estimate of tau^2, below which tau may be 0


def with_scale_widths(at: Curvature, target: Target) -> Curvature:
    """Set the curvature in scales and correlations of groups from their marginal posteriors."""
    if target.exact_prior is None:
        return at
    terms = [term for term in target.exact_prior[0].terms if isinstance(term, Effects)]
    places = [int(place) for term in terms for place in term.hyperparameters]
    if not places:
        return at
    hessian = at.prior_hessian
    with one_blas_thread.for_small(len(at.point)):
        for place in places:
            square = _mean_square(at, target, place, GRID / np.sqrt(-diagonal(hessian)[place]))
            hessian = _with_entry(hessian, place, -1 / min(max(square, 1e-6), WIDEST**2))
    return replace(at, prior_hessian=hessian)


def _with_entry(matrix: Symmetric, place: int, value: float) -> Symmetric:
    """Return the matrix with one diagonal entry replaced."""
    if isinstance(matrix, ArrowMatrix):
        return matrix.with_entry(place, value)
    changed = matrix.copy()
    changed[place, place] = value
    return changed


def _mean_square(at: Curvature, target: Target, place: int, grid: np.ndarray) -> float:
    """Return the posterior mean square distance of a parameter from the anchor, on a grid.

    If a scale may be zero, its logarithm has a long tail to the left, which the grid follows.
    """

    def log_posterior(distances: np.ndarray) -> np.ndarray:
        points = np.repeat(at.point[None], len(distances), axis=0)
        points[:, place] += distances
        return _marginal(at, target, points)

    log = log_posterior(grid)
    if np.all(log == -np.inf):
        return WIDEST**2
    while log[0] > log.max() - TAIL and grid[0] > LOWEST:
        further = np.linspace(max(2 * grid[0], LOWEST), grid[0], FARTHER, endpoint=False)
        grid, log = np.r_[further, grid], np.r_[log_posterior(further), log]
    weight = np.exp(log - log.max()) * np.gradient(grid)
    return float(weight @ grid**2 / weight.sum())


def _marginal(at: Curvature, target: Target, points: np.ndarray) -> np.ndarray:
    """Return the log-posterior of the hyperparameters in `points`, all others integrated out."""
    assert target.exact_prior is not None
    exact, numbers = target.exact_prior
    likelihood_size = target.likelihood.size
    _, slope, bent = folded_prior(target, at.point, smooth=True)
    information, none = -plus(at.B, bent), _none(at)
    logs = exact_log_priors(target, points)
    for k, t in enumerate(points):
        mean, precision = exact.normal_approximation(t, none, numbers, hyperparameters=False)
        pull = (at.A + slope - precision @ (t - mean))[:likelihood_size]
        try:
            square, half_log_det = _integral(information, precision, pull)
        except np.linalg.LinAlgError:  # not concave with a prior this wide: no such integral
            logs[k] = -np.inf
            continue
        logs[k] += square / 2
        logs[k] -= half_log_det
    return logs


def _none(at: Curvature) -> Covariance:
    """Return a covariance of zero, dense or an arrow like the Hessian."""
    if isinstance(at.B, ArrowMatrix):
        places = np.asarray(at.B.big), np.asarray(at.B.border)
        return ArrowCovariance.of_variances(np.zeros(len(at.point)), *places)
    return np.zeros((len(at.point), len(at.point)))


def _integral(
    information: Symmetric, precision: Symmetric, pull: np.ndarray
) -> tuple[float, float]:
    """Return pull' P^-1 pull and log det P / 2, which give the integral of exp(pull'x - x'Px / 2).

    P is information plus precision, in the leading entries that `pull` has.
    """
    size = len(pull)
    if isinstance(information, ArrowMatrix):
        assert isinstance(precision, ArrowMatrix)
        factored = ArrowCholesky.of((information + precision).leading(size))
        parts = factored.half_solve(pull)
        return sum(float(np.sum(part**2)) for part in parts), factored.half_log_det
    assert isinstance(precision, np.ndarray)
    lower = np.linalg.cholesky(information[:size, :size] + precision[:size, :size])
    square = float(np.sum(solve_triangular(lower, pull, lower=True) ** 2))
    return square, float(np.sum(np.log(np.diag(lower))))


def group_notes(
    target: Target, point: np.ndarray, covariance: Covariance, names: tuple[str, ...]
) -> list[ModicumWarning]:
    """Warn about standard deviations of groups that the data hardly inform."""
    assert target.exact_prior is not None
    notes = []
    for term in target.exact_prior[0].terms:
        if not isinstance(term, Effects):
            continue
        informed = term.informed(point, covariance).sum(axis=1)
        for effect, place in enumerate(term.sds):
            called = parameter_name(names, int(place))
            # tau^2 + s^2 has relative error sqrt(2 / L), and tau^2 is its share `informed` / L
            share = float(informed[effect]) / term.levels
            near_zero = share < UNTOLD * np.sqrt(2 / term.levels)
            notes += scale_doubts(called, term.levels, float(np.exp(point[place])), near_zero)
    return notes


def scale_doubts(called: str, levels: int, sd: float, near_zero: bool) -> list[ModicumWarning]:
    """Warn about a group's standard deviation, whose mode is `sd`, if there is reason to."""
    if levels < FEW:
        return [
            ModicumWarning(
                "groups-few",
                f"{levels} levels say little about how much effects vary, so the posterior of "
                f"{called} depends strongly on its prior",
                "choose that prior with care, or enter the factor as a common one",
                levels=levels,
            )
        ]
    if not near_zero:
        return []
    return [
        ModicumWarning(
            "group-sd-near-zero",
            f"the data hardly distinguish {called} from 0 (its mode is about {sd:.2g}), so only "
            "the prior bounds its posterior from below",
            "report an upper bound rather than an estimate, or leave out the group if its effects "
            "are of no interest",
            sd=sd,
        )
    ]
