"""The point of the paper: naive subsampling breaks HMC, energy conservation does not.

The toy posterior is sampled by HMC with plain minibatch gradients of 100 rows: with a fresh
minibatch at every leapfrog step, and with one minibatch per trajectory and an accept step with all
rows. The first does not sample the posterior, the second hardly ever accepts. HMC-ECS uses as many
rows and is right.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import toy
from helpers.compiling import optimised
from helpers.targets import TIMES, mean_and_error

ROWS, STEP, STEPS = 100, 0.2, 6


@pytest.fixture(scope="module")
def whitened():
    """Return the toy in whitened coordinates about its mode: t = mode + factor z."""
    mode = toy.newton(np.arange(toy.N), 1.0)
    p = 1 / (1 + np.exp(-toy.X @ mode))
    precision = (toy.X.T * (p * (1 - p))) @ toy.X + np.eye(toy.D) / 10
    factor = np.linalg.inv(np.linalg.cholesky(precision)).T
    return mode, factor


def log_posterior(z, x, y, scale, mode, factor):
    t = mode + factor @ z
    eta = x @ t
    return scale * jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) - 0.5 * t @ t / 10


@partial(optimised, static_argnums=(0, 1, 2))
def naive_chain(fresh_each_step, accept, count, key, data, start):
    """Run HMC with minibatch gradients; with `accept`, all rows accept or reject the end."""
    x, y, mode, factor = data

    def density(z, picked):
        scale = toy.N / ROWS
        return log_posterior(z, x[picked], y[picked], scale, mode, factor)

    def whole(z):
        return log_posterior(z, x, y, 1.0, mode, factor)

    def trajectory(z, key):
        momentum_key, rows_key, accept_key = jax.random.split(key, 3)
        minibatches = jax.random.randint(rows_key, (2 * STEPS, ROWS), 0, toy.N)
        if not fresh_each_step:
            minibatches = jnp.broadcast_to(minibatches[0], minibatches.shape)

        def leapfrog(carry, picked):
            q, p = carry
            p = p + 0.5 * STEP * jax.grad(density)(q, picked[0])
            q = q + STEP * p
            return (q, p + 0.5 * STEP * jax.grad(density)(q, picked[1])), None

        momentum = jax.random.normal(momentum_key, z.shape)
        pairs = minibatches.reshape(STEPS, 2, ROWS)
        (q, p), _ = jax.lax.scan(leapfrog, (z, momentum), pairs)
        lost = 0.5 * (p @ p - momentum @ momentum) + whole(z) - whole(q)
        rate = jnp.exp(jnp.minimum(0.0, -lost))
        taken = jax.random.uniform(accept_key) < rate if accept else True
        z = jnp.where(taken, q, z)
        return z, (z, rate)

    return jax.lax.scan(trajectory, start, jax.random.split(key, count))[1]


def naive(whitened, fresh_each_step, accept, count=900, chains=4):
    mode, factor = whitened
    data = tuple(map(jnp.asarray, (toy.X, toy.Y, mode, factor)))
    keys = jax.random.split(jax.random.key(1), chains)
    start = jnp.asarray(np.random.default_rng(2).normal(size=(chains, toy.D)))
    run = jax.vmap(partial(naive_chain, fresh_each_step, accept, count), in_axes=(0, None, 0))
    z, rate = run(keys, data, start)
    draws = mode + np.asarray(z) @ factor.T
    return draws[:, 300:], float(rate[:, 300:].mean())


def faults(draws):
    scaled = (draws - toy.MEAN) / toy.SD
    found = []
    for name, power, right in (("mean", 1, 0.0), ("sd", 2, 1.0)):
        at, error = mean_and_error(scaled**power)
        if not np.all(np.abs(at - right) <= TIMES * np.hypot(error, toy.TRUTH_ERROR)):
            found.append(name)
    return found


@pytest.mark.slow
def test_fresh_minibatches_at_every_step_sample_something_else(whitened, x64):
    draws, _ = naive(whitened, fresh_each_step=True, accept=False)
    assert "sd" in faults(draws)
    # not by a little: the noise heats the chain up (measured: 1.9 times too wide)
    assert np.all(draws.std(axis=(0, 1)) > 1.5 * toy.SD)


@pytest.mark.slow
def test_all_rows_hardly_ever_accept_what_a_minibatch_proposes(whitened, x64):
    draws, rate = naive(whitened, fresh_each_step=False, accept=True)
    assert rate < 0.1
    assert np.mean(np.diff(draws[..., 0], axis=1) != 0) < 0.1


@pytest.mark.slow
def test_nor_what_fresh_minibatches_propose(whitened, x64):
    _, rate = naive(whitened, fresh_each_step=True, accept=True, count=600)
    assert rate < 0.15


def test_the_same_integrator_with_all_rows_is_right(whitened, x64):
    # so the minibatches are to blame, not the step size
    mode, factor = whitened
    data = tuple(map(jnp.asarray, (toy.X, toy.Y, mode, factor)))
    density = jax.jit(lambda z: log_posterior(z, *data[:2], 1.0, *data[2:]))
    rng, z, lost = np.random.default_rng(3), np.zeros(4), []
    slope = jax.jit(jax.grad(density))
    for _ in range(20):
        p = rng.normal(size=4)
        start, q = 0.5 * p @ p - float(density(z)), z
        for _ in range(STEPS):
            p = p + 0.5 * STEP * np.asarray(slope(q))
            q = q + STEP * p
            p = p + 0.5 * STEP * np.asarray(slope(q))
        lost.append(0.5 * p @ p - float(density(q)) - start)
        z = q
    assert np.abs(lost).max() < 0.1


@pytest.mark.slow  # the kernel's tests have right answers of HMC-ECS
def test_energy_conserving_subsampling_with_as_many_rows_is_right():
    post = toy.posterior(anchor=toy.poor_anchor(), design="weighted", **toy.POOR)
    assert post.tuning["subsample"]["value"] == ROWS
    assert toy.faults(post) == []
    assert post.stats["acceptance_rate"].mean() > 0.7
