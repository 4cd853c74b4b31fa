"""Charts of the report, in SVG whose colours follow the page.

A chart says in its own words what is on its axes. Several curves differ in colour and dashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from modicum.libraries import pandas as pd
from modicum.markup import Markup, tag
from modicum.posterior.marginal import by_class
from modicum.posterior.ppc import PredictiveCheck
from modicum.posterior.summary import is_share, percent

WIDTH, HEIGHT = 340, 190  # of a chart on a phone, where it is shown unscaled; between its titles
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 24, 36
LETTER = 6.0  # width of a letter
TICKS = 4
STYLES = 6  # colours and dashes, after which they repeat
LINE, THIN = 16, 2.5  # height of a level with a name, and of one of many without
MOST_NAMED = 60  # levels with names
MOST_DOTS = 25  # points of a curve that are marked: it is known there and not between
Tick = tuple[float, str]


class Band(NamedTuple):
    """Intervals and their centres."""

    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, frame: pd.DataFrame, low: str, middle: str, high: str) -> Band:
        """Take the band from three columns of a table."""
        return cls(*(frame[name].to_numpy(float) for name in (low, middle, high)))

    @classmethod
    def of_estimates(cls, frame: pd.DataFrame) -> Band:
        """Take the band from a table of estimates (`interval_columns`)."""
        return cls.of(frame, frame.columns[2], "mean", frame.columns[3])


class Chart:
    """A box with axes, in which numbers have places."""

    def __init__(
        self,
        x: Sequence[float],
        y: Sequence[float],
        across: str,
        up: str,
        names: Sequence[str] = (),
        left: float = LEFT,
        height: float = HEIGHT,
    ) -> None:
        self.x, self.y = _ends(x), _ends(y)
        self.across, self.up, self.left, self.about = across, up, left, f"{up} by {across}"
        first = TOP if up else 8
        self.legend, lines = _legend(names, first)
        self.top = first + lines * LINE
        self.bottom = self.top + height

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point."""
        along = (x - self.x[0]) / (self.x[1] - self.x[0])
        high = (y - self.y[0]) / (self.y[1] - self.y[0])
        down = self.bottom - high * (self.bottom - self.top)
        return round(self.left + along * (WIDTH - self.left - RIGHT), 1), round(down, 1)

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        """Return the places of points as one text."""
        return " ".join("{},{}".format(*self.at(x, y)) for x, y in zip(xs, ys, strict=True))

    def dot(self, x: float, y: float, kind: str, r: float = 2.5) -> Markup:
        """Return a point."""
        cx, cy = self.at(x, y)
        return tag("circle", cx=cx, cy=cy, r=r, class_=kind)

    def line(self, start: tuple[float, float], end: tuple[float, float], kind: str) -> Markup:
        """Return a line between two points."""
        (x1, y1), (x2, y2) = self.at(*start), self.at(*end)
        return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)

    def drawn(
        self, marks: Sequence[Markup], x_ticks: Sequence[Tick], y_ticks: Sequence[Tick]
    ) -> Markup:
        """Return the chart: marks between axes with ticks and titles."""
        parts = [*self.legend]
        if self.up:
            parts.append(tag("text", _cut(self.up, WIDTH), x=2, y=13, class_="up"))
        for value, text in y_ticks:
            _, y = self.at(self.x[0], value)
            label = _cut(text, self.left - 6)
            parts.append(tag("text", label, x=self.left - 5, y=y + 4, text_anchor="end"))
            if text:
                parts.append(self.line((self.x[0], value), (self.x[1], value), "grid"))
        for value, text in x_ticks:
            x, _ = self.at(value, self.y[0])
            anchor = "end" if x > WIDTH - RIGHT - 10 else "middle"
            parts.append(self.line((value, self.y[0]), (value, self.y[1]), "grid"))
            parts.append(tag("text", text, x=x, y=self.bottom + 15, text_anchor=anchor))
        middle = (self.left + WIDTH - RIGHT) / 2
        title = _cut(self.across, 2 * min(middle, WIDTH - middle))
        parts.append(tag("text", title, x=middle, y=self.bottom + 31, text_anchor="middle"))
        box = f"0 0 {WIDTH} {self.bottom + BOTTOM:g}"
        return tag("svg", parts, list(marks), viewBox=box, role="img", aria_label=self.about)


def effect_chart(table: pd.DataFrame, quantity: str) -> Markup:
    """Draw the estimates of a table by its index, and by its second column as several curves."""
    parts = by_class(table)
    first = next(iter(parts.values()))
    bands = {name: Band.of_estimates(part) for name, part in parts.items()}
    if first.index.dtype.kind not in "fiu" or len(first) <= 2:
        levels = [_short(x) if isinstance(x, float) else str(x) for x in first.index]
        return interval_chart(levels, bands, str(first.index.name), quantity)
    return curve_chart(first.index.to_numpy(float), bands, str(first.index.name), quantity)


