"""Sums of a chunk in NumPy, without compilation, for families with formulas for their derivatives.

A mode takes a few passes, and compiling a pass takes longer than running them. Each thread of the
engine processes a chunk in blocks: small enough for the caches, and large enough that threads
seldom wait for each other between two NumPy operations.

The sums are those of `linear_hessian`, which serves any family. For dense rows and concave f the
Hessian is -Z'Z with Z = sqrt(-f'') X, half the work of a product of two matrices. For coded rows,
sums by level and by pairs of levels are weighted counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from modicum.arrays import as_either
from modicum.models import LinearPredictorModel, Target
from modicum.models.matrix import CodedMatrix
from modicum.models.model import Batch
from modicum.passes.engine import of_numpy
from modicum.rows import CodedTerm

# Floats per block (its weighted copy takes as much again), and the row limits of a block.
BLOCK_NUMBERS, FEWEST_ROWS, MOST_ROWS = 2**18, 1024, 8192
Slopes: TypeAlias = tuple[np.ndarray, np.ndarray]  # f' and f'' of each row, times its weight


def map_by_numpy(
    function: Callable[[Batch], np.ndarray], batch: Batch, present: np.ndarray
) -> np.ndarray:
    """Return one number per row of a chunk, computed block by block."""
    with np.errstate(all="ignore"):  # callers check whether the result is finite
        return np.concatenate([function(block) for block in in_blocks(batch, present)])


@of_numpy
def gradient_by_numpy(
    target: Target, t: np.ndarray, batch: Batch, present: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Sum log-likelihood and gradient at `t` over the present rows of a chunk."""
    return _chunk_sums(target, t, batch, present, second=False)


