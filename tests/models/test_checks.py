"""Models refuse bad rows with one sentence that says where."""

import numpy as np
import pytest

import modicum as mo
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
