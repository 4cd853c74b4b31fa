"""The scikit-learn estimators: scikit-learn's own checks, and the posterior they return."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from joblib import parallel_config
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import modicum as mo
import modicum.sklearn
from helpers.cases import cases
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import TIMES, class_rows, gaussian_rows, logistic_rows, poisson_rows
from modicum.diagnostics import mcse
from modicum.sklearn import LinearRegression, LogisticRegression, PoissonRegressor, Regressor

SHORT = {"draws": 200, "chains": 2, "method": "laplace", "random_state": 1}
SHORTEST = SHORT | {"draws": 150, "chains": 1}
N = 200

pytestmark = pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")  # the runs are short


def arrays(rows):
    batch = rows.slice(0, len(rows))
    return batch["x"], batch["y"]


@pytest.fixture(scope="module")
def binary():
    X, y = arrays(logistic_rows(N))
    return X, np.where(y == 1, "late", "in time")


@pytest.fixture(scope="module")
def late(binary):
    return LogisticRegression(**SHORT).fit(*binary)


def test_the_posterior_is_that_of_the_front_door(late, binary):
    rows = mo.Rows(x=binary[0], y=(binary[1] == "late") * 1.0)
    post = mo.sample(
        mo.models.Logistic(), rows, method="laplace", draws=200, chains=2, random_seed=1,
        progressbar=False,
    )  # fmt: skip
    np.testing.assert_array_equal(late.posterior_["beta"], post["beta"])
    np.testing.assert_allclose(late.coef_, [post.mean("beta")])
    np.testing.assert_allclose(late.intercept_, [post.mean("intercept")])
    chances = post.predict(rows)
    off = late.predict_proba(binary[0])[:, 1] - chances.mean
    assert np.all(np.abs(off) < 0.05 * (chances.upper - chances.lower))


def test_few_draws_have_the_mean_of_all(monkeypatch):
    """Expected outcomes that are linear in the parameters are those at the means, exactly."""
    X, y = arrays(gaussian_rows(N))
    fit = LinearRegression(**SHORT | {"draws": 1000}).fit(X, y)
    linear = X @ fit.coef_ + fit.intercept_
    np.testing.assert_allclose(fit.predict(X), linear, rtol=1e-9)
    monkeypatch.setattr(modicum.sklearn, "FEW_DRAWS", 1001)  # negative control: draws count alike
    assert not np.allclose(fit.predict(X), linear, rtol=1e-6)


def test_long_fits_show_progress_and_say_how_they_draw(monkeypatch, capsys):
    """A fit that left the weighted road used to say nothing for minutes."""
    X, y = arrays(logistic_rows(3000))
    monkeypatch.setattr(modicum.sklearn, "PATIENCE", np.inf)
    fit = LogisticRegression(random_state=1).fit(X, y)
    assert "modicum:" not in capsys.readouterr().err
    monkeypatch.setattr(modicum.sklearn, "PATIENCE", 0.0)
    fit.fit(X, y)
    said = ["mode", fit.posterior_.tuning["method"], "checks"]
    said = [f"modicum: {line}" for line in said]
    heard = capsys.readouterr().err.splitlines()  # on a busy machine, passes too
    assert [line for line in heard if line in said] == said


def test_a_pipeline_with_a_rare_level_is_sane_and_names_it():
    """Four rows without an event got a prior sd of 2.5 / sd(x), and the name "x17"."""
    rng = np.random.default_rng(2)
    airport = np.where(np.arange(4000) < 4, "rare", rng.choice(["east", "west"], 4000))
    y = (rng.random(4000) < 0.3) & (airport != "rare")
    one_hot = OneHotEncoder(sparse_output=False)
    model = make_pipeline(one_hot, LogisticRegression(**SHORT)).set_output(transform="pandas")
    post = model.fit(pd.DataFrame({"airport": airport}), y)[-1].posterior_
    assert post.tuning["priors"]["beta"] == "normal(0, 2.5)"
    low, mean, high = post.summary().loc["beta[airport_rare]", ["5%", "mean", "95%"]]
    assert -10 < low < mean < high
    told = [str(w) for w in post.warnings if w.code == "separation"]
    assert len(told) == 1
    assert "airport_rare" in told[0]


def test_classes_and_scores(late, binary):
    X, y = binary
    assert list(late.classes_) == ["in time", "late"]
    chances = late.predict_proba(X)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    np.testing.assert_array_equal(late.predict(X), late.classes_[np.argmax(chances, axis=1)])
    assert late.score(X, y) == np.mean(late.predict(X) == y) > 0.6
    assert late.n_features_in_ == 3


def test_clone_pickle_and_pipelines(late, binary):
    X, y = binary
    again = clone(late)
    assert again.get_params() == late.get_params()
    assert not hasattr(again, "coef_")
    kept = pickle.loads(pickle.dumps(late))
    np.testing.assert_allclose(kept.predict_proba(X), late.predict_proba(X), rtol=1e-9)
    scaled = make_pipeline(StandardScaler(), clone(late)).fit(X, y)
    moved = make_pipeline(StandardScaler(), clone(late)).fit(100 + 7 * X, y)
    np.testing.assert_allclose(scaled.predict_proba(X), moved.predict_proba(100 + 7 * X), atol=1e-6)


@pytest.mark.parametrize("backend", ["threading", *slowly("loky")])
def test_folds_side_by_side_score_as_one_by_one(late, binary, backend):
    scores = cross_val_score(late, *binary, cv=2)
    assert scores.min() > 0.55
    with parallel_config(backend):
        np.testing.assert_array_equal(cross_val_score(late, *binary, cv=2, n_jobs=2), scores)


def test_sparse_columns_are_dense_ones(late, binary):
    X, y = binary
    thin = LogisticRegression(**SHORT).fit(sparse.csr_array(X), y)
    np.testing.assert_array_equal(thin.coef_, late.coef_)
    np.testing.assert_array_equal(thin.predict(sparse.csc_array(X)), late.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LogisticRegression, LinearRegression, PoissonRegressor])
def test_weights_count_rows(kind, binary):
    """Rows of weight 2 and 0 give the same draws as two rows and none, to the last digit."""
    X, y = binary
    y = y if kind is LogisticRegression else (y == "late") * 1.0
    weight = np.arange(N) % 4
    weighted = kind(**SHORT).fit(X, y, sample_weight=weight)
    repeated = kind(**SHORT).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_array_equal(weighted.posterior_["beta"], repeated.posterior_["beta"])
    plain = kind(**SHORT).fit(X, y)  # the negative control
    assert np.max(np.abs(plain.coef_ - repeated.coef_)) > 1e-3


def test_frames_with_categories(binary):
    X, y = binary
    rng = np.random.default_rng(1)
    ward = rng.choice(["a", "b", "c"], N)
    frame = pd.DataFrame({"dose": X[:, 0], "ward": pd.Categorical(ward), "age": X[:, 1]})
    fit = LogisticRegression(**SHORT).fit(frame, y, sample_weight=np.ones(N))
    assert list(fit.feature_names_in_) == ["dose", "ward", "age"]
    assert {"beta[ward[b]]", "beta[ward[c]]", "beta[age]"} < set(fit.posterior_.summary().index)
    np.testing.assert_allclose(fit.predict_proba(frame[:9]), fit.predict_proba(frame)[:9])
    one = frame[:3].astype({"ward": str})  # levels are matched by name, not position
    np.testing.assert_allclose(fit.predict_proba(one), fit.predict_proba(frame)[:3])
    refused(ValueError, "order", fit.predict, frame[["age", "ward", "dose"]])
    refused(mo.DataError, "d", fit.predict, one.assign(ward="d"))
    dated = frame.assign(age=pd.date_range("2020", periods=N))  # nobody means an effect of each
    with pytest.raises(mo.DataError, match=r"column 'age' holds values of type .*\.dt\.days"):
        LogisticRegression(**SHORT).fit(dated, y)


def test_new_rows_are_encoded_as_those_of_the_fit():
    """A level 2 is not twice a level 1, whatever type the number 2 has when it is predicted."""
    rng = np.random.default_rng(1)
    ward, dose = rng.integers(1, 3, N), rng.normal(size=N)
    y = rng.random(N) < np.where(ward == 2, 0.8, 0.2)
    frame = pd.DataFrame({"ward": pd.Categorical(ward), "dose": dose})
    fit = LogisticRegression(**SHORT).fit(frame, y)
    new = pd.DataFrame({"ward": [1, 2], "dose": [0.0, 0.0]})
    known = fit.predict_proba(new.assign(ward=pd.Categorical([1, 2])))
    np.testing.assert_allclose(known[:, 1], [0.2, 0.8], atol=0.12)  # three sds
    for form in (new, new.astype(float), new.assign(ward=["1", "2"]), pl.DataFrame(new)):
        np.testing.assert_array_equal(fit.predict_proba(form), known)
    for array in (new.to_numpy(), new.to_numpy(object), new.to_numpy().tolist()):
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            np.testing.assert_array_equal(fit.predict_proba(array), known)
    with pytest.raises(mo.DataError, match="holds 3 in row 1, which the rows of the fit did not"):
        fit.predict(new.assign(ward=[1, 3]))
    refused(ValueError, "X has 0 rows", fit.predict, new[:0])

    numbers = LogisticRegression(**SHORT).fit(frame.astype({"ward": object, "dose": object}), y)
    assert numbers.coef_.shape == (1, 2)  # objects that are numbers
    categories = new.assign(ward=pd.Categorical([1, 2]))
    np.testing.assert_array_equal(numbers.predict_proba(categories), numbers.predict_proba(new))


@pytest.mark.slow
def test_more_than_two_classes():
    X, y = arrays(class_rows(N))
    fit = LogisticRegression(**SHORT).fit(X, np.array(["x", "y", "z"])[y.astype(int)])
    assert fit.coef_.shape == (3, 2)
    assert np.all(fit.coef_[2] == 0)
    assert fit.predict_proba(X).shape == (N, 3)
    assert fit.score(X, np.array(["x", "y", "z"])[y.astype(int)]) > 0.5


def test_real_outcomes_and_their_spread():
    X, y = arrays(gaussian_rows(N))
    fit = LinearRegression(**SHORT).fit(X, y)
    ridge = BayesianRidge().fit(X, y)
    np.testing.assert_allclose(fit.coef_, ridge.coef_, atol=0.1)
    mean, std = fit.predict(X, return_std=True)
    theirs, spread = ridge.predict(X, return_std=True)
    np.testing.assert_allclose(mean, theirs, atol=0.15)
    np.testing.assert_allclose(std, spread, rtol=0.1)
    assert fit.score(X, y) > 0.8


@pytest.mark.slow
def test_without_an_intercept():
    X, y = arrays(gaussian_rows(N))
    assert LinearRegression(fit_intercept=False, **SHORTEST).fit(X, y).intercept_ == 0.0


@pytest.mark.slow
def test_counts_over_exposures_are_counts(tmp_path):
    """y = counts / exposure weighted by exposure has the posterior of counts with an offset."""
    batch = poisson_rows(N).slice(0, N)
    X, exposure = batch["x"], np.exp(batch["offset"])
    fit = PoissonRegressor(**SHORT).fit(X, batch["y"] / exposure, sample_weight=exposure)
    truth = mo.sample(
        mo.models.Poisson(), mo.Rows(**batch), method="hmc", draws=200, tune=150, chains=2,
        random_seed=1, progressbar=False,
    )  # fmt: skip
    error = np.hypot(mcse(fit.posterior_["beta"]), mcse(truth["beta"]))
    assert np.all(np.abs(fit.coef_ - truth.mean("beta")) < TIMES * error)
    assert 0 < fit.score(X, batch["y"] / exposure, sample_weight=exposure) < 1
    fit.posterior_.save(tmp_path / "saved")
    loaded = mo.Posterior.load(tmp_path / "saved")
    np.testing.assert_allclose(loaded.predict({"x": X}).mean, fit.predict(X), rtol=0.01)
    mean, std = fit.predict(X, return_std=True)
    assert np.all(std > np.sqrt(mean))  # variance of the outcome plus that of its rate
    plain = PoissonRegressor(**SHORT).fit(X, batch["y"] / exposure)  # the negative control
    assert np.any(np.abs(plain.coef_ - truth.mean("beta")) > TIMES * error)


@cases(
    "family words",
    ("logistic", "use LogisticRegression"),
    ("binomial", "needs y and trials"),
    ("gama", "no family 'gama'"),
    (3, "must be a name"),
)
def test_families_that_are_not_for_it(family, words):
    refused(mo.SettingError, words, Regressor(family).fit, np.eye(3), np.arange(3.0))


@pytest.mark.slow
@cases("kind", LogisticRegression, LinearRegression, PoissonRegressor, Regressor)
def test_scikit_learns_own_checks(kind):
    check_estimator(kind(**SHORTEST))
