"""PyMC's models: by nutpie on all rows, by bambi from a formula, by ADVI on a few rows per step.

The samplers run to the end in one call, so warm-up and sampling share its seconds in proportion
to the gradients that they took.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd

from modicum_lab.bench.contenders.base import contender
from modicum_lab.bench.contenders.common import forecast, gradient_seconds
from modicum_lab.bench.problems import ProblemData
from modicum_lab.bench.runs import Budget, RunResult, from_draws, from_moments
from modicum_lab.bench.tables_with_formulas import GROUP_SD, INTERCEPT_SD, LINE_SD

OF_GROUPS = 500  # iterations of warm-up, and draws of a chain, for models with groups
BATCH, STEPS = 500, 500  # rows of a step of ADVI, as in PyMC's example; steps of a call


@contender("nutpie", "PyMC by nutpie, all rows", "nutpie pymc", 4.0)
def nutpie_nuts(problem: ProblemData, budget: Budget) -> RunResult:
    """NUTS by nutpie, with its own adaptation, in z of t = mode + L z, as BlackJAX's has."""
    import nutpie
    import pymc as pm

    mode = problem.find_mode()
    tune, draws = forecast(gradient_seconds(problem, mode), budget)
    started = time.perf_counter()
    design = np.column_stack([problem.x, np.ones(len(problem))]).astype(np.float64)
    known = design @ mode.point + (0.0 if problem.offset is None else problem.offset)
    columns = design @ mode.factor
    with pm.Model() as model:
        z = pm.Flat("z", shape=problem.size)
        t = mode.point + pm.math.dot(mode.factor, z)
        pm.Potential("prior", -0.5 * pm.math.sum((t / problem.prior) ** 2))
        eta = known + pm.math.dot(columns, z)
        if problem.poisson:
            pm.Poisson("y", pm.math.exp(eta), observed=problem.y)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=problem.y)
    compiled = nutpie.compile_pymc_model(model)
    compiling = time.perf_counter() - started
    started = time.perf_counter()
    trace = nutpie.sample(
        compiled,
        draws=min(draws, budget.draws),
        tune=tune,
        chains=budget.chains,
        cores=budget.cores,
        seed=budget.seed,
        progress_bar=False,
    )
    sampled = time.perf_counter() - started
    found = mode.point + trace.posterior["z"].to_numpy() @ mode.factor.T
    return _result(problem, trace, found, mode.seconds + compiling, sampled, mode.rows)


@contender("bambi", "bambi, formula to summary", "bambi nutpie pymc", 6.0)
def bambi(problem: ProblemData, budget: Budget) -> RunResult:
    """A frame and a formula, the same priors, nutpie's NUTS, and ArviZ's summary."""
    import bambi as bmb

    tune, draws = forecast(gradient_seconds(problem, problem.find_mode()), budget)
    names = [f"x{j}" for j in range(problem.size - 1)]
    table = pd.DataFrame(np.asarray(problem.x, np.float64), columns=names)
    table["y"] = problem.y.astype(int)
    formula = "y ~ " + " + ".join(names)
    if problem.offset is not None:
        table["known"], formula = problem.offset, f"{formula} + offset(known)"
    scales = dict(zip([*names, "Intercept"], problem.prior, strict=True))
    priors = {name: bmb.Prior("Normal", mu=0, sigma=scale) for name, scale in scales.items()}
    length = {"tune": tune, "draws": min(draws, budget.draws)}
    return _by_bambi(problem, budget, formula, table, priors, list(scales), length)


@contender("bambi-groups", "bambi, formula to summary", "bambi nutpie pymc", 6.0, "groups")
def bambi_groups(problem: ProblemData, budget: Budget) -> RunResult:
    """The same of a model with groups, whose effects are explicit and not centred."""
    import bambi as bmb

    wide = bmb.Prior("HalfNormal", sigma=GROUP_SD)
    priors = {
        "x": bmb.Prior("Normal", mu=0, sigma=LINE_SD),
        "Intercept": bmb.Prior("Normal", mu=0, sigma=INTERCEPT_SD),
        "1|g": bmb.Prior("Normal", mu=0, sigma=wide),
    }
    names, length = ["x", "Intercept", "1|g_sigma"], {"tune": OF_GROUPS, "draws": OF_GROUPS}
    return _by_bambi(problem, budget, problem.formula, problem.table, priors, names, length)


