"""Control variates along the directions of rare levels.

A rare level of a factor has few rows, so its coefficient varies a lot, and the quadratic expansions
of all its rows are poor at the same draws. But the predictors of these rows move together. Along
the direction in which they do, the remainder of a row's expansion is subtracted from its residual,
and the sum of these remainders over all rows, a function of one number per level, is added to the
proxy: `methods.ecs.level_curves` tabulates it. What is left to estimate is how the rows of a level
differ, some hundred times less.

A row belongs to the column with the largest |x_j| s_j, with s_j the sd of the coefficient given all
others, unless that is small. The pass over all rows and the kernels must agree on the column, for
every row. So it depends on one product in float64 per entry, which all compilers round alike.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import namespace
from modicum.kernels.base import LevelCurves
from modicum.models.matrix import ModelMatrix

NEAR = 0.03  # |x_j| s_j up to which a row belongs to no level: its residual is negligible


def curve_of_rows(x: ModelMatrix, levels: LevelCurves) -> tuple[jax.Array, jax.Array]:
    """Return the curve of each row's level, and whether it belongs to a level at all."""
    column, entry = x.largest(levels.scale)
    xp = namespace(entry)
    has_level = xp.abs(entry) * xp.asarray(levels.scale)[column] > NEAR
    return xp.asarray(levels.place)[column], has_level


def rows_along_levels(x: ModelMatrix, levels: LevelCurves) -> tuple[jax.Array, jax.Array]:
    """Return the curve of each row's level, and the row's part along its direction; 0 if none."""
    curve, has_level = curve_of_rows(x, levels)
    along = x.times_own(levels.lines, curve)
    return curve, namespace(along).where(has_level, along, 0.0)


def along_levels(z: jax.Array, levels: LevelCurves) -> jax.Array:
    """Return how far z is from the anchor along each direction, up to the curves' ends.

    The last axis of z, whitened coordinates, becomes one for curves.
    """
    away = z @ levels.direction.T
    return namespace(away).clip(away, *levels.ends)


def curve_sum(z: jax.Array, levels: LevelCurves) -> jax.Array:
    """Return the sum over all rows of the remainders along the directions of their levels."""
    away = along_levels(z, levels)
    xp, (number, pieces, terms) = namespace(away), levels.table.shape
    place = (xp.arcsinh(away / levels.unit) / levels.half + 1) * (pieces / 2)
    piece = xp.clip(xp.floor(place), 0, pieces - 1).astype(np.intp if xp is np else jnp.int32)
    polynomials = xp.asarray(levels.table)[xp.arange(number), piece]
    within = place - piece
    value = polynomials[..., -1]
    for power in reversed(range(terms - 1)):
        value = value * within + polynomials[..., power]
    return xp.sum(value, axis=-1)
