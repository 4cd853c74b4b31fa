"""Effects of a column: average predictions, slopes and contrasts, with posterior uncertainty.

One column of the rows (or two) is set and the others stay as they are (g-computation): with f the
expected outcome, the quantity averaged over the rows i of a sample, for each draw, is

    f(x_i with the column at v)                                    the average prediction at v,
    [f(x_i + h) - f(x_i - h)] / 2h                                 the average marginal effect,
    f(x_i with the column at b) compared with f(x_i with it at a)  a contrast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import combinations, product
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from modicum.arguments import Count, Share
from modicum.diagnostics.weighted import ends_of, tabulated, weighted_mean
from modicum.errors import SettingError
from modicum.libraries import pandas as pd
from modicum.models import BaseModel
from modicum.posterior.fit_rows import Batch, Groups, RowsLike
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.outcomes import OutcomeDraws, in_pieces, with_groups
from modicum.posterior.population import Population, population
from modicum.posterior.summary import interval_table
from modicum.rows.checks import names_like
from modicum.rows.coding import Level, level_places

Comparison = Literal["difference", "ratio", "odds ratio"]
GRID = 50  # points in the grid of a numeric column
FEW_VALUES = 25  # up to this many distinct values, each is used instead of a grid
FEW = (0.1, 0.5, 0.9)  # percentiles at which a second column is set, if its values are more
MOST_SETTINGS = 1_000  # combinations of values of several columns
MOST_LEVELS = 200
STEP = 1e-4  # step of slopes, as a fraction of the column's range
RUN = "run of a slope"  # in a batch of rows, the difference of the column to divide by


class Averages(NamedTuple):
    """Averages of expected outcomes over rows whose columns are set."""

    rows: Population
    share: float  # of all rows, that these are
    drawn: OutcomeDraws
    given: Mapping[str, Level]  # values of columns that are set in all rows

    def at(self, values: Mapping[str, Level]) -> Average:
        """Average over rows with columns set to these values."""
        return self.of(self.constants(values))

    def constants(self, values: Mapping[str, Level]) -> dict[str, np.ndarray]:
        """Return columns that hold one value each."""
        return {name: _constant(value, len(self.rows)) for name, value in values.items()}

    def of(self, changes: Mapping[str, np.ndarray], run: np.ndarray | float = 1.0) -> Average:
        """Average over rows with columns changed; the outcome of each is divided by its `run`."""
        setting = self.rows.setting(self.constants(self.given) | dict(changes))
        batch = self.drawn.rows.marked(setting) | {RUN: np.broadcast_to(run, len(self.rows))}

        def expected(piece: Batch) -> np.ndarray:
            own = piece.pop(RUN)  # nothing that a model knows
            return (self.drawn.expected(piece)[0].T / own[:, None]).T

        return Average.over(lambda _: [batch], self.drawn.weights, expected)


class Average(NamedTuple):
    """An average over rows of what each has at every draw."""

    by_draw: np.ndarray  # (draws, ...)
    by_row: np.ndarray  # influence of each row on the average, (rows, ...)

    @classmethod
    def over(
        cls,
        batches: Callable[[int], Iterable[Batch]],
        weights: np.ndarray,
        of: Callable[[Batch], np.ndarray],
    ) -> Average:
        """Average what `of` says of the rows of a batch, (draws, rows, ...), by their weights."""
        total, mass, by_row, row_weights = np.zeros(()), 0.0, [], []
        for batch, values in in_pieces(batches, weights.size, of):
            weight = np.asarray(batch.get("weight", np.ones(values.shape[1])), float)
            total = total + np.tensordot(values, weight, axes=([1], [0]))
            mass += float(weight.sum())
            by_row.append(weighted_mean(values[None], weights))
            row_weights.append(weight)
        rows, weight = np.concatenate(by_row), np.concatenate(row_weights) / mass
        mean = np.tensordot(weight, rows, axes=1)
        return cls(total / mass, (rows - mean) * weight.reshape(-1, *[1] * mean.ndim))

    def _error_of_rows(self, share: float) -> np.ndarray:
        """Return the standard error because the rows are only a `share` of all."""
        return np.sqrt((1 - share) * np.sum(self.by_row**2, axis=0))

    def interval(self, weights: np.ndarray, share: float, prob: float) -> np.ndarray:
        """Return mean, sd, ends of the interval, and error of the mean, on a last axis.

        If the rows are a `share` of all, sd and interval include the error of the sample.
        """
        of_draws, error = tabulated(self.by_draw[None], weights, prob), self._error_of_rows(share)
        mean, sd, low, high, mcse = np.moveaxis(of_draws, -1, 0)
        half = ndtri(ends_of(prob)[1]) * error  # of the interval that the rows alone would give
        low -= np.hypot(low - mean, half) - np.abs(low - mean)
        high += np.hypot(high - mean, half) - np.abs(high - mean)
        return np.stack([mean, np.hypot(sd, error), low, high, np.hypot(mcse, error)], axis=-1)

    def chance_above(self, value: float, averages: Averages) -> np.ndarray:
        """Return the posterior probability that this is above a value."""
        error = self._error_of_rows(averages.share)
        above = self.by_draw - value
        with np.errstate(divide="ignore", invalid="ignore"):  # without an error, a step
            chance = np.where(error > 0, ndtr(above / error), above > 0)
        return np.clip(weighted_mean(chance[None], averages.drawn.weights), 0.0, 1.0)

    def compared(self, base: Average, comparison: Comparison) -> Average:
        """Return the contrast of this average with another."""
        by_draw = _compared(base.by_draw, self.by_draw, comparison)
        if comparison == "difference":
            return Average(by_draw, self.by_row - base.by_row)
        own, other = self.by_draw.mean(axis=0), base.by_draw.mean(axis=0)
        if comparison == "odds ratio":
            own, other = own * (1 - own), other * (1 - other)
        return Average(by_draw, by_draw.mean(axis=0) * (self.by_row / own - base.by_row / other))


def marginal(
    post: FittedDraws,
    column: str | Sequence[str],
    data: RowsLike | None = None,
    at: Sequence[object] | Mapping[str, object] | None = None,
    slope: bool = False,
    draws: int | None = None,
    prob: Share = 0.9,
    subsample: Count = 5_000,
    random_seed: int = 0,
    groups: Groups | None = None,
    given: Mapping[str, object] | None = None,
    parameter: str | None = None,
) -> pd.DataFrame:
    """Tabulate the expected outcome as a column varies, all other columns being as they are.

    The column is set to one value at a time in all rows of a sample, and predictions are
    averaged. After `mo.fit` it is a column of the table, so that splines, interactions and
    levels follow.

    Parameters
    ----------
    column
        A column of the table, of x, or a factor; or two (or more), such as ``["hour",
        "origin"]``, which are set to all combinations of their values.
    data
        Rows or a table to average over; the rows of the fit by default.
    at
        Value or values to set; by default the levels of a factor, all values if they are few,
        or a grid of fifty from the 1st to the 99th percentile. Of several columns a dict, with
        values of some or all of them; the second and later ones have by default, if their values
        are many, the 10th, 50th and 90th percentile.
    slope
        Whether to give marginal effects instead: derivatives with respect to the (first) column,
        averaged over the rows as they are, or with the column at each value of `at`.
    draws
        Posterior draws to use, evenly spaced; by default as many as in `predict`.
    prob
        Posterior probability of the equal-tailed interval.
    subsample
        The most rows to average over; if there are more, a random sample of them, whose error
        is part of `sd` and of the interval.
    random_seed
        Seed of the sample of rows.
    groups
        As in `predict`; new groups are averaged over.
    given
        Values of other columns, which are set in all rows: ``{"exposure": 1}`` asks for counts
        per unit of exposure, ``{"age": 40, "ward": "b"}`` for people of that age in that ward.
    parameter
        A parameter with a formula of its own, such as "scale", instead of the expected outcome.

    Returns
    -------
    DataFrame
        By value: `mean`, `sd`, the ends of the interval, and `mcse_mean`, the error of the mean
        because of the number of draws and the sample of rows; `attrs` says how many "draws" and
        "rows" were used, and what "quantity" this is. `mo.plots.effect` plots it.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> rows = mo.Rows(x=rng.normal(size=(100, 2)), y=np.zeros(100), columns=["dose", "age"])
    >>> draws = {"beta": np.tile([2.0, -1.0], (1, 100, 1)), "intercept": np.zeros((1, 100))}
    >>> model = mo.models.Gaussian(scale=1.0)
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=100), rows=rows)
    >>> post.predictor = mo.models.over_draws.ModelPredictor(model)
    >>> post.marginal("dose", slope=True)["mean"].round(3).to_dict()
    {'dose': 2.0}
    >>> both = post.marginal(["dose", "age"], at={"dose": [0, 1], "age": [0, 3]})
    >>> both["mean"].round(3).to_dict()
    {(0, 0): 0.0, (0, 3): -3.0, (1, 0): 2.0, (1, 3): -1.0}
    """
    names = [column] if isinstance(column, str) else column
    if not isinstance(names, Sequence) or not names or any(not isinstance(n, str) for n in names):
        raise SettingError(
            "column must be the name of a column, or a list of names such as ['hour', 'origin'], "
            f"not {column!r}."
        )
    if len(set(names)) < len(names):
        raise SettingError(f"the columns {names!r} must be different ones.")
    columns = list(names)
    chosen = _values_by_column(columns, at)
    usual = {name: FEW if k else range(GRID) for k, name in enumerate(columns)}
    settings = prod(map(len, {**usual, **chosen}.values()))
    averaged = _averages(
        post, columns, data, draws, subsample, random_seed, groups, settings, given, parameter
    )
    rows, first = averaged.rows, columns[0]
    if slope and rows.levels(first):
        raise SettingError(
            f"{first!r} holds levels, which have no slope; compare levels with "
            f"post.contrast({first!r})."
        )
    # a slope is averaged over the values that rows have, unless others are named
    varying = [name for name in columns if name != first or not slope or name in chosen]
    values = {name: _values_of(rows, name, chosen.get(name), name != first) for name in varying}
    number = prod(map(len, values.values()))
    if number > MOST_SETTINGS:
        raise SettingError(
            f"{' and '.join(map(repr, values))} have {number:,} combinations of values, and the "
            f"limit is {MOST_SETTINGS:,}: name the values to use, as at={{{columns[-1]!r}: [...]}}."
        )
    grid = [dict(zip(values, each, strict=True)) for each in product(*values.values())]
    estimates = [_slope(averaged, first, s) if slope else averaged.at(s) for s in grid]
    labels = [tuple(setting.get(name, name) for name in columns) for setting in grid]
    quantity = _quantity(post) if parameter is None else f"{parameter} of {post.outcome_name()}"
    quantity = f"slope of the {quantity} in {first}" if slope else quantity
    return _table(estimates, averaged, labels, columns, prob, post.class_names(), quantity)


def contrast(
    post: FittedDraws,
    column: str,
    between: Sequence[object] | None = None,
    data: RowsLike | None = None,
    comparison: Comparison = "difference",
    draws: int | None = None,
    prob: Share = 0.9,
    subsample: Count = 5_000,
    random_seed: int = 0,
    groups: Groups | None = None,
    given: Mapping[str, object] | None = None,
    pairs: bool = False,
) -> pd.DataFrame:
    """Compare expected outcomes at values of a column, all others being as they are.

    Parameters
    ----------
    column
        As in `marginal`.
    between
        Two values or more; each is compared with the first. By default, each level is compared
        with the reference level, and a number plus one with the number itself.
    data
        Rows or a table to average over; the rows of the fit by default.
    comparison
        "difference", "ratio" or "odds ratio" of the average predictions.
    draws, prob, subsample, random_seed, groups, given
        As in `marginal`.
    pairs
        Whether to compare all pairs of values, rather than each with the first.

    Returns
    -------
    DataFrame
        By contrast, as in `marginal`, and the `probability` that it is above 0, or a ratio above 1.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> rows = mo.Rows(x=rng.normal(size=(100, 1)), y=np.zeros(100), columns=["dose"])
    >>> draws = {"beta": rng.normal(1.0, 0.5, size=(1, 400, 1)), "intercept": np.zeros((1, 400))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=100), rows=rows)
    >>> model = mo.models.Gaussian(scale=1.0)
    >>> post.predictor = mo.models.over_draws.ModelPredictor(model)
    >>> post.contrast("dose", [0, 1, 3], pairs=True)[["mean", "probability"]].round(1)
           mean  probability
    dose
    1 - 0   1.0          1.0
    3 - 0   3.0          1.0
    3 - 1   2.0          1.0
    """
    if isinstance(between, str):
        raise SettingError(
            f"between must be a list of values, such as [{between!r}, ...], not one string."
        )
    if comparison == "odds ratio":
        family = post.fitted_model().row_model
        if family.mean_is_share is False and type(family).decide is BaseModel.decide:
            raise SettingError(
                f"an odds ratio needs probabilities, and {type(family).__name__} does not "
                "predict probabilities; use 'difference' or 'ratio'."
            )
    asked = None if between is None else _listed(between)
    averaged = _averages(
        post, [column], data, draws, subsample, random_seed, groups, len(asked or ()), given
    )
    rows = averaged.rows
    values, levels = rows.values(column), rows.levels(column)
    if asked is not None and len(asked) < 2:
        raise SettingError("a contrast needs two values or more; the first of them is the base.")
    if asked is None and not levels:
        if pairs:
            raise SettingError(
                f"{column!r} holds numbers: name those to compare, as between=[...]."
            )
        found = {"": averaged.of({column: values}), "+1": averaged.of({column: values + 1})}
        names = {"+1": ("", "+1")}
    else:
        chosen = _values_of(rows, column, asked, False)
        found = {str(value): averaged.at({column: value}) for value in chosen}
        sign = " - " if comparison == "difference" else " / "
        bases = combinations(found, 2) if pairs else ((str(chosen[0]), str(v)) for v in chosen[1:])
        names = {f"{other}{sign}{base}": (base, other) for base, other in bases}
    estimates = [found[other].compared(found[base], comparison) for base, other in names.values()]
    preposition = {"difference": "difference in"}.get(comparison, f"{comparison} of")
    quantity = f"{preposition} the {_quantity(post)}"
    labels = [(name,) for name in names]
    table = _table(estimates, averaged, labels, [column], prob, post.class_names(), quantity)
    above = [each.chance_above(float(comparison != "difference"), averaged) for each in estimates]
    return table.assign(probability=np.ravel(above))


def _quantity(post: FittedDraws) -> str:
    """Return what is predicted, such as "chance of late", for the axis of a plot."""
    is_chance = type(post.fitted_model().row_model).decide is not BaseModel.decide
    each = " each" * (len(post.class_names()) > 2)
    return f"{'chance of' if is_chance else 'expected'}{each} {post.outcome_name()}"


def _values_by_column(columns: list[str], at: Any) -> dict[str, list[Level]]:  # as a user wrote it
    """Return the values that were named, by column."""
    if at is None:
        return {}
    if not isinstance(at, Mapping):
        if len(columns) > 1:
            raise SettingError(
                f"of several columns, at is a dict of values, such as {{{columns[0]!r}: [...]}}."
            )
        at = {columns[0]: at}
    named = {name: _listed(values) for name, values in at.items()}
    for name, values in named.items():
        if name not in columns:
            raise SettingError(
                f"at names {name!r}, which does not vary here ({names_like(name, columns)}): set "
                f"it by given={{{name!r}: ...}}."
            )
        if not values:
            raise SettingError("at=[] is empty: give at least one value, or leave it out.")
    return named


def _values_of(rows: Population, name: str, chosen: list[Level] | None, few: bool) -> list[Level]:
    """Return the values at which a column is set: those chosen, or by default.

    These are all levels, all values if they are few, or a grid between outer percentiles.
    """
    levels = rows.levels(name)
    if chosen is None and levels:
        return _all_levels(name, levels)
    if chosen is not None:
        return _as_levels(name, chosen, levels)
    values = rows.values(name)
    distinct = np.unique(values)
    if len(distinct) <= (len(FEW) if few else FEW_VALUES):
        return list(distinct.tolist())
    if few:
        return list(np.quantile(values.astype(float), FEW).tolist())
    low, high = np.quantile(values.astype(float), [0.01, 0.99])
    return list(np.linspace(low, high, GRID).tolist())


def _averages(
    post: FittedDraws,
    columns: Sequence[str],
    data: RowsLike | None,
    draws: int | None,
    subsample: int,
    seed: int,
    groups: Groups | None,
    settings: int,
    given: Mapping[str, object] | None,
    parameter: str | None = None,
) -> Averages:
    """Return what to average over, to set these columns about `settings` times.

    If it is 0, the first column is set to each of its levels, or to two numbers.
    """
    averaged, share = population(post, data, subsample, seed, groups)
    grouped_rows = with_groups(averaged.as_it_is, post.fitted_model(), groups)
    explained = post.explained_parameters()
    if parameter is not None and parameter not in explained:
        raise SettingError(
            f"parameter={parameter!r} has no formula of its own, so that no column changes it; "
            f"those that have one: {', '.join(explained) or 'none'}."
        )
    asked = replace(post.model_predictor(), parameter=parameter)
    settings = settings or max(2, len(averaged.levels(columns[0])))
    drawn = OutcomeDraws.affordable(post, grouped_rows, draws, settings)._replace(predictor=asked)
    if drawn.weights.size < 2:
        raise SettingError("one draw shows no uncertainty: use at least two draws.")
    fixed = _given(given, columns, averaged)
    groupings = () if post.encoding is None else post.encoding.groupings
    made_of = {grouping.field: grouping.columns for grouping in groupings}
    for known in drawn.effects:
        integrated = {*columns, *fixed}.intersection(made_of.get(known.field, (known.field,)))
        if integrated:
            raise SettingError(
                f"{min(integrated)!r} is part of a grouping factor whose effects were integrated "
                f"out: tabulate them with post.effects({known.field!r})."
            )
    return Averages(averaged, share, drawn, fixed)


def _given(given: object, columns: Sequence[str], rows: Population) -> dict[str, Level]:
    """Return the values of columns that are set in all rows, or refuse them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SettingError(f"given must be a dict such as {{'exposure': 1}}, not {given!r}.")
    for name, value in given.items():
        if name in columns:
            raise SettingError(f"{name!r} is the column that varies: leave it out of given.")
        single = isinstance(value, str | int | float | date | np.generic)
        if not single or len(_listed(value)) != 1:
            raise SettingError(
                f"given sets a column to one value in all rows, and {name!r} is {value!r}: name "
                "one, or vary the column too."
            )
        rows.values(name)  # refuses a column that they do not have
    return {name: _as_levels(name, [value], rows.levels(name))[0] for name, value in given.items()}


