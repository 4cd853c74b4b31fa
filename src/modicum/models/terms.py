"""Pooled terms: coefficients with an estimated standard deviation, of groups and of smooths.

Explicit effects of groups are coefficients like any other: the model matrix has a column for each
level, held as codes. What makes them group effects is their prior, N(0, sd^2) with an sd that is
sampled. The columns of a smooth have the same prior.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from modicum.arguments import check_settings
from modicum.errors import DataError, SettingError, suggestion
from modicum.rows import CodedTerm, Coding, Rows
from modicum.rows.levels import refuse_fractions

INTERCEPT = "1"  # a formula's symbol for an effect on the predictor itself
CHUNK = 65_536
REMOTE = 20  # standard deviations of a slope's column from 0, where intercepts are


class PooledTerm(ABC):
    """Coefficients of which those of a level have the prior N(0, Sigma), with Sigma estimated."""

    kind: ClassVar[str]  # of its standard deviations in draws
    parameter: str  # the parameter of the family whose predictor they enter; empty: the mean

    @classmethod
    def by_kind(cls) -> Mapping[str, type[PooledTerm]]:
        """Return the kinds of terms by their names in files."""
        return {kind.__name__: kind for kind in PooledTerm.__subclasses__()}

    @property
    def effects(self) -> tuple[str, ...]:
        """The coefficients of a level."""
        return (INTERCEPT,)

    @property
    def before(self) -> str:
        """What precedes the names of another predictor's parameters: "scale."."""
        return f"{self.parameter}." if self.parameter else ""

    @property
    @abstractmethod
    def key(self) -> str:
        """The name under which its standard deviations have a prior."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients in draws, one for each effect."""

    @property
    @abstractmethod
    def sd_names(self) -> tuple[str, ...]:
        """Labels of their standard deviations in draws."""

    @property
    def sd_keys(self) -> tuple[str, ...]:
        """Their names in the summary, under which each can have a prior of its own."""
        return tuple(f"{self.kind}[{name}]" for name in self.sd_names)

    @property
    def cor_names(self) -> tuple[str, ...]:
        """Labels of their correlations in draws."""
        return ()

    @abstractmethod
    def levels(self, rows: Rows) -> tuple[str, ...]:
        """Labels of the levels."""

    @abstractmethod
    def columns_of(self, rows: Rows) -> list[int]:
        """Positions in `rows.columns` of columns that are not common, because of the term."""

    def coded(self, first: int, rows: Rows) -> list[CodedTerm]:
        """Return its columns from `first` on, if rows hold them as codes."""
        return []


@dataclass(frozen=True)
class SmoothTerm(PooledTerm):
    """Columns whose coefficients have one standard deviation, as the wiggles of a smooth have.

    Parameters
    ----------
    name
        Its name in draws: ``s(hour)``.
    columns
        Names of its columns.
    key
        The term of the formula to which it belongs, which may have several such parts.
    parameter
        The parameter of the family whose predictor they enter; empty: the mean.
    """

    name: str
    columns: tuple[str, ...]
    key: str = ""
    parameter: str = ""

    kind: ClassVar[str] = "smooth_sd"

    @property
    def names(self) -> tuple[str, ...]:
        """Its name."""
        return (self.name,)

    sd_names = names

    def levels(self, rows: Rows) -> tuple[str, ...]:
        """Numbers of the columns."""
        return tuple(str(j + 1) for j in range(len(self.columns)))

    def columns_of(self, rows: Rows) -> list[int]:
        """Positions of its columns."""
        absent = [name for name in self.columns if name not in rows.columns]
        if absent:
            raise DataError(f"the rows lack the column {absent[0]!r} of {self.name}: fit again.")
        return [rows.columns.index(name) for name in self.columns]


