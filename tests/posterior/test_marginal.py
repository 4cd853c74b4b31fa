"""Average effects of a column, against coefficients, direct computation and populations."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.special import expit

import modicum as mo
from helpers.refusals import refused
from modicum import plots
from modicum.errors import DataError, SettingError
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import FitRows
from modicum.rows.reading import read_formula

mpl.use("Agg")
RNG = np.random.default_rng(3)
N = 300
X = RNG.normal(size=(N, 2)) * [1.0, 3.0]
BETA = RNG.normal([0.8, -0.2], 0.1, size=(2, 100, 2))
INTERCEPT = RNG.normal(0.3, 0.1, size=(2, 100))


def made(model, rows, **draws):
    draws = draws or {"beta": BETA, "intercept": INTERCEPT}
    about = {"predictor": ModelPredictor(model), "rows": rows, "fit_rows": FitRows.of(rows)}
    return mo.Posterior(draws, {}, mo.Ledger(rows=len(rows)), **about)


ROWS = mo.Rows(x=X, y=np.zeros(N), columns=["dose", "age"])


@pytest.fixture(scope="module")
def logistic():
    return made(mo.models.Logistic(), ROWS)


def test_the_slope_of_a_linear_model_is_its_coefficient():
    post = made(mo.models.Gaussian(scale=1.0), ROWS)
    table = post.marginal("dose", slope=True)
    assert list(table.index) == ["dose"]
    assert table.loc["dose", "mean"] == pytest.approx(BETA[..., 0].mean(), abs=1e-8)
    assert table.loc["dose", "sd"] == pytest.approx(BETA[..., 0].std(), rel=1e-6)
    low, high = np.quantile(BETA[..., 0], [0.05, 0.95])
    assert table.loc["dose", "5%"] == pytest.approx(low, abs=0.01)
    assert table.loc["dose", "95%"] == pytest.approx(high, abs=0.01)
    by_one = post.contrast("dose")
    assert by_one.loc["+1", "mean"] == pytest.approx(BETA[..., 0].mean(), abs=1e-8)
    assert post.contrast("age", (0, 10)).loc["10 - 0", "mean"] == pytest.approx(
        10 * BETA[..., 1].mean(), abs=1e-8
    )


def test_logistic_averages_are_those_by_hand(logistic):
    beta, intercept = BETA.reshape(-1, 2), INTERCEPT.reshape(-1)
    p = expit(beta @ X.T + intercept[:, None])
    slopes = (beta[:, :1] * p * (1 - p)).mean(axis=1)
    table = logistic.marginal("dose", slope=True)
    assert table.loc["dose", "mean"] == pytest.approx(slopes.mean(), abs=1e-7)
    assert table.loc["dose", "sd"] == pytest.approx(slopes.std(), rel=1e-5)
    # negative control: the slope at the mean of the columns differs
    centre = expit(beta @ X.mean(axis=0) + intercept)
    assert abs((beta[:, 0] * centre * (1 - centre)).mean() - slopes.mean()) > 1e-3
    predicted = logistic.marginal("dose", at=[-1.0, 2.0])
    for value in (-1.0, 2.0):
        eta = beta @ np.c_[np.full(N, value), X[:, 1]].T + intercept[:, None]
        assert predicted.loc[value, "mean"] == pytest.approx(expit(eta).mean(), abs=1e-10)
    grid = logistic.marginal("dose")
    assert len(grid) == 20
    assert grid.index[0] == pytest.approx(np.quantile(X[:, 0], 0.01))
    for way in ("difference", "ratio", "odds ratio"):
        found = logistic.contrast("dose", (-1.0, 2.0), comparison=way)["mean"].iloc[0]
        a, b = (
            expit(beta @ np.c_[np.full(N, v), X[:, 1]].T + intercept[:, None]).mean(axis=1)
            for v in (-1.0, 2.0)
        )
        right = {"difference": b - a, "ratio": b / a, "odds ratio": b / (1 - b) * (1 - a) / a}
        assert found == pytest.approx(right[way].mean(), abs=1e-10)
    plots.effect(grid)


def test_columns_in_another_order_are_found(logistic):
    turned = mo.Rows(x=X[:, ::-1], y=np.zeros(N), columns=["age", "dose"])
    a = logistic.marginal("dose", turned, at=[0.0, 1.0])
    pd.testing.assert_frame_equal(a, logistic.marginal("dose", at=[0.0, 1.0]))


def test_a_weight_is_not_a_variable():
    frame = pd.DataFrame(
        {"dose": X[:, 0], "well": np.arange(N) % 2, "times": 1.0 + np.arange(N) % 3}
    )
    for formula, draws in (
        ("well ~ dose", {"beta": BETA[..., :1], "intercept": INTERCEPT}),
        ("well ~ dose + times", {"beta": BETA, "intercept": INTERCEPT}),
    ):
        rows = read_formula(formula, frame, weight="times", progressbar=False).rows
        post = made(mo.models.Logistic(), rows, **draws)
        post.table = frame
        if "times" not in formula:
            with pytest.raises(SettingError, match="do not depend on 'times', which is a weight"):
                post.contrast("times")
            continue
        # as a column it may be set, and rows count as they did
        eta = BETA.reshape(-1, 2) @ np.c_[X[:, 0], np.full(N, 2.0)].T + INTERCEPT.reshape(-1, 1)
        right = np.average(expit(eta), axis=1, weights=frame["times"]).mean()
        assert post.marginal("times", at=[2.0])["mean"].iloc[0] == pytest.approx(right, abs=1e-10)


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
    rows = read_formula("well ~ C(month)", table, progressbar=False).rows
    draws = RNG.normal(size=(1, 60, 2))
    post = made(mo.models.Logistic().resolved(rows), rows, beta=draws, intercept=draws[..., 0])
    post.table = table
    right = post.contrast("month", [1, 3])
    for same in (["1", "3"], [1.0, 3.0]):
        pd.testing.assert_frame_equal(post.contrast("month", same), right)
        pd.testing.assert_frame_equal(
            post.marginal("month", at=same), post.marginal("month", at=[1, 3])
        )
    refused(SettingError, "4 is not a level of 'month'", post.marginal, "month", at=[1, 4])


@pytest.fixture(scope="module")
def by_formula():
    """Return made-up draws for a spline, an interaction and levels."""
    table = pd.DataFrame({"hour": RNG.integers(5, 22, N), "dose": X[:, 0]})
    table["ward"] = RNG.choice(["a", "b", "c"], N)
    table["well"] = RNG.random(N) < expit(0.5 * table["dose"])
    formula = "well ~ bs(hour, df=4) + dose * ward"
    rows = read_formula(formula, table, progressbar=False).rows
    draws = RNG.normal(size=(1, 60, len(rows.columns)))
    post = made(mo.models.Logistic().resolved(rows), rows, beta=draws, intercept=draws[..., 0])
    post.table = table
    return post, table


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
    with pytest.raises(DataError, match="column 'ward' of the formula is not in the data"):
        post.marginal("hour", table[["hour", "dose"]])
    refused(SettingError, "reads no column 'well'", post.contrast, "well")  # the outcome itself
    # the last hour plus one is beyond the spline
    refused(DataError, r"use others .* is a spline from 5 to 21", post.contrast, "hour")


def test_classes_have_a_line_each():
    rows = mo.Rows(x=X, y=RNG.integers(0, 3, N), columns=["dose", "age"])
    beta = RNG.normal(size=(1, 20, 2, 2))
    model = mo.models.Softmax().resolved(rows)
    post = made(model, rows, beta=beta, intercept=np.zeros((1, 20, 2)))
    table = post.marginal("dose", at=[0.0, 1.0])
    assert table.index.names == ["dose", "class"]
    np.testing.assert_allclose(table["mean"].groupby("dose").sum(), 1)
    plots.effect(table)


def test_signs_of_draws_count():
    """In a linear model it is the signed average of the coefficient."""
    post = made(mo.models.Gaussian(scale=1.0), ROWS)
    post.weights = np.where(np.arange(200).reshape(2, 100) % 5 == 0, -1.0, 1.0)
    right = (post.weights * BETA[..., 0]).sum() / post.weights.sum()
    assert post.contrast("dose").loc["+1", "mean"] == pytest.approx(right, abs=1e-8)
    assert abs(BETA[..., 0].mean() - right) > 1e-3  # unlike the plain average


def test_average_effects_match_statsmodels():
    """Average marginal effects of logit and Poisson models with exposure, at the estimate."""
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(5)
    exposure = rng.uniform(0.5, 2, N)
    design, eta = sm.add_constant(X), 0.2 + X @ [0.5, -0.1]
    for kind, y, offset, model in (
        (sm.families.Binomial(), 1.0 * (rng.random(N) < expit(eta)), None, mo.models.Logistic()),
        (sm.families.Poisson(), rng.poisson(exposure * np.exp(eta)), np.log(exposure),
         mo.models.Poisson()),
    ):  # fmt: skip
        theirs = sm.GLM(y, design, family=kind, offset=offset).fit()
        more = {} if offset is None else {"offset": offset}
        rows = mo.Rows(x=X, y=y, columns=["dose", "age"], **more)
        at = {"beta": theirs.params[None, None, 1:], "intercept": theirs.params[None, None, 0]}
        post = made(model, rows, **{k: np.repeat(v, 2, axis=1) for k, v in at.items()})
        # statsmodels has none with an offset; for a log link it is coefficient times mean
        of_log = theirs.params[1:] * theirs.fittedvalues.mean()
        effect = theirs.get_margeff().margeff if offset is None else of_log
        for column, right in zip(("dose", "age"), effect, strict=True):
            found = post.marginal(column, slope=True)["mean"].iloc[0]
            assert found == pytest.approx(right, rel=1e-5)
        one_more = sm.add_constant(X + np.array([1.0, 0.0]))
        plus = theirs.predict(one_more, offset=offset) - theirs.predict(offset=offset)
        assert post.contrast("dose")["mean"].iloc[0] == pytest.approx(plus.mean(), rel=1e-8)


def test_what_cannot_be_asked_is_refused(logistic):
    refused(SettingError, "no column 'doze'", logistic.marginal, "doze")
    refused(SettingError, "two values or more", logistic.contrast, "dose", [1])
    refused(SettingError, "two values or more", logistic.contrast, "dose", 1)
    refused(SettingError, "is empty", logistic.marginal, "dose", at=[])
    assert list(logistic.marginal("dose", at=1.5).index) == [1.5]
    with pytest.raises(SettingError, match="comparison must be"):
        logistic.contrast("dose", [1, 2], comparison="odds")
    refused(SettingError, "slopes can be taken", logistic.marginal, "dose", slope=True, at=[99.0])
    with pytest.raises(SettingError, match="slopes can be taken at numbers, not at 'high'"):
        logistic.marginal("dose", slope=True, at="high")
    bare = mo.Posterior(logistic.draws, {}, logistic.ledger, predictor=logistic.predictor)
    refused(SettingError, "needs rows to average over", bare.marginal, "dose")
    with pytest.raises(SettingError, match="an odds ratio needs probabilities"):
        made(mo.models.Gaussian(scale=1.0), ROWS).contrast("dose", comparison="odds ratio")
    with pytest.raises(SettingError, match="Poisson does not predict"):  # even below 1
        made(mo.models.Poisson(), ROWS).contrast("dose", comparison="odds ratio")
    refused(SettingError, "one draw shows no uncertainty", logistic.marginal, "dose", draws=1)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_rows_that_a_fit_left_out_are_left_out_again(missing):
    """NaN in one file and null in another are both missing values."""
    dose = [missing, *X[1:, 0]]
    table = pa.table({"dose": pa.array(dose, pa.float64()), "age": X[:, 1], "y": np.ones(N)})
    formula = "y ~ dose + age"
    rows = read_formula(formula, table, missing="drop", progressbar=False).rows
    post = made(mo.models.Logistic(), rows)
    post.table = table
    by_hand = made(mo.models.Logistic(), read_formula(formula, table[1:], progressbar=False).rows)
    by_hand.table = table[1:]
    pd.testing.assert_frame_equal(
        post.marginal("dose", at=[0, 1]), by_hand.marginal("dose", at=[0, 1])
    )


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
    table.assign(visit=[*range(N - 1), "late"]).to_csv(path, index=False)
    formula = "y ~ dose + C(ward)"
    rows = read_formula(formula, path, progressbar=False).rows
    post = made(mo.models.Gaussian(scale=1.0).resolved(rows), rows)
    found = []
    for given in (path, table):
        post.table = given
        found.append(pd.concat([post.marginal("ward"), post.contrast("ward", ["01", "02"])]))
    pd.testing.assert_frame_equal(*found)
    post.table = path
    assert "late" in set(post.ppc(by="visit", draws=50).table["at"])


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
    assert truth.attrs == {"draws": 50, "rows": 4_000}
    assert truth["sd"].item() < 1e-9  # all rows
    tables = [estimate(subsample=500, random_seed=seed) for seed in range(20)]
    away = np.array([(t["mean"] - truth["mean"]).item() / t["sd"].item() for t in tables])
    assert 0.5 < np.sqrt(np.mean(away**2)) < 1.6  # 20 squares of normal numbers, at 4.5 sd
    inside = [t["5%"].item() < truth["mean"].item() < t["95%"].item() for t in tables]
    assert sum(inside) >= 12
    assert all(t["mcse_mean"].item() == pytest.approx(t["sd"].item()) for t in tables)
