"""Figure 7 of the HMC-ECS paper: the step size as the dimension grows (section 6.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum.methods import HMC, HMCECS
from modicum.models import Gaussian
from modicum.plots import METHOD_COLOURS, pyplot
from modicum.rows import Rows
from modicum_lab.datasets import Dataset
from modicum_lab.papers.experiments import Figure, Result, Scale, Table, experiment, sized
from modicum_lab.papers.fits import Contender, Fit, ledger_of
from modicum_lab.papers.hmc_ecs.comparison import DEFAULT, LEAPFROG, TRUTH
from modicum_lab.papers.hmc_ecs.pictures import ORDER_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

BLOCKS, LEAST = 100, 200
SLOPES_FROM = 8  # in lower dimensions a step is as long as the whole trajectory


@dataclass(frozen=True)
class Size:
    """Rows, dimensions and lengths."""

    rows: int
    dimensions: tuple[int, ...]
    draws: int
    tune: int
    chains: int = 2


SIZES: dict[Scale, Size] = {
    "smoke": Size(2_000, (8,), 100, 200),
    "laptop": Size(10_000, (2, 4, 8, 16, 32, 64, 128, 256), 300, 600),
    "paper": Size(10_000, (2, 4, 8, 16, 32, 64, 128, 256), 4_000, 4_000),
}
STYLES = {  # label to colour and marker
    "HMC-ECS, order 2": (ORDER_COLOURS[2], "o"),
    "HMC-ECS, order 1": (ORDER_COLOURS[1], "s"),
    DEFAULT: (METHOD_COLOURS["hmc-ecs"], "D"),
    TRUTH: (METHOD_COLOURS["hmc"], "^"),
}


@experiment("hmc-ecs", "figure-7", "Optimal step size and acceptance as the dimension grows")
def figure_7(scale: Scale, seed: int) -> Result:
    """Dual averaging on simulated Gaussian regressions of 2 to 256 dimensions."""
    size = sized(SIZES, scale)
    fits: dict[int, list[Fit]] = {}
    for d in size.dimensions:
        data = simulated(size.rows, d, seed)
        fits[d] = [contender.run(data, size.chains, seed) for contender in _contenders(d, size)]
    return Result(
        tables=[_table(fits), _powers(fits)],
        figures=[Figure("figure-7", partial(_draw, fits), CAPTION)],
        settings={"rows": size.rows, "draws": size.draws, "tune": size.tune, "blocks": BLOCKS},
        ledger=_ledger(fits),
        notes=[*NOTES, *_bounded(size)],
    )


CAPTION = (
    "Left: step size found by dual averaging for an acceptance of .8; lines fall like d^(-1/4) and "
    "d^(-1/3) from the step of HMC in the fourth dimension shown. Right: acceptance that resulted."
)
NOTES = [
    "Simulated data, as in the paper (section 6.7): Gaussian regression with known noise, prior "
    "N(0, 5^2 I). The paper scales m of order 1 to keep the variance of the log-likelihood "
    "estimate near 1 and does not print it; here m = d^2 / 2 (at least 200), which does.",
    "The mass matrix is the precision given all rows; the paper's is that given the subsample. "
    "For order 2 they agree; for order 1 ours is not optimal at each subsample, which costs some "
    "step size.",
    "The paper reports an IF near 1; with its trajectory of 1.2 a standard normal target has the "
    "autocorrelation cos(1.2) = .36, so an IF of 2.1 where steps are small, as printed for HIGGS.",
]


def simulated(n: int, d: int, seed: int) -> Dataset:
    """Simulate a Gaussian regression with standard normal columns, coefficients and noise."""
    rng = np.random.default_rng([seed, d])
    x = rng.standard_normal((n, d))
    y = x @ rng.standard_normal(d) + rng.standard_normal(n)
    model = Gaussian(prior_scale=5.0, intercept=False, scale=1.0)
    return Dataset("simulated", Rows(x=x, y=y), model, f"simulated, {n:,} rows", "")


def _rows_of_order_1(d: int, n: int) -> int:
    """Return m = d^2 / 2, which gives the estimate a variance of about 1, but at most n."""
    return min(BLOCKS * (n // BLOCKS), max(LEAST, BLOCKS * round(d * d / 2 / BLOCKS)))


def _bounded(size: Size) -> list[str]:
    """Return notes on the dimensions where m would have to exceed n."""
    return [
        f"At d = {d} a variance of 1 would take m = {d * d // 2:,} of {size.rows:,} rows: more "
        f"than there are. m is held at {_rows_of_order_1(d, size.rows):,}, the variance is then "
        f"about {d * d / 2 / size.rows:.1f}, and nothing is saved by subsampling. The paper does "
        "not say what it did there."
        for d in size.dimensions
        if d * d / 2 > size.rows
    ]


def _contenders(d: int, size: Size) -> list[Contender]:
    m = _rows_of_order_1(d, size.rows)
    uniform: dict[str, Any] = {
        "design": "uniform",
        "blocks": BLOCKS,
        "refreshes": 1,
        "expert": LEAPFROG,
    }
    methods = {
        "HMC-ECS, order 2": HMCECS(subsample=LEAST, **uniform),
        "HMC-ECS, order 1": HMCECS(subsample=m, order=1, **uniform),
        DEFAULT: HMCECS(),
        TRUTH: HMC(),
    }
    return [
        Contender(label, method, size.draws, size.tune, colour=STYLES[label][0])
        for label, method in methods.items()
    ]


def _table(fits: dict[int, list[Fit]]) -> Table:
    columns = ["d", "method", "rows per evaluation", "step size", "acceptance", "L", "IF",
               "variance of lhat"]  # fmt: skip
    rows = [
        [d, fit.label, _rows_held(fit), fit.stat("step_size"), fit.stat("acceptance_rate"),
         fit.stat("n_steps"), float(fit.inefficiency.mean()), fit.stat("variance_estimate")]
        for d, row in fits.items()
        for fit in row
    ]  # fmt: skip
    return Table("figure-7", columns, rows, "Simulated data.")


def _rows_held(fit: Fit) -> int:
    subsample = fit.post.tuning.get("subsample")
    if subsample is None:
        return fit.post.ledger.rows
    return int(subsample["value"] + fit.post.tuning["certainty"]["value"])


def _powers(fits: dict[int, list[Fit]]) -> Table:
    """Tabulate what the figure shows by method, beside what the paper says about it."""
    columns = ["method", "power of d in the step size", "power of d (paper)", "acceptance, mean",
               "acceptance (paper)", "IF, mean", "IF (paper)"]  # fmt: skip
    rows = []
    for k, label in enumerate(STYLES):
        by_dimension = [fits[d][k] for d in fits]
        accept = float(np.mean([fit.stat("acceptance_rate") for fit in by_dimension]))
        factor = float(np.mean([fit.inefficiency.mean() for fit in by_dimension]))
        near = "close to 1" if label.startswith("HMC-ECS, order") else None
        rows.append([label, _power(fits, k), -0.25, accept, 0.8, factor, near])
    note = (
        f"Powers are fitted from d = {SLOPES_FROM} on, where a step is shorter than the "
        "trajectory. The paper prints no numbers but these: steps like d^(-1/4), acceptance as "
        "targeted, an IF close to 1. Our IFs are larger for d above 4, since a trajectory of 1.2 "
        "turns a standard normal by 69 degrees (see the notes)."
    )
    return Table("figure-7-powers", columns, rows, note)


def _power(fits: dict[int, list[Fit]], k: int) -> float | None:
    """Return the fitted power of d of the k-th method's step; None with too few dimensions."""
    ds = [d for d in fits if d >= SLOPES_FROM]
    if len(ds) < 3:
        return None
    steps = [fits[d][k].stat("step_size") for d in ds]
    return float(np.polyfit(np.log(ds), np.log(np.asarray(steps, float)), 1)[0])


