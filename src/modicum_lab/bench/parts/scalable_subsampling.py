"""What Metropolis-Hastings with scalable subsampling would read: rows per step, by its bounds.

The method (Prado, Nemeth and Sherlock 2024, arXiv 2407.19602) is exact without signs. A proposal z'
is accepted or refused by a Poisson number of rows, whose mean is the sum over all rows of a bound
on the change of the row's residual, r_i(z') - r_i(z). With a proposal that does not depend on z,
such as a draw of the normal approximation, in whitened coordinates,

    M_i(z, z') = (B / 6) s_i^3 (|z|^3 + |z'|^3),    s_i = |L' x_i|,    |l_i'''| <= B,

since nothing is known of a row before it is read but its length s_i. For a logistic regression B is
1 / (6 sqrt(3)). The table has the sum of M_i at the typical length |z|^2 = d, without and with
certainty rows, and what the residuals are: by how much the lengths overstate them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from modicum import LogPosterior
from modicum.errors import DataError
from modicum_lab.bench.tables import Table
from modicum_lab.datasets import Dataset, bankruptcy_shaped, covertype, flights, higgs_shaped

THIRD = 1 / (6 * np.sqrt(3))  # the largest |l'''| of a logistic regression
CERTAINTY = 2_000  # rows with the largest bounds, which every step would read
POINTS = 8  # draws z at which residuals are evaluated
CHUNK = 65_536


def rows_per_step(data: Dataset) -> list[float]:
    """Return d, the expected rows per step, those beyond certainty rows, and sum |r_i|."""
    posterior = LogPosterior(data.model, data.rows)
    curvature = -np.asarray(posterior.hessian(posterior.mode().point)[-1])
    d = len(curvature)
    whiten = np.linalg.inv(np.linalg.cholesky(curvature)).T
    z = np.random.default_rng(0).normal(size=(d, POINTS))
    lengths, residuals = [], np.zeros(POINTS)
    for chunk in data.rows.chunks(CHUNK):
        x = np.asarray(chunk["x"], np.float64)
        whitened = np.column_stack([x, np.ones(len(x))])[:, :d] @ whiten
        lengths.append(np.linalg.norm(whitened, axis=1))
        residuals += THIRD / 6 * (np.abs(whitened @ z) ** 3).sum(axis=0)
    bounds = np.sort(THIRD / 6 * np.concatenate(lengths) ** 3 * 2 * d**1.5)
    return [d, bounds.sum(), bounds[:-CERTAINTY].sum(), float(residuals.mean())]


def run(quick: bool = False) -> list[Table]:
    """Compute the rows per step of every logistic table that is here."""
    here: dict[str, Any] = {"download": False, "progressbar": False}
    n = 50_000 if quick else 1_000_000
    tables: dict[str, Callable[[], Dataset]] = {
        "HIGGS-shaped": partial(higgs_shaped, n, **here),
        "splines of 8 columns": partial(bankruptcy_shaped, n, **here),
    }
    if not quick:
        tables |= {"New York flights": partial(flights, **here)}
        tables |= {"Covertype": partial(covertype, **here)}
    table = Table(
        "Rows per step of Metropolis-Hastings with scalable subsampling, by its bounds",
        ["table", "d", "rows per step", f"beyond {CERTAINTY:,} certainty rows", "sum of |r_i|"],
    )
    missing = []
    for name, make in tables.items():
        try:
            table.rows.append([name, *rows_per_step(make())])
        except DataError as error:  # no file, and no way to download it
            missing.append(f"{name} was left out: {error}")
    table.note = " ".join(missing)
    return [table]
