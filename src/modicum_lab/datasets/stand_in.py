"""Stand-ins: any number of rows that resemble a smaller real table."""

from __future__ import annotations

import numpy as np

from modicum import LogPosterior, Rows
from modicum.errors import whole_number
from modicum.models import Logistic

CHUNK_ROWS = 1 << 18


def resampled(real: Rows, model: Logistic, n: int, seed: int) -> Rows:
    """Resample `n` rows of `real`, with outcomes simulated from the regression fitted to it."""
    whole_number("n", n)
    mode = LogPosterior(model, real).mode().named
    everything = real.slice(0, len(real))["x"]
    chance = 1 / (1 + np.exp(-(everything @ mode["beta"] + mode["intercept"])))
    which, outcomes = np.random.default_rng(seed).spawn(2)
    x, y = np.empty((n, everything.shape[1]), real.dtype), np.empty(n, real.dtype)
    for first in range(0, n, CHUNK_ROWS):
        part = slice(first, min(first + CHUNK_ROWS, n))
        at = which.integers(0, len(real), size=part.stop - first)
        x[part] = everything[at]
        y[part] = outcomes.random(len(at)) < chance[at]
    return Rows(x=x, y=y, columns=real.columns)
