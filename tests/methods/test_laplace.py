"""Weighted normal draws compared with exact ones, their verdict, and their use."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.interrupted import task_of
from helpers.refusals import refused
from helpers.targets import exact_draws, flat_draws, logistic_rows, mean_and_error
from modicum.diagnostics import ess
from modicum.diagnostics.weighted import pareto_smoothed, weighted_mean
from modicum.methods.laplace import Verdict, WeighingPool
from modicum.methods.laplace import _doubts as doubts_of
from modicum.methods.laplace import _independence_sampler as independence_sampler
from modicum.methods.pilot.anchored_proxy import StudySettings
from modicum.methods.pilot.study import weigh
from modicum.passes import NEAR
from modicum.runtime import in_double_precision

M = mo.models
RUN = {"random_seed": 3, "progressbar": False}
ROWS = logistic_rows(6_000)


@pytest.fixture(scope="module")
def post():
    return mo.sample(M.Logistic(), ROWS, method=mo.Laplace(pool=3_000), draws=500, **RUN)


@pytest.fixture(scope="module")
def alike():
    method = mo.Laplace(pool=3_000, weighted=False)
    return mo.sample(M.Logistic(), ROWS, method=method, draws=500, **RUN)


@pytest.fixture(scope="module")
def exact():
    """Return independent draws, without a chain."""
    log_posterior = mo.LogPosterior(M.Logistic(), ROWS)
    return exact_draws(log_posterior.values, log_posterior.mode().point, count=1_000)


def means_of(post):
    return np.concatenate([np.ravel(post.mean(name)) for name in post.draws])


@pytest.mark.parametrize("which", ["post", "alike"])
def test_draws_have_the_posteriors_moments(which, exact, request):
    post = request.getfixturevalue(which)
    assert post.warnings == []
    assert post.settings["tune"] == 0
    assert "enough" in post.tuning["verdict"]
    known, error = mean_and_error(exact)
    sd = exact.std(axis=(0, 1))
    both = np.hypot(error, sd / np.sqrt(2_000))
    assert np.all(np.abs(means_of(post) - known) < 4.5 * both)
    # negative control: a mean off by 0.4 posterior sd is noticed
    assert not np.all(np.abs(means_of(post) + 0.4 * sd - known) < 4.5 * both)


def test_weighted_draws_have_weights_and_the_others_none(post, alike):
    assert post.weights.shape == (4, 500)
    assert post.ledger.by_purpose["weights"] == 3_000 * 2_000
    assert alike.weights is None
    assert alike.stats["acceptance_rate"].mean() > 0.9
    table = alike.summary()
    assert table["ess_bulk"].min() > 1_200
    assert table["r_hat"].max() < 1.01


@pytest.mark.parametrize("which", ["post", "alike"])
def test_a_correction_finds_next_to_nothing(which, request):
    fixed = request.getfixturevalue(which).correct(ROWS, draws=400, progressbar=False)
    assert fixed.tuning["correction"]["pareto_k"] < 0.7
    # the pool's posterior is that of all rows, up to its noise
    assert np.var(fixed.stats["log_weight"]) < 0.05
    refused(mo.SettingError, "not yet corrected", fixed.correct, ROWS, progressbar=False)


def test_a_checkpoint_gives_the_same_draws_without_another_pass(post, tmp_path):
    settings = {"method": mo.Laplace(pool=3_000), "draws": 500, **RUN}
    first = mo.sample(M.Logistic(), ROWS, checkpoint=tmp_path, **settings)
    again = mo.sample(M.Logistic(), ROWS, checkpoint=tmp_path, **settings)
    for run in (first, again):
        np.testing.assert_array_equal(run.draws["beta"], post.draws["beta"])
        np.testing.assert_array_equal(run.weights, post.weights)
        assert run.ledger.by_purpose == post.ledger.by_purpose


def test_weights_match_all_rows_where_the_pool_holds_them():
    rows = logistic_rows(60)
    model = M.Logistic(prior_scale=1.0, intercept_scale=1.0)
    post = mo.sample(model, rows, method="laplace", draws=1_000, chains=1, **RUN)
    log_posterior = mo.LogPosterior(model, rows)
    anchor = log_posterior.mode(within=NEAR)
    centre = anchor.factor.T @ log_posterior.gradient(anchor.point)[1]  # a Newton step away
    points = flat_draws(post)[0]
    z = np.linalg.solve(anchor.factor, (points - anchor.point).T).T - centre
    values = log_posterior.values(points)
    exact = values + 0.5 * np.sum(z**2, axis=1)
    weights = np.exp(exact - exact.max())
    smooth = post.weights[0] / post.weights[0].sum()
    bulk = np.argsort(weights)[:800]  # the largest are smoothed
    ratio = np.log(smooth[bulk]) - np.log(weights[bulk])
    np.testing.assert_allclose(ratio, ratio[0], atol=1e-6)
    np.testing.assert_allclose(post.stats["lp"][0], values, rtol=0, atol=1e-8)
    assert post.tuning["pool_noise"] == 0
    # the normal approximation without weights is a different distribution
    plain = weighted_mean(points[None], np.ones((1, 1_000)))
    assert np.max(np.abs(plain - weighted_mean(points[None], smooth[None])) / points.std(0)) > 0.05


def rows_with_levels():
    """Return rows of a number and forty levels, of which NumPy multiplies codes."""
    rng = np.random.default_rng(4)
    x, level = rng.normal(size=6_000), rng.integers(0, 40, 6_000)
    y = rng.random(6_000) < 1 / (1 + np.exp(0.3 * x - np.sin(level)))
    names = np.char.add("l", level.astype(str))
    table = {"x": x, "level": names, "y": y.astype(int)}
    return mo.Rows.from_table(pd.DataFrame(table), outcome="y")


@in_double_precision
def test_codes_and_dense_columns_weigh_draws_alike(monkeypatch):
    task = task_of(M.Logistic(), rows_with_levels())
    weights = weigh(StudySettings(), task, task.anchor_at_mode())
    z = np.random.default_rng(1).standard_normal((600, task.target.size))
    pool = WeighingPool(weights, 200)
    linear, (block, *_) = weights.about.linear, pool._residuals.blocks
    assert linear.in_codes
    assert block.rows["level"].dtype.kind == "u"
    found = pool.weigh(z)
    monkeypatch.setattr(type(linear), "in_codes", False)
    dense = WeighingPool(weights, 200)
    assert dense._residuals.blocks[0].rows.shape == (200, 41)
    for mine, other in zip(found, dense.weigh(z), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9)
    # negative control: other rows weigh them otherwise
    assert np.std(WeighingPool(weights, 201).weigh(z)[0] - dense.weigh(z)[0]) > 0.01


@pytest.mark.parametrize("rows", [ROWS, rows_with_levels()], ids=["numbers", "codes"])
@in_double_precision
def test_the_pools_noise_is_how_much_means_differ_between_pools(rows, monkeypatch):
    task = task_of(M.Logistic(), rows)
    weights = weigh(StudySettings(), task, task.anchor_at_mode())
    study = weights.about
    rng = np.random.default_rng(1)
    z = study.centre + rng.standard_normal((1_024, len(study.centre)))
    means, noises = [], []
    for seed in range(12):
        seeded = replace(weights, about=replace(study, task=replace(task, seed=seed)))
        log_posterior, noise = WeighingPool(seeded, 40).weigh(z)
        log_ratio = log_posterior + 0.5 * np.sum((z - study.centre) ** 2, axis=1)
        means.append(pareto_smoothed(log_ratio)[0] @ z @ study.anchor.factor.T)
        noises.append(noise)
    found = (np.std(means, axis=0, ddof=1) / study.anchor.sd).max()
    foretold = np.median(noises)
    # the slope of a residual in its row's predictor tells as much as all parameters do
    monkeypatch.setattr(WeighingPool, "_predictor", None)
    assert 0.9 < WeighingPool(seeded, 40).weigh(z)[1] / noises[-1] < 1.5
    assert 0.5 < found / foretold < 2  # the largest of four, each known to a fifth
    assert not 0.5 < found / (foretold / 5) < 2  # unlike a pool 25 times as large


def test_the_independence_sampler_draws_from_what_is_weighed():
    rng = np.random.default_rng(2)
    z = rng.standard_normal((4_000, 4))
    places, rate = independence_sampler(0.5 * z, rng.random(z.shape))  # N(0.5, 1)
    draws = np.take_along_axis(z, places, axis=0).T
    error = draws.std() / np.sqrt(ess(draws))
    assert abs(draws.mean() - 0.5) < 4 * error
    assert abs(z.mean() - 0.5) > 10 * error  # the proposals do not have that mean
    assert 0.6 < rate.mean() < 0.85
    never = np.where(np.arange(40)[:, None] % 2, 0.0, -np.inf)  # every other draw is impossible
    places, _ = independence_sampler(never, np.full((40, 1), 0.5))
    assert np.all(places[1:] % 2 == 1)


@pytest.mark.parametrize(("number", "scale"), [(100, 0.3), (4_000, 1.5), (4_000, 0.1)])
def test_smoothed_weights_are_arvizs(number, scale):
    from arviz_stats.base import array_stats

    log_ratio = scale * np.random.default_rng(1).standard_normal(number)
    weights, tail = pareto_smoothed(log_ratio)
    theirs, their_tail = array_stats.psislw(-(log_ratio - log_ratio.max()))
    their_weights = np.exp(theirs - theirs.max())
    np.testing.assert_allclose(weights, their_weights / their_weights.sum(), rtol=0.02)
    assert abs(tail - float(their_tail)) < 0.02
    even, none = pareto_smoothed(np.zeros(9))
    np.testing.assert_allclose(even, 1 / 9)
    assert none == 0
    assert pareto_smoothed(np.array([0.0, np.nan]))[1] == np.inf
    assert pareto_smoothed(np.linspace(-5_000, 0, 400))[1] > 100  # without overflow
    alone, none = pareto_smoothed(np.linspace(-1e9, 0, 1_000))
    assert (alone.max(), none) == (1.0, np.inf)


def test_the_verdict_and_the_doubts_that_follow_from_it():
    assert [doubt.code for doubt in doubts_of(Verdict(0.8, 0.1, 0.3), 100)] == [
        "laplace-far", "laplace-pool",
    ]  # fmt: skip
    assert doubts_of(Verdict(0.6, 0.3, 0.01), 100) == []
    assert not Verdict(0.2, 0.9, 0.2).enough
    assert Verdict(0.6, 0.3, 0.0).word == "usable"
    assert Verdict(0.8, 0.1, 0.0).word == "unreliable"


def test_refusals():
    images = mo.Rows(x=np.ones((9, 2)), y=np.arange(9) % 3)
    with pytest.raises(mo.SettingError, match="impossible with MLP"):
        mo.sample(M.MLP(), images, method="laplace", **RUN)
    kinked = M.AsymmetricLaplace(scale=1.0)
    with pytest.raises(mo.SettingError, match="impossible with AsymmetricLaplace"):
        mo.sample(kinked, ROWS, method="laplace", **RUN)
