"""Lambda, a, G and K follow theory and agree with the pilot's own mini-batches."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.normal_factors import normal_factors
from helpers.pilots import moments
from modicum.methods.ecs.signed_products import MiniBatches, choose_products


def pilot(deviation=1.0, batch=30, skew=False, slope=0.01, mean=0.0, draws=32, rows=4000):
    """Return residuals whose mini-batch means have this standard deviation."""
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(draws, rows))
    if skew:
        noise = -rng.pareto(1.8, size=(draws, rows))
    noise = (noise - noise.mean(1, keepdims=True)) / noise.std(1, keepdims=True)
    values = mean + deviation * np.sqrt(batch) * noise
    by_draw = [((values - mean) ** k).mean(1) for k in (2, 3, 4)]
    weight = np.full(rows, 1 / rows)
    return moments(*by_draw, slope, draws, mean=mean, values=values, weight=weight)


def pilot_sign(pilot, batch, products):
    return MiniBatches(pilot, batch).sign(products, np.zeros(()))


def test_quiet_residuals_need_the_fewest_products():
    choice = choose_products(pilot(0.5), 30, steps=3)
    assert choice.products == 20
    assert choice.chain_sign == 1.0
    assert "at least 20" in choice.why["products"]


def test_lambda_is_eight_deviations():
    choice = choose_products(pilot(10.0), 30, steps=3)
    assert 80 <= choice.products <= 90
    assert "sign boundaries" in choice.why["products"]
    assert choice.products % choice.blocks == 0


def test_gradient_noise_asks_for_rows_too():
    choice = choose_products(pilot(0.5, slope=900.0), 30, steps=3)
    assert 120 <= choice.products <= 132
    assert "gradient noise" in choice.why["products"]
    assert choice.refreshes > choice.blocks / 2


def test_skewed_residuals_ask_for_more_than_normal_theory():
    skewed, normal = pilot(10.0, skew=True), pilot(10.0)
    assert pilot_sign(skewed, 30, 80)[1] < pilot_sign(normal, 30, 80)[1]
    choice = choose_products(skewed, 30, steps=3)
    assert choice.products > 90
    assert "mini-batches" in choice.why["products"]
    assert choice.chain_sign >= 0.9993


def test_a_row_that_no_mini_batch_of_the_pilot_has_counts_too():
    """It is drawn once in a million; under a uniform design such rows have large residuals."""
    quiet = pilot(0.1, batch=5, draws=4, rows=500)
    chance = 1e-6
    values = np.c_[quiet.values, np.full(4, -1e5)]
    rare = replace(quiet, values=values, weight=np.r_[quiet.weight * (1 - chance), chance])
    products = 1000
    negative = 5 * chance  # of the factors: five rows each
    below = negative * (1e5 / 5 / products - 1)
    positive, sign = pilot_sign(rare, 5, products)
    assert positive == pytest.approx((1 + np.exp(-2 * products * negative)) / 2, rel=1e-3)
    assert sign == pytest.approx(np.exp(-2 * products * below), rel=1e-3)
    assert pilot_sign(quiet, 5, products) == (1.0, 1.0)
    assert choose_products(rare, 5, steps=3).products > 50 * choose_products(quiet, 5, 3).products


def test_the_pilot_sign_agrees_with_theory_for_normal_residuals():
    theory = normal_factors(0.0, 10.0, 20, -20.0)
    positive, sign = pilot_sign(pilot(10.0, rows=20_000), 30, 20)
    assert positive == pytest.approx(theory.positive, abs=0.01)
    assert sign == pytest.approx(theory.chain_sign, abs=0.01)


def test_the_centre_is_the_expected_difference_unless_set():
    assert choose_products(pilot(1.0, mean=-3.0), 30, 3).centre == pytest.approx(-3.0)
    by_hand = choose_products(pilot(1.0, mean=-3.0), 30, 3, centre=-1.0)
    assert (by_hand.centre, by_hand.why["centre"]) == (-1.0, "set by hand")


def test_what_is_set_by_hand_stays():
    choice = choose_products(pilot(5.0), 30, 3, products=12, blocks=3, refreshes=2)
    assert (choice.products, choice.blocks, choice.refreshes) == (12, 3, 2)
    assert {choice.why[k] for k in ("products", "blocks", "refreshes")} == {"set by hand"}
    assert choose_products(pilot(5.0), 30, 3, products=7).blocks in (1, 7)


def test_the_mini_batch_with_the_fewest_evaluations():
    quiet = choose_products(pilot(0.1), None, 3)
    assert (quiet.products, quiet.batch) == (20, 5)
    loud = choose_products(pilot(2.4), None, 3)  # with this deviation for 30 rows, 20 suffice
    rows = loud.products * loud.batch
    assert rows <= choose_products(pilot(2.4), 30, 3).products * 30
    assert choose_products(pilot(2.4), None, 3, products=20).batch == 30
