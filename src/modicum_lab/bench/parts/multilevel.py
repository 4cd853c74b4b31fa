"""Multilevel models from a cold start, compared with glmer, GPBoost and NumPyro if installed.

lme4's glmer and GPBoost give a point estimate; Modicum gives a whole posterior, in a process that
starts with nothing compiled. Times are those of the fit; those of Modicum and of NumPyro's NUTS
include compilation. Both wall-clock seconds, which other load on the machine lengthens, and
processor seconds, which it hardly affects, are given.

    python -m modicum_lab.bench.parts.multilevel --peers crossed aircraft simulated

A second table shows how cost grows: simulated groups of 20 rows in stores, from a thousand groups
to a hundred thousand, whose iterations should take the same time, and whose memory should not grow
with the rows. A million groups take much longer to write than to sample, and need a separate run:

    python -m modicum_lab.bench.parts.multilevel 1000 10000 100000 1000000
"""

from __future__ import annotations

import argparse
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

from modicum.errors import DataError
from modicum.rows import ingest
from modicum_lab.bench.tables import Table
from modicum_lab.datasets import frame

LIMIT = 1_800  # processor seconds for one contender
LONG = 7_200  # for one size of what grows
COLUMNS = (
    *("contender", "seconds", "processor seconds", "least ESS", "processor seconds for 1,000"),
    *("ESS per processor second of sampling", "group sds"),
)

FIT = """
import json, sys, time, warnings
began = time.perf_counter()
import modicum as mo, pandas as pd
table = pd.read_parquet(sys.argv[1])
warnings.simplefilter("ignore")
post = mo.fit(sys.argv[2], table, draws=int(sys.argv[3]), random_seed=1, progressbar=False)
summary = post.summary()
sampling = post.settings["sampling_seconds"]
said = {"seconds": time.perf_counter() - began, "processor": time.process_time(),
        "sampling": sampling / (time.perf_counter() - began),
        "ess": float(summary["ess_bulk"].min()), "held": post.tuning["groups"]["value"],
        "sds": [float(v) for k, v in summary["mean"].items() if k.startswith("group_sd")]}
print(json.dumps(said))
"""

NUMPYRO = """
import json, sys, time
began = time.perf_counter()
import jax, jax.numpy as jnp, numpy as np, numpyro, pandas as pd
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
numpyro.enable_x64()
table = pd.read_parquet(sys.argv[1])
draws, common, groups = int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4].split(",")
x, y = jnp.asarray(table[common].to_numpy(float)), jnp.asarray(table["late"].to_numpy(float))
codes = [pd.factorize(table[group])[0] for group in groups]
def model(x, y, codes):
    beta = numpyro.sample("beta", dist.Normal(0, 2.5).expand([x.shape[1]]).to_event(1))
    eta = x @ beta + numpyro.sample("intercept", dist.Normal(0, 2.5))
    for k, g in enumerate(codes):
        tau = numpyro.sample(f"tau{k}", dist.HalfNormal(2.5))
        v = numpyro.sample(f"v{k}", dist.Normal(0, 1).expand([levels[k]]).to_event(1))
        eta = eta + numpyro.deterministic(f"u{k}", tau * v)[g]
    numpyro.sample("y", dist.BernoulliLogits(eta), obs=y)
levels = [int(g.max()) + 1 for g in codes]
codes = [jnp.asarray(g) for g in codes]
mcmc = MCMC(NUTS(model), num_warmup=draws, num_samples=draws, progress_bar=False)
key = jax.random.key(1)
mcmc.warmup(key, x, y, codes)
warm = time.process_time()
mcmc.run(key, x, y, codes)
held = {k: np.asarray(v)[None] for k, v in mcmc.get_samples().items() if not k.startswith("v")}
ess = min(float(np.min(effective_sample_size(v))) for v in held.values())
now = time.process_time()
print(json.dumps({"seconds": time.perf_counter() - began, "processor": now,
                  "sampling": (now - warm) / now, "ess": ess,
                  "sds": [float(held[f"tau{k}"].mean()) for k in range(len(groups))]}))
"""

GLMER = """
suppressMessages(library(lme4))
a <- commandArgs(trailingOnly = TRUE)
t <- read.csv(a[1])
s <- system.time(m <- glmer(as.formula(a[2]), data = t, family = binomial, nAGQ = as.integer(a[3])))
v <- as.data.frame(VarCorr(m))
cat(s[["elapsed"]], s[["user.self"]] + s[["sys.self"]], sep = "\\n")
cat("", paste(v$grp, v$sdcor, sep = "="), sep = "\\n")
"""


