"""How many functions of how many files a fit runs, by room, and how many a question runs.

Counted are functions and methods of the package, by file and qualified name, each once, in all
threads; comprehensions and lambdas are not.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import modicum as mo
from modicum_lab.bench.process import in_process
from modicum_lab.bench.tables import Table

HOME = Path(inspect.getfile(mo)).parent
Functions: TypeAlias = list[tuple[str, str]]  # each as its file and its name
FORMULA, ROWS, FEW = "late ~ carrier + hour + distance", 100_000, 20_000
BESIDE = "the doors, and what everybody uses"  # files that are in no room


@contextmanager
def walked() -> Iterator[set[tuple[str, str]]]:
    """Collect the functions that run, each as its file and its name."""
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and "<" not in code.co_name:
            found.add((code.co_filename, code.co_qualname))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
        inside = {(file, name) for file, name in found if Path(file).is_relative_to(HOME)}
        found.clear()
        found |= inside


def room(file: str) -> str:
    """Return the room of a file.

    Examples
    --------
    >>> room(str(HOME / "rows" / "formula" / "parsing.py"))
    'rows/'
    """
    folder, *inside = Path(file).relative_to(HOME).parts
    return f"{folder}/" if inside else BESIDE


def run(quick: bool = False) -> list[Table]:
    """Walk through fits of flights by default and by HMC-ECS, each in a fresh interpreter."""
    rows = FEW if quick else ROWS
    walks, note = in_process(__name__, "fit_and_ask", "auto", rows)
    others, _ = in_process(__name__, "fit_and_ask", "hmc-ecs", rows)
    fit = walks.pop("the fit")
    return [by_room({"the fit": fit, "by HMC-ECS": others["the fit"], **walks}, note)]


def fit_and_ask(method: str, rows: int) -> tuple[dict[str, Functions], str]:
    """Return the functions of a fit and of two questions to it, and what it read."""
    flights = mo.datasets.frame("flights").dropna(subset=["arr_delay"]).head(rows)
    flights["late"] = flights["arr_delay"] > 30
    posts: list[mo.Posterior] = []
    walks: dict[str, Callable[[], object]] = {
        "the fit": lambda: posts.append(
            mo.fit(FORMULA, flights, method=method, random_seed=1, progressbar=False)
        ),
        "`post.summary()`": lambda: posts[0].summary(),
        "`post.predict(table)`": lambda: posts[0].predict(flights),
    }
    found: dict[str, Functions] = {}
    for name, walk in walks.items():
        with warnings.catch_warnings(), walked() as functions:
            warnings.simplefilter("ignore", mo.ModicumWarning)
            walk()
        found[name] = sorted(functions)
    return found, f"{str(posts[0].ledger).splitlines()[0]} flights."


def by_room(walks: dict[str, Functions], note: str) -> Table:
    """Count functions, and files in brackets, by room; rooms where most run come first."""
    by = {name: Counter(room(file) for file, _ in found) for name, found in walks.items()}
    files = {
        name: Counter(room(file) for file in {file for file, _ in found})
        for name, found in walks.items()
    }

    def cell(name: str, where: str) -> str:
        return f"{by[name][where]} ({files[name][where]})" if by[name][where] else ""

    rooms = sorted(set().union(*by.values()), key=lambda where: -by[next(iter(by))][where])
    rows: list[list[object]] = [[where, *(cell(name, where) for name in by)] for where in rooms]
    totals = (f"{by[name].total()} ({files[name].total()})" for name in by)
    return Table(
        "Functions, and in brackets files, that a fit and questions run",
        ["room", *walks],
        [*rows, ["all", *totals]],
        note,
    )
