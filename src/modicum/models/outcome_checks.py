"""Supports and checks of outcomes: which a family can describe, and how many classes occur."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi
from typing import NamedTuple

import jax
import numpy as np

from modicum.arrays import namespace
from modicum.errors import DataError
from modicum.rows import Rows

# takes a chunk and the index of its first row
OtherFields = Callable[[Mapping[str, np.ndarray], int], None]
CHUNK = 262_144
REMOTE = 1e-12  # an outcome whose range is a smaller share of its size has too few digits left
MANY, FEW = 100, 5  # more than MANY classes with fewer than FEW rows each are not classes


class Support(NamedTuple):
    """The outcomes that a family allows: numbers within bounds, which may have to be whole.

    Parameters
    ----------
    words
        The outcomes in words, for messages.
    low, high
        The bounds.
    strictly
        Whether outcomes lie strictly between the bounds.
    whole
        Whether outcomes are whole numbers.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> mo.models.Support("shares", 0, 1).excludes(np.array([0.3, 1.2]))
    array([False,  True])
    """

    words: str
    low: float = -np.inf
    high: float = np.inf
    strictly: bool = False
    whole: bool = False

    def excludes(self, y: np.ndarray) -> np.ndarray:
        """Return a mask of the outcomes that are not in the support."""
        inside = (y >= self.low) & (y <= self.high)
        if self.strictly:
            inside = (y > self.low) & (y < self.high)
        return np.asarray(~inside | (y != np.floor(y)) if self.whole else ~inside)

    @property
    def least(self) -> float:
        """The largest number at which the distribution function is 0."""
        return self.low if self.strictly else self.low - 1e-30  # any number below

    def before(self, lower: jax.Array) -> jax.Array:
        """Return the number above which the outcomes from a lower bound are, which is included."""
        xp = namespace(lower)
        if self.whole:
            return xp.ceil(lower) - 1
        return xp.where(lower > self.low, lower, self.least)


REAL = Support("real numbers")
TOLERANCE = 1 + 1e-6  # of angles, also in single precision
ANGLES = Support(
    "angles from -pi to pi, in radians (np.deg2rad of degrees)", -pi * TOLERANCE, pi * TOLERANCE
)
POSITIVE = Support("positive numbers", 0, strictly=True)
FROM_ZERO = Support("numbers from 0", 0)
TIMES = Support("positive times", 0, strictly=True)
SHARES = Support("shares strictly between 0 and 1 (percentages divided by 100)", 0, 1, True)
CLOSED_SHARES = Support("shares from 0 to 1 (percentages divided by 100)", 0, 1)
BINARY = Support(
    "outcomes that are 0 or 1 (numbers need another family, such as gaussian; of other codes say "
    "which is the event, as in 'y == 2 ~ x')",
    0,
    1,
    whole=True,
)
COUNTS = Support("counts (whole numbers from 0)", 0, whole=True)
RATES = Support("counts, or counts over exposures: numbers from 0", 0)


def classes_to(count: int | None) -> Support:
    """Return the support of this many classes, or of any number of classes."""
    last, upto = (np.inf, "0, 1, 2, ...") if count is None else (count - 1, f"0 to {count - 1}")
    return Support(f"classes numbered {upto}", 0, last, whole=True)


def class_names(rows: Rows, count: int, prefix: str = "") -> tuple[str, ...]:
    """Names of the first `count` classes: the outcome's levels, else their numbers."""
    levels = rows.outcome_levels
    numbered = (f"{prefix}{k}" for k in range(len(levels), count))
    return (*map(str, levels[:count]), *numbered)


def outcome_range(rows: Rows, enough: float = np.inf) -> tuple[float, float]:
    """Return the smallest and largest outcome, or any two that differ by more than `enough`.

    That is a share of their size.
    """
    low, high = np.inf, -np.inf
    for chunk in rows.chunks(CHUNK):
        y = np.asarray(chunk["y"], float)
        low, high = min(low, y.min()), max(high, y.max())
        if high - low > enough * max(abs(low), abs(high)):
            break
    return float(low), float(high)


