"""From Parquet files to a posterior with three Ray workers, compared with one machine's threads.

``python -m modicum_lab.bench.parts.lake --rows 100000000 --folder /big/disk`` makes the files,
ingests them, samples with both engines, each in a separate process, and reports how much memory
every process took, whether the draws are the same, and how many rows per second a pass reads.
Files of an earlier run are reused; 10^8 rows take about 12 GB of disk. With ``--narrow``, 10^9 rows
of two numbers and three factors take 35 GB, of which 9 are temporary.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import tempfile
import threading
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import modicum as mo
from modicum import LogPosterior
from modicum.engines import EngineChoice, Local, Ray
from modicum.rows import Rows, ingest
from modicum_lab.bench import tall
from modicum_lab.bench.process import in_process
from modicum_lab.bench.tables import Table, interleaved, verdict

WORKERS, MEMORY, SLOWER = 3, 4.0, 1.3  # limits: GB per process, and pass time relative to Local
EVERY = 0.1  # seconds between two readings of the memory
OBJECTS = 200_000_000  # bytes of Ray's shared memory


class FamilyPeak:
    """Measure the peak memory of this process and of its descendants during a block.

    Pages of mapped files do not count: the system can drop them. Linux only.

    Attributes
    ----------
    here, elsewhere
        Bytes of this process, and of the largest descendant of each name.
    """

    def __enter__(self) -> FamilyPeak:
        self.here, self.elsewhere = 0, dict[str, int]()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(EVERY):
            for process, called, size in _family(os.getpid()):
                if process == os.getpid():
                    self.here = max(self.here, size)
                else:
                    self.elsewhere[called] = max(self.elsewhere.get(called, 0), size)


def _family(first: int) -> list[tuple[int, str, int]]:
    """Return a process and its descendants: id, name, bytes that no file backs."""
    processes: dict[int, tuple[int, str, int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
            called = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:  # the process has ended
            continue
        about = dict(line.split(":", 1) for line in lines)
        kind = "Ray worker" if called.startswith("ray::Worker") else Path(called).name
        size = int(about.get("RssAnon", "0").split()[0]) * 1024
        processes[int(folder.name)] = (int(about["PPid"]), kind or about["Name"].strip(), size)

    def descends(process: int) -> bool:
        while process in processes and process != first:
            process = processes[process][0]
        return process == first

    return [(p, kind, size) for p, (_, kind, size) in processes.items() if descends(p)]


def _model() -> Any:
    """Return a model with fixed priors: scaling them would take a pass by the driver alone."""
    return mo.models.Logistic(prior_scale=1.0, intercept_scale=10.0)


def sampled(store: str, workers: int, method: str) -> dict[str, Any]:
    """Return a hash of a run's draws and its cost; 0 workers use `Local`. Runs in a new process."""
    engine: EngineChoice = Ray(workers=workers, object_store=OBJECTS) if workers else Local()
    rows = Rows.open(store)
    started = time.perf_counter()
    with FamilyPeak() as peak:
        settings = {"method": method, "draws": 500, "tune": 300, "random_seed": 1}
        post = mo.sample(_model(), rows, engine=engine, progressbar=False, **settings)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    if isinstance(engine, Ray):
        engine.close()
    digest = hashlib.sha256()
    for name in sorted(post.draws):
        digest.update(np.ascontiguousarray(post.draws[name]).tobytes())
    summary = post.summary()
    return {
        "draws": digest.hexdigest(),
        "seconds": seconds,
        "passes": post.ledger.sweeps,
        "rows": sum(
            post.tuning.get(name, {"value": 0})["value"] for name in ("subsample", "certainty")
        ),
        "ess": float(summary["ess_bulk"].min()),
        "driver": peak.here,
        "others": peak.elsewhere,
    }


def passed(store: str, cores: int, repeats: int) -> dict[str, float]:
    """Return the median seconds of a Hessian pass by each engine; runs in a separate process."""
    rows = Rows.open(store)
    cluster = Ray(workers=cores, object_store=OBJECTS)
    engines: dict[str, EngineChoice] = {"local": Local(threads=cores), "ray": cluster}
    posteriors = {
        name: LogPosterior(_model(), rows, engine=engine, progressbar=False)
        for name, engine in engines.items()
    }
    at = posteriors["local"].start
    seconds = interleaved({k: partial(p.hessian, at) for k, p in posteriors.items()}, repeats)
    cluster.close()
    return seconds


