"""Draws of a model with pooled terms, without a chain: scales first, coefficients given the scales.

The likelihood does not contain the scales h of pooled terms (standard deviations of effects, their
correlations), and given h the posterior of the coefficients c is nearly normal. With a quadratic in
place of the log-likelihood,

    l(c) ~ l0 + a'(c - c0) - (c - c0)' B (c - c0) / 2,
    P(h) = B + Q(h),   m(h) = c0 + P(h)^-1 a

with Q(h) the prior precision of c, so that h has the approximate marginal density

    log p~(h) = log|Q(h)| / 2 + a' P(h)^-1 a / 2 - log|P(h)| / 2 + log p(h),

for which no row is read. With normal noise the quadratic is the log-likelihood. Its unknown scale s
is one of h then: B and a are divided by s^2, and all of this is exact.

P is an arrow: the effects of the largest factor, in a block per level, and a dense border. If the
border is large, factoring it for each h takes most of the time, and eliminating the levels even
more. But if there is one effect per level, its prior adds the same number to all of D, and
C (D + rho)^-1 C' is interpolated as a function of log rho.

Along each of its principal axes at the mode p~ is tabulated; h is drawn from the product of these
densities, c given h, and the draw is weighted like any proposal. If p~ has another shape, as where
any of several smooths may explain the same wiggles, the weights of such draws under p~ tell where
it has its mass, and h is drawn again, from kernels about them.

In some coefficients the likelihood is far from a quadratic: in an overdispersion, a share of zeros,
the scale of integrated effects, the coefficient of a level without events. These few are drawn with
the scales. Along each of their principal axes the mode of all others is followed, the likelihood is
expanded there, and a spline gives its value, slope and curvature anywhere: c0, a and B are then
functions of h.

Where groups are thin, effects are skewed given h, and their mode is far from their mean. The
log-weights of some draws tell by how much: on average over c, their slopes and curvatures are those
of the log-likelihood less those of the quadratic. Added to a and B, they make the normal density
that is closest to the posterior, in place of the one at its mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, gamma, pi, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.linalg import eigh
from scipy.linalg.lapack import dtrtrs

from modicum.arrays import HALF_LOG_2PI
from modicum.linalg.arrow import ArrowCholesky, ArrowLayout, ArrowMatrix, Symmetric
from modicum.methods.level_proposals import LevelProposals, OtherProposals
from modicum.models import Target
from modicum.models.model import DENSE_LIMIT
from modicum.models.priors.exact import Effects
from modicum.models.priors.resolved import INTEGRATED
from modicum.passes import Anchor, Sums
from modicum.passes.curvature import folded_prior
from modicum.runtime import in_threads, one_blas_thread

AT_ONCE = 1 << 20  # entries between effects and border that are held at a time
DEAR = 2e7  # multiplications of one factor above which several draws share their scales
MOST_BENT = 6  # coefficients that quadratics follow
APART, MOST_PLACES, FEWEST_PLACES = 0.75, 12, 5  # places along an axis, and their distance in sds
LOW = 12.0  # fall of the log-density after which an axis is followed no further
REPEATS, NEAR_MODE = 4, 1e-3  # Newton steps to the mode of the others; rise that is negligible
FAINT = 1e-9  # relative to the diagonal, information that is rounding error
SHARED = 200  # scales that are drawn then
CLIPPED, DRAWS_EACH = 0.01, 4  # share of draws in each tail that counts less; draws per number
STEEPER = 10.0  # most that a curvature is multiplied or divided by
POINTS, REACHED = 9, 0.75  # of the interpolation in log rho, whose relative error is 10^-8


class TooLittleNoiseError(ArithmeticError):
    """So little noise is left of the outcomes' variation that sums of squares have no digits."""


