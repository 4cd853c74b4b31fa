"""Draws of a model with pooled terms, without a chain: scales first, coefficients given the scales.

The likelihood does not contain the scales h of pooled terms (standard deviations of effects, their
correlations), and given h the posterior of the coefficients c is nearly normal. About the anchor

    l(c) ~ l* + g'(c - c*) - (c - c*)' B (c - c*) / 2,
    P(h) = B + Q(h),   m(h) = P(h)^-1 (g + B c*)

with Q(h) the prior precision of c, so that h has the approximate marginal density

    log p~(h) = log|Q(h)| / 2 + (g + B c*)' m(h) / 2 - log|P(h)| / 2 + log p(h),

for which no row is read. Along each of its principal axes p~ is tabulated; h is drawn from the
product of these densities, c from N(m(h), P(h)^-1), and the draw is weighted like any proposal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gamma, pi, sqrt
from typing import NamedTuple

import numpy as np

from modicum.linalg.arrow import ArrowLayout, ArrowMatrix
from modicum.models import Target
from modicum.models.priors.exact import Effects, Numbers
from modicum.passes import Anchor
from modicum.passes.curvature import folded_prior

AT_ONCE = 1 << 20  # entries between effects and border that are held at a time
STEP = 0.05  # between points of finite differences in h, which are logarithms or alike
NEWTON_STEPS = 30
LONGEST = 1.0  # longest step of Newton's method in any scale
LEAST_CURVATURE = 0.05  # of log p~ along an axis of h
NODES, REACH = 33, 8.0  # nodes of a table along an axis, and how far it reaches, in widths
MESH = 2_000  # pieces into which a table is interpolated
TAILS, FREEDOM = 0.1, 4  # share of a t in the proposal along each axis, and its degrees of freedom


class Given(NamedTuple):
    """Normal distributions of the coefficients given some scales, with P = R R' for each.

    In parts, as P is an arrow: the effects of the largest factor, level by level, and the border.
    """

    inverse: np.ndarray  # inverse of R's blocks, (scales, levels, effects, effects)
    half: np.ndarray  # R's rows of the border, transposed, (scales, levels * effects, border)
    lower: np.ndarray  # R's corner, (scales, border, border)
    own: np.ndarray  # R^-1 (g + B c*), (scales, levels * effects) and (scales, border)
    rest: np.ndarray
    log_marginal: np.ndarray  # log p~ of the scales

    @property
    def half_log_det(self) -> np.ndarray:
        """Half the log determinants of P."""
        of_blocks = -np.log(np.diagonal(self.inverse, axis1=2, axis2=3)).sum(axis=(1, 2))
        return np.asarray(of_blocks + np.log(np.diagonal(self.lower, axis1=1, axis2=2)).sum(axis=1))

    def draws(self, own: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return m + R^-T u in parts, for standard normal u in parts."""
        own, rest = self.own + own, self.rest + rest
        rest = np.linalg.solve(self.lower.swapaxes(1, 2), rest[..., None])[..., 0]
        left = own - (self.half @ rest[..., None])[..., 0]
        levels = left.reshape(*self.inverse.shape[:3], 1)
        return (self.inverse.swapaxes(2, 3) @ levels)[..., 0], rest


def has_pooled_scales(target: Target) -> bool:
    """Whether all scales are those of pooled effects, and dense matrices hold the parameters."""
    scales = sum(len(term.hyperparameters) for term, _ in target.pooled_terms)
    pooled = 0 < scales == target.size - target.likelihood.size
    return pooled and target.arrow is None and target.arrow_of_effects is not None


