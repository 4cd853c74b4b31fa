"""The units of the data: moments of all rows, by one streaming pass."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from modicum.errors import DataError
from modicum.rows import CodedTerm, Coding, Rows, first_not_finite
from modicum.runtime import one_blas_thread

__all__ = ["MomentSums", "Moments", "moment_sums", "moments"]

CHUNK_ROWS = 16_384  # rows per chunk, which fit in cache
FEW_CHUNKS = 4  # up to this many chunks, threads do not pay
CONSTANT = 1e-12  # a column with sd / |mean| below this counts as constant
CONSTANT_OUTCOME = 1e-14  # the limit for an outcome, which need not differ from an intercept
REMOTE = 1e-7  # sd / |mean| below which slope and intercept are indistinguishable in float64
TINY = 1e-150  # numbers below this have squares without full precision


@dataclass(frozen=True)
class Moments:
    """Means and standard deviations over all rows, with frequency weights.

    Attributes
    ----------
    x_mean, x_sd
        Moments of each column; the standard deviation of a constant column is 0.
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
        Mean and sum of squared deviations from it, of each column and, last, of the outcome minus
        the offset.
    counts
        Sum of the outcomes.
    log_exposure
        Logarithm of the total exposure e^offset.
    """

    weight: float
    mean: np.ndarray
    squares: np.ndarray
    counts: float
    log_exposure: float

    def __add__(self, other: MomentSums) -> MomentSums:
        merged = _Merged(self.mean, self.squares.copy(), self.weight)
        merged.merge(other.mean, other.squares, other.weight)
        return MomentSums(
            merged.weight,
            merged.mean,
            merged.squares,
            self.counts + other.counts,
            float(np.logaddexp(self.log_exposure, other.log_exposure)),
        )

    def __sub__(self, other: MomentSums) -> MomentSums:
        """Return the sums of the rows that remain when the rows of `other` are removed."""
        weight = self.weight - other.weight
        mean = (self.weight * self.mean - other.weight * other.mean) / weight
        shift = other.mean - mean
        squares = self.squares - other.squares - shift**2 * (weight * other.weight / self.weight)
        with np.errstate(divide="ignore"):
            share = np.log1p(-min(1.0, float(np.exp(other.log_exposure - self.log_exposure))))
        counts = self.counts - other.counts
        return MomentSums(
            weight, mean, np.maximum(squares, 0.0), counts, float(self.log_exposure + share)
        )

    def moments(self) -> Moments:
        """Return means and standard deviations."""
        mean, sd = self.mean, _sd(self.mean, self.squares, self.weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_rate = float(np.log(self.counts) - self.log_exposure)
        return Moments(
            mean[:-1],
            sd[:-1],
            float(mean[-1]),
            float(sd[-1]),
            log_rate,
            float(self.log_exposure),
            self.weight,
        )


def moments(rows: Rows) -> Moments:
    """Compute moments by one streaming pass over the fields x, y, offset and weight."""
    return moment_sums(rows).moments()


def moment_sums(rows: Rows) -> MomentSums:
    """Compute sums by one streaming pass over the fields x, y, offset and weight."""
    width = len(rows.columns)
    merged = _Merged(np.zeros(width + 1), np.zeros(width + 1), 0.0)
    counts, log_exposure = 0.0, -np.inf
    for part in _parts(rows):  # by several threads, merged in order
        merged.merge(part.mean, part.squares, part.weight)
        counts += part.counts
        log_exposure = np.logaddexp(log_exposure, part.log_exposure)
    _require_sound(rows, merged.mean, _sd(merged.mean, merged.squares, merged.weight))
    return MomentSums(merged.weight, merged.mean, merged.squares, counts, float(log_exposure))


def _parts(rows: Rows) -> Iterator[MomentSums]:
    """Yield the sums of each chunk, in order; only a few chunks are in memory at a time."""
    chunks, buffer = rows.chunks(CHUNK_ROWS), _Buffer()
    if len(rows) <= FEW_CHUNKS * CHUNK_ROWS:
        yield from (_chunk_sums(rows, chunk, buffer) for chunk in chunks)
        return
    threads = os.cpu_count() or 1
    waiting: deque[Future[MomentSums]] = deque()
    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        for chunk in chunks:
            waiting.append(pool.submit(_chunk_sums, rows, chunk, buffer))
            if len(waiting) >= 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Buffer(threading.local):
    """One reusable buffer per thread: fresh memory pages per chunk would double the time."""

    def __init__(self) -> None:
        self._array = np.empty((0, 0))

    def of(self, shape: tuple[int, int]) -> np.ndarray:
        """Return an array of this shape; the number of columns is always the same."""
        if len(self._array) < shape[0]:
            self._array = np.empty(shape)
        return self._array[: shape[0]]


def _chunk_sums(rows: Rows, chunk: Mapping[str, np.ndarray], buffer: _Buffer) -> MomentSums:
    y = np.asarray(chunk["y"], np.float64)
    scalar_offset = rows.fields.get("offset") == ()
    offset = np.asarray(chunk["offset"], np.float64) if scalar_offset else np.zeros(len(y))
    weight = np.asarray(chunk.get("weight", np.ones(len(y))), np.float64)
    if rows.coding is not None and rows.coding.apart:
        moments = _coded_moments(rows.coding, chunk, y - offset, weight)
    else:
        width = len(rows.columns)
        together = buffer.of((len(y), width + 1))
        together[:, :width] = chunk["x"] if rows.coding is None else rows.coding.densely(chunk)
        together[:, width] = y - offset
        moments = _dense_moments(together, weight)
    top = offset.max()
    with np.errstate(divide="ignore"):  # a chunk whose weights are all 0
        log_exposure = float(top + np.log(weight @ np.exp(offset - top)))
    return MomentSums(moments[2], moments[0], moments[1], float(weight @ y), log_exposure)


def _sd(mean: np.ndarray, squares: np.ndarray, weight: float) -> np.ndarray:
    """Standard deviations, the outcome's last; 0 where only rounding error varies."""
    sd = np.sqrt(squares / max(weight, np.finfo(float).tiny))
    share = np.r_[np.full(len(sd) - 1, CONSTANT), CONSTANT_OUTCOME]
    return np.where(sd <= share * np.abs(mean), 0.0, sd)


