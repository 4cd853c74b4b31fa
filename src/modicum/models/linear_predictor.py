"""Models in which a row enters through a linear predictor eta = x @ beta + intercept + offset.

This structure gives cheap Hessians (X' diag(f'') X) and control variates of O(d) per row. A family
defines only the log-likelihood f as a function of its *predictors*: the q linear ones, followed by
the model's other parameters (a log-scale), which are the same for every row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import pi
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, namespace
from modicum.errors import DataError, ModicumWarning, SettingError
from modicum.linalg.columns import ModelMatrix, model_matrix
from modicum.models.coefficients import (
    CoefficientPriors,
    coordinate_of,
    parameter_of,
    steps_of,
)
from modicum.models.model import NEW, BaseModel, Batch, EffectScale, Labels, Params
from modicum.models.observed import (
    CENSORED,
    HIDING,
    PARTIAL,
    TIMES,
    Support,
    check_outcomes,
    check_part,
    draw_within,
    log_density_of_part,
    outcome_within,
    refuse_constant,
    refuse_mistaken_fields,
    tails_everywhere,
)
from modicum.models.priors.resolved import (
    MEAN_STEP,
    STEP_SHARE,
    Part,
    Reported,
    joined,
)
from modicum.models.separation import find_silent_counts
from modicum.models.terms import check_groups, common_columns
from modicum.rows import Rows
from modicum.runtime import Array, computed_on_cpu, jit

Draws: TypeAlias = Mapping[str, np.ndarray]  # of reported parameters
MeanOutcome: TypeAlias = Callable[[], float]  # which may take a pass over the rows
BLOCK = 1024  # outcomes within bounds that are found together
Derivatives: TypeAlias = tuple[jax.Array, ...]  # f and its derivatives, elementwise over rows
NEW_GROUP_NODES = 21  # quadrature nodes that average over the effects of new groups
MANY_NODES = 1_024  # quasi-random ones, of groups in more than two predictors


@dataclass(frozen=True, repr=False)
class LinearPredictorModel(CoefficientPriors):
    """Coefficients with independent priors, entering through x @ beta + intercept + offset.

    Parameters
    ----------
    prior_scale
        Prior standard deviation of the coefficients: one number, or one per column of x, in the
        units x has. None: 2.5 / sd(x_j) for column j, or over the difference of its values if there
        are two, as for a level; times the unit of the outcome.
    intercept
        Whether to add an intercept; False adds none.
    intercept_scale
        Prior standard deviation of the intercept, about 0. None: a wide prior in the units of the
        data, on the predictor at the mean of the columns; the family says which.
    priors
        Distributions of `mo.priors`, by key: "common" (all coefficients), "intercept", the name of
        a column, a categorical column or a term, or a further parameter of the family ("scale").
        All are in raw units, the intercept's applies to the intercept itself, and the most specific
        key wins. `prior_scale` and `intercept_scale` are shorthands for normal priors about 0.
    resolved_priors
        The priors with all scales fixed; set by `resolved`, not by users.
    groups
        Factors among the codes of the rows whose levels have effects with a common, estimated
        standard deviation: names, or `mo.models.GroupTerm` with slopes. Such a factor has no
        contrasts among the common columns. Priors of the standard deviations have the key
        "group_sd", the group's name, or "group_sd[ward:dose]" for one of them; the prior of
        correlations has the key "group_cor".
    modelled
        Parameters of the family, such as "scale", with formulas of their own; set by `mo.fit`.
    without_intercept
        Those of them whose formulas have no intercept; set by `mo.fit`.
    coding
        How the codes of the rows map to columns; set by `resolved`, not by users.
    smooths
        Columns of x whose coefficients have a common, estimated standard deviation, as those of
        smooths in a formula of `mo.fit` have; priors have the key "smooth_sd" or the term's name.
    observed
        Fields of the rows that say that outcomes are known in part (`models.observed`): censored,
        truncated, or measured with a known error; set by `resolved`, not by users.
    bent
        Constraints of coefficients in a likelihood without priors; set by `without_priors`.
    """

    has_predictors: ClassVar[bool] = True
    outcome_fields: ClassVar[tuple[str, ...]] = ("y",)  # the fields of a row that are required
    field_meaning: ClassVar[dict[str, str]] = {}  # completes "COLUMN is ..." for a field
    predictor_per_class: ClassVar[bool] = False  # rather than a single one
    # The predictor whose terms each class may have for itself: the mean's (""), or "cs".
    terms_by_class: ClassVar[str | None] = None
    mean_is_share: ClassVar[bool] = False  # between 0 and 1, so that it has odds
    no_tails: ClassVar[str] = "its outcomes are known completely"  # why, where it has none
    formula_fields: ClassVar[tuple[str, ...]] = ()  # of `observed`, that `derivatives` reads

    # What a family defines ----------------------------------------------------------------

    @abstractmethod
    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Log-density of one outcome; `eta` holds the row's predictors, then the extras.

        It is a vector, or a tuple of numbers where the extras are the same for all rows.
        """

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 3) -> Derivatives:
        """f, f', f'' ... in the linear predictor up to `highest`, elementwise over rows.

        Three are asked for, or six. Automatic, unless a family has formulas: they compile faster,
        and NumPy takes them too. Not for families with extra parameters, which are differentiated
        jointly in all predictors.
        """
        if self.extras:
            raise SettingError(
                f"{type(self).__name__} has the parameter {coordinate_of(self.extras[0])[1]} "
                "besides its linear predictor, so it has no derivatives in that predictor alone."
            )
        outcome = "()" if len(self.row_fields) == 1 else "(s)"
        f: Callable[..., jax.Array] = jnp.vectorize(
            lambda eta, y: self.row_density(eta[None], y), signature=f"(),{outcome}->()"
        )

        def of_order(order: int, eta: jax.Array) -> jax.Array:
            if order == 0:
                return f(eta, y)
            return jax.jvp(partial(of_order, order - 1), (eta,), (jnp.ones_like(eta),))[1]

        return tuple(of_order(order, jnp.asarray(eta)) for order in range(highest + 1))

    def value(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """f alone, elementwise over rows; overridden where the derivatives are costly."""
        return self.derivatives(eta, y)[0]

    def rise(
        self, eta: jax.Array, e: jax.Array, y: jax.Array, before: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """f(eta + e) - f(eta) and f'(eta + e), elementwise, where f(eta) = `before` is known.

        A family may leave out costly terms of f that depend on y alone.
        """
        f, slope, *_ = self.derivatives(eta + e, y)
        return f - before, slope

    def series_radius(self) -> float:
        """Return the radius within which the Taylor series of f in eta converges.

        The default, pi, is the radius of the logistic family. The Poisson's series converges
        everywhere, but within pi its terms fall about as fast.
        """
        return pi

    @abstractmethod
    def mean(self, eta: jax.Array) -> jax.Array:
        """Expected outcome given the vector of predictors of one row."""

    @property
    @abstractmethod
    def support(self) -> Support:
        """The outcomes that the family allows."""

    @property
    def has_whole_outcomes(self) -> bool:  # type: ignore[override]
        """Whether outcomes are whole numbers, and their likelihood a probability, not a density."""
        return self.support.whole

    def variance(self, eta: jax.Array) -> jax.Array:
        """Variance of the outcome given the vector of predictors of one row."""
        raise SettingError(
            f"{type(self).__name__} does not define the variance of an outcome, which an R-squared "
            "or a standard deviation needs: classes and angles have none, and that of successes "
            "depends on the trials; a family of your own needs a method `variance(eta)`."
        )

    def moments(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance of the outcome given the vector of predictors of one row."""
        return self.mean(eta), self.variance(eta)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw an outcome for each vector of predictors, as floats.

        `eta` has shape (..., q + extras), like `predictor_vector` with any leading axes, and the
        result has its leading axes. `batch` holds what else an outcome depends on (the trials of a
        binomial), with one entry per row along the last leading axis. Survival times are drawn
        without censoring.
        """
        raise SettingError(
            f"{type(self).__name__} does not say how outcomes are drawn; give it a method "
            "`draw_outcomes(rng, eta, batch)` that draws one for each vector of predictors."
        )

    def predictors(self, rows: Rows) -> int:
        """Return the number q of linear predictors; 0 means one, without an axis for it."""
        return 0

    # What follows from these definitions --------------------------------------------------

    @classmethod
    def partial_fields(cls) -> tuple[str, ...]:
        """Return the fields by which rows may say that an outcome is known in part."""
        return CENSORED if cls.log_tails is not BaseModel.log_tails else ()

    @classmethod
    def partial_among(cls, names: Collection[str]) -> tuple[str, ...]:
        """Return which of these fields say that an outcome is known in part."""
        return tuple(name for name in cls.partial_fields() if name in names)

    @property
    def row_fields(self) -> tuple[str, ...]:
        """The observed fields of a row, in the order of `outcome`."""
        return (*self.outcome_fields, *self.observed)

    @property
    def drawn_given(self) -> tuple[str, ...]:
        """The fields of a row that its outcome depends on, beside its predictors."""
        return (*self.outcome_fields[1:], *(f for f in self.observed if f not in HIDING))

    @property
    def drawn_fields(self) -> tuple[str, ...]:
        """The fields of a row that hold what is drawn as its outcome, such as several counts."""
        return tuple(field for field in self.outcome_fields if field not in self.drawn_given)

    @property
    def in_eta_alone(self) -> bool:
        """Whether `derivatives` in one linear predictor describe the likelihood of a row."""
        plain = not self.extras and not self.constrained
        return plain and set(self.observed) <= set(self.formula_fields)

    @property
    def smooth_in_eta(self) -> bool:  # type: ignore[override]
        """Whether a smooth function of one linear predictor is the likelihood of a row."""
        return self.in_eta_alone and bool(self.series_radius())  # no kink

    def observed_in(self, rows: Rows) -> tuple[str, ...]:
        """Return which fields of the rows say that an outcome is known in part."""
        factors = () if rows.coding is None else rows.coding.fields
        present = [name for name in PARTIAL if name in rows.fields and name not in factors]
        unread = set(present) - set(self.partial_fields())
        if unread:
            raise DataError(
                f"the rows hold a field {min(unread)!r}, which {type(self).__name__} does not "
                f"read: {self.no_tails}, so leave it out."
            )
        return self.observed or self.partial_among(present)

    def with_error(self, eta: jax.Array, known: Mapping[str, jax.Array]) -> jax.Array:
        """Return predictors (..., predictors) that include the known errors of their rows."""
        return eta

    def eta_with_error(self, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Return the same of predictors (draws, rows, predictors) of a batch."""
        known = {k: as_either(np.asarray(batch[k])) for k in self.observed if k in batch}
        return np.asarray(self.with_error(as_either(eta), known))

    def row_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Log-likelihood of what is known of one row; `y` is its entry of `outcome`."""
        if not self.observed:
            return self.log_density(eta, y)
        known = dict(zip(self.row_fields, y, strict=True))
        eta = self.with_error(eta, known)
        of, tails = (self._of_outcome(f, eta, known) for f in (self.log_density, self.log_tails))
        return log_density_of_part(of, tails, known, self.support)

    def _of_outcome(
        self, function: Callable[..., Any], eta: jax.Array, known: Mapping[str, jax.Array]
    ) -> Callable[[jax.Array], Any]:
        """Return a function of the outcome of one row, given the other fields of its outcome."""
        others = [known[field] for field in self.outcome_fields[1:]]
        return lambda y: function(eta, jnp.stack([y, *others]) if others else y)

    def draw_rows(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw an outcome for each vector of predictors, within the bounds that its row has."""
        eta = self.eta_with_error(eta, batch)
        if not {"lb", "ub"}.intersection(self.observed):
            return self.draw_outcomes(rng, eta, batch)

        def within(eta: np.ndarray, batch: Batch) -> np.ndarray:
            drawn = len(eta)
            size = -(-drawn // BLOCK) * BLOCK  # in blocks, so as to compile once
            known = {name: np.resize(field, size) for name, field in batch.items()}
            eta, shares = np.resize(eta, (size, eta.shape[-1])), rng.random(size)
            found = np.empty(size)
            for at in (slice(i, i + BLOCK) for i in range(0, size, BLOCK)):
                some = {name: field[at] for name, field in known.items()}
                found[at] = _within(self, eta[at], some, shares[at])
            return found[:drawn]

        known = {name: batch[name] for name in self.drawn_given}
        return draw_within(partial(self.draw_outcomes, rng), within, eta, known)

    def matrix(self, batch: Batch) -> ModelMatrix:
        """Return the model matrix that `beta` multiplies, dense or coded.

        Groups that the rows do not have get no columns; new groups have zeros in theirs.
        """
        absent = self.absent_groups(batch)
        some_new = [t.field for t in self.group_terms if NEW + t.field in batch]
        if self.coding is None or not (absent or some_new):
            return model_matrix(self.coding, batch)
        codes = {name: _after_reference(batch[name], batch[NEW + name]) for name in some_new}
        terms = tuple(
            replace(term, reference=True) if term.field in codes else term
            for term in self.coding.terms
            if term.field not in absent
        )
        return model_matrix(replace(self.coding, terms=terms), {**batch, **codes})

    def full_matrix(self, batch: Batch) -> ModelMatrix:
        """Return the model matrix with the intercept's column last."""
        return self.matrix(batch).with_ones(self.intercept)

    def outcome(self, batch: Batch) -> jax.Array:
        """Observed outcome of each row: y, or y and the other `row_fields` on a last axis."""
        xp = namespace(batch["y"])
        if not self.observed and self.coding is None:
            unread = [name for name in self.partial_fields() if name in batch]
            if unread:
                raise DataError(
                    f"the rows hold the field {unread[0]!r}, which says that outcomes are known in "
                    "part, and this model does not read it: take model.resolved(rows)."
                )
        if len(self.row_fields) == 1:
            return xp.asarray(batch["y"])
        return xp.stack([xp.asarray(batch[name]) for name in self.row_fields], axis=-1)

    def coefficients(self, theta: Params) -> Params:
        """Return parameters with the coefficients of columns in place of their free values."""
        if not self.constrained:
            return theta
        return {**theta, "beta": self.constrained.constrain(theta["beta"])}

    def linear(self, theta: Params, batch: Batch) -> jax.Array:
        """eta of each row: shape (rows,), or (rows, q)."""
        if self.modelled:
            return self.predictor_vector(theta, batch)[:, 0]
        theta = self.coefficients(theta)
        eta = self.matrix(batch) @ jnp.asarray(theta["beta"]).T
        if self.intercept:
            eta = eta + theta["intercept"]
        if "offset" not in batch:
            return eta
        offset = jnp.asarray(batch["offset"])
        return eta + (offset[:, None] if offset.ndim < eta.ndim else offset)

    def predictor_vector(self, theta: Params, batch: Batch) -> jax.Array:
        """All predictors of each row, shape (rows, q + extras)."""
        if self.modelled:
            beta = jnp.asarray(self.coefficients(theta)["beta"])
            own = jnp.stack([jnp.where(mask, beta, 0.0) for mask in self.entering], axis=1)
            first = theta["intercept"] if self.intercept else 0.0
            first = first + jnp.asarray(batch.get("offset", 0.0))
            eta = self.matrix(batch) @ own
            at_zero = [first, *(theta.get(name, 0.0) for name in self.extras)]
            return eta + jnp.stack([jnp.broadcast_to(x, len(eta)) for x in at_zero], axis=1)
        eta = self.linear(theta, batch)
        eta = eta[:, None] if eta.ndim == 1 else eta
        shared = [jnp.broadcast_to(theta[name], (eta.shape[0], 1)) for name in self.extras]
        return jnp.concatenate([eta, *shared], axis=1) if shared else eta

    @property
    def entering(self) -> np.ndarray:
        """Which columns enter each predictor, (1 + extras, columns)."""
        assert self.coding is not None
        names = ["", *map(parameter_of, self.extras)]
        return np.array(self.coding.parameters) == np.array(names)[:, None]

    @property
    def intercepts(self) -> np.ndarray:
        """Which predictors have an intercept, (1 + extras,)."""
        return np.array([self.intercept, *(name in self.sampled_extras for name in self.extras)])

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """f at the predictors of each row."""
        absent = self.absent_groups(batch)
        if absent:
            raise DataError(
                f"the rows do not say which {min(absent)!r} each is in, but the density of an "
                "outcome depends on the effect of its group; give that column."
            )
        outcome = self.outcome(batch)
        if self.modelled or self.observed or not self.extras:
            return jax.vmap(self.row_density)(self.predictor_vector(theta, batch), outcome)
        shared = [jnp.asarray(theta[name]) for name in self.extras]

        def density(eta: jax.Array, y: jax.Array) -> jax.Array:
            together: Any = (eta, *shared)  # terms in the extras alone are computed once
            return self.log_density(together, y)

        return jax.vmap(density)(self.linear(theta, batch), outcome)

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Mean outcome of each row, averaged over new groups where a group is not given.

        The effects of new groups add a normal variable to the predictor, however many they are.
        """
        predictors = self.predictor_vector(theta, batch)
        if not self.absent_groups(batch):
            return jax.vmap(self.mean)(predictors)
        sds = self.new_group_sds(theta, batch)
        return self.mean_over(predictors, sds, self.predictors_of_groups)

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns along which all outcomes are right-censored."""
        censored = [name for name in ("event", "cens") if name in self.observed]
        if not censored:
            return super().separation(rows, theta)
        return find_silent_counts(rows, self.intercept, censored[0])

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """Variance of a row's noise on the scale of the predictor: one number, or one per draw."""
        raise SettingError(
            f"the noise of {type(self).__name__} has no established variance on the scale of the "
            "linear predictor, so that there is no intraclass correlation; compare group_sd "
            "instead."
        )

    def answer(
        self, eta: jax.Array, times: jax.Array | None = None, parameter: str | None = None
    ) -> jax.Array:
        """Expected outcome of one row, a parameter, or chances to be beyond each of the times."""
        if parameter is not None:
            at = [parameter_of(name) for name in self.extras].index(parameter) - len(self.extras)
            return coordinate_of(self.extras[at])[0].constrain(eta[at])
        if times is None:
            return self.mean(eta)

        tails = tails_everywhere(partial(self.log_tails, eta), self.support)
        return jax.vmap(lambda time: jnp.exp(tails(time)[1]))(times)

    def predictor_words(self, effect: str, outcome: str) -> str:
        """Say what an effect is added to, such as "log of expected claims"."""
        parameter, dot, _ = effect.partition(".")
        if dot and parameter in self.modelled:
            return f"predictor of {parameter}"
        step, start = 0.5, np.full(1 + len(self.extras), 0.5)  # where all families have means
        before, after = (np.asarray(self.mean(jnp.asarray(start).at[0].add(h))) for h in (0, step))
        if before.ndim or self.predictor_per_class:
            return f"predictor of {outcome}"
        if np.isclose(after - before, step):
            return f"expected {outcome}"
        if np.isclose(after, before * np.exp(step)):
            return f"log of expected {outcome}"
        odds = before / (1 - before), after / (1 - after)
        is_logit = np.isclose(odds[1], odds[0] * np.exp(step))
        return f"{'log-odds' if is_logit else 'predictor'} of {outcome}"

    def mean_over(
        self,
        predictors: jax.Array,
        sd: jax.Array,
        along: tuple[int, ...],
        answer: Callable[[jax.Array], jax.Array] | None = None,
    ) -> jax.Array:
        """The mean (or `answer`) of each row, averaged over normal predictors.

        They vary `along` some predictors, with sds of shape (rows, len(along)), or (1, len(along))
        if rows do not differ in them.
        """
        nodes, shares = _normal_nodes(len(along))

        def at_node(xi: jax.Array) -> jax.Array:
            moved = predictors.at[:, along].add(sd * xi)
            return jax.vmap(answer or self.mean)(moved)

        return jnp.tensordot(jnp.asarray(shares), jax.lax.map(at_node, jnp.asarray(nodes)), 1)

    def absent_groups(self, batch: Batch) -> frozenset[str]:
        """Groups of the model that the batch has no codes for."""
        return frozenset(t.field for t in self.group_terms if t.field not in batch)

    @property
    def effect_scales(self) -> tuple[EffectScale, ...]:
        """For each group term what its effects multiply."""
        priors, coding = self.resolved_priors, self.coding
        if priors is None or coding is None:
            return ()
        effects = iter([t for t in coding.terms if t.first >= len(priors.coefficients)])
        predictors = ["", *map(parameter_of, self.extras)]
        return tuple(
            EffectScale(
                term.field,
                tuple(next(effects).scale for _ in group.sds),
                predictors.index(term.parameter),
            )
            # groups come after smooths; those of a damaged file may have no priors
            for term, group in zip(
                self.group_terms, priors.pooled[len(self.smooths) :], strict=False
            )
        )

    def effect_factors(self, theta: Params) -> Sequence[jax.Array]:
        """For each group term T: the effects of a group are T v, with v standard normal."""
        priors = self.resolved_priors
        return () if priors is None else priors.effect_factors(theta)

    # Layout, names, checks ----------------------------------------------------------------

    def start(self, rows: Rows) -> Params:
        """Start at the centre of data-scaled priors, and at zero elsewhere.

        The layout is {beta, intercept, extras}, followed by the hyperparameters.
        """
        q = self.predictors(rows)
        shape = (q,) if q else ()
        theta = {"beta": np.zeros((*shape, self._columns(rows)))}
        for name in self.alone:
            theta[name] = np.zeros(shape if name == "intercept" else ())
        priors = self.resolved_priors
        if priors is None:
            return theta
        theta["beta"] = priors.start_at(theta["beta"])
        for name, prior, _ in priors.alone:
            theta[name] = theta[name] + self.start_alone(name, prior)
        return theta | priors.start()

    def _columns(self, rows: Rows) -> int:
        """Number of coefficients of a predictor: common and pooled ones."""
        groups = self.resolved_priors.pooled if self.resolved_priors else ()
        return len(common_columns(self.pooled, rows)) + sum(group.size for group in groups)

    def reported(self) -> Iterator[Reported]:
        """Yield what draws show: coefficients, effects, other parameters, hyperparameters."""
        priors = self.resolved_priors
        if priors is None:
            yield Reported("beta", (Part("beta"),))
        else:
            end = len(priors.coefficients)
            spans = [] if self.coding is None else list(self.coding.predictors)
            spans = [(f"{name}.beta", a, b) for name, a, b in spans if b <= end]
            spans = [("beta", 0, min([end, *(first for _, first, _ in spans)])), *spans]
            for name, size in (
                (n, group.levels) for group in priors.pooled for n in group.term.names
            ):
                spans.append((name, end, end := end + size))
            for name, first, last in spans:
                if last > first:
                    yield Reported(name, (Part("beta", slice(first, last)),))
        yield from self.reported_alone()
        if priors is not None:
            yield from priors.reported()

    def reported_alone(self) -> Iterator[Reported]:
        """Yield the intercept, and extra parameters themselves rather than their coordinates."""
        if self.intercept:
            yield Reported("intercept", (Part("intercept"),))
        for extra in self.sampled_extras:
            coordinate, name = coordinate_of(extra)
            if name in self.modelled:
                yield Reported(f"{name}.intercept", (Part(extra),))
            else:
                yield Reported(name, (Part(extra),), coordinate)

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name the parameters, with means and shares of monotonic steps.

        They may have leading axes, and be NumPy's, unless coefficients have constraints.
        """
        xp, sampled = namespace(theta["beta"]), self.coefficients(theta)
        shown = []
        for name, places, values in self.reported():
            own = [place.of(sampled) for place in places]
            whole = own[0] if len(own) == 1 else xp.stack(own, axis=-1)
            shown.append((name, values.constrain(whole)))
        named = joined(shown)
        if self.resolved_priors is None or jnp.ndim(theta["beta"]) > 1:  # steps of classes
            return named
        return named | self.resolved_priors.report_steps(theta["beta"])

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Undo `report`."""
        rest = {name: jnp.asarray(values) for name, values in named.items()}
        leaves = []
        for name, places, values in self.reported():
            if name not in rest:
                continue
            own, where = rest[name], places[0].where
            if isinstance(where, slice):
                size = where.stop - where.start
                own, rest[name] = own[..., :size], own[..., size:]
            free = values.free(own)
            for place, value in zip(places, [free] if len(places) == 1 else free, strict=True):
                of_one = isinstance(place.where, int)
                leaves.append((place.leaf, jnp.reshape(value, (1,)) if of_one else value))
        theta = joined(leaves)
        # without columns, beta is empty and not reported
        theta.setdefault("beta", jnp.zeros((*np.shape(named.get("intercept", 0.0)), 0)))
        if self.constrained:
            theta["beta"] = self.constrained.free(theta["beta"])
        return theta

    def labels(self, rows: Rows) -> Labels:
        """Label the entries of beta by columns of x, and group effects by levels."""
        common: dict[str, list[str]] = {}
        for before, column in self.common_names(rows):
            common.setdefault(f"{before}beta", []).append(column)
        named: Labels = {name: (tuple(columns),) for name, columns in common.items()}
        for term in self.pooled:
            named |= dict.fromkeys(term.names, (term.levels(rows),))
        priors = self.resolved_priors
        if priors is None:
            return named
        effects = steps_of(priors, rows, self.pooled)
        if effects:
            named[MEAN_STEP] = (tuple(name for name, _ in effects),)
            named[STEP_SHARE] = (tuple(column for _, columns in effects for column in columns),)
        return named | priors.labels()

    def expansions(self) -> dict[str, str | None]:
        """Expand the extra parameters: logarithms, or logits, which for small chances are alike."""
        bounded = [name for name in self.extras if parameter_of(name) != name]
        return dict.fromkeys(name for name in bounded if parameter_of(name) not in self.modelled)

    def check(self, rows: Rows) -> None:
        """Refuse rows without x and y, scales of the wrong length, and outcomes out of support."""
        observed = self.observed_in(rows)
        self.require(
            rows, *(("x",) if rows.coding is None else ()), *self.outcome_fields, *observed
        )
        refuse_mistaken_fields(self, rows)
        if "x" in rows.fields and len(rows.fields["x"]) != 1:
            raise DataError("the field 'x' must be a matrix: a vector of numbers per row.")
        for name in (*self.outcome_fields, *observed):
            if rows.fields[name] != ():
                noun = "outcome" if name == "y" else "number"
                raise DataError(f"the field '{name}' must hold one {noun} per row.")
        if self.pooled and self.predictor_per_class and not self.modelled:
            raise SettingError(
                f"groups and smooths enter the predictor of each class of {type(self).__name__}, "
                "for which mo.fit has names: fit a formula, as in mo.fit('y ~ x + (1 | ward)', "
                "table, family='softmax')."
            )
        check_groups(self.group_terms, rows)
        for group in self.group_terms:
            self.require_repeats(group.field, len(rows.levels[group.field]), rows)
        columns = len(common_columns(self.pooled, rows))
        if isinstance(self.prior_scale, tuple) and len(self.prior_scale) != columns:
            raise SettingError(
                f"prior_scale has {len(self.prior_scale)} entries for {columns} columns of x."
            )
        priors = self.resolved_priors
        if priors is not None and len(priors.coefficients) != columns:
            raise SettingError(
                f"the priors are those of {len(priors.coefficients)} columns, but x has "
                f"{columns}; create a new model for these rows."
            )
        self._check_offset(rows)
        self.check_outcome(rows)

    def check_width(self, draws: Draws, fields: Batch) -> None:
        """Refuse an x whose number of columns is not that of the coefficients."""
        if "x" not in fields or "beta" not in draws or self.matrix(fields).coding is not None:
            return
        pooled = sum(len(term.columns) for term in self.smooths)
        needed, shape = draws["beta"].shape[-1] + pooled, fields["x"].shape
        if len(shape) != 2 or shape[1] != needed:
            columns = "1 column" if needed == 1 else f"{needed} columns"
            raise DataError(
                f"the field 'x' has shape {shape}, but this posterior was fitted to {columns}: "
                f"give an array of shape (rows, {needed})."
            )

    def require_repeats(self, group: str, levels: int, rows: Rows) -> None:
        """Refuse a group of one row per level, where nothing else says how a row varies.

        It does for counts and for known errors: such effects are those of studies in a
        meta-analysis, or the variation of counts beyond Poisson's.
        """
        if levels < rows.observations:
            return
        if self.extras:
            raise DataError(
                f"every row has its own {group!r}, so the groups' effects cannot be told from the "
                "noise of a row; leave the group out."
            )
        if type(self).decide is not BaseModel.decide:
            raise DataError(
                f"every row has its own {group!r}, and the class of a single row says next to "
                "nothing about its group's effect; leave the group out."
            )

    def _check_offset(self, rows: Rows) -> None:
        """Refuse an offset whose shape is not that of the linear predictor."""
        if "offset" not in rows.fields:
            return
        q = len(self.modelled) * self.predictor_per_class or self.predictors(rows)
        if rows.fields["offset"] != ((q,) if q > 1 else ()):
            numbers = f"{q} numbers (one per class but the reference)" if q > 1 else "one number"
            by_formula = q > 1 and rows.schema.encoding is not None
            remedy = ", which a formula cannot give: leave the offset out" if by_formula else ""
            raise DataError(f"the field 'offset' must hold {numbers} per row{remedy}.")

    def check_variation(self, rows: Rows) -> None:
        """Refuse an outcome that never varies, where nothing else bounds an extra parameter.

        A scale is bounded by counts and classes themselves, and times may be censored.
        """
        bounded = self.support.whole or self.support == TIMES
        if self.extras and self.intercept and not bounded:
            refuse_constant(self, rows)

    def check_outcome(self, rows: Rows) -> None:
        """Refuse outcomes outside the family's support, naming the first such row."""
        observed = self.observed_in(rows)

        def check(chunk: Batch, first: int) -> None:
            self.check_fields(chunk, first)
            if observed:
                check_part(chunk, observed, self.support, first)

        check_outcomes(self, rows, self.support, check)


def family_of(model: BaseModel) -> LinearPredictorModel:
    """Return the family of a model's rows."""
    family = model.row_model
    if not isinstance(family, LinearPredictorModel):
        raise SettingError(f"{type(family).__name__} does not say what its variance is.")
    return family


@computed_on_cpu
@jit(static=0)
def _within(family: LinearPredictorModel, eta: Array, known: Batch, share: Array) -> jax.Array:
    """Return outcomes within the bounds of their rows, at these shares of their chances."""

    def of_row(eta: jax.Array, known: Mapping[str, jax.Array], share: jax.Array) -> jax.Array:
        tails = family._of_outcome(family.log_tails, eta, known)
        return outcome_within(tails, known, family.support, share)

    return jax.vmap(of_row)(*jax.tree.map(jnp.asarray, (eta, dict(known), share)))


def _normal_nodes(dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (number, dimensions) and weights whose sums are means over normal variables.

    In more than two dimensions, as of several classes, products of nodes would be too many.
    """
    if dimensions > 2:
        from scipy.special import ndtri  # slow to import
        from scipy.stats import qmc

        points = qmc.Sobol(dimensions, seed=0).random(MANY_NODES)
        return ndtri(points), np.full(MANY_NODES, 1 / MANY_NODES)
    xi, w = np.polynomial.hermite_e.hermegauss(NEW_GROUP_NODES)
    shares = np.prod(list(product(w / w.sum(), repeat=dimensions)), axis=1)
    return np.array(list(product(xi, repeat=dimensions))), shares


def _after_reference(codes: Array, is_new: Array) -> Array:
    """Return codes counted from one, and 0 for new groups, whose effects are not parameters."""
    xp = namespace(codes)
    return xp.where(xp.asarray(is_new), 0, xp.asarray(codes).astype(np.int32) + 1)
