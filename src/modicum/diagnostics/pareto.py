"""Pareto-smoothed importance weights in plain NumPy.

ArviZ has the same (`psislw` in `arviz_stats`) but takes two seconds to import, and a whole default
run may take one; and it smooths one set of weights at a time. Tests compare the two.

References
----------
Vehtari, Simpson, Gelman, Yao and Gabry (2024), "Pareto smoothed importance sampling", JMLR.
Zhang and Stephens (2009), "A new and efficient estimation method for the generalized Pareto
distribution", Technometrics.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST = 5  # fewest weights to which a tail can be fitted
PRIOR_WEIGHT = 10.0  # weight, in draws, of a prior tail index of one half
LEAST = -700.0  # log of the smallest weight relative to the largest
LARGEST = 700.0  # exponents above this overflow
TOGETHER = 2**18  # numbers of an intermediate array for the rows smoothed together


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
    >>> from modicum.diagnostics.pareto import pareto_smoothed
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
    step = max(1, TOGETHER // (beyond * _points(beyond)))
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
    vary = values[:, -1] > values[:, 0]
    excess = np.exp(values[vary]) - cut[vary]
    k[vary], scale = _fitted(excess)
    smooth = cut[vary] + scale[:, None] * _quantile(_middle(beyond), k[vary, None])
    values[vary] = np.minimum(np.log(smooth), values[vary, -1:])
    np.put_along_axis(log_weight, tail, values, axis=1)
    return log_weight, k


def _middle(number: int) -> Floats:
    """Probabilities in the middle of `number` equal steps."""
    return (np.arange(number) + 0.5) / number


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


def _fitted(excess: Floats) -> tuple[Floats, Floats]:
    """Tail index and scale of rows of sorted values above a threshold, by Zhang and Stephens."""
    number = excess.shape[1]
    points = _points(number)
    quarter = excess[:, int(number / 4 + 0.5) - 1, None]
    theta = 1 - np.sqrt(points / (np.arange(1, points + 1) - 0.5))
    theta = theta / (3 * quarter) + 1 / excess[:, -1:]
    mean_logs = np.mean(np.log1p(-theta[:, :, None] * excess[:, None]), axis=2)
    log_likelihood = number * (np.log(-theta / mean_logs) - mean_logs - 1)
    weight = 1 / np.sum(np.exp(log_likelihood[:, None] - log_likelihood[:, :, None]), axis=2)
    weight = np.where(weight >= 10 * np.finfo(float).eps, weight, 0.0)
    best = np.array([t @ w / w.sum() for t, w in zip(theta, weight, strict=True)])
    k = np.mean(np.log1p(-best[:, None] * excess), axis=1)
    scale = -k / best
    return (k * number + 0.5 * PRIOR_WEIGHT) / (number + PRIOR_WEIGHT), scale
