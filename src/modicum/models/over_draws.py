"""A model over many draws: expected outcomes, outcomes, log-densities, and the prior."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from math import ceil
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr

from modicum.errors import DataError, SettingError
from modicum.files import Json, plain, restored
from modicum.models.families import FAMILIES, PoissonRates
from modicum.models.integrated import IntegratedEffects
from modicum.models.linear_predictor import LinearPredictorModel, family_of
from modicum.models.model import BaseModel, Batch, Params
from modicum.models.networks import CNN, MLP
from modicum.models.priors.distributions import Prior
from modicum.models.priors.resolved import ModelPriors, PriorTable
from modicum.models.terms import GroupTerm, SmoothTerm
from modicum.models.tracing import AsTraced, digest_of, evaluated, explained
from modicum.random import typed
from modicum.rows import Coding
from modicum.runtime import Array, Pytree, computed_on_cpu, jit

BUDGET = 2**25  # largest total size of an intermediate array over the draws evaluated together
KEY_WORDS, ROW_NUMBERS = "words of the key", "numbers of the rows"  # added to draws and fields
Draws: TypeAlias = dict[str, np.ndarray]
Question: TypeAlias = Callable[[BaseModel, Mapping[str, Array], Batch], tuple[jax.Array, ...]]
"""A function of one draw and a batch of rows."""


@dataclass(frozen=True)
class ModelPredictor:
    """Predictions and log-densities of rows under the model that made the draws.

    Draws have a leading axis. Draws, and rows if need be, are evaluated in batches that fit in
    memory: a convolutional network has a hundred thousand intermediate values per row.
    """

    model: BaseModel
    times: tuple[float, ...] | None = None  # answers are the chances of outcomes beyond these
    parameter: str | None = None  # answers are values of this parameter, such as "scale"

    def __call__(self, draws: Draws, batch: Batch) -> np.ndarray:
        """Expected outcomes: one value (or vector of values) per draw and row."""
        (expected,) = self._evaluate(_expected, draws, self._without_outcome(batch))
        return expected

    def outcome(self, draws: Draws, batch: Batch) -> tuple[np.ndarray | None, np.ndarray]:
        """Expected outcomes (None where the model has none) and log-densities of observed ones."""
        fields = {k: v for k, v in batch.items() if k != "weight"}
        try:
            expected, density = self._evaluate(_expected_and_log_density, draws, fields)
        except SettingError:  # a user's model need not define predictions
            (density,) = self._evaluate(_log_density, draws, fields)
            return None, density
        return expected, density

    def predictors(self, draws: Draws, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Predictors (draws, rows, q + extras), and variances (group terms, draws, rows).

        The variances are those of the effects of new groups. Effects that were integrated out are
        not included: the caller adds those of known groups.
        """
        predictors, *variances = self._evaluate(_predictors, draws, self._without_outcome(batch))
        return predictors, np.reshape(variances, (len(variances), *predictors.shape[:2]))

    def effect_factors(self, draws: Draws) -> tuple[np.ndarray, ...]:
        """For each group term the factor T of its covariance, (draws, effects, effects)."""
        return self._evaluate(_effect_factors, draws, {})

    @computed_on_cpu
    def means(self, predictors: np.ndarray, sd: np.ndarray) -> np.ndarray:
        """Answers at these predictors, averaged over those that groups enter.

        These are normal with sds (draws, rows, predictors of groups).
        """
        family = family_of(self.model)
        times = None if self.times is None else np.array(self.times)
        along = self.model.predictors_of_groups if sd.any() else ()
        return np.asarray(_means(family, along, self.parameter, predictors, sd, times))

    @computed_on_cpu
    def moments(self, predictors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of outcomes at these predictors."""
        mean, variance = _moments(family_of(self.model), predictors)
        return np.asarray(mean), np.asarray(variance)

    @computed_on_cpu
    def densities(self, predictors: np.ndarray, batch: Batch) -> np.ndarray:
        """Log-densities of the outcomes of a batch at these predictors."""
        family = family_of(self.model)
        return np.asarray(_densities(family, predictors, np.asarray(family.outcome(batch))))

    def simulated(self, draws: Draws, batch: Batch, words: np.ndarray, first: int) -> np.ndarray:
        """Simulate outcomes (draws, rows, ...).

        Parameters
        ----------
        draws, batch
            Draws and rows; outcomes in the batch are ignored.
        words
            The words of one key per draw (draws, 2).
        first
            Index of the first row: each row has its own key, however rows are batched.
        """
        numbers = np.arange(first, first + length_of(batch), dtype=np.uint32)
        fields = self._without_outcome(batch) | {ROW_NUMBERS: numbers}
        (outcomes,) = self._evaluate(_simulated, draws | {KEY_WORDS: words}, fields)
        return outcomes

    def _without_outcome(self, batch: Batch) -> dict[str, Array]:
        return {k: v for k, v in batch.items() if k not in (self.model.outcome_field, "weight")}

    @computed_on_cpu
    def _evaluate(self, question: Question, draws: Draws, batch: Batch) -> tuple[np.ndarray, ...]:
        fields = {k: np.asarray(v) for k, v in batch.items()}
        if fields and length_of(fields) == 0:  # a row of zeros gives the answers their shape
            row = {k: np.zeros((1, *v.shape[1:]), v.dtype) for k, v in fields.items()}
            return tuple(answer[:, :0] for answer in self._evaluate(question, draws, row))
        self.model.check_width(draws, fields)
        widest, digest = _traced(question, self.model, draws, fields)
        pieces = ceil(widest / BUDGET)
        if pieces == 1 or length_of(fields) == 1:
            together = min(length_of(draws), max(1, BUDGET // widest))
            as_traced = AsTraced(self.model, digest)
            answers = _over_draws(question, as_traced, together, draws, fields)
            return tuple(np.asarray(answer) for answer in answers)
        step = ceil(length_of(fields) / pieces)
        parts = [
            self._evaluate(question, draws, {k: v[i : i + step] for k, v in fields.items()})
            for i in range(0, length_of(fields), step)
        ]
        return tuple(np.concatenate(answers, axis=1) for answers in zip(*parts, strict=True))

    def to_dict(self) -> dict[str, object] | None:
        """Describe a built-in model by name and settings; None for a user's model."""
        return _described(self.model)


HELD: dict[str, object] = {  # the types of settings that hold more than numbers and names
    "priors": PriorTable | None,
    "resolved_priors": ModelPriors | None,
    "coding": Coding | None,
    "groups": tuple[GroupTerm, ...],
    "smooths": tuple[SmoothTerm, ...],
    "group_sd": tuple[Prior | None, ...] | None,
    "sds": tuple[Prior, ...] | None,
}


def _saved() -> dict[str, type[BaseModel]]:
    """Return the models that a file describes, by name."""
    others: tuple[type[BaseModel], ...] = (PoissonRates, CNN, MLP, IntegratedEffects)
    return {kind.__name__: kind for kind in (*FAMILIES.values(), *others)}


def _described(model: BaseModel) -> dict[str, object] | None:
    if type(model) not in _saved().values():
        return None
    values = {f.name: getattr(model, f.name) for f in fields(model)}  # type: ignore[arg-type]
    settings = {k: _described(v) if k == "family" else plain(v) for k, v in values.items()}
    if settings.get("family", settings) is None:  # a user's, whose effects are integrated out
        return None
    return {"family": type(model).__name__, "settings": settings}


def rebuild(description: Mapping[str, Json]) -> ModelPredictor | None:
    """Undo `ModelPredictor.to_dict`; None if the model is not a built-in one."""
    try:
        model = _rebuilt(description)
    except (TypeError, ValueError, KeyError, AttributeError) as fault:
        raise DataError(
            f"the model in the posterior's file cannot be rebuilt ({fault}): the file is damaged, "
            "or was written by another version of Modicum."
        ) from fault
    return None if model is None else ModelPredictor(model)


def _rebuilt(description: Mapping[str, Json]) -> BaseModel | None:
    model_class = _saved().get(description.get("family", ""))
    if model_class is None:
        return None
    settings: dict[str, Json] = {}
    for name, value in description["settings"].items():
        if name in HELD:
            settings[name] = restored(HELD[name], value)
        elif name == "family":
            settings[name] = _rebuilt(value)
        else:
            settings[name] = tuple(value) if isinstance(value, list) else value
    return model_class(**settings)


def _expected(model: BaseModel, named: Mapping[str, Array], fields: Batch) -> tuple[jax.Array]:
    return (model.expected(model.restore(named), fields),)


def _simulated(model: BaseModel, named: Mapping[str, Array], fields: Batch) -> tuple[jax.Array]:
    theta = model.restore({name: x for name, x in named.items() if name != KEY_WORDS})
    key = typed(jnp.asarray(named[KEY_WORDS]))
    rows = {name: x for name, x in fields.items() if name != ROW_NUMBERS}

    def outcome(number: jax.Array, row: Batch) -> jax.Array:
        return model.simulate(theta, row, jax.random.fold_in(key, number)).astype(float)

    return (jax.vmap(outcome)(jnp.asarray(fields[ROW_NUMBERS]), rows),)


def _predictors(
    model: BaseModel, named: Mapping[str, Array], fields: Batch
) -> tuple[jax.Array, ...]:
    theta = model.restore(named)
    predictors = family_of(model).predictor_vector(theta, fields)
    variances = model.new_group_variances(theta, fields)
    return predictors, *(jnp.broadcast_to(v, len(predictors)) for v in variances)


def _effect_factors(
    model: BaseModel, named: Mapping[str, Array], fields: Batch
) -> tuple[jax.Array, ...]:
    return tuple(model.effect_factors(model.restore(named)))


@jit(static=0)
def _moments(family: LinearPredictorModel, predictors: Array) -> tuple[jax.Array, jax.Array]:
    return jax.vmap(jax.vmap(family.moments))(jnp.asarray(predictors))


@jit(static=0)
def _densities(family: LinearPredictorModel, predictors: Array, outcomes: Array) -> jax.Array:
    at_draw = jax.vmap(family.row_density)
    return jax.vmap(at_draw, (0, None))(jnp.asarray(predictors), jnp.asarray(outcomes))


@jit(static=(0, 1, 2))
def _means(
    family: LinearPredictorModel,
    along: tuple[int, ...],
    parameter: str | None,
    predictors: Array,
    sd: Array,
    times: Array | None,
) -> jax.Array:
    eta, at = jnp.asarray(predictors), None if times is None else jnp.asarray(times)
    answer = partial(family.answer, times=at, parameter=parameter)
    if not along:
        return jax.vmap(jax.vmap(answer))(eta)
    return jax.vmap(partial(family.mean_over, along=along, answer=answer))(eta, jnp.asarray(sd))


def _log_density(model: BaseModel, named: Mapping[str, Array], fields: Batch) -> tuple[jax.Array]:
    return (model.log_likelihood(model.restore(named), fields),)


def _expected_and_log_density(
    model: BaseModel, named: Mapping[str, Array], fields: Batch
) -> tuple[jax.Array, ...]:
    return _expected(model, named, fields) + _log_density(model, named, fields)


@jit(static=(0, 1, 2))
def _over_draws(
    question: Question, model: AsTraced[BaseModel], together: int, draws: Draws, fields: Batch
) -> tuple[jax.Array, ...]:
    return jax.lax.map(
        lambda draw: question(model.traced, draw, fields), draws, batch_size=together
    )


def _traced(question: Question, model: BaseModel, draws: Draws, fields: Batch) -> tuple[int, str]:
    """Trace one draw; return the size of its largest intermediate array, and the trace's digest.

    What a built-in family computes does not change, so it is traced once for the same shapes.
    """
    first = {name: x[0] for name, x in draws.items()}
    if not (model.has_predictors and type(model) in _saved().values()):
        return _trace(question, model, first, fields)
    shapes = (tuple((k, x.shape, x.dtype.str) for k, x in part.items()) for part in (first, fields))
    return _traced_once(question, model, *shapes)


Layout: TypeAlias = tuple[tuple[str, tuple[int, ...], str], ...]  # names, shapes and types


@lru_cache(maxsize=1_000)
def _traced_once(
    question: Question, model: BaseModel, draw: Layout, fields: Layout
) -> tuple[int, str]:
    shaped = (
        {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in part}
        for part in (draw, fields)
    )
    return _trace(question, model, *shaped)


def _trace(
    question: Question, model: BaseModel, first: Mapping[str, Pytree], fields: Mapping[str, Pytree]
) -> tuple[int, str]:
    """Trace a draw, given arrays or their shapes.

    The model sees these rows here for the first time, so report its errors.
    """
    names = ", ".join(sorted(fields)) or "outcomes alone"
    shapes = ", ".join(f"{name} {x.shape}" for name, x in fields.items())
    with explained(
        lambda fault: (
            f"the model fails on these rows ({fault}); check their shapes, which are {shapes}."
        ),
        lambda name: f"prediction needs the field {name}, but the rows hold {names}.",
        DataError,
    ):
        expression = jax.make_jaxpr(lambda draw, fields: question(model, draw, fields))(
            first, fields
        )
    return max(1, *_sizes(expression.jaxpr)), digest_of(expression)[0]


def length_of(arrays: Mapping[str, Array]) -> int:
    """Number of rows of a batch, or of draws: the length of the arrays' first axis."""
    return len(next(iter(arrays.values())))


def _sizes(jaxpr: Jaxpr) -> Iterator[int]:
    """Sizes of all arrays a traced function creates, including in functions it calls."""
    for step in jaxpr.eqns:
        yield from (int(out.aval.size) for out in step.outvars if hasattr(out.aval, "size"))
        for parameter in step.params.values():
            for value in parameter if isinstance(parameter, tuple) else (parameter,):
                inner = getattr(value, "jaxpr", value)
                if isinstance(inner, Jaxpr):
                    yield from _sizes(inner)


@computed_on_cpu
def log_priors(
    model: BaseModel, draws: Mapping[str, np.ndarray], *, stated: bool = False
) -> np.ndarray:
    """Log-density of the prior at reported draws, (chain, draw), in the unconstrained parameters.

    If it is to be as `stated`, it is in the parameters that the priors are distributions of.
    """
    flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in draws.items()}
    chains, number = next(iter(draws.values())).shape[:2]

    def log_prior(named: Params) -> jax.Array:
        theta = model.restore(named)
        return model.log_prior_as_stated(theta) if stated else model.log_prior(theta)

    (values,) = evaluated(jax.vmap(log_prior), flat)
    return np.broadcast_to(np.asarray(values), chains * number).reshape(chains, number)


@computed_on_cpu
def prior_draws(
    model: BaseModel, shapes: Mapping[str, tuple[int, ...]], number: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return prior draws ``name -> (number, *shape)`` of reported parameters with these shapes."""
    named = jax.vmap(model.report)(model.draw_prior(shapes, number, rng))
    return {name: np.asarray(named[name]) for name in shapes if name in named}
