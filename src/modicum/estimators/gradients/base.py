"""What a gradient estimator is: the gradient of U = -log posterior from one batch of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from modicum.models import Target
from modicum.passes import Anchor

__all__ = ["GradientEstimator"]


@dataclass(frozen=True)
class GradientEstimator(ABC):
    """An unbiased estimate of the gradient of U in a chain's coordinates; the prior is exact.

    Users give one with its settings; a method binds it to the model it is for. Hashable, without
    arrays: these come in the context, a chain's own as `memory`.

    Parameters
    ----------
    target
        The model; set by `bound`.
    precision
        Of the rows and gradients; set by `bound`.
    """

    target: Target | None = None
    precision: str = "float64"

    needs_anchor: ClassVar[bool] = False
    needs_snapshots: ClassVar[bool] = False
    evaluations: ClassVar[int] = 1  # gradients of each row of a batch
    small_gradients: ClassVar[bool] = False  # made small near the mode by control variates
    order: ClassVar[int] = 0  # of the Taylor proxy whose residuals have a size like the gradients'

    def bound(self, target: Target, precision: str) -> Self:
        """The same estimator for this model."""
        return replace(self, target=target, precision=precision)

    def arrays(self, anchor: Anchor | None) -> dict[str, Any]:
        """What is read in every step, found once: `context["estimator"]`."""
        del anchor
        return {}

    def prepare(self, batch: Any, context: Any) -> Any:
        """Make of a batch (with its `probability`) what does not depend on the state."""
        del context
        # Bytes stay bytes: by their type networks know that pixels are to be scaled.
        return {
            name: field if field.dtype == jnp.uint8 else jnp.asarray(field, self.precision)
            for name, field in batch.items()
        }

    def start(self, z: jax.Array, context: Any) -> Any:
        """What a chain remembers, before it is first renewed; () for nothing."""
        del z, context
        return ()

    @abstractmethod
    def gradient(self, z: jax.Array, batch: Any, memory: Any, context: Any) -> jax.Array:
        """Estimate the gradient of U at z from one prepared batch."""
