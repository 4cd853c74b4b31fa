"""Categorical columns: names of levels, integer codes, and the columns that codes represent.

A row is a short vector of numbers x and a few codes c_k. The model matrix, which is never formed,
has the columns of x and one column for each level of each factor:

    eta = x_d . beta[dense] + sum_k s_k beta[first_k + c_k]

where s_k is 1 or an entry of x: the number that interacts with a factor, or the value of a
B-spline, few of which differ from zero in any row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
DType: TypeAlias = np.dtype[Any]
Level: TypeAlias = str | int | float | bool
# Types a data set may have; bytes are for images, which networks read directly.
STORED_TYPES = {"float32": np.float32, "float64": np.float64, "uint8": np.uint8}


def level_text(level: object) -> str:
    """Return a level as text; dates as ISO has them, without the time if it is midnight.

    Examples
    --------
    >>> from datetime import datetime
    >>> level_text(datetime(2013, 1, 31)), level_text(datetime(2013, 1, 31, 6)), level_text(6.0)
    ('2013-01-31', '2013-01-31 06:00:00', '6.0')
    """
    return str(level).removesuffix(" 00:00:00") if isinstance(level, date) else str(level)


def level_key(level: object) -> str:
    """Return a key that is equal for equal levels: 6 and 6.0 are equal, "6" and "6.0" are not."""
    if isinstance(level, bool | np.bool_):
        return str(bool(level))
    if isinstance(level, float | np.floating) and float(level).is_integer():
        return str(int(level))
    return level_text(level)


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


def level_places(levels: Sequence[Level], values: Iterable[object]) -> list[int]:
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
    return re.sub(r"^([+-]?[0-9]+)[.]0+$", r"\1", key).removesuffix(" 00:00:00")


class LevelArray(NamedTuple):
    """The levels of rows: values, and for each row the index of its own.

    Examples
    --------
    >>> ward = LevelArray(("b", "a", "c"), np.array([1, 0, 1]))
    >>> ward.occurring, ward.places(["a", "c"])
    (['b', 'a'], array([ 0, -1,  0]))
    """

    values: tuple[Level, ...]
    codes: Array

    @property
    def occurring(self) -> list[Level]:
        """The values that some row has, in their order."""
        return [self.values[code] for code in np.flatnonzero(np.bincount(self.codes))]

    def places(self, levels: Sequence[Level]) -> Array:
        """Return the index of each row's value in levels of another table; -1 if absent."""
        return np.array(level_places(levels, self.values) or [-1])[self.codes]


