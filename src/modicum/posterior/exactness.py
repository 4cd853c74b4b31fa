"""How far draws are from the exact posterior, by the log-density of all rows at many of them.

The ratio of the exact density to the one that was sampled corrects draws by importance weights, and
its gradient measures how far they are from the posterior (kernel Stein discrepancy).

Sensitivity: with the prior raised to the power alpha, draws get weights p(theta)^(alpha - 1),
without a new run or any row. The sensitivity is how far distributions move as alpha goes from 0.99
to 1.01 (Kallioinen, Paananen, Bürkner and Vehtari 2024); the distances are ArviZ's. In a model with
effects of groups, the prior is that of common coefficients, standard deviations and correlations;
the distribution of the effects given these counts as part of the model. p is the density of what
has the prior, a standard deviation say, and not of its logarithm, which is sampled.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from modicum.arguments import Count, FromTwo, FromZero
from modicum.diagnostics import kernel_stein_discrepancy, squared_stein_discrepancy
from modicum.diagnostics.convergence import finite_and_moving
from modicum.diagnostics.weighted import kish_share, rows_smoothed, weighted_mean, weighted_variance
from modicum.errors import SettingError, too_few, warn_of
from modicum.ledger import Ledger
from modicum.libraries import arviz_base, arviz_stats
from modicum.libraries import pandas as pd
from modicum.models.over_draws import log_priors
from modicum.passes.sums import scores as log_posterior_scores
from modicum.posterior.fit_rows import RowsLike
from modicum.posterior.fitted import (
    FittedDraws,
    Warnings,
    named_axes,
    require_finite,
    require_positive,
    resample,
    sums_at,
    thinned,
)
from modicum.rows import Rows

FEWEST = 25  # draws needed: a Pareto distribution is fitted to the largest fifth of the weights
WORST_TAIL = 0.7  # Pareto k above which importance weights cannot be trusted
F = TypeVar("F", bound=FittedDraws)


def correct(
    post: F, rows: RowsLike | None = None, draws: Count = 1000, progressbar: bool = True
) -> F:
    """Make the draws of a subsampling method exact by importance weights, in one pass.

    A perturbed chain samples a density close to the posterior; the ratio of the two at each
    draw is its weight. The full log-likelihood is evaluated at up to `draws` evenly spaced
    draws, and the weights are Pareto-smoothed. The result's summaries use the weights, and
    ``result.tuning["correction"]`` says how far off the perturbed answer was.

    Parameters
    ----------
    rows
        The rows the posterior was sampled with (after `mo.fit`, the table), by default those that
        it holds; others are refused.
    draws
        The most draws to keep.
    progressbar
        Whether to show progress on a long pass.
    """
    has_density = "lp" in post.stats and "log_weight" not in post.stats
    if not has_density or (post.weights is not None and (post.weights < 0).any()):
        raise SettingError(
            "these draws cannot be corrected: that needs draws without negative signs, not yet "
            "corrected, of a method that records the log-density it sampled (`lp` in stats)."
        )
    same = post.rows_of_fit(rows, "a correction")
    every = max(1, -(-post.chains * post.num_draws // draws))
    subset = {name: x[:, ::every] for name, x in post.draws.items()}
    stats = {name: x[:, ::every] for name, x in post.stats.items()}
    require_finite(subset | {"lp": stats["lp"]}, "a correction")
    ledger = Ledger.from_dict(post.ledger.to_dict())
    log_weights = _exact_log_posterior(ledger, post, same, subset, progressbar) - stats["lp"]
    if post.weights is not None:  # weights with respect to the density in `lp`
        with np.errstate(divide="ignore"):
            log_weights = log_weights + np.log(post.weights[:, ::every])
    _require_weights(log_weights)
    if log_weights.size < FEWEST and np.ptp(log_weights) >= 1e-10:
        raise SettingError(
            f"{log_weights.size} draws are too few to be corrected, since the tail of their "
            f"weights cannot be judged; sample at least {FEWEST}."
        )
    smoothed, (tail,) = rows_smoothed(log_weights.reshape(1, -1))
    weights = np.exp(smoothed - smoothed.max()).reshape(log_weights.shape)
    report = _report(subset, weights, log_weights, tail)
    # Nearly equal weights correct next to nothing, whatever the shape of their tail.
    doubts = post.warnings
    if not tail <= WORST_TAIL and kish_share(weights) < 0.9:
        doubt = warn_of(
            "weights-uneven",
            f"the importance weights are too uneven to correct with (Pareto k {tail:.2f})",
            'sample with more rows (subsample) or exactly (HMCECS(exact="delayed"))',
            pareto_k=tail,
        )
        doubts = Warnings([*doubts, doubt])
    return replace(
        post,
        draws=subset,
        stats=stats | {"log_weight": log_weights},
        weights=weights,
        ledger=ledger,
        warnings=doubts,
        tuning=post.tuning | {"correction": report},
    )


def _exact_log_posterior(
    ledger: Ledger, post: FittedDraws, rows: Rows, draws: dict[str, np.ndarray], progressbar: bool
) -> np.ndarray:
    """Return the log-posterior of all rows at each draw, (chain, draw), in one pass."""
    chains, number = next(iter(draws.values())).shape[:2]
    flat = {k: v.reshape(chains * number, *v.shape[2:]) for k, v in draws.items()}
    sums, points = sums_at(post, rows, flat, progressbar, ledger)
    total = sums.values(points, "correction") + sums.target.log_priors(points)
    return np.asarray(total.reshape(chains, number))


def _require_weights(log_weights: np.ndarray) -> None:
    """Refuse log-weights that are NaN, inf or all -inf (-inf alone is an impossible draw)."""
    bad = np.isnan(log_weights) | (log_weights == np.inf)
    if bad.any():
        chain, draw = np.argwhere(bad)[0]
        raise SettingError(
            f"the log-posterior of all rows is {log_weights[chain, draw]} at draw {draw} of chain "
            f"{chain} of those used, so the draws cannot be weighted; the model overflows there: "
            "rescale the columns of the rows or use a tighter prior."
        )
    if not (log_weights > -np.inf).any():
        raise SettingError(
            "the posterior of all rows is zero at every draw, so the draws cannot be weighted; "
            "sample again with more rows per step."
        )


def _report(
    draws: dict[str, np.ndarray], weights: np.ndarray, log_weights: np.ndarray, tail: float
) -> dict[str, float | str]:
    """Report how far the uncorrected draws were off, in posterior standard deviations."""
    worst, worst_name = 0.0, ""
    for name, x in draws.items():
        values = np.asarray(x, dtype=float)
        sd = np.maximum(np.sqrt(weighted_variance(values, weights)), 1e-300)
        shift = np.abs(weighted_mean(values, weights) - values.mean(axis=(0, 1))) / sd
        shift = np.where(finite_and_moving(values), shift, 0.0)  # constants shift by rounding only
        if not np.isfinite(shift).all():
            raise SettingError(
                f"the weighted draws of {name} have no finite mean and sd, so there is nothing to "
                "compare the sampled draws with; rescale the columns of the rows."
            )
        if shift.size and shift.max() > worst:
            worst, worst_name = float(shift.max()), name
    share = kish_share(weights)
    # How far reweighting would move a mean by chance if there were nothing to correct:
    by_chance = max(0.01, 4 * np.sqrt(max(1 / share - 1, 0.0) / log_weights.size))
    verdict = (
        f"the sampled draws were right to within {by_chance:.2g} posterior sd, the noise of this "
        "check"
        if worst < by_chance
        else f"means of the sampled draws were off by up to {worst:.2g} posterior sd ({worst_name})"
    )
    return {
        "pareto_k": round(tail, 3),
        "weight_variance": float(np.var(log_weights[log_weights > -np.inf])),
        "effective_share": share,
        "largest_shift": worst,
        "verdict": verdict,
    }


FEWEST_SEEN = 100  # draws or points needed to see the tail of their weights


def sensitivity(
    post: FittedDraws, data: RowsLike | None = None, progressbar: bool = True
) -> pd.DataFrame:
    """Measure how sensitive the posterior is to prior and likelihood, by power-scaling each.

    Effects of groups count as part of the model: the prior is that of all other parameters,
    standard deviations of effects included. Weighted draws are resampled first.

    Parameters
    ----------
    data
        The rows of the fit, or their table, for a pass that evaluates the log-density at all
        draws. By default the log-density that the chain recorded is used, at no cost; methods
        that record none need the rows.
    progressbar
        Whether to show progress on that pass.

    Returns
    -------
    DataFrame
        For each scalar its sensitivity to the `prior` and to the `likelihood`, and ArviZ's
        `diagnosis`. Values above 0.05 matter: sensitivity to the prior alone means that the
        prior is strong or the data are weak; to both, that prior and data may disagree.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> draws = rng.normal(0, 1, size=(2, 500, 1))  # the prior: the data are uninformative
    >>> log_density = -0.5 * draws[..., 0] ** 2
    >>> post = mo.Posterior({"beta": draws}, {"lp": log_density}, mo.Ledger(rows=1))
    >>> rows = mo.Rows(x=np.zeros((2, 1)), y=[0.0, 1.0])
    >>> model = mo.models.Logistic(prior_scale=1.0, intercept=False).resolved(rows)
    >>> post.predictor = mo.models.over_draws.ModelPredictor(model)
    >>> post.sensitivity()["prior"].item() > 0.05
    True
    """
    model = post.fitted_model()
    require_positive(post.weights, "a sensitivity")
    alike = resample(post)
    log_posterior = alike.stats.get("lp")
    if data is not None or log_posterior is None:
        rows = post.rows_of_fit(data, "a sensitivity")
        ledger = Ledger(rows=len(rows))
        log_posterior = _exact_log_posterior(ledger, post, rows, alike.draws, progressbar)
    require_finite(alike.draws, "a sensitivity")
    if alike.chains * alike.num_draws < FEWEST_SEEN:
        raise SettingError(
            f"{too_few(alike.chains * alike.num_draws, 'draw')} to be reweighted by prior or "
            f"likelihood, since the tail of the weights cannot be judged; "
            f"sample at least {FEWEST_SEEN}."
        )
    log_likelihood = log_posterior - log_priors(model, alike.draws)
    prior = log_priors(model, alike.draws, stated=True)
    dims, coords = named_axes(alike)
    groups = {
        "posterior": {name: x.astype(float) for name, x in alike.draws.items()},
        "log_prior": {"all": prior - prior.mean()},
        "log_likelihood": {"all": log_likelihood - log_likelihood.mean()},
    }
    tree = arviz_base.from_dict(groups, dims=dims, coords=coords)
    log = logging.getLogger("arviz_stats.psense")
    before, log.disabled = log.disabled, True  # the table shows what would be logged
    try:
        with np.errstate(all="ignore"):  # an uninformative likelihood is constant
            return arviz_stats.psense_summary(tree)
    finally:
        log.disabled = before


PURPOSE = "a Stein discrepancy"


@dataclass(frozen=True)
class SteinDiscrepancy:
    """How far draws are from the posterior, judged by the gradients of its log-density.

    Attributes
    ----------
    squared
        The unbiased squared discrepancy (U-statistic): about zero, of either sign, for exact
        draws.
    value
        The discrepancy (V-statistic), about `floor` for independent exact draws; nan if scores
        were estimated from a subsample, whose noise would count as discrepancy.
    floor
        What `value` would be for as many independent exact draws; nan when `value` is.
    draws, subsample
        Number of draws used, and of rows per score; None for all rows.
    """

    squared: float
    value: float
    floor: float
    draws: int
    subsample: int | None


def stein_discrepancy(
    post: FittedDraws,
    rows: RowsLike,
    draws: FromTwo = 500,  # they are compared with each other
    subsample: Count | None = None,
    random_seed: FromZero = 0,
    progressbar: bool = True,
) -> SteinDiscrepancy:
    """Measure how far the draws are from the posterior, without a reference to compare with.

    The kernel Stein discrepancy (Gorham and Mackey 2017) needs the gradient of the
    log-posterior at each draw. From all rows this takes one pass with `draws` gradients per
    row; from a subsample, one pass for control variates and `subsample` rows per draw.

    Parameters
    ----------
    rows
        The rows the posterior was sampled with (after `mo.fit`, the table); others are refused.
    draws
        The most draws to use, evenly spaced.
    subsample
        Rows for the gradient at each draw; all by default.
    random_seed
        Seed of the subsamples.
    progressbar
        Whether to show progress on a long pass.
    """
    if post.fitted_model().integrated_group is not None:
        raise SettingError(
            f"{PURPOSE} is that of parameters given rows, and here effects of groups were "
            "integrated out; hold them explicitly (groups='explicit')."
        )
    same = post.rows_of_fit(rows, PURPOSE)
    subset, (weights,) = thinned(post, draws, PURPOSE)
    if weights.size < 2:
        raise SettingError(f"{PURPOSE} compares draws with each other, and there is only one.")
    subsample = None if subsample is None or subsample >= len(same) else subsample
    sums, points = sums_at(post, same, subset, progressbar)
    if not finite_and_moving(points[None]).all():
        raise SettingError(
            "some parameters have the same value in all draws, so there is no discrepancy to "
            "measure; sample again, or fix these parameters in the model."
        )
    scores = log_posterior_scores(sums, points, subsample, random_seed)
    if not np.isfinite(scores).all():
        raise SettingError(
            "the gradient of the log-posterior is not finite at some draws, so there is no "
            "discrepancy to measure; rescale the columns of the rows or use a tighter prior."
        )
    scale = points.std(axis=0, ddof=1)
    squared = squared_stein_discrepancy(points, scores, scale=scale, weights=weights)
    value = floor = float("nan")
    if subsample is None:
        value = kernel_stein_discrepancy(points, scores, scale=scale, weights=weights)
        own = np.sum((scores * scale) ** 2, axis=1) + points.shape[1]  # k0(x, x) of the kernel
        share = weights / weights.sum()
        floor = float(np.sqrt(np.sum(share**2 * own)))
    return SteinDiscrepancy(squared, value, floor, len(points), subsample)
