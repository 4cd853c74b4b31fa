"""Formulas are parsed, learned and encoded as codes; the matrix equals formulaic's."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from modicum.errors import SettingError
from modicum.rows.formula import FormulaEncoding, learn, parse
from modicum.rows.sources import TableSource

formulaic = pytest.importorskip("formulaic")

FORMULAS = [
    "x", "a", "x + a", "0 + a", "0 + x + a", "a * b", "a:b", "0 + a:b", "x:a", "x * a", "0 + x:a",
    "x:a:b", "a * b * x", "bs(x, df=5)", "bs(x, df=4):a", "bs(x, df=5, include_intercept=True)",
    "0 + bs(x, df=5, include_intercept=True)", "bs(x, knots=[-0.5, 0.5], degree=2)",
    "bs(np.log(z), df=4)", "bs(x, df=4, lower_bound=-9, upper_bound=9)", "cr(x, df=4)",
    "cc(x, df=4, constraints='center')", "poly(z, 3)", "center(x) + scale(z)", "np.log(z) * a",
    "I(x**2) + x", "C(k)", "C(k) * x", "C(a, contr.sum)", "C(a, contr.sum) * x",
    "0 + C(a, contr.sum) + x", "C(a, contr.helmert):b", "C(a, contr.treatment('q'))",
    "C(a, levels=['r', 'q', 'p'])", "`c d` * a", "C(k, contr.poly)", "(a + b + x)**2", "a / b",
    "a + a:x", "x + a:x + b", "standardize(x)", "C(np.floor(z))", "poly(x, 2):C(a, contr.diff)",
    "b + 0", "scale(center(x))", "C(a, contr.sum):b + x", "0 + a + b + `c d`:k", "x:z:a", "x - 1",
    # splines that are mostly 0 in any row
    "bs(x, df=12)", "bs(x, df=8) + a", "bs(x, df=9, degree=1)", "bs(x, df=9, degree=0)",
    "bs(x, df=10) * a", "bs(x, df=9, include_intercept=True)", "a:z + bs(x, df=20) + z",
    "0 + bs(x, df=9, include_intercept=True)", "bs(x, df=8, extrapolation='clip') + bs(z, 9)",
]  # fmt: skip


@pytest.fixture(scope="module")
def frame():
    rng, n = np.random.default_rng(0), 200
    return pd.DataFrame(
        {
            "y": rng.normal(size=n),
            "x": rng.normal(size=n),
            "z": rng.uniform(1, 5, size=n),
            "k": rng.integers(0, 4, n),
            "a": rng.choice(list("pqr"), n),
            "b": pd.Categorical(rng.choice(["lo", "mid", "hi"], n), ["lo", "mid", "hi"]),
            "c d": rng.choice(["u", "v"], n),
        }
    )


def expanded(encoding, frame):
    """Return the model matrix, which rows never form."""
    chunks = encoding.chunks(TableSource(frame), np.dtype(float))
    dense = [encoding.layout.coding.densely(chunk) for chunk in chunks]
    return pd.DataFrame(np.concatenate(dense), columns=encoding.layout.columns)


def formulaics(formula, frame):
    matrix = formulaic.model_matrix(formula, frame, na_action="raise")
    names = [re.sub(r"\[[TSHD]\.", "[", name) for name in matrix.columns]
    return pd.DataFrame(np.asarray(matrix, float), columns=names)


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_matrix_is_formulaics(formula, frame):
    encoding, _ = learn(parse("y ~ " + formula), TableSource(frame))
    theirs = formulaics(formula, frame)
    assert encoding.intercept == ("Intercept" in theirs)
    theirs = theirs.drop(columns="Intercept", errors="ignore")
    ours = expanded(encoding, frame)
    assert set(ours.columns) == set(theirs.columns)
    np.testing.assert_allclose(ours, theirs[ours.columns], atol=1e-12)
    saved = FormulaEncoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
    assert saved.layout == encoding.layout
    # New rows are encoded with what the fit learned, not by their own values.
    few = frame.iloc[3:7]
    np.testing.assert_allclose(expanded(saved, few), ours.iloc[3:7], atol=1e-12)


def test_random_formulas_on_random_frames():
    """Test random sums and products of factors."""
    rng = np.random.default_rng(5)
    pool = ["x", "z", "a", "b", "d", "C(k)", "np.exp(x)", "bs(z, df=4)", "C(a, contr.sum)"]
    for _ in range(25):
        n = int(rng.integers(40, 80))
        frame = pd.DataFrame(
            {
                "y": 0.0,
                "x": rng.normal(size=n),
                "z": rng.uniform(size=n),
                "k": rng.integers(0, 3, n),
            }
            | {name: rng.choice(list("uvw"), n) for name in "abd"}
        )
        sums = [
            rng.choice([":", "*"]).join(rng.choice(pool, int(rng.integers(1, 4)), replace=False))
            for _ in range(int(rng.integers(1, 4)))
        ]
        formula = rng.choice(["0 + ", ""]) + " + ".join(sums)
        encoding, _ = learn(parse("y ~ " + formula), TableSource(frame))
        theirs = formulaics(formula, frame).drop(columns="Intercept", errors="ignore")
        ours = expanded(encoding, frame)
        assert set(ours.columns) == set(theirs.columns), formula
        np.testing.assert_allclose(ours, theirs[ours.columns], atol=1e-12, err_msg=formula)


def test_booleans_and_comparisons_are_levels():
    frame = pd.DataFrame({"y": [0.0, 1, 2, 3], "f": [True, False, True, True], "x": [1.0, 2, 3, 4]})
    encoding, _ = learn(parse("y ~ f + I(x > 2)"), TableSource(frame))
    assert encoding.layout.columns == ("f[True]", "I(x > 2)[True]")
    np.testing.assert_array_equal(expanded(encoding, frame).T, [[1, 0, 1, 1], [0, 0, 1, 1]])


@pytest.mark.parametrize("formula", ["y ~ `1` + `0` + `.`", "y ~ .", "y ~ `1` + Q('0') + `.` - 1"])
def test_columns_called_1_and_dot_are_columns(formula):
    """Columns of an array are called 0, 1, ..., and `1` was read as the intercept."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({name: rng.normal(size=9) for name in ("1", "0", ".")} | {"y": 0.0})
    encoding, _ = learn(parse(formula, list(frame)), TableSource(frame))
    np.testing.assert_array_equal(expanded(encoding, frame), frame[["1", "0", "."]])
    assert encoding.intercept is not formula.endswith("- 1")


