"""Leave-one-out against closed forms, ArviZ and NumPy; comparisons of models."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal, norm

import modicum as mo
from helpers.posteriors import bare, made, named, normal_draws, of_formula
from helpers.refusals import refused
from helpers.targets import Conjugate, gaussian_rows
from modicum.errors import DataError, ModicumWarning, SettingError
from modicum.models.over_draws import ModelPredictor

CONJUGATE = Conjugate()
X, Y, SCALE, N = CONJUGATE.x, CONJUGATE.y, CONJUGATE.scale, 200


def posterior(x=X, y=Y, wide=1.0, shift=0.0, draws=None, **about):
    """Return independent draws of the posterior, or of another normal."""
    mean, cov = CONJUGATE.of(x, y, CONJUGATE.prior_sd[-x.shape[1] :])
    draws = normal_draws(mean + shift, wide * cov) if draws is None else named(draws)
    return made(CONJUGATE.model, **{"rows": mo.Rows(x=x[:, :-1], y=y), "draws": draws} | about)


def exact(x, y):
    """Return the log predictive density of each row given the others, in closed form."""
    values = []
    for i in range(len(y)):
        kept = np.arange(len(y)) != i
        mean, cov = CONJUGATE.of(x[kept], y[kept], CONJUGATE.prior_sd[-x.shape[1] :])
        sd = np.sqrt(SCALE**2 + x[i] @ cov @ x[i])
        values.append(norm.logpdf(y[i], x[i] @ mean, sd))
    return np.array(values)


EXACT = exact(X, Y)


def by_arviz(draws, log_likelihood):
    """Return ArviZ's answer for log-likelihoods (chain, draw, row)."""
    from arviz_base import from_dict
    from arviz_stats import loo

    groups = {"posterior": draws, "log_likelihood": {"y": log_likelihood}}
    return loo(from_dict(groups), pointwise=True)


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
    result = {
        "narrow": lambda: posterior(wide=0.25).loo(),
        "moved": lambda: posterior(shift=2 * np.sqrt(np.diag(CONJUGATE.cov))).loo(),
        "within": lambda: SimpleNamespace(elpd_i=left_out.elpd_i, elpd=left_out.elpd + left_out.p),
    }[broken]()
    assert not agrees(result)


def test_arviz_says_the_same(post, left_out):
    eta = post["beta"] @ X[:, :-1].T + post["intercept"][..., None]
    theirs = by_arviz(post.draws, norm.logpdf(Y, eta, SCALE))
    assert left_out.elpd == pytest.approx(float(theirs.elpd), abs=1e-8)
    assert left_out.se == pytest.approx(np.sqrt(N * theirs.elpd_i.values.var(ddof=1)), abs=1e-8)
    assert left_out.p == pytest.approx(float(theirs.p), abs=1e-8)
    assert left_out.good_k == theirs.good_k
    np.testing.assert_allclose(left_out.pareto_k, theirs.pareto_k.values.ravel(), atol=1e-8)


def test_copies_of_a_draw_are_no_tail(post):
    stayed = np.arange(post.num_draws)
    stayed[100:160] = 100  # every chain refused sixty proposals
    draws = {name: x[:, stayed] for name, x in post.draws.items()}
    result = made(CONJUGATE.model, rows=CONJUGATE.rows, draws=draws).loo()
    assert result.pareto_k.max() < 0.7
    assert abs(result.elpd - EXACT.sum()) < 0.3
    eta = draws["beta"] @ X[:, :-1].T + draws["intercept"][..., None]
    with warnings.catch_warnings(action="ignore"):
        theirs = by_arviz(draws, norm.logpdf(Y, eta, SCALE))
    assert theirs.pareto_k.max() > 0.7  # the control


