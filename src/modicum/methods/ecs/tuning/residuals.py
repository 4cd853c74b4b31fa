"""A pilot study of the residuals: how noisy the log-likelihood estimate will be, and how wrong.

Rows of the study are drawn by the weighted design whatever design is studied, and reweighted: a
uniform pilot would miss the very rows that make a uniform design fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.estimators import LinearTaylor
from modicum.kernels.base import ControlVariate, Proxy
from modicum.models.base import Batch
from modicum.runtime import FASTEST_COMPILE, SCATTERS, jit

__all__ = ["Pilot", "study"]

BLOCK = 4096  # rows with codes that are whitened at once; slopes take no more
SLOPE_WORK = 4e7  # numbers in the slopes' covariance products, per draw


@dataclass(frozen=True)
class Pilot:
    """Moments of D over the design, at each of a few posterior draws.

    Attributes
    ----------
    variance, third, fourth
        Central moments of D_1, one per draw: Var(lhat) = variance / m.
    slope
        Largest eigenvalue of the covariance of D_1's gradient in whitened coordinates, one per
        draw: the gradient noise in posterior units is slope / m.
    top_share
        Share of the variance that the largest 1 % of |D| hold, the median over draws.
    tail
        Pareto index k of |D| (Hill's estimate over the largest 1 %), the median over draws: above
        1/2 the variance, above 1/4 the variance of the variance estimate is in doubt.
    mean
        E D_1 = l - sum q, one per draw.
    values, weight
        D of each pilot row, (draws, rows), and the share of the design's draws it stands for.
    """

    variance: np.ndarray
    third: np.ndarray
    fourth: np.ndarray
    slope: np.ndarray
    top_share: float
    tail: float
    mean: np.ndarray
    values: np.ndarray
    weight: np.ndarray

    def spread(self, m: int) -> np.ndarray:
        """sigma^2 = Var(lhat) with m rows, at each draw."""
        return self.variance / m

    def log_bias(self, m: int, ddof: int) -> np.ndarray:
        """b of the perturbed target L(t) p(t) e^b(t), at each draw.

        From e^(y - y^2/2) = 1 + y - y^3/3 - y^4/12 + ...; its order m^-2 is that of eq. 4.6.
        """
        s2 = self.variance / m
        fourth = self.fourth / (12 * m**3)
        b = -self.third / (3 * m**2) - fourth + s2**2 / (2 * m)
        return b + s2 / (2 * m) if ddof == 0 else b

    def bias(self, m: int, ddof: int) -> float:
        """A bound on the shift of any posterior mean, in posterior standard deviations.

        To first order the mean of h moves by Cov(h, b), at most sd(h) sd(b).
        """
        return float(np.std(self.log_bias(m, ddof)))


def study(
    control_variate: ControlVariate[Any],
    batch: Batch,
    ratio: np.ndarray,
    proxy: Proxy,
    pilot: np.ndarray,
    few: Batch | None = None,
) -> Pilot:
    """Study the residuals of the rows in `batch` at the draws `pilot` (draws, d).

    Parameters
    ----------
    batch
        Pilot rows, with the `probability` each has under the design that is studied.
    ratio
        That probability over the one the row was drawn with: 1 where the designs agree.
    few
        Groups: the first of them as a batch of their own, since their rows lie side by side.
    """
    weight = ratio / ratio.sum()
    evaluate = _values_in_blocks if few is None else _values_of_groups
    cached, evaluated = evaluate(control_variate, batch, proxy, pilot)
    values = np.asarray(evaluated)
    mean = values @ weight
    centred = values - mean[:, None]
    second, third, fourth = (np.asarray(centred**k @ weight) for k in (2, 3, 4))
    size = proxy.a.shape[0]
    rows = int(np.clip(SLOPE_WORK / size**2, 64, BLOCK))
    if few is None:
        slopes = _slopes(control_variate, rows, cached, proxy, pilot[:8], weight)
    else:
        slopes = _slopes_of_groups(control_variate, few, proxy, pilot[:8], weight)
    shares, tails = zip(*(_tail(np.abs(c), weight) for c in centred), strict=True)
    return Pilot(
        second,
        third,
        fourth,
        np.asarray(slopes),
        float(np.median(shares)),
        float(np.median(tails)),
        mean,
        values,
        weight,
    )


def _evaluate(
    cv: ControlVariate[Any], batch: Any, proxy: Proxy, pilot: Any
) -> tuple[Any, jax.Array]:
    cached = cv.cache(batch, proxy)
    return cached, jax.lax.map(lambda z: cv.values(cached, z, proxy), pilot)


_values = jit(static=0, options=FASTEST_COMPILE)(_evaluate)
_values_of_groups = jit(static=0, options=SCATTERS)(
    _evaluate
)  # rows at many nodes: compiling is the lesser part


def _values_in_blocks(
    cv: ControlVariate[Any], batch: Batch, proxy: Proxy, pilot: np.ndarray
) -> tuple[Any, jax.Array | np.ndarray]:
    """Values of all rows; of those with codes a block is whitened at a time, and the first kept.

    Factors of many levels make few numbers many: 20,000 rows of 900 columns take 140 MB, and as
    much again while they are made.
    """
    rows = len(batch["probability"])
    coded = isinstance(cv, LinearTaylor) and cv.target.coding is not None
    if not coded or rows <= BLOCK:
        return _values(cv, batch, proxy, pilot)
    first, parts = None, []
    for start in range(0, rows, BLOCK):
        row_ids = np.minimum(np.arange(start, start + BLOCK), rows - 1)  # all of one shape
        block = {name: np.asarray(values)[row_ids] for name, values in batch.items()}
        cached, values = _values(cv, block, proxy, pilot)
        first = cached if first is None else first
        parts.append(np.asarray(values)[:, : rows - start])
    return first, np.concatenate(parts, axis=1)


@jit(static=(0, 1), options=FASTEST_COMPILE)
def _slopes(
    cv: ControlVariate[Any], rows: int, cached: Any, proxy: Proxy, pilot: Any, weight: Any
) -> jax.Array:
    """Largest eigenvalue of the covariance of the first `rows` gradients, one per pilot draw."""
    few = jax.tree.map(lambda a: a[:rows], cached)
    return _largest_slopes(cv, few, weight[:rows], proxy, pilot)


@jit(static=0, options=SCATTERS)
def _slopes_of_groups(
    cv: ControlVariate[Any], few: Any, proxy: Proxy, pilot: Any, weight: Any
) -> jax.Array:
    """The same of groups."""
    groups = few["probability"].shape[0]
    return _largest_slopes(cv, cv.cache(few, proxy), weight[:groups], proxy, pilot)


def _largest_slopes(
    cv: ControlVariate[Any], few: Any, weight: Any, proxy: Proxy, pilot: Any
) -> jax.Array:
    share = weight / weight.sum()

    def largest(z: jax.Array) -> jax.Array:
        jacobian = jax.jacfwd(lambda z: cv.values(few, z, proxy))(z)
        centred = jacobian - share @ jacobian
        return jnp.linalg.eigvalsh((centred * share[:, None]).T @ centred)[-1]

    return jax.lax.map(largest, pilot)


def _tail(size: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Share of the second moment in the largest 1 %, and Hill's estimate of the tail index."""
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
