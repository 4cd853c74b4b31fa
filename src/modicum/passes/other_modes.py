"""Other modes of the posterior: dispersed starts on a few rows, Laplace weights on all rows.

Nothing is assumed about a user-defined log-posterior. After the first mode, the search starts again
from dispersed points: where two common symmetries of models would put another mode (all signs
changed, all components in the opposite order), draws from the prior, points about `init` at unit
scale, and points several standard deviations from the mode. From each, L-BFGS climbs on about a
thousand rows, reweighted to represent all. If every climb ends at the first mode, the search is
over. Otherwise Newton's method on all rows refines the other end points to modes, whose weights are
about exp(log posterior) det(precision)^(-1/2) (Laplace).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from modicum.errors import ConvergenceError, ModicumWarning, listed
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.passes.curvature import Curvature, parameter_name, prior_slope
from modicum.passes.engine import BLOCK, LocalEngine, chunk_rows
from modicum.passes.mode import ascend, quasi_newton
from modicum.passes.sums import Sums, log_likelihoods
from modicum.random import Stream, generator
from modicum.runtime import in_double_precision

ITERATIONS = 100
SMALL_SLOPE = 1e-3  # in whitened coordinates: standard deviations from a mode
BEYOND = 1e10  # a log-posterior that is not finite counts as one so far below the start
APART = 3.0  # posterior standard deviations between distinct modes
NEGLIGIBLE = 0.01  # share of the posterior below which a mode is ignored
MOST = 4  # maximum number of other modes refined on all rows
GAP = 30.0  # difference in log-posterior from the first mode at which another is negligible


class Starts(NamedTuple):
    """Starting points of the search for modes, besides the first start."""

    points: tuple[np.ndarray, ...] = ()  # from the user
    dispersed: int = 1  # number of dispersed starts, including the first start

    @property
    def more_than_first(self) -> bool:
        """Whether there are further starts."""
        return bool(self.points) or self.dispersed > 1


@dataclass(frozen=True)
class Modes:
    """The modes that are not negligible, the heaviest first.

    Attributes
    ----------
    points
        (modes, d).
    weights
        Shares of the posterior by Laplace's approximation, which sum to 1.
    factors
        L of each, with L L' the inverse of its precision: (modes, d, d).
    """

    points: np.ndarray
    weights: np.ndarray
    factors: np.ndarray

    def __len__(self) -> int:
        return len(self.weights)

    def chains_at(self, chains: int) -> np.ndarray:
        """Return the mode at which each chain starts: all modes, the heavier ones more often."""
        share = self.weights * chains
        count = np.maximum(np.floor(share), 1).astype(int)
        for k in np.argsort(np.floor(share) - share, kind="stable"):  # largest remainder first
            count[k] += int(count.sum() < chains)
        while count.sum() > max(chains, len(self)):  # small shares were rounded up
            count[np.argmax(count)] -= 1
        return np.repeat(np.arange(len(self)), count)[:chains]

    def apart(self, position: np.ndarray) -> bool:
        """Whether every chain of `position`, (chain, draw, d), stayed nearest to one mode.

        Distances are in standard deviations of each mode.
        """
        flat = position.reshape(-1, position.shape[-1])
        modes = zip(self.points, self.factors, strict=True)
        away = [np.linalg.solve(factor, (flat - point).T) for point, factor in modes]
        distances = np.stack([np.sum(z**2, axis=0) for z in away])
        nearest = np.argmin(distances, axis=0).reshape(position.shape[:2])
        return bool(np.all(nearest == nearest[:, :1]))

    def text(self, chains: int) -> str:
        """Describe the number of modes, their weights, and the chains that start at each."""
        shares = ", ".join(f"{weight:.0%}" for weight in self.weights)
        at = np.bincount(self.chains_at(chains), minlength=len(self))
        return (
            f"{len(self)} modes, with {shares} of the posterior by Laplace's approximation; "
            f"{', '.join(map(str, at))} chains start there"
        )

    @listed
    def unvisited_warnings(self, visited: int, names: tuple[str, ...]) -> Iterator[ModicumWarning]:
        """Warn if no chain starts at the modes after the first `visited`."""
        unvisited = self.weights[visited:]
        if not len(unvisited):
            return
        difference = self.points[visited] - self.points[0]
        sd = np.sqrt(np.sum(self.factors[0] ** 2, axis=1))
        order = np.argsort(-np.abs(difference) / sd, kind="stable")[:3]
        far = [i for i in order if abs(difference[i]) > APART / 2 * sd[i]] or order[:1]
        where = ", ".join(
            f"{parameter_name(names, int(i))} = {self.points[visited][i]:.3g} "
            f"instead of {self.points[0][i]:.3g}"
            for i in far
        )
        others = (
            "another mode" if len(unvisited) == 1 else f"{len(unvisited)} other modes, one of them"
        )
        yield ModicumWarning(
            "other-modes",
            f"the posterior has {others} at {where}, with about {unvisited.sum():.0%} of its "
            "probability by Laplace's approximation, and no chain starts there",
            "use method='nuts' with at least as many chains as modes, whose R-hat then shows "
            "whether they move between modes, or change the model to have a single mode: order "
            "the components, fix a sign, or give a prior that tells the modes apart",
            weight=float(unvisited.sum()),
            modes=len(self),
        )


@in_double_precision
def find_modes(
    sums: Sums, first: Curvature, init: np.ndarray, starts: Starts, within: float, seed: int = 0
) -> tuple[list[Curvature], Modes]:
    """Find the modes that are not negligible, heaviest first; `first` may be the only one."""
    sample = _RowSample.of(sums, first, seed)
    others = sample.other_ends(
        [*starts.points, *_dispersed(sums.target, first, init, starts.dispersed, seed)]
    )
    sums.ledger.add("other modes", sample.sums.ledger.evaluations, "gradient")
    modes = [first]
    for point in others:
        at = _mode_of_all_rows(sums, point, within)
        if at is not None and all(_apart(at, mode) for mode in modes):
            modes.append(at)
    # Laplace weights; points with a weight below 1%, or that are no maxima, are dropped
    logs = []
    for at in modes:
        factor, mended = at.whitening
        half_log_det = float(np.linalg.slogdet(factor)[1])
        logs.append(-np.inf if mended and len(modes) > 1 else at.log_posterior + half_log_det)
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    # Rounding keeps the first mode first among equals.
    order = [int(k) for k in np.argsort(-np.round(weights, 3), kind="stable")]
    ranked = [k for k in order if weights[k] > NEGLIGIBLE]
    share = weights[ranked] / weights[ranked].sum()
    kept = [modes[k] for k in ranked]
    points, factors = [at.point for at in kept], [at.whitening[0] for at in kept]
    return kept, Modes(np.stack(points), share, np.stack(factors))


def _mode_of_all_rows(sums: Sums, point: np.ndarray, within: float) -> Curvature | None:
    try:
        at, _ = ascend(sums, point, "other modes", within)
    except ConvergenceError:
        return None
    return at if at.concave and at.gradient_norm < within else None


def _apart(at: Curvature, mode: Curvature) -> bool:
    """Whether two points are several standard deviations apart, by the curvature at either."""
    away = at.point - mode.point
    return all(np.linalg.norm(np.linalg.solve(k.whitening[0], away)) > APART for k in (at, mode))


def _dispersed(
    target: Target, first: Curvature, init: np.ndarray, count: int, seed: int
) -> Iterator[np.ndarray]:
    """Yield `count` - 1 starting points; a larger count yields the same points first."""
    rng, size = generator(seed, Stream.MODE_STARTS), len(init)
    at, (factor, _) = first.point, first.whitening
    mirrored = [-at, *_reversed(target, at)]

    def from_the_prior() -> np.ndarray:
        """Draw from the prior's normal approximation, if the prior is concave."""
        noise = rng.standard_normal(size)
        try:
            lower = cholesky(-first.prior_hessian, lower=True)
        except (np.linalg.LinAlgError, ValueError):  # flat, or not concave here
            return at + noise * (1 + np.abs(at))
        centre = at + solve_triangular(
            lower.T, solve_triangular(lower, first.prior_gradient, lower=True)
        )
        return np.asarray(centre + solve_triangular(lower.T, noise))

    def about_init() -> np.ndarray:
        return init + rng.standard_normal(size)

    def about_the_mode() -> np.ndarray:
        return at + rng.uniform(3, 10) * (factor @ rng.standard_normal(size))

    random_starts = (kind() for kind in cycle((from_the_prior, about_init, about_the_mode)))
    yield from islice(chain(mirrored, random_starts), count - 1)


