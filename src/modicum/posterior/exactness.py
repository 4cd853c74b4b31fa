"""The exact log-posterior of all rows at many points, in one pass: corrections and evidence.

The ratio of the exact density to the one that was sampled corrects draws by importance weights, and
its gradient measures how far they are from the posterior (kernel Stein discrepancy).

Sensitivity: with the prior raised to the power alpha, draws get weights p(theta)^(alpha - 1),
without a new run or any row. The sensitivity is how far distributions move as alpha goes from 0.99
to 1.01 (Kallioinen, Paananen, Bürkner and Vehtari 2024); the distances are ArviZ's. In a model with
effects of groups, the prior is that of common coefficients, standard deviations and correlations;
the distribution of the effects given these counts as part of the model.

Residuals: a subsample estimates the sum over rows of l_k(theta) - q_k(theta), with q_k the
second-order Taylor expansion of the row's log-likelihood. Its error is small if rows are drawn in
proportion to the size of their residuals, and large if a few rows hold most of the residuals but
are drawn as rarely as all others. The expansion along delta = theta - mean uses central
differences: with f(s) the row's log-likelihood at mean + s delta,

    q = f(0) + [f(e) - f(-e)] / 2e + [f(e) + f(-e) - 2 f(0)] / 2e^2.

The evidence, or marginal likelihood, is the probability of the data under the model,

    p(y) = integral p(y | theta) p(theta) dtheta.

The posterior of many rows is nearly normal. With g the normal of the draws' mean and covariance,
the average of p(y | theta) p(theta) / g(theta) over draws of g estimates the integral, with all
rows at all points in one pass. Weights are Pareto-smoothed; if their tail is too heavy for an
average, bridge sampling (Meng and Wong 1996) uses posterior draws as well: with q the product of
likelihood and prior, N1 posterior draws and N2 draws of g,

    r = [1/N2 sum_g q / (s1 q + s2 r g)] / [1/N1 sum_post g / (s1 q + s2 r g)],

s_k = N_k / (N1 + N2), is iterated to its fixed point, r = p(y).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from modicum.arrays import HALF_LOG_2PI
from modicum.diagnostics import ess, kernel_stein_discrepancy, squared_stein_discrepancy
from modicum.diagnostics.convergence import LEAST, finite_and_moving, rows_smoothed
from modicum.errors import SettingError, too_few, warn_of, whole_number
from modicum.ledger import Ledger
from modicum.libraries import arviz_base, arviz_stats
from modicum.libraries import pandas as pd
from modicum.models.covariances import unnormalized_lkj_integral
from modicum.models.model import DENSE_LIMIT
from modicum.models.over_draws import log_priors
from modicum.passes import Sums
from modicum.passes.curvature import Curvature, curvature
from modicum.passes.sums import log_likelihoods
from modicum.passes.sums import scores as log_posterior_scores
from modicum.posterior.fit_rows import RowsLike
from modicum.posterior.fitted import (
    FittedDraws,
    Warnings,
    evenly_spaced,
    named_axes,
    require_finite,
    require_positive,
    require_positive_sum,
    resample,
    sums_at,
    thinned,
)
from modicum.posterior.population import random_rows
from modicum.posterior.weighted import kish_share, weighted_mean, weighted_variance
from modicum.random import Stream, generator
from modicum.rows import Rows

FEWEST = 25  # draws needed: a Pareto distribution is fitted to the largest fifth of the weights
WORST_TAIL = 0.7  # Pareto k above which importance weights cannot be trusted
F = TypeVar("F", bound=FittedDraws)


def correct(post: F, rows: RowsLike, draws: int = 1000, progressbar: bool = True) -> F:
    """Make the draws of a subsampling method exact by importance weights, in one pass.

    A perturbed chain samples a density close to the posterior; the ratio of the two at each
    draw is its weight. The full log-likelihood is evaluated at up to `draws` evenly spaced
    draws, and the weights are Pareto-smoothed. The result's summaries use the weights, and
    ``result.tuning["correction"]`` says how far off the perturbed answer was.

    Parameters
    ----------
    rows
        The rows the posterior was sampled with (after `mo.fit`, the table); others are refused.
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
    whole_number("draws", draws)
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
    >>> model = mo.models.Logistic(prior_scale=1.0, intercept=False)
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
    prior = log_priors(model, alike.draws, effects=False)
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
    draws: int = 500,
    subsample: int | None = None,
    random_seed: int = 0,
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
    whole_number("draws", draws, 2)  # draws are compared with each other
    whole_number("random_seed", random_seed, 0)
    if subsample is not None:
        whole_number("subsample", subsample)
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


STEP = 0.1  # e: residuals are accurate to e^2, and rounding is 1e-16 / e^2
ROUNDING = 1e-13  # smaller residuals, relative to the row's log-likelihood, count as zero


