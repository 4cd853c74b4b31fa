"""All runs of a contender on a problem, each in a fresh process; contenders alternate."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from modicum_lab.bench.contenders import CONTENDERS, Contender
from modicum_lab.bench.contenders.base import R
from modicum_lab.bench.process import ChildError, Peak, in_process
from modicum_lab.bench.runs import Budget, Infeasible, RunResult

Say = Callable[[str], None]
IMPORTS = {"numpyro": "numpyro.infer", "statsmodels": "statsmodels.api"}


@dataclass
class Measurements:
    """All runs of a contender on a problem, or why there are none."""

    problem: str
    contender: str
    chains: int | None = None  # set only where the number of chains is varied
    runs: list[RunResult] = field(default_factory=list)
    reason: str | None = None

    def middle(self, quantity: str) -> float:
        """Return the median of a property of the runs."""
        return float(median(getattr(run, quantity) for run in self.runs))

    def spread(self, quantity: str) -> float:
        """Return (largest - least) / median of the runs; nan for a single run."""
        values = [getattr(run, quantity) for run in self.runs]
        return (max(values) - min(values)) / median(values) if len(values) > 1 else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Measurements:
        """Undo `to_dict`."""
        return cls(**(saved | {"runs": [RunResult.from_dict(run) for run in saved["runs"]]}))


def run_child(folder: str, name: str, budget: dict[str, Any]) -> dict[str, Any]:
    """Run a contender in this fresh process; the clock starts after imports and loading."""
    import warnings

    import arviz_stats.base  # noqa: F401 - takes two seconds, which no contender is charged
    import jax

    from modicum_lab.bench.problems import ProblemData

    warnings.simplefilter("ignore")
    contender, problem = CONTENDERS[name], ProblemData(folder)
    for package in contender.packages:
        if not package.startswith(R):
            importlib.import_module(IMPORTS.get(package, package))
    jax.devices()
    if name != "modicum-store":
        problem.load()
    with Peak() as peak:
        try:
            result = contender.run(problem, Budget(**budget))
        except Infeasible as reason:
            return {"reason": str(reason)}
    result.memory = result.memory or peak.bytes  # R's processes have measured their own
    return result.to_dict()


def in_turns(
    folder: Path,
    problem: str,
    contenders: Sequence[Contender],
    budget: Budget,
    repeats: Callable[[Measurements], int],
    say: Say,
    chains: int | None = None,
) -> list[Measurements]:
    """Run all contenders one after the other, and repeat the whole round as often as planned."""
    measured = [Measurements(problem, contender.name, chains) for contender in contenders]
    turn = 0
    while waiting := [m for m in measured if m.reason is None and len(m.runs) == turn]:
        for measurements in waiting:
            if turn == 0 or turn < repeats(measurements):
                _run(folder, measurements, budget, turn, say)
        turn += 1
    return measured


def _run(folder: Path, measurements: Measurements, budget: Budget, turn: int, say: Say) -> None:
    name = measurements.contender
    title = CONTENDERS[name].title
    own = asdict(budget) | {"seed": budget.seed + turn}
    limit = 600 + 20 * budget.seconds  # a peer that hangs must not stop the others
    try:
        answer = in_process(__name__, "run_child", str(folder), name, own, timeout=limit)
    except ChildError as fault:
        answer = {"reason": f"it failed: {fault}"}
    if "reason" in answer:
        if not measurements.runs:
            measurements.reason = answer["reason"]
        say(f"  {title}: left out, {answer['reason']}")
        return
    result = RunResult.from_dict(answer)
    measurements.runs.append(result)
    say(
        f"  {title}: {result.rate:,.1f} effective draws per second, cold start {result.cold:,.1f} s"
    )
