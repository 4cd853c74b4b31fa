"""Finding the posterior mode in a handful of passes: a subset first, then Newton on all rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, eigh, solve_triangular

from modicum.errors import ConvergenceError, NoNoiseError
from modicum.models import IntegratedEffects, LinearPredictorModel, Target
from modicum.models.arrow import (
    ArrowCholesky,
    ArrowCovariance,
    ArrowLayout,
    ArrowMatrix,
    Covariance,
    Factor,
    Symmetric,
    all_finite,
    diagonal,
)
from modicum.models.base import DENSE_LIMIT, Batch
from modicum.models.families.real import ScaleFamily
from modicum.models.priors.exact import ExactPrior, Numbers
from modicum.passes.engine import chunk_rows
from modicum.passes.faults import first_bad_row, point_text
from modicum.passes.sums import Sums
from modicum.random import Stream, generator
from modicum.rows.groups import GroupedRows
from modicum.runtime import Array, in_double_precision, jit

__all__ = [
    "DENSE_LIMIT",
    "NEAR",
    "Curvature",
    "ModeRecord",
    "ascend",
    "find_mode",
    "whitening",
    "whitening_factor",
]

TOLERANCE = 1e-6  # whitened gradient norm: distance to the mode in posterior standard deviations
GOAL = 1e-8  # what Newton aims for: at 1e-7 a small coefficient agrees with a GLM to 1.2e-8 only
NEAR = 0.01  # near enough to expand about and to set a scale; saves a pass or two
MAX_STEPS = 60
# Steps on a kink after which the search ends; posterior standard deviations from the mode, as the
# gradient has it, that are too many there; and what such a step rises by at most: in all, and as a
# share of the squared gradient norm.
IDLE_STEPS, FAR = 2, 0.1
IDLE_RISE, IDLE_SHARE = 1e-3, 1e-6
FEWEST_GROUPS = 500  # of a subset: fewer say little about differences between groups
MAX_SETTLING = 100
SETTLED = 3e-3  # posterior standard deviations: nothing depends on where exactly priors settle
# Share of the outcome's size below which the scale of noise is that of rounding, at a mode; and
# where the search for one ended without.
ROUNDED, NO_NOISE = 1e-11, 1e-6
FIRST_ROWS = 10_000  # that say how large outcomes are
LEAST_SQUARES = 200  # columns up to which a linear predictor is fitted to these
LEAST_INFORMATION = 1e-4  # about an entry, where a stand-in prior starts from that of the data


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
        """The same, where matrices are dense."""
        precision = self.precision
        assert isinstance(precision, np.ndarray)
        return precision

    @property
    def finite(self) -> bool:
        """Whether the log-posterior and its derivatives are finite."""
        parts = (self.log_posterior, self.gradient)
        return all(bool(np.all(np.isfinite(part))) for part in parts) and all_finite(self.precision)

    def newton_step(self, damping: float = 0.0) -> np.ndarray:
        """Step towards the mode; uphill even if the Hessian is not negative definite.

        `damping` keeps the step short, in units of the prior, where the data say little: a rare
        level at saturated probabilities would otherwise jump (Levenberg's rule).
        """
        ridge = self._prior_unit * damping if damping else None
        precision = self.precision if ridge is None else plus(self.precision, ridge)
        return _solve_uphill(precision, self.gradient)

    @cached_property
    def _prior_unit(self) -> Symmetric:
        """The prior's precision, which a centred intercept makes other than diagonal."""
        precision = -self.prior_hessian
        if isinstance(precision, ArrowMatrix):
            return _positive_diagonal(precision)
        try:
            cholesky(precision)
        except (np.linalg.LinAlgError, ValueError):
            # flat or not concave somewhere: of each parameter by itself, and of 0.01 at least
            return np.diag(np.maximum(np.abs(np.diag(precision)), 0.01))
        return precision

    @cached_property
    def gradient_norm(self) -> float:
        """Norm of the gradient in whitened coordinates (the Newton decrement)."""
        return float(np.sqrt(max(0.0, self.gradient @ self.newton_step())))


@dataclass(frozen=True)
class StandInPrior:
    """The prior with its non-quadratic parts replaced by normals (see `models.priors.exact`)."""

    target: Target
    mean: np.ndarray
    precision: Symmetric
    covariance: Covariance | None = None  # of the posterior, where it was found

    def expanded(self, t: np.ndarray) -> tuple[float, np.ndarray, Symmetric]:
        """Value, gradient and Hessian at `t`."""
        value, gradient, hessian = folded_prior(self.target, t)
        pull = self.precision @ (t - self.mean)
        return (
            value - 0.5 * float((t - self.mean) @ pull),
            gradient - pull,
            plus(hessian, -self.precision),
        )


def curvature(
    sums: Sums, t: np.ndarray, purpose: str, prior: StandInPrior | None = None
) -> Curvature:
    """One pass: everything to second order at `t`, with another prior in place of the target's."""
    if prior is not None:
        return Curvature(t, *sums.curvature(t, purpose), *prior.expanded(t))
    exact = (*prior_slope(sums.target, t), prior_hessian(sums.target, t))
    return Curvature(t, *sums.hessian(t, purpose), *exact)


def plus(one: Symmetric, other: Symmetric) -> Symmetric:
    """The sum of two matrices of one form."""
    if isinstance(one, ArrowMatrix):
        assert isinstance(other, ArrowMatrix)
        return one + other
    assert isinstance(other, np.ndarray)
    return one + other


def folded_prior(target: Target, t: np.ndarray) -> tuple[float, np.ndarray, Symmetric]:
    """The quadratic part of a log-prior, its gradient and Hessian at `t`; zeros where unknown."""
    if target.arrow is not None:
        return _folded_arrow(target, target.arrow, t)
    if target.exact_prior is None and isinstance(target.model, LinearPredictorModel):
        return *prior_slope(target, t), prior_hessian(target, t)  # all of it: compiled already
    return _folded(target, t)


@in_double_precision
def _folded(target: Target, t: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    value, gradient, hessian = _folded_prior(target, t)
    return float(value), np.asarray(gradient), np.asarray(hessian)


@jit(static=0)
def _folded_prior(target: Target, t: Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    folded = target.log_folded_prior
    return *jax.value_and_grad(folded)(t), jax.hessian(folded)(t)


@in_double_precision
def _folded_arrow(
    target: Target, layout: ArrowLayout, t: np.ndarray
) -> tuple[float, np.ndarray, ArrowMatrix]:
    """The same where effects of a big factor, which have another prior, are many."""
    value, gradient, corner = _folded_border(target, layout, t)
    hessian = ArrowMatrix.zeros(layout.big, layout.border)
    whole = np.zeros(len(t))
    whole[layout.border] = np.asarray(gradient)
    return float(value), whole, replace(hessian, corner=np.asarray(corner))


@jit(static=(0, 1))
def _folded_border(
    target: Target, layout: ArrowLayout, t: Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    at = jnp.asarray(t)

    def folded(border: jax.Array) -> jax.Array:
        return target.log_folded_prior(at.at[layout.border].set(border))

    border = at[layout.border]
    return *jax.value_and_grad(folded)(border), jax.hessian(folded)(border)


@in_double_precision
def exact_log_priors(target: Target, points: np.ndarray) -> np.ndarray:
    """The non-quadratic part of the log-prior at each of `points`."""
    assert target.exact_prior is not None
    exact, numbers = target.exact_prior
    return np.array(_exact_log_priors(exact, points, numbers))


@jit(static=0)
def _exact_log_priors(exact: ExactPrior, points: Array, numbers: tuple[Numbers, ...]) -> jax.Array:
    return jax.vmap(lambda t: exact.log_density(t, numbers))(points)


def settle(
    at: Curvature, target: Target, before: StandInPrior | None = None
) -> tuple[Curvature, StandInPrior]:
    """Iterate a stand-in prior and the priors' own parameters to a fixed point, without a pass.

    The log-likelihood is replaced by its quadratic at `at`. Two steps alternate: the mode and
    covariance of the posterior under the normal stand-in; then the stand-in and the marginal modes
    of the priors' own parameters, given these. The iteration starts from `before`.
    """
    assert target.exact_prior is not None
    exact, numbers = target.exact_prior
    _, slope, bent = folded_prior(target, at.point)
    read = target.likelihood.size
    t, information = at.point.copy(), -plus(at.B, bent)
    V = None if before is None else before.covariance
    if V is None:
        V = _covariance_like(1 / np.maximum(diagonal(information), LEAST_INFORMATION), at.B)
    mean, precision = exact.normal_approximation(t, V, numbers)
    for _ in range(MAX_SETTLING):
        pull = (at.A + slope - precision @ (at.point - mean))[:read]
        V, towards = _normal(information, precision, pull, V, read)
        last = t
        t = np.concatenate([at.point[:read] + towards, t[read:]])
        t = exact.settle(t, V, numbers)
        mean, precision = exact.normal_approximation(t, V, numbers, hyperparameters=False)
        if np.all(np.abs(t - last) < SETTLED * np.sqrt(diagonal(V))):
            break
    mean, precision = exact.normal_approximation(t, V, numbers)
    V = _with_variances(V, 1 / diagonal(precision)[read:])
    # The pass was made at `at.point`: the priors' own parameters move, all others stay.
    moved = np.concatenate([at.point[:read], t[read:]])
    prior = StandInPrior(target, mean, precision, V)
    value, gradient, hessian = prior.expanded(moved)
    at = replace(at, point=moved, log_prior=value, prior_gradient=gradient, prior_hessian=hessian)
    return at, prior


def _normal(
    information: Symmetric, precision: Symmetric, pull: np.ndarray, V: Covariance, read: int
) -> tuple[Covariance, np.ndarray]:
    """The posterior covariance of the first `read` entries, put into V, and its product with pull.

    Information of the data and precision of the prior add up.
    """
    if isinstance(information, ArrowMatrix):
        assert isinstance(precision, ArrowMatrix)
        factored = ArrowCholesky.mending((information + precision).leading(read))
        known = factored.factor().covariance
        border = np.asarray(information.border)
        own = diagonal(V)[border[len(known.border) :]]
        return known.extended(border, own), factored.solve(pull)
    assert isinstance(precision, np.ndarray)
    assert isinstance(V, np.ndarray)
    V[:read, :read] = _inverse(information[:read, :read] + precision[:read, :read])
    return V, V[:read, :read] @ pull


def _covariance_like(variance: np.ndarray, matrix: Symmetric) -> Covariance:
    """A diagonal covariance, in the form that goes with a matrix."""
    if isinstance(matrix, ArrowMatrix):
        places = np.asarray(matrix.big), np.asarray(matrix.border)
        return ArrowCovariance.of_variances(variance, *places)
    return np.diag(variance)


def _with_variances(V: Covariance, variance: np.ndarray) -> Covariance:
    """The same with these variances of the last entries, which are independent of all others."""
    read = len(diagonal(V)) - len(variance)
    if isinstance(V, ArrowCovariance):
        held = int(np.searchsorted(V.border, read))
        first = replace(V, border=V.border[:held], corner=V.corner[:held, :held])
        return first.extended(V.border, variance)
    V[read:, read:] = np.diag(variance)
    return V


def _inverse(precision: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(cho_solve(cho_factor(precision), np.eye(len(precision))))
    except np.linalg.LinAlgError:  # a flat prior of what the data do not inform here
        factor, _ = whitening_factor(precision)
        return np.asarray(factor @ factor.T)


@in_double_precision
def prior_slope(target: Target, t: np.ndarray) -> tuple[float, np.ndarray]:
    """Log-prior and its gradient at `t`."""
    if target.normal_prior is not None:
        return target.normal_prior.expanded(t)[:2]
    value, gradient = _prior_slope(target, t)
    return float(value), np.asarray(gradient)


@in_double_precision
def prior_hessian(target: Target, t: np.ndarray) -> np.ndarray:
    """Hessian of the log-prior at `t`."""
    if target.normal_prior is not None:
        return target.normal_prior.expanded(t)[2]
    return np.asarray(_prior_hessian(target, t))


@jit(static=0)
def _prior_slope(target: Target, t: Array) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(target.log_prior)(t)


@jit(static=0)
def _prior_hessian(target: Target, t: Array) -> jax.Array:
    return jax.hessian(target.log_prior)(t)


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
    if subset is not sums:
        near = _near_mode(subset, start, purpose)
    before = sums.ledger.sweeps
    at, stuck = _climb(sums, near, purpose, within if within > TOLERANCE else GOAL)
    record = ModeRecord(
        passes=sums.ledger.sweeps - before,
        gradient_norm=at.gradient_norm,
        converged=at.gradient_norm < within,
        subset=len(subset.rows),
    )
    require_noise(sums, at.point, ROUNDED if record.converged else NO_NOISE)
    if not record.converged:
        raise ConvergenceError(_why_not(sums, at, record, stuck))
    return at, record


def _near_mode(subset: Sums, start: np.ndarray, purpose: str) -> np.ndarray:
    """The mode of a subset; where its log-posterior has a kink, that of all rows has one too."""
    before = subset.ledger.sweeps
    at, stuck = _climb(subset, start, purpose, NEAR)
    if stuck and subset.target.model.users_functions and at.gradient_norm > FAR:
        size, passes = len(subset.rows), subset.ledger.sweeps - before
        record = ModeRecord(passes, at.gradient_norm, False, size)
        raise ConvergenceError(_why_not(subset, at, record, stuck))
    return at.point


def require_noise(sums: Sums, point: np.ndarray, least: float = NO_NOISE) -> None:
    """Refuse outcomes that the columns give to the last digit, where the scale of noise is free.

    The log-likelihood then rises as the scale falls, until residuals are those of rounding, which
    may or may not have a mode. `least` is in units of the outcome's size.
    """
    model, rows = sums.target.model, sums.rows
    if isinstance(model, IntegratedEffects):
        model = model.family
    rows = rows.members if isinstance(rows, GroupedRows) else rows
    if not isinstance(model, ScaleFamily) or model.scale is not None:
        return
    scale = float(np.exp(sums.target.unravel(point)["log_scale"]))
    first = rows.slice(0, min(len(rows), FIRST_ROWS))
    y = np.asarray(first["y"], float)
    size = float(np.sqrt(np.mean(y**2))) or 1.0
    how = "the search for a mode drove the scale of the noise to"
    if not model.has_mode and len(y) == len(rows) > 2 * sums.target.size:
        left = _least_squares(model, first, y)
        if left < scale:  # the search may have ended early
            scale, how = left, "the best linear predictor leaves residuals of"
    if scale < size * least:
        raise NoNoiseError(
            f"the columns give the outcome '{rows.outcome or 'y'}' without noise: {how} "
            f"{scale:.2g}, at outcomes of size "
            f"{size:.2g}, so that this scale has no posterior; look for a column that is the "
            f"outcome in disguise, or give the scale ({type(model).__name__}(scale=...))."
        )


def _least_squares(model: LinearPredictorModel, rows: Batch, y: np.ndarray) -> float:
    """Root mean square of what is left of `y` by the best linear predictor."""
    columns = model.matrix(rows)
    x = np.asarray((columns.with_ones() if model.intercept else columns).densely(), float)
    if x.shape[1] > LEAST_SQUARES:
        return np.inf
    y = y - np.asarray(rows.get("offset", 0.0), float)
    return float(np.sqrt(np.mean((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2)))


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
    whole = chunk * ceil(size / chunk)
    size = whole if 4 * whole <= n else size
    if 2 * size > n:
        return sums
    picked = np.sort(generator(seed, Stream.MODE_SUBSET).choice(n, size, replace=False))
    rows = sums.rows.subset(picked)
    return replace(sums, rows=rows)


def _subset_of_groups(sums: Sums, groups: GroupedRows, seed: int) -> Sums:
    """Some groups, with as many rows as a subset of rows has."""
    n, rows = len(groups), len(groups.members)
    size = max(FEWEST_GROUPS, ceil(max(20_000, 100 * sums.target.size) * n / rows))
    if 2 * size > n:
        return sums
    picked = np.sort(generator(seed, Stream.MODE_SUBSET).choice(n, size, replace=False))
    return replace(sums, rows=groups.subset(picked))


class _Ascent(NamedTuple):
    """Where Newton ended, and whether that is because nothing rises from there."""

    at: Curvature
    stuck: bool


def _climb(sums: Sums, start: np.ndarray, purpose: str, goal: float) -> _Ascent:
    """Newton with damping, after L-BFGS where the log-posterior need not be concave."""
    if not isinstance(sums.target.model, LinearPredictorModel | IntegratedEffects):
        start = _quasi_newton(sums, start, purpose)
    return _ascent(sums, start, purpose, goal)


def ascend(sums: Sums, start: np.ndarray, purpose: str, goal: float) -> Curvature:
    """Damped Newton, until the whitened gradient norm is below `goal` or no step rises."""
    return _ascent(sums, start, purpose, goal).at


def _ascent(sums: Sums, start: np.ndarray, purpose: str, goal: float) -> _Ascent:
    prior = flat_prior(sums.target)
    at = curvature(sums, start, purpose, prior)
    if not at.finite:
        kind = EndlessError if at.log_posterior == np.inf else ConvergenceError
        raise kind(_not_finite(sums, at))
    damping, idle = 0.0, 0
    for _ in range(MAX_STEPS):
        if prior is not None:
            at, prior = settle(at, sums.target, prior)
        if at.gradient_norm < goal:
            break
        better, damping = _step(sums, at, purpose, damping, prior)
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


def flat_prior(target: Target) -> StandInPrior | None:
    """No stand-in yet, where one is needed; None where the prior is what it is."""
    if target.exact_prior is None:
        return None
    if target.arrow is not None:
        none: Symmetric = ArrowMatrix.zeros(target.arrow.big, target.arrow.border)
    else:
        none = np.zeros((target.size, target.size))
    return StandInPrior(target, np.zeros(target.size), none)


def _step(
    sums: Sums, at: Curvature, purpose: str, damping: float, prior: StandInPrior | None = None
) -> tuple[Curvature | None, float]:
    """Take a Newton step that rises enough: damped more, then shortened, until it does.

    Returns the new point, and the damping to try next: less than what was needed here.
    """
    slack = 1e-13 * abs(at.log_posterior)  # rounding of a sum over all rows
    length = 1.0
    while length > 1e-8:
        step = at.newton_step(damping)
        trial = curvature(sums, at.point + length * step, purpose, prior)
        rise = trial.log_posterior - at.log_posterior
        if trial.finite and rise >= 1e-4 * length * (at.gradient @ step) - slack:
            closer = trial.gradient_norm < at.gradient_norm
            return (trial if closer or rise > slack else None), (
                damping / 100 if damping > 50 else 0
            )
        if damping < 1e4:
            damping = max(10 * damping, 10.0)
        else:
            length /= 2 if np.isfinite(rise) else 8
    return None, damping


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


def _solve_uphill(precision: Symmetric, gradient: np.ndarray) -> np.ndarray:
    if isinstance(precision, ArrowMatrix):
        return ArrowCholesky.mending(precision).solve(gradient)
    try:
        return np.asarray(cho_solve(cho_factor(precision), gradient))
    except np.linalg.LinAlgError:
        values, vectors = eigh(precision)
        floor = max(1e-8 * np.abs(values).max(), np.finfo(np.float64).tiny)
        return np.asarray(vectors @ ((vectors.T @ gradient) / np.maximum(np.abs(values), floor)))


def _positive_diagonal(matrix: ArrowMatrix) -> ArrowMatrix:
    """The same matrix; where it is not positive definite, its diagonal, of 0.01 at least."""
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
    """L with L L' the inverse of `precision`, in its form; True if that had to be mended."""
    if isinstance(precision, ArrowMatrix):
        factored = ArrowCholesky.mending(precision)
        return factored.factor(), factored.mended
    return whitening_factor(precision)


def whitening_factor(precision: np.ndarray, least: float = 0.0) -> tuple[np.ndarray, bool]:
    """L with L L' the inverse of `precision`; True if that had to be made positive definite.

    Curvatures are then at least `least`.
    """
    try:
        lower = cholesky(precision, lower=True)
        return solve_triangular(lower, np.eye(len(lower)), lower=True).T, False
    except np.linalg.LinAlgError:
        values, vectors = eigh(precision)
        clipped = np.maximum(np.abs(values), max(least, 1e-8 * np.abs(values).max()))
        return vectors / np.sqrt(clipped), True


def _not_finite(sums: Sums, at: Curvature) -> str:
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
    part = "likelihood" if not all_finite(at.B) else "prior"
    smooth = (
        "a kink such as abs(t) ** 1.5 or sqrt(t) at 0 has none: use a smooth function, or start "
        "elsewhere (`init`)"
        if own
        else "rescale the columns of x"
    )
    return f"a derivative of the log-{part} is not finite {where}; {smooth}."


def _remedy(own: bool) -> str:
    if own:
        return (
            "start elsewhere (`init`), write parameters that must be positive as exponentials, or "
            "check the model's functions there"
        )
    return "look at that row, and rescale the columns of x and the offset if they are large"


def _is_concave(at: Curvature) -> bool:
    """Whether the precision is positive definite."""
    if isinstance(at.precision, ArrowMatrix):
        return not ArrowCholesky.mending(at.precision).mended
    return bool(np.linalg.eigvalsh(at.precision)[0] > 0)


def _why_not(sums: Sums, at: Curvature, record: ModeRecord, stuck: bool) -> str:
    """Why there is no mode where the search stopped, and what to do for a model of this kind."""
    own = sums.target.model.users_functions
    if not _is_concave(at):
        remedy = (
            "give a tighter prior or another `init`"
            if own
            else "give a tighter prior (prior_scale)"
        )
        return (
            "no mode was found: where the search stopped, the log-posterior is not concave "
            f"(its Hessian is not negative definite); {remedy}."
        )
    if own and stuck:
        return (
            "no mode was found: the search stopped where the gradient is not zero and nothing "
            f"rises from there ({point_text(sums.target, at.point)}), so that the log-posterior "
            "has a kink there (abs, max, a jump) or too few digits; write it with smooth functions."
        )
    remedy = (
        "write the parameters in units in which they are of order 1, give a tighter prior, or "
        "another `init`"
        if own
        else "rescale the columns of x (mean 0, sd 1), or give a tighter prior (prior_scale)"
    )
    return (
        f"no mode was found: after {record.passes} passes the search is still "
        f"{record.gradient_norm:.2g} posterior standard deviations away; {remedy}."
    )
