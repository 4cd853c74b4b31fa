"""What full-data samplers share: a log-density of plain arrays, and how many draws will fit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum_lab.bench.problem_data import Given, Mode
from modicum_lab.bench.run_result import EFFECTIVE, Budget, LeftOut

__all__ = [
    "TREE",
    "arrays",
    "forecast",
    "gradient_seconds",
    "log_likelihoods",
    "log_prior",
    "whitened",
]

TREE = 7  # gradients of a NUTS draw in coordinates where the posterior is standard normal
TUNE = (40, 200)  # warm-up: at least, and at most


def log_likelihoods(poisson: bool) -> Callable[..., jax.Array]:
    """Log-likelihood of each row, up to a constant, as a user would write it."""

    def each(t: jax.Array, x: Any, y: Any, offset: Any) -> jax.Array:
        eta = x @ t[:-1] + t[-1] + offset
        rate = jnp.exp(eta) if poisson else jax.nn.softplus(eta)
        return y * eta - rate

    return each


def log_prior(given: Given) -> Callable[[jax.Array], jax.Array]:
    """Independent normal priors, up to a constant."""
    scale = jnp.asarray(given.prior)
    return lambda t: -0.5 * jnp.sum((t / scale) ** 2)


def arrays(given: Given) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x, y and offset on the device in float64: products of mixed types are slow."""
    offset = np.zeros(len(given)) if given.offset is None else given.offset
    return tuple(jnp.asarray(a, jnp.float64) for a in (given.x, given.y, offset))  # type: ignore[return-value]


def whitened(given: Given, mode: Mode) -> Callable[..., jax.Array]:
    """Log-posterior of all rows as a function of z, t = mode + L z."""
    each, prior = log_likelihoods(given.poisson), log_prior(given)
    point, factor = jnp.asarray(mode.point), jnp.asarray(mode.factor)

    def log_density(z: jax.Array, x: Any, y: Any, offset: Any) -> jax.Array:
        t = point + factor @ z
        return jnp.sum(each(t, x, y, offset)) + prior(t)

    return log_density


def forecast(seconds: float, budget: Budget) -> tuple[int, int]:
    """Warm-up and draws that fit the budget, from the seconds of a gradient over all rows.

    Raises
    ------
    LeftOut
        Where not even the shortest warm-up fits.

    Examples
    --------
    >>> forecast(0.01, Budget(seconds=20))
    (142, 285)
    """
    afford = int(budget.seconds / (TREE * seconds))
    if afford < TUNE[0] / 2:
        needed = TREE * seconds * (TUNE[0] + EFFECTIVE)
        raise LeftOut(
            f"a gradient over all rows takes {seconds:.2g} s, so that {TUNE[0]} iterations of "
            f"warm-up and {EFFECTIVE:,} draws of {TREE} gradients would take some "
            f"{needed / 60:,.0f} minutes"
        )
    return int(np.clip(afford // 2, *TUNE)), max(afford, 10)


def gradient_seconds(given: Given, mode: Mode) -> float:
    """Time the gradient of `whitened`, compiled."""
    with jax.enable_x64(True):
        held = arrays(given)
        gradient = jax.jit(jax.grad(whitened(given, mode)))
        z = jnp.zeros(given.size)
        jax.block_until_ready(gradient(z, *held))
        started = time.perf_counter()
        for _ in range(3):
            jax.block_until_ready(gradient(z, *held))
        return (time.perf_counter() - started) / 3
