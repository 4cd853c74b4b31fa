"""Tabulate the sums of remainders along the directions of rare levels, by one pass over all rows.

See `estimators.levels` for what they are. The sum of a level is evaluated with its derivative at
some distances from the anchor, and interpolated by cubics. About the anchor these are a fifteenth
of a posterior sd apart, and the error is some 1e-8.
"""

from __future__ import annotations

from functools import partial
from math import asinh

import numpy as np

from modicum.arrays import as_either
from modicum.estimators import LinearTaylor
from modicum.estimators.levels import REACH, UNIT, curve_of_rows
from modicum.estimators.remainder import coefficients, remainder_and_slope_by_numpy
from modicum.kernels.base import LevelCurves, Proxy
from modicum.models import LinearPredictorModel
from modicum.models.base import Batch
from modicum.passes import Anchor, Sums
from modicum.passes.engine import of_numpy
from modicum.passes.on_numpy import in_blocks

__all__ = ["level_curves"]

RARE = 0.1  # sd of a coefficient, given the others, times its column's largest entry
PIECES = 256  # cubics per curve
MOST = 512  # curves
SAMPLE = 256  # rows by which the largest entry of a column is judged
PLACES = asinh(REACH / UNIT) * np.linspace(-1, 1, PIECES + 1)
NODES = UNIT * np.sinh(PLACES)
PER_PIECE = UNIT * np.cosh(PLACES) * (PLACES[1] - PLACES[0])  # derivative of NODES, by pieces


def level_curves(
    sums: Sums, control_variate: LinearTaylor, proxy: Proxy, anchor: Anchor
) -> LevelCurves | None:
    """Return the curves of all columns that few rows determine; None if there are none."""
    blank = _without_table(sums, control_variate, anchor)
    if blank is None:
        return None
    sums.enter("design", 1, "gradient", passes=1)
    size = control_variate.target.size
    about = np.asarray(proxy.point)[:size], blank
    values, slopes = sums.engine.map_reduce(
        partial(_sums_by_numpy, control_variate), about, sums.rows, "design"
    )
    return blank._replace(table=as_either(_cubics(values, slopes * PER_PIECE)))


def _without_table(sums: Sums, control_variate: LinearTaylor, anchor: Anchor) -> LevelCurves | None:
    """Choose the columns, and return everything but the table of their curves.

    The rows of a level move with their mean, weighted by their curvature: its line of the Hessian.
    """
    model, size = control_variate.target.model, control_variate.target.size
    assert isinstance(model, LinearPredictorModel)
    if size == model.intercept:
        return None  # there is no column
    L, B = anchor.dense_factor, anchor.dense_hessian[:size]
    inverse = np.linalg.inv(L)
    scale = 1 / np.linalg.norm(inverse[:, :size], axis=0)
    extent = scale * _largest_entries(sums, control_variate)
    if model.intercept:
        extent[-1] = 0.0  # all rows have it
    rare = np.flatnonzero(extent > RARE)
    mean = B[rare] @ L
    length = np.linalg.norm(mean, axis=1)
    rare, mean, length = (each[length > 0] for each in (rare, mean, length))
    if not len(rare):
        return None
    first = np.sort(np.argsort(-extent[rare], kind="stable")[:MOST])
    rare, direction = rare[first], (mean / length[:, None])[first]
    place = np.zeros(size, np.int32)
    place[rare] = np.arange(len(rare))
    scale = np.where(np.isin(np.arange(size), rare), scale, 0.0)
    probe, lines = direction @ inverse[:, :size], direction @ L[:size].T
    arrays = scale, place, direction, probe, lines, np.zeros((len(rare), PIECES, 4))
    return LevelCurves(*map(as_either, arrays))


def _largest_entries(sums: Sums, control_variate: LinearTaylor) -> np.ndarray:
    """Return the largest absolute entry of each column in a sample of rows; 1 if all are zero."""
    rows = sums.rows
    at = np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(int))
    largest = np.abs(np.asarray(control_variate.matrix(rows.take(at)).densely())).max(axis=0)
    return np.where(largest > 0, largest, 1.0)


def _cubics(values: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return the coefficients of the cubics through values and slopes; a piece has length one."""
    left, right, rise = slopes[:, :-1], slopes[:, 1:], np.diff(values, axis=1)
    return np.stack([values[:, :-1], left, 3 * rise - 2 * left - right, left + right - 2 * rise], 2)


@of_numpy
def _sums_by_numpy(
    control_variate: LinearTaylor,
    about: tuple[np.ndarray, LevelCurves],
    batch: Batch,
    present: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Sum remainders along the directions of levels, and their slopes; (curves, nodes)."""
    point, levels = about
    values = np.zeros((len(levels.lines), len(NODES)))
    slopes = np.zeros_like(values)
    with np.errstate(all="ignore"):
        for block in in_blocks(batch, present):
            curve, has_level = map(np.asarray, curve_of_rows(control_variate.matrix(block), levels))
            if has_level.any():
                own, curve = {name: v[has_level] for name, v in block.items()}, curve[has_level]
                x = control_variate.matrix(own)
                along = np.asarray(x.times_own(levels.lines, as_either(curve)))
                value, slope = _remainders(control_variate, point, own, along)
                np.add.at(values, curve, value)
                np.add.at(slopes, curve, slope)
    return values, slopes


def _remainders(
    control_variate: LinearTaylor, point: np.ndarray, rows: Batch, along: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return remainders and slopes of rows at all nodes, (rows, nodes)."""
    model = control_variate.target.model
    assert isinstance(model, LinearPredictorModel)
    eta = control_variate.matrix(rows) @ as_either(point) + rows.get("offset", 0.0)
    y = as_either(np.asarray(model.outcome(rows), np.float64))
    repeated = [np.repeat(part, len(NODES), axis=0) for part in (eta, y)]
    taylor = np.repeat(coefficients(model, eta, y), len(NODES), axis=1)
    e = (along[:, None] * NODES).ravel()
    value, slope = remainder_and_slope_by_numpy(
        model, control_variate.order, *map(as_either, (e, *repeated, taylor))
    )
    weight = np.reshape(np.asarray(rows.get("weight", 1.0), np.float64), (-1, 1))
    shape = len(along), len(NODES)
    return weight * value.reshape(shape), (weight * along[:, None]) * slope.reshape(shape)
