"""Effects of the groups of rows to predict: known ones, and those of groups new to the fit.

Explicit effects are parameters. Integrated ones are drawn from the rows of the fit, and those of
new groups from the distribution of effects, one vector per draw and group that all rows of the
group share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from modicum.errors import DataError, SettingError, argument
from modicum.models import IntegratedEffects
from modicum.models.base import BaseModel
from modicum.models.prediction import ModelPredictor
from modicum.passes.effects import STEPS
from modicum.posterior.alignment import AlignedRows, Batch, Groups
from modicum.posterior.effects import effect_draws, group_names
from modicum.posterior.fitted import FittedDraws
from modicum.random import Stream, generator

NewGroups: TypeAlias = Literal["one", "average"]
ROWS_PER_AVERAGE = 7  # rows that cost as much as an average over new groups, by quadrature


class RowEffects(NamedTuple):
    """Draws of effects that are not parameters, for the groups of rows to predict."""

    term: int  # index among the model's group terms
    field: str
    columns: tuple[int | None, ...]  # of x, that the effects multiply; None for 1
    values: np.ndarray  # of the group field, sorted
    draws: np.ndarray  # (draws, groups, effects)

    def of_rows(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return what the effects add to the predictors (draws, rows), and to which rows."""
        groups = batch[self.field]
        at = np.minimum(np.searchsorted(self.values, groups), len(self.values) - 1)
        total = np.zeros((len(self.draws), len(groups)))
        for k, j in enumerate(self.columns):
            z = 1.0 if j is None else np.asarray(batch["x"][:, j], float)
            total += z * self.draws[:, at, k]
        has_effect = self.values[at] == groups
        return np.where(has_effect, total, 0.0), has_effect


class OutcomeDraws(NamedTuple):
    """Parameter draws and the model, from which outcomes are predicted or drawn."""

    draws: dict[str, np.ndarray]  # (draws, *shape)
    predictor: ModelPredictor
    effects: tuple[RowEffects, ...] = ()
    signs: np.ndarray | None = None  # of the draws; None if they are equally weighted

    @property
    def number(self) -> int:
        """Number of draws."""
        return len(next(iter(self.draws.values())))

    def predictors(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return predictors (draws, rows, q + extras), and the sd of effects they lack.

        These are the effects of new groups, unless they have been drawn.
        """
        eta, variances = self.predictor.predictors(self.draws, batch)
        eta = np.array(eta)  # a copy, since JAX arrays are read-only
        for effects in self.effects:
            shift, has_effect = effects.of_rows(batch)
            eta[..., 0] += shift
            variances[effects.term][:, has_effect] = 0.0
        return eta, np.sqrt(variances.sum(axis=0))

    def expected(
        self, batch: Batch, scores: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return expected outcomes (draws, rows, ...), on average over new groups and in one.

        The effect of the one new group is the draw's normal score times its standard deviation;
        without scores, averages are returned twice.
        """
        if not self.predictor.model.effect_scales:
            outcome = np.asarray(self.predictor(self.draws, batch), float)
            return outcome, outcome
        eta, sd = self.predictors(batch)
        average = self.predictor.means(eta, sd)
        if scores is None or not sd.any():
            return average, average
        eta[..., 0] += sd * scores[:, None]
        return average, self.predictor.means(eta, np.zeros_like(sd))

    def outcome(self, batch: Batch) -> tuple[np.ndarray | None, np.ndarray]:
        """Return expected outcomes (None if there are none) and log-densities of observed ones."""
        if not self.effects:
            return self.predictor.outcome(self.draws, batch)
        eta, sd = self.predictors(batch)
        if sd.any():
            raise DataError(
                "the rows do not name every group, but the density of an outcome depends on the "
                "effects of its groups; give all of them."
            )
        return self.predictor.means(eta, sd), self.predictor.densities(eta, batch)


def normal_scores(number: int) -> np.ndarray:
    """Return standard normal quantiles in random order, with less noise than random draws."""
    from scipy.special import ndtri  # slow to import

    order = generator(0, Stream.NEW_GROUPS).permutation(number)
    return np.asarray(ndtri((order + 0.5) / number))


def with_groups(new: AlignedRows, model: BaseModel, groups: Groups | None) -> AlignedRows:
    """Return rows to predict, in which all groups are new if `groups` is "new"."""
    names = group_names(model)
    if not names and groups is not None:
        raise SettingError("this model has no groups: leave out the argument `groups`.")
    absent = [name for name in names if name not in new.fields]
    if groups == "known" and absent:
        raise DataError(
            f"the rows lack the field '{absent[0]}', so that their groups are unknown; add it, or "
            f"predict for new groups with {argument('groups', 'new')}."
        )
    return all_new(new, names) if groups == "new" else new


def all_new(rows: AlignedRows, names: tuple[str, ...]) -> AlignedRows:
    """Return the rows with all groups of these factors new to the fit."""
    return replace(rows, first_new={**rows.first_new, **dict.fromkeys(names, -np.inf)})


def rows_behind(source: FittedDraws, new: AlignedRows) -> int:
    """Return how many evaluations of rows each draw costs: of new ones, and for known effects."""
    model = source.fit().model
    names = group_names(model)
    some_new = any(name in new.first_new or name not in new.fields for name in names)
    evaluations = len(new) * (ROWS_PER_AVERAGE if some_new else 1)
    if not isinstance(model, IntegratedEffects) or source.rows is None:
        return evaluations
    index = model.units(source.rows).index
    known = np.isin(index.values, new.groups_of(model.group, new=False))
    return evaluations + STEPS * int(index.size[known].sum())


def known_effects(
    source: FittedDraws, draws: dict[str, np.ndarray], new: AlignedRows
) -> tuple[RowEffects, ...]:
    """Draw the integrated effects of the groups that rows share with the rows of the fit."""
    fit = source.fit()
    model = fit.model
    if not isinstance(model, IntegratedEffects):
        return ()
    wanted = new.groups_of(model.group, new=False)
    if not len(wanted):
        return ()
    rows = source.rows_of_fit()
    groups = model.units(rows)
    unknown = np.setdiff1d(wanted, groups.index.values)
    if len(unknown):
        raise DataError(
            f"there is no '{model.group}' {unknown[0]:g} among the rows of the fit; leave such "
            f"rows out, or predict them with {argument('groups', 'new')}."
        )
    ids = np.searchsorted(groups.index.values, wanted)
    drawn = np.concatenate(list(effect_draws(fit, groups, ids, draws)), axis=1)
    return (RowEffects(0, *model.effect_scales[0], wanted, drawn),)


def new_effects(
    predictor: ModelPredictor,
    draws: dict[str, np.ndarray],
    rows: AlignedRows,
    seed: int,
) -> tuple[RowEffects, ...]:
    """Draw the effects of the new groups that rows name, each shared by the rows of its group."""
    terms = predictor.model.effect_scales
    found = {name: rows.groups_of(name, new=True) for name, _ in terms}
    if not any(map(len, found.values())):
        return ()
    effects, rng = [], generator(seed, Stream.NEW_GROUPS)
    for k, factor in enumerate(predictor.effect_factors(draws)):
        name, columns = terms[k]
        if len(found[name]):
            v = rng.standard_normal((len(factor), len(found[name]), len(columns)))
            drawn = np.einsum("sab,sgb->sga", factor, v)
            effects.append(RowEffects(k, name, columns, found[name], drawn))
    return tuple(effects)
