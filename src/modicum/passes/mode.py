"""Finding the posterior mode in a handful of passes: a subset first, then Newton on all rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

import numpy as np

from modicum.errors import ConvergenceError
from modicum.models import IntegratedEffects, LinearPredictorModel
from modicum.models.arrow import ArrowMatrix
from modicum.passes.curvature import Curvature, curvature, solve_uphill
from modicum.passes.engine import chunk_rows
from modicum.passes.faults import require_noise, why_no_mode, why_not_finite
from modicum.passes.prior import StandInPrior, flat_prior, prior_slope
from modicum.passes.settling import settle
from modicum.passes.sums import Sums
from modicum.random import Stream, generator
from modicum.rows.groups import GroupedRows
from modicum.runtime import one_blas_thread

__all__ = [
    "NEAR",
    "TOLERANCE",
    "EndlessError",
    "ModeRecord",
    "ascend",
    "find_mode",
    "quasi_newton_on_subset",
]

TOLERANCE = 1e-6  # whitened gradient norm: distance to the mode in posterior standard deviations
COARSE = 0.01  # the same, up to which last digits of the parameters may decide
DIGITS = 4  # last digits that sums over rows may be off by
GOAL = 1e-8  # what Newton aims for: at 1e-7 a small coefficient agrees with a GLM to 1.2e-8 only
NEAR = 0.05  # near enough to expand about and to set a scale; saves a pass or two
MAX_STEPS = 60
# Most steps by Hessians of a subset, the share of the distance that such a step may leave, and the
# distance from which one Newton step reaches the tightest goal.
MOST_APPROACHES, SLOW, QUADRATIC = 4, 0.25, 1e-3
# Steps on a kink after which the search ends; posterior standard deviations from the mode, by the
# gradient, that are too many there; and what such a step rises by at most: in all, and as a share
# of the squared gradient norm.
IDLE_STEPS, FAR = 2, 0.1
IDLE_RISE, IDLE_SHARE = 1e-3, 1e-6
FEWEST_GROUPS = 500  # of a subset: fewer say little about differences between groups


class EndlessError(ConvergenceError):
    """The search for a mode reached a point where the log-posterior is infinite."""


@dataclass(frozen=True)
class ModeRecord:
    """How the mode was found.

    Attributes
    ----------
    passes
        Full passes over all rows that it took.
    gradient_norm
        Norm of the log-posterior gradient in whitened coordinates at the point: about how many
        posterior standard deviations it is from the mode. NaN where no Hessian was formed.
    converged
        Whether `gradient_norm` is below the tolerance.
    subset
        Rows in the subset that gave the starting point.
    """

    passes: int
    gradient_norm: float
    converged: bool
    subset: int


def find_mode(
    sums: Sums, start: np.ndarray, seed: int = 0, purpose: str = "mode", within: float = TOLERANCE
) -> tuple[Curvature, ModeRecord]:
    """Find the mode of the posterior over all rows of `sums`.

    A small random subset gives the starting point: its own posterior mode, where the prior keeps
    rare levels from diverging. From there damped Newton steps follow, one pass each, until the
    whitened gradient norm is below `within`: the distance to the mode, in posterior standard
    deviations. Models that are not linear in a predictor are brought near by L-BFGS first.

    Raises
    ------
    ConvergenceError
        If no mode was reached; an unconverged point is never returned as one.
    """
    subset, near = _subset(sums, seed), start
    goal = within if within > TOLERANCE else GOAL
    before = sums.ledger.sweeps
    if subset is not sums:
        near = _approach(sums, subset, _near_mode(subset, start, purpose), purpose, goal)
    at, stuck = _climb(sums, near, purpose, goal, origin=start)
    record = ModeRecord(
        passes=sums.ledger.sweeps - before,
        gradient_norm=at.gradient_norm,
        converged=_is_near(at, within),
        subset=len(subset.rows),
    )
    require_noise(sums, at.point, record.converged)
    if not record.converged:
        raise ConvergenceError(why_no_mode(sums, at, record.passes, stuck))
    return at, record


def _near_mode(subset: Sums, start: np.ndarray, purpose: str) -> Curvature:
    """The mode of a subset; where its log-posterior has a kink, that of all rows has one too."""
    before = subset.ledger.sweeps
    at, stuck = _climb(subset, start, purpose, NEAR)
    if stuck and subset.target.model.users_functions and at.gradient_norm > FAR:
        passes = subset.ledger.sweeps - before
        raise ConvergenceError(why_no_mode(subset, at, passes, stuck))
    return at


def _approach(sums: Sums, subset: Sums, at: Curvature, purpose: str, goal: float) -> np.ndarray:
    """Go from the mode of a subset towards that of all rows, with Hessians of the subset.

    A gradient takes a third of the time of a Hessian, and such a step leaves a few per cent of the
    distance. Steps end where one Hessian of all rows is all that is missing, or one step by it.
    """
    model, rows = sums.target.model, sums.rows
    by_numpy = isinstance(model, LinearPredictorModel) and sums.by_numpy
    # A pass over a store is mostly reading; stand-in priors come with matrices of other forms.
    if not by_numpy or rows.is_store or flat_prior(sums.target) is not None:
        return at.point
    size, best, share = len(rows) / len(subset.rows), at, SLOW
    for k in range(MOST_APPROACHES):
        C, A = sums.gradient(at.point, purpose)
        at = replace(at, C=C, A=A, B=at.B * size)
        if k:
            share = at.gradient_norm / best.gradient_norm  # of the distance, left by a step
            if not at.finite or at.log_posterior < best.log_posterior or share > SLOW:
                break
        best, point = at, at.point + at.newton_step()
        if share * at.gradient_norm < max(goal, QUADRATIC):
            return point
        at = curvature(subset, point, purpose)
    return best.point


def _subset(sums: Sums, seed: int) -> Sums:
    """A small random subset of the rows; all of them where they are few."""
    if sums.rest is not None:  # of which no subset is known
        return sums
    if isinstance(sums.rows, GroupedRows):
        return _subset_of_groups(sums, sums.rows, seed)
    n, d = len(sums.rows), sums.target.size
    size = max(20_000, 100 * d)
    # Chunks of the same size as in passes over all rows reuse the compiled pass.
    chunk = chunk_rows(sums.rows)
    in_chunks = chunk * ceil(size / chunk)
    size = in_chunks if 4 * in_chunks <= n else size
    if 2 * size > n:
        return sums
    row_ids = np.sort(generator(seed, Stream.MODE_SUBSET).choice(n, size, replace=False))
    rows = sums.rows.subset(row_ids)
    return replace(sums, rows=rows)


def _subset_of_groups(sums: Sums, groups: GroupedRows, seed: int) -> Sums:
    """Some groups, with as many rows as a subset of rows has."""
    n, rows = len(groups), len(groups.members)
    size = max(FEWEST_GROUPS, ceil(max(20_000, 100 * sums.target.size) * n / rows))
    if 2 * size > n:
        return sums
    group_ids = np.sort(generator(seed, Stream.MODE_SUBSET).choice(n, size, replace=False))
    return replace(sums, rows=groups.subset(group_ids))


class _Ascent(NamedTuple):
    """Where Newton ended, and whether that is because nothing rises from there."""

    at: Curvature
    stuck: bool


def _climb(
    sums: Sums, start: np.ndarray, purpose: str, goal: float, origin: np.ndarray | None = None
) -> _Ascent:
    """Newton with damping, after L-BFGS where the log-posterior need not be concave."""
    if not isinstance(sums.target.model, LinearPredictorModel | IntegratedEffects):
        start, origin = _quasi_newton(sums, start, purpose), None
    return _ascent(sums, start, purpose, goal, origin)


def ascend(sums: Sums, start: np.ndarray, purpose: str, goal: float) -> Curvature:
    """Damped Newton, until the whitened gradient norm is below `goal` or no step rises."""
    return _ascent(sums, start, purpose, goal).at


def _ascent(
    sums: Sums, start: np.ndarray, purpose: str, goal: float, origin: np.ndarray | None = None
) -> _Ascent:
    origin, prior = start if origin is None else origin, flat_prior(sums.target)
    if prior is None:
        return _rise(sums, start, purpose, goal, origin, None)
    with one_blas_thread.for_small(len(start)):  # factors a matrix in every step
        return _rise(sums, start, purpose, goal, origin, prior)


def _rise(
    sums: Sums,
    start: np.ndarray,
    purpose: str,
    goal: float,
    origin: np.ndarray,
    prior: StandInPrior | None,
) -> _Ascent:
    at = curvature(sums, start, purpose, prior)
    if not at.finite:
        kind = EndlessError if at.log_posterior == np.inf else ConvergenceError
        raise kind(why_not_finite(sums, at))
    damping, idle = 0.0, 0
    for _ in range(MAX_STEPS):
        if prior is not None:
            at, prior = settle(at, sums.target, prior)
        if _is_near(at, goal):
            break
        better, damping = _step(sums, at, purpose, damping, origin, prior)
        if better is None:  # no ascent left at working precision
            return _Ascent(at, True)
        idle = idle + 1 if _is_idle(at, better) else 0
        at = better
        if idle == IDLE_STEPS and sums.target.model.users_functions:
            return _Ascent(at, True)
    return _Ascent(at, False)


def _is_idle(at: Curvature, better: Curvature) -> bool:
    """Whether a step is to either side of a kink.

    A smooth log-posterior would have risen by about half the squared gradient norm. On a kink the
    gradient stays what it was, and only steps of next to no length rise, by next to nothing.
    """
    rise, least = (
        better.log_posterior - at.log_posterior,
        min(at.gradient_norm, better.gradient_norm),
    )
    return least > FAR and rise < min(IDLE_RISE, IDLE_SHARE * least**2)


def _step(
    sums: Sums,
    at: Curvature,
    purpose: str,
    damping: float,
    origin: np.ndarray,
    prior: StandInPrior | None = None,
) -> tuple[Curvature | None, float]:
    """Take a Newton step that rises enough: held back, then damped, then shortened, until it does.

    Returns the new point, and the damping to try next: less than what was needed here.
    """
    slack = 1e-13 * abs(at.log_posterior) + _last_digits(at)  # rounding of a sum over all rows
    length, step = 1.0, at.newton_step(damping)
    held_back = _held_back(at, step, origin)
    while length > 1e-8:
        trial = curvature(sums, at.point + length * step, purpose, prior)
        rise = trial.log_posterior - at.log_posterior
        enough = 1e-4 * length * max(at.gradient @ step, 0.0) - slack
        if trial.finite and rise >= enough:
            closer = trial.gradient_norm < at.gradient_norm
            return (trial if closer or rise > slack else None), (
                damping / 100 if damping > 50 else 0
            )
        if held_back is not None:
            step, held_back = held_back, None
        elif damping < 1e4:
            damping = max(10 * damping, 10.0)
            step = at.newton_step(damping)
        else:
            length /= 2 if np.isfinite(rise) else 8
    return None, damping


def _held_back(at: Curvature, step: np.ndarray, origin: np.ndarray) -> np.ndarray | None:
    """The Newton step of which no entry goes past the origin; None if none does anyway.

    A level without events in a subset has a coefficient far out at its mode, where the curvature
    of all rows is next to nothing: a Newton step back goes as far out on the other side. Such
    entries return to the origin, and the others go where that leaves them to go.
    """
    past = (at.point - origin) * (at.point + step - origin) < 0
    if isinstance(at.precision, ArrowMatrix) or not np.any(past) or np.all(past):
        return None
    back, free = np.where(past, origin - at.point, 0.0), ~past
    pull = (at.gradient - at.precision @ back)[free]
    back[free] = solve_uphill(at.precision[np.ix_(free, free)], pull)
    return back


def _is_near(at: Curvature, goal: float) -> bool:
    """Whether a point is as near to the mode as is asked for, or as its digits can tell."""
    return at.gradient_norm < max(goal, min(_last_digits(at), COARSE))


def _last_digits(at: Curvature) -> float:
    """How far the last digits of the parameters reach, in posterior standard deviations.

    A mode cannot be told more closely. It matters where an outcome, and with it the intercept, is
    far from zero; the log-posterior has errors of that size there.
    """
    if isinstance(at.precision, ArrowMatrix):
        return 0.0
    digits = np.finfo(float).eps * np.abs(at.point)
    return DIGITS * float(np.sqrt(max(digits @ np.abs(at.precision) @ digits, 0.0)))


def _quasi_newton(sums: Sums, start: np.ndarray, purpose: str) -> np.ndarray:
    """L-BFGS with full-data gradients (scipy's)."""
    from scipy.optimize import minimize  # slow to import, and seldom needed

    def negative(t: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = sums.gradient(t, purpose)
        prior, prior_gradient = prior_slope(sums.target, t)
        return -(value + prior), -(gradient + prior_gradient)

    options = {"maxiter": 500, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-8}
    return np.asarray(minimize(negative, start, jac=True, method="L-BFGS-B", options=options).x)


def quasi_newton_on_subset(sums: Sums, start: np.ndarray, seed: int = 0) -> np.ndarray:
    """Run L-BFGS on a random subset: a start for models too large to form a Hessian."""
    return _quasi_newton(_subset(sums, seed), start, "mode")
