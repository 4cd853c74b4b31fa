"""What draws are worth: effective sample size, R-hat, Monte Carlo error, inefficiency and cost.

Effective sample sizes and R-hat are the rank-normalised estimators of Vehtari et al., with Geyer's
sums as in Stan and ArviZ, for all scalars of an array at once. The tests compare them with ArviZ,
which is not used here because importing it takes longer than many a fit and its functions handle
scalars one by one.

References
----------
Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis.

Geyer (1992), "Practical Markov chain Monte Carlo", Statistical Science.

Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari and Gelman (2022), "Nested R-hat: assessing the
convergence of Markov chain Monte Carlo when running many short chains", arXiv 2110.13017.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import floor, isqrt, log10, prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.errors import SettingError, is_number, whole_number
from modicum.runtime import in_blocks, in_threads

MOST_BATCHES = 40  # per chain; shorter batches would be biased
Floats = NDArray[np.float64]
PerScalar: TypeAlias = Any  # a float for draws of one scalar, an array for draws of several


def as_chains(x: ArrayLike) -> NDArray[np.float64]:
    """Bring draws to the shape (chain, draw, *shape); a plain series is one chain.

    Examples
    --------
    >>> as_chains([1, 2, 3]).shape
    (1, 3)
    """
    values = np.asarray(x, dtype=np.float64)
    if values.ndim == 0:
        raise SettingError("a diagnostic needs a series of draws, not a single number.")
    return values[None] if values.ndim == 1 else values


LARGE = 2**22  # numbers above which threads share the work
IN_CACHE = 2**17  # numbers that a processor's cache holds


def over_chains(
    x: NDArray[Any], measure: Callable[[NDArray[Any]], tuple[NDArray[Any], ...]]
) -> tuple[NDArray[Any], ...]:
    """Apply `measure` to all chains, or to a few at a time by threads if they are gigabytes.

    Parameters
    ----------
    x
        Draws (chain, draw, *shape).
    measure
        Returns arrays with one entry per chain, which are joined.
    """
    step = len(x) if x.size <= LARGE else IN_CACHE * len(x) // x.size
    return in_blocks(lambda some: measure(x[some]), len(x), step)


def finite_and_moving(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which scalars of an array (chain, draw, *shape) are finite and not constant.

    The range is compared with the magnitude of the numbers, so that rounding errors of a constant
    series do not count as movement.
    """
    if x.shape[0] * x.shape[1] == 0:
        return np.zeros(x.shape[2:], dtype=bool)
    largest, smallest = over_chains(x, lambda a: (a.max(axis=1), a.min(axis=1)))
    largest, smallest = largest.max(axis=0), smallest.min(axis=0)
    finite = np.isfinite(largest) & np.isfinite(smallest)
    with np.errstate(invalid="ignore", over="ignore"):
        rounding = 4 * np.finfo(float).eps * np.maximum(np.abs(largest), np.abs(smallest))
        moving: NDArray[np.bool_] = finite & (largest - smallest > rounding)
    return moving


# Autoregression -------------------------------------------------------------------------


def inefficiency(x: ArrayLike) -> PerScalar:
    """Inefficiency factor IF: how many draws are worth one independent draw.

    ``IF = R / ESS`` with ``ESS = R var(x) / spec0``, the variance with divisor R - 1 and `spec0`
    from `autoregressive_spectrum`. For several chains it is the average of their factors. A chain
    that never moves has ESS 0, so IF ``inf``; fewer than four draws, or values that are not finite,
    give ``nan``.

    The order of the autoregression is capped near 40, so a small component that decays much more
    slowly is missed; `batch_means_inefficiency` detects it. Report both.

    Parameters
    ----------
    x
        A series, or an array (chain, draw, *shape).

    Examples
    --------
    >>> from scipy.signal import lfilter
    >>> noise = np.random.default_rng(1).normal(size=100_000)
    >>> round(inefficiency(lfilter([1], [1, -0.5], noise)), 1)  # (1 + .5) / (1 - .5)
    3.0
    """
    chains = as_chains(x)
    count, draws, shape = chains.shape[0], chains.shape[1], chains.shape[2:]
    if draws < 4:
        return np.full(shape, np.nan) if shape else float("nan")
    # one factor per chain and scalar: columns of (draw, chain * scalars)
    columns = np.moveaxis(chains, 1, 0).reshape(draws, -1)
    moving = finite_and_moving(columns[None])
    factor = np.where(np.isfinite(columns).all(axis=0), np.inf, np.nan)
    if moving.any():
        moved = columns[:, moving]
        with np.errstate(all="ignore"):
            factor[moving] = autoregressive_spectrum(moved)[0] / moved.var(axis=0, ddof=1)
    mean = factor.reshape(count, *shape).mean(axis=0)
    return mean if shape else float(mean)


