"""How terms become columns: which factors drop a level, and the order of the columns.

Full-rank coding requires dropping redundant columns: with an intercept, one level of a factor has
no column. Which factors are reduced follows formulaic's (and R's) rule, so that the matrix has the
columns users expect. Levels are held as codes; numbers are columns of x.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.rows.coding import Array, CodedTerm, Coding, Level, level_names
from modicum.rows.formula.expressions import Contrast
from modicum.rows.formula.neighbours import Neighbours
from modicum.rows.levels import code_field

Scoped: TypeAlias = tuple[int, bool]
"""A factor's index, and whether the factor is reduced: without its first column."""
Part: TypeAlias = tuple[Scoped, ...]

MOST_CELLS = 100_000  # of an interaction of factors; each cell has a coefficient
MOST_FACTORS = 13  # of an interaction; each subset of them has columns
MOST_FRESH = 2**9  # subsets that no earlier term spans; merging them takes more than their square
SPARSE = 2  # keep a local factor as a code if it has this many times the columns a row uses


@dataclass(frozen=True)
class Factor:
    """A factor of a term: a number, several numbers (a spline), or levels.

    Parameters
    ----------
    expression
        Its text.
    label
        Its name in column names.
    columns
        Names of its columns if it is numeric: (label,), or several.
    levels
        Its levels, the reference first; empty if it is numeric.
    contrast
        How levels become numbers if the factor is reduced; None keeps them as codes.
    spans
        Whether its columns span the intercept.
    local
        Number of adjacent columns that contain all non-zero values of a row, as for B-splines;
        0 if unknown.
    blocks
        Of a smooth, name and size of each block of columns whose coefficients have a common,
        estimated standard deviation; they come after `columns`.
    neighbours
        Of levels that resemble their neighbours, which those are; they have the columns then.
    steps
        Whether `columns` are 1 from a level on, for each level but the first, as for ``mo(x)``.
    """

    expression: str
    label: str
    columns: tuple[str, ...] = ()
    levels: tuple[Level, ...] = ()
    contrast: Contrast | None = None
    spans: bool = False
    local: int = 0
    blocks: tuple[tuple[str, int], ...] = ()
    neighbours: Neighbours | None = None
    steps: bool = False

    def __post_init__(self) -> None:
        if self.neighbours is not None and self.neighbours.size != len(self.levels):
            raise ValueError("a factor has neighbours of other levels")
        if self.local > len(self.columns):
            raise ValueError("a factor has fewer columns than a row uses")

    def coded(self, reduced: bool) -> bool:
        """Whether the factor is held as a code."""
        as_numbers = self.is_structured or (reduced and self.contrast)
        return bool(self.levels) and not as_numbers

    @property
    def is_structured(self) -> bool:
        """Whether its levels are looked up in columns of numbers."""
        return self.steps or self.neighbours is not None

    def names(self, reduced: bool) -> tuple[str, ...]:
        """Names of the factor's columns."""
        if self.blocks:
            return (*self.columns, *(name for _, names in self.pooled for name in names))
        if not self.levels or self.steps:
            return self.columns[1:] if reduced and self.spans else self.columns
        if reduced and self.contrast:
            return tuple(f"{self.label}[{n}]" for n in self.contrast.matrix(self.levels)[1])
        names = level_names(self.levels)
        return tuple(f"{self.label}[{name}]" for name in names[int(reduced) :])

    @property
    def pooled(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Name and columns of each block."""
        numbered = [(name, range(1, size + 1)) for name, size in self.blocks]
        return tuple((name, tuple(f"{name}[{j}]" for j in places)) for name, places in numbered)

    def matrix(self, reduced: bool) -> Array:
        """Return the numbers in the factor's columns, one row per level."""
        if self.neighbours is not None:
            return self.neighbours.matrix
        if self.steps:
            return np.tri(len(self.levels), len(self.levels) - 1, -1)
        if reduced and self.contrast:
            return self.contrast.matrix(self.levels)[0]
        return np.eye(len(self.levels))[:, int(reduced) :]


@dataclass(frozen=True)
class Numbers:
    """A column of x: the product of columns of factors, each (factor, reduced, index).

    In a `window` there is one factor, and the index counts from the row's first non-zero column.
    """

    parts: tuple[tuple[int, bool, int], ...]
    window: bool = False

    @property
    def alone(self) -> Scoped | None:
        """The factor whose column this is; None if it is a product, or in a window."""
        return None if self.window or len(self.parts) > 1 else self.parts[0][:2]


@dataclass(frozen=True)
class Codes:
    """A field of codes: a factor's levels, or combinations of several factors' levels.

    With a reduced factor, code 0 is every combination that has its reference level. In a `window`,
    the code is the first column of a local factor that may differ from 0.
    """

    field: str
    parts: Part
    widths: tuple[int, ...]
    window: bool = False

    @property
    def reference(self) -> bool:
        """Whether code 0 has no column."""
        return not self.window and any(reduced for _, reduced in self.parts)

    @property
    def levels(self) -> int:
        """Number of codes."""
        return prod(self.widths) + self.reference


@dataclass(frozen=True)
class MatrixLayout:
    """All columns of the model matrix, and how rows store them.

    Parameters
    ----------
    coding
        Which columns of the model matrix the columns of x and the codes represent.
    columns
        Names of all columns.
    terms
        Indices of each term's columns.
    numbers
        Columns of x.
    codes
        Fields of codes.
    slopes
        For each group term, names of the columns of x whose effects vary.
    """

    coding: Coding
    columns: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]
    numbers: tuple[Numbers, ...]
    codes: tuple[Codes, ...]
    slopes: tuple[tuple[str, ...], ...] = ()


