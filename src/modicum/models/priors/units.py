"""The units of the data: moments of all rows, by one streaming pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from modicum.errors import DataError
from modicum.rows import CodedTerm, Coding, Rows, first_not_finite
from modicum.runtime import in_threads

CHUNK_ROWS = 16_384  # rows per chunk, which fit in cache
CHUNK_NUMBERS = 1 << 20  # most numbers per chunk, where it has many columns
FEW_CHUNKS = 4  # up to this many chunks, threads do not pay
CONSTANT = 1e-12  # a column with sd / |mean| below this counts as constant
CONSTANT_OUTCOME = 1e-14  # the limit for an outcome, which need not differ from an intercept
REMOTE = 1e-7  # sd / |mean| below which slope and intercept are indistinguishable in float64
TINY = 1e-150  # numbers below this have squares without full precision
ROUNDING = 1e-9, 1e-14  # of a variance: relative, and per |mean| and range


@dataclass(frozen=True)
class Moments:
    """Means and standard deviations over all rows, with frequency weights.

    Attributes
    ----------
    x_mean, x_sd
        Moments of each column of the model matrix, and of each further column of x (see `Coding`);
        the standard deviation of a constant column is 0.
    x_unit
        The unit of each column: the difference of its values if it has two, as indicators of
        levels do, and otherwise its standard deviation.
    y_mean, y_sd
        Moments of the outcome minus the offset, if the outcome is one number per row.
    log_rate
        Log of total outcome over total exposure e^offset; minus infinity if all outcomes are 0.
    log_exposure
        Logarithm of the total exposure.
    weight
        Sum of the frequency weights.
    """

    x_mean: np.ndarray
    x_sd: np.ndarray
    x_unit: np.ndarray
    y_mean: float
    y_sd: float
    log_rate: float
    log_exposure: float
    weight: float = 1.0

    @property
    def remote(self) -> np.ndarray:
        """Which columns vary too little about too large a mean to be told from an intercept.

        The Hessian in slope and intercept is then singular up to (sd / mean)^2, which float64 does
        not resolve.
        """
        return (self.x_sd > 0) & (self.x_sd < REMOTE * np.abs(self.x_mean))


@dataclass(frozen=True)
class MomentSums:
    """Sums that determine moments; sums of two data sets can be added and subtracted.

    Attributes
    ----------
    weight
        Sum of the frequency weights.
    mean, squares
        Mean and sum of squared deviations from it, of each column, each further column of x, and
        the outcome minus the offset.
    low, high
        Smallest and largest value of the same.
    counts
        Sum of the outcomes.
    log_exposure
        Logarithm of the total exposure e^offset.
    """

    weight: float
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    counts: float
    log_exposure: float

    def __add__(self, other: MomentSums) -> MomentSums:
        """Merge the sums of two data sets (Chan et al. 1979)."""
        if not (self.weight and other.weight):
            return self if self.weight else other
        weight = self.weight + other.weight
        with np.errstate(over="ignore", invalid="ignore"):  # `_require_sound` reports it
            shift = other.mean - self.mean
            between = shift**2 * (self.weight * other.weight / weight)
            return MomentSums(
                weight,
                self.mean + shift * (other.weight / weight),
                self.squares + other.squares + between,
                np.minimum(self.low, other.low),
                np.maximum(self.high, other.high),
                self.counts + other.counts,
                float(np.logaddexp(self.log_exposure, other.log_exposure)),
            )

    def __sub__(self, other: MomentSums) -> MomentSums:
        """Return the sums of the rows that remain when the rows of `other` are removed.

        The remaining rows may not reach the smallest and largest value, which stay.
        """
        weight = self.weight - other.weight
        mean = (self.weight * self.mean - other.weight * other.mean) / weight
        shift = other.mean - mean
        squares = self.squares - other.squares - shift**2 * (weight * other.weight / self.weight)
        # what rounding leaves of a column that varied in the removed rows alone is no variation
        error = self.squares + np.abs(self.mean) * np.sqrt(self.weight * self.squares)
        squares = np.where(squares > ROUNDING[1] * error, squares, 0.0)
        with np.errstate(divide="ignore"):
            share = np.log1p(-min(1.0, float(np.exp(other.log_exposure - self.log_exposure))))
        return MomentSums(
            weight,
            mean,
            squares,
            self.low,
            self.high,
            self.counts - other.counts,
            float(self.log_exposure + share),
        )

    def moments(self) -> Moments:
        """Return means, standard deviations and units."""
        mean, sd = self.mean, _sd(self.mean, self.squares, self.weight)
        # No values in a range have a larger variance than those at its ends.
        largest, width = (mean - self.low) * (self.high - mean), self.high - self.low
        error = ROUNDING[0] * largest + ROUNDING[1] * np.abs(mean) * width
        has_two = (sd > 0) & (np.abs(largest - sd**2) <= error)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_rate = float(np.log(self.counts) - self.log_exposure)
        return Moments(
            mean[:-1],
            sd[:-1],
            np.where(has_two, width, sd)[:-1],
            float(mean[-1]),
            float(sd[-1]),
            log_rate,
            float(self.log_exposure),
            self.weight,
        )


def columns_with_moments(rows: Rows) -> list[str]:
    """Return the names of the columns of the model matrix, and of further columns of x."""
    further = () if rows.coding is None else rows.coding.further
    return [*rows.columns, *(name for name, _ in further)]


def moments(rows: Rows) -> Moments:
    """Compute moments by one streaming pass over the fields x, y, offset and weight."""
    return moment_sums(rows).moments()


def moment_sums(rows: Rows) -> MomentSums:
    """Compute sums by one streaming pass over the fields x, y, offset and weight."""
    none = np.zeros(len(columns_with_moments(rows)) + 1)
    nothing = MomentSums(0.0, none, none, none + np.inf, none - np.inf, 0.0, -np.inf)
    step = CHUNK_ROWS
    if rows.coding is None or not rows.coding.apart:  # whose columns are formed
        step = max(1, min(step, CHUNK_NUMBERS // len(none)))
    mapped = map if len(rows) <= FEW_CHUNKS * step else in_threads
    total = sum(mapped(partial(_chunk_sums, rows), rows.chunks(step)), nothing)
    _require_sound(rows, total.mean, _sd(total.mean, total.squares, total.weight))
    return total


def _chunk_sums(rows: Rows, chunk: Mapping[str, np.ndarray]) -> MomentSums:
    y = np.asarray(chunk["y"], np.float64)
    scalar_offset = rows.fields.get("offset") == ()
    offset = np.asarray(chunk["offset"], np.float64) if scalar_offset else np.zeros(len(y))
    weight = np.asarray(chunk.get("weight", np.ones(len(y))), np.float64)
    if rows.coding is not None and rows.coding.apart:
        moments = _coded_moments(rows.coding, chunk, y - offset, weight)
    else:
        width = len(rows.columns)
        together = np.empty((len(y), width + 1))
        together[:, :width] = chunk["x"] if rows.coding is None else rows.coding.densely(chunk)
        together[:, width] = y - offset
        moments = _dense_moments(together, weight)
    if rows.coding is not None and rows.coding.further:
        places = [at for _, at in rows.coding.further]
        further = _dense_moments(np.asarray(chunk["x"][:, places], np.float64), weight)
        moments = np.c_[moments[:, :-1], further, moments[:, -1:]]
    top = offset.max()
    with np.errstate(divide="ignore"):  # a chunk whose weights are all 0
        log_exposure = float(top + np.log(weight @ np.exp(offset - top)))
    mean, squares, low, high = moments
    total = float(weight.sum())
    return MomentSums(total, mean, squares, low, high, float(weight @ y), log_exposure)


def _sd(mean: np.ndarray, squares: np.ndarray, weight: float) -> np.ndarray:
    """Standard deviations, the outcome's last; 0 where only rounding error varies."""
    sd = np.sqrt(squares / max(weight, np.finfo(float).tiny))
    share = np.r_[np.full(len(sd) - 1, CONSTANT), CONSTANT_OUTCOME]
    return np.where(sd <= share * np.abs(mean), 0.0, sd)


