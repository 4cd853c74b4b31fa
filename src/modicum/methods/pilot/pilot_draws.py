"""Where the pilot study evaluates rows: approximate draws from the posterior.

They are draws of the normal approximation, in whitened coordinates. The posterior of group log
standard deviations may be far from normal; such draws are resampled by the proxy, which is nearly
exact in these parameters. Unless groups are drawn in place of rows, they are the same for every
seed.

If the posterior is far from normal (a mixture weight at its boundary, the neck of a funnel), the
variance of the log-likelihood estimate at those draws says nothing about the variance at the draws
of the run. So a few short chains run on the posterior given the pilot rows alone, and residuals are
studied where they went.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.adaptation import typical_step_size
from modicum.kernels.control_variates import LinearTaylor
from modicum.kernels.group_residuals import GroupTaylor
from modicum.kernels.moves import follow, path_chances, path_size
from modicum.kernels.protocols import ControlVariate, Proxy
from modicum.kernels.whitening import straighten
from modicum.methods.pilot.pilot_residuals import reweighted
from modicum.models.model import Batch
from modicum.random import Stream, generator, symmetric_uniforms
from modicum.runtime import FASTEST_COMPILE, Array, Pytree, jit, to_device

TRAJECTORY = 1.2
TOGETHER = 32  # draws that are evaluated at once if a factor has many levels
ANCHOR_FAR = 1.0  # posterior sds from the anchor beyond which control variates are crude
FAR = 3.0  # distance of the chains' mean from the anchor, in posterior sds, that is too far


class ShortRun(NamedTuple):
    """The number of chains, their iterations, and how many of the first are dropped."""

    chains: int
    iterations: int
    dropped: int
    side_by_side: bool = False  # whether chains are vectorised


ONE_BY_ONE, SIDE_BY_SIDE = ShortRun(8, 60, 20), ShortRun(16, 64, 16, side_by_side=True)
OF_LEVELS = ShortRun(8, 48, 16, side_by_side=True)  # for factors of many levels, with costly steps


@dataclass(frozen=True)
class PilotChains:
    """Where short chains on the pilot rows went, and the variance of estimates there.

    Attributes
    ----------
    position
        Whitened coordinates, (chains, draws, d).
    variance
        Variance of D_1 at each of these draws, (chains, draws): Var(lhat) = variance / m.
    rows, evaluations
        Rows that the chains ran on, and total row evaluations.
    """

    position: np.ndarray
    variance: np.ndarray
    rows: int
    evaluations: int

    @property
    def moved(self) -> float:
        """Share of the iterations that moved."""
        return float(np.mean(np.any(np.diff(self.position, axis=1) != 0, axis=2)))

    def distance(self, likelihood_size: int) -> float:
        """Return the largest distance of the chains' mean from the anchor, in posterior sds.

        Only the first `likelihood_size` coordinates are expanded; the likelihood ignores the
        others.
        """
        return float(np.abs(self.position.mean(axis=(0, 1))[:likelihood_size]).max())


@jit(static=0)
def log_proxies(cv: ControlVariate[Pytree], proxy: Proxy, draws: Array) -> jax.Array:
    """Return the log-posterior at `draws`, up to a constant, with the proxy for the likelihood.

    No row is read.
    """

    def log_proxy(z: jax.Array) -> jax.Array:
        s, growth = straighten(z, proxy)
        return cv.log_proxy(s, proxy) + growth

    return _at_draws(log_proxy, proxy, draws)


@jit(options=FASTEST_COMPILE)
def straightened(proxy: Proxy, draws: Array) -> jax.Array:
    """Straighten `draws`, in whose coordinates effects are relative to their scales."""
    return _at_draws(lambda z: straighten(z, proxy)[0], proxy, draws)


def _at_draws(function: Callable[[jax.Array], jax.Array], proxy: Proxy, draws: Array) -> jax.Array:
    if proxy.arrow is not None:  # all draws at once would need much memory
        return jax.lax.map(function, jnp.asarray(draws), batch_size=TOGETHER)
    return jax.vmap(function)(jnp.asarray(draws))


def run_pilot_chains(
    control_variate: ControlVariate[Pytree],
    batch: Batch,
    probability: np.ndarray,
    proxy: Proxy,
    centre: np.ndarray,
    key: jax.Array,
    scatter: float = 1.0,
    extent: ShortRun = ONE_BY_ONE,
) -> PilotChains:
    """Run short chains on the posterior given the rows in `batch`.

    Parameters
    ----------
    batch
        Pilot rows; `probability` is the expected number of times each was drawn.
    probability
        Probabilities of the rows under the design under study; zero: never drawn.
    centre
        Mean of the normal approximation, about which chains start.
    scatter
        Sd of the starts, in standard deviations of the normal approximation. If that reaches far
        beyond the posterior, as with a separated level, chains would never come back.
    extent
        The number of chains and their length.
    """
    d = len(centre)
    step = typical_step_size(d) / 2
    steps = ceil(TRAJECTORY / step)
    factor, weight = reweighted(np.asarray(batch["probability"]), probability)
    position, variance = _chains(
        control_variate,
        steps,
        extent,
        batch,
        to_device((factor, weight)),
        proxy,
        to_device(centre),
        jnp.asarray(step),
        jnp.asarray(scatter),
        key,
    )
    after_warmup = (slice(None), slice(extent.dropped, None))
    return PilotChains(
        np.asarray(position)[after_warmup],
        np.asarray(variance)[after_warmup],
        len(weight),
        len(weight) * extent.chains * extent.iterations * (steps + 1),
    )


@jit(static=(0, 1, 2))
def _chains(
    cv: ControlVariate[Pytree],
    steps: int,
    extent: ShortRun,
    batch: Batch,
    studied: tuple[jax.Array, jax.Array],
    proxy: Proxy,
    centre: jax.Array,
    step: jax.Array,
    scatter: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    cached = cv.cache(batch, proxy)
    factor, weight = studied

    def density(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        s, growth = straighten(z, proxy)
        values = cv.values(cached, s, proxy)
        log = cv.log_proxy(s, proxy) + jnp.sum(values) + growth
        again = factor * values
        return log, weight @ (again - weight @ again) ** 2

    def iterate(z: jax.Array, uniform: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        chances = path_chances(uniform)
        point, _ = follow(chances, z, density, step, jnp.ones_like(z), jnp.asarray(steps))
        return point.position, (point.position, point.by_product)

    def chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        shape = extent.iterations + 1, path_size(centre)
        uniform = symmetric_uniforms(key, shape, centre.dtype)
        start = centre + scatter * path_chances(uniform[0]).momentum
        drawn: tuple[jax.Array, jax.Array]
        _, drawn = jax.lax.scan(iterate, start, uniform[1:])
        return drawn

    keys = jax.random.split(key, extent.chains)
    return jax.vmap(chain)(keys) if extent.side_by_side else jax.lax.map(chain, keys)


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
