"""What an iteration of HMC-ECS costs: float32, chains a core, and rows fetched from a store.

Every line is wall time over iterations and chains, the median of runs in turns in one process, and
its ratio to that of the first line.
"""

import tempfile

import numpy as np

import modicum as mo
from modicum_lab.bench.machine import cores
from modicum_lab.bench.stand_ins import plain
from modicum_lab.bench.tables import Table


def iteration(table, rows, chains, draws, **settings):
    """Microseconds an iteration of one chain takes, by the clock of sampling."""
    post = mo.sample(
        table.model,
        rows,
        method=mo.HMCECS(subsample=200, blocks=20, refreshes=2, step_size=0.4, **settings),
        draws=draws,
        tune=100,
        chains=chains,
        random_seed=1,
        progressbar=False,
    )
    return 1e6 * post.settings["sampling_seconds"] / draws / chains


def run(quick=False):
    n, draws, repeats = (50_000, 500, 1) if quick else (10_000_000, 5_000, 3)
    table, a_core = plain(n), cores()
    with tempfile.TemporaryDirectory() as folder:
        store = mo.rows.ingest(table.rows, f"{folder}/store", progressbar=False)
        lines = {
            "float64, a chain a core": (table.rows, a_core, {}),
            "float32": (table.rows, a_core, {"precision": "float32"}),
            "one chain alone": (table.rows, 1, {}),
            "4 chains a core": (table.rows, 4 * a_core, {}),
            "16 chains a core, stacked": (table.rows, 16 * a_core, {}),
            "from a row store": (store, a_core, {}),
        }
        times = {name: [] for name in lines}
        for _ in range(1 + repeats):  # the first round compiles, and fills the file cache
            for name, (rows, chains, settings) in lines.items():
                times[name].append(iteration(table, rows, chains, draws, **settings))
    middle = {name: float(np.median(taken[1:])) for name, taken in times.items()}
    title = f"An iteration with m = 200 of {n:,} rows, d = 29, {a_core} cores"
    made = Table(title, ["", "microseconds a chain's iteration", "of the first"])
    first = next(iter(middle.values()))
    made.rows = [[name, taken, taken / first] for name, taken in middle.items()]
    return [made]
