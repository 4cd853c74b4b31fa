"""Effects of a column: average predictions, slopes and contrasts, with posterior uncertainty.

One column of the rows is set and the others stay as they are (g-computation): with f the expected
outcome, the quantity averaged over the rows i of a sample, for each draw, is

    f(x_i with the column at v)                                    the average prediction at v,
    [f(x_i + h) - f(x_i - h)] / 2h                                 the average marginal effect,
    f(x_i with the column at b) compared with f(x_i with it at a)  a contrast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.special import ndtri

from modicum.errors import SettingError, whole_number
from modicum.models import BaseModel, Beta, Binomial, LinearPredictorModel
from modicum.models.over_draws import length_of
from modicum.posterior.draws import affordable, check_interval, thinned
from modicum.posterior.fit_rows import Batch, Groups, RowsLike
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.population import Population, population
from modicum.posterior.predict import (
    CHUNK_BYTES,
    OutcomeDraws,
    known_effects,
    rows_behind,
    with_groups,
)
from modicum.posterior.summary import interval_columns
from modicum.posterior.weighted import (
    weighted_mcse,
    weighted_mean,
    weighted_quantile,
    weighted_variance,
)
from modicum.rows.checks import names_like
from modicum.rows.coding import Level, level_places

if TYPE_CHECKING:
    import pandas as pd

Expected = Callable[[Batch], np.ndarray]
"""Maps a batch of rows to expected outcomes (draws, rows, ...)."""
Comparison = Literal["difference", "ratio", "odds ratio"]
GRID = 20  # points in the grid of a numeric column
FEW_VALUES = 25  # up to this many distinct values, each is used instead of a grid
MOST_LEVELS = 200
STEP = 1e-4  # step of slopes, as a fraction of the column's range


class Averages(NamedTuple):
    """Rows to average over, the function to average, and the weights of its draws."""

    rows: Population
    expected: Expected
    weights: np.ndarray  # (1, draws)

    def of(self, *settings: Iterator[Batch], run: np.ndarray | None = None) -> Average:
        """Average over rows, with their frequency weights.

        Of two settings, the difference of the second from the first, divided by `run`.
        """
        draws = self.weights.size
        total, mass, first = np.zeros(()), 0.0, 0
        by_row, row_weights = [], []
        for batches in zip(*(_pieces(setting, draws) for setting in settings), strict=True):
            outcome = self.expected(batches[-1])
            if len(batches) == 2:
                outcome = outcome - self.expected(batches[0])
            count = outcome.shape[1]
            weight = np.asarray(batches[-1].get("weight", np.ones(count)), float)
            if run is not None:
                scale = run[first : first + count].reshape(-1, *[1] * (outcome.ndim - 2))
                outcome = outcome / scale
            total = total + np.tensordot(outcome, weight, axes=([1], [0]))
            mass, first = mass + float(weight.sum()), first + count
            by_row.append(weighted_mean(outcome[None], self.weights))
            row_weights.append(weight)
        rows, weight = np.concatenate(by_row), np.concatenate(row_weights) / mass
        mean = np.tensordot(weight, rows, axes=1)
        return Average(total / mass, (rows - mean) * weight.reshape(-1, *[1] * mean.ndim))


class Average(NamedTuple):
    """An average of expected outcomes over rows."""

    by_draw: np.ndarray  # (draws, ...)
    by_row: np.ndarray  # influence of each row on the average, (rows, ...)

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
    column: str,
    data: RowsLike | None = None,
    at: Sequence[object] | None = None,
    slope: bool = False,
    draws: int | None = None,
    prob: float = 0.9,
    subsample: int = 5_000,
    random_seed: int = 0,
    groups: Groups | None = None,
) -> pd.DataFrame:
    """Tabulate the expected outcome as a column varies, all other columns being as they are.

    The column is set to one value at a time in all rows of a sample, and predictions are
    averaged. After `mo.fit` it is a column of the table, so that splines, interactions and
    levels follow.

    Parameters
    ----------
    column
        A column of the table, of x, or a factor.
    data
        Rows or a table to average over; the rows of the fit by default.
    at
        Value or values to set; by default the levels of a factor, all values if they are few,
        or a grid of twenty from the 1st to the 99th percentile.
    slope
        Whether to give marginal effects instead: derivatives with respect to the column,
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

    Returns
    -------
    DataFrame
        By value: `mean`, `sd`, the ends of the interval, and `mcse_mean`, the error of the mean
        because of the number of draws and the sample of rows; `attrs` says how many "draws" and
        "rows" were used. `mo.plots.effect` plots it.

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
    """
    check_interval(prob)
    averaged = _averages(post, column, data, draws, subsample, random_seed, groups, at)
    rows = averaged.rows
    values, levels = rows.values(column), rows.levels(column)
    at = None if at is None else _listed(at)
    if at == []:
        raise SettingError("at=[] is empty: give at least one value, or leave it out.")
    if slope and levels:
        raise SettingError(
            f"{column!r} holds levels, which have no slope; compare levels with "
            f"post.contrast({column!r})."
        )
    if slope:
        labels: list[Level] = [column] if at is None else at
        points = [None] if at is None else at
        estimates = [_slope(averaged, column, values, point) for point in points]
    else:
        labels = at if at is not None else _default_values(column, values, levels)
        labels = _as_levels(column, labels, levels)
        estimates = [averaged.of(rows.setting(column, _constant(v, len(rows)))) for v in labels]
    return _table(estimates, averaged, labels, column, prob, post.class_names())


def contrast(
    post: FittedDraws,
    column: str,
    between: Sequence[object] | None = None,
    data: RowsLike | None = None,
    comparison: Comparison = "difference",
    draws: int | None = None,
    prob: float = 0.9,
    subsample: int = 5_000,
    random_seed: int = 0,
    groups: Groups | None = None,
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
    draws, prob, subsample, random_seed, groups
        As in `marginal`.

    Returns
    -------
    DataFrame
        By contrast, as in `marginal`.
    """
    if isinstance(between, str):
        raise SettingError(
            f"between must be a list of values, such as [{between!r}, ...], not one string."
        )
    check_interval(prob)
    if comparison == "odds ratio":
        _require_chances(post.fitted_model())
    averaged = _averages(post, column, data, draws, subsample, random_seed, groups, between)
    rows = averaged.rows
    values, levels = rows.values(column), rows.levels(column)
    if comparison not in ("difference", "ratio", "odds ratio"):
        raise SettingError(
            f"comparison must be 'difference', 'ratio' or 'odds ratio', not {comparison!r}."
        )
    between = None if between is None else _listed(between)
    if between is not None and len(between) < 2:
        raise SettingError("a contrast needs two values or more; the first of them is the base.")
    if between is None and not levels:
        base = averaged.of(rows.setting(column, values))
        others = {"+1": averaged.of(rows.setting(column, values + 1))}
    else:
        chosen = between if between is not None else _all_levels(column, levels)
        chosen = _as_levels(column, chosen, levels)
        base, *rest = (averaged.of(rows.setting(column, _constant(v, len(rows)))) for v in chosen)
        sign = " - " if comparison == "difference" else " / "
        names = [f"{v}{sign}{chosen[0]}" for v in chosen[1:]]
        others = dict(zip(names, rest, strict=True))
    estimates = [other.compared(base, comparison) for other in others.values()]
    return _table(estimates, averaged, list(others), column, prob, post.class_names())


