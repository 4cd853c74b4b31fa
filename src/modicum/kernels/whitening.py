"""Maps from the coordinates in which a chain moves to the parameters.

A chain moves in z. `straighten` maps z to s, where effects no longer move with their scale and
skewed axes are no longer curved; without either, s = z. The parameters are t = t* + L s.

The likelihood of a level without any event confines its coefficient to a half-line: on one side of
a wall the log-likelihood falls steeply, and on the other the prior alone decides. No normal
distribution has this shape, and trajectories run into the wall. In whitened coordinates, with Q the
orthonormal axes along which the posterior is far from normal,

    s = z + Q (g(Q'z) - Q'z),    ds = prod_k g_k'((Q'z)_k) dz,

where g_k = F_k^{-1}(Phi) maps quantiles of the standard normal distribution to quantiles of the
posterior along the k-th axis. In z the posterior is close to standard normal along every axis.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import namespace
from modicum.linalg.arrow import ArrowFactor, ArrowMatrix, Factor, Symmetric, diagonal, in_two
from modicum.models import Target
from modicum.passes import Anchor
from modicum.runtime import to_device

FIRST, STEP, NODES = -6.0, 0.125, 97  # grid on which g is tabulated: from -6 to 6
SAME = 1e-6  # relative rounding error of sums over all rows
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
    z = u + (g - w) @ curves.axes.T
    return z, xp.sum(xp.log(xp.maximum(slope, LEAST)), axis=-1)


class Warp(NamedTuple):
    """Entries of t that move with their scale tau: effects, with their standard deviation.

    An effect u ~ N(0, tau^2) with a likelihood N(u; c, 1 / A) has the variance V = 1 / (A + tau^-2)
    and the mean V A c. So with r = t* + L z, a = r - t* and e^(2 g) = V(tau) / V(tau*), the map is
    t = r except for these entries, where t = t* e^(2 g) + a e^g. In these coordinates effects
    hardly depend on tau: for small scales and weak data they are relative to tau (non-centred), and
    for large scales they are the effects themselves (centred).

    The mean of all effects of a term, b = sum_l w_l a_l, is different: the intercept, or the common
    slope, can make up for it, so the data say nothing about it and the prior alone decides. It
    moves in proportion to tau, and the common coefficient moves the opposite way.
    """

    where: jax.Array  # indices of the entries
    term: jax.Array  # index of each entry's term
    ratio: jax.Array  # A tau*^2 of each: information in the data over that in the prior
    scale: jax.Array  # index of the log scale of each term
    shared: jax.Array  # w: (terms, entries); a row of zeros where there is no common coefficient
    # columns of L^-1 for the entries and the common coefficients; None if L is an `ArrowFactor`
    into: jax.Array | None
    common: jax.Array | None = None  # indices of the common coefficients


def warp_of(anchor: Anchor, target: Target) -> Warp | None:
    """Return the entries that move with their scale: group effects with little data."""
    if target.exact_prior is None or anchor.factor.ndim < 2:
        return None
    information = np.maximum(-diagonal(anchor.B), 0.0)
    parts = target.exact_prior.non_centred(anchor.point, information)
    if parts is None:
        return None
    scales, term = np.unique(parts.scale, return_inverse=True)
    shared = np.zeros((len(scales), len(term)))
    common = np.zeros(len(scales), int)
    for k in range(len(scales)):
        place = _common_coefficient(anchor.B, parts.where, parts.where[term == k])
        if place is not None:
            common[k] = place
            weight = information[parts.where] * (term == k)
            shared[k] = weight / weight.sum()
    into = None  # with an `ArrowFactor`, entries of t are moved instead
    if isinstance(anchor.factor, np.ndarray):
        moved = np.r_[parts.where, common]
        into = to_device(np.linalg.inv(anchor.factor)[:, moved])
    return Warp(
        to_device(parts.where),
        to_device(term),
        to_device(parts.ratio),
        to_device(scales),
        to_device(shared),
        into,
        to_device(common),
    )


def _common_coefficient(hessian: Symmetric, effects: np.ndarray, of_term: np.ndarray) -> int | None:
    """Find the coefficient common to all effects of a term, such as the intercept, if any.

    Its column is the sum of the effects' columns, and so is its row of the Hessian.
    """
    B = ArrowMatrix.of(hessian)  # the sum of the columns of the term, and how far others are
    hot = np.zeros(B.size)
    hot[of_term] = 1
    total = np.asarray(B @ hot)
    off = np.full(B.size, np.inf)
    of_levels = np.abs(np.asarray(B.cross) - total[B.big][..., None])
    of_border = np.abs(np.asarray(B.corner) - total[B.border][:, None]).max(axis=0)
    off[B.border] = np.maximum(of_levels.max(axis=(0, 1), initial=0.0), of_border)
    if not np.any(total):
        return None
    off[effects] = np.inf
    place = int(np.argmin(off))
    return place if off[place] < SAME * np.abs(total).max() else None


class Whitening(NamedTuple):
    """The maps from the coordinates z in which a chain moves to the parameters, one after another.

    Code that deals with rows takes s, with t = t* + L s, and need not know about z. With an arrow
    factor, of many levels, its product is formed only once, by `straighten`: s is t - t* itself,
    and L is 1.
    """

    point: jax.Array  # t*
    factor: jax.Array  # L: a matrix, a vector if it is diagonal, or a scalar c for c times I
    arrow: ArrowFactor | None = (
        None  # what z is multiplied by first, where a factor has many levels
    )
    warp: Warp | None = None  # entries that move with a scale
    curves: Curves | None = None  # curved axes, along which the posterior is skewed

    @classmethod
    def about(
        cls,
        point: np.ndarray,
        factor: Factor,
        warp: Warp | None = None,
        curves: Curves | None = None,
    ) -> Whitening:
        """Return the maps, on the device, for a factor of any form."""
        return cls(*to_device((point, *in_two(factor), warp, curves)))

    @property
    def is_straight(self) -> bool:
        """Whether `straighten` preserves volume."""
        return self.warp is None and self.curves is None

    def straighten(self, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Map a chain's coordinates z to whitened coordinates s; return s and the log Jacobian.

        Where L is a matrix, NumPy arrays (..., d) give NumPy arrays.
        """
        warp = self.warp
        if self.curves is not None:  # L is then dense, and no entry moves with a scale
            return along_curves(z, self.curves)
        if self.arrow is not None:
            return self._moved_entries(jnp.asarray(self.arrow @ z))
        if warp is None:
            return z, jnp.zeros(())
        assert warp.into is not None
        log_scale = z @ self.factor[warp.scale].T  # relative to its anchor
        away = z @ self.factor[warp.where].T
        moved, together, growth = _moved(log_scale, away, self.point[warp.where], warp)
        both = namespace(z).concatenate([moved, -together], axis=-1)
        return z + both @ warp.into.T, growth

    def _moved_entries(self, away: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Move entries of `away`, which is r - t*, with their scales; return also the Jacobian."""
        warp = self.warp
        if warp is None:
            return away, jnp.zeros(())
        assert warp.common is not None
        effects = away[warp.where]
        moved, together, growth = _moved(away[warp.scale], effects, self.point[warp.where], warp)
        return away.at[warp.where].add(moved).at[warp.common].add(-together), growth

    def away(self, s: jax.Array) -> jax.Array:
        """t - t* = L s."""
        return scaled(self.factor, s)

    def unwhiten(self, s: jax.Array) -> jax.Array:
        """t = t* + L s."""
        return self.point + scaled(self.factor, s)

    def parameters(self, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Map a chain's coordinates z to t; return t and the log Jacobian but for L's own.

        Entries that move with a scale are moved in L z itself: with s in between there would be
        four products with matrices of the size of L, of which this takes one.
        """
        if self.arrow is None and self.curves is None:
            away, growth = self._moved_entries(scaled(self.factor, z))
            return self.point + away, growth
        s, growth = self.straighten(z)
        return self.unwhiten(s), growth

    def to_record(self, z: jax.Array, logdensity: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the whitened coordinates to record, and the log-density without the Jacobian."""
        s, growth = self.straighten(z)
        position = s if self.arrow is None else jnp.asarray(self.arrow.whitened(s))
        return position, logdensity if self.is_straight else logdensity - growth


def scaled(factor: jax.Array, z: jax.Array) -> jax.Array:
    """L z, for a factor L in any of the forms that `Whitening` allows."""
    return factor @ z if factor.ndim == 2 else factor * z


def _moved(
    log_scale: jax.Array, away: jax.Array, point: jax.Array, warp: Warp
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the shifts of the entries, the shift shared by each term, and the log Jacobian.

    `log_scale` is relative to its anchor; `away` and `point` are r - t* and t* of the entries.
    """
    xp, own_scale = namespace(away), log_scale[..., warp.term]
    with np.errstate(divide="ignore"):  # a level about which the rows say nothing
        log_ratio = xp.log(warp.ratio)
    tighter = xp.logaddexp(log_ratio, -2 * own_scale) - xp.log1p(warp.ratio)
    growth = -0.5 * tighter
    common = away @ warp.shared.T
    moved = point * xp.expm1(2 * growth)
    moved += (away - common[..., warp.term]) * xp.expm1(growth)
    together = common * xp.expm1(log_scale)
    # det(D + (e^x 1 - D 1) w') = det D sum_l w_l e^(x - g_l), with D = diag(e^g)
    excess = xp.expm1(own_scale - growth) @ warp.shared.T
    log_volume = xp.sum(growth, axis=-1) + xp.sum(xp.log1p(excess), axis=-1)
    return moved + together[..., warp.term], together, log_volume