def _ledger(fits: dict[int, list[Fit]]) -> dict[str, int]:
    return {
        f"d = {d}: {label}": n for d, row in fits.items() for label, n in ledger_of(row).items()
    }


def _draw(fits: dict[int, list[Fit]]) -> MatplotlibFigure:
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    ds = np.array(list(fits))
    for k, (label, (colour, marker)) in enumerate(STYLES.items()):
        look = {"color": colour, "marker": marker, "label": label, "alpha": 0.85}
        left.plot(ds, _stats(fits, k, "step_size"), **look)
        right.plot(ds, _stats(fits, k, "acceptance_rate"), **look)
    at = min(3, len(ds) - 1)
    start = _stats(fits, len(STYLES) - 1, "step_size")[at]
    for power, style in ((1 / 4, "--"), (1 / 3, ":")):
        name = f"$d^{{-1/{round(1 / power)}}}$"
        left.plot(ds, start * (ds / ds[at]) ** -power, style, color="#555555", label=name)
    left.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="step size")
    right.set(xscale="log", ylim=(0.5, 1), xlabel="dimension d", ylabel="acceptance rate")
    right.axhline(0.8, color="#777777", linestyle=":", linewidth=1)
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xticks(ds, [str(d) for d in ds])
        ax.grid(alpha=0.25)
    ticks = [step for step in (0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4) if _within(left, step)]
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    left.legend(frameon=False, fontsize=9)
    return figure


def _within(ax: Axes, value: float) -> bool:
    low, high = ax.get_ylim()
    return bool(low <= value <= high)


def _stats(fits: dict[int, list[Fit]], k: int, name: str) -> Sequence[float]:
    return [fits[d][k].stat(name) or 0.0 for d in fits]