def test_copies_of_a_draw_with_other_signs_are_no_copies(post):
    draws = {name: np.repeat(x[:, :500], 4, axis=1) for name, x in post.draws.items()}
    sign = np.ones((post.chains, 500, 4))
    beyond = draws["intercept"][:, ::4] > CONJUGATE.mean[-1]
    sign[beyond, 2:] = -1  # draws on one side cancel, as if they were not there
    some = {name: x[:, :500].reshape(-1, *x.shape[2:]) for name, x in post.draws.items()}
    kept = {name: x[~beyond.ravel()][None] for name, x in some.items()}
    copied = made(CONJUGATE.model, rows=CONJUGATE.rows, draws=draws)
    with warnings.catch_warnings(action="ignore"):  # of half a posterior
        result = replace(copied, weights=sign.reshape(post.chains, -1)).loo()
        alone = made(CONJUGATE.model, rows=CONJUGATE.rows, draws=kept).loo()
    assert abs(result.elpd - alone.elpd) < 0.05
    assert abs(result.elpd - EXACT.sum()) > 0.15  # the control: what all draws would give


def test_drawn_rows_estimate_the_same_without_bias(post, left_out):
    results = [post.loo(subsample=40, random_seed=seed) for seed in range(12)]
    found = np.array([result.elpd for result in results])
    errors = np.array([result.subsampling_se for result in results])
    assert abs(found.mean() - left_out.elpd) < 4 * np.sqrt(np.mean(errors**2) / 12)
    assert errors.max() < 0.1 * left_out.se  # far below the spread of the rows themselves
    # negative control: averages that forget how rows were drawn
    plain = np.mean([N * float(result.elpd_i.mean()) for result in results])
    assert abs(plain - left_out.elpd) > 4 * np.sqrt(np.mean(errors**2) / 12)
    assert np.mean([r.p for r in results]) == pytest.approx(left_out.p, abs=0.1)
    assert np.mean([r.se for r in results]) == pytest.approx(left_out.se, rel=0.02)
    one = results[0]
    assert one.subsample_size == 40
    assert (one.loo_subsample_observations == one.elpd_i["row"]).all()
    np.testing.assert_allclose(one.elpd_i, left_out.elpd_i.values[one.elpd_i["row"]], atol=1e-10)


def test_weights_of_draws_count():
    """Importance-weighted draws of a wider normal give the same result."""
    wide = posterior(wide=2)
    z = np.concatenate([wide["beta"], wide["intercept"][..., None]], axis=-1)
    at, drawn = (multivariate_normal.logpdf(z, CONJUGATE.mean, k * CONJUGATE.cov) for k in (1, 2))
    assert agrees(replace(wide, weights=np.exp(at - drawn)).loo())
    assert not agrees(wide.loo())


def test_signs_of_draws_count():
    """Draws of another normal are mixed with those of the posterior, and signs cancel them."""
    rng = np.random.default_rng(1)
    z = rng.multivariate_normal(CONJUGATE.mean, CONJUGATE.cov, size=(4, 500))
    z[:, ::5] = rng.multivariate_normal(CONJUGATE.mean + 0.15, CONJUGATE.cov, size=(4, 100))
    sign = np.where(np.arange(500) % 10, 1.0, -1.0) * np.ones((4, 1))  # every other inserted draw
    signed = posterior(draws=z, weights=sign)
    result = signed.loo()
    assert abs(result.elpd - EXACT.sum()) < 0.5  # a fifth of the draws is noise
    assert np.abs(result.elpd_i.values - EXACT).mean() < 0.02
    drawn = signed.loo(subsample=100)
    assert abs(drawn.elpd - result.elpd) < 4 * drawn.subsampling_se + 0.1
    # negative control: the same draws without their signs
    assert abs(posterior(draws=z).loo().elpd - EXACT.sum()) > 1.0
    refused(SettingError, "the signs cancel", replace(signed, weights=-sign).loo)


def test_a_row_of_weight_two_is_two_rows():
    x, y = np.r_[X, X], np.r_[Y, Y]
    twice = posterior(x, y, rows=mo.Rows(x=X[:, :-1], y=Y, weight=np.full(N, 2.0))).loo()
    assert twice.elpd == pytest.approx(exact(x, y).sum(), abs=0.15)


