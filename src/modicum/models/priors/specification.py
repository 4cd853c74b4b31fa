"""What a user writes as ``priors={"common": ..., "age": ...}``, and which parameters it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from modicum.errors import SettingError, suggestion
from modicum.models.priors.distributions import Prior, Support, prior_from_dict
from modicum.rows import Rows

__all__ = ["PriorTable", "columns_of", "require_known", "require_support", "tidy_priors"]

PriorTable: TypeAlias = tuple[tuple[str, Prior], ...]  # hashable: a key and its prior


def tidy_priors(priors: object) -> PriorTable:
    """Return priors by key as something hashable; a sentence for what are none.

    A file has them as plain dictionaries.
    """
    if priors is None:
        return ()
    pairs = tuple(priors.items()) if isinstance(priors, Mapping) else priors
    if not isinstance(pairs, Sequence):
        raise SettingError(
            "priors must map names to distributions, such as "
            f'{{"common": mo.priors.Normal(0, 1)}}, not {type(priors).__name__}.'
        )
    table = []
    for key, prior in pairs:
        if isinstance(prior, Mapping) and "distribution" in prior:
            prior = prior_from_dict(prior)
        if not isinstance(key, str) or not isinstance(prior, Prior):
            raise SettingError(
                f"the prior of {key!r} must be a distribution such as mo.priors.Normal(0, 1), not "
                f"{prior!r}."
            )
        table.append((key, prior))
    return tuple(table)


def require_support(key: str, prior: Prior, support: Support) -> None:
    """Refuse a distribution of positive numbers for a coefficient, and the like."""
    if prior.support == support:
        return
    needed, fitting = {
        "real": ("a number on the whole line", "Normal or StudentT"),
        "positive": ("a positive number", "HalfNormal, Exponential or LogNormal"),
        "correlation": ("a correlation matrix", "LKJ"),
    }[support]
    raise SettingError(
        f"the prior of {key!r} cannot be {prior}: it is {needed}; use {fitting}, say."
    )


def columns_of(key: str, rows: Rows) -> list[int]:
    """Return the columns that a key means: a column, or those of a term or a categorical column."""
    names = rows.columns
    if key in names:
        return [names.index(key)]
    terms: Mapping[str, Sequence[str]] = getattr(rows.schema, "terms", {})
    if key in terms:
        own = set(terms[key])
        return [j for j, name in enumerate(names) if name in own]
    if key in rows.levels:
        return [j for j, name in enumerate(names) if name.startswith(f"{key}[")]
    return []


def require_known(key: str, others: Sequence[str], rows: Rows) -> None:
    """Refuse a key that means nothing, and name what there is."""
    terms: Mapping[str, Sequence[str]] = getattr(rows.schema, "terms", {})
    known = list(dict.fromkeys([*others, *terms, *rows.levels, *rows.columns]))
    shown = ", ".join(known[:12]) + (" ..." if len(known) > 12 else "")
    raise SettingError(
        f"there is nothing called {key!r} to give a prior to{suggestion(key, known)}; there is "
        f"{shown}."
    )
