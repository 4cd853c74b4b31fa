"""Effects of a column: average predictions, slopes and contrasts, with posterior uncertainty.

One column of the rows is set and the others stay as they are (g-computation): with f the expected
outcome, the quantity averaged over the rows i of a sample, for each draw, is

    f(x_i with the column at v)                                    the average prediction at v,
    [f(x_i + h) - f(x_i - h)] / 2h                                 the average marginal effect,
    f(x_i with the column at b) compared with f(x_i with it at a)  a contrast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from modicum.errors import SettingError, whole_number
from modicum.models import BaseModel, Beta, Binomial, IntegratedEffects, LinearPredictorModel
from modicum.models.prediction import ModelPredictor
from modicum.posterior.alignment import Batch, Groups, RowsLike
from modicum.posterior.checking.population import Population, population
from modicum.posterior.draws import thinned
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.row_effects import OutcomeDraws, known_effects, with_groups
from modicum.posterior.summary import percent
from modicum.posterior.weighted import weighted_mean, weighted_quantile, weighted_variance
from modicum.rows.checks import names_like
from modicum.rows.level_names import Level, level_places

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "Expected", "averages", "contrast", "marginal", "require_chances"]

Expected = Callable[[Batch], np.ndarray]
"""Maps a batch of rows to expected outcomes (draws, rows, ...)."""
Comparison = Literal["difference", "ratio", "odds ratio"]
GRID = 20  # points in the grid of a numeric column
FEW_VALUES = 25  # up to this many distinct values, each is used instead of a grid
MOST_LEVELS = 200
STEP = 1e-4  # step of slopes, as a fraction of the column's range


def marginal(
    rows: Population,
    expected: Expected,
    weights: np.ndarray,
    name: str,
    at: Sequence[object] | None,
    slope: bool,
    prob: float,
    classes: Sequence[str],
) -> pd.DataFrame:
    """Average predictions or slopes; see `Posterior.marginal`."""
    values, levels = rows.values(name), rows.levels(name)
    at = None if at is None else _listed(at)
    if at == []:
        raise SettingError("at=[] is empty: give at least one value, or leave it out.")
    if slope and levels:
        raise SettingError(
            f"{name!r} holds levels, which have no slope; compare levels with "
            f"post.contrast({name!r})."
        )
    if slope:
        labels: list[Level] = [name] if at is None else at
        points = [None] if at is None else at
        estimates = [_slope(rows, expected, name, values, point) for point in points]
    else:
        labels = at if at is not None else _default_values(name, values, levels)
        labels = _as_levels(name, labels, levels)
        estimates = [
            _average(rows.setting(name, _constant(v, len(rows))), expected) for v in labels
        ]
    return _table(np.stack(estimates, axis=1), weights, labels, name, prob, classes)


def contrast(
    rows: Population,
    expected: Expected,
    weights: np.ndarray,
    name: str,
    between: Sequence[object] | None,
    comparison: Comparison,
    prob: float,
    classes: Sequence[str],
) -> pd.DataFrame:
    """Compare average predictions; see `Posterior.contrast`."""
    values, levels = rows.values(name), rows.levels(name)
    if comparison not in ("difference", "ratio", "odds ratio"):
        raise SettingError(
            f"comparison must be 'difference', 'ratio' or 'odds ratio', not {comparison!r}."
        )
    between = None if between is None else _listed(between)
    if between is not None and len(between) < 2:
        raise SettingError("a contrast needs two values or more; the first of them is the base.")
    if between is None and not levels:
        base = _average(rows.setting(name, values), expected)
        others = {"+1": _average(rows.setting(name, values + 1), expected)}
    else:
        chosen = between if between is not None else _all_levels(name, levels)
        chosen = _as_levels(name, chosen, levels)
        base, *rest = (
            _average(rows.setting(name, _constant(v, len(rows))), expected) for v in chosen
        )
        sign = " - " if comparison == "difference" else " / "
        names = [f"{v}{sign}{chosen[0]}" for v in chosen[1:]]
        others = dict(zip(names, rest, strict=True))
    estimates = [_compared(base, other, comparison) for other in others.values()]
    return _table(np.stack(estimates, axis=1), weights, list(others), name, prob, classes)


def require_chances(model: BaseModel) -> None:
    """Refuse odds ratios for models whose expected outcomes are not probabilities."""
    family = model.family if isinstance(model, IntegratedEffects) else model
    if not isinstance(family, LinearPredictorModel) or isinstance(family, Binomial | Beta):
        return
    if type(family).decide is BaseModel.decide:
        raise SettingError(
            f"an odds ratio needs probabilities, and {type(family).__name__} does not predict "
            "probabilities; use 'difference' or 'ratio'."
        )


def averages(
    source: FittedDraws,
    column: str,
    data: RowsLike | None,
    draws: int,
    subsample: int,
    seed: int,
    groups: Groups | None,
) -> tuple[Population, Expected, np.ndarray]:
    """Return the rows to average over, the function to average, and the weights of the draws."""
    whole_number("draws", draws)
    whole_number("subsample", subsample)
    fit = source.fit()
    by_formula = source.fit_rows is not None and source.fit_rows.encoding is not None
    rows = None
    if not by_formula and (data is not None or source.rows is not None):
        rows = source.rows_or_own(data, False, "refuse", groups)
    table = source.table if data is None else data
    averaged = population(table, rows, source.fit_rows, subsample, seed, groups)
    subset, weights = thinned(source, draws)
    if weights.size < 2:
        raise SettingError("one draw shows no uncertainty: use at least two draws.")
    grouped_rows = with_groups(averaged.as_it_is, fit.model, groups)
    effects = known_effects(source, subset, grouped_rows)
    integrated = [known.field for known in effects if column in averaged.columns_of(known.field)]
    if integrated:
        raise SettingError(
            f"{column!r} is part of a grouping factor whose effects were integrated out: tabulate "
            f"them with post.effects({integrated[0]!r})."
        )
    drawn = OutcomeDraws(subset, ModelPredictor(fit.model), effects)

    def expected(batch: Batch) -> np.ndarray:
        return drawn.expected(grouped_rows.marked(batch))[0]

    return averaged, expected, weights


def _average(batches: Iterator[Batch], expected: Expected) -> np.ndarray:
    """Average each draw's expected outcome over rows, with their frequency weights."""
    total, mass = np.zeros(()), 0.0
    for batch in batches:
        outcome = expected(batch)
        weight = np.asarray(batch.get("weight", np.ones(outcome.shape[1])), float)
        total = total + np.tensordot(outcome, weight, axes=([1], [0]))
        mass += float(weight.sum())
    return np.asarray(total / mass)


