"""Shared by the EWSG paper's experiments: many short chains of a method, and line charts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum import sample
from modicum.errors import ModicumWarning
from modicum.methods import Method
from modicum.models import BaseModel
from modicum.plots import colour_of, pyplot
from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum_lab.papers.experiments import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

LABELS = {
    "sgld": "SGLD",
    "psgld": "pSGLD",
    "svrg-ld": "SVRG-LD",
    "sghmc": "SGHMC",
    "cp-sghmc": "CP-SGHMC",
    "ewsg": "EWSG",
    "flymc": "FlyMC",
}
"""Methods as the paper writes them."""


def label_of(name: str) -> str:
    """Return the label of a method as the paper writes it; text after a comma is kept.

    Examples
    --------
    >>> label_of("psgld, h / n")
    'pSGLD, h / n'
    """
    first, *rest = name.split(", ")
    return ", ".join([LABELS.get(first, first), *rest])


MATTERS = ("gradient-noise", "chains-diverged")  # codes of warnings that are part of the finding


def realisations(
    result: Result, name: str, model: BaseModel, rows: Rows, method: Method | None, **settings: Any
) -> Posterior:
    """Run `method`, or the default one; record its cost and warnings in `result`.

    Every chain is one realisation. The paper's step sizes are deliberately too large for exactness,
    so that warnings are part of the finding and are not shown.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)
        post = sample(model, rows, method=method, progressbar=False, **{"tune": 0} | settings)
    result.ledger[name] = result.ledger.get(name, 0) + post.ledger.evaluations
    doubt = next((doubt for doubt in post.warnings if doubt.code in MATTERS), None)
    if doubt is not None and name not in result.doubts:
        result.doubts[name] = doubt
        result.notes.append(f"Modicum's guard on {name}: {doubt}")
    return post


def states(post: Posterior, now: dict[str, np.ndarray]) -> Posterior:
    """Return one state of every realisation, (chain, *shape) by name, as a posterior to score."""
    return replace(post, draws={name: x[:, None] for name, x in now.items()}, stats={})


Line = tuple[Any, Any]  # abscissae and ordinates


def panels(
    count: int, columns: int = 3, size: tuple[float, float] = (4.4, 3.5)
) -> tuple[MatplotlibFigure, list[Axes]]:
    """Make a figure and its axes, in reading order."""
    wide = min(columns, count)
    high = -(-count // wide)
    figure, axes = pyplot().subplots(
        high, wide, figsize=(wide * size[0], high * size[1]), layout="constrained", squeeze=False
    )
    flat = list(axes.ravel())
    for spare in flat[count:]:
        spare.set_axis_off()
    return figure, flat[:count]


def shade(number: int, of: int) -> tuple[float, float, float, float]:
    """Return shade `number` of `of` shades of EWSG's red, from light to dark, for variants."""
    from matplotlib.colors import LinearSegmentedColormap

    scale = LinearSegmentedColormap.from_list("ewsg", ["#f6a5a0", colour_of("ewsg"), "#4a0606"])
    return scale(number / max(1, of - 1))


def draw_lines(
    ax: Axes,
    lines: Mapping[str, Line],
    *,
    x: str,
    y: str,
    title: str = "",
    log: str = "",
    marker: str = "",
    colours: Mapping[str, Any] | None = None,
    legend: str | None = "best",
) -> None:
    """Draw one line per method; `log` names the axes with logarithmic scales, such as "xy".

    `legend` is its place in the panel; None leaves it out.
    """
    for name, (at, values) in lines.items():
        colour = colour_of(name) if colours is None else colours[name]
        ax.plot(at, values, marker=marker, markersize=4, color=colour, label=label_of(name))
    if "x" in log:
        ax.set_xscale("log")
    if "y" in log:
        ax.set_yscale("log")
    ax.set(xlabel=x, ylabel=y, title=title)
    ax.grid(alpha=0.3)
    if legend is not None:
        ax.legend(frameon=False, fontsize="small", loc=legend)
