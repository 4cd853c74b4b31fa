"""Likelihood estimates: their formulas, expectations, signs and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.normal_factors import normal_factors
from helpers.slow import slowly
from helpers.targets import TIMES
from modicum.kernels.likelihood_estimates import BlockPoisson, Perturbed

# d, sigma_m, lambda, a, and what theory says: positive share and variance of log |Lhat|
SETTINGS = [
    *slowly((0.0, 10.0, 20, -20.0, 0.7013, 11.720), (0.0, 5.0, 20, -20.0, 0.9994, 1.572)),
    (0.5, 3.0, 5, -4.5, 0.8100, 4.037),
]


@partial(jax.jit, static_argnums=0)
def draw_present(estimator, key):
    """Draw the factors of all blocks; return which slots have one."""
    counts = estimator.counts(key, estimator.blocks)
    return jnp.arange(estimator.slots) < jnp.sum(counts)


def slot_rows(estimator):
    return estimator.slots * estimator.batch


@partial(jax.jit, static_argnums=(0, 1))
def simulate(estimator, count, d, deviation, centre):
    """Independent estimates with normal residuals: log |Lhat|, its sign, factors in use."""

    def one(key):
        present_key, values_key = jax.random.split(key)
        present = draw_present(estimator, present_key)
        noise = jax.random.normal(values_key, (slot_rows(estimator),))
        values = d + deviation * np.sqrt(estimator.batch) * noise
        given = (values, present, centre)
        estimate = estimator.combine(*given)
        told = estimator.describe(estimate, *given)
        return estimate.log, told["sign"], told

    return jax.lax.map(one, jax.random.split(jax.random.key(1), count), batch_size=2000)


@pytest.mark.parametrize(("d", "deviation", "products", "lower", "positive", "variance"), SETTINGS)
def test_expectation_sign_and_variance_are_what_theory_says(
    d, deviation, products, lower, positive, variance, x64
):
    theory = normal_factors(d, deviation, products, lower)
    assert theory.positive == pytest.approx(positive, abs=5e-5)
    assert theory.log_variance == pytest.approx(variance, abs=5e-4)
    estimator = BlockPoisson(products, batch=2, blocks=products // 5 if products > 5 else 1)
    log, sign, told = (
        jax.tree.map(np.asarray, part)
        for part in simulate(estimator, 40_000, d, deviation, lower + products)
    )
    root = np.sqrt(len(log))
    assert abs((sign > 0).mean() - theory.positive) < 3 * np.sqrt(positive * (1 - positive)) / root
    log_mean = lower + products * (1 + theory.log_mean)
    assert abs(log.mean() - log_mean) < 3 * log.std() / root
    squares = (log - log_mean) ** 2
    assert abs(squares.mean() - theory.log_variance) < 3 * squares.std() / root
    assert abs(told["variance_estimate"].mean() - theory.log_variance) < (
        3 * told["variance_estimate"].std() / root
    )
    ratio = sign * np.exp(log - d)  # Lhat / L
    assert abs(ratio.mean() - 1) < 3 * ratio.std() / root
    weight = np.abs(ratio)
    error = np.std(ratio - theory.chain_sign * weight) / weight.mean() / root
    assert abs(ratio.mean() / weight.mean() - theory.chain_sign) < TIMES * error
    # negative control: without signs the expectation is off if factors are negative
    if positive < 0.99:
        assert abs(weight.mean() - 1) > 3 * weight.std() / root


def test_rows_in_empty_slots_do_not_matter(x64):
    estimator = BlockPoisson(12, batch=3, blocks=4)
    present = np.asarray(draw_present(estimator, jax.random.key(3)))
    values = np.random.default_rng(2).normal(size=slot_rows(estimator))
    spoiled = np.where(np.repeat(present, 3), values, np.nan)

    @jax.jit
    @jax.value_and_grad
    def log(D):
        return estimator.combine(D, present, 0.0).log

    (one, _), (other, slope) = log(values), log(spoiled)
    assert float(one) == float(other)
    assert np.isfinite(np.asarray(slope)).all()


def test_the_gradient_is_its_slope_on_both_sides_of_zero(x64):
    estimator = BlockPoisson(6, batch=4, blocks=2)
    rng = np.random.default_rng(5)
    x, t = rng.normal(size=(slot_rows(estimator), 3)), rng.normal(size=3)
    present = jnp.arange(estimator.slots) % 3 > 0

    @jax.jit
    @jax.value_and_grad
    def log(t):
        return estimator.combine(25 * jnp.sin(x @ t), present, 0.4).log

    d = 25 * np.sin(x @ t).reshape(-1, 4)
    c = (25 * np.cos(x @ t))[:, None] * x
    dhat, slopes = d.mean(1), c.reshape(-1, 4, 3).mean(1)
    there = np.asarray(present)
    right = (slopes / (dhat - (0.4 - 6))[:, None])[there].sum(0)
    assert (dhat[there] < 0.4 - 6).any()  # some factors are negative
    np.testing.assert_allclose(log(t)[1], right, rtol=1e-11)
    h = 1e-6
    differences = [float(log(t + h * e)[0] - log(t - h * e)[0]) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(differences, right, rtol=1e-6)


# The perturbed estimate ---------------------------------------------------------------------

D = np.random.default_rng(1).gamma(2.0, 3.0, 25) - 4


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_perturbed_estimate_is_its_formula(ddof, x64):
    estimate = jax.jit(lambda D: Perturbed(ddof).combine(D, None, {}))(D)
    m = len(D)
    variance = ((D - D.mean()) ** 2).sum() / (m**2 if ddof == 0 else m * (m - 1))
    assert float(estimate.difference) == pytest.approx(D.mean(), rel=1e-14)
    assert float(estimate.variance) == pytest.approx(variance, rel=1e-14)
    assert float(estimate.log) == pytest.approx(D.mean() - variance / 2, rel=1e-14)
