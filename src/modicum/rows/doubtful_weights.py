"""A warning about weights that do not look like frequency weights.

A frequency weight is the number of observations that a row represents. Sampling weights (survey
weights, inverse probabilities) are not: if their mean is 350, the posterior is 19 times too narrow,
and if they sum to one, it is little more than the prior.
"""

from __future__ import annotations

import numpy as np

from modicum.errors import ModicumWarning
from modicum.rows.rows import Rows

SEEN = 65_536  # evenly spaced rows whose weights are examined
HIGH, LOW = 3.0, 0.1  # bounds on the mean of fractional weights, beyond which they are doubtful
MOST = 1e6  # bound on the mean of integer weights: tables of counts have large ones


def doubtful_weights(rows: Rows) -> list[ModicumWarning]:
    """Return a warning if the weights do not look like numbers of observations."""
    if "weight" not in rows.fields:
        return []
    row_ids = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SEEN)).astype(int))
    weights = np.asarray(rows.take(row_ids)["weight"], np.float64)
    mean = float(weights.mean())
    whole = bool(np.all(weights == np.round(weights)))
    if (LOW <= mean <= HIGH or whole) and mean <= MOST:
        return []
    total, times = mean * len(rows), np.sqrt(mean)
    narrow = f"{times:.3g} times as narrow" if mean > 1 else f"{1 / times:.3g} times as wide"
    return [
        ModicumWarning(
            "weights-sum",
            f"the weights of {len(rows):,} rows sum to about {total:.3g}, and a weight is the "
            f"number of observations a row represents: the posterior is that of {total:.3g} "
            f"independent rows, {narrow} as with {len(rows):,} rows",
            "divide the weights by their mean if they are sampling weights, or leave them out",
            sum=total,
            mean=mean,
        )
    ]
