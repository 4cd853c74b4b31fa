"""HIGGS in the HMC-ECS paper: Tables 1 and 2, Figures 1 to 3, 8 and 9 (sections 6.5 and 6.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from modicum import Rows
from modicum.plots import pyplot
from modicum_lab.papers.experiments import Figure, Result, Scale, Table, claims, experiment, sized
from modicum_lab.papers.fits import (
    Contender,
    Fit,
    ledger_of,
    made_from,
    settings_of,
    warnings_of,
)
from modicum_lab.papers.hmc_ecs.comparison import (
    DEFAULT,
    HIGGS_ROWS,
    PERTURBED,
    SCHEDULE,
    SIGNED,
    TRUTH,
    Problem,
    Size,
    by_schedule,
    degraded,
    full_hmc,
    higgs_rows,
    our_default,
    run_problem,
)
from modicum_lab.papers.hmc_ecs.pictures import (
    ORDER_COLOURS,
    draw_marginals,
    draw_moments,
    some_parameters,
)
from modicum_lab.papers.hmc_ecs.tables import (
    accuracy_table,
    accurate,
    bias_claim,
    charging_note,
    efficiency_table,
    full_cost,
    monte_carlo_error,
    relative_table,
    rule_table,
    stochastic_gradients_cost,
    too_large,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

HIGGS = Problem(
    name="HIGGS",
    rows=HIGGS_ROWS,
    subsample=1_300,
    products=100,
    sghmc_step=0.06,
    sghmc_steps=(20,),
    sgld_step=1e-6,
    plain=True,
    printed={  # Tables 1 and 2
        PERTURBED: {"acceptance": 0.980, "acceptance u": 1.0, "L": 6, "IF": 2.185,
                    "ESS of 2,000": 927, "100 m/n": 0.012, "full HMC, times the cost": 642.8},
        SIGNED: {"min": 0.8, "median": 1.15, "max": 1.95, "acceptance": 0.979,
                 "acceptance u": 0.993, "L": 6, "IF": 2.192, "ESS of 2,000": 922, "tau": 1,
                 "100 m/n": 0.029, "full HMC, times the cost": 554.1},
        "SG-HMC": {"min": 2.43, "median": 2.97, "max": 4.08},
        "SGLD": {"min": 3.58, "median": 12.46, "max": 326.80},
        TRUTH: {"acceptance": 0.980, "IF": 2.084},
    },
)  # fmt: skip

SIZES: dict[Scale, Size] = {  # full HMC is run too: a laptop can afford a fortieth of the rows
    "smoke": Size(20_000, 2, 100, 50, to_see_that_it_runs=True),
    "laptop": Size(HIGGS_ROWS // 40, 2, 1_000, 500, 20_000),
    "paper": Size(HIGGS_ROWS, 4, 2_000, 1_000),
}


@lru_cache(maxsize=16)
def higgs_fit(contender: Contender, size: Size, seed: int) -> Fit:
    """Run a contender; the experiments on HIGGS share the result."""
    return contender.run(higgs_rows(size.rows, seed), size.chains, seed)


def higgs_fits(size: Size, seed: int, schedule: bool) -> dict[str, Fit]:
    """Run all contenders that subsample rows."""
    problem = size.part_of(HIGGS)
    return run_problem(problem, size, lambda contender: higgs_fit(contender, size, seed), schedule)


@experiment("hmc-ecs", "tables-1-2", "HIGGS: relative computational time, and efficiencies")
def tables_1_2(scale: Scale, seed: int) -> Result:
    """Tables 1 and 2, with the weighted default and the paper's schedule beside them."""
    size = sized(SIZES, scale)
    data = higgs_rows(size.rows, seed)
    fits = higgs_fits(size, seed, schedule=scale != "smoke")
    all_fits = list(fits.values())
    return Result(
        tables=made_from(
            data,
            relative_table("table-1", HIGGS, fits, f"Data: {data.description}."),
            efficiency_table("table-2", HIGGS, fits, f"Data: {data.description}."),
            rule_table(HIGGS, fits[PERTURBED], size.rows, f"Data: {data.description}."),
        ),
        settings=settings_of(data, all_fits, size.chains),
        ledger=ledger_of(all_fits),
        notes=[*_notes(size, fits), *warnings_of(all_fits)],
    )


def _notes(size: Size, fits: Mapping[str, Fit]) -> list[str]:
    return [
        charging_note(HIGGS, size),
        *([_schedule(fits[SCHEDULE])] if SCHEDULE in fits else []),
        "The paper's 1.15 for the signed method and its costs of full HMC, 642.8 and 554.1, agree "
        "with about 30 passes charged to both methods.",
        stochastic_gradients_cost(size.part_of(HIGGS), fits),
        too_large(HIGGS, size, fits),
        full_cost(HIGGS, fits),
        f"Prior N(0, 2.5^2); the paper does not print its lambda. {size.chains} chains, where the "
        "paper has one.",
    ]


