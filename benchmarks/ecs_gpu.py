"""Thousands of HMC-ECS chains on an accelerator, every chain's moments checked.

    python -m benchmarks.ecs_gpu [--rows 10500000] [--chains 1024 8192] [--draws 1000]

Effective draws are counted from the spread of the chains' means: chains are independent, so
Var(chain mean) = sd^2 / ESS of a chain, whatever the autocorrelation. `make bench` leaves it out.
"""

import argparse
import time

import jax
import numpy as np

import modicum as mo
from benchmarks.report import Table

COLUMNS = 28


def data(n):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, COLUMNS), dtype=np.float32)
    beta = 0.3 * rng.standard_normal(COLUMNS).astype(np.float32)
    y = (rng.random(n, dtype=np.float32) < 1 / (1 + np.exp(1 - x @ beta))).astype(np.float32)
    return mo.Rows(x=x, y=y)


def measure(rows, chains, draws, method):
    started = time.perf_counter()
    post = mo.sample(
        mo.models.Logistic(),
        rows,
        method=method,
        draws=draws,
        tune=200,
        chains=chains,
        random_seed=1,
        progressbar=False,
        parallel="stacked",
    )
    total = time.perf_counter() - started
    flat = np.concatenate([post["beta"], post["intercept"][..., None]], axis=2)
    mean, sd = flat.mean((0, 1)), flat.std((0, 1))
    of_chains = flat.mean(1)
    effective = chains * sd**2 / of_chains.var(0, ddof=1)  # of all chains together
    # Each chain's mean and sd in units of their own standard errors:
    error = sd / np.sqrt(effective / chains)
    worst_mean = np.abs((of_chains - mean) / error).max()
    spread = flat.std(1) / sd
    worst_sd = np.abs((spread - spread.mean(0)) / spread.std(0)).max()
    seconds = post.settings["sampling_seconds"]
    return {
        "rate": effective.min() / seconds,
        "iteration": seconds / draws,
        "total": total,
        "mean": worst_mean,
        "sd": worst_sd,
        "sds": (spread.mean(0).min(), spread.mean(0).max()),
        "tuning": {k: v["value"] for k, v in post.tuning.items() if isinstance(v, dict)},
        "warnings": post.warnings,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_500_000)
    parser.add_argument("--chains", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--precision", nargs="+", default=["float64", "float32"])
    given = parser.parse_args()
    rows = data(given.rows)
    device = jax.devices()[0].device_kind
    table = Table(
        f"HMC-ECS on {device}: {given.rows:,} x {COLUMNS + 1} logistic",
        [
            "chains",
            "precision",
            "ESS a second",
            "ms an iteration",
            "seconds in all",
            "worst chain mean, se",
            "worst chain sd, se",
        ],
    )
    for chains in given.chains:
        for precision in given.precision:
            f = measure(rows, chains, given.draws, mo.HMCECS(precision=precision))
            print(chains, precision, f, flush=True)
            table.rows.append(
                [chains, precision, f["rate"], 1e3 * f["iteration"], f["total"], f["mean"], f["sd"]]
            )
    print(table.markdown())


if __name__ == "__main__":
    main()