GROW = """
import json, sys, time, warnings
import modicum as mo
from modicum_lab.bench.process import peak_memory
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
        "memory": peak_memory() / 1e6}
print(json.dumps(said))
"""
PER_GROUP, TRUE_SD = 20, 0.5
TOGETHER = 10_000  # groups simulated at a time
GROWTH = ("groups", "rows", "ms per iteration", "over the first", "groups per step", "group sd",
          "seconds", "peak memory, MB")  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A table with an outcome `late`, common columns, and the columns it is grouped by."""

    name: str
    table: pd.DataFrame
    common: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def formula(self) -> str:
        """Formula, as in R, with common columns and an intercept that varies by each group."""
        varying = [f"(1 | {group})" for group in self.groups]
        return "late ~ " + " + ".join([*self.common, *varying])


def run(quick: bool = False) -> Iterator[Table]:
    """Yield one table per problem."""
    for problem in problems(quick):
        yield beside_peers(problem, quick)
    yield growth((1_000, 10_000) if quick else (1_000, 10_000, 100_000))


def beside_peers(problem: Problem, quick: bool = False) -> Table:
    """Return a table with one line per installed contender."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [
            modicum_line(problem, folder, 500 if quick else 1000),
            numpyro_line(problem, folder, 100 if quick else 300),
            glmer_line(problem, folder, 0),
            glmer_line(problem, folder, 1),
            gpboost_line(problem),
        ]
    title = f"{problem.name}: {len(problem.table):,} rows by {', '.join(problem.groups)}"
    return Table(title, COLUMNS, [line for line in lines if line is not None])


def growth(sizes: Sequence[int]) -> Table:
    """Tabulate time per iteration and memory for groups of 20 rows each, read from stores."""
    lines: list[Sequence[object]] = []
    for groups in sizes:
        with tempfile.TemporaryDirectory() as name:
            store = Path(name) / "store"
            ingest(simulated(groups, Path(name)), store, sort_by="g", progressbar=False)
            output = _output([sys.executable, "-c", GROW, str(store)], LONG)
        if output is None:
            continue
        answer = json.loads(output.splitlines()[-1])
        first = lines[0][2] if lines else 1e3 * answer["iteration"]
        assert isinstance(first, float)
        ms = 1e3 * answer["iteration"]
        lines.append((
            groups, groups * PER_GROUP, ms, ms / first, answer["groups"], f"{answer['sd']:.4f}",
            answer["seconds"], round(answer["memory"]),
        ))  # fmt: skip
    title = f"growth: groups of {PER_GROUP} rows from a store, with an sd of {TRUE_SD:g}"
    return Table(title, GROWTH, lines)


def simulated(groups: int, folder: Path, per_group: int = PER_GROUP) -> dict[str, np.ndarray]:
    """Simulate logistic rows with one column, an intercept and group effects, into `folder`."""
    rng, rows = np.random.default_rng(1), groups * per_group
    shapes = {"x": (rows, 1), "y": (rows,), "g": (rows,)}
    fields: dict[str, np.ndarray] = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, shape)
        for name, shape in shapes.items()
    }
    for first in range(0, groups, TOGETHER):
        group_ids = np.arange(first, min(first + TOGETHER, groups))
        x = rng.standard_normal(len(group_ids) * per_group, np.float32)
        effect = TRUE_SD * rng.standard_normal(len(group_ids), np.float32)
        chance = 1 / (1 + np.exp(0.5 - 0.7 * x - np.repeat(effect, per_group)))
        place = slice(first * per_group, first * per_group + len(x))
        fields["x"][place, 0] = x
        fields["y"][place] = rng.random(len(x), np.float32) < chance
        fields["g"][place] = np.repeat(group_ids, per_group)
    return fields


def problems(quick: bool) -> Iterator[Problem]:
    """Yield crossed factors of few levels, a factor of thousands, and one for NumPyro's NUTS."""
    table = flights(quick)
    if table is not None:
        common = ("h", "h2", "h3", "log_distance")
        yield Problem("crossed", table, common, ("dest", "carrier", "month"))
        yield Problem("aircraft", table, common, ("tailnum",))
    with tempfile.TemporaryDirectory() as name:
        fields = simulated(200 if quick else 1_000, Path(name), 100)
        frame = pd.DataFrame({"late": fields["y"].astype(int), "x": fields["x"][:, 0]})
        frame["g"] = fields["g"].astype(int).astype(str)
    yield Problem("simulated", frame, ("x",), ("g",))


