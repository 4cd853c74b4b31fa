"""What contenders share: a log-density of plain arrays, a forecast of draws, and the loop.

One compiled scan of a few iterations is called until time is up. The same scan serves warm-up and
sampling, so that a peer compiles once and its sampling phase holds no compilation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum_lab.bench.problems import ModeRun, ProblemData
from modicum_lab.bench.runs import EFFECTIVE, Budget, Infeasible

Pytree: TypeAlias = Any  # arrays, and states of samplers that have no types
TREE = 7  # gradients of a NUTS draw in coordinates where the posterior is standard normal
TUNE = (40, 200)  # least and most warm-up iterations


def log_likelihoods(poisson: bool) -> Callable[..., jax.Array]:
    """Return the log-likelihood of each row, up to a constant, as a user would write it."""

    def per_row(t: jax.Array, x: jax.Array, y: jax.Array, offset: jax.Array) -> jax.Array:
        eta = x @ t[:-1] + t[-1] + offset
        rate = jnp.exp(eta) if poisson else jax.nn.softplus(eta)
        return y * eta - rate

    return per_row


def log_prior(problem: ProblemData) -> Callable[[jax.Array], jax.Array]:
    """Return the log-density of independent normal priors, up to a constant."""
    scale = jnp.asarray(problem.prior)
    return lambda t: -0.5 * jnp.sum((t / scale) ** 2)


def arrays(problem: ProblemData) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return x, y and offset on the device in float64: products of mixed types are slow."""
    offset = np.zeros(len(problem)) if problem.offset is None else problem.offset
    return tuple(jnp.asarray(a, jnp.float64) for a in (problem.x, problem.y, offset))  # type: ignore[return-value]


def whitened(problem: ProblemData, mode: ModeRun) -> Callable[..., jax.Array]:
    """Return the log-posterior of all rows as a function of z, t = mode + L z."""
    per_row, prior = log_likelihoods(problem.poisson), log_prior(problem)
    point, factor = jnp.asarray(mode.point), jnp.asarray(mode.factor)

    def log_density(z: jax.Array, x: jax.Array, y: jax.Array, offset: jax.Array) -> jax.Array:
        t = point + factor @ z
        return jnp.sum(per_row(t, x, y, offset)) + prior(t)

    return log_density


def forecast(seconds: float, budget: Budget) -> tuple[int, int]:
    """Return the warm-up and draws that fit the budget, from the seconds of a full gradient.

    Raises
    ------
    Infeasible
        If not even the shortest warm-up fits.

    Examples
    --------
    >>> forecast(0.01, Budget(seconds=20))
    (142, 285)
    """
    afford = int(budget.seconds / (TREE * seconds))
    if afford < TUNE[0] / 2:
        needed = TREE * seconds * (TUNE[0] + EFFECTIVE)
        raise Infeasible(
            f"a gradient over all rows takes {seconds:.2g} s, so that {TUNE[0]} iterations of "
            f"warm-up and {EFFECTIVE:,} draws of {TREE} gradients would take some "
            f"{needed / 60:,.0f} minutes"
        )
    return int(np.clip(afford // 2, *TUNE)), max(afford, 10)


def gradient_seconds(problem: ProblemData, mode: ModeRun) -> float:
    """Time the gradient of `whitened`, compiled."""
    with jax.enable_x64(True):
        data = arrays(problem)
        gradient = jax.jit(jax.grad(whitened(problem, mode)))
        z = jnp.zeros(problem.size)
        jax.block_until_ready(gradient(z, *data))
        started = time.perf_counter()
        for _ in range(3):
            jax.block_until_ready(gradient(z, *data))
        return (time.perf_counter() - started) / 3


PATIENCE = 120.0  # seconds for compilation and warm-up, on top of four times the budget


@dataclass
class Scan:
    """The result of a loop: draws (1, draw, d), and gradients and seconds of each phase.

    Attributes
    ----------
    draws
        Kept positions.
    before, sampling
        Seconds of compilation and warm-up, and of sampling.
    gradients_before, gradients
        Gradients evaluated in these two phases.
    credit
        Number of perfect copies of the chain that the cores could have run, itself included.
    """

    draws: np.ndarray
    before: float
    sampling: float
    gradients_before: int
    gradients: int
    credit: float


def scan_until(
    chunk: Callable[..., tuple[Pytree, tuple[Pytree, Pytree]]],
    state: Pytree,
    data: tuple[Pytree, ...],
    tune: int,
    budget: Budget,
) -> Scan:
    """Call ``chunk(state, *data) -> state, (positions, gradients)`` until time or draws run out.

    `tune` is the number of warm-up iterations, which are dropped in whole calls.
    """
    started = time.perf_counter()
    compiled = jax.jit(chunk).lower(state, *data).compile()
    done = spent_before = 0
    while done < tune:
        state, (positions, gradients) = jax.block_until_ready(compiled(state, *data))
        done += len(positions)
        spent_before += int(np.sum(gradients))
        waited = time.perf_counter() - started
        if waited > PATIENCE + 4 * budget.seconds and done < tune:
            raise Infeasible(
                f"warm-up was given up after {waited:,.0f} s, with {done} of {tune} iterations "
                f"done; at this pace it would take {waited * tune / done:,.0f} s"
            )
    before = time.perf_counter() - started
    parts: list[np.ndarray] = []
    spent = 0
    started, processor = time.perf_counter(), time.process_time()
    while not parts or (
        time.perf_counter() - started < budget.seconds
        and len(parts) * len(parts[0]) < budget.draws * budget.chains
    ):
        state, (positions, gradients) = jax.block_until_ready(compiled(state, *data))
        parts.append(np.asarray(positions))
        spent += int(np.sum(gradients))
    sampling = time.perf_counter() - started
    cores = (time.process_time() - processor) / sampling
    credit = float(np.clip(budget.cores / max(cores, 1e-9), 1, budget.cores))
    return Scan(np.concatenate(parts)[None], before, sampling, spent_before, spent, credit)
