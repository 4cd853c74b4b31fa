"""User-defined models: any JAX functions of named parameters, with or without constraints.

A user's function may mix the rows of a batch by mistake. A log-likelihood that uses the mean of its
batch, the number of rows or the row before has a value on any subsample, but not that of all rows.
So the first row is tried in two batches that share nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from modicum.errors import SettingError, fault_text, suggestion
from modicum.models.constraints import (
    Constraint,
    ParameterLayout,
    Shape,
    named_leaves,
    positive,
)
from modicum.models.model import BaseModel, Batch, Params
from modicum.models.tracing import evaluated, explained, uncompiled
from modicum.random import IMPL
from modicum.rows import Rows
from modicum.runtime import Array, in_double_precision


def require_both(log_prior: object, log_likelihood: object) -> None:
    """Refuse functions that are missing, swapped, or take the wrong number of arguments."""
    for name, function, takes, given in (
        ("log_prior", log_prior, 1, "the parameters"),
        ("log_likelihood", log_likelihood, 2, "the parameters and a batch of rows"),
    ):
        if function is None:
            raise SettingError(
                f"{name} must be a function of {given}, not None"
                + ("; lambda theta: 0.0 is a flat prior." if name == "log_prior" else ".")
            )
        if not _accepts(function, takes):
            swapped = _accepts(log_prior, 2) and _accepts(log_likelihood, 1)
            raise SettingError(
                f"{name} must be a function of {given}, but this one does not take "
                + ("one argument" if takes == 1 else "two arguments")
                + ("; log_prior comes first, log_likelihood after it." if swapped else ".")
            )


def _accepts(function: object, count: int) -> bool:
    """Whether a function can be called with `count` arguments, as far as its signature shows."""
    assert callable(function)
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # no signature, as for some built-in functions
        return True
    return True


@contextmanager
def on_rows(rows: Rows, why_failed: Callable[[str], str]) -> Iterator[None]:
    """Explain why the user's functions fail on the first rows: a name, Python code, or shapes."""

    def missing(name: str) -> str:
        return (
            f"the model asks for {name}, which neither its parameters nor the rows hold (the rows "
            f"hold {', '.join(sorted(rows.fields))})."
        )

    with explained(why_failed, missing):
        try:
            yield
        except jax.errors.JAXTypeError as fault:  # Python control flow on traced values
            raise SettingError(
                f"the model's functions fail on the first rows ({fault_text(fault)}); they are "
                "traced by JAX, so `if`, `while`, float() and NumPy cannot be used on parameters "
                "or rows: use jnp.where and jax.numpy."
            ) from fault


