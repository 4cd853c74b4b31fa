"""The evidence, or marginal likelihood: how probable the data are under a model with its prior.

It is the average of the likelihood over the prior,

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

from typing import Annotated, NamedTuple

import numpy as np

from modicum.arguments import at_least
from modicum.arrays import HALF_LOG_2PI
from modicum.diagnostics import ess
from modicum.diagnostics.weighted import LEAST, rows_smoothed
from modicum.errors import SettingError, too_few, warn_of
from modicum.models.constraints import unnormalized_lkj_integral
from modicum.models.model import DENSE_LIMIT
from modicum.passes import Sums
from modicum.passes.curvature import Curvature, curvature
from modicum.posterior.exactness import FEWEST_SEEN, WORST_TAIL
from modicum.posterior.fit_rows import RowsLike
from modicum.posterior.fitted import FittedDraws, require_positive_sum, sums_at, thinned
from modicum.random import Stream, generator

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
    def fitted(cls, sums: Sums, draws: np.ndarray, weights: np.ndarray) -> NormalProposal:
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
            normal = cls.expanding(curvature(sums, mean, "evidence"))
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
    points: Annotated[int, at_least(FEWEST_SEEN)] = 500,
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
    model = post.fitted_model()
    if model.has_flat_prior:
        raise SettingError(
            "the evidence is an average over the prior, which is not defined for a flat prior; "
            "give every parameter a proper prior (mo.priors.Normal ...)."
        )
    total = post.chains * post.num_draws
    subset, (weights,) = thinned(post, None, "the evidence")
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
    proposal = NormalProposal.fitted(sums, draws[~bridge], weights[~bridge])
    new = proposal.draw(generator(random_seed, Stream.EVIDENCE), points)
    pooled = [] if model.resolved_priors is None else model.resolved_priors.all_pooled
    constant = sum(unnormalized_lkj_integral(len(p.sds), p.eta) for p in pooled if p.partials)
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
