"""Pareto-smoothed importance weights in plain NumPy.

ArviZ has the same (`psislw` in `arviz_stats`) but takes two seconds to import, and a whole default
run may take one. Tests compare the two.

References
----------
Vehtari, Simpson, Gelman, Yao and Gabry (2024), "Pareto smoothed importance sampling", JMLR.
Zhang and Stephens (2009), "A new and efficient estimation method for the generalized Pareto
distribution", Technometrics.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

__all__ = ["pareto_smoothed"]

Floats = NDArray[np.float64]

FEWEST = 5  # fewest weights to which a tail can be fitted
PRIOR_WEIGHT = 10.0  # weight, in draws, of a prior tail index of one half
LEAST = -700.0  # log of the smallest weight relative to the largest
LARGEST = 700.0  # exponents above this overflow


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
    log_weight = np.maximum(log_ratio - log_ratio.max(), LEAST)
    if np.ptp(log_weight) < 1e-10:
        return np.full(len(log_weight), 1 / len(log_weight)), 0.0
    number = len(log_weight)
    beyond = ceil(min(number / 5, 3 * np.sqrt(number)))
    k = np.inf
    if FEWEST <= beyond < number:
        order = np.argsort(log_weight, kind="stable")
        cut = log_weight[order[-beyond - 1]]
        tail = order[-beyond:][log_weight[order[-beyond:]] > cut]
        if len(tail) >= FEWEST:
            excess = np.exp(log_weight[tail]) - np.exp(cut)
            k, scale = _fitted(excess)
            middle = (np.arange(len(tail)) + 0.5) / len(tail)
            smooth = np.exp(cut) + scale * _quantile(middle, k)
            log_weight[tail] = np.minimum(np.log(smooth), 0.0)
    weights = np.exp(log_weight)
    return weights / weights.sum(), float(k)


def _quantile(at: Floats, k: float) -> Floats:
    """Quantile of the generalised Pareto distribution of scale one."""
    if abs(k) < 1e-12:
        return np.asarray(-np.log1p(-at))
    # k is in the hundreds if weights differ by hundreds of orders of magnitude.
    return np.asarray(np.expm1(np.minimum(-k * np.log1p(-at), LARGEST)) / k)


def _fitted(excess: Floats) -> tuple[float, float]:
    """Tail index and scale of sorted values above a threshold, by Zhang and Stephens."""
    number = len(excess)
    points = 30 + int(np.sqrt(number))
    quarter = excess[int(number / 4 + 0.5) - 1]
    theta = 1 - np.sqrt(points / (np.arange(1, points + 1) - 0.5))
    theta = theta / (3 * quarter) + 1 / excess[-1]
    mean_logs = np.mean(np.log1p(-theta[:, None] * excess), axis=1)
    log_likelihood = number * (np.log(-theta / mean_logs) - mean_logs - 1)
    weight = 1 / np.sum(np.exp(log_likelihood - log_likelihood[:, None]), axis=1)
    weight = np.where(weight >= 10 * np.finfo(float).eps, weight, 0.0)
    best = float(theta @ weight / weight.sum())
    k = float(np.mean(np.log1p(-best * excess)))
    scale = -k / best
    return (k * number + 0.5 * PRIOR_WEIGHT) / (number + PRIOR_WEIGHT), scale
