"""Cost of an iteration of HMC-ECS: in float32, by chains per core, and with rows from a store.

Every line is wall time divided by iterations and chains, as a median of alternating runs in one
process, and its ratio to the first line.
"""

from __future__ import annotations

import tempfile
from typing import Any, Literal, NamedTuple

import numpy as np

from modicum import HMCECS, ECSExpert, Rows, sample
from modicum.rows import ingest
from modicum_lab.bench.machine import cores
from modicum_lab.bench.stand_ins import plain
from modicum_lab.bench.tables import Table
from modicum_lab.datasets import Dataset


class Case(NamedTuple):
    """One line of the table: where rows are, how many chains, in which precision."""

    rows: Rows
    chains: int
    precision: Literal["float64", "float32"] = "float64"


def iteration(table: Dataset, case: Case, draws: int) -> float:
    """Return the microseconds per iteration of one chain, from its sampling time."""
    settings: dict[str, Any] = {"subsample": 200, "blocks": 20, "refreshes": 2, "step_size": 0.4}
    post = sample(
        table.model,
        case.rows,
        method=HMCECS(expert=ECSExpert(precision=case.precision), **settings),
        draws=draws,
        tune=100,
        chains=case.chains,
        random_seed=1,
        progressbar=False,
    )
    return 1e6 * float(post.settings["sampling_seconds"]) / draws / case.chains


def run(quick: bool = False) -> list[Table]:
    """Sample the cases alternately; compare the medians with the first."""
    n, draws, repeats = (50_000, 500, 1) if quick else (10_000_000, 5_000, 3)
    table, number = plain(n), cores()
    with tempfile.TemporaryDirectory() as folder:
        store = ingest(table.rows, f"{folder}/store", progressbar=False)
        cases = {
            "float64, one chain per core": Case(table.rows, number),
            "float32": Case(table.rows, number, "float32"),
            "one chain alone": Case(table.rows, 1),
            "4 chains per core": Case(table.rows, 4 * number),
            "16 chains per core, stacked": Case(table.rows, 16 * number),
            "from a row store": Case(store, number),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(1 + repeats):  # the first round compiles, and fills the file cache
            for name, case in cases.items():
                times[name].append(iteration(table, case, draws))
    middle = {name: float(np.median(values[1:])) for name, values in times.items()}
    first = next(iter(middle.values()))
    return [
        Table(
            f"An iteration with m = 200 of {n:,} rows, d = 29, {number} cores",
            ["", "microseconds per iteration of a chain", "of the first"],
            [[name, value, value / first] for name, value in middle.items()],
        )
    ]