class Noise(NamedTuple):
    """Normal noise of an unknown scale, whose logarithm is the first of h."""

    rows: float  # their number, or the sum of their weights
    squares: float  # sum of squared residuals at the origin
    log_prior: Callable[[np.ndarray], np.ndarray]  # of its logarithm

    def require_digits(self, log_scale: float) -> None:
        """Refuse a scale whose squares are the rounding error of those at the origin."""
        if self.rows * np.exp(2 * log_scale) < LEAST_SHARE * self.squares:
            raise TooLittleNoiseError

    def log_densities(self, log_scale: np.ndarray) -> np.ndarray:
        """Log-likelihood at the origin plus the log-prior, for each logarithm of the scale."""
        likelihood = -self.rows * (log_scale + HALF_LOG_2PI)
        likelihood -= self.squares * np.exp(-2 * log_scale) / 2
        return np.asarray(likelihood + self.log_prior(log_scale))


@dataclass(frozen=True)
class Elimination:
    """C (D + rho)^-1 C' for numbers rho, a polynomial of log rho between Chebyshev's points."""

    diagonal: np.ndarray  # D, (levels,)
    cross: np.ndarray  # C', (levels, border)
    centre: float  # of the points

    @cached_property
    def _polynomial(self) -> Callable[[np.ndarray], np.ndarray]:
        from scipy.interpolate import BarycentricInterpolator  # few runs need it

        places = self.centre + REACHED * np.cos((np.arange(POINTS) + 0.5) * np.pi / POINTS)
        tables = np.stack([found.ravel() for found in in_threads(self._exactly, places)])
        return BarycentricInterpolator(places, tables)

    def __call__(self, log_rho: np.ndarray) -> np.ndarray:
        """Interpolate at each of some log rho, (number, border, border)."""
        width = self.cross.shape[1]
        found = self._polynomial(log_rho).reshape(-1, width, width)
        for k in np.flatnonzero(np.abs(log_rho - self.centre) > REACHED):
            found[k] = self._exactly(log_rho[k])
        return found

    def _exactly(self, log_rho: float) -> np.ndarray:
        scaled = self.cross / np.sqrt(self.diagonal + np.exp(log_rho))[:, None]
        return np.asarray(scaled.T @ scaled)


class Given(NamedTuple):
    """Normal distributions of the coefficients given some scales, with P = R R' for each."""

    times: np.ndarray  # by which lines and columns of B are multiplied, (scales, coefficients)
    pull: np.ndarray  # a + B c0 and the pull of priors, (scales, coefficients)
    inverse: np.ndarray  # inverse of R's blocks, (scales, levels, effects, effects)
    lower: np.ndarray  # R's corner, (scales, border, border)
    rest: np.ndarray  # the border of R^-1 a, (scales, border)
    log_marginal: np.ndarray  # log p~ of the scales

    @property
    def half_log_det(self) -> np.ndarray:
        """Half the log determinants of P."""
        of_blocks = -np.log(np.diagonal(self.inverse, axis1=2, axis2=3)).sum(axis=(1, 2))
        return np.asarray(of_blocks + np.log(np.diagonal(self.lower, axis1=1, axis2=2)).sum(axis=1))


