"""What is believed about a row: the interface every model answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import jax
import numpy as np

from modicum.errors import DataError, ModicumWarning, SettingError
from modicum.models.priors.exact import ExactPrior, Numbers
from modicum.models.tracing import Trace, trace_of
from modicum.rows import Rows
from modicum.runtime import Array

__all__ = ["DENSE_LIMIT", "BaseModel", "Batch", "Params"]

Params: TypeAlias = Any  # a pytree of arrays: the unconstrained parameters
Batch: TypeAlias = Mapping[str, Array]  # field name -> one entry per row
Labels: TypeAlias = dict[str, tuple[tuple[str, ...], ...]]
DENSE_LIMIT = 2_000  # parameters up to which Hessians are formed


class BaseModel(ABC):
    """A log-prior, a log-likelihood per row, and the names by which parameters are reported.

    Models are immutable and hashable, so that compiled functions are shared between runs.
    """

    has_mode: ClassVar[bool] = True  # that Newton's method finds, and that the posterior is about
    reads_bytes: ClassVar[bool] = False  # whether rows may be held as uint8, which wraps around
    users_functions: ClassVar[bool] = False  # identified by what it computes, not by its settings
    has_flat_prior: bool = False  # so that the posterior may be improper
    has_groups: bool = False  # whether effects of groups are among the parameters
    dispersed_starts: ClassVar[int] = 1  # from which modes are looked for, unless asked otherwise
    outcome_field: str = "y"  # of the rows: what is predicted, drawn by `simulate` and checked

    @abstractmethod
    def log_prior(self, theta: Params) -> jax.Array:
        """Log-density of the prior at the unconstrained parameters."""

    @abstractmethod
    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Log-density of each row of `batch`, before frequency weights."""

    @abstractmethod
    def start(self, rows: Rows) -> Params:
        """Return unconstrained parameters to start from; their structure is the model's layout."""

    def random_start(self, rows: Rows, key: jax.Array) -> Params:
        """Return a start of its own for each key, where a model has many; else `start`.

        It may look at the layout of the rows, not at their values.
        """
        del key
        return self.start(rows)

    def other_starts(self, rows: Rows) -> list[Params]:
        """Return further points to start from, if the user gave several."""
        del rows
        return []

    def free_point(self, theta: Params, rows: Rows) -> Params:
        """Return the unconstrained parameters of a point that the user gave."""
        del rows
        return theta

    def flat_names(self, rows: Rows | None = None) -> tuple[str, ...] | None:
        """Return names of the unconstrained numbers; None where those of reported ones serve."""
        return None

    def check_variation(self, rows: Rows) -> None:  # noqa: B027 - most models ask for none
        """Refuse rows that vary too little for the model's parameters to have a posterior.

        Asked of all rows of a fit, and never of a part of them.
        """

    def check(self, rows: Rows) -> None:  # noqa: B027 - a model without demands need not override
        """Refuse rows the model cannot describe, with a `DataError` that says why."""

    def units(self, rows: Rows) -> Rows:
        """Return the units that have a log-likelihood and are subsampled: rows, or groups."""
        return rows

    def resolved(self, rows: Rows) -> BaseModel:
        """Return the model with all it takes from the rows in numbers: priors in their units."""
        del rows
        return self

    @property
    def needs_moments(self) -> bool:
        """Whether `resolved` makes a pass over the rows."""
        return False

    def log_folded_prior(self, theta: Params) -> jax.Array | None:
        """Return the part of the log-prior that is a quadratic in `theta`; None: unknown."""
        del theta
        return None

    def exact_prior(self, theta: Params) -> tuple[ExactPrior, tuple[Numbers, ...]] | None:
        """Return the other part, for parameters laid out as `theta`, and its numbers.

        None where there is no other part, or where the parts are not known.
        """
        del theta
        return None

    def expansions(self) -> dict[str, str | None]:
        """Return the parameters that are sampled on a logarithm, and what they are expanded in.

        By the names of the leaves of `theta`. What is a name in `estimators.coordinates.POWERS`;
        None: the pilot study of HMC-ECS chooses.
        """
        return {}

    def likelihood_layout(self, theta: Params) -> Params:
        """Return those of the parameters that the likelihood reads: the first, if not all."""
        return theta

    def without_priors(self) -> BaseModel:
        """Return a model of the same likelihood that is the same for all priors, if it can be."""
        return self

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Return the priors used, in words, by parameter; empty where the model does not say."""
        del rows
        return {}

    def prior_distances(self, theta: Params) -> Params | None:
        """Return how far `theta` lies from its prior's centre, in prior standard deviations.

        In the structure of `theta`, and linear in it; None where the model does not say. A prior
        that is not normal has widths instead (see `Prior.width`).
        """
        del theta
        return None

    def has_normal_prior(self, theta: Params) -> Params:
        """Return which parameters have a normal prior, in the structure of `theta`."""
        return jax.tree.map(lambda leaf: np.ones(np.shape(leaf), bool), theta)

    def shrunk(self, theta: Params) -> Params:
        """Return which parameters have a prior that is meant to decide where data say little."""
        return jax.tree.map(lambda leaf: np.zeros(np.shape(leaf), bool), theta)

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Say so if the likelihood has no maximum, seen from the mode; and the passes it took."""
        del rows, theta
        return None, 0

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name the parameters the way draws and summaries show them."""
        return named_leaves(theta)

    def report_own(self, theta: Params) -> dict[str, jax.Array]:
        """Name the parameters that priors have, which are the last."""
        del theta
        return {}

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Undo `report`: the unconstrained parameters of reported ones."""
        return dict(named)

    def labels(self, rows: Rows) -> Labels:
        """Return coordinate labels for the axes of reported parameters, where there are any."""
        del rows
        return {}

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Return the expected outcome of each row, for prediction."""
        raise SettingError(
            f"{type(self).__name__} does not say what it predicts; give it `predict=`, a function "
            "of (theta, batch) that returns the expected outcome of each row."
        )

    @property
    def simulates(self) -> bool:
        """Whether `simulate` draws outcomes."""
        return type(self).simulate is not BaseModel.simulate

    def simulate(self, theta: Params, row: Batch, key: jax.Array) -> jax.Array:
        """Draw an outcome of one row, for predictive draws; `row` holds one entry per field."""
        raise SettingError(
            f"{type(self).__name__} does not say how outcomes are drawn, so that there are no "
            "predictive draws; give it `simulate=`, a function of (theta, row, key) that draws the "
            "outcome of one row by a JAX key, or use post.predict, which gives expected outcomes."
        )

    @property
    def simulates_prior(self) -> bool:
        """Whether `simulate_prior` draws parameters."""
        return type(self).simulate_prior is not BaseModel.simulate_prior

    def simulate_prior(self, key: jax.Array) -> Params:
        """Draw unconstrained parameters from the prior, for prior predictive draws."""
        raise SettingError(
            f"{type(self).__name__} does not say how to draw from its prior, so that there are no "
            "prior draws; give it `simulate_prior=`, a function of a JAX key that draws parameters."
        )

    def decide(self, expected: np.ndarray) -> np.ndarray | None:
        """Return the outcome to bet on given expected ones; None where outcomes are not classes."""
        del expected
        return None

    def identity(self) -> str:
        """Return a text that differs where the settings of models differ."""
        return repr(self)

    def trace(self, rows: Rows) -> Trace | None:
        """Return what the model computes, where its settings do not say so; else None.

        It is traced anew at every call: a global that a user's function reads may have changed.
        """
        if not self.users_functions:
            return None
        apart = type(self).random_start is not BaseModel.random_start
        start = (lambda key: self.random_start(rows, key)) if apart else None
        return trace_of(self, self.start(rows), rows, start)

    def require(self, rows: Rows, *fields: str) -> None:
        """Refuse rows that lack one of `fields`."""
        for field in fields:
            if field not in rows.fields:
                listed = ", ".join(sorted(rows.fields))
                raise DataError(
                    f"{type(self).__name__} needs the field '{field}', but the rows hold only "
                    f"{listed}; build them with Rows({', '.join(f'{f}=...' for f in fields)})."
                )


def named_leaves(theta: Params) -> dict[str, jax.Array]:
    """Name each leaf of a pytree by its path: {"layer": {"w": ...}} gives "layer.w"."""
    leaves = jax.tree_util.tree_flatten_with_path(theta)[0]
    names = [".".join(_step_name(step) for step in path) or "theta" for path, _ in leaves]
    return dict(zip(names, (leaf for _, leaf in leaves), strict=True))


def _step_name(step: object) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(step, attribute):
            return str(getattr(step, attribute))
    return str(step)
