"""How many rows, in how many blocks, how many of them refreshed: m, G and K from a pilot study."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, sqrt

import numpy as np
from scipy.special import ndtr

from modicum.methods.ecs.tuning.residuals import Pilot

__all__ = ["Choice", "best_sweep", "choose", "refresh_acceptance"]

SMALLEST = 30
FEWEST_GROUPS = 10  # on the flights ten aircraft bound the bias at 4e-7 posterior sd
FEWEST_BLOCKS = 20


@dataclass(frozen=True)
class Choice:
    """m, G and K with the reasons for them.

    Attributes
    ----------
    subsample, blocks, refreshes
        m, G and K.
    bias_bound
        On the shift of any posterior mean, in posterior standard deviations, by the pilot study.
    why
        A sentence for each.
    """

    subsample: int
    blocks: int
    refreshes: int
    bias_bound: float
    why: dict[str, str] = field(default_factory=dict)


def refresh_acceptance(variance: float, blocks: int) -> float:
    """Acceptance rate of a block refresh: 2 Phi(-sqrt(sigma^2 / (2 G))), for normal blocks."""
    return float(2 * ndtr(-sqrt(variance / (2 * blocks))))


def best_sweep(noise: float, steps: int, accept: float, fresh: float = 1.0) -> float:
    """The share s = K/G of the subsample to refresh per iteration, at the least cost per ESS.

    An iteration costs m (L + 1 + fresh s) evaluations, a fresh row as much as `fresh` of them, and
    the inefficiency is 1 + 2 v / (s a), with v the gradient noise in posterior variances and a the
    acceptance rate of a refresh.

    Examples
    --------
    >>> best_sweep(noise=0.1, steps=4, accept=1.0), best_sweep(0.1, 4, 1.0, fresh=4.0)
    (1.0, 0.5)
    """
    return sqrt(2 * noise * (steps + 1) / (accept * fresh))


def choose(
    pilot: Pilot,
    steps: int,
    bias: float = 0.05,
    ddof: int = 1,
    subsample: int | None = None,
    blocks: int | None = None,
    refreshes: int | None = None,
    fresh: float = 1.0,
    of_groups: bool = False,
) -> Choice:
    """Choose what is not set already.

    Parameters
    ----------
    pilot
        Moments of the residuals.
    steps
        Leapfrog steps expected per iteration, L.
    bias
        Largest shift of a posterior mean, in posterior standard deviations, that m may allow.
    ddof
        Of the estimator's variance.
    subsample, blocks, refreshes
        m, G and K where they are set already.
    fresh
        What a fresh row costs, in evaluations of a row.
    of_groups
        Whether groups of rows are what is subsampled: fewer of them will do.
    """
    least = FEWEST_GROUPS if of_groups else SMALLEST
    needs = _needs(pilot, bias, ddof, least)
    binding = max(needs, key=lambda name: needs[name])
    m = subsample if subsample is not None else needs[binding]
    variance = float(np.median(pilot.spread(m)))
    G = blocks if blocks is not None else _blocks(variance, m, subsample is not None, of_groups)
    if subsample is None:
        m = G * ceil(m / G)
    noise = float(np.median(pilot.slope)) / m
    accept = max(refresh_acceptance(variance, G), 1e-3)
    unit = "groups" if of_groups else "rows"
    sweep = best_sweep(noise, steps, accept, fresh)
    K = refreshes if refreshes is not None else int(np.clip(ceil(G * sweep), 1, G))
    why = {
        "subsample": "set by hand"
        if subsample is not None
        else f"the smallest m with {_REASON[binding].format(least, unit)}",
        "blocks": "set by hand"
        if blocks is not None
        else f"a refresh is then accepted with probability {accept:.2f}",
        "refreshes": "set by hand"
        if refreshes is not None
        else f"balances refreshing rows against gradient noise of {noise:.2g} posterior variances",
        "bias_bound": "how far, in posterior sd, the perturbation may move any posterior mean, by "
        "the pilot study",
        "variance": f"sigma^2 of the log-likelihood estimate: median {variance:.2g}, "
        f"largest {np.max(pilot.spread(m)):.2g} over the pilot draws",
    }
    return Choice(int(m), int(G), int(K), pilot.bias(m, ddof), why)


_REASON = {
    "floor": "at least {} {}",
    "median": "sigma^2 of the log-likelihood estimate at most 1 at the median pilot draw",
    "largest": "sigma^2 of the log-likelihood estimate at most 5 at every pilot draw",
    "slope": "gradient noise of a quarter of the posterior variance at the median pilot draw",
    "bias": "a perturbation that moves no posterior mean by more than the bias allowed",
}


def _needs(pilot: Pilot, bias: float, ddof: int, least: int) -> dict[str, int]:
    """The smallest m that each criterion allows."""
    needs = {
        "floor": least,
        "median": ceil(float(np.median(pilot.variance)) / 1.0),
        "largest": ceil(float(np.max(pilot.variance)) / 5.0),
        "slope": ceil(float(np.median(pilot.slope)) / 0.25),
    }
    m = max(needs.values())
    while pilot.bias(m, ddof) > bias and m < 10**12:
        m = ceil(m * 1.1)
    return needs | {"bias": m}


def _blocks(variance: float, m: int, fixed: bool, of_groups: bool) -> int:
    """G = max(20, 2 sigma^2); for an m set by hand, a divisor of it near that."""
    enough = max(FEWEST_GROUPS if of_groups else FEWEST_BLOCKS, ceil(2 * variance))
    if not fixed:
        return min(enough, m)
    divisors = [g for g in range(1, m + 1) if m % g == 0]
    return next((g for g in divisors if g >= enough), m)
