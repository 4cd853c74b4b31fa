"""What the transforms of a formula learn from all rows: means, knots and norms.

formulaic applies the transforms. It would learn from every row alike, whereas here a row counts as
often as its weight says: the states are those of a table in which a row of weight 3 stands three
times. With fractions, n is the sum of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from modicum.libraries import formulaic
from modicum.rows.coding import Array
from modicum.rows.formula.smooths import SMOOTHS, State, learn_smooth

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


def learned_state(
    weights: Array | None,
    name: str,
    values: Array,
    options: list[object],
    words: dict[str, object],
) -> State:
    """Return the state of a transform, which formulaic then applies.

    Parameters
    ----------
    weights
        Frequency weights of the rows; None if all are 1.
    name
        The transform, such as "bs".
    values
        Its column, of all rows; its columns, (rows, columns), if it is a smooth.
    options, words
        What the formula passes to the transform besides the column.

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
