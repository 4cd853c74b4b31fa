"""Draws of a model with pooled terms, without a chain: scales first, coefficients given the scales.

Along each of its principal axes at the mode the marginal density p~ of the scales is tabulated, and
scales are drawn from the product of these densities. If p~ has another shape, as where any of
several smooths may explain the same wiggles, the weights of such draws under p~ tell where it has
its mass, and scales are drawn again, from kernels about them. Coefficients are drawn from their
normal distribution given the scales (`given_scales`), and a draw is weighted like any proposal.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, gamma, pi, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np

from modicum.methods.given_scales import LevelProposals, OtherProposals, Pooled
from modicum.runtime import in_threads

SHARED = 200  # scales that are drawn where a factor takes long
STEP = 0.05  # longest between points of finite differences in h, which are logarithms or alike
NEWTON_STEPS = 30
LONGEST = 1.0  # longest step of Newton's method in any scale
SHORTER = np.array([1.0, 0.5, 0.25, 0.1])[:, None]  # shares of a step that are tried
CLOSE = 0.1  # distance from the mode, in spreads of p~, that suffices
LEAST_CURVATURE = 0.05  # of log p~ along an axis of h
NODES, FEW_NODES = 33, 13  # nodes of a table along an axis, and where each takes long
REACH = 8.0  # how far a table reaches, in widths
MESH = 2_000  # pieces into which a table is interpolated
TAILS, FREEDOM = 0.1, 4  # share of a t in the proposal along each axis, and its degrees of freedom

LogDensities: TypeAlias = Callable[[np.ndarray], np.ndarray]  # of points (n, scales)


class Axis(NamedTuple):
    """The density of h along an axis, tabulated, and its widths on both sides of the mode."""

    places: np.ndarray
    density: np.ndarray
    left: float
    right: float

    @classmethod
    def of(cls, places: np.ndarray, logs: np.ndarray, left: float, right: float) -> Axis:
        """Interpolate a table of log-densities."""

        def normal(at: np.ndarray) -> np.ndarray:
            return np.asarray(-0.5 * (at / np.where(at < 0, left, right)) ** 2)

        finite = np.isfinite(logs)
        mesh = np.linspace(places[finite][0], places[finite][-1], MESH + 1)
        rest = logs[finite] - normal(places[finite])  # flatter, so that few places suffice
        values = np.interp(mesh, places[finite], rest) + normal(mesh)
        density = np.exp(values - values.max())
        return cls(mesh, density / np.trapezoid(density, mesh), left, right)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw places along the axis; return them and the log of their density."""
        steps = np.diff(self.places) * (self.density[1:] + self.density[:-1]) / 2
        share = np.append(0.0, np.cumsum(steps)) / steps.sum()
        tabled = np.interp(rng.random(count), share, self.places)
        size = np.abs(rng.standard_t(FREEDOM, count))
        is_right = rng.random(count) < self.right / (self.left + self.right)
        far = np.where(is_right, size * self.right, -size * self.left)
        s = np.where(rng.random(count) < TAILS, far, tabled)
        inside = np.interp(s, self.places, self.density, left=0.0, right=0.0)
        width = np.where(s > 0, self.right, self.left)
        tails = 2 / (self.left + self.right) * student_t(s / width, FREEDOM)
        return s, np.log((1 - TAILS) * inside + TAILS * tails)


