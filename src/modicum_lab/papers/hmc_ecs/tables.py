"""The shape of Tables 1 to 4 of the HMC-ECS paper: relative CT, and settings with efficiencies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from modicum.diagnostics import relative_computational_time
from modicum_lab.papers.experiment import Table
from modicum_lab.papers.fits import Fit, Length
from modicum_lab.papers.hmc_ecs.contenders import LEAPFROGS, PERTURBED, TRUTH, Problem

__all__ = [
    "accuracy_table",
    "efficiency_table",
    "full_data_ratio",
    "length_of",
    "relative_table",
]

TUNE, DRAWS = 1_000, 2_000  # iterations of the paper's runs


def length_of(problem: Problem) -> Length:
    """A run as long as the paper's, on as many rows."""
    return Length(TUNE, DRAWS, problem.rows)


def relative_table(name: str, problem: Problem, fits: Mapping[str, Fit], note: str) -> Table:
    """Return RCT = CT(method) / CT(perturbed): least, median and largest over the parameters.

    Costs are those of runs as long as the paper's, at what an iteration took here.
    """
    base, length = fits[PERTURBED], length_of(problem)
    whole = base.computational_time(length=length)
    sampling = base.computational_time(training=False, length=length)
    rows = []
    for label, fit in fits.items():
        charged = fit.computational_time(length=length)
        ratio = np.asarray(relative_computational_time(whole, charged))
        alone = fit.computational_time(training=False, length=length)
        own = relative_computational_time(sampling, alone)
        printed = problem.printed.get(label, {})
        row: list[object] = [label]
        for what, q in (("min", 0), ("median", 50), ("max", 100)):
            row += [float(np.percentile(ratio, q)), printed.get(what)]
        rows.append([*row, *(float(np.percentile(np.asarray(own), q)) for q in (0, 50, 100))])
    columns = ["method"]
    for what in ("min", "median", "max"):
        columns += [f"RCT {what}", f"RCT {what} (paper)"]
    columns += [f"sampling only: {what}" for what in ("min", "median", "max")]
    return Table(name, columns, rows, note)


MEASURES = {
    "acceptance": "acceptance_rate",
    "acceptance u": "acceptance_rate_u",
    "L": "n_steps",
    "IF": "",
    "ESS of 2,000": "",
    "tau": "",
    "100 m/n": "",
    "full HMC, times the cost": "",
}


def efficiency_table(name: str, problem: Problem, fits: Mapping[str, Fit], note: str) -> Table:
    """Acceptance, steps, IF, ESS, positive signs; share of the paper's rows, cost of full HMC."""
    columns = ["method"]
    for what in MEASURES:
        columns += [what, f"{what} (paper)"]
    rows = []
    for label, fit in fits.items():
        if fit.contender.training:  # HMC-ECS and full HMC
            found, printed = _measures(fit, problem.rows), problem.printed.get(label, {})
            row: list[object] = [label]
            for what in MEASURES:
                row += [found[what], printed.get(what)]
            rows.append(row)
    return Table(name, columns, rows, note)


def _measures(fit: Fit, rows: int) -> dict[str, float | None]:
    everything = fit.label == TRUTH
    factor = float(fit.inefficiency.mean())
    return {
        **{what: fit.stat(stat) for what, stat in MEASURES.items() if stat},
        "IF": factor,
        "ESS of 2,000": 2_000 / factor,
        "tau": fit.positive if fit.post.weights is not None else None,
        "100 m/n": 100.0 if everything else 100 * _rows_held(fit) / rows,
        "full HMC, times the cost": None if everything else full_data_ratio(fit, rows),
    }


def _rows_held(fit: Fit) -> float:
    """Rows of one evaluation of the estimate."""
    if "factors" in fit.post.stats:
        return float(fit.post.stats["factors"].mean()) * fit.post.tuning["batch"]["value"]
    return float(fit.post.tuning["subsample"]["value"])


def full_data_ratio(fit: Fit, rows: int) -> float:
    """Evaluations of full HMC, L = 6 and 3,000 iterations, over those of a run as long."""
    sampling = fit.post.ledger.by_purpose["sampling"]
    iteration = sampling / (fit.post.chains * fit.contender.draws)  # rows of one of them
    length = TUNE + DRAWS
    return length * (LEAPFROGS + 1) * rows / (fit.preparations(rows) + length * iteration)


def accuracy_table(name: str, fits: Mapping[str, Fit], truth: Fit, note: str) -> Table:
    """Errors of means in posterior sd, and ratios of standard deviations, against full HMC."""
    rows = []
    for label, fit in fits.items():
        off, spread = fit.off(truth), fit.sd / truth.sd
        rows.append([label, float(off.max()), float(np.sqrt(np.mean(off**2))),
                     float(spread.min()), float(spread.max())])  # fmt: skip
    columns = ["method", "largest error of a mean, sd", "rms error of means, sd",
               "least sd ratio", "largest sd ratio"]  # fmt: skip
    return Table(name, columns, rows, note)
