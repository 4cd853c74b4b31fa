"""Levels as tables write them: their names, and which levels of two tables are the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

Level: TypeAlias = str | int | float | bool


def level_key(level: object) -> str:
    """Return a key that is equal for equal levels: 6 and 6.0 are equal, "6" and "6.0" are not."""
    if isinstance(level, bool | np.bool_):
        return str(bool(level))
    if isinstance(level, float | np.floating) and float(level).is_integer():
        return str(int(level))
    return str(level)


def level_names(levels: Sequence[Level]) -> tuple[str, ...]:
    """Return levels as they appear in column names; true and false of a CSV file are capitalized.

    Examples
    --------
    >>> level_names(["false", "true"]), level_names([False, True]), level_names(["true", "so"])
    (('False', 'True'), ('False', 'True'), ('true', 'so'))
    """
    names = tuple(map(str, levels))
    truths = {name.lower() for name in names} == {"false", "true"} and len(names) == 2
    return tuple(name.capitalize() for name in names) if truths else names


def level_places(levels: Sequence[Level], values: Iterable[Level]) -> list[int]:
    """Return the index of each value in `levels`, which come from another table; -1 if absent.

    Tables write the same level in several ways: 6 is "6" in a CSV file and 6.0 in a column with
    missing values, and True may be "true" or 1. If two levels differ only in such a way, they
    match exactly or not at all.

    Examples
    --------
    >>> level_places([False, True], ["true", "false", "maybe"]), level_places(["6", "6.0"], [6.0])
    ([1, 0, -1], [0])
    >>> level_places([False, True], [1, 0.0, 2])
    [1, 0, -1]
    """
    if all(isinstance(level, bool | np.bool_) for level in levels):
        values = [bool(v) if not isinstance(v, str) and v in (0, 1) else v for v in values]
    exact = {level_key(level): i for i, level in enumerate(levels)}
    alike: dict[str, list[int]] = {}
    for key, i in exact.items():
        alike.setdefault(loose_key(key), []).append(i)
    unique = {key: places[0] for key, places in alike.items() if len(places) == 1}
    return [exact.get(level_key(v), unique.get(loose_key(level_key(v)), -1)) for v in values]


def loose_key(key: str) -> str:
    """Return a key that is equal for texts that may be the same level: "6" and "6.0"."""
    if key in ("true", "false", "TRUE", "FALSE"):
        return key.capitalize()
    return re.sub(r"^([+-]?[0-9]+)[.]0+$", r"\1", key)