def _slope(averages: Averages, name: str, setting: Mapping[str, Level]) -> Average:
    """Average central differences, within the column's range since splines end there."""
    at, values = setting.get(name), averages.rows.values(name)
    low, high = float(values.min()), float(values.max())
    if not high > low:
        raise SettingError(f"{name!r} is {low:g} in all rows, so that it has no slope.")
    if isinstance(at, str):
        raise SettingError(f"{name!r} is numeric: slopes can be taken at numbers, not at {at!r}.")
    step = STEP * (high - low)
    centre = values if at is None else _constant(float(at), len(values))
    below, above = np.maximum(centre - step, low), np.minimum(centre + step, high)
    if np.any(above <= below):
        raise SettingError(
            f"slopes can be taken for values of {name!r} from {low:g} to {high:g}, not at {at}."
        )
    others, run = averages.constants(setting), above - below
    ends = [averages.of(others | {name: end}, run) for end in (below, above)]
    return ends[1].compared(ends[0], "difference")


def _all_levels(name: str, levels: tuple[Level, ...]) -> list[Level]:
    if len(levels) > MOST_LEVELS:
        raise SettingError(
            f"{name!r} has {len(levels):,} levels: name the ones to use (for a contrast, the base "
            "first)."
        )
    return list(levels)


def _as_levels(name: str, chosen: list[Level], levels: tuple[Level, ...]) -> list[Level]:
    """Return the values as the fit's levels, which may be written as in any table: 6 or "6"."""
    if not levels:
        return chosen
    places = level_places(levels, chosen)
    if -1 in places:
        unknown = chosen[places.index(-1)]
        raise SettingError(f"{unknown!r} is not a level of {name!r}: {names_like(unknown, levels)}")
    return [levels[place] for place in places]


