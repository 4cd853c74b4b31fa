"""Hyperparameters, and priors that are not normal: a fixed point, and the width of group scales.

The log-likelihood is replaced by a quadratic, so no pass over the rows is needed: a stand-in prior
and the hyperparameters are iterated to a fixed point. At the anchor, coefficients and effects are
integrated out at any scale, which gives the width of a scale's posterior, and warnings about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from modicum.errors import ModicumWarning, listed
from modicum.linalg.arrow import ArrowCholesky, ArrowMatrix, diagonal, plus
from modicum.models import Target
from modicum.passes.curvature import (
    Curvature,
    StandInPrior,
    folded_prior,
    parameter_name,
)
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
        exact = target.exact_prior
        assert exact is not None
        _, slope, bent = folded_prior(target, at.point, smooth=True)
        size = target.likelihood.size  # hyperparameters come after
        t, information = at.point.copy(), -plus(at.B, bent)
        V = None if before is None else before.covariance
        if V is None:
            like = ArrowMatrix.of(information)
            V = like.diagonal_like(1 / np.maximum(like.diagonal(), LEAST_INFORMATION))
        mean, precision = exact.normal_approximation(t, V)
        for _ in range(MAX_SETTLING):
            pull = (at.A + slope - precision @ (at.point - mean))[:size]
            factored = ArrowCholesky.mending(
                ArrowMatrix.of(plus(information, precision)).leading(size)
            )
            V = factored.covariance().extended(V.border, V.diagonal()[size:])
            towards = factored.solve(pull, np.asarray(V.leading(size).corner))
            last = t
            t = np.concatenate([at.point[:size] + towards, t[size:]])
            t = exact.settle(t, V)
            mean, precision = exact.normal_approximation(t, V, hyperparameters=False)
            if np.all(np.abs(t - last) < SETTLED * np.sqrt(V.diagonal())):
                break
        if longest is not None:
            t[size:] = at.point[size:] + np.clip(t[size:] - at.point[size:], -longest, longest)
        mean, precision = exact.normal_approximation(t, V)
        V = V.leading(size).extended(V.border, 1 / diagonal(precision)[size:])
        # The pass was made at `at.point`: only the hyperparameters move.
        moved = np.concatenate([at.point[:size], t[size:]])
        prior = StandInPrior(target, mean, precision, V)
        value, gradient, hessian = prior.expanded(moved)
        at = replace(
            at, point=moved, log_prior=value, prior_gradient=gradient, prior_hessian=hessian
        )
        return at, prior


GRID = np.linspace(-8.0, 6.0, 22)  # in units of the widths by EM, which are too narrow near zero
FARTHER, LOWEST = 6, -12.0  # points by which the grid is extended downwards, and its lowest end
TAIL = 5.0  # the grid is extended until the log density is this far below its maximum
WIDEST = 2.0  # largest sd of log tau; beyond it the prior alone limits the posterior

FEW = 5  # levels below which their standard deviation is mostly determined by its prior
UNTOLD = 1.0  # standard errors between 0 and an estimate of tau^2, below which tau may be 0


def with_scale_widths(at: Curvature, target: Target) -> Curvature:
    """Set the curvature in scales and correlations of groups from their marginal posteriors."""
    places = [int(place) for term in target.pooled_terms for place in term.hyperparameters]
    if not places:
        return at
    hessian = at.prior_hessian
    with one_blas_thread.for_small(len(at.point)):
        for place in places:
            square = _mean_square(at, target, place, GRID / np.sqrt(-diagonal(hessian)[place]))
            width = -1 / min(max(square, 1e-6), WIDEST**2)
            hessian = ArrowMatrix.of(hessian).with_entry(place, width).plain
    return replace(at, prior_hessian=hessian)


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
    exact = target.exact_prior
    assert exact is not None
    likelihood_size = target.likelihood.size
    _, slope, bent = folded_prior(target, at.point, smooth=True)
    information = -plus(at.B, bent)
    none = ArrowMatrix.of(at.B).diagonal_like(np.zeros(len(at.point)))
    logs = exact.log_densities(points)
    for k, t in enumerate(points):
        mean, precision = exact.normal_approximation(t, none, hyperparameters=False)
        pull = (at.A + slope - precision @ (t - mean))[:likelihood_size]
        try:
            # the integral of exp(pull'x - x'Px / 2), with P of the likelihood's parameters
            P = ArrowMatrix.of(plus(information, precision)).leading(likelihood_size)
            factored = ArrowCholesky.of(P)
        except np.linalg.LinAlgError:  # not concave with a prior this wide: no such integral
            logs[k] = -np.inf
            continue
        logs[k] += sum(float(np.sum(part**2)) for part in factored.half_solve(pull)) / 2
        logs[k] -= factored.half_log_det
    return logs


@listed
def group_notes(
    target: Target, point: np.ndarray, covariance: ArrowMatrix, names: tuple[str, ...]
) -> Iterator[ModicumWarning]:
    """Warn about standard deviations of groups that the data hardly inform."""
    for term in target.pooled_terms:
        informed = term.informed(point, covariance).sum(axis=1)
        for effect, place in enumerate(term.sds):
            called = parameter_name(names, int(place))
            if called.startswith("smooth_sd"):
                continue  # a smooth without wiggles is a line, and no cause for doubt
            # tau^2 + s^2 has relative error sqrt(2 / L), and tau^2 is its share `informed` / L
            share = float(informed[effect]) / term.levels
            near_zero = share < UNTOLD * np.sqrt(2 / term.levels)
            yield from scale_doubts(called, term.levels, float(np.exp(point[place])), near_zero)


@listed
def scale_doubts(called: str, levels: int, sd: float, near_zero: bool) -> Iterator[ModicumWarning]:
    """Warn about a group's standard deviation, whose mode is `sd`, if there is reason to."""
    if levels < FEW:
        yield ModicumWarning(
            "groups-few",
            f"{levels} levels say little about how much effects vary, so the posterior of "
            f"{called} depends strongly on its prior",
            "choose that prior with care, or enter the factor as a common one",
            levels=levels,
        )
    elif near_zero:
        yield ModicumWarning(
            "group-sd-near-zero",
            f"the data hardly distinguish {called} from 0 (its mode is about {sd:.2g}), so only "
            "the prior bounds its posterior from below",
            "report an upper bound rather than an estimate, or leave out the group if its effects "
            "are of no interest",
            sd=sd,
        )
