"""Data sets in two forms: with codes, and with every column of the model matrix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import modicum as mo
from modicum.rows.coding import CodedTerm, Coding
from modicum.rows.description import Description
from modicum.rows.memory import MemoryBackend


class Pair(NamedTuple):
    coded: mo.Rows
    dense: mo.Rows


def pair(n: int = 400, outcome: str = "binary", numbers: int = 2, weight: bool = False) -> Pair:
    """Make rows of numbers and two factors from arrays."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, numbers)) if numbers else None
    factors = {
        "gas": np.array(["neon", "argon", "xenon", "radon"])[rng.integers(0, 4, n)],
        "month": rng.integers(3, 6, n),
    }
    further = {"weight": rng.integers(1, 4, n).astype(float)} if weight else {}
    eta = np.zeros(n) if x is None else x @ rng.normal(size=numbers)
    eta += (factors["gas"] == "neon") - 0.5 * (factors["month"] == 5)
    y = {
        "binary": rng.random(n) < 1 / (1 + np.exp(-eta)),
        "count": rng.poisson(np.exp(0.3 * eta)),
        "real": eta + rng.normal(size=n),
        "class": rng.integers(0, 3, n),
    }[outcome].astype(float)
    coded = mo.Rows(x=x, y=y, codes=factors, **further)
    return Pair(coded, densely(coded))


def crossed(n: int = 400) -> Pair:
    """A factor, its interaction with a number that has no column, and splines that overlap.

    The columns are in an unusual order: splines, factor, number, slopes per level.
    """
    rng = np.random.default_rng(6)
    part = rng.random(n)
    x = np.column_stack([rng.normal(size=n), rng.normal(size=n), 1 - part, part])
    arrays = {
        "x": x,
        "y": (rng.random(n) < 0.4).astype(float),
        "gas": rng.integers(0, 3, n).astype(np.uint8),
        "piece": rng.integers(0, 4, n).astype(np.uint8),
    }
    coding = Coding(
        dense=(6,),
        terms=(
            CodedTerm("piece", 0, 3, reference=True, scale=2),
            CodedTerm("piece", 0, 4, reference=False, scale=3),
            CodedTerm("gas", 4, 2),
            CodedTerm("gas", 7, 3, reference=False, scale=1),
        ),
    )
    about = Description(
        n=n,
        dtype=np.dtype(np.float64),
        fields={"x": (4,), "y": (), "gas": (), "piece": ()},
        codes=dict.fromkeys(("gas", "piece"), np.dtype(np.uint8)),
        columns=tuple(f"c{j}" for j in range(coding.size)),
        coding=coding,
    )
    coded = mo.Rows._at(MemoryBackend(about, arrays))
    return Pair(coded, densely(coded))


def densely(coded: mo.Rows) -> mo.Rows:
    """Return the same rows with all columns of the model matrix formed."""
    assert coded.coding is not None
    whole = coded.slice(0, len(coded))
    fields = {k: v for k, v in whole.items() if k not in (*coded.coding.fields, "x")}
    x = coded.coding.densely(whole)
    return mo.Rows(x=x, columns=coded.columns, dtype=coded.dtype, **fields)