def ingested(lake: str, store: str) -> dict[str, Any]:
    """Return seconds and memory of an ingest; runs in a separate process."""
    started = time.perf_counter()
    with FamilyPeak() as peak:
        ingest(lake, store, outcome="y", progressbar=False)
    return {"seconds": time.perf_counter() - started, "driver": peak.here}


def measure(n: int, folder: Path, shape: tall.Shape = tall.WIDE, repeats: int = 3) -> list[Table]:
    """Make, ingest and sample `n` rows in a folder with enough space; return the tables."""
    here = "modicum_lab.bench.parts.lake"
    lake, store = folder / f"parquet-{n}", folder / f"store-{n}"
    memory = Table(
        f"{n:,} rows of {shape.numbers} numbers and {shape.factors} factors",
        ["what", "seconds", "passes", "rows per step", "ESS", "driver, GB", "a worker, GB", "kept"],
    )
    if not lake.exists():
        unfinished = folder / f".making-{n}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        started = time.perf_counter()
        tall.write_parquet(unfinished, n, shape)
        unfinished.rename(lake)
        memory.rows.append(["making the files", time.perf_counter() - started, *[""] * 6])
    size = sum(file.stat().st_size for file in lake.iterdir()) / n
    if not (store / "rows.json").exists():
        done = in_process(here, "ingested", str(lake), str(store))
        peak = done["driver"] / 1e9
        memory.rows.append(["ingest", done["seconds"], 1, "", "", peak, "", verdict(peak, MEMORY)])
    runs = [("weighted draws, Local", 0, "auto"), ("HMC-ECS, Local", 0, "hmc-ecs")]
    if find_spec("ray") is not None:
        runs.append((f"HMC-ECS, Ray with {WORKERS} workers", WORKERS, "hmc-ecs"))
    hashes = set()
    for called, workers, method in runs:
        record = in_process(here, "sampled", str(store), workers, method)
        worker = record["others"].pop("Ray worker", 0) / 1e9
        most = max(record["driver"], *record["others"].values(), worker * 1e9, 0) / 1e9
        cost = [record["seconds"], record["passes"], record["rows"] or "", record["ess"]]
        row = [called, *cost, record["driver"] / 1e9, worker or "", verdict(most, MEMORY)]
        memory.rows.append(row)
        if method == "hmc-ecs":
            hashes.add(record["draws"])
    same = "the same, bit for bit" if len(hashes) == 1 else "NOT THE SAME"
    memory.note = (
        f"Memory that no file backs; limit {MEMORY:g} GB per process. Draws of both engines: "
        f"{same if len(runs) == 3 else 'not compared, since Ray is not installed'}. "
        f"Parquet: {size:.0f} bytes per row; store: {Rows.open(store).row_bytes}."
    )
    if len(runs) < 3:
        return [memory]
    cores = min(WORKERS, os.cpu_count() or 1)
    seconds = in_process(here, "passed", str(store), cores, repeats)
    speed = Table(
        f"A Hessian pass over {n:,} rows on {cores} cores",
        ["engine", "seconds", "million rows/s", "of Local's time", "limit", "kept"],
    )
    for name, value in seconds.items():
        ratio = value / seconds["local"]
        limit = ["", ""] if name == "local" else [SLOWER, verdict(ratio, SLOWER)]
        speed.rows.append([name, value, n / value / 1e6, ratio, *limit])
    return [memory, speed]


def run(quick: bool = False) -> list[Table]:
    """Run at a size that takes minutes; `main` takes any size."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(100_000 if quick else 1_000_000, Path(folder))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m modicum_lab.bench.parts.lake")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="with room for files and store")
    parser.add_argument("--repeats", type=int, default=3, help="of the pass that is timed")
    parser.add_argument("--narrow", action="store_true", help="two numbers and three factors")
    arguments = parser.parse_args()
    shape = tall.NARROW if arguments.narrow else tall.WIDE
    for table in measure(arguments.rows, arguments.folder, shape, arguments.repeats):
        print(table.markdown(), flush=True)


if __name__ == "__main__":
    main()
