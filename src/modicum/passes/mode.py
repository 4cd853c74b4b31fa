"""The posterior mode: found on a subset first, then by Newton on all rows; or why there is none.

There is none where something is not finite, at some row, or the posterior is improper. If columns
are collinear, or separate the outcomes, the likelihood is flat along a line, and with a flat prior
so is the posterior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import ConvergenceError, NoNoiseError, argument
from modicum.linalg.arrow import ArrowCholesky, ArrowMatrix, diagonal
from modicum.models import LinearPredictorModel, Target
from modicum.models.families.positive import Lognormal
from modicum.models.families.real import ScaleFamily
from modicum.models.model import Batch
from modicum.passes.curvature import (
    Curvature,
    StandInPrior,
    curvature,
    expanded_prior,
    flat_prior,
    parameter_name,
    posterior_slope,
    solve_uphill,
)
from modicum.passes.engine import chunk_rows
from modicum.passes.hyperparameters import Settling
from modicum.passes.sums import Sums
from modicum.random import Stream, generator
from modicum.rows import Rows, first_not_finite
from modicum.runtime import jit, one_blas_thread

TOLERANCE = 1e-6  # whitened gradient norm: distance to the mode in posterior standard deviations
COARSE = 0.01  # largest tolerance that rounding of the parameters may justify
DIGITS = 4  # rounding error of sums over rows, in units of the last digit
GOAL = 1e-8  # target of Newton: at 1e-7 a small coefficient agrees with a GLM to 1.2e-8 only
NEAR = 0.05  # tolerance that suffices to expand about and to set a scale; saves a pass or two
# Parameters from which a Hessian of a subset, of a hundred rows each, takes longer than a gradient
# of millions of rows.
WIDE = 500
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
    sums: Sums, start: np.ndarray, seed: int = 0, within: float = TOLERANCE
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
        near = _approach(sums, subset, _near_mode(subset, start), goal)
    at, stuck = _climb(sums, near, goal, origin=start)
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


def _near_mode(subset: Sums, start: np.ndarray) -> Curvature:
    """Find the mode of a subset; refuse a kink, which the log-posterior of all rows shares.

    The mode of all rows is some sqrt(d) posterior sds of the subset away, which for many parameters
    is far.
    """
    before, size = subset.ledger.sweeps, subset.target.size
    at, stuck = _climb(subset, start, NEAR * np.sqrt(size) if size > WIDE else NEAR)
    if stuck and subset.target.model.users_functions and at.gradient_norm > FAR:
        raise ConvergenceError(why_no_mode(subset, at, subset.ledger.sweeps - before, stuck))
    return at


def _approach(sums: Sums, subset: Sums, at: Curvature, goal: float) -> np.ndarray:
    """Go from the mode of a subset towards that of all rows, with Hessians of the subset.

    A gradient takes a third of the time of a Hessian, and such a step leaves a few per cent of the
    distance. The steps end when only the Hessian of all rows, or one Newton step with it, remains.
    Of many parameters they share a Hessian.
    """
    # A pass over a store is mostly reading; with stand-in priors, matrices may be arrows.
    if sums.rows.is_store or not sums.gradient_on_numpy or flat_prior(sums.target) is not None:
        return at.point
    size, best, share = len(sums.rows) / len(subset.rows), at, SLOW
    point, B = at.point, at.B * size
    for k in range(MOST_APPROACHES):
        C, A = sums.gradient(point, "mode")
        at = Curvature(point, C, A, B, *expanded_prior(sums.target, point))
        if k:
            share = at.gradient_norm / best.gradient_norm  # share of the distance left by a step
            if not at.finite or at.log_posterior < best.log_posterior or share > SLOW:
                break
        best, point = at, point + at.newton_step()
        if share * at.gradient_norm < max(goal, QUADRATIC):
            return point
        if len(point) <= WIDE:
            B = curvature(subset, point, "mode").B * size
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
    return sums.of_some(generator(seed, Stream.MODE_SUBSET), size)


def _climb(
    sums: Sums, start: np.ndarray, goal: float, origin: np.ndarray | None = None
) -> tuple[Curvature, bool]:
    """Run damped Newton, after L-BFGS if the log-posterior may not be concave."""
    if not sums.target.model.row_model.has_predictors:
        start, origin = _quasi_newton(sums, start), None
    return ascend(sums, start, "mode", goal, origin)


def ascend(
    sums: Sums, start: np.ndarray, purpose: str, goal: float, origin: np.ndarray | None = None
) -> tuple[Curvature, bool]:
    """Run damped Newton until the whitened gradient norm is below `goal` or no step rises.

    Return where it ended, and whether it stopped because no step increases the log-posterior.
    """
    origin, prior = start if origin is None else origin, flat_prior(sums.target)
    settling = None if prior is None else Settling(sums.target, prior)
    damping, idle = 0.0, 0
    with one_blas_thread.for_small(len(start)):  # each step factors a matrix
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


def _quasi_newton(sums: Sums, start: np.ndarray) -> np.ndarray:
    options = {"maxiter": 500, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-8}
    return quasi_newton(lambda t: posterior_slope(sums, t, "mode"), start, **options)


def quasi_newton_on_subset(sums: Sums, start: np.ndarray, seed: int = 0) -> np.ndarray:
    """Run L-BFGS on a random subset: a start for models too large to form a Hessian."""
    return _quasi_newton(_subset(sums, seed), start)


# Noise below these shares of the outcome's spread is rounding error: at a mode, and where the
# search for a mode failed.
ROUNDED, NO_NOISE = 1e-11, 1e-6
REMOTE = 1e-7  # spread of an outcome, as a share of its size, that leaves it few digits
OUTCOME_DIGITS = 4  # generous bound on an outcome's rounding error, in units of its last digit
FIRST_ROWS = 10_000  # rows that tell how large outcomes are
LEAST_SQUARES = 200  # columns up to which a linear predictor is fitted to these rows


def describe_row(rows: Rows, row: int) -> str:
    """Describe a row by its number and values, such as "of row 7 (x = [1, 2], y = 3)"."""
    values = {name: np.asarray(values)[0] for name, values in rows.slice(row, row + 1).items()}
    text = ", ".join(
        f"{name} = {np.array2string(value, precision=3, threshold=4, edgeitems=2)}"
        for name, value in values.items()
    )
    return f"of row {row} ({text})"


def first_bad_row(sums: Sums, t: np.ndarray, of_gradient: bool = False) -> str:
    """Describe the first of all rows whose log-likelihood, or its gradient, is not finite.

    Raises
    ------
    DataError
        If the rows themselves are not finite: the store was damaged after it was written.
    """
    damage = first_not_finite(sums.rows)
    if damage is not None:
        raise damage.error()
    chunk_faults = _gradient_faults if of_gradient else _value_faults
    faults = sums.engine.map_rows(partial(chunk_faults, sums.target), t, sums.rows, "fault")
    sums.ledger.add("fault", len(sums.rows), "gradient")
    bad = np.flatnonzero(faults)
    return describe_row(sums.rows, int(bad[0])) if len(bad) else "of all rows together"


@jit(static=0)
def _value_faults(target: Target, t: jax.Array, batch: Batch, present: jax.Array) -> jax.Array:
    return (present & ~jnp.isfinite(target.log_likelihood(t, batch))).astype(float)


@jit(static=0)
def _gradient_faults(target: Target, t: jax.Array, batch: Batch, present: jax.Array) -> jax.Array:
    def is_finite(row: Batch) -> jax.Array:
        alone = jax.tree.map(lambda field: field[None], row)
        gradient = jax.grad(lambda t: target.log_likelihood(t, alone)[0])(t)
        return jnp.all(jnp.isfinite(gradient))

    return (present & ~jax.lax.map(is_finite, jax.tree.map(jnp.asarray, batch))).astype(float)


def point_text(target: Target, t: np.ndarray) -> str:
    """Describe a point by the names and values of its first parameters."""
    leaves = target.report(jnp.asarray(t))
    texts = [
        f"{name} = {np.array2string(np.asarray(leaf), precision=3, threshold=4, edgeitems=2)}"
        for name, leaf in leaves.items()
    ]
    return ", ".join(texts[:4]) + (", ..." if len(texts) > 4 else "")


def why_not_finite(sums: Sums, at: Curvature) -> str:
    """Say what is not finite at a point: the prior, a row's log-likelihood, or a derivative."""
    own = sums.target.model.users_functions
    where = f"at {point_text(sums.target, at.point)}"
    if not np.isfinite(at.log_prior):
        return f"the log-prior is {at.log_prior} {where}; {_remedy(own)}."
    if not np.isfinite(at.C):
        fault = first_bad_row(sums, at.point)
        return f"the log-likelihood {fault} is not finite {where}; {_remedy(own)}."
    if not np.all(np.isfinite(at.A)):
        fault = first_bad_row(sums, at.point, of_gradient=True)
        return f"the gradient of the log-likelihood {fault} is not finite {where}; {_remedy(own)}."
    part = "likelihood" if not ArrowMatrix.of(at.B).finite else "prior"
    smooth = (
        "functions with a kink, such as abs(t) ** 1.5 or sqrt(t) at 0, have none: use a smooth "
        "function, or start elsewhere (`init`)"
        if own
        else "rescale the columns of x"
    )
    return f"a derivative of the log-{part} is not finite {where}; {smooth}."


