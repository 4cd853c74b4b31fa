"""Multilevel models in which the effects of groups are integrated out, one value per *group*.

    l_j(theta) = log integral prod_{i in j} f(y_i, x_i'beta + z_i'T v) N(v; 0, I) dv

by Gauss-Hermite quadrature: at nodes v_jk = centre_j + spread_j xi_k the weights are
log w_jk = log w_k + log|spread_j| + xi_k'xi_k/2 - v_jk'v_jk/2, and

    l_j(theta) = log sum_k exp(log w_jk + sum_{i in j} f(y_i, x_i'beta + z_i'T v_jk)).

Nodes go where the integrand is. Its mode is found once per group, at the anchor; there the group's
log-likelihood in its effects u = T v is kept as a quadratic, b_j'u - u'Lambda_j u/2, of which

    K_j = I + T'Lambda_j T,   centre_j = K_j^-1 T'(b_j - C_j (beta - beta*)),   spread_j = K_j^-1/2

at any other parameters, with C_j = sum_i w_i z_i x_i' and w_i = -f'' of a row at the anchor. Nodes
that stayed where they were would do where the posterior is narrow against the width of a group's
integrand; with few large groups it is not: an intercept known to tau / sqrt(groups) moves every
group's effect by that, and the effect is known to 1 / sqrt(rows in it).

The units of such a model are the groups (`modicum.rows.groups`): a batch without `group_centre` is
evaluated with nodes found at the parameters themselves, held fixed under differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, is_numpy, log_sum_exp, namespace
from modicum.errors import DataError, SettingError, whole_number
from modicum.models.base import BaseModel, Batch, Labels, Params
from modicum.models.covariance import Covariance
from modicum.models.families import Cloglog, Logistic, Probit, Softmax
from modicum.models.group_batches import FlatGroups, Groups
from modicum.models.groups import INTERCEPT, GroupTerm, constant_slope
from modicum.models.linear import LinearPredictorModel
from modicum.models.priors import LKJ, OWN, is_positive, moments
from modicum.models.priors.exact import ExactPrior, Numbers
from modicum.models.small_matrices import inverse, lower_factor
from modicum.rows import Rows
from modicum.rows.groups import GroupedRows, GroupIndex, NodePlaces, members_of
from modicum.runtime import Array

__all__ = ["Integrands", "IntegratedEffects", "Nodes"]

NODES = {1: 9, 2: 7, 3: 5}  # per effect, by the number of effects
FEWEST_NODES = 5  # with fewer, derivatives at fixed nodes are not those of the integral
MOST_NODES = 99
NEWTON_STEPS = 10  # to the centre of a group's integrand, at most
SETTLED = 1e-5  # the longest of the last steps: what is left then is its square
LONGEST_STEP = 2.0  # of them, in prior standard deviations of an effect
PER_COMMON = 8  # the first guess of a group's sd is its prior's scale over this


class Nodes(NamedTuple):
    """Quadrature nodes of some groups."""

    v: jax.Array  # (groups, nodes, effects)
    log_weight: jax.Array  # (groups, nodes)


class Integrands(NamedTuple):
    """Log-likelihoods of some groups in their effects, as quadratics about their modes."""

    pull: jax.Array  # b, (groups, effects)
    information: jax.Array  # Lambda, (groups, effects, effects)
    weighted: jax.Array  # w_i z_i, (rows, effects): what a larger predictor takes from the pull


@dataclass(frozen=True)
class IntegratedEffects(BaseModel):
    """A family whose linear predictor varies by group, with the groups' effects integrated out.

    Parameters
    ----------
    family
        What is believed of a row given its predictor: `mo.models.Logistic()` ... Its own `groups`
        are held explicitly, beside the one that is integrated out.
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
        effect (the intercept's first). None: 2.5 in the units of the outcome over the column's sd.
    concentration
        Of the LKJ prior of the effects' correlations; 1 is uniform, and 2 the default.
    nodes
        Quadrature nodes per effect; None: 9, 7 or 5 for one, two or three effects.
    columns, scales, nodes_at
        What `resolved` and a run find out; not for users to give.

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
    concentration: float = LKJ().eta
    nodes: int | None = None
    columns: tuple[int, ...] | None = None
    scales: tuple[float, ...] | None = None
    # Not compared: nothing that is compiled reads it, and runs share what is compiled.
    nodes_at: tuple[float, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.family, LinearPredictorModel) or isinstance(self.family, Softmax):
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
                f"a group can have one to three effects that are integrated out, not {self.effects}"
                "; hold them explicitly, or let fewer columns vary by group."
            )
        if self.group_sd is not None:
            scales = np.atleast_1d(np.asarray(self.group_sd, object))
            if scales.shape not in ((1,), (self.effects,)) or not all(map(is_positive, scales)):
                raise SettingError("group_sd must be a positive number, or one per effect.")
            wide = tuple(float(s) for s in np.broadcast_to(scales, self.effects))
            object.__setattr__(self, "group_sd", wide)
        if not is_positive(self.concentration):
            raise SettingError("concentration must be a positive number.")
        if self.nodes is not None and whole_number("nodes", self.nodes, FEWEST_NODES) > MOST_NODES:
            raise SettingError(
                f"nodes must be at most {MOST_NODES} per effect, not {self.nodes}: integrals that "
                "need more are better served by effects that are held explicitly."
            )

    # Shapes -------------------------------------------------------------------------------

    @property
    def effects(self) -> int:
        """Effects per group, r."""
        return len(self.slopes) + self.intercept

    @property
    def covariance(self) -> Covariance:
        """The covariance of a group's effects."""
        return Covariance(self.effects, self.correlated and self.effects > 1)

    @property
    def per_effect(self) -> int:
        """Quadrature nodes per effect."""
        return self.nodes or NODES[self.effects]

    @cached_property
    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes xi (nodes, effects) and log-weights of the product rule for N(0, I)."""
        xi, w = np.polynomial.hermite_e.hermegauss(self.per_effect)
        log_w = np.log(w) - 0.5 * np.log(2 * np.pi)
        points = np.array(list(product(xi, repeat=self.effects)))
        return points, np.array([sum(part) for part in product(log_w, repeat=self.effects)])

    # Units --------------------------------------------------------------------------------

    def units(self, rows: Rows) -> GroupedRows:
        """Return the rows as groups; a sentence for those that are none."""
        if isinstance(rows, GroupedRows):
            return rows
        if rows.coding is not None and any(
            term.field == self.group and term.scale is None for term in rows.coding.terms
        ):
            raise DataError(
                f"the levels of '{self.group}' are columns of the rows, and cannot be groups as "
                f"well; give them as numbers, mo.Rows(x=..., y=..., {self.group}=numbers), or "
                "use mo.fit with a group term."
            )
        groups = GroupedRows(rows, GroupIndex.of(rows, self.group))
        if len(groups) < 2:
            raise DataError(
                f"all rows have the same '{self.group}', so that nothing can be said of how groups "
                "differ; leave the group out."
            )
        if len(groups) == len(rows) and self.family.extras:
            raise DataError(
                f"every row is a group of its own by '{self.group}', so that the groups' effects "
                "cannot be told from the noise of a row; leave the group out."
            )
        if groups.largest == 1 and isinstance(self.family, Logistic | Probit | Cloglog):
            raise DataError(
                f"every row is a group of its own by '{self.group}', and one outcome of 0 or 1 "
                "says nothing of its group's effect; leave the group out."
            )
        for name in self.slopes:
            column = _column_of_x(rows, name)
            if self.intercept and not _varies_within(groups, column):
                raise DataError(constant_slope(name, self.group))
        return groups

    # The log-likelihood -------------------------------------------------------------------

    def effect_columns(self, rows: Batch) -> jax.Array:
        """z of each row, (rows, effects): one for the intercept, then the columns that vary."""
        xp = namespace(rows["y"])
        columns = [xp.ones(len(rows["y"]), np.float64)] if self.intercept else []
        for j in self.columns or ():
            columns.append(xp.asarray(rows["x"])[:, j].astype(np.float64))
        z: jax.Array = xp.stack(columns).T
        return z

    def linear(self, theta: Params, rows: Batch) -> jax.Array:
        """The predictor of each row without the effects of its group, in float64."""
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

    def of_row(self, eta: jax.Array, extras: Sequence[jax.Array], rows: Batch) -> jax.Array:
        """f of each row (and node: trailing axes of eta), times its frequency weight."""
        if not self.family.extras:
            return self.derivatives_of_row(eta, rows)[0]
        axes = (slice(None), *[None] * (eta.ndim - 1))
        y = self.family.outcome(rows).astype(jnp.float64)[axes]
        shared = [jnp.broadcast_to(value, eta.shape) for value in extras]
        seen = "()" if len(self.family.outcome_fields) == 1 else "(s)"
        density: Callable[..., jax.Array] = jnp.vectorize(
            self.family.log_density, signature=f"(q),{seen}->()"
        )
        f = density(jnp.stack([eta, *shared], axis=-1), y)
        return f * jnp.asarray(rows["row_weight"])[axes] if "row_weight" in rows else f

    def slope_of_row(self, eta: jax.Array, extras: Sequence[jax.Array], rows: Batch) -> jax.Array:
        """f' of each row in its predictor, with axes as in `of_row`."""
        if self.family.extras:
            ones = jnp.ones_like(eta)
            return jax.jvp(lambda e: self.of_row(e, extras, rows), (eta,), (ones,))[1]
        return self.derivatives_of_row(eta, rows)[1]

    def bends(
        self, eta: jax.Array, extras: Sequence[jax.Array], rows: Batch
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """f of each row, its gradient and its Hessian in the predictor and the extras."""
        if not self.family.extras:
            f, f1, f2, *_ = self.derivatives_of_row(eta, rows)
            return f, f1[:, None], f2[:, None, None]
        seen = {k: rows[k] for k in (*self.family.outcome_fields, "row_weight") if k in rows}
        w = jnp.stack([eta, *[jnp.broadcast_to(x, eta.shape) for x in extras]], axis=-1)

        def of(w: jax.Array, row: Batch) -> jax.Array:
            batch = jax.tree.map(lambda field: field[None], row)
            return self.of_row(w[:1], list(w[1:]), batch)[0]

        f, first = jax.vmap(jax.value_and_grad(of))(w, seen)
        return f, first, jax.vmap(jax.hessian(of))(w, seen)

    def derivatives_of_row(self, eta: jax.Array, rows: Batch) -> tuple[jax.Array, ...]:
        """f and its derivatives in eta, of a family without other parameters."""
        axes = (slice(None), *[None] * (eta.ndim - 1))
        y = self.family.outcome(rows).astype(np.float64)[axes]
        every = self.family.derivatives(eta, y)
        if "row_weight" not in rows:
            return every
        weight = namespace(eta).asarray(rows["row_weight"])[axes]
        return tuple(weight * part for part in every)

    def extras_of(self, theta: Params) -> tuple[jax.Array, ...]:
        """The family's other parameters."""
        return tuple(jnp.asarray(theta[name]) for name in self.family.extras)

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """l_j of each group of the batch; of rows without groups each is its own, and new."""
        if "group_of_row" not in batch:
            count = len(batch["y"])
            own = {"group_of_row": jnp.arange(count), "group_rows": jnp.ones(count, jnp.int32)}
            batch = dict(batch) | own
        flat = FlatGroups.of(batch)
        return self.group_likelihoods(theta, flat, NodePlaces.in_batch(batch))

    def group_likelihoods(self, theta: Params, flat: Groups, known: NodePlaces | None) -> jax.Array:
        """l_j of each group, with nodes that are `known` at an anchor or else found at theta.

        log sum_k of log w_jk + sum_i f(y_i, x_i'beta + z_i'T v_jk).
        """
        nodes = self.nodes_of(theta, flat, known)
        effects = flat.spread(nodes.v @ self.covariance.factor(theta).T)
        eta = self.linear(theta, flat.rows)[:, None] + self.along_effects(flat.rows, effects)
        f = self.of_row(eta, self.extras_of(theta), flat.rows)
        return log_sum_exp(nodes.log_weight + flat.sum(f))

    def nodes_of(self, theta: Params, flat: Groups, known: NodePlaces | None) -> Nodes:
        """The nodes of each group at theta.

        Where places were found at the anchor they move with theta; else they are found at theta,
        and fixed under differentiation.
        """
        if known is None:
            theta = theta if is_numpy(theta["beta"]) else jax.lax.stop_gradient(theta)
            near = self.integrands(theta, self.places(theta, flat), flat)
            return self.nodes_near(near, self.covariance.factor(theta), 0.0)
        read = {name: leaf for name, leaf in theta.items() if name != OWN}
        anchor = _laid_out(read, as_either(known.point))
        near = self.integrands(anchor, as_either(known.centre), flat)
        e = self.linear(theta, flat.rows) - self.linear(anchor, flat.rows)
        return self.nodes_near(near, self.covariance.factor(theta), self.shift(near, e, flat))

    def shift(self, near: Integrands, e: jax.Array, flat: Groups) -> jax.Array:
        """C_j (beta - beta*): what predictors that are larger by e take from the groups' pull."""
        return flat.sum(e[:, None] * near.weighted)

    def nodes_near(self, near: Integrands, T: jax.Array, shift: jax.Array | float) -> Nodes:
        """Nodes for effects T v, of predictors that took `shift` from the groups' pull.

        Their weights make up for the prior and the Gaussian.
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
        """Centre in v of each integrand, and a factor of its covariance, by its quadratic."""
        xp = namespace(near.pull)
        covariance = inverse(T.T @ near.information @ T + np.eye(self.effects))
        centre = xp.einsum("jab,jb->ja", covariance, (near.pull - shift) @ T)
        return centre, lower_factor(covariance)

    def integrands(self, theta: Params, centre: jax.Array, flat: Groups) -> Integrands:
        """Groups' log-likelihoods as quadratics in their effects, about v = centre at theta."""
        z, T = self.effect_columns(flat.rows), self.covariance.factor(theta)
        xp = namespace(z)
        u = xp.asarray(centre, np.float64) @ T.T
        eta = self.linear(theta, flat.rows)
        f1, w = self._bent(eta + self.along_effects(flat.rows, flat.spread(u)), theta, flat)
        weighted = w[:, None] * z
        information = flat.sum(weighted[:, :, None] * z[:, None, :])
        pull = flat.sum(f1[:, None] * z) + xp.einsum("jab,jb->ja", information, u)
        return Integrands(pull, information, xp.where(flat.there[:, None], weighted, 0.0))

    def _bent(self, eta: jax.Array, theta: Params, flat: Groups) -> tuple[jax.Array, jax.Array]:
        """f' of each row, and -f'' where that is positive."""
        if not self.family.extras:
            _, f1, f2, *_ = self.derivatives_of_row(eta, flat.rows)
            return f1, namespace(f2).maximum(-f2, 0.0)
        extras, ones = self.extras_of(theta), jnp.ones_like(eta)
        f1, f2 = jax.jvp(lambda e: self.slope_of_row(e, extras, flat.rows), (eta,), (ones,))
        return f1, jnp.maximum(-f2, 0.0)

    def places(self, theta: Params, flat: Groups) -> jax.Array:
        """Where the integrand of each group has its mode, (groups, effects), in v.

        Rounded to float32, in which it is kept beside the groups: passes that find it and chains
        that are handed it then evaluate the same function.
        """
        z = self.effect_columns(flat.rows) @ self.covariance.factor(theta)  # of v, not of effects
        eta, xp = self.linear(theta, flat.rows), namespace(z)

        def step(held: tuple[int, jax.Array, float]) -> tuple[int, jax.Array, float]:
            number, v, _ = held
            f1, w = self._bent(eta + xp.sum(z * flat.spread(v), axis=1), theta, flat)
            gradient = flat.sum(f1[:, None] * z) - v
            precision = flat.sum(w[:, None, None] * z[:, :, None] * z[:, None, :])
            covariance = inverse(precision + np.eye(self.effects))
            move = xp.einsum("jab,jb->ja", covariance, gradient)
            length = xp.sqrt(xp.sum(move**2, axis=1, keepdims=True))
            v = v + move * xp.minimum(1.0, LONGEST_STEP / xp.maximum(length, 1e-300))
            return number + 1, v, xp.max(length)

        def moves(held: tuple[int, jax.Array, float]) -> bool:
            number, _, longest = held
            more: bool = (number < NEWTON_STEPS) & (longest > SETTLED)
            return more

        held = (0, xp.zeros((flat.groups, self.effects)), np.inf)
        if xp is np:
            while moves(held):
                held = step(held)
        else:
            held = jax.lax.while_loop(moves, step, held)
        return held[1].astype(np.float32).astype(np.float64)

    # Priors -------------------------------------------------------------------------------

    def log_prior(self, theta: Params) -> jax.Array:
        """That of the family, and of the effects' covariance."""
        if self.scales is None:
            raise SettingError(
                "the default prior of group_sd is in the units of the data, and known only with "
                "rows: use model.resolved(rows), or give group_sd."
            )
        return self.family.log_prior(theta) + self._log_prior_of_covariance(theta)

    def _log_prior_of_covariance(self, theta: Params) -> jax.Array:
        assert self.scales is not None
        return self.covariance.log_prior(theta, self.scales, self.concentration)

    def log_folded_prior(self, theta: Params) -> jax.Array | None:
        """All but the priors of explicit effects; asked where there are such."""
        if not self.family.groups:
            return None
        return self.family.log_folded_prior(theta) + self._log_prior_of_covariance(theta)

    def exact_prior(self, theta: Params) -> tuple[ExactPrior, tuple[Numbers, ...]] | None:
        """That of the family's explicit effects, whose joint density has no mode."""
        return self.family.exact_prior(theta) if self.family.groups else None

    def shrunk(self, theta: Params) -> Params:
        """What the family's priors shrink; the groups' standard deviations are no such."""
        return self.family.shrunk(theta)

    def likelihood_layout(self, theta: Params) -> Params:
        """All but the standard deviations of explicit effects."""
        return self.family.likelihood_layout(theta)

    def resolved(self, rows: Rows) -> IntegratedEffects:
        """Return the model with its priors in numbers, and the columns that vary by place."""
        if self.scales is not None:
            return self
        members = members_of(rows)
        family = self.family.resolved(members)
        columns = tuple(_column_of_x(members, name) for name in self.slopes)
        if isinstance(self.group_sd, tuple):
            return replace(self, family=family, columns=columns, scales=self.group_sd)
        data = moments(members)
        spread = [float(data.x_sd[members.columns.index(name)]) or 1.0 for name in self.slopes]
        unit = 2.5 * self.family.outcome_unit(data)
        scales = [*([unit] if self.intercept else []), *(unit / sd for sd in spread)]
        return replace(self, family=family, columns=columns, scales=tuple(map(float, scales)))

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
        """Those of the family, and half-normal and LKJ ones."""
        text = dict(self.family.describe_priors(rows))
        for name, scale in zip(self.effect_names, self.scales or (), strict=False):
            text[f"group_sd[{name}]"] = f"half-normal({scale:.4g})"
        if self.covariance.pairs:
            text["group_cor"] = f"LKJ({self.concentration:g})"
        return text

    # Layout, names, checks ----------------------------------------------------------------

    @property
    def term(self) -> GroupTerm:
        """The same as a group term, which knows what draws call its parts."""
        effects = (*([INTERCEPT] if self.intercept else []), *self.slopes)
        return GroupTerm(self.group, effects, self.correlated)

    @property
    def effect_names(self) -> tuple[str, ...]:
        """The group for its intercept, "group:column" for a slope."""
        return self.term.sd_names

    def start(self, rows: Rows) -> Params:
        """That of the family, small standard deviations and no correlation."""
        members = members_of(rows)
        assert self.scales is not None
        theta = dict(self.family.start(members))
        if OWN in theta and not self.family.groups:
            raise SettingError(
                "a horseshoe prior cannot stand beside effects that are integrated out; hold them "
                "explicitly, or give the coefficients another prior."
            )
        theta["group_log_sd"] = np.log(np.asarray(self.scales) / PER_COMMON)
        if self.covariance.pairs:
            theta["group_partial"] = np.zeros(self.covariance.pairs)
        return theta

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name the family's parameters, group_sd and group_cor."""
        own = {"group_log_sd", "group_partial"}
        common = {name: value for name, value in theta.items() if name not in own}
        named, mine = self.family.report(common), self.covariance.report(theta)
        for name in set(named) & set(mine):  # explicit effects have theirs, after these
            mine[name] = jnp.concatenate([mine[name], named[name]])
        return named | mine

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Undo `report`."""
        common, mine = dict(named), {}
        for name, count in (("group_sd", self.effects), ("group_cor", self.covariance.pairs)):
            if name in named:
                both = jnp.asarray(common.pop(name))
                mine[name] = both[:count]
                common |= {name: both[count:]} if both.shape[0] > count else {}
        return self.family.restore(common) | self.covariance.restore(mine)

    def labels(self, rows: Rows) -> Labels:
        """Columns of x, and effects."""
        labels = dict(self.family.labels(rows))
        for name, mine in (("group_sd", self.effect_names), ("group_cor", self.term.cor_names)):
            theirs = labels.pop(name, ((),))[0]
            labels |= {name: ((*mine, *theirs),)} if mine or theirs else {}
        return labels

    def flat_names(self, rows: Rows | None = None) -> tuple[str, ...]:
        """Names of the entries of the flat vector, whose order is that of their keys."""
        assert rows is not None
        labels, terms = self.family.labels(rows), self.family.group_terms
        beta = [f"beta[{column}]" for column in labels.get("beta", ((),))[0]]
        effects = [
            f"{name}[{level}]" for t in terms for name in t.names for level in labels[name][0]
        ]
        own = [f"group_cor[{name}]" for t in terms for name in t.cor_names]
        own += [f"group_sd[{name}]" for t in terms for name in t.sd_names]
        known = {
            "beta": [*beta, *effects],
            "group_log_sd": [f"group_sd[{name}]" for name in self.effect_names],
            "group_partial": [f"group_cor[{name}]" for name in self.term.cor_names],
            OWN: own,
        }
        return tuple(name for key in sorted(self.start(rows)) for name in known.get(key, [key]))

    def check_variation(self, rows: Rows) -> None:
        """As the family does."""
        self.family.check_variation(rows)

    def check(self, rows: Rows) -> None:
        """Refuse what the family refuses; `units` has looked at the groups."""
        self.family.check(members_of(rows))

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Mean of the outcome of each row, over all groups there may be.

        Of a group of which nothing is known, and the population's average for such rows. What
        effects of new groups add to a predictor is normal, however many they are.
        """
        predictors = self.family.predictor_vector(theta, batch)
        return self.family.mean_over(predictors, self.spread_of_new_groups(theta, batch))

    def spread_of_new_groups(self, theta: Params, batch: Batch) -> jax.Array:
        """Standard deviation, in each row, of what effects of new groups add to its predictor.

        Those of the group that is integrated out, and of others that the batch does not say.
        """
        along = self._columns_of(batch) @ self.covariance.factor(theta)
        variance = jnp.sum(along**2, axis=1)
        absent = self.family.absent_groups(batch)
        if absent:
            more = self.family.spread_of_new_groups(theta, batch, absent)
            variance = variance + more**2
        return jnp.sqrt(variance)

    def expected_given(self, theta: Params, effects: jax.Array, batch: Batch) -> jax.Array:
        """Mean of the outcome of each row given the effects of its group, (rows, effects).

        Over all groups there may be of other factors that the batch does not say.
        """
        predictors = self.family.predictor_vector(theta, batch)
        shift = jnp.sum(self._columns_of(batch) * effects, axis=1)
        predictors = predictors.at[:, 0].add(shift)
        absent = self.family.absent_groups(batch)
        if not absent:
            return jax.vmap(self.family.mean)(predictors)
        sd = self.family.spread_of_new_groups(theta, batch, absent)
        return self.family.mean_over(predictors, sd)

    def _columns_of(self, batch: Batch) -> jax.Array:
        """z of each row of a batch without outcomes, of which the length is what counts."""
        return self.effect_columns(dict(batch) | {"y": next(iter(batch.values()))})

    def decide(self, expected: np.ndarray) -> np.ndarray | None:
        """As the family does."""
        return self.family.decide(expected)


def _laid_out(theta: Params, flat: jax.Array) -> Params:
    """A flat vector as parameters in the layout of theta."""
    leaves, structure = jax.tree.flatten(theta)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = [
        flat[end - leaf.size : end].reshape(leaf.shape)
        for end, leaf in zip(ends, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)


def _column_of_x(rows: Rows, name: str) -> int:
    """Where in the field x a column is; the columns of codes are not there."""
    if name not in rows.columns:
        raise SettingError(
            f"'{name}' is to vary by group, and x has no column of that name; it has "
            f"{', '.join(rows.columns[:8])}."
        )
    place = rows.columns.index(name)
    if rows.coding is None:
        return place
    if place not in rows.coding.dense:
        raise SettingError(
            f"'{name}' is a level of a categorical column, and only numbers can vary by group as "
            "an effect that is integrated out."
        )
    return rows.coding.dense.index(place)


def _varies_within(groups: GroupedRows, column: int) -> bool:
    """Whether a column of x takes two values within any group."""
    for k in range(len(groups.chunk_starts) - 1):
        batch, _ = groups.chunk(k)
        which, x = batch["group_of_row"], batch["x"][:, column]
        same = which[1:] == which[:-1]
        if np.any(same & (x[1:] != x[:-1]) & (which[1:] < groups.flat_groups)):
            return True
    return False
