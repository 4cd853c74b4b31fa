"""Average effects of a column, against coefficients, direct computation and populations."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.special import expit
from scipy.stats import norm

import modicum as mo
from helpers import posteriors
from helpers.posteriors import of_formula
from helpers.refusals import refused
from modicum import plots
from modicum.errors import DataError, SettingError

mpl.use("Agg")
RNG = np.random.default_rng(3)
N = 300
X = RNG.normal(size=(N, 2)) * [1.0, 3.0]
BETA = RNG.normal([0.8, -0.2], 0.1, size=(2, 100, 2))
INTERCEPT = RNG.normal(0.3, 0.1, size=(2, 100))


def made(model, rows, **draws):
    return posteriors.made(model, rows, draws or {"beta": BETA, "intercept": INTERCEPT})


ROWS = mo.Rows(x=X, y=np.zeros(N), columns=["dose", "age"])


@pytest.fixture(scope="module")
def logistic():
    return made(mo.models.Logistic(), ROWS)


def test_the_slope_of_a_linear_model_is_its_coefficient():
    post = made(mo.models.Gaussian(scale=1.0), ROWS)
    table = post.marginal("dose", slope=True)
    assert list(table.index) == ["dose"]
    dose, age = BETA[..., 0], BETA[..., 1]
    known = [dose.mean(), dose.std(ddof=1), *np.quantile(dose, [0.05, 0.95])]
    np.testing.assert_allclose(table.loc["dose", ["mean", "sd"]], known[:2], rtol=1e-6)
    np.testing.assert_allclose(table.loc["dose", ["5%", "95%"]], known[2:], atol=0.01)
    by_one, by_ten = post.contrast("dose"), post.contrast("age", (0, 10))
    assert by_one.loc["+1", "mean"] == pytest.approx(dose.mean(), abs=1e-8)
    assert by_ten.loc["10 - 0", "mean"] == pytest.approx(10 * age.mean(), abs=1e-8)


def test_logistic_averages_are_those_by_hand(logistic):
    beta, intercept = BETA.reshape(-1, 2), INTERCEPT.reshape(-1)
    p = expit(beta @ X.T + intercept[:, None])
    slopes = (beta[:, :1] * p * (1 - p)).mean(axis=1)
    table = logistic.marginal("dose", slope=True)
    assert table.loc["dose", "mean"] == pytest.approx(slopes.mean(), abs=1e-7)
    assert table.loc["dose", "sd"] == pytest.approx(slopes.std(ddof=1), rel=1e-5)
    # negative control: the slope at the mean of the columns differs
    centre = expit(beta @ X.mean(axis=0) + intercept)
    assert abs((beta[:, 0] * centre * (1 - centre)).mean() - slopes.mean()) > 1e-3
    a, b = (
        expit(beta @ np.c_[np.full(N, dose), X[:, 1]].T + intercept[:, None]).mean(axis=1)
        for dose in (-1.0, 2.0)
    )
    predicted = logistic.marginal("dose", at=[-1.0, 2.0])["mean"]
    np.testing.assert_allclose(predicted, [a.mean(), b.mean()], atol=1e-10)
    right = {"difference": b - a, "ratio": b / a, "odds ratio": b / (1 - b) * (1 - a) / a}
    for way, each in right.items():
        found = logistic.contrast("dose", (-1.0, 2.0), comparison=way)["mean"].iloc[0]
        assert found == pytest.approx(each.mean(), abs=1e-10)
    grid = logistic.marginal("dose")
    assert len(grid) == 50
    assert grid.index[0] == pytest.approx(np.quantile(X[:, 0], 0.01))
    plots.effect(grid)


def test_columns_in_another_order_are_found(logistic):
    turned = mo.Rows(x=X[:, ::-1], y=np.zeros(N), columns=["age", "dose"])
    a = logistic.marginal("dose", turned, at=[0.0, 1.0])
    pd.testing.assert_frame_equal(a, logistic.marginal("dose", at=[0.0, 1.0]))


def test_a_weight_is_not_a_variable():
    frame = pd.DataFrame({"dose": X[:, 0], "well": np.arange(N) % 2, "times": np.arange(N) % 3 + 1})

    def of(formula, columns):
        draws = {"beta": BETA[..., :columns], "intercept": INTERCEPT}
        return of_formula(formula, frame, mo.models.Logistic(), draws, weights="times")

    words = "do not depend on 'times', which is a weight"
    refused(SettingError, words, of("well ~ dose", 1).contrast, "times")
    # as a column it may be set, and rows count as they did
    found = of("well ~ dose + times", 2).marginal("times", at=[2.0])["mean"].iloc[0]
    eta = BETA.reshape(-1, 2) @ np.c_[X[:, 0], np.full(N, 2.0)].T + INTERCEPT.reshape(-1, 1)
    right = np.average(expit(eta), axis=1, weights=frame["times"]).mean()
    assert found == pytest.approx(right, abs=1e-10)


def test_rows_count_by_their_weight():
    weight = np.arange(N) % 3 * 1.0
    rows = mo.Rows(x=X, y=np.zeros(N), weight=weight, columns=["dose", "age"])
    found = made(mo.models.Logistic(), rows).marginal("dose", rows, at=[1.0])
    keep = np.repeat(np.arange(N), weight.astype(int))
    plain = mo.Rows(x=X[keep], y=np.zeros(len(keep)), columns=["dose", "age"])
    right = made(mo.models.Logistic(), plain).marginal("dose", at=[1.0])
    pd.testing.assert_frame_equal(found, right)


def test_factors_of_arrays_are_set_by_their_levels():
    ward = RNG.choice(["a", "b", "c"], N)
    rows = mo.Rows(x=X[:, :1], y=np.zeros(N), codes={"ward": ward}, columns=["dose"])
    beta = RNG.normal([0.8, -0.2, 1.0], 0.1, size=(2, 100, 3))
    model = mo.models.Logistic().resolved(rows)
    post = made(model, rows, beta=beta, intercept=INTERCEPT)
    flat, intercept = beta.reshape(-1, 3), INTERCEPT.reshape(-1)
    table = post.contrast("ward")
    assert list(table.index) == ["b - a", "c - a"]
    base = flat[:, :1] @ X[:, :1].T + intercept[:, None]
    c = (expit(base + flat[:, 2:]) - expit(base)).mean()
    assert table.loc["c - a", "mean"] == pytest.approx(c, abs=1e-10)
    assert list(post.marginal("ward").index) == ["a", "b", "c"]
    refused(SettingError, "have no slope", post.marginal, "ward", slope=True)
    refused(SettingError, "'d' is not a level of 'ward'", post.contrast, "ward", ["a", "d"])


def test_levels_may_be_written_as_in_any_table():
    """It said that '2' is not a level, and asked whether '2' was meant."""
    table = pd.DataFrame({"month": RNG.integers(1, 4, N), "well": RNG.integers(0, 2, N)})
    post = of_formula("well ~ C(month)", table, mo.models.Logistic())
    right = post.contrast("month", [1, 3])
    for same in (["1", "3"], [1.0, 3.0]):
        pd.testing.assert_frame_equal(post.contrast("month", same), right)
        marginal = post.marginal("month", at=same)
        pd.testing.assert_frame_equal(marginal, post.marginal("month", at=[1, 3]))
    refused(SettingError, "4 is not a level of 'month'", post.marginal, "month", at=[1, 4])


@pytest.fixture(scope="module")
def by_formula():
    """Return made-up draws for a spline, an interaction and levels."""
    table = pd.DataFrame({"hour": RNG.integers(5, 22, N), "dose": X[:, 0]})
    table["ward"] = RNG.choice(["a", "b", "c"], N)
    table["well"] = RNG.random(N) < expit(0.5 * table["dose"])
    formula = "well ~ bs(hour, df=4) + dose * ward"
    return of_formula(formula, table, mo.models.Logistic()), table


def test_a_formula_is_asked_by_the_columns_of_its_table(by_formula):
    post, table = by_formula

    def average(**changes):
        return post.predict(table.assign(**changes), draws=60).mean.mean()

    found = post.marginal("hour", draws=60)
    assert list(found.index) == sorted(table["hour"].unique())
    for hour in (5, 14, 21):
        assert found.loc[hour, "mean"] == pytest.approx(average(hour=hour), abs=1e-8)
    wards = post.marginal("ward", draws=60)
    assert wards.loc["b", "mean"] == pytest.approx(average(ward="b"), abs=1e-8)
    step = 1e-3
    rise = average(dose=table["dose"] + step) - average(dose=table["dose"] - step)
    slope = post.marginal("dose", slope=True, draws=60)
    assert slope.loc["dose", "mean"] == pytest.approx(rise / (2 * step), rel=1e-3)
    both = post.contrast("ward", ["a", "c"], draws=60)
    assert both["mean"].iloc[0] == pytest.approx(average(ward="c") - average(ward="a"), abs=1e-8)
    given = post.marginal("hour", table.iloc[::-1], draws=60)
    np.testing.assert_allclose(given, found, atol=1e-10)
    plots.effect(wards)
    refused(SettingError, "reads no column 'dosis'", post.marginal, "dosis")
    refused(SettingError, "reads no column 'well'", post.contrast, "well")  # the outcome itself
    # the last hour plus one is beyond the spline
    refused(DataError, r"use others .* is a spline from 5 to 21", post.contrast, "hour")


def test_signs_of_draws_count():
    """In a linear model it is the signed average of the coefficient."""
    post = made(mo.models.Gaussian(scale=1.0), ROWS)
    post.weights = np.where(np.arange(200).reshape(2, 100) % 5 == 0, -1.0, 1.0)
    right = (post.weights * BETA[..., 0]).sum() / post.weights.sum()
    assert post.contrast("dose").loc["+1", "mean"] == pytest.approx(right, abs=1e-8)
    assert abs(BETA[..., 0].mean() - right) > 1e-3  # unlike the plain average


def test_what_cannot_be_asked_is_refused(logistic):
    assert list(logistic.marginal("dose", at=1.5).index) == [1.5]
    for words, settings in {
        "is empty": {"at": []},
        "slopes can be taken": {"slope": True, "at": [99.0]},
        "slopes can be taken at numbers, not at 'high'": {"slope": True, "at": "high"},
        "one draw shows no uncertainty": {"draws": 1},
    }.items():
        refused(SettingError, words, logistic.marginal, "dose", **settings)
    refused(SettingError, "no column 'doze'", logistic.marginal, "doze")
    refused(SettingError, "two values or more", logistic.contrast, "dose", [1])
    refused(SettingError, "two values or more", logistic.contrast, "dose", 1)
    refused(SettingError, "comparison must be", logistic.contrast, "dose", comparison="odds")
    bare = posteriors.bare(mo.models.Logistic(), logistic.draws)
    refused(SettingError, "needs rows, which this posterior", bare.marginal, "dose")
    for words, model in {
        "an odds ratio needs probabilities": mo.models.Gaussian(scale=1.0),
        "Poisson does not predict": mo.models.Poisson(),  # even below 1
    }.items():
        refused(SettingError, words, made(model, ROWS).contrast, "dose", comparison="odds ratio")


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_rows_that_a_fit_left_out_are_left_out_again(missing):
    """NaN in one file and null in another are both missing values."""
    dose = pa.array([missing, *X[1:, 0]], pa.float64())
    table = pa.table({"dose": dose, "age": X[:, 1], "y": np.ones(N)})
    draws = {"beta": BETA, "intercept": INTERCEPT}
    found, by_hand = (
        of_formula("y ~ dose + age", part, mo.models.Logistic(), draws, missing=missing)
        for part, missing in ((table, "drop"), (table[1:], "refuse"))
    )
    at = {"at": [0, 1]}
    pd.testing.assert_frame_equal(found.marginal("dose", **at), by_hand.marginal("dose", **at))


def test_missing_values_that_a_fit_refused_are_refused_again(by_formula):
    post, table = by_formula
    for column in ("dose", "well"):  # averages over some of the rows would look like those over all
        holes = table.assign(**{column: table[column].astype(object).where(table["dose"] > 0)})
        first = int(np.argmin(table["dose"] > 0))
        with pytest.raises(DataError, match=f"'{column}' holds a missing value in row {first}"):
            post.marginal("ward", holes)


def test_a_csv_file_is_read_as_the_fit_read_it(tmp_path, monkeypatch):
    """Columns in C(...) as text, and columns whose type a late value changes."""
    monkeypatch.setattr("modicum.rows.csv.BLOCK_BYTES", 1000)
    path = tmp_path / "table.csv"
    table = pd.DataFrame({"dose": X[:, 0], "ward": RNG.choice(["01", "02"], N), "y": X[:, 1]})
    late = {"visit": [*range(N - 1), "late"], "age": [*range(N - 1), "0.5"]}
    table.assign(**late).to_csv(path, index=False)
    draws = {"beta": BETA, "intercept": INTERCEPT}
    post = of_formula("y ~ dose + C(ward)", path, mo.models.Gaussian(scale=1.0), draws)
    found = []
    for given in (path, table):
        post.table = given
        found.append(pd.concat([post.marginal("ward"), post.contrast("ward", ["01", "02"])]))
    pd.testing.assert_frame_equal(*found)
    post.table = path
    assert "late" in set(post.ppc(by="visit", draws=50).table["at"])
    assert len(post.ppc(by="age", draws=50).table)


@pytest.mark.parametrize("comparison", [None, "difference", "ratio", "odds ratio"])
def test_a_sample_of_rows_adds_its_error(comparison):
    """With known coefficients all error is that of the rows; intervals had none of it."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4_000, 2)) * [1.0, 2.0]
    rows = mo.Rows(x=x, y=np.zeros(4_000), columns=["dose", "age"])
    known = {"beta": np.tile([0.8, -0.4], (1, 50, 1)), "intercept": np.zeros((1, 50))}
    post = made(mo.models.Logistic(), rows, **known)

    def estimate(**settings):
        if comparison is None:
            return post.marginal("dose", at=[1.0], **settings)
        return post.contrast("dose", [0.0, 1.0], comparison=comparison, **settings)

    truth = estimate(subsample=10_000)
    assert (truth.attrs["draws"], truth.attrs["rows"]) == (50, 4_000)
    assert truth["sd"].item() < 1e-9  # all rows
    tables = [estimate(subsample=500, random_seed=seed) for seed in range(20)]
    away = np.array([(t["mean"] - truth["mean"]).item() / t["sd"].item() for t in tables])
    assert 0.5 < np.sqrt(np.mean(away**2)) < 1.6  # 20 squares of normal numbers, at 4.5 sd
    inside = [t["5%"].item() < truth["mean"].item() < t["95%"].item() for t in tables]
    assert sum(inside) >= 12
    assert all(t["mcse_mean"].item() == pytest.approx(t["sd"].item()) for t in tables)