def flights(quick: bool) -> pd.DataFrame | None:
    """Return flights from New York, late by over half an hour or not; None without the package."""
    try:
        table = frame("flights", download=False)
    except DataError:
        return None
    arrived = table.dropna(subset=["arr_delay"])
    h = (arrived["sched_dep_time"] // 100 - 13) / 5.0
    flights_table = arrived[["dest", "carrier", "month", "tailnum"]].assign(
        late=(arrived["arr_delay"] > 30).astype(int),
        h=h,
        h2=h**2,
        h3=h**3,
        log_distance=np.log(arrived["distance"] / 1000),
    )
    return flights_table.sample(20_000, random_state=1) if quick else flights_table


def modicum_line(problem: Problem, folder: Path, draws: int) -> Sequence[object] | None:
    """Return the line of Modicum's posterior, sampled in a separate process."""
    path = folder / "table.parquet"
    problem.table.to_parquet(path)
    output = _output([sys.executable, "-c", FIT, str(path), problem.formula, str(draws)])
    return None if output is None else _sampled("Modicum, {held} effects", output)


def numpyro_line(problem: Problem, folder: Path, draws: int) -> Sequence[object] | None:
    """Return the line of NumPyro's NUTS on all rows, with explicit, non-centred effects."""
    if find_spec("numpyro") is None:
        return None
    path = folder / "table.parquet"
    problem.table.to_parquet(path)
    columns = [",".join(problem.common), ",".join(problem.groups)]
    output = _output([sys.executable, "-c", NUMPYRO, str(path), str(draws), *columns])
    if output is None:
        return f"NumPyro NUTS, {draws} draws", "", f"over {LIMIT:,}", "", "", "", ""
    return _sampled("NumPyro NUTS", output)


def _sampled(name: str, output: str) -> Sequence[object]:
    """Return the line of a posterior, from the output of its process."""
    answer = json.loads(output.splitlines()[-1])
    # To reach 1,000 effective draws, only the sampling time scales; the time before it is fixed.
    cpu = answer["processor"]
    to_1000 = cpu * (1 + answer["sampling"] * (1000 / answer["ess"] - 1))
    rate = answer["ess"] / (cpu * answer["sampling"])
    label = name.format(**answer)
    return label, answer["seconds"], cpu, round(answer["ess"]), to_1000, rate, _shown(answer["sds"])


def glmer_line(problem: Problem, folder: Path, nodes: int) -> Sequence[object] | None:
    """Return lme4's point estimate, by Laplace's approximation (1) or a faster variant (0)."""
    if shutil.which("Rscript") is None:
        return None
    path, script = folder / "table.csv", folder / "glmer.R"
    problem.table.to_csv(path, index=False)
    script.write_text(GLMER)
    output = _output(["Rscript", str(script), str(path), problem.formula, str(nodes)])
    if output is None:
        return None
    seconds, used, *parts = output.split()
    estimates = dict(part.split("=") for part in parts)
    sds = [float(estimates[group]) for group in problem.groups if group in estimates]
    name = "glmer, Laplace" if nodes else "glmer, nAGQ = 0"
    return name, float(seconds), float(used), "a point", "", "", _shown(sds)


def gpboost_line(problem: Problem) -> Sequence[object] | None:
    """Return GPBoost's point estimate."""
    if find_spec("gpboost") is None:
        return None
    import gpboost

    t = problem.table
    x = np.column_stack([np.ones(len(t)), t[list(problem.common)]])
    began, used = time.perf_counter(), time.process_time()
    model = gpboost.GPModel(group_data=t[list(problem.groups)], likelihood="bernoulli_logit")
    model.fit(y=t.late.to_numpy(float), X=x)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    sds = np.sqrt(np.ravel(model.get_cov_pars()))
    return "GPBoost", seconds, used, "a point", "", "", _shown(sds.tolist())


def _shown(sds: Sequence[float]) -> str:
    return ", ".join(f"{sd:.4f}" for sd in sds)


def _output(command: Sequence[str], limit: int = LIMIT) -> str | None:
    """Return the output of a process; None if it failed or took too many processor seconds."""
    limited = ["sh", "-c", f'ulimit -t {limit}; exec "$0" "$@"', *command]
    try:
        done = subprocess.run(limited, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError:
        return None
    return done.stdout


def main() -> None:
    """Print the growth table for the given numbers of groups, or the comparison with peers."""
    parser = argparse.ArgumentParser(prog="python -m modicum_lab.bench.parts.multilevel")
    parser.add_argument("groups", type=int, nargs="*", help="numbers of groups, of 20 rows each")
    parser.add_argument("--peers", nargs="*", default=[], help="crossed, aircraft, simulated")
    arguments = parser.parse_args()
    for problem in problems(quick=False) if arguments.peers else ():
        if problem.name in arguments.peers:
            print(beside_peers(problem).markdown(), flush=True)
    if arguments.groups:
        print(growth(arguments.groups).markdown())


if __name__ == "__main__":
    main()
