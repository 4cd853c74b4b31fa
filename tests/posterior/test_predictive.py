"""Posterior predictive draws, and their comparison with observed outcomes."""

from functools import cache

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from scipy.stats import kstest

import modicum as mo
from helpers.posteriors import bare, fixed, made, normal_draws
from helpers.refusals import refused
from helpers.targets import Conjugate, all_of, class_rows, design, logistic_rows
from modicum.errors import DataError, SettingError
from modicum.fit import model_for
from modicum.rows.reading import read_formula

mpl.use("Agg")

CONJUGATE = Conjugate()
N, X, SCALE = 200, CONJUGATE.x, CONJUGATE.scale


@pytest.fixture(scope="module")
def gaussian():
    draws = normal_draws(CONJUGATE.mean, CONJUGATE.cov)
    return made(CONJUGATE.model.resolved(CONJUGATE.rows), CONJUGATE.rows, draws)


def known(model, rows, beta, intercept, number=100):
    """Return a posterior with known coefficients."""
    return made(model, rows, fixed(number, beta=beta, intercept=intercept))


def test_outcomes_have_the_spread_of_coefficients_and_of_noise(gaussian):
    drawn = gaussian.predictive(draws=2000)
    assert drawn.shape == (2000, N)
    mean = X @ CONJUGATE.mean
    variance = SCALE**2 + np.einsum("ij,jk,ik->i", X, CONJUGATE.cov, X)
    z = (drawn.mean(axis=0) - mean) / np.sqrt(variance / 2000)
    assert np.abs(z).max() < 4.5
    ratio = drawn.var(axis=0) / variance
    assert np.abs(ratio - 1).max() < 4.5 * np.sqrt(2 / 2000)
    # negative control: noise alone is too narrow for the most uncertain rows
    assert np.abs(drawn.var(axis=0) / SCALE**2 - 1).mean() > np.abs(ratio - 1).mean()
    np.testing.assert_array_equal(drawn, gaussian.predictive(CONJUGATE.rows, draws=2000))
    assert not np.array_equal(drawn[0], gaussian.predictive(draws=1, random_seed=1)[0])


def test_the_prior_predictive_is_that_of_the_prior(gaussian):
    drawn = gaussian.predictive(draws=4000, prior=True)
    variance = SCALE**2 + X**2 @ CONJUGATE.prior_sd**2
    assert np.abs(drawn.mean(axis=0) / np.sqrt(variance / 4000)).max() < 4.5
    assert np.abs(drawn.var(axis=0) / variance - 1).max() < 4.5 * np.sqrt(2 / 4000)


def test_a_check_averages_with_signs():
    """Half of the draws have another slope, and signs cancel them."""
    x, rng = design(2000, 1)
    rows = mo.Rows(x=x, y=1.0 * (rng.random(2000) < expit(x[:, 0])))
    beta = np.where(np.arange(200) % 4 < 2, 1.0, -2.0)[None, :, None]
    sign = np.where(np.arange(200) % 4 == 3, -1.0, 1.0)[None]
    post = made(mo.models.Logistic(), rows, {"beta": beta, "intercept": np.zeros((1, 200))})
    ignored = post.ppc(draws=200).table
    post.weights = sign
    table = post.ppc(draws=200).table
    spread = np.sqrt(0.25 / table["rows"])
    assert (np.abs(table["observed"] - table["predicted"]) < 4.5 * spread).all()
    assert (np.abs(ignored["observed"] - ignored["predicted"]) > 4.5 * spread).any()
    refused(SettingError, "only averages are meaningful", post.predictive, draws=10)
    post.weights = -sign
    refused(SettingError, "the signs cancel", post.ppc)


