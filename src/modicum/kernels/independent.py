"""Independent normal draws in whitened coordinates, for those who weigh them afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from modicum.kernels.base import Draw
from modicum.models.base import Batch
from modicum.runtime import Pytree

__all__ = ["IndependentContext", "IndependentKernel"]


class IndependentContext(NamedTuple):
    """What the kernel reads."""

    centre: jax.Array  # of the draws


@dataclass(frozen=True)
class IndependentKernel:
    """z = centre + a standard normal vector, whatever the state is."""

    def initial_row_request(self, key: jax.Array, context: IndependentContext) -> None:
        """No rows are read."""

    def row_request(self, key: jax.Array, context: IndependentContext) -> None:
        """No rows are read."""

    def prepare(self, batch: Batch, context: IndependentContext) -> None:
        """Nothing to prepare."""
        del batch, context

    def init(self, key: jax.Array, batch: None, context: IndependentContext) -> jax.Array:
        """Return a state that nothing depends on."""
        del key, batch
        return jnp.zeros_like(context.centre[:1])

    def step(
        self,
        key: jax.Array,
        state: jax.Array,
        flags: Pytree,
        batch: None,
        context: IndependentContext,
    ) -> tuple[jax.Array, Draw]:
        """Draw."""
        del flags, batch
        z = context.centre + jax.random.normal(key, context.centre.shape)
        return state, {"position": z, "rows_touched": jnp.zeros((), int)}
