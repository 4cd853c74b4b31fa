"""Running contenders, each in a fresh process, in turns."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from modicum_lab.bench.contenders import CONTENDERS, Contender
from modicum_lab.bench.process import ChildError, in_process
from modicum_lab.bench.run_result import Budget, Found, LeftOut

__all__ = ["Measured", "in_turns", "run_child"]

Say = Callable[[str], None]
IMPORTS = {"numpyro": ("numpyro.infer",), "statsmodels": ("statsmodels.api",)}


@dataclass
class Measured:
    """All runs of a contender on a problem, or why there are none."""

    problem: str
    contender: str
    chains: int | None = None  # where their number is what is studied
    runs: list[Found] = field(default_factory=list)
    left_out: str | None = None

    def middle(self, what: str) -> float:
        """Median of a property of the runs."""
        return float(median(getattr(run, what) for run in self.runs))

    def spread(self, what: str) -> float:
        """(Largest - least) / median of the runs; nan of a single one."""
        values = [getattr(run, what) for run in self.runs]
        return (max(values) - min(values)) / median(values) if len(values) > 1 else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Plain types only."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Measured:
        """Undo `to_dict`."""
        return cls(**(told | {"runs": [Found.from_dict(run) for run in told["runs"]]}))


def run_child(folder: str, name: str, budget: dict[str, Any]) -> dict[str, Any]:
    """Run a contender here, in a process of its own; the clock starts after imports and loading."""
    import warnings

    import arviz_stats.base  # noqa: F401 - two seconds that are no contender's
    import jax

    from modicum_lab.bench.memory import Peak
    from modicum_lab.bench.problem_data import Given

    warnings.simplefilter("ignore")
    chosen, given = CONTENDERS[name], Given(folder)
    for module in IMPORTS.get(chosen.package, (chosen.package,)):
        importlib.import_module(module)
    jax.devices()
    if name != "modicum-store":
        given.load()
    with Peak() as peak:
        try:
            found = chosen.run(given, Budget(**budget))
        except LeftOut as reason:
            return {"left_out": str(reason)}
    found.memory = peak.bytes
    return found.to_dict()


def in_turns(
    folder: Path,
    problem: str,
    contenders: Sequence[Contender],
    budget: Budget,
    repeats: Callable[[Measured], int],
    say: Say,
    chains: int | None = None,
) -> list[Measured]:
    """Run all contenders, one after the other, then all again, as often as each is to be run."""
    measured = [Measured(problem, one.name, chains) for one in contenders]
    turn = 0
    while waiting := [m for m in measured if m.left_out is None and len(m.runs) == turn]:
        for one in waiting:
            if turn == 0 or turn < repeats(one):
                _run(folder, one, budget, turn, say)
        turn += 1
    return measured


def _run(folder: Path, one: Measured, budget: Budget, turn: int, say: Say) -> None:
    title = CONTENDERS[one.contender].title
    own = asdict(budget) | {"seed": budget.seed + turn}
    limit = 600 + 20 * budget.seconds  # a peer that hangs must not take the others with it
    try:
        told = in_process(__name__, "run_child", str(folder), one.contender, own, timeout=limit)
    except ChildError as fault:
        told = {"left_out": f"it failed: {fault}"}
    if "left_out" in told:
        if not one.runs:
            one.left_out = told["left_out"]
        say(f"  {title}: left out, {told['left_out']}")
        return
    found = Found.from_dict(told)
    one.runs.append(found)
    say(f"  {title}: {found.rate:,.1f} effective draws a second, cold start {found.cold:,.1f} s")
