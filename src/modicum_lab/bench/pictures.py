"""Three plots: effective draws per second against n, error against time, memory against n."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from modicum.errors import SettingError
from modicum.plots import METHOD_COLOURS, new_axes, pyplot
from modicum_lab.bench.accuracy import Mark, judge_all
from modicum_lab.bench.contenders import CONTENDERS
from modicum_lab.bench.limits import SIZES
from modicum_lab.bench.measurements import Measurements
from modicum_lab.bench.suite import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.figure import Figure as MatplotlibFigure

COLOURS = {
    "modicum-weighted": "#facc15",
    "modicum": METHOD_COLOURS["hmc-ecs"],
    "modicum-store": "#7c2d12",
    "modicum-signed": METHOD_COLOURS["hmc-ecs-signed"],
    "modicum-sghmc": "#be123c",
    "modicum-nuts": "#f2a65a",
    "numpyro-ecs-200": "#1d4ed8",
    "numpyro-ecs-1300": "#60a5fa",
    "numpyro-ecs-hessian": "#312e81",
    "numpyro-ecs-default": "#93c5fd",
    "numpyro-nuts": "#0e7490",
    "blackjax-nuts": METHOD_COLOURS["nuts"],
    "blackjax-mclmc": "#166534",
    "blackjax-pathfinder": "#a3a3a3",
    "blackjax-sgld": "#84cc16",
    "blackjax-sghmc": "#14b8a6",
    "laplace": "#6b7280",
    "statsmodels": "#111827",
    "glum": "#78350f",
    "nutpie": "#7e22ce",
    "bambi": "#c084fc",
    "bambi-groups": "#c084fc",
    "pymc-advi": "#db2777",
    "pdmp-zigzag": "#4d7c0f",
    "modicum-fit": METHOD_COLOURS["hmc-ecs"],
    "gpboost": "#0369a1",
    "lme4": "#15803d",
    "glmmtmb": "#a16207",
    "bam": "#9333ea",
}
APPROXIMATIONS = (
    *("laplace", "statsmodels", "glum", "blackjax-pathfinder", "pymc-advi"),
    *("gpboost", "lme4", "glmmtmb", "bam"),
)


class Dot(NamedTuple):
    """A contender on a problem: seconds of its cold start, largest error of a mean, mark."""

    seconds: float
    error: float
    mark: Mark


COLUMN = 2.7  # inches of a legend's column
LEAST, MOST = 1e-4, 1e3  # errors are clipped to this range: some diverge by powers of ten
MARKS: dict[Mark, dict[str, Any]] = {
    "wrong": {"marker": "X", "markersize": 10},
    "too few draws": {"marker": "o", "fillstyle": "none", "markeredgewidth": 1.6},
}


def write_pictures(results: Results, out: Path) -> list[str]:
    """Write each plot as PNG and SVG; return the names, or none if matplotlib is missing."""
    drawn: dict[str, Callable[[Results], MatplotlibFigure]] = {
        "esspersecond": _rates,
        "error-against-time": _errors,
        "memory": _memory,
    }
    try:
        plt = pyplot()
    except SettingError:
        return []
    plt.switch_backend("agg")
    for name, draw in drawn.items():
        figure = draw(results)
        figure.savefig(out / f"{name}.png", dpi=130)
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
    return list(drawn)


def _rates(results: Results) -> MatplotlibFigure:
    """Plot samplers only: an approximation can draw as many independent draws as needed."""
    names = [name for name in CONTENDERS if name not in APPROXIMATIONS]
    ax = _against_rows(results, names, lambda m: m.middle("rate"))
    ax.set_ylabel("effective draws per second")
    wrong = [
        (results.problems[m.problem]["rows"], m.middle("rate"))
        for m in results.measured
        if m.contender in names and m.problem in SIZES and _is_wrong(results, m)
    ]
    if wrong:
        ax.plot(*zip(*wrong, strict=True), "x", color="black", markersize=11, label="wrong answer")
    return _finished(ax)


def _memory(results: Results) -> MatplotlibFigure:
    ax = _against_rows(results, list(CONTENDERS), lambda m: m.middle("memory") / 1e9)
    ax.set_ylabel("peak memory, GB")
    return _finished(ax)


def _against_rows(
    results: Results, names: Sequence[str], value: Callable[[Measurements], float]
) -> Axes:
    """Plot one line per contender over the HIGGS-shaped sizes."""
    ax = new_axes(size=(8.5, 4.8))
    runs = list(results.by_run().values())  # lines are of one run, that of most sizes
    results = max(runs, key=lambda run: sum(p in SIZES for p in run.problems), default=results)
    for name in names:
        points = sorted(
            (results.problems[m.problem]["rows"], value(m))
            for m in results.measured
            if m.contender == name and m.problem in SIZES and m.runs and m.chains is None
        )
        if points:
            style = "o-" if CONTENDERS[name].ours else "s--"
            ax.plot(*zip(*points, strict=True), style, color=COLOURS[name], label=_title(name))
    ax.set(xscale="log", yscale="log", xlabel="rows")
    ax.set_title("HIGGS-shaped logistic regression, d = 29", fontsize=10)
    return ax


def _errors(results: Results) -> MatplotlibFigure:
    """Plot largest error of a mean against cold start, for problems with several contenders."""
    dots = {name: _dots(results, name) for name in results.references}
    names = [name for name, here in dots.items() if len(here) > 1] or list(dots)[:1]
    columns = min(4, max(1, len(names)))
    rows = -(-max(1, len(names)) // columns)
    figure, axes = pyplot().subplots(
        rows,
        columns,
        figsize=(max(8.0, 3.5 * columns), 3.1 * rows + 1.4),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for ax in axes.flat[len(names) :]:
        ax.set_axis_off()
    panels = axes.flat[: len(names)]
    for ax, name in zip(panels, names, strict=True):
        _draw_dots(ax, dots[name])
        ax.set_title(results.problems[name]["title"], fontsize=10)
        ax.set_xlabel("s to 1,000 effective draws", fontsize=9)
    ends = [limit for ax in panels for limit in ax.get_xlim()]
    for ax in panels:  # one scale for all
        ax.set_xlim(min(ends), max(ends))
    for line in axes:
        line[0].set_ylabel("largest error of a mean, sd", fontsize=9)
    _key(figure, [name for name in CONTENDERS if any(name in dots[p] for p in names)])
    return figure


def _draw_dots(ax: Axes, dots: dict[str, Dot]) -> None:
    """Draw a dot per contender, a cross if it is wrong, a ring if there are too few draws."""
    for contender, (seconds, error, mark) in dots.items():
        style = MARKS.get(mark, {"marker": "o"})
        height = min(max(error, LEAST), MOST)
        ax.plot(seconds, height, linestyle="", color=COLOURS[contender], **style)
    ax.axhline(0.1, color="#999999", linewidth=1, linestyle=":")
    ax.set(xscale="log", yscale="log")
    ax.grid(alpha=0.3, which="major")


def _key(figure: Figure, names: Sequence[str]) -> None:
    """Add a legend of the contenders below all panels."""
    from matplotlib.lines import Line2D

    dots = [Line2D([], [], linestyle="", marker="o", color=COLOURS[name]) for name in names]
    columns = int(figure.get_figwidth() / COLUMN)
    look = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 8}
    title = (
        "dot: right or slightly off; cross: a mean or an sd is wrong; ring: too few draws to tell"
    )
    figure.legend(dots, [_title(n) for n in names], title=title, title_fontsize=8, **look)


def _dots(results: Results, problem: str) -> dict[str, Dot]:
    """Return the dots by contender; none if the problem has no reference."""
    return {
        m.contender: _dot(results, m)
        for m in results.measured
        if m.problem == problem and m.runs and m.chains is None and problem in results.references
    }


def _dot(results: Results, m: Measurements) -> Dot:
    judgement = judge_all(m.runs, results.references[m.problem])
    return Dot(m.middle("cold"), judgement.mean, judgement.mark)


def _is_wrong(results: Results, m: Measurements) -> bool:
    dot = _dots(results, m.problem).get(m.contender)
    return m.chains is None and dot is not None and dot.mark == "wrong"


def _title(name: str) -> str:
    return CONTENDERS[name].title


def _finished(ax: Axes) -> MatplotlibFigure:
    from matplotlib.figure import Figure

    ax.grid(alpha=0.3, which="major")
    if ax.has_data():
        ax.legend(fontsize=7.5, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    assert isinstance(ax.figure, Figure)
    return ax.figure
