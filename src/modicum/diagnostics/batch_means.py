"""Long-run variance by batch means: nothing is assumed about how a chain forgets."""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from modicum.diagnostics.series import as_chains, finite_and_moving
from modicum.errors import SettingError

__all__ = ["batch_means_inefficiency", "batch_means_variance"]

MOST_BATCHES = 40  # a chain; more would only shorten the batches, and short batches are biased


def batch_means_variance(x: ArrayLike, batches: int | None = None) -> Any:
    """Long-run variance of each scalar: R times the variance of a mean of R draws.

    A chain is cut into batches of b successive draws, and b times the variance of the batch
    means, taken over all chains about their common mean, is returned: chains that disagree
    raise it. Draws left over after the last whole batch are the first of the chain.

    Parameters
    ----------
    x
        A series, or an array (chain, draw, *shape).
    batches
        Batches per chain; the square root of its length unless told, at most 40.
    """
    chains = as_chains(x)
    draws, shape = chains.shape[1], chains.shape[2:]
    if batches is not None and batches < 2:
        raise SettingError(f"Batch means need at least two batches, not {batches}.")
    count = min(isqrt(draws), MOST_BATCHES) if batches is None else batches
    length = draws // count if count else 0
    if draws < 4 or length < 1:
        return np.full(shape, np.nan) if shape else float("nan")
    cut = chains[:, draws - count * length :]
    with np.errstate(all="ignore"):
        means = cut.reshape(len(chains), count, length, *shape).mean(axis=2)
        variance = length * means.var(axis=(0, 1), ddof=1)
    return variance if shape else float(variance)


def batch_means_inefficiency(x: ArrayLike, batches: int | None = None) -> Any:
    """Inefficiency factor by batch means: long-run variance over plain variance.

    It sees slow components whose share of the variance is too small for the autoregressive
    estimate (`modicum.diagnostics.inefficiency`), at the price of more noise: with B batches its
    relative standard error is ``sqrt(2 / B)``.

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(4, 10_000))
    >>> bool(abs(batch_means_inefficiency(x) - 1) < 0.4)
    True
    """
    chains = as_chains(x)
    with np.errstate(all="ignore"):
        variance = chains.var(axis=(0, 1), ddof=1) if chains.shape[1] > 1 else np.nan
        # as in CODA, draws that never move are worth no draw at all
        ratio = np.where(
            finite_and_moving(chains), batch_means_variance(chains, batches) / variance, np.inf
        )
    ratio = np.where(np.isfinite(chains).all(axis=(0, 1)) & (chains.shape[1] >= 4), ratio, np.nan)
    return ratio if ratio.shape else float(ratio)
