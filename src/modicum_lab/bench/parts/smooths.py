"""Three smooths of millions of flights: the whole posterior, and the point estimate of R's bam.

Flights are late by smooths of hour, distance and day of the year: 327,346 out of New York in 2013,
and 3,000,000 of the first half of 2001 if their file is in the data folder. Modicum draws from the
posterior, by default; mgcv's `bam(discrete=TRUE)` bins the columns and returns a point estimate.
Both have the same splines and start in a new process, in turns. Processor seconds and memory are
those of the whole process, with imports and reading; other load hardly affects them.

The second table says what rows hold. Columns of a smooth are its B-splines times a small matrix,
and four B-splines of a row are not 0; those of `bs(x)` are held as these four numbers. A pass over
dense columns is one product of matrices, and one over few values adds up products of pairs.

The third compares with exact draws, made by NumPy alone from the log-posterior of all rows:
scales take a random step, coefficients are proposed from the normal approximation given them, and
both are accepted or refused; then scales are drawn given the coefficients. Its last line is a
control: a fit with another prior, which must be found to differ.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd

import modicum as mo
from modicum_lab.bench.process import PEAK_IN_R
from modicum_lab.bench.tables import Table
from modicum_lab.datasets import frame

COLUMNS, K = ("hour", "distance", "day"), 10
FORMULA = "late ~ s(hour) + s(distance) + s(day)"
LATE = 30  # minutes
COMPARED = 2_000  # rows whose fitted chances are compared
PROB = 0.6827  # the interval of a normal distribution that reaches one sd to both sides
TURNS = 1
ABSENT = (
    "bam was not run, since R or its package mgcv is not installed (on Debian: apt-get install "
    "r-cran-mgcv)."
)

FIT = f"""
import json, sys, warnings
import modicum as mo, pandas as pd
from modicum_lab.bench.process import peak_memory
warnings.simplefilter("ignore")
table = pd.read_parquet(sys.argv[1])
post = mo.fit({FORMULA!r}, table, random_seed=1, progressbar=False)
chance = post.predict(pd.read_parquet(sys.argv[2]), prob={PROB})
print(json.dumps({{"effective": float(post.summary()["ess_bulk"].min()),
                  "memory": peak_memory(), "mean": chance.mean.tolist(),
                  "sd": ((chance.upper - chance.lower) / 2).tolist()}}))
"""

SMOOTH = 's({}, bs = "ps", k = ' + str(K) + ")"
BAM = f"""
suppressMessages(library(mgcv))
a <- commandArgs(trailingOnly = TRUE)
read <- function(path, names) {{
  size <- file.info(path)$size / 8
  as.data.frame(matrix(readBin(path, "double", size), ncol = length(names),
                       dimnames = list(NULL, names)))
}}
t <- read(a[1], c("late", "hour", "distance", "day"))
some <- read(a[2], c("late", "hour", "distance", "day"))
m <- bam(late ~ {" + ".join(map(SMOOTH.format, COLUMNS))}, data = t, family = binomial(),
         discrete = TRUE, nthreads = as.integer(a[3]))
{PEAK_IN_R}
cat(as.character(packageVersion("mgcv")), R.version.string, peak, sep = "\\n")
cat("", predict(m, some, type = "response", discrete = FALSE), sep = "\\n")
"""


class Cost(NamedTuple):
    """What a process printed, and its processor seconds."""

    output: str
    processor: float


def measured(command: Sequence[str]) -> Cost | None:
    """Run a process; None if it failed."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            return None
        output.seek(0)
        return Cost(output.read(), used.ru_utime + used.ru_stime)


def new_york() -> pd.DataFrame:
    """Return the flights out of New York that arrived."""
    table = frame("flights", download=False).dropna(subset=["arr_delay"])
    departs = table["sched_dep_time"]
    date = pd.to_datetime(table[["year", "month", "day"]])
    return _flights(
        table["arr_delay"], departs // 100 + departs % 100 / 60, table["distance"], date
    )


def of_2001() -> pd.DataFrame:
    """Return three million flights of the United States."""
    table = frame("flights-3m", download=False)
    date = table["date"]
    hour = date.dt.hour + date.dt.minute / 60
    return _flights(table["delay"], hour, table["distance"], date)


