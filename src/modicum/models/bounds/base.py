"""What a lower bound is: below the likelihood everywhere, tight where asked, summed at once.

The bound B_k <= L_k of a row is the exponential of a quadratic in its linear predictors, so that
the sum of log B_k over any number of rows is a quadratic in the coefficients: one pass, and no row
is looked at again (Maclaurin and Adams 2014, section 2.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Bound", "Expansion"]


class Expansion(NamedTuple):
    """A row's bound at given linear predictors: a constant, and a quadratic with its derivatives.

    Shapes (rows,), (rows,), (rows, q) and (rows, q, q).
    """

    constant: jax.Array
    value: jax.Array
    slope: jax.Array
    curvature: jax.Array


@dataclass(frozen=True)
class Bound(ABC):
    """The bounds of a family. Hashable; all functions take many rows at once.

    Predictors are those of `LinearPredictorModel.predictor_vector`: q linear ones, then the
    model's other parameters. `tight` says where each row's bound touches its likelihood, in
    whatever terms the family likes.

    Parameters
    ----------
    model
        The family with its settings.
    """

    model: Any

    @abstractmethod
    def tight_at(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """Where bounds are to touch the likelihood: at these predictors."""

    @abstractmethod
    def untuned(self, predictors: jax.Array, y: jax.Array) -> jax.Array:
        """Where bounds touch the likelihood if nothing is known; the same shape as `tight_at`."""

    @abstractmethod
    def gap(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """The log of L_k / B_k of each row: never below zero, but for rounding."""

    @abstractmethod
    def expand(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> Expansion:
        """The quadratic whose sum `collapse` turns into that of log B."""

    def collapse(self, constant: Any, weight: Any, quadratic: Any, extras: jax.Array) -> jax.Array:
        """sum_k log B_k from the sums of constants, weights and quadratics.

        `extras` are the model's parameters beside the coefficients, (..., extras).
        """
        del weight, extras
        return jnp.asarray(constant + quadratic)

    def log_bound(self, predictors: jax.Array, y: jax.Array, tight: jax.Array) -> jax.Array:
        """The logarithm of B_k of each row."""
        at = self.expand(predictors, y, tight)
        extras = predictors[:, at.slope.shape[1] :]
        return self.collapse(at.constant, 1.0, at.value, extras)
