"""HMC-ECS as n grows, in memory and from a row store: time an iteration, and memory.

Every size runs in a process of its own, so that its peak memory is its own. Memory is what is
neither file cache nor mapped pages of the store (RssAnon).
"""

import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.report import Table, in_process, verdict

COLUMNS = 28


def write_store(folder, n):
    """A store of n rows, made a million rows at a time."""
    import pyarrow as pa

    import modicum as mo

    rng = np.random.default_rng(1)
    beta = (0.3 * rng.standard_normal(COLUMNS)).astype(np.float32)
    names = [f"x{j}" for j in range(COLUMNS)]
    raw = Path(folder) / "raw.arrow"
    schema = pa.schema([(name, pa.float32()) for name in [*names, "y"]])
    with pa.OSFile(str(raw), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for first in range(0, n, 1_000_000):
            count = min(1_000_000, n - first)
            x = rng.standard_normal((count, COLUMNS), dtype=np.float32)
            y = (rng.random(count, dtype=np.float32) < 1 / (1 + np.exp(1 - x @ beta))) * 1.0
            columns = [pa.array(x[:, j]) for j in range(COLUMNS)]
            columns.append(pa.array(y.astype(np.float32)))
            writer.write_batch(pa.record_batch(columns, schema=schema))
    mo.rows.ingest(str(raw), f"{folder}/store", outcome="y", progressbar=False)
    raw.unlink()


def sample_store(store, in_memory, draws):
    """Seconds an iteration of all chains together, and peak anonymous memory in GB."""
    import modicum as mo
    from modicum.methods import ecs_study

    rows = mo.Rows.open(store)
    if in_memory:
        rows = mo.Rows(**rows.slice(0, len(rows)), dtype=rows.dtype)
    else:
        ecs_study.SMALL_STORE = 0  # fetch rows ahead however few they are
    peak = _watch_memory()
    post = mo.sample(
        mo.models.Logistic(),
        rows,
        method="hmc-ecs",
        draws=draws,
        tune=300,
        chains=2,
        random_seed=1,
        progressbar=False,
    )
    return {
        "iteration": post.settings["sampling_seconds"] / draws,
        "memory": peak(),
        "rows": post.tuning["subsample"]["value"],
        "mean": float(post.mean("beta")[0]),
        "seconds": post.settings["seconds"],
    }


def _watch_memory():
    highest = [0]

    def watch():
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    highest[0] = max(highest[0], int(line.split()[1]))
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()
    return lambda: highest[0] / 2**20


def run(quick=False, sizes=None):
    sizes = sizes or ([10_000, 100_000] if quick else [100_000, 1_000_000, 10_000_000])
    table = Table(
        f"HMC-ECS as n grows, {COLUMNS + 1} parameters, two chains",
        ["rows", "where", "m", "ms an iteration", "memory, GB", "seconds in all"],
    )
    times = {}
    for n in sizes:
        with tempfile.TemporaryDirectory() as folder:
            write_store(folder, n)
            for where in ("memory", "store"):
                call = f"sample_store({folder + '/store'!r}, {where == 'memory'}, 8000)"
                f = in_process(__name__, call)
                times[n, where] = f["iteration"]
                table.rows.append(
                    [f"{n:,}", where, f["rows"], 1e3 * f["iteration"], f["memory"], f["seconds"]]
                )
    growth = times[sizes[-1], "memory"] / times[sizes[0], "memory"]
    disk = times[sizes[-1], "store"] / times[sizes[-1], "memory"]
    limits = Table("Limits", ["ratio", "measured", "limit", "kept"])
    limits.rows.append(
        [f"an iteration at {sizes[-1]:,} rows over {sizes[0]:,}", growth, 1.3, verdict(growth, 1.3)]
    )
    limits.rows.append(["from the store over from memory", disk, 2.0, verdict(disk, 2.0)])
    return [table, limits]
