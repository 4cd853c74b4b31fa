"""Multilevel models in which group effects are integrated out.

The units of such a model are the groups (`modicum.rows.grouped_rows`), each with one log-likelihood
(`integrals`). This module has the model's settings, its priors and its parameter names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import Positive, Rule, check_settings
from modicum.errors import DataError, SettingError, is_whole
from modicum.models.integrals import GroupIntegrals
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import Batch, EffectScale, Labels, Params
from modicum.models.outcome_checks import binary_fault
from modicum.models.priors.distributions import LKJ, HalfNormal, is_positive
from modicum.models.priors.exact import log_hyper_density
from modicum.models.priors.resolved import OWN, ModelPriors, PooledPrior
from modicum.models.terms import (
    INTERCEPT,
    GroupTerm,
    constant_slope,
    slope_columns,
)
from modicum.rows import Rows
from modicum.rows.grouped_rows import GroupedRows, GroupIndex, as_groups
from modicum.runtime import Array

FEWEST_NODES = 5  # with fewer, derivatives at fixed nodes differ from those of the integral
MOST_NODES = 99
NODES = Rule(
    f"a whole number from {FEWEST_NODES} to {MOST_NODES}",
    lambda v: is_whole(v) and FEWEST_NODES <= v <= MOST_NODES,
)
PER_COMMON = 8  # a group's sd starts at its prior scale divided by this


@dataclass(frozen=True)
class IntegratedEffects(GroupIntegrals):
    """A family whose linear predictor varies by group, with the groups' effects integrated out.

    Parameters
    ----------
    family
        The distribution of a row given its predictor, such as `mo.models.Logistic()`. Effects of
        the family's own `groups` stay explicit parameters.
    group
        The field of the rows that says which group a row is in.
    slopes
        Columns of x whose coefficient varies by group, besides the intercept.
    intercept
        Whether the intercept varies by group.
    correlated
        Whether the effects of a group may be correlated.
    group_sd
        Scale of the half-normal prior of the effects' standard deviations: one number, or one per
        effect (the intercept's first). None: 2.5 in the outcome's unit over that of the column.
    concentration
        Concentration of the LKJ prior of the effects' correlations; 1 is uniform, the default 2.
    nodes
        Quadrature nodes per effect; None: 9, 7 or 5 for one, two or three effects.
    columns, scales, nodes_at
        Set by `resolved` and during a run, not by users.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> model = mo.models.IntegratedEffects(mo.models.Logistic(), "clinic")
    >>> rows = mo.Rows(x=np.eye(4), y=[0, 1, 1, 0], clinic=[0, 0, 1, 1])
    >>> len(model.units(rows))
    2
    """

    family: LinearPredictorModel
    group: str
    slopes: tuple[str, ...] = ()
    intercept: bool = True
    correlated: bool = True
    group_sd: float | tuple[float, ...] | None = None
    concentration: Positive = LKJ().eta
    nodes: Annotated[
        Annotated[int, NODES] | None,
        "where integrals need more, keep the effects as explicit parameters (groups=)",
    ] = None
    columns: tuple[int, ...] | None = None
    scales: tuple[float, ...] | None = None
    # Not compared: compiled functions do not read it, and runs share them.
    nodes_at: tuple[float, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.family, LinearPredictorModel) or self.family.predictor_per_class:
            kind = self.family if isinstance(self.family, type) else type(self.family)
            raise SettingError(
                "groups can be integrated out of families with one linear predictor, such as "
                f"mo.models.Logistic(), not {'a class' if kind is self.family else kind.__name__}."
            )
        if not isinstance(self.group, str):
            raise SettingError(f"group must be the name of a field of the rows, not {self.group!r}")
        slopes = (self.slopes,) if isinstance(self.slopes, str) else self.slopes
        if not isinstance(slopes, Sequence) or not all(isinstance(name, str) for name in slopes):
            raise SettingError(
                f"slopes must be names of columns of x, such as ('dose',), not {self.slopes!r}."
            )
        object.__setattr__(self, "slopes", tuple(slopes))
        if not 1 <= self.effects <= 3:
            raise SettingError(
                f"one to three effects per group can be integrated out, not {self.effects}; keep "
                "them as explicit parameters (groups=), or let fewer columns vary by group."
            )
        if self.group_sd is not None:
            scales = np.atleast_1d(np.asarray(self.group_sd, object))
            if scales.shape not in ((1,), (self.effects,)) or not all(map(is_positive, scales)):
                raise SettingError("group_sd must be a positive number, or one per effect.")
            wide = tuple(float(s) for s in np.broadcast_to(scales, self.effects))
            object.__setattr__(self, "group_sd", wide)
        check_settings(self)

    # Units --------------------------------------------------------------------------------

    @property
    def group_terms(self) -> tuple[GroupTerm, ...]:  # type: ignore[override]
        """The integrated term, and the explicit ones of the family: the order of the draws."""
        return (self.term, *self.family.group_terms)

    @property
    def lkj_priors(self) -> tuple[tuple[int, float], ...]:  # type: ignore[override]
        """That of the integrated effects, and those of the family's explicit ones."""
        own = ((self.effects, self.concentration),) if self.covariance.pairs else ()
        return (*own, *self.family.lkj_priors)

    @property
    def integrated_group(self) -> str:  # type: ignore[override]
        """The group."""
        return self.group

    @property
    def row_model(self) -> LinearPredictorModel:
        """The family."""
        return self.family

    def units(self, rows: Rows) -> GroupedRows:
        """Return the rows as groups; refuse groups whose effects cannot be estimated."""
        if rows.grouped:
            return as_groups(rows)
        if rows.coding is not None and any(
            term.field == self.group and term.scale is None for term in rows.coding.terms
        ):
            raise DataError(
                f"the levels of '{self.group}' are columns of the rows, so they cannot also be "
                f"groups; give them as numbers, mo.Rows(x=..., y=..., {self.group}=numbers), or "
                "use mo.fit with a group term."
            )
        groups = GroupedRows(rows, GroupIndex.of(rows, self.group))
        if len(groups) < 2:
            raise DataError(
                f"all rows have the same '{self.group}', so how groups differ cannot be estimated; "
                "leave the group out."
            )
        alone = len(groups) >= rows.observations
        if alone and self.family.extras:
            raise DataError(
                f"every row has its own '{self.group}', so the groups' effects cannot be told from "
                "the noise of a row; leave the group out."
            )
        if alone and self.family.outcome_fault is binary_fault:
            raise DataError(
                f"every row has its own '{self.group}', and a single outcome of 0 or 1 says "
                "nothing about its group's effect; leave the group out."
            )
        for name in self.slopes:
            column = _column_of_x(rows, name)
            if self.intercept and not _varies_within(groups, column):
                raise DataError(constant_slope(name, self.group))
        return groups

    # Priors -------------------------------------------------------------------------------

    def log_prior(self, theta: Params) -> jax.Array:
        """Sum the log-priors of the family and of the effects' covariance."""
        return self.family.log_prior(theta) + self.log_own_prior(theta)

    def log_own_prior(self, theta: Params) -> jax.Array:
        """Log-prior of the covariance of the integrated effects."""
        prior = self.own_prior
        return log_hyper_density(prior.scales, np.asarray(prior.eta), self.covariance.hyper(theta))

    @property
    def own_prior(self) -> PooledPrior:
        """The prior of the integrated effects, which are no parameters."""
        if self.scales is None:
            raise SettingError(
                "the default prior of group_sd is in the units of the data, so it needs rows: "
                "use model.resolved(rows), or give group_sd."
            )
        return PooledPrior(
            self.term, 0, tuple(map(HalfNormal, self.scales)), LKJ(self.concentration)
        )

    @property
    def resolved_priors(self) -> ModelPriors | None:  # type: ignore[override]
        """The family's priors."""
        return self.family.resolved_priors

    @property
    def splits_prior(self) -> bool:  # type: ignore[override]
        """Whether there are explicit effects, whose joint density with their sds has no mode."""
        return bool(self.family.pooled)

    def draw_prior(
        self, shapes: Mapping[str, tuple[int, ...]], number: int, rng: np.random.Generator
    ) -> Params:
        """Draw the family's parameters, and the covariance of the effects."""
        theta = self.family.draw_prior(shapes, number, rng)
        log_sd, partials, _ = self.own_prior.draw(number, rng)
        own = {"group_log_sd": log_sd, "group_partial": partials}
        return theta | {name: drawn for name, drawn in own.items() if drawn.size}

    def resolved(self, rows: Rows) -> IntegratedEffects:
        """Return the model with all priors fixed, and the positions of the varying columns."""
        if self.scales is not None:
            return self
        members = rows.members
        family = self.family.resolved(members)
        columns = tuple(_column_of_x(members, name) for name in self.slopes)
        if isinstance(self.group_sd, tuple):
            return replace(self, family=family, columns=columns, scales=self.group_sd)
        scales = tuple(prior.numbers[0] for prior in family.default_sds(self.term, members))
        return replace(self, family=family, columns=columns, scales=scales)

    @property
    def needs_moments(self) -> bool:
        """Whether a prior is in the units of the data."""
        return self.scales is None and (self.group_sd is None or self.family.needs_moments)

    def without_priors(self) -> IntegratedEffects:
        """Return the likelihood alone."""
        return replace(
            self,
            family=self.family.without_priors(),
            group="",
            slopes=("",) * len(self.slopes),
            group_sd=None,
            concentration=1.0,
            scales=None,
            nodes_at=None,
        )

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Describe the family's priors, and the half-normal and LKJ priors of the effects."""
        text = dict(self.family.describe_priors(rows))
        text |= zip(self.term.sd_keys, map(str, self.own_prior.sds), strict=True)
        if self.covariance.pairs:
            text["group_cor"] = f"LKJ({self.concentration:g})"
        return text

    # Layout, names, checks ----------------------------------------------------------------

    @property
    def term(self) -> GroupTerm:
        """The effects as a group term, which names them in draws: "group", "group:column"."""
        effects = (*([INTERCEPT] if self.intercept else []), *self.slopes)
        return GroupTerm(self.group, effects, self.correlated)

    def start(self, rows: Rows) -> Params:
        """Start where the family does, with small standard deviations and no correlation."""
        members = rows.members
        assert self.scales is not None
        theta = dict(self.family.start(members))
        if OWN in theta and not self.family.pooled:
            raise SettingError(
                "a horseshoe prior cannot be combined with effects that are integrated out; make "
                "the effects explicit (groups=), or give the coefficients another prior."
            )
        if self.family.constrained:
            raise SettingError(
                "coefficients within bounds, or monotonic ones, cannot be combined with effects "
                "that are integrated out; make the effects explicit (groups=)."
            )
        theta["group_log_sd"] = np.log(np.asarray(self.scales) / PER_COMMON)
        if self.covariance.pairs:
            theta["group_partial"] = np.zeros(self.covariance.pairs)
        return theta

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name the family's parameters, group_sd and group_cor."""
        own = {"group_log_sd", "group_partial"}
        common = {name: value for name, value in theta.items() if name not in own}
        of_family, of_groups = self.family.report(common), self.covariance.report(theta)
        for name in set(of_family) & set(of_groups):  # entries of explicit effects come last
            of_groups[name] = jnp.concatenate([of_groups[name], of_family[name]])
        return of_family | of_groups

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Undo `report`."""
        common, of_groups = dict(named), {}
        for name, count in (("group_sd", self.effects), ("group_cor", self.covariance.pairs)):
            if name in named:
                both = jnp.asarray(common.pop(name))
                of_groups[name] = both[:count]
                common |= {name: both[count:]} if both.shape[0] > count else {}
        return self.family.restore(common) | self.covariance.restore(of_groups)

    def labels(self, rows: Rows) -> Labels:
        """Label coefficients by columns of x, and sds and correlations by effects."""
        labels = dict(self.family.labels(rows))
        for name, mine in (("group_sd", self.term.sd_names), ("group_cor", self.term.cor_names)):
            theirs = labels.pop(name, ((),))[0]
            labels |= {name: ((*mine, *theirs),)} if mine or theirs else {}
        return labels

    def flat_names(self, rows: Rows | None = None) -> tuple[str, ...]:
        """Name the entries of the flat vector, which are in the order of their sorted keys."""
        assert rows is not None
        labels, terms = self.family.labels(rows), self.family.pooled
        beta = [f"beta[{column}]" for column in labels.get("beta", ((),))[0]]
        effects = [
            f"{name}[{level}]" for t in terms for name in t.names for level in labels[name][0]
        ]
        own = [f"group_cor[{name}]" for t in terms for name in t.cor_names]
        own += [key for t in terms for key in t.sd_keys]
        known = {
            "beta": [*beta, *effects],
            "group_log_sd": [f"group_sd[{name}]" for name in self.term.sd_names],
            "group_partial": [f"group_cor[{name}]" for name in self.term.cor_names],
            OWN: own,
        }
        return tuple(name for key in sorted(self.start(rows)) for name in known.get(key, [key]))

    def check_variation(self, rows: Rows) -> None:
        """Refuse rows that vary too little for the family."""
        self.family.check_variation(rows)

    def check(self, rows: Rows) -> None:
        """Refuse what the family refuses; `units` has checked the groups."""
        self.family.check(rows.members)

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Mean outcome of each row, averaged over the population of groups.

        This is the prediction for a new group. The effects of new groups add a normal variable to
        the predictor, however many they are.
        """
        predictors = self.family.predictor_vector(theta, batch)
        others = {name: values for name, values in batch.items() if name != self.group}
        sds = self.new_group_sds(theta, others)
        return self.family.mean_over(predictors, sds, self.predictors_of_groups)

    @property
    def effect_scales(self) -> tuple[EffectScale, ...]:
        """For each group term what its effects multiply."""
        own = (*([None] if self.intercept else []), *(self.columns or ()))
        return (EffectScale(self.group, own), *self.family.effect_scales)

    def effect_factors(self, theta: Params) -> Sequence[jax.Array]:
        """For each group term T: the effects of a group are T v, with v standard normal."""
        return (self.covariance.factor(theta), *self.family.effect_factors(theta))

    def decide(self, expected: np.ndarray) -> np.ndarray | None:
        """Return the class that the family predicts."""
        return self.family.decide(expected)


def _column_of_x(rows: Rows, name: str) -> int:
    """Position of a column in the field x, which excludes columns held as codes."""
    columns = slope_columns(rows)
    if name in columns:
        return columns[name]
    if name in rows.columns:
        raise SettingError(
            f"'{name}' is a level of a categorical column, but only effects of numeric columns can "
            "be integrated out; a formula of mo.fit takes the factor itself."
        )
    raise SettingError(
        f"'{name}' is to vary by group, but x has no column of that name; it has "
        f"{', '.join(columns)[:80]}."
    )


def _varies_within(groups: GroupedRows, column: int) -> bool:
    """Whether a column of x takes two values within any group."""
    for k in range(len(groups.chunk_starts) - 1):
        batch, _ = groups.chunk(k)
        which, x = batch["group_of_row"], batch["x"][:, column]
        same = which[1:] == which[:-1]
        if np.any(same & (x[1:] != x[:-1]) & (which[1:] < groups.flat_groups)):
            return True
    return False