# Moments of columns are four lines: means, sums of squared deviations, and the smallest and largest
# values.


def _dense_moments(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the moments of all columns; `values` is overwritten."""
    total = float(weight.sum())
    if total == 0:
        return np.zeros((4, values.shape[1]))
    low, high = _range(values, weight)
    with np.errstate(over="ignore", invalid="ignore"):  # `_require_sound` reports it
        mean = weight @ values / total
        values -= mean
        return np.array([mean, weight @ np.square(values, out=values), low, high])


def _range(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest value of each column, in rows that count."""
    counted = values if weight.all() else values[weight > 0]
    return counted.min(axis=0), counted.max(axis=0)


def _coded_moments(
    coding: Coding, chunk: Mapping[str, np.ndarray], y: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Return the moments of all columns and of y.

    A term's column is zero except in the rows of its level, so only these are summed.
    """
    total = float(weight.sum())
    moments = np.zeros((4, coding.size + 1))
    mean, squares, low, high = moments
    if total == 0:
        return moments
    dense = [*coding.dense, coding.size]
    x = chunk["x"][:, : len(coding.dense)] if coding.dense else np.zeros((len(y), 0))
    values = np.column_stack([np.asarray(x, np.float64), y])
    low[dense], high[dense] = _range(values, weight)
    with np.errstate(over="ignore", invalid="ignore"):  # `_require_sound` reports it
        mean[dense] = weight @ values / total
        squares[dense] = weight @ np.square(values - mean[dense])
        inside = np.zeros(coding.size)  # weight of the rows of each column's level
        parts = []
        for term in coding.terms:
            value = 1.0 if term.scale is None else np.asarray(chunk["x"][:, term.scale], float)
            parts.append((term, chunk[term.field], value))
            mean[term.columns] += _sum_by_level(term, chunk[term.field], weight * value) / total
            inside[term.columns] += _sum_by_level(term, chunk[term.field], weight)
        for term, codes, value in parts:
            centre = np.r_[np.zeros(int(term.reference)), mean[term.columns]][codes]
            squares[term.columns] += _sum_by_level(term, codes, weight * (value - centre) ** 2)
            counted = np.where(weight > 0, value, 0.0)
            for end, extreme in ((low, np.minimum), (high, np.maximum)):
                of_level = np.zeros(term.levels)
                extreme.at(of_level, codes, counted)
                end[term.columns] = extreme(end[term.columns], of_level[int(term.reference) :])
        coded = np.setdiff1d(np.arange(coding.size), coding.dense)
        outside = np.maximum(total - inside[coded], 0.0)
        squares[coded] += outside * mean[coded] ** 2
    return moments


def with_slopes_by_level(data: Moments, coding: Coding) -> Moments:
    """Give the columns of level times number the number's unit.

    Such a column is zero in the rows of all other levels, so that its standard deviation says how
    many rows the level has, but its coefficient is a slope, or a difference of slopes. If the
    number has no column of its own, all levels have theirs, which together hold its values.
    """
    unit, uses = data.x_unit.copy(), np.zeros(coding.size, int)
    for term in coding.terms:
        uses[term.columns] += 1
    alone = [term for term in coding.terms if np.all(uses[term.columns] == 1)]  # no splines
    numbers = {scale: data.x_unit[place] for scale, place in enumerate(coding.dense)}
    for term in sorted(alone, key=lambda term: term.reference):
        if term.scale is None:
            continue
        mean, sd, own = (of[term.columns] for of in (data.x_mean, data.x_sd, data.x_unit))
        if term.scale not in numbers:
            indicators = np.all(np.isin(own[sd > 0], 1.0))  # of levels of two factors
            together = np.sqrt(max(np.sum(sd**2 + mean**2) - np.sum(mean) ** 2, 0.0))
            numbers[term.scale] = 1.0 if indicators else together
        unit[term.columns] = numbers[term.scale] or own
    return replace(data, x_unit=unit)


def _sum_by_level(term: CodedTerm, codes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Sum `numbers` by level, one sum per column of the term."""
    return np.bincount(codes, numbers, minlength=term.levels)[int(term.reference) :]


def _require_sound(rows: Rows, mean: np.ndarray, sd: np.ndarray) -> None:
    names = (*columns_with_moments(rows), rows.outcome or "y")
    bad = ~(np.isfinite(mean) & np.isfinite(sd))
    if bad.any():
        damage = first_not_finite(rows)
        if damage is not None:
            raise damage.error()
        raise DataError(
            f"the column '{names[int(np.argmax(bad))]}' holds numbers so large that their variance "
            "overflows; give it in another unit (divide it by a constant)."
        )
    small = (mean != 0) & (np.abs(mean) < TINY) & (sd < TINY)
    if small.any():
        raise DataError(
            f"the column '{names[int(np.argmax(small))]}' holds numbers so small that their "
            "variance underflows; give it in another unit (multiply it by a constant)."
        )
    apart = (sd > 0) & (sd[-1] > 0) & (np.minimum(sd, sd[-1]) < TINY * np.maximum(sd, sd[-1]))
    if apart.any():
        raise DataError(
            f"the numbers of the column '{names[int(np.argmax(apart))]}' and of '{names[-1]}' "
            "differ so much in size that the square of a coefficient overflows or underflows; give "
            "one of them in another unit (multiply or divide it by a constant)."
        )
