"""Figures 8 and 9 of the HMC-ECS paper: cruder control variates (section 6.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from modicum.plots import pyplot
from modicum_lab.papers.experiment import Figure, Result, Scale, Table, experiment
from modicum_lab.papers.fits import Fit, ledger_of, settings_of, warnings_of
from modicum_lab.papers.hmc_ecs.contenders import Size, by_schedule, full_hmc, our_default
from modicum_lab.papers.hmc_ecs.data import higgs_rows
from modicum_lab.papers.hmc_ecs.higgs import HIGGS, SIZES, higgs_fit
from modicum_lab.papers.hmc_ecs.notes import monte_carlo_error
from modicum_lab.papers.hmc_ecs.pictures import ORDER_COLOURS, draw_moments
from modicum_lab.papers.hmc_ecs.tables import accuracy_table

__all__ = ["figures_8_9"]

TRAINING = 200  # iterations after which the anchor is moved again, in the paper's burn-in


def _of_order(order: int, size: Size, seed: int) -> Fit:
    """HMC-ECS by the paper's schedule; that of order 2 is a line of Table 1."""
    fit = higgs_fit(by_schedule(HIGGS, size, order), size, seed)
    named = replace(fit.contender, label=f"order {order}", colour=ORDER_COLOURS[order])
    return Fit(named, fit.post)


@experiment("hmc-ecs", "figures-8-9", "HIGGS: control variates of order 0, 1 and 2")
def figures_8_9(scale: Scale, seed: int) -> Result:
    """Variance of lhat along the run, and accuracy, as control variates get cruder."""
    size = SIZES[scale]
    data = higgs_rows(size.rows, seed)
    orders = [_of_order(k, size, seed) for k in ((0, 1, 2) if scale != "smoke" else (0, 1))]
    default, truth = (higgs_fit(one, size, seed) for one in (our_default(size), full_hmc(size)))
    fits = {fit.label: fit for fit in (*orders, default)}
    note = f"Data: {data.description}."
    every = [*fits.values(), truth]
    paths = {fit.label: variance_path(fit) for fit in orders}
    return Result(
        tables=[_table(fits, truth, note)],
        figures=[
            Figure("figure-8", partial(_draw_variance, paths, fits),
                   f"{CAPTION} {note}"),
            Figure("figure-9", partial(draw_moments, list(fits.values()), truth),
                   f"Posterior means and variances against full HMC. {note}"),
        ],
        settings=settings_of(data, every, size.chains),
        ledger=ledger_of(every),
        notes=[monte_carlo_error(truth), *NOTES, *warnings_of(every)],
    )  # fmt: skip


CAPTION = (
    "Estimated variance of the log-likelihood estimate along the run, mean of the chains. Dashed: "
    "moves of the anchor in burn-in; solid: its end."
)
NOTES = [
    f"m = {HIGGS.subsample:,} for every order: the paper does not print m for this experiment.",
    "Order 0 is run because the paper shows it; the warnings below are what a user gets. With m "
    "left to Modicum it is refused, since no affordable m would do.",
    "The stages of burn-in adapt the step; after it the step is .2, which order 0 may not bear: a "
    "chain that stands still has an infinite IF.",
]


def variance_path(fit: Fit) -> np.ndarray:
    """Variance of lhat at every iteration, burn-in first."""
    burn_in = np.asarray(fit.post.tuning["burn-in variance"])
    return np.concatenate([burn_in, fit.post.stats["variance_estimate"].mean(axis=0)])


def _table(fits: Mapping[str, Fit], truth: Fit, note: str) -> Table:
    table = accuracy_table("figure-9", fits, truth, note)
    columns = [*table.columns, "variance of lhat, median", "acceptance", "IF", "warned"]
    rows = []
    for row, fit in zip(table.rows, fits.values(), strict=True):
        variance = float(np.median(fit.post.stats["variance_estimate"]))
        rows.append([*row, variance, fit.stat("acceptance_rate"), float(fit.inefficiency.mean()),
                     bool(fit.post.warnings)])  # fmt: skip
    return Table(table.name, columns, rows, note)


def _draw_variance(paths: Mapping[str, np.ndarray], fits: Mapping[str, Fit]) -> Any:
    figure, ax = pyplot().subplots(figsize=(8, 4), layout="constrained")
    for label, path in paths.items():
        ax.plot(np.maximum(path, 1e-12), color=fits[label].colour, label=label, linewidth=0.9)
    burn_in = len(next(iter(fits.values())).post.tuning["burn-in variance"])
    for at in (100, *range(TRAINING, burn_in, TRAINING)):
        ax.axvline(at, color="#999999", linestyle="--", linewidth=0.8)
    ax.axvline(burn_in, color="black", linewidth=1)
    ax.axhline(1, color="#777777", linestyle=":", linewidth=1, label="variance 1")
    ax.set(yscale="log", xlabel="iteration", ylabel="variance of the log-likelihood estimate")
    figure.legend(frameon=False, ncols=4, loc="outside upper center")
    return figure
