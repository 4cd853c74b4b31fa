"""Models in which a row enters through a linear predictor eta = x @ beta + intercept + offset.

Knowing this buys cheap Hessians (X' diag(f'') X) and control variates of O(d) per row. A family
says only what the log-likelihood f is as a function of its *predictors*: the q linear ones,
followed by the model's other parameters (a log-scale), the same for every row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import pi
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, SettingError
from modicum.models.base import BaseModel, Batch, Labels, Params
from modicum.models.groups import (
    INTERCEPT,
    GroupTerm,
    check_groups,
    common_columns,
    grouped,
    tidy_groups,
)
from modicum.models.matrix import ModelMatrix, model_matrix
from modicum.models.outcomes import check_codes, check_outcomes
from modicum.models.priors import (
    LKJ,
    OWN,
    GroupPrior,
    HalfNormal,
    Horseshoe,
    LogNormal,
    ModelPriors,
    Moments,
    Normal,
    Prior,
    is_positive,
    moments,
)
from modicum.models.priors.distributions import normal_log_density
from modicum.models.priors.exact import ExactPrior, Numbers
from modicum.models.priors.resolved import is_logged, shapes_of
from modicum.models.priors.specification import (
    PriorTable,
    columns_of,
    require_known,
    require_support,
    tidy_priors,
)
from modicum.rows import Coding, Rows

__all__ = ["LinearPredictorModel"]

NEW_GROUP_NODES = 21  # at which effects of new groups are averaged over


@dataclass(frozen=True, repr=False)
class LinearPredictorModel(BaseModel):
    """Coefficients with independent priors, entering through x @ beta + intercept + offset.

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
        Distributions of `mo.priors` by what has them: "common" (all coefficients), "intercept",
        the name of a column, of a categorical column or of a term, or what the family has besides
        ("scale"). All are in raw units, the intercept's is about the intercept itself, and the
        narrower key wins. `prior_scale` and the like are short for normal distributions about 0.
    resolved_priors
        The priors in numbers, as `resolved` finds them; not for users to give.
    groups
        Factors among the codes of the rows whose levels have effects with a standard deviation of
        their own: names, or `mo.models.GroupTerm` with slopes. Such a factor has no contrasts among
        the common columns. The priors of standard deviations have the key "group_sd" or the
        group's name, that of correlations "group_cor".
    coding
        What the codes of the rows mean, as `resolved` finds it there; not for users to give.
    """

    prior_scale: float | tuple[float, ...] | None = None
    intercept: bool = True
    intercept_scale: float | None = None
    priors: Mapping[str, Prior] | PriorTable | None = field(default=None, kw_only=True)
    resolved_priors: ModelPriors | None = field(default=None, kw_only=True)
    groups: str | GroupTerm | Sequence[str | GroupTerm] = field(default=(), kw_only=True)
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
        object.__setattr__(self, "priors", tidy_priors(self.priors) or None)
        if isinstance(self.resolved_priors, Mapping):  # from a file
            object.__setattr__(self, "resolved_priors", ModelPriors.from_dict(self.resolved_priors))
        if isinstance(self.coding, Mapping):
            object.__setattr__(self, "coding", Coding.from_dict(self.coding))
        object.__setattr__(self, "groups", tidy_groups(self.groups))
        self._check_priors()

    def _check_priors(self) -> None:
        """Refuse distributions of the wrong kind, and what is given twice."""
        scales = {"common": self.prior_scale, "intercept": self.intercept_scale}
        short = {"common": "prior_scale", "intercept": "intercept_scale"}
        for name in self.extras:
            scales[extra_key(name)], short[extra_key(name)] = self.extra_scale(name), "scale_prior"
        positive = {"group_sd", *(term.field for term in self.group_terms)}
        for key, prior in self.prior_table:
            if self.groups and key in positive:
                require_support(key, prior, "positive")
            if self.groups and key == "group_cor":
                require_support(key, prior, "correlation")
            if scales.get(key) is not None:
                raise SettingError(
                    f"the prior of {key!r} is given twice, as {short[key]} and in priors; leave "
                    "one of them out."
                )
            if key in short:
                require_support(key, prior, "positive" if f"log_{key}" in self.extras else "real")
            if isinstance(prior, Horseshoe) and key in short.keys() - {"common"}:
                raise SettingError(
                    f"a horseshoe prior is one of many coefficients, and {key!r} is none of them."
                )

    @property
    def prior_table(self) -> PriorTable:
        """The priors that were given, by key."""
        return self.priors or ()  # type: ignore[return-value]  # `__post_init__` made it one

    def __repr__(self) -> str:
        late = ("groups", "priors", "resolved_priors", "coding")
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in late}
        settings |= {name: getattr(self, name) for name in late if getattr(self, name)}
        if self.priors:
            settings["priors"] = dict(self.prior_table)
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

    def rise(
        self, eta: jax.Array, e: jax.Array, y: jax.Array, before: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """f(eta + e) - f(eta) and f'(eta + e), elementwise, where f(eta) = `before` is known.

        A family whose f has terms in y alone that are costly may leave them out here.
        """
        f, slope, *_ = self.derivatives(eta + e, y)
        return f - before, slope

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

    def variance(self, eta: jax.Array) -> jax.Array:
        """Variance of the outcome given the vector of predictors of one row."""
        raise SettingError(
            f"{type(self).__name__} does not say what the variance of an outcome is; give it a "
            "method `variance(eta)`."
        )

    def moments(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance of the outcome given the vector of predictors of one row."""
        return self.mean(eta), self.variance(eta)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw an outcome for each vector of predictors, as floating numbers.

        `eta` has shape (..., q + extras), that of `predictor_vector` with any axes before it, and
        the answer has its leading axes. `batch` holds what else an outcome depends on, one entry
        per row along the last of these: the trials of a binomial. Times are drawn to their end,
        as if none were censored.
        """
        raise SettingError(
            f"{type(self).__name__} does not say how outcomes are drawn; give it a method "
            "`draw_outcomes(rng, eta, batch)` that draws one for each vector of predictors."
        )

    def predictors(self, rows: Rows) -> int:
        """Return the number q of linear predictors; 0 means one, without an axis of its own."""
        del rows
        return 0

    def check_fields(self, chunk: Batch, first: int) -> None:
        """Refuse what a family's fields beside y hold; `first` is the number of the first row."""

    # What follows from it -----------------------------------------------------------------

    def matrix(self, batch: Batch) -> ModelMatrix:
        """Return the columns of the rows that `beta` multiplies, formed or not.

        Groups that the rows do not say have no columns.
        """
        absent = self.absent_groups(batch)
        if not absent or self.coding is None:
            return model_matrix(self.coding, batch)
        terms = tuple(term for term in self.coding.terms if term.field not in absent)
        return model_matrix(replace(self.coding, terms=terms), batch)

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
        absent = self.absent_groups(batch)
        if absent:
            raise DataError(
                f"the rows do not say which {min(absent)!r} each is in, and outcomes are judged "
                "by the effect of their group; give that column."
            )
        return jax.vmap(self.log_density)(self.predictor_vector(theta, batch), self.outcome(batch))

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Mean of the outcome of each row; over all groups there may be, where one is not said.

        What effects of new groups add to a predictor is normal, however many they are.
        """
        absent = self.absent_groups(batch)
        predictors = self.predictor_vector(theta, batch)
        if not absent:
            return jax.vmap(self.mean)(predictors)
        xi, w = np.polynomial.hermite_e.hermegauss(NEW_GROUP_NODES)
        sd = self.spread_of_new_groups(theta, batch, absent)

        def at_node(xi: jax.Array) -> jax.Array:
            return jax.vmap(self.mean)(predictors.at[:, 0].add(sd * xi))

        return jnp.tensordot(jnp.asarray(w / w.sum()), jax.lax.map(at_node, jnp.asarray(xi)), 1)

    def absent_groups(self, batch: Batch) -> frozenset[str]:
        """Groups of the model that the rows of a batch do not say."""
        return frozenset(t.field for t in self.group_terms if t.field not in batch)

    def spread_of_new_groups(
        self, theta: Params, batch: Batch, absent: frozenset[str]
    ) -> jax.Array:
        """Standard deviation, in each row, of what effects of these groups add to eta."""
        known, coding = self.resolved_priors, self.coding
        assert known is not None
        assert coding is not None
        effects = iter([t for t in coding.terms if t.first >= len(known.coefficients)])
        variance = jnp.zeros(())
        for group, factor in zip(known.groups, known.effect_factors(theta[OWN]), strict=True):
            scales = [next(effects).scale for _ in group.sds]
            if group.term.field in absent:
                z = [jnp.ones(()) if s is None else jnp.asarray(batch["x"])[:, s] for s in scales]
                for column in factor.T:
                    along = sum((a * b for a, b in zip(z, column, strict=True)), jnp.zeros(()))
                    variance = variance + along**2
        return jnp.sqrt(variance)

    # Priors -------------------------------------------------------------------------------

    def log_prior(self, theta: Params) -> jax.Array:
        """Independent: on beta, the (centred) intercept, the extras, and what priors have."""
        if self.resolved_priors is not None:
            return self.resolved_priors.log_density(theta)
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

    def log_folded_prior(self, theta: Params) -> jax.Array:
        """The part that is a quadratic in the parameters: normal and flat priors."""
        known = self.resolved_priors
        return self.log_prior(theta) if known is None else known.log_folded(theta)

    def exact_prior(self, theta: Params) -> tuple[ExactPrior, tuple[Numbers, ...]] | None:
        """The other part, for parameters laid out as `theta`; None where all are quadratic."""
        known = self.resolved_priors
        return None if known is None else known.exact(shapes_of(theta))

    @property
    def has_raw_priors(self) -> bool:
        """Whether all priors are given as numbers, so that no data are needed to know them."""
        return not self.priors and not self._left_to_data

    @property
    def needs_moments(self) -> bool:
        """Whether `resolved` makes a pass over the rows, for a prior that is left to the data."""
        return self.resolved_priors is None and self._left_to_data

    @property
    def _left_to_data(self) -> bool:
        given = dict(self.prior_table)
        shoes = [prior for prior in given.values() if isinstance(prior, Horseshoe)]
        if any(prior.unit is None or prior.resolution is None for prior in shoes):
            return True
        left = self.prior_scale is None and "common" not in given
        left |= "group_sd" not in given and any(t.field not in given for t in self.group_terms)
        left |= self.intercept and self.intercept_scale is None and "intercept" not in given
        return left or any(
            self.extra_scale(name) is None and extra_key(name) not in given for name in self.extras
        )

    def resolved(self, rows: Rows, of: Moments | None = None) -> Self:
        """Return the model with its priors in numbers, by one pass over the rows where needed.

        Each setting stands by itself: what is given as a number stays a number in raw units. With
        the moments `of` all rows, no pass is made.
        """
        coding = grouped(self.group_terms, rows)
        coded = self if coding == self.coding else replace(self, coding=coding)
        if self.resolved_priors is not None or self.has_raw_priors:
            return coded
        of = self._moments(rows, of) if self.needs_moments else None
        return replace(coded, resolved_priors=self.priors_for(rows, of))

    def _moments(self, rows: Rows, of: Moments | None) -> Moments:
        """Of the common columns."""
        of = moments(rows) if of is None else of
        if not self.groups:
            return of
        common = list(common_columns(self.group_terms, rows))
        return replace(of, x_mean=of.x_mean[common], x_sd=of.x_sd[common])

    def priors_for(self, rows: Rows, of: Moments | None) -> ModelPriors:
        """Return the priors in numbers; moments are needed where a setting is None."""
        given = dict(self.prior_table)
        intercept, centre = self._intercept_prior(given.get("intercept"), of)
        extras = []
        for name in self.extras:
            scale = self.extra_scale(name)
            prior = given.get(extra_key(name))
            if prior is None:
                own = self.extra_prior(name, _known(of)) if scale is None else Normal(0.0, scale)
                prior = LogNormal(own.mean, own.sd) if is_logged(name) else own
            extras.append((name, prior))
        groups = self._group_priors(rows, of)
        common = self._coefficient_priors(rows, of)
        return ModelPriors(common, intercept, centre, tuple(extras), groups)

    def _group_priors(self, rows: Rows, of: Moments | None) -> tuple[GroupPrior, ...]:
        """By default 2.5 units of the outcome, over the column's sd for a slope."""
        given = dict(self.prior_table)
        made = []
        for term in self.group_terms:
            sd = given.get(term.field, given.get("group_sd"))
            correlation = given.get("group_cor", LKJ())
            assert isinstance(correlation, LKJ)
            sds = [
                self._sd_prior(effect, rows, _known(of)) if sd is None else sd
                for effect in term.effects
            ]
            made.append(GroupPrior(term, len(rows.levels[term.field]), tuple(sds), correlation))
        return tuple(made)

    def _sd_prior(self, effect: str, rows: Rows, of: Moments) -> Prior:
        if effect == INTERCEPT:
            return HalfNormal(2.5 * self.outcome_unit(of))
        names = [rows.columns[j] for j in common_columns(self.group_terms, rows)]
        return HalfNormal(float(self._data_scales(of)[names.index(effect)]))

    @property
    def group_terms(self) -> tuple[GroupTerm, ...]:
        """The groups."""
        return self.groups  # type: ignore[return-value]  # `__post_init__` made them so

    @property
    def has_groups(self) -> bool:  # type: ignore[override]
        """Whether there are effects of groups among the coefficients."""
        return bool(self.groups)

    def _coefficient_priors(self, rows: Rows, of: Moments | None) -> tuple[Prior, ...]:
        """Each column's: the default, that of all, its term's or its own; the last wins."""
        places = common_columns(self.group_terms, rows)
        columns = len(places)
        given = dict(self.prior_table)
        common = given.pop("common", None)
        if common is not None:
            priors = [common] * columns
        elif self.prior_scale is not None:
            scales = np.broadcast_to(np.asarray(self.prior_scale), columns)
            priors = [Normal(0.0, float(scale)) for scale in scales]
        else:
            priors = [Normal(0.0, float(scale)) for scale in self._data_scales(_known(of))]
        others = [
            "common",
            *(["intercept"] if self.intercept else []),
            *map(extra_key, self.extras),
        ]
        others += ["group_sd", "group_cor"] if self.groups else []
        others += [term.field for term in self.group_terms]
        named = {key: columns_of(key, rows) for key in given if key not in others}
        for key in sorted(named, key=lambda key: key in rows.columns):  # a column's own comes last
            if not named[key]:
                require_known(key, others, rows)
            require_support(key, given[key], "real")
            for j in named[key]:
                priors[places.index(j)] = given[key]
        return tuple(self._in_units(prior, j, of) for j, prior in enumerate(priors))

    def _in_units(self, prior: Prior, column: int, of: Moments | None) -> Prior:
        """A horseshoe in the units of its column."""
        if not isinstance(prior, Horseshoe):
            return prior
        if prior.unit is None:
            prior = replace(prior, unit=float(self._data_scales(_known(of))[column]) / 2.5)
        if prior.resolution is None:
            error = np.sqrt(self.pseudo_variance(_known(of)) / _known(of).weight)
            prior = replace(prior, resolution=0.1 * float(error))
        return prior

    def _intercept_prior(
        self, given: Prior | None, of: Moments | None
    ) -> tuple[Prior | None, tuple[float, ...]]:
        """The intercept's prior, and where in x it holds: at 0, unless it is left to the data."""
        if not self.intercept:
            if given is not None:
                raise SettingError("there is a prior of the intercept, and the model has none.")
            return None, ()
        if given is not None:
            return given, ()
        if self.intercept_scale is not None:
            return Normal(0.0, float(self.intercept_scale)), ()
        return self.intercept_prior(_known(of)), tuple(float(c) for c in _known(of).x_mean)

    @property
    def has_flat_prior(self) -> bool:  # type: ignore[override]
        """Whether some parameter has no prior, so that the posterior may have no end."""
        return self.resolved_priors is not None and self.resolved_priors.has_flat

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Name each prior: "normal(mean, sd)"."""
        known = self.resolved_priors
        if known is None and self.has_raw_priors:
            known = self.priors_for(rows, None)
        common = common_columns(self.group_terms, rows)
        return {} if known is None else known.describe(tuple(rows.columns[j] for j in common))

    def prior_distances(self, theta: Params) -> Params | None:
        """In prior standard deviations; of the intercept, the one its prior is about."""
        if self.resolved_priors is not None:
            return self.resolved_priors.distances(theta)
        if not self.has_raw_priors:
            return None
        scales = {"beta": self.prior_scale, "intercept": self.intercept_scale}
        scales |= {name: self.extra_scale(name) for name in self.extras}
        return {name: value / np.asarray(scales[name]) for name, value in theta.items()}

    def has_normal_prior(self, theta: Params) -> Params:
        """Which parameters have a normal prior, in the structure of `theta`."""
        if self.resolved_priors is not None:
            return self.resolved_priors.normal(theta)
        return jax.tree.map(lambda leaf: np.ones(np.shape(leaf), bool), theta)

    def shrunk(self, theta: Params) -> Params:
        """Coefficients with a horseshoe prior, and what it has besides."""
        known = self.resolved_priors
        return super().shrunk(theta) if known is None else known.shrunk(theta)

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

    def pseudo_variance(self, of: Moments) -> float:
        """Return about the variance of a predictor from a single row, in the outcome's unit."""
        del of
        return 1.0

    def intercept_prior(self, of: Moments) -> Normal:
        """Return the default prior of the predictor at the mean of the columns."""
        del of
        return Normal(0.0, 10.0)

    def extra_scale(self, name: str) -> float | None:
        """Prior standard deviation of an extra parameter about 0; None: by the data."""
        raise KeyError(name)

    def extra_prior(self, name: str, of: Moments) -> Normal:
        """Return the default prior of an extra parameter."""
        raise KeyError(name)

    def expansions(self) -> dict[str, str | None]:
        """What a family has besides coefficients: logarithms, and logits, near them for chances."""
        return dict.fromkeys(self.extras)

    def likelihood_layout(self, theta: Params) -> Params:
        """All but the parameters of priors, which are the last."""
        return {name: leaf for name, leaf in theta.items() if name != OWN}

    def without_priors(self) -> Self:
        """Return the likelihood alone: it compiles once, whatever the priors' numbers are."""
        return replace(
            self,
            prior_scale=None,
            intercept_scale=None,
            priors=None,
            resolved_priors=None,
            groups=(),
        )

    # Layout, names, checks ----------------------------------------------------------------

    def start(self, rows: Rows) -> Params:
        """The priors' centre where these are in the units of the data, else zeros.

        The layout is {beta, intercept, extras}, and the parameters that priors have, last.
        """
        columns, q = len(common_columns(self.group_terms, rows)), self.predictors(rows)
        columns += sum(g.size for g in self.resolved_priors.groups) if self.resolved_priors else 0
        theta = {"beta": np.zeros((q, columns) if q else columns)}
        if self.intercept:
            theta["intercept"] = np.zeros(q) if q else np.zeros(())
        theta |= {name: np.zeros(()) for name in self.extras}
        known = self.resolved_priors
        if known is None:
            return theta
        if known.intercept is not None:
            theta["intercept"] = theta["intercept"] + known.intercept.centre
        for name, prior in known.extras:
            if prior.quadratic and prior.numbers:
                theta[name] = np.asarray(prior.numbers[0])
        theta |= known.start()
        return theta

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Parameters by name; those of priors in words of their own."""
        rest = {name: leaf for name, leaf in theta.items() if name != OWN}
        return self.split_effects(super().report(rest)) | self.report_own(theta)

    def split_effects(self, named: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Name the effects of groups, which follow the common coefficients, if there are any."""
        known = self.resolved_priors
        if known is None or not known.groups:
            return {k: v for k, v in named.items() if k != "beta" or np.shape(v)[-1]}
        beta = jnp.asarray(named.pop("beta"))
        first = len(known.coefficients)
        split = {"beta": beta[:first]} if first else {}
        for group in known.groups:
            for name in group.term.names:
                split[name] = beta[first : first + group.levels]
                first += group.levels
        return split | named

    def report_own(self, theta: Params) -> dict[str, jax.Array]:
        """Name the parameters that priors have."""
        known = self.resolved_priors
        return {} if known is None or OWN not in theta else known.report(theta[OWN])

    def restore(self, named: Mapping[str, Any]) -> Params:
        """Undo `report`."""
        # without columns, beta is empty and not reported
        theta = {"beta": jnp.zeros((*np.shape(named.get("intercept", 0.0)), 0))} | dict(named)
        known = self.resolved_priors
        own = {} if known is None else known.restore(theta)
        if known is not None and known.groups:
            names = [name for group in known.groups for name in group.term.names]
            parts = [theta["beta"], *(theta.pop(name) for name in names)]
            theta["beta"] = jnp.concatenate([jnp.asarray(part) for part in parts])
        return theta | own

    def labels(self, rows: Rows) -> Labels:
        """Columns of x name the entries of beta, levels those of effects."""
        common = common_columns(self.group_terms, rows)
        named: Labels = {"beta": (tuple(rows.columns[j] for j in common),)} if common else {}
        for term in self.group_terms:
            levels = tuple(str(level) for level in rows.levels[term.field])
            named |= dict.fromkeys(term.names, (levels,))
        return named | ({} if self.resolved_priors is None else self.resolved_priors.labels())

    def check(self, rows: Rows) -> None:
        """Refuse rows without x and y, scales of the wrong length, outcomes out of support."""
        self.require(rows, *(("x",) if rows.coding is None else ()), *self.outcome_fields)
        if "x" in rows.fields and len(rows.fields["x"]) != 1:
            raise DataError("the field 'x' must be a matrix: a vector of numbers per row.")
        for name in self.outcome_fields:
            if rows.fields[name] != ():
                thing = "outcome" if name == "y" else "number"
                raise DataError(f"the field '{name}' must hold one {thing} per row.")
        if self.groups and self.predictors(rows) > 1:
            raise SettingError(
                f"groups are for families of one linear predictor, and {type(self).__name__} has "
                f"{self.predictors(rows)}."
            )
        check_groups(self.group_terms, rows)
        columns = len(common_columns(self.group_terms, rows))
        if isinstance(self.prior_scale, tuple) and len(self.prior_scale) != columns:
            raise SettingError(
                f"prior_scale has {len(self.prior_scale)} entries for {columns} columns of x."
            )
        known = self.resolved_priors
        if known is not None and len(known.coefficients) != columns:
            raise SettingError(
                f"the priors are those of {len(known.coefficients)} columns, and x has "
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


def extra_key(name: str) -> str:
    """What users call a parameter of a family: "scale", where its logarithm is sampled."""
    return name.removeprefix("log_") if is_logged(name) else name


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
