"""Correlation matrices from unconstrained numbers: accurate for strong correlations, and LKJ."""

from decimal import Decimal, localcontext

import jax
import numpy as np
import pytest
from scipy import stats

from modicum.models.covariances import (
    Covariance,
    correlation_factor,
    correlations,
    log_unexplained,
    partial_exponents,
    partials_of,
    partials_of_factor,
    unnormalized_lkj,
    unnormalized_lkj_integral,
)
from modicum.models.priors.distributions import HalfNormal, as_tree
from modicum.models.priors.exact import Effects, log_hyper_density

POINTS = np.array([0.0, 5.0, 19.0, 40.0, -19.0])


def reference(x):
    """Return log(1 - r^2), its two derivatives in x, and sqrt(1 - r^2), with 80 digits."""
    with localcontext() as context:
        context.prec = 80
        up, down = Decimal(x).exp(), Decimal(-x).exp()
        sech, tanh = 2 / (up + down), (up - down) / (up + down)
        return [float(v) for v in (2 * sech.ln(), -2 * tanh, -2 * sech**2, sech)]


@jax.jit
def measured(x):
    slope = jax.grad(log_unexplained)
    corner = correlation_factor(x[:, None], 2)[:, 1, 1]
    return jax.vmap(log_unexplained)(x), jax.vmap(slope)(x), jax.vmap(jax.grad(slope))(x), corner


def test_what_a_partial_correlation_leaves_over_is_exact_to_its_last_digits(x64):
    truth = np.array([reference(float(x)) for x in POINTS]).T
    ours = np.array(measured(POINTS))
    np.testing.assert_allclose(ours[[0, 1, 3]], truth[[0, 1, 3]], rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(ours[2], truth[2], atol=1e-14)  # at 0 it is -2, not 0
    np.testing.assert_allclose(log_unexplained(POINTS), truth[0], rtol=1e-14, atol=1e-15)
    with np.errstate(divide="ignore"):
        naive = np.log1p(-(np.tanh(POINTS) ** 2))
    assert abs(naive[2] - truth[0, 2]) > 0.1  # negative control: digits lost


def test_both_models_of_group_effects_use_it(x64):
    """At x = 19 and 40, rounding r would put the log-density off, or at minus infinity."""
    scales, eta = (as_tree(HalfNormal(1.0)),) * 2, np.asarray(1.7)
    term = Effects(scales, eta, (0, 1), (2, 3), (4,))

    @jax.jit
    def densities(t):
        theta = {"group_log_sd": t[2:4], "group_partial": t[4:]}
        effects = term.log_effects(t)
        integrated = log_hyper_density(scales, eta, Covariance(2).hyper(theta))
        return integrated, term.log_density(t) - effects, effects

    gaps = []
    for x in (0.0, 19.0, 40.0):
        known = 1.7 * reference(x)[0]  # LKJ(1.7) of two effects: alpha = eta
        integrated, explicit, effects = map(float, densities(np.array([0.0, 0.0, 0.0, 0.0, x])))
        gaps.append([integrated - known, explicit - known])
        log_det = -effects - np.log(2 * np.pi)  # effects are 0
        assert log_det == pytest.approx(reference(x)[0] / 2, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(gaps, 2 * stats.halfnorm.logpdf(1.0), rtol=1e-12)


@pytest.mark.parametrize("eta", [0.8, 3.0])
def test_the_density_integrates_to_one(eta, x64):
    x = np.linspace(-40, 40, 200_001)
    log_density = jax.jit(jax.vmap(lambda x: unnormalized_lkj(x[None], 2, eta)))(x)
    normalized = np.exp(np.asarray(log_density) - unnormalized_lkj_integral(2, eta))
    assert np.trapezoid(normalized, x) == pytest.approx(1, abs=1e-10)
    wrong = np.exp(np.asarray(log_density) - unnormalized_lkj_integral(2, eta + 0.1))
    assert np.trapezoid(wrong, x) != pytest.approx(1, abs=1e-2)


def test_every_correlation_has_its_known_distribution(x64):
    """(1 + R_ij) / 2 is Beta(a, a), a = eta + count / 2 - 1, for every pair (LKJ 2009)."""
    rng, count, eta = np.random.default_rng(1), 3, 1.5
    alpha = partial_exponents(count, eta)
    x = np.arctanh(2 * rng.beta(alpha, alpha, size=(4_000, 3)) - 1)
    drawn = np.asarray(jax.jit(jax.vmap(lambda x: correlations(x, count)))(x))
    known = stats.beta(eta + count / 2 - 1, eta + count / 2 - 1, loc=-1, scale=2)
    wrong = stats.beta(eta, eta, loc=-1, scale=2)
    assert all(stats.kstest(drawn[:, k], known.cdf).pvalue > 0.01 for k in range(3))
    assert all(stats.kstest(drawn[:, k], wrong.cdf).pvalue < 0.01 for k in range(3))


def test_numbers_are_found_again_also_where_correlations_round_to_one(x64):
    x = np.array([[0.3, -0.7, 1.1], [40.0, -25.0, 30.0]])
    factor = correlation_factor(x, 3)
    assert isinstance(factor, np.ndarray)

    @jax.jit
    def found(x):
        factor = correlation_factor(x, 3)
        again = partials_of(correlations(x[0], 3), 3)
        return factor, partials_of_factor(factor), again, partials_of(correlations(x[1, :1], 2), 2)

    compiled, partials, again, (near,) = found(x)
    np.testing.assert_allclose(compiled, factor, rtol=1e-12)
    np.testing.assert_allclose(np.sum(factor**2, axis=-1), 1, rtol=1e-14)
    np.testing.assert_allclose(partials, x, rtol=1e-12)
    np.testing.assert_allclose(again, x[0], rtol=1e-10)
    assert 18 < near < 20  # a correlation of 1 tells no more
