"""Predictions averaged over models, against mixtures by hand."""

import numpy as np
import pandas as pd

import modicum as mo
from helpers import posteriors
from helpers.refusals import refused
from modicum.errors import SettingError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 1))
ROWS = mo.Rows(x=X, y=0.5 * X[:, 0] + RNG.normal(size=40), columns=["dose"])


def fitted(slope, number=500, weights=None):
    draws = {"beta": RNG.normal(slope, 0.1, size=(2, number, 1))}
    model = mo.models.Gaussian(scale=1.0, intercept=False)
    return posteriors.made(model, ROWS, draws, weights=weights)


def test_a_mixture_has_the_mean_interval_and_error_of_its_parts():
    low, high = fitted(0.0), fitted(1.0, 250)
    found = mo.average_predictions({"low": low, "high": high}, ROWS, {"low": 3, "high": 1})
    alone = [post.predict(ROWS) for post in (low, high)]
    np.testing.assert_allclose(found.mean, 0.75 * alone[0].mean + 0.25 * alone[1].mean)
    error = np.hypot(0.75 * alone[0].mcse_mean, 0.25 * alone[1].mcse_mean)
    np.testing.assert_allclose(found.mcse_mean, error)
    share = np.r_[np.full(1000, 0.75 / 1000), np.full(500, 0.25 / 500)]
    slopes = np.r_[low["beta"].ravel(), high["beta"].ravel()]
    order = np.argsort(slopes)
    at = np.searchsorted(np.cumsum(share[order]), [0.05, 0.95])
    ends = np.sort(np.outer(slopes[order][at], X[:, 0]), axis=0)
    np.testing.assert_allclose(np.stack([found.lower, found.upper]), ends, atol=0.02)
    # negative control: draws that count alike, whatever their model's weight
    pooled = np.outer(slopes, X[:, 0]).mean(axis=0)
    assert np.abs(pooled - found.mean).max() > 0.1
    only = mo.average_predictions({"low": low, "high": high}, ROWS, {"low": 1, "high": 0})
    np.testing.assert_array_equal(only.mean, alone[0].mean)


def test_weights_of_draws_and_of_models_count():
    weights = RNG.uniform(0.1, 2.0, size=(2, 500))
    low, high = fitted(0.0, weights=weights), fitted(1.0)
    models = {"low": low, "high": high}
    found = mo.average_predictions(models, ROWS, {"low": 1, "high": 1})
    slope = (np.average(low["beta"][..., 0], weights=weights) + high["beta"].mean()) / 2
    np.testing.assert_allclose(found.mean, slope * X[:, 0])
    stacked = mo.compare(models, progressbar=False)["weight"]
    by_default = mo.average_predictions(models, ROWS)
    np.testing.assert_allclose(by_default.mean, mo.average_predictions(models, ROWS, stacked).mean)


def test_some_of_the_models_may_have_groups():
    table = pd.DataFrame({"y": RNG.normal(size=40), "x": X[:, 0], "ward": [*"abcd"] * 10})
    formulas = {"groups": "y ~ x + (1 | ward)", "none": "y ~ x"}
    models = {k: posteriors.of_formula(f, table, "gaussian") for k, f in formulas.items()}
    new, half = table.head(3).assign(ward=["a", "new", "b"]), {"groups": 1, "none": 1}
    found = mo.average_predictions(models, new, half, groups="any").mean
    alone = models["groups"].predict(new, groups="any").mean, models["none"].predict(new).mean
    np.testing.assert_allclose(found, np.mean(alone, axis=0))
    refused(mo.DataError, "'new' in row 1", mo.average_predictions, models, new, half)
    models["groups"] = models["none"]
    words = "this model has no groups"
    refused(SettingError, words, mo.average_predictions, models, new, half, groups="any")


def test_wrong_weights_are_refused():
    models = {"low": fitted(0.0), "high": fitted(1.0)}
    for words, weights in {
        "weights must give each": {"low": 1},
        "a number from 0 on": {"low": 1, "high": -1},
        "all weights are 0": {"low": 0, "high": 0},
        r"not \[0.3, 0.7\]": [0.3, 0.7],
    }.items():
        refused(SettingError, words, mo.average_predictions, models, ROWS, weights)
    refused(SettingError, "two or more", mo.average_predictions, {"low": models["low"]}, ROWS)
    draws = posteriors.fixed(beta=np.zeros((2, 1)), intercept=[0, 0])
    models["high"] = posteriors.made(mo.models.Softmax(classes=3), ROWS, draws)
    both = {"low": 1, "high": 1}
    refused(SettingError, "different classes", mo.average_predictions, models, ROWS, both)


def test_models_of_different_outcomes_are_not_averaged():
    """Chances of "yes" and of "no" were, where tables had their categories in different orders."""
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"x": rng.normal(size=30), "y": rng.uniform(1, 2, 30)})
    well, orders = np.where(table["x"] > 0, "yes", "no"), (["no", "yes"], ["yes", "no"])

    def of(formula, model, order=orders[0]):
        draws = posteriors.fixed(9, beta=np.ones(1), intercept=0.5)
        given = table.assign(well=pd.Categorical(well, order))
        return posteriors.of_formula(formula, given, model, draws)

    binary, number = mo.models.Logistic(), mo.models.Gaussian(scale=1.0)
    one = of("well ~ x", binary)
    of_numbers = (of("y ~ x", number), of("np.log(y) ~ x", number))
    for first, second in ((one, of("well ~ x", binary, orders[1])), of_numbers):
        both = {"a": first, "b": second}
        refused(SettingError, "different", mo.average_predictions, both, table, {"a": 1, "b": 1})
    both = {"a": one, "b": of("well ~ np.exp(x)", binary)}  # the control: other columns
    mean = mo.average_predictions(both, table, {"a": 1, "b": 1}).mean
    np.testing.assert_allclose(mean, sum(post.predict(table).mean for post in both.values()) / 2)
