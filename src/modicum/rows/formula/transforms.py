"""The transforms of a formula: what they learn from all rows, and the columns they then make.

Smooths are our own, and formulaic applies the others. It would learn from every row alike, whereas
here a row counts as often as its weight says: the states are those of a table in which a row of
weight 3 stands three times. With fractions, n is the sum of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from modicum.libraries import formulaic
from modicum.rows.coding import Array
from modicum.rows.formula.smooths import SMOOTHS, State, learn_smooth, smooth_columns

SINGLE = ("center", "scale", "standardize")  # transforms from one column to one column


@dataclass(frozen=True)
class _Column:
    """A column of the rows that count, with their weights (None: all 1).

    Rows of weight 0 do not count, but they are encoded: `low` and `high` are of all rows.
    """

    values: Array
    weights: Array | None
    low: float
    high: float

    @classmethod
    def of(cls, values: Array, weights: Array | None) -> _Column:
        low, high = float(values.min()), float(values.max())
        if weights is None:
            return cls(values, None, low, high)
        return cls(values[weights > 0], weights[weights > 0], low, high)

    @property
    def total(self) -> float:
        """Number of rows, each counted as often as its weight."""
        return len(self.values) if self.weights is None else float(self.weights.sum())

    def sum(self, values: Array) -> Array:
        """Sum numbers (rows, ...) over the rows."""
        return values.sum(axis=0) if self.weights is None else self.weights @ values

    def between(self, low: float, high: float) -> _Column:
        """Return the column of the rows whose values lie in a range."""
        inside = (self.values >= low) & (self.values <= high)
        weights = None if self.weights is None else self.weights[inside]
        return _Column(self.values[inside], weights, low, high)

    def quantiles(self, at: Array) -> list[float]:
        """Return quantiles: NumPy's, of repeated rows.

        With N rows, NumPy interpolates between the sorted values at (N - 1) q: it averages, from
        there on, what one row covers of the values laid end to end, each as long as its weight.
        """
        if self.weights is None:
            return np.quantile(self.values, at).tolist()
        order = np.argsort(self.values)
        values, ends = self.values[order], np.cumsum(self.weights[order])
        one = min(1.0, ends[-1] / len(ends))  # the length of a row; less if all weights are small
        found = []
        for start in at * (ends[-1] - one):
            first, last = np.searchsorted(ends, (start, start + one), side="right")
            covered = values[first : last + 1] - values[first]
            lengths = np.diff(np.minimum(ends[first : last + 1], start + one), prepend=start)
            found.append(float(values[first] + np.average(covered, weights=lengths)))
        return found


class ColumnArray(NamedTuple):
    """The result of a transform such as a spline: several columns (rows, k).

    `spans` says whether the columns span the intercept, so that the first can be left out.
    """

    values: Array
    names: tuple[str, ...]
    spans: bool


def learned_state(
    weights: Array | None,
    name: str,
    values: Array,
    options: list[object],
    words: dict[str, object],
) -> State:
    """Return the state of a transform, with which it is `transformed`.

    Parameters
    ----------
    weights
        Frequency weights of the rows; None if all are 1.
    name
        The transform, such as "bs".
    values
        Its column, of all rows; its columns, (rows, columns), if it is a smooth.
    options, words
        What the formula passes to the transform besides the column; to a smooth, the levels that
        have one of their own.

    Examples
    --------
    >>> column, weights = np.array([1.0, 2.0]), np.array([3.0, 1.0])
    >>> state = learned_state(weights, "center", column, [], {})
    >>> print(state["center"])
    1.25
    """
    if name in SMOOTHS:
        check: Callable[..., State] = learn_smooth  # it checks what the user wrote
        return check(values, weights, *options, **words)
    learner: Callable[..., State] = LEARNERS[name]
    return learner(_Column.of(values, weights), *options, **words)


def ranges(name: str, state: State) -> list[tuple[object, object]]:
    """Return the ends of the range of each column of a spline, if it has ends."""
    if name in SMOOTHS:
        variables = {} if state["cyclic"] else state["variables"]
        return [(v["lower_bound"], v["upper_bound"]) for v in variables.values()]
    return [(state.get("lower_bound"), state.get("upper_bound"))] if name == "bs" else []


def transformed(
    # Any: what the formula passes, which the transform checks
    name: str,
    state: State,
    x: Array,
    options: list[Any],
    words: dict[str, object],
) -> Array | ColumnArray:
    """Return what a transform with this state makes of columns, (rows, columns)."""
    if name in SMOOTHS:
        values = smooth_columns(state, x, *options)
        return ColumnArray(values, tuple(map(str, range(values.shape[1]))), False)
    result = formulaic.transforms.TRANSFORMS[name](x[:, 0], *options, **words, _state=state)
    metadata = getattr(result, "__formulaic_metadata__", None)
    spans = bool(metadata is not None and metadata.spans_intercept)
    if isinstance(result, dict):
        parts = [np.broadcast_to(np.asarray(v, float), len(x)) for v in result.values()]
        columns = np.column_stack(parts) if parts else np.zeros((len(x), 0))
        return ColumnArray(columns, tuple(map(str, result)), spans)
    array = np.asarray(result, dtype=float)
    if array.ndim == 1:
        return array
    column_names = None if metadata is None else metadata.column_names
    names = column_names or tuple(range(1, array.shape[1] + 1))
    return ColumnArray(array, tuple(map(str, names)), spans)


def center(x: _Column) -> State:
    """Subtract the mean."""
    return scale(x, scale=False)


def standardize(x: _Column, center: bool = True, rescale: bool = True, ddof: float = 0) -> State:
    """Scale by the population's standard deviation."""
    return scale(x, center, rescale, ddof)


