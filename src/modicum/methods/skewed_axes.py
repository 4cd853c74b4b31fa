"""Find the axes along which a posterior is far from normal, and its quantiles along them.

Candidates are, first, the directions L'e_j in which one parameter moves and all others follow, by
the normal approximation at the mode; the coefficient of a level with few events, or none, is a
typical case. If columns are collinear, the linear predictor of such a level's rows is better known
than any coefficient, so that L'x with the level's mean row x is a candidate too; sums over a
level's rows are available as rows B e_j of the log-likelihood's Hessian B. Finally, in tables with
heavy-tailed columns, single rows far from all others cut the posterior off along L'x.

An axis is skewed if the log-posterior two standard deviations away differs from that of a normal
distribution. The posterior along it is then computed on a grid, by density evaluations alone. The
resulting curves (`modicum.kernels.whitening`) serve as coordinates for NUTS and HMC, and as
proposals for weighted draws.

A little skewness along each of many axes adds up too, and moves the mean of the posterior away from
its mode. To third order the log-posterior is -|u|^2 / 2 + sum_jkl T_jkl u_j u_k u_l / 6 about the
mode, of which no evaluation is needed beyond the weights of normal draws: regressed on u_j and on
the Hermite polynomials (u_j^3 - 3 u_j) / 6, their logarithms have the coefficients sum_k T_jkk / 2,
which is how far the mean is from the mode, and T_jjj, the third moment (Stein). That of
(u_j^2 - 1) / 2 says how much less curved the log-posterior is on average than at the mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from modicum.arrays import as_either
from modicum.kernels.whitening import FIRST, NODES, STEP, Curves
from modicum.methods.method import Chosen, Task, Tuning
from modicum.passes import Anchor
from modicum.passes.engine import chunk_bounds
from modicum.random import Stream, generator
from modicum.runtime import in_equal_blocks

LogPosterior = Callable[[np.ndarray], np.ndarray]  # of points (S, d) in whitened coordinates

TOGETHER = 64  # points that a pass over all rows evaluates
NORMAL = 0.5  # sd of log posterior / normal approximation below which there is no search
AWAY = 2.0  # distance, in standard deviations, at which axes are tested
SKEWED = 0.5  # largest deviation there from the -AWAY^2 / 2 of a normal distribution
WALL = 10.0  # deviation above which an axis ends in a wall
ROWS = 256  # most rows that are candidates
MOST = 64  # most axes
APART = 0.3  # smallest part of a candidate's unit vector orthogonal to the other axes
SWEEPS = 2  # the first with the other axes at the mode, the next with these at their medians
DEEP = 25.0  # how far below its maximum the log-posterior is followed; Phi(-6) is e^-21
STEEP = 5.0  # fall of the log-posterior between neighbouring places that marks a wall
DOUBLINGS = 9  # of half a standard deviation, until the log-posterior is that low
GRID, COARSE = 129, 41  # points of the grid: for proposals, and for coordinates alone
FINE = 2_001  # points of the interpolated density
CLIPPED, DRAWS_EACH = 0.01, 3  # share of draws in each tail that counts less; draws per number
LIGHT = 8.0  # below the log-weights of the heaviest draws
FAINT = 1e-9  # relative to the number of draws, what a column that does not vary is held by
MOST_BENT = 0.5  # a third moment of 1.5


def skewed_axes(
    log_posterior: LogPosterior,
    centre: np.ndarray,
    anchor: Anchor,
    rows: Iterable[np.ndarray] = (),
    grid: int = GRID,
    finer_at_walls: bool = False,
) -> Curves | None:
    """Return the axes along which a posterior is skewed, with its quantiles; None if none is.

    Parameters
    ----------
    log_posterior
        Log-posterior of points in whitened coordinates, up to a constant.
    centre
        The mode in whitened coordinates.
    anchor
        The anchor at the mode.
    rows
        L'x of rows, (rows, d), some at a time, the longest of which are candidates.
    grid
        Points at which the posterior along an axis is evaluated, twice.
    finer_at_walls
        Whether half of them lie, the second time, where the log-posterior falls steeply. Otherwise
        a curve has a wall up to a step too early or late for chains that move along it.
    """
    axes = _axes(log_posterior, centre, _candidates(anchor, rows))
    if axes is None:
        return None
    count = axes.shape[1]
    medians = np.zeros(count)

    def along(places: np.ndarray) -> np.ndarray:
        others = np.tile(medians, (count, 1))
        np.fill_diagonal(others, 0.0)
        points = (centre + others @ axes.T)[:, None] + places[:, :, None] * axes.T[:, None]
        return log_posterior(points.reshape(-1, len(centre))).reshape(places.shape)

    for _ in range(SWEEPS):
        quantiles = _quantiles(along, count, grid, finer_at_walls)
        with_quantiles = [k for k, q in enumerate(quantiles) if q is not None]
        if not with_quantiles:
            return None
        medians = np.array([0.0 if q is None else q[NODES // 2] for q in quantiles])
    kept = [q for q in quantiles if q is not None]
    return Curves(axes[:, with_quantiles], np.stack([_pieces(q) for q in kept]))  # type: ignore[arg-type]


def skewed_places(
    log_posterior: LogPosterior, centre: np.ndarray, anchor: Anchor, places: np.ndarray
) -> list[int]:
    """Return those of some parameters in which the posterior is skewed, most skewed first."""
    along = anchor.dense_factor[places]
    along = along / np.sqrt(np.sum(along**2, axis=1, keepdims=True))
    off = _deviations(log_posterior, centre, along)
    order = np.argsort(-off, kind="stable")
    return [int(k) for k in places[order][off[order] > SKEWED]]


def may_be_curved(task: Task, anchor: Anchor) -> bool:
    """Whether skewed axes can be found: a linear predictor and one mode."""
    model = task.target.model
    return (
        (model.has_predictors or task.grouped)
        and model.has_mode
        and isinstance(anchor.factor, np.ndarray)
        and anchor.factor.ndim == 2
        and (anchor.modes is None or len(anchor.modes) == 1)
        and not any(note.code == "not-concave" for note in anchor.notes)
    )


def curves_on_all_rows(task: Task) -> Curves | None:
    """Find skewed axes by passes over all rows, if draws of the normal approximation give cause."""
    anchor, target = task.anchor_at_mode(), task.target
    if task.grouped or target.likelihood.size != target.size or not may_be_curved(task, anchor):
        return None

    def log_posterior(z: np.ndarray) -> np.ndarray:
        def evaluate(t: np.ndarray) -> np.ndarray:
            return np.asarray(task.sums.values(t, "skewness") + task.target.log_priors(t))

        return in_equal_blocks(evaluate, anchor.point + z @ anchor.dense_factor.T, TOGETHER)

    def find() -> Curves | None:
        z = generator(task.seed, Stream.SKEWNESS).standard_normal((TOGETHER, len(anchor.point)))
        ratios = log_posterior(z) + 0.5 * np.sum(z**2, axis=1)
        if np.std(ratios) < NORMAL:  # not if NaN, which is far from normal as well
            return None
        rows = _whitened_rows(task, anchor)
        return skewed_axes(log_posterior, 0 * z[0], anchor, rows, COARSE)

    return task.remember("curves", Curves | None, find)


class AxisMoments(NamedTuple):
    """Mean, sd and third moment of a density along every axis, whose normal numbers u are bent.

    The map from u, expm1(b u) / b but for a constant, increases everywhere: u + b u^2 / 2 + ...
    """

    mean: np.ndarray
    sd: np.ndarray
    bend: np.ndarray  # b, a third of the third moments
    passes: int = 0  # over draws, from which these were learned

    @classmethod
    def at_mode(cls, size: int) -> AxisMoments:
        """Return those of the normal approximation at the mode."""
        return cls(np.zeros(size), np.ones(size), np.zeros(size))

    def along(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map u, of shape (..., d), to z; return z and the log Jacobian."""
        from scipy.special import exprel  # few runs need it

        bent = u * exprel(self.bend * u) - self.bend / 2
        return self.mean + self.sd * bent, u @ self.bend + np.sum(np.log(self.sd))

    def followed(self, u: np.ndarray, log_ratio: np.ndarray) -> AxisMoments | None:
        """Return what is closer to the posterior, given log-weights of draws of u, (draws, d).

        None if most draws have no weight at all.
        """
        powers = [u, (u**2 - 1) / 2, (u**3 - 3 * u) / 6]
        finite = np.isfinite(log_ratio)
        if np.mean(finite) < 0.5:
            return None
        # how light those draws are that hardly count must not decide
        high = np.quantile(log_ratio[finite], 1 - CLIPPED)
        height = np.clip(np.where(finite, log_ratio, -np.inf), high - LIGHT, high)
        slopes, left = average_slopes(height, powers) or _one_by_one(height, powers)
        # shrunk all together (James and Stein), as what some draws show may be chance
        chance = (left * np.sum(1 / np.sum(power**2, axis=0)) for power in powers)
        mean, second, third = (
            slope * max(0.0, 1 - noise / max(slope @ slope, 1e-300))
            for slope, noise in zip(slopes, chance, strict=True)
        )
        sd = self.sd / np.sqrt(np.clip(1 - second, 0.5, 2.0))
        bend = np.clip(self.bend + third / 3, -MOST_BENT, MOST_BENT)
        return AxisMoments(self.mean + self.sd * mean, sd, bend, self.passes + 1)


