"""Gradients about a snapshot that is renewed by full passes: SVRG (Dubey et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.compiling import jit
from modicum.errors import SettingError
from modicum.estimators.gradients.base import GradientEstimator
from modicum.estimators.gradients.minibatch import minibatch_gradient
from modicum.kernels.coordinates import scaled, unwhiten
from modicum.passes import Sums

__all__ = ["SVRG"]


@dataclass(frozen=True)
class SVRG(GradientEstimator):
    """G_I(z) - G_I(snapshot) + G(snapshot), where G_I is a batch's gradient and G that of all rows.

    Parameters
    ----------
    every
        Steps from one snapshot to the next; None: as many as touch n rows.
    """

    every: int | None = None
    needs_snapshots: ClassVar[bool] = True
    evaluations: ClassVar[int] = 2
    small_gradients: ClassVar[bool] = True
    order: ClassVar[int] = 1

    def __post_init__(self) -> None:
        whole = isinstance(self.every, int) and not isinstance(self.every, bool)
        if self.every is not None and (not whole or self.every < 1):
            raise SettingError(f"every must be a whole number of at least 1, not {self.every!r}.")

    def period(self, rows: int, batch: int) -> int:
        """Steps from one snapshot to the next."""
        return ceil(rows / batch) if self.every is None else self.every

    def start(self, z: jax.Array, context: Any) -> Any:
        """Room for a snapshot; the first is taken before the first step."""
        del context
        return {"z": jnp.zeros_like(z), "gradient": jnp.zeros_like(z)}

    def snapshot(self, sums: Sums, z: Any, context: Any) -> Any:
        """Snapshots at the positions of all chains, (chain, d), by one pass."""
        points = _points(z, context)
        slopes = jnp.asarray(sums.gradients(np.asarray(points), "snapshot"))
        gradient = _whole_gradients(self.target, slopes, points, context)
        return {"z": jnp.asarray(z), "gradient": gradient.astype(jnp.asarray(z).dtype)}

    def gradient(self, z: jax.Array, batch: Any, memory: Any, context: Any) -> jax.Array:
        """Two gradients of the batch."""
        here = minibatch_gradient(self.target, z, batch, context)
        there = minibatch_gradient(self.target, memory["z"], batch, context)
        return here - there + memory["gradient"]


@jit()
def _points(z: jax.Array, context: Any) -> jax.Array:
    return jax.vmap(lambda one: unwhiten(one, context))(z)


@jit(static=0)
def _whole_gradients(target: Any, slopes: jax.Array, points: jax.Array, context: Any) -> jax.Array:
    """Gradients of U in the chains' coordinates: -L'(sum_k grad l_k + grad log p)."""

    def one(slope: jax.Array, t: jax.Array) -> jax.Array:
        return -scaled(context["factor"].T, slope + jax.grad(target.log_prior)(t))

    return jax.vmap(one)(slopes, points)