@dataclass(frozen=True)
class Pooled:
    """The posterior of coefficients and scales, with a quadratic for the log-likelihood.

    Attributes
    ----------
    precision, right
        B and g + B c*, which include the priors of coefficients that are not pooled.
    terms
        The pooled terms, with their constants.
    scales
        h at the anchor.
    """

    precision: ArrowMatrix
    right: np.ndarray
    terms: tuple[tuple[Effects, Numbers], ...]
    scales: np.ndarray

    @classmethod
    def of(cls, target: Target, anchor: Anchor) -> Pooled:
        """Expand about the anchor of a target with pooled scales."""
        layout, pooled, size = target.arrow_of_effects, target.pooled_terms, target.likelihood.size
        assert layout is not None
        assert target.exact_prior is not None
        _, slope, curved = folded_prior(target, anchor.point, smooth=True)
        gradient = anchor.A + slope
        hessian = _arrow(anchor.dense_hessian + np.asarray(curved), layout)
        explicit = {term for term, _ in pooled}
        variance = ArrowMatrix.of_diagonal(anchor.sd**2, layout.big, layout.border)
        exact, numbers = target.exact_prior
        for term, of_term in zip(exact.terms, numbers, strict=True):
            if term.smooth or term in explicit:
                continue
            about = (anchor.point, variance, of_term, False)
            for where, mean, weight in term.normal_approximations(*about):
                gradient[where] -= weight * (anchor.point[where] - mean)
                hessian.add_normal(where, -weight)
        precision = (-hessian).leading(size)
        right = gradient[:size] + precision @ anchor.point[:size]
        return cls(precision, np.asarray(right), pooled, anchor.point[size:])

    @property
    def together(self) -> int:
        """How many scales to condition on at a time, so that arrays stay small."""
        return max(1, AT_ONCE // max(1, np.size(self.precision.cross)))

    def given(self, scales: np.ndarray) -> Given:
        """Condition on each of some scales, (number, scales)."""
        matrix, number, first = self.precision, len(scales), len(self.right)
        blocks = np.repeat(matrix.blocks[None], number, axis=0)
        corner = np.repeat(matrix.corner[None], number, axis=0)
        log_marginal = np.zeros(number)
        for term, numbers in self.terms:
            of_term = scales[:, term.hyperparameters - first]
            inverse, half_log_det = term.precision_given(of_term)
            lines = np.array(term.where).reshape(term.count, term.levels)
            slots = np.searchsorted(matrix.big[0], lines[:, 0])
            if slots[0] < len(matrix.big[0]) and matrix.big[0][slots[0]] == lines[0, 0]:
                blocks[:, :, slots[:, None], slots] += inverse[:, None]
            else:
                at = np.searchsorted(matrix.border, lines)
                corner[:, at[:, None], at] += inverse[..., None]
            log_marginal += term.levels * half_log_det + term.log_hyper(of_term, numbers)
        inverse = np.linalg.inv(np.linalg.cholesky(blocks))
        half = (inverse @ matrix.cross).reshape(number, -1, len(matrix.border))
        lower = np.linalg.cholesky(corner - half.swapaxes(1, 2) @ half)
        own = (inverse @ self.right[matrix.big][..., None]).reshape(number, -1)
        rest = self.right[matrix.border] - (own[:, None] @ half)[:, 0]
        rest = np.linalg.solve(lower, rest[..., None])[..., 0]
        log_marginal += (np.sum(own**2, axis=1) + np.sum(rest**2, axis=1)) / 2
        given = Given(inverse, half, lower, own, rest, log_marginal)
        return given._replace(log_marginal=log_marginal - given.half_log_det)

    def log_marginals(self, scales: np.ndarray) -> np.ndarray:
        """Return log p~ at each of some scales; -inf where P(h) is not positive definite."""
        try:
            steps = range(0, len(scales), self.together)
            parts = [self.given(scales[k : k + self.together]).log_marginal for k in steps]
            return np.concatenate(parts)
        except np.linalg.LinAlgError:
            if len(scales) == 1:
                return np.array([-np.inf])
            return np.concatenate([self.log_marginals(h[None]) for h in scales])

    def draw(self, scales: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw coefficients given each of some scales; return them and their log-densities."""
        matrix, given = self.precision, self.given(scales)
        u = rng.standard_normal((len(scales), len(self.right)))
        own = u[:, matrix.big.ravel()]
        c = np.empty_like(u)
        above, c[:, matrix.border] = given.draws(own, u[:, matrix.border])
        c[:, matrix.big] = above
        return c, given.half_log_det - np.sum(u**2, axis=1) / 2


def _arrow(matrix: np.ndarray, layout: ArrowLayout) -> ArrowMatrix:
    """Return a symmetric matrix, which must be an arrow, as one."""
    big, border = layout.big, layout.border
    blocks = matrix[big[:, :, None], big[:, None, :]]
    return ArrowMatrix(
        big, border, blocks, matrix[big[:, :, None], border], matrix[np.ix_(border, border)]
    )


class Axis(NamedTuple):
    """The density of h along an axis, tabulated, and its widths on both sides of the mode."""

    places: np.ndarray
    density: np.ndarray
    left: float
    right: float

    @classmethod
    def of(cls, places: np.ndarray, logs: np.ndarray, left: float, right: float) -> Axis:
        """Interpolate a table of log-densities."""
        from scipy.interpolate import PchipInterpolator

        finite = np.isfinite(logs)
        mesh = np.linspace(places[finite][0], places[finite][-1], MESH + 1)
        values = PchipInterpolator(places[finite], logs[finite])(mesh)
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
        return s, np.log((1 - TAILS) * self._tabled(s) + TAILS * self._tails(s))

    def _tabled(self, s: np.ndarray) -> np.ndarray:
        return np.interp(s, self.places, self.density, left=0.0, right=0.0)

    def _tails(self, s: np.ndarray) -> np.ndarray:
        width = np.where(s > 0, self.right, self.left)
        square = (s / width) ** 2 / FREEDOM
        half = (FREEDOM + 1) / 2
        height = gamma(half) / (gamma(FREEDOM / 2) * sqrt(FREEDOM * pi))  # of Student's t
        return np.asarray(2 / (self.left + self.right) * height * (1 + square) ** -half)


class ScaleDensity(NamedTuple):
    """A density of the scales h that can be drawn from: a product along principal axes."""

    mode: np.ndarray
    axes: np.ndarray  # columns, in units of the spread along each
    along: tuple[Axis, ...]

    @classmethod
    def of(cls, pooled: Pooled) -> ScaleDensity:
        """Tabulate p~ along its principal axes at the mode."""
        mode, top, axes = _mode(pooled)
        width = np.ones((2, len(mode)))  # left and right, such that log p~ falls by 2 at two widths
        sides = np.array([-1.0, 1.0])[:, None]
        for _ in range(3):
            fall = top - pooled.log_marginals(_along(mode, axes, 2 * sides * width))
            width *= np.sqrt(2 / np.clip(fall.reshape(width.shape), 0.3, 20.0))
        grid = np.linspace(-REACH, REACH, NODES)[:, None]
        places = grid * np.where(grid < 0, width[0], width[1])
        logs = pooled.log_marginals(_along(mode, axes, places)).reshape(places.shape)
        along = (Axis.of(*each) for each in zip(places.T, logs.T, *width, strict=True))
        return cls(mode, axes, tuple(along))

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw scales; return them, (count, scales), and the logs of their densities."""
        drawn = [axis.draw(rng, count) for axis in self.along]
        s = np.stack([place for place, _ in drawn], axis=1)
        return self.mode + s @ self.axes.T, sum((log for _, log in drawn), np.zeros(count))


def _along(mode: np.ndarray, axes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return points at `places` (n, axes) along each axis, (n * axes, scales)."""
    return (mode + places[..., None] * axes.T).reshape(-1, len(mode))


def _mode(pooled: Pooled) -> tuple[np.ndarray, float, np.ndarray]:
    """Return the mode of p~ by Newton's method, log p~ there, and the principal axes."""
    h = pooled.scales
    for _ in range(NEWTON_STEPS):
        top, gradient, hessian = _expanded(pooled, h)
        values, vectors = np.linalg.eigh(-hessian)
        curvature = np.maximum(np.abs(values), LEAST_CURVATURE)
        step = vectors @ ((vectors.T @ gradient) / curvature)
        step *= min(1.0, LONGEST / max(np.abs(step).max(), 1e-300))
        points = h + step * np.array([1.0, 0.5, 0.25, 0.1])[:, None]
        logs = pooled.log_marginals(points)
        if np.abs(step).max() < STEP / 5 or logs.max() <= top:
            break
        h = points[np.argmax(logs)]
    return h, top, vectors / np.sqrt(curvature)


def _expanded(pooled: Pooled, h: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return log p~, its gradient and its Hessian at h, by finite differences."""
    unit = STEP * np.eye(len(h))
    i, j = np.triu_indices(len(h))
    points = [h[None], h + unit, h - unit, h + unit[i] + unit[j], h - unit[i] - unit[j]]
    logs = pooled.log_marginals(np.concatenate(points))
    top, up, down, both_up, both_down = np.split(logs, np.cumsum([len(p) for p in points])[:-1])
    # f(h + a + b) + f(h - a - b) - f(h + a) - f(h - a) - f(h + b) - f(h - b) + 2 f(h) = 2 f_ab
    around = up + down
    hessian = np.zeros((len(h), len(h)))
    hessian[i, j] = (both_up + both_down - around[i] - around[j] + 2 * top) / (2 * STEP**2)
    hessian[j, i] = hessian[i, j]
    return float(top[0]), (up - down) / (2 * STEP), hessian


def nested_draws(
    pooled: Pooled, rng: np.random.Generator, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw coefficients and scales; return them, (count, d), and the logs of their densities."""
    scales, log_density = ScaleDensity.of(pooled).draw(rng, count)
    coefficients = np.empty((count, len(pooled.right)))
    for first in range(0, count, pooled.together):
        some = slice(first, first + pooled.together)
        coefficients[some], log_given = pooled.draw(scales[some], rng)
        log_density[some] += log_given
    return np.concatenate([coefficients, scales], axis=1), log_density