def count_classes(rows: Rows) -> int:
    """Count the classes, refusing outcomes that skip a class or have hardly any rows per class.

    A stray value, classes numbered from 1, or a numeric outcome would each create unintended
    classes, every one of them with a coefficient per column.
    """
    present = np.zeros(0, dtype=np.int64)
    for chunk in rows.chunks(CHUNK):
        present = np.union1d(present, chunk["y"].astype(np.int64))
    count = 1 + int(present[-1])
    outcome = f"the outcome '{rows.outcome or 'y'}'"
    if len(present) < count:
        absent = int(np.argmax(present != np.arange(len(present))))
        raise DataError(
            f"{outcome} has classes up to {count - 1}, of which {count - len(present):,} never "
            f"occur (class {absent} is the first); number the classes 0, 1, 2, ... without gaps "
            f"(in a formula C(...) ~ does), look for a stray value, or give classes={count} if "
            "that many are meant."
        )
    if count > MANY and FEW * count > rows.observations:
        raise DataError(
            f"{outcome} has {count:,} classes in {rows.observations:,.0f} rows, fewer than {FEW} "
            f"rows for each; merge classes, use a family for numbers if they are numbers, or give "
            f"classes={count} if they are classes."
        )
    return count


def check_outcomes(
    model: object, rows: Rows, support: Support, others: OtherFields | None = None
) -> None:
    """Refuse outcomes outside the support, naming the first such row; `others` checks all fields.

    Codes without a level, as in a damaged store, are refused too.
    """
    start = 0
    for chunk in rows.chunks(CHUNK):
        unknown = None if rows.coding is None else rows.coding.fault(chunk)
        if unknown is not None:
            name, row = unknown
            raise DataError(
                f"the field {name!r} holds the code {chunk[name][row]} in row {start + row}, which "
                "is the code of no level: the rows were changed after they were made, so make them "
                "again from their source."
            )
        y = np.asarray(chunk["y"])
        bad = support.excludes(y)
        if bad.any():
            first = int(np.argmax(bad))
            raise DataError(
                f"the outcome '{rows.outcome or 'y'}' is {y[first]:g} in row {start + first}, "
                f"but {type(model).__name__} needs {support.words}."
            )
        if others is not None:
            others(chunk, start)
        start += len(y)


# Names that other packages use for the fields that families read.
MISTAKEN = {
    "weights": "name it 'weight'",
    "sample_weight": "name it 'weight'",
    "offsets": "name it 'offset'",
    "exposure": "give its logarithm as 'offset'",
    "exposures": "give its logarithm as 'offset'",
    **dict.fromkeys(
        ("events", "status", "censored", "censoring"),
        "say what was observed by 'event', 1 for an outcome and 0 if it is larger, or by 'cens'",
    ),
}


def refuse_mistaken_fields(model: object, rows: Rows) -> None:
    """Refuse a field that would be ignored though its name suggests otherwise."""
    factors = () if rows.coding is None else rows.coding.fields
    for name, remedy in MISTAKEN.items():
        if name in rows.fields and name not in factors:
            raise DataError(
                f"the rows hold a field {name!r}, which {type(model).__name__} does not read: "
                f"{remedy}, or leave it out."
            )


def refuse_constant(model: object, rows: Rows) -> None:
    """Refuse an outcome that never varies, where the scale of its noise is to be estimated."""
    if len(rows) < 2 or "offset" in rows.fields:
        return
    low, high = outcome_range(rows, enough=0.0)
    if low < high:
        return
    raise DataError(
        f"the outcome '{rows.outcome or 'y'}' is {low:g} in every row, so there is nothing to "
        f"explain and no noise whose scale {type(model).__name__} could estimate: check the "
        "outcome."
    )


def refuse_remote(rows: Rows) -> None:
    """Refuse a real outcome that varies only in its last digits."""
    low, high = outcome_range(rows, REMOTE)
    varies = high - low > REMOTE * max(abs(low), abs(high))
    if varies or low == high or "offset" in rows.fields:
        return
    raise DataError(
        f"the outcome '{rows.outcome or 'y'}' lies between {low:.3g} and {low:.3g} + "
        f"{high - low:.2g}, which is too little variation about so large a number to resolve in 64 "
        "bits: subtract a constant from it first."
    )
