"""The cost of exactness: computational time of signed over perturbed HMC-ECS.

CT = IF x rows evaluated per draw / (mean sign)^2, one number per parameter (eqs. 3.2 and 5.4 of the
HMC-ECS paper), on a problem with the shape of HIGGS: 29 coefficients, a million rows; and on
Covertype by default. The paper's Table 1 has a median of 1.15 for the ratio, with uniform rows,
m = 1,300 and lambda = 100.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from modicum import HMCECS, SignedHMCECS
from modicum.diagnostics import computational_time
from modicum.errors import DataError
from modicum.posterior import Posterior
from modicum_lab.bench.process import in_process
from modicum_lab.bench.stand_ins import plain
from modicum_lab.bench.tables import Table
from modicum_lab.datasets import covertype
from modicum_lab.papers.fits import Contender

UNIFORM: dict[str, Any] = {"design": "uniform", "blocks": 100, "refreshes": 1}
DEFAULT = "weighted rows, by default"
PAIRS = {  # perturbed, signed
    "as in the paper": (
        HMCECS(subsample=1300, **UNIFORM),
        SignedHMCECS(products=100, batch=30, **UNIFORM),
    ),
    "weighted rows, mini-batches of 30": (HMCECS(), SignedHMCECS(batch=30, certainty=0)),
    DEFAULT: (HMCECS(), SignedHMCECS()),
}


@dataclass(frozen=True)
class Cost:
    """Computational time of each parameter, and its components."""

    time: list[float]
    inefficiency: float  # the median over parameters
    rows_per_evaluation: float
    mean_sign: float
    accepted: float  # share of the proposals of u
    speed: float  # effective draws per second of sampling, the least of all parameters


def measure(n: int, draws: int, pair: str, which: int) -> dict[str, Any]:
    """Return the cost of one method of a pair in plain types; n = 0 runs Covertype.

    Runs in a separate process.
    """
    method = PAIRS[pair][which]
    data = plain(n) if n else covertype()
    fit = Contender(method.name, method, draws, 500).run(data, chains=2, seed=1)
    stats = fit.post.stats
    per_draw = float(stats["rows_touched"].mean())
    sign = float(fit.weights.mean())
    cost = Cost(
        time=np.asarray(computational_time(fit.inefficiency, per_draw, sign)).tolist(),
        inefficiency=float(np.median(fit.inefficiency)),
        rows_per_evaluation=float(np.mean(stats["rows_touched"] / (stats["n_steps"] + 2))),
        mean_sign=sign,
        accepted=float(stats["acceptance_rate_u"].mean()),
        speed=draws * 2 * sign**2 / float(np.max(fit.inefficiency)) / _seconds(fit.post),
    )
    return asdict(cost)


def _seconds(post: Posterior) -> float:
    return float(post.settings["sampling_seconds"])


def run(quick: bool = False) -> list[Table]:
    """Run every pair, each method in a separate process."""
    n, draws = (100_000, 500) if quick else (1_000_000, 4_000)
    parts = Table(
        f"Signed and perturbed HMC-ECS, n = {n:,}, 29 parameters",
        [
            "rows drawn",
            "method",
            "rows per evaluation",
            "accepted u",
            "mean sign",
            "median IF",
            "effective draws per second",
        ],
    )
    ratios = Table(
        "Computational time, signed over perturbed (the paper's Table 1 has a median of 1.15)",
        ["rows drawn", "median", "least", "largest", "share of perturbed speed"],
    )
    cases = {name: (n, name) for name in PAIRS}
    if not quick:
        try:
            covertype()
        except DataError as missing:  # no file, and no way to download it
            parts.note = f"Covertype was left out: {missing}"
        else:
            cases["Covertype, by default"] = (0, DEFAULT)
    for name, (number, pair) in cases.items():
        perturbed, signed = (
            Cost(
                **in_process(
                    "modicum_lab.bench.parts.signed", "measure", number, draws, pair, which
                )
            )
            for which in (0, 1)
        )
        for label, cost in (("perturbed", perturbed), ("signed", signed)):
            parts.rows.append(
                [name, label, cost.rows_per_evaluation, cost.accepted, cost.mean_sign,
                 cost.inefficiency, cost.speed]
            )  # fmt: skip
        ratio = np.divide(signed.time, perturbed.time)
        figures = [float(q(ratio)) for q in (np.median, np.min, np.max)]
        ratios.rows.append([name, *figures, signed.speed / perturbed.speed])
    return [parts, ratios]
