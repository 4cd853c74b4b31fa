"""Outcomes of rows, expected or drawn from the predictive distribution, a chunk at a time.

The groups of the rows may be known to the fit or new. Explicit effects are parameters. Integrated
ones are drawn from the rows of the fit, and those of new groups from the distribution of effects,
one vector per draw and group that all rows of the group share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from modicum.arguments import names_checked
from modicum.errors import (
    DataError,
    ModicumWarning,
    SettingError,
    argument,
    is_number,
    warn,
    whole_number,
)
from modicum.files import require_writable, within_disk
from modicum.models import BaseModel, LinearPredictorModel
from modicum.models.over_draws import ModelPredictor, length_of, prior_draws
from modicum.models.partial_outcomes import KNOWN_NOISE
from modicum.passes.integrated_groups import STEPS
from modicum.posterior.draws import (
    Draws,
    affordable,
    averaged_draws,
    check_interval,
    equal_places,
    require_finite,
    thinned,
)
from modicum.posterior.fit_rows import AlignedRows, Batch, Groups, RowsLike, aligned
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.group_effects import effect_draws, group_names, groups_of
from modicum.posterior.weighted import (
    are_equal,
    normalised,
    weighted_mcse,
    weighted_mean,
    weighted_quantile,
)
from modicum.random import Stream, generator
from modicum.rows.formula import NewLevels
from modicum.rows.grouped_rows import GroupIndex
from modicum.rows.sources import is_table, library

if TYPE_CHECKING:
    import pandas as pd

Evaluation: TypeAlias = Callable[[Batch], tuple[np.ndarray, np.ndarray]]
"""Maps a batch to expected outcomes (draws, rows, ...), for the mean and for the interval."""
Answer = TypeVar("Answer", bound=np.ndarray | tuple[np.ndarray | None, ...])
NewGroups: TypeAlias = Literal["one", "average"]
PredictionKind: TypeAlias = Literal["mean", "survival"]
ROWS_PER_AVERAGE = 7  # rows that cost as much as an average over new groups, by quadrature
MOST_GIGABYTES = 4.0  # of drawn outcomes held in memory
CHUNK_BYTES = 32 * 2**20  # for the outcomes of a chunk; sorting them needs a few times as much
FIRST_ROWS = 1024  # rows of the first piece, whose outcomes show how many numbers a row has


@dataclass(frozen=True, eq=False)
class Prediction:
    """The expected outcome of each row, with its posterior uncertainty.

    The interval is that of the expected outcome (a probability, a mean), not of a new
    observation.

    Parameters
    ----------
    mean, lower, upper
        Arrays with one entry (or one line of entries) per row.
    prob
        Posterior probability of the equal-tailed interval from `lower` to `upper`.
    draws
        Posterior draws used.
    classes
        Names of the classes whose probabilities are predicted; if empty, they are 0, 1, ...
    index
        Index of the pandas frame that was predicted, for `to_frame`.
    mcse_mean
        Monte Carlo error of each `mean`, from the number of draws used.
    quantiles
        Further quantiles of the expected outcome, by their probabilities.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> draws = {"beta": np.full((1, 9, 1), 2.0), "intercept": np.zeros((1, 9))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1))
    >>> model = mo.models.Gaussian(scale=1.0)
    >>> post.predictor = mo.models.over_draws.ModelPredictor(model)
    >>> post.predict({"x": np.array([[0.5], [1.0]])}).to_frame()
       mean  lower  upper
    0   1.0    1.0    1.0
    1   2.0    2.0    2.0
    """

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    prob: float
    draws: int
    classes: tuple[str, ...] = ()
    index: pd.Index | None = field(default=None, repr=False)
    mcse_mean: np.ndarray | None = None
    quantiles: dict[float, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.mean)

    def columns(self) -> dict[str, np.ndarray]:
        """Return mean, ends of the interval and quantiles ("2.5%"), of each class if several."""
        ends = {"mean": self.mean, "lower": self.lower, "upper": self.upper}
        ends |= {f"{100 * p:g}%": values for p, values in self.quantiles.items()}
        if self.mean.ndim == 1:
            return ends
        count = self.mean.shape[1]
        names = self.classes if len(self.classes) == count else tuple(map(str, range(count)))
        return {
            f"{end}[{name}]": values[:, k]
            for k, name in enumerate(names)
            for end, values in ends.items()
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame with one line per row, indexed like the frame that was predicted."""
        import pandas as pd

        return pd.DataFrame(self.columns(), index=self.index)


