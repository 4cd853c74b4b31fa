"""What a selector is: which of several drawn batches drives a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import jax

from modicum.kernels.base import Draw
from modicum.kernels.integrators import Integrator, Matching

__all__ = ["Selector"]


class Selector(ABC):
    """Picks a gradient out of candidates. Frozen dataclasses: hashable, without arrays."""

    @abstractmethod
    def batches(self, integrator: Integrator) -> int:
        """How many batches a step wants; refuses integrators it cannot serve."""

    @abstractmethod
    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], Matching]
    ) -> tuple[jax.Array, Draw]:
        """Return one gradient, made of the candidates (batches, d), and what to record."""
