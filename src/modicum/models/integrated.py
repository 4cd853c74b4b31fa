"""Multilevel models in which group effects are integrated out.

The log-likelihood of a group is

    l_j(theta) = log integral prod_{i in j} f(y_i, x_i'beta + z_i'T v) N(v; 0, I) dv

by Gauss-Hermite quadrature: at nodes v_jk = centre_j + spread_j xi_k the weights are
log w_jk = log w_k + log|spread_j| + xi_k'xi_k/2 - v_jk'v_jk/2, and

    l_j(theta) = log sum_k exp(log w_jk + sum_{i in j} f(y_i, x_i'beta + z_i'T v_jk)).

Nodes follow the integrand. Its mode is found once per group, at the anchor; there the group's
log-likelihood is expanded to a quadratic in its effects u = T v, b_j'u - u'Lambda_j u/2, so that

    K_j = I + T'Lambda_j T,   centre_j = K_j^-1 T'(b_j - C_j (beta - beta*)),   spread_j = K_j^-1/2

at any other parameters, with C_j = sum_i w_i z_i x_i' and w_i = -f'' of a row at the anchor. Fixed
nodes would do if the posterior were narrow compared with a group's integrand. With few large groups
it is not: an intercept known to tau / sqrt(groups) moves every group's effect by that much, while
the effect itself is known to 1 / sqrt(rows in the group).

The units of such a model, which are subsampled, are the groups (`rows.grouped_rows`). A batch
without `group_centre` is evaluated with nodes found at the current parameters, and held fixed under
differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Annotated, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import Positive, Rule, check_settings
from modicum.arrays import HALF_LOG_2PI, as_either, expansion, is_numpy, log_sum_exp, namespace
from modicum.errors import DataError, SettingError, is_whole
from modicum.models.constraints import covariance_factor
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import BaseModel, Batch, EffectScale, Labels, Params, unflattened
from modicum.models.priors.distributions import LKJ, HalfNormal, Prior, is_positive
from modicum.models.priors.resolved import INTEGRATED, ModelPriors, PooledPrior, without_own
from modicum.models.terms import (
    INTERCEPT,
    GroupTerm,
    check_slopes,
    slope_places,
)
from modicum.rows import Rows
from modicum.rows.grouped_rows import GroupedRows, GroupIndex, NodePlaces, as_groups
from modicum.runtime import Array

FEWEST_NODES = 5  # with fewer, derivatives at fixed nodes differ from those of the integral
MOST_NODES = 99
NODE_COUNT = Rule(
    f"a whole number from {FEWEST_NODES} to {MOST_NODES}",
    lambda v: is_whole(v) and FEWEST_NODES <= v <= MOST_NODES,
)
BLOCK = 4096  # rows evaluated together at all nodes, which about fit in a core's cache
GROUP_FIELDS = {*GroupedRows.RESERVED[:-1], "probability"}  # fields of groups, not of rows


class FlatGroups(NamedTuple):
    """Rows of several groups one after the other, and sums over each group."""

    rows: Batch  # fields of the rows, (rows, ...)
    group: jax.Array  # group of each row; padding has a number beyond the last
    groups: int

    @classmethod
    def of(cls, batch: Batch) -> FlatGroups:
        """Convert a flat batch as `GroupedRows` makes them."""
        rows = {k: jnp.asarray(v) for k, v in batch.items() if k not in GROUP_FIELDS}
        return cls(rows, jnp.asarray(batch["group_of_row"]), len(batch["group_rows"]))

    @property
    def present(self) -> jax.Array:
        """True for rows, False for padding."""
        return self.group < self.groups

    def sum(self, values: jax.Array) -> jax.Array:
        """Sum over the rows of each group, (groups, ...)."""
        return jax.ops.segment_sum(values, self.group, self.groups, indices_are_sorted=True)

    def spread(self, values: jax.Array) -> jax.Array:
        """Return for each row the value of its group."""
        return values[jnp.minimum(self.group, self.groups - 1)]

    def in_blocks(self) -> Iterator[tuple[slice, FlatGroups]]:
        """Yield all groups at once."""
        yield slice(None), self


class NumPyGroups(NamedTuple):
    """`FlatGroups` for NumPy, without padding.

    Arrays have the rows along their fastest axis, which makes NumPy's inner loops long.
    """

    rows: Batch
    group: np.ndarray  # group of each row
    start: np.ndarray  # first row of each group

    @classmethod
    def of(cls, batch: Batch) -> NumPyGroups:
        """Convert a flat batch as `GroupedRows` makes them."""
        size = np.asarray(batch["group_rows"])
        size = size[size > 0]
        count = int(size.sum())
        rows = {k: np.asarray(v)[:count] for k, v in batch.items() if k not in GROUP_FIELDS}
        return cls(rows, np.repeat(np.arange(len(size)), size), np.cumsum(size) - size)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.start)

    @property
    def present(self) -> jax.Array:
        """True for every row: nothing is padding."""
        return as_either(np.ones(len(self.group), bool))

    def sum(self, values: jax.Array) -> jax.Array:
        """Sum over the rows of each group, (groups, ...)."""
        return as_either(np.add.reduceat(np.asarray(values), self.start, axis=0))

    def spread(self, values: jax.Array) -> jax.Array:
        """Return for each row the value of its group."""
        return as_either(np.take(np.asarray(values).T, self.group, axis=-1).T)

    def in_blocks(self) -> Iterator[tuple[slice, NumPyGroups]]:
        """Yield a few groups at a time, with their slice of all groups."""
        ends = np.r_[self.start[1:], len(self.group)]
        first = 0
        while first < len(ends):
            begin = self.start[first]
            stop = max(first + 1, int(np.searchsorted(ends, begin + BLOCK, side="right")))
            own = slice(begin, ends[stop - 1])  # the rows of these groups
            rows = {name: values[own] for name, values in self.rows.items()}
            groups = slice(first, stop)
            yield groups, NumPyGroups(rows, self.group[own] - first, self.start[groups] - begin)
            first = stop


class PaddedGroup(NamedTuple):
    """`FlatGroups` for a single group, whose rows beyond the first `size` are padding."""

    rows: Batch
    size: jax.Array
    groups: int = 1

    @property
    def present(self) -> jax.Array:
        """True for rows, False for padding."""
        return jnp.arange(len(next(iter(self.rows.values())))) < self.size

    def sum(self, values: jax.Array) -> jax.Array:
        """Sum over all rows but padding, (1, ...)."""
        present = self.present.reshape(-1, *[1] * (values.ndim - 1))
        return jnp.sum(jnp.where(present, values, 0.0), axis=0, keepdims=True)

    def spread(self, values: jax.Array) -> jax.Array:
        """Return the group's value for each row."""
        count = len(next(iter(self.rows.values())))
        return jnp.broadcast_to(values[0], (count, *values.shape[1:]))


