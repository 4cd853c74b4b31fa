"""One chain to thousands on an accelerator: HMC-ECS, signed, SGHMC, and HMC on all rows.

    python -m modicum_lab.bench.parts.gpu [--rows 10500000] [--chains 1 32 1024 8192] [--draws 1000]
    python -m modicum_lab.bench.parts.gpu --methods perturbed fused --tables made-up flights
    python -m modicum_lab.bench.parts.gpu --rows 100000 --chains 1 8 --draws 200  # on a CPU

HMC-ECS runs twice, iteration by iteration ("perturbed") and, if possible, with a whole chain in one
program ("fused"); the column "path" says which it was. On the flights (d = 151) only these two run.

Every chain's means and sds are compared with those of all chains together, and these with a
reference that reads every row. The shares of the card's limits compare the time of an iteration
with what memory and arithmetic would allow: a row evaluation reads d numbers and does 4 d + 30
operations (a product forward, one back, a link function). `make bench` does not run this.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import ndtri

from modicum import (
    HMC,
    HMCECS,
    SGHMCCV,
    ECSExpert,
    ModicumWarning,
    Posterior,
    SignedHMCECS,
    sample,
)
from modicum.diagnostics import batch_means_inefficiency
from modicum.methods import Method
from modicum_lab.bench import figures
from modicum_lab.bench.accuracy import KeptReference, by_importance, of_table
from modicum_lab.bench.runs import flat_scalars
from modicum_lab.bench.stand_ins import plain
from modicum_lab.bench.tables import Table, verdict
from modicum_lab.datasets import Dataset, flights


class Kind(NamedTuple):
    """A method's class, and its thinning interval."""

    method: Callable[..., Method]
    thin: int = 1


def _ecs(method: Callable[..., Method], **expert: Any) -> Method:
    return method(expert=ECSExpert(**expert))


METHODS = {
    "perturbed": Kind(partial(_ecs, HMCECS, fused=False)),
    "fused": Kind(partial(_ecs, HMCECS)),
    "signed": Kind(partial(_ecs, SignedHMCECS)),
    "sghmc-cv": Kind(SGHMCCV, 10),
}
BOTH_PATHS = ("perturbed", "fused")
TABLES = ("made-up", "flights")
ALL_ROWS = "hmc, all rows"
GOAL = 1_500_000  # effective draws per second, perturbed, with 1,024 chains or more
MANY = 256  # with at least this many chains, their spread gives the effective draws
TOGETHER = 256  # chains whose moments are computed at once
COLUMNS = [
    "method",
    "precision",
    "chains",
    "path",
    "ESS per second",
    "us per iteration",
    "s in all",
    "mean off, sd",
    "sd off, %",
    "worst chain, se",
    "chains right",
    "bandwidth, %",
    "arithmetic, %",
]


@dataclass(frozen=True)
class Card:
    """Limits of the accelerator: TB/s, and TFLOP/s in either precision."""

    bandwidth: float
    float64: float
    float32: float


@dataclass(frozen=True)
class Case:
    """One line of the report: a method with its settings, and how long it runs."""

    name: str
    method: Method
    precision: str
    chains: int
    draws: int
    tune: int
    thin: int = 1

    def run(self, table: Dataset) -> tuple[Posterior, float]:
        """Sample; return the posterior and the total seconds."""
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModicumWarning)  # they are printed with the figures
            post = sample(
                table.model,
                table.rows,
                method=self.method,
                draws=self.draws,
                tune=self.tune,
                thin=self.thin,
                chains=self.chains,
                random_seed=1,
                progressbar=False,
                parallel="stacked",
            )
        return post, time.perf_counter() - started


class Moments(NamedTuple):
    """Mean and sd of every parameter, by chain (chain, d) or over all chains (d,)."""

    mean: np.ndarray
    sd: np.ndarray

    @classmethod
    def of_sums(cls, first: np.ndarray, second: np.ndarray, weight: np.ndarray) -> Moments:
        """Compute moments from weighted sums of x and x^2, and the sum of the weights."""
        mean = first / weight
        with np.errstate(invalid="ignore"):  # signs can make a short chain's variance negative
            return cls(mean, np.sqrt(second / weight - mean**2))