def residual_sizes(
    post: FittedDraws, data: RowsLike | None, number: int, draws: int, random_seed: int
) -> np.ndarray:
    """Return the root mean square residual over draws, of up to `number` random rows."""
    rows = post.rows_of_fit(data, "a plot of residuals")
    subset, (weights,) = thinned(post, post.chains * post.num_draws, "a plot of residuals")
    sums, points = sums_at(post, rows, subset, progressbar=False)
    mean = np.average(points, axis=0, weights=weights)
    delta = points[evenly_spaced(len(points), draws)] - mean
    ids = np.sort(random_rows(len(sums.rows), number, random_seed))
    evaluated_at = np.concatenate(
        [mean[None], mean + delta, mean + STEP * delta, mean - STEP * delta]
    )
    parts = []
    for values in log_likelihoods(sums.target, sums.rows, ids, evaluated_at):
        centre, (value, above, below) = values[0], values[1:].reshape(3, len(delta), -1)
        slope = (above - below) / (2 * STEP)
        curvature = (above + below - 2 * centre) / STEP**2
        residual = value - centre - slope - curvature / 2
        size = np.sqrt(np.mean(residual**2, axis=0))
        parts.append(np.where(size > ROUNDING * np.maximum(np.abs(centre), 1.0), size, 0.0))
    sizes = np.concatenate(parts)
    if "weight" in sums.rows.fields:
        sizes = sizes * sums.rows.subset(ids).slice(0, len(ids))["weight"]
    return np.asarray(sizes)


NOISY = 0.5  # variance of log-weights, due to few draws, above which a covariance is not used


class Evidence(NamedTuple):
    """Log evidence and its Monte Carlo standard error.

    Attributes
    ----------
    value
        Log of the marginal likelihood of the rows.
    error
        Monte Carlo standard error of `value`.
    """

    value: float
    error: float


