"""What the draws of a fit say about rows: expected outcomes, outcomes with noise, densities.

The groups of the rows may be known to the fit or new. Explicit effects are parameters. Integrated
ones are drawn from the rows of the fit, and those of new groups from the distribution of effects,
one vector per draw and group that all rows of the group share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np

from modicum.arguments import Count
from modicum.errors import DataError, SettingError, argument
from modicum.files import require_writable, within_disk
from modicum.models import BaseModel
from modicum.models.linear_predictor import LinearPredictorModel, family_of
from modicum.models.observed import KNOWN_NOISE
from modicum.models.over_draws import ModelPredictor, length_of, prior_draws
from modicum.passes.integrated_groups import STEPS
from modicum.posterior.fit_rows import AlignedRows, Batch, Groups, RowsLike
from modicum.posterior.fitted import FittedDraws, affordable, equal_draws, thinned
from modicum.posterior.group_effects import effect_draws, group_names, groups_of
from modicum.random import Stream, generator
from modicum.rows.formula import NewLevels
from modicum.rows.grouped_rows import GroupIndex

Answer = TypeVar("Answer", bound=np.ndarray | tuple[np.ndarray | None, ...])
ROWS_PER_AVERAGE = 7  # rows that cost as much as an average over new groups, by quadrature
MOST_GIGABYTES = 4.0  # of drawn outcomes held in memory
CHUNK_BYTES = 32 * 2**20  # for the outcomes of a chunk; sorting them needs a few times as much
FIRST_ROWS = 1024  # rows of the first piece, whose outcomes show how many numbers a row has


def in_pieces(
    batches: Callable[[int], Iterable[Batch]], draws: int, evaluate: Callable[[Batch], Answer]
) -> Iterator[tuple[Batch, Answer]]:
    """Visit all rows in order, in pieces whose answers (draws, rows, ...) fit in memory.

    `batches` is asked for as many rows at a time as do if each answer is one number per draw.
    """
    most = max(1, CHUNK_BYTES // (8 * draws))
    step = min(most, FIRST_ROWS)
    for batch in batches(most):
        size, start = length_of(batch), 0
        while start < max(1, size):  # the outcomes of no rows have a shape, too
            piece = {k: v[start : start + step] for k, v in batch.items()}
            start += step
            answer = evaluate(piece)
            # outcomes of several classes have more than one number per row
            parts = answer if isinstance(answer, tuple) else (answer,)
            wide = max(int(np.prod(x.shape[2:], dtype=int)) for x in parts if x is not None)
            step = max(1, most // max(1, wide))
            yield piece, answer


class RowEffects(NamedTuple):
    """Draws of effects that are not parameters, for the groups of rows to predict."""

    term: int  # index among the model's group terms
    field: str
    columns: tuple[int | None, ...]  # of x, that the effects multiply; None for 1
    predictor: int  # that they are added to
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
    """Rows, and draws of a model's parameters, with which their outcomes are predicted or drawn."""

    rows: AlignedRows
    draws: dict[str, np.ndarray]  # (draws, *shape)
    predictor: ModelPredictor
    weights: np.ndarray  # (1, draws)
    effects: tuple[RowEffects, ...] = ()
    scores: np.ndarray | None = None  # of the effects of one new group; see `expected`

    @classmethod
    def of(
        cls,
        post: FittedDraws,
        rows: AlignedRows,
        draws: dict[str, np.ndarray],
        weights: np.ndarray,
        seed: int | None,
    ) -> OutcomeDraws:
        """Take draws of a fit, find known groups' effects and, with a seed, draw those of new."""
        effects, predictor = known_effects(post, draws, rows), post.model_predictor()
        if seed is not None:
            effects += new_effects(predictor, draws, rows, seed)
        return cls(rows, draws, predictor, weights, effects)

    @classmethod
    def affordable(
        cls,
        post: FittedDraws,
        rows: AlignedRows,
        draws: int | None,
        times: int = 1,
        purpose: str = "",
    ) -> OutcomeDraws:
        """Choose draws to evaluate rows at a number of times, and find their groups' effects.

        With a `purpose`, draws are refused whose averages mean nothing.
        """
        number = affordable(post, times * rows_behind(post, rows), draws)
        return cls.of(post, rows, *thinned(post, number, purpose), None)

    def pieces(
        self, evaluate: Callable[[Batch], Answer], draws: int | None = None
    ) -> Iterator[tuple[Batch, Answer]]:
        """Visit the rows in pieces whose answers fit in memory, also as those of more `draws`."""
        return in_pieces(self.rows.chunks, draws or self.weights.size, evaluate)

    def predictors(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return predictors (draws, rows, q + extras), and the sds of effects they lack.

        These are the effects of new groups, unless they have been drawn; they have an sd for each
        predictor that effects enter, (draws, rows, such predictors).
        """
        eta, variances = self.predictor.predictors(self.draws, batch)
        eta = np.array(eta)  # a copy, since JAX arrays are read-only
        for effects in self.effects:
            shift, has_effect = effects.of_rows(batch)
            eta[..., effects.predictor] += shift
            variances[effects.term][:, has_effect] = 0.0
        model = self.predictor.model
        of_term = np.array([scale.predictor for scale in model.effect_scales])
        along = model.predictors_of_groups
        lacking = np.zeros((*eta.shape[:2], len(along)))
        for at, k in enumerate(along):
            lacking[..., at] = variances[of_term == k].sum(axis=0)
        return eta, np.sqrt(lacking)

    def expected(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return expected outcomes (draws, rows, ...), on average over new groups and in one.

        The effect of the one new group is the draw's normal score times its standard deviation;
        without scores, averages are returned twice.
        """
        asks_mean = self.predictor.times is None and self.predictor.parameter is None
        if asks_mean and not self.predictor.model.effect_scales:
            outcome = np.asarray(self.predictor(self.draws, batch), float)
            draws, rows = self.weights.size, length_of(batch)
            if outcome.shape[:2] != (draws, rows):
                raise SettingError(
                    f"The predictor returned shape {outcome.shape} for {draws} draws and {rows} "
                    "rows; it must return one value per draw and row."
                )
            return outcome, outcome
        eta, sd = self.predictors(batch)
        average = self.predictor.means(eta, sd)
        if self.scores is None or not sd.any():
            return average, average
        eta[..., list(self.predictor.model.predictors_of_groups)] += sd * self.scores[:, None]
        return average, self.predictor.means(eta, np.zeros_like(sd))

    def moments(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of outcomes (draws, rows), given the effects of groups."""
        eta, unnamed = self.predictors(batch)
        if unnamed.any():
            raise DataError(
                "the rows do not name every group, but what is explained depends on the effects "
                "of their groups; give all of them."
            )
        family = family_of(self.predictor.model)
        _require(family, set(family.observed).intersection(KNOWN_NOISE), batch)
        return self.predictor.moments(family.eta_with_error(eta, batch))

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
    return replace(rows, known={**rows.known, **dict.fromkeys(names, np.empty(0))})


def rows_behind(post: FittedDraws, new: AlignedRows) -> int:
    """Return how many evaluations of rows each draw costs: of new ones, and for known effects."""
    model = post.fitted_model()
    names = group_names(model)
    some_new = any(name in new.known or name not in new.fields for name in names)
    evaluations = len(new) * (ROWS_PER_AVERAGE if some_new else 1)
    if model.integrated_group is None or post.rows is None:
        return evaluations
    index = GroupIndex.of(post.rows, model.integrated_group)
    known = np.isin(index.values, new.groups_of(index.field, new=False))
    return evaluations + STEPS * int(index.size[known].sum())


def known_effects(
    post: FittedDraws, draws: dict[str, np.ndarray], new: AlignedRows
) -> tuple[RowEffects, ...]:
    """Draw the integrated effects of the groups that rows share with the rows of the fit."""
    model = post.fitted_model()
    group = model.integrated_group
    if group is None:
        return ()
    wanted = new.groups_of(group, new=False)
    if not len(wanted):
        return ()
    rows = post.held_rows()
    if rows is None:
        raise SettingError(
            "predictions for known groups need the rows of the fit, since effects were "
            "integrated out, and this posterior does not hold them; load it with its rows, by "
            "Posterior.load(path, data=...), or predict for new groups with "
            f"{argument('groups', 'new')}."
        )
    groups = groups_of(rows, group)
    unknown = np.setdiff1d(wanted, groups.index.values)
    if len(unknown):
        raise DataError(
            f"there is no '{group}' {unknown[0]:g} among the rows of the fit; leave such "
            f"rows out, or predict them with {argument('groups', 'new')}."
        )
    ids = np.searchsorted(groups.index.values, wanted)
    drawn = np.concatenate(list(effect_draws(post, groups, ids, draws)), axis=1)
    return (RowEffects(0, *model.effect_scales[0], wanted, drawn),)


def new_effects(
    predictor: ModelPredictor,
    draws: dict[str, np.ndarray],
    rows: AlignedRows,
    seed: int,
) -> tuple[RowEffects, ...]:
    """Draw the effects of the new groups that rows name, each shared by the rows of its group."""
    terms = predictor.model.effect_scales
    found = {name: rows.groups_of(name, new=True) for name, *_ in terms}
    if not any(map(len, found.values())):
        return ()
    effects, rng = [], generator(seed, Stream.NEW_GROUPS)
    for k, factor in enumerate(predictor.effect_factors(draws)):
        name, columns, _ = terms[k]
        if len(found[name]):
            v = rng.standard_normal((len(factor), len(found[name]), len(columns)))
            drawn = np.einsum("sab,sgb->sga", factor, v)
            effects.append(RowEffects(k, *terms[k], found[name], drawn))
    return tuple(effects)


def predictive(
    post: FittedDraws,
    data: RowsLike | None = None,
    draws: Count = 100,
    random_seed: int = 0,
    newlevels: NewLevels = "refuse",
    groups: Groups | None = None,
    prior: bool = False,
    out: str | os.PathLike[str] | None = None,
) -> np.ndarray:
    """Draw outcomes from the posterior predictive distribution.

    While `predict` gives the expected outcome and its uncertainty, this draws outcomes
    themselves, including noise. Rows are visited a chunk at a time.

    Parameters
    ----------
    data
        Rows or a table, as `predict` takes them; the rows of the fit by default.
    draws
        Outcomes per row, each from a different posterior draw.
    random_seed
        Seed of the outcomes.
    newlevels, groups
        As in `predict`. All rows of a new group share its effects; where the rows do not name a
        factor, every row is in a different group.
    prior
        Whether to draw the parameters from their prior instead (prior predictive).
    out
        A .npy file to write the outcomes to and map into memory, if they exceed memory.

    Returns
    -------
    ndarray
        Outcomes (draws, rows), coded as in the rows.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> draws = {"beta": np.full((1, 100, 1), 2.0), "intercept": np.zeros((1, 100))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=3))
    >>> post.predictor = mo.models.over_draws.ModelPredictor(mo.models.Logistic())
    >>> post.predictive({"x": [[-9.0], [0.0], [9.0]]}, draws=50).mean(axis=0).round(1)
    array([0. , 0.5, 1. ])
    """
    if out is not None:
        require_writable(out)
    new = post.rows_or_own(data, False, newlevels, groups)
    source = outcome_draws(post, new, draws, random_seed, groups, prior)
    return outcome_array(source, random_seed, out)


def outcome_draws(
    post: FittedDraws,
    rows: AlignedRows,
    draws: int,
    seed: int,
    groups: Groups | None,
    prior: bool,
    averaged: bool = False,
) -> OutcomeDraws:
    """Return rows and what to draw their outcomes from.

    The draws are equally weighted, except that signs are kept if outcomes will be `averaged`.
    """
    predictor = post.model_predictor()
    model = predictor.model
    rows = with_groups(rows, model, groups)
    if prior:
        shapes = {name: x.shape[2:] for name, x in post.draws.items()}
        parameters = prior_draws(model, shapes, draws, generator(seed, Stream.PRIOR_DRAWS))
        return prior_outcome_draws(predictor, parameters, rows, seed)
    if averaged and post.weights is not None and (post.weights < 0).any():
        subset, weights = thinned(post, draws, "a check")
    else:
        subset = equal_draws(post, draws, seed, "drawing outcomes")
        weights = np.ones((1, length_of(subset)))
    return OutcomeDraws.of(post, rows, subset, weights, seed)


def prior_outcome_draws(
    predictor: ModelPredictor, draws: dict[str, np.ndarray], rows: AlignedRows, seed: int
) -> OutcomeDraws:
    """Return rows and what to draw their outcomes from with draws of the prior.

    Before the data every group is like a new one; explicit effects are among the draws.
    """
    if predictor.model.integrated_group is not None:
        rows = all_new(rows, (predictor.model.integrated_group,))
    effects = new_effects(predictor, draws, rows, seed)
    return OutcomeDraws(rows, draws, predictor, np.ones((1, length_of(draws))), effects)


def outcomes(source: OutcomeDraws, seed: int) -> Iterator[tuple[Batch, np.ndarray]]:
    """Yield batches of rows in order, each with an outcome per draw and row (draws, rows)."""
    model = source.predictor.model
    rng = generator(seed, Stream.OUTCOMES)
    if not model.row_model.has_predictors:
        if model.simulates or type(model).decide is BaseModel.decide:
            return _simulated(source, rng)
        return source.pieces(lambda batch: _draw_classes(rng, source, batch))
    family = family_of(model)
    _require(family, family.drawn_given, source.rows.fields)

    def draw(batch: Batch) -> np.ndarray:
        eta, sd = source.predictors(batch)
        if sd.any():  # of groups that the rows do not name: every row is in another one
            along = list(source.predictor.model.predictors_of_groups)
            eta[..., along] += sd * rng.standard_normal(sd.shape)
        return family.draw_rows(rng, eta, batch)

    return source.pieces(draw, source.weights.size * (1 + len(family.extras)))


def _require(family: LinearPredictorModel, names: Iterable[str], fields: Collection[str]) -> None:
    if missing := set(names).difference(fields):
        raise DataError(
            f"outcomes of {type(family).__name__} depend on the field {min(missing)!r}, which "
            "these rows lack; add it, or the columns from which the formula computes it."
        )


def _simulated(
    source: OutcomeDraws, rng: np.random.Generator
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Yield outcomes of a custom model: each draw has a random key, split into one per row."""
    words = rng.integers(0, 2**32, size=(source.weights.size, 2), dtype=np.uint32)
    first = 0

    def draw(batch: Batch) -> np.ndarray:
        nonlocal first
        drawn = source.predictor.simulated(source.draws, batch, words, first)
        first += drawn.shape[1]
        return drawn

    return source.pieces(draw)


def _draw_classes(rng: np.random.Generator, source: OutcomeDraws, batch: Batch) -> np.ndarray:
    """Draw classes according to their probabilities."""
    expected = source.predictor(source.draws, batch)
    uniform = rng.random(expected.shape[:2])
    if expected.ndim == 2:
        return 1.0 * (uniform < expected)
    return 1.0 * (uniform[..., None] > np.cumsum(expected, axis=-1)[..., :-1]).sum(axis=-1)


def outcome_array(
    source: OutcomeDraws, seed: int, out: str | os.PathLike[str] | None = None
) -> np.ndarray:
    """Return all outcomes (draws, rows, ...), in memory or mapped to a .npy file."""
    filled, first = None, 0
    for _, drawn in outcomes(source, seed):
        if filled is None:
            filled = _array((source.weights.size, len(source.rows), *drawn.shape[2:]), out)
        filled[:, first : first + drawn.shape[1]] = drawn
        first += drawn.shape[1]
    assert filled is not None, "there is at least one row"
    return filled


def _array(shape: tuple[int, ...], out: str | os.PathLike[str] | None) -> np.ndarray:
    gigabytes = 8 * prod(shape) / 2**30
    if out is None and gigabytes > MOST_GIGABYTES:
        raise SettingError(
            f"{shape[0]:,} outcomes of {shape[1]:,} rows would take {gigabytes:,.0f} GB; draw "
            "fewer, or write them to a file with out='outcomes.npy'."
        )
    if out is None:
        return np.empty(shape)
    with within_disk(out):
        mapped: np.ndarray = np.lib.format.open_memmap(out, "w+", np.float64, shape)
        if hasattr(os, "posix_fallocate"):  # a map that finds the disk full ends the process
            with open(out, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(out))
    return mapped


def density_pieces(source: OutcomeDraws) -> Iterator[np.ndarray]:
    """Yield the log-densities of observed outcomes (draws, rows), some rows at a time."""
    for _, (_, density) in source.pieces(source.outcome):
        yield density