def test_rows_that_decide_much_are_named_and_left_out_anew():
    x, y = X.copy(), Y.copy()
    x[7], y[7] = [30.0, 30.0, 30.0, 1.0], -60.0
    post, right = posterior(x, y), exact(x, y)
    with pytest.warns(ModicumWarning, match=r"row 7.*moment_match=True") as caught:
        wrong = post.loo()
    assert caught[0].message.code == "left-out-uncertain"
    assert wrong.warning
    assert int(wrong.pareto_k.idxmax()) == 7
    assert abs(wrong.elpd_i.values[7] - right[7]) > 10  # negative control: its draws are not enough
    found = post.loo(moment_match=True)
    assert not found.warning
    assert found.elpd_i.values[7] == pytest.approx(right[7], rel=1e-3)
    assert found.elpd == pytest.approx(right.sum(), abs=0.5)
    drawn = post.loo(subsample=60, moment_match=True)
    assert abs(drawn.elpd - right.sum()) < 4 * drawn.subsampling_se + 0.5


def test_what_cannot_be_left_out_is_refused(post):
    other = gaussian_rows(N, 3, seed=9)
    sign = np.where(post["beta"][..., 0] > CONJUGATE.mean[0] + 0.1, 1.0, -1.0)
    refused(SettingError, "the signs cancel", replace(post, weights=sign).loo)
    words = "Fits to different columns have different rows"
    refused(DataError, words, mo.compare, {"a": post, "b": post}, other)
    refused(SettingError, "draws must be a whole number of at least 100", post.loo, draws=20)
    refused(SettingError, "give the rows, or their table", bare(CONJUGATE.model, post.draws, N).loo)


def test_even_weights_with_a_tail_are_no_cause_for_doubt(post):
    """Smoothed weights of a normal approximation are nearly 1, with a tail."""
    tail = np.random.default_rng(3).pareto(0.8, size=(4, 500))
    even = replace(post, weights=1 + 0.01 * tail.clip(max=60))
    left_out = even.loo()
    assert agrees(left_out)
    assert left_out.pareto_k.max() < 0.5
    # outlying rows are still noticed, and so are weights that rest on a few draws
    y = np.where(np.arange(N) == 7, 40.0, Y)
    odd = made(CONJUGATE.model, mo.Rows(x=X[:, :-1], y=y), post.draws, weights=even.weights)
    for doubtful, words in ((odd, "in row 7, "), (replace(post, weights=tail), "200 of the 200")):
        with pytest.warns(ModicumWarning, match=words):
            doubtful.loo()


# Groups ------------------------------------------------------------------------------------


def test_groups_are_left_out_whole_where_effects_are_integrated_out():
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(20), 10)
    y = Y + rng.normal(0, 0.5, 20)[group]
    rows = mo.Rows(x=X[:, :-1], y=y, clinic=group)
    model = mo.models.IntegratedEffects(CONJUGATE.model, "clinic", group_sd=1.0).resolved(rows)
    z = rng.multivariate_normal(CONJUGATE.mean, CONJUGATE.cov, size=(2, 100))
    sd = rng.uniform(0.3, 0.8, size=(2, 100, 1))
    draws = named(z) | {"group_sd": sd}
    post = bare(model, draws, rows=rows)
    post.ledger = mo.Ledger(rows=20, unit="group")
    rest = (y - z @ X.T).reshape(2, 100, 20, 10)
    matrix = np.empty((2, 100, 20))
    for at in np.ndindex(2, 100):
        cov = SCALE**2 * np.eye(10) + sd[at] ** 2
        matrix[at] = multivariate_normal.logpdf(rest[at], cov=cov)
    ours = post.loo()
    assert ours.n_data_points == 20
    assert ours.elpd == pytest.approx(float(by_arviz(draws, matrix).elpd), abs=1e-4)
    assert ours.elpd_i.dims == ("group",)
    drawn = post.loo(subsample=15)
    assert 0 < drawn.subsampling_se < 0.2 * drawn.se
    assert abs(drawn.elpd - ours.elpd) < 4.5 * drawn.subsampling_se
    both = {"groups": post, "rows": posterior(y=y)}
    refused(SettingError, "leave out different things", mo.compare, both)


