"""The choice between explicit group effects and effects that are integrated out.

Explicit effects (`groups=` of a family) suit crossed factors of up to a few thousand levels, and
one factor with more (`arrowhead`). The rows that a step needs then grow like d^3 / n with the
number of parameters d: rows of thin groups are far from quadratic in their group's effect. Effects
of one factor, the one with the most levels, can instead be integrated out (`IntegratedEffects`),
however many they are; the effects of other factors stay explicit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

from modicum.errors import SettingError, argument
from modicum.linalg.arrow import MOST_BORDER, MOST_NUMBERS, arrow_fits
from modicum.models.integrated import IntegratedEffects
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import DENSE_LIMIT, BaseModel
from modicum.models.priors.distributions import LKJ, Prior, ShrunkPrior, hyphenated
from modicum.models.priors.resolved import columns_of, require_known
from modicum.models.terms import INTERCEPT, GroupTerm, common_columns, tidy_groups
from modicum.rows import Rows

HoldEffects: TypeAlias = Literal["explicit", "integrate"]

MOST_EFFECTS = 3  # most effects per group for quadrature
MOST_BESIDE = 1_000  # most other parameters: every group of a step has a Hessian in these
# Rows per step that explicit effects need, over d^3 / n: fitted to logistic rows of the flights
# data, which needed 60 for 137 parameters and about 15,000 for 4,042.
ROWS_NEEDED = 0.08
MOST_ROWS = 2_000
GROUPS_NEEDED, NODES = 40, 9  # groups per step and nodes per effect, if effects are integrated out
FRESH = 1 / 80  # share of a step's rows that are whitened per gradient: a block of 20 in four
MOST_DIRECT = 5_000  # parameters with normal noise that are drawn given scales, 5 s per thousand
MANY = 500  # parameters above which whitening a row (d^2 operations) may tip the choice


class Multilevel(NamedTuple):
    """A model with group terms, how it treats their effects, and why."""

    model: BaseModel
    how: HoldEffects
    why: str


def multilevel(
    family: LinearPredictorModel,
    terms: Sequence[GroupTerm],
    rows: Rows,
    how: HoldEffects | None = None,
    no_chain: bool = False,
) -> Multilevel:
    """Return a family with group terms whose effects are treated the cheaper way.

    Parameters
    ----------
    family
        The family, with priors of its coefficients, and of the effects under the keys "group_sd",
        the name of a group and "group_cor".
    terms
        The group terms.
    rows
        The rows, which hold the codes of the groups.
    how
        "explicit" or "integrate"; None chooses by estimated cost.
    no_chain
        Whether explicit effects that are normal given their scales will be drawn without a chain.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> ward = np.repeat(np.arange(40), 5)
    >>> rows = mo.Rows(x=np.ones((200, 1)), y=ward % 2, codes={"ward": ward})
    >>> multilevel(mo.models.Logistic(), [mo.models.GroupTerm("ward")], rows).how
    'explicit'
    """
    if how not in (None, "explicit", "integrate"):
        raise SettingError(f"groups must be 'explicit' or 'integrate', not {how!r}.")
    terms = tidy_groups(terms)  # refuses an effect that occurs twice
    explicit = replace(family, groups=terms)  # refuses priors of the wrong kind
    sizes = _sizes(terms, rows)
    own = _of_coefficients(family, terms)
    obstacle = _obstacle(family, sizes.inner, sizes.beside, own)
    if how == "integrate" and obstacle is not None:
        _require_known_priors(family, terms, rows)  # a misspelt key may look like an obstacle
        raise SettingError(f"{obstacle}; use {argument('groups', 'explicit')}.")
    arrow = not family.modelled and _is_arrow(family, terms, sizes)
    possible = sizes.all <= DENSE_LIMIT or arrow
    thin = sizes.needed > MOST_ROWS
    thin = thin or (sizes.all > MANY and _integrating_is_cheaper(rows, terms, sizes))
    few = possible and sizes.all <= MOST_DIRECT
    noise = family.at_known_scale() is not None and not family.observed_in(rows)  # is normal
    direct = thin and few and no_chain and noise and all(prior.is_normal for prior in own)
    thin = not possible or (thin and not direct)
    if how == "integrate" or (how is None and thin and obstacle is None):
        _require_known_priors(family, terms, rows)
        model = _integrated(family, sizes.inner, sizes.outer)
        return Multilevel(model, "integrate", _why_integrated(sizes, how))
    if not possible:
        raise _too_many_parameters(sizes, obstacle)
    why = f"{sizes.all:,} parameters for {len(rows):,} rows are few"
    if direct:
        why = f"{sizes.all:,} parameters are normal given their scales, and drawn without a chain"
    if how is not None or thin:
        why = "set by hand" if how else f"{obstacle}"
    return Multilevel(explicit, "explicit", why)


def _of_coefficients(family: LinearPredictorModel, terms: Sequence[GroupTerm]) -> list[Prior]:
    """Return the priors that were given of coefficients, rather than of scales."""
    owned = {"group_sd", "group_cor", "smooth_sd", *map(family.extra_key, family.extras)}
    owned |= {key for term in (*terms, *family.smooths) for key in (term.key, *term.sd_keys)}
    return [prior for key, prior in family.prior_table if key not in owned]


def _require_known_priors(
    family: LinearPredictorModel, terms: Sequence[GroupTerm], rows: Rows
) -> None:
    """Refuse priors of what is neither a parameter, a group nor a column."""
    keys = family.prior_keys(terms)
    for key, _ in family.prior_table:
        if key not in keys and not columns_of(key, rows):
            require_known(key, keys, rows)


def _why_integrated(sizes: _Sizes, how: HoldEffects | None) -> str:
    """Say why effects are integrated out, and which."""
    why = "set by hand"
    if how is None:
        needed = float(f"{sizes.needed:.2g}")  # to two digits
        why = (
            f"{sizes.all:,} explicit parameters would take about {needed:,.0f} rows per step and "
            "sums over all levels; tens of groups per step are enough"
        )
    if sizes.outer:
        why += f"; effects of {sizes.largest!r} are integrated out, all others explicit"
    return why


class _Sizes(NamedTuple):
    """Numbers of coefficients, and which of them could be integrated out."""

    common: int  # coefficients of common columns
    all: int  # common coefficients, and effects of all levels
    needed: float  # rows per step if all effects are explicit
    largest: str  # the factor with the most levels
    inner: list[GroupTerm]  # terms of the largest factor
    outer: list[GroupTerm]  # terms of the other factors
    levels: int  # levels of the largest factor
    beside: int  # coefficients other than the largest factor's effects


def _sizes(terms: Sequence[GroupTerm], rows: Rows) -> _Sizes:
    common = len(common_columns(terms, rows))
    size = common + sum(len(rows.levels[t.field]) * len(t.effects) for t in terms)
    largest = max(terms, key=lambda term: len(rows.levels[term.field])).field
    inner = [term for term in terms if term.field == largest]
    outer = [term for term in terms if term.field != largest]
    levels = len(rows.levels[largest])
    beside = size - levels * sum(len(term.effects) for term in inner)
    needed = ROWS_NEEDED * size**3 / len(rows)
    return _Sizes(common, size, needed, largest, inner, outer, levels, beside)


def _too_many_parameters(sizes: _Sizes, obstacle: str | None) -> SettingError:
    reason = "" if obstacle is None else f", and {obstacle}"
    remedy = f"integrate effects out by {argument('groups', 'integrate')}"
    if obstacle is not None:
        remedy = "leave out the group with the most levels, or merge levels"
    return SettingError(
        f"the model would have {sizes.all:,} explicit parameters, {sizes.beside:,} of them "
        f"besides the effects of {sizes.largest!r}; the limit is {DENSE_LIMIT:,}, or "
        f"{MOST_BORDER:,} besides the effects of one factor (and {MOST_NUMBERS:,} products of "
        f"the two){reason}; {remedy}."
    )


def _is_arrow(family: LinearPredictorModel, terms: Sequence[GroupTerm], sizes: _Sizes) -> bool:
    """Whether arrow matrices can hold all effects explicitly: most belong to one factor."""
    own = sum(len(term.effects) + len(term.cor_names) for term in terms)
    parameters = sizes.all + own + family.intercept + len(family.extras)
    effects = sum(len(term.effects) for term in sizes.inner)
    return arrow_fits(sizes.levels, effects, parameters)


def _integrating_is_cheaper(rows: Rows, terms: Sequence[GroupTerm], sizes: _Sizes) -> bool:
    """Compare operations per gradient of explicit and integrated effects.

    Explicit effects cost the rows that a step needs times all parameters, plus whitening; or, where
    a dense matrix is too large, the nonzero columns of these rows and four products of the border
    with all levels. Integrated effects cost the rows of some groups at all nodes, and the Hessian
    of each group in all other parameters.
    """
    effects = sum(len(term.effects) for term in sizes.inner)
    row_columns = sizes.common + sum(len(term.effects) for term in terms)
    explicit = sizes.needed * (sizes.all + FRESH * sizes.all**2)
    if sizes.all > DENSE_LIMIT:
        explicit = sizes.needed * row_columns + 4 * sizes.levels * effects * sizes.beside
    rows_per_group = len(rows) / sizes.levels
    integrated = GROUPS_NEEDED * (rows_per_group * NODES**effects * row_columns + sizes.beside**2)
    return integrated < explicit


def _obstacle(
    family: LinearPredictorModel,
    terms: Sequence[GroupTerm],
    beside: int,
    of_coefficients: Sequence[Prior],
) -> str | None:
    """Say why effects of one factor cannot be integrated out; None if they can."""
    if family.predictor_per_class:
        return "effects cannot be integrated out where each class has its own"
    if family.modelled:
        return f"effects cannot be integrated out where {family.modelled[0]!r} has its own formula"
    if beside > MOST_BESIDE:
        return (
            f"effects can be integrated out of a model with up to {MOST_BESIDE} other parameters, "
            f"but there would be {beside:,}"
        )
    effects = [effect for term in terms for effect in term.effects]
    if len(effects) > MOST_EFFECTS:
        return f"at most {MOST_EFFECTS} effects per group can be integrated out"
    if len(terms) > 1 and any(term.has_correlations for term in terms):
        return "correlated and uncorrelated effects of one group cannot be integrated out together"
    shrunk = [prior for _, prior in family.prior_table if isinstance(prior, ShrunkPrior)]
    if shrunk:
        kind = hyphenated(type(shrunk[0]))
        return f"a {kind} prior cannot be combined with effects that are integrated out"
    if any(prior.is_bounded or prior.joint for prior in of_coefficients):
        kind = "coefficients within bounds, or monotonic ones,"
        return f"{kind} cannot be combined with effects that are integrated out"
    return None


def _integrated(
    family: LinearPredictorModel, terms: Sequence[GroupTerm], others: Sequence[GroupTerm]
) -> IntegratedEffects:
    by_key: dict[str, Prior] = dict(family.prior_table)
    field = terms[0].field
    pairs = [pair for term in terms for pair in zip(term.effects, term.sd_keys, strict=True)]
    pairs.sort(key=lambda pair: pair[0] != INTERCEPT)
    of_all = by_key.pop(field, by_key.get("group_sd"))
    sds = {effect: by_key.pop(key, of_all) for effect, key in pairs}
    correlation = by_key.get("group_cor", LKJ())
    if not others:
        by_key = {key: p for key, p in by_key.items() if key not in ("group_sd", "group_cor")}
    # Any: values of fields of the family, of different types
    changes: dict[str, Any] = {"priors": by_key or None, "groups": tuple(others)}
    return IntegratedEffects(
        replace(family, **changes),
        field,
        slopes=tuple(effect for effect in sds if effect != INTERCEPT),
        intercept=INTERCEPT in sds,
        correlated=len(terms) == 1 and terms[0].correlated,
        group_sd=tuple(sds.values()),
        concentration=correlation.numbers[0],
    )
