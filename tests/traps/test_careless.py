"""What users of other libraries try first works, or gives one helpful sentence."""

from __future__ import annotations

import copy
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from modicum import plots
from modicum.posterior import Prediction
from modicum.posterior.posterior import INSTEAD
from modicum.rows.reading import read_formula

SHORT = {"draws": 50, "chains": 2, "random_seed": 1, "progressbar": False, "method": "laplace"}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng, n = np.random.default_rng(2), 200
    table = pd.DataFrame({"x": rng.normal(size=n), "g": rng.choice(list("abc"), n)})
    table["y"] = (rng.random(n) < 1 / (1 + np.exp(-table["x"]))).astype(int)
    return table.assign(w=1 + 2 * table["x"] + rng.normal(size=n))


@pytest.fixture(scope="module")
def post(frame) -> mo.Posterior:
    return mo.fit("y ~ x + g", frame, **SHORT)


# Tables


def test_a_mapping_of_columns_is_a_table(frame, post):
    # whatever the indexes of its columns: they are aligned by position
    columns = {"x": frame["x"].to_numpy(), "y": frame["y"].set_axis(frame.index[::-1])}
    columns["g"] = list(frame["g"])
    again = mo.fit("y ~ x + g", columns, **SHORT)
    np.testing.assert_array_equal(again["beta"], post["beta"])
    new = {"x": [1.0, 2.0], "g": ["a", "b"]}
    np.testing.assert_array_equal(post.predict(new).mean, post.predict(pd.DataFrame(new)).mean)
    assert post.predict({**new, "g": ["b", "b"]}).mean[0] != post.predict(new).mean[0]


@cases(
    "columns words",
    ({"x": [1.0, 2.0, 3.0], "y": [0, 1]}, "'y' has 2 rows and 'x' has 3"),
    ({"x": np.ones((2, 2)), "y": [0, 1]}, "columns of one value per row"),
    ({"x": 1.0, "y": 1}, "columns of one value per row"),
    ({}, "columns of one value per row"),
)
def test_a_mapping_that_is_not_a_table(columns, words):
    refused(mo.ModicumError, words, mo.fit, "y ~ x", columns, **SHORT)


def test_intervals_are_levels_in_their_order(frame):
    edges = [-10.0, -1.0, 0.0, 10.0]
    cut = frame.assign(x=pd.cut(frame["x"], edges))
    intervals = mo.fit("y ~ x", cut, **SHORT)
    assert intervals.labels["beta"][0] == ("x[(-1.0, 0.0]]", "x[(0.0, 10.0]]")
    as_text = cut.assign(x=cut["x"].cat.rename_categories(["a", "b", "c"]))
    by_text = mo.fit("y ~ x", as_text, **SHORT)
    np.testing.assert_array_equal(intervals["beta"], by_text["beta"])
    new = pd.DataFrame({"x": pd.cut(pd.Series([-0.5, 5.0]), edges)})
    by_name = by_text.predict({"x": ["b", "c"]}).mean
    np.testing.assert_array_equal(intervals.predict(new).mean, by_name)
    whole = mo.fit("y ~ x", cut.assign(x=pd.arrays.IntervalArray(cut["x"])), **SHORT)
    np.testing.assert_array_equal(intervals["beta"], whole["beta"])


def test_files_of_a_fit_are_taken_as_a_list_again(frame, tmp_path):
    halves = [frame.iloc[:100], frame.iloc[100:]]
    places = [tmp_path / f"{i}.parquet" for i in range(2)]
    for half, place in zip(halves, places, strict=True):
        half.to_parquet(place)
    post = mo.fit("y ~ x + g", places, **SHORT)
    np.testing.assert_array_equal(post.predict(places).mean, post.predict(frame).mean)
    np.testing.assert_array_equal(post.predict(halves).mean, post.predict(frame).mean)


