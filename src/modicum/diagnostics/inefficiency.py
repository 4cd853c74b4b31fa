"""Inefficiency factors, the cost of an independent draw, and how noisy an estimate should be."""

from __future__ import annotations

from math import floor, isqrt, log10
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.errors import SettingError, is_number

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


def finite_and_moving(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which scalars of an array (chain, draw, *shape) are finite and not constant.

    The range is compared with the magnitude of the numbers, so that rounding errors of a constant
    series do not count as movement.
    """
    if x.shape[0] * x.shape[1] == 0:
        return np.zeros(x.shape[2:], dtype=bool)
    largest, smallest = x.max(axis=(0, 1)), x.min(axis=(0, 1))
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
    spectrum = innovation * draws / (draws - (order + 1)) / (1 - total) ** 2
    return spectrum, order


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
    estimate (`modicum.diagnostics.inefficiency`), but is noisier: with B batches its relative
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
