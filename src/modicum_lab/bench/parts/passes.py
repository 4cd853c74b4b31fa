"""A pass (gradient and Hessian of a logistic model) against the plain NumPy expression for it."""

import tempfile

import numpy as np

import modicum as mo
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.passes import LocalEngine, Sums
from modicum_lab.bench.tables import Table, interleaved, verdict

COLUMNS = 29


def data(n):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, COLUMNS), dtype=np.float32)
    y = (rng.random(n, dtype=np.float32) < 0.3).astype(np.float32)
    return x, y, rng.normal(size=COLUMNS) * 0.1


def in_numpy(x, y, beta):
    """As one would write it, in the data's own precision."""
    p = 1 / (1 + np.exp(-(x @ beta.astype(np.float32))))
    return x.T @ (y - p), -(x * (p * (1 - p))[:, None]).T @ x


def a_pass(rows):
    model = mo.models.Logistic(prior_scale=2.5, intercept=False)
    target, _ = Target.of(model, rows)
    sums = Sums(target, rows, LocalEngine(progressbar=False), Ledger(rows=len(rows)))
    return lambda beta: sums.hessian(beta, "bench")


def run(quick=False):
    n = 200_000 if quick else 2_000_000
    x, y, beta = data(n)
    with tempfile.TemporaryDirectory() as folder:
        memory = a_pass(mo.Rows(x=x, y=y))
        made = mo.rows.ingest({"x": x, "y": y}, f"{folder}/store", progressbar=False)
        store = a_pass(made)
        gradient, hessian = in_numpy(x.astype(np.float64), y, beta)
        for found in (memory(beta), store(beta)):  # fast and wrong would not count
            np.testing.assert_allclose(found[1], gradient, rtol=1e-4, atol=1e-3 * np.sqrt(n))
            np.testing.assert_allclose(found[2], hessian, rtol=1e-3, atol=1e-3 * np.sqrt(n))
        seconds = interleaved(
            {
                "NumPy": lambda: in_numpy(x, y, beta),
                "memory": lambda: memory(beta),
                "store": lambda: store(beta),
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
