"""Weighted normal draws, without a chain, for a nearly normal posterior, as many tables have.

S independent draws z of the normal approximation at the mode are all weighted with one pool of
rows, and with Pareto-smoothed weights represent the posterior. The log-weight of a draw is that of
posterior over normal approximation,

    r(z) = sum_k q_k(z) + sum_(i in pool) d_i(z) / c_i + log prior(z) + |z - centre|^2 / 2,

where the sum of the control variates q is known exactly and the sum of the residuals d is estimated
from the pool, the same for all draws. Rows that would be drawn more than once are included with
certainty (c_i = 1); the others are drawn in proportion to their expected residual, and c_i is the
expected number of times that row i is drawn.

The error of r(z) shifts the posterior mean of z_j by the posterior covariance of error and z_j. The
error is a sum over the rows that were drawn, so that with

    s_ij = E (z_j - E z_j) d_i(z) / c_i

the shift of the mean of z_j has variance R Var_i(s_ij) over pools of R drawn rows. R is in the
thousands, so that this variance is known to a percent or two. Three numbers tell whether all this
is accurate: the Pareto index k of the weights, their effective sample size, and the noise of the
pool.

A density that draws come from is normal, or normal given scales that are drawn first. Where its
draws do not suffice, it looks for a sharper one: with the moments of the posterior in place of
those at the mode; along skewed axes the quantiles of the posterior take the place of the normal's;
a few skewed coefficients are drawn first, like scales; and given these the log-likelihood is
followed on average over draws, not at its mode. Each is judged by the same three numbers, and taken
if it is better.

Draws of equal weight are often handier. The independence sampler makes them: a chain whose
proposals are the draws, each accepted with probability min(1, w' / w), leaves the weighted
distribution invariant. If weights hardly vary, nearly all proposals are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, isfinite
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import jax
import numpy as np

from modicum.arguments import at_least
from modicum.arrays import as_either
from modicum.diagnostics.weighted import pareto_smoothed
from modicum.errors import ConvergenceError, ModicumWarning, SettingError, listed
from modicum.kernels.control_variates import LinearRows, LinearTaylor, Places
from modicum.kernels.residuals import DRAWS, row_residuals
from modicum.kernels.whitening import Curves, along_curves
from modicum.methods.given_scales import LevelProposals, Pooled, has_pooled_scales, not_pooled
from modicum.methods.method import Coordinates, Method, Outcome, Parameters, Plan, Task, Tuning
from modicum.methods.nested_draws import Nested, ScaleDensity, ScaleKernels, nested_draws
from modicum.methods.normal_noise import normal_given_scales, notes_at_mode
from modicum.methods.pilot.anchored_proxy import AnchoredProxy, StudySettings, check_task
from modicum.methods.pilot.study import Weights, weigh
from modicum.methods.quadratics import TooLittleNoiseError
from modicum.methods.skewed_axes import (
    AxisMoments,
    curves_on_all_rows,
    explain_curves,
    may_be_curved,
    skewed_axes,
    skewed_places,
)
from modicum.models.model import DENSE_LIMIT
from modicum.passes import Anchor
from modicum.random import Stream, generator
from modicum.run.runner import History
from modicum.runtime import backend, in_double_precision, in_threads

LOST = 1e12  # a proxy so large, hundreds of sds away, that its residuals are rounding errors
LOST_IN_POOL = 1e6  # where residuals of some rows, which may be off by a per cent, tell nothing


class WeighingPool:
    """Rows with the expected number of times each was drawn, ready to be evaluated.

    Parameters
    ----------
    weights
        The weights of all rows, and control variates at the mode.
    size
        Rows in the pool, at most all rows.
    """

    def __init__(self, weights: Weights, size: int) -> None:
        self.weights = weights
        # Draws are absolute, not relative to scales.
        proxy = jax.tree.map(np.asarray, weights.about.proxy.mapped(warp=None))
        self.about = replace(weights.about, proxy=proxy)
        rng = generator(self.about.task.seed, Stream.LAPLACE_ROWS)
        sampled = weights.sample(rng, size)
        self.rows, self.certain = sampled.number, sampled.certain
        self._residuals = row_residuals(self.about.control_variate, sampled.batch, proxy)

    @in_double_precision
    @np.errstate(invalid="ignore", over="ignore")  # far from the mode, densities may be 0
    def weigh(self, z: np.ndarray, middle: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """Return the log-posterior at draws, up to a constant, and the noise of the pool.

        The draws (S, d), in whitened coordinates, have the mean `middle`, by default the centre.
        The noise is the largest sd of the shift of a posterior mean due to the pool, in posterior
        sds.
        """
        about = self.about
        middle = about.centre if middle is None else middle
        about.task.ledger.add("weights", self.rows * len(z), "density")
        total, by_predictor = np.zeros(len(z)), self._predictor is not None
        slopes = np.zeros((self.rows, 0 if by_predictor else z.shape[1]))
        for block, rows, values in self._residuals.in_blocks(z):
            total[block] += values.sum(axis=1)
            if not by_predictor and self.certain < self.rows:
                slopes[rows] += values.T @ (z[block] - middle)
        proxy = about.log_proxy(z)
        lost = LOST if self.certain == self.rows else LOST_IN_POOL
        log_posterior = np.where(np.abs(proxy) > lost, -np.inf, total + proxy)
        if by_predictor:
            return log_posterior, self._noise(self._shifts_by_predictor(z[:DRAWS]))
        drawn = slopes[self.certain :] / len(z)
        return log_posterior, self._noise(some @ self._units.T for some in (drawn,))

    def enlarged(self, size: int) -> WeighingPool:
        """Return a pool of `size` rows, or this one if it has as many, or all."""
        larger = self.rows < min(size, len(self.about.task.rows))
        return WeighingPool(self.weights, size) if larger else self

    def whitened(self) -> Iterator[np.ndarray]:
        """Yield the columns of rows, whitened, some at a time; none without a linear predictor."""
        return self.about.whitened(self._residuals)

    def log_posterior(self, z: np.ndarray) -> np.ndarray:
        """Estimate the log-posterior at whitened points (S, d), up to a constant."""
        return self.weigh(z)[0]

    @property
    def _predictor(self) -> LinearTaylor | None:
        """The control variates, if coefficients of one predictor are all parameters."""
        about = self.about
        is_all = about.task.target.likelihood.size == about.task.target.size and not about.arrow
        return about.linear if is_all else None

    @cached_property
    def _units(self) -> np.ndarray:
        """Directions in which a posterior mean moves by one sd, (d, d)."""
        L = self.about.anchor.dense_factor
        return L / np.maximum(np.sqrt(np.sum(L**2, axis=1, keepdims=True)), 1e-300)

    @cached_property
    def _units_as_places(self) -> Places:
        assert self._predictor is not None
        return self._predictor.places(as_either(self._units), self.about.proxy)

    def _shifts_by_predictor(self, z: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the covariance s_ij of drawn rows' residuals with each t_j, some rows at a time.

        A few draws z suffice, where those of rows with thousands of coefficients otherwise take as
        many as there are of these.
        """
        linear, units = self._predictor, self._units_as_places
        assert linear is not None
        places = linear.places(as_either(z), self.about.proxy)

        @np.errstate(all="ignore")
        def of_block(block: LinearRows) -> np.ndarray:
            return linear.covariances(block, places, units)

        skipped, sizes = self.certain, np.diff(self._residuals.ends)
        for shifts, size in zip(in_threads(of_block, self._residuals.blocks), sizes, strict=True):
            yield shifts[skipped:size]
            skipped = max(0, skipped - len(shifts))

    def _noise(self, shifts: Iterable[np.ndarray]) -> float:
        """Return the largest sd over pools of the shift of a parameter's mean, in posterior sd.

        `shifts` are those of the rows that are drawn, computed only if there are any.
        """
        number = self.rows - self.certain
        if number < 2:
            return 0.0
        first, second = np.zeros((2, len(self._units)))
        for some in shifts:
            first += some.sum(axis=0)
            second += np.einsum("ij,ij->j", some, some)
        return float(np.sqrt(np.max(second - first**2 / number) * number / (number - 1)))


