"""The posterior of coefficients given the scales of pooled terms, and the density of the scales.

The likelihood does not contain the scales h of pooled terms (standard deviations of effects, their
correlations), and given h the posterior of the coefficients c is nearly normal. With a quadratic in
place of the log-likelihood (`quadratics`),

    P(h) = B + Q(h),   m(h) = c0 + P(h)^-1 a

with Q(h) the prior precision of c, so that h has the approximate marginal density

    log p~(h) = log|Q(h)| / 2 + a' P(h)^-1 a / 2 - log|P(h)| / 2 + log p(h),

for which no row is read. With normal noise all of this is exact.

P is an arrow: the effects of the largest factor, in a block per level, and a dense border. If the
border is large, factoring it for each h takes most of the time, and eliminating the levels even
more. But if there is one effect per level, its prior adds the same number to all of D, and
C (D + rho)^-1 C' is interpolated as a function of log rho: with 1,500 levels beside 150, a fit
takes 2.3 processor seconds in place of 3.2.

Where groups are thin, effects are skewed given h, and their mode is far from their mean. The
log-weights of some draws tell by how much: on average over c, their slopes and curvatures are those
of the log-likelihood less those of the quadratic. Added to a and B, they make the normal density
that is closest to the posterior, in place of the one at its mode.

Or the effects of each level are one of several proposals, which is taken by its weight.
Given h and the border b, the effects u_j of the levels of its
largest factor have nothing to do with each other: the posterior of u_j is in proportion to

    f_j(u) = exp(l_j(u, b)) N(u; 0, Q_j^-1),

where l_j is the log-likelihood of the rows of level j. A normal density q_j is close to it if the
level has many rows. If it has few, q_j is off by a little; but the weight of a draw is the product
over all levels, and hundreds of small errors multiply. Of M proposals u_jm from q_j, therefore, one
is taken for each level with a chance in proportion to g_jm = f_j(u_jm) / q_j(u_jm), and in the
weight of the draw stands the mean of g_jm over m, in place of g_j of the proposal that was taken.
Weights of this kind are unbiased for any M (they are those of importance sampling of the proposals
and of the choice among them), and vary by a share of 1 / M as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np
from scipy.linalg import eigh
from scipy.linalg.lapack import dtrtrs

from modicum.linalg.arrow import ArrowLayout, ArrowMatrix
from modicum.methods.quadratics import STEEPER, ArrowQuadratic, following, quadratic_at
from modicum.methods.skewed_axes import average_slopes
from modicum.models import Target
from modicum.models.model import DENSE_LIMIT, Batch
from modicum.models.priors.exact import Effects
from modicum.passes import Anchor, Sums
from modicum.rows import Rows
from modicum.runtime import (
    FASTEST_COMPILE,
    Array,
    in_double_precision,
    in_equal_blocks,
    in_threads,
    jit,
)

AT_ONCE = 1 << 20  # entries between effects and border that are held at a time
DEAR = 2e7  # multiplications of one factor above which several draws share their scales
POINTS, REACHED = 9, 0.75  # of the interpolation in log rho, whose relative error is 10^-8
ROWS_AT_ONCE = 1 << 18  # log-densities of rows that are held at a time


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


@dataclass(frozen=True, eq=False)
class LevelProposals:
    """How many proposals there are for each level, and what weighs them.

    Attributes
    ----------
    target
        The posterior, with effects of a factor that are apart from all others.
    rows
        All rows.
    number
        Proposals for each level.
    """

    target: Target
    rows: Rows
    number: int

    def others(self, rng: np.random.Generator, draws: tuple[int, int]) -> OtherProposals:
        """Draw the random numbers of all proposals but the first, for (scales, draws)."""
        levels, effects = self._layout.big.shape
        normals = rng.standard_normal((self.number - 1, *draws, levels, effects))
        return OtherProposals(self, normals, rng.gumbel(size=(self.number, *draws, levels)))

    def log_likelihoods(self, points: np.ndarray) -> np.ndarray:
        """Log-likelihood of the rows of each level at coefficients (..., coefficients)."""
        batch, levels, firsts = self._by_level
        flat = points.reshape(-1, points.shape[-1])
        found = np.zeros((len(flat), self._layout.levels))

        def evaluate(some: np.ndarray) -> np.ndarray:
            of_rows = np.asarray(_of_rows(self.target.likelihood, some, batch))
            return np.asarray(np.add.reduceat(of_rows, firsts, axis=1))

        together = max(1, ROWS_AT_ONCE // len(self.rows))
        found[:, levels] = in_equal_blocks(evaluate, flat, together)
        found[np.isnan(found)] = -np.inf
        return found.reshape(*points.shape[:-1], -1)

    @property
    def _layout(self) -> ArrowLayout:
        layout = self.target.arrow_of_effects
        assert layout is not None
        return layout

    @cached_property
    def _by_level(self) -> tuple[Batch, np.ndarray, np.ndarray]:
        """All rows, sorted by level, the levels that occur, and the first row of each."""
        batch = self.rows.take(np.arange(len(self.rows)))
        codes = np.asarray(batch[self._layout.field])
        order = np.argsort(codes, kind="stable")
        levels, firsts = np.unique(codes[order], return_index=True)
        return {name: np.asarray(field)[order] for name, field in batch.items()}, levels, firsts


class OtherProposals(NamedTuple):
    """All proposals for the effects of levels but the first, as random numbers."""

    to: LevelProposals
    normals: np.ndarray  # (M - 1, scales, draws, levels, effects)
    gumbels: np.ndarray  # that choose among all, (M, scales, draws, levels)

    def choose(
        self,
        c: np.ndarray,
        first: np.ndarray,
        big: np.ndarray,
        propose: Callable[[np.ndarray], np.ndarray],
        precision: np.ndarray,
    ) -> np.ndarray:
        """Take one proposal for each level.

        Parameters
        ----------
        c
            Coefficients, (scales, draws, coefficients); effects are changed in place.
        first
            The standard normal numbers of the first proposals, (scales, draws, levels, effects).
        big
            Where the effects are, (levels, effects).
        propose
            Makes effects of such numbers.
        precision
            Q of one level, (scales, effects, effects).

        Returns
        -------
        numpy.ndarray
            What added to the log-density of the first proposals leaves the logarithm of the weight,
            if it is taken from the log-posterior of those that were taken; (scales, draws).
        """
        normals = np.concatenate([first[None], self.normals])
        effects = propose(normals)
        points = np.repeat(c[None], len(normals), axis=0)
        points[..., big] = effects
        log_joint = self.to.log_likelihoods(points)  # log f but for a constant
        log_joint -= np.sum(effects * (effects @ precision[:, None]), axis=-1) / 2
        log_g = log_joint + np.sum(normals**2, axis=-1) / 2
        taken = np.argmax(log_g + self.gumbels, axis=0)[None]  # in proportion to g
        c[..., big] = np.take_along_axis(effects, taken[..., None], axis=0)[0]
        of_taken = np.take_along_axis(log_joint, taken, axis=0)[0]
        top = log_g.max(axis=0)
        with np.errstate(invalid="ignore"):
            log_mean = top + np.log(np.mean(np.exp(log_g - top), axis=0))
        gap = of_taken - log_mean + np.sum(first**2, axis=-1) / 2
        return np.where(np.isfinite(top), gap, 0.0).sum(axis=-1)  # else the log-posterior is -inf


@in_double_precision
@jit(static=0, options=FASTEST_COMPILE)
def _of_rows(likelihood: Target, points: Array, batch: Batch) -> jax.Array:
    """Log-density of each row at each point, (points, rows)."""
    return jax.vmap(likelihood.log_likelihood, in_axes=(0, None))(points, batch)


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
class Pooled:
    """The posterior of coefficients and scales, with a quadratic for the log-likelihood.

    Attributes
    ----------
    quadratic
        The log-likelihood.
    common, common_pull
        Precision of the coefficients that are not pooled, in the structure of B, and the slope of
        their log-prior at the origin; zero where the quadratic includes them.
    origin
        c0, which is zero where effects are.
    terms
        The pooled terms.
    start, spread
        Where to search for the mode of the scales h, and about how far from it they may be.
    constant
        What the log-posterior has besides log p~(h) and the density of c given h; None if the
        quadratic is an approximation.
    axes
        By what coefficients less c0 were multiplied to get those of parameters; None: by nothing.
    unturned
        The same before that.
    """

    quadratic: ArrowQuadratic
    common: ArrowMatrix
    common_pull: np.ndarray
    origin: np.ndarray
    terms: tuple[Effects, ...]
    start: np.ndarray
    spread: np.ndarray
    constant: float | None = None
    axes: np.ndarray | None = None
    unturned: Pooled | None = None

    @classmethod
    def of(cls, target: Target, anchor: Anchor) -> Pooled:
        """Expand about the anchor of a target with pooled scales."""
        quadratic, size = quadratic_at(target, anchor), target.likelihood.size
        zeros = np.zeros(size)
        common = quadratic.information.diagonal_like(zeros)
        start, spread = anchor.point[size:], anchor.sd[size:]
        return cls(quadratic, common, zeros, zeros, target.pooled_terms, start, spread)

    def along_axes(self) -> Pooled:
        """Return the same without pooled terms in coordinates in which all of P is diagonal."""
        values, axes = eigh(np.asarray(self.information.corner), np.asarray(self.common.corner))
        parts = np.arange(len(values))[:, None], np.arange(0)
        information = ArrowMatrix.of_diagonal(np.maximum(values, 0.0), *parts)
        pull = axes.T @ self.quadratic.pull
        return replace(
            self,
            quadratic=replace(self.quadratic, information=information, pull=pull),
            common=ArrowMatrix.of_diagonal(np.ones(len(values)), *parts),
            common_pull=axes.T @ self.common_pull,
            axes=axes,
            unturned=self,
        )

    def bent(
        self, sums: Sums, anchor: Anchor, h: np.ndarray, skewed: Sequence[int]
    ) -> Pooled | None:
        """Let the quadratic follow coefficients, of `skewed` ones as many as there is room for.

        `h` are likely scales. None if there are none to follow, or if it follows these already.
        """
        size = len(self.origin)
        prior = ArrowMatrix.of(np.zeros((size, size)))
        for term, inverse in zip(self.terms, self._prior(h[None])[1], strict=True):
            prior.add_normal(self._lines(term), inverse[0])
        found = following(sums, anchor, np.asarray(prior.corner), self.quadratic, skewed)
        if found is None:
            return None
        none = found.information.diagonal_like(np.zeros(size))  # one may be an arrow, one dense
        return replace(
            self,
            quadratic=found,
            common=none,
            start=np.concatenate([h[: len(anchor.point) - size], found.centre]),
            spread=np.concatenate([anchor.sd[size:], anchor.sd[found.followed]]),
        )

    def averaged(self, t: np.ndarray, gap: np.ndarray) -> Pooled | None:
        """Return the quadratic that follows the log-likelihood on average over draws, not at c*.

        `gap` is, at draws t (draws, parameters) of coefficients and scales, the log-posterior less
        the log-density from which coefficients were drawn and log p~. It is regressed on the
        coefficients and on their squares: as the draws are normal, this is the average of its
        slopes and curvatures (Stein). None if the draws are too few to tell.
        """
        size = len(self.origin)
        mean, sd = t.mean(axis=0), t.std(axis=0)
        unit = (t - mean) / sd
        found = average_slopes(gap, [unit, unit[:, :size] ** 2])
        if found is None:
            return None
        (first, second), _ = found
        slope, bend = first[:size] / sd[:size], 2 * second / sd[:size] ** 2
        # curvatures change on the diagonal as they were measured, and elsewhere in proportion, so
        # that the information stays positive semi-definite, and has the same zeros
        diagonal = np.maximum(self.information.diagonal(), np.finfo(np.float64).tiny)
        times = np.sqrt(np.clip(1 - bend / diagonal, 1 / STEEPER, STEEPER))
        changed = self.quadratic.changed(slope, mean[:size] - self.origin, times)
        return replace(self, quadratic=changed)

    @property
    def information(self) -> ArrowMatrix:
        """B."""
        return self.quadratic.information

    @property
    def followed(self) -> int:
        """Number of coefficients that are drawn with the scales."""
        return len(self.quadratic.followed)

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
        return max(1, AT_ONCE // max(1, cross, border**2, draws * len(self.origin)))

    # Given scales -------------------------------------------------------------------------

    def given(self, h: np.ndarray) -> Given:
        """Condition on each of some scales, (number, scales)."""
        matrix, (times, pull, constant) = self.information, self.quadratic.at(h)
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

    def scales_of(self, t: np.ndarray) -> np.ndarray:
        """The scales among parameters (number, d), and the coefficients drawn with them."""
        return np.concatenate([t[:, len(self.origin) :], t[:, self.quadratic.followed]], axis=1)

    def _lines(self, term: Effects) -> np.ndarray:
        return np.array(term.where).reshape(term.count, term.levels)

    @property
    def _cross(self) -> np.ndarray:
        """C', with one row per level and effect."""
        cross = np.asarray(self.information.cross)
        return cross.reshape(self.information.big.size, cross.shape[-1])

    def _prior(self, h: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """log|Q| / 2 + log p(h), and the precision of the effects of any level, term by term."""
        logs, priors = np.zeros(len(h)), []
        for term in self.terms:
            of_term = h[:, term.hyperparameters - len(self.origin)]
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
        is_one = matrix.big.shape[1] == 1 and matrix.levels >= POINTS and not self.followed
        if not (self.is_dear and is_one):
            return None
        share = self.quadratic.at(self.start[None]).times[0, 0] ** 2
        (precision,) = self._prior(self.start[None])[1][self._largest].ravel()
        centre = float(np.log(precision / share))
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
        (logs, priors), (times, pull, constant) = self._prior(h), self.quadratic.at(h)
        told = times**2 * self.information.diagonal()
        for term, inverse in zip(self.terms, priors, strict=True):
            for effect, line in enumerate(self._lines(term)):
                precision = told[:, line] + inverse[:, effect, effect, None]
                logs = logs + np.sum(pull[:, line] ** 2 / precision - np.log(precision), axis=1) / 2
        return logs + constant

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
        plain, prior = self.unturned or self, np.zeros(len(self.origin))
        share = self.quadratic.at(h[None]).times[0, places] ** 2
        told = share * plain.information.diagonal()[places]
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
        u[..., self.quadratic.followed] = 0.0  # these are known
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
        c[..., self.quadratic.followed] = h[:, None, h.shape[1] - self.followed :]
        c = self.origin + (c if self.axes is None else c @ self.axes.T)
        if others is not None:
            precision = self._of_level(self._prior(h)[1])
            big = np.asarray(matrix.big)
            log_density += others.choose(c, u[..., big], big, propose, precision)
        return c, log_density, given.log_marginal


def _solve_lower(lower: np.ndarray, right: np.ndarray, transposed: bool = False) -> np.ndarray:
    """Solve systems with triangular matrices; right sides are columns."""
    if not lower.size:
        return right
    trans = 0 if transposed else 1  # of a transposed matrix, as LAPACK wants columns one by one
    pairs = zip(lower, right, strict=True)
    return np.stack([dtrtrs(matrix.T, columns, trans=trans)[0] for matrix, columns in pairs])


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
