"""Coordinates in which a skewed posterior is close to normal: curves along a few straight axes.

A level without any event confines its coefficient to half a line: beyond a wall the
log-likelihood falls steeply, and before it the prior alone decides. No normal distribution is like
that, and trajectories run into the wall. In whitened coordinates z, with Q the orthonormal axes
along which the posterior is far from normal,

    z = u + Q (g(Q'u) - Q'u),    dz = prod_k g_k'((Q'u)_k) du,

where g_k = F_k^{-1}(Phi) takes quantiles of the standard normal distribution to those of the
posterior along the k-th axis. In u the posterior is close to standard normal along every axis.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from modicum.arrays import namespace

__all__ = ["FIRST", "NODES", "STEP", "Curves", "along_curves"]

FIRST, STEP, NODES = -6.0, 0.125, 97  # where g is known, in standard deviations: from -6 to 6
LEAST = 1e-12  # slope of a curve, where rounding leaves none


class Curves(NamedTuple):
    """Axes, and g along each: a cubic polynomial between any two nodes, a line beyond the last."""

    axes: jax.Array  # Q, (d, k): orthonormal columns
    pieces: jax.Array  # (k, NODES - 1, 4): coefficients, of the highest power first


def along_curves(u: jax.Array, curves: Curves) -> tuple[jax.Array, jax.Array]:
    """From u, of shape (..., d), to z, and the log of the volume's growth.

    By NumPy, if both are NumPy arrays.
    """
    xp = namespace(u)
    w = u @ curves.axes
    inside = xp.clip(w, FIRST, -FIRST)
    piece = xp.clip(xp.floor((inside - FIRST) / STEP).astype(int), 0, NODES - 2)
    x = inside - (FIRST + STEP * piece)
    terms = curves.pieces[np.arange(curves.pieces.shape[0]), piece]
    a, b, c, e = (terms[..., i] for i in range(4))
    slope = (3 * a * x + 2 * b) * x + c
    g = ((a * x + b) * x + c) * x + e + slope * (w - inside)
    return u + (g - w) @ curves.axes.T, xp.sum(xp.log(xp.maximum(slope, LEAST)), axis=-1)