def test_classes_are_drawn_by_their_probabilities():
    rows = class_rows(60)
    model = mo.models.Softmax().resolved(rows)
    post = made(model, rows, fixed(3000, beta=[[0.5, -1.0], [1.0, 0.2]], intercept=[0, 0]))
    drawn, expected = post.predictive(draws=3000), post.predict(rows, draws=1).mean
    for k in range(3):
        np.testing.assert_allclose((drawn == k).mean(axis=0), expected[:, k], atol=0.05)
    check = post.ppc()
    assert check.kind == "classes"
    assert list(check.table.index) == ["0", "1", "2"]
    assert check.table["observed"].sum() == 60
    # by a column: shares of each class, because class numbers have no mean
    by = post.ppc(by=rows.columns[0], bins=2).table
    y, x = rows.slice(0, 60)["y"], rows.slice(0, 60)["x"][:, 0]
    low = x < np.median(x)
    assert list(by["class"]) == [0, 1, 2, 0, 1, 2]
    shares = [(y[part] == k).mean() for part in (low, ~low) for k in range(3)]
    np.testing.assert_allclose(by["observed"], shares)
    post.ppc(by=rows.columns[0], bins=2).plot()
    post.settings["outcome_levels"] = {"red": 0, "green": 1, "blue": 2}
    assert list(post.ppc().table.index) == ["red", "green", "blue"]
    names = list(post.marginal(rows.columns[0], at=0.0).index)
    assert names == [(0.0, name) for name in ("red", "green", "blue")]


def test_outcomes_go_to_a_file_where_memory_would_not_hold_them(gaussian, tmp_path, monkeypatch):
    from modicum.posterior import outcomes

    monkeypatch.setattr(outcomes, "MOST_GIGABYTES", 1e-6)
    refused(SettingError, "draw fewer, or write them", gaussian.predictive, draws=10)
    there = gaussian.predictive(draws=10, out=tmp_path / "outcomes.npy")
    monkeypatch.undo()
    np.testing.assert_array_equal(np.load(tmp_path / "outcomes.npy"), there)
    np.testing.assert_array_equal(gaussian.predictive(draws=10), there)


# Checks ------------------------------------------------------------------------------------


BIG = logistic_rows(4000)
BETA = np.linspace(-0.8, 0.8, 3)


def test_calibration_of_the_right_chances_and_of_exaggerated_ones():
    right = known(mo.models.Logistic(), BIG, BETA, 0.3).ppc(draws=200)
    assert right.kind == "calibration"
    assert right.outside <= 0.3
    assert right.p > 0.05
    table = right.table
    assert table["rows"].sum() == 4000
    assert np.all(np.diff(table["predicted"]) > 0)
    batch = all_of(BIG)
    chance = expit(batch["x"] @ BETA + 0.3)
    total = (table["predicted"] * table["rows"]).sum()
    assert total == pytest.approx(chance.sum(), abs=4 * np.sqrt(1000 / 200))
    assert (table["observed"] * table["rows"]).sum() == pytest.approx(batch["y"].sum())
    wrong = known(mo.models.Logistic(), BIG, 2 * BETA, 0.3).ppc()
    assert wrong.outside > 0.5
    assert wrong.p == pytest.approx(1 / 101)  # farther than all draws
    assert "outside their 90% intervals, p = 0.0099 (100 draws)" in repr(wrong)
    assert wrong.plot().get_xlabel() == "predicted chance of outcome"