def _flights(
    delay: pd.Series, hour: pd.Series, distance: pd.Series, date: pd.Series
) -> pd.DataFrame:
    """Return the outcome and the three numbers."""
    columns = (delay > LATE, hour, distance, date.dt.day_of_year)
    table = pd.concat(columns, axis=1, keys=("late", *COLUMNS)).astype(float)
    return table.reset_index(drop=True)


def problems(quick: bool) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the tables that are here, with their names."""
    for name, make in (("New York, 2013", new_york), ("United States, 2001", of_2001)):
        try:
            table = make()
        except mo.DataError:
            continue
        yield name, table.sample(20_000, random_state=1) if quick else table


def run(quick: bool = False) -> Iterator[Table]:
    """Compare with bam, with rows of few values, and with exact draws."""
    yield beside_bam(quick)
    yield beside_few_values(quick)
    yield beside_all_rows(quick)


# Beside bam -------------------------------------------------------------------------------


def beside_bam(quick: bool) -> Table:
    """Fit every table in turns by both."""
    found = Table(
        "Three smooths: Modicum's posterior and bam's point estimate, from cold starts",
        ["flights", "rows", "contender", "processor seconds", "of bam's", "peak memory, MB",
         "effective draws", "chances off, sd: typical", "largest"],
    )  # fmt: skip
    versions = ""
    for name, table in problems(quick):
        costs: dict[str, list[Cost]] = {"Modicum": [], "bam": []}
        with tempfile.TemporaryDirectory() as folder:
            commands = _commands(Path(folder), table)
            for turn in range(1 if quick else TURNS):
                for who in sorted(commands, reverse=bool(turn % 2)):
                    cost = measured(commands[who])
                    costs[who] += [] if cost is None else [cost]
        ours = costs["Modicum"]
        assert ours, "Modicum's process failed"
        answers = [json.loads(cost.output) for cost in ours]
        theirs = [cost.output.split("\n", 3) for cost in costs["bam"]]
        processor = {who: median(c.processor for c in made) for who, made in costs.items() if made}
        ratio = processor["Modicum"] / processor["bam"] if theirs else ""
        common = [name, len(table)]
        found.rows.append(
            [*common, "Modicum, posterior", processor["Modicum"], ratio,
             _memory(a["memory"] for a in answers), round(answers[0]["effective"]), "", ""]
        )  # fmt: skip
        if theirs:
            versions = f"mgcv {theirs[0][0]}, {theirs[0][1]}."
            off = np.array(theirs[0][3].split(), float) - np.array(answers[0]["mean"])
            off = np.abs(off) / answers[0]["sd"]
            found.rows.append(
                [*common, "bam, point estimate", processor["bam"], 1.0,
                 _memory(float(parts[2]) for parts in theirs), "a point",
                 float(np.sqrt(np.mean(off**2))), off.max()]
            )  # fmt: skip
    found.note = versions or ABSENT
    return found


def _commands(folder: Path, table: pd.DataFrame) -> dict[str, list[str]]:
    """Write the table for both, and return how each is started."""
    some = table.sample(COMPARED, random_state=2)
    for name, rows in (("all", table), ("some", some)):
        rows.to_parquet(folder / f"{name}.parquet")
        np.asfortranarray(rows.to_numpy(float)).T.tofile(folder / f"{name}.bin")
    names = [str(folder / name) for name in ("all", "some")]
    commands = {"Modicum": [sys.executable, "-c", FIT, *(f"{name}.parquet" for name in names)]}
    r = shutil.which("Rscript")
    if r is not None and measured([r, "-e", "library(mgcv)"]) is not None:
        script = folder / "bam.R"
        script.write_text(BAM)
        arguments = [*(f"{name}.bin" for name in names), str(os.cpu_count() or 1)]
        commands["bam"] = [r, str(script), *arguments]
    return commands


def _memory(peaks: Iterable[float]) -> int:
    return round(median(peaks) / 1e6)


# Beside few values ------------------------------------------------------------------------

SEVERAL = 5  # passes, of which the fastest is taken
HELD = {"dense columns: s(x)": "s({})", "four values and a code: bs(x, df=9)": "bs({}, df=9)"}


def beside_few_values(quick: bool) -> Table:
    """Time passes over rows that hold as many columns, densely or as their non-zero values."""
    found = Table(
        "Three smooths: dense columns, and few values of each",
        ["rows hold", "rows", "columns", "bytes of a row", "ns of a row: gradient", "Hessian"],
    )  # fmt: skip
    made = next(problems(quick), None)
    if made is None:
        return found
    table, posteriors = made[1], {}
    seconds: dict[str, np.ndarray] = {}
    for held, term in HELD.items():
        formula = "late ~ " + " + ".join(map(term.format, COLUMNS))
        post = mo.fit(formula, table, draws=100, collapse=False, random_seed=1, progressbar=False)
        assert post.rows is not None
        posteriors[held] = mo.LogPosterior(post.fitted_model(), post.rows), post.rows
    for _ in range(SEVERAL):
        for held, (posterior, _) in posteriors.items():
            passes = posterior.gradient, posterior.hessian
            times = [_processor(of_all, np.zeros(len(posterior))) for of_all in passes]
            seconds[held] = np.minimum(seconds.get(held, np.inf), times)
    for held, (_, rows) in posteriors.items():
        each = 1e9 * seconds[held] / len(table)
        found.rows.append([held, len(table), len(rows.columns), rows.row_bytes, *each])
    return found


def _processor(of_all: Callable[[np.ndarray], object], at: np.ndarray) -> float:
    began = time.process_time()
    of_all(at)
    return time.process_time() - began


# Beside all rows --------------------------------------------------------------------------

LINE_SD, SMOOTH_SD = 1.0, 2.5  # of the priors: per unit of the column, and of a smooth's sd
INTERCEPT_SD = 10.0
CHAINS, STEPS, WARM_UP = 32, 200, 50
JUMP = 0.7  # of the logarithm of a scale
FLAT = 0.1  # scale below which the point of the expansion is the same
GRID = 40  # points of each smooth that are compared
CHUNK = 8_192


class Columns(NamedTuple):
    """Ones, lines and wiggles of each number, as the docs define them; and their constants."""

    ranges: np.ndarray  # (numbers, 2)
    means: np.ndarray  # of the numbers
    shifts: np.ndarray  # means of the wiggles, (numbers, K - 2)
    sizes: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> Columns:
        """Learn from all rows."""
        ranges = np.stack([x.min(axis=0), x.max(axis=0)], axis=1)
        raw = [_wiggles(v, *ends) for v, ends in zip(x.T, ranges, strict=True)]
        shifts = np.stack([w.mean(axis=0) for w in raw])
        sizes = np.array([np.sqrt(np.sum(w.var(axis=0))) for w in raw])
        return cls(ranges, x.mean(axis=0), shifts, sizes)

    def at(self, x: np.ndarray) -> np.ndarray:
        """Return the columns of rows."""
        lines, wiggles = x - self.means, []
        for v, ends, shift, size in zip(x.T, self.ranges, self.shifts, self.sizes, strict=True):
            wiggles.append((_wiggles(v, *ends) - shift) / size)
        return np.hstack([np.ones((len(x), 1)), lines, *wiggles])


def _wiggles(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return b(x) T, with T T' the pseudo-inverse of the second differences' D'D."""
    from scipy.interpolate import BSpline

    step = (high - low) / (K - 3)
    knots = low + step * np.arange(-3, K + 1)
    basis = BSpline.design_matrix(np.clip(x, knots[3], knots[K]), knots, 3).toarray()
    D = np.diff(np.eye(K), 2, axis=0)
    return np.asarray(basis @ np.linalg.pinv(D))