@names_checked
def predict(
    post: FittedDraws,
    rows: RowsLike,
    draws: int | None = None,
    prob: float = 0.9,
    newlevels: NewLevels = "refuse",
    groups: Groups | None = None,
    newgroups: NewGroups | None = None,
    kind: PredictionKind = "mean",
    times: Sequence[float] | float | None = None,
    quantiles: Sequence[float] | float = (),
) -> Prediction:
    """Predict the expected outcome of each row, with an interval of probability `prob`.

    Expected are outcomes that are neither censored nor truncated, also if those of the fit were.

    Rows are visited a chunk at a time, so that memory stays small however many there are.

    Parameters
    ----------
    rows
        Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
        or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
        were, with columns in any order and extra columns ignored; or a dict of arrays such
        as ``{"x": X}`` with the columns in the fit's order.
    draws
        Posterior draws to use, evenly spaced. By default all, or of many rows as many as take
        about 10^8 evaluations of a row, but at least 200; the result says how many they were,
        and the Monte Carlo error of its means.
    prob
        Posterior probability of the equal-tailed interval of the expected outcome.
    newlevels
        How to treat a level that the fit did not have, in a table given to a posterior of
        `mo.fit`: "refuse" it, or treat it as the "reference" level.
    groups
        For a model with groups: "known" uses the effects of the rows' own groups, which the fit
        must have had; "new" takes all groups as new; "any", for a table, is "known" for groups
        that the fit had and "new" for the others. By default groups must be known, and factors
        that the rows do not name are averaged over.
    newgroups
        What the interval of a new group is about: "one" such group, so that it includes the
        spread between groups, or the "average" over all of them. The mean is the same. By
        default "one" with groups="new" or "any", else "average".
    kind
        "mean" for expected outcomes, or "survival" for the chances that outcomes are larger than
        each of the `times`: the result then has a column per time.
    times
        Times, or other values of the outcome, for kind="survival".
    quantiles
        Probabilities of further quantiles of the expected outcome, such as [0.025, 0.5, 0.975].
    """
    predictor, names = None, post.class_names()
    if kind != "mean" or times is not None:
        predictor = survival_predictor(post, kind, times)
        names = tuple(f"{time:g}" for time in predictor.times or ())
    prepared = Prepared.of(post, rows, draws, newlevels, groups, newgroups, predictor)
    return mixed_prediction([prepared], [1.0], prob, rows, names, quantiles)