def two_batches(rows: Rows) -> tuple[Batch, Batch]:
    """Return two batches that share their first row and nothing else, and differ in length."""
    n = len(rows)
    ids = (np.array([0, 1 % n]), np.array([0, n - 1, n // 2]))
    first, second = ({k: _in_double(v) for k, v in rows.take(i).items()} for i in ids)
    return first, second


@in_double_precision
def refuse_mixed_rows(
    log_likelihood: Callable[[Params, Batch], jax.Array],
    theta: Params,
    batches: tuple[Batch, Batch],
) -> None:
    """Refuse a log-likelihood of a row that changes with the other rows of its batch.

    One that changes even with the same rows is left to `trace_of`, which says why.
    """

    def of_first_row(theta: Params, *batches: Batch) -> list[jax.Array]:
        return [log_likelihood(theta, batch)[0] for batch in batches]

    alone, other, again = evaluated(of_first_row, theta, *batches, batches[0])
    if agree(alone, again) and not agree(alone, other):
        raise SettingError(
            "the log-likelihood of a row changes with the other rows of its batch (their mean, "
            "their number, the row before): compute that from all rows beforehand, and make it "
            "a field of the rows."
        )


def agree(first: jax.Array, second: jax.Array) -> bool:
    """Whether two numbers are equal up to rounding, or both undefined."""
    return bool(np.allclose(first, second, rtol=1e-6, atol=1e-9, equal_nan=True))


def _in_double(values: np.ndarray) -> np.ndarray:
    """Convert to float64, in which rounding is no dependence; keep integers."""
    values = np.asarray(values)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


DRAWN_STARTS = 4  # starting points, where `init` is a function that draws them


def checked_constraints(constraints: object) -> dict[str, Constraint]:
    """Return constraints by parameter; refuse anything else."""
    if constraints is None:
        return {}
    if not isinstance(constraints, Mapping):
        raise SettingError(
            "constraints must map names of parameters to constraints, such as "
            f'{{"sigma": mo.positive}}, not {type(constraints).__name__}.'
        )
    for name, constraint in constraints.items():
        if not isinstance(constraint, Constraint):
            raise SettingError(
                f"the constraint of {name!r} must be mo.positive, mo.interval(low, high), "
                f"mo.ordered, mo.simplex or mo.cholesky_corr, not {constraint!r}."
            )
    return dict(constraints)


def checked_shapes(shapes: object, init: Params | None) -> dict[str, Shape]:
    """Return shapes by parameter, as tuples; refuse anything else."""
    if shapes is None:
        return {}
    if init is not None:
        raise SettingError("`init` fixes the shapes of all parameters: leave `shapes` out.")
    if not isinstance(shapes, Mapping):
        raise SettingError('shapes must map names of parameters to shapes, such as {"beta": 3}.')
    tidy = {}
    for name, shape in shapes.items():
        axes = shape if isinstance(shape, tuple | list) else (shape,)
        if not all(isinstance(n, int | np.integer) and n > 0 for n in axes):
            raise SettingError(f"the shape of {name!r} must hold whole numbers, not {shape!r}.")
        tidy[str(name)] = tuple(int(n) for n in axes)
    return tidy


def checked_expand(expand: object) -> dict[str, str]:
    """Return coordinates by parameter; refuse anything else."""
    if expand is None:
        return {}
    if not isinstance(expand, Mapping) or not all(isinstance(w, str) for w in expand.values()):
        raise SettingError(
            'expand must map names of parameters to coordinates, such as {"sigma": "identity"}.'
        )
    return {str(name): str(coordinate) for name, coordinate in expand.items()}


def points_of(init: Params, log_prior: Callable[[Params], ArrayLike]) -> tuple[Params, ...]:
    """Return the starting points in `init`: several, if it is a list of what `log_prior` accepts.

    A list may also be the parameters themselves (layers of a network); `log_prior` then accepts it
    as a whole.
    """
    if callable(init):
        keys = [jax.random.key(number, impl=IMPL) for number in range(DRAWN_STARTS)]
        fails = "the function `init` fails on a JAX key ({}); it must return starting values of "
        with explained(f"{fails}the parameters.".format):
            return tuple(jax.tree.map(np.asarray, in_double_precision(init)(key)) for key in keys)
    if not jax.tree.leaves(init):
        raise SettingError("`init` holds no parameters; give their starting values.")
    if not isinstance(init, list) or not init or not _alike(init) or _is_accepted(log_prior, init):
        return (init,)
    return tuple(init) if _is_accepted(log_prior, init[0]) else (init,)


def _alike(points: list[Params]) -> bool:
    """Whether all points have the names and shapes of the first, and are not bare numbers."""
    if any(jax.tree_util.all_leaves([point]) for point in points):
        return False
    layouts = [
        (jax.tree.structure(point), [np.shape(leaf) for leaf in jax.tree.leaves(point)])
        for point in points
    ]
    return all(layout == layouts[0] for layout in layouts)


def _is_accepted(function: Callable[[Params], ArrayLike], theta: Params) -> bool:
    try:
        jax.eval_shape(lambda t: jnp.asarray(function(t)), theta)
    except Exception:  # a user's function may raise anything
        return False
    return True


class ProbedParameters(dict[str, jax.Array]):
    """A dict that creates a parameter, a single number, when a function looks it up."""

    def __missing__(self, name: str) -> jax.Array:
        self[name] = jnp.zeros(())
        return self[name]


@in_double_precision
def middle(shapes: Mapping[str, Shape], constraints: Mapping[str, Constraint]) -> Params:
    """Return the middle of each parameter's allowed range, where its free values are 0."""
    layout = ParameterLayout.of({k: np.empty(shape) for k, shape in shapes.items()}, constraints)
    free = dict(zip(layout.names, map(np.zeros, layout.free_shapes()), strict=True))
    values = evaluated(layout.constrain, free)
    return dict(zip(layout.names, map(np.asarray, values), strict=True))


FEW = 8  # rows on which the user's functions are tried


class Model(BaseModel):
    """A model of your own: any JAX functions over a pytree of parameters.

    Parameters
    ----------
    log_prior
        `log_prior(theta)`: a scalar.
    log_likelihood
        `log_likelihood(theta, batch)`: one value per row; `batch` maps the field names of the rows
        to arrays. Rows with a `weight` field are weighted by Modicum, not by this function. Fields
        that were given as integers or booleans arrive as such.
    init
        Starting values: a pytree (such as a dict) of numbers and arrays, which fixes the names and
        shapes that draws and summaries show. A list of several such points, with the same names
        and shapes, starts the mode search from each; a list that `log_prior` itself accepts counts
        as a single pytree, so with a flat prior give several points as `mo.sample(starts=[...])`.
        Or a function of a JAX key that draws a point, for example from the prior. Without `init`,
        the parameters are the keys that the functions look up in `theta`; they are scalars unless
        `shapes` says otherwise, and start in the middle of their constraint, or at 0 without one.
    predict
        Optional `predict(theta, batch)`: the expected outcome of each row, for
        `Posterior.predict`.
    simulate
        Optional `simulate(theta, row, key)`: an outcome of one row, drawn with a JAX key, for
        `Posterior.predictive`, `ppc`, the report and ArviZ. `row` maps the field names of the rows
        to the row's values, without its outcome.
    simulate_prior
        Optional `simulate_prior(key)`: parameters drawn from the prior with a JAX key, with the
        names and shapes of `init`, for prior predictive draws.
    outcome
        The field of the rows that `predict` predicts and `simulate` draws.
    constraints
        Constraints of parameters, by name: `mo.positive`, `mo.interval(low, high)`, `mo.ordered`,
        `mo.simplex`, `mo.cholesky_corr`. All functions, `init` and the draws use constrained
        values; chains move in unconstrained ones, and the log-Jacobian is added to the prior.
    report
        Optional `report(theta)`: a dict of quantities derived from the parameters, for draws and
        summaries.
    shapes
        Shapes of parameters that are not scalars, by name, where there is no `init`.
    expand
        Coordinates in which HMC-ECS expands its control variates, for parameters that are sampled
        on the log scale: "log", "identity", "square", "reciprocal" or "reciprocal square" of the
        parameter. By default the pilot study chooses for all positive parameters.

    Examples
    --------
    Exponential decay with an unknown noise scale:

    >>> import jax, jax.numpy as jnp, numpy as np, modicum as mo
    >>> decay = mo.Model(
    ...     log_prior=lambda th: -0.5 * (th["level"] ** 2 + th["rate"] ** 2 + th["noise"] ** 2),
    ...     log_likelihood=lambda th, batch: -0.5 * (
    ...         (batch["y"] - th["level"] * jnp.exp(-th["rate"] * batch["time"])) / th["noise"]
    ...     ) ** 2 - jnp.log(th["noise"]),
    ...     constraints={"noise": mo.positive},
    ...     simulate=lambda th, row, key: th["level"] * jnp.exp(-th["rate"] * row["time"])
    ...     + th["noise"] * jax.random.normal(key),
    ...     report=lambda th: {"half_life": jnp.log(2) / th["rate"]},
    ...     init={"level": 1.0, "rate": 0.5, "noise": 1.0},
    ... )
    >>> time = np.linspace(0, 4, 200)
    >>> y = 2 * np.exp(-0.5 * time) + 0.1 * np.sin(9 * time)
    >>> post = mo.sample(decay, mo.Rows(time=time, y=y), draws=500, tune=300, chains=2,
    ...                  random_seed=1, progressbar=False)
    >>> post.summary()["mean"].round(1).to_dict()
    {'half_life': 1.4, 'level': 2.0, 'noise': 0.1, 'rate': 0.5}
    >>> post.predictive({"time": [0.0, 4.0]}, draws=1000).std(axis=0).round(1)
    array([0.1, 0.1])
    """

    users_functions: ClassVar[bool] = True

    def __init__(
        self,
        log_prior: Callable[[Params], ArrayLike],
        log_likelihood: Callable[[Params, Batch], ArrayLike],
        init: Params | None = None,
        predict: Callable[[Params, Batch], ArrayLike] | None = None,
        *,
        simulate: Callable[[Params, Batch, jax.Array], ArrayLike] | None = None,
        simulate_prior: Callable[[jax.Array], Params] | None = None,
        outcome: str = "y",
        constraints: Mapping[str, Constraint] | None = None,
        report: Callable[[Params], Mapping[str, ArrayLike]] | None = None,
        shapes: Mapping[str, int | Shape] | None = None,
        expand: Mapping[str, str] | None = None,
    ) -> None:
        # Any, because `report` returns a mapping and `simulate_prior` a pytree
        arguments: dict[str, Callable[..., Any] | None] = {
            "log_prior": log_prior,
            "log_likelihood": log_likelihood,
            "predict": predict,
            "report": report or (lambda theta: {}),
            "simulate": simulate,
            "simulate_prior": simulate_prior,
        }
        functions = {name: function for name, function in arguments.items() if function is not None}
        for name, function in functions.items():
            if not callable(function):
                raise SettingError(f"{name} must be a function, not {type(function).__name__}.")
        require_both(log_prior, log_likelihood)
        self._functions: dict[str, Callable[..., Any]] = {
            name: uncompiled(function) for name, function in functions.items()
        }
        if not isinstance(outcome, str):
            raise SettingError(f"outcome must be the name of a field of the rows, not {outcome!r}.")
        self.outcome_field = outcome
        self._constraints = checked_constraints(constraints)
        self._shapes = checked_shapes(shapes, init)
        self._expand = checked_expand(expand)
        self._kinds: Mapping[str, str] = {}
        self.points = () if init is None else points_of(init, self._functions["log_prior"])
        self._layout = (
            ParameterLayout.of(self.points[0], self._constraints) if self.points else None
        )

    @property
    def init(self) -> Params | None:
        """The first starting point; None where it depends on the rows."""
        return self.points[0] if self.points else None

    # What depends on the rows --------------------------------------------------------------

    def resolved(self, rows: Rows) -> Model:
        """Return the model with its parameters known, from `init` or by probing the functions."""
        return self.with_points(self._points_for(rows), rows.kinds)

    def _points_for(self, rows: Rows) -> tuple[Params, ...]:
        return self.points or (self._probed_point(rows),)

    def with_points(self, points: tuple[Params, ...], kinds: Mapping[str, str]) -> Model:
        """Return the model with other starting points, for fields of these kinds."""
        if points is self.points and kinds == self._kinds:
            return self
        model = copy(self)
        model.points, model._kinds = points, dict(kinds)
        model._layout = ParameterLayout.of(points[0], self._constraints)
        return model

    def _probed_point(self, rows: Rows) -> Params:
        """Return the middle of the allowed range of every parameter that the functions look up."""
        batch = with_given_types(rows.slice(0, min(len(rows), FEW)), rows.kinds)
        known = dict.fromkeys(self._constraints, ()) | self._shapes
        points = middle(known, self._constraints)
        probed = ProbedParameters({name: jnp.asarray(x) for name, x in points.items()})

        def probe() -> jax.Array:
            prior = self._functions["log_prior"](probed)
            likelihood = self._functions["log_likelihood"](probed, batch)
            return jnp.sum(jnp.asarray(prior)) + jnp.sum(jnp.asarray(likelihood))

        def why_failed(fault: str) -> str:
            listed = ", ".join(f"{name}: {x.shape}" for name, x in probed.items())
            return (
                f"without `init` every parameter is a single number unless `shapes` says otherwise "
                f"({listed or 'none is known'}), but the model's functions fail on that ({fault}); "
                'give shapes={"beta": 3}, or starting values as `init`.'
            )

        with on_rows(rows, why_failed):
            jax.eval_shape(probe)
        if not probed:
            raise SettingError(
                "the model's functions look up no parameter in theta; give starting values as "
                "`init`."
            )
        return middle({name: x.shape for name, x in probed.items()}, self._constraints)

    @property
    def layout(self) -> ParameterLayout:
        """Names, shapes and constraints of the parameters."""
        if self._layout is None:
            raise SettingError(
                "without rows, the names of this model's parameters are not known; give starting "
                "values as `init`."
            )
        return self._layout

    # The functions -------------------------------------------------------------------------

    def log_prior(self, theta: Params) -> jax.Array:
        """Return the user's log-prior plus the log-Jacobian of the constraints."""
        value = self.log_prior_as_stated(theta)
        return value + self.layout.log_jacobian(theta) if self.layout.bounded else value

    def log_prior_as_stated(self, theta: Params) -> jax.Array:
        """Return the user's log-prior."""
        return _floating(self._functions["log_prior"](self.layout.constrain(theta)))

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Return the user's log-likelihoods, one per row."""
        return self._of_rows("log_likelihood", theta, batch)

    def _of_rows(self, name: str, theta: Params, batch: Batch, *others: jax.Array) -> jax.Array:
        """Call a function of constrained parameters and of fields as the user gave them."""
        values, fields = self.layout.constrain(theta), with_given_types(batch, self._kinds)
        return _floating(self._functions[name](values, fields, *others))

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Return what `predict` returns for each row."""
        if "predict" not in self._functions:
            return super().expected(theta, batch)
        return self._of_rows("predict", theta, batch)

    @property
    def simulates(self) -> bool:
        """Whether the user gave `simulate`."""
        return "simulate" in self._functions

    def simulate(self, theta: Params, row: Batch, key: jax.Array) -> jax.Array:
        """Draw an outcome of one row with the user's `simulate`."""
        if not self.simulates:
            return super().simulate(theta, row, key)
        fails = (
            "`simulate` fails on a row ({}); it is a function of (theta, row, key), gets one row "
            "at a time and must be written with jax.numpy and jax.random."
        )

        def missing(name: str) -> str:
            return (
                f"`simulate` asks for {name}, which neither the parameters nor the row hold (the "
                f"row holds {', '.join(sorted(row)) or 'nothing'}; its outcome, the field "
                f"'{self.outcome_field}', is what is drawn)."
            )

        with explained(fails.format, missing):
            return self._of_rows("simulate", theta, row, key)

    def simulate_prior(self, key: jax.Array) -> Params:
        """Draw from the prior with the user's `simulate_prior`."""
        if "simulate_prior" not in self._functions:
            return super().simulate_prior(key)
        fails = "`simulate_prior` fails on a JAX key ({}); write it with jax.numpy and jax.random."
        with explained(fails.format):
            values = jax.tree.map(_floating, self._functions["simulate_prior"](key))
        shapes = {name: tuple(leaf.shape) for name, leaf in named_leaves(values).items()}
        expected = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        if shapes != expected:
            raise SettingError(
                "`simulate_prior` must return the names and shapes of the model's parameters, "
                f"{expected}, but returned {shapes}."
            )
        return self.layout.free(values)

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name the constrained parameters, and the quantities the user derives from them."""
        values = self.layout.constrain(theta)
        derived = self._functions["report"](values)
        return named_leaves(values) | {name: _floating(value) for name, value in derived.items()}

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Put named draws back into the structure of `init`, as free values."""
        leaves = [named[name] for name in self.layout.names]
        return self.layout.free(jax.tree.unflatten(self.layout.structure, leaves))

    # Where to start ------------------------------------------------------------------------

    def start(self, rows: Rows) -> Params:
        """Return the free values of `init`."""
        return self.free_point(self._points_for(rows)[0], rows)

    def other_starts(self, rows: Rows) -> list[Params]:
        """Return the free values of the points of `init` after the first."""
        return [self.free_point(point, rows) for point in self.points[1:]]

    def free_point(self, theta: Params, rows: Rows) -> Params:
        """Map a point given by the user to free values."""
        layout = self._layout or self.resolved(rows).layout
        return layout.free_point(theta, "`init`" if theta is self.init else "a starting point")

    def flat_names(self, rows: Rows | None = None) -> tuple[str, ...]:
        """Name the free values."""
        return self.layout.flat_names()

    def expansions(self) -> dict[str, str | None]:
        """Return positive parameters, which are sampled on the log scale, and those in `expand`."""
        pairs = zip(self.layout.names, self.layout.constraints, strict=True)
        positive_names: dict[str, str | None] = {name: None for name, c in pairs if c == positive}
        for name in self._expand:
            if name not in self.layout.names:
                raise SettingError(
                    f"`expand` names {name!r}, which is not a parameter"
                    f"{suggestion(name, self.layout.names)}."
                )
            place = self.layout.names.index(name)
            if self.layout.shapes[place] != self.layout.free_shapes()[place]:
                raise SettingError(
                    f"`expand` names {name!r}, whose constraint does not map each entry to a "
                    "logarithm; leave it out of `expand`."
                )
        return positive_names | self._expand

    # Checks and identity -------------------------------------------------------------------

    def check(self, rows: Rows) -> None:
        """Try the functions on the first rows, so that mistakes surface before any long work."""
        self.resolved(rows)._check_functions(rows)

    def _check_functions(self, rows: Rows) -> None:
        theta, batch = self.start(rows), rows.slice(0, min(len(rows), FEW))
        count = len(next(iter(batch.values())))
        several = (
            ", and if `init` is meant as several points, pass them as mo.sample(starts=[...])"
            if isinstance(self.init, list)
            else ""
        )
        fails = "the model's functions fail on the first rows ({}); check the shapes they expect"
        with on_rows(rows, f"{fails}{several}.".format):
            # In fresh lambdas, because JAX caches the traces of functions it has seen.
            prior = jax.eval_shape(lambda t: self.log_prior(t), theta).shape
            likelihood = jax.eval_shape(lambda t, b: self.log_likelihood(t, b), theta, batch).shape
        if prior != ():
            raise SettingError(f"log_prior must return one number, but its shape is {prior}.")
        if likelihood != (count,):
            raise SettingError(
                f"log_likelihood must return one value per row: for {count} rows it returned "
                f"shape {likelihood} where {(count,)} was expected; "
                + ("flatten it." if likelihood == (count, 1) else "do not sum over rows.")
            )
        self._check_read(theta, with_given_types(batch, rows.kinds))
        self.check_independence(theta, rows)
        self._check_report(theta)
        self.check_simulate(theta, batch, rows)

    def _check_read(self, theta: Params, batch: Batch) -> None:
        """Refuse parameters that neither function reads, which nothing would bound."""
        prior, likelihood = self._functions["log_prior"], self._functions["log_likelihood"]
        traced = jax.make_jaxpr(lambda t: (prior(t), likelihood(t, batch)))(
            self.layout.constrain(theta)
        ).jaxpr
        read = {id(x) for step in traced.eqns for x in step.invars} | set(map(id, traced.outvars))
        names = zip(self.layout.names, traced.invars, strict=True)
        if unread := [name for name, x in names if id(x) not in read]:
            raise SettingError(
                f"neither log_prior nor log_likelihood reads the parameter {unread[0]!r}, so that "
                "nothing bounds it: correct its name in `constraints`, `shapes` or `init`, or "
                "leave it out."
            )

    def check_independence(self, theta: Params, rows: Rows) -> None:
        """Refuse a log-likelihood that mixes rows, at a point beside the start.

        At the start itself coefficients may be 0, which hides what they multiply.
        """
        rng = np.random.default_rng(0)
        beside = jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=np.shape(leaf)), theta)
        refuse_mixed_rows(self.log_likelihood, beside, two_batches(rows))

    def check_simulate(self, theta: Params, batch: Batch, rows: Rows) -> None:
        """Try `simulate` and `simulate_prior` on the first row."""
        if "simulate_prior" in self._functions:
            jax.eval_shape(lambda: self.simulate_prior(jax.random.key(0, impl=IMPL)))
        if not self.simulates:
            return
        field = self.outcome_field
        if field not in ("", "y") and field not in rows.fields:
            raise SettingError(
                f"the outcome is the field {field!r}, which the rows do not hold (they hold "
                f"{', '.join(sorted(rows.fields))})."
            )
        row = {k: v[0] for k, v in batch.items() if k not in (field, "weight")}
        shape = jax.eval_shape(
            lambda t, r: self.simulate(t, r, jax.random.key(0, impl=IMPL)), theta, row
        ).shape
        if field in rows.fields and shape != tuple(rows.fields[field]):
            raise SettingError(
                f"`simulate` must return the outcome of one row, with the shape "
                f"{tuple(rows.fields[field])} that the field {field!r} has per row, but returned "
                f"shape {shape}."
            )

    def _check_report(self, theta: Params) -> None:
        derive = self._functions["report"]
        with explained("`report` fails on the parameters ({}); write it with jax.numpy.".format):
            reported = jax.eval_shape(lambda t: derive(self.layout.constrain(t)), theta)
        if not isinstance(reported, Mapping) or not all(isinstance(name, str) for name in reported):
            raise SettingError("`report` must return a dict of quantities by name.")
        for name, quantity in reported.items():
            if name in self.layout.names:
                raise SettingError(
                    f"`report` returns {name!r}, which is a parameter: give it another name."
                )
            if not hasattr(quantity, "shape"):
                raise SettingError(f"`report` must return arrays or numbers, but {name!r} is not.")

    def identity(self) -> str:
        """Name the parameters; `trace` identifies what is computed from them."""
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        return f"Model({shapes})"

    def of_draws(self, shapes: Mapping[str, Shape], kinds: Mapping[str, str]) -> Model:
        """Return the model for draws with these names and shapes; refuse draws of another model."""
        points = self.points
        if not points:
            zeros = {name: np.zeros(shape) for name, shape in shapes.items()}
            derived = self._derived(zeros)
            points = ({name: zero for name, zero in zeros.items() if name not in derived},)
        model = self.with_points(points, kinds)
        own_shapes = dict(zip(model.layout.names, model.layout.shapes, strict=True))
        own_shapes |= model._derived(model.init)
        if own_shapes != shapes:
            raise SettingError(
                f"the posterior belongs to another model: its parameters are {dict(shapes)}, but "
                f"those of this model are {own_shapes}."
            )
        return model

    def _derived(self, values: Params) -> dict[str, Shape]:
        """Names and shapes of what `report` returns for constrained parameters."""
        derive = self._functions["report"]
        try:
            reported = jax.eval_shape(lambda v: derive(v), values)
        except Exception:  # a user's function may fail on parameters it does not know
            return {}
        return {name: tuple(quantity.shape) for name, quantity in reported.items()}


def with_given_types(batch: Batch, kinds: Mapping[str, str]) -> Batch:
    """Convert fields back to the types the user gave them in: integers, booleans and codes."""
    changed = {}
    for name, values in batch.items():
        kind = kinds.get(name)
        if name == "weight":
            continue
        if kind == "boolean":
            changed[name] = jnp.asarray(values).astype(bool)
        elif kind == "integer" or np.dtype(values.dtype).kind in "iu":
            changed[name] = jnp.asarray(values).astype(int)
    return {**batch, **changed} if changed else batch


def _floating(value: ArrayLike) -> jax.Array:
    """Convert to a floating-point array: a flat prior may be written as the integer 0."""
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)