Groups: TypeAlias = FlatGroups | NumPyGroups | PaddedGroup


def groups_of(batch: Batch, t: Array) -> FlatGroups | NumPyGroups:
    """Return the groups of a flat batch, to be evaluated with the library of the point `t`."""
    return NumPyGroups.of(batch) if is_numpy(t) else FlatGroups.of(batch)


NODES = {1: 9, 2: 7, 3: 5}  # nodes per effect, by the number of effects
NEWTON_STEPS = 10  # most Newton steps to the centre of a group's integrand
SETTLED = 1e-5  # longest last step of a converged group; the remaining error is its square
LONGEST_STEP = 2.0  # longest Newton step, in prior standard deviations of an effect


class Nodes(NamedTuple):
    """Quadrature nodes of some groups."""

    v: jax.Array  # (groups, nodes, effects)
    log_weight: jax.Array  # (groups, nodes)


class Integrands(NamedTuple):
    """Log-likelihoods of some groups in their effects, as quadratics about their modes."""

    pull: jax.Array  # b, (groups, effects)
    information: jax.Array  # Lambda, (groups, effects, effects)
    weighted: jax.Array  # w_i z_i, (rows, effects): decrease of the pull per unit of predictor


def inverse(S: jax.Array) -> jax.Array:
    """Inverses of positive definite matrices (..., r, r) for r up to 3."""
    xp, size = namespace(S), S.shape[-1]
    if size == 1:
        return 1 / S
    if size == 2:
        a, b, c = S[..., 0, 0], S[..., 0, 1], S[..., 1, 1]
        inverse: jax.Array = xp.stack([xp.stack([c, -b], -1), xp.stack([-b, a], -1)], -2)
        return inverse / (a * c - b**2)[..., None, None]
    rows = [S[..., k, :] for k in range(3)]
    cofactors: jax.Array = xp.stack(
        [xp.cross(rows[(k + 1) % 3], rows[(k + 2) % 3]) for k in range(3)], -1
    )
    return cofactors / xp.sum(rows[0] * cofactors[..., 0], axis=-1)[..., None, None]


