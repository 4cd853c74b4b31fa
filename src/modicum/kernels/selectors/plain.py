"""The batch that was drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from modicum.kernels.base import Draw
from modicum.kernels.integrators import Integrator, Matching
from modicum.kernels.selectors.base import Selector

__all__ = ["Plain"]


@dataclass(frozen=True)
class Plain(Selector):
    """One batch a step, used as it is."""

    def batches(self, integrator: Integrator) -> int:
        """One."""
        del integrator
        return 1

    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], Matching]
    ) -> tuple[jax.Array, Draw]:
        """The only one."""
        del key, matching
        return gradients[0], {}
