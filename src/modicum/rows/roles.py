"""The role of each column of a table: outcome, predictor, offset or weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.rows.checks import name_list, names_like
from modicum.rows.level_names import Level


class ColumnChoice(NamedTuple):
    """The columns the user named, as in `Rows.from_table`, not checked yet."""

    outcome: str | None = "y"
    predictors: Sequence[str] | None = None
    offset: str | None = None
    weight: str | None = None
    categorical: Sequence[str] | Mapping[str, Level | None] = ()
    dense: bool = False


@dataclass(frozen=True)
class Roles:
    """The columns by role; `references` maps categorical columns to their reference levels."""

    outcome: str | None
    predictors: tuple[str, ...]
    offset: str | None = None
    weight: str | None = None
    references: Mapping[str, Level | None] = field(default_factory=dict)

    @property
    def needed(self) -> tuple[str, ...]:
        """Every column that must be read."""
        others = (self.outcome, self.offset, self.weight)
        return tuple(dict.fromkeys(self.predictors + tuple(c for c in others if c is not None)))

    @property
    def categorical(self) -> tuple[str, ...]:
        """The categorical columns, in the order of the predictors."""
        return tuple(c for c in self.predictors if c in self.references)


def resolve(names: Sequence[str], choice: ColumnChoice) -> Roles:
    """Check the user's column names against the table's, and assign each column its role."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"column {twice[0]!r} occurs more than once: rename one of them.")
    parts = {"outcome": choice.outcome, "offset": choice.offset, "weight": choice.weight}
    others = {part: _column(part, name, names) for part, name in parts.items() if name is not None}
    if len(set(others.values())) < len(others):
        raise SettingError(f"one column cannot have two roles: {others}.")
    predictors = _predictors(names, choice.predictors, others)
    references = _references(choice.categorical)
    for name in references:
        if _column("categorical", name, names) not in predictors:
            raise SettingError(
                f"categorical column {name!r} is not among the predictors: add it to them, or "
                "leave it out of categorical."
            )
    return Roles(choice.outcome, predictors, choice.offset, choice.weight, references)


def _column(part: str, name: object, names: Sequence[str]) -> str:
    column = _text(part, name)
    if column not in names:
        raise SettingError(f"{part} column {name!r} is not in the data: {names_like(name, names)}")
    return column


def _predictors(
    names: Sequence[str], predictors: object, others: Mapping[str, str]
) -> tuple[str, ...]:
    if predictors is None:
        chosen = tuple(name for name in names if name not in others.values())
    else:
        chosen = tuple(
            _column("predictor", name, names) for name in name_list("predictors", predictors)
        )
        for part, name in others.items():
            if part != "offset" and name in chosen:
                raise SettingError(
                    f"the {part} column {name!r} is among the predictors: remove it."
                )
    if not chosen:
        raise SettingError("there are no predictors: name at least one column.")
    if len(set(chosen)) < len(chosen):
        twice = Counter(chosen).most_common(1)[0][0]
        raise SettingError(f"predictor {twice!r} is named twice: remove one.")
    return chosen


def _references(categorical: object) -> dict[str, Level | None]:
    if isinstance(categorical, Mapping):
        for name, level in categorical.items():
            if level is not None and not isinstance(level, str | int | float | np.generic):
                raise SettingError(
                    f"the reference level of column {name!r} must be text or a number, not a "
                    f"{type(level).__name__}."
                )
        return dict(categorical)
    names = name_list("categorical", categorical)
    return dict.fromkeys(_text("categorical", name) for name in names)


def _text(part: str, name: object) -> str:
    if not isinstance(name, str):
        raise SettingError(f"{part} must be the name of a column, not {type(name).__name__}.")
    return name
