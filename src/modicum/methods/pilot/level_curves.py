"""Tabulate the sums of remainders along the directions of rare levels, by one pass over all rows.

See `control_variates` for what they are. The sum of a level is evaluated with two derivatives at
some distances from the anchor, and interpolated by polynomials of degree five. A log-likelihood
that falls like -exp(eta) is one only over short distances: of eta, not of posterior sds, which for
a level without counts may be a hundred units of eta. So nodes are about half a unit apart where the
likelihood of a level falls off, and farther apart only where it is straight, or past recovery.
"""

from __future__ import annotations

from functools import partial
from math import isfinite, pi

import numpy as np

from modicum.arrays import as_either
from modicum.kernels.control_variates import LinearTaylor, curve_of_rows
from modicum.kernels.expansion import About, remainder_by_numpy
from modicum.kernels.protocols import LevelCurves, Proxy
from modicum.methods.weights import expanded_rows
from modicum.models.model import Batch
from modicum.passes import Anchor, Sums
from modicum.passes.engine import of_numpy
from modicum.passes.hessians import in_blocks

# sd of a coefficient, given the others, times its column's largest entry, in eta's unit
RARE = 0.1
PIECES = 256  # per curve
MOST = 512  # curves
SAMPLE = 256  # rows by which the largest entry of a column is judged
# Posterior sds from the anchor that curves cover: without events, a level's tail is long. Curves
# end before that where a sum is so large that the density is zero (the likelihood falls like
# -exp(eta)) and polynomials in double precision are no use.
REACH, DEEPEST = 60.0, 1e10
# Distance, in units of eta, up to which pieces are about equally long: beyond the point where the
# rows of a level without counts begin to expect one, even with priors of sd 1,000. All pieces have
# equal lengths in asinh(distance / unit).
EVEN = 8.0


def level_curves(
    sums: Sums, control_variate: LinearTaylor, proxy: Proxy, anchor: Anchor
) -> LevelCurves | None:
    """Return the curves of all columns that few rows determine; None if there are none."""
    blank = _without_table(sums, control_variate, anchor)
    if blank is None:
        return None
    sums.enter("design", 1, "gradient", passes=1)
    size = control_variate.target.size
    about = np.asarray(proxy.where.point)[:size], blank
    tallies = sums.engine.map_reduce(
        partial(_sums_by_numpy, control_variate), about, sums.rows, "design"
    )
    nodes = _nodes(blank)
    return blank._replace(
        ends=as_either(_ends(tallies[0], nodes)), table=as_either(_quintics(tallies, blank))
    )


def _places(levels: LevelCurves) -> np.ndarray:
    """Return asinh(distance / unit) at the nodes, (curves, nodes)."""
    return np.asarray(levels.half)[:, None] * np.linspace(-1, 1, PIECES + 1)


def _nodes(levels: LevelCurves) -> np.ndarray:
    """Return the distances from the anchor at which sums are evaluated, (curves, nodes)."""
    return np.asarray(levels.unit)[:, None] * np.sinh(_places(levels))


