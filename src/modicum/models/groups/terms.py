"""Group terms: effects of the levels of a factor, with a standard deviation of their own.

Effects held explicitly are coefficients like any other: columns of the model matrix,
one per level, by the codes of the rows. What makes them effects is their prior, N(0, sd^2) with an
sd that is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from modicum.errors import DataError, SettingError, suggestion
from modicum.rows import CodedTerm, Coding, Rows
from modicum.rows.formula.grouping import refuse_fractions

__all__ = [
    "INTERCEPT",
    "GroupTerm",
    "check_groups",
    "common_columns",
    "constant_slope",
    "effect_columns",
    "group_coding",
    "tidy_groups",
]

INTERCEPT = "1"  # how a formula writes an effect on the predictor itself
TOGETHER = 65_536


@dataclass(frozen=True)
class GroupTerm:
    """Effects that vary between the levels of a factor: ``(1 + hour | dest)`` of a formula.

    Parameters
    ----------
    field
        The field of the rows that holds the codes of the factor.
    effects
        "1" for an effect on the predictor itself, and names of columns of x for their slopes.
    correlated
        Whether the effects of a level are correlated, where there are several.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.GroupTerm("dest", ("1", "hour")).names
    ('1|dest', 'hour|dest')
    """

    field: str
    effects: tuple[str, ...] = (INTERCEPT,)
    correlated: bool = True

    def __post_init__(self) -> None:
        effects = self.effects
        if isinstance(effects, str) or not isinstance(effects, Sequence) or not effects:
            raise SettingError(
                f"effects of a group must be a list of names, such as ['1', 'hour'], not "
                f"{effects!r}."
            )
        object.__setattr__(self, "effects", tuple(effects))
        if not isinstance(self.field, str) or not all(isinstance(e, str) for e in effects):
            raise SettingError("a group and its effects are given by their names.")
        if not isinstance(self.correlated, bool):
            raise SettingError(f"correlated must be True or False, not {self.correlated!r}.")
        if len(set(effects)) < len(effects):
            raise SettingError(f"the group {self.field!r} has an effect twice: {list(effects)}.")

    @property
    def names(self) -> tuple[str, ...]:
        """What draws call the effects."""
        return tuple(f"{effect}|{self.field}" for effect in self.effects)

    @property
    def sd_names(self) -> tuple[str, ...]:
        """What draws call their standard deviations, as entries of `group_sd`."""
        return tuple(self.field if e == INTERCEPT else f"{self.field}:{e}" for e in self.effects)

    @property
    def has_slopes(self) -> bool:
        """Whether any effect is on a column."""
        return any(effect != INTERCEPT for effect in self.effects)

    @property
    def has_correlations(self) -> bool:
        """Whether there are correlations to speak of."""
        return self.correlated and len(self.effects) > 1

    @property
    def cor_names(self) -> tuple[str, ...]:
        """What draws call their correlations, row by row below the diagonal."""
        if not self.has_correlations:
            return ()
        pairs = [(a, b) for i, a in enumerate(self.effects) for b in self.effects[:i]]
        return tuple(f"{self.field}:{b},{a}" for a, b in pairs)


def tidy_groups(groups: object) -> tuple[GroupTerm, ...]:
    """Return group terms as a tuple; a name alone is that of a group with an intercept."""
    if groups is None:
        return ()
    entries = (groups,) if isinstance(groups, str | GroupTerm | Mapping) else groups
    if not isinstance(entries, Sequence):
        raise SettingError(
            "groups must be names of fields, or mo.models.GroupTerm(...) with effects, not "
            f"{type(groups).__name__}."
        )
    terms = []
    for entry in entries:
        if isinstance(entry, str):
            entry = GroupTerm(entry)
        elif isinstance(entry, Mapping) and "field" in entry:  # from a file
            entry = GroupTerm(**entry)
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


def common_columns(groups: Sequence[GroupTerm], rows: Rows) -> tuple[int, ...]:
    """Places among `rows.columns` of those that are common: not contrasts of a group's factor."""
    if not groups or rows.coding is None:
        return tuple(range(len(rows.columns)))
    fields = {term.field for term in groups}
    own_terms = [t for t in rows.coding.terms if t.field in fields and t.scale is None]
    inside = {j for t in own_terms for j in range(t.first, t.first + t.width)}
    return tuple(j for j in range(len(rows.columns)) if j not in inside)