def autoregressive_spectrum(x: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Spectral density at frequency zero of each column of (draw, series), and the chosen order.

    This is ``spectrum0.ar`` of the R package CODA, which the HMC-ECS paper uses (section 6.2).
    Yule-Walker equations on autocovariances with divisor R, solved order by order (Levinson);
    the order up to ``min(R - 1, floor(10 log10 R))`` with the least ``R log v + 2 p`` is kept;
    ``spec0 = v R / (R - p - 1) / (1 - sum phi)^2``.
    """
    draws, series = x.shape
    most = min(draws - 1, floor(10 * log10(draws)))
    centred = x - x.mean(axis=0)
    # divisor R at every lag, not R - k, makes the fitted autoregression stationary
    r = np.stack(
        [np.einsum("ts,ts->s", centred[: draws - k], centred[k:]) / draws for k in range(most + 1)]
    )
    phi = np.zeros((0, series))
    v = r[0]
    order, total, innovation = np.zeros(series, dtype=np.int64), np.zeros(series), v.copy()
    best = draws * np.log(v)
    for p in range(1, most + 1):
        k = (r[p] - np.sum(phi * r[p - 1 : 0 : -1], axis=0)) / v
        phi = np.concatenate([phi - k * phi[::-1], k[None]])
        v = v * (1 - k * k)
        criterion = draws * np.log(v) + 2 * p
        better = criterion < best
        best = np.where(better, criterion, best)
        order = np.where(better, p, order)
        total = np.where(better, phi.sum(axis=0), total)
        innovation = np.where(better, v, innovation)
    return innovation * draws / (draws - (order + 1)) / (1 - total) ** 2, order


# Batch means ----------------------------------------------------------------------------


def batch_means_variance(x: ArrayLike, batches: int | None = None) -> PerScalar:
    """Long-run variance of each scalar: R times the variance of a mean of R draws.

    Chains are cut into batches of b successive draws. The result is b times the variance of the
    batch means of all chains about their common mean, so that chains that disagree raise it. If b
    does not divide the length of a chain, its first draws are left out.

    Parameters
    ----------
    x
        A series, or an array (chain, draw, *shape).
    batches
        Batches per chain; by default the square root of its length, at most 40.
    """
    chains = as_chains(x)
    draws, shape = chains.shape[1], chains.shape[2:]
    if batches is not None and batches < 2:
        raise SettingError(f"batch means need at least two batches, not {batches}.")
    count = min(isqrt(draws), MOST_BATCHES) if batches is None else batches
    length = draws // count if count else 0
    if draws < 4 or length < 1:
        return np.full(shape, np.nan) if shape else float("nan")
    cut = chains[:, draws - count * length :]
    with np.errstate(all="ignore"):
        means = cut.reshape(len(chains), count, length, *shape).mean(axis=2)
        variance = length * means.var(axis=(0, 1), ddof=1)
    return variance if shape else float(variance)


def batch_means_inefficiency(x: ArrayLike, batches: int | None = None) -> PerScalar:
    """Inefficiency factor by batch means: long-run variance over plain variance.

    It detects slow components whose share of the variance is too small for the autoregressive
    estimate (`modicum.diagnostics.convergence`), but is noisier: with B batches its relative
    standard error is ``sqrt(2 / B)``.

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(4, 10_000))
    >>> bool(abs(batch_means_inefficiency(x) - 1) < 0.4)
    True
    """
    chains = as_chains(x)
    with np.errstate(all="ignore"):
        variance = chains.var(axis=(0, 1), ddof=1) if chains.shape[1] > 1 else np.nan
        # as in CODA, a constant series has ESS 0
        ratio = np.where(
            finite_and_moving(chains), batch_means_variance(chains, batches) / variance, np.inf
        )
    ratio = np.where(np.isfinite(chains).all(axis=(0, 1)) & (chains.shape[1] >= 4), ratio, np.nan)
    return ratio if ratio.shape else float(ratio)


# Cost of an independent draw ------------------------------------------------------------


def computational_time(
    inefficiency: ArrayLike, evaluations: float, mean_sign: ArrayLike = 1.0
) -> PerScalar:
    """Return the computational time ``CT = IF / (2 tau - 1)^2 * evaluations`` (eqs. 3.2, 5.4).

    Parameters
    ----------
    inefficiency
        The inefficiency factor IF. For signed draws it must be that of ``s (psi - I)``, not of
        psi: signs that change quickly reduce the autocorrelation.
    evaluations
        Row evaluations of the run (`modicum.ledger.Ledger.evaluations`).
    mean_sign
        The average sign ``2 tau - 1``, where tau is the share of positive signs; 1 where the
        likelihood estimate cannot be negative.

    Examples
    --------
    >>> computational_time(2.0, 1_000)
    2000.0
    >>> computational_time(2.0, 1_000, mean_sign=0.5)
    8000.0
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        time = np.asarray(inefficiency, float) * evaluations / np.asarray(mean_sign, float) ** 2
    return time if time.shape else float(time)


