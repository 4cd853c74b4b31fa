"""Whether rows are independent: a user's function may mix the rows of a batch by mistake.

A log-likelihood that uses the mean of its batch, the number of rows or the row before has a value
on any subsample, but not that of all rows. So the first row is tried in two batches that share
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from modicum.errors import SettingError
from modicum.models.base import Batch, Params
from modicum.models.tracing import evaluated
from modicum.rows import Rows
from modicum.runtime import in_double_precision


def two_batches(rows: Rows) -> tuple[Batch, Batch]:
    """Return two batches that share their first row and nothing else, and differ in length."""
    n = len(rows)
    ids = (np.array([0, 1 % n]), np.array([0, n - 1, n // 2]))
    first, second = ({k: _in_double(v) for k, v in rows.take(i).items()} for i in ids)
    return first, second


@in_double_precision
def refuse_mixed_rows(
    log_likelihood: Callable[[Params, Batch], jax.Array],
    theta: Params,
    batches: tuple[Batch, Batch],
) -> None:
    """Refuse a log-likelihood of a row that changes with the other rows of its batch.

    One that changes even with the same rows is left to `trace_of`, which says why.
    """

    def of_first_row(theta: Params, *batches: Batch) -> list[jax.Array]:
        return [log_likelihood(theta, batch)[0] for batch in batches]

    alone, other, again = evaluated(of_first_row, theta, *batches, batches[0])
    if agree(alone, again) and not agree(alone, other):
        raise SettingError(
            "the log-likelihood of a row changes with the other rows of its batch (their mean, "
            "their number, the row before): compute that from all rows beforehand, and make it "
            "a field of the rows."
        )


def agree(first: jax.Array, second: jax.Array) -> bool:
    """Whether two numbers are equal up to rounding, or both undefined."""
    return bool(np.allclose(first, second, rtol=1e-6, atol=1e-9, equal_nan=True))


def _in_double(values: np.ndarray) -> np.ndarray:
    """Convert to float64, in which rounding is no dependence; keep integers."""
    values = np.asarray(values)
    return values.astype(np.float64) if values.dtype.kind == "f" else values
