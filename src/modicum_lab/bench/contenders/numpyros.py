"""NumPyro: HMCECS at its best and by default, and NUTS on all rows.

Their kernels are driven through NumPyro's own interface (`init`, `sample`). HMCECS with a proxy
does not run parallel chains: one chain is run, and credited with perfect copies on idle cores.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from modicum_lab.bench.contenders.base import contender
from modicum_lab.bench.contenders.scanning import scan_until
from modicum_lab.bench.contenders.whole import arrays, forecast, gradient_seconds
from modicum_lab.bench.problem_data import Given, Mode
from modicum_lab.bench.run_result import Budget, Found, from_draws

TUNE = 300  # as many as Modicum gets
CHUNK, WHOLE_CHUNK = 50, 10


@contender("numpyro-ecs-200", "NumPyro HMCECS, m = 200", "numpyro", 8.0)
def ecs_200(given: Given, budget: Budget) -> Found:
    """NUTS inside, Taylor proxy of degree 2 about the mode, 100 blocks."""
    return _ecs(given, budget, 200)


@contender("numpyro-ecs-1300", "NumPyro HMCECS, m = 1,300", "numpyro", 8.0)
def ecs_1300(given: Given, budget: Budget) -> Found:
    """The same with the subsample of the HMC-ECS paper."""
    return _ecs(given, budget, 1_300)


@contender("numpyro-ecs-hessian", "NumPyro HMCECS, m = 200, Hessian as mass", "numpyro", 8.0)
def ecs_hessian(given: Given, budget: Budget) -> Found:
    """The same as with 200 rows, and the Hessian brought with the mode as mass matrix."""
    return _ecs(given, budget, 200, hessian=True)


@contender("numpyro-ecs-default", "NumPyro HMCECS, no proxy", "numpyro", 2.0)
def ecs_default(given: Given, budget: Budget) -> Found:
    """Its defaults: no proxy and one block."""
    return _ecs(given, budget, 1_300, proxy=False)


@contender("numpyro-nuts", "NumPyro NUTS, all rows", "numpyro", 3.0)
def nuts(given: Given, budget: Budget) -> Found:
    """Started at the mode, with the Hessian there as mass matrix."""
    import numpyro
    from numpyro.infer import NUTS

    numpyro.enable_x64()
    mode = given.find_mode()
    tune, _ = forecast(gradient_seconds(given, mode), budget)
    kernel = NUTS(_model(given, None), **_mass(mode))
    return _driven(given, budget, kernel, mode, tune, WHOLE_CHUNK)


def _ecs(given: Given, budget: Budget, m: int, proxy: bool = True, hessian: bool = False) -> Found:
    import numpyro
    from numpyro.infer import HMCECS, NUTS

    numpyro.enable_x64()
    mode = given.find_mode()
    if proxy:
        taylor = HMCECS.taylor_proxy({"t": mode.point}, degree=2)
        inner = NUTS(_model(given, m), **(_mass(mode) if hessian else {}))
        kernel = HMCECS(inner, num_blocks=100, proxy=taylor)
    else:
        kernel = HMCECS(NUTS(_model(given, m)))
    return _driven(given, budget, kernel, mode, TUNE, CHUNK, m)


def _mass(mode: Mode) -> dict[str, Any]:
    """The best mass matrix there is, known with the mode: estimating it could only be worse."""
    fixed = {"inverse_mass_matrix": mode.covariance, "adapt_mass_matrix": False}
    return {"dense_mass": True, **fixed}


def _model(given: Given, m: int | None) -> Any:
    """The regression as a user would write it."""
    import numpyro
    import numpyro.distributions as dist

    n, prior, poisson = len(given), given.prior, given.poisson

    def model(x: Any, y: Any, offset: Any) -> None:
        t = numpyro.sample("t", dist.Normal(0, prior).to_event(1))
        with numpyro.plate("rows", n, subsample_size=m):
            if m is not None:
                x = numpyro.subsample(x, event_dim=1)
                y, offset = (numpyro.subsample(a, event_dim=0) for a in (y, offset))
            eta = x @ t[:-1] + t[-1] + offset
            likelihood = dist.Poisson(rate=_exp(eta)) if poisson else dist.Bernoulli(logits=eta)
            numpyro.sample("y", likelihood, obs=y)

    return model


def _exp(eta: Any) -> Any:
    import jax.numpy as jnp

    return jnp.exp(eta)


def _driven(
    given: Given,
    budget: Budget,
    kernel: Any,
    mode: Mode,
    tune: int,
    chunk: int,
    m: int | None = None,
) -> Found:
    """Start at the mode; warm up; draw."""
    import jax

    data = arrays(given)
    started = time.perf_counter()
    key = jax.random.PRNGKey(budget.seed)
    state = kernel.init(key, tune, {"t": np.asarray(mode.point)}, data, {})
    jax.block_until_ready(state)
    setting_up = time.perf_counter() - started

    def some(state: Any, *data: Any) -> Any:
        def one(state: Any, _: None) -> Any:
            state = kernel.sample(state, data, {})
            inner = state if m is None else state.hmc_state
            return state, (inner.z["t"], inner.num_steps)

        return jax.lax.scan(one, state, None, length=chunk)

    ran = scan_until(some, state, data, tune, budget)
    rows, extra = (len(given), 0) if m is None else (m, 2)  # a refresh is two evaluations more
    passes = 0 if m is None else len(given)  # the proxy's sums
    draws = ran.draws.shape[1]
    return from_draws(
        ran.draws,
        before=mode.seconds + setting_up + ran.before,
        sampling=ran.sampling,
        rows_before=mode.rows + passes + rows * (ran.gradients_before + extra * tune),
        rows_sampling=rows * (ran.gradients + extra * draws),
        credit=ran.credit,
    )
