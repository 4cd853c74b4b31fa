"""Outcomes determined exactly by the columns: the scale of the noise has no posterior."""

import numpy as np
import pytest

import modicum as mo
from modicum.errors import NoNoiseError

X = np.random.RandomState(0).normal(size=(10, 4))


@pytest.mark.parametrize(
    "y",
    [
        pytest.param(X[:, 0], id="a column"),
        pytest.param(X @ [1.0, 0.3, 0.7, -2.0] + 0.1, id="a sum"),
        pytest.param(1000 * X[:, 1] + 1e6, id="rounding has a mode"),
    ],
)
def test_it_is_said_whether_rounding_has_a_mode_or_not(y):
    with pytest.raises(NoNoiseError, match=r"without noise.*Gaussian\(scale=\.\.\.\)"):
        mo.LogPosterior(mo.models.Gaussian(), mo.Rows(x=X, y=y)).mode()


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_lognormal_outcome_has_noise_in_its_logarithm(noise):
    rng = np.random.RandomState(9)
    rows = mo.Rows(x=X[:, :2], y=np.exp(X[:, 0] + noise * rng.normal(size=10)))
    search = mo.LogPosterior(mo.models.Lognormal(), rows).mode
    if noise:  # negative control
        assert 1e-4 < np.exp(search().point[-1]) < 1e-2
    else:
        with pytest.raises(NoNoiseError, match=r"logarithms of size .*with Gaussian\(scale"):
            search()


def test_a_little_noise_is_noise():
    y = X[:, 0] + 1e-5 * np.random.RandomState(9).normal(size=10)
    mode = mo.LogPosterior(mo.models.Gaussian(), mo.Rows(x=X, y=y)).mode()
    assert 1e-6 < np.exp(mode.point[-1]) < 1e-4


def test_a_scale_that_is_given_needs_no_noise():
    mode = mo.LogPosterior(mo.models.Gaussian(scale=1e-6), mo.Rows(x=X, y=X[:, 0])).mode()
    np.testing.assert_allclose(mode.point[:4], [1, 0, 0, 0], atol=1e-6)


@pytest.mark.parametrize("constant", [1e8, -1e11, 1e12])
@pytest.mark.parametrize("family", [mo.models.Gaussian, mo.models.StudentT])
def test_an_outcome_far_from_zero_has_its_noise(constant, family):
    """The mode is that of the outcome minus the constant, which goes to the intercept."""
    rng = np.random.RandomState(3)
    x = rng.normal(size=(400, 2))
    y = x @ [0.5, -1.0] + rng.normal(size=400)
    near = mo.LogPosterior(family(), mo.Rows(x=x, y=y)).mode().point
    far = mo.LogPosterior(family(), mo.Rows(x=x, y=constant + y)).mode().point
    digits = 4 * np.spacing(abs(constant))
    np.testing.assert_allclose(far[[0, 1, 3]], near[[0, 1, 3]], atol=1e-5 + digits)
    assert far[2] - constant == pytest.approx(near[2], abs=1e-5 + digits)


def test_outcomes_that_vary_by_their_last_digits_are_refused():
    y = 1e14 + np.random.RandomState(3).normal(size=10)
    with pytest.raises(mo.DataError, match="subtract a constant"):
        mo.sample(mo.models.Gaussian(), mo.Rows(x=X, y=y), progressbar=False)
