"""Kernel Stein discrepancy of a posterior's draws, from all rows or from a few rows a draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum.diagnostics import kernel_stein_discrepancy, squared_stein_discrepancy
from modicum.diagnostics.inefficiency import finite_and_moving
from modicum.errors import SettingError
from modicum.ledger import Ledger
from modicum.posterior.prediction import thinned

if TYPE_CHECKING:
    from modicum.posterior.posterior import Posterior
    from modicum.rows import Rows

__all__ = ["SteinDiscrepancy", "stein_discrepancy"]


@dataclass(frozen=True)
class SteinDiscrepancy:
    """How far draws are from the posterior, by their scores.

    Attributes
    ----------
    squared
        The squared discrepancy without bias (U-statistic): about zero, of either sign, for draws
        of the posterior.
    value
        The discrepancy (V-statistic), which for n independent exact draws is about `floor`; nan
        where scores were estimated from a subsample, whose noise would count as discrepancy.
    floor
        What `value` would be for as many independent draws of the posterior; nan likewise.
    draws, subsample
        Draws used, and rows for the score of each; None: all rows.
    """

    squared: float
    value: float
    floor: float
    draws: int
    subsample: int | None


def stein_discrepancy(
    posterior: Posterior,
    rows: Rows,
    draws: int,
    subsample: int | None,
    random_seed: int,
    progressbar: bool,
) -> SteinDiscrepancy:
    """Measure draws by their scores; see `Posterior.stein_discrepancy`."""
    model = getattr(posterior.predictor, "model", None)
    if model is None:
        raise SettingError(
            "this posterior was loaded without its model; measure it before saving, or give "
            "scores to mo.diagnostics.kernel_stein_discrepancy."
        )
    if draws < 2:
        raise SettingError(f"draws are compared with each other: use two at least, not {draws}.")
    if subsample is not None and subsample < 1:
        raise SettingError(f"subsample must be a whole number of rows, or None, not {subsample}.")
    subset, weights = thinned(posterior, draws)
    subsample = None if subsample is None or subsample >= len(rows) else subsample
    points, scores = _points_and_scores(model, rows, subset, subsample, random_seed, progressbar)
    scale = points.std(axis=0, ddof=1)
    if not finite_and_moving(points[None]).all():
        raise SettingError("some parameters never move; there is no discrepancy to measure.")
    settings: dict[str, Any] = {"scale": scale, "weights": weights}
    squared = squared_stein_discrepancy(points, scores, **settings)
    value = floor = float("nan")
    if subsample is None:
        value = kernel_stein_discrepancy(points, scores, **settings)
        own = np.sum((scores * scale) ** 2, axis=1) + points.shape[1]  # k0(x, x) of the kernel
        share = weights.reshape(-1) / weights.sum()
        floor = float(np.sqrt(np.sum(share**2 * own)))
    return SteinDiscrepancy(squared, value, floor, len(points), subsample)


def _points_and_scores(
    model: Any, rows: Rows, draws: Any, subsample: int | None, seed: int, progressbar: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Draws as flat unconstrained vectors, and gradients of the log-posterior there."""
    from modicum.models import Target
    from modicum.passes import LocalEngine, Sums
    from modicum.passes.scores import scores

    target, _ = Target.of(model, rows)
    points = target.ravel_reported(draws)
    sums = Sums(target, rows, LocalEngine(progressbar=progressbar), Ledger(rows=len(rows)))
    return points, scores(sums, points, subsample, seed)
