"""Families with one parameter besides the coefficients: a dispersion, a shape, a probability.

The parameter is sampled on an unbounded coordinate and reported on its natural scale. Such families
are differentiated automatically, jointly in the linear predictor and that coordinate.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, ModicumWarning
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import Batch, Params
from modicum.models.outcome_checks import refuse_constant
from modicum.models.priors import Moments, Normal
from modicum.models.separation import find_silent_counts
from modicum.rows import Rows

LARGEST_OFFSET = 700.0  # its exponential is still finite


@dataclass(frozen=True, repr=False)
class ExtraParameter(LinearPredictorModel):
    """A family with one parameter besides the coefficients, named in `extras`.

    The name has the prefix of its coordinate, "log_" or "logit_", and must sort after "intercept",
    as parameters are laid out in alphabetical order. The default prior is normal on the coordinate:
    mean 0, and a standard deviation of 5 for a logarithm and 2.5 for a logit.
    """

    bounded_by_variation: ClassVar[bool] = False  # whether only outcomes that vary bound it

    @abstractmethod
    def density(self, eta: jax.Array, extra: jax.Array, y: jax.Array) -> jax.Array:
        """Log-likelihood, elementwise over rows; `extra` is the parameter on its coordinate."""

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Log-density of one row."""
        return self.density(eta[0], eta[1], y)

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Evaluate all rows at once, so terms in the extra parameter alone are computed once."""
        return self.density(self.linear(theta, batch), theta[self.extras[0]], self.outcome(batch))

    def check_variation(self, rows: Rows) -> None:
        """Refuse an outcome that never varies, where nothing else bounds the parameter."""
        if self.bounded_by_variation and self.intercept:
            refuse_constant(self, rows)


@dataclass(frozen=True, repr=False)
class LogLink(LinearPredictorModel):
    """A family whose linear predictor is the logarithm of a mean (or of a typical time)."""

    counted: ClassVar[str | None] = None  # field whose zeros may all lie on one side of a column
    multiplies = "mean"

    def mean(self, eta: jax.Array) -> jax.Array:
        """e^eta."""
        return jnp.exp(eta[0])

    def pseudo_variance(self, data: Moments) -> float:
        """Return one over the mean, as for a count."""
        return 1 / max(data.y_mean, 1 / (data.weight + 1))

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
        """Look for columns along which all counts are 0, or all times censored."""
        if self.counted is None:
            return None, 0
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
