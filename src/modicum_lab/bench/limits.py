"""Ratios that must hold, computed from the measurements of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modicum_lab.bench.measurements import Measurements
from modicum_lab.bench.tables import Table

OURS, STORE = "modicum", "modicum-store"
USUAL = ("modicum-weighted", "modicum-fit", OURS)  # what users get who ask for nothing, if it ran
PEERS = ("numpyro-ecs-200", "numpyro-ecs-1300")
BROUGHT = "numpyro-ecs-hessian"
SIZES = ("higgs-20k", "higgs-100k", "higgs-1m", "higgs-10m")
HEADLINE = "higgs-1m"
MEMORY = 2.0  # GB


@dataclass(frozen=True)
class Limit:
    """One ratio: its measured value, and its lower or upper limit.

    Examples
    --------
    >>> Limit("flat in n", 1.1, 1.3, "at most").kept, Limit("ESS", 80.0, 100.0, "at least").kept
    (True, False)
    """

    what: str
    measured: float
    limit: float
    sense: str  # "at least" or "at most"
    remark: str = ""

    @property
    def kept(self) -> bool:
        """Whether it holds."""
        return (
            self.measured >= self.limit if self.sense == "at least" else self.measured <= self.limit
        )


def limits_of(results: Sequence[Measurements]) -> list[Limit]:
    """Return all ratios that can be computed from these results."""
    measured = {(m.problem, m.contender): m for m in results if m.runs and m.chains is None}
    return [*_against_numpyro(measured), *_flat(measured), *_disk(measured)]


Known = dict[tuple[str, str], Measurements]


def _against_numpyro(measured: Known) -> list[Limit]:
    """Compare with NumPyro on a million rows, or on the largest size that both ran."""
    for problem in (HEADLINE, *reversed(SIZES)):
        peers = [measured[problem, name] for name in PEERS if (problem, name) in measured]
        if (problem, OURS) in measured and peers:
            break
    else:
        return []
    ours = measured[problem, OURS]
    fastest = max(peer.middle("rate") for peer in peers)
    soonest = min(peer.middle("cold") for peer in peers)
    where = "the best of " + " and ".join(peer.contender for peer in peers)
    if problem != HEADLINE:
        where += "; the limit is for a million rows"
    brought = measured.get((problem, BROUGHT))
    also = ["", ""]
    if brought is not None:  # compare also with NumPyro given the Hessian as well as the mode
        ratios = (
            ours.middle("rate") / brought.middle("rate"),
            brought.middle("cold") / ours.middle("cold"),
        )
        also = [f"; {ratio:.3g} over {BROUGHT}" for ratio in ratios]
    return [
        Limit(f"ESS per second over NumPyro HMCECS, {problem}", ours.middle("rate") / fastest,
              100.0, "at least", where + also[0]),
        Limit(f"cold start, NumPyro HMCECS over Modicum, {problem}", soonest / ours.middle("cold"),
              8.0, "at least", where + also[1]),
    ]  # fmt: skip


def _flat(measured: Known) -> list[Limit]:
    sizes = [size for size in SIZES if (size, OURS) in measured]
    if len(sizes) < 2:
        return []
    first, last = (measured[size, OURS].middle("iteration") for size in (sizes[0], sizes[-1]))
    quantity = f"time of an iteration, {sizes[-1]} over {sizes[0]}"
    return [Limit(quantity, last / first, 1.3, "at most")]


def _disk(measured: Known) -> list[Limit]:
    """Compare disk with memory at the largest size; the huge table with a tenth in memory."""
    pairs = [(size, size) for size in SIZES] + [("plain-10m", "plain-100m")]
    pairs = [(a, b) for a, b in pairs if (a, OURS) in measured and (b, STORE) in measured]
    if not pairs:
        return []
    memory, store = measured[pairs[-1][0], OURS], measured[pairs[-1][1], STORE]
    speed = memory.middle("iteration") / store.middle("iteration")
    other = "" if store.problem == memory.problem else f" (memory: {memory.problem})"
    return [
        Limit(f"iterations per second, disk over memory, {store.problem}{other}", speed, 0.5,
              "at least"),
        Limit(f"memory of a run from disk in GB, {store.problem}", store.middle("memory") / 1e9,
              MEMORY, "at most", "without the file cache"),
    ]  # fmt: skip


def limits_table(limits: Sequence[Limit]) -> Table:
    """Tabulate the limits, and by how much a limit is missed."""
    rows: list[Sequence[Any]] = [
        [
            limit.what,
            limit.measured,
            f"{limit.sense} {limit.limit:g}",
            "yes" if limit.kept else "NO",
            _remark(limit),
        ]
        for limit in limits
    ]
    return Table("Ratios that must hold", ["ratio", "measured", "limit", "kept", ""], rows)


def _remark(limit: Limit) -> str:
    if limit.kept:
        return limit.remark
    short = f"{limit.measured / limit.limit:.2g} times the limit"
    return f"{short}; {limit.remark}" if limit.remark else short