@of_numpy
def hessian_by_numpy(
    target: Target, t: np.ndarray, batch: Batch, present: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Sum log-likelihood, gradient and Hessian at `t` over the present rows of a chunk."""
    return _chunk_sums(target, t, batch, present, second=True)


def _chunk_sums(
    target: Target, t: np.ndarray, batch: Batch, present: np.ndarray, second: bool
) -> tuple[np.ndarray, ...]:
    model = target.model
    assert isinstance(model, LinearPredictorModel)
    with np.errstate(all="ignore"):
        if target.coding is None:
            return _dense_sums(model, t, batch, present, second)
        (all_present,) = in_blocks(batch, present, len(present))
        coded = _CodedRows(model, t, all_present)
        first = np.asarray(coded.value), coded.gradient()
        return (*first, coded.hessian()) if second else first


@of_numpy
def values_by_numpy(
    target: Target, points: np.ndarray, batch: Batch, present: np.ndarray
) -> tuple[np.ndarray]:
    """Sum the log-likelihood at many points over the present rows of a chunk without codes."""
    model = target.model
    assert isinstance(model, LinearPredictorModel)
    columns, values = np.shape(batch["x"])[1], np.zeros(len(points))
    with np.errstate(all="ignore"):
        for block in in_blocks(batch, present):
            eta = block["x"].astype(np.float64, copy=False) @ points[:, :columns].T
            eta += points[:, columns] if model.intercept else 0.0
            eta += np.reshape(block.get("offset", 0.0), (-1, 1))
            y = np.repeat(model.outcome(block), len(points), axis=0)
            f = np.reshape(model.value(as_either(eta.ravel()), as_either(y)), eta.shape)
            values += np.asarray(block.get("weight", np.ones(len(f))), np.float64) @ f
    return (values,)


def in_blocks(
    batch: Batch, present: np.ndarray, size: int | None = None
) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the present rows in blocks; padding, which comes last, is dropped."""
    count = int(np.count_nonzero(present))
    fields = {name: np.asarray(values)[:count] for name, values in batch.items()}
    size = size or _block_rows(fields)
    for first in range(0, count, size):
        yield {name: values[first : first + size] for name, values in fields.items()}


def _block_rows(fields: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows in a block, from the numbers per row."""
    numbers = sum(int(np.prod(values.shape[1:])) for values in fields.values())
    return min(MOST_ROWS, max(FEWEST_ROWS, BLOCK_NUMBERS // numbers))


def _derivatives(
    model: LinearPredictorModel, eta: np.ndarray, batch: Mapping[str, np.ndarray]
) -> tuple[float, Slopes]:
    """Return the sum of f, and f' and f'' of each row at its linear predictor."""
    if "offset" in batch:
        eta = eta + batch["offset"]
    f, f1, f2, _ = map(np.asarray, model.derivatives(as_either(eta), model.outcome(batch)))
    if "weight" in batch:
        weight = np.asarray(batch["weight"], np.float64)
        f, f1, f2 = weight * f, weight * f1, weight * f2
    return float(np.sum(f)), (f1, f2)


# Dense rows -------------------------------------------------------------------------------


def _dense_sums(
    model: LinearPredictorModel, t: np.ndarray, batch: Batch, present: np.ndarray, second: bool
) -> tuple[np.ndarray, ...]:
    """Sum log-likelihood, gradient and, if `second`, Hessian over dense rows."""
    columns, room = np.shape(batch["x"])[1], None
    value, gradient = 0.0, np.zeros(len(t))
    hessian = np.zeros((len(t), len(t)) if second else 0)
    for block in in_blocks(batch, present):
        x = block["x"]
        wide = x.astype(np.float64, copy=False)  # once, for both products
        eta = wide @ t[:columns] + (t[columns] if model.intercept else 0.0)
        f, (f1, f2) = _derivatives(model, eta, block)
        slope = f1 @ wide
        value += f
        gradient += np.append(slope, np.sum(f1)) if model.intercept else slope
        if second:
            room = np.empty_like(x) if room is None else room  # the first block is the largest
            hessian += _weighted(x, f2, len(t) - columns, room)
    first = np.asarray(value), gradient
    return (*first, hessian) if second else first


def _weighted(x: np.ndarray, h: np.ndarray, ones: int, room: np.ndarray) -> np.ndarray:
    """X' diag(h) X in float64, with a last column of ones if there is an intercept.

    Products with float32 rows are formed in float32, as in `linear_hessian`, from centred columns:
    otherwise a year, nearly collinear with the intercept, would lose its digits.
    """
    columns, Z = x.shape[1], room[: len(x)]
    centre = x.mean(axis=0) if ones and x.dtype != np.float64 else None
    x = x if centre is None else x - centre
    h = h.astype(x.dtype, copy=False)
    total = np.empty((columns + ones, columns + ones))
    if np.all(h <= 0):
        np.multiply(x, np.sqrt(-h)[:, None], out=Z)
        total[:columns, :columns] = -(Z.T @ Z)
    else:
        np.multiply(x, h[:, None], out=Z)
        total[:columns, :columns] = Z.T @ x
    if not ones:
        return total
    total[:columns, columns] = total[columns, :columns] = cross = h @ x
    total[columns, columns] = height = np.sum(h, dtype=np.float64)
    if centre is not None:
        c = centre.astype(np.float64)
        shift = np.outer(cross, c)
        total[:columns, :columns] += shift + shift.T + height * np.outer(c, c)
        total[:columns, columns] = total[columns, :columns] = cross + height * c
    return total


# Coded rows -------------------------------------------------------------------------------


class _CodedRows:
    """A chunk of rows with codes, and its derivatives at one point."""

    def __init__(
        self, model: LinearPredictorModel, t: np.ndarray, batch: Mapping[str, np.ndarray]
    ) -> None:
        matrix = model.matrix(batch)
        assert isinstance(matrix, CodedMatrix)
        matrix = matrix.in_double()
        matrix = matrix.with_ones() if model.intercept else matrix
        self.value, (self._f1, self._f2) = _derivatives(model, np.asarray(matrix @ t), batch)
        self._size = len(t)
        self._numbers, self._places = np.asarray(matrix.numbers()), matrix.dense_places()
        self._terms = [_Levels(matrix, term) for term in matrix.coding.terms]

    def gradient(self) -> np.ndarray:
        """Sum f' by dense column and by level."""
        gradient = np.zeros(self._size)
        gradient[self._places] += self._f1 @ self._numbers
        for term in self._terms:
            gradient[term.columns] += term.sums(self._f1)
        return gradient

    def hessian(self) -> np.ndarray:
        """Sum f'' by pairs of dense columns and levels."""
        half = np.zeros((self._size, self._size))
        weighted = self._numbers * self._f2[:, None]
        half[np.ix_(self._places, self._places)] += weighted.T @ self._numbers / 2
        for j, term in enumerate(self._terms):
            for column, place in zip(weighted.T, self._places, strict=True):
                half[term.columns, place] += term.sums(column)
            own = np.arange(term.columns.start, term.columns.stop)
            half[own, own] += term.sums(term.scaled(self._f2)) / 2  # a row has no other level
            for other in self._terms[:j]:
                half[term.columns, other.columns] += term.pair_sums(other, self._f2)
        return half + half.T  # each pair was added once, a column with itself by half


class _Levels:
    """One factor of a chunk: sums by level, one for each of its columns."""

    def __init__(self, matrix: CodedMatrix, term: CodedTerm) -> None:
        self.columns, self._first = term.columns, int(term.reference)
        self._levels = term.levels
        self._codes = np.asarray(matrix.codes[term.field]).astype(np.intp)
        self._scale = None if term.scale is None else np.asarray(matrix.scale(term))

    def scaled(self, numbers: np.ndarray) -> np.ndarray:
        """Multiply by each row's entry in the column of its level."""
        return numbers if self._scale is None else numbers * self._scale

    def sums(self, numbers: np.ndarray) -> np.ndarray:
        """Sum numbers times each row's entry, by level."""
        return np.bincount(self._codes, self.scaled(numbers), self._levels)[self._first :]

    def pair_sums(self, other: _Levels, numbers: np.ndarray) -> np.ndarray:
        """Sum numbers times both entries by pairs of levels; rows are levels of this factor."""
        places = self._codes * other._levels + other._codes
        values = other.scaled(self.scaled(numbers))
        table = np.bincount(places, values, self._levels * other._levels)
        return table.reshape(self._levels, other._levels)[self._first :, other._first :]
