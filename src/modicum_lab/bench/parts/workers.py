"""Cost per row: of reading Parquet, and of a pass by threads and by workers of a Ray cluster.

A row has five factors and ten numbers. The cost of 10^9 rows is extrapolated from these figures.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from modicum import LogPosterior
from modicum.engines import EngineChoice, Local, Ray
from modicum.models import Logistic
from modicum.rows import Rows, ingest
from modicum_lab.bench import tall
from modicum_lab.bench.tables import Table, interleaved

BILLION = 10**9
PASSES = 6  # of a run: one for prior scales, four Newton steps, one for weights


def arithmetic(nanoseconds: float, row_bytes: float, workers: int, bandwidth: float) -> list[float]:
    """Return the minutes of all passes over 10^9 rows, and of reading them once.

    Each worker reads `bandwidth` bytes per second.

    Examples
    --------
    >>> [round(minutes, 1) for minutes in arithmetic(500.0, 40.0, 10, 1e8)]
    [5.0, 0.7]
    """
    passes = PASSES * BILLION * nanoseconds * 1e-9 / workers / 60
    return [passes, BILLION * row_bytes / (bandwidth * workers) / 60]


def run(quick: bool = False) -> list[Table]:
    """Measure the costs per row, and extrapolate."""
    n = 80_000 if quick else 2_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lake").mkdir()
        parquet = tall.write_parquet(folder / "lake", n)
        started = time.perf_counter()
        rows = ingest(folder / "lake", folder / "store", outcome="y", progressbar=False)
        reading_seconds = time.perf_counter() - started
        return _measured(rows, parquet, reading_seconds, quick)


def _measured(rows: Rows, parquet: int, reading_seconds: float, quick: bool) -> list[Table]:
    n, model = len(rows), Logistic(prior_scale=1.0, intercept_scale=10.0)
    engines: dict[str, EngineChoice] = {"one thread": Local(threads=1)}
    if find_spec("ray") is not None:
        engines["Ray, two workers"] = Ray(workers=2, object_store=100_000_000)
    posteriors = {name: LogPosterior(model, rows, engine=e) for name, e in engines.items()}
    at = next(iter(posteriors.values())).start
    seconds = interleaved(
        {name: partial(posterior.hessian, at) for name, posterior in posteriors.items()},
        repeats=3 if quick else 7,
    )
    for engine in engines.values():
        if isinstance(engine, Ray):
            engine.close()
    made_of = f"{tall.WIDE.numbers} numbers and {tall.WIDE.factors} factors"
    shape = f"{n:,} rows of {made_of}, {rows.row_bytes} bytes each"
    cost = Table(f"A row: {shape}", ["what", "seconds", "ns per row and worker"])
    cost.rows.append(["ingest of Parquet, one thread", reading_seconds, 1e9 * reading_seconds / n])
    for name, value in seconds.items():
        workers = 2 if "two" in name else 1
        cost.rows.append([f"Hessian pass, {name}", value, 1e9 * value * workers / n])
    cost.note = (
        f"Parquet: {parquet / n:.0f} bytes per row. Time it on a machine that does nothing else."
    )
    nanoseconds = 1e9 * seconds["one thread"] / n
    title = f"10^9 rows: {PASSES} passes at {nanoseconds:.0f} ns per row and worker"
    columns = ["workers", "minutes of passes", "minutes to read at 100 MB/s each", "at 1 GB/s each"]
    follows = Table(title, columns)
    for workers in (1, 10, 100):
        slow = arithmetic(nanoseconds, parquet / n, workers, 1e8)
        fast = arithmetic(nanoseconds, parquet / n, workers, 1e9)
        follows.rows.append([workers, slow[0], slow[1], fast[1]])
    return [cost, follows]