def why_no_mode(sums: Sums, at: Curvature, passes: int, stuck: bool) -> str:
    """Explain why the search stopped without a mode, and what to do for a model of this kind."""
    own = sums.target.model.users_functions
    if not at.concave:
        remedy = (
            "give a tighter prior or another `init`"
            if own
            else "give a tighter prior (prior_scale or priors)"
        )
        if sums.target.model.integrated_group is not None:
            remedy += f", or hold effects as parameters ({argument('groups', 'explicit')})"
        return (
            "no mode was found: where the search stopped, the log-posterior is not concave "
            f"(its Hessian is not negative definite); {remedy}."
        )
    if own and stuck:
        return (
            "no mode was found: the search stopped where the gradient is not zero, yet no step "
            f"increases the log-posterior ({point_text(sums.target, at.point)}), so it has a kink "
            "there (abs, max, a jump) or too few digits; write it with smooth functions."
        )
    if is_remote(sums):
        return (
            f"no mode was found: the outcome '{sums.rows.outcome or 'y'}' varies too little about "
            "too large a number for 64-bit floats to resolve the intercept; subtract a constant "
            "from the outcome first."
        )
    remedy = (
        "write the parameters in units in which they are of order 1, give a tighter prior, or "
        "another `init`"
        if own
        else "rescale the columns of x (mean 0, sd 1), or give a tighter prior (prior_scale)"
    )
    return (
        f"no mode was found: after {passes} passes the search is still "
        f"{at.gradient_norm:.2g} posterior standard deviations away; {remedy}."
    )


