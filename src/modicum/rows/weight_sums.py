"""What frequency weights add up to, and whether that can be meant.

A weight is the number of rows that one stands for. Sampling weights (survey weights, inverse
probabilities) are no such numbers: with a mean of 350, a posterior is 19 times too narrow, and with
a sum of one, it is hardly more than the prior.
"""

from __future__ import annotations

import numpy as np

from modicum.errors import ModicumWarning
from modicum.rows.rows import Rows

__all__ = ["doubtful_weights"]

SEEN = 65_536  # rows, evenly spaced, whose weights are looked at
HIGH, LOW = 3.0, 0.1  # mean weights that are not whole numbers, beyond which something is amiss
MOST = 1e6  # the same of whole numbers: tables of counts have large ones


def doubtful_weights(rows: Rows) -> list[ModicumWarning]:
    """Warn where weights do not look like numbers of rows."""
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
            f"number of rows that one stands for: the posterior is that of {total:.3g} independent "
            f"rows, {narrow} as that of the rows there are",
            "divide the weights by their mean, if they are sampling weights, or leave them out",
            sum=total,
            mean=mean,
        )
    ]
