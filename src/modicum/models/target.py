"""A model as a log-density of one flat vector, which is what passes and kernels need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from modicum.arrays import HALF_LOG_2PI
from modicum.errors import DataError, SettingError
from modicum.ledger import Ledger
from modicum.linalg.arrow import ArrowLayout, arrow_layout
from modicum.models.constraints import named_leaves
from modicum.models.integrated import IntegratedEffects
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import DENSE_LIMIT, BaseModel, Batch, Params, unflattened
from modicum.models.priors.exact import Effects, ExactPrior, ExactTerm
from modicum.models.priors.resolved import ModelPriors, places_of, without_own
from modicum.models.tracing import Trace
from modicum.rows import Coding, Rows
from modicum.runtime import FASTEST_COMPILE, Array, in_double_precision, jit, on_accelerator


class NormalPrior(NamedTuple):
    """A log-prior -|away + slope t|^2 / 2 plus a constant, whose derivatives are explicit."""

    away: np.ndarray  # distances from the prior's centre at t = 0, in prior sds
    slope: np.ndarray  # their derivative in t: triangular, 1 / sd on the diagonal, 0 where flat

    def expanded(self, t: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return value, gradient and Hessian at `t`."""
        away = self.away + self.slope @ t
        value = float(self._constant - 0.5 * away @ away)
        return value, -self.slope.T @ away, -self.slope.T @ self.slope

    def values(self, points: np.ndarray) -> np.ndarray:
        """Return the log-prior at each of `points`."""
        away = self.away + points @ self.slope.T
        return np.asarray(self._constant - 0.5 * np.sum(away**2, axis=1))

    @property
    def _constant(self) -> float:
        height = np.diag(self.slope)
        height = height[height > 0]
        return float(np.sum(np.log(height)) - len(height) * HALF_LOG_2PI)


