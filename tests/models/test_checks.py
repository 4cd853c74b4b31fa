"""Models refuse bad rows with one sentence that says where."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
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
        assert name in refusal(mo.SettingError, lambda value=value: family(**{name: value}))


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
    rows = mo.Rows.from_table(pd.DataFrame({"late": y, "age": 0.0}), outcome="late")
    text = refusal(mo.DataError, lambda: Target.of(model, rows))
    assert all(words in text for words in ("'late'", "row 7", f"{value:g}", support))


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
        assert words in refusal(error, lambda model=model, rows=rows: Target.of(model, rows))


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
        ({"log_likelihood": lambda th, b: b["y"][:, None] - th["a"]}, "one value per row"),
        ({"log_likelihood": lambda th, b: b["dose"]}, "'dose'"),
        ({"log_likelihood": lambda th, b: b["x"] @ jnp.ones(9)}, "fail on the first rows"),
        ({"log_prior": lambda th: th["b"]}, "'b'"),
        ({"log_prior": lambda th: jnp.ones(2) * th["a"]}, "one number"),
        ({"init": {"a": "zero"}}, "'a'"),
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
