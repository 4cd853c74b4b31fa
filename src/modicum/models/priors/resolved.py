"""The priors of a model: as the user names them, fixed for its rows, and whether the data agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from modicum.arrays import as_either, namespace
from modicum.errors import ModicumWarning, SettingError, listed, suggestion
from modicum.models.constraints import Constraint, Entries, Interval, monotonic_steps, simplex
from modicum.models.covariances import (
    correlations,
    covariance_factor,
    draw_partials,
    partials_of,
)
from modicum.models.priors.distributions import (
    Flat,
    LogNormal,
    Normal,
    Prior,
    ShrunkPrior,
    Support,
    as_tree,
    together,
)
from modicum.models.priors.exact import (
    CentredIntercept,
    Effects,
    ExactPrior,
    ExactTerm,
    Independent,
    SharedScale,
    StepShares,
)
from modicum.models.terms import PooledTerm
from modicum.rows import Rows
from modicum.runtime import Pytree

SUMMARY_NAME = re.compile(r"([^\[\]]+\.)?beta\[(.*)\]", re.DOTALL)
PriorTable: TypeAlias = tuple[tuple[str, Prior], ...]  # hashable: a key and its prior


def tidy_priors(priors: object) -> PriorTable:
    """Return priors by key as hashable pairs; refuse anything else."""
    if priors is None:
        return ()
    pairs = tuple(priors.items()) if isinstance(priors, Mapping) else priors
    if not isinstance(pairs, Sequence) or not all(isinstance(p, Sequence) for p in pairs):
        raise SettingError(
            "priors must map names to distributions, such as "
            f'{{"common": mo.priors.Normal(0, 1)}}, not {type(priors).__name__}.'
        )
    table = []
    for key, prior in pairs:
        if not isinstance(key, str) or not isinstance(prior, Prior):
            raise SettingError(
                f"the prior of {key!r} must be a distribution such as mo.priors.Normal(0, 1), not "
                f"{prior!r}."
            )
        table.append((key, prior))
    return tuple(table)


def require_support(
    key: str, prior: Prior, support: Support, *, is_coefficient: bool = False
) -> None:
    """Refuse a prior with the wrong support; a coefficient may be positive, or within bounds."""
    if is_coefficient and prior.support in ("real", "positive"):
        return
    if prior.support == support and (support == "positive" or not prior.is_bounded):
        return
    if prior.support == support:
        raise SettingError(
            f"the prior of {key!r} cannot be {prior}: only coefficients can have bounds; leave "
            "them out."
        )
    needed, examples = {
        "real": ("a number on the whole line", "Normal or StudentT"),
        "positive": ("a positive number", "HalfNormal, Exponential or LogNormal"),
        "correlation": ("a correlation matrix", "LKJ"),
    }[support]
    raise SettingError(
        f"the prior of {key!r} cannot be {prior}: it is {needed}; use for example {examples}."
    )


def column_in_summary(key: str) -> str | None:
    """Return the column whose coefficient the summary lists under this name, if it has that form.

    Examples
    --------
    >>> column_in_summary("beta[ward[north]]")
    'ward[north]'
    >>> column_in_summary("scale.beta[age]")
    'scale.age'
    """
    found = SUMMARY_NAME.fullmatch(key)
    return None if found is None else f"{found[1] or ''}{found[2]}"


def columns_of(key: str, rows: Rows) -> list[int]:
    """Return the columns that a key refers to: one, or those of a term or categorical column.

    A column also goes by its name in the summary, ``beta[age]``.
    """
    names = rows.columns
    for name in (key, column_in_summary(key)):
        if name in names:
            return [names.index(name)]
    terms: Mapping[str, Sequence[str]] = getattr(rows.schema, "terms", {})
    if key in terms:
        of_term = set(terms[key])
        return [j for j, name in enumerate(names) if name in of_term]
    if key in rows.levels:
        return [j for j, name in enumerate(names) if name.startswith(f"{key}[")]
    return []


def require_known(key: str, others: Sequence[str], rows: Rows) -> None:
    """Refuse an unknown key, and list the known ones."""
    terms: Mapping[str, Sequence[str]] = getattr(rows.schema, "terms", {})
    keys = list(dict.fromkeys([*others, *terms, *rows.levels, *rows.columns]))
    listed = ", ".join(keys[:12]) + (" ..." if len(keys) > 12 else "")
    raise SettingError(
        f"nothing called {key!r} can have a prior{suggestion(key, keys)}; the possible keys are "
        f"{listed}."
    )


LOG_SD, PARTIAL = "log_group_sd", "group_partial"
Theta: TypeAlias = Mapping[str, Pytree]  # parameters by name: arrays, and hyperparameters at `OWN`
OWN = "variation"  # key of the hyperparameters: sorted after every other parameter of a model
HORSESHOE = "log_horseshoe"
MEAN_STEP, STEP_SHARE = "mean_step", "step_share"  # of monotonic effects, in draws
NOISE = "log_scale"  # an extra parameter in whose units shrinkage priors may be


def is_logged(name: str) -> bool:
    """Whether the parameter of this name is the logarithm of a positive number."""
    return name.startswith("log_")


def is_of_exponential(name: str, prior: Prior) -> bool:
    """Whether the prior is that of a positive number, of which the parameter is the logarithm."""
    return is_logged(name) and prior.support == "positive"


@dataclass(frozen=True)
class PooledPrior:
    """The prior of the coefficients of one pooled term.

    Parameters
    ----------
    term
        The term.
    levels
        Number of levels of the factor.
    sds
        Prior of the standard deviation of each effect.
    correlation
        Prior of their correlations.
    """

    term: PooledTerm
    levels: int
    sds: tuple[Prior, ...]
    correlation: Prior

    @property
    def scales(self) -> tuple[Prior, ...]:
        """Priors of the standard deviations, whose numbers are arrays."""
        return tuple(map(as_tree, self.sds))

    @property
    def eta(self) -> float:
        """Concentration of the LKJ prior of correlations."""
        return self.correlation.numbers[0]

    @property
    def size(self) -> int:
        """Number of coefficients that are effects of the term."""
        return self.levels * len(self.sds)

    @property
    def partials(self) -> int:
        """Number of correlations."""
        return len(self.term.cor_names)

    def draw(self, number: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Draw logarithms of sds, transformed partial correlations, and effects of all levels."""
        count = len(self.sds)
        log_sd = np.log(np.stack([prior.draw(rng, (number,)) for prior in self.sds], axis=1))
        partials = np.zeros((number, 0))
        if self.partials:
            partials = draw_partials(count, self.eta, rng, number)
        own = np.concatenate([log_sd, partials], axis=1)
        factor = np.asarray(jax.vmap(lambda hyper: covariance_factor(hyper, count))(own))
        normal = rng.standard_normal((number, count, self.levels))
        return log_sd, partials, (factor @ normal).reshape(number, -1)