def _listed(values: Any) -> list[Level]:  # as a user wrote them
    """Return the values as a list; a single value becomes a list of one."""
    return [values] if isinstance(values, str) or np.ndim(values) == 0 else list(values)


def _constant(value: Level, number: int) -> np.ndarray:
    filled = np.empty(number, object)
    filled[:] = value
    return filled.astype(float) if isinstance(value, float) else filled


def _compared(base: np.ndarray, other: np.ndarray, comparison: Comparison) -> np.ndarray:
    if comparison == "difference":
        return other - base
    if comparison == "ratio":
        return other / base
    if ((base < 0) | (base > 1) | (other < 0) | (other > 1)).any():
        raise SettingError(
            "an odds ratio needs probabilities, and these expected outcomes are not between 0 and "
            "1; use 'difference' or 'ratio'."
        )
    return np.asarray(other / (1 - other) / (base / (1 - base)))


def _table(
    estimates: list[Average],
    averages: Averages,
    labels: Sequence[tuple[Level, ...]],
    names: list[str],
    prob: float,
    classes: Sequence[str],
    quantity: str,
) -> pd.DataFrame:
    """Tabulate mean, sd, interval and error of averages, by class if there are several."""
    weights, share = averages.drawn.weights, averages.share
    columns = np.stack([estimate.interval(weights, share, prob) for estimate in estimates])
    if columns.ndim == 3:
        count = columns.shape[1]
        class_labels = classes if len(classes) == count else range(count)
        labels = [(*label, each) for label in labels for each in class_labels]
        names = [*names, "class"]
    where = ", ".join(f"{name} = {value}" for name, value in averages.given.items())
    facts = {"draws": weights.size, "rows": len(averages.rows)}
    quantity = f"{quantity} at {where}" if where else quantity
    return interval_table(columns, labels, names, prob, **facts, quantity=quantity)
