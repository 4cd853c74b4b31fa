"""Memory and time of an ingest from Parquet and of a pass over what it wrote.

Only anonymous memory counts: pages of the file cache are the system's to give and take.
"""

import tempfile

from modicum_lab.bench.memory import Peak
from modicum_lab.bench.process import in_process
from modicum_lab.bench.tables import Table, verdict

COLUMNS, LIMIT = 29, 1.0  # GB


def write_parquet(path, n):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, writer = np.random.default_rng(1), None
    for start in range(0, n, 250_000):
        size = min(250_000, n - start)
        columns = {f"x{j}": rng.standard_normal(size, dtype=np.float32) for j in range(COLUMNS)}
        columns["y"] = (rng.random(size) < 0.3).astype(np.float32)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="none")
        writer.write_table(table)
    writer.close()


def measure(folder):
    """In a process of its own: what ingest and a pass need."""
    import modicum as mo
    from modicum_lab.bench.parts.passes import a_pass

    with Peak() as ingesting:
        rows = mo.rows.ingest(f"{folder}/rows.parquet", f"{folder}/store", progressbar=False)
    one = a_pass(rows)
    with Peak() as passing:
        one([0.1] * COLUMNS)
    return [[peak.seconds, peak.bytes / 1e9] for peak in (ingesting, passing)]


def run(quick=False):
    n = 500_000 if quick else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        write_parquet(f"{folder}/rows.parquet", n)
        measured = in_process("modicum_lab.bench.parts.ingest", "measure", folder)
    columns = ["what", "seconds", "peak anonymous memory, GB", "limit", "kept"]
    table = Table(f"Parquet to store, then a pass: {n:,} x {COLUMNS + 1} float32", columns)
    for what, (seconds, peak) in zip(("ingest", "pass"), measured, strict=True):
        table.rows.append([what, seconds, peak, LIMIT, verdict(peak, LIMIT)])
    return [table]
