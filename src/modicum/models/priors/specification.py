"""The argument ``priors={"common": ..., "age": ...}``: its checks, and what its keys refer to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from modicum.errors import SettingError, suggestion
from modicum.models.priors.distributions import Prior, Support, prior_from_dict
from modicum.rows import Rows

PriorTable: TypeAlias = tuple[tuple[str, Prior], ...]  # hashable: a key and its prior


def tidy_priors(priors: object) -> PriorTable:
    """Return priors by key as hashable pairs; refuse anything else.

    Priors read from a file are plain dictionaries.
    """
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
    """Refuse a prior with the wrong support, such as positive numbers for a coefficient."""
    if prior.support == support:
        return
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
    """
    return key[5:-1] if key.startswith("beta[") and key.endswith("]") else None


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
