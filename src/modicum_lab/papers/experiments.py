"""Experiments: functions from a scale and a seed to tables and figures.

To add one, write a function in a module of the paper's folder, where it is found:

    @experiment("ewsg", "figure-1a", "KL divergence against data passes")
    def figure_1a(scale: Scale, seed: int) -> Result: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from modicum.errors import ModicumWarning, SettingError, suggestion

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

Scale = Literal["smoke", "laptop", "gpu", "paper"]
"""A smoke test of seconds; minutes on two cores; minutes on one GPU; the size of the paper."""

T = TypeVar("T")


def sized(sizes: Mapping[Scale, T], scale: Scale) -> T:
    """Return the size for a scale; without an entry, `gpu` has the paper's size.

    Examples
    --------
    >>> sized({"smoke": 10, "laptop": 100, "paper": 1_000}, "gpu")
    1000
    """
    return sizes[scale] if scale in sizes else sizes["paper"]


@dataclass(frozen=True)
class Table:
    """A table to be written as CSV and Markdown.

    Attributes
    ----------
    name
        Name of its files, such as "table-1".
    columns
        Headings; by convention those with the paper's printed figures end in "(paper)".
    rows
        One sequence per row, numbers or text; None for an empty cell.
    note
        What a reader must know: stand-in data, where and why figures differ from the paper's.
    stand_in
        Whether the data are simulated to resemble the paper's; the title says so.

    Examples
    --------
    >>> Table("table-1", ["method"], [["hmc"]], stand_in=True).title
    'Table 1, stand-in rows'
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    stand_in: bool = False

    @property
    def title(self) -> str:
        """Title of the table."""
        words = self.name.replace("-", " ").capitalize()
        return f"{words}, stand-in rows" if self.stand_in else words


Claim = tuple[str, object, object, bool | None]
"""A claim, our result, what the paper says, and whether they agree."""


def claims(rows: Sequence[Claim], note: str = "") -> Table:
    """Return a table of what the paper says in words, beside our results.

    Examples
    --------
    >>> claims([("EWSG is best", "SGHMC is", "yes", False)]).rows
    [('EWSG is best', 'SGHMC is', 'yes', False)]
    """
    columns = ["what the figure shows", "ours", "as printed (paper)", "agree"]
    plain = [(*row[:3], None if row[3] is None else bool(row[3])) for row in rows]
    return Table("in-words", columns, plain, note)


@dataclass(frozen=True)
class Figure:
    """A figure to be written as PNG and SVG.

    Attributes
    ----------
    name
        Name of its files.
    draw
        Function that returns the matplotlib figure; called once, when the figure is written.
    caption
        What the figure shows.
    """

    name: str
    draw: Callable[[], MatplotlibFigure]
    caption: str = ""


@dataclass
class Result:
    """The result of an experiment.

    Attributes
    ----------
    tables, figures
        Tables and figures to write.
    settings
        Data, methods and their settings, in words and numbers.
    ledger
        Row evaluations by method.
    notes
        Sentences for the page: what differs from the paper, and why if that is known.
    doubts
        By method, the warning about its draws that is part of the finding, and among the notes.
    """

    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    ledger: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubts: dict[str, ModicumWarning] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper."""

    paper: str
    name: str
    title: str
    run: Callable[[Scale, int], Result]


EXPERIMENTS: dict[str, dict[str, Experiment]] = {"hmc-ecs": {}, "ewsg": {}}
"""Experiments by paper and name; filled when the papers' modules are imported."""


def experiment(
    paper: str, name: str, title: str
) -> Callable[[Callable[[Scale, int], Result]], Callable[[Scale, int], Result]]:
    """Register a function as an experiment."""

    def register(run: Callable[[Scale, int], Result]) -> Callable[[Scale, int], Result]:
        EXPERIMENTS[paper][name] = Experiment(paper, name, title, run)
        return run

    return register


def find(paper: str, name: str | None = None) -> list[Experiment]:
    """Return the experiments of a paper, or the one of this name."""
    if paper not in EXPERIMENTS:
        raise SettingError(
            f"there is no paper {paper!r}{suggestion(paper, EXPERIMENTS)}; "
            f"the papers are {', '.join(EXPERIMENTS)}."
        )
    of_paper = EXPERIMENTS[paper]
    if name is None:
        return list(of_paper.values())
    if name not in of_paper:
        raise SettingError(
            f"{paper} has no experiment {name!r}{suggestion(name, of_paper)}; "
            f"there are {', '.join(of_paper)}."
        )
    return [of_paper[name]]


PAPERS = {
    "hmc-ecs": "Hamiltonian Monte Carlo with energy conserving subsampling",
    "ewsg": "Exponentially weighted stochastic gradient MCMC",
}
"""Papers and their titles. The experiments of "hmc-ecs" are in the folder `hmc_ecs`."""


def experiments_of(paper: str, name: str | None = None) -> list[Experiment]:
    """Import the modules of a paper; return its experiments, or the one of this name.

    Examples
    --------
    >>> [e.title for e in experiments_of("hmc-ecs", "figure-7")]
    ['Optimal step size and acceptance as the dimension grows']
    """
    if paper in EXPERIMENTS:
        for module in _modules(paper):
            import_module(module)
    return find(paper, name)


def _modules(paper: str) -> list[str]:
    """Return the modules of the paper's folder."""
    package = import_module(f"modicum_lab.papers.{paper.replace('-', '_')}")
    return [f"{package.__name__}.{module.name}" for module in iter_modules(package.__path__)]