class Exact(NamedTuple):
    """Draws of the chances of some rows, and of the scales: (chains, steps, ...)."""

    chances: np.ndarray
    scales: np.ndarray
    accepted: float


def exact_draws(x: np.ndarray, y: np.ndarray, at: np.ndarray, rng: np.random.Generator) -> Exact:
    """Sample from the log-posterior of all rows as the module says."""
    columns = Columns.of(x)
    X, numbers = columns.at(x), x.shape[1]
    owner = np.r_[np.full(1 + numbers, -1), np.repeat(np.arange(numbers), K - 2)]
    centre, slope, information = _expanded_at_mode(X, y, owner)
    pull = slope + information @ centre
    c, scales = np.tile(centre, (CHAINS, 1)), np.ones((CHAINS, numbers))
    now, held, accepted = _log_likelihoods(X, y, c), [], []
    for number in range(STEPS):
        scales = _scales_given(c, owner, rng)
        others = scales * np.exp(JUMP * rng.standard_normal(scales.shape))
        proposed, ratio = np.empty_like(c), np.empty(CHAINS)
        for k in range(CHAINS):
            here, there = (_Given.of(information, pull, owner, s[k]) for s in (scales, others))
            proposed[k] = there.draw(rng)
            ratio[k] = there.log_over(proposed[k]) - here.log_over(c[k])
        after = _log_likelihoods(X, y, proposed)
        take = np.log(rng.random(CHAINS)) < ratio + after - now
        c, now = np.where(take[:, None], proposed, c), np.where(take, after, now)
        scales = np.where(take[:, None], others, scales)
        if number >= WARM_UP:
            held.append((c, scales))
            accepted.append(take.mean())
    coefficients, of_scales = (np.stack(part, axis=1) for part in zip(*held, strict=True))
    chances = 1 / (1 + np.exp(-coefficients @ columns.at(at).T))
    return Exact(chances, of_scales, float(np.mean(accepted)))


