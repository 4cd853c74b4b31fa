"""Quadratics in place of a log-likelihood: fixed, of unknown noise, or following coefficients.

Near some coefficients c0 the log-likelihood is about

    l(c) ~ l0 + a'(c - c0) - (c - c0)' B (c - c0) / 2.

With normal noise of an unknown scale s, all of this is exact, and B and a are divided by s^2.

In some coefficients the likelihood is far from a quadratic: in an overdispersion, a share of zeros,
the scale of integrated effects, the coefficient of a level without events. These few are drawn with
the scales, and the quadratic of all others follows them. Along each of their principal axes the
mode of all others is followed, the likelihood is expanded there, and a spline gives its value,
slope and curvature anywhere: c0, a and B are then functions of the few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from modicum.arrays import HALF_LOG_2PI
from modicum.linalg.arrow import ArrowCholesky, ArrowLayout, ArrowMatrix, Symmetric
from modicum.models import Target
from modicum.models.priors.resolved import INTEGRATED
from modicum.passes import Anchor, Sums
from modicum.passes.curvature import folded_prior
from modicum.runtime import one_blas_thread

FAINT = 1e-9  # relative to the diagonal, information that is rounding error
LEAST_SHARE = 1e-11  # of the squares at the origin, of which differences then have five digits
MOST_FOLLOWED = 6  # coefficients that a quadratic follows
APART, MOST_PLACES, FEWEST_PLACES = 0.75, 12, 5  # places along an axis, and their distance in sds
LOW = 12.0  # fall of the log-density after which an axis is followed no further
REPEATS, NEAR_MODE = 4, 1e-3  # Newton steps to the mode of the others; rise that is negligible
STEEPER = 10.0  # most that a curvature is multiplied or divided by


class AtScales(NamedTuple):
    """A quadratic at each of some scales."""

    times: np.ndarray  # by which lines and columns of B are multiplied, (scales, coefficients)
    pull: np.ndarray  # a + B c0, (scales, coefficients)
    constant: np.ndarray | float  # what the log-likelihood has besides, but for what is the same


@dataclass(frozen=True)
class ArrowQuadratic:
    """A quadratic that is the same at all scales.

    Attributes
    ----------
    information, pull
        B, and a + B c0.
    followed
        The coefficients that it follows, which are drawn with the scales.
    """

    information: ArrowMatrix
    pull: np.ndarray
    followed: np.ndarray = field(default_factory=lambda: np.arange(0), kw_only=True)

    def at(self, h: np.ndarray) -> AtScales:
        """Return the quadratic at each of some scales, (number, scales)."""
        shape = len(h), len(self.pull)
        return AtScales(np.ones(shape), np.broadcast_to(self.pull, shape), 0.0)

    def require_digits(self, h: np.ndarray) -> None:
        """Refuse a mode of the scales near which the quadratic has too few digits."""

    def changed(self, slope: np.ndarray, middle: np.ndarray, times: np.ndarray) -> Self:
        """Add a linear function that vanishes at `middle`, and multiply lines and columns of B."""
        information = self.information.scaled(times)
        pull = self.pull + slope - self.information @ middle + information @ middle
        return replace(self, information=information, pull=pull)


class TooLittleNoiseError(ArithmeticError):
    """So little noise is left of the outcomes' variation that sums of squares have no digits."""


@dataclass(frozen=True)
class NoiseQuadratic(ArrowQuadratic):
    """The log-likelihood of normal noise, whose log scale is the first of the scales.

    Attributes
    ----------
    rows
        Their number, or the sum of their weights.
    squares
        Sum of squared residuals at the origin.
    log_prior
        That of the log scale.
    """

    rows: float
    squares: float
    log_prior: Callable[[np.ndarray], np.ndarray]

    def at(self, h: np.ndarray) -> AtScales:
        """Return the quadratic at each of some scales, with the log-prior of the noise's."""
        log_scale, share = h[:, 0], np.exp(-2 * h[:, 0])
        constant = -self.rows * (log_scale + HALF_LOG_2PI) - self.squares * share / 2
        times = np.broadcast_to(np.sqrt(share)[:, None], (len(h), len(self.pull)))
        return AtScales(times, share[:, None] * self.pull, constant + self.log_prior(log_scale))

    def require_digits(self, h: np.ndarray) -> None:
        """Refuse a scale whose squares are the rounding error of those at the origin."""
        if self.rows * np.exp(2 * h[0]) < LEAST_SHARE * self.squares:
            raise TooLittleNoiseError