CODE_TYPES = {"uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32}


def code_type(levels: int) -> np.dtype[Any]:
    """Return the smallest integer type that holds the codes of `levels` levels.

    Examples
    --------
    >>> code_type(256), code_type(257)
    (dtype('uint8'), dtype('uint16'))
    """
    return np.dtype(np.min_scalar_type(max(0, levels - 1)))


@dataclass(frozen=True)
class CodedTerm:
    """A block of columns of the model matrix of which each row uses one, chosen by its code.

    Parameters
    ----------
    field
        The integer field of the rows that holds the codes.
    first
        Index of the term's first column in the model matrix.
    width
        Number of columns.
    reference
        Whether code 0 is the reference level, which has no column, so that code c is column
        first + c - 1. Otherwise code c is column first + c.
    scale
        The column of x that gives the value in the row's column; None means 1.
    """

    field: str
    first: int
    width: int
    reference: bool = True
    scale: int | None = None

    @property
    def levels(self) -> int:
        """Number of codes."""
        return self.width + self.reference

    @property
    def columns(self) -> slice:
        """Slice of the model matrix that holds the term's columns."""
        return slice(self.first, self.first + self.width)


@dataclass(frozen=True)
class Coding:
    """How rows of numbers and codes represent rows of a model matrix.

    Parameters
    ----------
    dense
        Index in the model matrix of each leading column of x. Further columns of x are used only
        as scales.
    terms
        What the codes mean. Where terms share columns, as neighbouring B-splines do, they add up.
    further
        Columns of x that only effects of groups multiply, with their index in x: slopes of a
        factor's levels, or of a number, that vary by group.
    predictors
        Columns that enter the predictor of another parameter than the mean: its name, the first
        column, and the one after the last.

    Examples
    --------
    Two numbers, then a factor of three levels:

    >>> coding = Coding(dense=(0, 1), terms=(CodedTerm("gas", first=2, width=2),))
    >>> coding.size
    4
    >>> coding.densely({"x": np.array([[0.5, 7.0]]), "gas": np.array([2])})
    array([[0.5, 7. , 0. , 1. ]])
    """

    dense: tuple[int, ...] = ()
    terms: tuple[CodedTerm, ...] = ()
    further: tuple[tuple[str, int], ...] = ()
    predictors: tuple[tuple[str, int, int], ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.dense)) < len(self.dense):
            raise ValueError("two columns of x have the same place")

    @cached_property
    def size(self) -> int:
        """Number of columns of the model matrix."""
        ends = [place + 1 for place in self.dense] + [t.first + t.width for t in self.terms]
        return max(ends, default=0)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The parameter whose predictor each column enters; empty: the mean."""
        names = [""] * self.size
        for parameter, first, stop in self.predictors:
            names[first:stop] = [parameter] * (stop - first)
        return tuple(names)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Fields that hold codes."""
        return tuple(dict.fromkeys(term.field for term in self.terms))

    @cached_property
    def apart(self) -> bool:
        """Whether no two entries of a row ever fall into the same column.

        Overlapping terms of one field do not collide if their columns begin at different places,
        as those of a spline do.
        """
        uses = np.zeros(self.size, int)
        np.add.at(uses, list(self.dense), 1)
        for field in self.fields:
            columns = [term.columns for term in self.terms if term.field == field]
            uses[np.unique(np.r_[tuple(columns)])] += 1
        begins = [(term.field, term.first - term.reference) for term in self.terms]
        return len(set(begins)) == len(begins) and bool(np.all(uses <= 1))

    def densely(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the dense model matrix, (rows, size), in the type of x (or y, without x)."""
        x = batch.get("x")
        like = np.asarray(x if x is not None else batch.get("y", np.zeros(0)))
        n = len(batch[self.terms[0].field]) if self.terms else len(like)
        out = np.zeros((n, self.size), like.dtype)
        if self.dense:
            out[:, list(self.dense)] = like[:, : len(self.dense)]
        for term in self.terms:
            place = np.asarray(batch[term.field]).astype(np.intp) - term.reference
            has = np.flatnonzero(place >= 0)
            value = 1 if term.scale is None else like[has, term.scale]
            out[has, term.first + place[has]] += value
        return out

    def reordered(self, places: Sequence[int]) -> Coding:
        """Return the coding with column j moved to `places[j]`; a term's columns stay adjacent."""
        terms = []
        for term in self.terms:
            first = places[term.first] if term.width else 0
            if list(places[term.columns]) != list(range(first, first + term.width)):
                raise ValueError(f"the columns of {term.field!r} would not stay together")
            terms.append(replace(term, first=first))
        if self.predictors:
            raise ValueError("the columns of several predictors would not stay together")
        return Coding(tuple(places[place] for place in self.dense), tuple(terms), self.further)

    def fault(self, batch: Mapping[str, np.ndarray]) -> tuple[str, int] | None:
        """Return field and row of the first code out of range; None if all are valid."""
        for term in self.terms:
            codes = np.asarray(batch[term.field])
            if codes.size and int(codes.max()) >= term.levels:
                return term.field, int(np.argmax(codes >= term.levels))
        return None


def treatment(numbers: int, levels: Mapping[str, int]) -> Coding:
    """Return the coding of `numbers` columns of x followed by factors in treatment contrasts.

    `levels` maps each factor to its number of levels; the first level is the reference.

    Examples
    --------
    >>> treatment(1, {"gas": 3}).terms
    (CodedTerm(field='gas', first=1, width=2, reference=True, scale=None),)
    """
    terms, first = [], numbers
    for name, count in levels.items():
        terms.append(CodedTerm(name, first, count - 1))
        first += count - 1
    return Coding(tuple(range(numbers)), tuple(terms))