def test_rows_are_left_out_given_the_effects_of_their_groups():
    rng = np.random.default_rng(6)
    ward = rng.integers(0, 4, N)
    rows = mo.Rows(x=X[:, :-1], y=Y, codes={"ward": np.array(list("abcd"))[ward]})
    model = mo.models.Gaussian(scale=SCALE, groups="ward").resolved(rows)
    z = rng.multivariate_normal(CONJUGATE.mean, CONJUGATE.cov, size=(2, 200))
    effects = rng.normal([0.2, -0.1, 0.0, 0.1], 0.05, size=(2, 200, 4))
    draws = named(z) | {"1|ward": effects, "group_sd": rng.normal(0.5, 0.01, (2, 200, 1))}
    ours = made(model, rows, draws).loo()
    theirs = by_arviz(draws, norm.logpdf(Y, z @ X.T + effects[..., ward], SCALE))
    assert ours.elpd == pytest.approx(float(theirs.elpd), abs=1e-8)
    # negative control: without the effects it differs
    assert abs(ours.elpd - float(by_arviz(draws, norm.logpdf(Y, z @ X.T, SCALE)).elpd)) > 0.1


# Comparison --------------------------------------------------------------------------------


def test_comparison_is_that_of_paired_rows(post):
    less = posterior(X[:, 1:])  # without the first column
    table = mo.compare({"less": less, "all": post})
    assert list(table.index) == ["all", "less"]
    apart = EXACT - exact(X[:, 1:], Y)
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


@pytest.mark.parametrize("method", ["stacking", "bb-pseudo-bma", "pseudo-bma"])
def test_weights_of_models_match_arviz(post, method):
    from arviz_stats import compare

    fits = {"all": post, "moved": posterior(shift=np.r_[0.1, 0, 0, 0])}
    theirs = compare({name: fit.loo() for name, fit in fits.items()}, method=method)
    ours = mo.compare(fits, method=method)
    assert ours["weight"].sum() == pytest.approx(1)
    by_chance = 0.02 if method == "bb-pseudo-bma" else 2e-3
    for name in fits:
        assert ours.loc[name, "weight"] == pytest.approx(theirs.loc[name, "weight"], abs=by_chance)
    drawn = mo.compare(fits, method=method, subsample=150)
    assert drawn.loc["all", "weight"] == pytest.approx(ours.loc["all", "weight"], abs=0.1)


def test_stacking_mixes_models_that_each_predict_some_rows():
    """With chances of 0.9 and 0.1, of a share s of rows and the others, 0.1 + 0.8 w is s."""
    model, x = mo.models.Logistic(intercept=False), np.ones((100, 1))
    logit = np.log(9) + 1e-6 * np.random.default_rng(1).normal(size=(2, 100, 1))
    for weight, share in ((np.ones(100), 0.5), (np.r_[np.full(50, 3.0), np.ones(50)], 0.75)):
        rows = mo.Rows(x=x, y=np.arange(100) < 50, weight=weight)
        fits = {name: made(model, rows, {"beta": s * logit}) for name, s in (("a", 1), ("b", -1))}
        found = mo.compare(fits, method="stacking").loc["a", "weight"]
        assert found == pytest.approx((share - 0.1) / 0.8, abs=1e-3)


def test_what_cannot_be_compared_is_refused(post):
    other, fewer = (posterior(rows=gaussian_rows(n, 3, seed=8)) for n in (N, 100))
    for error, words, fits, settings in (
        (SettingError, "'stacking', 'bb-pseudo-bma' or", {"a": post, "b": post}, {"method": "bma"}),
        (SettingError, "two or more posteriors", {"a": post}, {}),
        (SettingError, "'b' must be a posterior, not int", {"a": post, "b": 3}, {}),
        (DataError, "different outcomes", {"a": post, "b": other}, {}),
        (DataError, "200 rows and 'b' to 100", {"a": post, "b": fewer}, {}),
    ):
        refused(error, words, mo.compare, fits, **settings)


def of_family(model, **fields):
    """Return a posterior of one coefficient, for rows with these fields."""
    x = np.linspace(-1, 1, 40)[:, None]
    rows = mo.Rows(x=x, y=np.arange(40) % 5 + 1.0, columns=["x"], **fields)
    return made(model, rows, {"beta": np.random.default_rng(1).normal(0, 0.1, (2, 100, 1))})


