"""Maps from the coordinates in which a chain moves to the parameters.

A chain moves in z. `straighten` maps z to s, where effects no longer move with their scale and
skewed axes are no longer curved; without either, s = z. The parameters are t = t* + L s.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from modicum.kernels.base import Warp, Warped, Whitening
from modicum.kernels.curved_axes import along_curves
from modicum.models.arrow import ArrowFactor


def scaled(factor: jax.Array | ArrowFactor, z: jax.Array) -> jax.Array:
    """L z, for a factor L in any of the forms that `Whitening` allows."""
    if isinstance(factor, ArrowFactor):
        return jnp.asarray(factor @ z)
    return factor @ z if factor.ndim == 2 else factor * z


def unwhiten(z: jax.Array, whitening: Whitening) -> jax.Array:
    """t = t* + L z."""
    return whitening.point + scaled(whitening.factor, z)


def is_straight(whitening: Warped) -> bool:
    """Whether `straighten` preserves volume."""
    return whitening.warp is None and whitening.curves is None


def straighten(z: jax.Array, whitening: Warped) -> tuple[jax.Array, jax.Array]:
    """Map a chain's coordinates z to whitened coordinates s; return s and the log Jacobian.

    Code that deals with rows takes s, with t = t* + L s, and need not know about z. If L is an
    `ArrowFactor`, with many levels, its product is formed only once, here, and s is t - t* itself.
    """
    warp = whitening.warp
    if whitening.curves is not None:  # L is then dense, and no entry moves with a scale
        return along_curves(z, whitening.curves)
    if isinstance(whitening.factor, ArrowFactor):
        return _straighten_arrow(jnp.asarray(whitening.factor @ z), whitening.point, warp)
    if warp is None:
        return z, jnp.zeros(())
    assert warp.into is not None
    log_scale = whitening.factor[warp.scale] @ z  # relative to its anchor
    away = whitening.factor[warp.where] @ z
    moved, together, growth = _moved(log_scale, away, whitening.point[warp.where], warp)
    return z + warp.into @ jnp.concatenate([moved, -together]), growth


def _straighten_arrow(
    away: jax.Array, point: jax.Array, warp: Warp | None
) -> tuple[jax.Array, jax.Array]:
    """Like `straighten`, for an `ArrowFactor`; `away` is r - t*, whose entries are moved."""
    if warp is None:
        return away, jnp.zeros(())
    assert warp.common is not None
    effects = away[warp.where]
    moved, together, growth = _moved(away[warp.scale], effects, point[warp.where], warp)
    return away.at[warp.where].add(moved).at[warp.common].add(-together), growth


def _moved(
    log_scale: jax.Array, away: jax.Array, point: jax.Array, warp: Warp
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the shifts of the entries, the shift shared by each term, and the log Jacobian.

    `log_scale` is relative to its anchor; `away` and `point` are r - t* and t* of the entries.
    """
    own_scale = log_scale[warp.term]
    tighter = jnp.logaddexp(jnp.log(warp.ratio), -2 * own_scale) - jnp.log1p(warp.ratio)
    growth = -0.5 * tighter
    common = warp.shared @ away
    moved = point * jnp.expm1(2 * growth)
    moved += (away - common[warp.term]) * jnp.expm1(growth)
    together = common * jnp.expm1(log_scale)
    # det(D + (e^x 1 - D 1) w') = det D sum_l w_l e^(x - g_l), with D = diag(e^g)
    excess = warp.shared @ jnp.expm1(own_scale - growth)
    return moved + together[warp.term], together, jnp.sum(growth) + jnp.sum(jnp.log1p(excess))


def displacement(s: jax.Array, whitening: Whitening) -> jax.Array:
    """t - t*, from the s that `straighten` returns."""
    return s if isinstance(whitening.factor, ArrowFactor) else scaled(whitening.factor, s)


def coordinates_to_record(s: jax.Array, whitening: Whitening) -> jax.Array:
    """Whitened coordinates to record, from the s that `straighten` returns."""
    factor = whitening.factor
    return jnp.asarray(factor.whitened(s)) if isinstance(factor, ArrowFactor) else s
