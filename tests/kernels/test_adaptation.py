"""Warm-up finds the step size with the target acceptance."""

from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from modicum.kernels.moves import adapt, schedule, start_adaptation, typical_step_size

SIZE, TUNE, TARGET = 8, 600, 0.8


def acceptance(key, step_size, inverse_mass):
    """Simulate the acceptance of a trajectory, whose mean falls with the step size."""
    rough = jnp.max(step_size**4 * inverse_mass**2)  # an energy error of order eps^2, squared
    change = jnp.sqrt(rough) * jax.random.normal(key) - rough / 2
    return jnp.minimum(1.0, jnp.exp(change))


def run(flags, seed, growth):
    """Run a warm-up; the chain moves `growth` times as far as before in its last, long window."""

    def step(state, inputs):
        key, flags, far = inputs
        at = far * jax.random.normal(key, (SIZE,))
        rate = acceptance(jax.random.fold_in(key, 1), state.step_size, state.inverse_mass)
        return adapt(state, flags, at, rate, TARGET), None

    keys = jax.random.split(jax.random.key(seed), TUNE)
    last = np.flatnonzero(flags.window_end)[-2] + 1
    far = jnp.where(jnp.arange(TUNE) < last, 1.0, growth)
    return jax.lax.scan(step, start_adaptation(SIZE), (keys, flags, far))[0]


def after_warmup(growth=1.0, **kind):
    """Return the mean acceptance and inverse masses of chains after warm-up."""
    flags = schedule(TUNE, 0, adapt_mass=True, **kind)

    def one(seed):
        state = run(flags, seed, growth)
        keys = jax.random.split(jax.random.key(seed + 1_000), 500)
        rates = jax.vmap(lambda k: acceptance(k, state.step_size, state.inverse_mass))(keys)
        return rates.mean(), state.inverse_mass

    rates, masses = jax.jit(jax.vmap(one))(jnp.arange(20))
    return float(rates.mean()), np.asarray(masses)


def test_the_step_size_gives_the_acceptance_asked_for():
    rate, inverse_mass = after_warmup()
    assert rate == pytest.approx(TARGET, abs=0.03)
    np.testing.assert_allclose(inverse_mass, 1.0, atol=0.35)
    # fifty iterations after a restart, wide swings still dominate the average: too short
    assert TARGET + 0.05 < after_warmup(whitened=False)[0] < 0.95


def test_the_step_size_follows_a_mass_of_other_units():
    assert TARGET < after_warmup(growth=30.0, whitened=False)[0] < 0.95
    # an average over all of warm-up remembers the step of another mass, thirty times too long
    assert after_warmup(growth=30.0)[0] < 0.5


def test_a_mass_matrix_is_learned_whatever_the_unit():
    """This includes parameters of order 1e-3, which Stan's rule would regularise towards 1."""
    unit, flags = 1e-4, schedule(150, 0, adapt_mass=True)
    cov = np.array([[1.0, 0.9], [0.9, 2.0]])
    at = unit * np.random.default_rng(1).multivariate_normal([0, 0], cov, size=150)

    def learned(scale):
        def step(state, inputs):
            return adapt(state, inputs[1], inputs[0], jnp.asarray(0.8), 0.8), None

        @jax.jit
        def mass(x):
            start = start_adaptation(2, dense=True)
            return jax.lax.scan(step, start, (x, flags))[0].inverse_mass

        return mass(scale * at)

    small, large = np.asarray(learned(1.0)) / unit**2, np.asarray(learned(1 / unit))
    np.testing.assert_allclose(small, large, rtol=1e-4)
    np.testing.assert_allclose(large, cov, atol=0.6)


def accepted(size, step, trajectory=1.2, count=4_000):
    """Return the mean acceptance of leapfrog trajectories on a standard normal."""
    at, momentum = np.random.default_rng(size).normal(size=(2, count, size))
    before = np.sum(at**2 + momentum**2, axis=1) / 2
    momentum -= step / 2 * at
    for _ in range(ceil(trajectory / step)):
        at += step * momentum
        momentum -= step * at
    momentum += step / 2 * at
    after = np.sum(at**2 + momentum**2, axis=1) / 2
    return np.mean(np.minimum(1, np.exp(before - after)))


@pytest.mark.parametrize("size", [4, 30, 300])
def test_the_typical_step_accepts_eight_of_ten(size):
    error = 4 * 0.3 / np.sqrt(4_000)  # of a mean of numbers in (0, 1) whose sd is about .3
    assert abs(accepted(size, typical_step_size(size)) - 0.8) < error + 0.02  # .80 to .82 exactly
    # negative controls: the steps for four times and for a quarter as many dimensions
    assert accepted(size, typical_step_size(4 * size)) > 0.8 + error + 0.02
    assert accepted(size, typical_step_size(size) * 4**0.25) < 0.8 - error - 0.02
