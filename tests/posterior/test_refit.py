"""Fits with something changed or left out, against closed forms."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import modicum as mo
from helpers import posteriors
from helpers.refusals import refused, unwarned
from modicum.errors import SettingError

N, SD = 200, 1.5
QUIET = {"random_seed": 1, "progressbar": False}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(4)
    made = pd.DataFrame({"dose": rng.normal(size=N), "ward": np.arange(N) % 8})
    made["pain"] = 0.5 * made["dose"] + rng.normal(0, SD, N) + rng.normal(0, 2, 8)[made["ward"]]
    return made


@pytest.fixture(scope="module")
def linear(table):
    """Return a fit whose posterior is normal: known noise, and normal priors."""
    priors = {"common": mo.priors.Normal(0, 1), "intercept": mo.priors.Normal(0, 1)}
    family = mo.models.Gaussian(scale=SD)
    return mo.fit("pain ~ dose", table, family, priors=priors, **QUIET)


def predictive(table, kept, left_out):
    """Return the log predictive density of rows of a linear model with standard normal priors."""
    x, y = np.c_[np.ones(len(table)), table["dose"]], table["pain"].to_numpy()
    cov = np.linalg.inv(np.eye(2) + x[kept].T @ x[kept] / SD**2)
    mean = cov @ x[kept].T @ y[kept] / SD**2
    sd = np.sqrt(SD**2 + np.einsum("ij,jk,ik->i", x[left_out], cov, x[left_out]))
    return norm.logpdf(y[left_out], x[left_out] @ mean, sd)


def test_rows_left_out_are_predicted_by_the_others(linear, table):
    found = linear.kfold(folds=5, progressbar=False)
    assert np.bincount(found.fold).tolist() == [40] * 5
    right = np.empty(N)
    for k in range(5):
        right[found.fold == k] = predictive(table, found.fold != k, found.fold == k)
    np.testing.assert_allclose(found.elpd_i, right, atol=0.03)  # 4,000 draws of p(y) near 1/4
    assert found.elpd == pytest.approx(right.sum(), abs=0.3)
    assert found.se == pytest.approx(np.sqrt(N) * right.std(ddof=1), rel=0.01)
    everything = predictive(table, np.ones(N, bool), np.ones(N, bool)).sum()
    assert found.p == pytest.approx(everything - right.sum(), abs=0.4)
    # negative control: the rows themselves in the fit, or folds that were not left out
    assert everything - right.sum() > 1
    assert abs(found.elpd - everything) > 1
    worse = replace(found, elpd_i=found.elpd_i - 0.1)
    assert found.minus(worse) == pytest.approx((0.1 * N, 0.0), abs=1e-6)
    other = replace(found, fold=found.fold[::-1])
    refused(SettingError, "left out different folds", found.minus, other)
    assert "5 folds of 200 rows" in repr(found)


def test_whole_groups_are_left_out(linear, table):
    found, ward = linear.kfold(group="ward", progressbar=False), table["ward"].to_numpy()
    np.testing.assert_array_equal(found.fold, ward)
    right = np.empty(N)
    for k in range(8):
        right[ward == k] = predictive(table, ward != k, ward == k)
    np.testing.assert_allclose(found.elpd_i, right, atol=0.03)
    sums = np.bincount(ward, right)
    assert found.se == pytest.approx(np.sqrt(8) * sums.std(ddof=1), rel=0.02)
    # negative control: rows of a group are alike, so that as single rows their error is smaller
    assert found.se > 1.5 * np.sqrt(N) * right.std(ddof=1)
    in_two = linear.kfold(group="ward", folds=2, progressbar=False)
    assert all(len(set(in_two.fold[ward == k])) == 1 for k in range(8))


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["explicit", "integrate"])
def test_groups_left_out_are_new_ones(table, groups):
    """A new group's effect is normal with the sd of each draw, whichever way effects are held."""
    family, normal = mo.models.Gaussian(scale=SD), mo.priors.Normal(0, 3)
    priors = {"common": normal, "intercept": normal, "group_sd": mo.priors.HalfNormal(3)}
    asked = {"priors": priors, "groups": groups, **QUIET}
    with unwarned():
        post = mo.fit("pain ~ dose + (1 | ward)", table, family, **asked)
        found = post.kfold(folds=2, group="ward", progressbar=False)
        known = post.kfold(folds=2, progressbar=False)
        fit = post.update(data=table[found.fold == 1])
    left_out = table[found.fold == 0]
    mean = fit["intercept"][..., None] + fit["beta[dose]"][..., None] * left_out["dose"].to_numpy()
    spread = np.hypot(SD, fit["group_sd[ward]"])[..., None]
    density = norm.logpdf(left_out["pain"].to_numpy(), mean, spread).reshape(-1, len(left_out))
    by_hand = logsumexp(density, axis=0) - np.log(len(density))
    np.testing.assert_allclose(found.elpd_i[found.fold == 0], by_hand, atol=0.12)
    # negative control: with the effect of the group itself, they are predicted much better
    assert known.elpd - found.elpd > 20


