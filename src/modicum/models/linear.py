"""Models in which a row enters through a linear predictor eta = x @ beta + intercept + offset.

Knowing this buys cheap Hessians (X' diag(f'') X) and control variates of O(d) a row. A family says
only what the log-likelihood f is as a function of its *predictors*: the q linear ones, followed by
the model's other parameters (a log-scale), the same for every row.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, SettingError
from modicum.models.base import BaseModel, Batch, Labels, Params
from modicum.models.checks import check_outcomes, is_positive
from modicum.rows import Rows

__all__ = ["LinearPredictorModel"]


@dataclass(frozen=True)
class LinearPredictorModel(BaseModel):
    """Coefficients with independent normal priors, entering through x @ beta + intercept + offset.

    Parameters
    ----------
    prior_scale
        Prior standard deviation of the coefficients: one number, or one a column of x.
    intercept
        Whether to add an intercept; False leaves the columns as they are.
    intercept_scale
        Prior standard deviation of the intercept.
    """

    prior_scale: float | tuple[float, ...] = 2.5
    intercept: bool = True
    intercept_scale: float = 10.0

    extras: ClassVar[tuple[str, ...]] = ()  # what a family has besides coefficients, by name

    def __post_init__(self) -> None:
        try:
            scale = np.asarray(self.prior_scale, dtype=np.float64)
        except (TypeError, ValueError):
            scale = np.full(1, np.nan)
        if scale.ndim > 1 or scale.size == 0 or not np.all(np.isfinite(scale) & (scale > 0)):
            raise SettingError(
                "prior_scale must be a positive number, or one positive number a column of x."
            )
        if not is_positive(self.intercept_scale):
            raise SettingError("intercept_scale must be a positive number.")
        if not isinstance(self.intercept, bool | np.bool_):
            raise SettingError(f"intercept must be True or False, not {self.intercept!r}.")
        frozen = float(scale) if scale.ndim == 0 else tuple(float(s) for s in scale)
        object.__setattr__(self, "prior_scale", frozen)  # hashable, whatever was handed in

    # What a family says -------------------------------------------------------------------

    @abstractmethod
    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Log-likelihood of one row; `eta` is the vector of its predictors."""

    @abstractmethod
    def derivatives(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        """f, f', f'', f''' in the (first) linear predictor, elementwise over rows."""

    @abstractmethod
    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        """Derivatives 4, 5 and 6 of f in the linear predictor, elementwise over rows."""

    @abstractmethod
    def mean(self, eta: jax.Array) -> jax.Array:
        """Expected outcome given the vector of predictors of one row."""

    @abstractmethod
    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Mask of outcomes outside the family's support, and what the support is."""

    def predictors(self, rows: Rows) -> int:
        """Return the number q of linear predictors; 0 means one, without an axis of its own."""
        del rows
        return 0

    # What follows from it -----------------------------------------------------------------

    def linear(self, theta: Params, batch: Batch) -> jax.Array:
        """Eta of each row: shape (rows,), or (rows, q)."""
        eta = batch["x"] @ jnp.asarray(theta["beta"]).T
        if self.intercept:
            eta = eta + theta["intercept"]
        if "offset" not in batch:
            return eta
        offset = jnp.asarray(batch["offset"])
        return eta + (offset[:, None] if offset.ndim < eta.ndim else offset)

    def predictor_vector(self, theta: Params, batch: Batch) -> jax.Array:
        """All predictors of each row, shape (rows, q + extras)."""
        eta = self.linear(theta, batch)
        eta = eta[:, None] if eta.ndim == 1 else eta
        shared = [jnp.broadcast_to(theta[name], (eta.shape[0], 1)) for name in self.extras]
        return jnp.concatenate([eta, *shared], axis=1) if shared else eta

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """F at the predictors of each row."""
        return jax.vmap(self.log_density)(
            self.predictor_vector(theta, batch), jnp.asarray(batch["y"])
        )

    def log_prior(self, theta: Params) -> jax.Array:
        """Independent normals: on beta, the intercept, and the extras (on their log scale)."""
        total = _normal(theta["beta"], jnp.asarray(self.prior_scale))
        if self.intercept:
            total += _normal(theta["intercept"], jnp.asarray(self.intercept_scale))
        for name in self.extras:
            total += _normal(theta[name], jnp.asarray(self.extra_scale(name)))
        return total

    def extra_scale(self, name: str) -> float:
        """Prior standard deviation of an extra parameter."""
        raise KeyError(name)

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Mean of the outcome of each row."""
        return jax.vmap(self.mean)(self.predictor_vector(theta, batch))

    # Layout, names, checks ----------------------------------------------------------------

    def start(self, rows: Rows) -> Params:
        """All zeros, in the layout {beta, intercept, extras}."""
        columns, q = rows.fields["x"][0], self.predictors(rows)
        theta = {"beta": np.zeros((q, columns) if q else columns)}
        if self.intercept:
            theta["intercept"] = np.zeros(q) if q else np.zeros(())
        return theta | {name: np.zeros(()) for name in self.extras}

    def labels(self, rows: Rows) -> Labels:
        """Columns of x name the entries of beta."""
        return {"beta": (tuple(rows.columns),)}

    def check(self, rows: Rows) -> None:
        """Refuse rows without x and y, scales of the wrong length, outcomes out of support."""
        self.require(rows, "x", "y")
        if len(rows.fields["x"]) != 1:
            raise DataError("the field 'x' must be a matrix: one row of numbers a row.")
        if rows.fields["y"] != ():
            raise DataError("the field 'y' must hold one outcome a row.")
        columns = rows.fields["x"][0]
        if isinstance(self.prior_scale, tuple) and len(self.prior_scale) != columns:
            raise SettingError(
                f"prior_scale has {len(self.prior_scale)} entries for {columns} columns of x."
            )
        self.check_offset(rows)
        self.check_outcome(rows)

    def check_offset(self, rows: Rows) -> None:
        """Refuse an offset that does not add to the linear predictor."""
        q = self.predictors(rows)
        if "offset" in rows.fields and rows.fields["offset"] != ((q,) if q > 1 else ()):
            wanted = f"{q} numbers (one a class but the reference)" if q > 1 else "one number"
            raise DataError(f"the field 'offset' must hold {wanted} a row.")

    def check_outcome(self, rows: Rows) -> None:
        """Refuse outcomes outside the family's support, naming the first such row."""
        check_outcomes(self, rows, self.outcome_fault)


def _normal(value: jax.Array, scale: jax.Array) -> jax.Array:
    z = jnp.asarray(value) / scale
    return jnp.sum(-0.5 * z**2 - jnp.log(scale) - 0.5 * np.log(2 * np.pi))
