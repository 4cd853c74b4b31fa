"""Mean squared error of a sampler's averages, over many independent realisations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from modicum.diagnostics.inefficiency import as_chains
from modicum.errors import SettingError


@dataclass(frozen=True)
class MeanSquaredError:
    """Mean squared error, its decomposition, and its Monte Carlo error.

    Attributes
    ----------
    value
        Mean over realisations of (average - truth)^2, which is ``bias**2`` plus `variance`.
    bias
        Mean over realisations of average - truth.
    variance
        Variance of the averages over realisations.
    error
        Monte Carlo standard error of `value`.
    """

    value: float | np.ndarray
    bias: float | np.ndarray
    variance: float | np.ndarray
    error: float | np.ndarray


def mse(
    draws: ArrayLike,
    truth: ArrayLike,
    function: Callable[[np.ndarray], ArrayLike] | None = None,
    *,
    at: int | ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> MeanSquaredError:
    """Mean squared error of each realisation's average about a known value.

    Parameters
    ----------
    draws
        Array (realisation, draw, ...): each realisation gives one average over its draws.
    truth
        The true expectation of `function`.
    function
        Test function, applied to `draws` as a whole; by default the draws themselves.
    at
        Average over the first `at` draws; by default all. A sequence of numbers gives a leading
        axis: the error as a function of the number of draws.
    weights
        Sign or importance weight of each draw, (realisation, draw).

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(2000, 100))
    >>> error = mse(x, 1.0, np.square)  # the average of 100 squares has variance 2 / 100
    >>> bool(abs(error.value - 0.02) < 4 * error.error)
    True
    >>> mse(x, 1.0, np.square, at=[1, 10, 100]).value.shape
    (3,)
    """
    x = np.asarray(draws) if function is None else np.asarray(function(np.asarray(draws)))
    x = as_chains(x)
    if len(x) < 2:
        raise SettingError("the mean squared error needs at least two realisations.")
    w = np.ones(x.shape[:2]) if weights is None else np.asarray(weights, dtype=float)
    if w.shape != x.shape[:2]:
        raise SettingError(f"weights have shape {w.shape}; they need that of draws, {x.shape[:2]}.")
    counts = np.atleast_1d(np.asarray(x.shape[1] if at is None else at))
    if counts.min(initial=1) < 1 or counts.max(initial=1) > x.shape[1]:
        raise SettingError(f"`at` must hold numbers of draws from 1 to {x.shape[1]}.")
    shaped = w.reshape(*w.shape, *[1] * (x.ndim - 2))
    totals, masses = np.cumsum(shaped * x, axis=1), np.cumsum(shaped, axis=1)
    averages = totals[:, counts - 1] / masses[:, counts - 1]  # (realisation, count, ...)
    gap = averages - np.asarray(truth, dtype=float)
    parts = (
        np.mean(gap**2, axis=0),
        gap.mean(axis=0),
        gap.var(axis=0),
        np.std(gap**2, axis=0, ddof=1) / np.sqrt(len(gap)),
    )
    is_array = at is not None and np.ndim(at) > 0
    return MeanSquaredError(*(_plain(part if is_array else part[0]) for part in parts))


def _plain(value: np.ndarray) -> float | np.ndarray:
    return value if np.ndim(value) else float(value)