def test_a_row_that_counts_many_times_is_as_good_as_many_rows():
    """Weighted rows have the intervals and means of the repeated rows."""
    levels = np.repeat(np.linspace(-1, 1, 5), 2)[:, None]
    y = np.tile([0.0, 1.0], 5)
    chance = expit(levels[:, 0])
    counts = np.round(2000 * np.where(y == 1, chance, 1 - chance)).astype(int)
    model, beta = mo.models.Logistic(), np.array([1.0])
    weighted = mo.Rows(x=levels, y=y, weight=counts, columns=["x0"])
    longer = mo.Rows(x=np.repeat(levels, counts, axis=0), y=np.repeat(y, counts), columns=["x0"])
    few, many = (known(model, rows, beta, 0.0, 400) for rows in (weighted, longer))
    one, other = (post.ppc(by="x0", draws=400, bins=5).table for post in (few, many))
    np.testing.assert_allclose(one["observed"], other["observed"])
    np.testing.assert_allclose(one["predicted"], other["predicted"], atol=0.002)
    width, needed = (table["upper"] - table["lower"] for table in (one, other))
    np.testing.assert_allclose(width, needed, rtol=0.25)
    np.testing.assert_allclose(needed, 2 * 1.645 * np.sqrt(0.25 / 2000), rtol=0.3)
    # negative control: fractional weights apply to one outcome each
    half = mo.Rows(x=levels, y=y, weight=counts + 0.5, columns=["x0"])
    table = known(model, half, beta, 0.0, 400).ppc(by="x0", draws=400, bins=5).table
    assert (table["upper"] - table["lower"] > 5 * needed).all()
    calibration = few.ppc(draws=400)
    assert calibration.table["rows"].sum() == calibration.rows == counts.sum()
    assert (calibration.table["upper"] - calibration.table["lower"]).max() < 2 * needed.max()
    # with more rows than are checked: a sample without replacement
    some = few.ppc(by="x0", draws=10, bins=5, subsample=5000)
    assert some.rows == some.table["rows"].sum() == 5000
    np.testing.assert_allclose(some.table["observed"], one["observed"], atol=4.5 * 0.5 / 1000**0.5)


def test_residuals_by_a_column_the_model_lacks():
    x, rng = design(4000, 2)
    y = rng.random(4000) < expit(x[:, 0] + x[:, 1])
    ward = np.where(x[:, 1] > 0, "high", "low")
    table = pd.DataFrame({"dose": x[:, 0], "age": x[:, 1], "y": 1.0 * y, "ward": ward})
    rows = mo.Rows.from_table(table[["dose", "age", "y"]], outcome="y")
    model = mo.models.Logistic()
    without = known(model, rows, np.array([1.0, 0.0]), 0.0)
    assert without.ppc(by="age").outside > 0.5
    full = known(model, rows, np.array([1.0, 1.0]), 0.0)
    check = full.ppc(by="age", draws=200)
    assert (check.kind, check.name) == ("residuals", "age")
    assert check.outside <= 0.3
    # a column of the table that is not in the model
    by_ward = without.ppc(table, by="ward")
    assert list(by_ward.table["at"]) == ["high", "low"]
    seen = table.groupby("ward")["y"].mean()
    np.testing.assert_allclose(by_ward.table["observed"], seen)
    by_ward.plot()
    refused(SettingError, "no column 'wards'", without.ppc, by="wards")


def test_residuals_by_a_column_of_a_table_whose_rows_are_in_another_order(tmp_path):
    """A store is sorted by group and may lack rows with missing values."""
    x, rng = design(3000, 1)
    ward, age = rng.integers(0, 9, 3000), rng.integers(0, 3, 3000)
    table = pd.DataFrame({"dose": x[:, 0], "ward": ward, "age": age})
    table["y"] = age + rng.normal(size=3000)
    table.loc[7, "dose"] = np.nan
    settings = {"missing": "drop", "store": tmp_path / "rows", "progressbar": False}
    rows = read_formula("y ~ dose + (1 | ward)", table, **settings)
    draws = fixed(50, beta=[0], intercept=1, group_sd=[1], **{"1|ward": np.zeros(9)})
    model = mo.models.Gaussian(scale=1.0, groups=("ward",))
    post = made(model.resolved(rows), rows, draws, table=table)
    seen = table.dropna().groupby("age")["y"].mean()
    checked = post.ppc(by="age", draws=50).table
    np.testing.assert_allclose(checked["observed"], seen)
    assert checked["rows"].sum() == 2999
    # negative control: values in the table's order with rows in the store's
    sorted_y = rows.take(np.arange(2999))["y"]
    mixed = pd.Series(sorted_y).groupby(table.dropna()["age"].to_numpy()).mean()
    assert np.abs(mixed - seen).max() > 0.5


def wrong_p(rows, beta):
    return known(mo.models.Poisson(), rows, beta, 0.3).ppc().p


