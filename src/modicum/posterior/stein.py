"""Kernel Stein discrepancy of a posterior's draws, from all rows or from a few rows a draw.

The score of a draw is a sum over all rows. With control variates about the mean of the draws,

    score(t) = A + B (t - t*) + (n/m) sum_i [g_i(t) - g_i(t*) - H_i (t - t*)] + prior score,

m rows a draw estimate it without bias (eq. 4.7 of the HMC-ECS paper). Rows are drawn anew for every
draw, so that errors are independent, which is what the unbiased squared discrepancy needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.diagnostics import kernel_stein_discrepancy, squared_stein_discrepancy
from modicum.diagnostics.series import finite_and_moving
from modicum.errors import SettingError
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.passes import LocalEngine, Sums
from modicum.passes.mode import DENSE_LIMIT
from modicum.posterior.prediction import thinned
from modicum.precision import in_double_precision

if TYPE_CHECKING:
    from modicum.posterior.posterior import Posterior
    from modicum.rows import Rows

__all__ = ["SteinDiscrepancy", "stein_discrepancy"]

TOGETHER = 2**24  # numbers of rows held for a group of draws


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
    target, _ = Target.of(model, rows)
    subset, weights = thinned(posterior, draws)
    points = target.ravel_reported(subset)
    sums = Sums(target, rows, LocalEngine(progressbar=progressbar), Ledger(rows=len(rows)))
    if subsample is None or subsample >= len(rows):
        subsample, scores = None, sums.gradients(points, "scores")
    else:
        scores = _estimated(sums, points, subsample, random_seed)
    scores = scores + _prior_scores(target, points)
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


def _estimated(sums: Sums, points: np.ndarray, subsample: int, seed: int) -> np.ndarray:
    """Unbiased log-likelihood gradients at each point, from rows of its own."""
    centre = points.mean(axis=0)
    steps = points - centre
    second = len(centre) <= DENSE_LIMIT  # else the expansion stops at the gradient
    if second:
        _, gradient, hessian = sums.hessian(centre, "anchor")
        known = gradient + steps @ hessian
    else:
        known = np.broadcast_to(sums.gradient(centre, "anchor")[1], points.shape)
    rng, n = np.random.default_rng(seed), len(sums.rows)
    width = max(1, sums.rows.row_bytes // sums.rows.dtype.itemsize)
    group = max(1, min(len(points), TOGETHER // (subsample * width)))
    found = []
    for first in range(0, group * ceil(len(points) / group), group):
        at = np.arange(first, first + group) % len(points)  # the last group is filled up
        batch = sums.rows.take(rng.integers(0, n, size=(group, subsample)))
        found.append(_residual_gradients(sums.target, second, points[at], centre, batch))
    residual = np.concatenate(found)[: len(points)]
    return np.asarray(known + (n / subsample) * residual)


@in_double_precision
def _residual_gradients(target: Target, second: bool, t: Any, centre: Any, batch: Any) -> Any:
    return np.asarray(_residuals(target, second, t, centre, batch))


@partial(jax.jit, static_argnums=(0, 1))
def _residuals(target: Target, second: bool, points: Any, centre: Any, batches: Any) -> jax.Array:
    def one(point: jax.Array, batch: Any) -> jax.Array:
        gradient = jax.grad(lambda t: jnp.sum(target.log_likelihood(t, batch)))
        if not second:
            return gradient(point) - gradient(centre)
        at_centre, along = jax.jvp(gradient, (centre,), (point - centre,))
        return gradient(point) - at_centre - along

    return jax.vmap(one)(points, batches)


@in_double_precision
def _prior_scores(target: Target, points: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(jax.grad(target.log_prior))(points))
