"""Computational time: what one independent draw costs, in row evaluations.

Equation numbers are those of the HMC-ECS paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["computational_time", "relative_computational_time"]


def computational_time(
    inefficiency: ArrayLike, evaluations: float, mean_sign: ArrayLike = 1.0
) -> Any:
    """Give the computational time ``CT = IF / (2 tau - 1)^2 * evaluations`` (eqs. 3.2, 5.4).

    Parameters
    ----------
    inefficiency
        The inefficiency factor IF. For signed draws it must be that of ``s (psi - I)``, not of
        psi: signs that change quickly break up the autocorrelation.
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


def relative_computational_time(one: ArrayLike, other: ArrayLike) -> Any:
    """Give the relative computational time ``CT(other) / CT(one)``; above 1, `one` is better.

    The HMC-ECS paper's tables 1 and 3 hold this ratio with perturbed HMC-ECS as `one`.

    Examples
    --------
    >>> relative_computational_time(2_000, 8_000)
    4.0
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(other, float) / np.asarray(one, float)
    return ratio if ratio.shape else float(ratio)
