"""Progress display.

Everything that takes time is a *phase* with a name. Running phases are shown as bars on standard
error in a terminal, and as text under the cell in a notebook; in a log file, each phase writes one
line when it begins. For another display, pass a function as `progressbar`: it is called with a
`ProgressEvent` at every update.

Lines go to the logger "modicum" at level INFO if the program configures logging, and to standard
error otherwise.
"""

from __future__ import annotations

import html
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

PATIENCE = 2.0  # seconds before a pass is shown
BETWEEN_UPDATES = 0.2  # seconds between updates in a notebook, which travel over a network
BAR = 24  # width of a full bar, in characters
logger = logging.getLogger("modicum")


@dataclass(frozen=True)
class ProgressEvent:
    """The state of a phase, as a callback receives it.

    Attributes
    ----------
    phase
        "mode", "compile", "warm-up", "sampling", or the name of a pass.
    done, total
        Amount done (iterations, rows) and its total; `total` is None where it is unknown.
    detail
        The text beside a bar, such as "accept 0.83 · 1.2M rows touched".

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> rows = mo.Rows(x=rng.normal(size=(200, 2)), y=rng.random(200) < 0.5)
    >>> heard = []
    >>> post = mo.sample(mo.models.Logistic(), rows, method="hmc", draws=50, tune=50, chains=1,
    ...                  random_seed=1, progressbar=heard.append)
    >>> {event.phase for event in heard} >= {"mode", "compile", "warm-up", "sampling", "checks"}
    True
    >>> [event.done for event in heard if event.phase == "sampling"][-1]
    50
    """

    phase: str
    done: int = 0
    total: int | None = None
    detail: str = ""


Progressbar: TypeAlias = bool | Callable[[ProgressEvent], None]


class Phase:
    """A running phase; `update` and `advance` report its progress."""

    def __init__(
        self,
        name: str,
        total: int | None = None,
        progressbar: Progressbar = True,
        unit: str = "",
        patience: float = 0.0,
        detail: str = "",
    ) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done, self.detail = 0, detail
        self._show = _shown_by(progressbar)
        self.began = time.monotonic()
        self._due = self.began + patience
        self._begun = False

    def update(self, done: int, detail: str | None = None) -> None:
        """Report that `done` of `total` are done."""
        self.done = done if self.total is None else min(done, self.total)
        self.detail = self.detail if detail is None else detail
        if time.monotonic() >= self._due:
            if not self._begun:
                self._begun = True
                self._show.begin(self)
            self._show.update(self)

    def advance(self, count: int) -> None:
        """Report that `count` more are done."""
        self.update(self.done + count)

    def end(self) -> None:
        """Report that the phase is over."""
        if self._begun:
            self._show.end(self)
            self._begun = False


@contextmanager
def phase(
    name: str,
    total: int | None = None,
    progressbar: Progressbar = True,
    unit: str = "",
    patience: float = 0.0,
) -> Iterator[Phase]:
    """Show a phase while the block runs.

    Parameters
    ----------
    name
        Its name.
    total
        Total amount to do, if known.
    progressbar
        True, False, or a function of a `ProgressEvent`.
    unit
        What is counted, such as "rows".
    patience
        Seconds before anything is shown; shorter phases are never shown.
    """
    going = Phase(name, total, progressbar, unit, patience)
    if not patience:
        going.update(0)
    try:
        yield going
    finally:
        going.end()


def in_short(number: float) -> str:
    """Return a large number in few characters, such as 1.5M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Format a duration in a suitable unit.

    Examples
    --------
    >>> [duration(seconds) for seconds in (0.2, 4.4, 36, 200, 9000, 400_000)]
    ['0.2 s', '4 s', '40 s', '3 minutes', '2 hours', '5 days']
    """
    if seconds < 90:  # one digit, the accuracy of the estimate
        return f"{float(f'{seconds:.1g}'):g} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def say(sentence: str, progressbar: Progressbar) -> None:
    """Tell the user about something done unasked; a callback receives it as a phase."""
    if callable(progressbar):
        progressbar(ProgressEvent(sentence))
    elif progressbar:
        _write_line(sentence)


