"""Scales of groups at the anchor: how wide their posterior is, and what to know of it.

The log-likelihood is held as the quadratic it is at the anchor, so that coefficients and effects
can be integrated out at any scale.
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
from modicum.passes.prior import exact_log_priors, folded_prior, plus
from modicum.runtime import one_blas_thread

__all__ = ["group_notes", "scale_doubts", "with_scale_widths"]

GRID = np.linspace(-8.0, 6.0, 22)  # in widths by EM, which are too narrow near zero
FARTHER, LOWEST = 6, -12.0  # further points where its lower end is not yet a tail, and the last
TAIL = 5.0  # how far below its maximum the log density of a tail is
WIDEST = 2.0  # standard deviations of log tau: beyond it only the prior ends

FEW = 5  # levels below which their standard deviation is mostly its prior
UNTOLD = 1.0  # standard errors from 0 to an estimate of tau^2, below which tau may be 0


def with_scale_widths(at: Curvature, target: Target) -> Curvature:
    """Give scales and correlations of groups the curvature of their marginal posterior's width."""
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
    """The same with another number on the diagonal."""
    if isinstance(matrix, ArrowMatrix):
        return matrix.with_entry(place, value)
    changed = matrix.copy()
    changed[place, place] = value
    return changed


def _mean_square(at: Curvature, target: Target, place: int, grid: np.ndarray) -> float:
    """Mean square distance of one such parameter from the anchor, by its posterior on a grid.

    Where a scale may be zero, its logarithm has a long tail to the left: the grid follows it.
    """

    def log_posterior(distances: np.ndarray) -> np.ndarray:
        points = np.repeat(at.point[None], len(distances), axis=0)
        points[:, place] += distances
        return _marginal(at, target, points)

    log = log_posterior(grid)
    while log[0] > log.max() - TAIL and grid[0] > LOWEST:
        further = np.linspace(max(2 * grid[0], LOWEST), grid[0], FARTHER, endpoint=False)
        grid, log = np.r_[further, grid], np.r_[log_posterior(further), log]
    weight = np.exp(log - log.max()) * np.gradient(grid)
    return float(weight @ grid**2 / weight.sum())


def _marginal(at: Curvature, target: Target, points: np.ndarray) -> np.ndarray:
    """Log-posterior of the priors' own parameters in `points`, all others integrated out."""
    assert target.exact_prior is not None
    exact, numbers = target.exact_prior
    read = target.likelihood.size
    _, slope, bent = folded_prior(target, at.point)
    information, none = -plus(at.B, bent), _none(at)
    logs = exact_log_priors(target, points)
    for k, t in enumerate(points):
        mean, precision = exact.normal_approximation(t, none, numbers, hyperparameters=False)
        pull = (at.A + slope - precision @ (t - mean))[:read]
        square, half_log_det = _integral(information, precision, pull)
        logs[k] += square / 2
        logs[k] -= half_log_det
    return logs


def _none(at: Curvature) -> Covariance:
    """No posterior variance, in the form that matrices have here."""
    if isinstance(at.B, ArrowMatrix):
        places = np.asarray(at.B.big), np.asarray(at.B.border)
        return ArrowCovariance.of_variances(np.zeros(len(at.point)), *places)
    return np.zeros((len(at.point), len(at.point)))


def _integral(
    information: Symmetric, precision: Symmetric, pull: np.ndarray
) -> tuple[float, float]:
    """pull' P^-1 pull and log det P / 2, of which the integral of exp(pull'x - x'Px / 2) is made.

    Information of the data and precision of the prior add up to P, that of pull's entries.
    """
    read = len(pull)
    if isinstance(information, ArrowMatrix):
        assert isinstance(precision, ArrowMatrix)
        factored = ArrowCholesky.of((information + precision).leading(read))
        parts = factored.half_solve(pull)
        return sum(float(np.sum(part**2)) for part in parts), factored.half_log_det
    assert isinstance(precision, np.ndarray)
    lower = np.linalg.cholesky(information[:read, :read] + precision[:read, :read])
    square = float(np.sum(solve_triangular(lower, pull, lower=True) ** 2))
    return square, float(np.sum(np.log(np.diag(lower))))


def group_notes(
    target: Target, point: np.ndarray, covariance: Covariance, names: tuple[str, ...]
) -> list[ModicumWarning]:
    """Doubts about the standard deviations of groups."""
    assert target.exact_prior is not None
    notes = []
    for term in target.exact_prior[0].terms:
        if not isinstance(term, Effects):
            continue
        informed = term.informed(point, covariance).sum(axis=1)
        for effect, place in enumerate(term.sds):
            called = names[place] if place < len(names) else f"parameter {place}"
            # tau^2 + s^2 is known to sqrt(2 / L) of itself; tau^2 is the share `informed` / L of it
            share = float(informed[effect]) / term.levels
            near_zero = share < UNTOLD * np.sqrt(2 / term.levels)
            notes += scale_doubts(called, term.levels, float(np.exp(point[place])), near_zero)
    return notes


def scale_doubts(called: str, levels: int, sd: float, near_zero: bool) -> list[ModicumWarning]:
    """Warnings about a group's standard deviation, whose mode is `sd`."""
    if levels < FEW:
        return [
            ModicumWarning(
                "groups-few",
                f"{levels} levels say little about how much effects vary, so that the prior of "
                f"{called} decides much of its posterior",
                "choose that prior with care, or enter the factor as a common one",
                levels=levels,
            )
        ]
    if not near_zero:
        return []
    return [
        ModicumWarning(
            "group-sd-near-zero",
            f"the data hardly tell {called} from 0 (its mode is about {sd:.2g}), so that its "
            "posterior has no lower end but the prior's",
            "report an upper bound rather than an estimate, or leave the group out if its "
            "effects are of no interest",
            sd=sd,
        )
    ]
