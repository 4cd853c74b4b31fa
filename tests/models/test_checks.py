"""Models refuse bad rows with one sentence that says where."""

import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.targets import gaussian_rows
from modicum.models import Target

M = mo.models


def refusal(kind, make):
    with pytest.raises(kind) as caught:
        make()
    text = str(caught.value)
    assert text.endswith(".")
    assert ". " not in text.replace("e.g. ", "")  # one sentence
    return text


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: M.Logistic(prior_scale=0), "prior_scale"),
        (lambda: M.Logistic(prior_scale=-1.0), "prior_scale"),
        (lambda: M.Logistic(prior_scale=np.nan), "prior_scale"),
        (lambda: M.Logistic(prior_scale=np.inf), "prior_scale"),
        (lambda: M.Logistic(prior_scale=[]), "prior_scale"),
        (lambda: M.Logistic(prior_scale=[1.0, 0.0]), "prior_scale"),
        (lambda: M.Logistic(prior_scale=np.ones((2, 2))), "prior_scale"),
        (lambda: M.Logistic(prior_scale="wide"), "prior_scale"),
        (lambda: M.Logistic(intercept_scale=0), "intercept_scale"),
        (lambda: M.Logistic(intercept_scale="wide"), "intercept_scale"),
        (lambda: M.Logistic(intercept="no"), "intercept"),
        (lambda: M.Gaussian(scale=0.0), "scale"),
        (lambda: M.Gaussian(scale="one"), "scale"),
        (lambda: M.Gaussian(scale_prior=-1), "scale_prior"),
        (lambda: M.Gaussian(scale_prior=np.inf), "scale_prior"),
        (lambda: M.StudentT(df=0), "df"),
        (lambda: M.StudentT(df="four"), "df"),
        (lambda: M.Softmax(classes=1), "classes"),
        (lambda: M.Softmax(classes=2.5), "classes"),
        (lambda: M.Softmax(classes="three"), "classes"),
    ],
)
def test_bad_settings(make, word):
    assert word in refusal(mo.SettingError, make)


@pytest.mark.parametrize(
    ("model", "value", "support"),
    [
        (M.Logistic(), 2.0, "0 or 1"),
        (M.Logistic(), 0.5, "0 or 1"),
        (M.Poisson(), -1.0, "counts"),
        (M.Poisson(), 1.5, "counts"),
        (M.Softmax(classes=2), 2.0, "0 to 1"),
        (M.Softmax(), -1.0, "classes"),
        (M.Softmax(), 0.5, "classes"),
    ],
)
def test_outcomes_out_of_support_are_named_by_column_and_row(model, value, support):
    y = np.tile([0.0, 1.0], 10)
    y[[7, 11]] = value
    rows = mo.Rows.from_table(_table(y), outcome="late")
    text = refusal(mo.DataError, lambda: Target.of(model, rows))
    assert "'late'" in text
    assert "row 7" in text
    assert f"{value:g}" in text
    assert support in text


def _table(y):
    import pandas as pd

    return pd.DataFrame({"late": y, "age": np.arange(len(y)) * 1.0})


def test_fields_that_are_missing_or_misshapen():
    x, y = np.ones((4, 2)), np.array([0.0, 1, 0, 1])
    text = refusal(mo.DataError, lambda: Target.of(M.Logistic(), mo.Rows(x=x)))
    assert "'y'" in text
    text = refusal(mo.DataError, lambda: Target.of(M.Logistic(), mo.Rows(y=y)))
    assert "'x'" in text
    flat = mo.Rows(x=y, y=y)
    assert "matrix" in refusal(mo.DataError, lambda: Target.of(M.Logistic(), flat))
    wrong = M.Logistic(prior_scale=[1.0, 2.0, 3.0])
    text = refusal(mo.SettingError, lambda: Target.of(wrong, mo.Rows(x=x, y=y)))
    assert "3 entries for 2 columns" in text
    one = mo.Rows(x=x, y=np.zeros(4))
    assert "single class" in refusal(mo.SettingError, lambda: Target.of(M.Softmax(), one))


# Users' own models --------------------------------------------------------------------------


def own(**changes):
    parts = {
        "log_prior": lambda th: -0.5 * th["a"] ** 2,
        "log_likelihood": lambda th, batch: -0.5 * (batch["y"] - th["a"]) ** 2,
        "init": {"a": 0.0},
    }
    return mo.Model(**(parts | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log_likelihood": lambda th, b: jnp.sum(b["y"] - th["a"])}, "do not sum over rows"),
        ({"log_likelihood": lambda th, b: b["y"][:, None] - th["a"]}, "one value per row"),
        ({"log_likelihood": lambda th, b: b["dose"]}, "'dose'"),
        ({"log_likelihood": lambda th, b: b["x"] @ jnp.ones(9)}, "fail on the first rows"),
        ({"log_prior": lambda th: th["b"]}, "'b'"),
        ({"log_prior": lambda th: jnp.ones(2) * th["a"]}, "one number"),
        ({"init": {}}, "no parameters"),
        ({"init": {"a": "zero"}}, "'a'"),
        ({"init": {"a": np.nan}}, "finite"),
        ({"init": {"a": 1j}}, "real"),
    ],
)
def test_mistakes_in_a_custom_model(changes, words):
    assert words in refusal(mo.SettingError, lambda: Target.of(own(**changes), gaussian_rows(20)))


@pytest.mark.parametrize("part", ["log_prior", "log_likelihood"])
def test_functions_must_be_functions(part):
    assert part in refusal(mo.SettingError, lambda: own(**{part: 3.0}))


def test_nested_parameters_are_named_by_path():
    init = {"layer": {"w": np.zeros((2, 3)), "b": 0.0}, "rates": [1.0, 2.0]}
    model = own(init=init, log_prior=lambda th: 0, log_likelihood=lambda th, b: b["y"] * 0.0)
    target, start = Target.of(model, gaussian_rows(5))
    shapes = {name: leaf.shape for name, leaf in target.report(start).items()}
    assert shapes == {"layer.b": (), "layer.w": (2, 3), "rates.0": (), "rates.1": ()}
    back = model.restore(target.report(start))
    assert float(back["rates"][1]) == 2.0


def test_a_flat_prior_may_be_the_integer_zero():
    assert jnp.issubdtype(own(log_prior=lambda th: 0).log_prior({"a": 0.0}).dtype, jnp.floating)


def test_identity_knows_code_and_what_it_closes_over():
    def with_scale(s, power=2):
        return own(log_prior=lambda th, power=power: -jnp.sum((th["a"] / s) ** power))

    def identity(model):
        return Target.of(model, gaussian_rows(5))[0].identity

    assert identity(with_scale(1.0)) == identity(with_scale(1.0))
    assert identity(with_scale(1.0)) != identity(with_scale(2.0))
    assert identity(with_scale(1.0)) != identity(with_scale(1.0, 4))
    assert identity(with_scale(np.ones(3))) != identity(with_scale(2 * np.ones(3)))
    assert identity(own()) != identity(own(log_prior=lambda th: -0.7 * th["a"] ** 2))


def test_predict_must_be_given():
    text = refusal(mo.SettingError, lambda: own().expected({"a": 0.0}, {}))
    assert "predict" in text
    told = own(predict=lambda th, b: b["x"][:, 0] * th["a"])
    assert told.expected({"a": 2.0}, {"x": np.ones((3, 1))}).shape == (3,)