def _schedule(fit: Fit) -> str:
    subset = fit.post.ledger.by_purpose["subset"] / fit.post.ledger.rows
    return (
        "The first perturbed and signed methods anchor at the mode. The paper's schedule (section "
        "6.3: mean of a 1 % subset, then 1,000 iterations in which the anchor moves) has lines of "
        "its own, and it is with these that the paper's figures are to be compared; its subset "
        f"cost what {subset:.0f} passes over the rows do, and its anchors with their pilot studies "
        f"{fit.passes - subset:.0f}."
    )


@experiment("hmc-ecs", "figures-1-3", "HIGGS: marginals, means and variances, ROC")
def figures_1_3(scale: Scale, seed: int) -> Result:
    """Figures 1, 2 and 3, with the errors they show as a table."""
    size = sized(SIZES, scale)
    data = higgs_rows(size.rows, seed)
    fits = higgs_fits(size, seed, schedule=False)
    truth = higgs_fit(full_hmc(size), size, seed)
    shown, all_fits = list(fits.values()), [*fits.values(), truth]
    assert data.test is not None  # a twentieth of the rows
    curves = roc_curves([truth, *(fits[k] for k in (PERTURBED, SIGNED, DEFAULT))], data.test)
    which, names = some_parameters(truth, seed)
    note = f"Data: {data.description}."
    return Result(
        tables=made_from(
            data,
            accuracy_table("figure-2", fits, truth, note),
            efficiency_table("full-hmc", HIGGS, {truth.label: truth}, note),
            _roc_table(curves, note),
            _claims_1_3(fits, truth, curves),
        ),
        figures=[
            Figure("figure-1", partial(draw_marginals, shown, truth, which, names),
                   f"Marginal posteriors of four parameters. {note}"),
            Figure("figure-2", partial(draw_moments, shown, truth),
                   f"Posterior means and variances of all parameters against full HMC. {note}"),
            Figure("figure-3", partial(_draw_roc, curves, all_fits),
                   f"ROC curves for rows that were not fitted. {note}"),
        ],
        settings=settings_of(data, all_fits, size.chains),
        ledger=ledger_of(all_fits),
        notes=[monte_carlo_error(truth), *ROC_NOTES, *warnings_of(all_fits)],
    )  # fmt: skip


def _claims_1_3(
    fits: Mapping[str, Fit], truth: Fit, curves: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> Table:
    """Compare what section 6.5 says about the figures with our results."""
    where = "Figures 1 and 2"
    rows = [accurate(label, fits, truth, where) for label in (PERTURBED, SIGNED, "SG-HMC")]
    rows += [bias_claim(label, fits, truth, where) for label in fits if label.startswith("SGLD")]
    plain = "SG-HMC, no control variates"
    if plain in fits:
        rows.append(bias_claim(plain, fits, truth, where))
    first, *others = (y for _, y in curves.values())
    apart = max(float(np.abs(y - first).max()) for y in others)
    text = f"{apart:.2g} apart at most"
    rows.append(("Figure 3: ROC curves are indistinguishable", text, "yes", apart < 0.01))
    return claims(
        rows,
        "SGLD is biased in the paper with either control variate; how much depends on the scale "
        "of the columns, which the paper does not print (see tables-1-2).",
    )


ROC_NOTES = [
    "Stand-in outcomes come from a logistic regression, so the ROC curve is that of the model.",
]


def roc_curves(fits: Sequence[Fit], rows: Rows) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """Return false and true positive rates of the mean prediction, by method."""
    y = rows.slice(0, len(rows))["y"] > 0
    grid = np.linspace(0, 1, 1_001)
    curves = {}
    for fit in fits:
        order = np.argsort(-fit.post.predict(rows, draws=100).mean)
        hits = np.cumsum(y[order]) / y.sum()
        alarms = np.cumsum(~y[order]) / (~y).sum()
        curve = np.interp(grid, alarms, hits)
        curves[fit.label] = (np.append(0.0, grid), np.append(0.0, curve))
    return curves


def _roc_table(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], note: str) -> Table:
    first = next(iter(curves.values()))[1]
    rows = [
        [label, float(np.trapezoid(y, x)), float(np.abs(y - first).max())]
        for label, (x, y) in curves.items()
    ]
    return Table("figure-3", ["method", "area under ROC", "largest distance to full HMC's"],
                 rows, note)  # fmt: skip


def _draw_roc(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], fits: Sequence[Fit]
) -> MatplotlibFigure:
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