def group_coding(groups: Sequence[GroupTerm], rows: Rows) -> Coding | None:
    """What the codes of the rows mean: common columns, and after them one per effect and level.

    A factor of the rows that is a group has no treatment contrasts.
    """
    if not groups:
        return rows.coding
    common = common_columns(groups, rows)
    place = {old: new for new, old in enumerate(common)}
    coding = rows.coding or Coding(tuple(range(len(rows.columns))))
    dense = tuple(place[j] for j in coding.dense)
    terms = [
        CodedTerm(t.field, place[t.first], t.width, t.reference, t.scale)
        for t in coding.terms
        if t.first in place
    ]
    first = len(common)
    for group in groups:
        levels = len(rows.levels[group.field])
        for effect in group.effects:
            terms.append(CodedTerm(group.field, first, levels, False, _scale_of(effect, rows)))
            first += levels
    return Coding(dense, tuple(terms))


def effect_columns(term: GroupTerm, rows: Rows, x: np.ndarray) -> np.ndarray:
    """What some rows, of which `x` is the field, multiply the effects of their level with."""
    places = [_scale_of(effect, rows) for effect in term.effects]
    return np.column_stack([np.ones(len(x)) if k is None else x[:, k] for k in places])


def _scale_of(effect: str, rows: Rows) -> int | None:
    """Column of x that an effect multiplies; None: a one."""
    return None if effect == INTERCEPT else _numeric(rows).index(effect)


def _numeric(rows: Rows) -> list[str]:
    """Names of the leading columns of x."""
    if rows.coding is None:
        return list(rows.columns)
    return [rows.columns[j] for j in rows.coding.dense]


def check_groups(groups: Sequence[GroupTerm], rows: Rows) -> None:
    """Refuse groups that the rows do not have, or that no scale can be learned from."""
    for group in groups:
        _check_field(group.field, rows)
        refuse_fractions(group.field, rows.levels[group.field])
        levels = len(rows.levels[group.field])
        if levels < 2:
            raise DataError(
                f"the group {group.field!r} has a single level, so that nothing can be said of how "
                "its effects vary; leave it out."
            )
        if levels >= len(rows):
            raise DataError(
                f"the group {group.field!r} has as many levels as there are rows, so that each of "
                "its effects would be known from one row alone; leave it out, or group by "
                "something coarser."
            )
        slopes = [effect for effect in group.effects if effect != INTERCEPT]
        for effect in slopes:
            if effect not in _numeric(rows):
                raise DataError(
                    f"the slope {effect!r} of the group {group.field!r} is no column of x"
                    f"{suggestion(effect, _numeric(rows))}; there is "
                    f"{', '.join(_numeric(rows)[:12]) or 'none'}."
                )
        _check_slopes(group, slopes, levels, rows)


def _check_field(field: str, rows: Rows) -> None:
    """Refuse the name of a group of which the rows hold no codes."""
    if field in rows.levels and field in rows.fields:
        return
    if "|" in field:
        raise SettingError(
            f"{field!r} is a group term of a formula, and a model of rows takes the name of the "
            "group: groups=['ward'], or mo.models.GroupTerm('ward', ('1', 'dose')); formulas are "
            "for mo.fit."
        )
    factors = [name for name in rows.levels if name in rows.fields]
    reason = f"they hold the codes of {', '.join(factors)}" if factors else "they hold no codes"
    if field in rows.fields:
        reason = f"it is a field of theirs, and {reason}"
    raise DataError(
        f"{field!r} is no group of the rows{suggestion(field, factors)}, since {reason}: give "
        f"the groups as mo.Rows(..., codes={{{field!r}: levels}})."
    )


def _check_slopes(group: GroupTerm, slopes: list[str], levels: int, rows: Rows) -> None:
    """Refuse a slope beside an intercept whose column is constant within every group."""
    if not slopes or INTERCEPT not in group.effects:
        return
    columns = [_numeric(rows).index(effect) for effect in slopes]
    low, high = np.full((levels, len(slopes)), np.inf), np.full((levels, len(slopes)), -np.inf)
    varies = np.zeros(len(slopes), bool)
    for chunk in rows.chunks(TOGETHER):
        x, codes = np.asarray(chunk["x"])[:, columns], np.asarray(chunk[group.field])
        np.minimum.at(low, codes, x)
        np.maximum.at(high, codes, x)
        varies |= (high > low).any(axis=0)
        if varies.all():
            return
    effect = slopes[int(np.argmin(varies))]
    raise DataError(constant_slope(effect, group.field))


def constant_slope(effect: str, field: str) -> str:
    """The sentence about a slope beside an intercept whose column is constant within groups."""
    return (
        f"the column {effect!r} does not vary within any level of {field!r}, so that its "
        f"slopes cannot be told from the levels' own effects; leave {effect!r} out of the group."
    )