def reduced_parts(
    terms: Sequence[tuple[int, ...]], spans: Sequence[bool], intercept: bool
) -> list[tuple[Part, ...]]:
    """Reduce the factors of every term so that its columns do not repeat those of earlier terms.

    A term of factors that span the intercept spans every product of a subset of them, each factor
    reduced. The products that are new are written with as few blocks of columns as possible, by
    the rule (anything):(reduced) + (anything) = (anything):(full).

    Examples
    --------
    A number and a factor, without an intercept; the factor keeps all its levels:

    >>> reduced_parts([(0,), (1,), (0, 1)], [False, True], intercept=False)
    [(((0, False),),), (((1, False),),), (((0, False), (1, True)),)]
    """
    spanned: set[frozenset[Scoped]] = {frozenset()} if intercept else set()
    scoped = []
    for term in terms:
        if sum(spans[f] for f in term) > MOST_FACTORS:
            raise SettingError(
                f"the formula has an interaction of {len(term)} factors; the limit is "
                f"{MOST_FACTORS}: leave some out."
            )
        choices = [((f, True), None) if spans[f] else ((f, False),) for f in term]
        span = [tuple(s for s in chosen if s is not None) for chosen in product(*choices)]
        fresh = [part for part in span if frozenset(part) not in spanned]
        if len(fresh) > MOST_FRESH:
            raise SettingError(
                f"the formula has an interaction of {len(term)} factors without its main effects: "
                "write * instead of :, or leave some out."
            )
        spanned.update(map(frozenset, fresh))
        scoped.append(tuple(_simplify(fresh)))
    return scoped


def _simplify(parts: Sequence[Part]) -> list[Part]:
    simple: list[Part] = []
    for part in sorted(parts, key=len):
        merged = next((m for m in (_merge(old, part) for old in simple) if m), None)
        if merged is None:
            simple.append(part)
        else:
            old, full = merged
            simple = _simplify([p for p in simple if p != old] + [full])
    return simple


def _merge(old: Part, part: Part) -> tuple[Part, Part] | None:
    """Merge two parts that differ by one reduced factor into one with the full factor."""
    more = [scoped for scoped in part if scoped not in old]
    if len(part) - 1 != len(old) or len(more) != 1 or not more[0][1]:
        return None
    return old, tuple((f, False) if (f, r) == more[0] else (f, r) for f, r in part)


def lay_out(
    factors: Sequence[Factor],
    terms: Sequence[tuple[str, tuple[Part, ...], str]],
    slopes: Sequence[Sequence[Part]] = (),
) -> MatrixLayout:
    """Lay out the columns in the order of the terms, those of blocks of smooths last.

    Parameters
    ----------
    factors
        All factors of the formula.
    terms
        Name and scoped parts of each term, and the parameter it explains (empty: the mean); those
        of a parameter are adjacent, and its name precedes those of their columns.
    slopes
        Scoped parts of the terms of each group whose coefficients vary.
    """
    names: list[str] = []
    places: dict[str, tuple[int, ...]] = {}
    dense: list[tuple[Numbers, int]] = []
    coded: list[tuple[_Block, int]] = []
    predictors: dict[tuple[str, bool], tuple[str, int, int]] = {}
    pooled = {name for factor in factors for _, of_block in factor.pooled for name in of_block}
    for last, (term, parts, parameter) in product((False, True) if pooled else (False,), terms):
        start, before = len(names), f"{parameter}." if parameter else ""
        for block in (block for part in parts for block in _blocks(factors, part)):
            if last == pooled.isdisjoint(block.names):
                continue
            if block.codes is None:
                assert block.numbers is not None
                dense.append((block.numbers, len(names)))
            else:
                coded.append((block, len(names)))
            names += [before + name for name in block.names]
        places[before + term] = (*places.get(before + term, ()), *range(start, len(names)))
        if parameter and start < len(names):
            first = predictors.get((parameter, last), (parameter, start, start))[1]
            predictors[parameter, last] = parameter, first, len(names)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"two columns of x would be named {twice[0]!r}: rename a column of the table."
        )
    columns_of_x = [n for n, _ in dense]  # a number that enters two predictors is held twice
    held = set(columns_of_x)
    scales = [n for b, _ in coded for n in b.scales if n is not None]
    varying = [dict(c for part in parts for c in _as_numbers(factors, part)) for parts in slopes]
    common = {names[place] for _, place in dense}  # of which another predictor may hold the numbers
    alone = {n: name for columns in varying for name, n in columns.items() if name not in common}
    beside = dict.fromkeys(n for n in (*scales, *alone) if n not in held)
    numbers = [*columns_of_x, *beside]
    coded_terms = [term for block, at in coded for term in _coded_terms(block, at, numbers)]
    further = tuple((name, numbers.index(n)) for n, name in alone.items())
    at = tuple(place for _, place in dense)
    coding = Coding(at, tuple(coded_terms), further, tuple(predictors.values()))
    codes = tuple(dict.fromkeys(b.codes for b, _ in coded if b.codes is not None))
    named = tuple(tuple(columns) for columns in varying)
    return MatrixLayout(coding, tuple(names), places, tuple(numbers), codes, named)


