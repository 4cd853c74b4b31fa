"""NumPyro: HMCECS at its best and by default, and NUTS on all rows.

Their kernels are driven through NumPyro's own interface (`init`, `sample`). HMCECS with a proxy
does not run parallel chains: one chain is run, and credited with perfect copies on idle cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from modicum_lab.bench.contenders.base import contender
from modicum_lab.bench.contenders.common import (
    Pytree,
    arrays,
    forecast,
    gradient_seconds,
    scan_until,
)
from modicum_lab.bench.problems import ModeRun, ProblemData
from modicum_lab.bench.runs import Budget, RunResult, from_draws

TUNE = 300  # as many as Modicum
CHUNK, WHOLE_CHUNK = 50, 10


@contender("numpyro-ecs-200", "NumPyro HMCECS, m = 200", "numpyro", 8.0)
def ecs_200(problem: ProblemData, budget: Budget) -> RunResult:
    """HMCECS around NUTS, with 200 rows, a second-order Taylor proxy at the mode, 100 blocks."""
    return _ecs(problem, budget, 200)


@contender("numpyro-ecs-1300", "NumPyro HMCECS, m = 1,300", "numpyro", 8.0)
def ecs_1300(problem: ProblemData, budget: Budget) -> RunResult:
    """Like `ecs_200`, with the subsample of the HMC-ECS paper."""
    return _ecs(problem, budget, 1_300)


@contender("numpyro-ecs-hessian", "NumPyro HMCECS, m = 200, Hessian as mass", "numpyro", 8.0)
def ecs_hessian(problem: ProblemData, budget: Budget) -> RunResult:
    """Like `ecs_200`, with the Hessian at the mode as mass matrix."""
    return _ecs(problem, budget, 200, hessian=True)


@contender("numpyro-ecs-default", "NumPyro HMCECS, no proxy", "numpyro", 2.0)
def ecs_default(problem: ProblemData, budget: Budget) -> RunResult:
    """HMCECS by its defaults: no proxy and one block."""
    return _ecs(problem, budget, 1_300, proxy=False)


@contender("numpyro-nuts", "NumPyro NUTS, all rows", "numpyro", 3.0)
def nuts(problem: ProblemData, budget: Budget) -> RunResult:
    """NUTS, started at the mode with the Hessian there as mass matrix."""
    import numpyro
    from numpyro.infer import NUTS

    numpyro.enable_x64()
    mode = problem.find_mode()
    tune, _ = forecast(gradient_seconds(problem, mode), budget)
    kernel = NUTS(_model(problem, None), **_mass(mode))
    return _run_kernel(problem, budget, kernel, mode, tune, WHOLE_CHUNK)


def _ecs(
    problem: ProblemData, budget: Budget, m: int, proxy: bool = True, hessian: bool = False
) -> RunResult:
    import numpyro
    from numpyro.infer import HMCECS, NUTS

    numpyro.enable_x64()
    mode = problem.find_mode()
    if proxy:
        taylor = HMCECS.taylor_proxy({"t": mode.point}, degree=2)
        inner = NUTS(_model(problem, m), **(_mass(mode) if hessian else {}))
        kernel = HMCECS(inner, num_blocks=100, proxy=taylor)
    else:
        kernel = HMCECS(NUTS(_model(problem, m)))
    return _run_kernel(problem, budget, kernel, mode, TUNE, CHUNK, m)


def _mass(mode: ModeRun) -> dict[str, Any]:
    """Return the mass matrix found with the mode: an estimate in warm-up could only be worse."""
    fixed = {"inverse_mass_matrix": mode.covariance, "adapt_mass_matrix": False}
    return {"dense_mass": True, **fixed}


def _model(problem: ProblemData, m: int | None) -> Callable[..., None]:
    """Return the regression as a user would write it."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    n, prior, poisson = len(problem), problem.prior, problem.poisson

    def model(x: Pytree, y: Pytree, offset: Pytree) -> None:
        t = numpyro.sample("t", dist.Normal(0, prior).to_event(1))
        with numpyro.plate("rows", n, subsample_size=m):
            if m is not None:
                x = numpyro.subsample(x, event_dim=1)
                y, offset = (numpyro.subsample(a, event_dim=0) for a in (y, offset))
            eta = x @ t[:-1] + t[-1] + offset
            likelihood = dist.Poisson(rate=jnp.exp(eta)) if poisson else dist.Bernoulli(logits=eta)
            numpyro.sample("y", likelihood, obs=y)

    return model


def _run_kernel(
    problem: ProblemData,
    budget: Budget,
    kernel: Any,  # NumPyro has no types
    mode: ModeRun,
    tune: int,
    length: int,
    m: int | None = None,
) -> RunResult:
    """Start at the mode, warm up, and draw."""
    import jax

    data = arrays(problem)
    started = time.perf_counter()
    key = jax.random.PRNGKey(budget.seed)
    state = kernel.init(key, tune, {"t": np.asarray(mode.point)}, data, {})
    jax.block_until_ready(state)
    setting_up = time.perf_counter() - started

    def chunk(state: Pytree, *data: Pytree) -> Pytree:
        def iteration(state: Pytree, _: None) -> Pytree:
            state = kernel.sample(state, data, {})
            inner = state if m is None else state.hmc_state
            return state, (inner.z["t"], inner.num_steps)

        return jax.lax.scan(iteration, state, None, length=length)

    scan = scan_until(chunk, state, data, tune, budget)
    rows, extra = (len(problem), 0) if m is None else (m, 2)  # a refresh adds two evaluations
    passes = 0 if m is None else len(problem)  # the proxy's sums
    draws = scan.draws.shape[1]
    return from_draws(
        scan.draws,
        before=mode.seconds + setting_up + scan.before,
        sampling=scan.sampling,
        rows_before=mode.rows + passes + rows * (scan.gradients_before + extra * tune),
        rows_sampling=rows * (scan.gradients + extra * draws),
        credit=scan.credit,
    )
