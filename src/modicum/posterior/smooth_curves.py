"""Smooths of a formula as functions of their variables, with a band.

A smooth is zero on average over the rows of the fit (of each level, with `by`): it says how far
the predictor is from that average, as a function of its variables in the units of the data.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modicum.errors import DataError
from modicum.posterior.draws import weights_of
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.summary import interval_columns
from modicum.posterior.weighted import tabulated
from modicum.rows.formula.expressions import Expression
from modicum.rows.formula.smooths import By, smooth_columns
from modicum.rows.formula.structure import Factor

if TYPE_CHECKING:
    import pandas as pd

POINTS = (101, 25, 9)  # along each variable of a smooth of one, two or three


class Smooth(NamedTuple):
    """A smooth of the formula, and what it has learned."""

    factor: Factor
    state: dict[str | int, Any]
    before: str = ""  # what precedes the names of its coefficients: "scale."

    @property
    def variables(self) -> tuple[str, ...]:
        """What it is a function of."""
        return Expression(self.factor.expression).variables

    @property
    def by(self) -> str | None:
        """The column whose levels have curves of their own."""
        return Expression(self.factor.expression).by

    @property
    def bounds(self) -> np.ndarray:
        """The range of each variable, (variables, 2)."""
        variables = self.state["variables"].values()
        return np.array([(v["lower_bound"], v["upper_bound"]) for v in variables])

    def grid(self) -> np.ndarray:
        """Return equally spaced points, (points, variables)."""
        number = POINTS[len(self.bounds) - 1]
        along = [np.linspace(low, high, number) for low, high in self.bounds]
        return np.array(list(product(*along)))

    def points(self, values: object) -> np.ndarray:
        """Return values that a user gave, (points, variables); refuse those beyond the range."""
        x = np.asarray(values, float)
        x = x.reshape(-1, len(self.variables))
        outside = (x < self.bounds[:, 0]) | (x > self.bounds[:, 1])
        if self.state["beyond"] == "raise" and not self.state["cyclic"] and outside.any():
            at, which = np.argwhere(outside)[0]
            low, high = self.bounds[which]
            raise DataError(
                f"{self.factor.label} is known from {low:g} to {high:g}, and not at "
                f"{x[at, which]:g}: ask within this range, or fit with "
                'extrapolation="clip" or "extend".'
            )
        return x


def smooths_of(post: FittedDraws) -> dict[str, Smooth]:
    """Return the smooths of a fit by their names: ``s(hour)``, ``scale.s(hour)``."""
    encoding = None if post.fit_rows is None else post.fit_rows.encoding
    found: dict[str, Smooth] = {}
    if encoding is None:
        return found
    for term in encoding.terms:
        before = f"{term.parameter}." if term.parameter else ""
        for factor in (encoding.factors[f] for part in term.parts for f, _ in part):
            if factor.blocks:
                state = dict(encoding.states[Expression(factor.expression).tidy])
                found[before + term.name] = Smooth(factor, state, before)
    return found


def smooth_table(
    post: FittedDraws, smooth: Smooth, values: object = None, prob: float = 0.9
) -> pd.DataFrame:
    """Tabulate a smooth on a grid, or at some values of its variables: mean, sd and interval."""
    import pandas as pd

    x = smooth.grid() if values is None else smooth.points(values)
    levels = tuple(smooth.state["levels"])
    many = np.tile(x, (len(levels), 1))
    by = None if smooth.by is None else By(levels, np.repeat(np.arange(len(levels)), len(x)))
    f = _coefficients(post, smooth) @ smooth_columns(smooth.state, many, by).T
    names = [*([] if smooth.by is None else [smooth.by]), *smooth.variables]
    parts = [*([] if smooth.by is None else [np.repeat(levels, len(x))]), *many.T]
    index: pd.Index[Any] = pd.Index(parts[0], name=names[0])
    if len(parts) > 1:
        index = pd.MultiIndex.from_arrays(parts, names=names)
    weights = weights_of(post)
    frame = pd.DataFrame(tabulated(f, weights, prob), index, interval_columns(prob))
    frame.attrs["draws"] = weights.size
    return frame


def _coefficients(post: FittedDraws, smooth: Smooth) -> np.ndarray:
    """Return draws of a smooth's coefficients, (chain, draw, columns)."""
    beta = smooth.before + "beta"
    parts = [post.draws[smooth.before + name] for name, _ in smooth.factor.blocks]
    if smooth.factor.columns:
        (labels,) = post.labels[beta]
        places = [list(labels).index(name) for name in smooth.factor.columns]
        parts.insert(0, post.draws[beta][..., places])
    return np.concatenate(parts, axis=-1)