# Smallest share of effective draws: chains of models with groups have no more. And the share below
# which a draw of equal weight takes several proposals: else it is the last state of several, so
# that few draws are alike.
LEAST, EFFECTIVE = 0.15, 0.6
MOST = 0.8  # share of effective draws above which the limit of k is wider
# Above this share of effective draws weights move no mean by more than sqrt(1 / share - 1) = .03
# posterior sds, whatever the shape of their tail, and the limit of k is 0.7.
ALIKE = 0.999
RICH = 0.8  # effective proposals per draw of equal weight, so that few draws are alike
FAR = 0.7  # Pareto k above which weights are unreliable (Vehtari et al. 2024)
ENOUGH = 0.5  # Pareto k below which weighted draws are as good as draws of the posterior
NOISY = 0.05  # standard error of a mean, in posterior sd, above which a pool is too small
STILL = 0.01  # standard error that a pool of automatic size aims at
QUIET = 0.0125  # standard error above which draws are not chosen
FIRST_POOL = 500  # rows that may show that so few suffice
LEAST_POOL, MOST_POOL = 2_000, 20_000  # rows of a pool of automatic size otherwise
MOST_FOLLOWED = 1_000_000  # rows of which some hundred passes take no longer than NUTS
# Of more rows, HMC-ECS is sooner than such passes.
FEW_ROWS = 100_000
TRIAL = 4_096  # most draws on which the verdict rests
FEWEST = 1_000  # fewest draws
TIMES = 3  # that scales are drawn, at most: each time from kernels about the draws before
PASSES = 5  # over draws, at most: each time their density follows the posterior more closely
HOPELESS = 0.01  # share of effective draws below which draws tell nothing of the posterior
SEVERAL = (8, 32)  # proposals for the effects of each level
MOST_OF_LEVELS = 300_000  # rows times proposals, above which chains are sooner
GAINED = 1.1  # times as many effective draws, below which another pass is not worth its time
FIRST = 24  # proposals of the independence sampler that are discarded as burn-in


