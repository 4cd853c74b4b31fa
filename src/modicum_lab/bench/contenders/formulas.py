"""From a table and a formula: Modicum by default, lme4, glmmTMB, GPBoost, and mgcv's bam.

All but Modicum return estimates with standard errors. R's are run by Rscript, in a process whose
memory is measured; seconds are those of the fit and of its standard errors, without reading.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import modicum as mo
from modicum_lab.bench.contenders.base import contender
from modicum_lab.bench.problems import ProblemData
from modicum_lab.bench.process import PEAK_IN_R
from modicum_lab.bench.runs import Budget, Infeasible, RunResult, from_moments
from modicum_lab.bench.tables_with_formulas import GROUP_SD, INSIDE, INTERCEPT_SD, LINE_SD

PATIENCE = 500  # seconds for a process of R
HALF_WIDTH = 1.85  # variance of half of such an interval over that of an sd, of normal draws


@contender("modicum-fit", "Modicum, formula to summary", "modicum", kinds="groups smooths")
def modicum_fit(problem: ProblemData, budget: Budget) -> RunResult:
    """What `mo.fit` does if nothing is asked for, with its summary or predictions."""
    normal = mo.priors.Normal
    priors: dict[str, mo.priors.Prior] = {
        "common": normal(0, LINE_SD),
        "intercept": normal(0, INTERCEPT_SD),
        "group_sd" if problem.kind == "groups" else "smooth_sd": mo.priors.HalfNormal(GROUP_SD),
    }
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)
        post = mo.fit(
            problem.formula,
            problem.table,
            priors=priors,
            random_seed=budget.seed,
            progressbar=False,
        )
        summary = post.summary()
    if problem.kind == "groups":
        lines = summary.loc[["beta[x]", "intercept", "group_sd[g]"]]
        mean, sd = lines["mean"].to_numpy(), lines["sd"].to_numpy()
        ess = lines["ess_bulk"].to_numpy(float)
        squares = ess
    else:
        chance = post.predict(problem.grid, prob=INSIDE)
        mean, sd = chance.mean, (chance.upper - chance.lower) / 2
        ess = np.full(len(mean), float(summary["ess_bulk"].min()))
        squares = ess / HALF_WIDTH
    return RunResult(
        mean=mean.tolist(),
        sd=sd.tolist(),
        ess=ess.tolist(),
        ess_square=squares.tolist(),
        before=0.0,  # nothing precedes that more draws could share
        sampling=time.perf_counter() - started,
        rows_before=0,
        rows_sampling=post.ledger.evaluations,
        draws=post.chains * post.num_draws,
        chains=post.chains,
        notes=[f"it warned: {text}" for text in post.warnings],
    )


@contender("gpboost", "GPBoost, point estimate", "gpboost", 6.0, "groups")
def gpboost_fit(problem: ProblemData, budget: Budget) -> RunResult:
    """Laplace's approximation, with standard errors."""
    import gpboost

    table = problem.table
    columns = np.column_stack([table["x"], np.ones(len(table))])
    started = time.perf_counter()
    model = gpboost.GPModel(group_data=table["g"].to_numpy(), likelihood="bernoulli_logit")
    model.fit(y=table["late"].to_numpy(float), X=columns)
    (mean, error), (variance, its) = (
        np.asarray(part).reshape(2, -1)
        for part in (model.get_coef(std_err=True), model.get_cov_pars(std_err=True))
    )
    seconds = time.perf_counter() - started
    sd = np.sqrt(variance[0])
    return from_moments([*mean, sd], [*error, its[0] / (2 * sd)], seconds, 0)


GLMER = """
library(lme4)
took <- system.time({
  m <- glmer(late ~ x + (1 | g), data = t, family = binomial)
  mean <- c(rev(fixef(m)), attr(VarCorr(m)$g, "stddev"))
  sd <- c(rev(sqrt(diag(as.matrix(vcov(m))))), NA)
})
"""
GLMM_TMB = """
library(glmmTMB)
took <- system.time({
  m <- glmmTMB(late ~ x + (1 | g), data = t, family = binomial)
  s <- exp(m$fit$parfull[["theta"]])
  mean <- c(rev(fixef(m)$cond), s)
  all <- sqrt(diag(vcov(m, full = TRUE)))
  sd <- c(all[[2]], all[[1]], s * all[[3]])
})
"""
BAM = """
library(mgcv)
took <- system.time({{
  m <- bam({formula}, data = t, family = binomial(), discrete = TRUE, nthreads = {cores})
  p <- predict(m, read.csv(a[2]), type = "response", se.fit = TRUE, discrete = FALSE)
  mean <- p$fit
  sd <- p$se.fit
}})
"""


@contender("lme4", "lme4's glmer, point estimate", "R:lme4", 0.0, "groups")
def glmer(problem: ProblemData, budget: Budget) -> RunResult:
    """Laplace's approximation; lme4 gives no standard error of the sd of groups."""
    return _by_r(problem, GLMER)


@contender("glmmtmb", "glmmTMB, point estimate", "R:glmmTMB", 0.0, "groups")
def glmm_tmb(problem: ProblemData, budget: Budget) -> RunResult:
    """Laplace's approximation, by automatic differentiation."""
    return _by_r(problem, GLMM_TMB)


@contender("bam", "mgcv's bam, point estimate", "R:mgcv", 0.0, "smooths")
def bam(problem: ProblemData, budget: Budget) -> RunResult:
    """The same splines, of binned columns, with the smoothness that is most probable."""
    formula = problem.formula.replace(")", ', bs = "ps", k = 10)')
    return _by_r(problem, BAM.format(formula=formula, cores=budget.cores))


def _by_r(problem: ProblemData, fit: str) -> RunResult:
    """Run a script that sets `took`, `mean` and `sd`."""
    code = (
        "a <- commandArgs(trailingOnly = TRUE)\nt <- read.csv(a[1])\n"
        "if (!is.null(t$g)) t$g <- factor(t$g)\n"
        f"suppressMessages({{{fit}}})\n{PEAK_IN_R}\n"
        'cat("", peak, took[["elapsed"]], mean, sd, sep = "\\n")\n'
    )
    tables = (str(problem.folder / name) for name in ("table.csv", "grid.csv"))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "fit.R"
        script.write_text(code)
        command = [shutil.which("Rscript") or "Rscript", str(script), *tables]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Infeasible(f"it was stopped after {PATIENCE} s") from None
    if done.returncode:
        raise Infeasible(f"R said: {' '.join(done.stderr.split())[-200:]}")
    words = done.stdout.split()[-2 - 2 * problem.size :]
    peak, seconds, *values = (float(word.replace("NA", "nan")) for word in words)
    mean, sd = np.split(np.array(values), 2)
    found = from_moments(mean, sd, seconds, 0)
    found.memory = int(peak)
    return found
