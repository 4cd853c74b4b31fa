"""Pictures of estimates and checks: in SVG for the report, and by Matplotlib for everybody else.

A picture says in its own words what is on its axes. In the report its colours follow the page, and
several curves differ in colour and dashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from modicum.errors import SettingError
from modicum.libraries import pandas as pd
from modicum.markup import Markup, tag
from modicum.posterior.summary import interval_words, is_share, percent, prob_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 340, 190  # of a chart on a phone, where it is shown unscaled; between its titles
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 24, 36
LETTER = 6.0  # width of a letter
TICKS = 4
STYLES = 6  # colours and dashes, after which they repeat
LINE, THIN = 16, 2.5  # height of a level with a name, and of one of many without
MOST_NAMED = 60  # levels with names
MOST_DOTS = 25  # points of a curve that are marked: it is known there and not between
OBSERVED, PREDICTED, INK = "#1f2937", "#0b5fa5", "#555555"
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


@dataclass(frozen=True)
class Picture:
    """Intervals, drawn along numbers or beside names, and what was observed there.

    Parameters
    ----------
    kind
        "curves", "levels" (intervals one below the other, the first on top), or "bars" of what was
        observed, with an interval beside each.
    at
        The numbers, or the names.
    bands
        Intervals by the name of the curve.
    across, up
        What `at` is, and what the intervals are of.
    words
        What the intervals are.
    seen
        What was observed, by the name of the curve.
    observed
        What this is called.
    least
        The axis of values starts here, or below.
    is_root
        Whether values are square roots of what their axis says.
    """

    kind: Literal["curves", "levels", "bars"]
    at: np.ndarray | Sequence[str]
    bands: Mapping[str, Band]
    across: str
    up: str
    words: str
    seen: Mapping[str, np.ndarray] = field(default_factory=dict)
    observed: str = "observed"
    least: float = np.inf
    is_root: bool = False


def effect_picture(table: pd.DataFrame, label: str = "") -> Picture:
    """Show the estimates of a table by the first level of its index, a curve for each other."""
    parts = curves_of(table, label)
    first = next(iter(parts.values())).index
    bands = {name: Band.of_estimates(part) for name, part in parts.items()}
    quantity = table.attrs.get("quantity", "expected outcome")
    words = str(first.name), quantity, interval_words(prob_of(table))
    if first.dtype.kind in "fiu" and len(first) > 2:
        return Picture("curves", first.to_numpy(float), bands, *words)
    levels = [_short(value) if isinstance(value, float) else str(value) for value in first]
    return Picture("levels", levels, bands, *words)


def curves_of(table: pd.DataFrame, label: str = "") -> dict[str, pd.DataFrame]:
    """Split a table of several columns into those of single curves, by their names."""
    if table.index.nlevels == 1:
        return {label: table}
    return {
        name: curve
        for text, part in by_class(table).items()
        for name, curve in curves_of(part, f"{text}, {label}" if label else text).items()
    }


def by_class(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split a table by class of the outcome, or else by its last column."""
    values = table.index.get_level_values(-1)
    name = table.index.names[-1]
    texts = {k: f"{k:.4g}" if isinstance(k, float) else k for k in dict.fromkeys(values)}
    return {f"{name} {text}": table[values == k].droplevel(-1) for k, text in texts.items()}


# SVG -----------------------------------------------------------------------------------------


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


def svg(picture: Picture) -> Markup:
    """Draw a picture on the page."""
    return {"curves": _svg_curves, "levels": _svg_levels, "bars": _svg_bars}[picture.kind](picture)


def _svg_curves(picture: Picture) -> Markup:
    """Draw lines with bands around them, and what was observed as points, or many as a line."""
    x, across, up = np.asarray(picture.at, float), picture.across, picture.up
    values = [value for band in picture.bands.values() for part in band for value in part]
    seen = [value for part in picture.seen.values() for value in part]
    chart = Chart(list(x), [picture.least, *values, *seen], across, up, list(picture.bands))
    marks = []
    for k, (low, middle, high) in enumerate(picture.bands.values()):
        there_and_back = chart.path([*x, *x[::-1]], [*low, *high[::-1]])
        marks.append(tag("polygon", points=there_and_back, class_=f"band c{k % STYLES}"))
        points = chart.path(list(x), list(middle))
        marks.append(tag("polyline", points=points, class_=f"curve c{k % STYLES}"))
        if len(x) <= MOST_DOTS and not seen:
            kind = f"dot c{k % STYLES}"
            marks += [chart.dot(a, b, kind, 2) for a, b in zip(x, middle, strict=True)]
    if len(seen) <= MOST_DOTS:
        marks += [chart.dot(a, b, "seen", 3) for a, b in zip(x, seen, strict=False)]
    else:
        marks.append(tag("polyline", points=chart.path(list(x), seen), class_="seen-line"))
    return chart.drawn(marks, _ticks(*chart.x, across), _ticks(*chart.y, up))


