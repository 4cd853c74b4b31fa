"""Draws judged by all rows: corrected by importance weights, measured by Stein discrepancies."""

import numpy as np
import pytest

import modicum as mo
from helpers.posteriors import bare, named
from helpers.refusals import refused
from helpers.targets import TIMES, Conjugate, logistic_rows, sums_of
from modicum.ledger import Ledger


@pytest.fixture(scope="module")
def problem():
    return Conjugate(n=80, d=2)


def normal_draws(problem, shift=0.0, inflate=1.0, shape=(4, 1000)):
    """Return independent draws of the posterior or another normal, with their log-density."""
    z = np.random.default_rng(1).normal(size=(*shape, len(problem.mean)))
    root = np.linalg.cholesky(problem.cov) * inflate
    at = problem.mean + shift * np.sqrt(np.diag(problem.cov)) + z @ root.T
    lp = -0.5 * (z**2).sum(-1) + 123.0  # weights are ratios, so a constant does not matter
    n = len(problem.rows)
    return bare(problem.model, named(at), n, stats={"lp": lp}, tuning={"kept": 1})


def flat_mean(post):
    return np.r_[post.mean("beta"), post.mean("intercept")]


def off(problem, post):
    return (flat_mean(post) - problem.mean) / np.sqrt(np.diag(problem.cov))


def test_shifted_draws_come_back(problem):
    post = normal_draws(problem, shift=0.4, inflate=1.2)
    assert np.abs(off(problem, post)).max() > 0.3
    fixed = post.correct(problem.rows, draws=4000, progressbar=False)
    w = fixed.weights / fixed.weights.sum()
    error = 1.2 * np.sqrt((w**2).sum())
    assert np.all(np.abs(off(problem, fixed)) < TIMES * error)
    spread = np.r_[fixed.sd("beta"), fixed.sd("intercept")] / np.sqrt(np.diag(problem.cov))
    np.testing.assert_allclose(spread, 1, atol=0.1)
    report = fixed.tuning["correction"]
    assert report["largest_shift"] == pytest.approx(0.4, abs=0.1)
    assert "off by up to" in report["verdict"]
    assert report["pareto_k"] < 0.7
    assert fixed.warnings == []


def test_weights_are_the_ratio_of_the_densities(problem):
    post = normal_draws(problem, shift=0.3)
    fixed = post.correct(problem.rows, draws=4000, progressbar=False)
    at = np.concatenate([fixed["beta"], fixed["intercept"][..., None]], axis=-1) - problem.mean
    right = -0.5 * np.einsum("cdi,ij,cdj->cd", at, problem.precision, at) - fixed.stats["lp"]
    found = fixed.stats["log_weight"]
    np.testing.assert_allclose(found - found.mean(), right - right.mean(), atol=1e-9)
    refused(mo.SettingError, "give the rows, or their table", post.correct, progressbar=False)
    post.rows = problem.rows  # which a fit holds
    own = post.correct(draws=4000, progressbar=False)
    np.testing.assert_allclose(own.weights, fixed.weights)


def test_draws_that_were_right_are_reported_as_right(problem):
    fixed = normal_draws(problem, shift=0.0).correct(problem.rows, progressbar=False)
    assert "right to within" in fixed.tuning["correction"]["verdict"]
    assert fixed.tuning["correction"]["weight_variance"] == pytest.approx(0, abs=1e-12)
    assert fixed.tuning["correction"]["pareto_k"] == 0


def test_hopeless_weights_are_reported_as_such(problem):
    post = normal_draws(problem, shift=6.0, inflate=0.4)
    with pytest.warns(mo.ModicumWarning, match="too uneven to correct with"):
        fixed = post.correct(problem.rows, progressbar=False)
    assert fixed.tuning["correction"]["pareto_k"] > 0.7
    assert "exact=" in fixed.warnings[-1].remedy


def test_draws_are_thinned_evenly_and_the_original_is_left_alone(problem):
    post = normal_draws(problem, shift=0.2)
    fixed = post.correct(problem.rows, draws=500, progressbar=False)
    assert (fixed.chains, fixed.num_draws) == (4, 125)
    np.testing.assert_array_equal(fixed["beta"], post["beta"][:, ::8])
    assert fixed.ledger.by_purpose["correction"] == 500 * 80
    assert fixed.ledger.sweeps == 1
    assert post.weights is None
    assert post.ledger.evaluations == 0
    assert post.tuning == {"kept": 1}
    assert fixed.tuning["kept"] == 1


def test_what_cannot_be_corrected_is_refused(problem):
    post = normal_draws(problem, shift=0.1)
    few = {name: x[:, :2] for name, x in post.draws.items()}
    short = {"lp": post.stats["lp"][:, :2]}
    for words, one in {
        "8 draws are too few to be corrected": bare(problem.model, few, 80, stats=short),
        "without negative signs": post.correct(problem.rows, progressbar=False),
        "log-density": bare(None, post.draws, 80),
        "without its model": bare(None, post.draws, 80, stats=post.stats),
    }.items():
        refused(mo.SettingError, words, one.correct, problem.rows, progressbar=False)


# Stein discrepancies, from all rows or a few: exact draws pass, wrong ones do not ------------


TARGET = Conjugate(n=400, d=3)


def posterior(**wrong):
    return normal_draws(TARGET, shape=(1, 600), **wrong)


def measure(post, **kwargs):
    return post.stein_discrepancy(TARGET.rows, draws=600, progressbar=False, **kwargs)


def test_exact_draws_are_at_the_floor_and_wrong_ones_above():
    right = measure(posterior())
    assert right.value == pytest.approx(right.floor, rel=0.1)
    assert (right.draws, right.subsample) == (600, None)
    for wrong in ({"shift": 0.5}, {"inflate": 0.6}):
        found = measure(posterior(**wrong))
        assert found.value > 2 * found.floor
        assert found.squared > 10 * abs(right.squared)


def logistic_posterior(rows):
    """Return draws of the Laplace approximation, which are about right unless shifted."""
    from modicum.passes import anchor_at_mode

    sums, start = sums_of(mo.models.Logistic(), rows)
    anchor = anchor_at_mode(sums, start)
    z = np.random.default_rng(2).normal(size=(400, 4))

    def at(shift):
        t = anchor.point + (z + shift) @ anchor.factor.T
        return bare(mo.models.Logistic(), named(t[None]), len(rows))

    return at


@pytest.mark.slow
def test_few_rows_per_draw_measure_what_all_rows_do():
    rows = logistic_rows(3000)
    at = logistic_posterior(rows)

    def of(post, **kwargs):
        return post.stein_discrepancy(rows, draws=400, progressbar=False, **kwargs)

    exact = of(at(0.0)).squared
    few = [of(at(0.0), subsample=30, random_seed=s).squared for s in range(12)]
    error = np.std(few, ddof=1) / np.sqrt(12)
    assert abs(np.mean(few) - exact) < 4.5 * error
    wrong = of(at(0.5), subsample=30)
    assert wrong.squared > exact + 10 * np.std(few, ddof=1)
    assert np.isnan(wrong.value)
    # negative control: one subsample for all draws gives another posterior
    some, other = mo.Rows(**rows.take(np.arange(30))), at(0.0)
    other.ledger = Ledger(rows=30)
    found = other.stein_discrepancy(some, draws=400, progressbar=False)
    assert abs(of(at(0.0)).squared - found.squared) > 10 * np.std(few, ddof=1)


def test_refusals():
    refused(mo.SettingError, "subsample must be a whole number", measure, posterior(), subsample=0)
    refused(mo.SettingError, "the same value in all draws", measure, posterior(inflate=0.0))
