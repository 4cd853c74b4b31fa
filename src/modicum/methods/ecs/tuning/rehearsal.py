"""Does the posterior lie where the pilot study looked? Short chains on the pilot rows tell.

The pilot study draws from the normal approximation about the anchor. Where the posterior is far
from normal (a mixture weight at its boundary, the neck of a funnel), the variance of the
log-likelihood estimate at those draws says nothing about that at the draws of the run. So a few
short chains are run on the posterior that the pilot rows alone imply, and the residuals are studied
where these chains went.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.base import ControlVariate, Proxy, straighten
from modicum.kernels.moves import follow
from modicum.methods.ecs.tuning.residuals import Pilot
from modicum.models.base import Batch
from modicum.runtime import Array, jit

__all__ = ["Rehearsal", "log_ratios", "proxy_ratios", "rehearse"]

CHAINS, ITERATIONS, DROPPED = 8, 60, 20
TRAJECTORY = 1.2


@dataclass(frozen=True)
class Rehearsal:
    """Where short chains on the pilot rows went, and how well rows are estimated there.

    Attributes
    ----------
    position
        Whitened coordinates, (chains, draws, d).
    variance
        Of D_1 at each of these draws, (chains, draws): Var(lhat) = variance / m.
    rows, evaluations
        Rows of the chains' posterior, and how often one was evaluated.
    """

    position: np.ndarray
    variance: np.ndarray
    rows: int
    evaluations: int

    def distance(self, read: int) -> float:
        """How far from the anchor the chains' mean lies, in the worst coordinate, in its sd.

        Of the first `read` coordinates: of what rows say nothing of, nothing is expanded.
        """
        return float(np.abs(self.position.mean(axis=(0, 1))[:read]).max())


def log_ratios(
    control_variate: ControlVariate[Any],
    pilot: Pilot,
    proxy: Proxy,
    centre: np.ndarray,
    draws: np.ndarray,
) -> np.ndarray:
    """Log of posterior over its normal approximation at the pilot draws, up to a constant.

    With all rows' log-likelihood estimated by the pilot rows: l - sum q is `pilot.mean`.
    """
    return proxy_ratios(control_variate, proxy, centre, draws) + pilot.mean


def proxy_ratios(
    control_variate: ControlVariate[Any], proxy: Proxy, centre: np.ndarray, draws: np.ndarray
) -> np.ndarray:
    """The same with the log-likelihood taken for its proxy: no row is read."""
    quadratic = -0.5 * np.sum((draws - centre) ** 2, axis=1)
    log_proxy = np.asarray(_log_proxies(control_variate, proxy, draws))
    return np.asarray(log_proxy - quadratic)


@jit(static=0)
def _log_proxies(cv: ControlVariate[Any], proxy: Proxy, draws: Array) -> jax.Array:
    def one(z: jax.Array) -> jax.Array:
        s, growth = straighten(z, proxy)
        return cv.log_proxy(s, proxy) + growth

    return jax.vmap(one)(jnp.asarray(draws))


def rehearse(
    control_variate: ControlVariate[Any],
    batch: Batch,
    ratio: np.ndarray,
    proxy: Proxy,
    centre: np.ndarray,
    key: jax.Array,
) -> Rehearsal:
    """Run short chains on the posterior that the rows in `batch` imply.

    Parameters
    ----------
    batch, ratio
        Pilot rows and their weights, as for `study`.
    centre
        Where the normal approximation has its mean; chains start at draws from it.
    """
    d = len(centre)
    step = 0.7 * d**-0.25  # half of what an acceptance rate of .8 would allow
    steps = ceil(TRAJECTORY / step)
    weight = ratio / ratio.sum()
    position, variance = _chains(
        control_variate,
        steps,
        batch,
        jnp.asarray(weight),
        proxy,
        jnp.asarray(centre),
        jnp.asarray(step),
        key,
    )
    kept = (slice(None), slice(DROPPED, None))
    return Rehearsal(
        np.asarray(position)[kept],
        np.asarray(variance)[kept],
        len(weight),
        len(weight) * CHAINS * ITERATIONS * (steps + 1),
    )


@jit(static=(0, 1))
def _chains(
    cv: ControlVariate[Any],
    steps: int,
    batch: Batch,
    weight: jax.Array,
    proxy: Proxy,
    centre: jax.Array,
    step: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    cached = cv.cache(batch, proxy)

    def density(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        s, growth = straighten(z, proxy)
        values = cv.values(cached, s, proxy)
        mean = weight @ values
        return cv.log_proxy(s, proxy) + mean + growth, weight @ (values - mean) ** 2

    def iterate(z: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        path = follow(key, z, density, step, jnp.ones_like(z), jnp.asarray(steps))
        return path.point.position, (path.point.position, path.point.by_product)

    def chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, rest = jax.random.split(key)
        start = centre + jax.random.normal(first, centre.shape, centre.dtype)
        drawn: tuple[jax.Array, jax.Array]
        _, drawn = jax.lax.scan(iterate, start, jax.random.split(rest, ITERATIONS))
        return drawn

    return jax.lax.map(chain, jax.random.split(key, CHAINS))
