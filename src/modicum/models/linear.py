"""Models in which a row enters through a linear predictor eta = x @ beta + intercept + offset.

Knowing this buys cheap Hessians (X' diag(f'') X) and control variates of O(d) per row. A family
says only what the log-likelihood f is as a function of its *predictors*: the q linear ones,
followed by the model's other parameters (a log-scale), the same for every row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import pi
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, SettingError
from modicum.models.base import BaseModel, Batch, Labels, Params
from modicum.models.matrix import ModelMatrix, model_matrix
from modicum.models.outcomes import check_codes, check_outcomes
from modicum.models.priors import (
    Moments,
    NormalPrior,
    NormalPriors,
    is_positive,
    moments,
    normal_log_density,
)
from modicum.rows import Coding, Rows

__all__ = ["LinearPredictorModel"]


@dataclass(frozen=True, repr=False)
class LinearPredictorModel(BaseModel):
    """Coefficients with independent normal priors, entering through x @ beta + intercept + offset.

    Parameters
    ----------
    prior_scale
        Prior standard deviation of the coefficients: one number, or one per column of x, in the
        units x has. None: 2.5 / sd(x_j) for column j, times the unit of the outcome.
    intercept
        Whether to add an intercept; False leaves the columns as they are.
    intercept_scale
        Prior standard deviation of the intercept, about 0. None: a wide prior in the units of the
        data, on the predictor at the mean of the columns; the family says which.
    priors
        The priors in numbers, as `resolved` finds them; not for users to give.
    coding
        What the codes of the rows mean, as `resolved` finds it there; not for users to give.
    """

    prior_scale: float | tuple[float, ...] | None = None
    intercept: bool = True
    intercept_scale: float | None = None
    priors: NormalPriors | None = field(default=None, kw_only=True)
    coding: Coding | None = field(default=None, kw_only=True)

    extras: ClassVar[tuple[str, ...]] = ()  # what a family has besides coefficients, by name
    outcome_fields: ClassVar[tuple[str, ...]] = ("y",)  # what is seen of a row

    def __post_init__(self) -> None:
        if self.prior_scale is not None:
            object.__setattr__(self, "prior_scale", _scales(self.prior_scale))
        if self.intercept_scale is not None and not is_positive(self.intercept_scale):
            raise SettingError("intercept_scale must be a positive number, or None.")
        if not isinstance(self.intercept, bool | np.bool_):
            raise SettingError(f"intercept must be True or False, not {self.intercept!r}.")
        if isinstance(self.priors, Mapping):  # from a file
            object.__setattr__(self, "priors", NormalPriors.from_dict(self.priors))
        if isinstance(self.coding, Mapping):
            object.__setattr__(self, "coding", Coding.from_dict(self.coding))

    def __repr__(self) -> str:
        taken = ("priors", "coding")  # from the rows
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in taken}
        settings |= {name: getattr(self, name) for name in taken if getattr(self, name) is not None}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"

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

    def series_radius(self) -> float:
        """Return the radius within which the Taylor series of f in eta converges.

        Pi is that of the logistic family. The Poisson's series converges everywhere, but within
        pi its terms fall about as fast.
        """
        return pi

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

    def check_fields(self, chunk: Batch, first: int) -> None:
        """Refuse what a family's fields beside y hold; `first` is the number of the first row."""

    # What follows from it -----------------------------------------------------------------

    def matrix(self, batch: Batch) -> ModelMatrix:
        """Return the columns of the rows that `beta` multiplies, formed or not."""
        return model_matrix(self.coding, batch)

    def outcome(self, batch: Batch) -> jax.Array:
        """What is seen of each row: y, or y and the family's other fields along a last axis."""
        if len(self.outcome_fields) == 1:
            return jnp.asarray(batch["y"])
        return jnp.stack([jnp.asarray(batch[name]) for name in self.outcome_fields], axis=-1)

    def linear(self, theta: Params, batch: Batch) -> jax.Array:
        """eta of each row: shape (rows,), or (rows, q)."""
        eta = self.matrix(batch) @ jnp.asarray(theta["beta"]).T
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
        """f at the predictors of each row."""
        return jax.vmap(self.log_density)(self.predictor_vector(theta, batch), self.outcome(batch))

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Mean of the outcome of each row."""
        return jax.vmap(self.mean)(self.predictor_vector(theta, batch))

    # Priors -------------------------------------------------------------------------------

    def log_prior(self, theta: Params) -> jax.Array:
        """Independent normals: on beta, the (centred) intercept, and the extras."""
        if self.priors is not None:
            return self.priors.log_density(theta)
        if not self.has_raw_priors:
            raise SettingError(
                f"the default priors of {type(self).__name__} are in the units of the data, and "
                "known only with rows: use model.resolved(rows), or give the scales."
            )
        total = normal_log_density(theta["beta"], jnp.asarray(self.prior_scale))
        if self.intercept:
            scale = jnp.asarray(self.intercept_scale)
            total += normal_log_density(theta["intercept"], scale)
        for name in self.extras:
            scale = jnp.asarray(self.extra_scale(name))
            total += normal_log_density(theta[name], scale)
        return total

    @property
    def has_raw_priors(self) -> bool:
        """Whether all priors are given as numbers, so that no data are needed to know them."""
        scales = [self.prior_scale, *(self.extra_scale(name) for name in self.extras)]
        scales += [self.intercept_scale] if self.intercept else []
        return all(scale is not None for scale in scales)

    def resolved(self, rows: Rows) -> Self:
        """Return the model with its default priors in numbers, by one pass over the rows.

        Each setting stands by itself: what is given as a number stays a number in raw units.
        """
        coded = self if rows.coding == self.coding else replace(self, coding=rows.coding)
        if not self.needs_moments:
            return coded
        return replace(coded, priors=self.priors_for(rows, moments(rows)))

    @property
    def needs_moments(self) -> bool:
        """Whether `resolved` makes a pass over the rows."""
        return self.priors is None and not self.has_raw_priors

    def priors_for(self, rows: Rows, of: Moments | None) -> NormalPriors:
        """Return the priors in numbers; moments are needed where a setting is None."""
        columns = len(rows.columns)
        if self.prior_scale is not None:
            scales = np.broadcast_to(np.asarray(self.prior_scale), columns)
        else:
            scales = self._data_scales(_known(of))
        intercept: NormalPrior | None = None
        centre: tuple[float, ...] = ()
        if self.intercept and self.intercept_scale is not None:
            intercept = NormalPrior(0.0, float(self.intercept_scale))
        elif self.intercept:
            intercept = self.intercept_prior(_known(of))
            centre = tuple(float(c) for c in _known(of).x_mean)
        extras = []
        for name in self.extras:
            scale = self.extra_scale(name)
            given = None if scale is None else NormalPrior(0.0, scale)
            extras.append((name, given or self.extra_prior(name, _known(of))))
        return NormalPriors(tuple(float(s) for s in scales), intercept, centre, tuple(extras))

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Name each prior: "normal(mean, sd)"."""
        priors = self.priors or (self.priors_for(rows, None) if self.has_raw_priors else None)
        return {} if priors is None else priors.describe(rows.columns)

    def prior_distances(self, theta: Params) -> Params | None:
        """In prior standard deviations; of the intercept, the one its prior is about."""
        if self.priors is not None:
            return self.priors.distances(theta)
        if not self.has_raw_priors:
            return None
        scales = {"beta": self.prior_scale, "intercept": self.intercept_scale}
        scales |= {name: self.extra_scale(name) for name in self.extras}
        return {name: value / np.asarray(scales[name]) for name, value in theta.items()}

    def _data_scales(self, of: Moments) -> np.ndarray:
        """2.5 / sd(x_j) in units of the outcome.

        A constant column is an intercept of another height, and has an intercept's scale over
        that; a column of zeros has no unit, and counts as one of sd 1.
        """
        unit = self.outcome_unit(of)
        height = np.abs(of.x_mean)
        constant = np.where(
            height > 0, self.intercept_prior(of).sd / np.where(height > 0, height, 1.0), 2.5 * unit
        )
        varies = of.x_sd > 0
        return np.where(varies, 2.5 * unit / np.where(varies, of.x_sd, 1.0), constant)

    def outcome_unit(self, of: Moments) -> float:
        """Return the unit in which predictors are measured: 1 for log-odds and log-rates."""
        del of
        return 1.0

    def intercept_prior(self, of: Moments) -> NormalPrior:
        """Return the default prior of the predictor at the mean of the columns."""
        del of
        return NormalPrior(0.0, 10.0)

    def extra_scale(self, name: str) -> float | None:
        """Prior standard deviation of an extra parameter about 0; None: by the data."""
        raise KeyError(name)

    def extra_prior(self, name: str, of: Moments) -> NormalPrior:
        """Return the default prior of an extra parameter."""
        raise KeyError(name)

    def without_priors(self) -> Self:
        """Return the likelihood alone: it compiles once, whatever the priors' numbers are."""
        return replace(self, prior_scale=None, intercept_scale=None, priors=None)

    # Layout, names, checks ----------------------------------------------------------------

    def start(self, rows: Rows) -> Params:
        """The priors' centre where these are in the units of the data, else zeros.

        The layout is {beta, intercept, extras}.
        """
        columns, q = len(rows.columns), self.predictors(rows)
        theta = {"beta": np.zeros((q, columns) if q else columns)}
        if self.intercept:
            theta["intercept"] = np.zeros(q) if q else np.zeros(())
        theta |= {name: np.zeros(()) for name in self.extras}
        if self.priors is not None and self.priors.intercept is not None:
            theta["intercept"] = theta["intercept"] + self.priors.intercept.mean
        for name, prior in () if self.priors is None else self.priors.extras:
            theta[name] = np.asarray(prior.mean)
        return theta

    def labels(self, rows: Rows) -> Labels:
        """Columns of x name the entries of beta."""
        return {"beta": (tuple(rows.columns),)}

    def check(self, rows: Rows) -> None:
        """Refuse rows without x and y, scales of the wrong length, outcomes out of support."""
        self.require(rows, *(("x",) if rows.coding is None else ()), *self.outcome_fields)
        if "x" in rows.fields and len(rows.fields["x"]) != 1:
            raise DataError("the field 'x' must be a matrix: a vector of numbers per row.")
        for name in self.outcome_fields:
            if rows.fields[name] != ():
                thing = "outcome" if name == "y" else "number"
                raise DataError(f"the field '{name}' must hold one {thing} per row.")
        columns = len(rows.columns)
        if isinstance(self.prior_scale, tuple) and len(self.prior_scale) != columns:
            raise SettingError(
                f"prior_scale has {len(self.prior_scale)} entries for {columns} columns of x."
            )
        if self.priors is not None and len(self.priors.coefficients) != columns:
            raise SettingError(
                f"the priors are those of {len(self.priors.coefficients)} columns, and x has "
                f"{columns}; make the model anew for these rows."
            )
        check_codes(rows)
        self.check_outcome(rows)
        self.check_offset(rows)

    def check_offset(self, rows: Rows) -> None:
        """Refuse an offset that does not add to the linear predictor."""
        q = self.predictors(rows)
        if "offset" in rows.fields and rows.fields["offset"] != ((q,) if q > 1 else ()):
            numbers = f"{q} numbers (one per class but the reference)" if q > 1 else "one number"
            raise DataError(f"the field 'offset' must hold {numbers} per row.")

    def check_outcome(self, rows: Rows) -> None:
        """Refuse outcomes outside the family's support, naming the first such row."""
        check_outcomes(self, rows, self.outcome_fault, self.check_fields)


def _scales(given: Any) -> float | tuple[float, ...]:
    """Return a prior scale per column, or one for all, as something hashable."""
    try:
        scale = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        scale = np.full(1, np.nan)
    if scale.ndim > 1 or scale.size == 0 or not np.all(np.isfinite(scale) & (scale > 0)):
        raise SettingError(
            "prior_scale must be a positive number, one positive number per column of x, or None."
        )
    return float(scale) if scale.ndim == 0 else tuple(float(s) for s in scale)


def _known(of: Moments | None) -> Moments:
    assert of is not None, "moments are computed wherever a scale is left to the data"
    return of
