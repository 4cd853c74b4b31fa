"""Explanations why no mode was found: what is not finite, at which row, and what to do."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import NoNoiseError
from modicum.models import IntegratedEffects, LinearPredictorModel, Target
from modicum.models.arrow import ArrowCholesky, ArrowMatrix, all_finite
from modicum.models.base import Batch
from modicum.models.families.real import ScaleFamily
from modicum.passes.curvature import Curvature
from modicum.passes.sums import Sums
from modicum.rows import Rows, first_not_finite
from modicum.rows.groups import GroupedRows
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
    part = "likelihood" if not all_finite(at.B) else "prior"
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


def _is_concave(at: Curvature) -> bool:
    """Whether the precision is positive definite."""
    if isinstance(at.precision, ArrowMatrix):
        return not ArrowCholesky.mending(at.precision).mended
    return bool(np.linalg.eigvalsh(at.precision)[0] > 0)


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
    model, rows = _family_and_rows(sums)
    if not isinstance(model, ScaleFamily) or model.scale is not None:
        return
    scale = float(np.exp(sums.target.unravel(point)["log_scale"]))
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
    model, rows = _family_and_rows(sums)
    if not isinstance(model, ScaleFamily):
        return False
    first = rows.slice(0, min(len(rows), FIRST_ROWS))
    return _spread(first) < REMOTE * float(np.max(np.abs(first["y"])))


def _family_and_rows(sums: Sums) -> tuple[object, Rows]:
    """Return the model of a single row, and the rows, also if effects are integrated out."""
    model, rows = sums.target.model, sums.rows
    if isinstance(model, IntegratedEffects):
        model = model.family
    return model, rows.members if isinstance(rows, GroupedRows) else rows


def _spread(rows: Batch) -> float:
    """Return the standard deviation of outcomes, less their offset."""
    y = np.asarray(rows["y"], float) - np.asarray(rows.get("offset", 0.0), float)
    return float(np.std(y))


def _least_squares(model: LinearPredictorModel, rows: Batch, y: np.ndarray) -> float:
    """Return the root mean square residual of `y` from the best linear predictor."""
    columns = model.matrix(rows)
    x = np.asarray((columns.with_ones() if model.intercept else columns).densely(), float)
    if x.shape[1] > LEAST_SQUARES:
        return np.inf
    y = y - np.asarray(rows.get("offset", 0.0), float)
    return float(np.sqrt(np.mean((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2)))
