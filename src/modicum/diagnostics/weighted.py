"""Moments, quantiles and errors of draws that carry signs or importance weights.

Both are handled alike: whether ``w`` is the sign of a block-Poisson likelihood estimate
(HMC-ECS, section 5) or an importance weight, the estimate of an expectation is the ratio

    I = sum_j w_j psi_j / sum_j w_j                                                  (eq. 5.3)

and its error is that of the average of ``zeta_j = w_j (psi_j - I) / wbar`` (delta method).
Arrays are (chain, draw, *shape), weights (chain, draw). If the sum of the weights is not positive,
everything is ``nan``: signs that cancel say nothing about the posterior. Weights of ``None``, or
weights that are all equal, mean that draws count alike: mean, variance, quantiles and covariance
are then NumPy's.

Importance weights are Pareto-smoothed in plain NumPy: ArviZ's `psislw` takes two seconds to import,
and smooths one set of weights at a time. Tests compare the two.

References
----------
Vehtari, Simpson, Gelman, Yao and Gabry (2024), "Pareto smoothed importance sampling", JMLR.

Zhang and Stephens (2009), "A new and efficient estimation method for the generalized Pareto
distribution", Technometrics.
"""

from __future__ import annotations

import os
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.diagnostics.convergence import (
    LARGE,
    batch_means_variance,
    convergence_of,
    nested_r_hat,
    over_chains,
    r_hat,
)
from modicum.runtime import in_blocks

Floats = NDArray[np.float64]


def normalised(weights: Floats) -> Floats:
    """Scale weights to sum to one; return ``nan`` if their sum is not positive."""
    total = weights.sum()
    return weights / total if total > 0 else np.full_like(weights, np.nan)


def weighted_mean(x: Floats, weights: Floats | None) -> Floats:
    """Estimate the expectation of x (eq. 5.3).

    Examples
    --------
    >>> float(weighted_mean(np.array([[1.0, 2.0, 5.0]]), np.array([[1.0, 1.0, -1.0]])))
    -2.0
    """
    weights = unequal(weights)
    if weights is None:
        return np.asarray(over_chains(x, lambda a: (a.mean(axis=1, dtype=float),))[0].mean(axis=0))
    return np.asarray(np.tensordot(normalised(weights), x, axes=([0, 1], [0, 1])))


def weighted_variance(x: Floats, weights: Floats | None) -> Floats:
    """Estimate the posterior variance; ``nan`` of a single draw, or where signs make it negative.

    Draws that count alike have divisor R - 1.
    """
    weights = unequal(weights)
    if weights is None and x.shape[0] * x.shape[1] < 2:
        return np.full(x.shape[2:], np.nan)
    if weights is None:
        means, variances = over_chains(x, lambda a: (a.mean(axis=1), a.var(axis=1)))
        total = (variances + (means - means.mean(axis=0)) ** 2).mean(axis=0)
        return np.asarray(total * (1 + 1 / (x.shape[0] * x.shape[1] - 1)))
    variance = weighted_mean((x - weighted_mean(x, weights)) ** 2, weights)
    return np.where(variance >= 0, variance, np.nan)


def weighted_covariance(x: Floats, weights: Floats | None) -> Floats:
    """Estimate the covariance matrix of the flattened scalars of x."""
    flat, weights = x.reshape(*x.shape[:2], -1), unequal(weights)
    if weights is None:
        return np.atleast_2d(np.cov(flat.reshape(-1, flat.shape[2]), rowvar=False))
    centred = flat - weighted_mean(flat, weights)
    return np.asarray(np.einsum("cd,cdi,cdj->ij", normalised(weights), centred, centred))


