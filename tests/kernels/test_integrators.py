"""Each integrator follows its equation and has the variances known in closed form."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import modicum as mo
from helpers.refusals import refused
from helpers.targets import location, quick
from modicum.kernels.integrators import (
    Baoab,
    Friction,
    IntegratorState,
    Langevin,
    Preconditioned,
    Underdamped,
)


def baoab(z, r, xi, h):
    decay = np.exp(-3 * h)
    r = r - h * np.sin(z)
    half = z + h / 2 * r
    r = decay * r + np.sqrt(1 - decay**2) * xi
    return half + h / 2 * r, r


def damped(z, r, xi, h, sigma=6**0.5):
    return z + h * r, r - h * (np.sin(z) + 3 * r) + sigma * np.sqrt(h) * xi


# the equations of a step, where the gradient of U is sin(z)
STEPS = {
    Langevin(): lambda z, r, xi, h: (z - h / 2 * np.sin(z) + np.sqrt(h) * xi,),
    Langevin(halved=False): lambda z, r, xi, h: (z - h * np.sin(z) + np.sqrt(2 * h) * xi,),
    Underdamped(3.0): damped,
    Underdamped(3.0, sigma=1.0): partial(damped, sigma=1.0),
    Friction(3.0, noise=1.0): lambda z, r, xi, h: (
        z + h * r,
        r - h * np.sin(z + h * r) - 3 * h * r + np.sqrt(4 * h) * xi,
    ),
    Baoab(3.0): baoab,
}
LINEAR = list(STEPS)


@pytest.mark.parametrize("integrator", LINEAR, ids=repr)
def test_the_step_is_its_equation(integrator, x64):
    h, z, r, xi = 0.07, 0.3, -1.1, 0.8
    memory = jnp.array([r]) if integrator.has_momentum else ()
    there = integrator.drift(IntegratorState(jnp.array([z]), memory), h)
    after = integrator.kick(jnp.array([xi]), there, jnp.sin(there.z), h, {}, lambda: None)
    found = [float(leaf[0]) for leaf in jax.tree.leaves(after)]
    np.testing.assert_allclose(found, STEPS[integrator](z, r, xi, h), rtol=1e-12)
    step, before = integrator.response(h), np.array([z, r])[: len(found)]
    linear = step.free @ before - step.kick * np.sin(step.at @ before) + step.noise * xi
    np.testing.assert_allclose(found, linear, rtol=1e-12)


@pytest.mark.parametrize("integrator", LINEAR, ids=repr)
def test_a_step_keeps_the_precision_of_the_chain(integrator, x64):
    one, h = jnp.ones(1, np.float32), jnp.asarray(0.07, np.float32)
    walk = IntegratorState(one, one if integrator.has_momentum else ())
    after = integrator.kick(one, walk, one, h, {}, lambda: None)
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("integrator", [Underdamped(3.0), Friction(3.0), Baoab(3.0)], ids=repr)
def test_exponential_weights_give_the_transition_of_the_full_gradient(integrator, x64):
    """Theorem 2 of the EWSG paper, for weights divided by n: they need not add up to 1."""
    h, r, gradients = 0.07, -1.1, np.array([3.0, -8.0, 1.0, 12.0, -2.0])  # n times those of rows
    match = integrator.noise_match(IntegratorState(jnp.array([0.3]), jnp.array([r])), h)
    step, then = integrator.response(h), np.linspace(-9, 9, 2_001)
    tau, a = step.noise[1], float(match.scale) * np.append(gradients, gradients.mean())[:, None]
    free = step.free[1, 1] * r
    *single, full = norm.pdf(then, free - tau * a, tau)
    x = float(match.rest[0]) + then / tau
    weights = np.exp((x + a[:-1]) ** 2 / 2 - (x + a[-1]) ** 2 / 2) / len(gradients)
    np.testing.assert_allclose((weights * single).sum(0), full, rtol=1e-9, atol=1e-12)
    adding_up = (weights / weights.sum(0) * single).sum(0)  # what a selection of one row can do
    assert np.abs(adding_up - full).max() > 0.1 * full.max()


@pytest.mark.parametrize(("curvature", "noise"), [(20.0, 0.0), (20.0, 65.0), (1.0, 3.0)])
def test_langevin_variance(curvature, noise):
    e = 0.02
    known = (1 + e * noise / 4) / (curvature * (1 - e * curvature / 4))
    assert Langevin().response(e).variance(curvature, noise) == pytest.approx(known, rel=1e-12)
    assert Langevin(halved=False).response(e / 2).variance(curvature, noise) == pytest.approx(known)


def test_small_steps_sample_the_posterior_and_large_ones_diverge():
    for integrator in LINEAR:
        temperature = integrator.temperature
        if isinstance(integrator, Friction):
            temperature = 1 - integrator.noise / integrator.friction
        assert integrator.response(1e-4).variance(2.0) == pytest.approx(temperature / 2, rel=1e-3)
        assert integrator.response(10.0).variance(2.0) == np.inf


def test_baoab_has_no_error_on_a_quadratic():
    assert Baoab(2.0).response(0.9).variance(1.0) == pytest.approx(1.0, rel=1e-9)
    assert Underdamped(2.0).response(0.9).variance(1.0) > 1.5


@pytest.mark.parametrize(
    ("eta", "alpha", "corrected", "known"),
    [(0.001, 0.1, False, 1.337), (0.001, 0.1, True, 1.006), (0.0002, 0.05, False, 1.136)],
)
def test_friction_is_the_dynamics_of_chen_et_al(eta, alpha, corrected, known):
    # by simulation of v <- (1 - alpha) v - eta g + N(0, 2 (alpha - beta) eta), to about .005
    noise, e = location().gradient_noise(5), np.sqrt(eta)
    beta = eta * noise / 2 if corrected else 0.0
    step = Friction(alpha / e, noise=beta / e).response(e)
    assert 20 * step.variance(20.0, noise) == pytest.approx(known, abs=0.012)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Underdamped(friction=0.0), "friction must be a positive number"),
        (lambda: Friction(friction=1.0, noise=1.0), "below the friction"),
        (lambda: Preconditioned(decay=1.0), "decay must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, word):
    refused(mo.SettingError, word, make)


def test_derivatives_of_gradients_are_in_the_ledger():
    """Gamma takes one per coordinate, each as expensive as a gradient of the batch."""
    rows = mo.Rows(x=np.random.default_rng(1).normal(size=(100, 2)), y=np.zeros(100))
    method = mo.PSGLD(step_size=1e-6, batch=10, whiten=False, gamma=True)
    post = quick(mo.models.Gaussian(scale=1.0), rows, method=method, draws=5, tune=0, chains=1)
    # two coefficients and the intercept
    assert (post.stats["rows_touched"] == 10 * (1 + 3)).all()
    # else a step costs its batch alone, which compositions of test_stochastic_gradient.py check
    assert Preconditioned().derivatives(3) == 0


def variance_between_refreshes(C, h, L, gradient_noise):
    """Return the variance of z on a standard normal, with momenta refreshed every L steps."""
    step = np.array([[1.0, h], [-h, 1 - h * C - h**2]])  # the gradient at the new position
    added = np.diag([0.0, h**2 * gradient_noise + 2 * C * h])
    covariance = np.eye(2)
    for _ in range(300):
        covariance = np.diag([covariance[0, 0], 1.0])
        for _ in range(L):
            covariance = step @ covariance @ step.T + added
    return covariance[0, 0]


@pytest.mark.parametrize(("C", "h", "L"), [(1e-6, 0.06, 20), (1e-6, 0.02, 150), (0.2, 0.05, 24)])
def test_momenta_drawn_anew_make_up_for_gradient_noise(C, h, L):
    """Counting friction alone, correct variances were reported as 91 times too large."""
    exact = variance_between_refreshes(C, h, L, 10.0) / variance_between_refreshes(C, h, L, 0.0)
    variance = np.array([10.0])
    ratio = Friction(C, period=L).noise_ratio(h, np.zeros(1), variance, None)[0]
    assert 1 + ratio == pytest.approx(exact, rel=0.05)
    assert ratio < 0.75 * Friction(C).noise_ratio(h, np.zeros(1), variance, None)[0]
