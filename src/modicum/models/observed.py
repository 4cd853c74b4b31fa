"""Observed outcomes: which a family allows, and what is known of one in part.

The first half says what outcomes may be, and how many classes occur.

Outcomes may be censored, truncated, or measured with a known error. A family has the density and
the tails of an outcome, and what follows is the same for all. Further fields of a row say what is
known of its outcome:

- `cens`: 0 if it is y, 1 if it is larger, -1 if it is at most y, 2 if it lies between y and `y2`;
  or `event`, 1 if it is y and 0 if it is larger.
- `lb` and `ub`: the row would not have been there with an outcome outside these bounds.
- `se`: the known standard deviation of the noise; `added_se`: that of an error on top of the noise.

A count that is known to lie between y and y2 is above y and at most y2, as in brms; bounds include
their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import pi
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, log1m_exp, namespace
from modicum.errors import DataError
from modicum.rows import Rows
from modicum.runtime import Array

Batch = Mapping[str, Array]
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
    if len(present) == count - present[0] < count:
        raise DataError(
            f"{outcome} has classes from {present[0]} to {count - 1}, and their numbers must begin "
            f"at 0; write C({rows.outcome or 'y'}) ~ ... in a formula, which takes them as they "
            f"are, subtract {present[0]}, or give classes={count} if lower classes are possible."
        )
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
    model: object, rows: Rows, support: Support, others: Callable[[Batch, int], None] | None = None
) -> None:
    """Refuse outcomes outside the support, naming the first such row.

    `others` checks the other fields of a chunk, given the index of its first row. Codes without a
    level, as in a damaged store, are refused too.
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
    if not len(rows) or "offset" in rows.fields:
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


# Outcomes known in part --------------------------------------------------------------------

HIDING = ("event", "cens", "y2")  # what is seen of an outcome, once it has come about
CENSORED = (*HIDING, "lb", "ub")
KNOWN_NOISE = ("se", "added_se")
PARTIAL = (*CENSORED, *KNOWN_NOISE)
NEVER = -1e30  # logarithm of a probability of 0, whose differences are numbers
CLOSEST = 1e-15  # difference of two logarithms, of which rounding leaves nothing
NO_BOUNDS = {"lb": -np.inf, "ub": np.inf}
TRIES = 300  # draws of an outcome, which take as long as one within its bounds
TailsAt = Callable[[jax.Array], tuple[jax.Array, jax.Array]]  # log P(Y <= y) and log P(Y > y)
Known = Mapping[str, jax.Array]  # the fields of one row


def log_density_of_part(
    log_density: Callable[[jax.Array], jax.Array],
    log_tails: TailsAt,
    known: Known,
    support: Support,
) -> jax.Array:
    """Log-probability, or log-density, of what is known of one outcome.

    Parameters
    ----------
    log_density, log_tails
        Of an outcome, given the predictors of the row.
    known
        The fields of the row.
    support
        The outcomes that the family allows; of successes, only as many as the trials of the row.
    """
    between = partial(_log_between, tails_everywhere(log_tails, support, known.get("trials")))
    y, lower, upper = known["y"], known.get("lb"), known.get("ub")
    if lower is not None:
        lower = support.before(lower)
    value = log_density(y)
    if "event" in known:
        value = jnp.where(known["event"] == 0, between(y, upper), value)
    if "cens" in known:
        kind = known["cens"]
        value = jnp.where(kind == 1, between(y, upper), value)
        value = jnp.where(kind == -1, between(lower, y), value)
        if "y2" in known:
            value = jnp.where(kind == 2, between(y, known["y2"]), value)
    return value if lower is None and upper is None else value - between(lower, upper)