def test_outcomes_are_expressions():
    assert parse("late > 15 ~ x").outcome.text == "late > 15"
    formula = parse("wins | trials(games) ~ x")
    assert [(name, e.text) for name, e in formula.fields] == [("trials", "games")]
    assert parse("y ~ .", ["a", "y", "b"]).terms == parse("y ~ a + b").terms


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("y ~ np.mean(x)", "row by row"),
        ("y ~ x.max()", "by name only"),
        ("y ~ x | g", "in brackets"),
        ("y ~ a:offset(b)", "an offset must be a separate term"),
        ("y ~ x - offset(z)", "subtracts offset(z)"),
        ("y ~ (1 | g", "not closed"),
        ("y x", "must have one ~"),
        ("y ~ ", "no terms"),
        ("y ~ x + ", "ends with +"),
        ("y ~ 2:x", "leave the number out"),
        ("y ~ I(a and b)", "write & for and"),
        ("y ~ I(x^2)", "write x ** 2"),
        ("y ~ x + (1 + `1` | g)", "rename the column"),
        ("y ~ C(x, contr.nonsense)", "contrasts are"),
        ("y ~ bs(x, df=4) + I(C(x))", "cannot be part of another expression"),
    ],
)
def test_what_cannot_be_read_is_a_clear_error(formula, words):
    with pytest.raises(SettingError, match=re.escape(words)):
        learn(parse(formula), TableSource(pd.DataFrame({"y": [1.0], "x": [1.0]})))
