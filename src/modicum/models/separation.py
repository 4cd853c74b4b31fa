"""Separation: columns that determine the outcome, so that the likelihood has no maximum.

Where some direction w of the coefficients puts no row on the wrong side of its class, and some rows
on the right side, the likelihood increases along w without bound: complete separation if all rows
are on their side, quasi-complete if the others lie on the boundary (Albert and Anderson 1984). A
proper prior keeps the mode finite, and it alone decides how large the coefficients are.

There are two searches, and what either finds is proved. The first checks each column by itself, by
its range within each class, including the indicator of a factor's reference level (one minus its
other indicators). The second checks all columns together, by linear programmes (Konis 2007) on the
rows hardest to classify and some of the easiest, adding rows until none is on the wrong side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from modicum.errors import ModicumWarning, first_few
from modicum.rows import Rows

CHUNK = 65_536
MOST_NUMBERS = 2**23  # largest size of a chunk whose codes are expanded to columns
HARDEST = 500  # rows that a linear programme starts with, and that each round adds at most
EASIEST = 100  # easiest rows to start with: the hardest may all lie on the boundary
NAMED = 3  # columns that a warning names
ROUNDS = 12
WIDEST = 500  # most coefficients for which linear programmes are tried
SOLVER = 1e-7  # tolerance of the linear programmes, for columns of scale one


Found: TypeAlias = tuple[ModicumWarning | None, int]  # the warning, and the passes a search took


def _separated(complete: bool, columns: Sequence[str] = ()) -> ModicumWarning:
    """Return the warning of a separation: the finding and what to do about it.

    Parameters
    ----------
    complete
        Whether every row is on its side; otherwise some rows lie on the boundary.
    columns
        Columns that each separate by themselves; empty where it takes several together.
    """
    if complete:
        part = f"the column {columns[0]} alone" if columns else "the columns of x"
        verb = "predicts" if columns else "predict"
        finding = f"{part} {verb} every outcome perfectly (complete separation)"
    elif columns:
        part = f"each of {first_few(columns, NAMED)}" if len(columns) > 1 else columns[0]
        finding = (
            f"{part} predicts the outcome perfectly in all rows where it differs from one "
            "value, like a level with a single outcome (quasi-complete separation)"
        )
    else:
        finding = (
            "a combination of columns predicts the outcome of some rows perfectly and says "
            "nothing about the others (quasi-complete separation)"
        )
    return ModicumWarning(
        "separation",
        f"{finding}, so the size of the coefficients is decided by the prior and not by the data",
        "drop a column that gives the outcome away, merge a level with a single outcome into "
        "another, or choose the prior with care (prior_scale)",
        complete=complete,
        columns=len(columns),
    )


Classified: TypeAlias = tuple[np.ndarray, np.ndarray]  # columns and classes of some rows
Classify: TypeAlias = Callable[[np.ndarray, Mapping[str, np.ndarray]], Classified]
"""From the columns and fields of rows; a row may count more than once."""


@dataclass(frozen=True)
class _Sides:
    """Rows and their classes; the last class is the reference, with predictor 0."""

    rows: Rows
    classes: int
    intercept: bool
    classify: Classify

    @property
    def references(self) -> dict[str, str]:
        """Names of reference levels whose indicator the columns span, by field of codes."""
        coding, levels = self.rows.coding, self.rows.levels
        if coding is None or not self.intercept:
            return {}
        whole = [t.field for t in coding.terms if t.reference and t.scale is None]
        return {field: f"{field}[{levels[field][0]}]" for field in whole if field in levels}

    def chunks(self, references: bool = False) -> Iterator[Classified]:
        """Yield columns (with reference levels last if wanted) and classes of weighted rows."""
        coding, step = self.rows.coding, CHUNK
        if coding is not None:
            step = max(1, min(CHUNK, MOST_NUMBERS // max(1, coding.size)))
        for chunk in self.rows.chunks(step):
            if "weight" in chunk:
                chunk = {name: values[chunk["weight"] > 0] for name, values in chunk.items()}
            columns = chunk["x"] if coding is None else coding.densely(chunk)
            if references and self.references:
                columns = np.column_stack([columns, *(chunk[f] == 0 for f in self.references)])
            yield self.classify(np.asarray(columns, np.float64), chunk)

    def first_pass(self, mode: np.ndarray) -> tuple[_Ranges, _Extremes]:
        """Return the range of every column, and the rows hardest and easiest at the mode."""
        extremes = _Extremes(self, mode, EASIEST)
        columns = extremes.x.shape[1]
        ranges = _Ranges(self.classes, columns + len(self.references))
        for x, y in self.chunks(references=True):
            ranges.add(x, y)
            extremes.add(x[:, :columns], y)
        return ranges, extremes

    def margins(self, direction: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Predictor of each row's class minus the largest other one; `direction` is (q, ...)."""
        eta = np.zeros((len(x), self.classes))
        at_zero = direction[:, -1] if self.intercept else 0.0
        eta[:, :-1] = x @ direction[:, : x.shape[1]].T + at_zero
        own = np.take_along_axis(eta, y[:, None], axis=1)[:, 0]
        np.put_along_axis(eta, y[:, None], -np.inf, axis=1)
        return own - eta.max(axis=1)