class ScaleDensity(NamedTuple):
    """A density of the scales h that can be drawn from: a product along principal axes."""

    mode: np.ndarray
    axes: np.ndarray  # columns, in units of the spread along each
    along: tuple[Axis, ...]

    @classmethod
    def of(cls, pooled: Pooled) -> ScaleDensity:
        """Tabulate p~ along its principal axes at the mode."""
        logs_at, nodes = pooled.log_marginals, FEW_NODES if pooled.is_dear else NODES
        mode, top, axes = find_mode(logs_at, pooled.start, np.minimum(STEP, pooled.spread))
        pooled.quadratic.require_digits(mode)
        width = np.ones((2, len(mode)))  # left and right, such that log p~ falls by 2 at two widths
        sides = np.array([-1.0, 1.0])[:, None]
        for _ in range(1 if pooled.is_dear else 3):
            fall = top - logs_at(_along(mode, axes, 2 * sides * width))
            width *= np.sqrt(2 / np.clip(fall.reshape(width.shape), 0.3, 20.0))
        grid = np.linspace(-REACH, REACH, nodes)[:, None]
        places = grid * np.where(grid < 0, width[0], width[1])
        logs = logs_at(_along(mode, axes, places)).reshape(places.shape)
        along = (Axis.of(*each) for each in zip(places.T, logs.T, *width, strict=True))
        return cls(mode, axes, tuple(along))

    def of_changed(self, pooled: Pooled) -> ScaleDensity:
        """Return the density for another quadratic."""
        return ScaleDensity.of(pooled)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw scales; return them, (count, scales), and the logs of their densities."""
        drawn = [axis.draw(rng, count) for axis in self.along]
        s = np.stack([place for place, _ in drawn], axis=1)
        return self.mode + s @ self.axes.T, sum((log for _, log in drawn), np.zeros(count))


KERNELS, WIDER = 400, 1.4  # their number, and their width relative to the best for normal densities
KERNEL_FREEDOM = 6  # degrees of freedom of the t that kernels are


class ScaleKernels(NamedTuple):
    """A density of the scales h that can be drawn from: a t about each of some points.

    As sds approach 0 the density of their logarithms falls no faster than the sds, farther than
    kernels reach, whereas that of the sds is flat: their coordinate is arsinh(sd / unit), in which
    kernels are reflected at 0.
    """

    is_sd: np.ndarray  # which of h are logarithms of sds
    mode: np.ndarray  # scales in the middle of all kernels, those of sds the logarithms of units
    centres: np.ndarray  # (kernels, scales)
    width: np.ndarray

    @classmethod
    def of(
        cls, pooled: Pooled, h: np.ndarray, weights: np.ndarray, rng: np.random.Generator
    ) -> ScaleKernels:
        """Place kernels at points h, (number, scales), that represent p~ with these weights."""
        is_sd, (_, count) = np.zeros(h.shape[1], bool), h.shape
        for term in pooled.terms:
            is_sd[np.array(term.sds) - len(pooled.origin)] = True
        flat = cls(is_sd, np.median(h, axis=0), h, np.ones(count))
        places = flat.coordinates(h)
        spread = np.sqrt(weights @ (places - weights @ places) ** 2)
        effective = min(KERNELS, 1 / np.sum(weights**2))
        silverman = (4 / (count + 2) / effective) ** (1 / (count + 4))
        centres = places[rng.choice(len(h), KERNELS, p=weights)]
        return flat._replace(centres=centres, width=WIDER * silverman * spread)

    def coordinates(self, h: np.ndarray) -> np.ndarray:
        """Return arsinh(sd / unit), and scales that are no sds as they are."""
        return np.where(self.is_sd, np.arcsinh(np.exp(h - self.mode)), h)

    def of_changed(self, pooled: Pooled) -> ScaleKernels:
        """Return the density for another quadratic: kernels are wide enough for both."""
        return self

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw scales; return them, (count, scales), and the logs of their densities."""
        number, scales = self.centres.shape
        v = self.centres[rng.integers(0, number, count)]
        v = v + self.width * rng.standard_t(KERNEL_FREEDOM, (count, scales))
        v = np.where(self.is_sd, np.maximum(np.abs(v), 1e-300), v)
        density = np.ones((count, number))
        for k, centre in enumerate(self.centres.T):
            kernel = student_t((v[:, k, None] - centre) / self.width[k], KERNEL_FREEDOM)
            if self.is_sd[k]:
                kernel += student_t((v[:, k, None] + centre) / self.width[k], KERNEL_FREEDOM)
            density *= kernel / self.width[k]
        h = np.where(self.is_sd, self.mode + np.log(np.sinh(np.abs(v))), v)
        stretch = np.where(self.is_sd, np.log(np.tanh(np.abs(v))), 0.0).sum(axis=1)  # dv / dh
        return h, np.log(density.mean(axis=1)) + stretch


def student_t(s: np.ndarray, freedom: int) -> np.ndarray:
    """Return the density of Student's t."""
    half = (freedom + 1) / 2
    height = gamma(half) / (gamma(freedom / 2) * sqrt(freedom * pi))
    return np.asarray(height * (1 + s**2 / freedom) ** -half)


