"""Correct the draws of a subsampling method by importance weights from one pass over all rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modicum.diagnostics.inefficiency import finite_and_moving
from modicum.diagnostics.pareto import rows_smoothed
from modicum.errors import ModicumWarning, SettingError, warn, whole_number
from modicum.ledger import Ledger
from modicum.passes import LocalEngine, Sums, units_of
from modicum.posterior.alignment import require_rows_of_fit
from modicum.posterior.draws import Draws, require_finite
from modicum.posterior.fitted import Fit, flat_points
from modicum.posterior.weighted import kish_share, weighted_mean, weighted_variance
from modicum.rows import Rows

FEWEST = 25  # draws needed: a Pareto distribution is fitted to the largest fifth of the weights
WORST_TAIL = 0.7  # Pareto k above which importance weights cannot be trusted


class Correction(NamedTuple):
    """The draws that were kept, their weights, and what the weights say about the draws.

    Attributes
    ----------
    draws, stats
        Evenly spaced draws of each chain; `stats` also has their `log_weight`.
    weights
        Pareto-smoothed importance weights (chain, draw), the largest 1.
    ledger
        The ledger of the posterior, with this pass added.
    report
        Pareto k, variance of the log-weights, effective share, largest shift, verdict.
    warning
        The reason to doubt the weights, if there is one.
    """

    draws: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    weights: np.ndarray
    ledger: Ledger
    report: dict[str, float | str]
    warning: ModicumWarning | None


def correct(source: Draws, fit: Fit, rows: Rows, draws: int, progressbar: bool) -> Correction:
    """Weight draws by posterior over sampled density; see `Posterior.correct`.

    `require_correctable` must have accepted the draws.
    """
    whole_number("draws", draws)
    number = source.ledger.rows if source.ledger.unit == "row" else None
    require_rows_of_fit(rows, fit.rows, number, "a correction")
    every = max(1, -(-source.chains * source.num_draws // draws))
    subset = {name: x[:, ::every] for name, x in source.draws.items()}
    stats = {name: x[:, ::every] for name, x in source.stats.items()}
    require_finite(subset | {"lp": stats["lp"]}, "a correction")
    ledger = Ledger.from_dict(source.ledger.to_dict())
    log_weights = exact_log_posterior(ledger, fit, rows, subset, progressbar) - stats["lp"]
    if source.weights is not None:  # weights with respect to the density in `lp`
        with np.errstate(divide="ignore"):
            log_weights = log_weights + np.log(source.weights[:, ::every])
    _require_weights(log_weights)
    smoothed, tail = _smooth(log_weights)
    weights = np.exp(smoothed - smoothed.max())
    report = _report(subset, weights, log_weights, tail)
    # Nearly equal weights correct next to nothing, whatever the shape of their tail.
    doubt = None
    if not tail <= WORST_TAIL and kish_share(weights) < 0.9:
        doubt = warn(
            ModicumWarning(
                "weights-uneven",
                f"the importance weights are too uneven to correct with (Pareto k {tail:.2f})",
                'sample with more rows (subsample) or exactly (HMCECS(exact="delayed"))',
                pareto_k=tail,
            ),
        )
    return Correction(subset, stats | {"log_weight": log_weights}, weights, ledger, report, doubt)


def require_correctable(source: Draws) -> None:
    """Refuse draws without a recorded log-density, with signs, or corrected before."""
    has_density = "lp" in source.stats and "log_weight" not in source.stats
    if not has_density or (source.weights is not None and (source.weights < 0).any()):
        raise SettingError(
            "these draws cannot be corrected: that needs draws without negative signs, not yet "
            "corrected, of a method that records the log-density it sampled (`lp` in stats)."
        )


def exact_log_posterior(
    ledger: Ledger, fit: Fit, rows: Rows, draws: dict[str, np.ndarray], progressbar: bool
) -> np.ndarray:
    """Return the log-posterior of all rows at each draw, (chain, draw), in one pass."""
    chains, number = next(iter(draws.values())).shape[:2]
    flat = {k: v.reshape(chains * number, *v.shape[2:]) for k, v in draws.items()}
    target, points = flat_points(fit, rows, flat)
    engine = LocalEngine(progressbar=progressbar)
    sums = Sums(target, units_of(target, rows, engine, ledger), engine, ledger)
    total = sums.values(points, "correction") + target.log_priors(points)
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


def _smooth(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    # a weight below e^-700 of the largest is as good as 0; -inf is clipped too
    centred = np.maximum(log_weights - log_weights.max(), -700.0)
    if np.ptp(centred) < 1e-10:
        return centred, 0.0
    if centred.size < FEWEST:
        raise SettingError(
            f"{centred.size} draws are too few to be corrected, since the tail of their weights "
            f"cannot be judged; sample at least {FEWEST}."
        )
    smoothed, (tail,) = rows_smoothed(centred.reshape(1, -1))
    return smoothed.reshape(log_weights.shape), float(tail)


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
