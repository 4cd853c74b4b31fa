"""The priors of a model: as the user names them, fixed for its rows, and whether the data agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from modicum.arrays import as_either, namespace
from modicum.errors import ModicumWarning, SettingError, listed, suggestion
from modicum.models.constraints import (
    Bijection,
    Correlations,
    Entries,
    Interval,
    covariance_factor,
    draw_partials,
    monotonic_steps,
    named_leaves,
    positive,
    real,
    simplex,
)
from modicum.models.priors.distributions import (
    Domain,
    Flat,
    LogNormal,
    Normal,
    Prior,
    ShrunkPrior,
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
    key: str, prior: Prior, support: Domain, *, is_coefficient: bool = False
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


Theta: TypeAlias = Mapping[str, Pytree]  # arrays of parameters, by name
OWN = "variation."  # before hyperparameters: sorted after every other parameter of a model
HORSESHOE = f"{OWN}log_horseshoe"
# Names of the log sds and of the correlations of a term that is integrated out, on which the
# likelihood depends, and of other pooled terms; and the share of a typical sd where sds start.
INTEGRATED, START_INTEGRATED = ("group_log_sd", "group_partial"), 1 / 8
POOLED, START_POOLED = (f"{OWN}log_group_sd", f"{OWN}group_partial"), 0.1
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


class Part(NamedTuple):
    """Some entries of a leaf of the parameters, or all (None)."""

    leaf: str
    where: int | slice | None = None

    def of(self, theta: Theta) -> Pytree:
        """Return these entries, on the last axis of the leaf."""
        leaf = theta[self.leaf]
        return leaf if self.where is None else leaf[..., self.where]


class Reported(NamedTuple):
    """What draws show under a name; what several entries show follows one another."""

    name: str
    parts: tuple[Part, ...]  # one; or several, of one number each
    values: Bijection = real  # maps what is sampled to what is shown


def joined(parts: Iterable[tuple[str, Pytree]]) -> dict[str, Pytree]:
    """Return arrays by name; those of one name follow one another along the last axis."""
    by_name: dict[str, list[Pytree]] = {}
    for name, values in parts:
        by_name.setdefault(name, []).append(values)
    return {
        name: own[0] if len(own) == 1 else namespace(own[0]).concatenate(own, axis=-1)
        for name, own in by_name.items()
    }


def without_own(theta: Theta) -> dict[str, Pytree]:
    """Return the parameters on which the likelihood depends."""
    return {name: leaf for name, leaf in theta.items() if not name.startswith(OWN)}


class Alone(NamedTuple):
    """The prior of a parameter that is no column's coefficient: an intercept, a scale, a chance.

    That of log_s is the prior of s. That of an intercept holds for the predictor at a point in x,
    the `centre`; an empty one is 0.
    """

    name: str
    prior: Prior
    centre: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelPriors:
    """Independent priors of a linear-predictor model.

    Parameters
    ----------
    coefficients
        Prior of each column's coefficient.
    alone
        Priors of the other parameters, the intercept's first.
    pooled
        Priors of pooled terms, whose coefficients follow the common ones in beta, in this order.
    integrated
        Prior of a term whose coefficients are integrated out: only its hyperparameters remain, and
        the likelihood depends on them.
    """

    coefficients: tuple[Prior, ...]
    alone: tuple[Alone, ...]
    pooled: tuple[PooledPrior, ...] = ()
    integrated: PooledPrior | None = None

    # Log-densities ---------------------------------------------------------------------------

    def log_density(self, theta: Theta) -> jax.Array:
        """Log-prior at unconstrained parameters."""
        return ExactPrior(self.terms(theta)).log_density(ravel_pytree(dict(theta))[0])

    def log_unstated(self, theta: Theta) -> jax.Array:
        """What the log-prior has beside the log-densities of the priors as they are stated.

        These are the log-density of effects given their covariance, part of the model rather than
        a prior, and the log-derivatives in the sampled parameters of what the priors are about.
        """
        t = ravel_pytree(dict(theta))[0]
        slopes = sum((term.log_slopes(t) for term in self.terms(theta)), jnp.zeros(()))
        return sum((term.log_effects(t) for term in self.effects(theta) if term.where), slopes)

    def terms(self, theta: Theta) -> tuple[ExactTerm, ...]:
        """Return the priors of all entries of t, for parameters laid out as `theta`."""
        of_leaf, entries = places_of(theta), self.by_entry(theta)
        centred = list(self._centred(theta))
        for at in (at for term in centred for at in term.where):
            entries[at] = None
        terms: list[ExactTerm] = [*centred]
        alike: dict[tuple[type[Prior], Interval | None], dict[int, Prior]] = {}
        for at, prior in enumerate(entries):
            if prior is None or isinstance(prior, ShrunkPrior):
                continue
            if prior.is_normal:
                alike.setdefault((Normal, None), {})[at] = Normal(*prior.on_coordinate)
            elif not prior.is_quadratic:
                within = Interval(*prior.bounds) if prior.is_bounded else None
                alike.setdefault((type(prior), within), {})[at] = prior
        for (_, within), priors in alike.items():
            masses = np.array([prior.log_mass for prior in priors.values()])
            terms.append(Independent(together([*priors.values()]), masses, tuple(priors), within))
        joint = [(at, prior.joint) for at, prior in enumerate(entries) if prior and prior.joint]
        if joint:
            shares = tuple(tuple(range(at + 1, at + number)) for at, number in joint)
            terms.append(StepShares(shares))
        for k, like in enumerate(self.shrunk):
            of_columns = {j: prior for j, prior in enumerate(entries) if _alike(prior, like)}
            each = together([*of_columns.values()])
            noise = int(of_leaf[NOISE][0]) if like.of_noise and NOISE in of_leaf else None
            shared = as_tree(like).with_units(each.unit, each.resolution)
            terms.append(SharedScale(shared, tuple(of_columns), int(of_leaf[HORSESHOE][k]), noise))
        return (*terms, *self.effects(theta))

    @cached_property
    def constrained(self) -> Entries:
        """The constraints of coefficients whose priors have bounds, or are those of steps."""
        alike: dict[Interval, list[int]] = {}
        for j, prior in enumerate(self.coefficients):
            if prior.is_bounded:
                alike.setdefault(Interval(*prior.bounds), []).append(j)
        parts = ((tuple(where), within) for within, where in alike.items())
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
        """Yield the priors of intercepts at a point in x."""
        places = places_of(theta)
        for name, prior, centre in self.alone:
            if centre:
                beta = places["beta"].reshape(places[name].size, -1)[:, : len(centre)]
                where = _indices(places[name]), tuple(map(_indices, beta))
                yield CentredIntercept(as_tree(prior), np.array(centre), *where, self.constrained)

    def effects(self, theta: Theta) -> list[Effects]:
        """Return the terms of groups; one whose effects are integrated out has no levels."""
        places = places_of(theta)
        terms: list[Effects] = []
        first = len(self.coefficients)
        for group, parts in self._by_group():
            own = [places["beta"][first : first + group.size]]
            own += (places[leaf][where] for leaf, where in parts)
            terms.append(Effects(group.scales, np.asarray(group.eta), *map(_indices, own)))
            first += group.size
        return terms

    @property
    def all_pooled(self) -> tuple[PooledPrior, ...]:
        """The priors of all pooled terms, the one that is integrated out first."""
        return (*([] if self.integrated is None else [self.integrated]), *self.pooled)

    def _by_group(self) -> Iterator[tuple[PooledPrior, list[Part]]]:
        """Yield each pooled prior, with its log sds and, if there are any, correlations."""
        ends = dict.fromkeys((*INTEGRATED, *POOLED), 0)
        for group in self.all_pooled:
            leaves = INTEGRATED if group is self.integrated else POOLED
            sizes = {leaves[0]: len(group.sds), leaves[1]: group.partials}
            yield (
                group,
                [Part(name, slice(ends[name], ends[name] + n)) for name, n in sizes.items() if n],
            )
            ends |= {name: ends[name] + n for name, n in sizes.items()}

    def _hyper(self, theta: Theta) -> Iterator[tuple[PooledPrior, jax.Array]]:
        """Yield each pooled prior, and its log sds and partial correlations in one vector."""
        for group, parts in self._by_group():
            yield group, jnp.concatenate([jnp.asarray(part.of(theta)) for part in parts])

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
        parts: list[tuple[str, np.ndarray]] = [("beta", beta)]
        # the term that is integrated out comes last, and has no effects
        for group, places in sorted(self._by_group(), key=lambda own: own[0] is self.integrated):
            *hyper, effects = group.draw(number, rng)
            parts += ((place.leaf, drawn) for place, drawn in zip(places, hyper, strict=False))
            parts.append(("beta", effects))
        return theta | joined(parts)

    # Hyperparameters -------------------------------------------------------------------------

    @property
    def shrunk(self) -> tuple[ShrunkPrior, ...]:
        """The distinct shrinkage priors, whatever columns' units: each has its own global scale."""
        like: list[ShrunkPrior] = []
        for prior in self.coefficients:
            if isinstance(prior, ShrunkPrior) and not any(_alike(prior, h) for h in like):
                like.append(prior)
        return tuple(like)

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
        """Return starting values of the hyperparameters: small sds, and no correlations."""
        parts: list[tuple[str, np.ndarray]] = []
        if self.shrunk:
            typical = [like.log_typical for like in self.shrunk]
            parts.append((HORSESHOE, np.log(0.1) + np.array(typical)))
        for group, (sds, *partials) in self._by_group():
            share = START_INTEGRATED if group is self.integrated else START_POOLED
            parts.append((sds.leaf, np.log([share * prior.centre for prior in group.sds])))
            parts += ((part.leaf, np.zeros(group.partials)) for part in partials)
        return joined(parts)

    def labels(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Names of the entries of the hyperparameters."""
        named: dict[str, tuple[str, ...]] = {}
        for term in (group.term for group in self.all_pooled):
            for name, own in ((term.kind, term.sd_names), ("group_cor", term.cor_names)):
                named[name] = (*named.get(name, ()), *own)
        return {name: (entries,) for name, entries in named.items() if entries}

    def reported(self) -> Iterator[Reported]:
        """Yield what draws show of the hyperparameters."""
        for group, (sds, *partials) in self._by_group():
            for part in partials:
                yield Reported("group_cor", (part,), Correlations(len(group.sds)))
            yield Reported(group.term.kind, (sds,), positive)
        names = [f"{type(prior).__name__.lower()}_scale" for prior in self.shrunk]
        for k, name in enumerate(names):
            where = k if names.count(name) == 1 else slice(k, k + 1)
            yield Reported(name, (Part(HORSESHOE, where),), positive)

    def effect_factors(self, theta: Theta) -> list[jax.Array]:
        """Cholesky factor of the covariance of each group term's effects."""
        groups = [(g, x) for g, x in self._hyper(theta) if g.term.kind == "group_sd"]
        return [covariance_factor(x, len(group.sds)) for group, x in groups]

    # What users see --------------------------------------------------------------------------

    def by_entry(self, theta: Theta) -> list[Prior | None]:
        """Return the prior of each entry of t; None for effects and hyperparameters."""
        pooled = np.shape(theta["beta"])[-1] - len(self.coefficients)
        known: dict[str, list[Prior | None]] = {"beta": [*self.coefficients, *[None] * pooled]}
        known |= {name: [prior] for name, prior, _ in self.alone}
        entries: list[Prior | None] = []
        for name, places in places_of(theta).items():
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
        where = places_of(theta)
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
        return self.constrained.with_slopes(free)

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
        for group in self.all_pooled:
            pairs = zip(group.term.sd_keys, group.sds, strict=True)
            described |= {key: str(prior) for key, prior in pairs}
            if group.partials:
                described[f"group_cor[{group.term.key}]"] = str(group.correlation)
        return described


def _alike(prior: Prior | None, like: ShrunkPrior) -> TypeGuard[ShrunkPrior]:
    return type(prior) is type(like) and prior.hyperparameters == like.hyperparameters


def _indices(where: np.ndarray) -> tuple[int, ...]:
    return tuple(map(int, where.ravel()))


def places_of(theta: Pytree) -> dict[str, np.ndarray]:
    """Return the positions of each leaf in the flat vector, by its name."""
    named = named_leaves(theta)
    sizes = [prod(np.shape(leaf)) for leaf in named.values()]
    places = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return dict(zip(named, places, strict=True))


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
