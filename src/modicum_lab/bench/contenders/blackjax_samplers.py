"""BlackJAX: NUTS, adjusted MCLMC and Pathfinder on all rows, SGLD and SGHMC with proxies.

All move in z, t = mode + L z, where the posterior is about standard normal and step sizes are
meaningful, as a careful user of BlackJAX would arrange. BlackJAX leaves the loop to its user: here
it is a compiled scan with the batch drawn inside.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from modicum_lab.bench.contenders.base import contender
from modicum_lab.bench.contenders.common import (
    Pytree,
    Scan,
    arrays,
    forecast,
    gradient_seconds,
    log_likelihoods,
    log_prior,
    scan_until,
    whitened,
)
from modicum_lab.bench.problems import ModeRun, ProblemData
from modicum_lab.bench.runs import Budget, RunResult, from_draws

BATCH = 200
SGLD_STEP, SGLD_THIN = 0.05, 10  # variances of a standard normal come out 2.5 % too large
SGHMC_STEP, SGHMC_STEPS = 0.12, 10  # a trajectory of 1.2, as in the HMC-ECS paper
MCLMC_STEPS, MCLMC_TARGET = 2.0, 0.9  # gradients of a trajectory, and acceptance: its own advice
PATHS, PATH_DRAWS, PATH_STEPS = 4, 200, 10  # its own numbers, but for the steps: z needs few
CHUNK, WHOLE_CHUNK = 500, 10


@contender("blackjax-nuts", "BlackJAX NUTS, all rows", "blackjax", 3.0)
def nuts(problem: ProblemData, budget: Budget) -> RunResult:
    """NUTS with step size and diagonal mass matrix by BlackJAX's window adaptation."""
    import blackjax
    import jax

    mode = problem.find_mode()
    with jax.enable_x64(True):
        tune, _ = forecast(gradient_seconds(problem, mode), budget)
        data, density = arrays(problem), whitened(problem, mode)
        start, key = jax.numpy.zeros(problem.size), jax.random.key(budget.seed)
        started = time.perf_counter()

        def adapt(key: Pytree, *data: Pytree) -> Pytree:
            warm = blackjax.window_adaptation(blackjax.nuts, lambda z: density(z, *data))
            (state, settings), info = warm.run(key, start, tune)
            return state, settings, info.info.num_integration_steps

        state, settings, steps = jax.block_until_ready(jax.jit(adapt)(key, *data))
        adapting = time.perf_counter() - started

        def chunk(carried: Pytree, *data: Pytree) -> Pytree:
            kernel = blackjax.nuts(lambda z: density(z, *data), **settings)

            def iteration(carried: Pytree, _: None) -> Pytree:
                key, state = carried
                key, now = jax.random.split(key)
                state, info = kernel.step(now, state)
                return (key, state), (state.position, info.num_integration_steps)

            return jax.lax.scan(iteration, carried, None, length=WHOLE_CHUNK)

        scan = scan_until(chunk, (jax.random.fold_in(key, 1), state), data, 0, budget)
    n = len(problem)
    return _result(scan, mode, adapting, mode.rows + n * int(np.sum(steps)), n * scan.gradients)


