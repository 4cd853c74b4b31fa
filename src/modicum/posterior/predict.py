"""Expected outcomes of rows, or chances of survival, and how good these predictions are.

Bayesian R-squared is the share of the outcome's variance that a model explains, for each draw. With
m_i and v_i the mean and variance of outcome i given a draw, over the rows (or new ones),

    R2 = V(m) / (V(m) + mean(v))                    (Gelman, Goodrich, Gabry and Vehtari 2019)

where V is the variance between rows. It lies between 0 and 1, whatever the outcomes were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import ndtri

from modicum.arguments import Count, Share
from modicum.diagnostics.weighted import (
    ends_of,
    normalised,
    weighted_mcse,
    weighted_mean,
    weighted_quantile,
)
from modicum.errors import DataError, SettingError, is_number, warn_of
from modicum.libraries import pandas as pd
from modicum.models import BaseModel
from modicum.models.observed import classes_to
from modicum.models.over_draws import ModelPredictor
from modicum.posterior.fit_rows import Batch, Groups, RowsLike, aligned
from modicum.posterior.fitted import FittedDraws, affordable
from modicum.posterior.marginal import Average
from modicum.posterior.outcomes import OutcomeDraws, rows_behind, with_groups
from modicum.posterior.population import row_sample
from modicum.posterior.summary import interval_table
from modicum.random import Stream, generator
from modicum.rows.formula import NewLevels
from modicum.rows.sources import is_table, library

NewGroups: TypeAlias = Literal["one", "average"]
PredictionKind: TypeAlias = Literal["mean", "survival"]


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
        return pd.DataFrame(self.columns(), index=self.index)


def predict(
    post: FittedDraws,
    rows: RowsLike,
    draws: int | None = None,
    prob: Share = 0.9,
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
    drawn = to_predict(post, rows, draws, newlevels, groups, newgroups)
    if predictor is not None:
        drawn = drawn._replace(predictor=predictor)
    return mixed_prediction([drawn], [1.0], prob, rows, names, quantiles)


def to_predict(
    post: FittedDraws,
    rows: RowsLike,
    draws: int | None = None,
    newlevels: NewLevels = "refuse",
    groups: Groups | None = None,
    newgroups: NewGroups | None = None,
) -> OutcomeDraws:
    """Align rows with those of the fit, and choose draws, with scores if one group is meant."""
    model = post.fitted_model()
    new = with_groups(aligned(rows, post.fit_rows, False, newlevels, groups), model, groups)
    drawn = OutcomeDraws.affordable(post, new, draws)
    if newgroups == "average" or (newgroups is None and groups is None):
        return drawn
    number = drawn.weights.size
    return drawn._replace(scores=_normal_scores(number, len(model.predictors_of_groups)))


def mixed_prediction(
    fits: Sequence[OutcomeDraws],
    shares: Sequence[float],
    prob: float,
    rows: RowsLike,
    classes: tuple[str, ...],
    quantiles: Sequence[float] | float = (),
) -> Prediction:
    """Predict each row by a mixture of fits with these shares: mean, interval and error."""
    probabilities = np.atleast_1d(quantiles).tolist()
    if not all(is_number(p) and 0 <= p <= 1 for p in probabilities):
        raise SettingError(f"quantiles must be probabilities from 0 to 1, not {quantiles!r}.")
    at, weights = [*ends_of(prob), *probabilities], [fit.weights for fit in fits]
    total, parts = sum(each.size for each in weights), []
    mixed = [share * normalised(w) for share, w in zip(shares, weights, strict=True)]
    joined = weights[0] if len(fits) == 1 else np.concatenate(mixed, axis=1)
    for pieces in zip(*(fit.pieces(fit.expected, total) for fit in fits), strict=True):
        of_fits, of_one = zip(*(expected for _, expected in pieces), strict=True)
        if len({each.shape[1:] for each in of_fits}) > 1:
            raise SettingError("the models predict different classes: average those of one kind.")
        averages, singles = np.concatenate(of_fits), np.concatenate(of_one)
        each = [weighted_mcse(a[None], w) for a, w in zip(of_fits, weights, strict=True)]
        error = np.sqrt(sum((s * e) ** 2 for s, e in zip(shares, each, strict=True)))
        ends = weighted_quantile(singles[None], joined, at)
        parts.append(np.stack([weighted_mean(averages[None], joined), error, *ends]))
    mean, error, lower, upper, *asked = np.concatenate(parts, axis=1)
    check_finite(mean, joined)
    is_frame = library(rows) == "pandas" and is_table(rows)
    index = getattr(rows, "index", None) if is_frame else None
    by_probability = dict(zip(probabilities, asked, strict=True))
    return Prediction(mean, lower, upper, prob, total, classes, index, error, by_probability)


def check_finite(mean: np.ndarray, weights: np.ndarray) -> None:
    """Warn if predictions are not finite, because of the draws, their weights or the rows."""
    bad = ~np.isfinite(mean).all(axis=tuple(range(1, mean.ndim)))
    if not bad.any():
        return
    reason = f"the first is row {int(np.argmax(bad))}"
    remedy = "look for draws that are not finite and for rows far from those of the fit"
    if not weights.sum() > 0:
        reason = "the weights of the draws used do not add up to more than 0"
        remedy = "predict with more draws, or sample again with signs that cancel less"
    warn_of(
        "not-finite",
        f"the predictions of {int(bad.sum()):,} of {len(bad):,} rows are not finite ({reason})",
        remedy,
        rows=int(bad.sum()),
    )


def _normal_scores(number: int, predictors: int) -> np.ndarray:
    """Return standard normal quantiles in random order, with less noise than random draws.

    The shape is (number, predictors).
    """
    rng = generator(0, Stream.NEW_GROUPS)
    orders = np.stack([rng.permutation(number) for _ in range(predictors)], axis=1)
    return np.asarray(ndtri((orders + 0.5) / number))


def survival_predictor(
    post: FittedDraws, kind: str, times: Sequence[float] | float | None
) -> ModelPredictor:
    """Return a predictor of the chances that outcomes are larger than these times."""
    if kind != "survival":
        raise SettingError("times are those of 'survival': add kind='survival', or leave them out.")
    values = np.atleast_1d(np.asarray([] if times is None else times, float))
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise SettingError(
            "chances of survival are those to be beyond some times: give them, as in "
            "times=[30, 90, 365]."
        )
    predictor = post.model_predictor()
    family = predictor.model.row_model
    of_trials = "trials" in getattr(family, "outcome_fields", ())
    if type(family).log_tails is BaseModel.log_tails or of_trials:
        raise SettingError(
            f"{type(family).__name__} has no distribution function of times: use kind='mean'."
        )
    return replace(predictor, times=tuple(map(float, values)))


@dataclass(frozen=True, eq=False)
class Score:
    """How well a posterior predicts outcomes, for the average prediction and for single draws.

    The Bayesian prediction averages the predictions of all draws, and is scored as a whole. The
    average score of single draws shows the worth of one draw; its log density is never better.

    Parameters
    ----------
    accuracy, log_density
        Scores of the average prediction over draws and chains: the share of rows whose most
        probable class is the observed one (``nan`` if outcomes are not classes), and the mean over
        rows of the log predictive density.
    single_accuracy, single_log_density
        Scores of single draws, averaged over all draws.
    accuracy_by_chain, log_density_by_chain
        Scores of single draws, averaged over the draws of each chain.
    rows, draws
        Rows scored, and posterior draws used.
    mcse_log_density
        Monte Carlo error of `log_density`, from the number of draws used.
    """

    accuracy: float
    log_density: float
    single_accuracy: float
    single_log_density: float
    accuracy_by_chain: np.ndarray
    log_density_by_chain: np.ndarray
    rows: int
    draws: int
    mcse_log_density: float = np.nan

    def __repr__(self) -> str:
        def text(accuracy: float, density: float) -> str:
            share = "" if np.isnan(accuracy) else f"accuracy {accuracy:.4f}, "
            return f"{share}log density {density:.4f}"

        return (
            f"<Score of {self.rows:,} rows: {text(self.accuracy, self.log_density)}; one draw by "
            f"itself: {text(self.single_accuracy, self.single_log_density)} ({self.draws} draws)>"
        )


def score(
    post: FittedDraws, rows: RowsLike, draws: int | None = None, newlevels: NewLevels = "refuse"
) -> Score:
    """Score predictions against observed outcomes: accuracy and log predictive density.

    Both are given for the average prediction of all draws, and for single draws, averaged by
    chain. Rows are weighted by their `weight`, if they have one, and draws by their signs or
    weights. The groups of a row must be known: their effects are part of its prediction.

    Parameters
    ----------
    rows
        Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
        or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
        were, with columns in any order and extra columns ignored; or a dict of arrays such
        as ``{"x": X, "y": y}`` with the columns in the fit's order.
    draws
        Posterior draws to use, evenly spaced: equally many of each chain, and at least one.
        By default as many as in `predict`.
    newlevels
        As in `predict`.
    """
    predictor = post.model_predictor()
    new = aligned(rows, post.fit_rows, True, newlevels)
    field = predictor.model.outcome_field
    if field not in new.fields:
        raise SettingError(f"scoring needs outcomes: give rows with the field {field!r}.")
    chains = post.chains
    number = affordable(post, rows_behind(post, new), draws)
    per_chain = min(post.num_draws, max(1, number // chains))
    drawn = OutcomeDraws.affordable(post, new, chains * per_chain)
    weights = drawn.weights.reshape(chains, per_chain)
    share = normalised(weights).reshape(-1)
    together, alone = np.zeros(2), np.zeros((3, weights.size))
    mass, number, cancelled = 0.0, 0, 0
    for piece, (expected, density) in drawn.pieces(drawn.outcome):
        y = np.asarray(piece[field])
        _check_outcomes(predictor.model, piece, expected, number)
        row_mass = np.asarray(piece.get("weight", np.ones(len(y))), dtype=float)
        density = np.where(row_mass > 0, density, 0.0)  # a weight of 0 adds 0, not 0 times inf
        mean, joint = log_mean(density, share)
        with np.errstate(invalid="ignore", over="ignore"):
            ratio = np.exp(density - joint)
        right: np.ndarray = np.full(y.shape, np.nan)
        right_together = right
        bets = None if expected is None else predictor.model.decide(expected)
        if expected is not None and bets is not None:
            bet = predictor.model.decide(np.tensordot(share, expected, axes=1))
            right, right_together = bets == y, np.asarray(bet == y)
        together += [right_together @ row_mass, joint @ row_mass]
        alone += np.stack([part @ row_mass for part in np.broadcast_arrays(right, density, ratio)])
        mass, number = mass + row_mass.sum(), number + len(y)
        cancelled += int(np.sum(mean < 0))
    _warn(cancelled, number, together[1], alone[1])
    single, by_chain = _average(alone[0] / mass, weights)
    single_density, density_by_chain = _average(alone[1] / mass, weights)
    # a log of averages has the error of the average ratio of what is averaged to it
    error = float(weighted_mcse(alone[2].reshape(weights.shape) / mass, weights))
    accuracy, log_density = map(float, together / mass)
    averages = (accuracy, log_density, single, single_density)
    return Score(*averages, by_chain, density_by_chain, number, weights.size, error)


def _check_outcomes(
    model: BaseModel, piece: Batch, expected: np.ndarray | None, first: int
) -> None:
    """Refuse outcomes the model gives no density to, naming the first such row."""
    y = np.asarray(piece[model.outcome_field])
    support = model.support
    if expected is not None and expected.ndim == 3 and model.decide(expected) is not None:
        support = classes_to(expected.shape[2])
    bad = support.excludes(y)
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(
            f"the outcome is {y[at]:g} in row {first + at}, but the model of this posterior needs "
            f"{support.words}."
        )
    model.check_fields(piece, first)


def log_mean(density: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted mean density of each row, up to a factor, and the log of the mean."""
    top = density.max(axis=0)
    top = np.where(np.isfinite(top), top, 0.0)
    mean = share @ np.exp(density - top)
    with np.errstate(divide="ignore", invalid="ignore"):
        return mean, np.asarray(np.log(mean) + top)