def _remedy(own: bool) -> str:
    if own:
        return (
            "start elsewhere (`init`), write parameters that must be positive as exponentials, or "
            "check the model's functions there"
        )
    return "look at that row, and rescale the columns of x and the offset if they are large"


def require_noise(sums: Sums, point: np.ndarray, converged: bool) -> None:
    """Refuse outcomes that the columns determine to the last digit, if the noise scale is free.

    The log-likelihood then rises as the scale falls, until residuals are pure rounding error, which
    may or may not have a mode.
    """
    model, rows = sums.target.model.row_model, sums.rows.members
    if not isinstance(model, ScaleFamily | Lognormal) or "log_scale" not in model.extras:
        return
    family, what = f"{type(model).__name__}(scale=...)", "outcomes"
    theta = sums.target.unravel(point)
    # without an intercept, coefficients of levels are the logarithms of their scales
    log_scale = theta["log_scale"] if "log_scale" in theta else theta["beta"][model.entering[1]]
    scale = float(np.exp(np.min(log_scale)))
    first = dict(rows.slice(0, min(len(rows), FIRST_ROWS)))
    if isinstance(model, Lognormal):
        first["y"] = np.log(first["y"], dtype=float)
        family, what = "fit the logarithm with Gaussian(scale=...)", "logarithms"
    y = np.asarray(first["y"], float)
    size, spread = float(np.sqrt(np.mean(y**2))) or 1.0, _spread(first)
    how = "the search for a mode drove the scale of the noise to"
    if not model.has_mode and len(y) == len(rows) > 2 * sums.target.size:
        residual = _least_squares(model, first, y)
        if residual < scale:  # the search may have ended early
            scale, how = residual, "the best linear predictor leaves residuals of"
    digits = OUTCOME_DIGITS * float(np.finfo(float).eps) * size
    if scale < max(spread * (ROUNDED if converged else NO_NOISE), digits):
        raise NoNoiseError(
            f"the columns give the outcome '{rows.outcome or 'y'}' without noise: {how} "
            f"{scale:.2g}, with {what} of size {size:.2g}, so this scale has no posterior; look "
            f"for a column that is the outcome in disguise, or set the scale ({family})."
        )


def is_remote(sums: Sums) -> bool:
    """Whether a real outcome is so far from zero that few digits are left of its variation."""
    model, rows = sums.target.model.row_model, sums.rows.members
    if not isinstance(model, ScaleFamily):
        return False
    first = rows.slice(0, min(len(rows), FIRST_ROWS))
    return _spread(first) < REMOTE * float(np.max(np.abs(first["y"])))