def _slope(
    rows: Population, expected: Expected, name: str, values: np.ndarray, at: Level | None
) -> np.ndarray:
    """Average central differences, within the column's range since splines end there."""
    low, high = float(values.min()), float(values.max())
    if not high > low:
        raise SettingError(f"{name!r} is {low:g} in all rows, so that it has no slope.")
    if isinstance(at, str):
        raise SettingError(f"{name!r} is numeric: slopes can be taken at numbers, not at {at!r}.")
    step = STEP * (high - low)
    centre = values if at is None else _constant(float(at), len(rows))
    below, above = np.maximum(centre - step, low), np.minimum(centre + step, high)
    if np.any(above <= below):
        raise SettingError(
            f"slopes can be taken for values of {name!r} from {low:g} to {high:g}, not at {at}."
        )
    total, mass = np.zeros(()), 0.0
    pairs = zip(rows.setting(name, above), rows.setting(name, below), strict=True)
    first = 0
    for upper, lower in pairs:
        rise = expected(upper) - expected(lower)
        run = (above - below)[first : first + rise.shape[1]]
        weight = np.asarray(upper.get("weight", np.ones(rise.shape[1])), float)
        total = total + np.tensordot(rise, weight / run, axes=([1], [0]))
        mass, first = mass + float(weight.sum()), first + rise.shape[1]
    return np.asarray(total / mass)


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


def _table(
    estimates: np.ndarray,
    weights: np.ndarray,
    labels: list[Level],
    name: str,
    prob: float,
    classes: Sequence[str],
) -> pd.DataFrame:
    """Tabulate mean, sd and interval of (draws, values), or of (draws, values, classes)."""
    import pandas as pd

    ends = [(1 - prob) / 2, (1 + prob) / 2]
    draws = estimates[None]
    low, high = weighted_quantile(draws, weights, ends)
    sd = np.sqrt(weighted_variance(draws, weights))
    columns = np.stack([weighted_mean(draws, weights), sd, low, high], axis=-1)
    index: pd.Index[Any] = pd.Index(labels, name=name)
    if estimates.ndim == 3:
        class_labels = classes if len(classes) == estimates.shape[2] else range(estimates.shape[2])
        index = pd.MultiIndex.from_product([labels, class_labels], names=[name, "class"])
    titles = ["mean", "sd", *map(percent, ends)]
    return pd.DataFrame(columns.reshape(-1, 4), index=index, columns=titles)