def test_a_column_that_occurs_twice_is_named(frame):
    twice = pd.concat([frame, frame[["x"]]], axis=1)
    arrow = pa.Table.from_arrays([pa.array([1.0, 2.0])] * 3, names=["y", "x", "x"])
    for table in (twice, arrow):
        with pytest.raises(mo.DataError, match="column 'x' occurs more than once"):
            read_formula("y ~ x", table, progressbar=False)
    assert len(read_formula("y ~ g", twice, progressbar=False)) == 200  # x is not read


def test_a_column_without_values_is_said_to_have_none(frame, tmp_path):
    with pytest.raises(mo.DataError, match="'q' holds no value in any row"):
        mo.fit("y ~ x + q", frame.assign(q=None), **SHORT)
    (tmp_path / "no.csv").write_text("x,y\n")
    with pytest.raises(mo.DataError, match="there are no rows in the data"):
        mo.fit("y ~ x", tmp_path / "no.csv", **SHORT)


def test_a_store_that_exists_is_not_replaced_by_an_argument_that_fit_has_not(frame, tmp_path):
    mo.fit("y ~ x", frame, store=tmp_path / "rows", **SHORT)
    with pytest.raises(mo.SettingError, match="name another folder, or, in ingest, pass"):
        mo.fit("y ~ x", frame, store=tmp_path / "rows", **SHORT)


# Arguments


@cases(
    "settings words",
    ({"weights": np.ones(200)}, "weights must be the name of a column, not ndarray"),
    ({"offset": np.ones(200)}, "offset must be the name of a column, not ndarray"),
    ({"checkpoint": 3}, "checkpoint must be the path of a folder, not int"),
    ({"family": "linear"}, "did you mean 'gaussian'"),
)
def test_arguments_as_other_libraries_have_them(frame, settings, words):
    refused(mo.SettingError, words, mo.fit, "y ~ x", frame, **SHORT | settings)


def test_the_table_before_the_formula(frame):
    with pytest.raises(mo.SettingError, match="it comes first, and the table after it"):
        mo.fit(frame, "y ~ x", **SHORT)


@pytest.mark.parametrize("formula", ["w ~ x + w", "w ~ x:w", "np.log(x) ~ np.log( x )"])
def test_an_outcome_does_not_explain_itself(frame, formula):
    with pytest.raises(mo.SettingError, match="which leaves nothing to explain"):
        read_formula(formula, frame, progressbar=False)


def test_a_computed_outcome_may_have_its_column_as_a_term(frame):
    assert read_formula("w > 0 ~ w", frame, progressbar=False).columns == ("w",)


def test_names_that_are_not_there_are_errors_of_both_kinds(post, tmp_path):
    for kind in (mo.SettingError, KeyError):
        refused(kind, r"there is no parameter 'bet' .*'beta'", post.mean, "bet")
        refused(kind, r"no 'beta\[xx\]' \(did you mean 'beta\[x\]'\?\)", post.summary, "beta[xx]")
    for kind in (mo.DataError, FileNotFoundError):
        refused(kind, "there is no file at", mo.Posterior.load, tmp_path / "none")
        refused(kind, "there is no file at", mo.Digest.load, tmp_path / "none")
    refused(mo.DataError, "is a folder", mo.Posterior.load, tmp_path)


def test_a_summary_of_single_lines(post):
    table = post.summary(["beta[g[b]]", "intercept"])
    pd.testing.assert_frame_equal(table, post.summary().loc[["beta[g[b]]", "intercept"]])


def test_draws_go_by_the_names_of_the_summary(post):
    table = post.summary()
    for line in table.index:
        assert post[line].shape == (post.chains, post.num_draws)
        np.testing.assert_allclose(post.mean(line), table.loc[line, "mean"])
    np.testing.assert_array_equal(post["beta[g[b]]"], post["beta"][..., 1])
    with pytest.raises(mo.SettingError, match=r"no 'beta\[g\[z\]\]' .* of 'beta' there are beta"):
        post["beta[g[z]]"]