def tails_everywhere(
    log_tails: TailsAt, support: Support, trials: jax.Array | None = None
) -> TailsAt:
    """Continue the tails of an outcome beyond its support, with finite derivatives."""
    least, most = support.least, support.high if trials is None else trials

    def tails(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        inside, low = (y > least) & (y < most), y <= least
        below, above = log_tails(jnp.where(inside, y, jnp.minimum(0.5, most - 0.5)))
        beyond = jnp.where(low, NEVER, 0.0), jnp.where(low, 0.0, NEVER)
        return jnp.where(inside, below, beyond[0]), jnp.where(inside, above, beyond[1])

    return tails


def _log_between(tails: TailsAt, low: jax.Array | None, high: jax.Array | None) -> jax.Array:
    """log P(low < Y <= high), from whichever tail both ends are in; None for no end."""
    if low is None:
        assert high is not None, "an outcome that may be anything has probability 1"
        return tails(high)[0]
    cdf_low, sf_low = tails(low)
    if high is None:
        return sf_low
    cdf_high, sf_high = tails(high)
    above = sf_low + log1m_exp(jnp.maximum(sf_low - sf_high, CLOSEST))
    below = cdf_high + log1m_exp(jnp.maximum(cdf_high - cdf_low, CLOSEST))
    return jnp.where(sf_low < cdf_high, above, below)


def outcome_within(tails: TailsAt, known: Known, support: Support, share: jax.Array) -> jax.Array:
    """Return the outcome up to which this share of those within a row's bounds is.

    The distribution function is inverted by bisection over all floating-point numbers in their
    order, which halves wide bounds as fast as narrow ones.
    """
    lower, upper = known.get("lb"), jnp.asarray(known.get("ub", jnp.inf), share.dtype)
    if lower is not None:
        lower = support.before(jnp.asarray(lower, share.dtype))
    tails = tails_everywhere(tails, support, known.get("trials"))
    wanted = jnp.log(share) + _log_between(tails, lower, upper)

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        reached = _log_between(tails, lower, _number(middle)) >= wanted
        return jnp.where(reached, low, middle), jnp.where(reached, middle, high)

    ends = support.least if lower is None else lower, jnp.minimum(upper, np.finfo(np.float64).max)
    _, high = jax.lax.fori_loop(0, 64, halve, tuple(_place(jnp.float64(end)) for end in ends))
    # bounds include their ends
    return jnp.maximum(_number(high), jnp.maximum(known.get("lb", -jnp.inf), support.low))


def _place(number: jax.Array) -> jax.Array:
    """Return the place of a number in double precision among all of these, as a whole number."""
    return _mirrored(jax.lax.bitcast_convert_type(number, jnp.int64))


def _number(place: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(_mirrored(place), jnp.float64)


def _mirrored(bits: jax.Array) -> jax.Array:
    return jnp.where(bits < 0, np.iinfo(np.int64).min - bits, bits)


def draw_within(
    draw: Callable[[np.ndarray, Batch], np.ndarray],
    within: Callable[[np.ndarray, Batch], np.ndarray],
    eta: np.ndarray,
    batch: Batch,
) -> np.ndarray:
    """Draw outcomes, again where they are outside the bounds of their rows, if these have any.

    Parameters
    ----------
    draw
        Draws an outcome for each vector of predictors.
    within
        The same, within bounds; this takes long.
    eta
        Predictors (..., rows, predictors).
    batch
        The fields of the rows that their outcomes depend on.
    """
    drawn = draw(eta, batch)
    rows = np.broadcast_to(np.arange(eta.shape[-2]), drawn.shape).ravel()
    flat, eta = drawn.ravel(), eta.reshape(-1, eta.shape[-1])
    low, high = (np.broadcast_to(batch.get(k, x), drawn.shape[-1]) for k, x in NO_BOUNDS.items())
    high = np.minimum(high, batch.get("trials", np.inf))

    def outside(at: np.ndarray) -> np.ndarray:
        return at[(flat[at] < low[rows[at]]) | (flat[at] > high[rows[at]])]

    left = outside(np.arange(flat.size))
    for again in (*[draw] * TRIES, within):
        if not left.size:
            return flat.reshape(drawn.shape)
        some = {name: np.asarray(field)[rows[left]] for name, field in batch.items()}
        flat[left] = again(eta[left], some)
        left = outside(left)
    if left.size:
        row = rows[left[0]]
        raise DataError(
            f"the bounds of row {row} are {low[row]:g} and {high[row]:g}, between which there is "
            "no outcome to draw: correct them."
        )
    return flat.reshape(drawn.shape)


# Checks -----------------------------------------------------------------------------------

NO_CHANCE = "outside its bounds {lb:g} and {ub:g}, where rows were not to be"


def check_part(chunk: Batch, observed: tuple[str, ...], support: Support, first: int) -> None:
    """Refuse fields that contradict each other; `first` is the index of the first row."""
    for one, other in (("event", "cens"), KNOWN_NOISE):
        if one in observed and other in observed:
            raise DataError(f"the rows hold both {one!r} and {other!r}: leave one of them out.")
    if "y2" in observed and "cens" not in observed:
        raise DataError("the rows hold 'y2' and no 'cens', which is 2 for intervals: add it.")
    known = {name: np.asarray(chunk[name], float) for name in ("y", *observed)}
    y = known["y"]
    absent = {"event": 1, "cens": 0, "y2": np.inf, "lb": -np.inf, "ub": np.inf, "se": 1}
    known = {name: np.full(len(y), value) for name, value in absent.items()} | known
    event, y2, lb = (known[name] for name in ("event", "y2", "lb"))
    known["ub"] = ub = np.minimum(known["ub"], np.asarray(chunk.get("trials", support.high)))
    below = np.asarray(support.before(as_either(lb)))
    cens = np.where(event == 0, 1, known["cens"])
    outside = (y < lb) | (y > ub) | ((cens == 1) & (y == ub)) | ((cens == 2) & (y2 > ub))
    rules = (
        (
            (event != 0) & (event != 1),
            "the field 'event' is {event:g} in row {row}; it must be 1 where the event was "
            "observed at the time y, and 0 where it had not happened by then (censored)",
        ),
        (
            ~np.isin(cens, (-1, 0, 1, 2)),
            "the field 'cens' is {cens:g} in row {row}; it must be 0 (none), 1 (right), -1 (left) "
            "or 2 (interval)",
        ),
        (
            (cens == 2) & ~((y2 > y) & (y2 < np.inf)),
            "the outcome of row {row} lies between {y:g} and {y2:g}; the upper end, which "
            "'y | cens(c, y2) ~ ...' names, must be larger and finite",
        ),
        (
            ~(below < ub),
            "the bounds of row {row} are {lb:g} and {ub:g}; the upper one must be larger",
        ),
        (outside, f"the outcome of row {{row}} is {{y:g}}, {NO_CHANCE}"),
        (
            (cens == -1) & (y == below),
            f"the outcome of row {{row}} is at most {{y:g}}, {NO_CHANCE}",
        ),
        (~(known["se"] > 0), "the standard error of row {row} is {se:g}, and must be positive"),
        (
            ~(known.get("added_se", y) >= 0) & ("added_se" in observed),
            "the standard error of row {row} is {added_se:g}, and must not be negative",
        ),
    )
    for bad, sentence in rules:
        if bad.any():
            at = int(np.argmax(bad))
            values = {name: column[at] for name, column in known.items()}
            raise DataError(sentence.format(row=first + at, **values) + ".")
