"""Coefficients and their priors: those the user gives, and defaults in the units of the data.

A prior applies to a column, a term or all coefficients, to the intercept, to a family's extra
parameters, or to the standard deviations of groups. `resolved` computes the data-scaled priors by
one pass over the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cached_property
from math import pi
from typing import ClassVar, Self

import jax
import numpy as np

from modicum.arguments import Positive, check_settings
from modicum.errors import DataError, SettingError, suggestion
from modicum.models.constraints import (
    NO_CONSTRAINTS,
    Constraint,
    Entries,
    interval,
    positive,
    real,
)
from modicum.models.model import BaseModel, Params
from modicum.models.priors.distributions import (
    LKJ,
    Domain,
    Exponential,
    HalfNormal,
    LogNormal,
    Monotonic,
    Normal,
    Prior,
    ShrunkPrior,
    StepShare,
    hyphenated,
)
from modicum.models.priors.resolved import (
    MEAN_STEP,
    NOISE,
    STEP_SHARE,
    Alone,
    ModelPriors,
    PooledPrior,
    PriorTable,
    column_in_summary,
    columns_of,
    is_logged,
    is_of_exponential,
    require_known,
    require_support,
    tidy_priors,
)
from modicum.models.priors.units import Moments, columns_with_moments, moments, with_slopes_by_level
from modicum.models.terms import (
    INTERCEPT,
    GroupTerm,
    PooledTerm,
    SmoothTerm,
    common_columns,
    pooled_coding,
    refuse_remote_slope,
    tidy_groups,
)
from modicum.rows import Coding, Rows

ELSEWHERE = {  # what brms calls parameters of ours
    "sigma": "scale",
    "phi": "precision",
    "zi": "zero_inflation",
    "hu": "zero_chance",
    "kappa": "concentration",
    "zoi": "edge_chance",
    "coi": "one_share",
    "alpha": "skewness",
    "shape": "overdispersion",
    "nu": "df",
}


MOST_SKEW = (4 - pi) / 2 * (pi / 2 - 1) ** -1.5  # of a skew-normal variable: half a normal one's

# By the prefix of a parameter's name: what its coordinate maps to, and the sd of the coordinate's
# default prior, about 0.
COORDINATES: dict[str, tuple[Constraint, float]] = {
    "log_": (positive, 5.0),  # from 3e-7 to 3e6 within three sds
    "logit_": (interval(0, 1), 2.5),  # from 0.0006 to 0.9994
    "tanh_": (interval(-MOST_SKEW, MOST_SKEW), 2.0),  # two sds: 96 % of the largest
    "class_": (real, 10.0),  # of a class against the reference, as an intercept
    "": (real, 5.0),
}


def coordinate_of(name: str) -> tuple[Constraint, str]:
    """Return the constraint of an extra parameter, and the parameter's own name.

    Examples
    --------
    >>> coordinate_of("log_scale")
    (positive, 'scale')
    """
    prefix = next(prefix for prefix in COORDINATES if name.startswith(prefix))
    return COORDINATES[prefix][0], name.removeprefix(prefix)


def parameter_of(name: str) -> str:
    """Return the name of the parameter that an extra parameter is a coordinate of."""
    return coordinate_of(name)[1]


@dataclass(frozen=True, repr=False)
class CoefficientPriors(BaseModel):
    """The settings and priors of a model's coefficients; see `LinearPredictorModel`."""

    _: KW_ONLY  # AsymmetricLaplace(0.9) is of that quantile, not of that prior scale
    prior_scale: float | tuple[float, ...] | None = None
    intercept: bool = True
    intercept_scale: Positive | None = None
    priors: Mapping[str, Prior] | PriorTable | None = None
    resolved_priors: ModelPriors | None = None
    groups: str | GroupTerm | Sequence[str | GroupTerm] = ()
    modelled: tuple[str, ...] = ()
    without_intercept: tuple[str, ...] = ()
    coding: Coding | None = None
    smooths: tuple[SmoothTerm, ...] = ()
    observed: tuple[str, ...] = ()
    bent: Entries | None = None

    # Whether outcomes are classes in their order, to all of whose predictors the mean's is added.
    has_order: ClassVar[bool] = False
    extras_have_unit: ClassVar[bool] = False  # whether they have a unit, as the outcome has

    def __post_init__(self) -> None:
        check_settings(self)
        if self.prior_scale is not None:
            object.__setattr__(self, "prior_scale", _scales(self.prior_scale))
        object.__setattr__(self, "priors", tidy_priors(self.priors) or None)
        object.__setattr__(self, "groups", tidy_groups(self.groups))
        if list(self.extras) != sorted(self.extras):
            raise SettingError(
                f"the extra parameters of {type(self).__name__} are {', '.join(self.extras)}: name "
                "them in alphabetical order, the one in which JAX flattens parameters."
            )
        self.check_parameters(self.modelled)
        self._check_priors()

    def check_parameters(self, names: Iterable[str]) -> None:
        """Refuse formulas of what is not a parameter of the family."""
        known = [parameter_of(name) for name in self.extras]
        for name in names:
            if name not in known:
                kind = type(self).__name__
                reason = (
                    "its parameters besides the mean and those given as numbers are "
                    f"{', '.join(known)}"
                    if known
                    else "it has none besides the mean, or they are given as numbers"
                )
                raise SettingError(
                    f"{name!r} is not a parameter of {kind} that a formula can explain"
                    f"{suggestion(ELSEWHERE.get(name, name), known)}: {reason}."
                )

    def _check_priors(self) -> None:
        """Refuse distributions of the wrong kind, and priors that are given twice."""
        short = {"common": "prior_scale", "intercept": "intercept_scale"}
        short |= dict.fromkeys(map(self.extra_key, self.sampled_extras), "scale_prior")
        given = {"common": self.prior_scale, **self.short_priors}
        positive = {k for term in self.pooled for k in (term.kind, term.key, *term.sd_keys)}
        for key, prior in self.prior_table:
            if key in positive:
                require_support(key, prior, "positive")
            if self.groups and key == "group_cor":
                require_support(key, prior, "correlation")
            if given.get(key) is not None:
                raise SettingError(
                    f"the prior of {key!r} is given twice, as {short[key]} and in priors; leave "
                    "one of them out."
                )
            if key in short:
                support: Domain = "positive" if f"log_{key}" in self.extras else "real"
                require_support(key, prior, support, is_coefficient=key == "common")
            if isinstance(prior, ShrunkPrior) and key in short.keys() - {"common"}:
                kind = hyphenated(type(prior))
                raise SettingError(
                    f"a {kind} is a prior of many coefficients, and {key!r} is not one of them."
                )

    @property
    def prior_table(self) -> PriorTable:
        """The priors that were given, by key."""
        return self.priors or ()  # type: ignore[return-value]  # `__post_init__` made it one

    def __repr__(self) -> str:
        late = ["groups", "smooths", "modelled", "without_intercept", "priors", "resolved_priors"]
        late += ["coding", "observed", "bent"]
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in late}
        settings |= {name: getattr(self, name) for name in late if getattr(self, name)}
        if self.priors:
            settings["priors"] = dict(self.prior_table)
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"

    @property
    def constrained(self) -> Entries:  # type: ignore[override]
        """The constraints of coefficients, which their priors imply."""
        priors = self.resolved_priors
        return (self.bent or NO_CONSTRAINTS) if priors is None else priors.constrained

    @property
    def sampled_extras(self) -> tuple[str, ...]:
        """The extra parameters but for intercepts that formulas leave out, which are 0."""
        left_out = self.without_intercept
        return tuple(name for name in self.extras if parameter_of(name) not in left_out)

    @property
    def alone(self) -> tuple[str, ...]:
        """The parameters that are no columns' coefficients: an intercept, and extra parameters."""
        return (*["intercept"] * self.intercept, *self.sampled_extras)

    @property
    def group_terms(self) -> tuple[GroupTerm, ...]:  # type: ignore[override]
        """The group terms."""
        return self.groups  # type: ignore[return-value]  # `__post_init__` made them so

    @property
    def pooled(self) -> tuple[PooledTerm, ...]:
        """All pooled terms, in the order of their coefficients."""
        return (*self.smooths, *self.group_terms)

    @property
    def has_groups(self) -> bool:  # type: ignore[override]
        """Whether there are pooled coefficients."""
        return bool(self.pooled)

    # As densities -------------------------------------------------------------------------

    def log_prior(self, theta: Params) -> jax.Array:
        """Independent priors of beta, the (centred) intercept, the extras and hyperparameters."""
        return self._known_priors.log_density(theta)

    @property
    def _known_priors(self) -> ModelPriors:
        if self.resolved_priors is None:
            raise SettingError(
                f"the priors of {type(self).__name__} are by column, and default ones in the units "
                "of the data, so they need rows: use model.resolved(rows)."
            )
        return self.resolved_priors

    def draw_prior(
        self, shapes: Mapping[str, tuple[int, ...]], number: int, rng: np.random.Generator
    ) -> dict[str, Params]:
        """Draw parameters independently from their priors."""
        q = shapes["intercept"] if "intercept" in shapes else shapes.get("beta", (0,))[:-1]
        return self._known_priors.draw(q, number, rng)

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Name each prior: "normal(mean, sd)"."""
        names = [f"{before}beta[{column}]" for before, column in self.common_names(rows)]
        priors = self._known_priors
        effects = steps_of(priors, rows, self.pooled)
        for (name, columns), where in zip(effects, priors.steps, strict=True):
            shares = f"{STEP_SHARE}[{name}]"
            names[where[0]] = f"{MEAN_STEP}[{name}]"
            names[where[1] : where[-1] + 1] = [shares] * (len(columns) - 1)
        keys = {name: self.extra_key(name) for name in self.sampled_extras}
        return priors.describe(names, keys)

    def common_names(self, rows: Rows) -> list[tuple[str, str]]:
        """Return the prefix of its predictor ("scale.") and the name of each common column."""
        owners = rows.coding.parameters if rows.coding else ("",) * len(rows.columns)
        names = []
        for j in common_columns(self.pooled, rows):
            before = f"{owners[j]}." if owners[j] else ""
            names.append((before, rows.columns[j].removeprefix(before)))
        return names

    def without_priors(self) -> Self:
        """Return the likelihood alone, which compiles once whatever the priors are."""
        return replace(
            self,
            prior_scale=None,
            intercept_scale=None,
            priors=None,
            resolved_priors=None,
            groups=(),
            smooths=(),
            bent=self.constrained or None,
        )

    @property
    def short_priors(self) -> dict[str, Prior]:
        """Priors about 0 of which a setting is the scale, of parameters `alone`, by key."""
        short: dict[str, Prior] = {}
        for name in self.alone:
            scale = self.scale_about_zero(name)
            if scale is not None:
                short[self.extra_key(name)] = self.on_scale(name, Normal(0.0, float(scale)))
        return short

    def on_scale(self, name: str, prior: Normal) -> Prior:
        """Return the prior of a parameter `alone`, given that of what is sampled."""
        logged = is_logged(name) and parameter_of(name) not in self.modelled
        return LogNormal(prior.mean, prior.sd) if logged else prior

    def extra_key(self, name: str) -> str:
        """Key of an extra parameter's prior: "scale" for "log_scale", or "scale.intercept"."""
        if parameter_of(name) in self.modelled:
            return f"{parameter_of(name)}.intercept"
        return name.removeprefix("log_") if is_logged(name) else name

    # Data-scaled priors -------------------------------------------------------------------

    @property
    def needs_moments(self) -> bool:
        """Whether `resolved` makes a pass over the rows, to scale a prior by the data."""
        if self.resolved_priors is not None:
            return False
        by_key = self.short_priors | dict(self.prior_table)
        if any(prior.left_to_data for prior in by_key.values()):
            return True
        commons = ["common", *(f"{name}.common" for name in self.modelled)]
        by_data = self.prior_scale is None and not by_key.keys() >= set(commons)
        by_data |= any(not {t.kind, t.key} & by_key.keys() for t in self.pooled)
        return by_data or any(self.extra_key(name) not in by_key for name in self.alone)

    def resolved(self, rows: Rows, data: Moments | None = None) -> Self:
        """Return the model with all priors fixed, by one pass over the rows where needed.

        Settings are independent: a scale that is given stays as it is, in raw units. With the
        moments of all rows as `data`, no pass is made.
        """
        coding, observed = pooled_coding(self.pooled, rows), self.observed_in(rows)
        known = self
        if coding != self.coding or observed != self.observed:
            known = replace(self, coding=coding, observed=observed)
        if known.resolved_priors is not None:
            return known
        data = known._moments(rows, data) if known.needs_moments else None
        return replace(known, resolved_priors=_Choice(known, rows, data).priors())

    def observed_in(self, rows: Rows) -> tuple[str, ...]:
        """Return which fields of the rows say that an outcome is known in part."""
        return self.observed

    def _moments(self, rows: Rows, data: Moments | None) -> Moments:
        """Return the moments of the common columns and, after them, of further columns of x."""
        data = moments(rows) if data is None else data
        remote = data.remote[: len(rows.columns)]
        if self.intercept and remote.any():
            j = int(np.argmax(remote))
            raise DataError(
                f"the column '{rows.columns[j]}' varies by {data.x_sd[j]:.2g} about "
                f"{data.x_mean[j]:.2g}, too little to tell its slope from the intercept in 64 "
                "bits: subtract a constant from it first, or use center(...) in a formula."
            )
        if rows.coding is not None:
            data = with_slopes_by_level(data, rows.coding)
        if not self.pooled:
            return data
        further = range(len(rows.columns), len(data.x_mean))
        kept = [*common_columns(self.pooled, rows), *further]
        of_kept = {name: getattr(data, name)[kept] for name in ("x_mean", "x_sd", "x_unit")}
        return replace(data, **of_kept)

    def sd_priors(
        self, term: PooledTerm, rows: Rows, given: Sequence[Prior | None]
    ) -> tuple[Prior, ...]:
        """Return the priors of the standard deviations of a term: those given, or else defaults."""
        choice = _Choice(self, rows, None if all(given) else self._moments(rows, None))
        pairs = zip(given, term.effects, strict=True)
        return tuple(own or choice.sd_prior(term, effect) for own, effect in pairs)

    def prior_keys(self, terms: Sequence[GroupTerm]) -> list[str]:
        """Keys that a prior may have, besides columns and their terms, with these group terms."""
        keys = ["common", *map(self.extra_key, self.alone)]
        keys += [f"{name}.common" for name in self.modelled]
        keys += ["group_sd", "group_cor"] if terms else []
        keys += ["smooth_sd"] if self.smooths else []
        return keys + [k for term in (*terms, *self.smooths) for k in (term.key, *term.sd_keys)]

    # A family's defaults ------------------------------------------------------------------

    def outcome_unit(self, data: Moments) -> float:
        """Return the unit in which predictors are measured: 1 for log-odds and log-rates."""
        return 1.0

    def pseudo_variance(self, data: Moments) -> float:
        """Return the approximate variance of a predictor estimated from one row."""
        return 1.0

    def intercept_prior(self, data: Moments) -> Normal:
        """Return the default prior of the predictor at the mean of the columns."""
        return Normal(0.0, 10.0)

    def scale_about_zero(self, name: str) -> float | None:
        """Prior sd about 0 of a parameter `alone`, where it is a setting."""
        return self.intercept_scale if name == "intercept" else None

    def extra_prior(self, name: str, data: Moments) -> Normal:
        """Return the default prior of an extra parameter on its coordinate: wide, about 0."""
        return Normal(0.0, next(sd for key, (_, sd) in COORDINATES.items() if name.startswith(key)))

    def start_alone(self, name: str, prior: Prior) -> float:
        """Return where the search for the mode starts: where its prior is, or without a unit at 0.

        The parameter is one of those `alone`.
        """
        if name != "intercept" and not self.extras_have_unit:
            return 0.0
        return float(np.log(prior.centre)) if is_of_exponential(name, prior) else prior.centre


