"""EWSG paper, Figures 1j to 1l: the mean squared error of a time average, term by term of eq. 6.

The test function is the variance, phi(theta) = n |theta - mean|^2 / d, whose average is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from modicum.diagnostics import MeanSquaredError, mse
from modicum.plots import colour_of
from modicum_lab.papers.ewsg.common import LABELS, draw_lines, panels
from modicum_lab.papers.ewsg.gaussian import SETTINGS, Gaussian
from modicum_lab.papers.experiments import (
    Claim,
    Figure,
    Result,
    Scale,
    Table,
    claims,
    experiment,
    sized,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure


@dataclass(frozen=True)
class Panel:
    """The runs of one panel: every step size, up to every time."""

    steps: tuple[float, ...]  # h
    times: tuple[float, ...]  # T = K h
    realisations: int
    thin: int  # iterations from one averaged state to the next


Panels = dict[str, list[MeanSquaredError]]
"""Errors by letter of the panel: one entry per step size, which holds one value per time."""

COLUMNS = ("MSE", "its error", "bias")
Errors = Mapping[str, Panels]  # by method

N = 20
NAMES = ("sghmc", "ewsg")

# The relaxation time of theta is 0.5, and that of phi half as long. All runs of a panel have the
# same thinning, so that they share compiled code.
SIZES: dict[Scale, dict[str, Panel]] = {
    "smoke": {
        "j": Panel((5e-3,), (1, 3, 10), 400, 1),
        "k": Panel((5e-3, 1e-2), (15,), 400, 1),
        "l": Panel((2e-2, 1e-1), (150,), 400, 1),
    },
    "laptop": {
        "j": Panel((2e-3,), (1, 2, 5, 10, 20, 50, 100), 400, 10),
        "k": Panel((1e-3, 2e-3, 4e-3, 7e-3, 1e-2), (3,), 8_000, 4),
        "l": Panel((1e-2, 2e-2, 3e-2, 5e-2, 7e-2, 1e-1), (1_000,), 100, 2),
    },
    "paper": {
        "j": Panel((1e-3,), (1, 2, 5, 10, 20, 50, 100, 200), 2_000, 20),
        "k": Panel((5e-4, 1e-3, 2e-3, 4e-3, 7e-3, 1e-2), (3,), 40_000, 4),
        "l": Panel((5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 7e-2, 1e-1), (5_000,), 1_000, 4),
    },
}


@experiment("ewsg", "figure-1j-1l", "Mean squared error against T and h (Theorem 4), Gaussian")
def figure_1j_1l(scale: Scale, seed: int) -> Result:
    """Measure the three terms of eq. 6: O(1/T), O(h/T) and O(h^2)."""
    size = sized(SIZES, scale)
    start = "a draw of the target, so that no transient adds to the error"
    result = Result(settings=SETTINGS | {"n": N, "start": start, "panels": size})
    target = Gaussian.drawn(N, seed)
    errors: dict[str, Panels] = {
        name: {
            letter: [_error(result, target, name, h, panel, seed) for h in panel.steps]
            for letter, panel in size.items()
        }
        for name in NAMES
    }
    result.tables += [
        table_1j(errors, size["j"]),
        table_1k(errors, size["k"]),
        table_1l(errors, size["l"]),
    ]
    result.tables.append(_claims(errors, size))
    result.notes += WHY_1K
    caption = "Dashed: the slopes of Theorem 4. Bars: Monte Carlo standard errors."
    result.figures.append(Figure("figure-1j-1l", lambda: draw(errors, size), caption))
    return result


WHY_1K = [
    "Figure 1k: the error of EWSG does not grow with h here, and the paper shows growth like O(h). "
    "The second term of Theorem 4 is an upper bound: it counts the covariance of the gradient as "
    "noise that is added. Uniform batches do add it, which makes theta spread and the average of "
    "phi more variable. Exponential weights add to friction and force, to first order, what they "
    "add to noise (see figure-1b): the dynamics run faster by 1 + S without getting hotter, so "
    "that the average over a fixed T is no more variable. For M = 1 and the variance as the test "
    "function the bound holds and is not sharp.",
]


def _claims(errors: Errors, size: Mapping[str, Panel]) -> Table:
    rows: list[Claim] = []
    for name, by_panel in errors.items():
        label = LABELS[name]
        in_time = slope(size["j"].times, _part(by_panel["j"], "value"))
        rows.append((f"1j: power of T, {label}", round(in_time, 2), -1, abs(in_time + 1) < 0.15))
        _, growth, error = _line(np.array(size["k"].steps), by_panel["k"])
        text = f"{growth:.2g} ± {error:.1g}"
        rows.append((f"1k: growth with h, {label}", text, "positive", growth > 2 * error))
        in_step = slope(size["l"].steps, _part(by_panel["l"], "value"))
        rows.append((f"1l: power of h, {label}", round(in_step, 2), 2, abs(in_step - 2) < 0.5))
    note = (
        "The paper's panels are of EWSG. Where its power of h in 1l differs from 2, the bias of a "
        "force made too strong (negative) meets that of noise (positive), and changes sign."
    )
    return claims(rows, note)


def _error(
    result: Result, target: Gaussian, name: str, h: float, panel: Panel, seed: int
) -> MeanSquaredError:
    """Return the error of averages up to each of the panel's times."""
    counts = [max(1, round(t / (h * panel.thin))) for t in panel.times]
    settings: dict[str, Any] = {"chains": panel.realisations, "thin": panel.thin}
    method = target.underdamped(name, h)
    post = target.run(result, name, method, draws=counts[-1], random_seed=seed, **settings)
    # a realisation's variance about the target's known mean, in units of the target's
    values = np.mean(((post["theta"] - target.mean) / target.sd) ** 2, axis=-1)
    return mse(values, 1.0, at=counts)


