"""Moments of the residuals at each pilot draw, and the bias that follows from them.

The moments of D = residual / probability give, for any number of rows m, the variance of the
log-likelihood estimate and the distance of the perturbed target from the posterior.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

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
        Posterior weight of each draw; equal by default.
    distance
        Distance of each draw from their mean, in posterior standard deviations; infinite if
        unknown.
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
    share: np.ndarray = field(default_factory=lambda: np.zeros(0))
    distance: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        draws = len(self.mean)
        if not len(self.share):
            object.__setattr__(self, "share", np.full(draws, 1 / draws))
        if not len(self.distance):
            object.__setattr__(self, "distance", np.full(draws, np.inf))

    def spread(self, m: int) -> np.ndarray:
        """Return sigma^2 = Var(lhat) with m rows, at each draw."""
        return self.variance / m

    def quantile(self, values: np.ndarray, at: float) -> float:
        """Return a posterior quantile of a quantity with one value per draw."""
        return weighted_quantile(values, self.share, at)

    @property
    def typical_slope(self) -> float:
        """The median of `slope`."""
        return float(np.median(self.slope))

    def log_bias(self, m: int, ddof: int) -> np.ndarray:
        """Return b of the perturbed target L(t) p(t) e^b(t) at each draw; see `Bias`."""
        return Bias(self, m).log(m, ddof)

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


def weighted_quantile(values: np.ndarray, share: np.ndarray, at: float) -> float:
    """Return a quantile of values whose weights sum to one."""
    order = np.argsort(values)
    middle = np.cumsum(share[order]) - share[order] / 2
    return float(np.interp(at, middle, values[order]))


def representatives(share: np.ndarray, count: int) -> np.ndarray:
    """Return indices of `count` draws of equal posterior weight; all, if there are fewer.

    They are evenly spaced in the cumulative weight, so that a draw may occur more than once.
    """
    if len(share) <= count:
        return np.arange(len(share))
    below = np.cumsum(share)
    places = (np.arange(count) + 0.5) / count * below[-1]
    return np.minimum(np.searchsorted(below, places), len(below) - 1)
