"""Softmax, precision far out, priors given as scales, and settings and rows that are refused."""

import jax
import numpy as np
import pytest
from scipy import stats

import modicum as mo
from helpers.refusals import refused
from helpers.targets import all_of, class_rows, gaussian_rows, logistic_rows
from modicum.models import Target

M = mo.models
logistic_derivatives = jax.jit(M.Logistic().derivatives)


@pytest.mark.parametrize("eta", [-800.0, -40.0, 40.0, 800.0])
def test_logistic_stays_accurate_far_out(eta, x64):
    f, f1, f2, f3 = logistic_derivatives(np.array([eta]), np.array([1.0 * (eta > 0)]))
    tail = np.exp(-abs(eta))
    np.testing.assert_allclose(f, -np.log1p(tail), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(f2, -tail, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(np.abs(f3), tail, rtol=1e-12, atol=1e-300)
    assert np.abs(f1[0]) <= max(tail, 2e-16)


def _theta(model, rows, seed=3):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: 0.5 * rng.normal(size=np.shape(a)), model.start(rows))


def _eta(theta, batch):
    eta = batch["x"] @ np.asarray(theta["beta"]).T + theta["intercept"]
    return eta + batch.get("offset", 0.0)


def test_softmax_log_likelihood(x64):
    rows, model = class_rows(60), M.Softmax()
    theta, batch = _theta(model, rows), all_of(rows)
    eta = np.c_[_eta(theta, batch), np.zeros(60)]
    chance = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
    truth = np.log(chance[np.arange(60), batch["y"].astype(int)])
    np.testing.assert_allclose(jax.jit(model.log_likelihood)(theta, batch), truth, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(model.expected)(theta, batch), chance, rtol=1e-12)


def test_poisson_keeps_large_counts_exact_in_float32_rows(x64):
    y = np.array([3e6, 5.0], np.float32)
    batch = {"x": np.zeros((2, 1), np.float32), "y": y}
    theta = {"beta": np.zeros(1), "intercept": 14.9}
    truth = stats.poisson.logpmf(y.astype(float), np.exp(14.9))
    ours = jax.jit(M.Poisson().log_likelihood)(theta, batch)
    np.testing.assert_allclose(ours, truth, rtol=1e-9)


@pytest.mark.parametrize("scale", [2.0, (0.5, 1.0, 4.0)])
def test_prior_is_independent_normal(scale, x64):
    rows = gaussian_rows(10)
    model = M.Gaussian(prior_scale=scale, intercept_scale=7.0, scale_prior=1.5).resolved(rows)
    theta = _theta(model, rows)
    truth = stats.norm.logpdf(theta["beta"], 0, np.asarray(scale)).sum()
    truth += stats.norm.logpdf(theta["intercept"], 0, 7.0)
    truth += stats.norm.logpdf(theta["log_scale"], 0, 1.5)
    np.testing.assert_allclose(jax.jit(model.log_prior)(theta), truth, rtol=1e-12)
    model = M.Softmax(prior_scale=[0.5, 2.0], intercept_scale=3.0).resolved(class_rows(30))
    theta = _theta(model, class_rows(30))
    truth = stats.norm.logpdf(theta["beta"], 0, np.array([[0.5, 2.0]])).sum()  # by column
    truth += stats.norm.logpdf(theta["intercept"], 0, 3.0).sum()
    np.testing.assert_allclose(jax.jit(model.log_prior)(theta), truth, rtol=1e-12)


def test_labels_name_columns_and_classes():
    rows = gaussian_rows(10, columns=["age", "dose", "bmi"])
    assert M.Gaussian().labels(rows)["beta"] == (("age", "dose", "bmi"),)
    labels = M.Softmax().labels(class_rows(50, columns=["a", "b"]))
    assert labels["beta"] == (("class 0", "class 1"), ("a", "b"))
    assert labels["intercept"] == (("class 0", "class 1"),)


def test_models_hash_by_value():
    a, b = M.Logistic(prior_scale=np.array([1.0, 2.0])), M.Logistic(prior_scale=[1, 2])
    assert a == b
    assert hash(a) == hash(b)
    assert a != M.Logistic(prior_scale=(1.0, 3.0))
    rows = logistic_rows(20, 2)
    assert hash(Target.of(a, rows)[0]) == hash(Target.of(b, rows)[0])


# What is refused -----------------------------------------------------------------------------


WRONG = {
    "prior_scale": [0, -1.0, np.nan, np.inf, [], [1.0, 0.0], np.ones((2, 2)), "wide"],
    "intercept_scale": [0, "wide"],
    "intercept": ["no"],
    "scale": [0.0, "one"],
    "scale_prior": [-1, np.inf],
    "df": [0, "four"],
    "classes": [1, 2.5, "three"],
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_settings(name):
    family = M.Softmax if name == "classes" else M.StudentT
    for value in WRONG[name]:
        refused(mo.SettingError, name, family, **{name: value})


def test_fields_that_are_missing_or_misshapen():
    x, y = np.ones((4, 2)), np.array([0.0, 1, 0, 1])
    three = M.Logistic(prior_scale=[1.0, 2.0, 3.0])
    for error, words, model, rows in (
        (mo.DataError, "'y'", M.Logistic(), mo.Rows(x=x)),
        (mo.DataError, "'x'", M.Logistic(), mo.Rows(y=y)),
        (mo.DataError, "matrix", M.Logistic(), mo.Rows(x=y, y=y)),
        (mo.DataError, "one outcome per row", M.Gaussian(), mo.Rows(x=x, y=x)),
        (mo.SettingError, "3 entries for 2 columns", three, mo.Rows(x=x, y=y)),
        (mo.SettingError, "single class", M.Softmax(), mo.Rows(x=x, y=np.zeros(4))),
    ):
        refused(error, words, Target.of, model, rows)