def test_a_call_is_repeated_with_changes(linear, table):
    with unwarned():  # that the prior decides
        narrow = linear.update(priors={"common": mo.priors.Normal(0, 0.001)})
    assert abs(narrow.mean("beta[dose]")) < 0.01 < abs(linear.mean("beta[dose]"))
    assert narrow.settings["formula"] == linear.settings["formula"]
    same = linear.update()
    np.testing.assert_array_equal(same["beta"], linear["beta"])
    twice = linear.update(data=pd.concat([table, table]), priors=None)
    assert twice.sd("beta[dose]") < 0.85 * linear.sd("beta[dose]")
    assert list(linear.update(formula="pain ~ 1").draws) == ["intercept"]
    refused(TypeError, "no argument 'prior'", linear.update, prior={})
    rows = mo.Rows(x=table[["dose"]].to_numpy(), y=table["pain"].to_numpy(), columns=["dose"])
    sampled = mo.sample(mo.models.Gaussian(scale=SD), rows, draws=100, **QUIET)
    assert sampled.update(draws=50).num_draws == 50
    assert sampled.kfold(folds=2, progressbar=False).elpd_i.shape == (N,)


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")  # of rows that are dropped
def test_groups_are_found_where_rows_were_dropped(linear, table):
    """They are a column of the table that the formula does not read."""
    holes = pd.concat([table.head(30).assign(dose=np.nan, ward=0), table], ignore_index=True)
    mixed = holes.sample(frac=1, random_state=1).assign(other=lambda t: t["ward"].map(str))
    whole = linear.kfold(table, group="ward", progressbar=False)
    left_out = linear.update(data=mixed, missing="drop").kfold(group="other", progressbar=False)
    order = mixed.dropna().index - 30
    np.testing.assert_array_equal(left_out.fold, whole.fold[order])
    np.testing.assert_allclose(left_out.elpd_i, whole.elpd_i[order], atol=0.05)


def test_what_cannot_be_fitted_again_is_refused(linear, table, tmp_path):
    linear.save(tmp_path / "post")
    loaded = mo.Posterior.load(tmp_path / "post", data=table)
    for post in (loaded, posteriors.bare(None, linear.draws)):
        refused(SettingError, "does not know the call", post.update)
    refused(SettingError, "does not know how it was sampled", loaded.kfold)
    for words, settings in {
        "cannot be divided into 999 folds": {"folds": 999},
        "folds": {"folds": 1},
        "no column 'wards'": {"group": "wards"},
        "'dose' has 200 groups, and as many fits": {"group": "dose"},
    }.items():
        refused(SettingError, words, linear.kfold, progressbar=False, **settings)


def test_weighted_rows_count_as_often(table):
    times = 1.0 + np.arange(N) % 3
    family = mo.models.Gaussian(scale=SD)
    post = mo.fit("pain ~ dose", table.assign(times=times), family, weights="times", **QUIET)
    found = post.kfold(folds=4, progressbar=False)
    assert found.elpd == pytest.approx(times @ found.elpd_i)
    repeated = np.repeat(found.elpd_i, times.astype(int))
    assert found.se == pytest.approx(np.sqrt(len(repeated)) * repeated.std(ddof=1))