def scale(
    x: _Column, center: bool | float = True, scale: bool | float = True, ddof: float = 1
) -> State:
    """Learn mean and standard deviation, unless numbers are given or they are not wanted."""
    middle = x.sum(x.values) / x.total if center is True else center
    width: object = scale
    if scale is True:
        if x.total <= ddof:
            raise ValueError(f"the rows count as {x.total:g}, and more than {ddof:g} are needed")
        squares = np.square(x.values - (0.0 if middle is False else middle))
        width = np.sqrt(x.sum(squares) / (x.total - ddof))
    state = {"center": middle, "scale": width}
    return {"ddof": ddof, **{k: None if v is False else np.array(v) for k, v in state.items()}}


def poly(x: _Column, degree: int = 1, raw: bool = False) -> State:
    """Learn the recurrence of polynomials that are orthonormal over the rows."""
    distinct = len(np.unique(x.values))
    if degree < 1:
        raise ValueError("the degree must be at least 1")
    if degree >= distinct:  # the columns beyond would be rounding errors, scaled up
        raise ValueError(
            f"the degree must be less than the number of different values, which is {distinct}"
        )
    if raw:
        return {}
    before, now = np.zeros_like(x.values), np.ones_like(x.values)
    alpha: dict[int, float] = {}
    norms: dict[int, float] = {0: float(x.total)}
    for k in range(degree):
        alpha[k] = float(x.sum(x.values * now**2) / norms[k])
        beta = norms[k] / norms[k - 1] if k else 0.0
        before, now = now, (x.values - alpha[k]) * now - beta * before
        norms[k + 1] = float(x.sum(now**2))
    return {"alpha": alpha, "norms2": norms}


def bs(
    x: _Column,
    df: int | None = None,
    knots: list[float] | None = None,
    degree: int = 3,
    include_intercept: bool = False,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    extrapolation: str = "raise",
) -> State:
    """Learn the bounds and knots of B-splines."""
    if df is not None and knots is not None:
        raise ValueError("You cannot specify both `df` and `knots`.")
    low = x.low if lower_bound is None else float(lower_bound)
    high = x.high if upper_bound is None else float(upper_bound)
    inner = list(knots or [])
    if df:
        count = df - degree - include_intercept
        if count < 0:
            raise ValueError(f"df must be at least {degree + include_intercept}")
        within = x if extrapolation in ("raise", "extend") else x.between(low, high)
        inner = within.quantiles(np.linspace(0, 1, count + 2)[1:-1])
    padded = np.pad([low, *inner, high], degree, mode="edge").tolist()
    return {"lower_bound": low, "upper_bound": high, "knots": padded}


def _cubic(
    name: str,
    x: _Column,
    df: int | None = None,
    knots: list[float] | None = None,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    constraints: object = None,
    **words: object,
) -> State:
    """Learn the bounds and knots of cubic splines, and the columns' means if they are centred.

    formulaic places the knots among the different values, however often they occur.
    """
    centred = constraints == "center"
    if centred and df is not None:
        if df < 1:
            raise ValueError("df must be at least 1")
        df += 1  # columns before the constraint, which takes one
    state: State = {}
    columns = formulaic.transforms.TRANSFORMS[name](
        x.values,
        df=df,
        knots=knots,
        lower_bound=x.low if lower_bound is None else lower_bound,
        upper_bound=x.high if upper_bound is None else upper_bound,
        constraints=None if centred else constraints,
        **words,
        _state=state,
    )
    if centred:
        means = [x.sum(np.asarray(column)) / x.total for column in columns.values()]
        state["constraints"] = np.array([means])
    return state


LEARNERS: dict[str, Callable[..., State]] = {
    "bs": bs,
    "cr": partial(_cubic, "cr"),
    "cs": partial(_cubic, "cs"),
    "cc": partial(_cubic, "cc"),
    "poly": poly,
    "center": center,
    "scale": scale,
    "standardize": standardize,
}