class _Given(NamedTuple):
    """The normal distribution of the coefficients at some scales, from which they are proposed."""

    mean: np.ndarray
    root: np.ndarray  # P = R R', its precision
    prior: np.ndarray  # precision of every coefficient
    log_prior: float  # of the logarithms of the scales, but for a constant

    @classmethod
    def of(
        cls, information: np.ndarray, pull: np.ndarray, owner: np.ndarray, scales: np.ndarray
    ) -> _Given:
        prior = _precision(owner, scales[None])[0]
        P = information + np.diag(prior)
        log_prior = np.sum(np.log(scales) - (scales / SMOOTH_SD) ** 2 / 2)
        return cls(np.linalg.solve(P, pull), np.linalg.cholesky(P), prior, float(log_prior))

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        noise = rng.standard_normal(len(self.mean))
        return np.asarray(self.mean + np.linalg.solve(self.root.T, noise))

    def log_over(self, c: np.ndarray) -> float:
        """Log-prior of coefficients and scales, less the log-density of drawing them."""
        log_prior = self.log_prior + np.sum(np.log(self.prior)) / 2 - self.prior @ c**2 / 2
        away = self.root.T @ (c - self.mean)
        return float(log_prior - np.sum(np.log(np.diag(self.root))) + away @ away / 2)


