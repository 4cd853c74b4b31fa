"""Finding the posterior mode in a few passes: on a subset first, then by Newton on all rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from modicum.errors import ConvergenceError
from modicum.linalg.arrow import ArrowMatrix
from modicum.models import LinearPredictorModel
from modicum.passes.curvature import (
    Curvature,
    StandInPrior,
    curvature,
    flat_prior,
    posterior_slope,
    solve_uphill,
)
from modicum.passes.engine import chunk_rows
from modicum.passes.hyperparameters import Settling
from modicum.passes.no_mode import require_noise, why_no_mode, why_not_finite
from modicum.passes.sums import Sums
from modicum.random import Stream, generator
from modicum.runtime import one_blas_thread

TOLERANCE = 1e-6  # whitened gradient norm: distance to the mode in posterior standard deviations
COARSE = 0.01  # largest tolerance that rounding of the parameters may justify
DIGITS = 4  # rounding error of sums over rows, in units of the last digit
GOAL = 1e-8  # target of Newton: at 1e-7 a small coefficient agrees with a GLM to 1.2e-8 only
NEAR = 0.05  # tolerance that suffices to expand about and to set a scale; saves a pass or two
MAX_STEPS = 60
# Maximum number of steps with Hessians of a subset, the largest share of the distance that such a
# step may leave, and the distance from which one Newton step reaches the tightest goal.
MOST_APPROACHES, SLOW, QUADRATIC = 4, 0.25, 1e-3
# A search ends after IDLE_STEPS steps on a kink: farther than FAR posterior standard deviations
# from the mode, by the gradient, and rising by less than IDLE_RISE and than the share IDLE_SHARE of
# the squared gradient norm.
IDLE_STEPS, FAR = 2, 0.1
IDLE_RISE, IDLE_SHARE = 1e-3, 1e-6
ROUNDING = 1e-9  # relative distance from the origin below which an entry is there
FEWEST_GROUPS = 500  # groups of a subset; fewer say little about differences between groups


class EndlessError(ConvergenceError):
    """The search for a mode reached a point where the log-posterior is infinite."""


@dataclass(frozen=True)
class ModeRecord:
    """How the mode was found.

    Attributes
    ----------
    passes
        Number of passes over all rows.
    gradient_norm
        Norm of the log-posterior gradient in whitened coordinates: approximately the distance from
        the mode in posterior standard deviations. NaN if no Hessian was formed.
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

    The starting point is the posterior mode of a small random subset, in which the prior keeps rare
    levels from diverging. From there damped Newton steps follow, one pass each, until the whitened
    gradient norm, which is the distance to the mode in posterior standard deviations, is below
    `within`. For models without a linear predictor, L-BFGS comes first.

    Raises
    ------
    ConvergenceError
        If no mode was reached; an unconverged point is never returned.
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
    """Find the mode of a subset; refuse a kink, which the log-posterior of all rows shares."""
    before = subset.ledger.sweeps
    at, stuck = _climb(subset, start, purpose, NEAR)
    if stuck and subset.target.model.users_functions and at.gradient_norm > FAR:
        passes = subset.ledger.sweeps - before
        raise ConvergenceError(why_no_mode(subset, at, passes, stuck))
    return at


def _approach(sums: Sums, subset: Sums, at: Curvature, purpose: str, goal: float) -> np.ndarray:
    """Go from the mode of a subset towards that of all rows, with Hessians of the subset.

    A gradient takes a third of the time of a Hessian, and such a step leaves a few per cent of the
    distance. The steps end when only the Hessian of all rows, or one Newton step with it, remains.
    """
    # A pass over a store is mostly reading; with stand-in priors, matrices may be arrows.
    too_slow = sums.rows.is_store or not sums.gradient_on_numpy
    if too_slow or flat_prior(sums.target) is not None:
        return at.point
    size, best, share = len(sums.rows) / len(subset.rows), at, SLOW
    for k in range(MOST_APPROACHES):
        C, A = sums.gradient(at.point, purpose)
        at = replace(at, C=C, A=A, B=at.B * size)
        if k:
            share = at.gradient_norm / best.gradient_norm  # share of the distance left by a step
            if not at.finite or at.log_posterior < best.log_posterior or share > SLOW:
                break
        best, point = at, at.point + at.newton_step()
        if share * at.gradient_norm < max(goal, QUADRATIC):
            return point
        at = curvature(subset, point, purpose)
    return best.point


def _subset(sums: Sums, seed: int) -> Sums:
    """Draw a small random subset of the rows, or of groups, or take all if there are few."""
    if sums.rest is not None:  # the rest cannot be subset
        return sums
    rows, n, size = sums.rows, len(sums.rows), max(20_000, 100 * sums.target.size)
    if rows.grouped:  # groups with about as many rows
        size = max(FEWEST_GROUPS, ceil(size * n / len(rows.members)))
    else:  # chunks of the same size as in passes over all rows reuse the compiled pass
        chunk = chunk_rows(rows)
        in_chunks = chunk * ceil(size / chunk)
        size = in_chunks if 4 * in_chunks <= n else size
    if 2 * size > n:
        return sums
    ids = np.sort(generator(seed, Stream.MODE_SUBSET).choice(n, size, replace=False))
    return replace(sums, rows=rows.subset(ids))


def _climb(
    sums: Sums, start: np.ndarray, purpose: str, goal: float, origin: np.ndarray | None = None
) -> tuple[Curvature, bool]:
    """Run damped Newton, after L-BFGS if the log-posterior may not be concave."""
    if not isinstance(sums.target.model.row_model, LinearPredictorModel):
        start, origin = _quasi_newton(sums, start, purpose), None
    return ascend(sums, start, purpose, goal, origin)


