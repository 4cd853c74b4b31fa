"""Many short chains of a stochastic-gradient kernel on the location model, from its mean.

Compares n Var(t), Var(momentum) and the bias of the mean in posterior sd, each over chains and the
second half of the steps, with Monte Carlo errors from groups of chains.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from helpers.compiling import optimised
from helpers.targets import location
from modicum.kernels.designs import Uniform, UniformTables
from modicum.kernels.protocols import StochasticGradientContext
from modicum.kernels.stochastic_gradient import StepFlags, StochasticGradientKernel
from modicum.kernels.whitening import Whitening
from modicum.models import Target

GROUPS = 20  # groups of chains, whose scatter gives the Monte Carlo error


@dataclass(frozen=True)
class Found:
    """Estimates and their errors: (n Var(t), Var(momentum) or nan, bias in sd)."""

    variance: tuple[float, float]
    momentum: tuple[float, float]
    bias: tuple[float, float]


def composed(method, target=None, kernel=StochasticGradientKernel, design=None, **changes):
    """Return the kernel of a method for the location model, in raw parameters."""
    target = target or location()
    parts = method.parts()
    estimator = parts.estimator.bind(Target.of(target.model, target.rows)[0], "float64")
    whole = kernel(
        parts.integrator, estimator, parts.selector, design or Uniform(), int(method.batch)
    )
    return replace(whole, **changes)


def context_of(target, tables=None, arrays=()):
    d = target.c.shape[1]
    return StochasticGradientContext(
        Whitening(jnp.zeros(d), jnp.ones(())),
        start=jnp.asarray(target.mean),
        spread=jnp.zeros(()),
        n=jnp.asarray(target.n),
        design=UniformTables(jnp.asarray(target.n)) if tables is None else tables,
        estimator=arrays,
    )


def simulate(
    kernel, step_size, steps=500, chains=4000, target=None, tables=None, arrays=(), seed=0
):
    """Run `chains` chains for `steps` steps and compare as the module says."""
    target = target or location()
    with jax.enable_x64(True):
        data = {"c": jnp.asarray(target.c)}
        keys = jax.random.split(jax.random.key(seed), chains)
        context = context_of(target, tables, arrays)
        found = _simulate(kernel, steps, step_size, context, data, keys)
        mean, square, momentum = (np.asarray(x) for x in found)
    # by groups of chains: averages over steps, chains and coordinates
    mean = mean.reshape(GROUPS, -1, mean.shape[-1]).mean(axis=1)
    square = square.reshape(GROUPS, -1, square.shape[-1]).mean(axis=1)
    momentum = momentum.reshape(GROUPS, -1).mean(axis=1)
    whole = mean.mean(axis=0)
    variance = target.n * (square - 2 * mean * whole + whole**2).mean(axis=1)  # about `whole`
    shift = np.sqrt(target.n) * np.linalg.norm(whole)
    error = np.sqrt(target.n / GROUPS) * mean.std(axis=0, ddof=1).max()
    return Found(_estimate(variance), _estimate(momentum), (float(shift), float(error)))


def _estimate(groups):
    return float(groups.mean()), float(groups.std(ddof=1) / np.sqrt(len(groups)))


@partial(optimised, static_argnums=(0, 1))
def _simulate(kernel, steps, step_size, context, data, keys):
    """Return each chain's averages of t - mean, its square and momentum^2, over the second half."""
    start = context.start
    period = kernel.integrator.period

    def one(key):
        state = kernel.init(jax.random.fold_in(key, steps), None, context)

        def step(carry, k):
            state, mean, square, momentum = carry
            rows_key, step_key = jax.random.split(jax.random.fold_in(key, k))
            drawn = kernel.row_request(rows_key, context)
            batch = {"c": data["c"][drawn.row_ids], "probability": drawn.probability}
            fresh = (k % period == 0) if period else jnp.zeros((), bool)
            flags = StepFlags(jnp.asarray(step_size, float), fresh, jnp.zeros((), bool))
            ready = kernel.prepare(batch, context)
            chances = kernel.chances(step_key, context)
            state, _ = kernel.step(chances, state, flags, ready, context)
            late = k >= steps // 2
            away = state.integrator.z - start
            r = state.integrator.memory
            r2 = jnp.mean(r**2) if isinstance(r, jax.Array) else jnp.nan
            add = partial(jnp.where, late)
            return (
                state, mean + add(away, 0), square + add(away**2, 0), momentum + add(r2, 0)
            ), None  # fmt: skip

        zero = jnp.zeros_like(start)
        carry = (state, zero, zero, jnp.zeros(()))
        (_, *sums), _ = jax.lax.scan(step, carry, jnp.arange(steps))
        return [total / (steps - steps // 2) for total in sums]

    return jax.vmap(one)(keys)