def _both(first: np.ndarray, second: np.ndarray) -> Classified:
    """Return rows of class 0, and then of class 1."""
    classes = np.r_[np.zeros(len(first), int), np.ones(len(second), int)]
    return np.r_[first, second], classes


def _by_threshold(thresholds: int, x: np.ndarray, chunk: Mapping[str, np.ndarray]) -> Classified:
    """Ordered classes: a row of class k lies above threshold k - 1 (class 0) and below k (class 1).

    Thresholds are further indicator columns. Each row involves two at most: where no class is
    empty, rows on the right side of both put all thresholds in order.
    """
    y, identity = np.asarray(chunk["y"]).astype(int), np.eye(thresholds)
    above, below = y > 0, y < thresholds
    return _both(np.c_[x[above], identity[y[above] - 1]], np.c_[x[below], identity[y[below]]])


def find_ordinal_separation(rows: Rows, beta: np.ndarray, cutpoints: np.ndarray) -> Found:
    """Look for columns that separate ordered classes.

    `beta` and `cutpoints` are the mode of a cumulative logit model.
    """
    sides = _Sides(rows, 2, False, partial(_by_threshold, len(cutpoints)))
    mode = np.r_[beta, -cutpoints][None]
    if mode.size > WIDEST:
        return None, 0
    ranges, extremes = sides.first_pass(mode)
    if not (ranges.high[:, len(beta) :] > 0).all():  # a class is empty
        return None, 1
    return _search_by_programmes(sides, extremes)


def find_separation(
    rows: Rows,
    beta: np.ndarray,
    intercept: np.ndarray | None,
    *,
    reversed: bool,
    trials: bool = False,
) -> Found:
    """Look for separation near the direction of the mode.

    Parameters
    ----------
    rows
        The data.
    beta, intercept
        The mode: (q, columns) and (q,), for q classes besides the reference.
    reversed
        Whether the outcome 1 is the first class and 0 the reference.
    trials
        Whether outcomes are numbers of successes, out of the field `trials`.
    """

    def classify(x: np.ndarray, chunk: Mapping[str, np.ndarray]) -> Classified:
        if trials:  # successes (class 0) against failures; a row may have both
            return _both(x[chunk["y"] > 0], x[chunk["y"] < chunk["trials"]])
        y = np.asarray(chunk["y"]).astype(int)
        return x, 1 - y if reversed else y

    sides = _Sides(rows, len(beta) + 1, intercept is not None, classify)
    mode = beta if intercept is None else np.c_[beta, intercept]
    ranges, extremes = sides.first_pass(mode)
    by_column = ranges.separation((*rows.columns, *sides.references.values()), sides.intercept)
    if by_column is not None or mode.size > WIDEST or not len(extremes.y):  # no row has a trial
        return by_column, 1
    return _search_by_programmes(sides, extremes)


NOTHING = {
    "event": ("every time is censored", "events", "event's"),
    "cens": ("every outcome is right-censored", "other outcomes", "cens"),
}


def find_silent_counts(rows: Rows, intercept: bool, field: str = "y") -> Found:
    """Look for columns along which all counts are 0.

    In the fields "event" and "cens", an outcome that is right-censored counts as 0.

    Where all rows with a positive count have one value of a column, and the others lie on one side
    of it, the likelihood increases without bound in the coefficient, as for a level without counts.
    """
    none, counts, column = NOTHING.get(field, ("every count is 0", "counts", "outcome's"))
    zero = 1 if field == "cens" else 0
    sides = _Sides(rows, 2, intercept, lambda x, chunk: (x, (chunk[field] == zero).astype(int)))
    names = (*rows.columns, *sides.references.values())
    ranges = _Ranges(2, len(names))
    for x, y in sides.chunks(references=True):
        ranges.add(x, y)
    silent, counted = ranges.low[1], ranges.low[0]
    if not np.isfinite(counted).all():  # no row has a count
        return _no_counts(none, "the rate", f"check the {column} column"), 1
    level = (counted == ranges.high[0]) & (intercept | (counted == 0))
    aside = (silent >= counted) | (ranges.high[1] <= counted)
    varies = (silent < counted) | (ranges.high[1] > counted)
    if not np.isfinite(silent).all():  # every row has a count
        return None, 1
    which = np.flatnonzero(level & aside & varies)
    if not len(which):
        return None, 1
    named = ("one of " if len(which) > 1 else "") + first_few([names[j] for j in which], NAMED)
    observation = (
        f"{none} in rows where {named} differs from one value, as in a level without {counts}"
    )
    remedy = f"merge a level without {counts} into another"
    return _no_counts(observation, "how far the rate falls there", remedy, len(which)), 1


def _no_counts(observation: str, decided: str, remedy: str, columns: int = 0) -> ModicumWarning:
    return ModicumWarning(
        "separation",
        f"{observation}, so {decided} is decided by the prior and not by the data",
        f"{remedy}, or choose the prior with care (prior_scale, intercept_scale)",
        complete=columns == 0,
        columns=columns,
    )