@dataclass(frozen=True)
class GroupTerm(PooledTerm):
    """Effects that vary between the levels of a factor: ``(1 + hour | dest)`` of a formula.

    Parameters
    ----------
    field
        The field of the rows that holds the codes of the factor.
    effects
        "1" for an effect on the predictor itself, and names of columns of x for slopes.
    correlated
        Whether the effects of a level are correlated, where there are several.
    parameter
        The parameter of the family whose predictor they enter; empty: the mean.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.GroupTerm("dest", ("1", "hour")).names
    ('1|dest', 'hour|dest')
    """

    field: str
    effects: tuple[str, ...] = (INTERCEPT,)
    correlated: bool = True
    parameter: str = ""

    kind: ClassVar[str] = "group_sd"

    def __post_init__(self) -> None:
        effects = self.effects
        if isinstance(effects, str) or not isinstance(effects, Sequence) or not effects:
            raise SettingError(
                f"effects of a group must be a list of names, such as ['1', 'hour'], not "
                f"{effects!r}."
            )
        object.__setattr__(self, "effects", tuple(effects))
        check_settings(self)
        if not isinstance(self.field, str) or not all(isinstance(e, str) for e in effects):
            raise SettingError("a group and its effects must be given by name.")
        if len(set(effects)) < len(effects):
            raise SettingError(f"the group {self.field!r} has an effect twice: {list(effects)}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the effects in draws."""
        return tuple(f"{self.before}{effect}|{self.field}" for effect in self.effects)

    @property
    def key(self) -> str:
        """The name under which its standard deviations have a prior."""
        return f"{self.before}{self.field}"

    def levels(self, rows: Rows) -> tuple[str, ...]:
        """Levels of the factor."""
        return tuple(str(level) for level in rows.levels[self.field])

    def columns_of(self, rows: Rows) -> list[int]:
        """Positions of contrasts between its levels, which all have effects instead."""
        coding, own = rows.coding or Coding(), (self.field, self.parameter)
        contrasts = [t for t in coding.terms if t.scale is None and t.width]
        mine = [t for t in contrasts if (t.field, coding.parameters[t.first]) == own]
        return [j for t in mine for j in range(t.first, t.first + t.width)]

    def coded(self, first: int, rows: Rows) -> list[CodedTerm]:
        """Return one block of columns for each effect."""
        size = len(rows.levels[self.field])
        return [
            CodedTerm(self.field, first + j * size, size, False, _scale_of(effect, rows))
            for j, effect in enumerate(self.effects)
        ]

    @property
    def sd_names(self) -> tuple[str, ...]:
        """Labels of their standard deviations in the draws of `group_sd`."""
        return tuple(self.key if e == INTERCEPT else f"{self.key}:{e}" for e in self.effects)

    @property
    def slopes(self) -> tuple[str, ...]:
        """The effects that multiply columns of x."""
        return tuple(effect for effect in self.effects if effect != INTERCEPT)

    @property
    def has_correlations(self) -> bool:
        """Whether correlations between effects are estimated."""
        return self.correlated and len(self.effects) > 1

    @property
    def cor_names(self) -> tuple[str, ...]:
        """Labels of their correlations in draws, row by row below the diagonal."""
        if not self.has_correlations:
            return ()
        pairs = [(a, b) for i, a in enumerate(self.effects) for b in self.effects[:i]]
        return tuple(f"{self.key}:{b},{a}" for a, b in pairs)


def tidy_groups(groups: object) -> tuple[GroupTerm, ...]:
    """Return group terms as a tuple; a plain name means a group with an intercept."""
    if groups is None:
        return ()
    entries = (groups,) if isinstance(groups, str | GroupTerm) else groups
    if not isinstance(entries, Sequence):
        raise SettingError(
            "groups must be names of fields, or mo.models.GroupTerm(...) with effects, not "
            f"{type(groups).__name__}."
        )
    terms = []
    for entry in entries:
        if isinstance(entry, str):
            entry = GroupTerm(entry)
        if not isinstance(entry, GroupTerm):
            raise SettingError(
                "a group must be the name of a field, or mo.models.GroupTerm('ward', ('1', 'dose'))"
                f" with the effects that vary, not {entry!r}."
            )
        terms.append(entry)
    named = [name for term in terms for name in term.names]
    if len(set(named)) < len(named):
        raise SettingError(f"groups have an effect twice: {', '.join(named)}.")
    return tuple(terms)


def common_columns(pooled: Sequence[PooledTerm], rows: Rows) -> tuple[int, ...]:
    """Positions in `rows.columns` of the common columns: all but those of pooled terms.

    A factor that is a group has no treatment contrasts.
    """
    inside = {j for term in pooled for j in term.columns_of(rows)}
    return tuple(j for j in range(len(rows.columns)) if j not in inside)


def pooled_coding(pooled: Sequence[PooledTerm], rows: Rows) -> Coding | None:
    """Return the coding of the model matrix: common columns, then those of each pooled term."""
    if not pooled:
        return rows.coding
    coding = rows.coding or Coding(tuple(range(len(rows.columns))))
    place = {old: new for new, old in enumerate(common_columns(pooled, rows))}
    kept = [replace(t, first=place[t.first]) for t in coding.terms if t.first in place]
    predictors = []
    for parameter, *ends in coding.predictors:
        common = [place[j] for j in range(*ends) if j in place]
        if common:
            predictors.append((parameter, common[0], common[-1] + 1))
    first = len(place)
    for term in pooled:
        coded, stop = term.coded(first, rows), first + len(term.effects) * len(term.levels(rows))
        kept += coded
        if not coded:
            place |= {j: first + at for at, j in enumerate(term.columns_of(rows))}
        predictors += [(term.parameter, first, stop)] * bool(term.parameter)
        first = stop
    dense = tuple(place[j] for j in coding.dense)
    if rows.coding is None and not kept and dense == coding.dense:
        return None
    return Coding(dense, tuple(kept), coding.further, tuple(predictors))


def effect_columns(term: GroupTerm, rows: Rows, x: np.ndarray) -> np.ndarray:
    """Return the values that multiply the effects of each row's level, for rows with field `x`."""
    places = [_scale_of(effect, rows) for effect in term.effects]
    return np.column_stack([np.ones(len(x)) if k is None else x[:, k] for k in places])


def _scale_of(effect: str, rows: Rows) -> int | None:
    """Column of x that an effect multiplies; None for the intercept."""
    return None if effect == INTERCEPT else slope_columns(rows)[effect]


def slope_columns(rows: Rows) -> dict[str, int]:
    """Return the columns of x whose effects can vary by group, with their index in x."""
    if rows.coding is None:
        return {name: at for at, name in enumerate(rows.columns)}
    dense = {rows.columns[j]: at for at, j in enumerate(rows.coding.dense)}
    return dense | dict(rows.coding.further)


def slope_places(group: GroupTerm, rows: Rows) -> list[int]:
    """Return the columns of x that the slopes of a group multiply; refuse others."""
    columns = slope_columns(rows)
    for effect in group.slopes:
        if effect not in columns:
            why = (
                "it is a level of a categorical column, and only effects of numeric columns can; a "
                "formula of mo.fit takes the factor itself"
                if effect in rows.columns
                else f"x has no column of that name{suggestion(effect, columns)}; the columns are "
                f"{', '.join([*columns][:12]) or 'none'}"
            )
            raise DataError(f"the slope {effect!r} is to vary by {group.field!r}, but {why}.")
    return [columns[effect] for effect in group.slopes]


def check_groups(groups: Sequence[GroupTerm], rows: Rows) -> None:
    """Refuse groups that the rows do not have, or whose scale cannot be estimated."""
    for group in groups:
        _check_field(group.field, rows)
        refuse_fractions(group.field, rows.levels[group.field])
        levels = len(rows.levels[group.field])
        if levels < 2:
            raise DataError(
                f"the group {group.field!r} has a single level, so how its effects vary cannot be "
                "estimated; leave it out."
            )
        check_slopes(group, rows, np.arange(levels))


def _check_field(field: str, rows: Rows) -> None:
    """Refuse a group that the rows hold no codes for."""
    if field in rows.levels and field in rows.fields:
        return
    if "|" in field:
        raise SettingError(
            f"{field!r} is a group term of a formula, but a model of rows takes the name of the "
            "group: groups=['ward'], or mo.models.GroupTerm('ward', ('1', 'dose')); formulas are "
            "for mo.fit."
        )
    factors = [name for name in rows.levels if name in rows.fields]
    reason = f"they hold the codes of {', '.join(factors)}" if factors else "they hold no codes"
    if field in rows.fields:
        reason = f"it is a plain field, and {reason}"
    raise DataError(
        f"{field!r} is not a group of the rows{suggestion(field, factors)}, since {reason}: give "
        f"the groups as mo.Rows(..., codes={{{field!r}: levels}})."
    )


def check_slopes(group: GroupTerm, rows: Rows, values: np.ndarray) -> None:
    """Refuse slopes of what is no column of x, or beside an intercept is constant in every group.

    `values` are those that the field has, in increasing order.
    """
    columns = slope_places(group, rows)
    if not columns or INTERCEPT not in group.effects:
        return
    shape = len(values), len(columns)
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    varies = np.zeros(len(columns), bool)
    for chunk in rows.chunks(CHUNK):
        x, at = np.asarray(chunk["x"])[:, columns], np.searchsorted(values, chunk[group.field])
        np.minimum.at(low, at, x)
        np.maximum.at(high, at, x)
        varies |= (high > low).any(axis=0)
        if varies.all():
            return
    effect = group.slopes[int(np.argmin(varies))]
    raise DataError(
        f"the column {effect!r} does not vary within any level of {group.field!r}, so its slopes "
        f"cannot be told from the levels' intercepts; leave {effect!r} out of the group."
    )


def refuse_remote_slope(slope: str, field: str, mean: float, sd: float) -> None:
    """Refuse a slope beside intercepts at 0, far from its column, for their default prior.

    Lines that cross among the data are far apart at 0. There the prior would bring the intercepts
    together, and thereby the slopes.
    """
    if abs(mean) <= REMOTE * sd or sd == 0:
        return
    raise DataError(
        f"the slope {slope!r} varies by {field!r} beside intercepts, which are effects at 0, but "
        f"the column is {mean:.4g} on average, {abs(mean) / sd:.0f} standard deviations away, and "
        f"the default prior would shrink the slopes: use center({slope}) in place of {slope}, or "
        f"give {field!r} a prior."
    )
