"""What newcomers from scikit-learn, R and Stan write gets a true, helpful sentence."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from modicum.arguments import names_checked
from modicum.cli.fitting import require_path
from modicum.rows.reading import read_formula
from modicum.sklearn import LinearRegression, LogisticRegression, Regressor

X = np.random.default_rng(0).normal(size=(60, 2))
Y = (X[:, 0] > 0).astype(int)


# scikit-learn


@cases(
    "estimator name words",
    (LogisticRegression, "C", r"LogisticRegression\(\) has no argument 'C'.*sqrt\(C\)"),
    (LogisticRegression, "penalty", r"the penalty is the prior.*mo\.priors\.Laplace"),
    (LogisticRegression, "class_weight", "sample_weight of an estimator"),
    (LogisticRegression, "solver", "method=... names the sampler"),
    (LinearRegression, "alpha", r"LinearRegression\(\) has no argument 'alpha'.*prior_scale"),
    (Regressor, "random_seed", "it is called random_state here"),
    (LogisticRegression, "fit_interceptt", "did you mean 'fit_intercept'"),
    (LogisticRegression, "colour", r"; it has prior_scale, fit_intercept, .*progressbar\.$"),
)
def test_settings_of_scikit_learn_s_own_estimators(estimator, name, words):
    with pytest.raises(TypeError, match=words) as said:
        estimator(**{name: 1})
    assert isinstance(said.value, mo.ModicumError)


def test_estimators_keep_the_parameters_that_scikit_learn_looks_for():
    assert "self" not in LogisticRegression().get_params()
    assert LogisticRegression(draws=7).get_params()["draws"] == 7
    assert Regressor("gamma").get_params()["family"] == "gamma"


def test_a_function_is_called_by_its_own_name():
    @names_checked
    def sample(draws=1): ...

    refused(TypeError, r"^sample\(\) has no argument 'num_draws'", sample, num_draws=1)


def test_classes_that_cannot_be_ordered():
    with pytest.raises(mo.DataError, match=r"several types \(NoneType, str\).*missing"):
        LogisticRegression().fit(X, np.where(Y == 1, "a", None))
    with pytest.raises(mo.DataError, match=r"all of these are of class 0\.0\."):
        LogisticRegression().fit(X, np.zeros(60))


# Users' own models


def likelihood(theta, batch):
    return -0.5 * (batch["y"] - theta["a"]) ** 2


@cases(
    "functions words",
    ((likelihood, lambda theta: 0.0), "log_prior comes first, log_likelihood after it"),
    ((None, likelihood), r"log_prior must be .* not None; lambda theta: 0\.0 is a flat prior"),
    ((lambda theta: 0.0, None), "log_likelihood must be a function .* not None"),
    ((lambda theta: 0.0, lambda batch: 0.0), "this one does not take two arguments.$"),
    ((lambda: 0.0, likelihood), "this one does not take one argument.$"),
)
def test_functions_of_a_model_that_are_missing_or_swapped(functions, words):
    refused(mo.SettingError, words, mo.Model, *functions, {"a": 0.0})


def test_functions_with_further_arguments_of_their_own_are_taken():
    mo.Model(lambda theta, scale=2.0: 0.0, lambda *arguments: jnp.zeros(3), {"a": 0.0})


def test_a_likelihood_of_one_column_is_to_be_flattened():
    model = mo.Model(lambda theta: 0.0, lambda t, b: likelihood(t, b)[:, None], {"a": 0.0})
    with pytest.raises(mo.SettingError, match=r"shape \(8, 1\) where \(8,\).*; flatten it"):
        mo.sample(model, mo.Rows(y=X[:, 0]), progressbar=False)


# R and spreadsheets


def test_what_stands_for_a_missing_number(tmp_path):
    marks = {".": "leave it empty if it stands for a missing value", "1o": "correct it"}
    for mark, words in marks.items():
        path = tmp_path / "table.csv"
        path.write_text("x,y\n" + "1.5,0\n2.5,1\n" * 5 + f"{mark},1\n")
        with pytest.raises(mo.DataError, match=rf"row 10\) among numbers: {words}, or"):
            mo.fit("y ~ x", str(path), missing="drop", progressbar=False)


def test_semicolons_with_decimal_commas(tmp_path):
    """As saved by European spreadsheets: the header has no comma, the other lines do."""
    path = tmp_path / "table.csv"
    path.write_text("x;y\n" + "1,5;0\n2,5;1\n" * 5)
    assert read_formula("y ~ x", path).slice(0, 2)["x"].tolist() == [[1.5], [2.5]]
    path.write_text("x,y\n1,2\n3\n")
    with pytest.raises(mo.DataError, match="begin with a line of column names"):
        mo.fit("y ~ x", str(path), progressbar=False)


def test_a_formula_in_the_place_of_the_data(tmp_path):
    refused(mo.SettingError, r"the data come first: modicum fit DATA", require_path, "y ~ x")
    require_path("~/table.csv")
    (tmp_path / "a~b.csv").write_text("x,y\n")
    require_path(str(tmp_path / "a~b.csv"))


def test_the_in_operator_of_r_is_refused():
    """R reads x %in% g as g:x; formulaic, with the main effect of g."""
    table = pd.DataFrame({"x": X[:, 0], "g": ["a", "b"] * 30, "y": Y})
    with pytest.raises(mo.SettingError, match="write a:b for the interaction alone"):
        mo.fit("y ~ x %in% g", table, progressbar=False)


# Files


def written(folder, name, table):
    path = folder / name
    pq.write_table(table, path)
    return path


def test_a_file_that_is_named_twice(tmp_path):
    once = written(tmp_path, "a.parquet", pa.table({"x": X[:, 0], "y": Y}))
    for places in ([once, once], [tmp_path, once], [once, tmp_path / "." / "a.parquet"]):
        with pytest.raises(mo.SettingError, match="is in the list twice, so its rows"):
            mo.fit("y ~ x", [str(place) for place in places], progressbar=False)
    with pytest.raises(mo.SettingError, match="is in the list twice"):
        mo.fit("y ~ x", [once.as_uri()] * 2, progressbar=False)


def test_a_column_that_files_hold_twice(tmp_path):
    arrays = [pa.array(X[:, 0]), pa.array(X[:, 1]), pa.array(Y)]
    twice = pa.Table.from_arrays(arrays, names=["x", "x", "y"])
    path = written(tmp_path, "b.parquet", twice)
    with pytest.raises(mo.DataError, match="column 'x' occurs more than once"):
        mo.fit("y ~ x", str(path), progressbar=False)
    written(tmp_path, "a.parquet", pa.table({"x": X[:, 0], "y": Y}))
    with pytest.raises(mo.DataError, match=r"occurs more than once in .*b\.parquet: rename"):
        mo.fit("y ~ x", str(tmp_path), progressbar=False)
    (tmp_path / "c.csv").write_text("x,x,y\n" + "1,2,0\n3,4,1\n" * 10)
    with pytest.raises(mo.DataError, match="column 'x' occurs more than once"):
        mo.fit("y ~ x", str(tmp_path / "c.csv"), progressbar=False)
    # a column that the formula does not name may occur any number of times
    other = pa.Table.from_arrays(arrays, names=["z", "z", "y"])
    path = written(tmp_path, "d.parquet", other)
    settings = {"draws": 50, "random_seed": 1, "method": "laplace", "progressbar": False}
    assert mo.fit("y ~ 1", str(path), **settings).num_draws == 50


# Questions to a posterior


def test_two_levels_are_contrasted_as_a_list():
    table = pd.DataFrame({"g": ["a", "b"] * 30, "y": Y})
    settings = {"draws": 50, "random_seed": 1, "method": "laplace", "progressbar": False}
    post = mo.fit("y ~ g", table, **settings)
    with pytest.raises(mo.SettingError, match=r"a list of values, such as \['a', \.\.\.\]"):
        post.contrast("g", "a", "b")
    assert len(post.contrast("g", ["a", "b"])) == 1


def test_text_that_the_files_of_a_lake_hold_in_several_ways(tmp_path):
    """pandas and polars write large strings, Arrow strings, and categories are dictionaries."""
    kinds = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
    frames = []
    for year, kind in enumerate(kinds, start=2020):
        part = slice(20 * (year - 2020), 20 * (year - 2019))
        group = pa.array(["a", "b"] * 10, pa.string()).cast(kind)
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        written(folder, "part.parquet", pa.table({"x": X[part, 0], "g": group, "y": Y[part]}))
        frames.append(pd.DataFrame({"x": X[part, 0], "g": ["a", "b"] * 10, "y": Y[part]}))
    from_lake = read_formula("y ~ x + g", str(tmp_path), progressbar=False)
    from_frame = read_formula("y ~ x + g", pd.concat(frames), progressbar=False)
    assert from_lake.fingerprint() == from_frame.fingerprint()
    group = pa.array(range(20), pa.int32())  # numbers are not text
    written(folder, "odd.parquet", pa.table({"x": X[:20, 0], "g": group, "y": Y[:20]}))
    with pytest.raises(mo.DataError, match="do not hold the same types of values"):
        mo.fit("y ~ x + g", str(tmp_path), progressbar=False)