def _scales(prior_scale: object) -> float | tuple[float, ...]:
    """Return a prior scale per column, or one for all, as something hashable."""
    try:
        scale = np.asarray(prior_scale, dtype=np.float64)
    except (TypeError, ValueError):
        scale = np.full(1, np.nan)
    if scale.ndim > 1 or scale.size == 0 or not np.all(np.isfinite(scale) & (scale > 0)):
        raise SettingError(
            "prior_scale must be a positive number, one positive number per column of x, or None."
        )
    return float(scale) if scale.ndim == 0 else tuple(float(s) for s in scale)


@dataclass(frozen=True)
class _Choice:
    """The choice of all priors of a model: those given by the user, or defaults for its rows.

    `moments` are needed where a scale is left to the data.
    """

    model: CoefficientPriors
    rows: Rows
    moments: Moments | None

    @property
    def data(self) -> Moments:
        assert self.moments is not None, "computed wherever a scale is left to the data"
        return self.moments

    @cached_property
    def given(self) -> dict[str, Prior]:
        return self.model.short_priors | dict(self.model.prior_table)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Positions of the common columns."""
        return common_columns(self.model.pooled, self.rows)

    @cached_property
    def owners(self) -> np.ndarray:
        """The parameter whose predictor each common column enters; empty: the mean."""
        columns, coding = len(self.places), self.model.coding
        return np.array(("",) * columns if coding is None else coding.parameters[:columns], str)

    def priors(self) -> ModelPriors:
        """Return the priors with all scales fixed."""
        if not self.model.intercept and "intercept" in self.given:
            raise SettingError("there is a prior of the intercept, but the model has none.")
        alone, of_terms = tuple(map(self.alone, self.model.alone)), self.pooled()
        return ModelPriors(self.coefficients(), alone, of_terms)

    def alone(self, name: str) -> Alone:
        """Return the prior of an intercept or another parameter: at x = 0, unless default."""
        model, prior = self.model, self.given.get(self.model.extra_key(name))
        if prior is not None:
            return Alone(name, prior)
        if name == "intercept":
            return Alone(name, model.intercept_prior(self.data), self.centre(""))
        parameter, own = parameter_of(name), model.extra_prior(name, self.data)
        centre = self.centre(parameter) if parameter in model.modelled else ()
        return Alone(name, model.on_scale(name, own), centre)

    def centre(self, parameter: str) -> tuple[float, ...]:
        """Means of the columns of a predictor, where its default prior holds; 0 for others."""
        means = self.data.x_mean[: len(self.places)]
        own = self.owners == parameter
        if self.model.has_order:
            own |= self.owners == ""
        return tuple(map(float, np.where(own, means, 0.0)))

    def coefficients(self) -> tuple[Prior, ...]:
        """Return the prior of each column: its own, its term's, the common or the default one."""
        model, rows, given = self.model, self.rows, self.given
        scales = np.zeros(0)
        if model.prior_scale is not None:
            scales = np.broadcast_to(np.asarray(model.prior_scale, float), len(self.places))
        elif self.moments is not None:
            scales = self.scales[: len(self.places)]
        priors: list[Prior] = [Normal(0.0, float(scale)) for scale in scales]
        for parameter in ("", *model.modelled):
            common = given.get(f"{parameter}.common" if parameter else "common")
            if common is not None:
                pairs = zip(priors or [common] * len(self.places), self.owners, strict=True)
                priors = [common if owner == parameter else prior for prior, owner in pairs]
        others = model.prior_keys(model.group_terms)
        named = {key: columns_of(key, rows) for key in given if key not in others}
        single = {key for key in named if key in rows.columns or column_in_summary(key) is not None}
        for key in sorted(named, key=lambda key: key in single):  # columns override terms
            if not named[key]:
                require_known(key, others, rows)
            column = column_in_summary(key)
            if column in named and column in rows.columns:
                raise SettingError(
                    f"the prior of {column!r} is given twice, also as {key!r}; leave one of them "
                    "out."
                )
            require_support(key, given[key], "real", is_coefficient=True)
            places = [self.places.index(j) for j in named[key]]
            if any(priors[at].joint or priors[at] == StepShare() for at in places):
                raise SettingError(
                    f"{key!r} is a step of a monotonic effect, whose steps have one prior: give it "
                    "to the term mo(...)."
                )
            for at, prior in zip(places, self.of_columns(key, places, priors), strict=True):
                priors[at] = prior
        for prior in set(priors):
            prior.check_count(priors.count(prior))
        return tuple(self.in_units(prior, j) for j, prior in enumerate(priors))

    def of_columns(self, key: str, places: list[int], before: Sequence[Prior]) -> Sequence[Prior]:
        """Return the priors of the columns of a key; of steps, the mean has that of the first."""
        prior = self.given[key]
        if not prior.joint:
            return [prior] * len(places)
        owner = self.owners[places[0]]
        is_given = self.model.prior_scale is not None or (
            (f"{owner}.common" if owner else "common") in self.given
        )
        if prior.left_to_data:
            typical = before[places[0]]
            if not typical.is_normal:
                raise SettingError(
                    f"the mean step of {key} cannot have the prior {typical} of common "
                    f"coefficients, as it must be normal: give it one, as in "
                    f"priors={{{key!r}: mo.priors.Normal(0, 1)}}."
                )
            mean, sd = typical.numbers
            unit = 1 if is_given else prior.joint  # all steps together are a difference of levels
            prior = Monotonic(prior.joint, mean, sd / unit)
        return [prior, *[StepShare()] * (prior.joint - 1)]

    def in_units(self, prior: Prior, column: int) -> Prior:
        """Fix the unit and resolution of a shrinkage prior; return other priors unchanged."""
        if not isinstance(prior, ShrunkPrior):
            return prior
        if prior.unit is None:
            unit = float(self.scales[column]) / 2.5
            if prior.of_noise and NOISE in self.model.sampled_extras:
                unit /= self.model.outcome_unit(self.data)
            prior = replace(prior, unit=unit)  # type: ignore[type-var]
        if prior.resolution is None:
            error = np.sqrt(self.model.pseudo_variance(self.data) / self.data.weight)
            prior = replace(prior, resolution=0.1 * float(error))  # type: ignore[type-var]
        return prior

    def pooled(self) -> tuple[PooledPrior, ...]:
        """Return the pooled priors; default sds are 2.5 outcome units per unit of a column."""
        given = self.given
        correlation = given.get("group_cor", LKJ())
        priors = []
        for term in self.model.pooled:
            of_term = given.get(term.key, given.get(term.kind))
            pairs = zip(term.effects, term.sd_keys, strict=True)
            sds = (given.get(key, of_term) or self.sd_prior(term, effect) for effect, key in pairs)
            priors.append(PooledPrior(term, len(term.levels(self.rows)), tuple(sds), correlation))
        return tuple(priors)

    def sd_prior(self, term: PooledTerm, effect: str) -> Prior:
        """Return the default prior of a standard deviation, unless it is not meant for a slope."""
        common = [self.rows.columns[j] for j in self.places]
        names = common + columns_with_moments(self.rows)[len(self.rows.columns) :]
        unit = 1.0 if term.parameter else self.model.outcome_unit(self.data)
        if effect != INTERCEPT:
            return HalfNormal(float(self.scales_in(unit)[names.index(effect)]))
        for slope in (effect for effect in term.effects if effect in names):
            mean, sd = (float(of[names.index(slope)]) for of in (self.data.x_mean, self.data.x_sd))
            refuse_remote_slope(slope, term.key, mean, sd)
        if term.kind == "smooth_sd":  # of quick wiggles it is many times their size: a longer tail
            return Exponential(1 / (2.5 * unit))
        return HalfNormal(2.5 * unit)

    @cached_property
    def scales(self) -> np.ndarray:
        """2.5 units of the predictor per unit of column j: its sd, or two levels' difference.

        The unit is that of the outcome, and 1 for the logarithm or logit of another parameter; or
        more without an intercept: 2.5 units then reach the parameter itself.
        """
        model, scales = self.model, self.scales_in(self.model.outcome_unit(self.data))
        for name in model.extras:
            reach = 0.0 if name in model.sampled_extras else model.extra_prior(name, self.data).mean
            own = np.flatnonzero(self.owners == parameter_of(name))
            scales[own] = self.scales_in(float(np.hypot(1.0, reach / 2.5)))[own]
        return scales

    def scales_in(self, unit: float) -> np.ndarray:
        """2.5 of these units per unit of each column.

        A constant column is an intercept times a constant, and its scale is the intercept's divided
        by that constant; a column of zeros has no unit, and counts as having sd 1.
        """
        height, varies = np.abs(self.data.x_mean), self.data.x_sd > 0
        of_intercept = self.model.intercept_prior(self.data).sd
        constant = np.where(
            height > 0, of_intercept / np.where(height > 0, height, 1.0), 2.5 * unit
        )
        return np.where(varies, 2.5 * unit / np.where(varies, self.data.x_unit, 1.0), constant)


def steps_of(
    priors: ModelPriors, rows: Rows, pooled: Sequence[PooledTerm]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the term of each monotonic effect, and the names of its columns."""
    common = common_columns(pooled, rows)
    found = []
    for where in priors.steps:
        columns = tuple(rows.columns[common[at]] for at in where)
        named = (term for term, own in rows.schema.terms.items() if tuple(own) == columns)
        found.append((next(named, columns[0]), columns))
    return found
