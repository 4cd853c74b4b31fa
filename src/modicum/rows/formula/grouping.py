"""Grouping factors, whose levels have group effects: ``(1 | ward)`` and ``(1 | school:class)``.

They may have millions of levels, so nothing of that width is formed per row, and the lookup table
of levels is built once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from modicum.errors import DataError, SettingError, argument
from modicum.rows.checks import NewGroupError
from modicum.rows.coding import (
    Array,
    Level,
    LevelArray,
    code_type,
    level_key,
    level_places,
    loose_key,
)
from modicum.rows.formula.parsing import ParsedGroup
from modicum.rows.levels import NUMBER, RESERVED, BatchColumns, ordered


def grouping_name(columns: Sequence[str]) -> str:
    """Return the name of a grouping factor: its column, or several joined by colons."""
    return ":".join(columns)


def refuse_fractions(group: str, levels: Iterable[Level], from_csv: bool = False) -> None:
    """Refuse groups whose levels are fractional numbers, which are measurements, not names.

    With `from_csv`, levels are texts, of which a measurement is one too.
    """
    levels = list(levels)
    if from_csv and all(isinstance(v, str) and re.fullmatch(NUMBER, v) for v in levels):
        levels = [float(level) for level in levels]
    for level in levels:
        if not isinstance(level, float | np.floating) or float(level).is_integer():
            continue
        if np.isinf(level):
            raise DataError(f"the group {group!r} holds {level:g}: replace it, or drop such rows.")
        raise DataError(
            f"the group {group!r} holds {level:g}, and fractional numbers are measurements rather "
            "than names of groups: cut them into classes (pandas.cut), convert them to text if "
            "they are names, or make the column a common term."
        )


@dataclass(frozen=True)
class Grouping:
    """A grouping factor: the columns that define it, and its levels in order.

    Parameters
    ----------
    columns
        The table columns whose levels, or combinations of levels, are the groups.
    levels
        The levels; combinations are text such as "UA:N14228", with quotes around a level that
        holds a colon.
    """

    columns: tuple[str, ...]
    levels: tuple[Level, ...]

    @property
    def field(self) -> str:
        """The field of the rows that holds the codes."""
        return grouping_name(self.columns)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {level_key(level): i for i, level in enumerate(self.levels)}

    def places(self, columns: BatchColumns) -> Array:
        """Return the index of each row's level; -1 for unknown levels."""
        return self._places(_distinct(self.columns, columns))

    def _places(self, array: LevelArray) -> Array:
        places = np.array([self._place.get(level_key(v), -1) for v in array.values] or [-1])
        if places.min() < 0:  # tables may write the same level differently
            unknown = np.flatnonzero(places < 0)
            places[unknown] = level_places(self.levels, [array.values[int(i)] for i in unknown])
        return np.asarray(places[array.codes])

    def unknown(self, columns: BatchColumns) -> dict[str, Level]:
        """Return the levels of a batch that are not among these, by a key that equal ones share."""
        values = _distinct(self.columns, columns).values
        places = self._places(LevelArray(values, np.arange(len(values))))
        new = [value for value, place in zip(values, places, strict=True) if place < 0]
        return {loose_key(level_key(value)): value for value in new}

    def codes(self, columns: BatchColumns) -> Array:
        """Return the code of each row of a batch; refuse unknown levels."""
        array = _distinct(self.columns, columns)
        group_codes = self._places(array)
        if len(group_codes) and group_codes.min() < 0:
            at = int(np.argmax(group_codes < 0))
            nested = len(self.columns) > 1
            holder = f"the group {self.field!r}" if nested else f"column {self.field!r}"
            inner = f"the column {self.columns[-1]!r}" if nested else "that column"
            raise NewGroupError(
                f"{holder} holds {array.values[array.codes[at]]!r} in row {columns.row(at)}, a "
                "group that the rows of the fit did not have",
                "to predict for new groups, use "
                f"{argument('groups', 'any')} if some groups are new, {argument('groups', 'new')} "
                f"if all are, or leave {inner} out of the table"
                + (", which keeps the effects of known groups" if nested else ""),
            )
        return group_codes.astype(code_type(len(self.levels)))


