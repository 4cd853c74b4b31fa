"""The zig-zag process of pdmp-jax, on all rows: the package has no control variates of rows.

Version 0.1.1 asks for a JAX older than Modicum's, and runs with today's if it is installed by
itself, with what it imports: pip install --no-deps pdmp-jax jax-tqdm chex toolz seaborn jaxtyping.
"""

from __future__ import annotations

import time

import numpy as np

from modicum_lab.bench.contenders.base import contender
from modicum_lab.bench.contenders.common import (
    TREE,
    Pytree,
    arrays,
    forecast,
    gradient_seconds,
    whitened,
)
from modicum_lab.bench.problems import ProblemData
from modicum_lab.bench.runs import Budget, RunResult, from_draws

GRID, HORIZON = 10, 2.0  # points of a bound, and its first horizon: the package's own
CHUNK = 20  # events
WARM_UP = 0.1  # of the events
BOUND = 2 * GRID  # gradients of a bound, with their derivatives


@contender("pdmp-zigzag", "pdmp-jax zig-zag, all rows", "pdmp_jax", 40.0)
def zigzag(problem: ProblemData, budget: Budget) -> RunResult:
    """From the mode, in z of t = mode + L z; as many positions are taken as there were events."""
    import jax
    import jax.numpy as jnp
    from pdmp_jax import ZigZag
    from pdmp_jax.sampling_loop import one_step, output_state

    mode = problem.find_mode()
    # an effective draw takes about as many events as there are parameters
    forecast(gradient_seconds(problem, mode) * BOUND * problem.size / TREE, budget)
    with jax.enable_x64(True):
        data, density = arrays(problem), whitened(problem, mode)
        process = ZigZag(
            problem.size, jax.grad(lambda z: -density(z, *data)), GRID, HORIZON, adaptive=True
        )
        state = process.init_state(jnp.zeros(problem.size), jnp.ones(problem.size), budget.seed)
        state = jax.tree.map(_double, state)
        started = time.perf_counter()

        def chunk(state: Pytree) -> Pytree:
            def event(state: Pytree, _: None) -> Pytree:
                state = one_step(state)
                return state, output_state(state)

            return jax.lax.scan(event, state, None, length=CHUNK)

        advance, parts = jax.jit(chunk), []
        for _ in range(2):  # types of the first state are not those of the others
            state, _ = jax.block_until_ready(advance(state))
        compiling, started = time.perf_counter() - started, time.perf_counter()
        while time.perf_counter() - started < budget.seconds:
            state, events = jax.block_until_ready(advance(state))
            parts.append(events)
        sampling = time.perf_counter() - started
        skeleton = jax.tree.map(lambda *pieces: jnp.concatenate(pieces), *parts)
        first = int(WARM_UP * len(skeleton.t))
        kept = jax.tree.map(lambda piece: piece[first:], skeleton)
        z = np.asarray(process.sample_from_skeleton(len(kept.t), kept))
        bounds = len(skeleton.t) + int(skeleton.hitting_horizon.sum())
    gradients = BOUND * bounds + len(skeleton.t) + int(skeleton.rejected.sum())
    return from_draws(
        (mode.point + z @ mode.factor.T)[None],
        before=mode.seconds + compiling + WARM_UP * sampling,
        sampling=(1 - WARM_UP) * sampling,
        rows_before=mode.rows + round(WARM_UP * gradients) * len(problem),
        rows_sampling=round((1 - WARM_UP) * gradients) * len(problem),
        credit=float(budget.cores),
    )


def _double(leaf: Pytree) -> Pytree:
    """Return floating-point numbers in float64: those of a state are partly made at import."""
    import jax.numpy as jnp

    numbers = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    return jnp.asarray(leaf, jnp.float64) if numbers else leaf
