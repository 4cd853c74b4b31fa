"""Outcomes that are known in part: censored, truncated, or measured with a known error.

A family has the density and the tails of an outcome, and what follows is the same for all. Further
fields of a row say what is known of its outcome:

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

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, log1m_exp
from modicum.errors import DataError
from modicum.models.model import Batch
from modicum.models.outcome_checks import Support

HIDING = ("event", "cens", "y2")  # what is seen of an outcome, once it has come about
CENSORED = (*HIDING, "lb", "ub")
KNOWN_NOISE = ("se", "added_se")
PARTIAL = (*CENSORED, *KNOWN_NOISE)
NEVER = -1e30  # logarithm of a probability of 0, whose differences are numbers
CLOSEST = 1e-15  # difference of two logarithms, of which rounding leaves nothing
MOST_TRIES = 10_000  # draws per outcome until one is within its bounds
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


def draw_within(
    draw: Callable[[np.ndarray, Batch], np.ndarray], eta: np.ndarray, batch: Batch
) -> np.ndarray:
    """Draw outcomes, again where they are outside the bounds of their rows, if these have any.

    Parameters
    ----------
    draw
        Draws an outcome for each vector of predictors.
    eta
        Predictors (..., rows, predictors).
    batch
        The fields of the rows.
    """
    bounds = [np.asarray(batch[name], float) for name in ("lb", "ub") if name in batch]
    drawn = draw(eta, batch)
    if not bounds:
        return drawn
    rows = np.broadcast_to(np.arange(eta.shape[-2]), drawn.shape)
    low, high = np.asarray(batch.get("lb", -np.inf)), np.asarray(batch.get("ub", np.inf))
    low, high = (np.broadcast_to(bound, eta.shape[-2]) for bound in (low, high))
    for _ in range(MOST_TRIES):
        outside = (drawn < low[rows]) | (drawn > high[rows])
        if not outside.any():
            return drawn
        of_rows = rows[outside]
        some = {name: np.asarray(field)[of_rows] for name, field in batch.items()}
        drawn[outside] = draw(eta[outside], some)
    raise DataError(
        f"no outcome within the bounds of row {int(rows[outside][0])} was drawn in {MOST_TRIES:,} "
        "tries, so unlikely are they in the model without bounds: leave lb and ub out to draw "
        "outcomes without bounds."
    )


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
