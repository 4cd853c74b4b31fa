"""Memory and time of an ingest from Parquet, and of a pass over the resulting store.

Only anonymous memory counts: the system can drop pages of the file cache.
"""

from __future__ import annotations

import tempfile

import numpy as np

from modicum import LogPosterior
from modicum.models import Logistic
from modicum.rows import ingest
from modicum_lab.bench.process import Peak, in_process
from modicum_lab.bench.tables import Table, verdict

COLUMNS, LIMIT = 29, 1.0  # GB


def write_parquet(path: str, n: int) -> None:
    """Write `n` rows of normal columns and a binary outcome, a quarter million at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    schema = pa.schema([(f"x{j}", pa.float32()) for j in range(COLUMNS)] + [("y", pa.float32())])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for start in range(0, n, 250_000):
            size = min(250_000, n - start)
            columns = {f"x{j}": rng.standard_normal(size, dtype=np.float32) for j in range(COLUMNS)}
            columns["y"] = (rng.random(size) < 0.3).astype(np.float32)
            writer.write_table(pa.table(columns, schema=schema))


def measure(folder: str) -> list[list[float]]:
    """Return seconds and GB of an ingest and of a pass; runs in a separate process."""
    with Peak() as ingesting:
        rows = ingest(f"{folder}/rows.parquet", f"{folder}/store", progressbar=False)
    posterior = LogPosterior(Logistic(prior_scale=2.5, intercept=False), rows)
    with Peak() as passing:
        posterior.hessian(np.full(COLUMNS, 0.1))
    return [[peak.seconds, peak.bytes / 1e9] for peak in (ingesting, passing)]


def run(quick: bool = False) -> list[Table]:
    """Ingest a simulated file, and make a pass over the store."""
    n = 500_000 if quick else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        write_parquet(f"{folder}/rows.parquet", n)
        measured = in_process("modicum_lab.bench.parts.ingest", "measure", folder)
    columns = ["what", "seconds", "peak anonymous memory, GB", "limit", "kept"]
    table = Table(f"Parquet to store, then a pass: {n:,} x {COLUMNS + 1} float32", columns)
    for stage, (seconds, peak) in zip(("ingest", "pass"), measured, strict=True):
        table.rows.append([stage, seconds, peak, LIMIT, verdict(peak, LIMIT)])
    return [table]