def _scales_given(c: np.ndarray, owner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the scales of each chain given its coefficients, on a fine grid of logarithms."""
    grid = np.linspace(-6, 5, 4_000)
    drawn = []
    for j in range(owner.max() + 1):
        squares = np.sum(c[:, owner == j] ** 2, axis=1)[:, None]
        logs = -squares * np.exp(-2 * grid) / 2 - (np.sum(owner == j) - 1) * grid
        logs -= np.exp(2 * grid) / (2 * SMOOTH_SD**2)
        drawn.append(np.exp(grid[np.argmax(logs + rng.gumbel(size=logs.shape), axis=1)]))
    return np.stack(drawn, axis=1)


def _expanded_at_mode(
    X: np.ndarray, y: np.ndarray, owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a point near the mode, and gradient and information of the log-likelihood there."""
    centre, scales = np.zeros(len(owner)), np.ones(owner.max() + 1)
    for _ in range(10):  # Newton's method, at scales that follow the coefficients
        slope, information = _expanded(X, y, centre)
        precision = _precision(owner, scales[None])[0]
        uphill = slope - precision * centre
        centre = centre + np.linalg.solve(information + np.diag(precision), uphill)
        squares = [np.mean(centre[owner == j] ** 2) for j in range(len(scales))]
        scales = np.maximum(np.sqrt(squares), FLAT)
    return centre, *_expanded(X, y, centre)


def _precision(owner: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the prior precision of every coefficient, for each row of scales."""
    sds = np.full((len(scales), len(owner)), LINE_SD)
    sds[:, 0] = INTERCEPT_SD
    sds[:, owner >= 0] = scales[:, owner[owner >= 0]]
    return np.asarray(sds**-2)


def _expanded(X: np.ndarray, y: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient and information of a logistic regression."""
    p = 1 / (1 + np.exp(-X @ c))
    return X.T @ (y - p), X.T @ ((p * (1 - p))[:, None] * X)


def _log_likelihoods(X: np.ndarray, y: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of all rows at each point."""
    total = points @ (X.T @ y)
    for first in range(0, len(X), CHUNK):
        eta = X[first : first + CHUNK] @ points.T
        total -= np.sum(np.maximum(eta, 0) + np.log1p(np.exp(-np.abs(eta))), axis=0)
    return np.asarray(total)


def beside_all_rows(quick: bool) -> Table:
    """Compare Modicum's draws with exact ones, for the smaller table."""
    found = Table(
        "Three smooths: Modicum's draws and exact draws by all rows",
        ["flights", "prior of the smooths' sds", "chances off, sd: typical", "largest",
         "sds of it, ratio: least", "largest", "smooths' sds off, sd: largest",
         "Monte Carlo error, sd"],
    )  # fmt: skip
    made = next(problems(quick), None)
    if made is None:
        found.note = "No table is in the data folder."
        return found
    name, table = made
    grid = grid_of(table)
    began = time.process_time()
    exact = exact_draws(
        table[list(COLUMNS)].to_numpy(), table["late"].to_numpy(), grid.to_numpy(),
        np.random.default_rng(3),
    )  # fmt: skip
    seconds = time.process_time() - began
    for sd in (SMOOTH_SD, SMOOTH_SD / 50):
        found.rows.append([name, f"HalfNormal({sd:g})", *compared(table, grid, exact, sd)])
    found.note = (
        f"{CHAINS} chains of {STEPS - WARM_UP} exact draws after {WARM_UP} of warm-up, "
        f"{100 * exact.accepted:.0f} % of proposals accepted, {seconds:.0f} processor seconds. "
        f"Chances are compared at {len(grid)} points: along each of the three numbers, the others "
        "at their means. The last line is the control."
    )
    return found


def grid_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows along each number, the others at their means."""
    means = table[list(COLUMNS)].mean()
    parts = []
    for name in COLUMNS:
        part = pd.DataFrame([means] * GRID, columns=list(COLUMNS))
        part[name] = np.linspace(table[name].min(), table[name].max(), GRID)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def compared(table: pd.DataFrame, grid: pd.DataFrame, exact: Exact, sd: float) -> list[float]:
    """Fit by default with a HalfNormal prior of this sd, and return how far the answers are off."""
    priors = {
        "common": mo.priors.Normal(0, LINE_SD),
        "intercept": mo.priors.Normal(0, INTERCEPT_SD),
        "smooth_sd": mo.priors.HalfNormal(sd),
    }
    post = mo.fit(FORMULA, table, priors=priors, draws=2_000, random_seed=1, progressbar=False)
    ours = post.predict(grid, prob=PROB)
    flat = exact.chances.reshape(-1, len(grid))
    mean, spread = flat.mean(axis=0), flat.std(axis=0)
    low, high = np.quantile(flat, [(1 - PROB) / 2, (1 + PROB) / 2], axis=0)
    off, ratio = np.abs(ours.mean - mean) / spread, (ours.upper - ours.lower) / (high - low)
    mean_of_ours = post.mean("smooth_sd")
    scales_off = np.abs(mean_of_ours - exact.scales.mean(axis=(0, 1)))
    scales_off /= exact.scales.std(axis=(0, 1))
    error = float(np.max(exact.chances.mean(axis=1).std(axis=0) / spread) / np.sqrt(CHAINS))
    typical = float(np.sqrt(np.mean(off**2)))
    return [typical, off.max(), ratio.min(), ratio.max(), scales_off.max(), error]
