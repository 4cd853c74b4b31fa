"""What is believed about a row: the interface every model answers, and the user's own model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, ModicumWarning, SettingError
from modicum.models.priors.exact import ExactPrior, Numbers
from modicum.models.tracing import Trace, trace_of, uncompiled
from modicum.rows import Rows

__all__ = ["BaseModel", "Batch", "Model", "Params"]

Params: TypeAlias = Any  # a pytree of arrays: the unconstrained parameters
Batch: TypeAlias = Mapping[str, Any]  # field name -> one entry per row
Labels: TypeAlias = dict[str, tuple[tuple[str, ...], ...]]
DISPERSED = 10  # starts for a model of which nothing is known


class BaseModel(ABC):
    """A log-prior, a log-likelihood per row, and the names by which parameters are reported.

    Models are immutable and hashable, so that compiled functions are shared between runs.
    """

    has_mode: ClassVar[bool] = True  # one that Newton's method can find, and that stands for all
    reads_bytes: ClassVar[bool] = False  # whether rows may be held as uint8, which wraps around
    users_functions: ClassVar[bool] = False  # known by what it computes, not by its settings
    has_flat_prior: bool = False  # known to have one, so that the posterior may have no end
    has_groups: bool = False  # whether effects of groups are among the parameters
    dispersed_starts: ClassVar[int] = 1  # from which modes are looked for, unless asked otherwise

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
        """Return further points to start from, where the user gave several."""
        del rows
        return []

    def check(self, rows: Rows) -> None:  # noqa: B027 - a model without demands need not override
        """Refuse rows the model cannot describe, with a `DataError` that says why."""

    def units(self, rows: Rows) -> Rows:
        """Return what has a log-likelihood of its own and is subsampled: the rows, or groups."""
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
        """Return which parameters have a prior that is meant to decide where data are silent."""
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

    def restore(self, named: Mapping[str, Any]) -> Params:
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

    def decide(self, expected: np.ndarray) -> np.ndarray | None:
        """Return the outcome to bet on given expected ones; None where outcomes are no classes."""
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
                held = ", ".join(sorted(rows.fields))
                raise DataError(
                    f"{type(self).__name__} needs the field '{field}', but the rows hold only "
                    f"{held}; build them with Rows({', '.join(f'{f}=...' for f in fields)})."
                )


def named_leaves(theta: Params) -> dict[str, jax.Array]:
    """Name each leaf of a pytree by its path: {"layer": {"w": ...}} gives "layer.w"."""
    leaves = jax.tree_util.tree_flatten_with_path(theta)[0]
    names = [".".join(_step_name(step) for step in path) or "theta" for path, _ in leaves]
    return dict(zip(names, (leaf for _, leaf in leaves), strict=True))


def _floating(value: Any) -> jax.Array:
    """As a floating array: a flat prior may well be written as the integer 0."""
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def _step_name(step: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(step, attribute):
            return str(getattr(step, attribute))
    return str(step)


def _as_floats(init: Params) -> Params:
    """A point to start from as arrays of float64; a sentence for what is none."""
    if not jax.tree.leaves(init):
        raise SettingError("`init` holds no parameters; give the values to start from.")
    for name, leaf in named_leaves(init).items():
        value = np.asarray(leaf)
        if value.dtype.kind not in "fiub" or not np.all(np.isfinite(value)):
            raise SettingError(
                f"`init` must hold finite real numbers, and '{name}' does not; "
                "give each parameter a value to start from."
            )
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype=np.float64), init)


def _points(init: Params, log_prior: Callable[[Params], Any]) -> tuple[Params, ...]:
    """The points that `init` holds: several, where it is a list of what `log_prior` accepts.

    A list may as well be the parameters themselves (layers of a network), which `log_prior` then
    accepts as a whole.
    """
    if not isinstance(init, list) or not init or not _alike(init) or _accepts(log_prior, init):
        return (init,)
    return tuple(init) if _accepts(log_prior, init[0]) else (init,)


def _alike(points: list[Params]) -> bool:
    """Whether all points have the names and shapes of the first, and are no bare numbers."""
    if any(jax.tree_util.all_leaves([point]) for point in points):
        return False
    layouts = [
        (jax.tree.structure(point), [np.shape(leaf) for leaf in jax.tree.leaves(point)])
        for point in points
    ]
    return all(layout == layouts[0] for layout in layouts)


def _accepts(function: Callable[[Params], Any], theta: Params) -> bool:
    try:
        jax.eval_shape(lambda t: jnp.asarray(function(t)), theta)
    except Exception:  # whatever a function raises that is given something else than it takes
        return False
    return True


def _why_failed(fault: Exception, init: Params) -> str:
    """Say why the functions failed on the first rows."""
    message = str(fault).splitlines()
    said = f"{type(fault).__name__}: {message[0] if message else 'no message'}"
    if isinstance(fault, jax.errors.JAXTypeError):  # of Python on what is traced
        remedy = (
            "they are traced by JAX, so that `if`, `while`, float() and NumPy cannot be used on "
            "parameters or rows: use jnp.where and jax.numpy"
        )
    else:
        remedy = "check the shapes they expect"
    if isinstance(init, list):
        remedy += ", and if `init` is meant as several points, pass them as mo.sample(starts=[...])"
    return f"the model's functions fail on the first rows ({said}); {remedy}."


class Model(BaseModel):
    """A model of your own: any JAX functions over a pytree of parameters.

    Parameters
    ----------
    log_prior
        `log_prior(theta)`: a scalar.
    log_likelihood
        `log_likelihood(theta, batch)`: one value per row; `batch` maps the field names of the rows
        to arrays. Rows with a `weight` field are weighted by Modicum, not by this function.
    init
        Parameters to start from: a pytree (a dict, say) of numbers and arrays. It fixes the names
        and shapes that draws and summaries show. A list of several such points, alike in names and
        shapes, starts the search for modes from each; a list that `log_prior` itself accepts is a
        pytree, so that for a flat prior several points are given as `mo.sample(starts=[...])`.
    predict
        Optional `predict(theta, batch)`: the expected outcome of each row, for
        `Posterior.predict`.

    Examples
    --------
    Exponential decay with known noise:

    >>> import jax.numpy as jnp, numpy as np, modicum as mo
    >>> decay = mo.Model(
    ...     log_prior=lambda th: -0.5 * (th["level"] ** 2 + th["rate"] ** 2),
    ...     log_likelihood=lambda th, batch: -0.5 * (
    ...         batch["y"] - th["level"] * jnp.exp(-th["rate"] * batch["time"])) ** 2,
    ...     init={"level": 1.0, "rate": 0.5},
    ... )
    >>> decay.log_likelihood(decay.init, {"time": np.zeros(3), "y": np.ones(3)}).shape
    (3,)
    """

    users_functions: ClassVar[bool] = True
    dispersed_starts: ClassVar[int] = DISPERSED

    def __init__(
        self,
        log_prior: Callable[[Params], Any],
        log_likelihood: Callable[[Params, Batch], Any],
        init: Params,
        predict: Callable[[Params, Batch], Any] | None = None,
    ) -> None:
        functions: dict[str, Callable[..., Any]] = {
            "log_prior": log_prior,
            "log_likelihood": log_likelihood,
        }
        if predict is not None:
            functions["predict"] = predict
        for name, function in functions.items():
            if not callable(function):
                raise SettingError(f"{name} must be a function, not {type(function).__name__}.")
        self._functions = {name: uncompiled(function) for name, function in functions.items()}
        self.points = _points(init, self._functions["log_prior"])
        self.init = self.points[0]

    def log_prior(self, theta: Params) -> jax.Array:
        """Return the log-prior the user gave."""
        return _floating(self._functions["log_prior"](theta))

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Return the log-likelihoods the user gave, one per row."""
        return _floating(self._functions["log_likelihood"](theta, batch))

    def start(self, rows: Rows) -> Params:
        """Return `init` as arrays of floating numbers."""
        del rows
        return _as_floats(self.init)

    def other_starts(self, rows: Rows) -> list[Params]:
        """Return the points of `init` after the first."""
        del rows
        return [_as_floats(point) for point in self.points[1:]]

    def check(self, rows: Rows) -> None:
        """Try the functions on the first rows, so that mistakes surface before any long work."""
        theta, batch = self.start(rows), rows.slice(0, min(len(rows), 8))
        count = len(next(iter(batch.values())))
        try:
            # Wrapped anew: JAX remembers what it has traced of a function.
            prior = jax.eval_shape(lambda t: self.log_prior(t), theta).shape
            likelihood = jax.eval_shape(lambda t, b: self.log_likelihood(t, b), theta, batch).shape
        except KeyError as missing:
            held = ", ".join(sorted(rows.fields))
            raise SettingError(
                f"the model asks for {missing}, which neither its parameters nor the rows hold "
                f"(the rows hold {held})."
            ) from missing
        except Exception as fault:
            raise SettingError(_why_failed(fault, self.init)) from fault
        if prior != ():
            raise SettingError(f"log_prior must return one number, but its shape is {prior}.")
        if likelihood != (count,):
            raise SettingError(
                "log_likelihood must return one value per row: for 8 rows or fewer it returned "
                f"shape {likelihood} where {(count,)} was expected; do not sum over rows."
            )

    def identity(self) -> str:
        """Name the parameters; what is computed of them, `trace` says."""
        shapes = {name: np.shape(leaf) for name, leaf in named_leaves(self.init).items()}
        return f"Model({shapes})"

    def restore(self, named: Mapping[str, Any]) -> Params:
        """Put named draws back into the structure of `init`."""
        leaves = [named[name] for name in named_leaves(self.init)]
        return jax.tree.unflatten(jax.tree.structure(self.init), leaves)

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Return what `predict` says of each row."""
        predict = self._functions.get("predict")
        return super().expected(theta, batch) if predict is None else predict(theta, batch)
