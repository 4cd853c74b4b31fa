"""Effective sample size, R-hat and Monte Carlo error, rank-normalised; and nested R-hat.

These are the estimators of Vehtari et al., with Geyer's sums as in Stan and ArviZ, for all scalars
of an array at once. The tests compare them with ArviZ, which is not used here because importing it
takes longer than many a fit and its functions handle scalars one by one.

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
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.diagnostics.inefficiency import PerScalar, as_chains, finite_and_moving
from modicum.errors import SettingError, whole_number

Floats = NDArray[np.float64]
TOGETHER = 2**20  # numbers that are ranked and transformed at a time
CONSTANT = 1e-15  # a series with a range below this counts as constant


def ess(x: ArrayLike) -> PerScalar:
    """Bulk effective sample size of each scalar in an array (chain, draw, *shape).

    ``nan`` where there are fewer than four draws, where a value is not finite and where the
    series is constant.

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(4, 500, 2))
    >>> ess(x).shape, bool(np.all(ess(x) > 1500))
    ((2,), True)
    """
    return _per_scalar(x, lambda a: _effective(_normal_scores(_halves(a))))


def ess_tail(x: ArrayLike, prob: float = 0.9) -> PerScalar:
    """Effective sample size for the two ends of the central interval of probability `prob`."""
    tail = (1 - prob) / 2

    def of_ends(a: Floats) -> Floats:
        ends = np.quantile(a, (tail, 1 - tail), axis=(1, 2))[..., None, None]
        low, high = (_effective(_halves((a <= end).astype(np.float64))) for end in ends)
        return np.minimum(low, high)

    return _per_scalar(x, of_ends)


def mcse(x: ArrayLike) -> PerScalar:
    """Monte Carlo standard error of the mean."""

    def standard_error(a: Floats) -> Floats:
        unit = a.std(axis=(1, 2), ddof=1)
        centred = (a - a.mean(axis=(1, 2), keepdims=True)) / unit[:, None, None]
        return np.asarray(unit / np.sqrt(_effective(_halves(centred))))

    return _per_scalar(x, standard_error)


def r_hat(x: ArrayLike) -> PerScalar:
    """Rank-normalised split R-hat; with one chain its two halves are compared.

    ``inf`` where no chain moves and their values differ; ``nan`` as in `ess`, and for one chain of
    fewer than eight draws.

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(4, 500))
    >>> bool(r_hat(x) < 1.01), bool(r_hat(x + np.arange(4)[:, None]) > 1.1)
    (True, True)
    """

    def of_bulk_and_tails(a: Floats) -> Floats:
        halves = _halves(a)
        folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
        return np.fmax(_ratio(_normal_scores(halves)), _ratio(_normal_scores(folded)))

    return _per_scalar(x, of_bulk_and_tails, least=8 if as_chains(x).shape[0] == 1 else 4)


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
    by_group = chains.reshape(groups, len(chains) // groups, *chains.shape[1:])
    size, draws = by_group.shape[1:3]
    shape = chains.shape[2:]
    if not draws:
        return np.full(shape, np.nan) if shape else float("nan")
    with np.errstate(all="ignore"):
        means = by_group.mean(axis=2)
        between = means.mean(axis=1).var(axis=0, ddof=1)
        within = np.zeros(shape)
        if size > 1:
            within = within + means.var(axis=1, ddof=1).mean(axis=0)
        if draws > 1:
            within = within + by_group.var(axis=2, ddof=1).mean(axis=(0, 1))
        ratio = np.sqrt(1 + between / within)
    result = np.where(np.isfinite(by_group).all(axis=(0, 1, 2)), ratio, np.nan)
    return result if shape else float(result)


def _per_scalar(x: ArrayLike, measure: Callable[[Floats], Floats], least: int = 4) -> PerScalar:
    """Apply `measure` to the scalars that are finite and not constant; the rest are ``nan``.

    `measure` is called with arrays (scalar, chain, draw), a few scalars at a time, by several
    threads. Chains of fewer than `least` draws give ``nan``.
    """
    chains = as_chains(x)
    shape = chains.shape[2:]
    result = np.full(shape, np.nan)
    if chains.shape[1] >= least:
        flat = chains.reshape(*chains.shape[:2], -1)
        places = np.flatnonzero(finite_and_moving(flat))
        together = max(1, TOGETHER // (flat.shape[0] * flat.shape[1]))
        parts = [places[start : start + together] for start in range(0, len(places), together)]

        def fill(part: NDArray[np.intp]) -> None:
            scalars = np.ascontiguousarray(np.moveaxis(flat[:, :, part], 2, 0))
            with np.errstate(all="ignore"):
                result.reshape(-1)[part] = measure(scalars)

        if len(parts) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                list(threads.map(fill, parts))
        elif parts:
            fill(parts[0])
    return result if shape else float(result)


def _halves(a: Floats) -> Floats:
    """Split each chain into halves, as chains; the middle draw of an odd number is left out."""
    half = a.shape[2] // 2
    return np.concatenate([a[..., :half], a[..., -half:]], axis=1)


def _normal_scores(a: Floats) -> Floats:
    """Normal quantiles of the ranks of a scalar's values, by Blom's offsets (eq. 14)."""
    from scipy.special import ndtri

    ranks = _ranks(a.reshape(len(a), -1))
    scores: Floats = ndtri((ranks - 3 / 8) / (ranks.shape[1] + 1 / 4))
    return scores.reshape(a.shape)


def _ranks(x: Floats) -> Floats:
    """Ranks along the second axis, from 1; ties get their mean rank."""
    order = np.argsort(x, axis=1)
    ascending = np.take_along_axis(x, order, axis=1)
    places = np.arange(x.shape[1])
    rises = ascending[:, 1:] != ascending[:, :-1]
    edge = np.ones((len(x), 1), bool)
    first = np.maximum.accumulate(np.where(np.hstack([edge, rises]), places, 0), axis=1)
    ends = np.where(np.hstack([rises, edge]), places, x.shape[1])
    last = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    ranks = np.empty(x.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, axis=1)
    return ranks


def _ratio(a: Floats) -> Floats:
    """R-hat without ranks or halves (eqs. 1 to 4): sqrt((B / W + n - 1) / n)."""
    n = a.shape[2]
    between = n * a.mean(axis=2).var(axis=1, ddof=1)
    within = a.var(axis=2, ddof=1).mean(axis=1)
    return np.asarray(np.sqrt((between / within + n - 1) / n))


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


def _fast_length(least: int) -> int:
    """Return the least 2^k, 3 2^k or 5 2^k that is not below `least`, for a fast transform.

    SciPy has such a function, but importing `scipy.fft` takes longer than the transforms.
    """
    return min(factor << (-(-least // factor) - 1).bit_length() for factor in (1, 3, 5))


def _autocorrelations(a: Floats) -> Floats:
    """Autocorrelations of each scalar over all chains, (scalar, lag)."""
    chains, n = a.shape[1:]
    length = _fast_length(2 * n)
    means = a.mean(axis=2, keepdims=True)
    transformed = np.fft.rfft(a - means, n=length, axis=2)
    power = (transformed.real**2 + transformed.imag**2).mean(axis=1)
    covariance = np.fft.irfft(power, n=length, axis=1)[:, :n] / n
    within = covariance[:, :1] * n / (n - 1)
    total = covariance[:, :1] + (means[..., 0].var(axis=1, ddof=1)[:, None] if chains > 1 else 0.0)
    rho: Floats = 1 - (within - covariance) / total
    rho[:, 0] = 1
    return rho
