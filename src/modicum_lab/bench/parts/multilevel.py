"""Multilevel models from a cold start, beside lme4's glmer and GPBoost where these are installed.

The peers give a point estimate; Modicum's line is a whole posterior, by a process that starts with
nothing compiled. Times are those of the fit; Modicum's include compiling.

And how it grows: simulated groups of 20 rows in stores, from a thousand groups to a million, whose
iterations should take the same time, and whose memory should not grow with the rows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from modicum.datasets import frame
from modicum.errors import DataError
from modicum.rows import ingest
from modicum_lab.bench.tables import Table

__all__ = ["Problem", "run"]

LIMIT = 900  # seconds for one contender
COLUMNS = ("contender", "seconds", "least ESS", "seconds for 1,000", "group sds")

FIT = """
import json, sys, time, warnings
began = time.perf_counter()
import modicum as mo, pandas as pd
table = pd.read_parquet(sys.argv[1])
warnings.simplefilter("ignore")
post = mo.fit(sys.argv[2], table, draws=int(sys.argv[3]), random_seed=1, progressbar=False)
summary = post.summary()
said = {"seconds": time.perf_counter() - began, "sampling": post.settings["sampling_seconds"],
        "ess": float(summary["ess_bulk"].min()), "held": post.tuning["groups"]["value"],
        "sds": [float(v) for k, v in summary["mean"].items() if k.startswith("group_sd")]}
print(json.dumps(said))
"""

GLMER = """
suppressMessages(library(lme4))
a <- commandArgs(trailingOnly = TRUE)
t <- read.csv(a[1])
s <- system.time(m <- glmer(as.formula(a[2]), data = t, family = binomial, nAGQ = as.integer(a[3])))
v <- as.data.frame(VarCorr(m))
cat(s[["elapsed"]], paste(v$grp, v$sdcor, sep = "="), sep = "\\n")
"""


GROW = """
import json, resource, sys, time, warnings
import modicum as mo
warnings.simplefilter("ignore")
rows = mo.Rows.open(sys.argv[1])
model = mo.models.IntegratedEffects(mo.models.Logistic(), "g")
method = mo.HMCECS(memory_limit=0)
began = time.perf_counter()
post = mo.sample(model, rows, method=method, draws=1000, tune=500, chains=2, random_seed=1,
                 progressbar=False)