@dataclass(frozen=True)
class FollowingQuadratic(ArrowQuadratic):
    """A quadratic that follows a few coefficients, which are the last of the scales.

    Along each of some axes the mode of all other coefficients, given these few, was followed, and
    the log-likelihood expanded there. Between places a cubic spline interpolates, and what the axes
    change is added up.

    Attributes
    ----------
    centre, axes
        The few at the mode, and axes, in columns.
    along
        For each axis places, one of them 0, and what is interpolated: the value, the slope, half
        the logarithm of the curvatures relative to those of B, and the point.
    """

    centre: np.ndarray
    axes: np.ndarray
    along: tuple[tuple[np.ndarray, np.ndarray], ...]

    @cached_property
    def _splines(self) -> list[Callable[..., np.ndarray]]:
        from scipy.interpolate import CubicSpline  # few runs need it

        return [CubicSpline(*table, bc_type="natural") for table in self.along]

    def at(self, h: np.ndarray) -> AtScales:
        """Return the quadratic at each of some scales."""
        base = found = self._splines[0](np.zeros(1))
        few = h[:, -len(self.followed) :]
        away = np.linalg.solve(self.axes, (few - self.centre).T)
        for s, (places, _), spline in zip(away, self.along, self._splines, strict=True):
            inside = np.clip(s, places[0], places[-1])
            values = spline(inside)
            values[:, 0] += (s - inside) * spline(inside, 1)[:, 0]
            found = found + values - base
        value, (slope, log_times, point) = found[:, 0], np.split(found[:, 1:], 3, axis=1)
        times = np.exp(log_times)
        curved = times * (self.information @ (times * point).T).T
        constant = value - np.sum(point * (slope + curved / 2), axis=1)
        return AtScales(times, slope + curved, constant)

    def changed(self, slope: np.ndarray, middle: np.ndarray, times: np.ndarray) -> Self:
        """Change all coefficients but those that it follows."""
        places, B = self.followed, self.information
        slope[places], middle[places], times[places] = 0.0, 0.0, 1.0

        def change(line: np.ndarray) -> np.ndarray:
            value, (old, log_times, point) = line[0], np.split(line[1:], 3)
            stretch, away = np.exp(log_times), point - middle
            more = B.scaled(stretch * times) @ away - B.scaled(stretch) @ away
            value = value + away @ (slope - more / 2)
            return np.r_[value, old + slope - more, log_times + np.log(times), point]

        along = ((at, np.apply_along_axis(change, 1, table)) for at, table in self.along)
        return replace(self, along=tuple(along))


def quadratic_at(target: Target, anchor: Anchor) -> ArrowQuadratic:
    """Expand about the anchor of a target, with the priors of coefficients that are not pooled."""
    size, sums = target.likelihood.size, (anchor.C, anchor.A, anchor.dense_hessian)
    _, gradient, dense = _with_priors(target, anchor, anchor.point, *sums)
    information = _concave(in_layout(dense, target.arrow_of_effects).leading(size))
    pull = np.asarray(gradient[:size] + information @ anchor.point[:size])
    return ArrowQuadratic(information, pull)


def following(
    sums: Sums, anchor: Anchor, pooled: np.ndarray, before: ArrowQuadratic, skewed: Sequence[int]
) -> FollowingQuadratic | None:
    """Follow those coefficients in which the likelihood is far from quadratic.

    They are those on a bounded scale, as an overdispersion, the scales of integrated effects, and
    of `skewed` ones as many as there is room for. `pooled` is the prior precision of pooled
    coefficients at likely scales. None if there are no such coefficients, or if the quadratic
    `before` follows these already.
    """
    target, size = sums.target, len(before.pull)
    names = [*target.model.row_model.expansions(), *INTEGRATED]
    own = [k for name in names for k in target.likelihood.places.get(name, ())]
    own += [k for k in skewed if k not in own]
    places = np.array(own[:MOST_FOLLOWED], int)
    if len(places) <= len(before.followed):
        return None
    with one_blas_thread.for_small(size):
        road = _Road(sums, anchor, pooled, places)
        first, factor = road.stop(anchor.point[:size]), anchor.dense_factor[places]
        values, vectors = np.linalg.eigh(factor @ factor.T)
        axes = vectors * np.sqrt(values)
        along = tuple(road.along(axis, first) for axis in axes.T)
    if min(len(at) for at, _ in along) < FEWEST_PLACES:
        return None
    dense = np.pad(first.curved, (0, target.size - size))
    information = _concave(in_layout(dense, target.arrow_of_effects).leading(size))
    own_axes = anchor.point[places], axes, along
    return FollowingQuadratic(information, before.pull, *own_axes, followed=places)


