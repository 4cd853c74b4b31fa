"""Exactness afterwards: importance weights from one pass over all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum.errors import ModicumWarning, SettingError, warn
from modicum.ledger import Ledger
from modicum.posterior.weighted import kish_share, weighted_mean

if TYPE_CHECKING:
    from modicum.posterior.posterior import Posterior

__all__ = ["correct"]

WORST_TAIL = 0.7  # Pareto k above which importance weights are not to be trusted


def correct(posterior: Posterior, rows: Any, draws: int, progressbar: bool) -> Posterior:
    """Weight draws by posterior over sampled density; see `Posterior.correct`."""
    if "lp" not in posterior.stats or posterior.weights is not None:
        raise SettingError(
            "only unweighted draws of a method that records the log-density it sampled (`lp` in "
            "stats) can be corrected."
        )
    model = getattr(posterior.restore_predictor(), "model", None)
    if model is None:
        raise SettingError(
            "this posterior was loaded without its model; sample again, or correct before saving."
        )
    every = max(1, -(-posterior.chains * posterior.num_draws // max(1, draws)))
    kept = {name: x[:, ::every] for name, x in posterior.draws.items()}
    stats = {name: x[:, ::every] for name, x in posterior.stats.items()}
    ledger = Ledger.from_dict(posterior.ledger.to_dict())
    exact = _exact_log_posterior(ledger, model, rows, kept, progressbar)
    log_weights = exact - stats["lp"]
    smoothed, tail = _smooth(log_weights)
    corrected = replace(
        posterior,
        ledger=ledger,
        draws=kept,
        stats=stats | {"log_weight": log_weights},
        weights=np.exp(smoothed - smoothed.max()),
        warnings=list(posterior.warnings),
        tuning=dict(posterior.tuning),
    )
    report = _report(corrected, log_weights, tail)
    corrected.tuning["correction"] = report
    # Nearly equal weights correct next to nothing, whatever the shape of their tail.
    if tail > WORST_TAIL and report["effective_share"] < 0.9:
        corrected.warnings.append(
            warn(
                ModicumWarning(
                    "weights-uneven",
                    f"the importance weights are too uneven to correct with (Pareto k {tail:.2f})",
                    'sample with more rows (subsample) or exactly (HMCECS(exact="delayed"))',
                    pareto_k=tail,
                ),
                stacklevel=4,
            )
        )
    return corrected


def _exact_log_posterior(
    ledger: Ledger, model: Any, rows: Any, draws: dict[str, np.ndarray], progressbar: bool
) -> np.ndarray:
    """Log-posterior of all rows at each kept draw, (chain, draw), by one pass."""
    from modicum.models import Target
    from modicum.passes import LocalEngine, Sums

    if len(rows) != ledger.rows:
        raise SettingError(
            f"the posterior was sampled with {ledger.rows:,} rows, but {len(rows):,} "
            "were given; correct with the same rows."
        )
    target, _ = Target.of(model, rows)
    chains, number = next(iter(draws.values())).shape[:2]
    flat = {k: v.reshape(chains * number, *v.shape[2:]) for k, v in draws.items()}
    points = target.ravel_reported(flat)
    sums = Sums(target, rows, LocalEngine(progressbar=progressbar), ledger)
    total = sums.values(points, "correction") + target.log_priors(points)
    return total.reshape(chains, number)


def _smooth(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    from arviz_stats.base import array_stats

    centred = log_weights - log_weights.max()
    if np.ptp(centred) < 1e-10:
        return centred, 0.0
    smoothed, tail = array_stats.psislw(-centred.reshape(-1))  # it expects minus log-weights
    return np.asarray(smoothed).reshape(log_weights.shape), float(tail)


def _report(corrected: Posterior, log_weights: np.ndarray, tail: float) -> dict[str, Any]:
    """How far the uncorrected draws were off, in posterior standard deviations."""
    assert corrected.weights is not None
    worst, name = 0.0, ""
    for parameter, x in corrected.draws.items():
        sd = np.maximum(corrected.sd(parameter), 1e-300)
        shift = np.abs(weighted_mean(x, corrected.weights) - x.mean(axis=(0, 1))) / sd
        if shift.max() > worst:
            worst, name = float(shift.max()), parameter
    share = float(kish_share(corrected.weights))
    number = log_weights.size
    # What reweighting alone moves a mean by, were there nothing to correct:
    by_chance = max(0.01, 4 * np.sqrt(max(1 / share - 1, 0.0) / number))
    verdict = (
        f"the sampled draws were right to within {by_chance:.2g} posterior sd, the noise of this "
        "check"
        if worst < by_chance
        else f"means of the sampled draws were off by up to {worst:.2g} posterior sd ({name})"
    )
    return {
        "pareto_k": round(tail, 3),
        "weight_variance": float(np.var(log_weights)),
        "effective_share": share,
        "largest_shift": worst,
        "verdict": verdict,
    }
