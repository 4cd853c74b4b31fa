"""An experiment not in the paper: uniform against weighted rows on four real tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum.diagnostics import mcse
from modicum.errors import DataError
from modicum.methods import HMCECS
from modicum.plots import METHOD_COLOURS, pyplot
from modicum_lab import datasets
from modicum_lab.datasets import Dataset
from modicum_lab.papers.experiments import Figure, Result, Scale, Table, experiment, sized
from modicum_lab.papers.fits import Contender, Fit
from modicum_lab.papers.references import TABLES, Reference, reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure


@dataclass(frozen=True)
class Size:
    """Tables, numbers of rows per evaluation by design, and length of the chains."""

    tables: tuple[str, ...]
    uniform: tuple[int, ...]
    weighted: tuple[int, ...]
    draws: int
    tune: int
    chains: int = 2


SIZES: dict[Scale, Size] = {
    "smoke": Size(("claims",), (300,), (), 200, 100),
    "laptop": Size(TABLES, (300, 2_000, 10_000), (100, 1_000), 800, 300),
    "paper": Size(TABLES, (300, 1_000, 3_000, 10_000, 30_000), (100, 300, 1_000), 4_000, 1_000, 4),
}


@dataclass(frozen=True)
class Point:
    """One run: a design, its rows per evaluation, and its errors."""

    table: str
    design: str
    subsample: int
    off: float  # largest error of a mean, posterior sd
    noise: float  # Monte Carlo error of that mean, likewise
    spread: float  # largest |sd / true sd - 1|
    warned: bool
    chosen: bool  # by the pilot study, not by hand


@experiment("hmc-ecs", "rows-compared", "Uniform against weighted rows on four real tables")
def rows_compared(scale: Scale, seed: int) -> Result:
    """Error against rows per evaluation, for both designs, with the self-tuned default."""
    size = sized(SIZES, scale)
    points: list[Point] = []
    fits: dict[str, Fit] = {}
    faults: list[DataError] = []
    for name in size.tables:
        try:
            data = getattr(datasets, name)(progressbar=False)
        except DataError as fault:
            faults.append(fault)
            continue
        runs = _runs(data, size, seed)
        points += [_judge(name, data, fit) for fit in runs]
        fits |= {f"{name}: {fit.label}": fit for fit in runs}
    if not points:
        raise faults[0]
    return Result(
        tables=[_table(points)],
        figures=[Figure("rows-compared", partial(_draw, points), CAPTION)],
        settings={
            label: {
                "method": fit.post.settings["settings"],
                "seconds": fit.post.settings["seconds"],
            }
            for label, fit in fits.items()
        },
        ledger={label: fit.post.ledger.evaluations for label, fit in fits.items()},
        notes=[*NOTES, *(f"Left out: {fault}" for fault in faults)],
    )


OF_THE_TABLE = ("prior-decides", "separation")  # warnings due to rare levels, for any method
CAPTION = (
    "Largest error of a posterior mean over all parameters, in posterior standard deviations, "
    "against rows per evaluation. Diamonds: m as the default chooses it. Open marks: the run "
    "warned. Dotted: about what Monte Carlo error alone would show."
)
NOTES = [
    "Truth: 64,000 draws of full-data HMC for each table, in float64, shipped with the package. "
    "These are real tables with their own outcomes, not stand-ins.",
    "Uniform rows rarely meet the few rows with large residuals (rare levels, high leverage): "
    "chains look well mixed and are off. Weighted rows are drawn in proportion to their expected "
    "residual, found in one pass.",
]


def _runs(data: Dataset, size: Size, seed: int) -> list[Fit]:
    methods = [HMCECS(design="uniform", subsample=m) for m in size.uniform]
    methods += [HMCECS(subsample=m) for m in size.weighted]
    methods.append(HMCECS())
    return [
        Contender(_label(method), method, size.draws, size.tune).run(data, size.chains, seed)
        for method in methods
    ]


def _label(method: HMCECS) -> str:
    rows = "m chosen" if method.subsample is None else f"m = {method.subsample:,}"
    return f"{method.design}, {rows}"


def _judge(name: str, data: Dataset, fit: Fit) -> Point:
    truth: Reference = reference(name)
    if truth.rows != len(data.rows):
        raise DataError(
            f"the table {name} has {len(data.rows):,} rows, but its reference posterior is of "
            f"{truth.rows:,}; fetch the table again."
        )
    off = np.abs(fit.mean - truth.mean) / truth.sd
    noise = np.hypot(np.asarray(mcse(fit.draws)), truth.mcse) / truth.sd
    worst = int(off.argmax())
    method: Any = fit.contender.method
    return Point(
        table=name,
        design=method.design,
        subsample=fit.post.tuning["subsample"]["value"],
        off=float(off[worst]),
        noise=float(noise[worst]),
        spread=float(np.abs(fit.sd / truth.sd - 1).max()),
        # warnings about the data are the same for every design
        warned=any(doubt.code not in OF_THE_TABLE for doubt in fit.post.warnings),
        chosen=method.subsample is None,
    )


def _table(points: list[Point]) -> Table:
    columns = ["table", "design", "rows per evaluation", "m chosen by the pilot study",
               "largest error of a mean, sd", "its Monte Carlo error, sd",
               "largest error of an sd", "warned"]  # fmt: skip
    rows = [
        [p.table, p.design, p.subsample, p.chosen, p.off, p.noise, p.spread, p.warned]
        for p in points
    ]
    return Table("rows-compared", columns, rows, "Real tables, with their own outcomes.")


X_RANGE = (25, 50_000)
LOOKS = {"uniform": ("hmc-ecs-uniform", "s"), "weighted": ("hmc-ecs", "o")}  # colour and mark


def _draw(points: list[Point]) -> MatplotlibFigure:
    names = list(dict.fromkeys(p.table for p in points))
    figure, axes = pyplot().subplots(
        1, len(names), figsize=(1 + 3 * len(names), 3.6), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for ax, name in zip(axes[0], names, strict=True):
        shown = [p for p in points if p.table == name]
        for design, (colour, mark) in LOOKS.items():
            _line(
                ax, [p for p in shown if p.design == design], METHOD_COLOURS[colour], mark, design
            )
        floor = 2.5 * float(np.median([p.noise for p in shown]))  # the largest of many normals
        ax.axhline(floor, color="#777777", linestyle=":", linewidth=1)
        ax.set(xscale="log", yscale="log", title=name, xlabel="rows per evaluation", xlim=X_RANGE)
        ax.grid(alpha=0.25)
    axes[0][0].set_ylim(0.01, max(2.0, 1.5 * max(p.off for p in points)))
    axes[0][0].set_ylabel("largest error of a mean,\nposterior sd")
    axes[0][0].legend(frameon=False, title="rows")
    return figure


def _line(ax: Axes, points: list[Point], colour: str, mark: str, label: str) -> None:
    by_hand = sorted((p for p in points if not p.chosen), key=lambda p: p.subsample)
    ax.plot([p.subsample for p in by_hand], [p.off for p in by_hand], color=colour, label=label)
    for p in by_hand:
        face = "white" if p.warned else colour
        ax.plot(p.subsample, p.off, mark, color=colour, markerfacecolor=face, markersize=6)
    for p in points:
        if p.chosen:
            ax.plot(p.subsample, p.off, "D", color=colour, markersize=8, markeredgecolor="black")