def _one_by_one(height: np.ndarray, powers: list[np.ndarray]) -> tuple[list[np.ndarray], float]:
    """Return what `average_slopes` does, of columns that are nearly orthogonal, of any number."""
    away = height - height.mean()
    slopes = [away @ power / np.sum(power**2, axis=0) for power in powers]
    return slopes, float(np.mean(away**2))


def average_slopes(
    log_ratio: np.ndarray, powers: list[np.ndarray]
) -> tuple[list[np.ndarray], float] | None:
    """Regress log-weights of draws on powers of their entries; return coefficients, and variance.

    The variance is that of what is left. None if the draws are too few to tell.
    """
    columns, count = np.column_stack([*powers, np.ones(len(log_ratio))]), len(log_ratio)
    finite = np.isfinite(log_ratio)
    if np.mean(finite) < 1 - 2 * CLIPPED or count < DRAWS_EACH * columns.shape[1]:
        return None
    # a few draws far out must not decide
    low, high = np.quantile(log_ratio[finite], (CLIPPED, 1 - CLIPPED))
    clipped = np.clip(np.where(finite, log_ratio, low), low, high)
    normal = columns.T @ columns
    normal[np.diag_indices(len(normal))] += FAINT * count
    found = np.linalg.solve(normal, columns.T @ clipped)
    left = np.sum((clipped - columns @ found) ** 2) / (count - len(found))
    return np.split(found[:-1], np.cumsum([part.shape[1] for part in powers])[:-1]), float(left)


