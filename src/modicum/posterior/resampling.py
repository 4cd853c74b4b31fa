"""Resample weighted draws into equally weighted ones."""

from __future__ import annotations

import numpy as np

from modicum.errors import SettingError
from modicum.posterior.draws import evenly_spaced
from modicum.random import Stream, generator


def require_positive(weights: np.ndarray | None, purpose: str) -> None:
    """Refuse draws with negative signs, which cannot be repeated a negative number of times."""
    if weights is not None and not (weights >= 0).all():
        raise SettingError(
            f"{purpose} uses draws one by one, but {np.sum(~(weights >= 0)):,} of these draws have "
            "negative signs, so that only averages are meaningful: use post.summary, predict, "
            "marginal, contrast, loo or ppc, which account for the signs; or, for equally weighted "
            'draws, sample with another method, such as method="hmc-ecs".'
        )


def require_positive_sum(weights: np.ndarray, purpose: str) -> None:
    """Refuse draws whose signs cancel, so that their averages are meaningless."""
    if not weights.sum() > 0:
        raise SettingError(
            f"{purpose} averages over draws, and the signs of these draws cancel, so that their "
            "averages say nothing about the posterior; sample with a larger subsample, so that "
            'fewer signs are negative, or with another method, such as method="hmc-ecs".'
        )


def equal_places(
    weights: np.ndarray | None, total: int, number: int, seed: int, purpose: str
) -> np.ndarray:
    """Choose `number` of `total` draws and return their indices, ascending.

    Draws with equal weights, or None, are chosen evenly spaced. Others, with `weights` (total,),
    are chosen in proportion to their weights, up to rounding (systematic resampling).
    """
    require_positive(weights, purpose)
    if weights is None or np.ptp(weights) == 0:
        return evenly_spaced(total, number)
    edges = np.cumsum(weights)
    start = generator(seed, Stream.RESAMPLING).random()
    at = np.searchsorted(edges, (np.arange(number) + start) / number * edges[-1])
    return np.asarray(np.minimum(at, total - 1))