ROOM = 0.4  # largest Pareto k otherwise: of two modes, draws of one show no more than 0.5
# Limits of Pareto k, each from some share of effective draws on.
Limits: TypeAlias = tuple[tuple[float, float], ...]
WITH_ROOM: Limits = ((ALIKE, FAR), (MOST, ENOUGH), (0.0, ROOM))


class Verdict(NamedTuple):
    """How well weighted normal draws represent the posterior."""

    tail: float  # Pareto k
    share: float  # effective draws per draw
    noise: float  # sd of the shift of a posterior mean due to the pool, in posterior sds

    @classmethod
    def judge(cls, log_ratio: np.ndarray, noise: float) -> Verdict:
        """Judge draws with these log-weights."""
        if not np.any(np.isfinite(log_ratio)):
            return cls(np.inf, 0.0, noise)
        weights, tail = pareto_smoothed(log_ratio)
        return cls(tail, float(1 / np.sum(weights**2) / len(weights)), noise)

    @property
    def enough(self) -> bool:
        """Whether the draws are as good as draws of the posterior."""
        return self.tail < ENOUGH and self.noise < NOISY / 2

    def suffices(self, limits: Limits) -> bool:
        """Whether draws may take the place of a chain's."""
        limit = next(tail for share, tail in limits if self.share >= share)
        return self.tail < limit and self.noise < QUIET and self.share > LEAST

    @property
    def word(self) -> str:
        """What the numbers mean."""
        return "enough" if self.enough else "usable" if self.tail < FAR else "unreliable"

    def numbers(self, pool: int | None) -> str:
        """Return the three numbers, in words; `pool` is None if no rows weigh the draws."""
        if pool is None:
            return f"Pareto k {self.tail:.2f}, {self.share:.0%} effective"
        return (
            f"Pareto k {self.tail:.2f}, {self.share:.0%} effective, and the {pool:,} rows of the "
            f"pool move a posterior mean by {self.noise:.2g} posterior sd at most (one standard "
            "error)"
        )


class DensityDraws(NamedTuple):
    """Draws of a density close to the posterior, (length, chain)."""

    z: np.ndarray  # in the coordinates of the density, (length, chain, d)
    log_density: np.ndarray  # from which they were drawn, up to a constant
    # The log-posterior there, but for a constant or what `log_density` lacks too; None: rows tell.
    log_posterior: np.ndarray | None = None
    rest: np.ndarray | float = 0.0  # what it lacks
    nested: Nested | None = None  # scales, and coefficients given these