def test_counts_beside_their_rootogram():
    x, rng = design(3000, 1)
    rate = np.exp(0.3 + 0.4 * x[:, 0])
    plain = mo.Rows(x=x, y=rng.poisson(rate))
    spread = mo.Rows(x=x, y=rng.poisson(rate * rng.gamma(0.7, 1 / 0.7, 3000)))
    model, beta = mo.models.Poisson(), np.array([0.4])
    right = known(model, plain, beta, 0.3).ppc(draws=200)
    assert right.kind == "counts"
    assert right.outside <= 0.3
    assert right.table["observed"].sum() == 3000
    # the largest counts share a bar that is expected to hold some rows
    assert right.table["predicted"].iloc[-1] >= 5
    assert right.table.index[-1].endswith("+")
    assert right.p > 0.05 > wrong_p(spread, beta)
    assert right.table.loc["0", "observed"] == (all_of(plain)["y"] == 0).sum()
    wrong = known(model, spread, beta, 0.3).ppc()
    assert wrong.outside > 0.5
    assert wrong.table.loc["0", "observed"] > 1.2 * wrong.table.loc["0", "upper"]
    wrong.plot()


def test_numbers_among_their_predictions(gaussian):
    check = gaussian.ppc(draws=200)
    assert check.kind == "quantiles"
    assert check.p > 0.05
    assert check.table["observed"].sum() == N
    np.testing.assert_allclose(check.table["predicted"], N / 10, atol=1)
    z = CONJUGATE.mean * 1.0
    wide = known(mo.models.Gaussian(scale=3 * SCALE), CONJUGATE.rows, z[:3], z[3])
    assert wide.ppc().p < 0.02
    check.plot()


def test_numbers_beside_the_distribution_function_of_the_prior(gaussian):
    check = gaussian.ppc(draws=200, prior=True)
    assert check.kind == "ecdf"
    y = all_of(CONJUGATE.rows)["y"]
    middle = check.table.index[30]
    assert check.table["observed"].iloc[30] == pytest.approx((y <= middle).mean())
    check.plot()


def test_the_chance_of_as_large_differences_is_uniform_if_the_model_is_right():
    """Many tables of the model itself; of a model with too little noise, all are far away."""
    x, rng = design(300, 1)
    right, wrong = [], []
    for k in range(25):
        rows = mo.Rows(x=x, y=x[:, 0] + rng.normal(size=300))
        for scale, found in ((1.0, right), (0.7, wrong))[: 1 + (k < 5)]:
            post = known(mo.models.Gaussian(scale=scale), rows, np.ones(1), 0.0, 50)
            found.append(post.ppc(draws=50).p)
    assert kstest(right, "uniform").pvalue > 0.01
    assert max(wrong) < 0.05


@pytest.mark.parametrize("tails", [None, 3.0])
def test_a_fit_of_many_parameters_is_judged_by_outcomes_it_did_not_lean_towards(tails):
    """A parameter for every four rows: the right model passes, tails of Student's t are found.

    The same rows given to a posterior that does not know them are taken for new ones, for which
    their outcomes lie too near to the middle of what is predicted.
    """
    n, d, model = 400, 100, mo.models.Gaussian(scale=1.0, intercept=False)
    fitted, as_new = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, d))
        noise = rng.normal(size=n) if tails is None else rng.standard_t(tails, n) / np.sqrt(3)
        rows, cov = mo.Rows(x=x, y=x.sum(axis=1) + noise), np.linalg.inv(x.T @ x)
        mean = cov @ x.T @ (x.sum(axis=1) + noise)  # and a flat prior
        beta = mean + rng.normal(size=(500, d)) @ np.linalg.cholesky(cov).T
        draws = {"beta": beta[None]}
        fitted.append(made(model, rows, draws).ppc(random_seed=seed).p)
        as_new.append(bare(model, draws, n).ppc(rows, random_seed=seed).p)
    assert max(as_new) < 0.05
    if tails is None:
        assert np.median(fitted) > 0.2
    else:
        assert np.median(fitted) < 0.05


