"""A thousand effective draws by default beside a point estimate, glum's, from a cold start.

Both fit the same logistic regression in fresh interpreters and take turns. Seconds count from
before the import of the library to the answer, with the rows in memory: libraries are loaded, code
is compiled and all passes are made in them.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from modicum_lab.bench.process import in_process
from modicum_lab.bench.stand_ins import plain_blocks
from modicum_lab.bench.tables import Table

__all__ = ["run"]

COLUMNS = 28
DRAWS = 1_100  # in all: a tenth more than the effective ones asked for
PRIOR_SD = 2.5


def _arrays(rows: int) -> tuple[np.ndarray, np.ndarray]:
    parts = list(plain_blocks(rows, COLUMNS))
    x, y = (np.concatenate(arrays).astype(np.float64) for arrays in zip(*parts, strict=True))
    return x, y


def fit_point(rows: int) -> list[float]:
    """Seconds, and seconds of processors, of glum's maximum a posteriori estimate."""
    x, y = _arrays(rows)
    started, used = time.perf_counter(), time.process_time()
    from glum import GeneralizedLinearRegressor

    alpha = 1 / (rows * PRIOR_SD**2)
    GeneralizedLinearRegressor(family="binomial", l1_ratio=0, alpha=alpha).fit(x, y)
    return [time.perf_counter() - started, time.process_time() - used, 0.0]


def fit_draws(rows: int) -> list[float]:
    """The same of draws by default, and how many effective ones these were."""
    x, y = _arrays(rows)
    started, used = time.perf_counter(), time.process_time()
    from modicum import Rows, sample
    from modicum.models import Logistic

    model = Logistic(prior_scale=PRIOR_SD)
    post = sample(
        model, Rows(x=x, y=y), draws=DRAWS // 4, chains=4, random_seed=1, progressbar=False
    )
    post.mean("beta")
    seconds = [time.perf_counter() - started, time.process_time() - used]
    return [*seconds, float(post.summary()["ess_bulk"].min())]


def run(quick: bool = False) -> list[Table]:
    """Both, in turns, at several sizes."""
    table = Table(
        "A thousand effective draws by default, and glum's point estimate, from cold starts",
        ["rows", "effective draws", "seconds", "glum's", "ratio", "processor seconds", "glum's",
         "ratio"],
    )  # fmt: skip
    for rows in (20_000,) if quick else (100_000, 1_000_000):
        taken: dict[str, list[list[float]]] = {"fit_draws": [], "fit_point": []}
        for turn in range(1 if quick else 5):
            for name in sorted(taken, reverse=bool(turn % 2)):
                taken[name].append(in_process(__name__, name, rows))
        ours, theirs = ([median(x) for x in zip(*runs, strict=True)] for runs in taken.values())
        table.rows.append(
            [rows, ours[2], ours[0], theirs[0], ours[0] / theirs[0], ours[1], theirs[1],
             ours[1] / theirs[1]]
        )  # fmt: skip
    return [table]


if __name__ == "__main__":
    for result in run():
        print(result.markdown())