class NormalDensity(NamedTuple):
    """The normal approximation at the mode, or with moments of the posterior along every axis.

    Along curves, draws follow the quantiles of the posterior.

    Like any density that is close to the posterior, it can `draw` points, in the coordinates that
    `where` says, whose mean is `middle` if that is known; `limits` say when such draws suffice, and
    `sharpened` looks for a better density if they do not, or if few are effective; `tuning` is what
    to say about it.
    """

    where: Anchor
    centre: np.ndarray
    curves: Curves | None = None
    moments: AxisMoments | None = None
    limits: Limits = WITH_ROOM

    @property
    def middle(self) -> np.ndarray | None:
        """The mean of straight draws."""
        straight = self.curves is None and self.moments is None
        return self.centre if straight else None

    @property
    def passes(self) -> int:
        """Passes over draws, each over others, from which its moments were learned."""
        return 0 if self.moments is None else self.moments.passes

    @property
    def notes(self) -> list[ModicumWarning]:
        """Doubts about the mode."""
        return self.where.notes

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> DensityDraws:
        """Draw standard normal numbers, and bend them."""
        u = rng.standard_normal((*shape, len(self.centre)))
        log_density = -np.sum(u**2, axis=2) / 2
        if self.moments is not None:
            u, log_volume = self.moments.along(u)
            log_density -= log_volume
        if self.curves is not None:
            u, log_volume = map(np.asarray, along_curves(as_either(u), self.curves))
            log_density -= log_volume
        return DensityDraws(self.centre + u, log_density)

    def sharpened(self, best: Proposals, better: Better) -> Proposals:
        """Follow its moments, its quantiles along skewed axes, or coefficients."""
        best = self._with_moments(best, better)
        assert best.pool is not None
        task, log_posterior = best.task, best.pool.log_posterior
        if best.is_fine or not may_be_curved(task, self.where):
            return best
        curves = skewed_axes(log_posterior, self.centre, self.where, best.pool.whitened())
        if not task.grouped:
            task.known[curves_on_all_rows] = curves  # for NUTS, which need not search again
        if curves is not None:
            curved = self._replace(curves=curves)
            best, before = better(best, curved), best
            if best is not before:
                best = curved._with_moments(best, better)
        if curves is None or best.suffices:
            return best
        plain = Pooled.of(task.target, self.where)
        bent = _following(best, plain, np.zeros(0), np.arange(task.target.size))
        return best if bent is None else better(best, bent)

    def _with_moments(self, own: Proposals, better: Better) -> Proposals:
        """Follow the posterior's moments, learned from draws, while that helps."""
        if own.verdict.share > RICH or self.passes == PASSES:
            return own
        before = self.moments or AxisMoments.at_mode(len(self.centre))
        moments = before.followed(own.normals, own.log_ratio)
        if moments is None:
            return own
        sharper = self._replace(moments=moments)
        best = better(own, sharper)
        return own if best is own else sharper._with_moments(best, better)

    @property
    def description(self) -> str:
        """What the draws are."""
        if self.curves is None:
            moments = "" if self.moments is None else " with the posterior's moments"
            return f"weighted normal draws{moments}"
        count = self.curves.axes.shape[1]
        axes = "axis" if count == 1 else "axes"
        return f"weighted draws, normal but for {count} skewed {axes}"

    @property
    def tuning(self) -> Tuning:
        """The curved axes."""
        return explain_curves(self.curves)


