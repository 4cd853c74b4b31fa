"""What the default chooses on four real tables, and how far off it is.

The truth are 64,000 draws of HMC on all rows, which are shipped with the package.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

import modicum as mo
from modicum.diagnostics import mcse
from modicum_lab import datasets
from modicum_lab.bench.tables import Table
from modicum_lab.papers.references import TABLES, reference

COLUMNS = (
    *("table", "rows x parameters", "chosen", "its verdict, or rows per step"),
    *("largest error of a mean, posterior sd", "its Monte Carlo error"),
    *("largest error of an sd, %", "processor seconds"),
)


def run(quick: bool = False) -> list[Table]:
    """Sample every table by default, or the smallest if `quick`."""
    table = Table("Real tables by default", COLUMNS)
    missing = []
    for name in TABLES[-1:] if quick else TABLES:
        try:
            data = getattr(datasets, name)(progressbar=False)
        except mo.DataError as error:  # no file, and no way to download it
            missing.append(f"{name} was left out: {error}")
        else:
            table.rows.append(line(name, data, draws=250 if quick else 1_000))
    table.note = " ".join(missing)
    return [table]


def line(name: str, data: datasets.Dataset, draws: int) -> list[object]:
    """Return the line of a table."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)
        post = mo.sample(data.model, data.rows, draws=draws, random_seed=1, progressbar=False)
    seconds, truth = time.process_time() - began, reference(name)
    own, mean, sd = (
        np.concatenate([np.ravel(of(p)) for p in ("beta", "intercept")])
        for of in (lambda p: mcse(post[p]), post.mean, post.sd)
    )
    off = np.abs(mean - truth.mean) / truth.sd
    noise = np.hypot(own, truth.mcse) / truth.sd
    spread = 100 * np.abs(sd / truth.sd - 1).max()
    if (chosen := str(post.settings["method"])) == "laplace":
        chosen = "draws along skewed axes" if "skewed axes" in post.tuning else "normal draws"
        how = post.tuning["verdict"].split(", and")[0].removeprefix("enough: ")
    else:
        how = post.tuning["subsample"]["value"]
    size = f"{len(data.rows):,} x {len(mean)}"
    return [name, size, chosen, how, off.max(), noise[off.argmax()], spread, seconds]
