"""Choose the rows m, blocks G and refreshes K of a subsample from a pilot study."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import ceil, sqrt

import numpy as np
from scipy.special import ndtr, ndtri

from modicum.kernels.likelihood_estimates import LIKELIHOODS, Estimator, EveryRow
from modicum.methods.method import Chosen, Tuning
from modicum.methods.pilot.coreset import Coreset
from modicum.methods.pilot.pilot_residuals import Bias, Pilot
from modicum.runtime import Pytree

SMALLEST = 30
# Fewest groups; down to FEWEST_GROUPS if that is a hundred times what every criterion needs: the
# rough estimate of sigma^2 from so few groups does not matter then. On the flights, four aircraft
# leave sigma^2 = 0.002 and bound the bias at 2e-5 posterior sd.
ENOUGH_GROUPS, FEWEST_GROUPS, AMPLE = 10, 4, 100
FEWEST_BLOCKS = 20
MEDIAN = 1.0  # largest sigma^2 of the log-likelihood estimate at the median draw
NOISY = 3.0  # sigma^2 above which the perturbed target is inaccurate
SELDOM = 0.01  # share of the draws in which that may happen
MARGIN = 2.5  # safety factor: sigma^2 varies along the chain, and there are few pilot draws
MOST = 10**12  # rows
NOISE = 0.25  # largest gradient noise, in posterior variances


@dataclass(frozen=True)
class Tuned(ABC):
    """The subsample that a pilot study chose, together with a number of certainty rows.

    Attributes
    ----------
    estimator
        The estimator of the likelihood.
    blocks, refreshes
        Its blocks, and blocks proposed anew per iteration.
    coreset
        Rows whose residuals predict the estimate of the likelihood, if any.
    certainty
        The number of certainty rows.
    cost
        Predicted evaluations of rows per effective draw.
    why
        The reason for each setting.
    """

    estimator: Estimator[Pytree]
    blocks: int
    refreshes: int
    coreset: Coreset | None = field(default=None, kw_only=True)
    certainty: int = field(default=0, kw_only=True)
    cost: float = field(default=0.0, kw_only=True)
    why: dict[str, str] = field(default_factory=dict, kw_only=True)

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Capacity of the subsample in rows."""

    @property
    def tables(self) -> Pytree:
        """The estimator's constants for this data set."""
        return ()

    @property
    @abstractmethod
    def tuning(self) -> Tuning:
        """All settings with their reasons."""

    def explained(self, *names: str) -> Tuning:
        """Return the values of these settings with their reasons."""
        return {name: {"value": getattr(self, name), "why": self.why[name]} for name in names}


@dataclass(frozen=True)
class Choice(Tuned):
    """An estimator from m rows, with m, G and K.

    Attributes
    ----------
    subsample
        m.
    bias_bound
        Bound on the shift of any posterior mean, in posterior standard deviations, by the pilot
        study.
    """

    subsample: int
    bias_bound: float

    @property
    def capacity(self) -> int:
        """The rows m."""
        return self.subsample

    @property
    def tuning(self) -> Tuning:
        """All settings with their reasons."""
        bound = Chosen(value=float(f"{self.bias_bound:.2g}"), why=self.why["bias_bound"])
        return (
            self.explained("subsample", "blocks", "refreshes")
            | {"bias_bound": bound, "variance": self.why["variance"]}
            | self.explained("certainty")
        )


def refresh_acceptance(variance: float, blocks: int) -> float:
    """Return the acceptance rate of a block refresh, 2 Phi(-sqrt(sigma^2 / (2 G)))."""
    return float(2 * ndtr(-sqrt(variance / (2 * blocks))))


def best_sweep(noise: float, steps: int, accept: float, fresh: float = 1.0) -> float:
    """Return the share s = K/G of the subsample to refresh per iteration, for least cost per ESS.

    An iteration costs m (L + 1 + fresh s) evaluations, where a fresh row costs as much as `fresh`
    evaluations, and the inefficiency is 1 + 2 v / (s a), with v the gradient noise in posterior
    variances and a the acceptance rate of a refresh.

    Examples
    --------
    >>> best_sweep(noise=0.1, steps=4, accept=1.0), best_sweep(0.1, 4, 1.0, fresh=4.0)
    (1.0, 0.5)
    """
    return sqrt(2 * noise * (steps + 1) / (accept * fresh))


def cost_per_draw(
    rows: int, refreshing: float, steps: int, sweep: float, noise: float, accept: float
) -> float:
    """Predict evaluations per effective draw, with so many rows drawn or fixed.

    An iteration evaluates all of them L + 1 times, and refreshes a share of those drawn, which
    costs `refreshing` evaluations; the inefficiency is that of `best_sweep`.
    """
    return (rows * (steps + 1) + refreshing) * (1 + 2 * noise / (sweep * accept))