class Prepared(NamedTuple):
    """Rows as a fit reads them, what it expects of them, and the weights of its draws."""

    rows: AlignedRows
    evaluate: Evaluation
    weights: np.ndarray  # (1, draws)

    @classmethod
    def of(
        cls,
        post: FittedDraws,
        rows: RowsLike,
        draws: int | None,
        newlevels: NewLevels,
        groups: Groups | None,
        newgroups: NewGroups | None,
        given: ModelPredictor | None = None,
    ) -> Prepared:
        """Align rows with those of the fit, and choose draws."""
        if newgroups not in (None, "one", "average"):
            raise SettingError(f"newgroups must be 'one' or 'average', not {newgroups!r}.")
        predictor = given or post.restore_predictor() or post.model_predictor()
        new = aligned(rows, post.fit_rows, False, newlevels, groups)
        if isinstance(predictor, ModelPredictor):
            new = with_groups(new, predictor.model, groups)
            subset, weights = thinned(post, affordable(post, rows_behind(post, new), draws))
            drawn = OutcomeDraws(subset, predictor, known_effects(post, subset, new))
            one = newgroups == "one" or (newgroups is None and groups is not None)
            along = predictor.model.predictors_of_groups
            scores = normal_scores(weights.size, len(along)) if one else None
            return cls(new, partial(drawn.expected, scores=scores), weights)
        subset, weights = thinned(post, affordable(post, len(new), draws))

        def evaluate(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
            outcome = np.asarray(predictor(subset, batch), float)
            return outcome, outcome

        return cls(new, evaluate, weights)

    def pieces(self, draws: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield expected outcomes, in pieces such that those of `draws` draws fit in memory."""
        count = self.weights.size
        for piece, (average, single) in in_pieces(self.rows, draws, self.evaluate):
            if average.ndim < 2 or average.shape[:2] != (count, length_of(piece)):
                raise SettingError(
                    f"The predictor returned shape {average.shape} for {count} draws and "
                    f"{length_of(piece)} rows; it must return one value per draw and row."
                )
            yield average, single


def mixed_prediction(
    fits: Sequence[Prepared],
    shares: Sequence[float],
    prob: float,
    rows: RowsLike,
    classes: tuple[str, ...],
    quantiles: Sequence[float] | float = (),
) -> Prediction:
    """Predict each row by a mixture of fits with these shares: mean, interval and error."""
    check_interval(prob)
    probabilities = np.atleast_1d(quantiles).tolist()
    if not all(is_number(p) and 0 <= p <= 1 for p in probabilities):
        raise SettingError(f"quantiles must be probabilities from 0 to 1, not {quantiles!r}.")
    total, parts = sum(fit.weights.size for fit in fits), []
    at, weights = [(1 - prob) / 2, (1 + prob) / 2, *probabilities], [fit.weights for fit in fits]
    mixed = [share * normalised(w) for share, w in zip(shares, weights, strict=True)]
    joined = weights[0] if len(fits) == 1 else np.concatenate(mixed, axis=1)
    unequal = None if are_equal(joined) else joined
    for pieces in zip(*(fit.pieces(total) for fit in fits), strict=True):
        if len({average.shape[1:] for average, _ in pieces}) > 1:
            raise SettingError("the models predict different classes: average those of one kind.")
        averages, singles = (np.concatenate(each) for each in zip(*pieces, strict=True))
        each = [weighted_mcse(a[None], w) for (a, _), w in zip(pieces, weights, strict=True)]
        error = np.sqrt(sum((s * e) ** 2 for s, e in zip(shares, each, strict=True)))
        ends = weighted_quantile(singles[None], unequal, at)
        parts.append(np.stack([weighted_mean(averages[None], unequal), error, *ends]))
    mean, error, lower, upper, *asked = np.concatenate(parts, axis=1)
    _check_finite(mean, joined)
    is_frame = library(rows) == "pandas" and is_table(rows)
    index = getattr(rows, "index", None) if is_frame else None
    by_probability = dict(zip(probabilities, asked, strict=True))
    return Prediction(mean, lower, upper, prob, total, classes, index, error, by_probability)


def in_pieces(
    rows: AlignedRows, draws: int, evaluate: Callable[[Batch], Answer]
) -> Iterator[tuple[Batch, Answer]]:
    """Visit all rows in order, in pieces whose answers (draws, rows, ...) fit in memory."""
    most = max(1, CHUNK_BYTES // (8 * draws))
    step = min(most, FIRST_ROWS)
    for batch in rows.chunks(most):
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


def _check_finite(mean: np.ndarray, weights: np.ndarray) -> None:
    """Warn if predictions are not finite, because of the draws, their weights or the rows."""
    bad = ~np.isfinite(mean).all(axis=tuple(range(1, mean.ndim)))
    if not bad.any():
        return
    if not weights.sum() > 0:
        reason, remedy = (
            "the weights of the draws used do not add up to more than 0",
            ("predict with more draws, or sample again with signs that cancel less"),
        )
    else:
        reason, remedy = (
            f"the first is row {int(np.argmax(bad))}",
            ("look for draws that are not finite and for rows far from those of the fit"),
        )
    warn(
        ModicumWarning(
            "not-finite",
            f"the predictions of {int(bad.sum()):,} of {len(bad):,} rows are not finite ({reason})",
            remedy,
            rows=int(bad.sum()),
        ),
    )


def survival_predictor(
    post: FittedDraws, kind: str, times: Sequence[float] | float | None
) -> ModelPredictor:
    """Return a predictor of the chances that outcomes are larger than these times."""
    if kind != "survival":
        raise SettingError(
            f"kind must be 'mean' or 'survival', not {kind!r}; times are those of 'survival'."
        )
    values = np.atleast_1d(np.asarray([] if times is None else times, float))
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise SettingError(
            "chances of survival are those to be beyond some times: give them, as in "
            "times=[30, 90, 365]."
        )
    predictor = post.model_predictor()
    family = predictor.model.row_model
    if type(family).log_tails is BaseModel.log_tails:
        raise SettingError(
            f"{type(family).__name__} has no distribution function, so that there are no chances "
            "of survival; predict with kind='mean'."
        )
    return replace(predictor, times=tuple(map(float, values)))


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

    def expected(
        self, batch: Batch, scores: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return expected outcomes (draws, rows, ...), on average over new groups and in one.

        The effect of the one new group is the draw's normal score times its standard deviation;
        without scores, averages are returned twice.
        """
        if not self.predictor.model.effect_scales and self.predictor.times is None:
            outcome = np.asarray(self.predictor(self.draws, batch), float)
            return outcome, outcome
        eta, sd = self.predictors(batch)
        average = self.predictor.means(eta, sd)
        if scores is None or not sd.any():
            return average, average
        eta[..., list(self.predictor.model.predictors_of_groups)] += sd * scores[:, None]
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


def normal_scores(number: int, predictors: int) -> np.ndarray:
    """Return standard normal quantiles in random order, with less noise than random draws.

    The shape is (number, predictors).
    """
    from scipy.special import ndtri  # slow to import

    rng = generator(0, Stream.NEW_GROUPS)
    orders = np.stack([rng.permutation(number) for _ in range(predictors)], axis=1)
    return np.asarray(ndtri((orders + 0.5) / number))


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


def rows_behind(post: FittedDraws, new: AlignedRows) -> int:
    """Return how many evaluations of rows each draw costs: of new ones, and for known effects."""
    model = post.fitted_model()
    names = group_names(model)
    some_new = any(name in new.first_new or name not in new.fields for name in names)
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


@names_checked
def predictive(
    post: FittedDraws,
    data: RowsLike | None = None,
    draws: int = 100,
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
    source, new = outcome_draws(post, new, draws, random_seed, groups, prior)
    return outcome_array(source, new, random_seed, out)


def outcome_draws(
    post: FittedDraws,
    rows: AlignedRows,
    draws: int,
    seed: int,
    groups: Groups | None,
    prior: bool,
    averaged: bool = False,
) -> tuple[OutcomeDraws, AlignedRows]:
    """Return what to draw outcomes from, and the rows, marked where their groups are new.

    The draws are equally weighted, except that signs are kept if outcomes will be `averaged`.
    """
    whole_number("draws", draws)
    predictor = post.model_predictor()
    model = predictor.model
    rows = with_groups(rows, model, groups)
    if prior:
        shapes = {name: x.shape[2:] for name, x in post.draws.items()}
        parameters = prior_draws(model, shapes, draws, generator(seed, Stream.PRIOR_DRAWS))
        return prior_outcome_draws(predictor, parameters, rows, seed)
    signs = None
    if averaged and post.weights is not None and (post.weights < 0).any():
        subset, signs = averaged_draws(post, draws, "a check")
    else:
        subset = equal_draws(post, draws, seed, "drawing outcomes")
    known = known_effects(post, subset, rows)
    new = new_effects(predictor, subset, rows, seed)
    return OutcomeDraws(subset, predictor, (*known, *new), signs), rows


def prior_outcome_draws(
    predictor: ModelPredictor, draws: dict[str, np.ndarray], rows: AlignedRows, seed: int
) -> tuple[OutcomeDraws, AlignedRows]:
    """Return what to draw outcomes from with draws of the prior, and the rows.

    Before the data every group is like a new one; explicit effects are among the draws.
    """
    if predictor.model.integrated_group is not None:
        rows = all_new(rows, (predictor.model.integrated_group,))
    effects = new_effects(predictor, draws, rows, seed)
    return OutcomeDraws(draws, predictor, effects), rows


def equal_draws(source: Draws, number: int, seed: int, purpose: str) -> dict[str, np.ndarray]:
    """Return equally weighted draws: evenly spaced, or resampled if their weights differ."""
    require_finite(source.draws, purpose)
    total = source.chains * source.num_draws
    weights = source.weights.reshape(-1) if source.weights is not None else None
    at = equal_places(weights, total, number, seed, purpose)
    return {name: x.reshape(total, *x.shape[2:])[at] for name, x in source.draws.items()}


def outcomes(
    source: OutcomeDraws, rows: AlignedRows, seed: int
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Yield batches of rows in order, each with an outcome per draw and row (draws, rows)."""
    model = source.predictor.model
    family = model.row_model
    rng = generator(seed, Stream.OUTCOMES)
    if not isinstance(family, LinearPredictorModel):
        has_classes = type(model).decide is not BaseModel.decide
        if model.simulates or not has_classes:
            return _simulated(source, rows, rng)
        return in_pieces(rows, source.number, lambda batch: _draw_classes(rng, source, batch))
    _require_fields(family, rows)

    def draw(batch: Batch) -> np.ndarray:
        eta, sd = source.predictors(batch)
        if sd.any():  # of groups that the rows do not name: every row is in another one
            along = list(source.predictor.model.predictors_of_groups)
            eta[..., along] += sd * rng.standard_normal(sd.shape)
        return family.draw_rows(rng, eta, batch)

    return in_pieces(rows, source.number * (1 + len(family.extras)), draw)


def _simulated(
    source: OutcomeDraws, rows: AlignedRows, rng: np.random.Generator
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Yield outcomes of a custom model: each draw has a random key, split into one per row."""
    words = rng.integers(0, 2**32, size=(source.number, 2), dtype=np.uint32)
    first = 0

    def draw(batch: Batch) -> np.ndarray:
        nonlocal first
        drawn = source.predictor.simulated(source.draws, batch, words, first)
        first += drawn.shape[1]
        return drawn

    return in_pieces(rows, source.number, draw)


def _require_fields(family: LinearPredictorModel, rows: AlignedRows) -> None:
    """Refuse rows that lack a field outcomes depend on, such as the trials of a binomial."""
    errors = [name for name in KNOWN_NOISE if name in family.observed]
    for name in (*family.outcome_fields, *errors):
        if name != "y" and name not in rows.fields:
            raise DataError(
                f"outcomes of {type(family).__name__} depend on the field {name!r}, which these "
                "rows lack; add it."
            )


def _draw_classes(rng: np.random.Generator, source: OutcomeDraws, batch: Batch) -> np.ndarray:
    """Draw classes according to their probabilities."""
    expected = source.predictor(source.draws, batch)
    uniform = rng.random(expected.shape[:2])
    if expected.ndim == 2:
        return 1.0 * (uniform < expected)
    return 1.0 * (uniform[..., None] > np.cumsum(expected, axis=-1)[..., :-1]).sum(axis=-1)


def outcome_array(
    source: OutcomeDraws, rows: AlignedRows, seed: int, out: str | os.PathLike[str] | None
) -> np.ndarray:
    """Return all outcomes (draws, rows, ...), in memory or mapped to a .npy file."""
    filled, first = None, 0
    for _, drawn in outcomes(source, rows, seed):
        if filled is None:
            filled = _array((source.number, len(rows), *drawn.shape[2:]), out)
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


def density_array(
    predictor: ModelPredictor, draws: dict[str, np.ndarray], rows: AlignedRows
) -> np.ndarray:
    """Return the log-densities of observed outcomes, (draws, rows)."""
    number = len(next(iter(draws.values())))
    parts = in_pieces(rows, number, lambda batch: predictor.outcome(draws, batch)[1])
    return np.concatenate([part for _, part in parts], axis=1)


def density_pieces(source: OutcomeDraws, rows: AlignedRows) -> Iterator[np.ndarray]:
    """Yield the log-densities of observed outcomes (draws, rows), some rows at a time."""
    for _, (_, density) in in_pieces(rows, source.number, source.outcome):
        yield density
