"""Expansion coordinates that differ from the sampled ones.

A scale, a dispersion or a probability near 0 is sampled on the log scale, where the log-likelihood
may be far from quadratic; in the scale itself, its square or its reciprocal it may be nearly so.
With w = t - t* of such an entry, every row is expanded in

    v = (e^(p w) - 1) / p,    or in w itself for a power p of 0.

The sums at the anchor can be reused: if A and B are the gradient and Hessian in t, those in v are A
and B - diag(p A), since v has the derivatives 1 and p there. Trying a power takes no pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.base import Bend, Proxy
from modicum.models.arrow import ArrowFactor
from modicum.passes import Anchor
from modicum.runtime import to_device

# Coordinates in which a parameter that is sampled on the log scale can be expanded.
POWERS = {
    "log": 0.0,
    "identity": 1.0,
    "square": 2.0,
    "reciprocal": -1.0,
    "reciprocal square": -2.0,
}


def bend(anchor: Anchor, where: Sequence[int] | np.ndarray, power: np.ndarray) -> Bend:
    """Return the tables for expanding the entries `where` of t in powers of their exponentials."""
    places = np.asarray(where, int)
    lines = anchor.dense_hessian[places]
    return Bend(
        to_device(places),
        to_device(np.asarray(power, np.float64)),
        to_device(anchor.A[places]),
        to_device(lines @ anchor.dense_factor),
        to_device(lines[:, places]),
    )


def bent_path(s: jax.Array, away: jax.Array, proxy: Proxy) -> jax.Array:
    """t at a fraction s of the way from t* to t* + `away`, on a line that is straight in v."""
    t = proxy.point + s * away
    if proxy.bend is None:
        return t
    where, power = proxy.bend.where, proxy.bend.power
    return t.at[where].set(proxy.point[where] + _inverse(s * _bent(away[where], power), power))


def bent_sum(z: jax.Array, proxy: Proxy) -> jax.Array:
    """Difference between the sum of the proxies in v and the quadratic in w = L z.

    With c = v - w at the bent entries, A'v + v'(B - diag(p A)) v / 2 is the quadratic in w plus
    A'c + c'Bw + c'Bc / 2 - sum p A v^2 / 2.
    """
    bend = proxy.bend
    if bend is None:
        return jnp.zeros(())
    assert not isinstance(proxy.factor, ArrowFactor)
    w = proxy.factor[bend.where] @ z
    v = _bent(w, bend.power)
    c = v - w
    further = c @ (bend.slope + bend.curve @ z + 0.5 * bend.block @ c)
    return further - 0.5 * jnp.sum(bend.power * bend.slope * v**2)


def _bent(w: jax.Array, power: jax.Array) -> jax.Array:
    safe = jnp.where(power == 0, 1.0, power)
    return jnp.where(power == 0, w, jnp.expm1(safe * w) / safe)


def _inverse(v: jax.Array, power: jax.Array) -> jax.Array:
    safe = jnp.where(power == 0, 1.0, power)
    # a NaN in the branch not taken would propagate to the derivative
    inside = jnp.where(power == 0, 0.0, safe * v)
    return jnp.where(power == 0, v, jnp.log1p(inside) / safe)