def ascend(
    sums: Sums, start: np.ndarray, purpose: str, goal: float, origin: np.ndarray | None = None
) -> tuple[Curvature, bool]:
    """Run damped Newton until the whitened gradient norm is below `goal` or no step rises.

    Return where it ended, and whether it stopped because no step increases the log-posterior.
    """
    origin, prior = start if origin is None else origin, flat_prior(sums.target)
    settling = None if prior is None else Settling(sums.target, prior)
    damping, idle = 0.0, 0
    # with a stand-in prior, each step factors a matrix
    with nullcontext() if prior is None else one_blas_thread.for_small(len(start)):
        at = curvature(sums, start, purpose, prior)
        if not at.finite:
            kind = EndlessError if at.log_posterior == np.inf else ConvergenceError
            raise kind(why_not_finite(sums, at))
        for _ in range(MAX_STEPS):
            if settling is not None:
                at, prior = settling.next(at), settling.prior
            if _is_near(at, goal) and not (settling and settling.held_back):
                break
            better, damping = _step(sums, at, purpose, damping, origin, prior)
            if better is None:  # no ascent left at working precision
                return at, True
            idle = idle + 1 if _is_idle(at, better) else 0
            at = better
            if idle == IDLE_STEPS and sums.target.model.users_functions:
                return at, True
        return at, False


def _is_idle(at: Curvature, better: Curvature) -> bool:
    """Whether a step went back and forth across a kink.

    A smooth log-posterior would have risen by about half the squared gradient norm. At a kink the
    gradient stays as large as before, and only tiny steps rise at all, by next to nothing.
    """
    rise = better.log_posterior - at.log_posterior
    least = min(at.gradient_norm, better.gradient_norm)
    return least > FAR and rise < min(IDLE_RISE, IDLE_SHARE * least**2)


def _step(
    sums: Sums,
    at: Curvature,
    purpose: str,
    damping: float,
    origin: np.ndarray,
    prior: StandInPrior | None = None,
) -> tuple[Curvature | None, float]:
    """Take a Newton step; hold it back, then damp it, then shorten it until it rises enough.

    Return the new point, and the damping to try next, which is less than was needed here.
    """
    slack = 1e-13 * abs(at.log_posterior) + _last_digits(at)  # rounding of a sum over all rows
    length, step = 1.0, at.newton_step(damping)
    held_back = _held_back(at, step, origin)
    while length > 1e-8:
        trial = curvature(sums, at.point + length * step, purpose, prior)
        rise = trial.log_posterior - at.log_posterior
        enough = 1e-4 * length * max(at.gradient @ step, 0.0) - slack
        if trial.finite and rise >= enough:
            closer, less = trial.gradient_norm < at.gradient_norm, damping / 100
            return (trial if closer or rise > slack else None), (less if damping > 50 else 0)
        if held_back is not None:
            step, held_back = held_back, None
        elif damping < 1e4:
            damping = max(10 * damping, 10.0)
            step = at.newton_step(damping)
        else:
            length /= 2 if np.isfinite(rise) else 8
    return None, damping


def _held_back(at: Curvature, step: np.ndarray, origin: np.ndarray) -> np.ndarray | None:
    """Return a Newton step in which no entry passes the origin; None if none would anyway.

    If a level has no events in a subset, its coefficient is far out at the subset's mode, where the
    curvature of all rows is almost zero, and a Newton step back ends far out on the other side.
    Such entries return to the origin instead, and the others take the Newton step given that.
    """
    out = at.point - origin
    is_out = np.abs(out) > ROUNDING * (np.abs(at.point) + np.abs(origin))
    past = is_out & (out * (out + step) < 0)
    precision = ArrowMatrix.of(at.precision)
    if precision.levels or not np.any(past) or np.all(past):
        return None
    back, free = np.where(past, origin - at.point, 0.0), ~past
    pull = (at.gradient - precision @ back)[free]
    back[free] = solve_uphill(np.asarray(precision.corner)[np.ix_(free, free)], pull)
    return back


def _is_near(at: Curvature, goal: float) -> bool:
    """Whether a point is as near to the mode as `goal` asks for, or as rounding permits."""
    return at.gradient_norm < max(goal, min(_last_digits(at), COARSE))


def _last_digits(at: Curvature) -> float:
    """Return the rounding error of the parameters, in posterior standard deviations.

    A mode cannot be located more precisely. This matters if an outcome, and with it the intercept,
    is far from zero: the log-posterior then has errors of that size.
    """
    precision = ArrowMatrix.of(at.precision)
    if precision.levels:
        return 0.0
    digits = np.finfo(float).eps * np.abs(at.point)
    return DIGITS * float(np.sqrt(max(digits @ np.abs(precision.corner) @ digits, 0.0)))


def quasi_newton(
    log_posterior: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    **options: float,
) -> np.ndarray:
    """Climb from `start` by SciPy's L-BFGS, given the log-posterior and its gradient."""
    from scipy.optimize import minimize  # slow to import, and seldom needed

    def negative(t: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = log_posterior(t)
        return -value, -gradient

    return np.asarray(minimize(negative, start, jac=True, method="L-BFGS-B", options=options).x)


def _quasi_newton(sums: Sums, start: np.ndarray, purpose: str) -> np.ndarray:
    options = {"maxiter": 500, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-8}
    return quasi_newton(lambda t: posterior_slope(sums, t, purpose), start, **options)


def quasi_newton_on_subset(sums: Sums, start: np.ndarray, seed: int = 0) -> np.ndarray:
    """Run L-BFGS on a random subset: a start for models too large to form a Hessian."""
    return _quasi_newton(_subset(sums, seed), start, "mode")
