"""A digest of 10^7 rows: its size, and its posteriors compared with those of all rows.

The digest is made once, sampled, and sampled again after removing rows that differ from the
others; each time it is compared with a run on the rows themselves. Seconds are processor seconds,
which other load hardly affects.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import modicum as mo
from modicum import Posterior, Rows
from modicum.models import BaseModel
from modicum_lab.bench import tall
from modicum_lab.bench.tables import Table, verdict

T = TypeVar("T")
FILE, MEANS, SDS, SECONDS = 50.0, 0.05, 0.05, 1.0  # MB, posterior sd, share of an sd
REMOVED = tall.OTHERS


def differences(ours: Posterior, theirs: Posterior) -> tuple[float, float]:
    """Return the largest difference of means, in posterior sd, and of sds, as a share."""
    sd = np.append(theirs.sd("beta"), theirs.sd("intercept"))
    means = [np.append(p.mean("beta"), p.mean("intercept")) for p in (ours, theirs)]
    other = np.append(ours.sd("beta"), ours.sd("intercept"))
    return (
        float(np.max(np.abs(means[0] - means[1]) / sd)),
        float(np.max(np.abs(other / sd - 1))),
    )


def run(quick: bool = False) -> list[Table]:
    """Make a digest, sample it, remove rows from it and sample it again."""
    n, size, draws = (200_000, 10_000, 1_000) if quick else (10_000_000, 100_000, 8_000)
    model, rows = mo.models.Logistic(prior_scale=1.0, intercept_scale=10.0), tall.rows(n)
    digest, making = _timed(lambda: mo.digest(model, rows, size, random_seed=1, progressbar=False))
    with tempfile.TemporaryDirectory() as folder:
        digest.save(Path(folder) / "a.digest")
        megabytes = (Path(folder) / "a.digest").stat().st_size / 1e6
        digest = mo.Digest.load(Path(folder) / "a.digest")
    gone, left = (rows.subset(np.arange(*ends)) for ends in ((0, REMOVED), (REMOVED, n)))
    less, first = _timed(lambda: digest.remove(gone))
    _, again = _timed(lambda: digest.remove(gone))

    table = Table(
        f"A digest of {n:,} rows, {len(digest.pool):,} of them kept",
        ["what", "value", "limit", "kept"],
    )

    def enter(label: str, value: float, limit: float) -> None:
        table.rows.append([label, value, limit, verdict(value, limit)])

    enter("its file, MB", megabytes, FILE)
    whole, after = (_sampled(model, data, draws) for data in (rows, left))
    ours, removed = (_sampled(model, data, draws) for data in (digest, less))
    for label, post, other in (("the digest", ours, whole), ("rows removed", removed, after)):
        means, sds = differences(post, other)
        enter(f"{label}: largest difference of a mean, posterior sd", means, MEANS)
        enter(f"{label}: largest difference of an sd, share of it", sds, SDS)
    enter(f"processor seconds to remove {REMOVED:,} rows, the first time", first, SECONDS)
    enter("the same, once compiled", again, SECONDS)
    unmoved = differences(ours, after)[0]
    table.rows.append(["for comparison: means with no row removed", unmoved, "", ""])
    table.note = (
        f"digest.error: {digest.error:.2g} posterior sd; making it took {making:.0f} processor "
        "seconds. "
        f"{4 * draws:,} draws each: Monte Carlo error alone differs by up to "
        f"{_noise(whole):.2g} posterior sd."
    )
    return [table]


def _noise(post: Posterior) -> float:
    """Return three Monte Carlo errors of a difference of two means, in posterior sd."""
    return float(3 * np.sqrt(2 / post.summary()["ess_bulk"].min()))


def _sampled(model: BaseModel, data: Rows | mo.Digest, draws: int) -> Posterior:
    settings: dict[str, Any] = {"method": "hmc-ecs", "tune": 500, "random_seed": 2}
    return mo.sample(model, data, draws=draws, progressbar=False, **settings)


def _timed(make: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    result = make()
    return result, time.process_time() - start