def test_predictions_are_a_frame_with_the_index_of_the_table(frame, post):
    """A join by another index would mix up the rows."""
    new = frame.iloc[[7, 3]]
    predicted = post.predict(new)
    joined = new.join(predicted.to_frame())
    assert list(joined.columns[-3:]) == ["mean", "lower", "upper"]
    np.testing.assert_array_equal(joined["mean"], predicted.mean)
    assert list(post.predict(pa.Table.from_pandas(new)).to_frame().index) == [0, 1]
    classes = Prediction(*np.zeros((3, 2, 2)), 0.9, 10, ("no", "yes"))
    assert list(classes.to_frame())[:4] == ["mean[no]", "lower[no]", "upper[no]", "mean[yes]"]


def test_a_function_in_place_of_a_model_leads_to_what_takes_it(frame):
    rows = mo.Rows(x=frame[["x"]], y=frame["y"])
    with pytest.raises(mo.SettingError, match=r"not function; wrap a NumPyro model as mo.from"):
        mo.sample(lambda x: None, rows)
    refused(mo.SettingError, r"not the class Logistic\.$", mo.sample, mo.models.Logistic, rows)


def test_names_of_other_libraries_lead_to_ours(post):
    for name, instead in INSTEAD.items():
        assert not hasattr(post, name)
        for attribute in re.findall(r"post\.(\w+)", instead):
            assert hasattr(post, attribute)
        for picture in re.findall(r"(?<!_)plots\.(\w+)", instead):
            assert hasattr(plots, picture)
    refused(AttributeError, r"'ranef': use post.effects\(group\)", getattr, post, "ranef")
    refused(AttributeError, r"'sumary'\.$", getattr, post, "sumary")
    assert copy.copy(post).draws is post.draws


def test_default_priors_match_the_default_family(frame):
    rows = mo.Rows(x=frame[["x"]], y=frame["y"])
    assert mo.priors.default(rows) == mo.priors.default(rows, "logistic")


# Arrays


@pytest.mark.parametrize("name", ["weights", "sample_weight", "exposure", "offsets"])
def test_a_field_that_would_be_ignored_is_refused(frame, name):
    rows = mo.Rows(x=frame[["x"]], y=frame["y"], **{name: np.full(200, 5.0)})
    with pytest.raises(mo.DataError, match=f"a field '{name}', which Logistic does not read"):
        mo.sample(mo.models.Logistic(), rows, **SHORT)


def test_a_factor_may_be_called_exposure(frame):
    rows = mo.Rows(x=frame[["x"]], y=frame["y"], codes={"exposure": frame["g"]})
    assert mo.sample(mo.models.Logistic(), rows, **SHORT)["beta"].shape[-1] == 3


def test_levels_in_arrays_of_pandas_own(frame):
    texts = frame["g"].astype("string").array
    rows = mo.Rows(x=frame[["x"]], y=frame["y"], codes={"g": texts})
    assert rows.levels["g"] == ("a", "b", "c")
    whole = pd.array(np.arange(200) % 3, dtype="Int64")
    assert mo.Rows(y=frame["y"], codes={"g": whole}).levels["g"] == (0, 1, 2)


def test_an_index_in_another_order_is_not_a_match(frame):
    shuffled = frame["y"].sample(frac=1, random_state=1)
    with pytest.raises(mo.DataError, match="'y' has the same index as 'x' in another order"):
        mo.Rows(x=frame[["x"]], y=shuffled)
    with pytest.raises(mo.DataError, match="'g' has the same index as 'x' in another order"):
        mo.Rows(x=frame[["x"]], y=frame["y"], codes={"g": frame["g"].loc[shuffled.index]})
    # a reset index is fine: rows match by position
    mo.Rows(x=frame[["x"]], y=frame["y"].set_axis(np.arange(200) + 500))
    mo.Rows(x=frame[["x"]], y=shuffled.to_numpy())


# Outcomes without noise


@pytest.mark.parametrize("family", ["gaussian", "student-t", "gamma", "beta", "asymmetric-laplace"])
def test_an_outcome_that_never_varies(frame, family):
    with pytest.raises(mo.DataError, match=r"the outcome 'w' is 0\.5 in every row"):
        mo.fit("w ~ x", frame.assign(w=0.5), family, **(SHORT | {"method": "auto"}))


