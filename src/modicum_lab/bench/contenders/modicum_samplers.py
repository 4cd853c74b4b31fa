"""Modicum's own methods, as `mo.sample` runs them."""

from __future__ import annotations

import time
from typing import Any

from modicum import HMCECS, NUTS, SGHMCCV, LogPosterior, Posterior, Rows, SignedHMCECS, sample
from modicum.methods import Method
from modicum_lab.bench.contenders.base import contender
from modicum_lab.bench.contenders.common import forecast
from modicum_lab.bench.problems import ProblemData
from modicum_lab.bench.runs import EFFECTIVE, Budget, RunResult, flat_scalars, from_draws

TUNE = 300  # chains are whitened at the mode and need little; NumPyro's HMCECS gets as many


@contender("modicum-weighted", "Modicum, weighted draws", "modicum")
def weighted(problem: ProblemData, budget: Budget) -> RunResult:
    """What a user gets who asks for nothing: independent draws with weights, here 1,000.

    Nothing precedes them that more draws could share, so all of the time counts as sampling.
    """
    return _sample(problem, problem.rows, "auto", budget, draws=EFFECTIVE // budget.chains)


@contender("modicum", "Modicum HMC-ECS, defaults", "modicum")
def hmc_ecs(problem: ProblemData, budget: Budget) -> RunResult:
    """HMC-ECS as it tunes itself, rows in memory."""
    return _sample(problem, problem.rows, "hmc-ecs", budget)


@contender("modicum-store", "Modicum HMC-ECS, rows on disk", "modicum", 0.0)
def from_store(problem: ProblemData, budget: Budget) -> RunResult:
    """HMC-ECS, with all rows fetched from a row store."""
    everything_fetched = HMCECS(memory_limit=0)  # else a small store is read into memory
    return _sample(problem, problem.store(), everything_fetched, budget)


@contender("modicum-signed", "Modicum HMC-ECS, signed", "modicum")
def signed(problem: ProblemData, budget: Budget) -> RunResult:
    """The exact, signed method."""
    return _sample(problem, problem.rows, SignedHMCECS(), budget)


@contender("modicum-sghmc", "Modicum SGHMC, control variates", "modicum")
def sghmc(problem: ProblemData, budget: Budget) -> RunResult:
    """Stochastic gradients with an automatic step size; one position in ten is kept."""
    return _sample(problem, problem.rows, SGHMCCV(), budget, thin=10)


@contender("modicum-nuts", "Modicum NUTS, all rows", "modicum", 2.0)
def nuts(problem: ProblemData, budget: Budget) -> RunResult:
    """NUTS, with every row for every gradient, and as many draws as fit."""
    tune, draws = forecast(_pass_seconds(problem), budget)
    per_chain = max(10, min(draws, budget.draws))  # chains run in parallel
    return _sample(problem, problem.rows, NUTS(), budget, tune=tune, draws=per_chain)


def _pass_seconds(problem: ProblemData) -> float:
    """Time a gradient over all rows."""
    posterior = LogPosterior(problem.model, problem.rows)
    posterior.gradient(posterior.start)  # compile
    started = time.perf_counter()
    posterior.gradient(posterior.start)
    return time.perf_counter() - started


def _sample(
    problem: ProblemData,
    rows: Rows,
    method: str | Method,
    budget: Budget,
    *,
    thin: int = 1,
    tune: int = TUNE,
    draws: int | None = None,
) -> RunResult:
    started = time.perf_counter()
    post = sample(
        problem.model,
        rows,
        method=method,
        draws=draws or budget.draws,
        tune=tune,
        thin=thin,
        chains=budget.chains,
        random_seed=budget.seed,
        progressbar=False,
    )
    total = time.perf_counter() - started
    sampling = float(post.settings["sampling_seconds"]) or total
    counts = post.ledger.by_purpose
    costs: dict[str, Any] = {
        "before": total - sampling,
        "sampling": sampling,
        "rows_sampling": counts.get("sampling", 0),
        "rows_before": post.ledger.evaluations - counts.get("sampling", 0),
        "notes": [*_subsample(post), *(f"it warned: {text}" for text in post.warnings)],
    }
    if post.weights is not None:
        return _weighted(post, costs)
    return from_draws(flat_scalars(post.draws), **costs)


def _weighted(post: Posterior, costs: dict[str, Any]) -> RunResult:
    """Return the result of draws with signs or weights, from the summary, which uses them."""
    table = post.summary()
    order = [*(name for name in table.index if name != "intercept"), "intercept"]
    table = table.loc[order]
    return RunResult(
        mean=table["mean"].tolist(),
        sd=table["sd"].tolist(),
        ess=table["ess_bulk"].tolist(),
        ess_square=table["ess_bulk"].tolist(),
        draws=post.chains * post.num_draws,
        chains=post.chains,
        **costs,
    )


def _subsample(post: Posterior) -> list[str]:
    """Return a note on the subsample that was chosen."""
    choice: Any = post.tuning.get("subsample")
    return [f"m = {choice['value']:,}"] if isinstance(choice, dict) else []
