"""A thousand effective draws by default beside a point estimate, glum's, from a cold start.

Both fit the same logistic regression in fresh interpreters and take turns, with the rows in memory.
Seconds are those of the fit: all passes, and all that is compiled. The import of each library is
told beside it.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from modicum_lab.bench.process import in_process
from modicum_lab.bench.tables import Table

__all__ = ["run"]

COLUMNS = 28
DRAWS = 350  # in each of four chains: with some to spare beyond a thousand effective ones
PRIOR_SD = 2.5


def _arrays(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal columns and outcomes; made here, since other makers import what is timed."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, COLUMNS))
    eta = x @ (1.6 / np.sqrt(COLUMNS) * rng.standard_normal(COLUMNS)) - 1
    return x, (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(np.float64)


def _now() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def fit_point(rows: int) -> list[float]:
    """Wall and processor seconds of importing glum, and of its maximum a posteriori estimate."""
    x, y = _arrays(rows)
    started = _now()
    from glum import GeneralizedLinearRegressor

    imported = _now()
    alpha = 1 / (rows * PRIOR_SD**2)
    GeneralizedLinearRegressor(family="binomial", l1_ratio=0, alpha=alpha).fit(x, y)
    return [*(imported - started), *(_now() - imported), 0.0]


def fit_draws(rows: int) -> list[float]:
    """The same of Modicum's draws by default, and how many effective ones these were."""
    x, y = _arrays(rows)
    started = _now()
    import modicum as mo

    imported = _now()
    model = mo.models.Logistic(prior_scale=PRIOR_SD)
    post = mo.sample(model, mo.Rows(x=x, y=y), draws=DRAWS, random_seed=1, progressbar=False)
    post.mean("beta")
    seconds = _now() - imported
    return [*(imported - started), *seconds, float(post.summary()["ess_bulk"].min())]


def run(quick: bool = False) -> list[Table]:
    """Both, in turns, at several sizes."""
    fits = Table(
        "A thousand effective draws by default, and glum's point estimate, from cold starts",
        ["rows", "effective draws", "seconds", "glum's", "ratio", "processor seconds", "glum's",
         "ratio"],
    )  # fmt: skip
    imports = Table("Imports", ["rows", "processor seconds of modicum", "of glum"])
    for rows in (20_000,) if quick else (100_000, 1_000_000, 10_000_000):
        taken: dict[str, list[list[float]]] = {"fit_draws": [], "fit_point": []}
        for turn in range(1 if quick else 5 if rows <= 1_000_000 else 2):
            for name in sorted(taken, reverse=bool(turn % 2)):
                taken[name].append(in_process(__name__, name, rows))
        ours, theirs = ([median(x) for x in zip(*runs, strict=True)] for runs in taken.values())
        fits.rows.append(
            [rows, ours[4], ours[2], theirs[2], ours[2] / theirs[2], ours[3], theirs[3],
             ours[3] / theirs[3]]
        )  # fmt: skip
        imports.rows.append([rows, ours[1], theirs[1]])
    return [fits, imports]


if __name__ == "__main__":
    for result in run():
        print(result.markdown())
