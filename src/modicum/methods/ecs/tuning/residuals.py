"""Residuals of pilot rows at pilot draws, from which any design can be studied.

Pilot rows are drawn by the weighted design, whatever design is under study, and reweighted: a
uniform pilot would miss the very rows that make a uniform design fail. Pilot draws come from the
normal approximation of the posterior and are importance-weighted: if the posterior is skewed,
residuals are largest at draws that are very unlikely under it, and those must not dominate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from modicum.estimators import LinearTaylor
from modicum.estimators.by_numpy import NumPyRows, needs_no_compiler
from modicum.estimators.groups.by_numpy import NumPyGroupValues, groups_need_no_compiler
from modicum.kernels.base import ControlVariate, Proxy
from modicum.methods.ecs.tuning.moments import Pilot, in_blocks, representatives
from modicum.methods.ecs.tuning.slopes import (
    representative_rows,
    slopes_of_groups,
    slopes_of_rows,
)
from modicum.models.arrow import ArrowFactor
from modicum.models.base import Batch
from modicum.runtime import FASTEST_COMPILE, SCATTERS, Array, Pytree, jit

BLOCK = 4096  # rows with codes that are whitened at once, and most rows for slopes
SLOPE_WORK = 4e7  # numbers in the slopes' covariance products, per draw
# Rows per column if there are many dense columns. Few rows inflate the largest eigenvalue of a
# covariance by a factor of (1 + sqrt(columns / rows))^2 if gradients point in all directions alike.
SLOPE_ROWS = 4
SLOPE_DRAWS = 16
TOGETHER = 8  # draws at which rows are evaluated by one product
FEWEST_DRAWS = 0.125  # smallest effective share of the draws


@dataclass(frozen=True)
class Residuals:
    """Pilot rows evaluated at the pilot draws, from which any design can be studied.

    Attributes
    ----------
    control_variate, proxy, draws
        The expansion, and the points at which its residuals were evaluated.
    rows, few
        The pilot rows; for groups, also the first few as a batch.
    values
        Residual over `probability`, (draws, rows).
    probability
        Expected number of times each row was drawn.
    log_ratio
        Log ratio of posterior to normal approximation at each draw, up to a constant.
    share
        Posterior weight of each draw.
    whitened
        The draws in whitened coordinates.
    """

    control_variate: ControlVariate[Pytree]
    proxy: Proxy
    draws: np.ndarray
    rows: Batch
    few: Batch | None
    values: np.ndarray
    probability: np.ndarray
    log_ratio: np.ndarray
    share: np.ndarray
    whitened: np.ndarray

    @property
    def finite(self) -> bool:
        """Whether every row has a finite residual at every draw."""
        return bool(np.all(np.isfinite(self.values)))

    @property
    def distance(self) -> np.ndarray:
        """Distance of each draw from the posterior's mean, in standard deviations."""
        draws = self.whitened
        return np.asarray(np.linalg.norm(draws - self.share @ draws, axis=1))

    def pilot(self, probability: np.ndarray) -> Pilot:
        """Return moments under a design that draws rows with this `probability`, possibly zero."""
        factor, weight = reweighted(self.probability, probability)
        drawn = slice(None) if np.all(weight > 0) else weight > 0
        slopes = self._slopes(weight, factor)
        values, weight = self.values[:, drawn] * factor[drawn], weight[drawn]
        mean, second, third, fourth = _moments(values, weight)
        # tails hardly differ between draws, and sorting is expensive
        some = representatives(self.share, 2 * SLOPE_DRAWS)
        tails = np.median([_tail(np.abs(values[k] - mean[k]), weight) for k in some], axis=0)
        by_draw = (second, third, fourth, slopes, float(tails[0]), float(tails[1]), mean)
        return Pilot(*by_draw, values, weight, self.share, self.distance)

    def variance(self, probability: np.ndarray) -> np.ndarray:
        """Return the variance of D_1 at each draw under a design with this `probability`."""
        factor, weight = reweighted(self.probability, probability)
        with np.errstate(all="ignore"):  # far out, residuals may overflow
            return np.asarray(_moments(self.values * factor, weight)[1])

    def _slopes(self, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
        form, proxy = self.control_variate, self.proxy
        at_draws = self.draws[representatives(self.share, SLOPE_DRAWS)]
        if self.few is not None:
            first = slice(len(self.few["probability"]))
            return slopes_of_groups(form, self.few, proxy, at_draws, weight[first], factor[first])
        size = proxy.a.shape[0]
        # rows are not whitened if the factor is an arrow
        products = size if isinstance(proxy.factor, ArrowFactor) else size**2
        count = int(np.clip(SLOPE_WORK / products, 64, BLOCK))
        if proxy.row_factor is not None:
            count = SLOPE_ROWS * size
        count = min(count, len(weight))
        squares = (self.share[draws] @ self.values[draws] ** 2 for draws in in_blocks(self.values))
        residual = factor * np.sqrt(sum(squares))
        at, share = representative_rows(weight, count, residual)
        batch = {name: np.asarray(values)[at] for name, values in self.rows.items()}
        return slopes_of_rows(form, batch, proxy, at_draws, share, factor[at])


class Tails(NamedTuple):
    """Where the posterior reaches, and how noisy the log-likelihood estimate is there.

    Attributes
    ----------
    distance
        Distance of points far out from the posterior's mean, in posterior sds.
    fall
        How far the log-posterior falls from the mean to each of them.
    variance
        Variance of D_1 at each of them: Var(lhat) = variance / m.
    """

    distance: np.ndarray
    fall: np.ndarray
    variance: np.ndarray


def _moments(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return mean and central moments two to four of the rows' values at each draw."""
    moments = np.empty((4, len(values)))
    for draws in in_blocks(values):
        mean = values[draws] @ weight
        centred = values[draws] - mean[:, None]
        square = centred**2
        moments[:, draws] = mean, square @ weight, (square * centred) @ weight, square**2 @ weight
    return moments


def reweighted(drawn_with: np.ndarray, studied: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor of D = d / w under another design, and each row's share of its draws.

    Both are zero for rows that the design never draws. `drawn_with` need not sum to one.
    """
    drawn = studied > 0
    nothing = np.zeros(len(drawn))
    factor = np.divide(drawn_with, studied, where=drawn, out=nothing.copy())
    share = np.divide(studied, drawn_with, where=drawn, out=nothing)
    return factor, share / share.sum()


def evaluate(
    control_variate: ControlVariate[Pytree],
    batch: Batch,
    proxy: Proxy,
    draws: np.ndarray,
    log_proxy: np.ndarray | None = None,
    few: Batch | None = None,
    resampled: bool = False,
    whitened: np.ndarray | None = None,
) -> Residuals:
    """Evaluate the rows in `batch` at all draws.

    Their `probability` is the expected number of times each was drawn, so that the sum of values /
    probability over them estimates the sum over all rows.

    Parameters
    ----------
    draws
        Draws of the posterior's normal approximation, in whitened coordinates, (draws, d).
    log_proxy
        Log ratio of proxy to that approximation at each draw; None: equal weights.
    few
        For groups: the first few as a batch of contiguous rows.
    resampled
        Whether the draws were already resampled by the proxy, and so have equal weights.
    whitened
        The draws in whitened coordinates, if `draws` are not.
    """
    if few is None:
        values = np.asarray(_values_in_blocks(control_variate, batch, proxy, draws))
    elif groups_need_no_compiler(control_variate):
        values = NumPyGroupValues(control_variate, batch, proxy).values(draws)
    else:
        values = np.asarray(_values_of_groups(control_variate, batch, proxy, draws))
    ratio = values.sum(axis=1)  # l - sum q
    share = np.full(len(draws), 1 / len(draws))
    if log_proxy is not None:
        ratio = ratio + log_proxy
        if not resampled and np.all(np.isfinite(ratio)):
            share = posterior_share(ratio)
    probability = np.asarray(batch["probability"])
    where = draws if whitened is None else whitened
    about = (control_variate, proxy, draws, batch, few)
    return Residuals(*about, values, probability, ratio, share, where)


def study(
    control_variate: ControlVariate[Pytree],
    batch: Batch,
    ratio: np.ndarray,
    proxy: Proxy,
    draws: np.ndarray,
) -> Pilot:
    """Study the residuals of the rows in `batch` at draws (draws, d) of equal weight.

    Parameters
    ----------
    batch
        Pilot rows, with their `probability` under the design that is studied.
    ratio
        That probability over the one with which the row was drawn: 1 if the designs agree.
    """
    probability = np.asarray(batch["probability"])
    drawn_with = dict(batch) | {"probability": probability / ratio}
    return evaluate(control_variate, drawn_with, proxy, draws).pilot(probability)


def _evaluate(cv: ControlVariate[Pytree], batch: Batch, proxy: Proxy, draws: Array) -> jax.Array:
    cached = cv.cache(batch, proxy)
    return jax.lax.map(lambda z: cv.values(cached, z, proxy), draws, batch_size=TOGETHER)


_values = jit(static=0, options=FASTEST_COMPILE)(_evaluate)
# Rows of groups are evaluated at many nodes, so that optimising the code pays.
_values_of_groups = jit(static=0, options=SCATTERS)(_evaluate)


def _values_in_blocks(
    cv: ControlVariate[Pytree], batch: Batch, proxy: Proxy, draws: np.ndarray
) -> jax.Array | np.ndarray:
    """Evaluate all rows; rows with codes are whitened block by block.

    Whitened rows of factors with many levels are large: 20,000 rows of 900 columns take 140 MB, and
    as much again while they are computed.
    """
    if needs_no_compiler(cv) and not isinstance(proxy.factor, ArrowFactor):
        return NumPyRows(cv, batch, proxy).values(draws)
    count = len(batch["probability"])
    coded = isinstance(cv, LinearTaylor) and cv.target.coding is not None
    if not coded or count <= BLOCK:
        return _values(cv, batch, proxy, draws)
    parts = []
    for start in range(0, count, BLOCK):
        row_ids = np.minimum(np.arange(start, start + BLOCK), count - 1)  # pad to one shape
        block = {name: np.asarray(values)[row_ids] for name, values in batch.items()}
        parts.append(np.asarray(_values(cv, block, proxy, draws))[:, : count - start])
    return np.concatenate(parts, axis=1)


def posterior_share(log_ratio: np.ndarray) -> np.ndarray:
    """Return importance weights from log-ratios, tempered if they are too uneven.

    They are proportional to e^(c log_ratio), with c = 1 unless the effective share of the draws
    would fall below an eighth: c is then lowered until it does not.
    """

    def share(c: float) -> np.ndarray:
        weight = np.exp(c * (log_ratio - log_ratio.max()))
        return np.asarray(weight / weight.sum())

    least = FEWEST_DRAWS * len(log_ratio)
    low, high = 0.0, 1.0
    if 1 / np.sum(share(1.0) ** 2) >= least:
        return share(1.0)
    for _ in range(30):
        middle = (low + high) / 2
        is_large = 1 / np.sum(share(middle) ** 2) >= least
        low, high = (middle, high) if is_large else (low, middle)
    return share(low)


def _tail(size: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Return the share of the second moment in the largest 1 %, and Hill's tail index."""
    order = np.argsort(-size)
    size, weight = size[order], weight[order]
    above = np.cumsum(weight) <= 0.01
    above[0] = True
    second = weight * size**2
    if not second.sum() > 0:
        return 0.0, 0.0
    threshold = size[above][-1]
    excess = np.log(np.maximum(size[above], 1e-300) / max(threshold, 1e-300))
    hill = float(np.average(excess, weights=weight[above]))
    return float(second[above].sum() / second.sum()), hill
