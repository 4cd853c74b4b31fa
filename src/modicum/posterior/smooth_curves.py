"""Smooths of a formula as functions of their variables, with a band.

A smooth is zero on average over the rows of the fit (of each level, with `by`): it says how far
the predictor is from that average, as a function of its variables in the units of the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import numpy as np
from scipy.special import chdtrc

from modicum.arrays import expansion
from modicum.diagnostics.weighted import tabulated
from modicum.errors import DataError, ModicumWarning, listed
from modicum.models import LinearPredictorModel
from modicum.models.coefficients import parameter_of
from modicum.models.model import Batch, Params
from modicum.models.terms import slope_columns
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.population import random_rows
from modicum.posterior.summary import interval_table
from modicum.rows.checks import names_like
from modicum.rows.coding import LevelArray, level_places
from modicum.rows.formula.expressions import Expression
from modicum.rows.formula.smooths import Basis, smooth_columns
from modicum.rows.formula.structure import Factor
from modicum.runtime import computed_on_cpu, jit

if TYPE_CHECKING:
    import pandas as pd

POINTS = (101, 25, 9)  # along each variable of a smooth of one, two or three
EXAMINED = 20_000  # rows in which wiggles are sought that a smooth cannot follow
SIGNIFICANT = 1e-4  # chance of as large a trend along finer splines where there is none
TINY = 1e-8  # share of the largest eigenvalue below which columns are those the smooth has


class Tabulated(NamedTuple):
    """Points at which a term is tabulated: its columns there, and what the points are called."""

    columns: np.ndarray
    names: list[str]
    labels: list[np.ndarray]


class LevelCurve(NamedTuple):
    """A random walk, neighbouring regions or a monotonic effect: an effect of each level."""

    factor: Factor
    before: str = ""  # what precedes the names of its coefficients: "scale."

    @property
    def variables(self) -> tuple[str, ...]:
        """What it is a function of."""
        return (Expression(self.factor.expression).inner.text,)

    @property
    def by(self) -> str | None:
        """None: there is one effect of a level."""
        return None

    @property
    def is_curve(self) -> bool:
        """Whether its levels are in order."""
        return Expression(self.factor.expression).regions is None

    def at(self, values: object = None) -> Tabulated:
        """Return its columns at all levels, or at these."""
        levels, label = self.factor.levels, self.factor.label
        asked = list(levels if values is None else values)  # type: ignore[call-overload]
        places = level_places(levels, asked)
        if -1 in places:
            at = asked[places.index(-1)]
            raise DataError(f"{at!r} is not a level of {label}: {names_like(at, levels)}")
        chosen = np.array([levels[place] for place in places])
        return Tabulated(self.factor.matrix(False)[places], list(self.variables), [chosen])


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
    def is_curve(self) -> bool:
        """True: it has values in between."""
        return True

    @property
    def is_line_and_more(self) -> bool:
        """Whether it is a function of one variable, which is one of its columns."""
        return len(self.variables) == 1 and not self.state["cyclic"]

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

    def at(self, values: object = None) -> Tabulated:
        """Return its columns on a grid, or at these values of its variables, for each level."""
        x = self.grid() if values is None else self.points(values)
        levels = tuple(self.state["levels"])
        many = np.tile(x, (len(levels), 1))
        if self.by is None:
            return Tabulated(smooth_columns(self.state, many), [*self.variables], [*many.T])
        each = np.repeat(np.arange(len(levels)), len(x))
        columns = smooth_columns(self.state, many, LevelArray(levels, each))
        names = [self.by, *self.variables]
        return Tabulated(columns, names, [np.repeat(levels, len(x)), *many.T])


def smooths_of(post: FittedDraws) -> dict[str, Smooth | LevelCurve]:
    """Return the smooths of a fit by their names: ``s(hour)``, ``scale.s(hour)``, ``rw(week)``."""
    of_levels = {
        name: LevelCurve(factor, before)
        for name, factor, before in _pooled(post)
        if factor.is_structured
    }
    return {**_splines(post), **of_levels}


def _splines(post: FittedDraws) -> dict[str, Smooth]:
    """Return the smooths that are splines."""
    states = {} if post.encoding is None else post.encoding.states
    return {
        name: Smooth(factor, dict(states[Expression(factor.expression).tidy]), before)
        for name, factor, before in _pooled(post)
        if not factor.is_structured
    }


def _pooled(post: FittedDraws) -> Iterator[tuple[str, Factor, str]]:
    """Yield name, factor and prefix of the terms that have coefficients with an sd of their own."""
    encoding = post.encoding
    if encoding is None:
        return
    for term in encoding.terms:
        before = f"{term.parameter}." if term.parameter else ""
        for factor in (encoding.factors[f] for part in term.parts for f, _ in part):
            alone = factor.steps and term.name == factor.label
            if factor.blocks or (alone and post.draws[f"{before}beta"].ndim == 3):
                yield before + term.name, factor, before


def smooth_table(
    post: FittedDraws, smooth: Smooth | LevelCurve, values: object = None, prob: float = 0.9
) -> pd.DataFrame:
    """Tabulate a smooth on a grid, or at some values of its variables: mean, sd and interval."""
    points = smooth.at(values)
    f = _coefficients(post, smooth.factor, smooth.before) @ points.columns.T
    labels, number = zip(*points.labels, strict=True), post.chains * post.num_draws
    table = tabulated(f, post.weights, prob)
    return interval_table(table, labels, points.names, prob, draws=number)


def _coefficients(post: FittedDraws, factor: Factor, before: str) -> np.ndarray:
    """Return draws of a term's coefficients, (chain, draw, columns)."""
    beta = before + "beta"
    parts = [post.draws[before + name] for name, _ in factor.blocks]
    if factor.columns:
        (labels,) = post.labels[beta]
        places = [list(labels).index(name) for name in factor.columns]
        parts.insert(0, post.draws[beta][..., places])
    return np.concatenate(parts, axis=-1)


