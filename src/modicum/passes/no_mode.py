"""Why there is no mode: what is not finite, at which row, or what leaves the posterior improper.

If columns are collinear, or separate the outcomes, the likelihood is flat along a line, and with a
flat prior so is the posterior.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import ConvergenceError, NoNoiseError
from modicum.linalg.arrow import ArrowCholesky, ArrowMatrix, diagonal
from modicum.models import LinearPredictorModel, Target
from modicum.models.families.real import ScaleFamily
from modicum.models.model import Batch
from modicum.passes.curvature import Curvature
from modicum.passes.sums import Sums
from modicum.rows import Rows, first_not_finite
from modicum.runtime import jit

# Noise below these shares of the outcome's spread is rounding error: at a mode, and where the
# search for a mode failed.
ROUNDED, NO_NOISE = 1e-11, 1e-6
REMOTE = 1e-7  # spread of an outcome, as a share of its size, that leaves it few digits
DIGITS = 4  # generous bound on an outcome's rounding error, in units of its last digit
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
            else "give a tighter prior (prior_scale)"
        )
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
    if not isinstance(model, ScaleFamily) or not model.extras:
        return
    theta = sums.target.unravel(point)
    # without an intercept, coefficients of levels are the logarithms of their scales
    log_scale = theta["log_scale"] if "log_scale" in theta else theta["beta"][model.entering[1]]
    scale = float(np.exp(np.min(log_scale)))
    first = rows.slice(0, min(len(rows), FIRST_ROWS))
    y = np.asarray(first["y"], float)
    size, spread = float(np.sqrt(np.mean(y**2))) or 1.0, _spread(first)
    how = "the search for a mode drove the scale of the noise to"
    if not model.has_mode and len(y) == len(rows) > 2 * sums.target.size:
        residual = _least_squares(model, first, y)
        if residual < scale:  # the search may have ended early
            scale, how = residual, "the best linear predictor leaves residuals of"
    digits = DIGITS * float(np.finfo(float).eps) * size
    if scale < max(spread * (ROUNDED if converged else NO_NOISE), digits):
        raise NoNoiseError(
            f"the columns give the outcome '{rows.outcome or 'y'}' without noise: {how} "
            f"{scale:.2g}, with outcomes of size {size:.2g}, so this scale has no posterior; look "
            "for a column that is the outcome in disguise, or set the scale "
            f"({type(model).__name__}(scale=...))."
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
    x = np.asarray(model.matrix(rows).with_ones(model.intercept).densely(), float)
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
        endless = _endless(sums, at, flat, names)
    if endless is not None:
        raise ConvergenceError(
            f"the posterior is improper: the likelihood has no maximum, since columns predict "
            f"{endless} perfectly (a level with one outcome only, say), and their priors are flat; "
            "merge or drop them, or give them a prior such as mo.priors.Normal(0, 1)."
        )


def _endless(sums: Sums, at: Curvature, flat: np.ndarray, names: tuple[str, ...]) -> str | None:
    """Return a coefficient along which the likelihood does not fall, as text, if any."""
    precision, places = _information(at)
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.diag(covariance))
    ends = np.flatnonzero(flat[places])
    ends = ends[np.argsort(-sd[ends] * _sizes(sums)[places][ends])][:LOOKED_AT]
    steps = FAR_OUT * _columns(at, places[ends]) / sd[ends][:, None]
    values = sums.values(np.concatenate([at.point + steps, at.point - steps]), "separation")
    least = at.C - values.reshape(2, -1).max(axis=0)
    worst = int(np.argmin(least))
    called = parameter_name(names, int(places[ends[worst]]))
    return f"the outcome along {called}" if least[worst] < FALL else None


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


def _sizes(sums: Sums) -> np.ndarray:
    """Return the approximate size of each entry's column; 1 for entries without one."""
    sizes = np.ones(sums.target.size)
    x = sums.rows.slice(0, min(len(sums.rows), 4096)).get("x")
    if x is not None and x.ndim == 2 and x.shape[1] <= len(sizes):
        sizes[: x.shape[1]] = np.sqrt(np.mean(np.asarray(x, np.float64) ** 2, axis=0))
    return sizes


def parameter_name(names: tuple[str, ...], i: int) -> str:
    """Return the name of the i-th parameter, or its number if it has no name."""
    return names[i] if i < len(names) else f"parameter {i}"
