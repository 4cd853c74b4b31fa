"""Warm-up finds the step size whose acceptance is the one asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
from blackjax.adaptation.step_size import dual_averaging_adaptation

from modicum.kernels.adaptation import DualAveraging, adapt, schedule, start_adaptation

SIZE, TUNE, TARGET = 8, 600, 0.8
FLAGS = schedule(TUNE, 0, adapt_mass=True)


def acceptance(key, step_size, inverse_mass):
    """Acceptance of a trajectory on a standard normal: its mean falls with the step size."""
    rough = jnp.max(step_size**4 * inverse_mass**2)  # an energy error of order eps^2, squared
    change = jnp.sqrt(rough) * jax.random.normal(key) - rough / 2
    return jnp.minimum(1.0, jnp.exp(change))


def run(learn, seed):
    def step(state, inputs):
        key, flags = inputs
        at = jax.random.normal(key, (SIZE,))
        rate = acceptance(jax.random.fold_in(key, 1), state.step_size, state.inverse_mass)
        return learn(state, flags, at, rate, TARGET), None

    keys = jax.random.split(jax.random.key(seed), TUNE)
    return jax.lax.scan(step, start_adaptation(SIZE), (keys, FLAGS))[0]


def restarting(state, flags, at, rate, target):
    """Learn the step size afresh with every new mass, as Stan's warm-up does."""
    learned = adapt(state, flags, at, rate, target)
    fresh = DualAveraging.start(jnp.exp(learned.averaging.log_average))
    return jax.lax.cond(
        flags.window_end,
        lambda: learned._replace(averaging=fresh, step_size=jnp.exp(fresh.log_step_size)),
        lambda: learned,
    )


def after_warmup(learn):
    """Mean acceptance of chains after their warm-up, and what their inverse masses are."""

    def one(seed):
        state = run(learn, seed)
        keys = jax.random.split(jax.random.key(seed + 1_000), 500)
        rates = jax.vmap(lambda k: acceptance(k, state.step_size, state.inverse_mass))(keys)
        return rates.mean(), state.inverse_mass

    rates, masses = jax.jit(jax.vmap(one))(jnp.arange(20))
    return float(rates.mean()), np.asarray(masses)


def test_the_step_size_gives_the_acceptance_asked_for():
    rate, inverse_mass = after_warmup(adapt)
    assert rate == pytest.approx(TARGET, abs=0.03)
    np.testing.assert_allclose(inverse_mass, 1.0, atol=0.35)
    # fifty iterations after a restart the average is still that of wide swings: too short
    assert after_warmup(restarting)[0] > TARGET + 0.05


def test_dual_averaging_is_that_of_blackjax():
    rates = np.random.default_rng(1).uniform(0, 1, 50)
    begin, follow, average = dual_averaging_adaptation(TARGET)
    ours, theirs = DualAveraging.start(jnp.asarray(0.3)), begin(jnp.asarray(0.3))
    for rate in rates:
        ours, theirs = ours.updated(TARGET - rate), follow(theirs, rate)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert float(jnp.exp(ours.log_average)) == pytest.approx(float(average(theirs)), rel=1e-5)


def test_a_mass_matrix_is_learned_whatever_the_unit():
    """Of parameters in the thousandths too, which Stan's rule would take for one of order 1."""
    unit, flags = 1e-4, schedule(150, 0, adapt_mass=True)
    cov = np.array([[1.0, 0.9], [0.9, 2.0]])
    at = unit * np.random.default_rng(1).multivariate_normal([0, 0], cov, size=150)

    def learned(scale):
        def step(state, inputs):
            return adapt(state, inputs[1], inputs[0], jnp.asarray(0.8), 0.8), None

        start = start_adaptation(2, dense=True)
        return jax.jit(lambda x: jax.lax.scan(step, start, (x, flags))[0].inverse_mass)(scale * at)

    small, large = np.asarray(learned(1.0)) / unit**2, np.asarray(learned(1 / unit))
    np.testing.assert_allclose(small, large, rtol=1e-4)
    np.testing.assert_allclose(large, cov, atol=0.6)
    theirs = mass_matrix_adaptation(False)
    state = theirs[0](2)
    for point in at[:25]:
        state = theirs[1](state, point)
    assert theirs[2](state).inverse_mass_matrix[0, 0] > 10 * unit**2 * cov[0, 0]
