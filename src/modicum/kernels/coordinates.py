"""From the coordinates a chain moves in to the parameters: t = t* + L z."""

from __future__ import annotations

from typing import Any

import jax

__all__ = ["scaled", "unwhiten"]


def scaled(factor: jax.Array, z: jax.Array) -> jax.Array:
    """L z; where L is diagonal it comes as a vector, and as a number where it is c times I."""
    return factor @ z if factor.ndim == 2 else factor * z


def unwhiten(z: jax.Array, context: Any) -> jax.Array:
    """T = t* + L z, with `point` t* and `factor` L from the context."""
    return context["point"] + scaled(context["factor"], z)
