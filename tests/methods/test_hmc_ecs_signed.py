"""Signed HMC-ECS: exact expectations, and warnings where signs cause trouble."""

from functools import cache

import numpy as np
import pytest

import modicum as mo
from helpers import toy
from helpers.pilots import moments
from helpers.refusals import refused
from helpers.targets import TIMES, flat_draws, logistic_rows, quick
from modicum.diagnostics.weighted import weighted_mcse, weighted_mean
from modicum.errors import CrudeControlVariateError
from modicum.kernels.likelihood_estimates import BlockPoisson
from modicum.methods.ecs.run_checks import Case, look_ahead_signed
from modicum.methods.ecs.signed_products import ProductChoice
from modicum.models import Target

M = mo.models
# About a poor anchor with uniform rows, some estimates are negative.
POOR = {"design": "uniform", "batch": 10, "products": 20, "centre": -7.8, "refreshes": 4}


@cache
def about_a_poor_anchor(draws=400):
    method = mo.SignedHMCECS(anchor=toy.poor_anchor(), blocks=20, step_size=0.3, **POOR)
    return toy.sample(method, draws=draws, chains=4, random_seed=1)


def off(post, weights):
    """Return the errors of means and squares, in posterior sd, and their Monte Carlo errors."""
    z = (flat_draws(post) - toy.MEAN) / toy.SD
    found = []
    for values, right, slack in ((z, 0.0, 1.0), (z**2, 1.0, 2.0)):
        error = np.hypot(weighted_mcse(values, weights), slack * toy.TRUTH_ERROR)
        found.append((weighted_mean(values, weights) - right, error))
    return found


@pytest.mark.slow
def test_signed_averages_are_right_where_the_same_draws_without_signs_are_not():
    post = about_a_poor_anchor(2000)
    assert 0.02 < (post.weights < 0).mean() < 0.15
    for away, error in off(post, post.weights):
        assert np.all(np.abs(away) < TIMES * error)
    (away, error), _ = off(post, np.ones_like(post.weights))
    assert np.any(np.abs(away) > TIMES * error)
    assert 0.05 < np.abs(away).max() < 0.25
    np.testing.assert_allclose(
        (post.mean("beta") - toy.MEAN) / toy.SD, off(post, post.weights)[0][0]
    )


def test_the_results_carry_the_signs():
    post = about_a_poor_anchor()
    assert post.weighted
    assert set(np.unique(post.weights)) == {-1.0, 1.0}
    np.testing.assert_array_equal(post.weights, post.stats["sign"])
    assert post.summary().attrs["mean_weight"] == pytest.approx(post.weights.mean())
    with pytest.warns(mo.ModicumWarning, match="ignore"):
        tree = post.to_datatree()
    assert "sign" in tree["sample_stats"]
    refused(mo.SettingError, "without negative signs", post.correct, toy.rows())
    told = " ".join(map(str, post.warnings))
    assert "too few" in told
    assert "negative sign" in told
    assert "from the anchor" in told


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"batch": 30}, {"inner": "nuts"}])
def test_the_toy_is_right_and_quiet(settings):
    method = mo.SignedHMCECS(**settings)
    post = quick(toy.MODEL, toy.rows(), method=method, draws=3000, tune=300, chains=4)
    assert post.warnings == []
    for away, error in off(post, post.weights):
        assert np.all(np.abs(away) < TIMES * error)
    batch, products = (post.tuning[name]["value"] for name in ("batch", "products"))
    assert batch == settings.get("batch", 5)
    assert (post.tuning["batch"]["why"] == "as in the paper") is (batch == 30)
    assert 20 <= products <= 60
    assert abs(post.stats["factors"].mean() / products - 1) < 0.05


def test_rows_that_take_part_are_counted():
    stats, batch = about_a_poor_anchor().stats, POOR["batch"]
    evaluated = stats["rows_touched"] - stats["factors"] * batch * (stats["n_steps"] + 1)
    assert np.all(evaluated % batch == 0)
    assert np.all((evaluated >= 0) & (evaluated <= 25 * batch))
    # four refreshes propose a product each, on average, whether they are accepted or not
    assert evaluated.mean() == pytest.approx(4 * batch, rel=0.02)


@pytest.mark.slow
def test_too_few_products_are_warned_of_before_and_after():
    # a mini-batch varies by half of lambda here, so chains get stuck
    method = mo.SignedHMCECS(anchor=toy.poor_anchor(), **(POOR | {"products": 8, "blocks": 4}))
    post = toy.sample(method, draws=500, chains=2, random_seed=1)
    told = " ".join(map(str, post.warnings))
    assert "8 products are too few" in told
    assert "negative sign" in told or "signs" in told


def test_crude_control_variates_are_refused_with_a_remedy():
    # below order 2, |Lhat| has its mass far away, whatever the number of products
    for order in (0, 1):
        with pytest.raises(CrudeControlVariateError, match=f"order {order} are too crude"):
            toy.sample(mo.SignedHMCECS(order=order), draws=10, random_seed=1)
    with pytest.raises(CrudeControlVariateError, match="too few for subsampling"):
        quick(M.Logistic(), logistic_rows(400), method=mo.SignedHMCECS(batch=30))


@pytest.mark.parametrize(("n", "refused"), [(900_000, True), (1_100_000, False), (10**8, False)])
def test_a_quarter_of_many_rows_per_step_is_refused_before_the_run(n, refused):
    target, _ = Target.of(M.Logistic(), logistic_rows(50))
    case = Case(mo.SignedHMCECS(design="uniform").studied, target, n)
    pilot = moments(draws=4)
    choice = ProductChoice(BlockPoisson(54_000, 5, 10), 10, 1, 20, 0.0, 1.0, 1.0)
    if not refused:
        assert look_ahead_signed(case, pilot, choice, chosen=True) == []
        return
    with pytest.raises(CrudeControlVariateError, match=r"270,000 of .* rows.*design=\"weighted\""):
        look_ahead_signed(case, pilot, choice, chosen=True)
    assert look_ahead_signed(case, pilot, choice, chosen=False) == []  # not if set by hand


@pytest.mark.slow
def test_rows_of_the_coreset_are_counted():
    batch, rows = 10, logistic_rows(3_000, dtype="float32")
    post = quick(M.Logistic(), rows, method=mo.SignedHMCECS(batch=batch), draws=60, tune=40)
    count = post.tuning["coreset"]["value"]
    assert count > 0
    assert post.tuning["certainty"]["value"] == 0  # else these would be counted, too
    stats = post.stats
    rest = stats["rows_touched"] - (stats["factors"] * batch + count) * (stats["n_steps"] + 1)
    assert np.all(rest % batch == 0)
    assert np.all(rest >= 0)


def test_products_that_blocks_do_not_divide():
    refused(mo.SettingError, "use 21 products", mo.SignedHMCECS, products=20, blocks=3)
