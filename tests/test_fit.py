"""`mo.fit`: table in, table out."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pytest

import modicum as mo
from helpers.disks import change_page
from helpers.refusals import refused, unwarned
from helpers.slow import slowly
from modicum.fit import model_for
from modicum.log_posterior import LogPosterior
from modicum.rows.reading import read_formula

FORMULA = "late ~ carrier + bs(hour, df=5) + dist:carrier + flag + offset(base)"
SETTINGS = {"method": "laplace", "draws": 60, "chains": 2, "random_seed": 1}


@pytest.fixture(scope="module")
def frame():
    rng, n = np.random.default_rng(3), 1500
    made = pd.DataFrame(
        {
            "carrier": rng.choice(["UA", "AA", "DL"], n),
            "hour": rng.integers(5, 23, n),
            "dist": rng.normal(size=n),
            "flag": rng.random(n) < 0.4,
            "base": rng.normal(size=n) / 10,
            "count": rng.integers(1, 4, n),
        }
    )
    eta = made["dist"] * (made["carrier"] == "UA") + 0.5 * made["flag"] + made["base"]
    made["late"] = np.where(rng.random(n) < 1 / (1 + np.exp(-eta)), "yes", "no")
    return made


@pytest.fixture(scope="module")
def post(frame):
    with unwarned():  # of so few draws
        return mo.fit(FORMULA, frame, weights="count", progressbar=False, **SETTINGS)


def test_a_frame_gives_the_posterior_of_arrays(frame, post):
    """Dense columns are the same target, so the same method gives the same draws up to rounding."""
    made = read_formula(FORMULA, frame, weights="count", progressbar=False)
    assert made.coding is not None
    batch = made.slice(0, len(made))
    x = made.coding.densely(batch)
    arrays = mo.Rows(
        x=x, y=batch["y"], offset=frame["base"], weight=frame["count"], columns=list(made.columns)
    )
    # Arrays do not say that a column is a level times a number, which has the number's prior.
    priors = mo.models.Logistic().resolved(made).resolved_priors
    with unwarned():
        model = mo.models.Logistic(resolved_priors=priors)
        dense = mo.sample(model, arrays, progressbar=False, **SETTINGS)
    assert list(dense.summary().index) == list(post.summary().index)
    np.testing.assert_allclose(dense.draws["beta"], post.draws["beta"], rtol=1e-5, atol=1e-7)
    assert post.settings["outcome_levels"] == {"no": 0, "yes": 1}
    assert post.settings["formula"] == FORMULA


def test_the_mode_is_statsmodels(frame):
    sm = pytest.importorskip("statsmodels.api")
    formulaic = pytest.importorskip("formulaic")
    rows = read_formula(FORMULA, frame, weights="count", progressbar=False)
    flat = mo.models.Logistic(prior_scale=1e6, intercept_scale=1e6)
    mode = LogPosterior(model_for(rows, flat).model, rows).mode(within=1e-9)
    matrix = formulaic.model_matrix("carrier + bs(hour, df=5) + dist:carrier + flag", frame)
    fitted = sm.GLM(
        (frame["late"] == "yes").astype(float),
        np.asarray(matrix, float),
        family=sm.families.Binomial(),
        offset=frame["base"],
        freq_weights=frame["count"],
    ).fit(tol=1e-14)
    names = [c.replace("[T.", "[").replace("flag", "flag[True]") for c in matrix.columns]
    theirs = dict(zip(names, fitted.params, strict=True))
    ours = dict(zip(rows.columns, mode.named["beta"], strict=True))
    np.testing.assert_allclose([ours[k] for k in ours], [theirs[k] for k in ours], atol=1e-6)
    np.testing.assert_allclose(mode.named["intercept"], theirs["Intercept"], atol=1e-6)


def test_predictions_go_by_the_fits_encoding(frame, post):
    new = frame.iloc[:50].drop(columns=["late", "count"])
    expected = post.predict(new).mean
    shuffled = new[sorted(new.columns, reverse=True)].assign(other="text", more=1.0)
    np.testing.assert_array_equal(post.predict(shuffled).mean, expected)
    np.testing.assert_array_equal(post.predict(pl.from_pandas(shuffled)).mean, expected)
    np.testing.assert_array_equal(post.predict(pa.Table.from_pandas(new)).mean, expected)
    one = new[new["carrier"] == "DL"]  # one level only, without the reference
    kept = (new["carrier"] == "DL").to_numpy()
    np.testing.assert_allclose(post.predict(one).mean, expected[kept], rtol=1e-12)
    as_category = new.assign(carrier=new["carrier"].astype("category"))
    np.testing.assert_array_equal(post.predict(as_category).mean, expected)
    rows = mo.Rows.from_table(new, like=post)
    np.testing.assert_array_equal(post.predict(rows).mean, expected)
    # Negative control: without the offset, probabilities differ.
    wrong = post.predict(new.assign(base=0.0)).mean
    assert np.abs(wrong - expected).max() > 1e-3


def test_scores_and_corrections_take_the_table(frame, post):
    rows = read_formula(FORMULA, frame, weights="count", progressbar=False)
    assert post.score(frame).log_density == post.score(rows).log_density
    # weights are used if present, but are not required
    assert post.score(frame.drop(columns="count")).log_density != post.score(frame).log_density
    reordered = frame[sorted(frame.columns)]
    assert "correction" in post.correct(reordered, progressbar=False).tuning


def test_a_new_level_is_refused_or_the_reference(frame, post):
    new = frame.iloc[:3].assign(carrier=["AA", "ZZ", "UA"])
    refused(mo.DataError, r"column 'carrier' holds 'ZZ' in row 1", post.predict, new)
    lenient = post.predict(new, newlevels="reference").mean
    np.testing.assert_array_equal(
        lenient, post.predict(new.assign(carrier=["AA", "AA", "UA"])).mean
    )
    refused(mo.SettingError, "newlevels must be", post.predict, new, newlevels="ignore")


def test_wrong_tables_are_clear_errors(frame, post):
    new = frame.iloc[:3]
    with pytest.raises(mo.DataError, match="column 'dist' of the formula is not in the data"):
        post.predict(new.drop(columns="dist"))
    with pytest.raises(mo.DataError, match="column 'dist' held numbers in the fit and holds text"):
        post.predict(new.assign(dist="far"))
    with pytest.raises(mo.DataError, match=r"a spline from 5 to 22, and row 1 has 23"):
        post.predict(new.assign(hour=[7, 23, 8]))


def test_ends_of_a_spline_may_be_rounded_to_single_precision():
    rng = np.random.default_rng(1)
    x, z = rng.uniform(0.1, 3.3, (2, 400))
    table = pd.DataFrame({"x": x, "z": z, "y": np.sin(x) + z**2 + rng.normal(size=400)})
    formula = "y ~ bs(x, df=5) + s(z, k=5)"
    post = mo.fit(formula, table, family="gaussian", draws=100, progressbar=False)
    single = table.assign(x=x.astype(np.float32), z=z.astype(np.float32))
    assert (single["x"].max() > x.max()) or (single["x"].min() < x.min())
    np.testing.assert_allclose(post.predict(single).mean, post.predict(table).mean, atol=1e-5)
    # negative control: ten times the rounding is beyond the range
    refused(mo.DataError, "is a spline from", post.predict, table.assign(x=x * (1 + 1e-6)))


def test_a_store_is_a_table_too(frame, tmp_path):
    frame = frame.assign(late=(frame["late"] == "yes").astype(float))
    store = mo.rows.ingest(
        frame, tmp_path / "s", outcome="late", categorical=["carrier", "flag"], dtype="float64",
        progressbar=False,
    )  # fmt: skip
    of_store = read_formula("late ~ carrier * dist", tmp_path / "s", progressbar=False)
    of_frame = read_formula("late ~ carrier * dist", frame, progressbar=False)
    assert store.columns != of_store.columns
    assert of_store.fingerprint() == of_frame.fingerprint()
    coded = read_formula("late ~ carrier + hour", of_frame_rows(frame), progressbar=False)
    again = read_formula("late ~ carrier + hour", frame, progressbar=False)
    assert coded.fingerprint() == again.fingerprint()


def of_frame_rows(frame):
    return read_formula("late ~ hour + carrier + dist", frame, progressbar=False)


def test_missing_values_are_refused_or_dropped(frame):
    holes = frame.copy()
    holes.loc[[3, 8], "dist"] = np.nan
    holes.loc[8, "carrier"] = None
    holes.loc[11, "carrier"] = None
    holes["unused"] = np.nan
    with pytest.raises(mo.DataError, match="column 'carrier' holds a missing value in row 8"):
        read_formula(FORMULA, holes, progressbar=False)
    made = read_formula(FORMULA, holes, missing="drop", progressbar=False)
    assert made.schema.encoding.dropped == 3
    rest = read_formula(FORMULA, frame.drop(index=[3, 8, 11]), progressbar=False)
    assert made.fingerprint() == rest.fingerprint()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        post = mo.fit("late ~ dist", holes, missing="drop", progressbar=False, **SETTINGS)
    said = [doubt.numbers for doubt in post.warnings if doubt.code == "rows-dropped"]
    assert said == [{"dropped": 2.0, "rows": 1500.0}]
    assert "rows-dropped" in {getattr(w.message, "code", "") for w in heard}
    post.correct(holes, progressbar=False)  # the same rows are left out again


HOSTILE = {
    "factor": (["factors", 0, "expression"], "__import__('os').system('true')", "by name only"),
    "outcome": (["outcome", "expression"], "open('x').read()", "by name only"),
    "field": (["fields", "offset"], ["eval('1')"], "calls eval"),
    "attribute": (["factors", 0, "expression"], "hour.__class__", "which formulas do not support"),
    "levels": (["factors", 0, "levels"], [["a"]], "neither text nor a number"),
    "terms": (["terms", 0, "parts"], [[[99, True]]], "damaged"),
    "knots": (["states", "bs(hour, df=5)", "values", 2], "x", "is damaged"),
    "no knots": (["states"], {}, "has no state for bs"),
    "columns": (["factors", 1, "expression"], "poly(hour, 100000000)", "more than 1,000 columns"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused(frame, post, tmp_path, kind):
    place, value, words = HOSTILE[kind]

    def change(page):
        entry = page["rows"]["schema"]["origin"]
        for step in place[:-1]:
            entry = entry[step]
        entry[place[-1]] = value

    post.save(tmp_path / "bad")
    change_page(tmp_path / "bad", "posterior.json", change)
    load, new = mo.Posterior.load, frame.iloc[:2]
    refused(mo.ModicumError, words, lambda: load(tmp_path / "bad").predict(new))


@pytest.mark.parametrize(
    ("formula", "settings", "words"),
    [
        ("carrier ~ dist", {}, "has 3 levels"),
        ("late ~ dist", {"family": "gaussian"}, "needs numbers"),
        ("late ~ dist", {"family": mo.models.Logistic(intercept=False)}, "write '0 \\+'"),
        ("late ~ dist", {"family": mo.models.MLP((4,))}, "with mo.sample"),
        ("~ dist", {}, "no outcome"),
        ("late ~ 0", {}, "neither a term nor an intercept"),
        ("late ~ dist", {"missing": "ignore"}, "missing must be"),
    ],
)
def test_what_cannot_be_fitted_is_a_clear_error(frame, formula, settings, words):
    refused(mo.SettingError, words, mo.fit, formula, frame, progressbar=False, **settings)


def test_a_formula_without_a_column(frame, tmp_path):
    """With the intercept alone, the posterior is that of a proportion."""
    settings = {"draws": 200, "tune": 100, "chains": 2, "random_seed": 1, "progressbar": False}
    stored = mo.fit("late ~ 1", frame, store=tmp_path / "store", **settings)
    post = mo.fit("late ~ 1", frame, **settings)
    np.testing.assert_array_equal(stored.draws["intercept"], post.draws["intercept"])
    summary = post.summary()
    assert list(summary.index) == ["intercept"]
    share, n = (frame["late"] == "yes").mean(), len(frame)
    expected = np.log(share / (1 - share)), 1 / np.sqrt(n * share * (1 - share))
    mean, sd, ess = summary.loc["intercept", ["mean", "sd", "ess_bulk"]]
    assert abs(mean - expected[0]) < 4 * expected[1] / np.sqrt(ess)
    assert abs(mean + expected[0]) > 4 * expected[1] / np.sqrt(ess)  # not the other class
    assert sd == pytest.approx(expected[1], rel=4 / np.sqrt(ess))
    # a table to predict needs rows, but no columns
    np.testing.assert_allclose(post.predict(pd.DataFrame(index=range(3))).mean, share, atol=0.02)
    post.save(tmp_path / "post")
    loaded = mo.Posterior.load(tmp_path / "post")
    frame.to_csv(tmp_path / "new.csv")
    assert len(loaded.predict(tmp_path / "new.csv")) == n


def test_classes_go_by_their_levels(frame):
    with unwarned():  # of so few draws
        post = mo.fit("carrier ~ 1", frame, "softmax", progressbar=False, **SETTINGS)
    assert list(post.summary().index) == ["intercept[AA]", "intercept[DL]"]
    rows = read_formula("carrier ~ dist", frame, progressbar=False)
    labels = mo.models.Ordinal().labels(rows)
    assert labels["cutpoint"] == (("AA|DL", "DL|UA"),)


@pytest.mark.parametrize("groups", ["explicit", *slowly("integrate")])
def test_default_priors_of_a_formula_are_those_that_a_fit_uses(groups):
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"age": rng.normal(50, 9, 120), "ward": np.arange(120) % 12})
    table["well"] = rng.integers(0, 2, 120)
    formula, given = "well ~ age + (1 | ward)", {"intercept": mo.priors.Normal(0, 3)}
    asked = {"priors": given, "groups": groups}
    shown = mo.priors.default(formula, table, **asked)
    with unwarned():
        post = mo.fit(formula, table, draws=10, random_seed=1, progressbar=False, **asked)
    assert shown == post.tuning["priors"]
    assert shown["intercept"].startswith("normal(0, 3)")
    # negative control: without the given prior, or for other columns, they differ
    assert mo.priors.default(formula, table, groups=groups)["intercept"] != shown["intercept"]
    wider = mo.priors.default(formula, table.assign(age=2 * table["age"]), **asked)
    assert wider["beta"] != shown["beta"]
    refused(mo.SettingError, "needs a table", mo.priors.default, formula)