def _quantiles(x: Floats, levels: Floats) -> Floats:
    """Return the quantiles of each scalar; of gigabytes, a thread copies a few, side by side."""
    flat = x.reshape(x.shape[0] * x.shape[1], prod(x.shape[2:]))
    size = flat.shape[1]

    def of_some(some: slice) -> Floats:
        by_scalar = flat[:, some].T.copy()  # contiguous: a quarter faster
        return np.quantile(by_scalar, levels, axis=-1, overwrite_input=True).T

    evenly = min(4, -(-size // (os.cpu_count() or 1)))
    quantiles = in_blocks(of_some, size, size if x.size <= LARGE else evenly).T
    return quantiles.reshape((*levels.shape, *x.shape[2:]))


def weighted_quantile(x: Floats, weights: Floats | None, q: ArrayLike) -> Floats:
    """Estimate the quantiles q of each scalar, of shape (*q.shape, *shape).

    The distribution function is the running sum of the normalised weights over the sorted
    values. Where signs make it decrease, isotonic regression gives the nearest function that does
    not. The quantile is the smallest value at which the function reaches q.

    Examples
    --------
    >>> x = np.arange(1.0, 6.0)[None]
    >>> float(weighted_quantile(x, np.array([[1.0, 1.0, 1.0, 1.0, 4.0]]), 0.5))
    4.0
    """
    levels = np.asarray(q, dtype=float)
    x, weights = x.astype(float) if x.dtype == bool else x, unequal(weights)
    if weights is None:
        return _quantiles(x, levels)
    values = x.reshape(x.shape[0] * x.shape[1], -1)
    share = normalised(weights).reshape(-1)
    quantiles = np.full((levels.size, values.shape[1]), np.nan)
    if len(values) and np.isfinite(share).all():
        order = np.argsort(values, axis=0, kind="stable")
        values = np.take_along_axis(values, order, axis=0)
        climb = np.cumsum(share[order], axis=0)
        climb[-1] = 1.0
        if (share < 0).any():
            from scipy.optimize import isotonic_regression

            climb = np.stack([isotonic_regression(column).x for column in climb.T], axis=1)
        for i, level in enumerate(levels.reshape(-1)):
            # tolerance for rounding in the running sum: a median must not slip by one draw
            at = np.argmax(climb >= min(level, 1.0) - 1e-10, axis=0)
            quantiles[i] = np.take_along_axis(values, at[None], axis=0)[0]
    return quantiles.reshape((*levels.shape, *x.shape[2:]))


def influence(x: Floats, weights: Floats) -> Floats:
    """Return zeta, whose average has the error of `weighted_mean`."""
    mean = weighted_mean(x, weights)
    w = normalised(weights) * weights.size
    return np.asarray(w.reshape((*w.shape, *[1] * mean.ndim)) * (x - mean))


def unequal(weights: Floats | None) -> Floats | None:
    """Return the weights; None if there are none, or if they are equal, so that draws count alike.

    Weights with a NaN count as unequal, and every estimate is then NaN.
    """
    if weights is None or not weights.size:
        return None
    return None if np.ptp(weights) == 0 and weights.flat[0] > 0 else weights


def weighted_mcse(x: Floats, weights: Floats | None) -> Floats:
    """Estimate the Monte Carlo error of `weighted_mean` by the delta method and batch means."""
    # without weights it differs from x by a constant, which changes no variance
    weights = unequal(weights)
    zeta = x if weights is None else influence(x, weights)
    return np.sqrt(np.asarray(batch_means_variance(zeta)) / (x.shape[0] * x.shape[1]))


def weighted_ess(x: Floats, weights: Floats) -> Floats:
    """Return the number of independent posterior draws with the same error in the mean."""
    with np.errstate(all="ignore"):
        size = weighted_variance(x, weights) / weighted_mcse(x, weights) ** 2
    return np.where(np.isfinite(size), size, np.nan)


def weighted_ess_tail(x: Floats, weights: Floats, prob: float = 0.9) -> Floats:
    """Return the smaller of the effective sample sizes of the two ends of the `prob` interval."""
    ends = weighted_quantile(x, weights, [(1 - prob) / 2, (1 + prob) / 2])
    below = [weighted_ess((x <= end).astype(float), weights) for end in ends]
    return np.asarray(np.fmin(*below))


def kish_share(weights: Floats) -> float:
    """Return Kish's effective share ``(sum w)^2 / (R sum w^2)``: 1 if equal, 1/R if one counts."""
    with np.errstate(all="ignore"):
        return float(weights.sum() ** 2 / (weights.size * (weights**2).sum()))


def diagnose(
    x: np.ndarray, weights: np.ndarray | None, superchains: int | None = None
) -> dict[str, np.ndarray]:
    """Compute Monte Carlo error, effective sample sizes and R-hat of each scalar of x.

    With signs or weights these are those of the ratio estimate: by the delta method, not ArviZ.
    """
    weights = unequal(weights)
    if weights is None:
        compared, measures = x, convergence_of(x)
    else:
        values = np.asarray(x, dtype=float)
        compared = influence(values, weights)
        of_mean = weighted_mcse(values, weights), weighted_ess(values, weights)
        measures = *of_mean, weighted_ess_tail(values, weights), r_hat(compared)
    measured = dict(zip(("mcse_mean", "ess_bulk", "ess_tail", "r_hat"), measures, strict=True))
    if superchains is not None:
        measured["nested_r_hat"] = nested_r_hat(compared, superchains)
    return {name: np.asarray(value) for name, value in measured.items()}


def ends_of(prob: float) -> tuple[float, float]:
    """Return the levels of the quantiles between which an equal-tailed interval lies."""
    return (1 - prob) / 2, (1 + prob) / 2


def tabulated(x: np.ndarray, weights: np.ndarray | None, prob: float) -> np.ndarray:
    """Return mean, sd, interval and Monte Carlo error of draws (chain, draw, ...), last axis."""
    low, high = weighted_quantile(x, weights, ends_of(prob))
    sd, error = np.sqrt(weighted_variance(x, weights)), weighted_mcse(x, weights)
    return np.stack([weighted_mean(x, weights), sd, low, high, error], axis=-1)


# Pareto smoothing -----------------------------------------------------------------------

FEWEST = 5  # fewest weights to which a tail can be fitted
PRIOR_WEIGHT = 10.0  # weight, in draws, of a prior tail index of one half
LEAST = -700.0  # log of the smallest weight relative to the largest
LARGEST = 700.0  # exponents above this overflow
TAILS_TOGETHER = 2**18  # numbers of an intermediate array for the rows smoothed together


def pareto_smoothed(log_ratio: Floats) -> tuple[Floats, float]:
    """Return normalised importance weights, the largest smoothed by a Pareto tail, and k.

    Parameters
    ----------
    log_ratio
        Log of target over proposal at each draw, up to a constant; minus infinity gives weight 0.

    Returns
    -------
    weights, k
        Weights that sum to one, and the tail index: below 0.5 their variance is finite, above 0.7
        they are unreliable. The index is infinite if no tail can be fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from modicum.diagnostics.weighted import pareto_smoothed
    >>> z = np.random.default_rng(1).standard_normal(4_000)
    >>> weights, k = pareto_smoothed(0.2 * z)  # a normal density moved by a fifth of its sd
    >>> bool(k < 0.2), round(float(weights @ z), 1)
    (True, 0.2)
    """
    log_ratio = np.asarray(log_ratio, np.float64)
    if np.isnan(log_ratio).any() or not np.isfinite(log_ratio.max()):
        return np.full(len(log_ratio), 1 / len(log_ratio)), np.inf
    (log_weights,), (k,) = rows_smoothed(log_ratio[None])
    return np.exp(log_weights), float(k)


def rows_smoothed(log_ratio: Floats, efficiency: float = 1.0) -> tuple[Floats, Floats]:
    """Smooth each row of ratios as `psislw` of ArviZ does, many rows at a time.

    Parameters
    ----------
    log_ratio
        Log of target over proposal (rows, draws), each row up to a constant; minus infinity counts
        as e^-700 of the largest weight.
    efficiency
        Effective over actual draws: dependent draws have a longer tail.

    Returns
    -------
    log_weights, k
        Logs of weights that sum to one in each row, and each row's tail index: 0 where all weights
        are equal, and infinite where only those of the tail are, or there are too few of them, so
        that none can be fitted.
    """
    log_weight = np.maximum(log_ratio - log_ratio.max(axis=1, keepdims=True), LEAST)
    rows, number = log_weight.shape
    few = number * efficiency <= 225
    beyond = max(FEWEST, int(number / 5 if few else 3 * np.sqrt(number / efficiency)))
    uneven = np.flatnonzero(np.ptp(log_weight, axis=1) >= 1e-10)
    k = np.zeros(rows)
    k[uneven] = np.inf
    step = max(1, TAILS_TOGETHER // (beyond * _points(beyond)))
    for first in range(0, len(uneven) if beyond < number else 0, step):
        piece = uneven[first : first + step]
        log_weight[piece], k[piece] = _smooth_tails(log_weight[piece], beyond)
    total = np.log(np.exp(log_weight).sum(axis=1, keepdims=True))
    return log_weight - total, k


def _smooth_tails(log_weight: Floats, beyond: int) -> tuple[Floats, Floats]:
    """Smooth the largest `beyond` weights of each row; return weights and tail indices."""
    order = np.argpartition(log_weight, -beyond - 1, axis=1)[:, -beyond - 1 :]
    cut = np.exp(np.take_along_axis(log_weight, order[:, :1], axis=1))
    inner = np.argsort(np.take_along_axis(log_weight, order[:, 1:], axis=1), axis=1)
    tail = np.take_along_axis(order[:, 1:], inner, axis=1)
    values = np.take_along_axis(log_weight, tail, axis=1)
    k = np.full(len(log_weight), np.inf)
    excess = np.exp(values) - cut
    vary = excess[:, _quarter(beyond)] > 0  # else hardly a weight is there, and no tail to fit
    excess = excess[vary]
    k[vary], scale = _fitted(excess)
    middle = (np.arange(beyond) + 0.5) / beyond  # of equal steps of probability
    smooth = cut[vary] + scale[:, None] * _quantile(middle, k[vary, None])
    values[vary] = np.minimum(np.log(smooth), values[vary, -1:])
    np.put_along_axis(log_weight, tail, values, axis=1)
    return log_weight, k


def _quantile(at: Floats, k: Floats) -> Floats:
    """Quantile of the generalised Pareto distribution of scale one."""
    exponential = np.abs(k) < 1e-12
    k = np.where(exponential, 1.0, k)
    # k is in the hundreds if weights differ by hundreds of orders of magnitude.
    power = np.expm1(np.minimum(-k * np.log1p(-at), LARGEST)) / k
    return np.where(exponential, -np.log1p(-at), power)


def _points(number: int) -> int:
    """Number of points over which the fit to `number` values averages."""
    return 30 + int(np.sqrt(number))


def _quarter(number: int) -> int:
    """Place of the lower quartile among `number` sorted values."""
    return int(number / 4 + 0.5) - 1


def _fitted(excess: Floats) -> tuple[Floats, Floats]:
    """Tail index and scale of rows of sorted values above a threshold, by Zhang and Stephens."""
    number = excess.shape[1]
    points = _points(number)
    quarter = excess[:, _quarter(number), None]
    theta = 1 - np.sqrt(points / (np.arange(1, points + 1) - 0.5))
    theta = theta / (3 * quarter) + 1 / excess[:, -1:]
    mean_logs = np.mean(np.log1p(-theta[:, :, None] * excess[:, None]), axis=2)
    log_likelihood = number * (np.log(-theta / mean_logs) - mean_logs - 1)
    with np.errstate(over="ignore"):  # a weight of 0
        weight = 1 / np.sum(np.exp(log_likelihood[:, None] - log_likelihood[:, :, None]), axis=2)
    weight = np.where(weight >= 10 * np.finfo(float).eps, weight, 0.0)
    best = np.array([t @ w / w.sum() for t, w in zip(theta, weight, strict=True)])
    k = np.mean(np.log1p(-best[:, None] * excess), axis=1)
    scale = -k / best
    return (k * number + 0.5 * PRIOR_WEIGHT) / (number + PRIOR_WEIGHT), scale
