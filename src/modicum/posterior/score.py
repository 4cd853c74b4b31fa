"""How good predictions are: accuracy, log predictive density, and the variance they explain.

Bayesian R-squared is the share of the outcome's variance that a model explains, for each draw. With
m_i and v_i the mean and variance of outcome i given a draw, over the rows (or new ones),

    R2 = V(m) / (V(m) + mean(v))                    (Gelman, Goodrich, Gabry and Vehtari 2019)

where V is the variance between rows. It lies between 0 and 1, whatever the outcomes were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from modicum.arguments import names_checked
from modicum.errors import DataError, SettingError, warn_of, whole_number
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import BaseModel
from modicum.models.outcome_checks import class_fault
from modicum.posterior.fit_rows import Batch, RowsLike, aligned
from modicum.posterior.fitted import FittedDraws, affordable, check_interval
from modicum.posterior.marginal import Average
from modicum.posterior.outcomes import OutcomeDraws, in_pieces, rows_behind
from modicum.posterior.population import random_rows
from modicum.posterior.summary import interval_table
from modicum.posterior.weighted import normalised, weighted_mcse, weighted_mean
from modicum.rows.formula import NewLevels

if TYPE_CHECKING:
    import pandas as pd


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
    for piece, (expected, density) in in_pieces(new, weights.size, drawn.outcome):
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
    bad, support = np.zeros(len(y), bool), ""
    if expected is not None and expected.ndim == 3 and model.decide(expected) is not None:
        bad, support = class_fault(y, expected.shape[2])
    elif isinstance(model, LinearPredictorModel):
        bad, support = model.outcome_fault(y)
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(
            f"the outcome is {y[at]:g} in row {first + at}, but the model of this posterior needs "
            f"{support}."
        )
    if isinstance(model, LinearPredictorModel):
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


@names_checked
def bayes_R2(  # noqa: N802 - as brms and rstantools call it
    post: FittedDraws,
    data: RowsLike | None = None,
    draws: int | None = None,
    prob: float = 0.9,
    subsample: int = 20_000,
    random_seed: int = 0,
) -> pd.DataFrame:
    """Tabulate the share of the outcome's variance that the model explains.

    For each draw, it is the variance of the expected outcomes over the rows, divided by itself
    plus the average variance of an outcome about its expectation. The effects of known groups are
    part of what is explained.

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
    >>> float(post.bayes_R2().loc["R2", "mean"])  # 4 / (4 + 1)
    0.8
    """
    check_interval(prob)
    whole_number("subsample", subsample)
    rows = post.rows_or_own(data, False, "refuse")
    if not len(rows):
        raise DataError("there are no rows to explain: at least one is needed.")
    ids = np.sort(random_rows(len(rows), subsample, random_seed))
    sample = replace(rows, rows=rows.rows.subset(ids))
    drawn = OutcomeDraws.affordable(post, sample, draws, purpose="R-squared")
    weights, means, noise, counts = drawn.weights, [], [], []
    for batch, (mean, variance) in in_pieces(sample, weights.size, drawn.moments):
        means.append(mean)
        noise.append(variance)
        counts.append(np.asarray(batch.get("weight", np.ones(mean.shape[1])), float))
    share = np.concatenate(counts) / sum(part.sum() for part in counts)
    mean, variance = np.concatenate(means, axis=1), np.concatenate(noise, axis=1)
    found = _explained(mean, variance, share, weights)
    columns = found.interval(weights, len(sample) / len(rows), prob)
    return interval_table(columns, [("R2",)], [""], prob, draws=weights.size, rows=len(sample))


def _explained(
    mean: np.ndarray, noise: np.ndarray, share: np.ndarray, weights: np.ndarray
) -> Average:
    """Return R-squared of each draw, and the influence of each row on it.

    `mean` and `noise` are (draws, rows), `share` is that of each row among all.
    """
    between = (mean - (mean @ share)[:, None]) ** 2
    explained, rest = between @ share, noise @ share
    whole = explained + rest
    # a row's (m - mean)^2 and v enter the two averages, and R2 is a function of these
    influence = (rest / whole**2)[:, None] * (between - explained[:, None])
    influence -= (explained / whole**2)[:, None] * (noise - rest[:, None])
    return Average(explained / whole, share * weighted_mean(influence[None], weights))