def relative_computational_time(reference: ArrayLike, other: ArrayLike) -> PerScalar:
    """Return the ratio ``CT(other) / CT(reference)``; above 1, the reference is better.

    The HMC-ECS paper's tables 1 and 3 hold this ratio with perturbed HMC-ECS as the reference.

    Examples
    --------
    >>> relative_computational_time(2_000, 8_000)
    4.0
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(other, float) / np.asarray(reference, float)
    return ratio if ratio.shape else float(ratio)


NODES = 200  # of Gauss-Hermite quadrature over the estimate's error


def optimal_variance(correlation: float = 0.0) -> float:
    """Variance of a log-likelihood estimate that minimises the cost of a pseudo-marginal chain.

    This is the rule of Pitt et al. (2012), and of Quiroz et al. for estimates whose errors at the
    current and the proposed point are correlated; the HMC-ECS paper sets m by it (sections 4 and
    6.3). It assumes that the estimate's error Z is normal and that proposals of the parameters are
    perfect, so that the inefficiency is E[(2 - a(Z)) / a(Z)] with a(Z) the probability of leaving
    Z, and that the number of rows is inversely proportional to the variance. It ignores bias: the
    perturbed method also needs an error that varies little over the posterior, and so a variance
    near 1.

    Parameters
    ----------
    correlation
        Correlation of the two errors; 1 - K / G if K of G blocks are refreshed.

    Examples
    --------
    >>> [round(optimal_variance(rho), 2) for rho in (0.0, 0.5)]
    [0.85, 2.81]
    >>> round(optimal_variance(0.99))
    232
    """
    from scipy.optimize import minimize_scalar

    if not is_number(correlation) or not 0 <= correlation < 1:
        raise SettingError("correlation must be a number from 0 to below 1, such as 0.99.")
    limit = np.log(2.16**2 / (1 - correlation**2))  # the optimum as the correlation tends to 1
    cost = minimize_scalar(
        lambda log: np.log(_inefficiency(np.exp(log), correlation)) - log,
        bounds=(limit - 3, limit + 1),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(cost.x))


def _inefficiency(variance: float, rho: float) -> float:
    """E[(2 - a(Z)) / a(Z)] for Z ~ N(s^2 / 2, s^2), its distribution at stationarity.

    A proposal's error is N(-s^2 (1 - rho) / 2 + rho Z, s^2 (1 - rho^2)) given Z.
    """
    from scipy.special import log_ndtr

    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    z = variance / 2 + np.sqrt(variance) * nodes
    mean = -variance * (1 - rho) / 2 - (1 - rho) * z  # of the log acceptance ratio
    tau = np.sqrt(variance * (1 - rho**2))  # its standard deviation
    log_leave = np.logaddexp(log_ndtr(mean / tau), mean + tau**2 / 2 + log_ndtr(-mean / tau - tau))
    return float(weights @ (2 * np.exp(-log_leave) - 1) / weights.sum())


TOGETHER = 2**20  # numbers that are ranked and transformed at a time
# Draws above which only some of many chains are: 2^17 give autocorrelation times to two per cent.
MOST_RANKED, FEWEST_CHAINS = 2**17, 16
CONSTANT = 1e-15  # a series with a range below this counts as constant


@dataclass(frozen=True)
class Scalars:
    """Draws (scalar, chain, draw) of a few scalars, which stand for `times` as many."""

    draws: Floats
    times: float

    @cached_property
    def halves(self) -> Floats:
        """The halves of chains, as chains."""
        return _halves(self.draws)

    @cached_property
    def scores(self) -> Floats:
        """Normal quantiles of the ranks of halves."""
        return _normal_scores(self.halves)

    def bulk(self) -> Floats:
        """Effective sample size of ranks."""
        return self.times * _effective(self.scores)

    def tail(self, prob: float = 0.9) -> Floats:
        """Effective sample size for the end of an interval that has the smaller one."""
        ends = np.quantile(self.draws, [(1 - prob) / 2, (1 + prob) / 2], axis=(1, 2))
        low, high = (_effective(1.0 * (self.halves <= end[:, None, None])) for end in ends)
        return self.times * np.minimum(low, high)

    def of_mean(self) -> Floats:
        """Effective sample size for the mean."""
        a = self.draws - self.draws.mean(axis=(1, 2), keepdims=True)
        return self.times * _effective(_halves(a / a.std(axis=(1, 2), ddof=1, keepdims=True)))

    def error(self) -> Floats:
        """Monte Carlo standard error of the mean."""
        return np.asarray(self.draws.std(axis=(1, 2), ddof=1) / np.sqrt(self.of_mean()))

    def r_hat(self) -> Floats:
        """Rank-normalised split R-hat of bulk and tails, whichever is larger."""
        scalars, chains, draws = self.draws.shape
        if chains == 1 and draws < 8:
            return np.full(scalars, np.nan)
        folded = np.abs(self.halves - np.median(self.halves, axis=(1, 2), keepdims=True))
        scores = self.scores, _normal_scores(folded)
        return np.fmax(*(_ratio(a.mean(2).T, a.var(2, ddof=1).T, a.shape[2]) for a in scores))


def ess(x: ArrayLike) -> PerScalar:
    """Bulk effective sample size of each scalar in an array (chain, draw, *shape).

    ``nan`` where there are fewer than four draws, where a value is not finite and where the
    series is constant. Of thousands of chains, evenly spaced ones stand for all.

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(4, 500, 2))
    >>> ess(x).shape, bool(np.all(ess(x) > 1500))
    ((2,), True)
    """
    return _per_scalar(x, Scalars.bulk)[0]


def ess_tail(x: ArrayLike, prob: float = 0.9) -> PerScalar:
    """Effective sample size for the two ends of the central interval of probability `prob`."""
    return _per_scalar(x, lambda a: a.tail(prob))[0]


def ess_mean(x: ArrayLike) -> PerScalar:
    """Effective sample size for the mean: that of the draws themselves, not of their ranks."""
    return _per_scalar(x, Scalars.of_mean)[0]


def mcse(x: ArrayLike) -> PerScalar:
    """Monte Carlo standard error of the mean."""
    return _per_scalar(x, Scalars.error)[0]


def r_hat(x: ArrayLike) -> PerScalar:
    """Rank-normalised split R-hat; with one chain its two halves are compared.

    ``inf`` where no chain moves and their values differ; ``nan`` as in `ess`, and for one chain of
    fewer than eight draws. Of thousands of chains, some are ranked, and all compared without ranks.

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(4, 500))
    >>> bool(r_hat(x) < 1.01), bool(r_hat(x + np.arange(4)[:, None]) > 1.1)
    (True, True)
    """
    return _of_all_chains(x, _per_scalar(x, Scalars.r_hat)[0])


def convergence_of(x: ArrayLike) -> tuple[PerScalar, PerScalar, PerScalar, PerScalar]:
    """Return `mcse`, `ess`, `ess_tail` and `r_hat`, which share the ranks of draws."""
    measures = Scalars.error, Scalars.bulk, Scalars.tail, Scalars.r_hat
    error, bulk, tail, ranked = _per_scalar(x, *measures)
    return error, bulk, tail, _of_all_chains(x, ranked)


def _of_all_chains(x: ArrayLike, ranked: PerScalar) -> PerScalar:
    """Return the larger of the R-hat of ranked chains and, where these are some, of all chains."""
    chains = as_chains(x)
    if _every(chains) == 1:
        return ranked
    half = chains.shape[1] // 2
    with np.errstate(all="ignore"):
        of_halves = over_chains(chains, lambda a: _moments(a[:, :half]) + _moments(a[:, -half:]))
        of_all = _ratio(np.concatenate(of_halves[::2]), np.concatenate(of_halves[1::2]), half)
    of_all = np.where(np.isnan(ranked), np.nan, np.fmax(ranked, of_all))
    return of_all if of_all.ndim else float(of_all)


def nested_r_hat(x: ArrayLike, superchains: int) -> PerScalar:
    """Nested R-hat of each scalar in an array (chain, draw, *shape), for many short chains.

    Consecutive chains form `superchains` groups of equal size, and the chains of a group begin at
    the same point. R-hat requires every single chain to be long; nested R-hat averages over the
    chains of a group, and still detects the influence of their common start:

        sqrt(1 + B / W),

    with B the variance of the groups' means, and W the mean over groups of the variance between
    their chains' means plus that within chains. The chains of a group must begin at the same point:
    with independent starts B does not measure the influence of the start.

    ``inf`` where no chain moves; ``nan`` where a value is not finite or all are equal. Chains may
    have a single draw.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=(64, 5))  # 16 groups of four chains
    >>> start = np.repeat(rng.normal(size=16), 4)[:, None]
    >>> bool(nested_r_hat(x, 16) < 1.05), bool(nested_r_hat(x + start, 16) > 1.2)
    (True, True)
    """
    chains = as_chains(x)
    groups = whole_number("superchains", superchains, 2)
    if len(chains) % groups:
        raise SettingError(
            f"{len(chains)} chains cannot be divided into {groups} superchains of equal size."
        )
    size, draws, shape = len(chains) // groups, chains.shape[1], chains.shape[2:]
    if not draws:
        return np.full(shape, np.nan) if shape else float("nan")
    with np.errstate(all="ignore"):
        means, variances = over_chains(chains, _moments)  # NaN of what is not finite
        means = means.reshape(groups, size, *shape)
        between = means.mean(axis=1).var(axis=0, ddof=1)
        within = np.zeros(shape)
        if size > 1:
            within = within + means.var(axis=1, ddof=1).mean(axis=0)
        if draws > 1:
            within = within + variances.mean(axis=0)
        ratio = np.asarray(np.sqrt(1 + between / within))
    return ratio if shape else float(ratio)


def _every(chains: Floats) -> int:
    """Return how many chains one of them stands for, where there are very many."""
    every = chains.shape[0] * chains.shape[1] // MOST_RANKED
    return max(1, min(every, len(chains) // FEWEST_CHAINS))


def _per_scalar(x: ArrayLike, *measures: Callable[[Scalars], Floats]) -> list[PerScalar]:
    """Apply measures to the scalars that are finite and not constant; the rest are ``nan``.

    They are called with a few scalars at a time, by several threads. Chains of fewer than four
    draws give ``nan``.
    """
    all_chains = as_chains(x)
    chains = all_chains[:: _every(all_chains)]
    times = len(all_chains) / max(1, len(chains))
    flat = chains.reshape(*chains.shape[:2], prod(chains.shape[2:]))
    result = np.full((len(measures), flat.shape[2]), np.nan)
    if chains.shape[1] >= 4:
        places = np.flatnonzero(finite_and_moving(flat))
        evenly = -(-len(places) // (os.cpu_count() or 1))  # so that every core has a part
        together = max(1, min(evenly, TOGETHER // (flat.shape[0] * flat.shape[1])))
        parts = [places[start : start + together] for start in range(0, len(places), together)]

        def fill(part: NDArray[np.intp]) -> None:
            scalars = Scalars(np.ascontiguousarray(np.moveaxis(flat[:, :, part], 2, 0)), times)
            with np.errstate(all="ignore"):
                result[:, part] = [measure(scalars) for measure in measures]

        list((in_threads if len(parts) > 1 else map)(fill, parts))
    shape = chains.shape[2:]
    return [of_all.reshape(shape) if shape else float(of_all[0]) for of_all in result]


def _halves(a: Floats) -> Floats:
    """Split each chain into halves, as chains; the middle draw of an odd number is left out."""
    half = a.shape[2] // 2
    return np.concatenate([a[..., :half], a[..., -half:]], axis=1)


def _normal_scores(a: Floats) -> Floats:
    """Normal quantiles of the ranks of a scalar's values, by Blom's offsets (eq. 14)."""
    from scipy.special import ndtri

    scores: Floats = np.empty((len(a), a[0].size))
    for x, of_scalar in zip(a.reshape(scores.shape), scores, strict=True):
        order = np.argsort(x)
        ascending = x[order]
        first = np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]])
        ties = np.diff(first, append=x.size)
        ranks = first + (ties + 1) / 2  # from 1; ties get their mean rank
        of_scalar[order] = np.repeat(ndtri((ranks - 3 / 8) / (x.size + 1 / 4)), ties)
    return scores.reshape(a.shape)


def _moments(a: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of each chain's draws."""
    means = a.mean(axis=1)
    centred = a - means[:, None]
    return means, np.einsum("cn...,cn...->c...", centred, centred) / (a.shape[1] - 1)


