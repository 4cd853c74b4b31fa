"""Unpooled effects: estimates from the rows of one level, without the other levels.

The unpooled effect is the u that maximises sum_i f(y_i, eta_i + z_i u) over the rows of the level,
with all other parameters at their posterior means. It is infinite for levels whose outcomes are
all equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from modicum.models import IntegratedEffects, LinearPredictorModel
from modicum.models.base import Batch
from modicum.models.groups.level_modes import level_modes
from modicum.models.groups.terms import effect_columns
from modicum.posterior.draws import Draws
from modicum.posterior.effects import group_levels, terms_of
from modicum.posterior.fitted import Fit
from modicum.posterior.weighted import weighted_mean
from modicum.rows import Rows
from modicum.runtime import in_double_precision

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 65_536
MOST_LEVELS = 400  # levels whose unpooled effects are computed
WIDEST = 1.6  # limit of a plot, in multiples of the largest posterior mean


class Shrinkage(NamedTuple):
    """Effects of levels beside their unpooled estimates.

    Attributes
    ----------
    table
        One effect of some levels, as `Posterior.effects` tabulates it.
    unpooled
        The effects that best fit the rows of their own level; infinite if none does.
    sd
        Standard deviation of the effects in the population, the median of its draws.
    """

    table: pd.DataFrame
    unpooled: np.ndarray
    sd: float

    def limits(self, prob: float) -> tuple[float, float]:
        """Return the bound of new levels' effects with probability `prob`, and a plot's limit."""
        from scipy.special import ndtri

        wide = float(ndtri((1 + prob) / 2)) * self.sd
        return wide, 1.15 * max(wide, WIDEST * float(np.abs(self.table["mean"]).max()))


def shrinkage(
    source: Draws, fit: Fit, rows: Rows, group: str, effect: str, effects: pd.DataFrame
) -> Shrinkage:
    """Compute unpooled effects of a group's levels; of many levels, a choice from few rows to many.

    `effects` is the table of `Posterior.effects`, with the number of rows of each level.
    """
    names = [name for term in terms_of(fit.model, group) for name in term.sd_names]
    table = one_effect(effects, effect)
    places = np.arange(len(table))
    if len(places) > MOST_LEVELS:
        by_rows = table["rows"].to_numpy().argsort(kind="stable")
        places = by_rows[np.linspace(0, len(places) - 1, MOST_LEVELS).astype(int)]
    pooled = effects["mean"].to_numpy().reshape(-1, len(names))[places]
    (entries,) = source.labels["group_sd"]
    assert entries is not None
    sd = float(source.quantile("group_sd", 0.5)[entries.index(effect)])
    table = table.iloc[places]
    selection = (group, effect, list(table.index), pooled, sd)
    return Shrinkage(table, unpooled_effects(source, fit, rows, *selection), sd)


def one_effect(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the lines of one effect, if levels have several."""
    if table.index.nlevels == 1:
        return table
    return table[table.index.get_level_values("effect") == name].droplevel("effect")


@in_double_precision
def unpooled_effects(
    source: Draws,
    fit: Fit,
    rows: Rows,
    group: str,
    effect: str,
    levels: Sequence[object],
    pooled: np.ndarray,
    sd: float,
) -> np.ndarray:
    """Return the effects of some levels that best fit their own rows; infinite if none does.

    Parameters
    ----------
    source, fit, rows
        The draws, the model, and the rows of the fit.
    group, effect
        The factor, and which of its effects, named as in `Posterior.effects`.
    levels
        Levels of the factor.
    pooled
        Posterior means of all effects of these levels, (levels, effects), at which the other
        effects are held.
    sd
        Standard deviation of the effects in the population, the unit of steps.
    """
    import jax

    model = fit.model
    integrated = isinstance(model, IntegratedEffects) and group == model.group
    family = model.family if isinstance(model, IntegratedEffects) else model
    assert isinstance(family, LinearPredictorModel)
    terms = terms_of(model, group)
    k = [name for term in terms for name in term.sd_names].index(effect)
    batch, which = _rows_with_codes(rows, group, _level_codes(model, rows, group, levels))
    weights = source.weights
    named = {
        name: weighted_mean(x, np.ones(x.shape[:2]) if weights is None else weights)
        for name, x in source.draws.items()
    }
    predict = jax.jit(lambda named, batch: family.predictor_vector(model.restore(named), batch))
    predictors = np.array(predict(named, batch))
    x = np.asarray(batch.get("x", np.empty((len(which), 0))))
    z = np.column_stack([effect_columns(term, rows, x) for term in terms])
    if integrated:  # the predictors do not include the effects
        others = pooled * (np.arange(pooled.shape[1]) != k)
        predictors[:, 0] += np.sum(z * others[which], axis=1)
    else:
        predictors[:, 0] -= z[:, k] * pooled[which, k]
    frequency = np.asarray(batch.get("weight", np.ones(len(which))))
    arguments = (predictors, np.asarray(family.outcome(batch)), z[:, k], frequency, which)
    return np.asarray(level_modes(family.without_priors(), *arguments, pooled[:, k], sd))


def _level_codes(model: object, rows: Rows, group: str, levels: Sequence[object]) -> np.ndarray:
    """Return the values of the group field that stand for these levels."""
    if isinstance(model, IntegratedEffects) and group == model.group:
        groups = model.units(rows)
        names, values = group_levels(groups), groups.index.values
    else:
        names = np.asarray(rows.levels[group], object)
        values = np.arange(len(names))
    place = {str(name): value for name, value in zip(names.tolist(), values, strict=True)}
    return np.array([place[str(level)] for level in levels])


def _rows_with_codes(rows: Rows, group: str, codes: np.ndarray) -> tuple[Batch, np.ndarray]:
    """Return the rows whose factor has one of these codes, and the index of each row's code."""
    order = np.argsort(codes)
    parts: list[dict[str, np.ndarray]] = []
    for chunk in rows.chunks(CHUNK):
        of_levels = np.isin(chunk[group], codes)
        parts.append({name: np.asarray(values)[of_levels] for name, values in chunk.items()})
    batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return batch, order[np.searchsorted(codes[order], batch[group])]