def _by_bambi(
    problem: ProblemData,
    budget: Budget,
    formula: str,
    table: pd.DataFrame,
    priors: dict[str, Any],
    names: list[str],
    length: dict[str, int],
) -> RunResult:
    import arviz
    import bambi as bmb

    started = time.perf_counter()
    family = "poisson" if problem.poisson else "bernoulli"
    model = bmb.Model(formula, table, family=family, priors=priors)
    model.build()
    building = time.perf_counter() - started
    started = time.perf_counter()
    trace = model.fit(
        inference_method="nutpie",
        **length,
        chains=budget.chains,
        cores=budget.cores,
        random_seed=budget.seed,
        progressbar=False,
    )
    sampled = time.perf_counter() - started
    started = time.perf_counter()
    arviz.summary(trace)
    summarised = time.perf_counter() - started
    found = np.stack([trace.posterior[name].to_numpy() for name in names], axis=-1)
    return _result(problem, trace, found, building + summarised, sampled, 0)


@contender("pymc-advi", "PyMC ADVI, 500 rows per step", "pymc", 4.0)
def minibatch_advi(problem: ProblemData, budget: Budget) -> RunResult:
    """A normal with independent entries of z, t = mode + L z, fitted until time is up."""
    import pymc as pm

    mode = problem.find_mode()
    started = time.perf_counter()
    design = np.column_stack([problem.x, np.ones(len(problem))]).astype(np.float64)
    known = design @ mode.point + (0.0 if problem.offset is None else problem.offset)
    columns, y = design @ mode.factor, np.asarray(problem.y, np.float64)
    with pm.Model() as model:
        z = pm.Flat("z", shape=problem.size)
        t = mode.point + pm.math.dot(mode.factor, z)
        pm.Potential("prior", -0.5 * pm.math.sum((t / problem.prior) ** 2))
        of_rows, at_mode, seen = pm.Minibatch(columns, known, y, batch_size=BATCH)
        eta = at_mode + pm.math.dot(of_rows, z)
        if problem.poisson:
            pm.Poisson("y", pm.math.exp(eta), observed=seen, total_size=len(problem))
        else:
            pm.Bernoulli("y", logit_p=eta, observed=seen, total_size=len(problem))
        advi = pm.ADVI(model=model, random_seed=budget.seed)
        advi.fit(1, progressbar=False)
    before, started, steps = time.perf_counter() - started, time.perf_counter(), 0
    while time.perf_counter() - started < budget.seconds:
        advi.refine(STEPS, progressbar=False)
        steps += STEPS
    sampling = time.perf_counter() - started
    centre, spread = (np.asarray(part.eval()) for part in (advi.approx.mean, advi.approx.std))
    mean, sd = mode.point + mode.factor @ centre, np.sqrt(mode.factor**2 @ spread**2)
    return from_moments(mean, sd, mode.seconds + before + sampling, mode.rows + BATCH * steps)


def _result(
    problem: ProblemData,
    trace: Any,  # ArviZ has no types
    draws: np.ndarray,
    before: float,
    sampled: float,
    rows_before: int,
) -> RunResult:
    """Divide what one call took between warm-up and sampling."""
    gradients = int(trace.sample_stats["n_steps"].sum())
    warming = int(trace.warmup_sample_stats["n_steps"].sum())
    share = gradients / (gradients + warming)
    return from_draws(
        draws,
        before=before + (1 - share) * sampled,
        sampling=share * sampled,
        rows_before=rows_before + len(problem) * warming,
        rows_sampling=len(problem) * gradients,
    )