@contender("blackjax-mclmc", "BlackJAX adjusted MCLMC, all rows", "blackjax", 3.0)
def mclmc(problem: ProblemData, budget: Budget) -> RunResult:
    """Adjusted microcanonical Langevin, with step and mass matrix by BlackJAX's own search."""
    import blackjax
    import jax
    import jax.numpy as jnp

    mode = problem.find_mode()
    with jax.enable_x64(True):
        tune, _ = forecast(gradient_seconds(problem, mode), budget)
        data, density = arrays(problem), whitened(problem, mode)
        tuning, starting, running = jax.random.split(jax.random.key(budget.seed), 3)
        kernel = blackjax.adjusted_mclmc_dynamic.build_kernel(
            lambda key: jnp.ceil(jax.random.uniform(key) * (2 * MCLMC_STEPS - 1)).astype(int)
        )
        started = time.perf_counter()

        def adapt(key: Pytree, *data: Pytree) -> Pytree:
            def log_density(z: Pytree) -> Pytree:
                return density(z, *data)

            state = blackjax.adjusted_mclmc_dynamic.init(
                jnp.zeros(problem.size), log_density, starting
            )

            def step(
                rng_key: Pytree,
                state: Pytree,
                logdensity_fn: Pytree,
                step_size: Pytree,
                inverse_mass_matrix: Pytree,
                integration_steps_params: Pytree,  # none: their mean is fixed
            ) -> Pytree:
                del integration_steps_params
                return kernel(
                    rng_key, state, logdensity_fn, step_size, jnp.inf, inverse_mass_matrix
                )

            state, settings, *_ = blackjax.adjusted_mclmc_find_L_and_step_size(
                *(step, log_density, 5 * tune, state, key),
                target=MCLMC_TARGET,
                target_num_integration_steps=MCLMC_STEPS,
            )
            return state, settings.step_size, settings.inverse_mass_matrix

        state, size, mass = jax.block_until_ready(jax.jit(adapt)(tuning, *data))
        adapting = time.perf_counter() - started

        def chunk(carried: Pytree, *data: Pytree) -> Pytree:
            def iteration(carried: Pytree, _: None) -> Pytree:
                key, state = carried
                key, now = jax.random.split(key)
                state, info = kernel(now, state, lambda z: density(z, *data), size, jnp.inf, mass)
                return (key, state), (state.position, info.num_integration_steps)

            return jax.lax.scan(iteration, carried, None, length=WHOLE_CHUNK)

        scan = scan_until(chunk, (running, state), data, 0, budget)
    n = len(problem)
    evaluated = 2 * n  # gradients of a step of McLachlan's integrator, times rows
    before = mode.rows + evaluated * int(tune * MCLMC_STEPS)
    return _result(scan, mode, adapting, before, evaluated * scan.gradients)


@contender("blackjax-pathfinder", "BlackJAX multi-path Pathfinder", "blackjax", 400.0)
def pathfinder(problem: ProblemData, budget: Budget) -> RunResult:
    """Four paths of L-BFGS from scattered starts; their draws weighted, with Pareto smoothing.

    Every point of every path is judged by its own draws, all at once, hence the memory.
    """
    import blackjax
    import jax
    from blackjax.vi.multipathfinder import psis_weights

    mode = problem.find_mode()
    with jax.enable_x64(True):
        data, density = arrays(problem), whitened(problem, mode)
        key, starting = jax.random.split(jax.random.key(budget.seed))
        starts = jax.random.normal(starting, (PATHS, problem.size))

        def find(key: Pytree, *data: Pytree) -> Pytree:
            paths = blackjax.multipathfinder(lambda z: density(z, *data))
            state, _ = paths.init(key, starts, num_samples=PATH_DRAWS, maxiter=PATH_STEPS)
            return state.samples, *psis_weights(state)

        started = time.perf_counter()
        compiled = jax.jit(find).lower(key, *data).compile()
        compiling = time.perf_counter() - started
        started = time.perf_counter()
        z, log_weights, k = jax.block_until_ready(compiled(key, *data))
        sampling = time.perf_counter() - started
    draws = mode.point + np.asarray(z).reshape(-1, problem.size) @ mode.factor.T
    weights = np.exp(np.asarray(log_weights))
    weights /= weights.sum()
    mean = weights @ draws
    effective = [float(1 / np.sum(weights**2))] * problem.size
    return RunResult(
        mean=mean.tolist(),
        sd=np.sqrt(weights @ (draws - mean) ** 2).tolist(),
        ess=effective,
        ess_square=effective,
        before=mode.seconds + compiling,
        sampling=sampling,
        rows_before=mode.rows,
        rows_sampling=len(problem) * PATHS * PATH_DRAWS * (PATH_STEPS + 2),
        draws=len(draws),
        notes=[f"Pareto k of its weights: {float(k):.2f}"],
    )