def moments(post: Posterior) -> tuple[Moments, Moments]:
    """Return the moments of each chain, and of all chains together."""
    parts = []
    for start in range(0, post.chains, TOGETHER):
        block = slice(start, start + TOGETHER)
        x = flat_scalars({name: draws[block] for name, draws in post.draws.items()})
        w = np.ones(x.shape[:2]) if post.weights is None else post.weights[block]
        w = w[..., None]
        parts.append(((w * x).sum(1), (w * x**2).sum(1), w.sum(1)))
    sums = [np.concatenate(group) for group in zip(*parts, strict=True)]
    return Moments.of_sums(*sums), Moments.of_sums(*(each.sum(0) for each in sums))


def effective(post: Posterior, means: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return the effective draws of all chains together, one number per parameter.

    With many independent chains, Var(chain mean) = sd^2 / ESS of a chain, for any autocorrelation.
    """
    if post.chains >= MANY:
        return np.asarray(post.chains * sd**2 / means.var(0, ddof=1))
    x = flat_scalars(post.draws)
    total = x.shape[0] * x.shape[1]
    if post.weights is None:
        return np.asarray(total / batch_means_inefficiency(x))
    w = (post.weights / post.weights.mean())[..., None]
    series = w * (x - (w * x).mean((0, 1)))  # its average has the error of the weighted mean
    return np.asarray(total * sd**2 / (series.var((0, 1)) * batch_means_inefficiency(series)))


def worst_chain(by_chain: Moments, together: Moments, ess: np.ndarray) -> tuple[float, int]:
    """Return the largest distance of a chain's mean or sd from all chains', in standard errors.

    Also return how many distances were compared.
    """
    number = len(by_chain.mean)
    error = together.sd / np.sqrt(ess / number)
    off = np.abs(by_chain.mean - together.mean) / error
    if number < MANY:
        return float(off.max()), off.size
    spread = by_chain.sd / together.sd
    off_sd = np.abs(spread - np.nanmean(spread, axis=0)) / np.nanstd(spread, axis=0)
    return float(np.nanmax([off.max(), np.nanmax(off_sd)])), 2 * off.size


def shares(post: Posterior, seconds: float, case: Case, card: Card) -> tuple[float, float]:
    """Return the least time of a draw, by bytes and by operations, over the time it took."""
    d = post.draws["beta"].shape[2] + 1
    double = case.precision == "float64"
    rows = float(post.stats["rows_touched"].mean())  # of an iteration of a chain
    # on all rows, one read of a row (in float32) serves all chains
    bytes_read = rows * d * (4 if case.name == ALL_ROWS else (8 if double else 4) * post.chains)
    operations = rows * post.chains * (4 * d + 30)
    peak = card.float64 if double else card.float32
    return bytes_read / (card.bandwidth * 1e12) / seconds, operations / (peak * 1e12) / seconds


def line(case: Case, table: Dataset, reference: KeptReference, card: Card) -> list[Any]:
    """Return one row of the report, and print a record of it as JSON."""
    post, total = case.run(table)
    by_chain, together = moments(post)
    ess = effective(post, by_chain.mean, together.sd)
    worst, compared = worst_chain(by_chain, together, ess)
    # a wider bound allows for the t-like tails of an estimated error
    right = worst < 1.5 * -ndtri(1e-3 / (2 * compared))
    sampling = float(post.settings["sampling_seconds"])
    unit = np.array(reference.sd)
    mean_off = float(np.max(np.abs(together.mean - reference.mean) / unit))
    sd_off = float(np.max(np.abs(together.sd / unit - 1)))
    per_draw = sampling / case.draws
    bandwidth, arithmetic = shares(post, per_draw, case, card)
    rate = float(ess.min()) / sampling
    _print_record(case, post, {"rate": rate, "mean off": mean_off, "sd off": sd_off})
    return [
        *(case.name, case.precision, case.chains, _path(post), rate),
        *(1e6 * per_draw / case.thin, total),
        *(mean_off, 100 * sd_off, worst, "yes" if right else "NO"),
        *(100 * bandwidth, 100 * arithmetic),
    ]


def _path(post: Posterior) -> str:
    """Return whether iterations were fused; "plain" if that is not recorded."""
    return str(post.tuning.get("path", {}).get("value", "plain"))


def _print_record(case: Case, post: Posterior, figures: dict[str, float]) -> None:
    choices = {
        name: choice["value"]
        for name, choice in post.tuning.items()
        if isinstance(choice, dict) and "value" in choice
    }
    record = {
        "method": case.name,
        "chains": case.chains,
        "precision": case.precision,
        **figures,
        "path": _path(post),
        "tuning": choices,
        "warnings": [{"code": doubt.code, "text": str(doubt)} for doubt in post.warnings],
    }
    print(json.dumps(record, default=str), flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(prog="python -m modicum_lab.bench.parts.gpu")
    arguments.add_argument("--rows", type=int, default=10_500_000)
    arguments.add_argument("--chains", type=int, nargs="+", default=[1, 32, 1024, 8192])
    arguments.add_argument("--hmc-chains", type=int, nargs="*", default=[1, 32])
    arguments.add_argument("--draws", type=int, default=1000)
    arguments.add_argument("--hmc-draws", type=int, default=200)
    arguments.add_argument("--tune", type=int, default=200)
    arguments.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    arguments.add_argument("--tables", nargs="+", default=["made-up"], choices=TABLES)
    arguments.add_argument("--precision", nargs="+", default=["float64", "float32"])
    arguments.add_argument("--docs", metavar="NAME", help="keep figures in docs/ under this name")
    arguments.add_argument("--bandwidth", type=float, default=4.8, help="of the card, TB/s")
    arguments.add_argument("--float64", type=float, default=34.0, help="of the card, TFLOP/s")
    arguments.add_argument("--float32", type=float, default=67.0, help="of the card, TFLOP/s")
    return arguments


def cases(arguments: argparse.Namespace, table: str = "made-up") -> list[Case]:
    """Return the cases of one table that the command line requests."""
    own = [name for name in arguments.methods if table == "made-up" or name in BOTH_PATHS]
    subsampled = [
        Case(
            *(name, METHODS[name].method(precision=precision), precision, chains),
            *(arguments.draws, arguments.tune, METHODS[name].thin),
        )
        for name in own
        for precision in arguments.precision
        for chains in arguments.chains
    ]
    whole = [
        Case(ALL_ROWS, HMC(), "float64", chains, arguments.hmc_draws, 100)
        for chains in (arguments.hmc_chains if table == "made-up" else ())
    ]
    return subsampled + whole


def main() -> None:
    """Run every case; print the report, and the goal if thousands of chains ran."""
    arguments = parser().parse_args()
    measured = figures.measured_now("python -m modicum_lab.bench.parts.gpu")
    kept: list[Table] = []
    for name in arguments.tables:
        kept += by_chains(report(arguments, name), arguments.chains)
    if arguments.docs:
        figures.keep(arguments.docs, kept, measured)


def by_chains(lines: Table, chains: Sequence[int]) -> list[Table]:
    """Return the report as two tables for the documentation, with a column per number of chains."""
    found = {tuple(row[:3]): dict(zip(COLUMNS, row, strict=True)) for row in lines.rows}
    kinds = dict.fromkeys((name, precision) for name, precision, _ in found)

    def row(kind: tuple[str, str], column: str, label: str) -> list[Any]:
        cells = (found.get((*kind, number), {}).get(column) for number in chains)
        return [label, *cells]

    heads = [f"{number:,}" for number in chains]
    rates = Table(lines.title, ["ESS per second, by chains", *heads])
    costs = Table(lines.title, ["an iteration, by chains", *heads])
    for kind in kinds:
        label = ", ".join(kind)
        rates.rows.append(row(kind, "ESS per second", label))
        costs.rows += [
            row(kind, "us per iteration", f"{label}: microseconds"),
            row(kind, "bandwidth, %", "share of the memory bandwidth, %"),
            row(kind, "arithmetic, %", "share of the arithmetic, %"),
        ]
    return [rates, costs]


def report(arguments: argparse.Namespace, name: str) -> Table:
    """Run and print every case of one table; return its lines."""
    card = Card(arguments.bandwidth, arguments.float64, arguments.float32)
    table = plain(arguments.rows) if name == "made-up" else flights(download=False)
    is_real = name != "made-up"
    reference = of_table(name) if is_real else by_importance(table.model, table.rows)
    device, d = jax.devices()[0].device_kind, len(table.columns) + 1
    lines = Table(
        f"{device}: logistic regression, {name}, {len(table.rows):,} rows, {d} parameters",
        COLUMNS,
        note=f"Reference: {reference.source}; its error is at most "
        f"{reference.largest_error:.2g} sd.",
    )
    limits = Table("Limit", ["what", "ESS per second", "at least", "kept"])
    for case in cases(arguments, name):
        row = line(case, table, reference, card)
        lines.rows.append(row)
        if case.name == "perturbed" and case.chains >= 1024 and not is_real:
            label, rate = f"{case.chains:,} chains, {case.precision}", row[4]
            limits.rows.append([label, rate, GOAL, verdict(GOAL, rate)])
    print(lines.markdown())
    if limits.rows:
        print(limits.markdown())
    return lines


if __name__ == "__main__":
    main()