class GroupingLevels:
    """Collects the levels of grouping factors, one batch at a time.

    Parameters
    ----------
    groups
        The group terms.
    from_csv
        Whether levels are texts of a CSV file, which may write one group as both "6" and "6.0".
    """

    def __init__(self, groups: Iterable[ParsedGroup], from_csv: bool = False) -> None:
        factors = dict.fromkeys(group.group for group in groups)
        for reserved in {grouping_name(names) for names in factors} & set(RESERVED):
            raise SettingError(
                f"a group cannot be called {reserved!r}, which is the name of another field of the "
                "rows; rename that column of the table."
            )
        self._values: dict[tuple[str, ...], dict[str, Level]] = {names: {} for names in factors}
        self._from_csv = from_csv
        self._texts: dict[str, dict[str, Level]] = {name: {} for name in self.names if from_csv}

    @property
    def names(self) -> tuple[str, ...]:
        """Columns to read."""
        return tuple(dict.fromkeys(name for names in self._values for name in names))

    def collect(self, columns: BatchColumns) -> None:
        """Add the levels of a batch."""
        for name, texts in self._texts.items():
            for value in columns.levels(name).values:
                before = texts.setdefault(loose_key(level_key(value)), value)
                if before != value:
                    raise DataError(
                        f"the group {name!r} is {before!r} in some rows and {value!r} in others, "
                        "which may be the same group: write it in one way."
                    )
        for names, levels in self._values.items():
            for value in _distinct(names, columns).values:
                levels.setdefault(level_key(value), value)

    def groupings(self) -> tuple[Grouping, ...]:
        """Return the grouping factors, with sorted levels."""
        groupings = []
        for names, levels in self._values.items():
            if len(levels) < 2:
                raise DataError(
                    f"the group {grouping_name(names)!r} has a single level, so the variation of "
                    "its effects cannot be estimated; leave it out."
                )
            values = list(levels.values())
            if len(names) == 1:  # combinations are text
                refuse_fractions(names[0], values, self._from_csv)
                values = _integers(values) if self._from_csv else values
            groupings.append(Grouping(names, ordered(grouping_name(names), values)))
        return tuple(groupings)


WHOLE = re.compile(r"(0|-?[1-9][0-9]{0,14})([.]0)?")  # that a float holds exactly


def _integers(levels: list[Level]) -> list[Level]:
    """Return the texts of a CSV file as integers if all are written as such, without zeros ahead.

    Effects are then listed by the numbers that other readers of the file see.
    """
    plain = all(isinstance(level, str) and WHOLE.fullmatch(level) for level in levels)
    return [int(float(level)) for level in levels] if plain else levels


def _distinct(names: Sequence[str], columns: BatchColumns) -> LevelArray:
    """Return the levels, or combinations of levels, that occur in a batch."""
    parts = [columns.levels(name) for name in names]
    cell, widths = np.zeros(len(columns), np.int64), [len(part.values) for part in parts]
    for part, width in zip(parts, widths, strict=True):
        cell = cell * width + part.codes
    cells, codes = np.unique(cell, return_inverse=True)
    if len(parts) == 1:
        return LevelArray(tuple(parts[0].values[i] for i in cells), codes)
    places = np.unravel_index(cells, widths)
    combined = zip(
        *([_part(p.values[i]) for i in at] for p, at in zip(parts, places, strict=True)),
        strict=True,
    )
    return LevelArray(tuple(":".join(texts) for texts in combined), codes)


def _part(level: Level) -> str:
    """Return a level as part of a combination; quoted if "p" of "q:r" might be "p:q" of "r"."""
    text = level_key(level)
    return '"{}"'.format(text.replace('"', '""')) if ":" in text or '"' in text else text