def _svg_levels(picture: Picture) -> Markup:
    """Draw intervals one below the other, the first on top; of many levels, without names."""
    levels, bands, quantity = list(map(str, picture.at)), picture.bands, picture.up
    named, count, each = len(levels) <= MOST_NAMED, len(levels), len(bands)
    left = min(150.0, 12 + LETTER * max(map(len, levels))) if named else 14.0
    height = count * (LINE + 7 * (each - 1) if named else THIN)
    ends = [value for band in bands.values() for value in (*band.low, *band.high)]
    title = quantity if named else f"{quantity} ({count:,} levels)"
    chart = Chart(ends, [], title, "", list(bands), left, height)
    chart.about = f"{quantity} by {picture.across}"
    room = 0.03 * (chart.x[1] - chart.x[0])
    chart.x, chart.y = (chart.x[0] - room, chart.x[1] + room), (count - 0.4, -0.6)
    marks = []
    if chart.x[0] < 0 < chart.x[1]:
        marks.append(chart.line((0, chart.y[0]), (0, chart.y[1]), "zero"))
    for k, (band, shift) in enumerate(zip(bands.values(), _shifts(each), strict=True)):
        for i, (low, middle, high) in enumerate(zip(*band, strict=True)):
            if np.isfinite([low, middle, high]).all():
                kind = f"range c{k % STYLES}" if named else "thin c0"
                marks.append(chart.line((low, i + shift), (high, i + shift), kind))
                size = 3 if named else 1
                marks.append(chart.dot(middle, i + shift, f"dot c{k % STYLES}", size))
    names = list(enumerate(levels)) if named else []
    return chart.drawn(marks, _ticks(*chart.x, quantity), names)


def _shifts(number: int) -> np.ndarray:
    """Return by how much of a line intervals of several curves are moved, to lie side by side."""
    return 0.7 * ((np.arange(number) + 0.5) / number - 0.5)


