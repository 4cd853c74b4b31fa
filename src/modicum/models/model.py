"""The interface of every model: a prior, a log-likelihood per row, and names for reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, ModicumWarning, SettingError
from modicum.models.constraints import NO_CONSTRAINTS, Entries, named_leaves
from modicum.models.observed import REAL, Support
from modicum.models.priors.resolved import ModelPriors
from modicum.models.terms import GroupTerm
from modicum.models.tracing import Trace, trace_of
from modicum.random import typed
from modicum.rows import Rows
from modicum.runtime import Array

Params: TypeAlias = Any  # a pytree of arrays: the unconstrained parameters
Batch: TypeAlias = Mapping[str, Array]  # field name -> one entry per row
NEW = "new groups of "  # before a group's field: which rows' groups the fit did not have
Labels: TypeAlias = dict[str, tuple[tuple[str, ...], ...]]


class EffectScale(NamedTuple):
    """What the effects of a group term multiply, and where the product is added."""

    field: str
    columns: tuple[int | None, ...]  # of x; None for 1
    predictor: int = 0


DENSE_LIMIT = 2_000  # most parameters for which dense Hessians are formed


class BaseModel(ABC):
    """A log-prior, a log-likelihood per row, and the names by which parameters are reported.

    Models are immutable and hashable, so that compiled functions are shared between runs.
    """

    has_predictors: ClassVar[bool] = False  # whether rows enter through linear predictors alone
    smooth_in_eta: bool = False  # whether a smooth function of one predictor describes a row
    on_numpy: ClassVar[bool] = False  # whether NumPy takes the formulas for its derivatives
    has_mode: ClassVar[bool] = True  # whether Newton's method finds a mode worth expanding about
    reads_bytes: ClassVar[bool] = False  # whether rows may be uint8, whose arithmetic wraps around
    users_functions: ClassVar[bool] = False  # identified by its trace rather than its settings
    resolved_priors: ModelPriors | None = None  # of each parameter; None if `log_prior` is all
    splits_prior: bool = True  # whether folding the quadratic part of these finds the mode
    has_groups: bool = False  # whether the parameters include group effects
    group_terms: tuple[GroupTerm, ...] = ()  # whose effects vary between the levels of a factor
    extras: ClassVar[tuple[str, ...]] = ()  # parameters besides the coefficients, on coordinates
    integrated_group: str | None = None  # the factor whose effects are integrated out
    constrained: Entries = NO_CONSTRAINTS  # constraints of coefficients, if these have bounds
    observed: tuple[str, ...] = ()  # fields of rows by which outcomes are known in part
    outcome_field: str = "y"  # field that is predicted, simulated and checked
    has_whole_outcomes: bool | None = None  # if known: their likelihood is then a probability
    mean_is_share: ClassVar[bool | None] = None  # if known: it is then between 0 and 1
    multiplies: str = ""  # what e^coefficient multiplies ("odds", "mean"); empty if nothing
    simpler: ClassVar[str] = ""  # the family without the first extra parameter, at its bound

    @abstractmethod
    def log_prior(self, theta: Params) -> jax.Array:
        """Log-density of the prior at the unconstrained parameters."""

    def log_prior_as_stated(self, theta: Params) -> jax.Array:
        """Log-density of the prior in the parameters that it is a distribution of.

        Effects of groups, given their standard deviations, are part of the model instead.
        """
        total, priors = self.log_prior(theta), self.resolved_priors
        return total if priors is None else total - priors.log_unstated(theta)

    @abstractmethod
    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Log-density of each row of `batch`, before frequency weights."""

    @abstractmethod
    def start(self, rows: Rows) -> Params:
        """Return unconstrained starting parameters; their structure is the model's layout."""

    def random_start(self, rows: Rows, key: jax.Array) -> Params:
        """Return a random starting point for `key`; `start` unless the model overrides it.

        It may depend on the layout of the rows, not on their values.
        """
        return self.start(rows)

    def other_starts(self, rows: Rows) -> list[Params]:
        """Return further starting points, if the user gave several."""
        return []

    def free_point(self, theta: Params, rows: Rows) -> Params:
        """Map a point given by the user to unconstrained parameters."""
        return theta

    def flat_names(self, rows: Rows | None = None) -> tuple[str, ...] | None:
        """Return names of the unconstrained parameters; None if the reported names apply."""
        return None

    def check_variation(self, rows: Rows) -> None:  # noqa: B027 - optional
        """Refuse rows that vary too little for the model's parameters to have a posterior.

        Called with all rows of a fit, never with a subset.
        """

    def check(self, rows: Rows) -> None:  # noqa: B027 - optional
        """Refuse rows the model cannot describe, with a `DataError` that says why."""

    @property
    def row_model(self) -> BaseModel:
        """The model of a single row: the family, where group effects are integrated out."""
        return self

    def units(self, rows: Rows) -> Rows:
        """Return the units that have a log-likelihood and are subsampled: rows, or groups."""
        return rows

    def resolved(self, rows: Rows) -> BaseModel:
        """Return the model with everything that depends on the rows fixed: data-scaled priors."""
        return self

    @property
    def needs_moments(self) -> bool:
        """Whether `resolved` makes a pass over the rows."""
        return False

    @property
    def has_flat_prior(self) -> bool:
        """Whether some parameter has no prior, so that the posterior may be improper."""
        return self.resolved_priors is not None and self.resolved_priors.has_flat

    of_logs: ClassVar[bool] = False  # whether a row's density is that of its outcome's logarithm

    def at_known_scale(self) -> BaseModel | None:
        """Return the model with noise of a known scale, if its log-likelihood is then quadratic."""
        return None

    def expansions(self) -> dict[str, str | None]:
        """Return the parameters sampled on the log scale, and the coordinate each is expanded in.

        Keys are leaf names of `theta`; values are keys of `kernels.expansion.POWERS`, or None
        to let the pilot study of HMC-ECS choose.
        """
        return {}

    @property
    def effect_scales(self) -> tuple[EffectScale, ...]:
        """For each group term what its effects multiply."""
        return ()

    @property
    def predictors_of_groups(self) -> tuple[int, ...]:
        """The predictors that effects of groups enter."""
        return tuple(sorted({scale.predictor for scale in self.effect_scales}))

    def effect_factors(self, theta: Params) -> Sequence[jax.Array]:
        """For each group term T: the effects of a group are T v, with v standard normal."""
        return ()

    def new_group_variances(self, theta: Params, batch: Batch) -> list[jax.Array]:
        """For each group term the variance that its effects add to the predictors of new groups.

        A group is new if the batch does not have its field, or marks its row (`NEW`); the variance
        of other rows is 0.
        """
        variances = []
        pairs = zip(self.effect_scales, self.effect_factors(theta), strict=True)
        for (field, columns, _), factor in pairs:
            z = [jnp.ones(()) if j is None else jnp.asarray(batch["x"])[:, j] for j in columns]
            along = [sum(a * b for a, b in zip(z, column, strict=True)) for column in factor.T]
            total = jnp.asarray(sum(part**2 for part in along))
            is_new = batch.get(NEW + field, field not in batch)
            variances.append(jnp.where(jnp.asarray(is_new), total, 0.0))
        return variances

    def new_group_sds(self, theta: Params, batch: Batch) -> jax.Array:
        """Standard deviations of the predictors that groups enter, (1 or rows, such predictors)."""
        owners = np.array([scale.predictor for scale in self.effect_scales])
        variances = jnp.stack(jnp.broadcast_arrays(*self.new_group_variances(theta, batch)))
        sums = [variances[owners == k].sum(0) for k in self.predictors_of_groups]
        return jnp.sqrt(jnp.atleast_2d(jnp.stack(sums, axis=-1)))

    def without_priors(self) -> BaseModel:
        """Return a model with this likelihood that does not depend on the priors, if possible."""
        return self

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Return a description of each parameter's prior; empty where the model has none."""
        return {}

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Return a warning if the likelihood has no maximum, and the passes the search took.

        `theta` is the posterior mode.
        """
        return None, 0

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name the parameters the way draws and summaries show them."""
        return named_leaves(theta)

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Undo `report`: map reported parameters to unconstrained ones."""
        return dict(named)

    def labels(self, rows: Rows) -> Labels:
        """Return coordinate labels for the axes of reported parameters, where they have labels."""
        return {}

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Return the expected outcome of each row, for prediction."""
        raise SettingError(
            f"{type(self).__name__} does not say what it predicts; give it `predict=`, a function "
            "of (theta, batch) that returns the expected outcome of each row."
        )

    @property
    def row_fields(self) -> tuple[str, ...]:
        """The observed fields of a row, the outcome first."""
        return (self.outcome_field,)

    @property
    def drawn_fields(self) -> tuple[str, ...]:
        """The fields of a row that hold what is drawn as its outcome."""
        return (self.outcome_field,)

    @property
    def support(self) -> Support:
        """The outcomes that the model allows."""
        return REAL

    def check_fields(self, chunk: Batch, first: int) -> None:  # noqa: B027 - optional
        """Refuse bad values in the other fields; `first` is the index of the first row."""

    def check_width(self, draws: Mapping[str, np.ndarray], fields: Batch) -> None:  # noqa: B027
        """Refuse rows whose number of columns is not that of the coefficients."""

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """log P(Y <= y) and log P(Y > y) of one row, differentiable also where they are small."""
        raise SettingError(
            f"{type(self).__name__} has no distribution function, which censored or truncated "
            "outcomes and chances of survival need; give it a method `log_tails(eta, y)`."
        )

    @property
    def simulates(self) -> bool:
        """Whether `simulate` draws outcomes."""
        return type(self).simulate is not BaseModel.simulate

    def simulate(self, theta: Params, row: Batch, key: jax.Array) -> jax.Array:
        """Draw an outcome of one row, for predictive draws; `row` holds one entry per field."""
        raise SettingError(
            f"{type(self).__name__} does not say how outcomes are drawn, so there are no "
            "predictive draws; give it `simulate=`, a function of (theta, row, key) that draws the "
            "outcome of one row with a JAX key, or use post.predict for expected outcomes."
        )

    def draw_prior(
        self, shapes: Mapping[str, tuple[int, ...]], number: int, rng: np.random.Generator
    ) -> Params:
        """Draw unconstrained parameters from the prior, with a leading axis of length `number`.

        `shapes` are those of the reported parameters.
        """
        words = rng.integers(0, 2**32, size=(number, 2), dtype=np.uint32)
        return jax.jit(jax.vmap(lambda w: self.simulate_prior(typed(w))))(words)

    def simulate_prior(self, key: jax.Array) -> Params:
        """Draw unconstrained parameters from the prior, for prior predictive draws."""
        raise SettingError(
            f"{type(self).__name__} does not say how to draw from its prior, so there are no "
            "prior draws; give it `simulate_prior=`, a function of a JAX key that draws parameters."
        )

    def decide(self, expected: np.ndarray) -> np.ndarray | None:
        """Return the predicted class given expected outcomes; None if outcomes are not classes."""
        return None

    def identity(self) -> str:
        """Return a string that is different for models with different settings."""
        return repr(self)

    def trace(self, rows: Rows) -> Trace | None:
        """Trace what the model computes, where its settings do not determine it; else None.

        Every call traces anew: a global that a user's function reads may have changed.
        """
        if not self.users_functions:
            return None
        overridden = type(self).random_start is not BaseModel.random_start
        start = (lambda key: self.random_start(rows, key)) if overridden else None
        return trace_of(self.log_prior, self.log_likelihood, self.start(rows), rows, start)

    def coefficients(self, theta: Params) -> Params:
        """Return parameters with the coefficients of columns in place of their free values."""
        return theta

    def require(self, rows: Rows, *fields: str) -> None:
        """Refuse rows that lack one of `fields`."""
        for field in fields:
            if field not in rows.fields:
                listed = ", ".join(sorted(rows.fields))
                raise DataError(
                    f"{type(self).__name__} needs the field '{field}', but the rows hold only "
                    f"{listed}; build them with Rows({', '.join(f'{f}=...' for f in fields)})."
                )


def unflattened(layout: Params, t: Array) -> Params:
    """Return the entries of flat vectors (..., d) in the layout of some parameters."""
    leaves, structure = jax.tree.flatten(layout)
    ends = np.cumsum([prod(np.shape(leaf)) for leaf in leaves])
    pairs = zip(np.r_[0, ends[:-1]], ends, leaves, strict=True)
    at = t.shape[:-1]
    parts = [t[..., a:b].reshape((*at, *np.shape(leaf))) for a, b, leaf in pairs]
    return jax.tree.unflatten(structure, parts)
