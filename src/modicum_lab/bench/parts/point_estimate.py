"""A thousand effective draws compared with a point estimate, glum's, from a cold start.

All fit the same logistic regression alternately in fresh interpreters, with the rows in memory.
Seconds are those of the fit, with all passes and all compilation. Import times are given
separately. HMC-ECS starts twice: with nothing compiled, and in a process that finds the code of the
first in JAX's cache on disk.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from modicum_lab.bench.process import in_process
from modicum_lab.bench.tables import Table

COLUMNS = 28
DRAWS = 350  # per chain, of four: somewhat more than needed for a thousand effective draws
CHAIN_DRAWS, CHAIN_TUNE = 500, 300
PRIOR_SD = 2.5


def _arrays(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulate normal columns and outcomes here, since other modules import what is timed."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, COLUMNS))
    eta = x @ (1.6 / np.sqrt(COLUMNS) * rng.standard_normal(COLUMNS)) - 1
    return x, (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(np.float64)


def _now() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def fit_point(rows: int) -> list[float]:
    """Return wall and processor seconds of importing glum, and of its MAP estimate."""
    x, y = _arrays(rows)
    started = _now()
    from glum import GeneralizedLinearRegressor

    imported = _now()
    alpha = 1 / (rows * PRIOR_SD**2)
    GeneralizedLinearRegressor(family="binomial", l1_ratio=0, alpha=alpha).fit(x, y)
    return [*(imported - started), *(_now() - imported), 0.0]


def fit_draws(rows: int) -> list[float]:
    """Like `fit_point`, for Modicum's default draws; also return the effective draws."""
    x, y = _arrays(rows)
    started = _now()
    import modicum as mo

    imported = _now()
    model = mo.models.Logistic(prior_scale=PRIOR_SD)
    post = mo.sample(model, mo.Rows(x=x, y=y), draws=DRAWS, random_seed=1, progressbar=False)
    post.mean("beta")
    seconds = _now() - imported
    return [*(imported - started), *seconds, float(post.summary()["ess_bulk"].min())]


def fit_chains(rows: int, cache: str) -> list[float]:
    """Like `fit_draws`, for HMC-ECS, whose compiled code is kept in `cache`."""
    x, y = _arrays(rows)
    started = _now()
    import jax

    import modicum as mo

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    imported = _now()
    model = mo.models.Logistic(prior_scale=PRIOR_SD)
    post = mo.sample(
        model, mo.Rows(x=x, y=y), method="hmc-ecs", draws=CHAIN_DRAWS, tune=CHAIN_TUNE,
        random_seed=1, progressbar=False,
    )  # fmt: skip
    post.mean("beta")
    seconds = _now() - imported
    return [*(imported - started), *seconds, float(post.summary()["ess_bulk"].min())]


def run(quick: bool = False) -> list[Table]:
    """Run both alternately, at several sizes."""
    fits = Table(
        "A thousand effective draws by default, and glum's point estimate, from cold starts",
        ["rows", "effective draws", "seconds", "glum's", "ratio", "processor seconds", "glum's",
         "ratio"],
    )  # fmt: skip
    imports = Table("Imports", ["rows", "processor seconds of modicum", "of glum"])
    for rows in (20_000,) if quick else (100_000, 1_000_000, 10_000_000):
        seconds: dict[str, list[list[float]]] = {"fit_draws": [], "fit_point": []}
        for turn in range(1 if quick else 5 if rows <= 1_000_000 else 2):
            for name in sorted(seconds, reverse=bool(turn % 2)):
                seconds[name].append(in_process(__name__, name, rows))
        ours, theirs = ([median(x) for x in zip(*runs, strict=True)] for runs in seconds.values())
        fits.rows.append(
            [rows, ours[4], ours[2], theirs[2], ours[2] / theirs[2], ours[3], theirs[3],
             ours[3] / theirs[3]]
        )  # fmt: skip
        imports.rows.append([rows, ours[1], theirs[1]])
    return [fits, starts((20_000,) if quick else (100_000, 1_000_000), 1 if quick else 3), imports]


def starts(sizes: Sequence[int], turns: int) -> Table:
    """Compare HMC-ECS with and without compiled code with glum, alternately."""
    table = Table(
        "HMC-ECS from a first and from a second start, and glum's point estimate",
        ["rows", "effective draws", "first, seconds", "second", "glum's", "first over glum's",
         "second over glum's"],
    )  # fmt: skip
    for rows in sizes:
        timings: list[list[float]] = []
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as cache:
                first = in_process(__name__, "fit_chains", rows, cache)
                second = in_process(__name__, "fit_chains", rows, cache)
            point = in_process(__name__, "fit_point", rows)
            timings.append([first[4], first[2], second[2], point[2]])
        ess, *seconds = (median(column) for column in zip(*timings, strict=True))
        of_first, of_second, of_glum = seconds
        table.rows.append([rows, ess, *seconds, of_first / of_glum, of_second / of_glum])
    return table
