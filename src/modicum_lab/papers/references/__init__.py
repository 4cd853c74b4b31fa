"""Reference posteriors of four real tables, from 64,000 draws of full-data HMC in float64 each.

There is also one of the simulated table `census` (`modicum_lab.bench.stand_ins.census_shaped`).
`modicum_lab.tests.validation.make_references` computes them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

__all__ = ["TABLES", "Reference", "reference"]

TABLES = ("covertype", "flights", "taxi", "claims")


@dataclass(frozen=True, eq=False)
class Reference:
    """Mean, standard deviation and Monte Carlo error of every scalar, coefficients first."""

    rows: int
    draws: int
    mean: np.ndarray
    sd: np.ndarray
    mcse: np.ndarray


def reference(name: str) -> Reference:
    """Return the reference of a table.

    Examples
    --------
    >>> reference("taxi").draws
    64000
    """
    saved = json.loads((files(__package__) / f"{name}.json").read_text(encoding="utf-8"))
    parts = {
        what: np.concatenate([np.ravel(saved[p][what]) for p in ("beta", "intercept")])
        for what in ("mean", "sd", "mcse")
    }
    return Reference(saved["rows"], saved["draws"], **parts)