class NestedDensity(NamedTuple):
    """Scales of pooled terms from their marginal, and coefficients given the scales.

    Coefficients in which the likelihood is far from a quadratic, as in an overdispersion, are drawn
    with the scales; there may be no others. With `levels`, the effects of each level of the largest
    factor are one of several proposals.
    """

    pooled: Pooled
    scales: ScaleDensity | ScaleKernels
    where: Coordinates
    notes: list[ModicumWarning]
    levels: LevelProposals | None = None
    middle: np.ndarray | None = None  # not known
    passes: int = 0  # its draws are made of the same numbers each time

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> DensityDraws:
        """Draw scales, then coefficients."""
        try:
            drawn = self._drawn(rng, shape)
        except np.linalg.LinAlgError as fault:  # at scales far out, where no prior holds them
            raise ConvergenceError(
                "given some scales of pooled terms the coefficients are not determined, so that "
                "method='laplace' cannot draw them; use method='nuts', or priors that are not flat."
            ) from fault
        if self.pooled.constant is None:
            log_density = drawn.log_proposal + drawn.log_given
            return DensityDraws(self.where.whiten(drawn.t), log_density, nested=drawn)
        rest = drawn.log_given + self.pooled.constant  # `where` are the parameters as they are
        return DensityDraws(drawn.t, drawn.log_proposal, drawn.log_marginal, rest)

    def _drawn(self, rng: np.random.Generator, shape: tuple[int, int]) -> Nested:
        """Draw; where scales are poor draws of their marginal, draw again from kernels there."""
        scales = self.scales
        share, best = -1.0, None
        for _ in range(TIMES if self.levels is None else 1):  # scales may follow weights, not p~
            drawn = nested_draws(self.pooled, scales, rng, shape, self.levels)
            h = self.pooled.scales_of(drawn.t.reshape(drawn.log_marginal.size, -1))
            # several draws may share their scales, and are one draw of these
            once = np.sort(np.unique(h[:, 0], return_index=True)[1])
            log_ratio = (drawn.log_marginal - drawn.log_proposal).ravel()[once]
            verdict = Verdict.judge(log_ratio, 0.0)
            if verdict.share > share:
                share, best = verdict.share, drawn
            if verdict.tail < ENOUGH and verdict.share > EFFECTIVE:
                break
            scales = ScaleKernels.of(self.pooled, h[once], pareto_smoothed(log_ratio)[0], rng)
        assert best is not None
        return best

    def sharpened(self, first: Proposals, better: Better) -> Proposals:
        """Follow skewed coefficients, then the log-likelihood on average; then choose by levels."""
        apart = not_pooled(first.task.target, len(self.pooled.origin))
        bent = _following(first, self.pooled, self.scales.mode, apart)
        best = first if bent is None else better(first, bent)
        own = self if bent is None or best is first else bent
        return own._averaged(best, better)

    def _averaged(self, own: Proposals, better: Better, passes: int = PASSES) -> Proposals:
        """Follow the log-likelihood on average over draws, not at its mode, while that helps."""
        is_worth_it = passes and not own.suffices and own.verdict.share > HOPELESS
        sharper = self._on_average(own) if is_worth_it else None
        best = own if sharper is None else better(own, sharper)
        if sharper is None or best is own:
            return self._by_levels(own, better)
        return sharper._averaged(best, better, passes - 1)

    def _on_average(self, own: Proposals) -> NestedDensity | None:
        """Return the density that follows the log-likelihood on average over draws, if it can."""
        pooled = self.pooled.averaged(*own.nested.gaps(own.log_ratio))
        if pooled is None:
            return None
        return self._replace(pooled=pooled, scales=own.nested.scales.of_changed(pooled))

    def _by_levels(self, best: Proposals, better: Better) -> Proposals:
        """Choose the effects of each level among several proposals, of more while that helps.

        What weights are left tell where the posterior has its scales, and these are drawn there.
        """
        assert best.pool is not None
        task, rng = best.task, generator(best.task.seed, Stream.LAPLACE_SCALES)
        if not self.pooled.information.levels or best.pool.certain < len(task.rows):
            return best
        shares = [(1, best.verdict.share)]
        for number in SEVERAL:
            is_hopeless = not best.suffices and _foreseen(shares, number) < LEAST
            if best.is_fine or is_hopeless or number * len(task.rows) > MOST_OF_LEVELS:
                break
            own, before = self._replace(levels=LevelProposals(task.target, task.rows, number)), best
            best = better(best, own._replace(scales=best.nested.scales))
            best = better(best, own._replace(scales=best.scales_by_weight(self.pooled, rng)))
            if best is before:
                break
            shares.append((number, best.verdict.share))
        return best

    @property
    def limits(self) -> Limits:
        """Limits of the tail.

        Where few groups leave a scale open, its density has a longer tail than any table, and
        hardly any weight there.
        """
        return ((MOST, FAR), (0.0, ENOUGH)) if self.pooled.terms else WITH_ROOM

    @property
    def description(self) -> str:
        """What the draws are."""
        apart = "skewed coefficients" if self.pooled.followed else "the scale of the noise"
        given = "the scales of pooled terms" if self.pooled.terms else apart
        return f"weighted draws, normal given {given}"

    @property
    def tuning(self) -> Tuning:
        """How many scales there are, and coefficients that are drawn with them."""
        number, followed = len(self.pooled.start) - self.pooled.followed, self.pooled.followed
        tuning: Tuning = {"skewed coefficients": followed} if followed else {}
        if number:
            tuning["scales"] = f"{number} drawn from their marginal, coefficients given these"
        if self.levels is not None:
            tuning["proposals per level"] = self.levels.number
        return tuning


def _foreseen(shares: Sequence[tuple[int, float]], number: int) -> float:
    """Foresee the share of effective draws with a number of proposals for each level.

    It is about exp(-variance of the log-weights), of which the part that levels have in it falls
    as one over their proposals. `shares` are those with fewer proposals; 1 if there is but one.
    """
    if len(shares) < 2:
        return 1.0
    (fewer, lower), (few, share) = shares[-2:]
    gain = share / max(lower, 1 / TRIAL)
    return float(share * gain ** ((1 / few - 1 / number) / (1 / fewer - 1 / few)))


Density: TypeAlias = NormalDensity | NestedDensity
Better: TypeAlias = Callable[["Proposals", Density], "Proposals"]  # of the better of two densities
NO_VERDICT = Verdict(np.inf, 0.0, np.inf)


