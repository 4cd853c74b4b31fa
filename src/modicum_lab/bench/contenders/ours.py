"""Modicum's own methods, as `mo.sample` runs them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from modicum.ledger import Ledger
from modicum.methods import HMCECS, NUTS, Method, SignedHMCECS
from modicum.methods.sgmcmc.named import SGHMCCV
from modicum.models import Target
from modicum.passes import LocalEngine, Sums
from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum.runtime import in_double_precision
from modicum_lab.bench.contenders.base import contender
from modicum_lab.bench.contenders.whole import forecast
from modicum_lab.bench.problem_data import Given
from modicum_lab.bench.run_result import Budget, Found, from_draws

TUNE = 300  # whitened at the mode, chains need little; NumPyro's HMCECS gets as many


@contender("modicum", "Modicum HMC-ECS, defaults", "modicum")
def hmc_ecs(given: Given, budget: Budget) -> Found:
    """The default method, rows in memory."""
    return _sampled(given, given.rows, "hmc-ecs", budget)


@contender("modicum-store", "Modicum HMC-ECS, rows on disk", "modicum", 0.0)
def from_store(given: Given, budget: Budget) -> Found:
    """The default method, rows fetched from a row store however few they are."""
    everything_fetched = HMCECS(memory_limit=0)  # a small store would be read into memory
    return _sampled(given, given.store(), everything_fetched, budget)


@contender("modicum-signed", "Modicum HMC-ECS, signed", "modicum")
def signed(given: Given, budget: Budget) -> Found:
    """The exact version."""
    return _sampled(given, given.rows, SignedHMCECS(), budget)


@contender("modicum-sghmc", "Modicum SGHMC, control variates", "modicum")
def sghmc(given: Given, budget: Budget) -> Found:
    """Stochastic gradients, step size by itself; one position in ten is kept."""
    return _sampled(given, given.rows, SGHMCCV(), budget, thin=10)


@contender("modicum-nuts", "Modicum NUTS, all rows", "modicum", 2.0)
def nuts(given: Given, budget: Budget) -> Found:
    """Every row for every gradient; as many draws as fit."""
    tune, draws = forecast(_pass_seconds(given), budget)
    each = max(10, min(draws, budget.draws))  # chains run beside each other
    return _sampled(given, given.rows, NUTS(), budget, tune=tune, draws=each)


@in_double_precision
def _pass_seconds(given: Given) -> float:
    """Time a gradient over all rows."""
    target, start = Target.of(given.model, given.rows)
    engine = LocalEngine(progressbar=False)
    sums = Sums(target, given.rows, engine, Ledger(rows=len(given)))
    sums.gradient(start, "bench")  # compile
    started = time.perf_counter()
    sums.gradient(start, "bench")
    return time.perf_counter() - started


def _sampled(
    given: Given,
    rows: Rows,
    method: str | Method,
    budget: Budget,
    *,
    thin: int = 1,
    tune: int = TUNE,
    draws: int | None = None,
) -> Found:
    from modicum.sample import sample

    started = time.perf_counter()
    post = sample(
        given.model,
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
    sampling = float(post.settings["sampling_seconds"])
    counts = post.ledger.by_purpose
    rest: dict[str, Any] = {
        "before": total - sampling,
        "sampling": sampling,
        "rows_sampling": counts.get("sampling", 0),
        "rows_before": post.ledger.evaluations - counts.get("sampling", 0),
        "notes": [*_chosen(post), *(f"it warned: {text}" for text in post.warnings)],
    }
    flat = np.concatenate([post["beta"], post["intercept"][..., None]], axis=2)
    return from_draws(flat, **rest) if post.weights is None else _weighted(post, rest)


def _weighted(post: Posterior, rest: dict[str, Any]) -> Found:
    """Draws with signs: the summary respects them."""
    table = post.summary()
    order = [*(name for name in table.index if name != "intercept"), "intercept"]
    table = table.loc[order]
    return Found(
        mean=table["mean"].tolist(),
        sd=table["sd"].tolist(),
        ess=table["ess_bulk"].tolist(),
        ess_square=table["ess_bulk"].tolist(),
        draws=post.chains * post.num_draws,
        chains=post.chains,
        **rest,
    )


def _chosen(post: Posterior) -> list[str]:
    """The subsample it chose for itself."""
    told: Any = post.tuning.get("subsample")
    return [f"m = {told['value']:,}"] if isinstance(told, dict) else []
