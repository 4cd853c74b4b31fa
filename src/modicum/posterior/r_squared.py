"""Bayesian R-squared: the share of the outcome's variance that a model explains, for each draw.

With m_i and v_i the mean and variance of outcome i given a draw, over the rows (or new ones),

    R2 = V(m) / (V(m) + mean(v))                    (Gelman, Goodrich, Gabry and Vehtari 2019)

where V is the variance between rows. It lies between 0 and 1, whatever the outcomes were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from modicum.arguments import names_checked
from modicum.errors import DataError, whole_number
from modicum.posterior.draws import affordable, averaged_draws, check_interval
from modicum.posterior.fit_rows import Batch, RowsLike
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.marginal import Average
from modicum.posterior.population import random_rows
from modicum.posterior.predict import OutcomeDraws, in_pieces, known_effects, rows_behind
from modicum.posterior.summary import interval_columns
from modicum.posterior.weighted import weighted_mean

if TYPE_CHECKING:
    import pandas as pd


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
    import pandas as pd

    check_interval(prob)
    whole_number("subsample", subsample)
    rows = post.rows_or_own(data, False, "refuse")
    if not len(rows):
        raise DataError("there are no rows to explain: at least one is needed.")
    ids = np.sort(random_rows(len(rows), subsample, random_seed))
    sample = replace(rows, rows=rows.rows.subset(ids))
    predictor = post.model_predictor()
    number = affordable(post, rows_behind(post, sample), draws)
    subset, weights = averaged_draws(post, number, "R-squared")
    drawn = OutcomeDraws(subset, predictor, known_effects(post, subset, sample))
    means, noise, counts = [], [], []

    def moments(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        eta, unnamed = drawn.predictors(batch)
        if unnamed.any():
            raise DataError(
                "the rows do not name every group, but what is explained depends on the effects "
                "of their groups; give all of them."
            )
        return predictor.moments(eta)

    for batch, (mean, variance) in in_pieces(sample, weights.size, moments):
        means.append(mean)
        noise.append(variance)
        counts.append(np.asarray(batch.get("weight", np.ones(mean.shape[1])), float))
    share = np.concatenate(counts) / sum(part.sum() for part in counts)
    mean, variance = np.concatenate(means, axis=1), np.concatenate(noise, axis=1)
    found = _explained(mean, variance, share, weights)
    columns = found.interval(weights[None], len(sample) / len(rows), prob)
    table = pd.DataFrame([columns], index=["R2"], columns=interval_columns(prob))
    table.attrs |= {"draws": weights.size, "rows": len(sample)}
    return table


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
    return Average(explained / whole, share * weighted_mean(influence[None], weights[None]))