def _ends(sums: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Return the farthest nodes on both sides up to which all sums are usable, (2, curves)."""
    usable = np.abs(np.nan_to_num(sums, nan=np.inf)) <= DEEPEST
    middle, curves = PIECES // 2, np.arange(len(sums))
    above = np.cumprod(usable[:, middle:], axis=1).sum(axis=1) - 1
    below = np.cumprod(usable[:, middle::-1], axis=1).sum(axis=1) - 1
    return np.stack([nodes[curves, middle - below], nodes[curves, middle + above]])


def _without_table(sums: Sums, control_variate: LinearTaylor, anchor: Anchor) -> LevelCurves | None:
    """Choose the columns, and return everything but the table of their curves.

    The rows of a level move with their mean, weighted by their curvature: its line of the Hessian.
    """
    model, size = control_variate.model, control_variate.target.size
    natural = model.series_radius() / pi  # unit of eta
    if size == model.intercept or not isfinite(natural):
        return None  # there is no column, or no remainder
    L, B = anchor.dense_factor, anchor.dense_hessian[:size]
    inverse = np.linalg.inv(L)
    scale = 1 / (natural * np.linalg.norm(inverse[:, :size], axis=0))
    largest = _largest_entries(sums, control_variate)
    extent = scale * largest
    if model.intercept:
        extent[-1] = 0.0  # all rows have it
    rare = np.flatnonzero(extent > RARE)
    mean = B[rare] @ L
    length = np.linalg.norm(mean, axis=1)
    rare, mean, length = (each[length > 0] for each in (rare, mean, length))
    if not len(rare):
        return None
    first = np.sort(np.argsort(-extent[rare], kind="stable")[:MOST])
    rare, mean, length = (each[first] for each in (rare, mean, length))
    direction = mean / length[:, None]
    # of the predictor of a level's mean row, with the column's largest entry
    sd = length / np.abs(B[rare, rare]) * largest[rare]
    unit = EVEN * natural / sd
    place = np.zeros(size, np.int32)
    place[rare] = np.arange(len(rare))
    scale = np.where(np.isin(np.arange(size), rare), scale, 0.0)
    probe, lines = direction @ inverse[:, :size], direction @ L[:size].T
    ends, table = np.zeros((2, len(rare))), np.zeros((len(rare), PIECES, 6))
    arrays = scale, place, direction, probe, lines, unit, np.arcsinh(REACH / unit), ends, table
    return LevelCurves(*map(as_either, arrays))


def _largest_entries(sums: Sums, control_variate: LinearTaylor) -> np.ndarray:
    """Return the largest absolute entry of each column in a sample of rows; 1 if all are zero."""
    rows = sums.rows
    at = np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(int))
    largest = np.abs(np.asarray(control_variate.matrix(rows.take(at)).densely())).max(axis=0)
    return np.where(largest > 0, largest, 1.0)


def _quintics(sums: np.ndarray, levels: LevelCurves) -> np.ndarray:
    """Return polynomials with the sums and derivatives at both ends of every piece."""
    places = _places(levels)
    step = places[:, 1:2] - places[:, :1]
    unit = np.asarray(levels.unit)[:, None]
    per_piece, bent = unit * np.cosh(places) * step, unit * np.sinh(places) * step**2
    with np.errstate(all="ignore"):  # beyond the ends of curves
        value = np.nan_to_num(sums[0])
        slope = np.nan_to_num(sums[1] * per_piece)
        bend = np.nan_to_num(sums[2] * per_piece**2 + sums[1] * bent)
        rise = np.diff(value, axis=1)
        (a, b), (c, d) = ((each[:, :-1], each[:, 1:]) for each in (slope, bend))
        above = (
            10 * rise - 6 * a - 4 * b - 1.5 * c + 0.5 * d,
            -15 * rise + 8 * a + 7 * b + 1.5 * c - d,
            6 * rise - 3 * a - 3 * b - 0.5 * c + 0.5 * d,
        )
    return np.nan_to_num(np.stack([value[:, :-1], a, 0.5 * c, *above], axis=2))


@of_numpy
def _sums_by_numpy(
    control_variate: LinearTaylor,
    about: tuple[np.ndarray, LevelCurves],
    batch: Batch,
    present: np.ndarray,
) -> np.ndarray:
    """Sum remainders along the directions of levels, and two derivatives; (3, curves, nodes)."""
    point, levels = about
    nodes = _nodes(levels)
    total = np.zeros((3, *nodes.shape))
    for block in in_blocks(batch, present):
        curve, has_level = map(np.asarray, curve_of_rows(control_variate.matrix(block), levels))
        if has_level.any():
            own, curve = {name: v[has_level] for name, v in block.items()}, curve[has_level]
            x = control_variate.matrix(own)
            along = np.asarray(x.times_own(levels.lines, as_either(curve)))
            parts = _remainders(control_variate, point, own, along, nodes[curve])
            for part, of_rows in zip(total, parts, strict=True):
                np.add.at(part, curve, of_rows)
    return total


def _remainders(
    control_variate: LinearTaylor,
    point: np.ndarray,
    rows: Batch,
    along: np.ndarray,
    nodes: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Return remainders and two derivatives of rows at the nodes of their curves."""
    _, eta, y, taylor = expanded_rows(control_variate, point, rows)
    repeat = partial(np.repeat, repeats=nodes.shape[1])
    repeated = repeat(eta, axis=0), repeat(y, axis=0), repeat(taylor, axis=1)
    e = as_either((along[:, None] * nodes).ravel())
    about = About(*map(as_either, repeated))
    derivatives = remainder_by_numpy(control_variate.model, control_variate.order, e, about)
    weight = np.reshape(np.asarray(rows.get("weight", 1.0), np.float64), (-1, 1))
    return tuple(
        weight * along[:, None] ** j * each.reshape(nodes.shape)
        for j, each in enumerate(derivatives)
    )