taken = time.perf_counter() - began
said = {"iteration": post.settings["sampling_seconds"] / 1000, "seconds": taken,
        "groups": post.tuning["subsample"]["value"], "sd": float(post.mean("group_sd")[0]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
print(json.dumps(said))
"""
PER_GROUP, TRUE_SD = 20, 0.5
GROWTH = ("groups", "rows", "ms per iteration", "over the first", "groups per step", "group sd",
          "seconds", "peak memory, MB")  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A table with an outcome `late`, and the columns it is grouped by."""

    name: str
    table: pd.DataFrame
    groups: tuple[str, ...]

    def formula(self, power: str) -> str:
        """Common columns, and an intercept that varies by each group; R writes powers with ^."""
        common = f"h + I(h{power}2) + I(h{power}3) + log_distance"
        return f"late ~ {common} + " + " + ".join(f"(1 | {group})" for group in self.groups)


def run(quick: bool = False) -> Iterator[Table]:
    """One table per problem."""
    for problem in problems(quick):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lines = [
                modicum_line(problem, folder, 500 if quick else 1000),
                glmer_line(problem, folder, 0),
                glmer_line(problem, folder, 1),
                gpboost_line(problem),
            ]
        title = f"{problem.name}: {len(problem.table):,} rows by {', '.join(problem.groups)}"
        yield Table(title, COLUMNS, [line for line in lines if line is not None])
    yield growth((1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000))


def growth(sizes: Sequence[int]) -> Table:
    """Groups of 20 rows each, read from stores: what an iteration and what memory takes."""
    lines: list[Sequence[object]] = []
    for groups in sizes:
        with tempfile.TemporaryDirectory() as name:
            store = Path(name) / "store"
            ingest(simulated(groups), store, sort_by="g", progressbar=False)
            output = _output([sys.executable, "-c", GROW, str(store)])
        if output is None:
            continue
        said = json.loads(output.splitlines()[-1])
        first = lines[0][2] if lines else 1e3 * said["iteration"]
        assert isinstance(first, float)
        each = 1e3 * said["iteration"]
        lines.append((
            groups, groups * PER_GROUP, each, each / first, said["groups"], f"{said['sd']:.4f}",
            said["seconds"], round(said["memory"]),
        ))  # fmt: skip
    title = f"growth: groups of {PER_GROUP} rows from a store, with an sd of {TRUE_SD:g}"
    return Table(title, GROWTH, lines)


def simulated(groups: int) -> dict[str, np.ndarray]:
    """Logistic rows of a column, an intercept and effects of groups."""
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(groups, dtype=np.float32), PER_GROUP)
    x = rng.standard_normal(len(g), np.float32)
    effect = np.repeat(TRUE_SD * rng.standard_normal(groups, np.float32), PER_GROUP)
    eta = -0.5 + 0.7 * x + effect
    y = rng.random(len(g), np.float32) < 1 / (1 + np.exp(-eta))
    return {"x": x[:, None], "y": y.astype(np.float32), "g": g}


def problems(quick: bool) -> Iterator[Problem]:
    """Crossed factors of a few levels, and one factor of thousands."""
    table = flights(quick)
    if table is not None:
        yield Problem("crossed", table, ("dest", "carrier", "month"))
        yield Problem("aircraft", table, ("tailnum",))


def flights(quick: bool) -> pd.DataFrame | None:
    """Which flights from New York came in over half an hour late; None without their package."""
    try:
        table = frame("flights", download=False)
    except DataError:
        return None
    known = table.dropna(subset=["arr_delay"])
    made = known[["dest", "carrier", "month", "tailnum"]].assign(
        late=(known["arr_delay"] > 30).astype(int),
        h=(known["sched_dep_time"] // 100 - 13) / 5.0,
        log_distance=np.log(known["distance"] / 1000),
    )
    return made.sample(20_000, random_state=1) if quick else made


def modicum_line(problem: Problem, folder: Path, draws: int) -> Sequence[object] | None:
    """A posterior, by a process of its own."""
    path = folder / "table.parquet"
    problem.table.to_parquet(path)
    command = [sys.executable, "-c", FIT, str(path), problem.formula("**"), str(draws)]
    output = _output(command)
    if output is None:
        return None
    said = json.loads(output.splitlines()[-1])
    # Before the first draw and after: only the draws would be more or fewer.
    enough = said["seconds"] + said["sampling"] * (1000 / said["ess"] - 1)
    name = f"Modicum, {said['held']} effects"
    return name, said["seconds"], round(said["ess"]), enough, _shown(said["sds"])


def glmer_line(problem: Problem, folder: Path, nodes: int) -> Sequence[object] | None:
    """lme4's point estimate: by Laplace's approximation (1), or by a quicker relative of it (0)."""
    if shutil.which("Rscript") is None:
        return None
    path, script = folder / "table.csv", folder / "glmer.R"
    problem.table.to_csv(path, index=False)
    script.write_text(GLMER)
    output = _output(["Rscript", str(script), str(path), problem.formula("^"), str(nodes)])
    if output is None:
        return None
    seconds, *parts = output.split()
    estimates = dict(part.split("=") for part in parts)
    sds = [float(estimates[group]) for group in problem.groups if group in estimates]
    name = "glmer, Laplace" if nodes else "glmer, nAGQ = 0"
    return name, float(seconds), "a point", "", _shown(sds)


def gpboost_line(problem: Problem) -> Sequence[object] | None:
    """GPBoost's point estimate."""
    if find_spec("gpboost") is None:
        return None
    import gpboost

    t = problem.table
    x = np.column_stack([np.ones(len(t)), t.h, t.h**2, t.h**3, t.log_distance])
    began = time.perf_counter()
    model = gpboost.GPModel(group_data=t[list(problem.groups)], likelihood="bernoulli_logit")
    model.fit(y=t.late.to_numpy(float), X=x)
    seconds = time.perf_counter() - began
    sds = np.sqrt(np.ravel(model.get_cov_pars()))
    return "GPBoost", seconds, "a point", "", _shown(sds.tolist())


def _shown(sds: Sequence[float]) -> str:
    return ", ".join(f"{sd:.4f}" for sd in sds)


def _output(command: Sequence[str]) -> str | None:
    """What a process printed; None where it failed or took too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return done.stdout