def explain_curves(curves: Curves | None) -> Tuning:
    """Describe the curves for `Posterior.tuning`."""
    if curves is None:
        return {}
    why = "axes on which the posterior is far from normal; draws follow its quantiles there"
    return {"skewed axes": Chosen(value=curves.axes.shape[1], why=why)}


def _candidates(anchor: Anchor, rows: Iterable[np.ndarray]) -> np.ndarray:
    """Return candidate unit vectors in whitened coordinates, one per row."""
    L, B = anchor.dense_factor, anchor.dense_hessian
    longest = np.zeros((0, len(L)))
    for some in rows:
        longest = _longest(np.concatenate([longest, some]))
    along = np.concatenate([B @ L, L, longest])  # L'B e_j, L'e_j, and L'x
    length = np.sqrt(np.sum(along**2, axis=1, keepdims=True))
    return np.asarray((along / np.maximum(length, 1e-300))[length[:, 0] > 0])


def _longest(rows: np.ndarray) -> np.ndarray:
    """Return the rows of largest leverage."""
    return np.asarray(rows[np.argsort(-np.sum(rows**2, axis=1), kind="stable")[:ROWS]])


def _whitened_rows(task: Task, anchor: Anchor) -> Iterator[np.ndarray]:
    """Yield L'x of all rows, by a pass; nothing without a linear predictor."""
    if not task.target.likelihood.in_one_predictor:
        return
    for first, last in chunk_bounds(task.rows):
        x = task.target.linear.full_matrix(task.rows.slice(first, last)).in_double()
        yield np.asarray(x @ as_either(anchor.dense_factor))
    task.ledger.add("skewness", len(task.rows), "density")


def _axes(log_posterior: LogPosterior, centre: np.ndarray, along: np.ndarray) -> np.ndarray | None:
    """Return orthonormal axes, (d, k), along which the posterior is skewed, most skewed first."""
    off = _deviations(log_posterior, centre, along)
    axes = np.zeros((len(centre), 0))
    for j in np.argsort(-off, kind="stable"):
        if off[j] <= SKEWED or axes.shape[1] == MOST:
            break
        rest = along[j] - axes @ (along[j] @ axes)
        length = float(np.linalg.norm(rest))
        if length > APART:
            axes = np.c_[axes, rest / length]
    return axes if axes.shape[1] else None