class After:
    """A callback for runs that are short as a rule: it writes lines, but not for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds
        self._heard: dict[str, bool] = {}  # lines, and whether they are written

    def __call__(self, event: ProgressEvent) -> None:
        """Write a line for every phase that began."""
        self._heard.setdefault(event.phase, False)
        if time.monotonic() >= self._due:
            for line in [line for line, written in self._heard.items() if not written]:
                self._heard[line] = True
                _write_line(line)


def _write_line(line: str) -> None:
    """Write a line to the log if there is one, else to standard error."""
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info("%s", line)
    else:
        sys.stderr.write(f"modicum: {line}\n")
        sys.stderr.flush()


# Displays ---------------------------------------------------------------------------------


class _Display:
    """Shows phases; this one shows nothing."""

    def begin(self, phase: Phase) -> None:
        """Show a new phase; an update follows."""

    def update(self, phase: Phase) -> None:
        """Show what is done."""

    def end(self, phase: Phase) -> None:
        """Show that the phase is over; its last update was complete."""


class _Callback(_Display):
    """Calls the user's function."""

    def __init__(self, call: Callable[[ProgressEvent], None]) -> None:
        self.call = call

    def update(self, phase: Phase) -> None:
        self.call(ProgressEvent(phase.name, phase.done, phase.total, phase.detail))


class _Lines(_Display):
    """Writes one line at the start of each phase, for a log file."""

    def begin(self, phase: Phase) -> None:
        total = "" if phase.total is None else f", {phase.total:,} {phase.unit or 'iterations'}"
        detail = f" ({phase.detail})" if phase.detail else ""
        _write_line(f"{phase.name}{total}{detail}")


class _Live(_Display):
    """Shows all running phases of the process as lines of one text, which is kept up to date."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._going: dict[int, Phase] = {}
        self._over: list[str] = []
        self._shown: Any = None  # what shows the text: of IPython or rich

    def begin(self, phase: Phase) -> None:
        logger.debug("%s", phase.name)
        with self._lock:
            self._going[id(phase)] = phase
            self._draw()

    def end(self, phase: Phase) -> None:
        with self._lock:
            self._going.pop(id(phase), None)
            if phase.total is not None and not phase.unit:  # it counts iterations
                self._over.append(self._line(phase))
            self._draw()
            if not self._going:
                self._close()
                self._over, self._shown = [], None

    def _text(self) -> str:
        return "\n".join([*self._over, *map(self._line, list(self._going.values()))])

    def _line(self, phase: Phase) -> str:
        """Render a phase as one line of text, with a bar if its total is known."""
        if phase.total is None:
            count = f"{phase.done:,}" if phase.done else ""
        else:
            full = round(BAR * phase.done / max(phase.total, 1))
            count = f"{'█' * full}{'░' * (BAR - full)} {phase.done:,}/{phase.total:,}"
        parts = (f"{phase.name:8}", count, phase.unit, phase.detail)
        return " ".join(part for part in parts if part)

    def _draw(self) -> None:
        """Show the text as it is now."""
        raise NotImplementedError

    def _close(self) -> None:
        """Leave the text as it is."""


class _Terminal(_Live):
    """Shows the text, with a clock in each line, at the bottom of a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def _line(self, phase: Phase) -> str:
        seconds = time.monotonic() - phase.began
        clock = str(timedelta(seconds=int(seconds)))
        if phase.total and 0 < phase.done < phase.total:
            clock += f", {duration(seconds * (phase.total / phase.done - 1))} to go"
        return f"{super()._line(phase)}  {clock}"

    def _draw(self) -> None:
        from rich.live import Live
        from rich.text import Text

        if self._shown is None:
            text = partial(Text, no_wrap=True, overflow="ellipsis")
            self._shown = Live(console=self.console, get_renderable=lambda: text(self._text()))
            self._shown.start()
        self._shown.refresh()  # also of a phase that ends before the next tick of the clock

    def _close(self) -> None:
        self._shown.stop()


class _Notebook(_Live):
    """Shows the text under a notebook's cell, which needs no widgets."""

    _drawn = 0.0

    def update(self, phase: Phase) -> None:
        with self._lock:
            if time.monotonic() - self._drawn > BETWEEN_UPDATES:
                self._draw()

    def _draw(self) -> None:
        text = self._text()
        content = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        if self._shown is None:
            display = import_module("IPython.display").display  # installed in every notebook
            self._shown = display(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)
        self._drawn = time.monotonic()


_LINES = _Lines()
_NOTEBOOK = _Notebook()


def _shown_by(progressbar: Progressbar) -> _Display:
    if callable(progressbar):
        return _Callback(progressbar)
    if not progressbar:
        return _Display()
    bars = _bars()
    if bars.console.is_jupyter:
        return _NOTEBOOK
    return bars if bars.console.is_terminal else _LINES


@cache
def _bars() -> _Terminal:
    """Return this process's only terminal; its console looks up `sys.stderr` at each write."""
    from rich.console import Console

    return _Terminal(Console(stderr=True))
