"""Coordinates in which a skewed posterior is close to normal: a few curved axes.

The likelihood of a level without any event confines its coefficient to a half-line: on one side of
a wall the log-likelihood falls steeply, and on the other the prior alone decides. No normal
distribution has this shape, and trajectories run into the wall. In whitened coordinates z, with Q
the orthonormal axes along which the posterior is far from normal,

    z = u + Q (g(Q'u) - Q'u),    dz = prod_k g_k'((Q'u)_k) du,

where g_k = F_k^{-1}(Phi) maps quantiles of the standard normal distribution to quantiles of the
posterior along the k-th axis. In u the posterior is close to standard normal along every axis.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from modicum.arrays import namespace

FIRST, STEP, NODES = -6.0, 0.125, 97  # grid on which g is tabulated: from -6 to 6
LEAST = 1e-12  # smallest slope of a curve, where rounding gives zero or less


class Curves(NamedTuple):
    """Axes, and g along each: cubic polynomials between the nodes, linear beyond the last ones."""

    axes: jax.Array  # Q, (d, k): orthonormal columns
    pieces: jax.Array  # (k, NODES - 1, 4): coefficients, highest power first


def along_curves(u: jax.Array, curves: Curves) -> tuple[jax.Array, jax.Array]:
    """Map u, of shape (..., d), to z; return z and the log Jacobian.

    NumPy arrays give NumPy arrays.
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
