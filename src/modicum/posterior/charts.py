"""Charts of the report, in HTML and SVG whose colours and widths follow the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from modicum.markup import Markup, tag
from modicum.posterior.group_effects import Shrinkage

if TYPE_CHECKING:
    import pandas as pd

WIDTH, HEIGHT = 340, 230  # of a chart on a phone, where it is shown unscaled
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 36
TICKS = 4


class Band(NamedTuple):
    """Intervals and their centres."""

    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, frame: pd.DataFrame, low: str, middle: str, high: str) -> Band:
        """Take the band from three columns of a table."""
        return cls(*(frame[name].to_numpy(float) for name in (low, middle, high)))


def forest(labels: Sequence[object], band: Band) -> Markup:
    """Draw intervals one below the other, with a line at zero."""
    low, middle, high = band
    finite = np.isfinite(low) & np.isfinite(high)
    if not finite.any():
        return tag("p", "There are no finite intervals to draw.")
    ends = [min(float(low[finite].min()), 0.0), max(float(high[finite].max()), 0.0)]
    room = 0.02 * (ends[1] - ends[0] or 1.0)
    start, span = ends[0] - room, ends[1] - ends[0] + 2 * room

    def share(value: float) -> float:
        return 100 * (value - start) / span

    lines = []
    for label, a, m, b in zip(labels, low, middle, high, strict=True):
        marks = [tag("i", class_="zero", style=f"left:{share(0.0):.2f}%")]
        if np.isfinite(a) and np.isfinite(b):
            wide = f"left:{share(a):.2f}%;width:{max(share(b) - share(a), 0.3):.2f}%"
            marks.append(tag("b", class_="bar", style=wide))
            marks.append(tag("b", class_="dot", style=f"left:{share(m):.2f}%"))
        figure = tag("span", f"{m:.3g}", class_="figure")
        name = tag("span", str(label), class_="label", title=str(label))
        lines.append(tag("div", name, tag("span", marks, class_="track"), figure, class_="line"))
    return tag("div", lines, class_="forest", role="img", aria_label="intervals of coefficients")


class _Frame:
    """Axes of a chart."""

    def __init__(self, x: Sequence[float], y: Sequence[float]) -> None:
        self.x, self.y = _ends(x), _ends(y)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (
            HEIGHT - TOP - BOTTOM
        )

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        return " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in zip(xs, ys, strict=True))

    def x_ticks(self) -> list[tuple[float, str]]:
        return [(value, _short(value)) for value in _ticks(*self.x)]

    def drawn(
        self, marks: Sequence[Markup], across: str, up: str, x_ticks: Sequence[tuple[float, str]]
    ) -> Markup:
        """Return the chart: marks between axes with ticks and titles."""
        parts = []
        for value in _ticks(*self.y):
            _, y = self.at(self.x[0], value)
            parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(tag("text", _short(value), x=LEFT - 5, y=y + 4, text_anchor="end"))
        for value, text in x_ticks:
            x, _ = self.at(value, self.y[0])
            anchor = "end" if x > WIDTH - RIGHT - 10 else "middle"
            parts.append(tag("text", text, x=x, y=HEIGHT - BOTTOM + 15, text_anchor=anchor))
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(tag("text", across, x=middle, y=HEIGHT - 4, text_anchor="middle"))
        return tag(
            "svg",
            tag("title", f"{up} by {across}"),
            parts,
            list(marks),
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            role="img",
        )


def band_chart(
    x: np.ndarray,
    band: Band,
    across: str,
    up: str,
    observed: np.ndarray | None = None,
) -> Markup:
    """Draw a line with a band around it, and points for observed values."""
    low, middle, high = band
    values = [*low, *high, *middle, *([] if observed is None else observed)]
    frame = _Frame(list(x), values)
    there_and_back = frame.path([*x, *x[::-1]], [*low, *high[::-1]])
    marks = [
        tag("polygon", points=there_and_back, class_="band"),
        tag("polyline", points=frame.path(list(x), list(middle)), class_="curve"),
    ]
    if observed is not None:
        places = [frame.at(a, b) for a, b in zip(x, observed, strict=True)]
        dots = places[:: max(1, len(places) // 40)]
        marks += [tag("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", r=3, class_="seen") for a, b in dots]
    return frame.drawn(marks, across, up, frame.x_ticks())


def bar_chart(
    labels: Sequence[object],
    observed: np.ndarray,
    band: Band,
    across: str,
    up: str,
) -> Markup:
    """Draw bars for observed values, and on them intervals for expected values."""
    at = np.arange(len(labels), dtype=float)
    frame = _Frame([-0.6, len(labels) - 0.4], [0.0, *observed, *band.high])
    marks = []
    for k, value, a, m, b in zip(at, observed, *band, strict=True):
        left, top = frame.at(k - 0.35, value)
        right, floor = frame.at(k + 0.35, 0.0)
        marks.append(
            tag("rect", x=f"{left:.1f}", y=f"{top:.1f}", width=f"{right - left:.1f}",
                height=f"{max(floor - top, 0):.1f}", class_="seen-bar")
        )  # fmt: skip
        (x, upper), (_, lower), (_, centre) = frame.at(k, b), frame.at(k, a), frame.at(k, m)
        marks.append(tag("line", x1=x, x2=x, y1=upper, y2=lower, class_="expected"))
        marks.append(tag("circle", cx=x, cy=centre, r=2.5, class_="expected-dot"))
    for k in range(0, len(labels), max(1, len(labels) // 6)):
        x, floor = frame.at(float(k), 0.0)
        marks.append(tag("text", str(labels[k])[:10], x=x, y=floor + 15, text_anchor="middle"))
    return frame.drawn(marks, across, up, [])


def shrinkage_chart(shrinkage: Shrinkage, group: str, prob: float) -> Markup:
    """Draw effects by the number of rows of their level, with lines from unpooled estimates."""
    wide, edge = shrinkage.limits(prob)
    sizes = shrinkage.table["rows"].to_numpy(float)
    x = np.log10(np.maximum(sizes, 1.0))
    raw, inside = shrinkage.unpooled, np.clip(shrinkage.unpooled, -edge, edge)
    frame = _Frame(list(x), [-edge, edge])
    (left, top), (right, bottom) = frame.at(frame.x[0], wide), frame.at(frame.x[1], -wide)
    band = tag("rect", x=f"{left:.1f}", y=f"{top:.1f}", width=f"{right - left:.1f}",
               height=f"{bottom - top:.1f}", class_="new")  # fmt: skip
    pulls, hollow, filled = [], [], []
    for at, mean, own, end in zip(x, shrinkage.table["mean"], raw, inside, strict=True):
        (across, to), (_, start) = frame.at(at, mean), frame.at(at, end)
        pulls.append(f"M{across:.1f},{start:.1f}V{to:.1f}")
        filled.append(tag("circle", cx=f"{across:.1f}", cy=f"{to:.1f}", r=2.2, class_="mean"))
        if abs(own) <= edge:
            circle = tag("circle", cx=f"{across:.1f}", cy=f"{start:.1f}", r=2.2, class_="own")
            hollow.append(circle)
        else:
            foot = start + (5 if own > 0 else -5)
            corners = f"{across:.1f},{start:.1f} {across - 3:.1f},{foot:.1f} "
            corners += f"{across + 3:.1f},{foot:.1f}"
            hollow.append(tag("polygon", points=corners, class_="own"))
    marks = [band, tag("path", d="".join(pulls), class_="pull"), *hollow, *filled]
    return frame.drawn(marks, f"rows per {group}", "effect", _powers(*frame.x))


def _powers(low: float, high: float) -> list[tuple[float, str]]:
    """Return ticks at round numbers on a log10 axis from `low` to `high`."""
    steps = (1,) if high - low > 2 else (1, 3) if high - low > 1 else (1, 2, 3, 5, 7)
    decades = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    values = [step * 10.0**power for power in decades for step in steps]
    return [(float(np.log10(v)), _short(v)) for v in values if low <= np.log10(v) <= high]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    finite = [float(v) for v in values if np.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers from `low` to `high`."""
    step = 10.0 ** np.floor(np.log10((high - low) / TICKS))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (k * step) <= TICKS + 1)
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9))
    return [float(k * step) for k in range(first, last + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