@contender("blackjax-sgld", "BlackJAX SGLD, control variates", "blackjax", 3.0)
def sgld(problem: ProblemData, budget: Budget) -> RunResult:
    """SGLD with a fresh batch per step; one position in ten is kept."""
    import blackjax

    def make(gradient: Pytree) -> Callable[..., Pytree]:
        sampler = blackjax.sgld(gradient)
        return lambda key, z, batch: sampler.step(key, z, batch, SGLD_STEP)

    return _stochastic(problem, budget, make, SGLD_THIN, 1)


@contender("blackjax-sghmc", "BlackJAX SGHMC, control variates", "blackjax", 3.0)
def sghmc(problem: ProblemData, budget: Budget) -> RunResult:
    """BlackJAX's ready-made SGHMC: ten steps with one batch, then a fresh momentum."""
    import blackjax

    def make(gradient: Pytree) -> Callable[..., Pytree]:
        sampler = blackjax.sghmc(gradient, num_integration_steps=SGHMC_STEPS)
        return lambda key, z, batch: sampler.step(key, z, batch, SGHMC_STEP)

    return _stochastic(problem, budget, make, 1, SGHMC_STEPS)


def _stochastic(
    problem: ProblemData,
    budget: Budget,
    make: Callable[[Pytree], Callable[..., Pytree]],
    thin: int,
    inner: int,
) -> RunResult:
    """Run a scan of `thin` steps per kept position, each with a fresh batch of uniform rows."""
    import jax
    import jax.numpy as jnp
    from blackjax.sgmcmc import gradients

    mode, n = problem.find_mode(), len(problem)
    per_row, prior = log_likelihoods(problem.poisson), log_prior(problem)
    with jax.enable_x64(True):
        point, factor = jnp.asarray(mode.point), jnp.asarray(mode.factor)
        data = arrays(problem)
        estimate = gradients.grad_estimator(
            lambda z: prior(point + factor @ z),
            lambda z, row: per_row(point + factor @ z, *row),
            n,
        )
        centre = jnp.zeros(problem.size)
        started = time.perf_counter()
        whole = jax.block_until_ready(jax.jit(estimate)(centre, data))
        setting_up = time.perf_counter() - started

        def gradient(z: Pytree, batch: Pytree) -> Pytree:
            # like blackjax's control_variates, which would compile the sum over all rows in
            return whole + estimate(z, batch) - estimate(centre, batch)

        step = make(gradient)

        def chunk(carried: Pytree, *data: Pytree) -> Pytree:
            def iteration(carried: Pytree, _: None) -> Pytree:
                def again(_: Pytree, carried: Pytree) -> Pytree:
                    key, z = carried
                    key, picking, moving = jax.random.split(key, 3)
                    at = jax.random.randint(picking, (BATCH,), 0, n)
                    return key, step(moving, z, tuple(a[at] for a in data))

                carried = jax.lax.fori_loop(0, thin, again, carried)
                return carried, (carried[1], thin * inner * 2)

            return jax.lax.scan(iteration, carried, None, length=CHUNK)

        carried = jax.random.key(budget.seed), centre
        scan = scan_until(chunk, carried, data, CHUNK, budget)
    rows = BATCH * scan.gradients
    return _result(scan, mode, setting_up, mode.rows + n + BATCH * scan.gradients_before, rows)


def _result(scan: Scan, mode: ModeRun, before: float, rows_before: int, rows: int) -> RunResult:
    """Return the result in parameters, from draws in z."""
    return from_draws(
        mode.point + scan.draws @ mode.factor.T,
        before=mode.seconds + before + scan.before,
        sampling=scan.sampling,
        rows_before=rows_before,
        rows_sampling=rows,
        credit=scan.credit,
    )
