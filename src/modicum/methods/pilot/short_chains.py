"""Short chains on the pilot rows: where the posterior is, if it is far from normal.

With a mixture weight at its boundary, or in the neck of a funnel, the variance of the
log-likelihood estimate at draws of the normal approximation says nothing about the variance at the
draws of the run. So a few short chains run on the posterior given the pilot rows alone, and
residuals are studied where they went.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either
from modicum.kernels.moves import follow, path_chances, path_size, typical_step_size
from modicum.kernels.protocols import ControlVariate, Proxy
from modicum.kernels.residuals import row_residuals
from modicum.kernels.whitening import Curves, along_curves
from modicum.methods.pilot.anchored_proxy import SHARED, AnchoredProxy
from modicum.methods.pilot.pilot_residuals import reweighted
from modicum.methods.skewed_axes import may_be_curved, skewed_axes
from modicum.methods.weights import SampledRows
from modicum.models.model import Batch
from modicum.random import Stream, key, symmetric_uniforms
from modicum.runtime import Pytree, jit, to_device

TRAJECTORY = 1.2
CHAIN_ROWS_LINEAR = 2_048  # pilot rows that they run on, with a linear predictor
SCATTER = 0.1  # sd of their starts, since the posterior may lie on one side of the mode
# Share of iterations that move, below which pilot chains have run into walls: it is 0 to 0.3 on
# tables of levels with few events or none, and 0.75 or more for chains that move freely.
STUCK = 0.5
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


class PilotChains(NamedTuple):
    """Where short chains on the pilot rows went, and the variance of estimates there."""

    position: np.ndarray  # whitened coordinates, (chains, draws, d)
    variance: np.ndarray  # of D_1 at each of these draws: Var(lhat) = variance / m
    rows: int  # that the chains ran on

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


def run_pilot_chains(
    about: AnchoredProxy,
    batch: Batch,
    probability: np.ndarray,
    proxy: Proxy,
    chain_key: jax.Array,
    scatter: float = 1.0,
) -> PilotChains:
    """Run short chains on the posterior given the rows in `batch`.

    Parameters
    ----------
    batch
        Pilot rows; `probability` is the expected number of times each was drawn.
    probability
        Probabilities of the rows under the design under study; zero: never drawn.
    proxy
        That of `about`, or with curves.
    scatter
        Sd of the starts about the centre, in standard deviations of the normal approximation. If
        that reaches far beyond the posterior, as with a separated level, chains would never come
        back.
    """
    extent = OF_LEVELS if about.arrow else SIDE_BY_SIDE if about.linear else ONE_BY_ONE
    step = typical_step_size(len(about.centre)) / 2
    steps = ceil(TRAJECTORY / step)
    studied = reweighted(np.asarray(batch["probability"]), probability)
    centre, step_size, spread = to_device((about.centre, np.asarray(step), np.asarray(scatter)))
    data = (batch, to_device(studied), proxy, centre, step_size, spread, chain_key)
    record = _chains(about.control_variate, steps, extent, *data)
    position, variance = (np.asarray(part)[:, extent.dropped :] for part in record)
    evaluations = len(probability) * extent.chains * extent.iterations * (steps + 1)
    about.task.ledger.add("pilot", evaluations, "gradient")
    return PilotChains(position, variance, len(probability))


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
        s, growth = proxy.where.straighten(z)
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
        return jax.lax.scan(iterate, start, uniform[1:])[1]

    keys = jax.random.split(key, extent.chains)
    return jax.vmap(chain)(keys) if extent.side_by_side else jax.lax.map(chain, keys)


def draws_of_short_chains(
    about: AnchoredProxy, rows: SampledRows
) -> tuple[np.ndarray, Curves | None, bool]:
    """Draw from the posterior given the pilot rows, which is far from normal.

    With a linear predictor, a few thousand weighted rows have nearly the posterior of all rows,
    tails and skewed directions included. If chains run into walls, as with levels of few events or
    none, or go so far that a warning would follow, they move along curves instead. Return the
    curves, if there are any, and whether chains are stuck.
    """
    some, settings = rows.thinned(CHAIN_ROWS_LINEAR), about.settings
    where = (about, some, np.asarray(some["probability"]))
    of_all = key(SHARED, Stream.PILOT_CHAINS)
    chains = run_pilot_chains(*where, about.proxy, of_all, SCATTER)
    failed = chains.moved < STUCK or chains.distance(len(about.centre)) > ANCHOR_FAR
    about_mode = settings.anchor == "mode" and not settings.scheduled
    curves = None
    if failed and about_mode and may_be_curved(about.task, about.anchor):
        curves = _curves(about, some)
        if curves is not None:
            bent = about.proxy.mapped(curves=to_device(curves))
            chains = run_pilot_chains(*where, bent, of_all, 1.0)
    draws = chains.position.reshape(-1, chains.position.shape[2])
    if curves is not None:
        draws = np.asarray(along_curves(as_either(draws), curves)[0])
    return draws, curves, chains.moved < STUCK


def _curves(about: AnchoredProxy, rows: Batch) -> Curves | None:
    """Return curves along the axes on which the posterior given the chains' rows is skewed."""
    residuals = row_residuals(about.control_variate, rows, about.proxy)

    def log_posterior(z: np.ndarray) -> np.ndarray:
        about.task.ledger.add("pilot", len(rows["probability"]) * len(z), "density")
        return residuals.values(about.straight(z)).sum(axis=1) + about.log_proxy(z)

    start = np.zeros_like(about.centre)
    whitened = about.whitened(residuals)
    return skewed_axes(log_posterior, start, about.anchor, whitened, finer_at_walls=True)