TRAINING = 200  # iterations between moves of the anchor in the paper's burn-in


def _fit_of_order(order: int, size: Size, seed: int) -> Fit:
    """Run HMC-ECS by the paper's schedule; the fit of order 2 is a line of Table 1."""
    fit = higgs_fit(by_schedule(HIGGS, size, order), size, seed)
    named = replace(fit.contender, label=f"order {order}", colour=ORDER_COLOURS[order])
    return Fit(named, fit.post)


@experiment("hmc-ecs", "figures-8-9", "HIGGS: control variates of order 0, 1 and 2")
def figures_8_9(scale: Scale, seed: int) -> Result:
    """Figures 8 and 9: variance of lhat along the run, and accuracy, by order."""
    size = sized(SIZES, scale)
    data = higgs_rows(size.rows, seed)
    smoke = scale == "smoke"
    orders = [_fit_of_order(k, size, seed) for k in ((0, 1) if smoke else (0, 1, 2))]
    truth, problem = higgs_fit(full_hmc(size), size, seed), size.part_of(HIGGS)
    default = [] if smoke else [higgs_fit(our_default(size), size, seed)]
    others = [rival for k in ((1,) if smoke else (0, 1, 2)) for rival in degraded(problem, size, k)]
    rivals = [higgs_fit(rival, size, seed) for rival in (others[:1] if smoke else others)]
    fits = {fit.label: fit for fit in (*orders, *default, *rivals)}
    note = f"Data: {data.description}."
    all_fits = [*fits.values(), truth]
    paths = {fit.label: variance_path(fit) for fit in orders}
    return Result(
        tables=made_from(data, _table(fits, truth, note)),
        figures=[
            Figure("figure-8", partial(_draw_variance, paths, fits),
                   f"{CAPTION} {note}"),
            Figure("figure-9", partial(draw_moments, list(fits.values()), truth),
                   f"Posterior means and variances against full HMC. {note}"),
        ],
        settings=settings_of(data, all_fits, size.chains),
        ledger=ledger_of(all_fits),
        notes=[monte_carlo_error(truth), *ORDER_NOTES, *warnings_of(all_fits)],
    )  # fmt: skip


CAPTION = (
    "Estimated variance of the log-likelihood estimate along the run, mean of the chains. Dashed: "
    "moves of the anchor in burn-in; solid: its end."
)
ORDER_NOTES = [
    f"m = {HIGGS.subsample:,} for every order: the paper does not print m for this experiment "
    "(section 6.8).",
    "Order 0 is run because the paper shows it; the warnings below are what a user gets. With m "
    "left to Modicum it is refused, since no affordable m would do. Its chains do move: they tune "
    "their step after the burn-in, where the other orders have the paper's .2. What they sample is "
    "the perturbed target, which at so large a variance is far from the posterior: too crude, "
    "as the paper says.",
    "SG-HMC and SGLD with degraded control variates are the paper's competitors: at order 0 a "
    "control variate is a constant, so that these are the methods without. SG-HMC is robust, as "
    "the paper says: its means stay right where HMC-ECS of order 0 is lost; but its variances "
    "are too large without control variates. All of them have M from the mode, a favour. SGLD's "
    "step is too large for these columns at any order (see tables-1-2).",
]


def variance_path(fit: Fit) -> np.ndarray:
    """Return the variance of lhat at every iteration, burn-in first."""
    burn_in = np.asarray(fit.post.tuning["burn-in variance"])
    return np.concatenate([burn_in, fit.post.stats["variance_estimate"].mean(axis=0)])


def _table(fits: Mapping[str, Fit], truth: Fit, note: str) -> Table:
    table = accuracy_table("figure-9", fits, truth, note)
    columns = [*table.columns, "variance of lhat, median", "step size", "acceptance", "IF",
               "warned", "means and variances (paper)"]  # fmt: skip
    rows = []
    for row, fit in zip(table.rows, fits.values(), strict=True):
        estimates = fit.post.stats.get("variance_estimate")
        variance = None if estimates is None else float(np.median(estimates))
        rows.append([*row, variance, fit.stat("step_size"), fit.stat("acceptance_rate"),
                     float(fit.inefficiency.mean()), bool(fit.post.warnings),
                     PRINTED_ORDERS.get(fit.label)])  # fmt: skip
    return Table(table.name, columns, rows, note)


PRINTED_ORDERS = {
    "order 0": "too crude",
    "order 1": "very accurate",
    "order 2": "very accurate",
    "SG-HMC, order 0": "more robust",
    "SG-HMC, order 1": "more robust",
}
"""What section 6.8 says about Figure 9, which has no numbers."""


def _draw_variance(paths: Mapping[str, np.ndarray], fits: Mapping[str, Fit]) -> MatplotlibFigure:
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
