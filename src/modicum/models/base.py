"""What is believed about a row: the interface every model answers, and the user's own model."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from hashlib import blake2b
from types import CellType, CodeType
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, ModicumWarning, SettingError
from modicum.rows import Rows

__all__ = ["BaseModel", "Batch", "Model", "Params"]

Params: TypeAlias = Any  # a pytree of arrays: the unconstrained parameters
Batch: TypeAlias = Mapping[str, Any]  # field name -> one entry a row
Labels: TypeAlias = dict[str, tuple[tuple[str, ...], ...]]
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in a repr: differs from process to process


class BaseModel(ABC):
    """A log-prior, a log-likelihood a row, and the names by which parameters are reported.

    Models are immutable and hashable, so that compiled functions are shared between runs.
    """

    has_mode: ClassVar[bool] = True  # one that Newton's method can find, and that stands for all
    reads_bytes: ClassVar[bool] = False  # whether rows may be held as uint8, which wraps around

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

    def check(self, rows: Rows) -> None:  # noqa: B027 - a model without demands need not override
        """Refuse rows the model cannot describe, with a `DataError` that says why."""

    def resolved(self, rows: Rows) -> BaseModel:
        """Return the model with all it takes from the rows in numbers: priors in their units."""
        del rows
        return self

    def without_priors(self) -> BaseModel:
        """Return a model of the same likelihood that is the same for all priors, if it can be."""
        return self

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Return the priors used, in words, by parameter; empty where the model does not say."""
        del rows
        return {}

    def prior_distances(self, theta: Params) -> Params | None:
        """Return how far `theta` lies from its prior's centre, in prior standard deviations.

        In the structure of `theta`, and linear in it; None for priors that are not normal.
        """
        del theta
        return None

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Say so if the likelihood has no maximum, seen from the mode; and the passes it took."""
        del rows, theta
        return None, 0

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name the parameters the way draws and summaries show them."""
        return named_leaves(theta)

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
        """Return a text that differs where models differ, so that checkpoints are not mixed up."""
        return repr(self)

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


def _code_bytes(code: CodeType) -> bytes:
    constants = [
        _code_bytes(c) if isinstance(c, CodeType) else _plain_bytes(c) for c in code.co_consts
    ]
    return code.co_code + b"".join(constants) + repr(code.co_names).encode()


def function_bytes(function: Any) -> bytes:
    """Code, defaults and the values a function has closed over: another of any is another model.

    Of a bound method also the object it is bound to.
    """
    if not hasattr(function, "__code__"):
        return _plain_bytes(function)
    bound = _plain_bytes(getattr(function, "__self__", None))
    held = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return _code_bytes(function.__code__) + bound + b"".join(_plain_bytes(v) for v in held)


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading an empty cell raises
    except ValueError:
        return True
    return False


def _plain_bytes(value: Any) -> bytes:
    """Return what tells plain values and arrays apart, the same in every process."""
    if hasattr(value, "__code__"):
        return _code_bytes(value.__code__)  # not what it holds in turn: it may hold itself
    if isinstance(value, tuple | list):
        return b"".join(_plain_bytes(item) for item in value)
    if isinstance(value, frozenset):  # its order differs from process to process
        return b"".join(sorted(repr(item).encode() for item in value))
    if isinstance(value, np.ndarray | jax.Array):
        return np.asarray(value).tobytes()
    if is_dataclass(value):  # a module of Flax or Equinox says all its settings
        return ADDRESS.sub("", repr(value)).encode()
    plain = isinstance(value, int | float | str | bytes | None)
    return repr(value).encode() if plain else type(value).__name__.encode()


def _floating(value: Any) -> jax.Array:
    """As a floating array: a flat prior may well be written as the integer 0."""
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def _step_name(step: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(step, attribute):
            return str(getattr(step, attribute))
    return str(step)


class Model(BaseModel):
    """A model of your own: any JAX functions over a pytree of parameters.

    Parameters
    ----------
    log_prior
        `log_prior(theta)`: a scalar.
    log_likelihood
        `log_likelihood(theta, batch)`: one value a row; `batch` maps the field names of the rows
        to arrays. Rows with a `weight` field are weighted by Modicum, not by this function.
    init
        Parameters to start from: a pytree (a dict, say) of numbers and arrays. It fixes the names
        and shapes that draws and summaries show.
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

    def __init__(
        self,
        log_prior: Callable[[Params], Any],
        log_likelihood: Callable[[Params, Batch], Any],
        init: Params,
        predict: Callable[[Params, Batch], Any] | None = None,
    ) -> None:
        self._functions = (log_prior, log_likelihood, predict)
        self.init = init
        for name, function in (("log_prior", log_prior), ("log_likelihood", log_likelihood)):
            if not callable(function):
                raise SettingError(f"{name} must be a function, not {type(function).__name__}.")

    def log_prior(self, theta: Params) -> jax.Array:
        """Return the log-prior the user gave."""
        return _floating(self._functions[0](theta))

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Return the log-likelihoods the user gave, one a row."""
        return _floating(self._functions[1](theta, batch))

    def start(self, rows: Rows) -> Params:
        """Return `init` as arrays of floating numbers."""
        del rows
        leaves = jax.tree.leaves(self.init)
        if not leaves:
            raise SettingError("`init` holds no parameters; give the values to start from.")
        for name, leaf in named_leaves(self.init).items():
            value = np.asarray(leaf)
            if value.dtype.kind not in "fiub" or not np.all(np.isfinite(value)):
                raise SettingError(
                    f"`init` must hold finite real numbers, and '{name}' does not; "
                    "give each parameter a value to start from."
                )
        return jax.tree.map(lambda leaf: np.asarray(leaf, dtype=np.float64), self.init)

    def check(self, rows: Rows) -> None:
        """Try the functions on the first rows, so that mistakes surface before any long work."""
        theta, batch = self.start(rows), rows.slice(0, min(len(rows), 8))
        count = len(next(iter(batch.values())))
        try:
            prior = jax.eval_shape(self.log_prior, theta).shape
            likelihood = jax.eval_shape(self.log_likelihood, theta, batch).shape
        except KeyError as missing:
            held = ", ".join(sorted(rows.fields))
            raise SettingError(
                f"the model asks for {missing}, which neither its parameters nor the rows hold "
                f"(the rows hold {held})."
            ) from missing
        except Exception as fault:
            raise SettingError(
                f"the model's functions fail on the first rows ({type(fault).__name__}: "
                f"{str(fault).splitlines()[0] if str(fault) else 'no message'}); check the shapes "
                "they expect."
            ) from fault
        if prior != ():
            raise SettingError(f"log_prior must return one number, but its shape is {prior}.")
        if likelihood != (count,):
            raise SettingError(
                "log_likelihood must return one value a row: for 8 rows or fewer it returned shape "
                f"{likelihood} where {(count,)} was expected; do not sum over rows."
            )

    def identity(self) -> str:
        """Name the functions by what they do: their code, not where they lie in memory."""
        code = b"".join(function_bytes(f) for f in self._functions[:2])
        shapes = {name: np.shape(leaf) for name, leaf in named_leaves(self.init).items()}
        return f"Model({shapes}, {blake2b(code, digest_size=8).hexdigest()})"

    def restore(self, named: Mapping[str, Any]) -> Params:
        """Put named draws back into the structure of `init`."""
        leaves = [named[name] for name in named_leaves(self.init)]
        return jax.tree.unflatten(jax.tree.structure(self.init), leaves)

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Return what `predict` says of each row."""
        predict = self._functions[2]
        return super().expected(theta, batch) if predict is None else predict(theta, batch)