def _ratio(means: Floats, variances: Floats, n: int) -> Floats:
    """R-hat of the moments of chains of n draws (eqs. 1 to 4): sqrt((B / W + n - 1) / n)."""
    between = n * means.var(axis=0, ddof=1)
    return np.asarray(np.sqrt((between / variances.mean(axis=0) + n - 1) / n))


def _effective(a: Floats) -> Floats:
    """N / tau of N draws of each scalar, with tau by Geyer's initial monotone sequence.

    Autocorrelations (eq. 10) are summed in pairs, up to the first pair that is not positive, each
    capped by the one before; the first half of the next pair, if positive, counts half as much.
    """
    chains, n = a.shape[1:]
    rho = _autocorrelations(a)
    pairs = rho[:, 0 : 2 * (n // 2) : 2] + rho[:, 1::2][:, : n // 2]
    most = max(0, (n - 1) // 2 - 1)  # most pairs such that the next one is known
    positive = np.logical_and.accumulate(pairs[:, :most] > 0, axis=1)
    count = positive.sum(axis=1)
    pair_sums = np.where(positive, np.minimum.accumulate(pairs[:, :most], axis=1), 0.0).sum(axis=1)
    scalar = np.arange(len(a))
    following = rho[scalar, 2 * count]
    following = np.where((following > 0) | (pairs[scalar, count] >= 0), following, 0.0)
    total = chains * n
    tau = np.maximum(-1 + 2 * pair_sums + following, 1 / np.log10(total))
    return np.where(np.ptp(a, axis=(1, 2)) < CONSTANT, total, total / tau)


def _autocorrelations(a: Floats) -> Floats:
    """Autocorrelations of each scalar over all chains, (scalar, lag)."""
    chains, n = a.shape[1:]
    # the least 2^k, 3 2^k or 5 2^k that is not below 2 n, for a fast transform; SciPy has such a
    # function, but importing `scipy.fft` takes longer than the transforms
    length = min(factor << (-(-(2 * n) // factor) - 1).bit_length() for factor in (1, 3, 5))
    means = a.mean(axis=2, keepdims=True)
    transformed = np.fft.rfft(a - means, n=length, axis=2)
    power = (transformed.real**2 + transformed.imag**2).mean(axis=1)
    covariance = np.fft.irfft(power, n=length, axis=1)[:, :n] / n
    within = covariance[:, :1] * n / (n - 1)
    total = covariance[:, :1] + (means[..., 0].var(axis=1, ddof=1)[:, None] if chains > 1 else 0.0)
    rho: Floats = 1 - (within - covariance) / total
    rho[:, 0] = 1
    return rho
