"""Coefficients and their priors: those the user gives, and defaults in the units of the data.

A prior applies to a column, a term or all coefficients, to the intercept, to a family's extra
parameters, or to the standard deviations of groups. `resolved` computes the data-scaled priors by
one pass over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logit

from modicum.errors import DataError, SettingError, suggestion
from modicum.models.model import BaseModel, Params
from modicum.models.priors import (
    LKJ,
    OWN,
    Exponential,
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
from modicum.models.priors.resolved import (
    PriorTable,
    column_in_summary,
    columns_of,
    is_logged,
    is_of_exponential,
    require_known,
    require_support,
    tidy_priors,
)
from modicum.models.priors.units import columns_with_moments, with_slopes_by_level
from modicum.models.terms import (
    INTERCEPT,
    GroupTerm,
    PooledTerm,
    SmoothTerm,
    common_columns,
    pooled_coding,
    refuse_remote_slope,
    tidy_groups,
    tidy_smooths,
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
}


class Coordinate(NamedTuple):
    """An unbounded coordinate of a bounded parameter, known by the prefix of its name."""

    prefix: str
    sd: float  # of its default prior, about 0
    natural: Callable[[jax.Array], jax.Array]  # to the parameter
    free: Callable[[jax.Array], jax.Array]  # and back


COORDINATES = (
    Coordinate("log_", 5.0, jnp.exp, jnp.log),  # from 3e-7 to 3e6 within three sds
    Coordinate("logit_", 2.5, jax.nn.sigmoid, logit),  # from 0.0006 to 0.9994
    Coordinate("", 5.0, lambda x: x, lambda x: x),  # a parameter that may be any number
)


def coordinate_of(name: str) -> tuple[Coordinate, str]:
    """Return the coordinate on which an extra parameter is sampled, and the parameter's own name.

    Examples
    --------
    >>> coordinate_of("log_scale")[1]
    'scale'
    """
    found = next(one for one in COORDINATES if name.startswith(one.prefix))
    return found, name.removeprefix(found.prefix)


def parameter_of(name: str) -> str:
    """Return the name of the parameter that an extra parameter is a coordinate of."""
    return coordinate_of(name)[1]


@dataclass(frozen=True, repr=False)
class CoefficientPriors(BaseModel):
    """The settings and priors of a model's coefficients; see `LinearPredictorModel`."""

    _: KW_ONLY  # AsymmetricLaplace(0.9) is of that quantile, not of that prior scale
    prior_scale: float | tuple[float, ...] | None = None
    intercept: bool = True
    intercept_scale: float | None = None
    priors: Mapping[str, Prior] | PriorTable | None = None
    resolved_priors: ModelPriors | None = None
    groups: str | GroupTerm | Sequence[str | GroupTerm] = ()
    modelled: tuple[str, ...] = ()
    coding: Coding | None = None
    smooths: Sequence[SmoothTerm] = ()
    observed: tuple[str, ...] = ()

    extras_have_unit: ClassVar[bool] = False  # whether they have a unit, as the outcome has

    def __post_init__(self) -> None:
        if self.prior_scale is not None:
            object.__setattr__(self, "prior_scale", _scales(self.prior_scale))
        if self.intercept_scale is not None and not is_positive(self.intercept_scale):
            raise SettingError("intercept_scale must be a positive number, or None.")
        if not isinstance(self.intercept, bool | np.bool_):
            raise SettingError(f"intercept must be True or False, not {self.intercept!r}.")
        object.__setattr__(self, "priors", tidy_priors(self.priors) or None)
        for name, kind in (("resolved_priors", ModelPriors), ("coding", Coding)):
            value = getattr(self, name)
            if value is not None and type(value) is not kind:  # as a file describes it
                object.__setattr__(self, name, kind.from_dict(value))
        object.__setattr__(self, "groups", tidy_groups(self.groups))
        object.__setattr__(self, "smooths", tidy_smooths(self.smooths))
        object.__setattr__(self, "modelled", tuple(self.modelled))
        self._check_modelled()
        self._check_priors()

    def _check_modelled(self) -> None:
        """Refuse formulas of what is not a parameter of the family."""
        known = [parameter_of(name) for name in self.extras]
        for name in self.modelled:
            if name not in known:
                kind = type(self).__name__
                reason = (
                    f"its parameters besides the mean are {', '.join(known)}"
                    if known
                    else "it has none besides the mean, or they are given as numbers"
                )
                raise SettingError(
                    f"{name!r} is not a parameter of {kind} that a formula can explain"
                    f"{suggestion(ELSEWHERE.get(name, name), known)}: {reason}."
                )

    def _check_priors(self) -> None:
        """Refuse distributions of the wrong kind, and priors that are given twice."""
        scales = {"common": self.prior_scale, "intercept": self.intercept_scale}
        short = {"common": "prior_scale", "intercept": "intercept_scale"}
        for name in self.extras:
            key = self.extra_key(name)
            scales[key], short[key] = self.extra_scale(name), "scale_prior"
        positive = {k for term in self.pooled for k in (term.kind, term.key, *term.sd_keys)}
        for key, prior in self.prior_table:
            if key in positive:
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
                    f"a horseshoe is a prior of many coefficients, and {key!r} is not one of them."
                )

    @property
    def prior_table(self) -> PriorTable:
        """The priors that were given, by key."""
        return self.priors or ()  # type: ignore[return-value]  # `__post_init__` made it one

    def __repr__(self) -> str:
        late = ("groups", "smooths", "modelled", "priors", "resolved_priors", "coding", "observed")
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in late}
        settings |= {name: getattr(self, name) for name in late if getattr(self, name)}
        if self.priors:
            settings["priors"] = dict(self.prior_table)
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"

    @property
    def group_terms(self) -> tuple[GroupTerm, ...]:  # type: ignore[override]
        """The group terms."""
        return self.groups  # type: ignore[return-value]  # `__post_init__` made them so

    @property
    def pooled(self) -> tuple[PooledTerm, ...]:
        """All pooled terms, in the order of their coefficients."""
        return (*self.smooths, *self.group_terms)

    @property
    def lkj_priors(self) -> tuple[tuple[int, float], ...]:  # type: ignore[override]
        """Number of effects and concentration of each term whose effects are correlated."""
        groups = () if self.resolved_priors is None else self.resolved_priors.groups
        return tuple((len(g.sds), g.correlation.eta) for g in groups if g.partials)

    @property
    def has_groups(self) -> bool:  # type: ignore[override]
        """Whether there are pooled coefficients."""
        return bool(self.pooled)

    # As densities -------------------------------------------------------------------------

    def log_prior(self, theta: Params) -> jax.Array:
        """Independent priors of beta, the (centred) intercept, the extras and hyperparameters."""
        return self.priors_at(theta).log_density(theta)

    def priors_at(self, theta: Params) -> ModelPriors:
        """Return the priors of parameters laid out as `theta`: resolved, or given as scales."""
        if self.resolved_priors is not None:
            return self.resolved_priors
        if not self.has_raw_priors:
            raise SettingError(
                f"the default priors of {type(self).__name__} are in the units of the data, so "
                "they need rows: use model.resolved(rows), or give the scales."
            )
        extras = ((name, self.extra_scale(name)) for name in self.extras)
        return ModelPriors(
            self._scaled_priors(np.shape(theta["beta"])[-1]),
            self._intercept_prior(None, None)[0],
            extras=tuple((name, Normal(0.0, scale)) for name, scale in extras if scale is not None),
        )

    def draw_prior(
        self, shapes: Mapping[str, tuple[int, ...]], number: int, rng: np.random.Generator
    ) -> dict[str, Params]:
        """Draw parameters independently from their priors."""
        q = shapes["intercept"] if "intercept" in shapes else shapes.get("beta", (0,))[:-1]
        beta = np.empty(shapes.get("beta", (0,)))
        return self.priors_at({"beta": beta}).draw(q, number, rng)

    @property
    def has_flat_prior(self) -> bool:  # type: ignore[override]
        """Whether some parameter has no prior, so that the posterior may be improper."""
        return self.resolved_priors is not None and self.resolved_priors.has_flat

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Name each prior: "normal(mean, sd)"."""
        priors = self.resolved_priors
        if priors is None and self.has_raw_priors:
            priors = self.priors_for(rows, None)
        if priors is None:
            return {}
        names = []
        for j in common_columns(self.pooled, rows):
            owner = rows.coding.parameters[j] if self.modelled and rows.coding else ""
            before = f"{owner}." if owner else ""
            names.append(f"{before}beta[{rows.columns[j].removeprefix(before)}]")
        return priors.describe(names, {name: self.extra_key(name) for name in self.extras})

    def likelihood_layout(self, theta: Params) -> Params:
        """Return all parameters but the hyperparameters, which come last."""
        return {name: leaf for name, leaf in theta.items() if name != OWN}

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
        )

    def extra_key(self, name: str) -> str:
        """Key of an extra parameter's prior: "scale" for "log_scale", or "scale.intercept"."""
        if parameter_of(name) in self.modelled:
            return f"{parameter_of(name)}.intercept"
        return name.removeprefix("log_") if is_logged(name) else name

    # Data-scaled priors -------------------------------------------------------------------

    @property
    def has_raw_priors(self) -> bool:
        """Whether all priors are given as scales in raw units, which need no data."""
        return not self.priors and not self._left_to_data

    @property
    def needs_moments(self) -> bool:
        """Whether `resolved` makes a pass over the rows, to scale a prior by the data."""
        return self.resolved_priors is None and self._left_to_data

    @property
    def _left_to_data(self) -> bool:
        by_key = dict(self.prior_table)
        horseshoes = [prior for prior in by_key.values() if isinstance(prior, Horseshoe)]
        if any(prior.unit is None or prior.resolution is None for prior in horseshoes):
            return True
        commons = ["common", *(f"{name}.common" for name in self.modelled)]
        by_data = self.prior_scale is None and not by_key.keys() >= set(commons)
        by_data |= any(not {t.kind, t.key} & by_key.keys() for t in self.pooled)
        by_data |= self.intercept and self.intercept_scale is None and "intercept" not in by_key
        return by_data or any(
            self.extra_scale(name) is None and self.extra_key(name) not in by_key
            for name in self.extras
        )

    def resolved(self, rows: Rows, data: Moments | None = None) -> Self:
        """Return the model with all priors fixed, by one pass over the rows where needed.

        Settings are independent: a scale that is given stays as it is, in raw units. With the
        moments of all rows as `data`, no pass is made.
        """
        coding, observed = pooled_coding(self.pooled, rows), self.observed_in(rows)
        known = self
        if coding != self.coding or observed != self.observed:
            known = replace(self, coding=coding, observed=observed)
        if known.resolved_priors is not None or known.has_raw_priors:
            return known
        data = known._moments(rows, data) if known.needs_moments else None
        return replace(known, resolved_priors=known.priors_for(rows, data))

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

    def priors_for(self, rows: Rows, data: Moments | None) -> ModelPriors:
        """Return the priors with all scales fixed; `data` is needed where a setting is None."""
        by_key = dict(self.prior_table)
        columns = len(common_columns(self.pooled, rows))
        intercept, centre = self._intercept_prior(by_key.get("intercept"), data, rows)
        extras, centres = [], []
        for name in self.extras:
            scale, modelled = self.extra_scale(name), parameter_of(name) in self.modelled
            prior = by_key.get(self.extra_key(name))
            if prior is None:
                own = self.extra_prior(name, _expect(data)) if scale is None else Normal(0.0, scale)
                prior = LogNormal(own.mean, own.sd) if is_logged(name) and not modelled else own
                if modelled and scale is None:  # at the mean of its predictor's columns
                    means = _expect(data).x_mean[:columns] * self._enters(parameter_of(name), rows)
                    centres.append((name, tuple(map(float, means))))
            extras.append((name, prior))
        groups = self._pooled_priors(rows, data)
        common = self._coefficient_priors(rows, data)
        return ModelPriors(common, intercept, centre, tuple(extras), groups, tuple(centres))

    def _enters(self, parameter: str, rows: Rows) -> np.ndarray:
        """Which common columns enter the predictor of a parameter; empty: the mean's."""
        columns = len(common_columns(self.pooled, rows))
        coding = pooled_coding(self.pooled, rows)
        owners = ("",) * columns if coding is None else coding.parameters[:columns]
        return np.array([owner == parameter for owner in owners], bool)

    def _pooled_priors(self, rows: Rows, data: Moments | None) -> tuple[GroupPrior, ...]:
        """Return the pooled priors; default sds are 2.5 outcome units per unit of a column."""
        by_key = dict(self.prior_table)
        priors = []
        for term in self.pooled:
            of_term = by_key.get(term.key, by_key.get(term.kind))
            correlation = by_key.get("group_cor", LKJ())
            assert isinstance(correlation, LKJ)
            sds = []
            for effect, key in zip(term.effects, term.sd_keys, strict=True):
                sd = by_key.get(key, of_term)
                if sd is None and effect == INTERCEPT:
                    self._refuse_remote_slopes(term, rows, _expect(data))
                sds.append(self._sd_prior(term, effect, rows, _expect(data)) if sd is None else sd)
            priors.append(GroupPrior(term, len(term.levels(rows)), tuple(sds), correlation))
        return tuple(priors)

    def _refuse_remote_slopes(self, term: PooledTerm, rows: Rows, data: Moments) -> None:
        """Refuse slopes for which the default prior of the intercepts is not meant."""
        names = self._with_moments(rows)
        for slope in (effect for effect in term.effects if effect in names):
            at = names.index(slope)
            refuse_remote_slope(slope, term.key, float(data.x_mean[at]), float(data.x_sd[at]))

    def _sd_prior(self, term: PooledTerm, effect: str, rows: Rows, data: Moments) -> Prior:
        unit = 1.0 if term.parameter else self.outcome_unit(data)
        if term.kind == "smooth_sd":  # of quick wiggles it is many times their size: a longer tail
            return Exponential(1 / (2.5 * unit))
        if effect == INTERCEPT:
            return HalfNormal(2.5 * unit)
        at = self._with_moments(rows).index(effect)
        return HalfNormal(float(self._scales_in(unit, data)[at]))

    def _with_moments(self, rows: Rows) -> list[str]:
        """Names of the columns whose moments `_moments` returns."""
        common = [rows.columns[j] for j in common_columns(self.pooled, rows)]
        return common + columns_with_moments(rows)[len(rows.columns) :]

    def prior_keys(self, terms: Sequence[GroupTerm]) -> list[str]:
        """Keys that a prior may have, besides columns and their terms, with these group terms."""
        keys = ["common", *(["intercept"] if self.intercept else [])]
        keys += [*map(self.extra_key, self.extras), *(f"{name}.common" for name in self.modelled)]
        keys += ["group_sd", "group_cor"] if terms else []
        keys += ["smooth_sd"] if self.smooths else []
        return keys + [k for term in (*terms, *self.smooths) for k in (term.key, *term.sd_keys)]

    def _coefficient_priors(self, rows: Rows, data: Moments | None) -> tuple[Prior, ...]:
        """Return the prior of each column: its own, its term's, the common or the default one."""
        places = common_columns(self.pooled, rows)
        by_key = dict(self.prior_table)
        priors: list[Prior] = []
        if self.prior_scale is not None:
            priors += self._scaled_priors(len(places))
        elif data is not None:
            scales = self._data_scales(data, rows)[: len(places)]
            priors += [Normal(0.0, float(scale)) for scale in scales]
        for parameter in ("", *self.modelled):
            common = by_key.pop(f"{parameter}.common" if parameter else "common", None)
            if common is not None:
                of_all = priors or [common] * len(places)
                pairs = zip(of_all, self._enters(parameter, rows), strict=True)
                priors = [common if enters else prior for prior, enters in pairs]
        others = self.prior_keys(self.group_terms)
        named = {key: columns_of(key, rows) for key in by_key if key not in others}
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
            require_support(key, by_key[key], "real")
            for j in named[key]:
                priors[places.index(j)] = by_key[key]
        return tuple(self._in_units(prior, j, data, rows) for j, prior in enumerate(priors))

    def _scaled_priors(self, columns: int) -> tuple[Prior, ...]:
        """Return normal priors of the scales that were given, in raw units."""
        scales = np.broadcast_to(np.asarray(self.prior_scale, float), columns)
        return tuple(Normal(0.0, float(scale)) for scale in scales)

    def _in_units(self, prior: Prior, column: int, data: Moments | None, rows: Rows) -> Prior:
        """Fix the unit and resolution of a horseshoe; return other priors unchanged."""
        if not isinstance(prior, Horseshoe):
            return prior
        if prior.unit is None:
            prior = replace(prior, unit=float(self._data_scales(_expect(data), rows)[column]) / 2.5)
        if prior.resolution is None:
            error = np.sqrt(self.pseudo_variance(_expect(data)) / _expect(data).weight)
            prior = replace(prior, resolution=0.1 * float(error))
        return prior

    def _intercept_prior(
        self, prior: Prior | None, data: Moments | None, rows: Rows | None = None
    ) -> tuple[Prior | None, tuple[float, ...]]:
        """Return the intercept's prior and the point in x where it holds: x = 0, unless default."""
        if not self.intercept:
            if prior is not None:
                raise SettingError("there is a prior of the intercept, but the model has none.")
            return None, ()
        if prior is not None:
            return prior, ()
        if self.intercept_scale is not None:
            return Normal(0.0, float(self.intercept_scale)), ()
        assert rows is not None, "a default prior is for rows"
        entering = self._enters("", rows)
        centre = np.where(entering, _expect(data).x_mean[: len(entering)], 0.0)
        return self.intercept_prior(_expect(data)), tuple(float(c) for c in centre)

    def _data_scales(self, data: Moments, rows: Rows) -> np.ndarray:
        """2.5 units of the predictor per unit of column j: its sd, or two levels' difference.

        The unit is that of the outcome, and 1 for the logarithm or logit of another parameter.
        """
        scales = self._scales_in(self.outcome_unit(data), data)
        if not self.modelled:
            return scales
        first = np.ones(len(scales), bool)
        entering = self._enters("", rows)
        first[: len(entering)] = entering
        return np.where(first, scales, self._scales_in(1.0, data))

    def _scales_in(self, unit: float, data: Moments) -> np.ndarray:
        """2.5 of these units per unit of each column.

        A constant column is an intercept times a constant, and its scale is the intercept's divided
        by that constant; a column of zeros has no unit, and counts as having sd 1.
        """
        height = np.abs(data.x_mean)
        constant = np.where(
            height > 0,
            self.intercept_prior(data).sd / np.where(height > 0, height, 1.0),
            2.5 * unit,
        )
        varies = data.x_sd > 0
        return np.where(varies, 2.5 * unit / np.where(varies, data.x_unit, 1.0), constant)

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

    def extra_scale(self, name: str) -> float | None:
        """Prior standard deviation of an extra parameter about 0; None for the default prior."""
        return None

    def extra_prior(self, name: str, data: Moments) -> Normal:
        """Return the default prior of an extra parameter on its coordinate: wide, about 0."""
        return Normal(0.0, coordinate_of(name)[0].sd)

    def extra_start(self, name: str, prior: Prior) -> float:
        """Return where the search for the mode starts: at 0, or with a unit where its prior is."""
        if not self.extras_have_unit:
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


def _expect(data: Moments | None) -> Moments:
    assert data is not None, "moments are computed wherever a scale is left to the data"
    return data