def slope(x: ArrayLike, y: ArrayLike) -> float:
    """Return the least-squares slope of log y on log x.

    Examples
    --------
    >>> round(slope([1, 2, 4], [3, 12, 48]), 3)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _part(panel: list[MeanSquaredError], part: str) -> np.ndarray:
    """Return values, errors or biases of a panel, over its times or its step sizes."""
    return np.concatenate([getattr(error, part) for error in panel])


def table_1j(errors: Errors, panel: Panel) -> Table:
    """Tabulate the error against T, at one small h."""
    rows = _rows(errors, "j", panel.times)
    slopes = _slopes(errors, "j", panel.times)
    note = (
        f"h = {panel.steps[0]:g}. Theorem 4's first term: slope -1 of log MSE on log T; ours "
        f"{slopes}. Squared bias, the third term, is part of the error and does not shrink with T."
    )
    return Table("figure-1j", ["method", "T", *COLUMNS], rows, note)


def table_1k(errors: Errors, panel: Panel) -> Table:
    """Tabulate the error against small h, at one T."""
    lines = []
    for name, by_panel in errors.items():
        a, b, error = _line(np.array(panel.steps), by_panel["k"])
        lines.append(f"{LABELS[name]} {a:.3g} + ({b:.2g} ± {error:.1g}) h")
    note = (
        f"T = {panel.times[0]:g}. Theorem 4's second term grows like h at fixed T, on top of its "
        f"first, which has no h; lines fitted: {'; '.join(lines)}. Squared bias is part of them."
    )
    return Table("figure-1k", ["method", "h", *COLUMNS], _rows(errors, "k", panel.steps), note)


def table_1l(errors: Errors, panel: Panel) -> Table:
    """Tabulate the error against h, for a T so long that only the bias remains."""
    note = (
        f"T = {panel.times[0]:g}, so that the bias is what is left. Theorem 4's third term: slope "
        f"2 of log MSE on log h; ours {_slopes(errors, 'l', panel.steps)}. The bias of EWSG is "
        "that of a force made too strong (negative) against that of noise (positive), and where it "
        "changes sign the error dips."
    )
    return Table("figure-1l", ["method", "h", *COLUMNS], _rows(errors, "l", panel.steps), note)


def _rows(errors: Errors, letter: str, at: tuple[float, ...]) -> list[list[Any]]:
    rows = []
    for name, by_panel in errors.items():
        parts = [_part(by_panel[letter], part) for part in ("value", "error", "bias")]
        rows += [
            [LABELS[name], x, *(float(v) for v in values)]
            for x, *values in zip(at, *parts, strict=True)
        ]
    return rows


def _slopes(errors: Errors, letter: str, at: tuple[float, ...]) -> str:
    return ", ".join(
        f"{LABELS[name]} {slope(at, _part(by_panel[letter], 'value')):.2f}"
        for name, by_panel in errors.items()
    )


def _line(steps: np.ndarray, panel: list[MeanSquaredError]) -> tuple[float, float, float]:
    """Return intercept, slope and the slope's standard error of a weighted line through MSE(h)."""
    weights = 1 / _part(panel, "error")
    design = np.stack([np.ones(len(steps)), steps], axis=1) * weights[:, None]
    covariance = np.linalg.inv(design.T @ design)
    a, b = covariance @ design.T @ (_part(panel, "value") * weights)
    return float(a), float(b), float(np.sqrt(covariance[1, 1]))


def draw(errors: Errors, size: Mapping[str, Panel]) -> MatplotlibFigure:
    """Draw the three panels side by side."""
    figure, axes = panels(3)
    for ax, (letter, panel) in zip(axes, size.items(), strict=True):
        at = panel.times if letter == "j" else panel.steps
        lines = {name: (at, _part(by_panel[letter], "value")) for name, by_panel in errors.items()}
        label = "time T = K h" if letter == "j" else "step size h"
        fixed = f"h = {panel.steps[0]:g}" if letter == "j" else f"T = {panel.times[0]:g}"
        labels: dict[str, Any] = {"x": label, "y": "mean squared error"}
        log = "" if letter == "k" else "xy"
        draw_lines(ax, lines, **labels, title=f"1{letter}: {fixed}", log=log)
        if letter == "l":
            _plain_ticks(ax, at)
        for name, (x, values) in lines.items():
            bars = _part(errors[name][letter], "error")
            ax.errorbar(x, values, bars, fmt="o", ms=3, color=colour_of(name))
    _guide(axes[0], size["j"].times, _part(errors["ewsg"]["j"], "value"), -1)
    _guide(axes[2], size["l"].steps, _part(errors["sghmc"]["l"], "value"), 2)
    axes[1].set_ylim(bottom=0)
    return figure


def _plain_ticks(ax: Axes, at: tuple[float, ...]) -> None:
    """Label a few step sizes: matplotlib's own labels overlap within a decade or two."""
    ticks = [h for h in (5e-3, 1e-2, 2e-2, 5e-2, 1e-1) if min(at) <= h <= max(at)]
    ax.set_xticks(ticks, [f"{h:g}" for h in ticks])
    ax.set_xticks([], minor=True)


def _guide(ax: Axes, x: Sequence[float], y: np.ndarray, power: int) -> None:
    """Draw a dashed line with the slope that the theorem predicts, below the last point."""
    at = np.array([x[0], x[-1]], float)
    scale = 0.5 * y[0] if power < 0 else 0.5 * y[-1]
    base = at[0] if power < 0 else at[-1]
    ax.plot(at, scale * (at / base) ** power, "--", color="#555555", label=f"slope {power}")
    ax.legend(frameon=False, fontsize="small")
