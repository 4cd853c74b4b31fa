"""Points at which the pilot study evaluates rows: approximate draws from the posterior.

They are draws of the normal approximation, in whitened coordinates. The posterior of group log
standard deviations may be far from normal; such draws are resampled by the proxy, which is nearly
exact in these parameters. Unless groups are drawn in place of rows, they are the same for every
seed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modicum.estimators import GroupTaylor, LinearTaylor
from modicum.kernels.base import ControlVariate, Proxy
from modicum.methods.ecs.tuning.pilot_chains import log_proxies
from modicum.random import Stream, generator
from modicum.runtime import Pytree

SHARED = 0  # seed of everything that all runs share
DRAWS = 256
OTHER_DRAWS = 128  # for models without a linear predictor, whose rows cost more
CANDIDATES, RESAMPLED = 2_048, 32  # for integrated effects
EXPLICIT_CANDIDATES = 4_096  # for explicit effects
MOST_NUMBERS = 2**23  # most floats in all candidates, which limits their number with many effects
DESIGN_DRAWS, DESIGN_DRAWS_OF_GROUPS = 8, 4  # draws at which rows are weighted
# Most draws lie on one side of a row's kink, so that with eight of them all may, and the row looks
# harmless: for a quantile regression with 500 of 20,000 rows, the bound on the bias is 2 posterior
# sds with eight draws, and 0.1 with 64.
DESIGN_DRAWS_AT_KINKS = 64


class PilotDraws(NamedTuple):
    """Approximate posterior draws in whitened coordinates, (draws, d).

    Attributes
    ----------
    weighing
        Draws at which rows are weighted.
    study
        Draws at which residuals are studied.
    proxy_ratios
        Log ratio of proxy to normal approximation at `study`; None if these draws come from the
        normal approximation itself.
    """

    weighing: np.ndarray
    study: np.ndarray
    proxy_ratios: np.ndarray | None = None


def pilot_draws(
    control_variate: ControlVariate[Pytree],
    proxy: Proxy,
    centre: np.ndarray,
    seed: int,
    has_kinks: bool,
) -> PilotDraws:
    """Draw from the normal approximation about `centre`, or from the posterior the proxy implies.

    Parameters
    ----------
    seed
        Seed of the run, on which only draws for groups depend.
    has_kinks
        Whether rows' log-likelihoods have a kink, which only a few draws in 100 may cross.
    """
    if isinstance(control_variate, GroupTaylor):
        rng = generator(seed, Stream.PILOT_DRAWS)
        draws = _resampled(control_variate, proxy, centre, rng, CANDIDATES, RESAMPLED, least=0)
        assert draws is not None
        return draws._replace(weighing=draws.study[:DESIGN_DRAWS_OF_GROUPS])
    size, linear = len(centre), isinstance(control_variate, LinearTaylor)
    number = DRAWS if linear else OTHER_DRAWS
    weighing = centre[None]
    if not linear or proxy.warp is not None:  # otherwise leverages give the spread
        count = DESIGN_DRAWS_AT_KINKS if has_kinks else DESIGN_DRAWS
        rng = generator(SHARED, Stream.PILOT_DRAWS)
        weighing = weighing + rng.standard_normal((count, size))
    rng = generator(SHARED, Stream.STUDY_DRAWS)
    if proxy.warp is not None:
        draws = _resampled(
            control_variate, proxy, centre, rng, EXPLICIT_CANDIDATES, number, least=number
        )
        if draws is not None:
            return draws._replace(weighing=weighing)
    return PilotDraws(weighing, centre + rng.standard_normal((number, size)))


def _resampled(
    control_variate: ControlVariate[Pytree],
    proxy: Proxy,
    centre: np.ndarray,
    rng: np.random.Generator,
    candidates: int,
    count: int,
    least: int,
) -> PilotDraws | None:
    """Draw from the posterior that the proxy implies, by importance resampling.

    None if the effective number of candidates is below `least`.
    """
    candidates = min(candidates, MOST_NUMBERS // len(centre))
    draws = centre + rng.standard_normal((candidates, len(centre)))
    away = 0.5 * np.sum((draws - centre) ** 2, axis=1)
    ratios = np.asarray(log_proxies(control_variate, proxy, draws)) + away
    weights = np.exp(ratios - np.max(ratios))
    weights /= weights.sum()
    if 1 / np.sum(weights**2) < least:
        return None
    chosen = rng.choice(candidates, count, p=weights)
    return PilotDraws(draws[chosen], draws[chosen], ratios[chosen])