def test_a_contrast_takes_the_draws_that_its_settings_cost(monkeypatch):
    """Without `between` it sets a column twice; a curve asks fifty times, and takes fewer."""
    beta = np.random.default_rng(7).normal(size=(2, 1_000, 2))
    post = made(mo.models.Logistic(), ROWS, beta=beta, intercept=beta[..., 0])
    monkeypatch.setattr("modicum.posterior.fitted.EVALUATIONS", 2 * 2_000 * N)
    assert post.contrast("dose").attrs["draws"] == 2_000
    assert post.contrast("dose", [0, 1, 2, 3]).attrs["draws"] == 1_000
    assert post.marginal("dose").attrs["draws"] == 200


def test_two_columns_are_set_to_all_combinations(by_formula, logistic):
    post, table = by_formula
    found = post.marginal(["hour", "ward"], at={"hour": [5, 14, 21]}, draws=60)
    assert found.index.names == ["hour", "ward"]
    assert len(found) == 9
    for hour, ward in ((5, "a"), (21, "c")):
        right = post.predict(table.assign(hour=hour, ward=ward), draws=60).mean.mean()
        assert found.loc[(hour, ward), "mean"] == pytest.approx(right, abs=1e-8)
        # negative control: the average at that hour alone is another
        alone = post.predict(table.assign(hour=hour), draws=60).mean.mean()
        assert abs(found.loc[(hour, ward), "mean"] - alone) > 1e-3
    ax = plots.effect(found)
    assert [line.get_label() for line in ax.lines] == ["ward a", "ward b", "ward c"]
    assert ax.get_ylabel() == "chance of well\nmean and 90% interval"
    assert ax.yaxis.get_major_formatter()(0.125) == "12.5%"
    grid = logistic.marginal(["dose", "age"])
    assert len(grid) == 50 * 3
    ages = grid.index.get_level_values("age").unique()
    np.testing.assert_allclose(ages, np.quantile(X[:, 1], [0.1, 0.5, 0.9]))
    of_dose = post.marginal(["dose", "ward"], slope=True, draws=60)
    one = post.marginal("dose", table.assign(ward="b"), slope=True, draws=60)
    assert of_dose.loc[("dose", "b"), "mean"] == pytest.approx(one["mean"].item(), rel=1e-6)
    slopes = plots.effect(of_dose)
    assert slopes.get_xlabel().startswith("slope of the chance of well in dose")
    assert "%" not in slopes.xaxis.get_major_formatter()(0.125)


