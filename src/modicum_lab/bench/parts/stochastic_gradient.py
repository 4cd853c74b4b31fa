"""SGLD and SGHMC compared with BlackJAX's: steps per second on the same model, rows and batch.

Each runs one chain in float64, with a fresh batch for every gradient, and keeps every position.
BlackJAX leaves the loop to its user: here it is a compiled scan with the batch drawn inside. Its
SGHMC is its diffusion with the momentum carried along; its ready-made sampler, which makes ten
steps with one batch and so reads a tenth of the rows, is shown as well. Modicum's time is that of
its sampling loop, including records and chunks.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum import SGHMC, SGLD, ModicumWarning, Rows, sample
from modicum.methods import Method
from modicum.models import Logistic
from modicum_lab.bench.tables import Table, verdict

COLUMNS, BATCH, INNER = 28, 100, 10
STEP, PRIOR = 1e-6, 2.5
READY_MADE = "sghmc, ten steps per batch"

Timer = Callable[[], float]  # runs a sampler, and returns the seconds it took
State = tuple[jax.Array, ...]
Batch = tuple[jax.Array, jax.Array]


def made_up(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulate columns and outcomes of a logistic regression."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, COLUMNS))
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ (0.3 * rng.standard_normal(COLUMNS))))) * 1.0
    return x, y


def by_modicum(x: np.ndarray, y: np.ndarray, method: Method, steps: int) -> Timer:
    """Time `steps` steps of Modicum's sampling loop."""
    rows, model = Rows(x=x, y=y), Logistic(prior_scale=PRIOR, intercept=False)

    def timed() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModicumWarning)  # it is too short to converge
            post = sample(
                model, rows, method=method, draws=steps, tune=200,
                chains=1, random_seed=1, progressbar=False,
            )  # fmt: skip
        return float(post.settings["sampling_seconds"])

    return timed


class Stepper(NamedTuple):
    """A step function of a BlackJAX sampler, its initial state, and the number of calls."""

    step: Callable[[jax.Array, State, Batch], State]
    start: State
    calls: int


def by_blackjax(x: np.ndarray, y: np.ndarray, name: str, steps: int) -> Timer:
    """Time `steps` steps of BlackJAX's sampler, compiled."""
    n = len(x)

    def scan(key: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        stepper = _stepper(name, n, steps)

        def iteration(state: State, key: jax.Array) -> tuple[State, jax.Array]:
            rows_key, step_key = jax.random.split(key)
            row_ids = jax.random.randint(rows_key, (BATCH,), 0, n)
            state = stepper.step(step_key, state, (x[row_ids], y[row_ids]))
            return state, state[0]

        return jax.lax.scan(iteration, stepper.start, jax.random.split(key, stepper.calls))[1]

    compiled = jax.jit(scan)

    def timed() -> float:
        with jax.enable_x64(True):
            arrays = jax.random.key(1), jnp.asarray(x), jnp.asarray(y)
            started = time.perf_counter()
            jax.block_until_ready(compiled(*arrays))
            return time.perf_counter() - started

    return timed


def _stepper(name: str, n: int, steps: int) -> Stepper:
    import blackjax

    def log_prior(t: jax.Array) -> jax.Array:
        return -0.5 * jnp.sum((t / PRIOR) ** 2)

    def log_likelihood(t: jax.Array, row: Batch) -> jax.Array:
        eta = row[0] @ t
        return row[1] * eta - jnp.logaddexp(0.0, eta)

    gradient: Any = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, n)
    start = jnp.zeros(COLUMNS)
    if name == "sghmc":
        diffusion = blackjax.sgmcmc.diffusions.sghmc(alpha=2.0)

        def carried(key: jax.Array, state: State, batch: Batch) -> State:
            return tuple(diffusion(key, *state, gradient(state[0], batch), STEP))

        return Stepper(carried, (start, start), steps)
    if name == READY_MADE:
        sampler = blackjax.sghmc(gradient, num_integration_steps=INNER)
        steps //= INNER
    else:
        sampler = blackjax.sgld(gradient)
    return Stepper(lambda key, s, batch: (sampler.step(key, s[0], batch, STEP),), (start,), steps)


def run(quick: bool = False) -> list[Table]:
    """Time both methods, alternating with BlackJAX's."""
    n, steps = (10_000, 2_000) if quick else (100_000, 10_000)
    x, y = made_up(n)
    settings: dict[str, Any] = {"step_size": STEP, "batch": BATCH, "whiten": False, "start": "zero"}
    methods: dict[str, Method] = {"sgld": SGLD(**settings), "sghmc": SGHMC(**settings)}
    table = Table(
        f"Steps per second, logistic, {n:,} x {COLUMNS}, batch {BATCH}",
        ["method", "Modicum", "BlackJAX", "ratio", "at least", "kept"],
    )
    for name, method in methods.items():
        timers = {"Modicum": by_modicum(x, y, method, steps), name: by_blackjax(x, y, name, steps)}
        if name == "sghmc":
            timers[READY_MADE] = by_blackjax(x, y, READY_MADE, steps)
        rate = _rates(timers, steps, repeats=3 if quick else 5)
        for peer in list(rate)[1:]:
            ratio = rate["Modicum"] / rate[peer]
            limit = (1.0, verdict(1.0, ratio)) if peer == name else ("", "")
            table.rows.append([peer, rate["Modicum"], rate[peer], ratio, *limit])
    return [table]


def _rates(timers: dict[str, Timer], steps: int, repeats: int) -> dict[str, float]:
    """Return the median steps per second of alternating runs, after a first run that compiles."""
    for timed in timers.values():
        timed()
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(repeats):
        for name, timed in timers.items():
            seconds[name].append(timed())
    return {name: steps / median(values) for name, values in seconds.items()}
