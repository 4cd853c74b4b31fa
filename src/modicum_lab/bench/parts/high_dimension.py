"""HMC-ECS with hundreds of dense columns: the cost of an iteration, and the share of whitening.

Whitening a fresh row takes d^2 multiplications, and evaluating it 2 d per leapfrog step. The cost
of a fresh row is the difference between iterations with few and with many of them, as medians of
alternating runs in one process. The time of an iteration does not depend on the number of rows;
that of a pass is proportional to it.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from modicum import HMCECS, ModicumWarning, sample
from modicum_lab.bench.stand_ins import plain
from modicum_lab.bench.tables import Table
from modicum_lab.datasets import Dataset

SUBSAMPLE, BLOCKS = 200, 20
FEW, MANY = 1, 5  # blocks refreshed per iteration, of ten rows each
STEP = 0.24  # a trajectory of 1.2 has five leapfrog steps


class Cost(NamedTuple):
    """Microseconds of an iteration with ten fresh rows, and of a fresh row."""

    iteration: float
    row: float

    @property
    def share(self) -> float:
        """Share of the iteration that ten fresh rows take."""
        return 10 * self.row / self.iteration


def iteration(data: Dataset, refreshes: int, draws: int) -> float:
    """Return the microseconds per iteration of one chain, from its sampling time."""
    method = HMCECS(
        subsample=SUBSAMPLE, blocks=BLOCKS, refreshes=refreshes, step_size=STEP, certainty=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)  # m is set by hand
        post = sample(
            data.model, data.rows, method=method, draws=draws, tune=64, chains=1, random_seed=1,
            progressbar=False,
        )  # fmt: skip
    return 1e6 * float(post.settings["sampling_seconds"]) / draws


def cost(data: Dataset, draws: int, repeats: int) -> Cost:
    """Measure iterations with few and with many fresh rows, alternately."""
    times = [
        [iteration(data, refreshes, draws) for refreshes in (FEW, MANY)]  # compiled in warm-up
        for _ in range(repeats)
    ]
    few, many = np.median(times, axis=0)
    return Cost(float(few), float((many - few) / ((MANY - FEW) * SUBSAMPLE // BLOCKS)))


def run(quick: bool = False) -> list[Table]:
    """Measure an iteration by the number of columns."""
    sizes = [300] if quick else [300, 1_000, 2_000]
    n, draws, repeats = (4_000, 128, 1) if quick else (20_000, 1_024, 3)
    table = Table(
        f"An iteration with m = {SUBSAMPLE} and ten fresh rows, {n:,} rows",
        ["d", "million operations to whiten", "to evaluate", "microseconds", "of these whitening"],
        note="A multiplication and an addition are two operations.",
    )
    for d in sizes:
        measured = cost(plain(n, d - 1), draws, repeats)
        whiten = 2 * 10 * d**2 / 1e6
        evaluate = 2 * 2 * SUBSAMPLE * d * 6 / 1e6  # a product and its transpose, six times
        table.rows.append([d, whiten, evaluate, measured.iteration, measured.share])
    return [table]