def test_a_rate_is_asked_at_an_exposure_of_one():
    """Expected counts of rows as they are depend on how long each was observed."""
    rng = np.random.default_rng(6)
    table = pd.DataFrame({"age": rng.normal(size=N), "years": rng.uniform(0.2, 3, N)})
    table["claims"] = rng.poisson(table["years"])
    draws = {"beta": BETA[..., :1], "intercept": INTERCEPT}
    formula = "claims ~ age + offset(log(years))"
    post = of_formula(formula, table, mo.models.Poisson(), draws)
    found = post.marginal("age", at=[0.0, 1.0], given={"years": 1})
    right = np.exp(INTERCEPT + BETA[..., 0] * np.arange(2)[:, None, None]).mean(axis=(1, 2))
    np.testing.assert_allclose(found["mean"], right)
    as_it_is = post.marginal("age", at=[0.0, 1.0])
    np.testing.assert_allclose(as_it_is["mean"], right * table["years"].mean())
    assert plots.effect(found).get_xlabel().startswith("expected claims at years = 1")
    day = pd.Timestamp("2026-01-01")
    dated = table.assign(day=day + pd.to_timedelta(np.arange(N) % 2, unit="D"))
    few = draws | {"beta": BETA[..., :2]}
    by_day = of_formula("claims ~ age + C(day)", dated, mo.models.Poisson(), few)
    found = by_day.marginal("age", at=[0.0], given={"day": day})
    assert "day = 2026-01-01" in found.attrs["quantity"]
    rise = post.contrast("age", [0.0, 1.0], given={"years": 1})
    assert rise["mean"].item() == pytest.approx(right[1] - right[0])
    assert rise.attrs["quantity"] == "difference in the expected claims at years = 1"


