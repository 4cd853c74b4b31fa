"""Intraclass correlations: the share of the variance that is between groups.

On the scale of the linear predictor, given the common columns, this is the variance of a group's
effects divided by the sum of the variances of all groups' effects and of a row's noise (the
"adjusted ICC" of Nakagawa, Johnson and Schielzeth 2017). If slopes vary by group, the variance of
their effects is averaged over the rows (Johnson 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import SettingError
from modicum.models import GroupTerm, IntegratedEffects, LinearPredictorModel
from modicum.models.families import (
    Binomial,
    Cloglog,
    Gaussian,
    Logistic,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Probit,
)
from modicum.models.groups.terms import effect_columns
from modicum.posterior.draws import Draws, check_interval
from modicum.posterior.effects import tabulated
from modicum.posterior.summary import percent
from modicum.rows import Rows

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 65_536
# Variance of the latent variable whose sign, or whose interval between cutpoints, is the outcome.
LATENT = {"logit": np.pi**2 / 3, "probit": 1.0, "cloglog": np.pi**2 / 6}


def intraclass(source: Draws, model: object, rows: Rows | None, prob: float) -> pd.DataFrame:
    """Tabulate intraclass correlations; see `Posterior.icc`."""
    import pandas as pd

    check_interval(prob)
    family = model.family if isinstance(model, IntegratedEffects) else model
    terms = list(family.group_terms) if isinstance(family, LinearPredictorModel) else []
    if isinstance(model, IntegratedEffects):
        terms = [model.term, *terms]  # in the order of the draws
    if not terms:
        raise SettingError("an intraclass correlation needs groups, and this model has none.")
    assert isinstance(family, LinearPredictorModel)
    between = _group_variances(source, terms, rows)
    within = _noise_variance(family, source, rows)
    total = sum(between.values()) + within
    shares = {name: part / total for name, part in between.items()}
    if len(shares) > 1:
        shares["all groups"] = sum(between.values()) / total
    x = np.stack(list(shares.values()), axis=-1)
    weights = np.ones(x.shape[:2]) if source.weights is None else source.weights
    columns = ["mean", "sd", percent((1 - prob) / 2), percent((1 + prob) / 2)]
    index = pd.Index(list(shares), name="group")
    return pd.DataFrame(tabulated(x, weights, prob), index=index, columns=columns)


def _group_variances(
    source: Draws, terms: Sequence[GroupTerm], rows: Rows | None
) -> dict[str, np.ndarray]:
    """Return the variance that the effects of each factor add to a predictor, (chain, draw)."""
    sds = source.draws["group_sd"]
    correlations = source.draws.get("group_cor")
    parts: dict[str, np.ndarray] = {}
    sd = pair = 0
    for term in terms:
        size = len(term.effects)
        own = sds[..., sd : sd + size]
        sd += size
        covariance = own[..., :, None] * own[..., None, :] * np.eye(size)
        for i in range(size):
            for j in range(i if term.has_correlations else 0):
                assert correlations is not None
                shared = correlations[..., pair] * own[..., i] * own[..., j]
                covariance[..., i, j] = covariance[..., j, i] = shared
                pair += 1
        variance = np.sum(covariance * _second_moments(term, rows), axis=(-1, -2))
        parts[term.field] = parts.get(term.field, 0.0) + variance
    return parts


def _second_moments(term: GroupTerm, rows: Rows | None) -> np.ndarray:
    """Return the mean over the rows of z z', where z is a row's vector of effect columns."""
    if not term.has_slopes:
        return np.ones((1, 1))
    total = np.zeros((len(term.effects),) * 2)
    rows = _require_rows(rows, "slopes vary by group")
    for chunk in rows.chunks(CHUNK):
        z = effect_columns(term, rows, chunk["x"])
        total += z.T @ z
    return total / len(rows)


def _noise_variance(family: LinearPredictorModel, source: Draws, rows: Rows | None) -> np.ndarray:
    """Return a row's noise variance on the predictor's scale, (chain, draw) or one number."""
    for kinds, link in (((Logistic, Ordinal), "logit"), (Probit, "probit"), (Cloglog, "cloglog")):
        if isinstance(family, kinds):
            return np.asarray(LATENT[link])
    if isinstance(family, Binomial):
        return np.asarray(LATENT[family.link])
    if isinstance(family, Gaussian):
        scale = source.draws["scale"] if family.scale is None else np.asarray(family.scale)
        return np.asarray(scale**2)
    if isinstance(family, Poisson | NegativeBinomial):
        more = source.draws["overdispersion"] if isinstance(family, NegativeBinomial) else 0.0
        mean = _mean_outcome(_require_rows(rows, "the noise of counts depends on their mean"))
        return np.asarray(np.log1p(1 / mean + more))  # of the lognormal with this mean and variance
    raise SettingError(
        f"the noise of {type(family).__name__} has no established variance on the scale of the "
        "linear predictor, so that there is no intraclass correlation; compare group_sd instead."
    )


def _mean_outcome(rows: Rows) -> float:
    total = weight = 0.0
    for chunk in rows.chunks(CHUNK):
        counts = chunk["weight"] if "weight" in chunk else np.ones(len(chunk["y"]))
        total, weight = total + float(counts @ chunk["y"]), weight + float(np.sum(counts))
    return total / weight


def _require_rows(rows: Rows | None, why: str) -> Rows:
    if rows is None:
        raise SettingError(
            f"{why}, so that the rows of the fit are needed, which a file does not keep; give the "
            "rows, or their table, as rows=..."
        )
    return rows