def _warn(cancelled: int, rows: int, density: float, densities: np.ndarray) -> None:
    """Warn if the average is NaN; minus infinity means that an outcome was ruled out."""
    if cancelled:
        warn_of(
            "signs-cancel",
            f"the signs of the draws cancel: {cancelled} of {rows} rows have a predictive "
            "density below zero",
            "score with more draws",
            rows=cancelled,
        )
    elif np.isnan(density) or np.isnan(densities).any():
        bad = int(np.isnan(densities).sum())
        reason = (
            f"{bad} of {densities.size} draws give NaN"
            if bad
            else "the weights of the draws do not add up to more than 0"
        )
        warn_of(
            "not-finite",
            f"the log predictive density is not a number ({reason})",
            "look for draws that are not finite, and for signs that cancel",
            draws=bad,
        )


def _average(by_draw: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """Average the scores of single draws, over all draws and by chain."""
    scores = by_draw.reshape(weights.shape)
    by_chain = [weighted_mean(x[None], w[None]) for x, w in zip(scores, weights, strict=True)]
    return float(weighted_mean(scores, weights)), np.array(by_chain)


def bayes_R2(  # noqa: N802 - as brms and rstantools call it
    post: FittedDraws,
    data: RowsLike | None = None,
    draws: int | None = None,
    prob: Share = 0.9,
    subsample: Count = 20_000,
    random_seed: int = 0,
) -> pd.DataFrame:
    """Tabulate the share of the outcome's variance that the model explains.

    For each draw, it is the variance of the expected outcomes over the rows, divided by itself
    plus the average variance of an outcome about its expectation. The effects of known groups are
    part of what is explained. Rows count by their weights, if they have any.

    Parameters
    ----------
    data
        Rows or a table; the rows of the fit by default.
    draws
        Posterior draws to use, evenly spaced; by default as many as in `predict`.
    prob
        Posterior probability of the equal-tailed interval.
    subsample
        The most rows to use; if there are more, a random sample of them, whose error is part of
        `sd` and of the interval.
    random_seed
        Seed of the sample of rows.

    Returns
    -------
    DataFrame
        One line: `mean`, `sd`, interval and `mcse_mean`.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> x = np.tile([[-1.0], [1.0]], (50, 1))
    >>> rows = mo.Rows(x=x, y=np.zeros(100), columns=["dose"])
    >>> draws = {"beta": np.full((1, 100, 1), 2.0), "intercept": np.zeros((1, 100))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=100), rows=rows)
    >>> post.predictor = mo.models.over_draws.ModelPredictor(mo.models.Gaussian(scale=1.0))
    >>> round(float(post.bayes_R2().loc["R2", "mean"]), 6)  # 4 / (4 + 1)
    0.8
    """
    rows = post.rows_or_own(data, False, "refuse", weights=True)
    sample = row_sample(rows, subsample, random_seed)
    drawn = OutcomeDraws.affordable(post, sample, draws, purpose="R-squared")
    weights = drawn.weights
    first, _ = drawn.moments(next(sample.chunks(1)))  # means about it lose no digits in squares

    def squares(batch: Batch) -> np.ndarray:
        means, noise = drawn.moments(batch)
        return np.stack([means - first, (means - first) ** 2, noise], axis=-1)

    mean, square, rest = Average.over(sample.chunks, weights, squares).by_draw.T[:, :, None]
    explained = square - mean**2
    whole = explained + rest

    def influence(batch: Batch) -> np.ndarray:
        apart, square, noise = np.moveaxis(squares(batch), -1, 0)
        between = square - 2 * mean * apart + mean**2
        return (rest * (between - explained) - explained * (noise - rest)) / whole**2

    # A row's (m - mean)^2 and v enter the two averages, and R2 is a function of these: what each
    # row adds to it is the error of a sample of rows.
    by_row = np.zeros(0)
    if len(sample) < len(rows):
        by_row = Average.over(sample.chunks, weights, influence).by_row
    found = Average((explained / whole)[:, 0], by_row)
    columns = found.interval(weights, len(sample) / len(rows), prob)
    return interval_table(columns, [("R2",)], [""], prob, draws=weights.size, rows=len(sample))