def test_all_pairs_of_levels_are_compared():
    ward = np.tile(["a", "b", "c"], N // 3)
    rows = mo.Rows(x=X[:, :1], y=np.zeros(N), codes={"ward": ward}, columns=["dose"])
    beta = np.random.default_rng(7).normal([0.8, -0.2, 0.1], 0.3, size=(2, 500, 3))
    model = mo.models.Gaussian(scale=1.0).resolved(rows)
    post = made(model, rows, beta=beta, intercept=np.zeros((2, 500)))
    table = post.contrast("ward", pairs=True)
    assert list(table.index) == ["b - a", "c - a", "c - b"]
    right = np.stack([beta[..., 1], beta[..., 2], beta[..., 2] - beta[..., 1]])
    np.testing.assert_allclose(table["mean"], right.mean(axis=(1, 2)), atol=1e-8)
    np.testing.assert_allclose(table["probability"], (right > 0).mean(axis=(1, 2)))
    post.weights = np.where(beta[..., 2] > 0.1, 3.0, 1.0)
    weighted = post.contrast("ward", pairs=True)["probability"]
    known = np.average(right > 0, axis=(1, 2), weights=np.broadcast_to(post.weights, right.shape))
    np.testing.assert_allclose(weighted, known)
    assert abs(weighted.iloc[1] - table["probability"].iloc[1]) > 0.1  # negative control
    ratios = post.contrast("ward", ["a", "b"], comparison="ratio")
    outcome = beta.reshape(-1, 3)[:, :1] @ X[:, :1].mean(axis=0)
    chance = (outcome + beta[..., 1].ravel()) / outcome > 1
    chance = np.average(chance, weights=post.weights.ravel())
    assert ratios["probability"].item() == pytest.approx(chance)
    refused(SettingError, "name those to compare", post.contrast, "dose", pairs=True)


def test_the_probability_of_a_contrast_includes_the_error_of_a_sample():
    """With known coefficients, only the sample of rows leaves the sign of an average open."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"dose": rng.normal(size=N), "age": rng.normal(size=N), "y": np.zeros(N)})
    known = {"beta": np.tile([0.0, 0.0, 1.0], (1, 50, 1)), "intercept": np.zeros((1, 50))}
    post = of_formula("y ~ dose * age", table, mo.models.Gaussian(scale=1.0), known)
    some, whole = (post.contrast("dose", [0, 1], subsample=number) for number in (20, N))
    right = norm.cdf(some["mean"] / some["sd"]).item()
    assert some["probability"].item() == pytest.approx(right)
    assert 0.05 < right < 0.95
    assert whole["probability"].item() in (0, 1)  # negative control: no error, no doubt


def test_what_columns_cannot_be_set_to_is_refused(by_formula, logistic):
    post, _ = by_formula
    for words, column, settings in [
        ("at is a dict of values", ["dose", "age"], {"at": [1]}),
        ("at names 'dose', which does not vary", "age", {"at": {"dose": [1]}}),
        ("must be different", ["age", "age"], {}),
        ("column must be the name", 3, {}),
        ("given must be a dict", "age", {"given": 3}),
        ("is the column that varies", "age", {"given": {"age": 1}}),
        ("one value in all rows", "age", {"given": {"dose": [1, 2]}}),
        ("no column 'doze'", "age", {"given": {"doze": 1}}),
        ("have 10,000 combinations", ["dose", "age"],
         {"at": {"dose": range(100), "age": range(100)}}),
    ]:  # fmt: skip
        refused(SettingError, words, logistic.marginal, column, **settings)
    refused(SettingError, "'d' is not a level", post.marginal, "dose", given={"ward": "d"})


def test_a_level_that_is_set_may_meet_others_that_it_never_met():
    """A class that its school never had is a new one of it: by default refused, else averaged."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"school": np.arange(120) % 6, "x": rng.normal(size=120)})
    kinds = np.array([["a", "b", "c"], ["d", "e", "f"]])
    table["class"] = kinds[(table["school"] > 2).astype(int), rng.integers(0, 3, 120)]
    within = rng.normal(size=240)[table["school"] * 40 + table["class"].map(ord) % 40]
    table["y"] = table["school"] + table["x"] + within + 0.2 * rng.normal(size=120)
    formula = "y ~ x + (1 | school/class)"
    quiet = {"draws": 100, "random_seed": 1, "progressbar": False, "groups": "explicit"}
    post = mo.fit(formula, table, family="gaussian", **quiet)
    refused(DataError, "use groups='any'", post.marginal, "school", at=[0])
    found = post.marginal("school", at=[0], groups="any")["mean"].item()
    known = {kind: post.mean(f"1|school:class[0:{kind}]") for kind in "abc"}
    inner = np.array([known.get(kind, 0.0) for kind in table["class"]])
    at = post.mean("intercept") + post.mean("beta")[0] * table["x"] + post.mean("1|school[0]")
    assert found == pytest.approx(float((at + inner).mean()), abs=1e-6)
    assert found != pytest.approx(float((at + inner.max()).mean()), abs=1e-6)
