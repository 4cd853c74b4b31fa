"""Kernel Stein discrepancy of a posterior's draws, from all rows or a few rows per draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modicum.diagnostics import kernel_stein_discrepancy, squared_stein_discrepancy
from modicum.diagnostics.inefficiency import finite_and_moving
from modicum.errors import SettingError, whole_number
from modicum.ledger import Ledger
from modicum.passes import LocalEngine, Sums
from modicum.passes.scores import scores as log_posterior_scores
from modicum.posterior.alignment import require_rows_of_fit
from modicum.posterior.draws import Draws, require_finite, thinned
from modicum.posterior.fitted import Fit, flat_points
from modicum.rows import Rows

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
    source: Draws,
    fit: Fit,
    rows: Rows,
    draws: int,
    subsample: int | None,
    random_seed: int,
    progressbar: bool,
) -> SteinDiscrepancy:
    """Compute the Stein discrepancy; see `Posterior.stein_discrepancy`."""
    whole_number("draws", draws, 2)  # draws are compared with each other
    whole_number("random_seed", random_seed, 0)
    if subsample is not None:
        whole_number("subsample", subsample)
    number = None if fit.rows is None else source.ledger.rows
    require_rows_of_fit(rows, fit.rows, number, PURPOSE)
    require_finite(source.draws, PURPOSE)
    subset, weights = thinned(source, draws)
    if weights.size < 2:
        raise SettingError(f"{PURPOSE} compares draws with each other, and there is only one.")
    if not weights.sum() > 0:
        raise SettingError(
            f"{PURPOSE} needs draws whose weights have a positive sum, and here the signs cancel."
        )
    subsample = None if subsample is None or subsample >= len(rows) else subsample
    target, points = flat_points(fit, rows, subset)
    if not finite_and_moving(points[None]).all():
        raise SettingError(
            "some parameters have the same value in all draws, so there is no discrepancy to "
            "measure; sample again, or fix these parameters in the model."
        )
    sums = Sums(target, rows, LocalEngine(progressbar=progressbar), Ledger(rows=len(rows)))
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
        share = weights.reshape(-1) / weights.sum()
        floor = float(np.sqrt(np.sum(share**2 * own)))
    return SteinDiscrepancy(squared, value, floor, len(points), subsample)
