"""HMC-ECS with hundreds of dense columns: the cost of an iteration, and the share of whitening.

Whitening a fresh row takes d^2 multiplications, and evaluating it 2 d per leapfrog step. Every line
compares an iteration with whitening by one product in float64 and with the default (by blocks of a
triangular factor, in float32), as medians of alternating runs in one process. The cost of a fresh
row is the difference between iterations with few and with many of them. The time of an iteration
does not depend on the number of rows; that of a pass is proportional to it.
"""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple

import numpy as np

from modicum import HMCECS, ECSExpert, ModicumWarning, sample
from modicum_lab.bench.stand_ins import plain
from modicum_lab.bench.tables import Table
from modicum_lab.datasets import Dataset

SUBSAMPLE, BLOCKS = 200, 20
FEW, MANY = 1, 5  # blocks refreshed per iteration, of ten rows each
STEP = 0.24  # a trajectory of 1.2 has five leapfrog steps
Whitening = Literal["auto", "float64"]


class Cost(NamedTuple):
    """Microseconds of an iteration with ten fresh rows, and of a fresh row."""

    iteration: float
    row: float

    @property
    def share(self) -> float:
        """Share of the iteration that ten fresh rows take."""
        return 10 * self.row / self.iteration


def iteration(data: Dataset, whitening: Whitening, refreshes: int, draws: int) -> float:
    """Return the microseconds per iteration of one chain, from its sampling time."""
    method = HMCECS(
        subsample=SUBSAMPLE, blocks=BLOCKS, refreshes=refreshes, step_size=STEP, certainty=0,
        expert=ECSExpert(whitening=whitening),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)  # m is set by hand
        post = sample(
            data.model, data.rows, method=method, draws=draws, tune=64, chains=1, random_seed=1,
            progressbar=False,
        )  # fmt: skip
    return 1e6 * float(post.settings["sampling_seconds"]) / draws


def costs(data: Dataset, draws: int, repeats: int) -> dict[Whitening, Cost]:
    """Measure both ways of whitening, alternately."""
    ways: tuple[Whitening, ...] = ("float64", "auto")
    times: dict[tuple[Whitening, int], list[float]] = {}
    for _ in range(repeats):  # compilation is part of the warm-up
        for way in ways:
            for refreshes in (FEW, MANY):
                seconds = iteration(data, way, refreshes, draws)
                times.setdefault((way, refreshes), []).append(seconds)
    middle = {case: float(np.median(values)) for case, values in times.items()}
    per_block = SUBSAMPLE // BLOCKS
    return {
        way: Cost(
            middle[way, FEW], (middle[way, MANY] - middle[way, FEW]) / ((MANY - FEW) * per_block)
        )
        for way in ways
    }


def run(quick: bool = False) -> list[Table]:
    """Measure an iteration by the number of columns."""
    sizes = [300] if quick else [300, 1_000, 2_000]
    n, draws, repeats = (4_000, 128, 1) if quick else (20_000, 1_024, 3)
    table = Table(
        f"An iteration with m = {SUBSAMPLE} and ten fresh rows, {n:,} rows",
        ["d", "million operations to whiten", "to evaluate", "microseconds, float64",
         "of these whitening", "by default", "of these whitening", "of float64"],
        note="A multiplication and an addition are two operations.",
    )  # fmt: skip
    for d in sizes:
        measured = costs(plain(n, d - 1), draws, repeats)
        before, now = measured["float64"], measured["auto"]
        whiten = 2 * 10 * d**2 / 1e6
        evaluate = 2 * 2 * SUBSAMPLE * d * 6 / 1e6  # a product and its transpose, six times
        table.rows.append(
            [d, whiten, evaluate, before.iteration, before.share, now.iteration, now.share,
             now.iteration / before.iteration]
        )  # fmt: skip
    return [table]