def in_layout(matrix: Symmetric, layout: ArrowLayout | None) -> ArrowMatrix:
    """Return a symmetric matrix, which has the structure of `layout`, as an arrow."""
    if layout is None or not isinstance(matrix, np.ndarray):
        return ArrowMatrix.of(matrix)
    big, border = layout.big, layout.border
    return ArrowMatrix(
        big,
        border,
        matrix[big[:, :, None], big[:, None, :]],
        matrix[big[:, :, None], border],
        matrix[np.ix_(border, border)],
    )


def _concave(information: ArrowMatrix) -> ArrowMatrix:
    """Return the information of rows, absolute where it is negative, as of zeros among counts.

    A prior holds the coefficients at some scales, but not where the scales are large: the
    information alone must be positive definite.
    """
    unit = np.sqrt(np.maximum(np.abs(information.diagonal()), np.finfo(np.float64).tiny))
    try:
        ArrowCholesky.of(information + information.diagonal_like(FAINT * unit**2))
        return information
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(information.dense() / np.outer(unit, unit))
        positive = (vectors * np.maximum(np.abs(values), FAINT)) @ vectors.T
        return ArrowMatrix.of(positive * np.outer(unit, unit))


def _with_priors(
    target: Target, anchor: Anchor, point: np.ndarray, C: float, A: np.ndarray, B: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Add priors of coefficients that are not pooled to sums at a point; return -B, not B.

    Priors that are neither quadratic nor smooth are approximated at the anchor.
    """
    value, slope, curved = folded_prior(target, point, smooth=True)
    value, gradient, precision = C + value, A + slope, ArrowMatrix.of(-(B + np.asarray(curved)))
    at, variance = anchor.point, ArrowMatrix.of(np.diag(anchor.sd**2))
    for term in target.exact_terms:
        if term.smooth or term.pooled:
            continue
        for where, mean, weight in term.normal_approximations(at, variance, False):
            away = point[where] - mean
            pulled = weight * away if weight.ndim == 1 else weight @ away
            value, gradient[where] = value - away @ pulled / 2, gradient[where] - pulled
            precision.add_normal(where, weight)
    return value, gradient, np.asarray(precision.corner)


class _Stop(NamedTuple):
    """The likelihood near the mode of all coefficients given a few."""

    line: np.ndarray  # value, slope, half the logarithms of the curvatures, and the point
    curved: np.ndarray
    log_density: float  # of the few
    mode: np.ndarray


class _Road(NamedTuple):
    """The mode of all other coefficients, given a few."""

    sums: Sums
    anchor: Anchor
    prior: np.ndarray  # precision of pooled coefficients
    places: np.ndarray

    def stop(self, point: np.ndarray) -> _Stop:
        """Expand at the mode, or close to it, from a point nearby."""
        size, places, target = len(point), self.places, self.sums.target
        for _ in range(REPEATS):
            t = np.concatenate([point, self.anchor.point[size:]])
            sums = self.sums.hessian(t, "mode")
            value, slope, curved = _with_priors(target, self.anchor, t, *sums)
            slope, curved = slope[:size], curved[:size, :size]
            curved[places] = curved[:, places] = slope[places] = 0.0
            curved[places, places] = 1.0
            pulled = self.prior @ point
            factored = ArrowCholesky.mending(ArrowMatrix.of(curved + self.prior))
            step = factored.solve(slope - pulled)
            rise = float(step @ (slope - pulled)) / 2
            log_density = value - point @ pulled / 2 + rise - factored.half_log_det
            log_times = np.log(np.maximum(np.diag(curved), np.finfo(np.float64).tiny)) / 2
            line, point = np.r_[value, slope, log_times, point], point + step
            if not rise > NEAR_MODE:
                break
        line[places - size] = 0.0
        return _Stop(line, curved, log_density, point)

    def along(self, axis: np.ndarray, first: _Stop) -> tuple[np.ndarray, np.ndarray]:
        """Follow the mode to both sides until the density is low; return what `Bends` holds."""
        path, size = {0.0: first}, len(first.mode)
        for side in (-APART, APART):
            last, before, top = first, first.mode, first.log_density
            for number in range(1, MOST_PLACES + 1):
                point = 2 * last.mode - before
                point[self.places] = self.anchor.point[self.places] + number * side * axis
                stop = self.stop(point)
                if not np.isfinite(stop.log_density):
                    break
                path[number * side], before, last = stop, last.mode, stop
                top = max(top, stop.log_density)
                if stop.log_density < top - LOW:
                    break
        at = sorted(path)
        lines, times = np.array([path[s].line for s in at]), slice(1 + size, 1 + 2 * size)
        most = np.log(STEEPER) / 2
        lines[:, times] = np.clip(lines[:, times] - first.line[times], -most, most)
        return np.array(at), lines
