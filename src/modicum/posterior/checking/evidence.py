"""The evidence, or marginal likelihood: the probability of the data under the model.

    p(y) = integral p(y | theta) p(theta) dtheta

The posterior of many rows is nearly normal. With g the normal of the draws' mean and covariance,
the average of p(y | theta) p(theta) / g(theta) over draws of g estimates the integral, with all
rows at all points in one pass. Weights are Pareto-smoothed; if their tail is too heavy for an
average, bridge sampling (Meng and Wong 1996) uses posterior draws as well: with q the product of
likelihood and prior, N1 posterior draws and N2 draws of g,

    r = [1/N2 sum_g q / (s1 q + s2 r g)] / [1/N1 sum_post g / (s1 q + s2 r g)],

s_k = N_k / (N1 + N2), is iterated to its fixed point, r = p(y).
"""

from __future__ import annotations

import numpy as np

from modicum.diagnostics import ess
from modicum.errors import ModicumWarning, SettingError, too_few, warn, whole_number
from modicum.ledger import Ledger
from modicum.models import BaseModel, IntegratedEffects, LinearPredictorModel, Target
from modicum.models.base import DENSE_LIMIT
from modicum.models.correlations import unnormalized_lkj_integral
from modicum.passes import LocalEngine, Sums, units_of
from modicum.posterior.checking.proposal import Evidence, NormalProposal, average, log_joint
from modicum.posterior.correction import WORST_TAIL
from modicum.posterior.draws import require_finite, thinned
from modicum.posterior.fitted import Subject, flat_points
from modicum.posterior.resampling import require_positive_sum
from modicum.random import Stream, generator

FEWEST = 100  # points needed to see the tail of their weights
STEPS = 1_000  # most iterations of bridge sampling
CLOSE = 1e-10  # relative change at which the iteration stops
UNCERTAIN = 0.5  # error above which two models can hardly be told apart


def log_evidence(subject: Subject, points: int, random_seed: int, progressbar: bool) -> Evidence:
    """Integrate the likelihood over the prior; see `Posterior.log_evidence`."""
    whole_number("points", points, FEWEST)
    source, fit, rows = subject
    require_finite(source.draws, "the evidence")
    if fit.model.has_flat_prior:
        raise SettingError(
            "the evidence is an average over the prior, which is not defined for a flat prior; "
            "give every parameter a proper prior (mo.priors.Normal ...)."
        )
    total = source.chains * source.num_draws
    subset, weights = thinned(source, total)
    require_positive_sum(weights, "the evidence")
    target, draws = flat_points(fit, rows, subset)
    _require_enough(target, total)
    engine = LocalEngine(progressbar=progressbar)
    ledger = Ledger(rows=len(rows))
    sums = Sums(target, units_of(target, rows, engine, ledger), engine, ledger)
    bridge = np.zeros(total, bool)
    bridge[np.unique(np.linspace(0, total - 1, min(points, total // 2)).astype(int))] = True
    proposal = NormalProposal.fitted(sums, draws[~bridge], weights[0][~bridge], "evidence")
    rng = generator(random_seed, Stream.EVIDENCE)
    new = proposal.draw(rng, points)
    log_ratio = log_joint(sums, new, "evidence") - proposal.log_density(new)
    log_ratio += _log_constant(fit.model)
    averaged, tail = average(log_ratio)
    if tail <= WORST_TAIL:
        return averaged
    half = draws[bridge]
    draws_ratio = (
        log_joint(sums, half, "evidence") - proposal.log_density(half) + _log_constant(fit.model)
    )
    bridged = _bridge_sampling(draws_ratio, weights[0][bridge], log_ratio)
    _warn_if_uncertain(bridged, tail)
    return bridged


def _require_enough(target: Target, total: int) -> None:
    if target.size > DENSE_LIMIT:
        raise SettingError(
            f"{target.size:,} parameters are too many to compute the evidence with a normal "
            "proposal; compare by leaving rows out (mo.compare), or integrate effects out."
        )
    if total < max(FEWEST, 4 * target.size):
        raise SettingError(
            f"{too_few(total, 'draw')} for the covariance of {target.size:,} "
            f"parameters; {max(FEWEST, 4 * target.size):,} or more are needed: sample more."
        )


def _log_constant(model: BaseModel) -> float:
    """Return the log normalising constant of LKJ priors, which sampling omits."""
    if isinstance(model, IntegratedEffects) and model.covariance.pairs:
        return -unnormalized_lkj_integral(model.effects, model.concentration)
    if not isinstance(model, LinearPredictorModel) or model.resolved_priors is None:
        return 0.0
    correlated = [group for group in model.resolved_priors.groups if group.partials]
    return -sum(unnormalized_lkj_integral(len(g.sds), g.correlation.eta) for g in correlated)


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


def _warn_if_uncertain(evidence: Evidence, tail: float) -> None:
    if evidence.error <= UNCERTAIN and np.isfinite(evidence.value):
        return
    warn(
        ModicumWarning(
            "evidence-uncertain",
            f"the posterior is so far from normal (Pareto k {tail:.2f}) that the log evidence is "
            f"known to within {evidence.error:.2g} only",
            "use more points and draws, or compare by leaving rows out (mo.compare)",
            pareto_k=tail,
            error=evidence.error,
        ),
    )