def _require_chances(model: BaseModel) -> None:
    """Refuse odds ratios for models whose expected outcomes are not probabilities."""
    family = model.row_model
    if not isinstance(family, LinearPredictorModel) or isinstance(family, Binomial | Beta):
        return
    if type(family).decide is BaseModel.decide:
        raise SettingError(
            f"an odds ratio needs probabilities, and {type(family).__name__} does not predict "
            "probabilities; use 'difference' or 'ratio'."
        )


def _averages(
    post: FittedDraws,
    column: str,
    data: RowsLike | None,
    draws: int | None,
    subsample: int,
    seed: int,
    groups: Groups | None,
    values: Sequence[object] | None,
) -> Averages:
    """Return what to average over, at these values of the column; None if none were given."""
    whole_number("subsample", subsample)
    predictor = post.model_predictor()
    by_formula = post.fit_rows is not None and post.fit_rows.encoding is not None
    rows = None
    if not by_formula and (data is not None or post.rows is not None):
        rows = post.rows_or_own(data, False, "refuse", groups)
    table, fitted = (post.table, post.rows) if data is None else (data, None)
    averaged = population(table, rows, post.fit_rows, subsample, seed, groups, fitted)
    grouped_rows = with_groups(averaged.as_it_is, predictor.model, groups)
    settings = GRID if values is None else len(_listed(values))
    evaluations = settings * rows_behind(post, grouped_rows)
    subset, weights = thinned(post, affordable(post, evaluations, draws))
    if weights.size < 2:
        raise SettingError("one draw shows no uncertainty: use at least two draws.")
    effects = known_effects(post, subset, grouped_rows)
    integrated = [known.field for known in effects if column in averaged.columns_of(known.field)]
    if integrated:
        raise SettingError(
            f"{column!r} is part of a grouping factor whose effects were integrated out: tabulate "
            f"them with post.effects({integrated[0]!r})."
        )
    drawn = OutcomeDraws(subset, predictor, effects)

    def expected(batch: Batch) -> np.ndarray:
        return drawn.expected(grouped_rows.marked(batch))[0]

    return Averages(averaged, expected, weights)


