"""Plan and run the suite: which contenders run on which problem, and how often."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modicum.errors import DataError
from modicum_lab.bench.accuracy import KeptReference
from modicum_lab.bench.contenders import CONTENDERS, Contender, find_contender
from modicum_lab.bench.limits import HEADLINE, OURS, PEERS
from modicum_lab.bench.machine import cores, describe_machine, free_bytes, in_words
from modicum_lab.bench.measurements import Measurements, in_turns
from modicum_lab.bench.problems import PROBLEMS, ProblemData, find_problem
from modicum_lab.bench.runs import Budget
from modicum_lab.bench.tables_with_formulas import TABLES

LIGHT = (
    *("modicum-weighted", "modicum", "modicum-store", "modicum-signed", "modicum-sghmc"),
    *("laplace", "statsmodels", "glum"),
)
PROXY = ("numpyro-ecs-hessian",)  # the fastest of NumPyro's
STOCHASTIC = ("blackjax-sgld", "blackjax-sghmc")


def _takers(kind: str) -> list[str]:
    """Return the contenders that take problems of a kind."""
    return [name for name, each in CONTENDERS.items() if kind in each.kinds]


FULL = {
    "higgs-100k": tuple(_takers("columns")),
    "higgs-1m": tuple(_takers("columns")),
    "higgs-10m": (*LIGHT, "modicum-nuts", *PROXY, "numpyro-nuts", *STOCHASTIC),
    "covertype": (*LIGHT, *PROXY, "numpyro-nuts", *STOCHASTIC),
    "flights": (*LIGHT, *PROXY, "numpyro-nuts"),
    "claims": (*LIGHT, *PROXY, "numpyro-nuts"),
    "splines": (*LIGHT, *PROXY),
    **{p.name: tuple(_takers(p.kind)) for p in TABLES},
    "groups-1000": ("modicum-fit", "gpboost", "lme4", "glmmtmb"),  # NUTS would take an hour
    **{f"plain-d{d}": ("modicum",) for d in (10, 30, 100, 300)},
}
QUICK = {
    "higgs-20k": (
        *("modicum-weighted", "modicum", "modicum-store", "numpyro-ecs-200", "laplace"),
        *("statsmodels", "glum", "nutpie", "bambi", "pymc-advi"),
        *("blackjax-pathfinder", "blackjax-mclmc", "pdmp-zigzag"),
    ),
    "groups-100": ("modicum-fit", "gpboost", "lme4", "glmmtmb"),
    "smooths-20k": ("modicum-fit", "bam"),
    "higgs-100k": ("modicum", "modicum-store"),
}
HUGE = {"plain-10m": ("modicum",), "plain-100m": ("modicum-store",)}
CHAINS = (1, 2, 4, 8)
SLOW = 30.0  # seconds; slower contenders are repeated only if a limit depends on them


@dataclass(frozen=True)
class Plan:
    """Problems with their contenders, the number of repeats, and the budget.

    Attributes
    ----------
    contests
        Contenders by problem.
    budget, repeats
        Budget of each run, and number of runs.
    chains
        Numbers of chains to run Modicum with on the headline problem.
    """

    contests: dict[str, tuple[str, ...]]
    budget: Budget
    repeats: int
    chains: tuple[int, ...] = ()


@dataclass
class Results:
    """All measurements of the suite, ready for JSON."""

    machine: dict[str, Any]
    budget: dict[str, Any]
    problems: dict[str, dict[str, Any]] = field(default_factory=dict)
    references: dict[str, KeptReference] = field(default_factory=dict)
    measured: list[Measurements] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run_of(self, problem: str) -> str:
        """Return when, on what and how a problem was run."""
        about: str | None = self.problems[problem].get("run")
        return about or self.in_words()

    def in_words(self) -> str:
        """Return when, on what and how the last problems were run."""
        budget = self.budget
        return (
            f"{in_words(self.machine)}\n\nModicum ran {budget['chains']} chains of "
            f"{budget['draws']:,} draws; contenders that sample until time is up had "
            f"{budget['seconds']:g} s of sampling."
        )

    def by_run(self) -> dict[str, Results]:
        """Return the results of each run, by its description."""
        runs: dict[str, list[str]] = {}
        for name in self.problems:
            runs.setdefault(self.run_of(name), []).append(name)
        return {
            about: replace(
                self,
                problems={name: self.problems[name] for name in names},
                references={k: v for k, v in self.references.items() if k in names},
                measured=[m for m in self.measured if m.problem in names],
            )
            for about, names in runs.items()
        }

    def after(self, earlier: Results) -> Results:
        """Return these results, and earlier ones of problems that were not run again."""
        both = replace(earlier, machine=self.machine, budget=self.budget)
        both.problems = {
            name: about | {"run": whose.run_of(name)}
            for whose in (earlier, self)
            for name, about in whose.problems.items()
        }
        both.problems = {name: both.problems[name] for name in PROBLEMS if name in both.problems}
        both.references = earlier.references | self.references
        kept = [m for m in earlier.measured if m.problem not in self.problems]
        both.measured = [*kept, *self.measured]
        both.notes = list(dict.fromkeys([*earlier.notes, *self.notes]))
        return both

    def forget(self, problem: str) -> None:
        """Drop the measurements of a problem that was not finished."""
        self.problems.pop(problem, None)
        self.references.pop(problem, None)
        self.measured = [m for m in self.measured if m.problem != problem]


def plan(
    quick: bool = False,
    problems: Sequence[str] = (),
    peers: Sequence[str] = (),
    seconds: float | None = None,
    repeats: int | None = None,
    huge: bool = False,
) -> Plan:
    """Return the requested plan; Modicum's default runs on every problem, for comparison."""
    for name in peers:
        find_contender(name)
    contests = dict(QUICK if quick else FULL) | (HUGE if huge else {})
    if problems:
        usual = (*LIGHT, *PEERS) if not quick else QUICK["higgs-20k"]
        of_tables = {p.name: FULL[p.name] for p in TABLES}
        contests = of_tables | contests
        contests = {find_problem(name).name: contests.get(name, usual) for name in problems}
    if peers:
        names = {*peers, OURS, "modicum-fit"}
        of = {p: _takers(PROBLEMS[p].kind) for p in contests}
        contests = {p: tuple(c for c in of[p] if c in names) for p in contests}
    contests |= {p: ("modicum-store",) for p in contests if PROBLEMS[p].on_disk}
    budget = Budget(
        seconds=seconds or (5.0 if quick else 20.0),
        draws=2_000 if quick else 4_000,
        chains=min(cores(), 4),
        cores=cores(),
    )
    chains = CHAINS if HEADLINE in contests and not quick and not peers else ()
    return Plan(contests, budget, repeats or (1 if quick else 3), chains)


