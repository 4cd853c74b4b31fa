"""Tables and picture of the EWSG paper's Figures 1j to 1l, and the slopes they are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from modicum.diagnostics import MeanSquaredError
from modicum.plots import colour_of
from modicum_lab.papers.ewsg.drawing import draw_lines, panels
from modicum_lab.papers.ewsg.running import LABELS
from modicum_lab.papers.experiment import Table

__all__ = ["Panel", "Panels", "draw", "slope", "table_1j", "table_1k", "table_1l"]


@dataclass(frozen=True)
class Panel:
    """What one panel is drawn from: each step size, up to each time."""

    steps: tuple[float, ...]  # h
    times: tuple[float, ...]  # T = K h
    realisations: int
    thin: int  # iterations from one averaged state to the next


Panels = dict[str, list[MeanSquaredError]]
"""Letter of the panel to its errors: one entry a step size, which holds one value a time."""

COLUMNS = ("MSE", "its error", "bias")
Found = Mapping[str, Panels]  # by method


def slope(x: Any, y: Any) -> float:
    """Least-squares slope of log y on log x.

    Examples
    --------
    >>> round(slope([1, 2, 4], [3, 12, 48]), 3)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _part(errors: list[MeanSquaredError], part: str) -> np.ndarray:
    """Values, errors or biases of a panel, over its times or its step sizes."""
    return np.concatenate([getattr(one, part) for one in errors])


def table_1j(found: Found, panel: Panel) -> Table:
    """Error against T, at one small h."""
    rows = _rows(found, "j", panel.times)
    slopes = _slopes(found, "j", panel.times)
    note = (
        f"h = {panel.steps[0]:g}. Theorem 4's first term: slope -1 of log MSE on log T; ours "
        f"{slopes}. Squared bias, the third term, is part of the error and does not shrink with T."
    )
    return Table("figure-1j", ["method", "T", *COLUMNS], rows, note)


def table_1k(found: Found, panel: Panel) -> Table:
    """Error against small h, at one T."""
    said = []
    for name, each in found.items():
        a, b, error = _line(np.array(panel.steps), each["k"])
        said.append(f"{LABELS[name]} {a:.3g} + ({b:.2g} ± {error:.1g}) h")
    note = (
        f"T = {panel.times[0]:g}. Theorem 4's second term grows like h at fixed T, on top of its "
        f"first, which has no h; lines fitted: {'; '.join(said)}. Squared bias is part of them."
    )
    return Table("figure-1k", ["method", "h", *COLUMNS], _rows(found, "k", panel.steps), note)


def table_1l(found: Found, panel: Panel) -> Table:
    """Error against h where T is so long that the bias is left."""
    note = (
        f"T = {panel.times[0]:g}, so that the bias is what is left. Theorem 4's third term: slope "
        f"2 of log MSE on log h; ours {_slopes(found, 'l', panel.steps)}. The bias of EWSG is that "
        "of a force made too strong (negative) against that of noise (positive), and where it "
        "changes sign the error dips."
    )
    return Table("figure-1l", ["method", "h", *COLUMNS], _rows(found, "l", panel.steps), note)


def _rows(found: Found, letter: str, at: tuple[float, ...]) -> list[list[Any]]:
    rows = []
    for name, each in found.items():
        parts = [_part(each[letter], part) for part in ("value", "error", "bias")]
        rows += [
            [LABELS[name], x, *(float(v) for v in values)]
            for x, *values in zip(at, *parts, strict=True)
        ]
    return rows


def _slopes(found: Found, letter: str, at: tuple[float, ...]) -> str:
    return ", ".join(
        f"{LABELS[name]} {slope(at, _part(each[letter], 'value')):.2f}"
        for name, each in found.items()
    )


def _line(steps: np.ndarray, errors: list[MeanSquaredError]) -> tuple[float, float, float]:
    """Intercept, slope and the slope's standard error of a weighted line through MSE(h)."""
    weights = 1 / _part(errors, "error")
    design = np.stack([np.ones(len(steps)), steps], axis=1) * weights[:, None]
    covariance = np.linalg.inv(design.T @ design)
    a, b = covariance @ design.T @ (_part(errors, "value") * weights)
    return float(a), float(b), float(np.sqrt(covariance[1, 1]))


def draw(found: Found, size: Mapping[str, Panel]) -> Any:
    """The three panels side by side."""
    figure, axes = panels(3)
    for ax, (letter, panel) in zip(axes, size.items(), strict=True):
        at = panel.times if letter == "j" else panel.steps
        lines = {name: (at, _part(each[letter], "value")) for name, each in found.items()}
        label = "time T = K h" if letter == "j" else "step size h"
        fixed = f"h = {panel.steps[0]:g}" if letter == "j" else f"T = {panel.times[0]:g}"
        said: dict[str, Any] = {"x": label, "y": "mean squared error"}
        log = "" if letter == "k" else "xy"
        draw_lines(ax, lines, **said, title=f"1{letter}: {fixed}", log=log)
        if letter == "l":
            _plain_ticks(ax, at)
        for name, (x, values) in lines.items():
            bars = _part(found[name][letter], "error")
            ax.errorbar(x, values, bars, fmt="o", ms=3, color=colour_of(name))
    _guide(axes[0], size["j"].times, _part(found["ewsg"]["j"], "value"), -1)
    _guide(axes[2], size["l"].steps, _part(found["sghmc"]["l"], "value"), 2)
    axes[1].set_ylim(bottom=0)
    return figure


def _plain_ticks(ax: Any, at: tuple[float, ...]) -> None:
    """A few step sizes in plain figures: matplotlib's own overlap within a decade or two."""
    shown = [h for h in (5e-3, 1e-2, 2e-2, 5e-2, 1e-1) if min(at) <= h <= max(at)]
    ax.set_xticks(shown, [f"{h:g}" for h in shown])
    ax.set_xticks([], minor=True)


def _guide(ax: Any, x: Any, y: np.ndarray, power: int) -> None:
    """A dashed line of the slope the theorem predicts, below the last point."""
    at = np.array([x[0], x[-1]], float)
    scale = 0.5 * y[0] if power < 0 else 0.5 * y[-1]
    base = at[0] if power < 0 else at[-1]
    ax.plot(at, scale * (at / base) ** power, "--", color="#555555", label=f"slope {power}")
    ax.legend(frameon=False, fontsize="small")
