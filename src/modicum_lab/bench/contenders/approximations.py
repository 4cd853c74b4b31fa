"""Normal approximations: fast, and as accurate as the posterior is normal.

Their draws are independent and so count in full; the error columns show how good they are.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from modicum_lab.bench.contenders.base import contender
from modicum_lab.bench.problems import ProblemData
from modicum_lab.bench.runs import EFFECTIVE, Budget, RunResult

EXACTLY = 1e-6  # posterior sd: the tolerance of Modicum's own search for the mode


@contender("laplace", "Laplace approximation", "modicum")
def laplace(problem: ProblemData, budget: Budget) -> RunResult:
    """Modicum's mode and Hessian; found precisely, since no sampler makes up for an error."""
    mode = problem.find_mode(within=EXACTLY)
    return _normal(mode.point, mode.covariance, mode.seconds, mode.rows, budget)


@contender("statsmodels", "statsmodels GLM", "statsmodels", 12.0)
def glm(problem: ProblemData, budget: Budget) -> RunResult:
    """Maximum likelihood, without a prior, with its standard errors."""
    import statsmodels.api as sm

    started = time.perf_counter()
    design = np.column_stack([problem.x, np.ones(len(problem))])
    family = sm.families.Poisson() if problem.poisson else sm.families.Binomial()
    with _collecting():
        fit = sm.GLM(problem.y, design, family=family, offset=problem.offset).fit()
    seconds = time.perf_counter() - started
    rows = len(problem) * int(fit.fit_history["iteration"])
    return _normal(np.asarray(fit.params), np.asarray(fit.cov_params()), seconds, rows, budget)


@contender("glum", "glum GLM", "glum", 4.0)
def glum(problem: ProblemData, budget: Budget) -> RunResult:
    """Maximum likelihood by glum, with its standard errors."""
    from glum import GeneralizedLinearRegressor

    started = time.perf_counter()
    family = "poisson" if problem.poisson else "binomial"
    x, y = (np.asarray(a, np.float64) for a in (problem.x, problem.y))
    fit = GeneralizedLinearRegressor(family=family, alpha=0, robust=False)
    fit.fit(x, y, offset=problem.offset)
    covariance = fit.covariance_matrix(x, y, offset=problem.offset, dispersion=1.0)
    order = [*range(1, problem.size), 0]  # glum has the intercept first
    point = np.append(fit.coef_, fit.intercept_)
    seconds = time.perf_counter() - started
    rows = len(problem) * (int(fit.n_iter_) + 1)
    return _normal(point, np.asarray(covariance)[np.ix_(order, order)], seconds, rows, budget)


@contextmanager
def _collecting() -> Iterator[None]:
    """Collect garbage continually: each iteration of IRLS leaves a gigabyte in reference cycles."""
    done = threading.Event()

    def collect() -> None:
        while not done.wait(0.5):
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _normal(
    point: np.ndarray, covariance: np.ndarray, seconds: float, rows: int, budget: Budget
) -> RunResult:
    """Time a thousand draws; the moments are known exactly."""
    started = time.perf_counter()
    factor = _factor(covariance)
    _ = point + np.random.default_rng(budget.seed).standard_normal((EFFECTIVE, len(point))) @ factor
    return RunResult(
        mean=point.tolist(),
        sd=np.sqrt(np.diag(covariance)).tolist(),
        ess=[float(EFFECTIVE)] * len(point),
        ess_square=[float(EFFECTIVE)] * len(point),
        before=seconds,
        sampling=time.perf_counter() - started,
        rows_before=rows,
        rows_sampling=0,
        draws=EFFECTIVE,
        known_moments=True,
        notes=["no Monte Carlo error: its moments are known"],
    )


def _factor(covariance: np.ndarray) -> np.ndarray:
    """Return R with R'R the covariance, which may be singular, as with collinear columns."""
    try:
        return np.linalg.cholesky(covariance).T
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0))).T)
