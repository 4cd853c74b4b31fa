"""Encodings of columns: dummy variables, splines and standard scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def standardised(values: np.ndarray) -> np.ndarray:
    """Scale columns to mean zero and standard deviation one, in float32.

    Examples
    --------
    >>> standardised(np.array([1, 2, 3])).round(3)
    array([-1.225,  0.   ,  1.225], dtype=float32)
    """
    wide = values.astype(np.float64)
    scores: np.ndarray = (wide - wide.mean(0)) / wide.std(0)
    return scores.astype(np.float32)


def dummies(
    codes: np.ndarray, name: str, levels: Sequence[object] | np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Return one dummy column per level except the most frequent, and their names.

    Examples
    --------
    >>> dummies(np.array([0, 1, 1, 2]), "gas", ["a", "b", "c"])[1]
    ['gas[a]', 'gas[c]']
    """
    reference = np.bincount(codes).argmax()
    others = [k for k in range(int(codes.max()) + 1) if k != reference]
    columns = (codes[:, None] == np.array(others)).astype(np.float32)
    return columns, [f"{name}[{levels[k]}]" for k in others]


def factor(codes: np.ndarray, levels: Sequence[object] | np.ndarray) -> pd.Categorical[str]:
    """Return a categorical whose first level, the reference, is the most frequent.

    Examples
    --------
    >>> factor(np.array([0, 1, 1, 2]), ["a", "b", "c"]).categories.to_list()
    ['b', 'a', 'c']
    """
    import pandas as pd  # slow to import

    reference = int(np.bincount(codes).argmax())
    order = [reference, *(k for k in range(int(codes.max()) + 1) if k != reference)]
    place = np.argsort(order)
    names = pd.Index([str(levels[k]) for k in order])
    return pd.Categorical.from_codes(place[codes], names)


def splines(values: np.ndarray, count: int = 10) -> np.ndarray:
    """Return cubic B-splines with knots at quantiles, without the first (the intercept spans it).

    Examples
    --------
    >>> splines(np.linspace(0, 1, 50), 11).shape
    (50, 10)
    """
    from scipy.interpolate import BSpline  # slow to import

    inner = np.quantile(values, np.linspace(0, 1, count - 2))
    knots = np.concatenate([[inner[0]] * 3, inner, [inner[-1]] * 3])
    basis = np.empty((len(values), count - 1), np.float32)
    for first in range(0, len(values), 1 << 18):
        part = slice(first, first + (1 << 18))
        basis[part] = BSpline.design_matrix(values[part], knots, 3).toarray()[:, 1:]
    return basis


def spline_names(name: str, count: int = 10) -> list[str]:
    """Return names for the columns of `splines`.

    Examples
    --------
    >>> spline_names("hour", 3)
    ['hour[1]', 'hour[2]']
    """
    return [f"{name}[{i}]" for i in range(1, count)]