class Proposals(NamedTuple):
    """Draws of a density close to the posterior, the first of which were weighted to judge them."""

    density: Density
    task: Task
    drawn: DensityDraws
    pool: WeighingPool | None = None  # rows that weigh them; None: the log-posterior is known
    log_posterior: np.ndarray = np.zeros(0)  # of those that were weighted
    verdict: Verdict = NO_VERDICT
    times: int = 1  # proposals per draw

    @classmethod
    def of(cls, density: Density, task: Task, first: int, times: int = 1) -> Proposals:
        """Draw `first` proposals plus those that the run needs."""
        task = task.of_few_chains()
        rng = _numbers(task.seed, density.passes)
        length = first + max(task.draws, ceil(FEWEST / task.chains))
        drawn = density.draw(rng, (length * times, task.chains))
        if drawn.log_posterior is None:
            return cls(density, task, drawn, times=times)
        # draws that share their scales have the same weight
        verdict = Verdict.judge(np.unique(drawn.log_posterior - drawn.log_density), 0.0)
        return cls(density, task, drawn, None, drawn.log_posterior.ravel(), verdict, times)

    @property
    def suffices(self) -> bool:
        """Whether the draws are good enough with room to spare."""
        return self.verdict.suffices(self.density.limits)

    @property
    def is_fine(self) -> bool:
        """Whether they are, and need no others to make a draw of equal weight."""
        return self.suffices and self.verdict.share > EFFECTIVE

    @property
    def log_ratio(self) -> np.ndarray:
        """The log-weights of those that were weighted."""
        return self.log_posterior - self.drawn.log_density.ravel()[: len(self.log_posterior)]

    @property
    def normals(self) -> np.ndarray:
        """The standard normal numbers of which those that were weighted were made."""
        rng = _numbers(self.task.seed, self.density.passes)
        return rng.standard_normal((len(self.log_posterior), self.drawn.z.shape[2]))

    @property
    def nested(self) -> Nested:
        """Scales, and coefficients given these; there must be scales."""
        assert self.drawn.nested is not None
        return self.drawn.nested

    def scales_by_weight(self, pooled: Pooled, rng: np.random.Generator) -> ScaleKernels:
        """Place kernels where draws that weigh most have their scales."""
        log_ratio, t = self.log_ratio, self.nested.t
        h = pooled.scales_of(t.reshape(-1, t.shape[2])[: len(log_ratio)])
        return ScaleKernels.of(pooled, h, pareto_smoothed(log_ratio)[0], rng)

    @property
    def numbers(self) -> str:
        """The verdict in numbers."""
        return self.verdict.numbers(None if self.pool is None else self.pool.rows)

    def weighed(self, pool: WeighingPool, most: int = TRIAL) -> Proposals:
        """Weigh the first thousands, or as many as `most`."""
        if pool is self.pool:
            return self
        drawn, middle = self.drawn, self.density.middle
        flat = drawn.z.reshape(-1, drawn.z.shape[2])[:most]
        known, noise = pool.weigh(flat, flat.mean(axis=0) if middle is None else middle)
        weighed = self._replace(pool=pool, log_posterior=known)
        return weighed._replace(verdict=Verdict.judge(weighed.log_ratio, noise))

    def all_weighed(self) -> DensityDraws:
        """Weigh the others too."""
        z, parts = self.drawn.z.reshape(-1, self.drawn.z.shape[2]), [self.log_posterior]
        if self.pool is None:
            return self.drawn
        if len(self.log_posterior) < len(z):
            parts.append(self.pool.log_posterior(z[len(self.log_posterior) :]))
        known = np.concatenate(parts).reshape(self.drawn.z.shape[:2])
        about = self.pool.about
        return self.drawn._replace(log_posterior=known, rest=about.anchor.C + about.folded_prior)


def _numbers(seed: int, passes: int) -> np.random.Generator:
    """Return the random numbers of draws whose density was learned in some passes over others."""
    rng = generator(seed, Stream.LAPLACE_DRAWS)
    return rng.spawn(passes)[-1] if passes else rng


