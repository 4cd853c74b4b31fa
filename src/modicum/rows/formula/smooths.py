"""Smooths of a formula, ``s(hour, k=10)`` and ``te(x, z)``: penalised B-splines as columns.

A smooth of x is a sum of k cubic B-splines b(x) on equal intervals whose coefficients c have the
prior exp(-|D c|^2 / (2 sd^2)), with D the second differences. The null space of D is a constant,
which the intercept has, and x itself, a column like any other. For the rest, with T T' = (D'D)^-,

    c = T u,    u ~ N(0, sd^2 I),    columns of u: (b(x) - mean b) T / size,

where the sum of squares of the columns is 1 on average over the rows of the fit: sd is the root
mean square of the wiggles that the prior expects, on the scale of the predictor.

A smooth of x and z has the products of (1, x, wiggles of x) and (1, z, wiggles of z) as columns.
Those without wiggles are plain columns; those with wiggles of x, of z and of both are three blocks,
each with an sd of its own (Wood, Scheipl and Faraway 2013, mgcv's `t2`). One variable is the same
with a single block. By levels of a factor, each level has columns of its own.

Rows hold these columns densely. Four B-splines of a row and the number of the first would be half
as many bytes, with T and the means applied to u; but a Hessian would take 5.6 times as long, since
that of dense columns is one product of matrices (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np

from modicum.libraries import pandas as pd
from modicum.rows.coding import Array, LevelArray

State: TypeAlias = dict[str | int, Any]
"""The learned state of a transform: numbers, and lists and mappings of numbers."""

FEWEST = 4  # B-splines of a variable: a cubic on one interval
CHUNK = 65_536  # rows whose splines are held at a time
SMOOTHS = ("s", "te")


@dataclass(frozen=True)
class Basis:
    """Cubic B-splines on equal intervals of a range, or around a cycle.

    Examples
    --------
    >>> Basis(0.0, 1.0, 4).at(np.array([0.0, 0.5])).round(3)
    array([[0.167, 0.667, 0.167, 0.   ],
           [0.021, 0.479, 0.479, 0.021]])
    """

    low: float
    high: float
    size: int
    cyclic: bool = False

    def at(self, x: Array) -> Array:
        """Return the splines at x, (rows, size); beyond the range they continue as lines."""
        pieces = self.size if self.cyclic else self.size - 3
        place = (x - self.low) * (pieces / (self.high - self.low))
        inside = np.mod(place, pieces) if self.cyclic else np.clip(place, 0, pieces)
        piece = np.minimum(inside.astype(np.intp), pieces - 1)
        t = inside - piece
        s = 1 - t
        four = np.stack([s**3, 3 * t**3 - 6 * t**2 + 4, 3 * s**3 - 6 * s**2 + 4, t**3], axis=1) / 6
        if not self.cyclic and np.any(place != inside):
            slope = np.stack([-(s**2), 3 * t**2 - 4 * t, 4 * s - 3 * s**2, t**2], axis=1) / 2
            four = four + slope * (place - inside)[:, None]
        out = np.zeros((len(x), self.size))
        np.put_along_axis(out, np.mod(piece[:, None] + np.arange(4), self.size), four, axis=1)
        return out

    @property
    def roots(self) -> Array:
        """T, up to a factor: coefficients T u have the penalty |u|^2."""
        unit = np.eye(self.size)
        second = np.diff(unit, 2, axis=0)
        if self.cyclic:
            second = np.roll(unit, 1, axis=0) - 2 * unit + np.roll(unit, -1, axis=0)
        values, vectors = np.linalg.eigh(second.T @ second)
        free = 1 if self.cyclic else 2
        return np.asarray(vectors[:, free:] / np.sqrt(values[free:]))


ONE = LevelArray(("",), np.zeros(1, int))  # one level for all rows


def learn_smooth(
    x: Array,
    weights: Array | None,
    by: LevelArray | None = None,
    k: int | Sequence[int] | None = None,
    bs: str = "ps",
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    extrapolation: Literal["raise", "clip", "extend"] = "raise",
) -> State:
    """Learn ranges, means and sizes from all rows.

    Parameters
    ----------
    x
        The variables of the smooth, (rows, variables).
    weights
        Frequency weights of the rows; None if all are 1.
    by
        Levels with a smooth of their own.
    k
        Number of B-splines, or one for each variable; by default 10 of a single one, and 5 of each.
    bs
        "ps", or "cc" for a cycle, whose ends meet.
    lower_bound, upper_bound
        The range, by default that of the rows.
    extrapolation
        What columns are beyond the range: refused, those at its end, or lines.
    """
    if bs not in ("ps", "cc"):
        raise ValueError(f'bs must be "ps", or "cc" for a cycle, not {bs!r}')
    if extrapolation not in ("raise", "clip", "extend"):
        raise ValueError('extrapolation must be "raise", "clip" or "extend"')
    if not np.all(np.isfinite(x)):
        raise ValueError("some values are not finite")
    if k is None:
        k = 10 if x.shape[1] == 1 else 5
    sizes = list(k) if isinstance(k, Sequence) else [k] * x.shape[1]
    if len(sizes) != x.shape[1]:
        raise ValueError(f"k must be one number, or one for each of {x.shape[1]} variables")
    counted = np.ones(len(x)) if weights is None else weights
    variables: State = {}
    for j, size in enumerate(sizes):
        of_rows = x[:, j][counted > 0]
        _check_size(size, of_rows)
        low = float(x[:, j].min()) if lower_bound is None else float(lower_bound)
        high = float(x[:, j].max()) if upper_bound is None else float(upper_bound)
        if bs == "cc" and (lower_bound is None or upper_bound is None):
            _require_period(of_rows, low, high)
        if not low < high:
            raise ValueError("lower_bound must be less than upper_bound")
        roots = Basis(low, high, size, bs == "cc").roots
        variables[j] = {"lower_bound": low, "upper_bound": high, "roots": roots}
    state: State = {"variables": variables, "cyclic": bs == "cc", "beyond": extrapolation}
    levels, codes = ONE if by is None else by
    codes = np.broadcast_to(codes, len(x))
    state["levels"] = {
        level: _learned_level(state, x, np.where(codes == at, counted, 0.0), str(level))
        for at, level in enumerate(levels)
    }
    return state


def _check_size(size: object, x: Array) -> None:
    """Refuse a number of B-splines that is too small, or more than the rows can tell apart."""
    if not isinstance(size, int) or isinstance(size, bool) or size < FEWEST:
        raise ValueError(f"k, of each variable, must be a whole number, at least {FEWEST}")
    distinct = len(pd.unique(x))
    if distinct < size:
        remedy = f"use k={distinct} or fewer" if distinct >= FEWEST else "use a line, or C(...)"
        raise ValueError(f"k is {size}, and there are only {distinct} different values: {remedy}")


def _require_period(x: Array, low: float, high: float) -> None:
    """Refuse whole numbers as a cycle of unknown length: 0 and 23 may be an hour apart, or none."""
    if np.all(x == np.rint(x)):
        raise ValueError(
            f"a cycle from {low:g} to {high:g} would make these two the same: say where it begins "
            f"and ends, such as lower_bound={low:g}, upper_bound={high + 1:g}"
        )


def _distinct(x: Array) -> tuple[Array, Array]:
    """Return which distinct row of `x` each row is, and where each of these is first.

    Times of day and distances repeat, and splines take long: millions of rows have thousands.
    """
    place, known = pd.factorize(x[:, 0])
    for column in x.T[1:]:
        codes, values = pd.factorize(column)
        place, known = pd.factorize(place * len(values) + codes)
    first = np.empty(len(known), np.intp)
    first[place[::-1]] = np.arange(len(x))[::-1]  # of several, the last that is written
    return place, first


def _learned_level(state: State, x: Array, weights: Array, level: str) -> State:
    """Learn the means and spreads of the variables, and of the columns of each block."""
    place, first_row = _distinct(x)
    x, weights = x[first_row], np.bincount(place, weights, len(first_row))
    total = weights.sum()
    mean = weights @ x / total
    spread = np.sqrt(weights @ (x - mean) ** 2 / total)
    if not np.all(spread > 0):
        raise ValueError(f"there is only one value in the rows of {level!r}: leave such rows out")
    learned: State = {"mean": mean.tolist(), "spread": spread.tolist()}
    sums: dict[str, list[Array]] = {}
    for first in range(0, len(x), CHUNK):
        some = slice(first, first + CHUNK)
        for name, columns in _blocks(state, learned, x[some]).items():
            now = weights[some] @ columns, weights[some] @ columns**2
            sums[name] = [a + b for a, b in zip(sums.get(name, (0.0, 0.0)), now, strict=True)]
    blocks: State = {}
    for name, (first_moment, second_moment) in sums.items():
        shift = first_moment / total
        size = np.sqrt(np.sum(second_moment / total - shift**2))
        blocks[name] = {"shift": shift.tolist(), "size": float(size)}
    return learned | {"blocks": blocks}


def _lines(state: State, level: State, x: Array) -> list[Array]:
    """Return the null space of each variable: 1 and, unless it is a cycle, x in its own spread."""
    x = (x - level["mean"]) / level["spread"]
    one = np.ones(len(x))
    return [np.stack([one, z][: 2 - state["cyclic"]], axis=1) for z in x.T]


def _blocks(state: State, level: State, x: Array) -> dict[str, Array]:
    """Return the columns of each block, by the variables whose wiggles they have: "0,1"."""
    lines, wiggles = _lines(state, level, x), []
    for j, of_variable in state["variables"].items():
        roots = of_variable["roots"]
        ends = of_variable["lower_bound"], of_variable["upper_bound"]
        wiggles.append(Basis(*ends, len(roots), state["cyclic"]).at(x[:, j]) @ roots)
    blocks = {}
    for chosen in product((False, True), repeat=len(wiggles)):
        parts = [w if c else n for n, w, c in zip(lines, wiggles, chosen, strict=True)]
        if any(chosen):
            blocks[",".join(str(j) for j, c in enumerate(chosen) if c)] = _products(parts)
    return blocks


def _products(parts: Sequence[Array]) -> Array:
    """Return all products of a column of each part."""
    out = parts[0]
    for part in parts[1:]:
        out = (out[:, :, None] * part[:, None, :]).reshape(len(out), -1)
    return out


def smooth_columns(state: Mapping[str | int, Any], x: Array, by: LevelArray | None = None) -> Array:
    """Return the columns of a smooth: lines of all levels, then the blocks of all levels.

    A row has numbers in the columns of its level, and zeros in the others; the codes of `by` are
    places among the learned levels.
    """
    by = None if by is None else by._replace(codes=by.codes[: len(x)])
    place, first = _distinct(x if by is None else np.column_stack([x, by.codes]))
    if 2 * len(first) < len(x):
        few = None if by is None else by._replace(codes=by.codes[first])
        return np.asarray(smooth_columns(state, x[first], few)[place])
    known = dict(state)
    ends = [(v["lower_bound"], v["upper_bound"]) for v in known["variables"].values()]
    if known["beyond"] == "clip" and not known["cyclic"]:
        x = np.clip(x, *np.transpose(ends))
    plain, wiggly = [], []
    for at, level in enumerate(known["levels"].values()):
        inside = 1.0 if by is None else (by.codes == at)[:, None]
        products = _products(_lines(known, level, x))[:, 1:]
        units = _products([np.array([[1.0, s]])[:, : 2 - known["cyclic"]] for s in level["spread"]])
        plain.append(inside * products * units[:, 1:])
        for name, columns in _blocks(known, level, x).items():
            block = level["blocks"][name]
            wiggly.append(inside * (columns - np.array(block["shift"])) / block["size"])
    return np.concatenate([*plain, *wiggly], axis=1)


def smooth_names(
    state: Mapping[str | int, Any], label: str, variables: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Return the names of a smooth's plain columns, and the name and size of each block.

    Examples
    --------
    >>> state = learn_smooth(np.linspace(0, 1, 50)[:, None], None, k=6)
    >>> smooth_names(state, "s(x)", ["x"])
    (('s(x)[linear]',), (('s(x)', 4),))
    """
    plain, blocks = [], []
    for level, of_level in state["levels"].items():
        name = f"{label}[{level}]" if level else label
        plain += [f"{name}[{line}]" for line in _line_names(state, variables)]
        for which, block in of_level["blocks"].items():
            wiggly = ", ".join(variables[int(j)] for j in which.split(","))
            blocks.append(
                (f"{name}[{wiggly}]" if len(variables) > 1 else name, len(block["shift"]))
            )
    return tuple(plain), tuple(blocks)


def _line_names(state: Mapping[str | int, Any], variables: Sequence[str]) -> Iterator[str]:
    """Yield the names of the products of variables, without the constant."""
    if state["cyclic"]:
        return
    for chosen in product((False, True), repeat=len(variables)):
        if any(chosen):
            names = [v for v, c in zip(variables, chosen, strict=True) if c]
            yield "linear" if len(variables) == 1 else f"linear {':'.join(names)}"