TIMES = mo.models.Exponential(intercept=False, observed=("event",))
AMONG = mo.models.Binomial(intercept=False)
NUMBERS = mo.models.Gaussian(scale=1.0, intercept=False)
COUNTS = mo.models.Poisson(intercept=False)
ONES, SOME = np.ones(40), np.arange(40) % 2
CENSORED = of_family(TIMES, event=SOME)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (of_family(TIMES, event=ONES), CENSORED, "different events"),
        (of_family(NUMBERS), CENSORED, "different events"),
        # a model that does not read events takes all times for those of events
        (CENSORED, replace(CENSORED, predictor=ModelPredictor(NUMBERS)), "different events"),
        (of_family(AMONG, trials=ONES * 9), of_family(AMONG, trials=ONES * 8), "numbers of trials"),
        (of_family(NUMBERS), of_family(NUMBERS, weight=SOME), "different weights"),
    ],
)
def test_what_was_observed_besides_the_outcome_must_be_the_same(one, other, words):
    refused(DataError, words, mo.compare, {"a": one, "b": other})


def test_densities_and_probabilities_are_not_compared_unquestioned():
    with pytest.warns(mo.ModicumWarning, match="'normal' sums logarithms of densities") as caught:
        mo.compare({"counts": of_family(COUNTS), "normal": of_family(NUMBERS)})
    assert "density-and-probability" in {w.message.code for w in caught}
    mo.compare({"counts": of_family(COUNTS), "among": of_family(AMONG, trials=ONES * 9)})
    mo.compare({"times": of_family(TIMES, event=ONES), "normal": of_family(NUMBERS)})


def stored_by_group(table, group, folder, effects=None):
    """Return a made-up posterior of rows in the order of groups, or of the table."""
    rng, levels = np.random.default_rng(1), table[group].nunique()
    means = np.zeros(levels) if effects is None else effects
    draws = {
        "beta": rng.normal(0.5, 0.02, (2, 300, 1)),
        f"1|{group}": rng.normal(means, 0.05, (2, 300, levels)),
        "intercept": rng.normal(0, 0.02, (2, 300)),
        "group_sd": rng.uniform(0.4, 0.6, (2, 300, 1)),
    }
    family, settings = mo.models.Gaussian(scale=SCALE), {"missing": "drop", "store": folder}
    return of_formula(f"y ~ x + (1 | {group})", table, family, draws, "explicit", **settings)


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
    fits, plain = (
        {
            "ward": stored_by_group(table, "ward", folder and folder / "ward", means),
            "shift": stored_by_group(table, "shift", folder and folder / "shift"),
        }
        for folder in (tmp_path, None)
    )
    with pytest.warns(ModicumWarning, match="in row 150, "):
        found, expected = mo.compare(fits), mo.compare(plain)
    pd.testing.assert_frame_equal(found, expected, atol=1e-8)
    for fit in fits.values():
        fit.table = None
    refused(DataError, r"give the table .* mo.compare\(posteriors, table\)", mo.compare, fits)
    with pytest.warns(ModicumWarning, match="in row 150, "):
        by_table = mo.compare(fits, table)
    pd.testing.assert_frame_equal(by_table, expected, atol=1e-8)
    # equally many, but different rows: one dropped what the other kept
    moved = table.assign(x=table["x"].fillna(0.0))
    moved.loc[[7, 9, 11], "x"] = np.nan
    fits["shift"] = stored_by_group(moved, "shift", tmp_path / "moved")
    fits["ward"].table = table
    refused(DataError, "different rows: missing values dropped as many", mo.compare, fits)


def test_groups_are_called_by_their_names():
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"x": X[:, 0], "y": Y, "clinic": rng.choice(["ham", "ely"], N)})
    table.loc[:1, ["y", "clinic"]] = [[40.0, "york"], [40.0, "york"]]
    draws = {
        "beta": rng.normal(0.5, 0.02, (2, 200, 1)),
        "intercept": rng.normal(0, 0.02, (2, 200)),
        "group_sd": rng.uniform(2, 40, (2, 200, 1)),
    }
    family = mo.models.Gaussian(scale=SCALE)
    post = of_formula("y ~ x + (1 | clinic)", table, family, draws, "integrate")
    post.ledger = mo.Ledger(rows=3, unit="group")
    with pytest.warns(ModicumWarning, match="in group york, "):
        left_out = post.loo()
    assert left_out.elpd_i["group"].values.tolist() == ["ely", "ham", "york"]
