"""Equally weighted draws from weighted ones: each as often as its weight says."""

from __future__ import annotations

import numpy as np

from modicum.errors import SettingError
from modicum.posterior.draws import evenly_spaced
from modicum.random import Stream, generator

__all__ = ["equal_places", "require_positive", "require_positive_sum"]


def require_positive(weights: np.ndarray | None, purpose: str) -> None:
    """Refuse draws with negative signs, which cannot be repeated a negative number of times."""
    if weights is not None and not (weights >= 0).all():
        raise SettingError(
            f"{purpose} takes draws one by one, and these carry signs, of which "
            f"{np.sum(~(weights >= 0)):,} are negative, so that only averages mean anything: "
            "post.summary, predict, marginal, contrast, loo and ppc use the signs; for draws that "
            'count alike sample with another method, such as method="hmc-ecs".'
        )


def require_positive_sum(weights: np.ndarray, purpose: str) -> None:
    """Refuse draws whose signs cancel, so that no average of them means anything."""
    if not weights.sum() > 0:
        raise SettingError(
            f"{purpose} averages over draws, and the signs of these cancel, so that no average "
            "says anything about the posterior; sample with signs that cancel less (a larger "
            'subsample), or with another method, such as method="hmc-ecs".'
        )


def equal_places(
    weights: np.ndarray | None, total: int, number: int, seed: int, purpose: str
) -> np.ndarray:
    """Places of draws, ascending: evenly spaced, or by weights (systematic resampling).

    Of `total` draws with weights (total,), or None, which count alike, `number` are taken; a draw
    comes up as often as its weight says, but for rounding.
    """
    require_positive(weights, purpose)
    if weights is None or np.ptp(weights) == 0:
        return evenly_spaced(total, number)
    edges = np.cumsum(weights)
    start = generator(seed, Stream.OUTCOMES).random()
    at = np.searchsorted(edges, (np.arange(number) + start) / number * edges[-1])
    return np.asarray(np.minimum(at, total - 1))
