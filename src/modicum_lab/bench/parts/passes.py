"""Time of a pass (gradient and Hessian of a logistic model) against plain NumPy.

A further column gives the share of memory bandwidth used: the time in which all cores read the
rows once and do almost nothing with them, divided by the time of the pass.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from modicum import LogPosterior, Rows
from modicum.models import Logistic
from modicum.rows import ingest
from modicum_lab.bench.tables import Table, interleaved, verdict

COLUMNS, PRIOR = 29, 2.5


def made_up(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulate columns and outcomes; return them with a point to evaluate at."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, COLUMNS), dtype=np.float32)
    y = (rng.random(n, dtype=np.float32) < 0.3).astype(np.float32)
    return x, y, rng.normal(size=COLUMNS) * 0.1


def in_numpy(x: np.ndarray, y: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient and Hessian by plain NumPy, in the precision of the data."""
    p = 1 / (1 + np.exp(-(x @ beta.astype(np.float32))))
    gradient, hessian = x.T @ (y - p), -(x * (p * (1 - p))[:, None]).T @ x
    return gradient - beta / PRIOR**2, hessian - np.eye(COLUMNS) / PRIOR**2


def read_once(x: np.ndarray) -> None:
    """Read a whole array, with one thread per core."""
    words = x.reshape(-1)[: x.size // 2 * 2].view(np.uint64)
    parts = np.array_split(words, 4 * (os.cpu_count() or 1))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(np.bitwise_or.reduce, parts))


def run(quick: bool = False) -> list[Table]:
    """Check that the results agree, then time the functions alternately."""
    n = 200_000 if quick else 2_000_000
    x, y, beta = made_up(n)
    model = Logistic(prior_scale=PRIOR, intercept=False)
    with tempfile.TemporaryDirectory() as folder:
        memory = LogPosterior(model, Rows(x=x, y=y))
        store = LogPosterior(model, ingest({"x": x, "y": y}, f"{folder}/store", progressbar=False))
        gradient, hessian = in_numpy(x.astype(np.float64), y, beta)
        for posterior in (memory, store):
            _, ours, curvature = posterior.hessian(beta)
            np.testing.assert_allclose(ours, gradient, rtol=1e-4, atol=1e-3 * np.sqrt(n))
            np.testing.assert_allclose(curvature, hessian, rtol=1e-3, atol=1e-3 * np.sqrt(n))
        seconds = interleaved(
            {
                "NumPy": lambda: in_numpy(x, y, beta),
                "memory": lambda: memory.hessian(beta),
                "store": lambda: store.hessian(beta),
                "memory alone": lambda: read_once(x),
            },
            repeats=3 if quick else 7,
        )
    title = f"A pass: gradient and Hessian, {n:,} x {COLUMNS} float32"
    table = Table(
        title, ["where", "seconds", "of NumPy's", "limit", "kept", "share of the bandwidth"]
    )
    share = {where: seconds["memory alone"] / elapsed for where, elapsed in seconds.items()}
    table.rows.append(["NumPy expression", seconds["NumPy"], 1.0, "", "", share["NumPy"]])
    for where, limit in (("memory", 2.0), ("store", 3.0)):
        ratio = seconds[where] / seconds["NumPy"]
        kept = verdict(ratio, limit)
        table.rows.append([where, seconds[where], ratio, limit, kept, share[where]])
    return [table]
