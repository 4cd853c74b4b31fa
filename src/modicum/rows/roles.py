"""Which column of a table plays which part."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modicum.errors import DataError, SettingError


@dataclass(frozen=True)
class Roles:
    """The columns that are used, by part; `references` maps a categorical to its reference."""

    outcome: str | None
    predictors: tuple[str, ...]
    offset: str | None = None
    weight: str | None = None
    references: Mapping[str, Any] | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """Every column that must be read."""
        others = (self.outcome, self.offset, self.weight)
        return tuple(dict.fromkeys(self.predictors + tuple(c for c in others if c is not None)))

    @property
    def categorical(self) -> tuple[str, ...]:
        """The categorical columns, in the order of the predictors."""
        return tuple(c for c in self.predictors if c in (self.references or {}))


def close_to(word: Any, words: Iterable[Any]) -> str:
    """Return a hint that names the words nearest to `word`, or the first few there are."""
    names = [str(w) for w in words]
    near = difflib.get_close_matches(str(word), names, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(map(repr, near)) + "?"
    shown = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
    return f"there are {shown}."


def _column(part: str, name: Any, names: Sequence[str]) -> str:
    if not isinstance(name, str):
        raise SettingError(f"{part} must be the name of a column, not {type(name).__name__}.")
    if name not in names:
        raise SettingError(f"{part} column {name!r} is not in the data: {close_to(name, names)}")
    return name


def resolve(
    names: Sequence[str],
    outcome: str | None,
    predictors: Sequence[str] | None,
    offset: str | None,
    weight: str | None,
    categorical: Sequence[str] | Mapping[str, Any],
) -> Roles:
    """Check the user's column names against the table's and give each its part."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"column {twice[0]!r} occurs more than once: rename one of them.")
    named = {"outcome": outcome, "offset": offset, "weight": weight}
    others = {part: _column(part, name, names) for part, name in named.items() if name is not None}
    if len(set(others.values())) < len(others):
        raise SettingError(f"one column cannot play two parts: {others}.")
    if predictors is None:
        chosen = tuple(name for name in names if name not in others.values())
    else:
        if isinstance(predictors, str):
            raise SettingError(f"predictors must be a sequence of names: pass [{predictors!r}].")
        chosen = tuple(_column("predictor", name, names) for name in predictors)
        for part, name in others.items():
            if part != "offset" and name in chosen:
                raise SettingError(
                    f"the {part} column {name!r} is among the predictors: remove it."
                )
    if not chosen:
        raise SettingError("there are no predictors: name at least one column.")
    if len(set(chosen)) < len(chosen):
        again = Counter(chosen).most_common(1)[0][0]
        raise SettingError(f"predictor {again!r} is named twice: remove one.")
    if isinstance(categorical, str):
        raise SettingError(f"categorical must be a sequence of names: pass [{categorical!r}].")
    references = (
        dict(categorical) if isinstance(categorical, Mapping) else dict.fromkeys(categorical)
    )
    for name in references:
        if _column("categorical", name, names) not in chosen:
            raise SettingError(f"categorical column {name!r} is not among the predictors.")
    return Roles(outcome, chosen, offset, weight, references)
