"""The demo's plot: who is late, when, where to, and whether the model can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from modicum import plots
from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum_lab.demo.findings import OFTEN, PROB, Findings
from modicum_lab.demo.flights import LATE_MINUTES, Flights
from modicum_lab.demo.reference import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

DATA = "#222222"  # colour of observations; estimates have the method's colour
SHOWN = 8  # destinations shown at either end


def draw(
    post: Posterior,
    full: Comparison,
    findings: Findings,
    flights: Flights,
    rows: Rows,
    path: Path,
) -> None:
    """Draw six panels and write them to `path`."""
    plt = plots.pyplot()
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(2, 3, figsize=(17, 9), layout="constrained")
        _carriers(axes[0, 0], post, findings, flights, rows)
        _hours(axes[0, 1], post, findings, flights)
        _destinations(axes[1, 0], post, findings, flights)
        _calibration(axes[1, 1], post, findings)
        _rare(axes[0, 2], post, full, flights)
        _cost(axes[1, 2], post, full)
        figure.suptitle(
            f"Arriving more than {LATE_MINUTES} minutes late: {len(flights.table):,} flights out "
            f"of New York, 2013 ({post.settings['method']})",
            fontsize=13,
        )
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _carriers(ax: Axes, post: Posterior, findings: Findings, flights: Flights, rows: Rows) -> None:
    codes = list(findings.carriers.index)
    names = [f"beta[carrier[{code}]]" for code in codes]
    flown = flights.table["carrier"].value_counts()
    labels = [f"{flights.carriers[str(code)]} ({flown[code]:,})" for code in codes]
    plots.forest(post, names, labels=labels, transform=np.exp, prob=PROB, ax=ax)
    reference = flights.carriers[str(rows.levels["carrier"][0])]
    ax.axvline(1, color=DATA, linewidth=0.8)
    ax.set_xscale("log")
    _plain_ticks(ax)
    ax.set_xlabel(f"odds of being late against {reference} (median, {PROB:.0%} interval)")
    ax.set_title("Who: carriers, and how often they flew")


def _plain_ticks(ax: Axes) -> None:
    """Write 0.5, 1, 2 on a logarithmic axis rather than powers of ten."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = ax.get_xlim()
    ticks = [t for t in (0.1, 0.25, 0.5, 1, 2, 4, 8) if low <= t <= high]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([f"{t:g}" for t in ticks])


def _hours(ax: Axes, post: Posterior, findings: Findings, flights: Flights) -> None:
    hours, colour = findings.hours, plots.colour_of(post)
    t = findings.typical
    route = f"{flights.carriers[t['carrier']]} {t['origin']} to {t['dest']}"
    x = hours.index.to_numpy()
    ax.fill_between(x, hours["lower"], hours["upper"], color=colour, alpha=0.25, linewidth=0)
    ax.plot(x, hours["mean"], color=colour, label=f"one flight moved through the day ({route})")
    ax.plot(x, hours["observed"], "o", color=DATA, markersize=4, label="all flights, observed")
    ax.set(xlabel="scheduled hour of departure", ylabel="chance of being late")
    ax.set_xticks(x[::2])
    _percent(ax.yaxis)
    highest = max(hours["observed"].max(), hours["upper"].max())
    ax.set_ylim(0, 1.2 * highest)  # room for the legend
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, loc="upper left")
    ax.set_title(f"When: the day's delays add up ({PROB:.0%} band)")


def _destinations(ax: Axes, post: Posterior, findings: Findings, flights: Flights) -> None:
    regular = findings.destinations[findings.destinations["flights"] >= OFTEN]
    if len(regular) < 2 * SHOWN:  # a sample of the flights
        most = findings.destinations.nlargest(2 * SHOWN, "flights")
        regular = most.sort_values("mean", ascending=False)
    ends = min(SHOWN, len(regular) // 2)
    table = pd.concat([regular.head(ends), regular.tail(ends)])
    colour = plots.colour_of(post)
    at = np.r_[np.arange(ends), np.arange(ends) + ends + 1]  # a gap between the two
    ax.hlines(at, table["lower"], table["upper"], color=colour, linewidth=2)
    ax.plot(table["mean"], at, "o", color=colour, markersize=4, label="the same flight, sent there")
    ax.plot(table["observed"], at, "x", color=DATA, markersize=5, label="all flights, observed")
    ax.set_yticks(at, [flights.place(code) for code in table.index])
    ax.set_ylim(at[-1] + 0.7, -0.7)
    _percent(ax.xaxis)
    ax.set_xlabel(f"chance of being late (mean, {PROB:.0%} interval)")
    ax.grid(axis="x", alpha=0.3)
    ax.legend(frameon=False, loc="best")
    ax.set_title(f"Where to: the {ends} worst and {ends} best of {len(regular)} destinations")


def _calibration(ax: Axes, post: Posterior, findings: Findings) -> None:
    table = findings.calibration
    error = 1.645 * np.sqrt(table["observed"] * (1 - table["observed"]) / table["flights"])
    top = 1.1 * float(max(table["predicted"].max(), (table["observed"] + error).max()))
    ax.plot([0, top], [0, top], color=DATA, linewidth=0.8, label="as predicted")
    ax.errorbar(
        *(table["predicted"], table["observed"], error),
        fmt="o",
        color=plots.colour_of(post),
        markersize=4,
        label=f"{len(table)} groups of {int(table['flights'].iloc[0]):,} flights (90% error bars)",
    )
    ax.set(xlim=(0, top), ylim=(0, top), xlabel="predicted chance", ylabel="share that was late")
    _percent(ax.xaxis)
    _percent(ax.yaxis)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, loc="upper left")
    ax.set_title("Can it be believed: predicted and observed, same flights")


def _rare(ax: Axes, post: Posterior, full: Comparison, flights: Flights) -> None:
    plots.marginal(post, full.scalar, ax=ax)
    plots.marginal(full.full, full.scalar, bins=15, ax=ax)
    place = flights.place(full.rare)
    ax.set(xlabel=f"coefficient of {place}", ylabel="posterior density")
    ax.set_ylim(0, 1.25 * ax.get_ylim()[1])  # room for the legend
    ax.set_title(f"Was it right: a destination with {full.flights} flights")


def _cost(ax: Axes, post: Posterior, full: Comparison) -> None:
    runs = {"HMC on all rows": full.full, "HMC-ECS": post}
    touched = [
        run.ledger.by_purpose["sampling"] / (run.chains * run.num_draws) for run in runs.values()
    ]
    ax.barh(list(runs), touched, color=[plots.colour_of(run) for run in runs.values()], height=0.5)
    for at, value in enumerate(touched):
        ax.text(value * 1.15, at, f"{value:,.0f}", va="center")
    ax.set_xscale("log")
    ax.set_xlim(100, 30 * max(touched))
    ax.set_xlabel("row evaluations for one draw")
    ax.set_title(f"What it cost: {max(touched) / min(touched):,.0f} times fewer rows")


def _percent(axis: Axis) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