class _Ranges:
    """Smallest and largest value of each column within each class."""

    def __init__(self, classes: int, columns: int) -> None:
        self.low = np.full((classes, columns), np.inf)
        self.high = np.full((classes, columns), -np.inf)

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        for k in np.unique(y):
            of_class = x[y == k]
            self.low[k] = np.minimum(self.low[k], of_class.min(axis=0))
            self.high[k] = np.maximum(self.high[k], of_class.max(axis=0))

    def separation(self, names: tuple[str, ...], intercept: bool) -> ModicumWarning | None:
        """Columns in which a class lies on one side of all others; they may touch."""
        varies = self.low.min(axis=0) < self.high.max(axis=0)
        touching, apart = np.zeros_like(varies), np.zeros_like(varies)
        for k in range(len(self.low)):
            if not np.isfinite(self.low[k]).all():
                continue  # a class without rows: nothing to tell apart
            others = np.delete(np.arange(len(self.low)), k)
            others = others[np.isfinite(self.low[others, 0])]
            if not len(others):
                continue
            low, high = self.low[others].min(axis=0), self.high[others].max(axis=0)
            edges = ((self.low[k], high), (low, self.high[k]))  # class k above, class k below
            for above, below in edges:
                between = (above >= 0) & (below <= 0) if not intercept else True
                touching |= (above >= below) & between
                apart |= (above > below) & between
        if len(self.low) == 2 and (apart & varies).any():
            return _separated(True, [names[int(np.argmax(apart & varies))]])
        which = np.flatnonzero(touching & varies)
        return _separated(False, [names[j] for j in which]) if len(which) else None


class _Extremes:
    """The rows with the smallest margins along a direction, and some with the largest."""

    def __init__(self, sides: _Sides, direction: np.ndarray, easiest: int = 0) -> None:
        self.sides, self.direction, self.easiest = sides, direction, easiest
        self.x = np.zeros((0, direction.shape[1] - sides.intercept))
        self.y = np.zeros(0, int)
        self.margin = np.zeros(0)

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        margin = np.r_[self.margin, self.sides.margins(self.direction, x, y)]
        x, y = np.r_[self.x, x], np.r_[self.y, y]
        last = len(y) - self.easiest
        if last > HARDEST:
            order = np.argpartition(margin, [HARDEST, min(last, len(y) - 1)])
            kept = np.r_[order[:HARDEST], order[last:]]
            x, y, margin = x[kept], y[kept], margin[kept]
        self.x, self.y, self.margin = x, y, margin


def _search_by_programmes(sides: _Sides, extremes: _Extremes) -> Found:
    """Search by cutting planes: separate a few rows, test on all, and add the rows that fail.

    The pass that found the extreme rows is counted.
    """
    x, y = extremes.x, extremes.y
    centre = x.mean(axis=0) if sides.intercept else np.zeros(x.shape[1])
    scale = np.abs(x - centre).max(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    x = (x - centre) / scale
    for passes in range(1, ROUNDS + 1):
        direction, complete = _direction(sides, x, y)
        if direction is None:
            return None, passes  # these rows alone overlap
        worst = _Extremes(sides, direction)
        for more_x, more_y in sides.chunks():
            worst.add((more_x - centre) / scale, more_y)
        least = worst.margin.min()
        if least > 0 if complete else least >= -SOLVER:
            return _separated(complete), 1 + passes
        broken = worst.margin <= 0.0
        x, y = np.r_[x, worst.x[broken]], np.r_[y, worst.y[broken]]
    return None, 1 + ROUNDS


def _direction(sides: _Sides, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray | None, bool]:
    """Find a direction that separates these rows, and whether strictly; None if they overlap."""
    from scipy.optimize import linprog

    design = np.c_[x, np.ones(len(x))] if sides.intercept else x
    q, width = sides.classes - 1, design.shape[1]
    ahead = []  # (w_own - w_k) . x for each other class k, as a product with the flat w
    for k in range(sides.classes):
        others = y != k
        row = np.zeros((int(others.sum()), sides.classes, width))
        at = np.arange(len(row))
        row[at, y[others]] += design[others]
        row[at, k] -= design[others]
        ahead.append(row[:, :q].reshape(len(row), q * width))
    g = np.concatenate(ahead)
    bounds: list[tuple[float, float | None]] = [(-1, 1)] * (q * width)
    # Maximize the smallest margin: positive where the rows are completely separated.
    margin = linprog(
        np.r_[np.zeros(q * width), -1.0],
        A_ub=np.c_[-g, np.ones(len(g))],
        b_ub=np.zeros(len(g)),
        bounds=[*bounds, (0, None)],
        method="highs",
    )
    if margin.success and -margin.fun > SOLVER:
        return margin.x[:-1].reshape(q, width), True
    # Maximize the sum of nonnegative margins: zero where the rows overlap.
    total = linprog(-g.mean(axis=0), A_ub=-g, b_ub=np.zeros(len(g)), bounds=bounds, method="highs")
    if total.success and -total.fun > 1e-6:
        exact = np.where(np.abs(total.x) < SOLVER, 0.0, total.x)
        return exact.reshape(q, width), False
    return None, False