def test_censored_times_have_random_quantiles_beyond_those_known():
    """Times censored at random: their quantiles are uniform; as if observed, they are early."""
    x, rng = design(2000, 1)
    times, until = rng.exponential(np.exp(x[:, 0])), rng.exponential(2.0, size=2000)
    seen = times <= until
    kinds = {"event": 1.0 * seen, "cens": np.where(seen, 0, 1)}
    y = np.minimum(times, until)
    for name, kind in kinds.items():
        rows = mo.Rows(x=x, y=y, **{name: kind})
        model = mo.models.Exponential(observed=(name,))
        post = known(model, rows, np.ones(1), 0.0)
        check = post.ppc()
        assert check.kind == "quantiles"
        assert check.p > 0.05
        refused(DataError, "compare their quantiles by post.ppc()", post.ppc, by=rows.columns[0])
    as_if = known(mo.models.Exponential(), mo.Rows(x=x, y=y), np.ones(1), 0.0)
    assert as_if.ppc().p < 0.02
    # known to lie in an interval, or below a limit
    kind = rng.choice([-1, 0, 2], 2000)
    ends = {"y": np.where(kind == -1, times + 1, times * np.where(kind == 2, 0.5, 1))}
    ends["y2"] = 2 * ends["y"] + 1
    rows = mo.Rows(x=x, cens=kind, **ends)
    model = mo.models.Exponential(observed=("cens", "y2"))
    assert known(model, rows, np.ones(1), 0.0).ppc().kind == "quantiles"


def test_few_draws_and_odd_seeds_are_refused(gaussian):
    refused(SettingError, "90% need at least 10 predictive draws", gaussian.ppc, draws=9)
    for seed in (-1, "a", 1.5):
        with pytest.raises(SettingError, match="random_seed must be a whole number"):
            gaussian.predictive(draws=2, random_seed=seed)


def test_what_cannot_be_checked_is_refused():
    x = np.ones((4, 1))
    trials = mo.Rows(x=x, y=[1.0, 2, 3, 4], trials=[5, 5, 5, 5])
    post = known(mo.models.Binomial(), trials, np.zeros(1), 0.0)
    refused(DataError, "depend on the field 'trials'", post.predictive, {"x": x})
    refused(
        SettingError, "does not hold; give the rows", bare(post.predictor.model, post.draws).ppc
    )


# New groups ----------------------------------------------------------------------------------

SIGMA = np.array([[0.8, 0.3], [0.3, 0.5]])  # covariance of the effects, and the noise's sd
NOISE, INSIDE = 0.4, 0.6  # the sd of a nested factor's effects


@cache
def multilevel(how):
    """Return a posterior of `(1 + x | site) + (1 | site:ward)` with known parameters."""
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"x": rng.normal(size=80), "site": list("abcd") * 20})
    table["ward"] = np.arange(80) % 10
    formula = "y ~ x + (1 + x | site) + (1 | site:ward)"
    rows = read_formula(formula, table.assign(y=table["x"]), progressbar=False)
    model = model_for(rows, mo.models.Gaussian(scale=NOISE), None, how).model.resolved(rows)
    sds = {"site": SIGMA[0, 0] ** 0.5, "site:x": SIGMA[1, 1] ** 0.5, "site:ward": INSIDE}
    labels = model.labels(rows)
    values = {"beta": [2.0], "group_cor": [SIGMA[0, 1] / np.sqrt(SIGMA[0, 0] * SIGMA[1, 1])]}
    values["group_sd"] = [sds[name] for name in labels["group_sd"][0]]
    for name in labels:
        values.setdefault(name, np.arange(len(labels[name][0])) / 10)
    return made(model, rows, fixed(4000, intercept=1, **values))


NEW = pd.DataFrame({"x": [0.0, 1.5, -0.5, 0.5, 0.5], "site": [*"pppqa"]})
NEW["ward"] = [1, 1, 2, 1, 77]  # that of the last row is new, in a site that is not