@dataclass(frozen=True)
class ModelPriors:
    """Independent priors of a linear-predictor model.

    Parameters
    ----------
    coefficients
        Prior of each column's coefficient.
    intercept
        Prior of intercept + centre . beta; None for a model without an intercept.
    centre
        Point in x at which the intercept's prior holds; empty: at 0.
    extras
        Priors of the other parameters, by name; for a parameter log_s, the prior of s.
    pooled
        Priors of pooled terms, whose coefficients follow the common ones in beta, in this order.
    centres
        For extra parameters that are intercepts of predictors, the point in x where the prior
        holds, if it is not 0.
    """

    coefficients: tuple[Prior, ...]
    intercept: Prior | None = None
    centre: tuple[float, ...] = ()
    extras: tuple[tuple[str, Prior], ...] = ()
    pooled: tuple[PooledPrior, ...] = ()
    centres: tuple[tuple[str, tuple[float, ...]], ...] = ()

    # Log-densities ---------------------------------------------------------------------------

    @property
    def alone(self) -> list[tuple[str, Prior, tuple[float, ...]]]:
        """Name, prior and centre of the parameters other than coefficients: intercept, extras."""
        centres = dict(self.centres)
        extras = [(name, prior, centres.get(name, ())) for name, prior in self.extras]
        return (
            extras
            if self.intercept is None
            else [("intercept", self.intercept, self.centre), *extras]
        )

    def log_density(self, theta: Theta) -> jax.Array:
        """Log-prior at unconstrained parameters."""
        total, exact = self.log_folded(theta), self.exact(theta)
        if exact is None:
            return total
        return total + exact.log_density(ravel_pytree(dict(theta))[0])

    def log_effects(self, theta: Theta) -> jax.Array:
        """Log-density of effects given their covariance: part of the model rather than a prior."""
        t = ravel_pytree(dict(theta))[0]
        return sum((term.log_effects(t) for term in self.effects(theta)), jnp.zeros(()))

    def log_folded(self, theta: Theta) -> jax.Array:
        """Return the part that is quadratic in the parameters."""
        constrained = self.constrained
        beta = jnp.asarray(theta["beta"])
        total = jnp.zeros(())
        normal = {j: Normal(*p.numbers) for j, p in enumerate(self.coefficients) if p.is_normal}
        if normal:
            values = beta if len(normal) == beta.shape[-1] else beta[..., np.array(list(normal))]
            total = jnp.sum(together(list(normal.values())).density(values))
        for name, prior, centre in self.alone:
            if prior.is_normal and not (centre and constrained):
                common = beta[..., : len(self.coefficients)]
                shift = common @ jnp.asarray(centre) if centre else 0.0
                normal_prior = Normal(*prior.on_coordinate)
                total += normal_prior.log_density(jnp.asarray(theta[name]) + shift)
        return total

    def exact(self, theta: Theta) -> ExactPrior | None:
        """Return the part that is not quadratic, for parameters laid out as `theta`."""
        entries = self.by_entry(theta)
        terms: list[ExactTerm] = []
        alike: dict[tuple[type[Prior], Interval | None], dict[int, Prior]] = {}
        for at, prior in enumerate(entries):
            if prior is not None and not prior.is_quadratic and not isinstance(prior, ShrunkPrior):
                within = Interval(*prior.bounds) if prior.is_bounded else None
                alike.setdefault((type(prior), within), {})[at] = prior
        for (_, within), priors in alike.items():
            masses = np.array([prior.log_mass for prior in priors.values()])
            joined = together(list(priors.values()))
            terms.append(Independent(joined, masses, tuple(priors), within))
        terms += self._centred(theta)
        joint = [(at, prior.joint) for at, prior in enumerate(entries) if prior and prior.joint]
        if joint:
            shares = tuple(tuple(range(at + 1, at + number)) for at, number in joint)
            terms.append(StepShares(shares))
        of_leaf = _places(theta)
        for k, like in enumerate(self.shrunk):
            of_columns = {j: prior for j, prior in enumerate(entries) if _alike(prior, like)}
            each = together(list(of_columns.values()))
            noise = int(of_leaf[NOISE][0]) if like.of_noise and NOISE in of_leaf else None
            tau = int(of_leaf[f"{OWN}.{HORSESHOE}"][k])
            shared = as_tree(like).with_units(each.unit, each.resolution)
            terms.append(SharedScale(shared, tuple(of_columns), tau, noise))
        terms += self.effects(theta)
        return ExactPrior(tuple(terms)) if terms else None

    @cached_property
    def constrained(self) -> Entries:
        """The constraints of coefficients whose priors have bounds, or are those of steps."""
        alike: dict[Interval, list[int]] = {}
        for j, prior in enumerate(self.coefficients):
            if prior.is_bounded:
                alike.setdefault(Interval(*prior.bounds), []).append(j)
        parts: list[tuple[tuple[int, ...], Constraint]]
        parts = [(tuple(where), within) for within, where in alike.items()]
        return Entries((*parts, *((where, monotonic_steps) for where in self.steps)))

    @cached_property
    def steps(self) -> tuple[tuple[int, ...], ...]:
        """Places of the coefficients of each monotonic effect."""
        firsts = [(j, prior.joint) for j, prior in enumerate(self.coefficients) if prior.joint]
        return tuple(tuple(range(j, j + number)) for j, number in firsts)

    def report_steps(self, beta: jax.Array) -> dict[str, jax.Array]:
        """Return mean and shares of the steps of each monotonic effect, by their free values."""
        if not self.steps:
            return {}
        return {
            MEAN_STEP: jnp.stack([beta[where[0]] for where in self.steps]),
            STEP_SHARE: jnp.concatenate(
                [simplex.constrain(beta[np.array(where[1:])]) for where in self.steps]
            ),
        }

    def _centred(self, theta: Theta) -> Iterator[CentredIntercept]:
        """Yield the priors of intercepts at a point where coefficients have constraints."""
        places = _places(theta)
        for name, prior, centre in self.alone:
            if not (self.constrained and centre):
                continue
            beta = places["beta"].reshape(places[name].size, -1)[:, : len(centre)]
            where = _indices(places[name]), tuple(map(_indices, beta))
            yield CentredIntercept(as_tree(prior), np.array(centre), *where, self.constrained)

    def effects(self, theta: Theta) -> list[Effects]:
        """Return the terms of groups, in the order of their effects and hyperparameters."""
        places = _places(theta)
        terms: list[Effects] = []
        first, none = len(self.coefficients), np.arange(0)
        own = (places.get(f"{OWN}.{name}", none) for name in (LOG_SD, PARTIAL))
        for group, sds, partials in self._by_group(*own):
            where = places["beta"][first : first + group.size], sds, partials
            terms.append(Effects(group.scales, np.asarray(group.eta), *map(_indices, where)))
            first += group.size
        return terms

    def _by_group(
        self, sds: Pytree, partials: Pytree
    ) -> Iterator[tuple[PooledPrior, Pytree, Pytree]]:
        """Yield each group with its entries of the log sds and of the partial correlations."""
        first, second = 0, 0
        for group in self.pooled:
            ends = first + len(group.sds), second + group.partials
            yield group, sds[..., first : ends[0]], partials[..., second : ends[1]]
            first, second = ends

    # Draws -----------------------------------------------------------------------------------

    def draw(self, q: tuple[int, ...], number: int, rng: np.random.Generator) -> dict[str, Pytree]:
        """Draw `number` sets of parameters, for predictors of shape `q`."""
        columns = [prior.draw(rng, (number, *q)) for prior in self.coefficients]
        beta = np.stack(columns, axis=-1) if columns else np.zeros((number, *q, 0))
        for first, *others in self.steps:
            sizes = beta[..., [first, *others]]
            sizes[..., 0] = rng.standard_exponential(sizes.shape[:-1])
            share = sizes / sizes.sum(axis=-1, keepdims=True)
            beta[..., [first, *others]] = share.shape[-1] * beta[..., [first]] * share
        theta: dict[str, Pytree] = {}
        for name, prior, centre in self.alone:
            value = prior.draw(rng, (number, *(q if name == "intercept" else ())))
            value = np.log(value) if is_of_exponential(name, prior) else value
            theta[name] = value - (beta @ np.array(centre) if centre else 0.0)
        beta = np.asarray(self.constrained.free(as_either(beta))) if self.constrained else beta
        drawn = [group.draw(number, rng) for group in self.pooled]
        theta["beta"] = np.concatenate([beta, *(effects for *_, effects in drawn)], axis=-1)
        if drawn:
            theta[OWN] = {LOG_SD: np.concatenate([log_sd for log_sd, *_ in drawn], axis=1)}
            partials = [x for _, x, _ in drawn if x.shape[1]]
            theta[OWN] |= {PARTIAL: np.concatenate(partials, axis=1)} if partials else {}
        return theta

    # Hyperparameters -------------------------------------------------------------------------

    @property
    def shrunk(self) -> tuple[ShrunkPrior, ...]:
        """The distinct shrinkage priors, whatever columns' units: each has its own global scale."""
        like: list[ShrunkPrior] = []
        for prior in self.coefficients:
            if isinstance(prior, ShrunkPrior) and not any(_alike(prior, h) for h in like):
                like.append(prior)
        return tuple(like)

    @property
    def _shrunk_names(self) -> list[str]:
        """The name of each global scale in draws."""
        return [f"{type(prior).__name__.lower()}_scale" for prior in self.shrunk]

    def start_at(self, beta: np.ndarray) -> np.ndarray:
        """Return starting values of the coefficients: `beta`, or free values next to a bound."""
        inside = beta.copy()
        for j, prior in enumerate(self.coefficients):
            low, high = prior.bounds
            if prior.is_bounded:
                end = low if np.isfinite(low) else high
                inside[..., j] = end + (0.5 if np.isfinite(low + high) else 0.1) * (
                    prior.centre - end
                )
        return np.asarray(self.constrained.free(as_either(inside))) if self.constrained else beta

    def start(self) -> dict[str, Pytree]:
        """Return starting values of the hyperparameters."""
        own: dict[str, Pytree] = {}
        if self.shrunk:
            typical = [like.log_typical for like in self.shrunk]
            own[HORSESHOE] = np.log(0.1) + np.array(typical)
        if self.pooled:
            typical = [0.1 * prior.centre for group in self.pooled for prior in group.sds]
            own[LOG_SD] = np.log(typical)
        if any(group.partials for group in self.pooled):
            own[PARTIAL] = np.zeros(sum(group.partials for group in self.pooled))
        return {OWN: own} if own else {}

    def labels(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Names of the entries of the hyperparameters."""
        sds = self._sd_names
        named = {kind: tuple(n for k, n in sds if k == kind) for kind, _ in sds}
        named["group_cor"] = tuple(n for group in self.pooled for n in group.term.cor_names)
        return {name: (entries,) for name, entries in named.items() if entries}

    @property
    def _sd_names(self) -> list[tuple[str, str]]:
        """Kind and label of each standard deviation, in the order of their logarithms."""
        return [(group.term.kind, name) for group in self.pooled for name in group.term.sd_names]

    @property
    def _sd_places(self) -> dict[str, np.ndarray]:
        """Places of the standard deviations of each kind among all of them."""
        kinds = np.array([kind for kind, _ in self._sd_names])
        return {kind: np.flatnonzero(kinds == kind) for kind in dict.fromkeys(kinds.tolist())}

    def report(self, own: Theta) -> dict[str, Pytree]:
        """Return the hyperparameters under the names and in the units that draws show."""
        named: dict[str, Pytree] = {}
        if PARTIAL in own:
            named["group_cor"] = self._correlated(own[PARTIAL], correlations)
        if LOG_SD in own:
            sds = namespace(own[LOG_SD]).exp(own[LOG_SD])
            named |= {kind: sds[..., places] for kind, places in self._sd_places.items()}
        if HORSESHOE in own:
            scale = namespace(own[HORSESHOE]).exp(own[HORSESHOE])
            names = np.array(self._shrunk_names)
            for name in dict.fromkeys(self._shrunk_names):
                alike = scale[..., np.flatnonzero(names == name)]
                named[name] = alike[..., 0] if alike.shape[-1] == 1 else alike
        return named

    def _correlated(
        self, values: jax.Array, function: Callable[[jax.Array, int], jax.Array]
    ) -> jax.Array:
        """Apply a function to the part of `values` of each group that has correlations."""
        parts = self._by_group(values, values)
        each = [function(x, len(g.sds)) for g, _, x in parts if g.partials]
        joined: jax.Array = namespace(values).concatenate(each, axis=-1)
        return joined

    def effect_factors(self, own: Theta) -> list[jax.Array]:
        """Cholesky factor of the covariance of each group term's effects."""
        parts = self._by_group(own[LOG_SD], own.get(PARTIAL, jnp.zeros(0)))
        return [covariance_factor(jnp.concatenate(of), len(g.sds)) for g, *of in parts]

    def restore(self, named: dict[str, Pytree]) -> dict[str, Pytree]:
        """Undo `report`: move the hyperparameters out of `named`."""
        own: dict[str, Pytree] = {}
        for name in (MEAN_STEP, STEP_SHARE) if self.steps else ():
            named.pop(name, None)  # they follow from the steps
        if "group_cor" in named:
            own[PARTIAL] = self._correlated(jnp.asarray(named.pop("group_cor")), partials_of)
        if self.pooled:
            places = self._sd_places
            sds = jnp.concatenate([jnp.asarray(named.pop(kind)) for kind in places])
            own[LOG_SD] = jnp.log(sds[np.argsort(np.concatenate(list(places.values())))])
        if self.shrunk:
            given = {name: jnp.atleast_1d(named.pop(name)) for name in set(self._shrunk_names)}
            names = self._shrunk_names
            scales = [given[name][names[:k].count(name)] for k, name in enumerate(names)]
            own[HORSESHOE] = jnp.log(jnp.stack(scales))
        return {OWN: own} if own else {}

    # What users see --------------------------------------------------------------------------

    def by_entry(self, theta: Theta) -> list[Prior | None]:
        """Return the prior of each entry of t; None for effects and hyperparameters."""
        pooled = np.shape(theta["beta"])[-1] - len(self.coefficients)
        known: dict[str, list[Prior | None]] = {"beta": [*self.coefficients, *[None] * pooled]}
        known |= {name: [prior] for name, prior, _ in self.alone}
        entries: list[Prior | None] = []
        for name, places in _places(theta).items():
            priors = known.get(name, [None])
            entries += priors * (places.size // max(1, len(priors)))
        return entries

    def distances(
        self, t: np.ndarray, theta: Theta, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances of entries of t from the centres of their priors, in widths, and their slopes.

        The distances, which are linear in t unless coefficients have constraints, and the slopes
        are those of the entries `places`; t is laid out as `theta`. No effect is too far from 0,
        since its scale is sampled.
        """
        typical = [(0.0, np.inf) if p is None else p.on_coordinate for p in self.by_entry(theta)]
        centre, width = np.array(typical).T
        away, slope = (t - centre) / width, np.diag(1 / width[places])
        where = _places(theta)
        columns = where["beta"].reshape(np.shape(theta["beta"]))
        for name, _, at in self.alone:
            own = columns[..., : len(at)].reshape(where[name].size, -1)
            for row, beta in zip(where[name], own, strict=True):
                values, steps = self._values(t[beta])
                line = np.zeros(len(t))
                line[beta], line[row] = at @ steps, 1.0
                away[row] = (at @ values + t[row] - centre[row]) / width[row]
                slope[places == row] = line[places] / width[row]
        return away[places], slope

    def _values(self, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients with these free values, and their derivatives."""
        if not (self.constrained and free.size):
            return free, np.eye(free.size)
        point = jnp.asarray(free)
        slopes = jax.jacfwd(self.constrained.constrain)(point)
        return np.asarray(self.constrained.constrain(point)), np.asarray(slopes)

    @property
    def has_flat(self) -> bool:
        """Whether some parameter has no prior, so that the posterior may be improper."""
        priors = (*self.coefficients, *(prior for _, prior, _ in self.alone))
        return any(isinstance(prior, Flat) for prior in priors)

    def describe(self, coefficients: Sequence[str], keys: Mapping[str, str]) -> dict[str, str]:
        """Describe each prior; one entry for all coefficients where they share it.

        `coefficients` are their names in the summary, `keys` those of the extra parameters' priors.
        """
        texts = [str(prior) for prior in self.coefficients]
        described = dict(zip(coefficients, texts, strict=True))
        if len(set(texts)) == 1:
            described = {name.split("[")[0]: text for name, text in described.items()}
        at_mean = ", of the predictor at the mean of the columns"
        for name, prior, centre in self.alone:
            if isinstance(prior, LogNormal):
                described[name] = str(Normal(*prior.numbers))
            else:
                described[keys.get(name, name)] = f"{prior}{at_mean if centre else ''}"
        for group in self.pooled:
            pairs = zip(group.term.sd_keys, group.sds, strict=True)
            described |= {key: str(prior) for key, prior in pairs}
            if group.partials:
                described[f"group_cor[{group.term.key}]"] = str(group.correlation)
        return described


def _alike(prior: Prior | None, like: ShrunkPrior) -> TypeGuard[ShrunkPrior]:
    return type(prior) is type(like) and prior.hyperparameters == like.hyperparameters


def _indices(where: np.ndarray) -> tuple[int, ...]:
    return tuple(map(int, where.ravel()))


def _places(theta: Theta) -> dict[str, np.ndarray]:
    """Return the positions of each leaf in the flat vector, by its path."""
    paths = jax.tree_util.tree_flatten_with_path(dict(theta))[0]
    sizes = [prod(np.shape(leaf)) for _, leaf in paths]
    places = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return {
        ".".join(step.key for step in path): at for (path, _), at in zip(paths, places, strict=True)
    }


FAR = 3.0  # standard deviations from what the prior expects
MOVED = 0.1  # posterior standard deviations below which it does not matter that a prior disagrees


@listed
def prior_warnings(
    names: tuple[str, ...],
    distance: np.ndarray,
    posterior_sd: np.ndarray,
    normal: np.ndarray | None = None,
) -> Iterator[ModicumWarning]:
    """Warn where the data pull a parameter further from its prior than the prior expects.

    Under the prior, a posterior mean has variance tau^2 - v (prior variance minus posterior
    variance). A mean many such standard deviations from the prior's centre shows that prior and
    data disagree, even where a tight prior keeps the mean close to its centre. Without a normal
    prior the mean would lie tau^2 / (tau^2 - v) times as far from the centre; a prior that moves
    it by less than a tenth of a posterior standard deviation is not worth a warning.

    Parameters
    ----------
    names
        Names of the parameters.
    distance
        Posterior means minus prior means, in prior standard deviations.
    posterior_sd
        Posterior standard deviations, in prior standard deviations.
    normal
        Which priors are normal; None means all. For the others `distance` is in widths, see
        `Prior.width`.
    """
    normal = np.ones(len(names), bool) if normal is None else normal
    variance = np.maximum(1.0 - posterior_sd**2, 1e-6)  # of the posterior mean, under the prior
    moved = np.abs(distance) * posterior_sd / variance  # in posterior standard deviations
    variance = np.where(normal, variance, 1.0)  # heavy tails do not hold the mean back
    score = np.abs(distance) / np.sqrt(variance) * (~normal | (moved > MOVED))
    worst = int(np.argmax(np.where(np.isfinite(score), score, 0.0)))
    if not score[worst] > FAR:
        return
    others = int((score > FAR).sum()) - 1
    if normal[worst]:
        unit = "standard deviations"
        effect = (
            f"and would lie about {moved[worst]:.2g} posterior standard deviations further away "
            "without the prior"
        )
    else:
        unit, effect = "widths", "so the prior holds the estimate back from what the data say"
    label = names[worst] + (f" (and of {others} more)" if others else "")
    yield ModicumWarning(
        "prior-far",
        f"the prior of {label} and the data disagree: the posterior mean lies "
        f"{abs(distance[worst]):.2g} prior {unit} from the prior's centre, {effect}",
        "widen that prior (prior_scale, intercept_scale, scale_prior or priors; None puts it "
        "in the units of the data)",
        distance=float(distance[worst]),
        score=float(score[worst]),
    )
