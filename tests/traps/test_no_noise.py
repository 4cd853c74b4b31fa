"""Outcomes that the columns give to the last digit: the scale of their noise has no posterior."""

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


def test_a_little_noise_is_noise():
    y = X[:, 0] + 1e-5 * np.random.RandomState(9).normal(size=10)
    mode = mo.LogPosterior(mo.models.Gaussian(), mo.Rows(x=X, y=y)).mode()
    assert 1e-6 < np.exp(mode.point[-1]) < 1e-4


def test_a_scale_that_is_given_needs_no_noise():
    mode = mo.LogPosterior(mo.models.Gaussian(scale=1e-6), mo.Rows(x=X, y=X[:, 0])).mode()
    np.testing.assert_allclose(mode.point[:4], [1, 0, 0, 0], atol=1e-6)
