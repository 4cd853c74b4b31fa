"""Effects of levels that resemble their neighbours: ``rw(week)`` and ``car(region, W)``.

Neighbours j ~ k of weight w_jk have effects c with the prior exp(-c'S c / (2 sd^2)), where c'S c is
the sum of w_jk (c_j - c_k)^2 over pairs: an intrinsic conditional autoregression (Besag, York and
Mollie 1991), and a random walk where each level has the next as its neighbour. S leaves the mean of
every connected part free. Within a part effects sum to zero, and with T T' = S^-

    c = T u / size,    u ~ N(0, sd^2 I),

where the geometric mean of the marginal variances of T u is size^2, so that sd is the typical sd of
an effect whatever the graph (Sorbye and Rue 2014; of each part by itself, Freni-Sterrantino,
Ventrucci and Rue 2018). The mean of the first part is the intercept's, and those of further parts
are plain columns. A row's columns are the row of its level in this matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import NamedTuple, TypeAlias

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.libraries import pandas as pd
from modicum.rows.coding import Array, Level, level_key, level_places
from modicum.rows.levels import complete_rows
from modicum.rows.tables import open_table

Pair: TypeAlias = tuple[int, int, float]
"""The places of two neighbours among the levels, and the weight of the pair."""

MOST = 1_000  # levels, since each row holds as many columns
FEWEST = 3  # levels of a random walk
ALIKE = 1e-6  # share of a step within which values are equally spaced, and weights are equal


@dataclass(frozen=True)
class Neighbours:
    """Which levels are neighbours.

    Examples
    --------
    A random walk over three levels: the ends vary more than the middle.

    >>> walk = Neighbours(3, ((0, 1, 1.0), (1, 2, 1.0)))
    >>> np.sum(walk.matrix**2, axis=1).round(2)
    array([1.36, 0.54, 1.36])
    """

    size: int
    pairs: tuple[Pair, ...]

    def __post_init__(self) -> None:
        for j, k, weight in self.pairs:
            if not (0 <= j < self.size and 0 <= k < self.size and isinstance(weight, Real)):
                raise ValueError("a pair of neighbours is not among the levels")
            if not 0 < float(weight) < np.inf:
                raise ValueError("a pair of neighbours has no positive weight")

    @cached_property
    def weights(self) -> Array:
        """The weight of each pair of levels, symmetric; 0 if they are not neighbours."""
        W = np.zeros((self.size, self.size))
        for j, k, weight in self.pairs:
            W[j, k] = W[k, j] = weight
        return W

    @cached_property
    def parts(self) -> tuple[Array, ...]:
        """The places of the levels of each connected part, in the order of their first levels."""
        from scipy.sparse.csgraph import connected_components  # slow to import

        count, own = connected_components(self.weights, directed=False)
        return tuple(np.flatnonzero(own == part) for part in range(count))

    @cached_property
    def matrix(self) -> Array:
        """Columns of each level: which further part it is in, then T / size of its part."""
        plain = len(self.parts) - 1
        out = np.zeros((self.size, self.size - 1))
        first = plain
        for number, part in enumerate(self.parts):
            if number:
                out[part, number - 1] = 1.0
            own = np.arange(first, first + len(part) - 1)
            out[np.ix_(part, own)] = _roots(self.weights[np.ix_(part, part)])
            first += len(own)
        return out


def _roots(W: Array) -> Array:
    """T / size of one connected part.

    With the first level held at 0, S is positive definite; taking means off each column of the
    inverse root gives T, since S^- is what centring makes of the inverse.
    """
    S = np.diag(W.sum(axis=1)) - W
    free = np.linalg.inv(np.linalg.cholesky(S[1:, 1:])).T
    T = np.vstack([np.zeros(len(free)), free])
    T -= T.mean(axis=0)
    return np.asarray(T / np.exp(np.log(np.sum(T**2, axis=1)).mean() / 2))


# Random walks -----------------------------------------------------------------------------


def walk(levels: Sequence[Level]) -> Neighbours:
    """Return a random walk along levels that are in order."""
    if len(levels) < FEWEST:
        raise ValueError(f"there are only {len(levels)} levels: use C(...)")
    if len(levels) > MOST:
        raise ValueError(f"there are {len(levels):,} levels, and the limit is {MOST:,}: use s(...)")
    return Neighbours(len(levels), tuple((k, k + 1, 1.0) for k in range(len(levels) - 1)))


def steps(values: Sequence[float], low: float | None, high: float | None) -> tuple[Level, ...]:
    """Return equally spaced values: those that occur, and those between them and the bounds.

    Examples
    --------
    >>> steps([2013, 2015, 2016], None, 2018)
    (2013, 2014, 2015, 2016, 2017, 2018)
    """
    ends = [end for end in (low, high) if end is not None]
    found = {float(v): v for v in sorted({*ends, *values})}
    x = np.array(list(found))
    if len(x) < 2:
        raise ValueError("there is only one value: leave it out")
    if (low is not None and low > min(values)) or (high is not None and high < max(values)):
        raise ValueError("the bounds must be beyond the values of all rows")
    step = np.diff(x).min()
    places = (x - x[0]) / step
    if np.any(np.abs(places - np.rint(places)) > ALIKE * max(1.0, places[-1])):
        raise ValueError(
            f"values must be equally spaced, and not all are whole numbers of steps of {step:g} "
            "apart: round them, as in rw(round(x)), or use s(...)"
        )
    if places[-1] >= MOST:
        raise ValueError(
            f"there are {places[-1] + 1:,.0f} steps of {step:g} from {x[0]:g} to {x[-1]:g}, and "
            f"the limit is {MOST:,}: use coarser steps, or s(...)"
        )
    at = {int(place): value for place, value in zip(np.rint(places), found.values(), strict=True)}
    whole = all(float(value).is_integer() for value in at.values())
    filled = (round(v) if whole else float(v) for v in x[0] + step * np.arange(max(at) + 1))
    return tuple(at.get(k, value) for k, value in enumerate(filled))


# Regions ----------------------------------------------------------------------------------


class Regions(NamedTuple):
    """A table of neighbours that a formula names, read."""

    name: str
    levels: tuple[Level, ...]
    neighbours: Neighbours

    def around(self, column: str, values: Sequence[Level]) -> tuple[tuple[Level, ...], Neighbours]:
        """Return the levels and neighbours of the connected parts in which rows are."""
        places = np.array(level_places(self.levels, values))
        alone = self.neighbours.weights.sum(axis=1) == 0
        for place, value in zip(places, values, strict=True):
            if place < 0 or alone[place]:
                raise DataError(
                    f"column {column!r} holds {value!r}, which has no neighbours in "
                    f"{self.name!r}: name some there, or leave such rows out."
                )
        inside = [part for part in self.neighbours.parts if np.isin(part, places).any()]
        kept = np.sort(np.concatenate(inside))
        if len(kept) > MOST:
            raise DataError(
                f"{self.name!r} has {len(kept):,} regions in the parts where there are rows, and "
                f"the limit is {MOST:,}: use larger regions, or (1 | {column})."
            )
        at = {int(old): new for new, old in enumerate(kept)}
        pairs = [(at[j], at[k], w) for j, k, w in self.neighbours.pairs if j in at]
        levels = tuple(self.levels[place] for place in kept)
        return levels, Neighbours(len(kept), tuple(pairs))


def read_regions(matrices: Mapping[str, object] | None) -> dict[str, Regions]:
    """Read tables of neighbours: square frames, or tables of pairs and perhaps their weights."""
    if matrices is None:
        return {}
    if not isinstance(matrices, Mapping):
        raise SettingError(
            f"matrices must map the names in the formula to tables, as in {{'W': frame}}, not be a "
            f"{type(matrices).__name__}."
        )
    return {name: _read(name, table) for name, table in matrices.items()}


def _read(name: str, table: object) -> Regions:
    if isinstance(table, np.ndarray):
        raise SettingError(
            f"{name!r} is an array, which does not say whose neighbours its rows are: make it a "
            "data frame with the levels as index and columns, or a table of pairs of neighbours."
        )
    index, columns = getattr(table, "index", None), getattr(table, "columns", ())
    if isinstance(index, pd.Index) and {*map(level_key, index)} == {*map(level_key, columns)}:
        weighted = list(_entries(name, table, list(index), list(columns)))
        levels = tuple(index)
    else:
        weighted = list(_pairs(name, table))
        levels = tuple({level_key(v): v for pair in weighted for v in pair[:2]}.values())
    place = {level_key(level): k for k, level in enumerate(levels)}
    found: dict[tuple[int, int], float] = {}
    for a, b, weight in weighted:
        if not (np.isfinite(weight) and weight >= 0):
            raise DataError(
                f"{name!r} gives {a!r} and {b!r} the weight {weight:g}: weights of neighbours must "
                "be positive, and 0 where there are none."
            )
        if level_key(a) == level_key(b) and weight:
            raise DataError(f"{name!r} makes {a!r} its own neighbour: leave such pairs out.")
        pair = place[level_key(a)], place[level_key(b)]
        other = found.setdefault((min(pair), max(pair)), weight)
        if abs(other - weight) > ALIKE * max(other, weight):
            raise DataError(
                f"{name!r} is not symmetric: {a!r} and {b!r} have the weight {other:g} in one "
                f"direction and {weight:g} in the other; give the same in both."
            )
    pairs = tuple((j, k, w) for (j, k), w in found.items() if w)
    return Regions(name, levels, Neighbours(len(levels), pairs))


def _entries(
    name: str, frame: object, index: Sequence[Level], columns: Sequence[Level]
) -> Iterator[tuple[Level, Level, float]]:
    """Yield all entries of a square frame, both of each pair."""
    if len({*map(level_key, index)}) < len(index):
        raise DataError(f"{name!r} has a level twice: name each once.")
    try:
        numbers = np.asarray(frame, float)
    except (TypeError, ValueError):
        raise DataError(f"{name!r} holds what is not a number: give 1 for neighbours.") from None
    for a, row in zip(index, numbers, strict=True):
        for b, weight in zip(columns, row.tolist(), strict=True):
            yield a, b, weight


def _pairs(name: str, table: object) -> Iterator[tuple[Level, Level, float]]:
    """Yield the pairs of a table of any kind, each with its weight or 1."""
    source = open_table(table, formula=True)
    if len(source.names) not in (2, 3):
        raise DataError(
            f"{name!r} has {len(source.names)} columns: give pairs of neighbours in two columns "
            "(and their weights in a third), or a data frame with the same levels as index and as "
            "columns."
        )
    source = source.with_text(source.names[:2])
    for columns, _ in complete_rows(source.batches(source.names), source.names, drop=False):
        first, second = (columns.levels(column) for column in source.names[:2])
        ends = ([side.values[code] for code in side.codes] for side in (first, second))
        weights = np.ones(len(columns))
        if len(source.names) == 3:
            weights = columns.numbers(source.names[2]).astype(float)
        yield from zip(*ends, weights.tolist(), strict=True)