@dataclass(frozen=True)
class Laplace(Method):
    """Independent draws of the normal approximation at the mode, weighted by a pool of rows.

    There is no warm-up. The method is accurate if the posterior is nearly normal, but for a few
    axes along which draws then follow its quantiles, or if it is given the scales of group effects,
    which are then drawn first. `Posterior.tuning["verdict"]` says whether it is.

    Parameters
    ----------
    pool
        Rows in the pool, at most all rows. None: 500, or as many more as keep its noise below
        0.01 posterior standard deviations, up to 20,000.
    weighted
        True: draws carry weights, which all summaries use. False: draws have equal weight, made by
        an independence sampler that proposes the weighted draws.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.Laplace(pool=20_000)
    Laplace(pool=20000, weighted=True)
    """

    pool: Annotated[int, at_least(2)] | None = None
    weighted: bool = True
    name: ClassVar[str] = "laplace"
    summary: ClassVar[str] = "normal draws at the mode, weighted by a pool of rows; no chain"
    has_warmup: ClassVar[bool] = False
    may_draw_normals = True
    of_few_rows: ClassVar[bool] = False
    of_digests: ClassVar[bool] = True

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Find the mode, study the rows, and draw."""
        if not task.target.model.has_mode:
            raise SettingError(
                "method='laplace' draws from a normal approximation at the mode and weights the "
                f"draws row by row, which is impossible with {type(task.target.model).__name__}; "
                "use method='hmc-ecs' or 'nuts'."
            )
        exact = self.normal_given_scales(task)
        if exact is not None:
            return self.of(exact)
        if task.target.likelihood.size < task.target.size and not has_pooled_scales(task.target):
            raise SettingError(
                "method='laplace' draws scales of groups if the model has at most "
                f"{DENSE_LIMIT:,} parameters, or a Gaussian outcome and normal priors, and no "
                "scale of a horseshoe; use method='hmc-ecs', 'hmc' or 'nuts'."
            )
        check_task(task)
        # As for HMC-ECS, whose programs on a GPU lack control variates of rare levels.
        settings = StudySettings(levels=backend() != "gpu")
        weights = weigh(settings, task, task.anchor_at_mode())
        density = nested_density(weights.about) or normal_density(weights.about)
        return self.of(self.weighed(weights, density, by_name=True))

    @property
    def _first(self) -> int:
        """Number of proposals before the first draw that is kept."""
        return 0 if self.weighted else FIRST

    @in_double_precision
    def normal_given_scales(self, task: Task) -> Proposals | None:
        """Draw from a model with normal noise, whose draws no row weighs; None for any other."""
        pooled = normal_given_scales(task)
        if pooled is None:
            return None
        try:
            scales = ScaleDensity.of(pooled)
        except TooLittleNoiseError:
            return None
        where = Parameters(np.zeros(task.target.size))
        density = NestedDensity(pooled, scales, where, notes_at_mode(task, pooled, scales))
        return Proposals.of(density, task, self._first)

    def weighed(self, weights: Weights, density: Density, by_name: bool = False) -> Proposals:
        """Return proposals of a density, or of a sharper one if they do not suffice.

        They are weighted with a pool of rows, which is enlarged if that may help. `by_name`: they
        are to be taken unless they are unreliable, not only if they suffice.
        """
        tail, task = FAR if by_name else ENOUGH, weights.about.task

        def weigh(density: Density, pool: WeighingPool) -> Proposals:
            proposals = Proposals.of(density, task, self._first).weighed(pool)
            if self.pool is None and not proposals.suffices:
                pool = pool.enlarged(LEAST_POOL)
                proposals = proposals.weighed(pool)
            noise = proposals.verdict.noise
            # above NOISY, a pool does not show the shape of the posterior
            if self.pool is None and noise > (STILL if proposals.verdict.tail < tail else NOISY):
                size = min(MOST_POOL, ceil(pool.rows * (noise / (0.8 * STILL)) ** 2))
                proposals = proposals.weighed(pool.enlarged(size))
            return proposals

        def better(best: Proposals, density: Density) -> Proposals:
            assert best.pool is not None
            try:
                proposals = weigh(density, best.pool)
            except ConvergenceError:
                return best
            gained = proposals.verdict.share > GAINED * best.verdict.share
            if best.suffices:
                return proposals if proposals.suffices and gained else best
            return proposals if proposals.suffices or gained else best

        best = weigh(density, WeighingPool(weights, self.pool or FIRST_POOL))
        if not best.is_fine:
            best = density.sharpened(best, better)
        verdict = best.verdict
        taken = verdict.tail < tail and (by_name or best.suffices)
        if taken and not self.weighted and LEAST < verdict.share < EFFECTIVE:
            # A draw of equal weight is the last state of several, so that few are alike. All of
            # them are judged: one of very many may weigh more than the first thousands showed.
            assert best.pool is not None
            repeated = Proposals.of(best.density, task, self._first, ceil(RICH / verdict.share))
            return repeated.weighed(best.pool, repeated.drawn.log_density.size)
        return best

    def of(self, proposals: Proposals) -> Plan:
        """Return the plan with all its draws, given proposals of which some were weighted."""
        density, verdict, pool = proposals.density, proposals.verdict, proposals.pool
        noise: Tuning = {} if pool is None else {"pool_noise": float(f"{verdict.noise:.2g}")}
        return Plan(
            kernel=None,
            context=None,
            flags={},
            anchor=density.where,
            tuning={
                "verdict": f"{verdict.word}: {proposals.numbers}",
                "pareto_k": round(verdict.tail, 3),
                **noise,
                **density.tuning,
            },
            notes=list(density.notes),
            history=self._drawn(proposals),
            finish=partial(_finish, _doubts(verdict, 0 if pool is None else pool.rows)),
        )

    def _drawn(self, proposals: Proposals) -> History:
        """Return draws with their weights, or draws of equal weight."""
        task, times, drawn = proposals.task, proposals.times, proposals.all_weighed()
        assert drawn.log_posterior is not None
        log_ratio = drawn.log_posterior - drawn.log_density
        stats = {"lp": drawn.log_posterior + drawn.rest}  # as in HMC-ECS, by the rows evaluated
        chains = np.arange(task.chains)
        places = np.tile(np.arange(len(log_ratio))[:, None], task.chains)
        if not self.weighted:
            chances = generator(task.seed, Stream.LAPLACE_ACCEPT).random(log_ratio.shape)
            places, rate = _independence_sampler(log_ratio, chances)
            if times > 1:
                stays = np.reshape(1 - rate, (-1, times, task.chains))
                places, rate = places[times - 1 :: times], 1 - stays.prod(axis=1)
            stats = {"lp": stats["lp"][places, chains], "acceptance_rate": rate}
        stats["rows_touched"] = np.zeros(places.shape, int)
        span = slice(self._first, self._first + task.draws)
        by_chain = {name: np.ascontiguousarray(values[span].T) for name, values in stats.items()}
        if self.weighted:
            ratios = log_ratio[span].T
            weights = pareto_smoothed(ratios.ravel())[0] * ratios.size
            by_chain["weight"] = weights.reshape(ratios.shape)
        return History(
            position=drawn.z[places[span].T, chains[:, None]],  # copied once: it may be large
            stats=by_chain,
            warmup={},
            complete=True,
            seconds={"warm-up": 0.0, "sampling": 0.0},
        )


def _finish(doubts: list[ModicumWarning], task: Task, plan: Plan, history: History) -> Outcome:
    weights = history.stats.pop("weight", None)  # a posterior keeps weights apart from stats
    # proposals have no step to make smaller: the verdict has judged what they are worth
    return Outcome(weights=weights, target_accept=0.0, warnings=doubts, independent=True)


def normal_density(about: AnchoredProxy) -> NormalDensity:
    """Return the normal approximation at the anchor."""
    return NormalDensity(about.anchor, about.centre)


def nested_density(about: AnchoredProxy) -> NestedDensity | None:
    """Return the density of nested draws, if all scales are those of pooled effects; else None."""
    if not has_pooled_scales(about.task.target):
        return None
    pooled = Pooled.of(about.task.target, about.anchor)
    scales, anchor = ScaleDensity.of(pooled), about.anchor
    return NestedDensity(pooled, scales, anchor, anchor.notes)


def _following(
    best: Proposals, pooled: Pooled, mode: np.ndarray, places: np.ndarray
) -> NestedDensity | None:
    """Let quadratics follow those of some coefficients in which the posterior is skewed."""
    assert best.pool is not None
    about, anchor = best.pool.about, best.pool.about.anchor
    most = MOST_FOLLOWED if pooled.terms else FEW_ROWS
    if len(best.task.rows.members) > most or not may_be_curved(best.task, anchor):
        return None
    skewed = skewed_places(best.pool.log_posterior, about.centre, anchor, places)
    bent = pooled.bent(about.task.sums, anchor, mode, skewed)
    if bent is None:
        return None
    return NestedDensity(bent, ScaleDensity.of(bent), anchor, anchor.notes)


def _independence_sampler(
    log_ratio: np.ndarray, chances: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which proposal is each chain's state after every step, and acceptance probabilities.

    `chances` are uniform random numbers, one per proposal; arrays are (length, chain).
    """
    places = np.zeros(log_ratio.shape, int)
    with np.errstate(divide="ignore"):
        thresholds = np.log(chances)
    for chain in range(log_ratio.shape[1]):  # of plain numbers, since each step waits for the last
        ratios, needed, place = log_ratio[:, chain].tolist(), thresholds[:, chain].tolist(), 0
        for k, ratio in enumerate(ratios):
            # a state of zero density accepts any proposal
            if needed[k] < ratio - ratios[place] or not isfinite(ratios[place]):
                place = k
            places[k, chain] = place
    before = np.take_along_axis(log_ratio, places[:-1], axis=0)
    with np.errstate(invalid="ignore"):
        rise = np.where(np.isfinite(before), log_ratio[1:] - before, 0.0)
    return places, np.r_[np.ones((1, len(places.T))), np.exp(np.minimum(rise, 0.0))]


@listed
def _doubts(verdict: Verdict, size: int) -> Iterator[ModicumWarning]:
    if not verdict.tail < FAR:
        yield ModicumWarning(
            "laplace-far",
            "the posterior is too far from normal for weighted normal draws: the tail index k "
            f"of their weights is {verdict.tail:.2f} (limit {FAR})",
            "use method='hmc-ecs'",
            pareto_k=verdict.tail,
        )
    if verdict.noise > NOISY:
        yield ModicumWarning(
            "laplace-pool",
            f"the pool of {size:,} rows that weights the draws is too small: it may move a "
            f"posterior mean by {verdict.noise:.2g} posterior sd (one standard error)",
            "use a larger pool, mo.Laplace(pool=...), or method='hmc-ecs'",
            noise=verdict.noise,
        )