def _along(mode: np.ndarray, axes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return points at `places` (n, axes) along each axis, (n * axes, scales)."""
    return (mode + places[..., None] * axes.T).reshape(-1, len(mode))


def find_mode(
    log_densities: LogDensities, h: np.ndarray, unit: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray]:
    """Return the mode by Newton's method from `h`, the log-density there, and the principal axes.

    `unit` is the distance of points of finite differences, no more than the spread of each scale.
    """
    for _ in range(NEWTON_STEPS):
        top, gradient, hessian = _expanded(log_densities, h, unit)
        values, vectors = np.linalg.eigh(-hessian)
        curvature = np.maximum(np.abs(values), LEAST_CURVATURE)
        axes, away = vectors / np.sqrt(curvature), vectors.T @ gradient / np.sqrt(curvature)
        spread = np.sqrt(np.sum(axes**2, axis=1))
        is_fine, unit = np.all(unit < 2 * spread), np.minimum(STEP, spread)
        step = axes @ away
        step *= min(1.0, LONGEST / max(np.abs(step).max(), 1e-300))
        if is_fine and np.abs(away).max() < CLOSE:
            break
        better = next((at for at in h + step * SHORTER if log_densities(at[None])[0] > top), None)
        if better is None and is_fine:
            break
        h = h if better is None else better
    return h, top, axes


@np.errstate(invalid="ignore")  # where there is no density, which Newton's method steps back from
def _expanded(
    log_densities: LogDensities, h: np.ndarray, unit: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the log-density, its gradient and its Hessian at h, by finite differences."""
    lines = np.diag(unit)
    i, j = np.triu_indices(len(h))
    points = [h[None], h + lines, h - lines, h + lines[i] + lines[j], h - lines[i] - lines[j]]
    logs = log_densities(np.concatenate(points))
    top, up, down, both_up, both_down = np.split(logs, np.cumsum([len(p) for p in points])[:-1])
    # f(h + a + b) + f(h - a - b) - f(h + a) - f(h - a) - f(h + b) - f(h - b) + 2 f(h) = 2 f_ab
    around = up + down
    hessian = np.zeros((len(h), len(h)))
    hessian[i, j] = (both_up + both_down - around[i] - around[j] + 2 * top) / (
        2 * unit[i] * unit[j]
    )
    hessian[j, i] = hessian[i, j]
    return float(top[0]), (up - down) / (2 * unit), hessian


class Nested(NamedTuple):
    """Draws of coefficients and scales.

    Attributes
    ----------
    t
        Coefficients, then scales, (length, chains, d). Where factors are dear, successive draws
        share their scales.
    scales
        What scales were drawn from.
    log_proposal
        Log-density of the scales as they were proposed, (length, chains).
    log_marginal
        log p~ of the scales.
    log_given
        Log-density of the coefficients given the scales, but for a constant.
    """

    t: np.ndarray
    scales: ScaleDensity | ScaleKernels
    log_proposal: np.ndarray
    log_marginal: np.ndarray
    log_given: np.ndarray

    def gaps(self, log_ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first draws, (draws, d), and how far the posterior is from their density.

        `log_ratio` are their log-weights, which the proposal of scales is taken out of.
        """
        count = len(log_ratio)
        gap = log_ratio + (self.log_proposal - self.log_marginal).ravel()[:count]
        return self.t.reshape(-1, self.t.shape[2])[:count], gap


def nested_draws(
    pooled: Pooled,
    density: ScaleDensity | ScaleKernels,
    rng: np.random.Generator,
    shape: tuple[int, int],
    levels: LevelProposals | None = None,
) -> Nested:
    """Draw coefficients and scales; `shape` is (length, chains).

    With `levels`, the effects of each level are one of several proposals.
    """
    length, chains = shape
    times = ceil(length * chains / SHARED) if pooled.is_dear else 1  # draws that share scales
    groups, first = ceil(length / times), len(pooled.origin)
    h, of_scales = density.draw(rng, groups * chains)
    scales = h.shape[1] - pooled.followed
    t = np.empty((groups, times, chains, first + scales))
    t[..., first:] = h[:, :scales].reshape(groups, 1, chains, -1)
    logs = np.empty((3, groups, times, chains))
    logs[0] = of_scales.reshape(groups, 1, chains)
    together = pooled.together(times * (1 if levels is None else levels.number))
    parts = [np.arange(k, min(k + together, len(h))) for k in range(0, len(h), together)]

    def with_noise(some: np.ndarray) -> tuple[np.ndarray, np.ndarray, OtherProposals | None]:
        others = None if levels is None else levels.others(rng, (len(some), times))
        return h[some], rng.standard_normal((len(some), times, first)), others

    drawn = in_threads(lambda given: pooled.draw(*given), map(with_noise, parts))
    for some, (c, of_c, of_h) in zip(parts, drawn, strict=True):
        where = (some // chains, slice(None), some % chains)
        t[(*where, slice(first))] = c
        logs[(2, *where)], logs[(1, *where)] = of_c, of_h[:, None]
    flat = logs.reshape(3, groups * times, chains)[:, :length]
    return Nested(t.reshape(groups * times, chains, -1)[:length], density, *flat)