def _pieces(batches: Iterator[Batch], draws: int) -> Iterator[Batch]:
    """Cut batches into pieces whose outcomes fit in memory."""
    step = max(1, CHUNK_BYTES // (8 * draws))
    for batch in batches:
        for first in range(0, length_of(batch), step):
            yield {name: values[first : first + step] for name, values in batch.items()}


def _slope(averages: Averages, name: str, values: np.ndarray, at: Level | None) -> Average:
    """Average central differences, within the column's range since splines end there."""
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
    settings = (averages.rows.setting(name, values) for values in (below, above))
    return averages.of(*settings, run=above - below)


def _default_values(name: str, values: np.ndarray, levels: tuple[Level, ...]) -> list[Level]:
    """Return all levels, all values if they are few, or a grid between outer percentiles."""
    if levels:
        return _all_levels(name, levels)
    distinct = np.unique(values)
    if len(distinct) <= FEW_VALUES:
        return list(distinct.tolist())
    low, high = np.quantile(values.astype(float), [0.01, 0.99])
    return list(np.linspace(low, high, GRID).tolist())


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


def by_class(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split a table by class of the outcome; one without classes has no name."""
    if table.index.nlevels == 1:
        return {"": table}
    classes = table.index.get_level_values(-1)
    name = table.index.names[-1]
    return {f"{name} {k}": table[classes == k].droplevel(-1) for k in dict.fromkeys(classes)}


def _table(
    estimates: list[Average],
    averages: Averages,
    labels: list[Level],
    name: str,
    prob: float,
    classes: Sequence[str],
) -> pd.DataFrame:
    """Tabulate mean, sd, interval and error of averages, by class if there are several.

    Of a sample of rows, sd and interval include the error of the sample.
    """
    import pandas as pd

    ends, weights = [(1 - prob) / 2, (1 + prob) / 2], averages.weights
    draws = np.stack([estimate.by_draw for estimate in estimates], axis=1)[None]
    left_out = 1 - averages.rows.share
    of_rows = [np.sqrt(left_out * np.sum(e.by_row**2, axis=0)) for e in estimates]
    error = np.asarray(of_rows)
    mean, quantiles = weighted_mean(draws, weights), weighted_quantile(draws, weights, ends)
    away = np.abs(quantiles - mean)
    wider = np.hypot(away, ndtri(ends[1]) * error) - away
    low, high = quantiles[0] - wider[0], quantiles[1] + wider[1]
    sd = np.hypot(np.sqrt(weighted_variance(draws, weights)), error)
    mcse = np.hypot(weighted_mcse(draws, weights), error)
    columns = np.stack([mean, sd, low, high, mcse], axis=-1)
    index: pd.Index[Any] = pd.Index(labels, name=name)
    if mean.ndim == 2:
        class_labels = classes if len(classes) == mean.shape[1] else range(mean.shape[1])
        index = pd.MultiIndex.from_product([labels, class_labels], names=[name, "class"])
    titles = interval_columns(prob)
    table = pd.DataFrame(columns.reshape(-1, len(titles)), index=index, columns=titles)
    table.attrs |= {"draws": weights.size, "rows": len(averages.rows)}
    return table