def _svg_bars(picture: Picture) -> Markup:
    """Draw a bar for each observed value, and what a model expects with an interval."""
    (band,), (observed,), names = picture.bands.values(), picture.seen.values(), picture.at
    ends, values = [-0.6, len(names) - 0.4], [0.0, *observed, *band.high]
    chart = Chart(ends, values, picture.across, picture.up)
    marks = []
    for k, (value, low, middle, high) in enumerate(zip(observed, *band, strict=True)):
        (left, top), (right, floor) = chart.at(k - 0.35, value), chart.at(k + 0.35, 0.0)
        bar = {"x": left, "y": top, "width": round(right - left, 1), "height": floor - top}
        marks.append(tag("rect", **bar, class_="seen-bar"))
        marks.append(chart.line((k, low), (k, high), "range c0"))
        marks.append(chart.dot(k, middle, "dot c0"))
    every_nth = max(1, -(-len(names) * max(len(str(name)) for name in names) // 40))
    named = [(float(k), str(names[k])) for k in range(0, len(names), every_nth)]
    ticks = _ticks(*chart.y, picture.up)
    if picture.is_root:
        ticks = [(value, _short(value**2)) for value, _ in ticks]
    return chart.drawn(marks, named, ticks)


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


# Matplotlib ----------------------------------------------------------------------------------


def pyplot() -> ModuleType:
    """Import `matplotlib.pyplot`, or say how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise SettingError(
            "plots need matplotlib, which is not installed: pip install 'modicum[plots]'."
        ) from None
    return plt


def new_axes(ax: Axes | None = None, size: tuple[float, float] = (6.0, 4.0)) -> Axes:
    """Return `ax`, or the axes of a new figure."""
    if ax is not None:
        return ax
    axes: Axes = pyplot().subplots(figsize=size, layout="constrained")[1]
    return axes


def draw(picture: Picture, ax: Axes | None = None, colour: str | None = None) -> Axes:
    """Draw a picture on axes, those of a new figure by default."""
    lies = picture.kind == "levels"
    ax = new_axes(ax, (6.0, _height(len(picture.at)) if lies else 4.0))
    draw_on = {"curves": _draw_curves, "levels": _draw_levels, "bars": _draw_bars}[picture.kind]
    draw_on(picture, ax, colour)
    up = picture.up if picture.seen else f"{picture.up}\n{picture.words}".lstrip()
    axes = (ax.yaxis, ax.xaxis) if lies else (ax.xaxis, ax.yaxis)
    nameless = lies and len(picture.at) > MOST_NAMED
    across = f"{len(picture.at):,} levels of {picture.across}" if nameless else picture.across
    for axis, title in zip(axes, (across, up), strict=True):
        axis.set_label_text(title)
        if is_share(title):
            axis.set_major_formatter(lambda value, _: percent(value))
    if picture.is_root:
        ax.yaxis.set_major_formatter(lambda value, _: f"{max(value, 0) ** 2:,.0f}")
    if np.isfinite(picture.least):
        ax.set_ylim(bottom=picture.least)
    if picture.seen or len(picture.bands) > 1:
        ax.legend(frameon=False)
    ax.grid(alpha=0.3, axis="x" if lies else "y")
    return ax


def _height(levels: int) -> float:
    """Return the height of a picture of intervals one below the other, in inches."""
    return 1.0 + 0.22 * levels if levels <= MOST_NAMED else 5.0


def _draw_curves(picture: Picture, ax: Axes, colour: str | None) -> None:
    x, is_dense = np.asarray(picture.at), len(picture.at) > MOST_DOTS
    if x.dtype.kind not in "fiu":
        names, x = list(picture.at), np.arange(len(picture.at))
        few = max(1, len(names) // 20)
        ax.set_xticks(x[::few], names[::few], rotation=60)
    for name, band in picture.bands.items():
        seen = picture.seen.get(name)
        marker = "" if is_dense or seen is not None else "o"
        (line,) = ax.plot(x, band.middle, marker=marker, ms=3, color=colour, label=name or None)
        ax.fill_between(x, band.low, band.high, color=line.get_color(), alpha=0.2, lw=0)
        if seen is not None:
            own = {"color": OBSERVED, "label": picture.observed} if len(picture.seen) == 1 else {}
            style = "-" if is_dense else "o-"
            ax.plot(x, seen, style, ms=4, lw=1, **{"color": line.get_color()} | own)


def _draw_levels(picture: Picture, ax: Axes, colour: str | None) -> None:
    bands, number = picture.bands, len(picture.at)
    named, at = number <= MOST_NAMED, np.arange(number)
    size, width = (4, 2.0) if named else (1.5, 0.6)
    for (name, band), shift in zip(bands.items(), _shifts(len(bands)), strict=True):
        (points,) = ax.plot(band.middle, at + shift, "o", color=colour, ms=size, label=name or None)
        ax.hlines(at + shift, band.low, band.high, color=points.get_color(), lw=width)
    ends = np.concatenate([[*band.low, *band.high] for band in bands.values()])
    if ends.min() < 0 < ends.max():
        ax.axvline(0, color=INK, lw=0.8)
    ax.set_yticks(at if named else [], list(map(str, picture.at)) if named else [])
    ax.set_ylim(number, -1)


def _draw_bars(picture: Picture, ax: Axes, colour: str | None) -> None:
    ((name, band),), (seen,) = picture.bands.items(), picture.seen.values()
    at = np.arange(len(picture.at))
    ax.bar(at, seen, width=0.75, color=OBSERVED, alpha=0.3, label=picture.observed)
    ax.vlines(at, band.low, band.high, color=colour, lw=3, alpha=0.5)
    ax.plot(at, band.middle, "o", color=colour, ms=4, label=name)
    every_nth = max(1, len(at) // 12)
    ax.set_xticks(at[::every_nth], [str(name) for name in picture.at[::every_nth]])
