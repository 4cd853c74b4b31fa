"""Compute the reference posteriors by long full-data HMC runs in float64.

    python -m modicum_lab.tests.validation.make_references OUT [NAME ...] [--raw FOLDER]

Writes OUT/NAME.json: mean, sd and Monte Carlo error of every parameter. Meant for an accelerator,
where 64,000 draws take a minute or two; `--raw` reads tables saved as NPZ by `tables.raw`. The
table `census` is simulated, with rare levels; the others are real.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import modicum as mo
from modicum_lab.bench.stand_ins import census_shaped
from modicum_lab.tests.validation import tables


def made(name: str, folder: Path | None):
    """Return the data set called `name`."""
    if name == "census":
        return census_shaped()
    return tables.build(name, dict(np.load(folder / f"{name}.npz")) if folder else tables.raw(name))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=tables.NAMES)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--tune", type=int, default=200)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        table = made(name, given.raw)
        started = time.monotonic()
        method = mo.HMC(target_accept=0.9, trajectory=1.5)
        post = mo.sample(
            table.model,
            table.rows,
            method=method,
            draws=given.draws,
            tune=given.tune,
            chains=given.chains,
            random_seed=20,
            progressbar=False,
        )
        summary = {"table": name, "rows": len(table.rows), "draws": given.chains * given.draws}
        for parameter, draws in post.draws.items():
            by_chain = draws.mean(axis=1)  # chains are independent: their means give the error
            summary[parameter] = {
                "mean": post.mean(parameter).tolist(),
                "sd": post.sd(parameter).tolist(),
                "mcse": (by_chain.std(axis=0, ddof=1) / np.sqrt(len(by_chain))).tolist(),
            }
        (given.out / f"{name}.json").write_text(json.dumps(summary))
        print(name, f"{time.monotonic() - started:.0f} s", post.warnings, flush=True)


if __name__ == "__main__":
    main()