def _deviations(log_posterior: LogPosterior, centre: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return how far the posterior is from normal two standard deviations away along unit vectors.

    Walls are capped, so that among them the earliest candidates win: they are orthogonal to one.
    """
    ends = np.concatenate([centre + AWAY * along, centre - AWAY * along])
    with np.errstate(invalid="ignore"):
        fall = log_posterior(np.concatenate([centre[None], ends]))
        off = np.abs(fall[1:] - fall[0] + AWAY**2 / 2).reshape(2, -1).max(axis=0)
    return np.where(np.isfinite(off), np.minimum(off, WALL), WALL)


def _quantiles(
    along: LogPosterior, count: int, grid: int = GRID, finer_at_walls: bool = False
) -> list[np.ndarray | None]:
    """Return quantiles along each axis at every node; `along` takes places (axes, S) on them.

    None for an axis along which the posterior does not decay within the range searched.
    """

    def below(places: np.ndarray) -> np.ndarray:
        """Return the log-posterior on each axis, less its maximum there."""
        values = along(places)
        values = np.where(np.isnan(values), -np.inf, values)
        highest = values.max(axis=1, keepdims=True)
        return values - np.where(np.isfinite(highest), highest, 0.0)

    far = 0.5 * 2.0 ** np.arange(DOUBLINGS)
    places = np.tile(np.r_[-far[::-1], 0.0, far], (count, 1))
    values = below(places)
    for spaced in (_within, _finer_at_walls if finer_at_walls else _within):
        places = np.stack([spaced(*one, grid) for one in zip(places, values, strict=True)])
        values = below(places)
    return [_inverse(*one) for one in zip(places, values, strict=True)]


def _within(places: np.ndarray, values: np.ndarray, grid: int) -> np.ndarray:
    """Return a grid that covers the places where the log-posterior is not yet low."""
    high = np.flatnonzero(values > -DEEP)
    if not len(high):
        return np.linspace(places[0], places[-1], grid)
    first, last = max(high[0] - 1, 0), min(high[-1] + 1, len(places) - 1)
    return np.linspace(places[first], places[last], grid)


def _finer_at_walls(places: np.ndarray, values: np.ndarray, grid: int) -> np.ndarray:
    """Like `_within`, with half of the places where the log-posterior falls steeply."""
    fall, higher = np.abs(np.diff(values)), np.maximum(values[1:], values[:-1])
    steep = np.flatnonzero((higher > -DEEP) & ~(fall < STEEP))[: grid // 2]
    if not len(steep):
        return _within(places, values, grid)
    # Place them inside the steep intervals, avoiding the points of the even grid.
    inside = (np.arange(grid // 2 // len(steep)) + np.sqrt(0.2)) / (grid // 2 // len(steep))
    width = places[steep + 1] - places[steep]
    further = (places[steep] + inside[:, None] * width).ravel()
    return np.sort(np.concatenate([_within(places, values, grid - len(further)), further]))


def _inverse(places: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Return F^{-1}(Phi(u)) at the nodes u, given the log-density on a grid."""
    from scipy.interpolate import PchipInterpolator
    from scipy.special import log_ndtr

    if values[0] > -DEEP / 2 or values[-1] > -DEEP / 2 or not np.isfinite(values).any():
        return None
    fine = np.linspace(places[0], places[-1], FINE)
    # Monotone pieces, since a smoother curve would overshoot next to a wall.
    log_density = PchipInterpolator(places, np.maximum(values, -4 * DEEP))(fine)
    mass = np.exp(log_density)
    cells = (mass[1:] + mass[:-1]) / 2
    below, above = np.cumsum(cells), np.cumsum(cells[::-1])
    nodes = FIRST + STEP * np.arange(NODES)
    # Work in logarithms, each half from its own side, since quantiles are needed far out.
    left = np.interp(log_ndtr(nodes), np.log(below / below[-1]), fine[1:])
    right = np.interp(log_ndtr(-nodes), np.log(above / above[-1]), fine[-2::-1])
    return np.where(nodes < 0, left, right)


def _pieces(quantiles: np.ndarray) -> np.ndarray:
    """Return the coefficients of an increasing curve through the quantiles at the nodes."""
    from scipy.interpolate import CubicSpline, PchipInterpolator

    nodes = FIRST + STEP * np.arange(NODES)
    increasing = np.maximum.accumulate(quantiles + 1e-9 * np.arange(NODES))
    smooth = CubicSpline(nodes, increasing)
    between = np.linspace(nodes[0], nodes[-1], 4 * NODES)
    if not np.all(smooth(between, 1) > 0):
        smooth = PchipInterpolator(nodes, increasing)
    return np.moveaxis(smooth.c, 0, 1)
