"""Residuals of pilot rows at pilot draws, from which any design can be studied.

Pilot rows are drawn by the weighted design, whatever design is under study, and reweighted: a
uniform pilot would miss the very rows that make a uniform design fail. Pilot draws come from the
normal approximation of the posterior and are importance-weighted: if the posterior is skewed,
residuals are largest at draws that are very unlikely under it, and those must not dominate.

The moments of D = residual / probability give, for any number of rows m, the variance of the
log-likelihood estimate and the distance of the perturbed target from the posterior. The largest
eigenvalue of the covariance of the rows' gradients in whitened coordinates, divided by m, is the
noise of the gradient in posterior units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.protocols import ControlVariate, Proxy
from modicum.kernels.residuals import NumPyResiduals, needs_no_compiler, row_residuals
from modicum.methods.pilot.anchored_proxy import AnchoredProxy
from modicum.models.model import Batch
from modicum.random import typed
from modicum.runtime import FASTEST_COMPILE, SCATTERS, Array, Pytree, jit, one_blas_thread

SMALL = 0.1  # |y| below which the first terms of the series of e^(y - y^2/2) suffice
IN_CACHE = 2**19  # bytes of temporary arrays that stay in the processor's cache
SPLITS = (np.inf, 10.0, 3.0, 1.0, 0.3)  # thresholds of |e^b / E e^b - 1| below which b is small


@dataclass(frozen=True)
class Pilot:
    """Moments of D under the design, at each pilot draw.

    Attributes
    ----------
    variance, third, fourth
        Central moments of D_1, one per draw: Var(lhat) = variance / m.
    slope
        Largest eigenvalue of the covariance of D_1's gradient in whitened coordinates, at some
        draws from the posterior: the gradient noise in posterior units is slope / m.
    top_share
        Share of the variance that the largest 1 % of |D| hold, the median over draws.
    tail
        Pareto index k of |D| (Hill's estimate over the largest 1 %), the median over draws: above
        1/2 the variance, above 1/4 the variance of the variance estimate is in doubt.
    mean
        E D_1, one per draw: l - sum q over all rows but the certainty rows.
    values, weight
        D of each pilot row, (draws, rows), and the share of the design's draws it represents.
    share
        Posterior weight of each draw.
    distance
        Distance of each draw from their mean, in posterior standard deviations.
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
    share: np.ndarray
    distance: np.ndarray

    def quantile(self, values: np.ndarray, at: float) -> float:
        """Return a posterior quantile of a quantity with one value per draw."""
        order = np.argsort(values)
        share = self.share[order]
        return float(np.interp(at, np.cumsum(share) - share / 2, values[order]))

    @property
    def typical_slope(self) -> float:
        """The median of `slope`."""
        return float(np.median(self.slope))

    def bias(self, m: int, ddof: int) -> float:
        """Bound the shift of any posterior mean, in posterior sd; see `Bias.bound`."""
        return Bias(self, m).bound(m, ddof)

    def thinned(self, count: int) -> Pilot:
        """Return the moments at `count` draws of equal posterior weight."""
        at = representatives(self.share, count)
        moments = {name: getattr(self, name)[at] for name in _BY_DRAW}
        return replace(self, **moments, share=np.full(len(at), 1 / len(at)))


_BY_DRAW = ("variance", "third", "fourth", "mean", "values", "distance")


class Bias:
    """The log-bias b(t) = log E_u exp(lhat - l - sigma-hat^2 / 2) for every m >= `least`.

    With y = (D - E D) / m, the exponent is the sum of y - y^2/2 over the rows of the subsample, up
    to terms of order 1/m: b = m log E e^(y - y^2/2), whatever the distribution of D. For small y
    the expectation uses moments, e^(y - y^2/2) = 1 + y - y^3/3 - y^4/12 + ...; its order m^-2 is
    that of eq. 4.6. For large y it is an average over the pilot rows: a rare, large residual
    reduces the likelihood by its probability, not by its moments.
    """

    def __init__(self, pilot: Pilot, least: int) -> None:
        self.pilot = pilot
        parts = []
        for draws in in_blocks(pilot.values):
            centred = pilot.values[draws] - pilot.mean[draws, None]
            draw, row = np.nonzero(np.abs(centred) > SMALL * least)
            parts.append((draws.start + draw, centred[draw, row], pilot.weight[row]))
        self.draw, self.large, self.weight = map(np.concatenate, zip(*parts, strict=True))

    def log(self, m: int, ddof: int) -> np.ndarray:
        """Return b at each draw."""
        pilot, draws = self.pilot, len(self.pilot.mean)
        y = self.large / m
        beyond = np.expm1(y - y**2 / 2) - y + y**3 / 3 + y**4 / 12
        rest = np.bincount(self.draw, self.weight * beyond, draws)
        moments = -pilot.third / (3 * m**3) - pilot.fourth / (12 * m**4)
        s2 = pilot.variance / m
        b = m * np.log1p(np.maximum(moments + rest, -0.999)) + s2**2 / (2 * m)
        return np.asarray(b + s2 / (2 * m) if ddof == 0 else b)

    def bound(self, m: int, ddof: int) -> float:
        """Bound the shift of the mean of any linear combination of parameters, in posterior sds.

        The mean of h moves by E (e^b / E e^b - 1) (h - E h). Over any set of draws this is at most
        sd(h) times the root of E (e^b / E e^b - 1)^2 there, and over the others at most the mean of
        |e^b / E e^b - 1| times their distance. The set consists of draws where b is small; the
        others may lie where the posterior has no mass, and the perturbed target should have none.
        """
        b, share = self.log(m, ddof), self.pilot.share
        counted = share > 0
        b, share, distance = b[counted], share[counted], self.pilot.distance[counted]
        with np.errstate(over="ignore", invalid="ignore"):
            off = np.abs(np.exp(b - np.log(share @ np.exp(b - b.max())) - b.max()) - 1)
            bounds = []
            for split in SPLITS:
                near = off <= split
                far = float(np.sum((share * off * distance)[~near]))
                bounds.append(float(np.sqrt(share[near] @ off[near] ** 2)) + far)
        return min(bounds)


def in_blocks(values: np.ndarray) -> Iterator[slice]:
    """Divide draws, (draws, rows), into blocks small enough for temporary arrays in the cache."""
    together = max(1, IN_CACHE // max(1, values[:1].nbytes))
    for first in range(0, len(values), together):
        yield slice(first, first + together)


def representatives(share: np.ndarray, count: int) -> np.ndarray:
    """Return indices of `count` draws of equal posterior weight; all, if there are fewer.

    They are evenly spaced in the cumulative weight, so that a draw may occur more than once.
    """
    if len(share) <= count:
        return np.arange(len(share))
    below = np.cumsum(share)
    places = (np.arange(count) + 0.5) / count * below[-1]
    return np.minimum(np.searchsorted(below, places), len(below) - 1)


GROUP_DRAWS = 8  # draws at which NumPy evaluates groups
EXACT, POWERS = 16, 20  # most parameters for which the covariance is formed; else power iterations


def slopes(
    cv: ControlVariate[Pytree],
    batch: Batch,
    proxy: Proxy,
    draws: np.ndarray,
    weight: np.ndarray,
    factor: np.ndarray,
    of_groups: bool,
) -> np.ndarray:
    """Return the largest eigenvalue of the covariance of the rows' gradients, one per draw.

    Parameters
    ----------
    weight
        The share of the design's draws that each row represents.
    factor
        Multiplier of each row's residual over `probability`; see `reweighted`.
    of_groups
        Whether the batch holds groups in place of rows.
    """
    if needs_no_compiler(cv, proxy) and not (of_groups and proxy.a.shape[0] > EXACT):
        some = draws[:GROUP_DRAWS] if of_groups else draws
        gradients = map(NumPyResiduals(cv, batch, proxy).gradients, some)
        return _slopes_by_numpy(gradients, weight, factor)
    compiled = _slopes_of_groups if of_groups else _slopes_of_rows
    return np.asarray(compiled(cv, batch, proxy, draws, weight, factor))


def representative_rows(
    weight: np.ndarray, count: int, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return indices of `count` rows that represent all rows a design draws, and their shares.

    They are evenly spaced in the cumulative sum of, in equal parts, weights and second moments of
    `size`: a uniform design draws the most influential rows so rarely that weight alone would
    select none. If at most `count` rows are ever drawn, all of them are taken, padded with rows of
    share zero, so that the number of rows is always the same and code is compiled once.
    """
    drawn = np.flatnonzero(weight > 0)
    if len(drawn) <= count:
        at = np.r_[drawn, np.setdiff1d(np.arange(len(weight)), drawn)[: count - len(drawn)]]
        return at, weight[at]
    moment = weight * size**2
    importance = weight + (moment / moment.sum() if moment.sum() > 0 else 0.0)
    at = representatives(importance, count)
    share = weight[at] / importance[at]
    return at, share / share.sum()


def _slopes(
    cv: ControlVariate[Pytree],
    batch: Batch,
    proxy: Proxy,
    draws: Array,
    weight: Array,
    factor: Array,
) -> jax.Array:
    """Return the largest eigenvalue of the covariance of some rows' gradients, one per draw."""
    cached = cv.cache(batch, proxy)
    share = weight / weight.sum()

    def values(s: jax.Array) -> jax.Array:
        return jnp.asarray(factor * cv.values(cached, s, proxy))

    def largest(z: jax.Array) -> jax.Array:
        arrow = proxy.where.arrow
        if arrow is not None:  # draws are t - t*, slopes in whitened z
            _, slope = jax.linearize(lambda move: values(z + arrow @ move), jnp.zeros_like(z))
        else:
            _, slope = jax.linearize(values, z)
        if z.size <= EXACT:
            jacobian = jax.vmap(slope, out_axes=1)(jnp.eye(z.size))
            centred = jacobian - share @ jacobian
            return jnp.linalg.eigvalsh((centred * share[:, None]).T @ centred)[-1]
        back = jax.linear_transpose(slope, z)

        def times(
            _: jax.Array, previous: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            """Do a power iteration: return the covariance times v, normalised, and its length."""
            v, _ = previous
            along = slope(v)
            (after,) = back(share * (along - share @ along))
            length = jnp.linalg.norm(after)
            return after / jnp.maximum(length, 1e-300), length

        start = jax.random.normal(typed(jnp.zeros(2, jnp.uint32)), z.shape, z.dtype)
        first = (start / jnp.linalg.norm(start), jnp.zeros((), z.dtype))
        return jax.lax.fori_loop(0, POWERS, times, first)[1]

    return jax.lax.map(largest, draws)


def _slopes_by_numpy(
    gradients: Iterable[np.ndarray], weight: np.ndarray, factor: np.ndarray
) -> np.ndarray:
    """Like `_slopes`, in NumPy, from the gradients (rows, d) at each draw.

    Z'Z and ZZ' have the same largest eigenvalue, so that the smaller one is formed.
    """
    share = weight / weight.sum()
    largest = []
    for at_draw in gradients:
        scaled_up = factor[:, None] * at_draw
        with one_blas_thread.for_small(at_draw.shape[1]):
            Z = (scaled_up - share @ scaled_up) * np.sqrt(share)[:, None]
            square = Z.T @ Z if Z.shape[0] > Z.shape[1] else Z @ Z.T
            finite = np.all(np.isfinite(square))
            largest.append(np.linalg.eigvalsh(square)[-1] if finite else np.nan)
    return np.array(largest)


_slopes_of_rows = jit(static=0, options=FASTEST_COMPILE)(_slopes)
_slopes_of_groups = jit(static=0, options=SCATTERS)(_slopes)


BLOCK = 4096  # most rows for slopes
SLOPE_WORK = 4e7  # numbers in the slopes' covariance products, per draw
# Rows per column if there are many dense columns. Few rows inflate the largest eigenvalue of a
# covariance by a factor of (1 + sqrt(columns / rows))^2 if gradients point in all directions alike.
SLOPE_ROWS = 4
SLOPE_DRAWS = 16
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
    log_ratio: np.ndarray
    share: np.ndarray
    whitened: np.ndarray

    @property
    def probability(self) -> np.ndarray:
        """Expected number of times each row was drawn."""
        return np.asarray(self.rows["probability"])

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
        slope = self._slopes(weight, factor)
        values, weight = self.values[:, drawn] * factor[drawn], weight[drawn]
        mean, second, third, fourth = _moments(values, weight)
        # tails hardly differ between draws, and sorting is expensive
        some = representatives(self.share, 2 * SLOPE_DRAWS)
        tails = np.median([_tail(np.abs(values[k] - mean[k]), weight) for k in some], axis=0)
        by_draw = (second, third, fourth, slope, float(tails[0]), float(tails[1]), mean)
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
            shares = weight[first], factor[first]
            return slopes(form, self.few, proxy, at_draws, *shares, of_groups=True)
        size = proxy.a.shape[0]
        # rows are not whitened if the factor is an arrow
        products = size**2 if proxy.where.arrow is None else size
        count = int(np.clip(SLOPE_WORK / products, 64, BLOCK))
        if form.target.in_one_predictor and form.target.coding is None:
            count = max(count, SLOPE_ROWS * size)
        count = min(count, len(weight))
        squares = (self.share[draws] @ self.values[draws] ** 2 for draws in in_blocks(self.values))
        residual = factor * np.sqrt(sum(squares))
        at, share = representative_rows(weight, count, residual)
        batch = {name: np.asarray(values)[at] for name, values in self.rows.items()}
        return slopes(form, batch, proxy, at_draws, share, factor[at], of_groups=False)


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
    log_proxy: np.ndarray | float = 0.0,
    few: Batch | None = None,
    weighted: bool = False,
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
        Log ratio of proxy to that approximation at each draw.
    few
        For groups: the first few as a batch of contiguous rows.
    weighted
        Whether draws have the weights that make them draws of the posterior, and not equal ones.
    whitened
        The draws in whitened coordinates, if `draws` are not.
    """
    values = row_residuals(control_variate, batch, proxy).values(draws)
    ratio = values.sum(axis=1) + log_proxy  # the first part is l - sum q
    share = np.full(len(draws), 1 / len(draws))
    if weighted and np.all(np.isfinite(ratio)):
        share = posterior_share(ratio)
    where = draws if whitened is None else whitened
    return Residuals(control_variate, proxy, draws, batch, few, values, ratio, share, where)


def residuals_of(
    about: AnchoredProxy,
    rows: Batch,
    draws: np.ndarray,
    log_proxy: np.ndarray | float = 0.0,
    few: Batch | None = None,
    weighted: bool = False,
) -> Residuals:
    """Return the residuals of rows at whitened draws; see `evaluate`."""
    about.task.ledger.add("pilot", len(rows["probability"]) * len(draws), "density")
    where = (about.control_variate, rows, about.proxy, about.straight(draws))
    return evaluate(*where, log_proxy, few, weighted, draws if about.arrow else None)


def residuals_at(about: AnchoredProxy, points: np.ndarray, rows: Batch) -> Residuals:
    """Return the residuals of rows at whitened points that are not draws."""
    return residuals_of(about, rows, points, about.log_ratio(points))


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
    largest = np.maximum(size[above], 1e-300)
    hill = float(np.average(np.log(largest / largest[-1]), weights=weight[above]))
    return float(second[above].sum() / second.sum()), hill
