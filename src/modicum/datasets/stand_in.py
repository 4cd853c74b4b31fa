"""Stand-ins: any number of rows that resemble a smaller real table."""

from __future__ import annotations

import numpy as np

from modicum.errors import whole_number
from modicum.ledger import Ledger
from modicum.models import Logistic, Target
from modicum.rows import Rows

__all__ = ["resampled"]

CHUNK_ROWS = 1 << 18


def resampled(real: Rows, model: Logistic, n: int, seed: int) -> Rows:
    """Resample `n` rows of `real`, with outcomes simulated from the regression fitted to it."""
    whole_number("n", n)
    beta, intercept = _fit_mode(real, model)
    everything = real.slice(0, len(real))["x"]
    chance = 1 / (1 + np.exp(-(everything @ beta + intercept)))
    which, outcomes = np.random.default_rng(seed).spawn(2)
    x, y = np.empty((n, everything.shape[1]), real.dtype), np.empty(n, real.dtype)
    for first in range(0, n, CHUNK_ROWS):
        part = slice(first, min(first + CHUNK_ROWS, n))
        at = which.integers(0, len(real), size=part.stop - first)
        x[part] = everything[at]
        y[part] = outcomes.random(len(at)) < chance[at]
    return Rows(x=x, y=y, columns=real.columns)


def _fit_mode(real: Rows, model: Logistic) -> tuple[np.ndarray, float]:
    """Coefficients and intercept at the posterior mode."""
    from modicum.passes import LocalEngine, Sums
    from modicum.passes.mode import find_mode

    target, start = Target.of(model, real)
    sums = Sums(target, real, LocalEngine(progressbar=False), Ledger(rows=len(real)))
    at, _ = find_mode(sums, start)
    theta = target.unravel(at.point)
    return theta["beta"], float(theta["intercept"])
