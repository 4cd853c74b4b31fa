"""EWSG paper, Figure 1b: error of the stationary distribution against autocorrelation time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from modicum.diagnostics import inefficiency
from modicum_lab.papers.ewsg.drawing import draw_lines, panels
from modicum_lab.papers.ewsg.gaussian import SETTINGS, Gaussian
from modicum_lab.papers.ewsg.running import LABELS
from modicum_lab.papers.experiment import Figure, Result, Scale, Table, experiment

__all__ = ["figure_1b"]

N = 20
STEPS = {
    "smoke": (0.01, 0.05),
    "laptop": (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1),
    "paper": (0.005, 0.007, 0.01, 0.014, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1),
}
CHAINS = {"smoke": 400, "laptop": 400, "paper": 2_000}
DRAWS = {"smoke": 1_000, "laptop": 3_000, "paper": 10_000}
TUNE = 1_000  # iterations to reach stationarity; the slowest time is 100 of them


@dataclass(frozen=True)
class Point:
    """What one method does at one step size."""

    method: str
    step: float
    time: float  # autocorrelation time, in iterations
    passes: float  # the same, in passes over the rows
    error: float  # KL of the stationary distribution


@experiment("ewsg", "figure-1b", "Error against autocorrelation time, EWSG and SGHMC, Gaussian")
def figure_1b(scale: Scale, seed: int) -> Result:
    """Larger steps forget faster and are less accurate: which method is better at equal speed."""
    size = {"chains": CHAINS[scale], "draws": DRAWS[scale], "tune": TUNE, "steps": STEPS[scale]}
    result = Result(settings=SETTINGS | {"n": N} | size)
    target = Gaussian.drawn(N, seed)
    points = [
        _point(result, target, name, h, scale, seed)
        for name in ("sghmc", "ewsg")
        for h in STEPS[scale]
    ]
    columns = ["method", "h", "autocorrelation time", "in data passes", "KL divergence"]
    rows = [[LABELS[p.method], p.step, p.time, p.passes, p.error] for p in points]
    note = (
        "Autocorrelation time is 1 + 2 (rho_1 + rho_2 + ...) of theta, in iterations; the paper's "
        "footnote prints 1 + rho_0 + rho_1 + .... It prints no numbers and plots EWSG below SGHMC "
        "at equal time. An iteration of EWSG costs two gradients, one of SGHMC one: the fourth "
        "column and the right panel count that."
    )
    result.tables.append(Table("figure-1b", columns, rows, note))
    result.figures.append(Figure("figure-1b", lambda: _draw(points), "A point a step size h."))
    return result


def _point(result: Result, target: Gaussian, name: str, h: float, scale: Scale, seed: int) -> Point:
    method = target.underdamped(name, h)
    post = target.run(
        *(result, name, method),
        draws=DRAWS[scale],
        tune=TUNE,
        chains=CHAINS[scale],
        random_seed=seed,
    )
    theta = post["theta"]
    time = float(np.mean(inefficiency(theta)))
    cost = float(post.stats["rows_touched"].mean()) / N
    return Point(name, h, time, time * cost, target.kl(theta.reshape(-1, theta.shape[-1])))


def _draw(points: list[Point]) -> Any:
    figure, axes = panels(2, size=(5.0, 4.0))
    names = dict.fromkeys(p.method for p in points)
    for ax, unit in zip(axes, ("time", "passes"), strict=True):
        lines = {
            name: (
                [getattr(p, unit) for p in points if p.method == name],
                [p.error for p in points if p.method == name],
            )
            for name in names
        }
        said = "iterations" if unit == "time" else "data passes"
        labels: dict[str, Any] = {
            "x": f"autocorrelation time, {said}",
            "y": "KL divergence from the target",
        }
        draw_lines(ax, lines, **labels, log="xy", marker="o")
    return figure
