"""Cost per row, in processor time: of an ingest of Parquet, and of passes.

A row has five factors and ten numbers. The cost of 10^9 rows is extrapolated from these figures.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from modicum import LogPosterior
from modicum.engines import Local
from modicum.models import Logistic
from modicum.rows import Rows, ingest
from modicum_lab.bench import tall
from modicum_lab.bench.tables import Table, interleaved

BILLION = 10**9
PASSES = 6  # of a run: one for prior scales, four Newton steps, one for weights


def arithmetic(nanoseconds: float, row_bytes: float, workers: int, bandwidth: float) -> list[float]:
    """Return the minutes of all passes over 10^9 rows, and of reading the rows as often.

    Each worker reads `bandwidth` bytes per second.

    Examples
    --------
    >>> [round(minutes, 1) for minutes in arithmetic(500.0, 40.0, 10, 1e8)]
    [5.0, 4.0]
    """
    passes = PASSES * BILLION * nanoseconds * 1e-9 / workers / 60
    return [passes, PASSES * BILLION * row_bytes / (bandwidth * workers) / 60]


def run(quick: bool = False) -> list[Table]:
    """Measure the costs per row, and extrapolate."""
    n = 80_000 if quick else 2_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lake").mkdir()
        parquet = tall.write_parquet(folder / "lake", n)
        started = time.process_time()
        rows = ingest(folder / "lake", folder / "store", outcome="y", progressbar=False)
        reading_seconds = time.process_time() - started
        return _measured(rows, parquet, reading_seconds, quick)


def _measured(rows: Rows, parquet: int, reading_seconds: float, quick: bool) -> list[Table]:
    n, model = len(rows), Logistic(prior_scale=1.0, intercept_scale=10.0)
    posterior = LogPosterior(model, rows, engine=Local(threads=1))
    passes: dict[str, Callable[[], object]] = {
        "a gradient pass": partial(posterior.gradient, posterior.start),
        "a Hessian pass": partial(posterior.hessian, posterior.start),
    }
    seconds = interleaved(passes, 3 if quick else 7, time.process_time)
    made_of = f"{tall.WIDE.numbers} numbers and {tall.WIDE.factors} factors"
    shape = f"{n:,} rows of {made_of}, {rows.row_bytes} bytes each"
    cost = Table(f"A row: {shape}", ["step", "processor seconds", "ns per row"])
    for name, value in {"ingest of Parquet": reading_seconds, **seconds}.items():
        cost.rows.append([name, value, 1e9 * value / n])
    cost.note = f"{shape}; {parquet / n:.0f} as Parquet. One thread."
    nanoseconds = 1e9 * seconds["a Hessian pass"] / n
    title = f"10^9 rows: {PASSES} passes at {nanoseconds:.0f} ns per row and worker"
    columns = ["workers", "minutes of passes", "minutes to read at 100 MB/s each", "at 1 GB/s each"]
    follows = Table(title, columns, note=f"{title}.")
    for workers in (1, 10, 100):
        slow = arithmetic(nanoseconds, rows.row_bytes, workers, 1e8)
        fast = arithmetic(nanoseconds, rows.row_bytes, workers, 1e9)
        follows.rows.append([workers, *slow, fast[1]])
    return [cost, follows]