@dataclass(frozen=True)
class Bends:
    """Quadratics of the log-likelihood that follow a few coefficients, drawn with the scales.

    Along each of some axes the mode of all other coefficients, given these few, was followed, and
    the log-likelihood expanded there. Between places a cubic spline interpolates, and what the axes
    change is added up.

    Attributes
    ----------
    places
        Which of the coefficients.
    centre, axes
        These at the mode, and axes, in columns.
    along
        For each axis places, one of them 0, and what is interpolated: the value, the slope, half
        the logarithm of the curvatures relative to those of B, and the point.
    """

    places: np.ndarray
    centre: np.ndarray
    axes: np.ndarray
    along: tuple[tuple[np.ndarray, np.ndarray], ...]

    @cached_property
    def _splines(self) -> list[Callable[..., np.ndarray]]:
        from scipy.interpolate import CubicSpline  # few runs need it

        return [CubicSpline(*table, bc_type="natural") for table in self.along]

    def quadratics(
        self, h: np.ndarray, information: ArrowMatrix
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers that B is multiplied by, a + B c0, and a constant, at each of some places."""
        base = found = self._splines[0](np.zeros(1))
        away = np.linalg.solve(self.axes, (h - self.centre).T)
        for s, (places, _), spline in zip(away, self.along, self._splines, strict=True):
            inside = np.clip(s, places[0], places[-1])
            values = spline(inside)
            values[:, 0] += (s - inside) * spline(inside, 1)[:, 0]
            found = found + values - base
        value, (slope, log_times, point) = found[:, 0], np.split(found[:, 1:], 3, axis=1)
        times = np.exp(log_times)
        curved = times * (information @ (times * point).T).T
        return times, slope + curved, value - np.sum(point * (slope + curved / 2), axis=1)

    def changed(
        self, information: ArrowMatrix, slope: np.ndarray, middle: np.ndarray, times: np.ndarray
    ) -> Bends:
        """Add a linear function that vanishes at `middle`, and multiply lines and columns of B."""

        def change(line: np.ndarray) -> np.ndarray:
            value, (old, log_times, point) = line[0], np.split(line[1:], 3)
            stretch, away = np.exp(log_times), point - middle
            more = information.scaled(stretch * times) @ away - information.scaled(stretch) @ away
            value = value + away @ (slope - more / 2)
            return np.r_[value, old + slope - more, log_times + np.log(times), point]

        return replace(
            self,
            along=tuple((at, np.apply_along_axis(change, 1, table)) for at, table in self.along),
        )


@dataclass(frozen=True)
class Pooled:
    """The posterior of coefficients and scales, with a quadratic for the log-likelihood.

    Attributes
    ----------
    information, pull
        B and a, at a scale of the noise of 1 if that is unknown.
    common, common_pull
        Precision of the coefficients that are not pooled, in the structure of B, and the slope of
        their log-prior at the origin; zero where B and a include them.
    origin
        c0, which is zero where effects are.
    terms
        The pooled terms.
    start, spread
        Where to search for the mode of the scales h, and about how far from it they may be.
    noise
        The noise, if its scale is one of h.
    constant
        What the log-posterior has besides log p~(h) and the density of c given h; None if the
        quadratic is an approximation.
    bends
        How the quadratic changes with some coefficients, which are the last of h then.
    axes
        By what coefficients less c0 were multiplied to get those of parameters; None: by nothing.
    """

    information: ArrowMatrix
    pull: np.ndarray
    common: ArrowMatrix
    common_pull: np.ndarray
    origin: np.ndarray
    terms: tuple[Effects, ...]
    start: np.ndarray
    spread: np.ndarray
    noise: Noise | None = None
    constant: float | None = None
    bends: Bends | None = None
    axes: np.ndarray | None = None
    unturned: Pooled | None = None  # before `along_axes`

    @classmethod
    def of(cls, target: Target, anchor: Anchor) -> Pooled:
        """Expand about the anchor of a target with pooled scales."""
        pooled, size = target.pooled_terms, target.likelihood.size
        sums = anchor.C, anchor.A, anchor.dense_hessian
        _, gradient, dense = _with_priors(target, anchor, anchor.point, *sums)
        information = _concave(in_layout(dense, target.arrow_of_effects).leading(size))
        pull = np.asarray(gradient[:size] + information @ anchor.point[:size])
        zeros = np.zeros(size)
        none = information.diagonal_like(zeros), zeros
        return cls(information, pull, *none, zeros, pooled, anchor.point[size:], anchor.sd[size:])

    def along_axes(self) -> Pooled:
        """Return the same without pooled terms in coordinates in which all of P is diagonal."""
        values, axes = eigh(np.asarray(self.information.corner), np.asarray(self.common.corner))
        parts = np.arange(len(values))[:, None], np.arange(0)
        return replace(
            self,
            information=ArrowMatrix.of_diagonal(np.maximum(values, 0.0), *parts),
            common=ArrowMatrix.of_diagonal(np.ones(len(values)), *parts),
            pull=axes.T @ self.pull,
            common_pull=axes.T @ self.common_pull,
            axes=axes,
            unturned=self,
        )

    def bent(
        self, sums: Sums, anchor: Anchor, h: np.ndarray, skewed: Sequence[int]
    ) -> Pooled | None:
        """Let the quadratic follow those coefficients in which the likelihood is far from one.

        They are those on a bounded scale, as an overdispersion, the scales of integrated effects,
        and of `skewed` ones as many as there is room for. `h` are likely scales. None if there are
        no such coefficients, or if these are followed already.
        """
        target, size = sums.target, len(self.pull)
        names = [*target.model.row_model.expansions(), *INTEGRATED]
        own = [k for name in names for k in target.likelihood.places.get(name, ())]
        own += [k for k in skewed if k not in own]
        places = np.array(own[:MOST_BENT], int)
        if len(places) <= self.followed:
            return None
        prior = ArrowMatrix.of(np.zeros((size, size)))
        for term, inverse in zip(self.terms, self._prior(h[None])[1], strict=True):
            prior.add_normal(self._lines(term), inverse[0])
        with one_blas_thread.for_small(size):
            road = _Road(sums, anchor, np.asarray(prior.corner), places)
            first, factor = road.stop(anchor.point[:size]), anchor.dense_factor[places]
            values, vectors = np.linalg.eigh(factor @ factor.T)
            axes = vectors * np.sqrt(values)
            along = tuple(road.along(axis, first) for axis in axes.T)
        if min(len(at) for at, _ in along) < FEWEST_PLACES:
            return None
        dense = np.pad(first.curved, (0, target.size - size))
        information = _concave(in_layout(dense, target.arrow_of_effects).leading(size))
        return replace(
            self,
            information=information,
            common=information.diagonal_like(np.zeros(size)),  # one may be an arrow, and one dense
            start=np.concatenate([h[: len(anchor.point) - size], anchor.point[places]]),
            spread=np.concatenate([anchor.sd[size:], anchor.sd[places]]),
            bends=Bends(places, anchor.point[places], axes, along),
        )

    def averaged(self, drawn: Nested, log_ratio: np.ndarray) -> Pooled | None:
        """Return the quadratic that follows the log-likelihood on average over draws, not at c*.

        `log_ratio` is the log-weight of the first draws. But for the proposal of scales it is the
        difference of two log-densities, which is regressed on the coefficients and on their
        squares: as the draws are normal, this is the average of its slopes and curvatures (Stein).
        None if the draws are too few to tell.
        """
        size, count = len(self.pull), len(log_ratio)
        t = drawn.t.reshape(-1, drawn.t.shape[2])[:count]
        gap = log_ratio + (drawn.log_proposal - drawn.log_marginal).ravel()[:count]
        finite = np.isfinite(gap)
        if np.mean(finite) < 1 - 2 * CLIPPED or count < DRAWS_EACH * (2 * size + 1):
            return None
        # a few draws far out must not decide
        gap = np.clip(gap, *np.quantile(gap[finite], (CLIPPED, 1 - CLIPPED)))
        mean, sd = t.mean(axis=0), t.std(axis=0)
        unit = (t - mean) / sd
        columns = np.c_[unit, unit[:, :size] ** 2, np.ones(count)]
        normal = columns.T @ columns
        normal[np.diag_indices(len(normal))] += FAINT * count  # of a column that does not vary
        found = np.linalg.solve(normal, columns.T @ gap)
        slope = found[:size] / sd[:size]
        bend = 2 * found[t.shape[1] : t.shape[1] + size] / sd[:size] ** 2
        # curvatures change on the diagonal as they were measured, and elsewhere in proportion, so
        # that the information stays positive semi-definite, and has the same zeros
        diagonal = np.maximum(self.information.diagonal(), np.finfo(np.float64).tiny)
        times = np.sqrt(np.clip(1 - bend / diagonal, 1 / STEEPER, STEEPER))
        middle = mean[:size] - self.origin
        if self.bends is not None:
            places = self.bends.places
            slope[places], middle[places], times[places] = 0.0, 0.0, 1.0
            return replace(self, bends=self.bends.changed(self.information, slope, middle, times))
        information = self.information.scaled(times)
        pull = self.pull + slope - self.information @ middle + information @ middle
        return replace(self, information=information, pull=pull)

    @property
    def followed(self) -> int:
        """Number of coefficients that are drawn with the scales."""
        return 0 if self.bends is None else len(self.bends.places)

    @cached_property
    def work(self) -> float:
        """Multiplications that factoring P takes, for one h."""
        (levels, effects), border = self.information.big.shape, len(self.information.border)
        return float(levels * effects * border**2 + border**3 / 3)

    @property
    def is_dear(self) -> bool:
        """Whether a factor takes so long that several draws share it."""
        return self.work > DEAR

    def together(self, draws: int = 1) -> int:
        """How many scales to condition on at a time, so that arrays stay small."""
        cross, border = np.size(self.information.cross), len(self.information.border)
        return max(1, AT_ONCE // max(1, cross, border**2, draws * len(self.pull)))

    # Given scales -------------------------------------------------------------------------

    def given(self, h: np.ndarray) -> Given:
        """Condition on each of some scales, (number, scales)."""
        matrix, (times, pull, constant) = self.information, self._quadratics(h)
        log_marginal, priors = self._prior(h)
        pull = pull + self.common_pull
        own_times, rest_times = times[:, matrix.big], times[:, matrix.border]
        blocks = own_times[..., None] * matrix.blocks * own_times[..., None, :]
        corner = rest_times[:, :, None] * np.asarray(matrix.corner) * rest_times[:, None]
        corner, blocks = corner + self.common.corner, blocks + self.common.blocks
        blocks += self._of_level(priors)[:, None]
        for term, inverse in zip(self.terms, priors, strict=True):
            lines = self._lines(term)
            if matrix.slots(lines) is None:
                at = np.searchsorted(matrix.border, lines)
                corner[:, at[:, None], at] += inverse[..., None]
        inverse = np.linalg.inv(np.linalg.cholesky(blocks))
        own = (inverse @ pull[:, matrix.big][..., None])[..., 0]
        solved = own_times * (inverse.swapaxes(2, 3) @ own[..., None])[..., 0]  # D^-1 a
        corner -= self._eliminated(times, inverse, priors)
        lower = np.linalg.cholesky(corner)
        right = pull[:, matrix.border] - rest_times * (solved.reshape(len(h), -1) @ self._cross)
        rest = _solve_lower(lower, right[..., None])[..., 0]
        log_marginal += constant + (np.sum(own**2, axis=(1, 2)) + np.sum(rest**2, axis=1)) / 2
        given = Given(times, pull, inverse, lower, rest, log_marginal)
        return given._replace(log_marginal=log_marginal - given.half_log_det)

    def _quadratics(self, h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
        """The numbers that B is multiplied by, a + B c0, and a constant, for each h."""
        if self.bends is not None:
            return self.bends.quadratics(h[:, -self.followed :], self.information)
        share = self._share(h)[:, None]
        times = np.broadcast_to(np.sqrt(share), (len(h), len(self.pull)))
        return times, share * self.pull, 0.0

    def scales_of(self, t: np.ndarray) -> np.ndarray:
        """The scales among parameters (number, d), and the coefficients drawn with them."""
        places = np.arange(0) if self.bends is None else self.bends.places
        return np.concatenate([t[:, len(self.pull) :], t[:, places]], axis=1)

    def _share(self, h: np.ndarray) -> np.ndarray:
        return np.ones(len(h)) if self.noise is None else np.exp(-2 * h[:, 0])

    def _lines(self, term: Effects) -> np.ndarray:
        return np.array(term.where).reshape(term.count, term.levels)

    @property
    def _cross(self) -> np.ndarray:
        """C', with one row per level and effect."""
        cross = np.asarray(self.information.cross)
        return cross.reshape(self.information.big.size, cross.shape[-1])

    def _prior(self, h: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """log|Q| / 2 + log p(h), and the precision of the effects of any level, term by term."""
        noise, first = self.noise, len(self.pull)
        logs, priors = np.zeros(len(h)) if noise is None else noise.log_densities(h[:, 0]), []
        for term in self.terms:
            of_term = h[:, term.hyperparameters - first]
            inverse, half_log_det = term.precision_given(of_term)
            logs = logs + term.levels * half_log_det + term.log_hyper(of_term)
            priors.append(inverse)
        return logs, priors

    def _of_level(self, priors: list[np.ndarray]) -> np.ndarray:
        """Prior precision of all effects of any one level in the blocks, for each h."""
        effects = self.information.big.shape[1]
        found = np.zeros((len(priors[0]) if priors else 1, effects, effects))
        for term, inverse in zip(self.terms, priors, strict=True):
            slots = self.information.slots(self._lines(term))
            if slots is not None:
                found[:, slots[:, None], slots] += inverse
        return found

    def _eliminated(
        self, times: np.ndarray, inverse: np.ndarray, priors: list[np.ndarray]
    ) -> np.ndarray:
        """C D^-1 C' of P, for each h."""
        if self._elimination is None:
            matrix = self.information
            half = (inverse * times[:, matrix.big][..., None, :]) @ np.asarray(matrix.cross)
            half = half.reshape(len(times), *self._cross.shape)
            at = times[:, matrix.border]
            return np.asarray(at[:, :, None] * (half.swapaxes(1, 2) @ half) * at[:, None])
        share = times[:, 0] ** 2
        eliminated = self._elimination(np.log(priors[self._largest][:, 0, 0] / share))
        eliminated *= share[:, None, None]
        return eliminated

    @property
    def _largest(self) -> int:
        """The term whose effects are in blocks, one per level."""
        first = np.asarray(self.information.big)[0, 0]
        return next(k for k, term in enumerate(self.terms) if term.where[0] == first)

    @cached_property
    def _elimination(self) -> Elimination | None:
        """The interpolation in log rho; None where it would not pay, or has more arguments."""
        matrix = self.information
        if not self.is_dear or matrix.big.shape[1] > 1 or matrix.levels < POINTS or self.bends:
            return None
        share, (_, priors) = self._share(self.start[None]), self._prior(self.start[None])
        centre = float(np.log(priors[self._largest][0, 0, 0] / share[0]))
        return Elimination(np.asarray(matrix.blocks)[:, 0, 0], self._cross, centre)

    # Densities and draws ------------------------------------------------------------------

    def log_marginals(self, h: np.ndarray) -> np.ndarray:
        """Return log p~ at each of some scales; -inf where P(h) is not positive definite."""
        try:
            together = self.together()
            some = (h[k : k + together] for k in range(0, len(h), together))
            return np.concatenate([found.log_marginal for found in in_threads(self.given, some)])
        except np.linalg.LinAlgError:
            if len(h) == 1:
                return np.array([-np.inf])
            return np.concatenate([self.log_marginals(at[None]) for at in h])

    def log_marginals_apart(self, h: np.ndarray) -> np.ndarray:
        """Return log p~ as if coefficients had nothing to do with each other: a rough guide."""
        (logs, priors), share = self._prior(h), self._share(h)[:, None]
        information = self.information.diagonal()
        for term, inverse in zip(self.terms, priors, strict=True):
            for effect, line in enumerate(self._lines(term)):
                precision = share * information[line] + inverse[:, effect, effect, None]
                pulled = (share * self.pull[line]) ** 2 / precision
                logs = logs + np.sum(pulled - np.log(precision), axis=1) / 2
        return logs

    def covariance_of(self, h: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the covariance given h of coefficients that are not pooled."""
        border, given = np.asarray(self.information.border), self.given(h[None])
        if self.axes is None:
            unit = (border[:, None] == places).astype(float)
            half = _solve_lower(given.lower, unit[None])[0]
        else:
            half = given.inverse[0, :, 0] * self.axes[places].T
        return np.asarray(half.T @ half)

    def information_of(self, h: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return what rows say given h of coefficients that are not pooled, whatever their prior.

        In place of their prior is one as wide as the likelihood, so that taking it off again loses
        no digits, as the prior itself would where it is tight.
        """
        plain, prior = self.unturned or self, np.zeros(len(self.pull))
        told = self._share(h[None])[0] * plain.information.diagonal()[places]
        prior[places] = np.where(told > 0, told, 1.0)
        common = plain.information.diagonal_like(prior)
        spread = replace(plain, common=common).covariance_of(h, places)
        return np.asarray(np.linalg.inv(spread) - np.diag(prior[places]))

    def draw(
        self,
        h: np.ndarray,
        u: np.ndarray,
        others: OtherProposals | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw coefficients given each of some scales.

        `u` are standard normal, (scales, draws, coefficients). Return the coefficients, their
        log-densities but for a constant, and log p~ of the scales. With `others` the effects of
        each level are one of several proposals, and a log-density is what has to be taken from the
        log-posterior for the logarithm of the weight.
        """
        matrix, given = self.information, self.given(h)
        if self.bends is not None:
            u[..., self.bends.places] = 0.0  # these are known
        shape, c = (*u.shape[:2], *matrix.big.shape), np.empty_like(u)
        at = given.rest[:, None] + u[..., matrix.border]
        border = _solve_lower(given.lower, at.swapaxes(1, 2), transposed=True).swapaxes(1, 2)
        c[..., matrix.border] = border
        at_border = given.times[:, None, matrix.border] * border
        across = given.times[:, None, matrix.big] * (at_border @ self._cross.T).reshape(shape)
        left = given.pull[:, None, matrix.big] - across
        inverse = given.inverse[:, None]
        mean = (inverse @ left[..., None])[..., 0]

        def propose(normal: np.ndarray) -> np.ndarray:
            return np.asarray((inverse.swapaxes(3, 4) @ (mean + normal)[..., None])[..., 0])

        c[..., matrix.big] = propose(u[..., matrix.big])
        log_density = given.half_log_det[:, None] - np.sum(u**2, axis=2) / 2
        if self.bends is not None:
            c[..., self.bends.places] = h[:, None, -self.followed :]
        c = self.origin + (c if self.axes is None else c @ self.axes.T)
        if others is not None:
            precision = self._of_level(self._prior(h)[1])
            big = np.asarray(matrix.big)
            log_density += others.choose(c, u[..., big], big, propose, precision)
        return c, log_density, given.log_marginal


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


def _solve_lower(lower: np.ndarray, right: np.ndarray, transposed: bool = False) -> np.ndarray:
    """Solve systems with triangular matrices; right sides are columns."""
    if not lower.size:
        return right
    trans = 0 if transposed else 1  # of a transposed matrix, as LAPACK wants columns one by one
    pairs = zip(lower, right, strict=True)
    return np.stack([dtrtrs(matrix.T, columns, trans=trans)[0] for matrix, columns in pairs])


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


# Scales -----------------------------------------------------------------------------------

STEP = 0.05  # longest between points of finite differences in h, which are logarithms or alike
NEWTON_STEPS = 30
LONGEST = 1.0  # longest step of Newton's method in any scale
SHORTER = np.array([1.0, 0.5, 0.25, 0.1])[:, None]  # shares of a step that are tried
CLOSE = 0.1  # distance from the mode, in spreads of p~, that suffices
LEAST_CURVATURE = 0.05  # of log p~ along an axis of h
LEAST_SHARE = 1e-11  # of the squares at the origin, of which differences then have five digits
NODES, FEW_NODES = 33, 13  # nodes of a table along an axis, and where each takes long
REACH = 8.0  # how far a table reaches, in widths
MESH = 2_000  # pieces into which a table is interpolated
TAILS, FREEDOM = 0.1, 4  # share of a t in the proposal along each axis, and its degrees of freedom

LogDensities: TypeAlias = Callable[[np.ndarray], np.ndarray]  # of points (n, scales)


def pools_all_scales(target: Target) -> bool:
    """Whether there are scales, all of which are those of pooled effects."""
    scales = sum(len(term.hyperparameters) for term in target.pooled_terms)
    return 0 < scales == target.size - target.likelihood.size


def has_pooled_scales(target: Target) -> bool:
    """Whether all scales are those of pooled effects, and dense matrices hold the parameters."""
    return pools_all_scales(target) and target.size <= DENSE_LIMIT


def not_pooled(target: Target, first: int) -> np.ndarray:
    """Positions of the coefficients that are not pooled."""
    inside = np.zeros(first, bool)
    for term in target.pooled_terms:
        inside[np.array(term.where)] = True
    return np.flatnonzero(~inside)


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
        if pooled.noise is not None:
            pooled.noise.require_digits(mode[0])
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
            is_sd[np.array(term.sds) - len(pooled.pull)] = True
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
    groups, first = ceil(length / times), len(pooled.pull)
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
