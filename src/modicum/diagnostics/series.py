"""Arrays of Markov chains, brought into one shape before they are measured."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.errors import SettingError

__all__ = ["as_chains", "finite_and_moving"]


def as_chains(x: ArrayLike) -> NDArray[np.float64]:
    """Bring draws to the shape (chain, draw, *shape); a plain series is one chain.

    Examples
    --------
    >>> as_chains([1, 2, 3]).shape
    (1, 3)
    """
    values = np.asarray(x, dtype=np.float64)
    if values.ndim == 0:
        raise SettingError("A diagnostic needs a series of draws, not a single number.")
    return values[None] if values.ndim == 1 else values


def finite_and_moving(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Say which of the scalars in (chain, draw, *shape) are finite throughout and ever change.

    The spread is compared with the size of the numbers: a constant series whose sums were
    rounded must not look like one that moves.
    """
    if x.shape[0] * x.shape[1] == 0:
        return np.zeros(x.shape[2:], dtype=bool)
    largest, smallest = x.max(axis=(0, 1)), x.min(axis=(0, 1))
    finite = np.isfinite(largest) & np.isfinite(smallest)
    with np.errstate(invalid="ignore", over="ignore"):
        rounding = 4 * np.finfo(float).eps * np.maximum(np.abs(largest), np.abs(smallest))
        moving: NDArray[np.bool_] = finite & (largest - smallest > rounding)
    return moving