def choose(
    pilot: Pilot,
    steps: int,
    bias: float = 0.05,
    estimator: EveryRow = LIKELIHOODS["perturbed"],
    fresh: float = 1.0,
    of_groups: bool = False,
    certainty: int = 0,
    **fixed: int,
) -> Choice:
    """Choose the settings that the user has not set.

    Parameters
    ----------
    pilot
        Moments of the residuals.
    steps
        Expected leapfrog steps per iteration, L.
    bias
        Largest shift of a posterior mean, in posterior standard deviations, that m may allow.
    estimator
        The estimator of the likelihood.
    fresh
        Cost of a fresh row, in evaluations of a row.
    of_groups
        Whether groups are subsampled, of which fewer are needed.
    certainty
        Number of certainty rows, which the pilot's moments leave out.
    fixed
        m, G and K (`subsample`, `blocks`, `refreshes`), where they are set.
    """
    needs = _needs(pilot, bias, estimator.ddof, of_groups)
    binding = max(needs, key=lambda name: needs[name])
    m = fixed.get("subsample", needs[binding])
    variance = pilot.quantile(pilot.variance, 0.5) / m
    G = fixed.get("blocks") or _blocks(variance, m, "subsample" in fixed, of_groups)
    if "subsample" not in fixed:
        m = G * ceil(m / G)
    noise = pilot.typical_slope / m
    accept = max(refresh_acceptance(variance, G), 1e-3)
    unit = "groups" if of_groups else "rows"
    sweep = best_sweep(noise, steps, accept, fresh)
    K = fixed.get("refreshes", int(np.clip(ceil(G * sweep), 1, G)))
    why = {
        "subsample": f"the smallest m with {_REASON[binding].format(needs['floor'], unit)}",
        "blocks": f"a refresh is then accepted with probability {accept:.2f}",
        "refreshes": f"balances refreshing rows against gradient noise of {noise:.2g} posterior "
        "variances",
        "bias_bound": "how far, in posterior sd, the perturbation may move any posterior mean, by "
        "the pilot study",
        "variance": f"sigma^2 of the log-likelihood estimate: median {variance:.2g}, up to "
        f"{seldom_exceeded(pilot) / m:.2g} in 99 of 100 draws",
    }
    why |= dict.fromkeys(fixed, "set by hand")
    cost = cost_per_draw(m + certainty, m * (K / G) * fresh, steps, K / G, noise, accept)
    settings = (estimator, int(G), int(K), int(m), pilot.bias(m, estimator.ddof))
    return Choice(*settings, certainty=certainty, cost=cost, why=why)


_REASON = {
    "floor": "at least {} {}",
    "median": "sigma^2 of the log-likelihood estimate at most 1 at the median pilot draw",
    "seldom": f"sigma^2 of the log-likelihood estimate at most {NOISY / MARGIN:g} in 99 of 100 "
    "draws",
    "slope": "gradient noise of a quarter of the posterior variance at the median pilot draw",
    "bias": "a perturbation that moves no posterior mean by more than the bias allowed",
}


def _needs(pilot: Pilot, bias: float, ddof: int, of_groups: bool) -> dict[str, int]:
    """Return the smallest m that each criterion allows."""
    criteria = {
        "median": pilot.quantile(pilot.variance, 0.5) / MEDIAN,
        "seldom": MARGIN * seldom_exceeded(pilot) / NOISY,
        "slope": pilot.typical_slope / NOISE,
    }
    least = SMALLEST
    if of_groups:
        least = int(np.clip(ceil(AMPLE * max(criteria.values())), FEWEST_GROUPS, ENOUGH_GROUPS))
    # Far from a level without counts, variances may be as large as floats are.
    needs = {"floor": least}
    needs |= {name: ceil(np.fmin(number, MOST)) for name, number in criteria.items()}
    return needs | {"bias": _unbiased(pilot, bias, ddof, max(needs.values()))}


def seldom_exceeded(pilot: Pilot) -> float:
    """Return the 99th percentile of the variance of D_1 over draws.

    This is the larger of the empirical percentile, which only two or three pilot draws exceed, and
    that of a lognormal distribution with the same moments.
    """
    quantile = pilot.quantile(pilot.variance, 1 - SELDOM)
    positive = pilot.variance > 0
    if not np.any(positive):
        return quantile
    log, share = np.log(pilot.variance[positive]), pilot.share[positive]
    share = share / share.sum()
    middle = share @ log
    spread = np.sqrt(share @ (log - middle) ** 2)
    return max(
        quantile, min(float(np.exp(middle + ndtri(1 - SELDOM) * spread)), pilot.variance.max())
    )


def _unbiased(pilot: Pilot, bias: float, ddof: int, least: int) -> int:
    """Return the smallest m >= `least`, to within a twentieth, whose bound is at most `bias`."""
    low = high = least
    perturbation = Bias(pilot, least)
    while perturbation.bound(high, ddof) > bias and high < MOST:
        low, high = high, 2 * high
        perturbation = Bias(pilot, low)
    while high > 1.05 * low:
        middle = ceil((low * high) ** 0.5)
        if middle >= high:
            break
        is_unbiased = perturbation.bound(middle, ddof) <= bias
        low, high = (low, middle) if is_unbiased else (middle, high)
    return high


def _blocks(variance: float, m: int, fixed: bool, of_groups: bool) -> int:
    """Return G = max(20, 2 sigma^2); for an m set by hand, a divisor of m near that."""
    fewest = max(ENOUGH_GROUPS if of_groups else FEWEST_BLOCKS, ceil(2 * variance))
    if not fixed:
        return min(fewest, m)
    return next((g for g in range(fewest, m + 1) if m % g == 0), m)
