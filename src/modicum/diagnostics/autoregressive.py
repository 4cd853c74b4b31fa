"""The papers' inefficiency factor: the spectral density at zero of a fitted autoregression.

This is ``spectrum0.ar`` of the R package CODA, which the HMC-ECS paper uses (section 6.1).
"""

from __future__ import annotations

from math import floor, log10
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.diagnostics.series import as_chains, finite_and_moving

__all__ = ["autoregressive_spectrum", "inefficiency"]

Floats = NDArray[np.float64]


def inefficiency(x: ArrayLike) -> Any:
    """Inefficiency factor IF: draws needed for the worth of one independent draw.

    ``IF = R / ESS`` with ``ESS = R var(x) / spec0``, the variance with divisor R - 1 and `spec0`
    from `autoregressive_spectrum`. Several chains are measured one by one and the average is
    returned. A chain that never moves has ESS 0, so IF ``inf``; fewer than four draws, or values
    that are not finite, give ``nan``.

    The order of the autoregression is capped near 40, so a small component that decays much more
    slowly is missed; `batch_means_inefficiency` sees it. Report both.

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
    # each chain on its own: (draw, chain * scalars) -> one factor a column
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
    """Spectral density at frequency zero, and the order chosen, of each column of (draw, series).

    Yule-Walker equations on autocovariances with divisor R, solved order by order (Levinson);
    the order up to ``min(R - 1, floor(10 log10 R))`` with the least ``R log v + 2 p`` is kept;
    ``spec0 = v R / (R - p - 1) / (1 - sum phi)^2``.
    """
    draws, series = x.shape
    most = min(draws - 1, floor(10 * log10(draws)))
    centred = x - x.mean(axis=0)
    # divisor R at every lag, not R - k: only so is the fitted autoregression stationary
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