@pytest.mark.parametrize("how", ["explicit", "integrate"])
def test_rows_of_a_new_group_share_its_effects(how):
    """Compare with the covariance of the outcomes; independent effects had a diagonal one."""
    post = multilevel(how)
    z = np.column_stack([np.ones(5), NEW["x"]])
    same_site = np.equal.outer(*[NEW["site"].to_numpy()] * 2)
    same_ward = same_site & np.equal.outer(*[NEW["ward"].to_numpy()] * 2)
    nested = INSIDE**2 * same_ward + NOISE**2 * np.eye(5)
    between = z @ SIGMA @ z.T * same_site
    between[4, 4] = 0.0  # a known site

    def close(cov, expected):
        variance = np.diag(expected)
        error = np.sqrt((np.outer(variance, variance) + expected**2) / 4000)
        return bool((np.abs(cov - expected) < 4.5 * error).all())

    cov = np.cov(post.predictive(NEW, draws=4000, groups="any").T)
    assert close(cov, between + nested)
    assert not close(cov, np.diag(np.diag(between + nested)))
    all_new = post.predictive(NEW, draws=4000, groups="new")
    between[4, 4] = (z @ SIGMA @ z.T)[4, 4]
    assert close(np.cov(all_new.T), between + nested)
    total = np.r_[1, 1, 1, 0, 0]  # of one site, which was far too certain
    expected = total @ (between + nested) @ total
    assert np.var(all_new @ total) == pytest.approx(expected, rel=4.5 * np.sqrt(2 / 4000))


@pytest.mark.parametrize("how", ["explicit", "integrate"])
def test_intervals_are_for_one_new_group_or_for_the_average(how):
    post = multilevel(how)
    z = np.column_stack([np.ones(5), NEW["x"]])
    sd = np.sqrt(np.einsum("ij,jk,ik->i", z, SIGMA, z) + INSIDE**2)
    mean = 1 + 2 * NEW["x"].to_numpy()
    for columns in (["x", "site", "ward"], ["x"]):
        one = post.predict(NEW[columns], draws=4000, groups="new")
        np.testing.assert_allclose(one.mean, mean, atol=1e-6)
        np.testing.assert_allclose(one.upper - mean, 1.645 * sd, rtol=0.01)
        np.testing.assert_allclose(mean - one.lower, 1.645 * sd, rtol=0.01)
    average = post.predict(NEW, draws=4000, groups="new", newgroups="average")
    np.testing.assert_allclose([average.lower, average.upper], [mean, mean], atol=1e-6)
    left_out = post.predict(NEW[["x"]])
    np.testing.assert_allclose(left_out.upper, mean, atol=1e-6)
    assert np.ptp(post.predict(NEW[["x"]], newgroups="one").upper - mean) > 0.1
    either = post.predict(NEW, draws=4000, groups="any")
    np.testing.assert_allclose(either.upper[:4], one.upper[:4], atol=1e-6)
    # the last row's site is known, with the effects 0 and 0 of "a"
    assert either.upper[4] - either.mean[4] == pytest.approx(1.645 * INSIDE, rel=0.01)
    with pytest.raises(SettingError, match="newgroups must be 'one', 'average' or None"):
        post.predict(NEW, newgroups="both")


def test_before_the_data_rows_of_a_group_share_its_effects():
    """Rows of an integrated group had independent effects in the prior predictive."""
    post = multilevel("integrate")
    ward = post.rows.slice(0, 80)["site:ward"]
    i, j = np.flatnonzero(ward == ward[0])[:2]
    k = int(np.flatnonzero(ward != ward[0])[0])
    noise = np.tanh(post.predictive(draws=4000, prior=True)[:, [i, j, k]])
    assert np.corrcoef(noise.T)[0, 1] > np.corrcoef(noise.T)[0, 2] + 0.1


def test_advice_about_new_groups_can_be_followed():
    """`predictive(groups="any")` advised groups="any"."""
    post = multilevel("explicit")
    refused(DataError, "groups='any' if some groups are new", post.predictive, NEW, draws=2)
    assert post.predictive(NEW, draws=2, groups="any").shape == (2, 5)
    assert len(post.marginal("x", data=NEW, groups="any", at=[0.0, 1.0])) == 2
    with pytest.raises(SettingError, match="groups must be 'known', 'new', 'any' or None"):
        post.predictive(NEW, draws=2, groups="all")
    refused(DataError, "depends on its group: leave such rows out", post.score, NEW.assign(y=0.0))
