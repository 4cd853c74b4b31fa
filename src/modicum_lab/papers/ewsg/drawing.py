"""Line charts of the EWSG paper's figures, with one colour a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modicum.plots import colour_of, pyplot
from modicum_lab.papers.ewsg.running import label_of

__all__ = ["draw_lines", "panels", "shade"]

Line = tuple[Any, Any]  # abscissae and ordinates


def panels(count: int, columns: int = 3, size: tuple[float, float] = (4.4, 3.5)) -> Any:
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


def shade(number: int, of: int) -> Any:
    """Return the number-th of some shades of EWSG's red, from light to dark, for its variants."""
    from matplotlib.colors import LinearSegmentedColormap

    scale = LinearSegmentedColormap.from_list("ewsg", ["#f6a5a0", colour_of("ewsg"), "#4a0606"])
    return scale(number / max(1, of - 1))


def draw_lines(
    ax: Any,
    lines: Mapping[str, Line],
    *,
    x: str,
    y: str,
    title: str = "",
    log: str = "",
    marker: str = "",
    colours: Mapping[str, Any] | None = None,
    legend: str = "best",
) -> None:
    """Draw one line a method; `log` names the axes with logarithmic scales, such as "xy"."""
    for name, (at, values) in lines.items():
        colour = colour_of(name) if colours is None else colours[name]
        ax.plot(at, values, marker=marker, markersize=4, color=colour, label=label_of(name))
    if "x" in log:
        ax.set_xscale("log")
    if "y" in log:
        ax.set_yscale("log")
    ax.set(xlabel=x, ylabel=y, title=title)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize="small", loc=legend)
