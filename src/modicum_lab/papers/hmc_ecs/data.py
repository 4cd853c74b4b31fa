"""The two data sets of the HMC-ECS paper at the size of a scale, as near as they can be had."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from modicum.datasets import Dataset, bankruptcy_shaped, higgs, higgs_shaped
from modicum.datasets.bankruptcy_table import PAPER_ROWS as BANKRUPTCY_ROWS
from modicum.datasets.higgs_table import SOURCE
from modicum.rows import Rows

__all__ = ["BANKRUPTCY_ROWS", "HIGGS_ROWS", "bankruptcy_rows", "higgs_rows"]

HIGGS_ROWS, HIGGS_TEST = 10_500_000, 500_000


@lru_cache(maxsize=1)
def higgs_rows(n: int, seed: int) -> Dataset:
    """The first `n` rows of HIGGS, or its stand-in where the whole file is not at hand.

    Test rows are a twentieth of them, as in the paper.
    """
    path = SOURCE.look(None)
    if path is not None and path.name.startswith("HIGGS.csv"):
        whole = higgs(download=False, progressbar=False)
        if whole.test is not None:
            return _part(whole, n, whole.test)
    test = n * HIGGS_TEST // HIGGS_ROWS
    return _split(higgs_shaped(n + test, seed=seed, download=False, progressbar=False), n)


@lru_cache(maxsize=1)
def bankruptcy_rows(n: int, seed: int) -> Dataset:
    """`n` rows of the stand-in for the paper's firms."""
    return bankruptcy_shaped(n, seed=seed, download=False, progressbar=False)


def _split(data: Dataset, n: int) -> Dataset:
    """The first `n` rows to fit, the rest to test."""
    test = _rows(data.rows, n, len(data.rows))
    said = f"{data.description}; {len(test):,} of them kept for testing"
    return _part(replace(data, description=said), n, test)


def _part(data: Dataset, n: int, test: Rows) -> Dataset:
    return replace(data, rows=_rows(data.rows, 0, n), test=test)


def _rows(rows: Rows, first: int, last: int) -> Rows:
    return Rows(**rows.slice(first, last), columns=rows.columns, dtype=rows.dtype)
