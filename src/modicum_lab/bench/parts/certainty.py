"""Certainty rows and the choice of m: what they save, and how steady the choice is.

Every table is sampled alternately without certainty rows and with the chosen number, in one
process; a simulated census table represents tables with many rare levels. To see how steady the
choice is, rows are chosen again for other seeds, with only a few draws.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from modicum import HMCECS, ModicumWarning, sample
from modicum.errors import DataError
from modicum.posterior import Posterior
from modicum_lab.bench.stand_ins import census_shaped, plain
from modicum_lab.bench.tables import Table
from modicum_lab.datasets import Dataset, claims, covertype, flights, taxi

SETTINGS = {"none": HMCECS(certainty=0), "auto": HMCECS()}
SEEDS = 10


class Cost(NamedTuple):
    """Cost of an effective draw."""

    subsample: int
    certain: int
    evaluations: float  # of rows, per effective draw
    speed: float  # effective draws per second of sampling


def _problems(quick: bool) -> dict[str, Callable[[], Dataset]]:
    made_up: dict[str, Callable[[], Dataset]] = {
        "census-shaped": lambda: census_shaped(20_000 if quick else 199_523),
        "normal columns": lambda: plain(50_000 if quick else 1_000_000),
    }
    real = {"Covertype": covertype, "flights": flights, "claims": claims, "taxi": taxi}
    return made_up if quick else real | made_up


def sampled(data: Dataset, method: HMCECS, draws: int, seed: int = 1) -> Posterior:
    """Sample without showing warnings; the posterior keeps them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)
        return sample(
            data.model, data.rows, method=method, draws=draws, tune=min(500, draws), chains=2,
            random_seed=seed, progressbar=False,
        )  # fmt: skip


def cost_of(post: Posterior) -> Cost:
    """Return the cost per effective draw of the parameter with the smallest ESS."""
    tuning: Any = post.tuning
    effective = float(post.summary()["ess_bulk"].min())
    return Cost(
        tuning["subsample"]["value"],
        tuning["certainty"]["value"],
        float(post.stats["rows_touched"].sum()) / effective,
        effective / float(post.settings["sampling_seconds"]),
    )


def run(quick: bool = False) -> list[Table]:
    """Compare the settings on every table; then choose m for other seeds."""
    draws = 200 if quick else 2_000
    saved = Table(
        "Certain rows: none, and as many as are chosen",
        ["table", "certain", "m", "evaluations per effective draw", "of none",
         "effective draws per second", "of none"],
    )  # fmt: skip
    steady = Table(
        f"Rows per step, certain ones included, over {3 if quick else SEEDS} seeds",
        ["table", "least", "largest", "m, largest over least"],
    )
    for name, make in _problems(quick).items():
        try:
            data = make()
        except DataError as missing:  # no file, and no way to download it
            saved.note = f"{name} was left out: {missing}"
            continue
        costs = {label: cost_of(sampled(data, method, draws)) for label, method in SETTINGS.items()}
        first = costs["none"]
        for cost in costs.values():
            saved.rows.append(
                [name, cost.certain, cost.subsample, cost.evaluations,
                 cost.evaluations / first.evaluations, cost.speed, cost.speed / first.speed]
            )  # fmt: skip
        chosen = [
            cost_of(sampled(data, HMCECS(), 20, seed))
            for seed in range(1, 4 if quick else 1 + SEEDS)
        ]
        total = [cost.subsample + cost.certain for cost in chosen]
        m = [cost.subsample for cost in chosen]
        steady.rows.append([name, min(total), max(total), max(m) / min(m)])
    return [saved, steady]


if __name__ == "__main__":
    for table in run():
        print(table.markdown())