def _reversed(target: Target, t: np.ndarray) -> list[np.ndarray]:
    """Reverse the order of components: each array of parameters along its first axis."""
    parts, first = [], 0
    for shape in target.shapes:
        stop = first + int(np.prod(shape))
        leaf = t[first:stop].reshape(shape)
        parts.append(np.ravel(leaf[::-1] if leaf.ndim else leaf))
        first = stop
    opposite = np.concatenate(parts)
    return [] if np.array_equal(opposite, t) else [opposite]


@dataclass(frozen=True)
class _RowSample:
    """About a thousand rows that represent all, and L-BFGS on them."""

    sums: Sums
    times: float  # rows that each of the sample represents
    centre: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, sums: Sums, first: Curvature, seed: int) -> _RowSample:
        """Draw rows; if there are few, take all, in a shape that is already compiled."""
        n, size = len(sums.rows), BLOCK * max(1, -(-4 * sums.target.size // BLOCK))
        # with its own ledger, as these are no passes
        sample = Sums(sums.target, sums.rows, LocalEngine(1, progressbar=False), Ledger(n))
        if n > 2 * size or chunk_rows(sums.rows) < n:
            sample = sample.of_some(generator(seed, Stream.MODE_ROWS), min(size, n))
        return cls(sample, n / len(sample.rows), first.point, first.whitening[0])

    def distance(self, a: np.ndarray, b: np.ndarray) -> float:
        """Return the distance of two points, in standard deviations at the first mode."""
        return float(np.linalg.norm(np.linalg.solve(self.factor, a - b)))

    def other_ends(self, starts: list[np.ndarray]) -> list[np.ndarray]:
        """Climb from all starts; return ends that are not the first mode nor negligible."""
        # On a sample of the rows the first mode is at a slightly different point.
        ends = [self.centre if self.times == 1 else self.climb(self.centre)]
        for start in starts:
            end = self.climb(start)
            if end is not None and all(
                self.distance(end, k) > APART for k in ends if k is not None
            ):
                ends.append(end)
        # those worth following, by the rise of the log-posterior and its error
        points = [end for end in ends[1:] if end is not None]
        if not points:
            return []
        target, rows = self.sums.target, self.sums.rows
        weight = self.times * rows.slice(0, len(rows)).get("weight", 1.0)
        at = np.stack([self.centre, *points])
        values = [*log_likelihoods(target, rows, np.arange(len(rows)), at)]
        first, *others = weight * np.concatenate(values, axis=1)
        prior = prior_slope(target, self.centre)[0]
        gaps = []
        for point, value in zip(points, others, strict=True):
            rise = value - first
            error = 0.0 if self.times == 1 else float(np.std(rise)) * np.sqrt(len(rise))
            gaps.append(rise.sum() + prior_slope(target, point)[0] - prior + 4 * error)
        least = -(GAP + 2 * len(self.centre))
        order = [k for k in np.argsort(-np.array(gaps)) if gaps[k] > least]
        return [points[k] for k in order[:MOST]]

    def climb(self, start: np.ndarray) -> np.ndarray | None:
        """Run L-BFGS from `start` in whitened coordinates; None if the start is not finite."""
        before, _ = self._log_posterior(start)
        if not np.isfinite(before):
            return None

        def rise(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self._log_posterior(self.centre + self.factor @ z)
            with np.errstate(all="ignore"):  # far out a gradient may not be finite
                slope = self.factor.T @ gradient
            if not np.isfinite(value) or not np.all(np.isfinite(slope)):
                return -BEYOND, np.zeros(len(z))  # the line search turns back
            return value - before, slope

        z = np.linalg.solve(self.factor, start - self.centre)
        end = quasi_newton(rise, z, maxiter=ITERATIONS, gtol=SMALL_SLOPE, ftol=1e-13)
        return np.asarray(self.centre + self.factor @ end)

    def _log_posterior(self, t: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self.sums.gradient(t, "other modes")
        prior, prior_gradient = prior_slope(self.sums.target, t)
        return self.times * value + prior, self.times * gradient + prior_gradient
