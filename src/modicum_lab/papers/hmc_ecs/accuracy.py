"""HIGGS in the HMC-ECS paper: Figures 1, 2 and 3 (section 6.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from modicum.plots import pyplot
from modicum_lab.papers.experiment import Figure, Result, Scale, Table, experiment
from modicum_lab.papers.fits import Fit, ledger_of, settings_of, warnings_of
from modicum_lab.papers.hmc_ecs.contenders import (
    DEFAULT,
    PERTURBED,
    SIGNED,
    full_hmc,
)
from modicum_lab.papers.hmc_ecs.data import higgs_rows
from modicum_lab.papers.hmc_ecs.higgs import HIGGS, SIZES, higgs_fit, higgs_fits
from modicum_lab.papers.hmc_ecs.notes import monte_carlo_error
from modicum_lab.papers.hmc_ecs.pictures import draw_marginals, draw_moments, some_parameters
from modicum_lab.papers.hmc_ecs.tables import accuracy_table, efficiency_table

__all__ = ["figures_1_3", "roc_curves"]


@experiment("hmc-ecs", "figures-1-3", "HIGGS: marginals, means and variances, ROC")
def figures_1_3(scale: Scale, seed: int) -> Result:
    """Figures 1, 2 and 3, with the errors they show as a table."""
    size = SIZES[scale]
    data = higgs_rows(size.rows, seed)
    fits = higgs_fits(scale, size, seed, schedule=False)
    truth = higgs_fit(full_hmc(size), size, seed)
    shown, every = list(fits.values()), [*fits.values(), truth]
    curves = roc_curves([truth, *(fits[k] for k in (PERTURBED, SIGNED, DEFAULT))], data.test)
    which, names = some_parameters(truth, seed)
    note = f"Data: {data.description}."
    return Result(
        tables=[
            accuracy_table("figure-2", fits, truth, note),
            efficiency_table("full-hmc", HIGGS, {truth.label: truth}, note),
            _roc_table(curves, note),
        ],
        figures=[
            Figure("figure-1", partial(draw_marginals, shown, truth, which, names),
                   f"Marginal posteriors of four parameters. {note}"),
            Figure("figure-2", partial(draw_moments, shown, truth),
                   f"Posterior means and variances of all parameters against full HMC. {note}"),
            Figure("figure-3", partial(_draw_roc, curves, every),
                   f"ROC curves for rows that were not fitted. {note}"),
        ],
        settings=settings_of(data, every, size.chains),
        ledger=ledger_of(every),
        notes=[monte_carlo_error(truth), *NOTES, *warnings_of(every)],
    )  # fmt: skip


NOTES = [
    "Stand-in outcomes come from a logistic regression, so the ROC curve is that of the model.",
]


def roc_curves(fits: Sequence[Fit], rows: Any) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """False and true positive rates of the mean prediction, by method."""
    y = rows.slice(0, len(rows))["y"] > 0
    grid = np.linspace(0, 1, 1_001)
    found = {}
    for fit in fits:
        order = np.argsort(-fit.post.predict(rows, draws=100).mean)
        hits = np.cumsum(y[order]) / y.sum()
        alarms = np.cumsum(~y[order]) / (~y).sum()
        curve = np.interp(grid, alarms, hits)
        found[fit.label] = (np.append(0.0, grid), np.append(0.0, curve))
    return found


def _roc_table(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], note: str) -> Table:
    first = next(iter(curves.values()))[1]
    rows = [
        [label, float(np.trapezoid(y, x)), float(np.abs(y - first).max())]
        for label, (x, y) in curves.items()
    ]
    return Table("figure-3", ["method", "area under ROC", "largest distance to full HMC's"],
                 rows, note)  # fmt: skip


def _draw_roc(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], fits: Sequence[Fit]) -> Any:
    truth, *others = curves
    colours = {fit.label: fit.colour for fit in fits}
    figure, axes = pyplot().subplots(
        1, len(others), figsize=(3.3 * len(others), 3.7), sharey=True, layout="constrained"
    )
    for ax, label in zip(axes, others, strict=True):
        ax.plot(*curves[truth], color=colours[truth], linewidth=3, alpha=0.5, label=truth)
        ax.plot(*curves[label], "--", color=colours[label], linewidth=1.6, label=label)
        ax.plot([0, 1], [0, 1], ":", color="#999999", linewidth=1)
        ax.set(xlabel="false positive rate", box_aspect=1)
        ax.legend(frameon=False, fontsize=8, loc="lower right")
    axes[0].set_ylabel("true positive rate")
    return figure