def lower_factor(S: jax.Array) -> jax.Array:
    """Cholesky factors of positive definite matrices (..., r, r), from their lower triangles."""
    xp, size = namespace(S), S.shape[-1]
    zero = xp.zeros(S.shape[:-2])
    L: list[list[jax.Array]] = []
    for i in range(size):
        row: list[jax.Array] = []
        for j in range(i + 1):
            entry = S[..., i, j]
            for k in range(j):
                entry = entry - row[k] * (L[j] if j < i else row)[k]
            row.append(xp.sqrt(entry) if i == j else entry / L[j][j])
        L.append(row)
    padded = [xp.stack([*row, *[zero] * (size - len(row))], -1) for row in L]
    return xp.stack(padded, -2)


def entries_of(factor: jax.Array, correlated: bool) -> jax.Array:
    """Return the free entries of S = T T': the lower triangle, or the diagonal."""
    S = factor @ factor.T
    size = len(S)
    return jnp.stack([S[i, j] for i in range(size) for j in range(i + 1) if correlated or i == j])


@dataclass(frozen=True)
class IntegratedEffects(BaseModel):
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
        Prior of the effects' standard deviations, or the scale of a half-normal one: for all, or
        one per effect (the intercept's first). None: 2.5 in the outcome's unit over that of the
        column.
    concentration
        Concentration of the LKJ prior of the effects' correlations; 1 is uniform, the default 2.
    nodes
        Quadrature nodes per effect; None: 9, 7 or 5 for one, two or three effects.
    columns, sds, nodes_at
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
    group_sd: float | Prior | tuple[float | Prior | None, ...] | None = None
    concentration: Positive = LKJ().eta
    nodes: Annotated[
        Annotated[int, NODE_COUNT] | None,
        "where integrals need more, keep the effects as explicit parameters (groups=)",
    ] = None
    columns: tuple[int, ...] | None = None
    sds: tuple[Prior, ...] | None = None
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
        given = np.atleast_1d(np.asarray(self.group_sd, object))
        sds = [HalfNormal(float(sd)) if is_positive(sd) else sd for sd in given]
        allowed = [sd is None or getattr(sd, "support", "") == "positive" for sd in sds]
        if len(sds) not in (1, self.effects) or not all(allowed):
            raise SettingError(
                "group_sd must be a positive number, or one per effect, or such priors."
            )
        object.__setattr__(self, "group_sd", tuple(sds * (self.effects // len(sds))))
        check_settings(self)

    # Units --------------------------------------------------------------------------------

    @property
    def group_terms(self) -> tuple[GroupTerm, ...]:  # type: ignore[override]
        """The integrated term, and the explicit ones of the family: the order of the draws."""
        return (self.term, *self.family.group_terms)

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
        self.family.require_repeats(self.group, len(groups), rows)
        check_slopes(self.term, rows, groups.index.values)
        return groups

    # Priors and names -----------------------------------------------------------------------

    @property
    def term(self) -> GroupTerm:
        """The effects as a group term, which names them in draws: "group", "group:column"."""
        effects = (*([INTERCEPT] if self.intercept else []), *self.slopes)
        return GroupTerm(self.group, effects, self.correlated)

    @property
    def given_sds(self) -> tuple[Prior | None, ...]:
        """The prior of each standard deviation; None for the default."""
        return self.group_sd  # type: ignore[return-value]  # `__post_init__` made it so

    @cached_property
    def whole(self) -> LinearPredictorModel:
        """The family with the prior of the integrated effects, of which it says all but values."""
        if self.sds is None or self.family.resolved_priors is None:
            raise SettingError(
                "the default prior of group_sd is in the units of the data, so it needs rows: "
                "use model.resolved(rows), or give group_sd."
            )
        own = PooledPrior(self.term, 0, self.sds, LKJ(self.concentration))
        priors = replace(self.family.resolved_priors, integrated=own)
        return replace(self.family, resolved_priors=priors)

    @property
    def resolved_priors(self) -> ModelPriors | None:  # type: ignore[override]
        """The priors of the family, and of the effects' covariance."""
        return self.family.resolved_priors and self.whole.resolved_priors

    @property
    def splits_prior(self) -> bool:  # type: ignore[override]
        """Whether there are explicit effects, whose joint density with their sds has no mode."""
        return bool(self.family.pooled)

    def log_prior(self, theta: Params) -> jax.Array:
        """Sum the log-priors of the family and of the effects' covariance."""
        return self.whole.log_prior(theta)

    def draw_prior(
        self, shapes: Mapping[str, tuple[int, ...]], number: int, rng: np.random.Generator
    ) -> Params:
        """Draw the family's parameters, and the covariance of the effects."""
        return self.whole.draw_prior(shapes, number, rng)

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Describe the family's priors, and those of the effects' covariance."""
        return self.whole.describe_priors(rows)

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name the family's parameters, group_sd and group_cor."""
        return self.whole.report(theta)

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Undo `report`."""
        return self.whole.restore(named)

    def labels(self, rows: Rows) -> Labels:
        """Label coefficients by columns of x, and sds and correlations by effects."""
        return self.whole.labels(rows)

    def flat_names(self, rows: Rows | None = None) -> tuple[str, ...]:
        """Name the entries of the flat vector, where a reported name may be in two places."""
        assert rows is not None
        labels = {name: iter(own) for name, (own,) in self.labels(rows).items()}
        names = []
        for entry in self.whole.reported():
            leaf, where = entry.parts[0]
            count = where.stop - where.start if isinstance(where, slice) else 0
            own = [f"{entry.name}[{next(labels[entry.name])}]" for _ in range(count)]
            names.append((leaf, own or [leaf]))
        return tuple(name for _, own in sorted(names, key=lambda pair: pair[0]) for name in own)

    def start(self, rows: Rows) -> Params:
        """Start where the family does, with small standard deviations and no correlation."""
        family = self.whole
        assert family.resolved_priors is not None
        if family.resolved_priors.shrunk and not family.pooled:
            raise SettingError(
                "a horseshoe prior cannot be combined with effects that are integrated out; make "
                "the effects explicit (groups=), or give the coefficients another prior."
            )
        if family.constrained:
            raise SettingError(
                "coefficients within bounds, or monotonic ones, cannot be combined with effects "
                "that are integrated out; make the effects explicit (groups=)."
            )
        return family.start(rows.members)

    def resolved(self, rows: Rows) -> IntegratedEffects:
        """Return the model with all priors fixed, and the positions of the varying columns."""
        if self.sds is not None:
            return self
        members = rows.members
        family = self.family.resolved(members)
        columns = tuple(slope_places(self.term, members))
        sds = family.sd_priors(self.term, members, self.given_sds)
        return replace(self, family=family, columns=columns, sds=sds)

    @property
    def needs_moments(self) -> bool:
        """Whether a prior is in the units of the data."""
        return self.sds is None and (not all(self.given_sds) or self.family.needs_moments)

    def without_priors(self) -> IntegratedEffects:
        """Return the likelihood alone."""
        return replace(
            self,
            family=self.family.without_priors(),
            group="",
            slopes=tuple(f"slope{j}" for j in range(len(self.slopes))),
            group_sd=None,
            concentration=1.0,
            sds=None,
            nodes_at=None,
        )

    # Rows and predictions -------------------------------------------------------------------

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
        return self.whole.effect_factors(theta)

    def decide(self, expected: np.ndarray) -> np.ndarray | None:
        """Return the class that the family predicts."""
        return self.family.decide(expected)

    # Shapes -------------------------------------------------------------------------------

    @property
    def effects(self) -> int:
        """Number of effects per group, r."""
        return len(self.slopes) + self.intercept

    def factor(self, theta: Params) -> jax.Array:
        """T, lower triangular: effects are T v with v ~ N(0, I)."""
        names = INTEGRATED[: 1 + self.term.has_correlations]
        xp = namespace(theta[names[0]])
        hyper = xp.concatenate([xp.asarray(theta[name]) for name in names])
        return covariance_factor(hyper, self.effects)

    @property
    def per_effect(self) -> int:
        """Quadrature nodes per effect."""
        return self.nodes or NODES[self.effects]

    @cached_property
    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes xi (nodes, effects) and log-weights of the product rule for N(0, I)."""
        xi, w = np.polynomial.hermite_e.hermegauss(self.per_effect)
        log_w = np.log(w) - HALF_LOG_2PI
        points = np.array(list(product(xi, repeat=self.effects)))
        return points, np.array([sum(part) for part in product(log_w, repeat=self.effects)])

    # Rows ---------------------------------------------------------------------------------

    def effect_columns(self, rows: Batch) -> jax.Array:
        """z of each row, (rows, effects): one for the intercept, then the columns that vary."""
        xp = namespace(rows["y"])
        columns = [xp.ones(len(rows["y"]), np.float64)] if self.intercept else []
        columns += [xp.asarray(rows["x"])[:, j].astype(np.float64) for j in self.columns or ()]
        return xp.stack(columns).T

    def linear(self, theta: Params, rows: Batch) -> jax.Array:
        """Predictor of each row without the effects of its group, in float64."""
        if not (is_numpy(theta["beta"]) and is_numpy(rows["y"])):
            return self.family.linear(theta, rows).astype(jnp.float64)
        eta = self.family.matrix(rows) @ as_either(theta["beta"])
        eta = eta + theta.get("intercept", 0.0) + rows.get("offset", 0.0)
        return eta.astype(np.float64)

    def along_effects(self, rows: Batch, effects: jax.Array) -> jax.Array:
        """z_i'u of each row, given the effects (rows, ..., effects) of its group, (rows, ...)."""
        z = self.effect_columns(rows)
        axes = (slice(None), *[None] * (effects.ndim - 2))
        return sum(
            (z[:, a][axes] * effects[..., a] for a in range(1, self.effects)),
            z[:, 0][axes] * effects[..., 0],
        )

    def row_values(self, eta: jax.Array, extras: Sequence[jax.Array], rows: Batch) -> jax.Array:
        """f of each row (and node: trailing axes of eta), times its frequency weight."""
        if self.family.in_eta_alone:
            return self.row_derivatives(eta, extras, rows)[0]
        axes = (slice(None), *[None] * (eta.ndim - 1))
        y = self.family.outcome(rows).astype(jnp.float64)[axes]
        shared = [jnp.broadcast_to(value, eta.shape) for value in extras]
        outcome_shape = "()" if len(self.family.row_fields) == 1 else "(s)"
        density: Callable[..., jax.Array] = jnp.vectorize(
            self.family.row_density, signature=f"(q),{outcome_shape}->()"
        )
        f = density(jnp.stack([eta, *shared], axis=-1), y)
        return f * jnp.asarray(rows["row_weight"])[axes] if "row_weight" in rows else f

    def row_derivatives(
        self, eta: jax.Array, extras: Sequence[jax.Array], rows: Batch
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """f of each row, f' and f'' in its predictor, with axes as in `row_values`."""
        if not self.family.in_eta_alone:
            ones = jnp.ones_like(eta)

            def with_slope(eta: jax.Array) -> tuple[jax.Array, jax.Array]:
                return jax.jvp(lambda e: self.row_values(e, extras, rows), (eta,), (ones,))

            (f, f1), (_, f2) = jax.jvp(with_slope, (eta,), (ones,))
            return f, f1, f2
        axes = (slice(None), *[None] * (eta.ndim - 1))
        f, f1, f2, *_ = self.family.derivatives(
            eta, self.family.outcome(rows).astype(np.float64)[axes]
        )
        if "row_weight" not in rows:
            return f, f1, f2
        weight = namespace(eta).asarray(rows["row_weight"])[axes]
        return weight * f, weight * f1, weight * f2

    def bends(
        self, eta: jax.Array, extras: Sequence[jax.Array], rows: Batch
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """f of each row, its gradient and its Hessian in the predictor and the extras."""
        if self.family.in_eta_alone:
            f, f1, f2 = self.row_derivatives(eta, extras, rows)
            return f, f1[:, None], f2[:, None, None]
        outcomes = {k: rows[k] for k in (*self.family.row_fields, "row_weight") if k in rows}
        w = jnp.stack([eta, *[jnp.broadcast_to(x, eta.shape) for x in extras]], axis=-1)

        def of(w: jax.Array, row: Batch) -> jax.Array:
            batch = jax.tree.map(lambda field: field[None], row)
            return self.row_values(w[:1], list(w[1:]), batch)[0]

        return jax.vmap(expansion(of))(w, outcomes)

    def extras_of(self, theta: Params) -> tuple[jax.Array, ...]:
        """Return the family's extra parameters."""
        return tuple(jnp.asarray(theta[name]) for name in self.family.extras)

    # Groups -------------------------------------------------------------------------------

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """l_j of each group of the batch; rows without a group are each a new group."""
        if "group_of_row" not in batch:
            count = len(batch["y"])
            own = {"group_of_row": jnp.arange(count), "group_rows": jnp.ones(count, jnp.int32)}
            batch = dict(batch) | own
        flat = FlatGroups.of(batch)
        return self.group_likelihoods(theta, flat, NodePlaces.in_batch(batch))

    def group_likelihoods(
        self, theta: Params, flat: Groups, node_places: NodePlaces | None
    ) -> jax.Array:
        """l_j of each group, log sum_k exp(log w_jk + sum_i f(y_i, x_i'beta + z_i'T v_jk)).

        The nodes follow from `node_places` at an anchor, or else are found at theta.
        """
        nodes = self.nodes_of(theta, flat, node_places)
        effects = flat.spread(nodes.v @ self.factor(theta).T)
        eta = self.linear(theta, flat.rows)[:, None] + self.along_effects(flat.rows, effects)
        f = self.row_values(eta, self.extras_of(theta), flat.rows)
        return log_sum_exp(nodes.log_weight + flat.sum(f))

    def nodes_of(self, theta: Params, flat: Groups, node_places: NodePlaces | None) -> Nodes:
        """Return the nodes of each group at theta.

        `node_places` at the anchor move with theta; without them, nodes are found at theta, and
        are fixed under differentiation.
        """
        if node_places is None:
            theta = theta if is_numpy(theta["beta"]) else jax.lax.stop_gradient(theta)
            near = self.integrands(theta, self.places(theta, flat), flat)
            return self.nodes_near(near, self.factor(theta), 0.0)
        anchor = unflattened(without_own(theta), as_either(node_places.point))
        near = self.integrands(anchor, as_either(node_places.centre), flat)
        e = self.linear(theta, flat.rows) - self.linear(anchor, flat.rows)
        return self.nodes_near(near, self.factor(theta), self.shift(near, e, flat))

    def shift(self, near: Integrands, e: jax.Array, flat: Groups) -> jax.Array:
        """C_j (beta - beta*): decrease of the groups' pull when predictors increase by e."""
        return flat.sum(e[:, None] * near.weighted)

    def nodes_near(self, near: Integrands, T: jax.Array, shift: jax.Array | float) -> Nodes:
        """Return nodes for effects T v, where the groups' pull has decreased by `shift`.

        Their weights include the ratio of the prior to the Gaussian of the rule.
        """
        centre, spread = self.widths(near, T, shift)
        xp, (xi, log_w) = namespace(centre), self.rule
        v = centre[:, None, :] + xp.einsum("jab,kb->jka", spread, xi)
        log_det = xp.sum(xp.log(xp.diagonal(spread, axis1=1, axis2=2)), axis=1)
        outside = 0.5 * (np.sum(xi**2, axis=1) - xp.sum(v**2, axis=2))
        return Nodes(v, log_w + log_det[:, None] + outside)

    def widths(
        self, near: Integrands, T: jax.Array, shift: jax.Array | float
    ) -> tuple[jax.Array, jax.Array]:
        """Return the centre in v of each integrand's Gaussian, and a factor of its covariance."""
        xp = namespace(near.pull)
        covariance = inverse(T.T @ near.information @ T + np.eye(self.effects))
        centre = xp.einsum("jab,jb->ja", covariance, (near.pull - shift) @ T)
        return centre, lower_factor(covariance)

    def integrands(self, theta: Params, centre: jax.Array, flat: Groups) -> Integrands:
        """Expand the groups' log-likelihoods to quadratics in their effects, about v = centre."""
        z, T = self.effect_columns(flat.rows), self.factor(theta)
        xp = namespace(z)
        u = xp.asarray(centre, np.float64) @ T.T
        eta = self.linear(theta, flat.rows)
        eta = eta + self.along_effects(flat.rows, flat.spread(u))
        _, f1, f2 = self.row_derivatives(eta, self.extras_of(theta), flat.rows)
        weighted = xp.maximum(-f2, 0.0)[:, None] * z
        information = flat.sum(weighted[:, :, None] * z[:, None, :])
        pull = flat.sum(f1[:, None] * z) + xp.einsum("jab,jb->ja", information, u)
        return Integrands(pull, information, xp.where(flat.present[:, None], weighted, 0.0))

    def places(self, theta: Params, flat: Groups) -> jax.Array:
        """Find the mode in v of each group's integrand, (groups, effects).

        It is rounded to float32, in which it is stored with the groups: passes that find it and
        chains that read it then evaluate the same function.
        """
        z = self.effect_columns(flat.rows) @ self.factor(theta)  # multiplies v
        eta, extras, xp = self.linear(theta, flat.rows), self.extras_of(theta), namespace(z)

        def step(state: tuple[int, jax.Array, float]) -> tuple[int, jax.Array, float]:
            number, v, _ = state
            at = eta + xp.sum(z * flat.spread(v), axis=1)
            _, f1, f2 = self.row_derivatives(at, extras, flat.rows)
            w = xp.maximum(-f2, 0.0)
            gradient = flat.sum(f1[:, None] * z) - v
            precision = flat.sum(w[:, None, None] * z[:, :, None] * z[:, None, :])
            covariance = inverse(precision + np.eye(self.effects))
            move = xp.einsum("jab,jb->ja", covariance, gradient)
            length = xp.sqrt(xp.sum(move**2, axis=1, keepdims=True))
            v = v + move * xp.minimum(1.0, LONGEST_STEP / xp.maximum(length, 1e-300))
            return number + 1, v, xp.max(length)

        def moves(state: tuple[int, jax.Array, float]) -> bool:
            number, _, longest = state
            return (number < NEWTON_STEPS) & (longest > SETTLED)

        state = (0, xp.zeros((flat.groups, self.effects)), np.inf)
        if xp is np:
            while moves(state):
                state = step(state)
        else:
            state = jax.lax.while_loop(moves, step, state)
        return state[1].astype(np.float32).astype(np.float64)
