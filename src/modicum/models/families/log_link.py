"""Families whose linear predictor is the logarithm of a mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, ModicumWarning
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import Batch, Params
from modicum.models.priors.distributions import Normal
from modicum.models.priors.units import Moments
from modicum.models.separation import find_silent_counts
from modicum.rows import Rows

LARGEST_OFFSET = 700.0  # its exponential is still finite


@dataclass(frozen=True, repr=False)
class LogLink(LinearPredictorModel):
    """A family whose linear predictor is the logarithm of a mean (or of a typical outcome)."""

    counted: ClassVar[str | None] = None  # field whose zeros may all lie on one side of a column
    multiplies = "mean"

    def mean(self, eta: jax.Array) -> jax.Array:
        """e^eta."""
        return jnp.exp(eta[0])

    def log_above_zero(self, eta: jax.Array) -> jax.Array:
        """Log-probability that the outcome is not 0: that of a positive outcome is 0."""
        return jnp.zeros_like(eta[0])

    def draw_above_zero(
        self, rng: np.random.Generator, eta: np.ndarray, batch: Batch
    ) -> np.ndarray:
        """Draw outcomes given that they are not 0."""
        return self.draw_outcomes(rng, eta, batch)

    def outcome_unit(self, data: Moments) -> float:
        """Return 1, or more without an intercept: 2.5 units then reach the outcome's logarithm."""
        reach = 0.0 if self.intercept else self.intercept_prior(data).mean
        return float(np.hypot(1.0, reach / 2.5))

    def intercept_prior(self, data: Moments) -> Normal:
        """Return a wide prior about the log of total outcome over total exposure.

        If all outcomes are 0, the total counts as one half.
        """
        none = np.log(0.5) - data.log_exposure
        return Normal(float(data.log_rate if np.isfinite(data.log_rate) else none), 10.0)

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns along which all counts are 0, or all outcomes censored."""
        if self.counted is None or self.modelled or self.observed:  # which may explain zeros
            return super().separation(rows, theta)
        return find_silent_counts(rows, self.intercept, self.counted)

    def check_fields(self, chunk: Batch, first: int) -> None:
        """Refuse offsets that overflow as exposures."""
        offset = np.asarray(chunk.get("offset", 0.0))
        if offset.max() > LARGEST_OFFSET:
            at = int(np.argmax(offset > LARGEST_OFFSET))
            raise DataError(
                f"the offset is {offset[at]:g} in row {first + at}, so the exposure "
                f"exp({offset[at]:g}) overflows; an offset is the logarithm of the exposure: give "
                "np.log(exposure)."
            )