@pytest.mark.parametrize("family", ["gaussian", "student-t"])
def test_a_single_row_has_no_noise(frame, family):
    """It ended in a singular matrix, or in chains that found no scale."""
    with pytest.raises(mo.DataError, match="in every row, so there is nothing to explain"):
        mo.fit("w ~ x", frame.assign(w=0.5).head(1), family, **SHORT)
    with pytest.warns(mo.ModicumWarning, match="next to nothing"):
        known = mo.fit("w ~ x", frame.assign(w=0.5).head(1), mo.models.Gaussian(scale=1), **SHORT)
    assert known.mean("intercept") > 0.2  # negative control: a known scale needs no noise


def test_a_logarithm_of_a_negative_number_is_said_to_be_no_number(frame):
    with pytest.raises(mo.DataError, match=r"'log\(z\)' holds NaN in row 0: fill it in"):
        mo.fit("x ~ log(z)", frame.assign(z=-1.0), "gaussian", **SHORT)
    with pytest.raises(mo.DataError, match="'z' holds a missing value in row 0"):  # control
        mo.fit("x ~ z", frame.assign(z=np.nan), "gaussian", **SHORT)


@pytest.mark.parametrize("formula", ["w ~ x", "C(w) ~ x", "w == 'no' ~ x", "x > 99 ~ x"])
def test_an_outcome_of_one_level(frame, formula):
    """It was said to be a column that the intercept covers, and to be left out."""
    with pytest.raises(mo.DataError, match="in every row, so there is nothing to explain"):
        mo.fit(formula, frame.assign(w="yes"), **SHORT)


def test_an_offset_in_a_formula_of_classes(frame):
    three = frame.assign(w=np.resize(["a", "b", "c"], len(frame)))
    with pytest.raises(mo.DataError, match="which a formula cannot give: leave the offset out"):
        mo.fit("w ~ offset(x)", three, "softmax", **SHORT)


def test_part_of_the_rows_may_have_one_outcome_only():
    """Outcomes of rows added to a digest, or of a first look, need not vary."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 1))
    first = mo.Rows(x=x[:60], y=x[:60, 0] + rng.normal(size=60))
    digest = mo.digest(mo.models.Gaussian(), first, size=60, progressbar=False)
    assert len(digest.add(mo.Rows(x=x[60:], y=np.zeros(20)))) == 80


def test_an_outcome_that_columns_give_away(frame):
    with pytest.raises(mo.ConvergenceError, match="the columns give the outcome 'w' without noise"):
        mo.fit("w ~ x", frame.assign(w=1 + 2 * frame["x"]), "gaussian", **SHORT)


def test_an_outcome_that_groups_give_away():
    """Sums of squares had no digits left, which ended in an IndexError."""
    k, rng = np.arange(60) % 6, np.random.default_rng(1)
    of_groups = pd.DataFrame({"w": 1.0 * k, "k": k})
    with pytest.raises(mo.ConvergenceError, match="the columns give the outcome 'w' without noise"):
        mo.fit("w ~ 1 + (1 | k)", of_groups, "gaussian", **SHORT)
    noisy = of_groups.assign(w=k + 1e-3 * rng.normal(size=60))  # negative control
    post = mo.fit("w ~ 1 + (1 | k)", noisy, "gaussian", **SHORT)
    assert post.mean("scale") == pytest.approx(1e-3, rel=0.3)


# Groups


@pytest.mark.parametrize("how", ["explicit", "integrate"])
def test_a_misspelt_prior_of_groups_lists_theirs(frame, how):
    priors = {"gruop_sd": mo.priors.HalfNormal(1)}
    with pytest.raises(mo.SettingError, match=r"mean 'group_sd'.* keys are common, .*group_"):
        mo.fit("y ~ x + (1 | g)", frame, groups=how, priors=priors, progressbar=False)