def curve_chart(
    x: np.ndarray,
    bands: Mapping[str, Band],
    across: str,
    up: str,
    observed: np.ndarray | None = None,
    least: float = np.inf,
) -> Markup:
    """Draw lines with bands around them, and what was observed as points, or many as a line.

    The axis starts at the `least` value or below.
    """
    values = [value for band in bands.values() for part in band for value in part]
    seen = [] if observed is None else list(observed)
    chart = Chart(list(x), [least, *values, *seen], across, up, list(bands))
    marks = []
    for k, (low, middle, high) in enumerate(bands.values()):
        there_and_back = chart.path([*x, *x[::-1]], [*low, *high[::-1]])
        marks.append(tag("polygon", points=there_and_back, class_=f"band c{k % STYLES}"))
        points = chart.path(list(x), list(middle))
        marks.append(tag("polyline", points=points, class_=f"curve c{k % STYLES}"))
        if len(x) <= MOST_DOTS and observed is None:
            kind = f"dot c{k % STYLES}"
            marks += [chart.dot(a, b, kind, 2) for a, b in zip(x, middle, strict=True)]
    if len(seen) <= MOST_DOTS:
        marks += [chart.dot(a, b, "seen", 3) for a, b in zip(x, seen, strict=False)]
    else:
        marks.append(tag("polyline", points=chart.path(list(x), seen), class_="seen-line"))
    return chart.drawn(marks, _ticks(*chart.x, across), _ticks(*chart.y, up))


def interval_chart(
    levels: Sequence[str], bands: Mapping[str, Band], across: str, quantity: str
) -> Markup:
    """Draw intervals one below the other, the first on top; of many levels, without names."""
    named, count, each = len(levels) <= MOST_NAMED, len(levels), len(bands)
    left = min(150.0, 12 + LETTER * max(map(len, levels))) if named else 14.0
    height = count * (LINE + 7 * (each - 1) if named else THIN)
    ends = [value for band in bands.values() for value in (*band.low, *band.high)]
    title = quantity if named else f"{quantity} ({count:,} levels)"
    chart = Chart(ends, [], title, "", list(bands), left, height)
    chart.about = f"{quantity} by {across}"
    room = 0.03 * (chart.x[1] - chart.x[0])
    chart.x, chart.y = (chart.x[0] - room, chart.x[1] + room), (count - 0.4, -0.6)
    marks = []
    if chart.x[0] < 0 < chart.x[1]:
        marks.append(chart.line((0, chart.y[0]), (0, chart.y[1]), "zero"))
    for k, band in enumerate(bands.values()):
        shift = 0.7 * ((k + 0.5) / each - 0.5)
        for i, (low, middle, high) in enumerate(zip(*band, strict=True)):
            if np.isfinite([low, middle, high]).all():
                kind = f"range c{k % STYLES}" if named else "thin c0"
                marks.append(chart.line((low, i + shift), (high, i + shift), kind))
                size = 3 if named else 1
                marks.append(chart.dot(middle, i + shift, f"dot c{k % STYLES}", size))
    names = list(enumerate(levels)) if named else []
    return chart.drawn(marks, _ticks(*chart.x, quantity), names)


def check_chart(check: PredictiveCheck) -> Markup:
    """Draw observed values, and what a model expects with intervals."""
    frame, (across, up) = check.table, check.labels
    band = Band.of(frame, "lower", "predicted", "upper")
    observed = frame["observed"].to_numpy(float)
    if check.across is not None:
        least = 0.0 if check.kind == "quantiles" else np.inf
        return curve_chart(check.across, {"": band}, across, up, observed, least)
    root = np.sqrt if check.kind == "counts" else np.asarray
    observed, band = root(observed), Band(*map(root, band))
    chart = Chart([-0.6, len(frame) - 0.4], [0.0, *observed, *band.high], across, up)
    marks = []
    for k, (value, low, middle, high) in enumerate(zip(observed, *band, strict=True)):
        (left, top), (right, floor) = chart.at(k - 0.35, value), chart.at(k + 0.35, 0.0)
        bar = {"x": left, "y": top, "width": round(right - left, 1), "height": floor - top}
        marks.append(tag("rect", **bar, class_="seen-bar"))
        marks.append(chart.line((k, low), (k, high), "range c0"))
        marks.append(chart.dot(k, middle, "dot c0"))
    every_nth = max(1, -(-len(frame) * max(len(str(name)) for name in frame.index) // 40))
    names = [(float(k), str(frame.index[k])) for k in range(0, len(frame), every_nth)]
    ticks = _ticks(*chart.y, up)
    if check.kind == "counts":
        ticks = [(value, _short(value**2)) for value, _ in ticks]
    return chart.drawn(marks, names, ticks)


def _legend(names: Sequence[str], top: float) -> tuple[list[Markup], int]:
    """Return a line and a name for each of several curves, and how many lines of text they take."""
    if len(names) < 2:
        return [], 0
    parts, x, line = [], 2.0, 0
    for k, name in enumerate(names):
        width = 30 + LETTER * len(name)
        if x + width > WIDTH and x > 2:
            x, line = 2.0, line + 1
        y = top + line * LINE
        parts.append(tag("line", x1=x, x2=x + 16, y1=y, y2=y, class_=f"curve c{k % STYLES}"))
        parts.append(tag("text", _cut(name, WIDTH - 20), x=x + 20, y=y + 4))
        x += width
    return parts, line + 1


def _cut(text: str, width: float) -> str:
    """Shorten a text to a width."""
    most = max(int(width / LETTER), 2)
    return text if len(text) <= most else text[: most - 1] + "…"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    finite = [float(v) for v in values if np.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float, label: str) -> list[Tick]:
    """Return a few round numbers from `low` to `high`, of chances and shares in per cent."""
    step = 10.0 ** np.floor(np.log10((high - low) / TICKS))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (k * step) <= TICKS + 1)
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9))
    words = percent if is_share(label) else _short
    return [(float(k * step), words(k * step)) for k in range(first, last + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