def _as_numbers(factors: Sequence[Factor], part: Part) -> Iterator[tuple[str, Numbers]]:
    """Yield names and products of all columns of a part, levels as numbers too."""
    names = {(f, reduced): factors[f].names(reduced) for f, reduced in part}
    for at in _cells(names, part):
        yield _name(names, at), Numbers(tuple((*scoped, j) for scoped, j in at.items()))


def _cells(names: dict[Scoped, tuple[str, ...]], part: Part) -> Iterator[dict[Scoped, int]]:
    """Yield places of a column of each factor; those of the first factor change fastest."""
    for backwards in product(*(range(len(names[scoped])) for scoped in reversed(part))):
        yield dict(zip(part, backwards[::-1], strict=True))


@dataclass(frozen=True)
class _Block:
    """Adjacent columns: one column of numbers, or all columns of a code.

    The value in a code's column is 1 or a number; in a window a row has several such columns.
    """

    numbers: Numbers | None
    codes: Codes | None
    names: tuple[str, ...]
    reference: bool = False
    window: tuple[Numbers, ...] = ()

    @property
    def scales(self) -> tuple[Numbers | None, ...]:
        """The value in each column that a row uses; None for 1."""
        return self.window or (self.numbers,)


def _coded_terms(block: _Block, first: int, numbers: list[Numbers]) -> Iterator[CodedTerm]:
    assert block.codes is not None
    width = len(block.names) - max(0, len(block.window) - 1)
    for j, factor in enumerate(block.scales):
        scale = None if factor is None else numbers.index(factor)
        yield CodedTerm(block.codes.field, first + j, width, block.reference, scale)


def _window(factor: Factor, scoped: Scoped) -> _Block | None:
    """Return a local factor as a window of its columns; None if too few of them are zero."""
    names = factor.names(scoped[1])
    if not factor.local or len(names) < SPARSE * factor.local:
        return None
    width = len(names) - factor.local + 1
    codes = Codes(f"{factor.label} (piece)", (scoped,), (width,), window=True)
    window = tuple(Numbers(((*scoped, j),), window=True) for j in range(factor.local))
    return _Block(None, codes, names, window=window)


def _blocks(factors: Sequence[Factor], part: Part) -> Iterator[_Block]:
    """Yield the blocks of columns of one part; the first factor's levels change fastest."""
    window = _window(factors[part[0][0]], part[0]) if len(part) == 1 else None
    if window is not None:
        yield window
        return
    names = {(f, reduced): factors[f].names(reduced) for f, reduced in part}
    numeric = tuple(s for s in part if not factors[s[0]].coded(s[1]))
    levels = tuple(s for s in part if factors[s[0]].coded(s[1]))
    for at in _cells(names, numeric):
        numbers = Numbers(tuple((*scoped, j) for scoped, j in at.items())) if at else None
        if not levels:
            yield _Block(numbers, None, (_name(names, at),))
            continue
        widths = tuple(len(names[scoped]) for scoped in levels)
        if prod(widths) > MOST_CELLS:
            label = ":".join(factors[f].label for f, _ in levels)
            raise DataError(
                f"the interaction {label} has {prod(widths):,} combinations of levels, each with a "
                f"coefficient; the limit is {MOST_CELLS:,}: group levels, or leave it out."
            )
        named = (_name(names, at | cell) for cell in _cells(names, levels))
        reference = any(reduced for _, reduced in levels)
        yield _Block(numbers, _codes(factors, levels, widths), tuple(named), reference)


def _name(names: dict[Scoped, tuple[str, ...]], at: dict[Scoped, int]) -> str:
    return ":".join(named[at[scoped]] for scoped, named in names.items())


def _codes(factors: Sequence[Factor], levels: Part, widths: tuple[int, ...]) -> Codes:
    """Return the field of codes; a single factor's field serves it both reduced and full."""
    if len(levels) == 1:
        factor = factors[levels[0][0]]
        field = code_field(factor.label)
        return Codes(field, ((levels[0][0], False),), (len(factor.levels),))
    field = ":".join(factors[f].label + "-" * reduced for f, reduced in levels)
    return Codes(field, levels, widths)