# Whether k is large enough ----------------------------------------------------------------


@computed_on_cpu
@listed
def stiff_smooths(post: FittedDraws) -> Iterator[ModicumWarning]:
    """Warn of smooths with too few B-splines for what the rows show.

    If the curve has all its wiggles, the scores g = df/d eta of the rows at the posterior mean have
    no trend along B-splines on half as long intervals. With Q what the model's columns leave of
    these, U = Q'g is then a sum of independent terms about 0, whose squared length in its own
    standard errors has a chi-squared distribution. Some thousands of rows are examined, so that
    what is found is not only significant, but large. Smooths of one variable that is no cycle are
    examined, with explicit effects.
    """
    rows, model = post.held_rows(), cast("LinearPredictorModel", post.fitted_model())
    curves = [smooth for smooth in _splines(post).values() if smooth.is_line_and_more]
    if rows is None or not curves or model.integrated_group is not None:
        return
    batch = rows.take(np.sort(random_rows(len(rows), EXAMINED, 0)))
    _, g, h = _expanded(model, {name: post.mean(name) for name in post.draws}, batch)
    counts = np.asarray(batch.get("weight", np.ones(len(g))))
    for smooth in curves:
        at = ["", *map(parameter_of, model.extras)].index(smooth.before.rstrip("."))
        for level, of_level in smooth.state["levels"].items():
            name = f"{smooth.before}{smooth.factor.label}{f'[{level}]' if level else ''}"
            x = np.asarray(batch["x"], float)[:, slope_columns(rows)[f"{name}[linear]"]]
            inside = (x != 0) | (not level)  # rows of other levels have 0
            scores = (np.asarray(part)[inside] for part in (counts, g[:, at], h[:, at, at]))
            size, chance = _missed(smooth, x[inside] + of_level["mean"][0], *scores)
            if chance < SIGNIFICANT:
                k = len(smooth.state["variables"][0]["roots"])
                larger = min(2 * k, len(np.unique(x)))
                yield ModicumWarning(
                    "smooth-stiff",
                    f"{name} has k={k} B-splines, too few for the rows: with more, the predictor "
                    f"would differ by about {size:.2g} (root mean square)",
                    f"use a larger k, such as k={larger}, or add what else changes with "
                    f"{smooth.variables[0]}",
                    size=size,
                    chance=chance,
                )


@jit(static=0)
def _expanded(model: LinearPredictorModel, means: Params, batch: Batch) -> tuple[jax.Array, ...]:
    """f of each row, its gradient and its Hessian in the row's predictors, at posterior means."""
    eta = model.predictor_vector(model.restore(means), batch)
    return jax.vmap(expansion(model.row_density))(eta, model.outcome(batch))


def _missed(
    smooth: Smooth, x: np.ndarray, counts: np.ndarray, g: np.ndarray, h: np.ndarray
) -> tuple[float, float]:
    """Return the size of what a smooth misses, and the chance of it where nothing is missed."""
    (low, high), k = smooth.bounds[0], len(smooth.state["variables"][0]["roots"])
    held, finer = (Basis(low, high, size).at(np.clip(x, low, high)) for size in (k, 2 * k - 3))
    information = counts * np.maximum(-h, 0.0)
    root = np.sqrt(information)[:, None]
    Q = finer - held @ np.linalg.lstsq(root * held, root * finer)[0]
    values, vectors = np.linalg.eigh(Q.T @ (information[:, None] * Q))
    Q = Q @ vectors[:, values > TINY * max(values[-1], TINY)]
    if not Q.shape[1] or 5 * Q.shape[1] > len(x):
        return 0.0, 1.0
    trend, noise = Q.T @ (counts * g), (Q.T * (counts * g**2)) @ Q
    statistic = float(trend @ np.linalg.pinv(noise, hermitian=True) @ trend)
    excess = max(statistic - Q.shape[1], 0.0)
    return float(np.sqrt(excess / information.sum())), float(chdtrc(Q.shape[1], statistic))
