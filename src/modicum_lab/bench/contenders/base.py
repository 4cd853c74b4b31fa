"""Contenders, and how they are looked up by name."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from modicum.errors import SettingError, suggestion
from modicum_lab.bench.problems import ProblemData
from modicum_lab.bench.runs import Budget, RunResult

Run = Callable[[ProblemData, Budget], RunResult]


@dataclass(frozen=True)
class Contender:
    """A sampler with its settings.

    Attributes
    ----------
    name
        Name for `--peer`.
    title
        Name in tables.
    run
        Function of a problem and a budget that returns the result of a run.
    packages
        Names of the packages that must be installed; those of R begin with "R:".
    copies
        About how many copies of the table in float64 it holds at its peak.
    kinds
        What problems it takes, by their kind: "columns", "groups" or "smooths".
    """

    name: str
    title: str
    run: Run
    packages: tuple[str, ...]
    copies: float
    kinds: tuple[str, ...] = ("columns",)

    @property
    def ours(self) -> bool:
        """Whether it is Modicum itself."""
        return self.name.startswith("modicum")

    @property
    def absent(self) -> str:
        """Names of its packages that are not installed; empty if all are."""
        return ", ".join(name for name in self.packages if not _installed(name))

    def missing(self) -> str | None:
        """Return a sentence if a package is not installed."""
        if not self.absent:
            return None
        how = "pip install 'modicum[peers]'"
        if R in self.absent:
            names = [name.removeprefix(R).lower() for name in self.packages]
            how = "on Debian: apt-get install " + " ".join(f"r-cran-{name}" for name in names)
        return f"{self.title}: not installed: {self.absent} ({how})."

    def too_large(self, rows: int, size: int, free: int) -> str | None:
        """Return a sentence if it would need more memory than is free."""
        needed = 8 * self.copies * rows * size
        if needed < 0.8 * free:
            return None
        return (
            f"it would need about {needed / 1e9:,.0f} GB of memory, and {free / 1e9:,.0f} are free"
        )


R = "R:"


@cache
def _installed(name: str) -> bool:
    """Return whether a package of Python or R is installed."""
    if not name.startswith(R):
        return find_spec(name) is not None
    rscript = shutil.which("Rscript")
    if rscript is None:
        return False
    asked = [rscript, "-e", f"find.package({name.removeprefix(R)!r})"]
    return subprocess.run(asked, capture_output=True).returncode == 0


CONTENDERS: dict[str, Contender] = {}
"""Contenders by name, in the order of the tables; filled by the modules of this folder."""


def contender(
    name: str, title: str, packages: str, copies: float = 1.0, kinds: str = "columns"
) -> Callable[[Run], Run]:
    """Register a function as a contender."""

    def register(run: Run) -> Run:
        about = tuple(packages.split()), copies, tuple(kinds.split())
        CONTENDERS[name] = Contender(name, title, run, *about)
        return run

    return register


def find_contender(name: str, candidates: Iterable[str] | None = None) -> Contender:
    """Return the contender of this name."""
    names = list(CONTENDERS if candidates is None else candidates)
    if name not in names:
        raise SettingError(
            f"there is no peer {name!r}{suggestion(name, names)}; there are {', '.join(names)}."
        )
    return CONTENDERS[name]
