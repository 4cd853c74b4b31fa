"""`mo.LogPosterior` against NumPy and its own derivatives, and what it refuses."""

import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused


@pytest.fixture(scope="module")
def logistic():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 2))
    y = (rng.random(400) < 1 / (1 + np.exp(1 - x @ [0.8, -0.5]))).astype(float)
    model = mo.models.Logistic(prior_scale=2.0, intercept=False)
    return x, y, mo.LogPosterior(model, mo.Rows(x=x, y=y))


def by_numpy(x, y, beta):
    eta = x @ beta
    likelihood = np.sum(y * eta - np.logaddexp(0, eta))
    return likelihood - 0.5 * np.sum(beta**2 / 4 + np.log(2 * np.pi * 4))


def test_values_match_numpy_up_to_a_constant(logistic):
    x, y, posterior = logistic
    points = np.random.default_rng(2).normal(size=(5, 2))
    ours, theirs = posterior.values(points), np.array([by_numpy(x, y, b) for b in points])
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-9)
    assert posterior.value(points[0]) == pytest.approx(ours[0], rel=1e-12)


def test_derivatives_match_the_values(logistic):
    *_, posterior = logistic
    point, step = np.array([0.3, -0.2]), 1e-4 * np.eye(2)
    value, gradient, hessian = posterior.hessian(point)
    up, down = (posterior.values(point + sign * step) for sign in (1, -1))
    np.testing.assert_allclose((up - down) / 2e-4, gradient, rtol=1e-5)
    slopes = [posterior.gradient(point + e)[1] - posterior.gradient(point - e)[1] for e in step]
    np.testing.assert_allclose(np.array(slopes) / 2e-4, hessian, rtol=1e-5)
    assert posterior.gradient(point)[0] == pytest.approx(value, rel=1e-12)


def test_the_mode_is_one_and_its_factor_whitens(logistic):
    x, _, posterior = logistic
    before = posterior.ledger.evaluations
    mode = posterior.mode()
    assert mode.distance < 1e-6
    assert posterior.ledger.evaluations - before >= mode.passes * len(x)
    value, gradient, hessian = posterior.hessian(mode.point)
    assert mode.log_posterior == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(gradient, 0, atol=1e-4)
    np.testing.assert_allclose(mode.factor.T @ -hessian @ mode.factor, np.eye(2), atol=1e-8)
    np.testing.assert_allclose(mode.covariance, np.linalg.inv(-hessian), rtol=1e-8)
    np.testing.assert_array_equal(mode.named["beta"], mode.point)


def test_parameters_have_the_names_and_shapes_of_draws():
    rng = np.random.default_rng(1)
    model = mo.models.Gaussian()  # its noise scale is estimated, and positive
    rows = mo.Rows(x=rng.normal(size=(50, 2)), y=rng.normal(size=50))
    posterior = mo.LogPosterior(model, rows)
    named = posterior.named(np.zeros((3, len(posterior))))
    shapes = {name: x.shape for name, x in named.items()}
    assert shapes == {"beta": (3, 2), "intercept": (3,), "scale": (3,)}
    assert (named["scale"] > 0).all()


@pytest.mark.parametrize("call", ["value", "gradient", "hessian", "values", "named"])
def test_a_point_of_another_length_is_refused(logistic, call):
    *_, posterior = logistic
    refused(mo.SettingError, "has 2 parameters", getattr(posterior, call), np.zeros(3))
    with pytest.raises(mo.SettingError, match="flat vector of 2 numbers"):
        getattr(posterior, call)({"beta": np.zeros(2)})


def test_what_is_not_a_model_and_what_has_no_mode_is_refused():
    rows = mo.Rows(x=np.zeros((20, 4)), y=np.arange(20.0) % 2)
    refused(mo.SettingError, "must be a model", mo.LogPosterior, "logistic", rows)
    network = mo.LogPosterior(mo.models.MLP(hidden=(3,), classes=2), rows)
    kinked = mo.LogPosterior(mo.models.AsymmetricLaplace(), rows)
    refused(mo.SettingError, r"AsymmetricLaplace .* kinks", kinked.mode)
    refused(mo.SettingError, r"MLP .* many modes", network.mode)
    with pytest.raises(mo.SettingError, match="within must be a positive number"):
        mo.LogPosterior(mo.models.Logistic(), rows).mode(within=0)