def _spread(rows: Batch) -> float:
    """Return the standard deviation of outcomes, less their offset."""
    y = np.asarray(rows["y"], float) - np.asarray(rows.get("offset", 0.0), float)
    return float(np.std(y))


def _least_squares(model: LinearPredictorModel, rows: Batch, y: np.ndarray) -> float:
    """Return the root mean square residual of `y` from the best linear predictor."""
    x = np.asarray(model.full_matrix(rows).densely(), float)
    if x.shape[1] > LEAST_SQUARES:
        return np.inf
    y = y - np.asarray(rows.get("offset", 0.0), float)
    return float(np.sqrt(np.mean((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2)))


SINGULAR = 1e-10  # smallest acceptable eigenvalue of the precision, scaled to a unit diagonal
FAR_OUT = 20.0  # standard deviations, at which a log-likelihood with a maximum falls by ...
FALL = 3.0  # ... more than this
LOOKED_AT = 4  # coefficients to check: those that the data inform least


def require_proper(sums: Sums, at: Curvature, names: tuple[str, ...]) -> None:
    """Refuse a posterior that flat priors leave improper, judged at its mode."""
    flat = diagonal(at.prior_hessian) == 0
    if not sums.target.model.has_flat_prior or not flat.any():
        return
    precision, places = _information(at)
    scale = np.sqrt(np.maximum(np.diag(precision), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(precision / np.outer(scale, scale))
    if values[0] < SINGULAR:
        top = np.argsort(-np.abs(vectors[:, 0]))[:3]
        along = ", ".join(
            parameter_name(names, int(places[i])) for i in top if abs(vectors[i, 0]) > 0.1
        )
        raise ConvergenceError(
            f"the posterior is improper: the data say nothing about some combination of {along}, "
            "which are collinear, and their priors are flat; drop a column, or give them a prior "
            "such as mo.priors.Normal(0, 1)."
        )
    endless = None
    if not sums.target.model.has_groups and sums.rest is None:
        separated, passes = sums.target.model.separation(sums.rows, sums.target.unravel(at.point))
        sums.enter("separation", passes, "density", passes)
        endless = None if separated is None else "the outcome"
    if endless is None:
        # Is there a coefficient along which the likelihood does not fall?
        precision, places = _information(at)
        sd = np.sqrt(np.diag(np.linalg.inv(precision)))
        ends = np.flatnonzero(flat[places])
        # the approximate size of the column of each entry; 1 for entries without one
        sizes = np.ones(sums.target.size)
        x = sums.rows.slice(0, min(len(sums.rows), 4096)).get("x")
        if x is not None and x.ndim == 2 and x.shape[1] <= len(sizes):
            sizes[: x.shape[1]] = np.sqrt(np.mean(np.asarray(x, np.float64) ** 2, axis=0))
        ends = ends[np.argsort(-sd[ends] * sizes[places][ends])][:LOOKED_AT]
        steps = FAR_OUT * _columns(at, places[ends]) / sd[ends][:, None]
        values = sums.values(np.concatenate([at.point + steps, at.point - steps]), "separation")
        least = at.C - values.reshape(2, -1).max(axis=0)
        worst = int(np.argmin(least))
        called = parameter_name(names, int(places[ends[worst]]))
        endless = f"the outcome along {called}" if least[worst] < FALL else None
    if endless is not None:
        raise ConvergenceError(
            f"the posterior is improper: the likelihood has no maximum, since columns predict "
            f"{endless} perfectly (a level with one outcome only, say), and their priors are flat; "
            "merge or drop them, or give them a prior such as mo.priors.Normal(0, 1)."
        )


def _information(at: Curvature) -> tuple[np.ndarray, np.ndarray]:
    """Return the precision and the indices of its entries; of the border alone for an arrow."""
    precision = ArrowMatrix.of(at.precision)
    return precision.border_alone(), np.asarray(precision.border)


def _columns(at: Curvature, ends: np.ndarray) -> np.ndarray:
    """Return the columns `ends` of the covariance of all parameters, as rows."""
    factored = ArrowCholesky.mending(ArrowMatrix.of(at.precision))
    hot = np.zeros((len(ends), len(at.point)))
    hot[np.arange(len(ends)), ends] = 1
    return np.stack([factored.solve(line) for line in hot])