@dataclass(frozen=True, eq=False)
class Target:
    """A model together with the layout of its parameters in a flat vector t.

    Hashable by value: two runs with equal models and layouts share their compiled functions.
    Models made of user functions are equal if they computed the same when `Target.of` traced them:
    a global that has changed since makes a different target.
    """

    model: BaseModel
    structure: PyTreeDef  # of the parameters
    shapes: tuple[tuple[int, ...], ...]
    trace: Trace | None = None

    @classmethod
    def of(
        cls, model: BaseModel, rows: Rows, ledger: Ledger | None = None
    ) -> tuple[Target, np.ndarray]:
        """Check that `model` fits `rows`; return the target and the flat starting point.

        Data-scaled priors are fixed here, by a pass over the rows that `ledger` counts.
        """
        if rows.dtype.kind == "u" and not model.reads_bytes:
            raise DataError(
                f"the rows are held as bytes (uint8), which only networks read; make them with "
                f"dtype='float32' for {type(model).__name__}."
            )
        model.check(rows)
        if "weight" in rows.fields and rows.fields["weight"] != ():
            raise DataError("the field 'weight' must hold one number per row: a frequency weight.")
        if model.needs_moments and ledger is not None:
            ledger.add("priors", len(rows), "density", passes=1)
        model = model.resolved(rows)
        leaves, structure = jax.tree.flatten(model.start(rows))
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        return cls(model, structure, shapes, model.trace(rows)), _flat(leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        computes = self.model if self.trace is None else (type(self.model), self.trace.digest)
        return computes, self.structure, self.shapes

    @property
    def identity(self) -> str:
        """A string that is different for different targets, so checkpoints are not mixed up."""
        computes = "" if self.trace is None else f" computing {self.trace.digest}"
        return self.model.identity() + computes

    def ravel(self, theta: Params) -> np.ndarray:
        """Flatten parameters; refuse any that are not in the model's layout."""
        leaves, structure = jax.tree.flatten(theta)
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        if structure != self.structure or shapes != self.shapes:
            raise SettingError(
                "a starting point must have the names and shapes of the model's parameters "
                f"({self._layout(self.structure, self.shapes)}), but one has "
                f"{self._layout(structure, shapes)}."
            )
        point = _flat(leaves)
        if not np.all(np.isfinite(point)):
            raise SettingError("a starting point must hold finite numbers.")
        return point

    @staticmethod
    def _layout(structure: PyTreeDef, shapes: tuple[tuple[int, ...], ...]) -> str:
        named = named_leaves(jax.tree.unflatten(structure, [np.empty(s) for s in shapes]))
        return ", ".join(f"{name}: {np.shape(leaf)}" for name, leaf in named.items())

    @cached_property
    def likelihood(self) -> Target:
        """The target without priors and their parameters; data sets share its compiled functions.

        Its parameters are the leading entries of the flat vector.
        """
        layout = self._shaped
        if self.priors is not None:
            layout = without_own(layout)
        return self._with(self.model.without_priors(), layout)

    @cached_property
    def of_coefficients(self) -> Target:
        """The likelihood as a function of the coefficients, where these are constrained.

        Others share it: the likelihood is linear in its parameters, whatever their constraints.
        """
        likelihood = self.likelihood
        if not likelihood.model.constrained:
            return likelihood
        return replace(likelihood, model=replace(likelihood.linear, bent=None))

    @cached_property
    def bent_places(self) -> np.ndarray:
        """Positions in t of the free values of constrained coefficients."""
        constrained = self.model.constrained
        if not constrained:
            return np.arange(0)
        beta = np.reshape(self.places["beta"], np.shape(self._shaped["beta"]))
        return np.concatenate([beta[..., np.array(own)].ravel() for own, _ in constrained.parts])

    def coefficients(self, t: Array) -> jax.Array:
        """Return `t` with coefficients in place of their free values."""
        leaves = jax.tree.leaves(self.model.coefficients(self.unravel(t)))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])

    @cached_property
    def at_known_scale(self) -> Target | None:
        """The target with noise of a known scale, if its log-likelihood is then quadratic."""
        model = self.model.at_known_scale()
        if model is None:
            return None
        left_out = set(self.model.expansions()) - set(model.expansions())
        return self._with(model, {k: v for k, v in self._shaped.items() if k not in left_out})

    def _with(self, model: BaseModel, layout: Params) -> Target:
        """Return the target of another model, whose parameters are laid out so."""
        leaves, structure = jax.tree.flatten(layout)
        shapes = tuple(leaf.shape for leaf in leaves)
        return replace(self, model=model, structure=structure, shapes=shapes)

    @property
    def _shaped(self) -> Params:
        return jax.tree.unflatten(
            self.structure, [jax.ShapeDtypeStruct(shape, np.float64) for shape in self.shapes]
        )

    @cached_property
    def places(self) -> dict[str, np.ndarray]:
        """Positions of each leaf in the flat vector, by the leaf's name."""
        return places_of(self._shaped)

    @property
    def priors(self) -> ModelPriors | None:
        """The priors of the parameters; None if only their joint density is known."""
        return self.model.resolved_priors

    @property
    def all_priors(self) -> ModelPriors | None:
        """`priors`, if they are those of all parameters."""
        return self.priors if self.model.integrated_group is None else None

    @cached_property
    def _prior_terms(self) -> tuple[ExactTerm, ...]:
        """The terms of the prior, where it is split into parts."""
        if self.priors is None or not self.model.splits_prior:
            return ()
        return self.priors.terms(self._shaped)

    @cached_property
    def exact_prior(self) -> ExactPrior | None:
        """The part of the prior that every step evaluates; None if empty."""
        exact = tuple(term for term in self._prior_terms if not term.folded)
        return ExactPrior(exact) if exact else None

    @property
    def exact_terms(self) -> tuple[ExactTerm, ...]:
        """The terms of that part."""
        return () if self.exact_prior is None else self.exact_prior.terms

    def log_folded_prior(self, t: Array, smooth: bool = False) -> jax.Array:
        """Return the part of the log-prior that is folded into the likelihood's quadratic.

        With `smooth`, add the part that is not quadratic, but that Newton's method climbs as it is.
        """
        terms = (term for term in self._prior_terms if term.folded or (smooth and term.smooth))
        return ExactPrior(tuple(terms)).log_density(jnp.asarray(t))

    @property
    def linear(self) -> LinearPredictorModel:
        """The model, which must have a linear predictor."""
        assert isinstance(self.model, LinearPredictorModel)
        return self.model

    @property
    def in_one_predictor(self) -> bool:
        """Whether a smooth function of one linear predictor is the likelihood of a row."""
        return self.model.smooth_in_eta and len(self.shapes[0]) == 1

    @property
    def integrated(self) -> IntegratedEffects:
        """The model, which must integrate effects out."""
        assert isinstance(self.model, IntegratedEffects)
        return self.model

    @property
    def scatters(self) -> bool:
        """Whether sums over rows are scattered over levels or groups, which has its own code."""
        return self.coding is not None or self.model.integrated_group is not None

    @cached_property
    def on_numpy(self) -> bool:
        """Whether NumPy can sum over the rows, as f has one eta and formulas for its derivatives.

        On an accelerator compiled code is faster, and this is False.
        """
        family = self.model.row_model
        by_formula = family.smooth_in_eta and family.on_numpy and len(self.shapes[0]) == 1
        return by_formula and not on_accelerator()

    @property
    def coding(self) -> Coding | None:
        """What the codes of the rows mean, where the model reads them as columns; else None."""
        return self.linear.coding if self.model.has_predictors else None

    @cached_property
    def arrow(self) -> ArrowLayout | None:
        """Layout of matrices in t where one factor has too many effects for dense matrices.

        None where dense matrices fit, and where there is no such factor.
        """
        return self.arrow_of_effects if self.size > DENSE_LIMIT else None

    @cached_property
    def arrow_of_effects(self) -> ArrowLayout | None:
        """Layout with the effects of the largest factor apart; None without explicit effects."""
        if self.coding is None or not self.model.group_terms or self.all_priors is None:
            return None
        return arrow_layout(self.coding, len(self.all_priors.coefficients), self.size)

    @property
    def pooled_terms(self) -> tuple[Effects, ...]:
        """The priors of explicit effects."""
        effects = [] if self.priors is None else self.priors.effects(self._shaped)
        return tuple(term for term in effects if term.where)

    @property
    def size(self) -> int:
        """The number of unconstrained parameters, d."""
        return sum(prod(shape) for shape in self.shapes)

    def unravel(self, t: Array) -> Params:
        """Return the parameters laid out in `t`."""
        return unflattened(self._shaped, t)

    def log_prior(self, t: Array) -> jax.Array:
        """Log-prior density at `t`."""
        return jnp.asarray(self.model.log_prior(self.unravel(t)))

    def log_likelihood(self, t: Array, batch: Batch) -> jax.Array:
        """Log-likelihood of each row of `batch`, times its frequency weight."""
        values = self.model.log_likelihood(self.unravel(t), batch)
        return values * batch["weight"] if "weight" in batch else values

    @in_double_precision
    def ravel_reported(self, named: dict[str, np.ndarray]) -> np.ndarray:
        """Undo `report` for reported parameters with a leading axis; return flat vectors."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(_restored(self, named))]
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    @in_double_precision
    def log_priors(self, points: np.ndarray) -> np.ndarray:
        """Log-prior density at each of the flat vectors in `points`."""
        if self.normal_prior is not None:
            return self.normal_prior.values(points)
        return np.asarray(_log_priors(self, points))

    def prior_distances(
        self, point: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Distances of `point` from the prior's centre, in prior sds, and their derivative in t.

        With `places`, both are restricted to these entries of t.
        """
        if self.all_priors is None:
            return None
        places = np.arange(len(point)) if places is None else places
        return self.all_priors.distances(point, self._shaped, places)

    @property
    def normal_prior(self) -> NormalPrior | None:
        """The prior where it is normal or flat and NumPy computes the sums; else None."""
        return None if self.exact_prior is not None else self.quadratic_prior

    @cached_property
    def quadratic_prior(self) -> NormalPrior | None:
        """The part of the prior that is normal or flat; None where only compiled code has it.

        It is a function of the entries of `own_entries`.
        """
        if not self.on_numpy or self.model.constrained:
            return None
        own = self.own_entries
        distances = self.prior_distances(np.zeros(self.size), own)
        if distances is None:
            return None
        away, slope = distances
        normal = self.has_normal_prior[own]
        return NormalPrior(normal * away, normal[:, None] * slope)

    @cached_property
    def own_entries(self) -> np.ndarray:
        """Entries of t besides the effects of a factor with too many for dense matrices."""
        return np.arange(self.size) if self.arrow is None else self.arrow.border

    @cached_property
    def has_normal_prior(self) -> np.ndarray:
        """Which entries of the flat vector have a normal prior."""
        if self.all_priors is None:
            return np.ones(self.size, bool)
        priors = self.all_priors.by_entry(self._shaped)
        return np.array([prior is not None and prior.is_normal for prior in priors])

    @cached_property
    def not_compared(self) -> np.ndarray:
        """Entries with a prior that is meant to win where the data say little, as shrinkage is."""
        if self.priors is None:
            return np.zeros(self.size, bool)
        priors = self.priors.by_entry(self._shaped)
        return np.array([prior is None or prior.is_silent for prior in priors])

    @cached_property
    def reported_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the reported parameters, in the order of t; under jit they would be sorted."""
        named: list[str] = []

        def report(t: jax.Array) -> dict[str, jax.Array]:  # traced, which compiles nothing
            reported = self.report(t)
            named.extend(reported)
            return reported

        shapes = jax.eval_shape(report, np.zeros(self.size))
        return {name: jax.ShapeDtypeStruct(shapes[name].shape, np.float64) for name in named}

    @property
    def reports_on_numpy(self) -> bool:
        """Whether `reports` compiles nothing: formulas for NumPy name the parameters."""
        model = self.model
        return type(model).report is LinearPredictorModel.report and not model.constrained

    def report(self, t: Array) -> dict[str, jax.Array]:
        """Name the parameters laid out in `t` the way draws show them."""
        return self.model.report(self.unravel(t))

    def reports(self, points: Array) -> dict[str, np.ndarray]:
        """Report each of the flat vectors in `points`."""
        by_numpy = self.reports_on_numpy
        named = self.report(np.asarray(points)) if by_numpy else _reports(self, points)
        return {name: np.asarray(named[name]) for name in sorted(named)}


def _flat(leaves: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.float64)


@jit(static=0)
def _reports(target: Target, points: Array) -> dict[str, jax.Array]:
    return jax.vmap(target.report)(points)


@jit(static=0, options=FASTEST_COMPILE)
def _restored(target: Target, named: Mapping[str, Array]) -> Params:
    return jax.vmap(target.model.restore)(named)


@jit(static=0)
def _log_priors(target: Target, points: Array) -> jax.Array:
    return jax.vmap(target.log_prior)(jnp.asarray(points))


def check_model_and_rows(model: object, rows: object, besides: str = "") -> Rows:
    """Return `rows` if they are unchanged `mo.Rows` and `model` is a model; say what to pass.

    `besides` is what a door takes in place of a model, for its message.
    """
    if not isinstance(model, BaseModel):
        hint = (
            "; wrap a NumPyro model as mo.from_numpyro(model, rows), and log-densities in JAX as "
            "mo.Model(log_prior, log_likelihood)"
            if callable(model) and not isinstance(model, type)
            else ""
        )
        raise SettingError(
            f"model must be a model such as mo.models.Logistic(){besides}, not "
            f"{_kind(model)}{hint}."
        )
    if not isinstance(rows, Rows):
        raise SettingError(
            f"rows must be mo.Rows, not {_kind(rows)}; wrap arrays as mo.Rows(x=X, y=y), a "
            "table as mo.Rows.from_table(table, outcome='y'), and open a store with "
            "mo.Rows.open(folder)."
        )
    rows.require_unchanged()
    return rows


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
