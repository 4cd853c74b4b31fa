"""The optimal variance of a likelihood estimate."""

import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused
from modicum.diagnostics import optimal_variance
from modicum.diagnostics.convergence import _inefficiency


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
