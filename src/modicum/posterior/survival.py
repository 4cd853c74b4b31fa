"""Survival curves: those of a posterior, averaged over rows, beside the Kaplan-Meier estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.posterior.draws import check_interval, evenly_spaced, thinned
from modicum.posterior.fit_rows import AlignedRows
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.predict import (
    OutcomeDraws,
    in_pieces,
    known_effects,
    survival_predictor,
)
from modicum.posterior.weighted import are_equal, weighted_mean, weighted_quantile

if TYPE_CHECKING:
    import pandas as pd

DRAWS, TIMES = 200, 60  # by default
MOST_ROWS = 2_000  # over which a curve is averaged, evenly spaced among all


def survival_table(
    post: FittedDraws, times: np.ndarray | None = None, draws: int = DRAWS, prob: float = 0.9
) -> pd.DataFrame:
    """Return the chance that an outcome of a row of the fit is larger than each time.

    The table has, for each time, its posterior mean and interval, averaged over the rows (at most
    `MOST_ROWS`), and the Kaplan-Meier estimate from all outcomes, which may be right-censored.
    """
    import pandas as pd

    check_interval(prob)
    rows = post.rows_or_own(None, True, "refuse")
    observed = post.fitted_model().row_model.observed
    if set(observed) - {"event", "cens"}:
        raise SettingError(
            "a Kaplan-Meier curve is that of outcomes observed completely or right-censored, and "
            f"these rows also have {', '.join(sorted(set(observed) - {'event', 'cens'}))}; predict "
            "chances with post.predict(rows, kind='survival', times=...)."
        )
    fields = rows.rows.slice(0, len(rows.rows))
    y = np.asarray(fields["y"], float)
    censored = np.zeros(len(y))
    censored = 1 - fields["event"] if "event" in observed else censored
    censored = np.asarray(fields["cens"] if "cens" in observed else censored)
    if np.any((censored != 0) & (censored != 1)):
        raise DataError(
            "some outcomes are censored from the left or in intervals, and a Kaplan-Meier curve is "
            "that of right-censored ones: predict chances with post.predict(rows, kind='survival', "
            "times=...)."
        )
    at = np.linspace(0, y.max(), TIMES) if times is None else np.asarray(times, float)
    weight = np.asarray(fields.get("weight", np.ones(len(y))), float)
    some = evenly_spaced(len(y), MOST_ROWS)
    averaged = AlignedRows(rows.rows.subset(some), tuple(rows.rows.fields))
    predictor = survival_predictor(post, "survival", at.tolist())
    subset, weights = thinned(post, min(draws, post.chains * post.num_draws))
    source = OutcomeDraws(subset, predictor, known_effects(post, subset, averaged))
    total, first = np.zeros((weights.size, len(at))), 0
    for _, (chances, _) in in_pieces(averaged, weights.size * len(at), source.expected):
        share = weight[some][first : first + chances.shape[1]] / weight[some].sum()
        total, first = total + np.einsum("snt,n->st", chances, share), first + chances.shape[1]
    unequal = None if are_equal(weights) else weights
    ends = [(1 - prob) / 2, (1 + prob) / 2]
    lower, upper = weighted_quantile(total[None], unequal, ends)
    columns = {
        "mean": weighted_mean(total[None], unequal),
        "lower": lower,
        "upper": upper,
        "kaplan_meier": kaplan_meier(y, censored == 0, weight, at),
    }
    return pd.DataFrame(columns, index=pd.Index(at, name="time"))


def kaplan_meier(
    y: np.ndarray, is_event: np.ndarray, weight: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """Return the Kaplan-Meier estimate of the chance to survive beyond each time.

    Examples
    --------
    >>> y, ones = np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4)
    >>> kaplan_meier(y, np.array([True, False, True, True]), ones, np.array([0.5, 1.0, 3.5]))
    array([1.   , 0.75 , 0.375])
    """
    moments, place = np.unique(y, return_inverse=True)
    died = np.bincount(place, weight * is_event, len(moments))
    left = np.cumsum(np.bincount(place, weight, len(moments))[::-1])[::-1]  # at risk
    curve = np.r_[1.0, np.cumprod(1 - died / left)]
    return np.asarray(curve[np.searchsorted(moments, times, side="right")])