class NormalProposal(NamedTuple):
    """A normal distribution, given by its mean and the lower factor of its covariance."""

    mean: np.ndarray
    factor: np.ndarray

    @classmethod
    def expanding(cls, at: Curvature) -> NormalProposal | None:
        """Return the normal with this expansion of its log-density; None if it is not concave."""
        if not np.isfinite(at.dense_precision).all():
            return None
        try:
            factor = np.linalg.inv(np.linalg.cholesky(at.dense_precision)).T
        except np.linalg.LinAlgError:
            return None
        return cls(at.point + factor @ (factor.T @ at.gradient), factor)

    @classmethod
    def fitted(
        cls, sums: Sums, draws: np.ndarray, weights: np.ndarray, purpose: str
    ) -> NormalProposal:
        """Fit a normal with the draws' mean, and their covariance or, if noisy, the curvature.

        The covariance of N draws of d parameters gives log-weights a variance of about d^2 / 2N.
        Signs are ignored, since a proposal need not be exact.
        """
        weights = np.abs(weights)
        mean = np.average(draws, axis=0, weights=weights)
        centred = draws - mean
        effective = weights.sum() ** 2 / (weights**2).sum()
        cov = (weights[:, None] * centred).T @ centred / weights.sum()
        if len(mean) ** 2 / (2 * effective) > NOISY:
            normal = cls.expanding(curvature(sums, mean, purpose))
            if normal is not None:  # else it is not concave at the mean
                return cls(mean, normal.factor)
        return cls(mean, np.linalg.cholesky(cov))

    def draw(self, rng: np.random.Generator, number: int) -> np.ndarray:
        """Draw antithetic pairs about the mean, which reduces the variance."""
        half = rng.normal(size=(-(-number // 2), len(self.mean)))
        return self.mean + np.concatenate([half, -half])[:number] @ self.factor.T

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-density of the proposal at each point."""
        z = np.linalg.solve(self.factor, (points - self.mean).T)
        scale = np.linalg.slogdet(self.factor)[1] + len(self.mean) * HALF_LOG_2PI
        return -0.5 * np.sum(z**2, axis=0) - scale


def log_joint(sums: Sums, points: np.ndarray, purpose: str) -> np.ndarray:
    """Return the log of likelihood times prior at each point, in one pass over the rows."""
    values = sums.values(points, purpose) + sums.target.log_priors(points)
    return np.where(np.isnan(values), -np.inf, values)  # NaN where the model overflows


def average(log_ratio: np.ndarray) -> tuple[Evidence, float]:
    """Return the log of the average of smoothed weights, with its error, and their Pareto k."""
    (smoothed,), (tail,) = rows_smoothed(log_ratio[None])
    # these are normalised; the smallest weight, which is not smoothed, shows by how much
    lowest = int(np.argmin(log_ratio))
    log_total = max(log_ratio[lowest], log_ratio.max() + LEAST) - smoothed[lowest]
    share = np.exp(smoothed) * len(smoothed)
    error = float(np.std(share, ddof=1) / np.sqrt(len(share)))
    return Evidence(float(log_total - np.log(len(share))), error), float(tail)


STEPS = 1_000  # most iterations of bridge sampling
CLOSE = 1e-10  # relative change at which the iteration stops
UNCERTAIN = 0.5  # error above which two models can hardly be told apart


def log_evidence(
    post: FittedDraws,
    data: RowsLike | None = None,
    points: int = 500,
    random_seed: int = 0,
    progressbar: bool = True,
) -> Evidence:
    """Estimate the log evidence (marginal likelihood): the likelihood averaged over the prior.

    The difference of two models' log evidences is the log of their Bayes factor. It depends on
    the priors even if the posteriors do not. For a custom model it is correct only if
    `log_prior` and `log_likelihood` include their normalising constants.

    All rows are evaluated at `points` draws of the normal distribution with the posterior's
    mean and covariance, in one pass, and the importance weights are Pareto-smoothed. If their
    tail is too heavy, bridge sampling with the posterior's draws follows, in another pass.

    Parameters
    ----------
    data
        The rows the posterior was sampled with, or their table; other rows are refused. By
        default the rows that the posterior holds.
    points
        Number of points at which to evaluate all rows.
    random_seed
        Seed of the points.
    progressbar
        Whether to show progress on a long pass.

    Returns
    -------
    Evidence
        A named tuple: `value`, the log evidence, and `error`, its Monte Carlo standard error.
    """
    rows = post.rows_of_fit(data, "the evidence")
    whole_number("points", points, FEWEST_SEEN)
    model = post.fitted_model()
    if model.has_flat_prior:
        raise SettingError(
            "the evidence is an average over the prior, which is not defined for a flat prior; "
            "give every parameter a proper prior (mo.priors.Normal ...)."
        )
    total = post.chains * post.num_draws
    subset, (weights,) = thinned(post, total, "the evidence")
    sums, draws = sums_at(post, rows, subset, progressbar)
    if sums.target.size > DENSE_LIMIT:
        raise SettingError(
            f"{sums.target.size:,} parameters are too many to compute the evidence with a normal "
            "proposal; compare by leaving rows out (mo.compare), or integrate effects out."
        )
    needed = max(FEWEST_SEEN, 4 * sums.target.size)
    if total < needed:
        raise SettingError(
            f"{too_few(total, 'draw')} for the covariance of {sums.target.size:,} "
            f"parameters; {needed:,} or more are needed: sample more."
        )
    bridge = np.zeros(total, bool)
    bridge[np.unique(np.linspace(0, total - 1, min(points, total // 2)).astype(int))] = True
    proposal = NormalProposal.fitted(sums, draws[~bridge], weights[~bridge], "evidence")
    rng = generator(random_seed, Stream.EVIDENCE)
    new = proposal.draw(rng, points)
    constant = sum(unnormalized_lkj_integral(*prior) for prior in model.lkj_priors)
    log_ratio = log_joint(sums, new, "evidence") - proposal.log_density(new) - constant
    averaged, tail = average(log_ratio)
    if tail <= WORST_TAIL:
        return averaged
    half = draws[bridge]
    draws_ratio = log_joint(sums, half, "evidence") - proposal.log_density(half) - constant
    bridged = _bridge_sampling(draws_ratio, weights[bridge], log_ratio)
    if not bridged.error <= UNCERTAIN or not np.isfinite(bridged.value):
        warn_of(
            "evidence-uncertain",
            f"the posterior is so far from normal (Pareto k {tail:.2f}) that the log evidence is "
            f"known to within {bridged.error:.2g} only",
            "use more points and draws, or compare by leaving rows out (mo.compare)",
            pareto_k=tail,
            error=bridged.error,
        )
    return bridged


def _bridge_sampling(posterior: np.ndarray, weights: np.ndarray, proposal: np.ndarray) -> Evidence:
    """Iterate to the fixed point, from log q/g at draws of the posterior and of the proposal."""
    weights = weights / weights.sum()
    size, number = 1 / np.sum(weights**2), len(proposal)
    s1, s2 = size / (size + number), number / (size + number)
    top = float(np.median(posterior))
    log_r = 0.0
    for _ in range(STEPS):
        above = _inverse(s1, s2, log_r - (proposal - top))
        below = _inverse(s1, s2, log_r - (posterior - top)) * np.exp(top - posterior)
        require_positive_sum(weights * below, "the evidence")
        step = np.log(above.mean()) - np.log(weights @ below) - log_r
        log_r += step
        if abs(step) < CLOSE:
            break
    p = posterior - top - log_r
    q = proposal - top - log_r
    f1, f2 = _inverse(s1, s2, -q), np.exp(-p) * _inverse(s1, s2, -p)
    mean = weights @ f2
    effective = min(size, float(ess(f2[None])) if np.ptp(f2) > 0 else size)
    variance = np.var(f1) / f1.mean() ** 2 / number
    variance += (np.abs(weights) @ (f2 - mean) ** 2) / mean**2 / max(effective, 1.0)
    return Evidence(float(top + log_r), float(np.sqrt(variance)))


def _inverse(s1: float, s2: float, log_rest: np.ndarray) -> np.ndarray:
    """Return 1 / (s1 + s2 exp(log_rest)), that is q / (s1 q + s2 r g)."""
    return np.asarray(np.exp(-np.logaddexp(np.log(s1), np.log(s2) + log_rest)))
