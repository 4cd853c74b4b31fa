"""Inefficiency factors of autoregressions, which are known, and what they cost."""

import numpy as np
import pytest
from scipy.signal import lfilter

import modicum as mo
from helpers.refusals import refused
from modicum.diagnostics import (
    batch_means_inefficiency,
    batch_means_variance,
    computational_time,
    inefficiency,
    optimal_variance,
    relative_computational_time,
)
from modicum.diagnostics.convergence import _inefficiency
from modicum.errors import SettingError


def ar1(phi, shape, seed):
    """Stationary autoregression of order one with unit variance, along the second axis."""
    noise = np.random.default_rng(seed).normal(size=shape)
    noise[:, 1:] *= np.sqrt(1 - phi**2)
    return lfilter([1.0], [1.0, -phi], noise, axis=1)


def test_ar1_has_inefficiency_19():
    x = ar1(0.9, (1, 200_000), seed=1)
    assert inefficiency(x) == pytest.approx(19, abs=1)
    # 40 batches: a relative standard error of sqrt(2 / 40) = .22
    assert batch_means_inefficiency(x) == pytest.approx(19, rel=4 * 0.22)
    # negative controls: another autoregression, and the same draws in a random order
    assert abs(inefficiency(ar1(0.8, (1, 200_000), seed=1)) - 19) > 1
    assert abs(inefficiency(np.random.default_rng(2).permutation(x[0])) - 19) > 1


def test_independent_draws_have_inefficiency_1():
    x = np.random.default_rng(3).normal(size=(4, 20_000, 2))
    np.testing.assert_allclose(inefficiency(x), 1, atol=0.05)
    np.testing.assert_allclose(batch_means_inefficiency(x), 1, atol=4 * np.sqrt(2 / 160))


def test_negative_correlation_is_better_than_independence():
    assert inefficiency(ar1(-0.5, (1, 100_000), seed=4)) == pytest.approx(1 / 3, rel=0.05)


def test_order_cap_misses_a_small_slow_component_that_batch_means_see():
    phi, share = 0.998, 0.005
    fast = np.random.default_rng(7).normal(size=(8, 40_000))
    x = fast + np.sqrt(share) * ar1(phi, fast.shape, seed=8)
    truth = (1 + share * (1 + phi) / (1 - phi)) / (1 + share)
    assert inefficiency(x) < 0.75 * truth
    # 320 batches of 1,000: relative standard error .08, and .25 of the slow part is cut off
    assert batch_means_inefficiency(x) == pytest.approx(truth, rel=0.4)
    assert batch_means_inefficiency(x) > 1.2 * inefficiency(x)
    # without the slow component the two agree
    assert batch_means_inefficiency(fast) == pytest.approx(inefficiency(fast), rel=0.35)


def test_chains_are_averaged():
    one, two = ar1(0.9, (1, 5_000), seed=9), ar1(0.1, (1, 5_000), seed=10)
    both = inefficiency(np.concatenate([one, two]))
    assert both == pytest.approx((inefficiency(one) + inefficiency(two)) / 2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("measure", [inefficiency, batch_means_inefficiency])
def test_edges(measure):
    constant = np.full((2, 50, 3), 0.1)
    assert np.all(measure(constant) == np.inf)
    assert np.isnan(measure([1.0, 2.0, 3.0]))
    assert np.isnan(measure(np.zeros((2, 0, 1)))).all()
    broken = np.random.default_rng(1).normal(size=(2, 50, 2))
    broken[1, 3, 0] = np.nan
    assert np.isnan(measure(broken)).tolist() == [True, False]
    assert isinstance(measure(broken[:, :, 1]), float)
    assert measure(1e-8 * broken[:, :, 1]) == pytest.approx(measure(broken[:, :, 1]))


def test_batch_means_sees_chains_that_disagree():
    x = np.random.default_rng(11).normal(size=(4, 1_000))
    assert batch_means_variance(x + np.arange(4)[:, None]) > 5 * batch_means_variance(x)
    refused(SettingError, "two batches", batch_means_variance, x, batches=1)
    refused(SettingError, "single number", inefficiency, 3.0)


def test_computational_time():
    assert computational_time([2.0, 3.0], 10).tolist() == [20, 30]
    # tau = .9: mean sign .8
    assert computational_time(2.0, 10, mean_sign=0.8) == pytest.approx(20 / 0.64)
    assert computational_time(2.0, 10, mean_sign=0.0) == np.inf
    # the better algorithm comes first
    assert relative_computational_time(reference=20, other=60) == 3


# The optimal variance of a likelihood estimate -----------------------------------------------


@pytest.mark.parametrize(
    ("rho", "variance"), [(0.0, 0.846), (0.5, 2.807), (0.9, 21.28), (0.99, 231.8), (0.999, 2337.0)]
)
def test_the_optimum(rho, variance):
    assert optimal_variance(rho) == pytest.approx(variance, rel=1e-3)


def test_the_inefficiency_is_that_of_a_simulated_chain():
    """Simulate the probability of leaving Z."""
    variance, rho = 2.0, 0.5
    rng = np.random.default_rng(1)
    z = variance / 2 + np.sqrt(variance) * rng.normal(size=2_000)
    proposed = -variance * (1 - rho) / 2 + rho * z[:, None]
    proposed = proposed + np.sqrt(variance * (1 - rho**2)) * rng.normal(size=(2_000, 4_000))
    leave = np.minimum(1, np.exp(proposed - z[:, None])).mean(axis=1)
    simulated = (2 - leave) / leave
    error = simulated.std() / np.sqrt(len(z))
    assert abs(simulated.mean() - _inefficiency(variance, rho)) < 4 * error
    assert abs(simulated.mean() - _inefficiency(variance, 0.0)) > 4 * error  # another correlation


def test_a_correlation_is_a_number_below_one():
    for bad in (1.0, -0.1, "much"):
        refused(mo.SettingError, "correlation must be", optimal_variance, bad)
