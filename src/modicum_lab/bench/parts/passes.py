"""A pass (gradient and Hessian of a logistic model) against the plain NumPy expression for it."""

from __future__ import annotations

import tempfile

import numpy as np

from modicum import LogPosterior, Rows
from modicum.models import Logistic
from modicum.rows import ingest
from modicum_lab.bench.tables import Table, interleaved, verdict

__all__ = ["run"]

COLUMNS, PRIOR = 29, 2.5


def made_up(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns, outcomes, and a point to evaluate at."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, COLUMNS), dtype=np.float32)
    y = (rng.random(n, dtype=np.float32) < 0.3).astype(np.float32)
    return x, y, rng.normal(size=COLUMNS) * 0.1


def in_numpy(x: np.ndarray, y: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian as one would write them, in the data's own precision."""
    p = 1 / (1 + np.exp(-(x @ beta.astype(np.float32))))
    gradient, hessian = x.T @ (y - p), -(x * (p * (1 - p))[:, None]).T @ x
    return gradient - beta / PRIOR**2, hessian - np.eye(COLUMNS) / PRIOR**2


def run(quick: bool = False) -> list[Table]:
    """Time the three in turns, after a check that they agree: fast and wrong would not count."""
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
            },
            repeats=3 if quick else 7,
        )
    title = f"A pass: gradient and Hessian, {n:,} x {COLUMNS} float32"
    table = Table(title, ["where", "seconds", "of NumPy's", "limit", "kept"])
    table.rows.append(["NumPy expression", seconds["NumPy"], 1.0, "", ""])
    for where, limit in (("memory", 2.0), ("store", 3.0)):
        ratio = seconds[where] / seconds["NumPy"]
        table.rows.append([where, seconds[where], ratio, limit, verdict(ratio, limit)])
    return [table]