class _Merged:
    """Weighted means and sums of squared deviations, merged chunk by chunk (Chan et al. 1979)."""

    def __init__(self, mean: np.ndarray, squares: np.ndarray, weight: float) -> None:
        self.mean, self.squares, self.weight = mean, squares, weight

    def merge(self, mean: np.ndarray, squares: np.ndarray, total: float) -> None:
        """Add rows with these means and squared deviations, and this total weight."""
        if total == 0:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            self.squares += squares
            weight, shift = self.weight + total, mean - self.mean
            if self.weight:
                self.squares += shift**2 * (self.weight * total / weight)
            self.mean = self.mean + shift * (total / weight)
        self.weight = weight


def _dense_moments(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return means of the columns, sums of squared deviations, and the weight of the rows.

    `values` is overwritten.
    """
    total = float(weight.sum())
    if total == 0:
        return np.zeros(values.shape[1]), np.zeros(values.shape[1]), total
    with np.errstate(over="ignore", invalid="ignore"):  # `_require_sound` reports it
        mean = weight @ values / total
        values -= mean
        return mean, weight @ np.square(values, out=values), total


def _coded_moments(
    coding: Coding, chunk: Mapping[str, np.ndarray], y: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return means of all columns and of y, sums of squared deviations, and the rows' weight.

    A term's column is zero except in the rows of its level, so only these are summed.
    """
    total = float(weight.sum())
    mean, squares = np.zeros(coding.size + 1), np.zeros(coding.size + 1)
    if total == 0:
        return mean, squares, total
    dense = [*coding.dense, coding.size]
    x = chunk["x"][:, : len(coding.dense)] if coding.dense else np.zeros((len(y), 0))
    values = np.column_stack([np.asarray(x, np.float64), y])
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
        coded = np.setdiff1d(np.arange(coding.size), coding.dense)
        outside = np.maximum(total - inside[coded], 0.0)
        squares[coded] += outside * mean[coded] ** 2
    return mean, squares, total


def _sum_by_level(term: CodedTerm, codes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Sum `numbers` by level, one sum per column of the term."""
    return np.bincount(codes, numbers, minlength=term.levels)[int(term.reference) :]


def _require_sound(rows: Rows, mean: np.ndarray, sd: np.ndarray) -> None:
    names = (*rows.columns, rows.outcome or "y")
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