def run_suite(todo: Plan, say: Callable[[str], None]) -> Results:
    """Run the plan problem by problem; data are made in a temporary folder and removed again.

    After Ctrl-C it returns the problems that are finished.
    """
    results = Results(describe_machine(), vars(todo.budget).copy())
    absent = {
        name: CONTENDERS[name].missing() for group in todo.contests.values() for name in group
    }
    results.notes += [sentence for sentence in absent.values() if sentence]
    for number, (name, group) in enumerate(todo.contests.items(), 1):
        say(f"[{number}/{len(todo.contests)}] {PROBLEMS[name].title}")
        contenders = [CONTENDERS[each] for each in group if absent[each] is None]
        try:
            _problem(todo, name, contenders, results, say)
        except KeyboardInterrupt:
            stopped = f"Stopped by hand: {number - 1} of {len(todo.contests)} problems were run."
            results.forget(name)
            results.notes.append(stopped)
            say(stopped)
            break
    return results


def _problem(
    todo: Plan,
    name: str,
    contenders: Sequence[Contender],
    results: Results,
    say: Callable[[str], None],
) -> None:
    """Make one problem, and run its contenders."""
    with tempfile.TemporaryDirectory(prefix="modicum-bench-") as folder:
        try:
            reference = PROBLEMS[name].write(Path(folder))
        except DataError as fault:
            results.notes.append(f"{name}: {fault}")
            say(f"  left out: {fault}")
            return
        if reference is not None:
            results.references[name] = reference
        _contest(todo, name, contenders, Path(folder), results, say)


def _contest(
    todo: Plan,
    name: str,
    contenders: Sequence[Contender],
    folder: Path,
    results: Results,
    say: Callable[[str], None],
) -> None:
    data = ProblemData(folder)
    results.problems[name] = data.description
    feasible, free = [], free_bytes()
    for contender in contenders:
        reason = contender.too_large(len(data), data.size, free)
        if reason is None:
            feasible.append(contender)
        else:
            results.measured.append(Measurements(name, contender.name, reason=reason))
            say(f"  {contender.title}: left out, {reason}")

    def repeats(measurements: Measurements) -> int:
        first = measurements.runs[0]
        matters = name == HEADLINE and measurements.contender in (OURS, *PEERS)
        return todo.repeats if matters or first.before + first.sampling < SLOW else 1

    results.measured += in_turns(folder, name, feasible, todo.budget, repeats, say)
    if name == HEADLINE:
        for number in todo.chains:
            say(f"  {number} chains:")
            budget = replace(todo.budget, chains=number)
            own = [CONTENDERS[OURS]]
            results.measured += in_turns(folder, name, own, budget, lambda _: 1, say, number)
