"""Effective sample size, R-hat and Monte Carlo error, by ArviZ's rank-normalised estimators.

Nested R-hat, for thousands of short chains, is implemented here.

References
----------
Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis.

Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari and Gelman (2022), "Nested R-hat: assessing the
convergence of Markov chain Monte Carlo when running many short chains", arXiv 2110.13017.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.diagnostics.inefficiency import PerScalar, as_chains, finite_and_moving
from modicum.errors import SettingError, whole_number

__all__ = ["ess", "ess_tail", "mcse", "nested_r_hat", "r_hat"]

Floats = NDArray[np.float64]


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
    return _per_scalar(x, lambda a: _array_stats().ess(a, method="bulk"))


def ess_tail(x: ArrayLike, prob: float = 0.9) -> PerScalar:
    """Effective sample size for the two ends of the central interval of probability `prob`."""
    tail = (1 - prob) / 2
    return _per_scalar(x, lambda a: _array_stats().ess(a, method="tail", prob=(tail, 1 - tail)))


def mcse(x: ArrayLike) -> PerScalar:
    """Monte Carlo standard error of the mean."""

    def standardised(a: Floats) -> float:
        # ArviZ calls a spread below 1e-15 constant, whatever the unit of measurement
        unit = a.std(ddof=1)
        return unit * _array_stats().mcse((a - a.mean()) / unit, method="mean")

    return _per_scalar(x, standardised)


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
    if as_chains(x).shape[0] == 1:
        return _per_scalar(x, _r_hat_of_halves)
    return _per_scalar(x, lambda a: _array_stats().rhat(a, method="rank"))


def _r_hat_of_halves(a: Floats) -> float:
    from scipy import special, stats

    half = a.shape[1] // 2
    halves = np.concatenate([a[:, :half], a[:, -half:]])
    values = []
    for series in (halves, np.abs(halves - np.median(halves))):
        # Blom's normal scores, as in Vehtari et al. (2021), eq. 14
        scores = special.ndtri((stats.rankdata(series) - 3 / 8) / (series.size + 1 / 4))
        values.append(_array_stats().rhat(scores.reshape(halves.shape), method="identity"))
    return np.fmax(*values)


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


def _per_scalar(x: ArrayLike, measure: Callable[[Floats], float]) -> PerScalar:
    """Apply `measure` to every scalar that is finite and not constant; the rest are ``nan``."""
    chains = as_chains(x)
    shape = chains.shape[2:]
    result = np.full(shape, np.nan)
    if chains.shape[1] >= 4:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for i in np.argwhere(finite_and_moving(chains)):
                result[tuple(i)] = measure(chains[(slice(None), slice(None), *i)])
    return result if shape else float(result)


def load_soon() -> None:
    """Import ArviZ in the background, for a run that needs diagnostics at its end."""
    threading.Thread(target=_array_stats, daemon=True).start()


def _array_stats() -> Any:  # ArviZ has no types
    # imported here, since it takes two seconds
    from arviz_stats.base import array_stats

    return array_stats
