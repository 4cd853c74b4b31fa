"""Stein discrepancies, from all rows or a few: exact draws pass, wrong ones do not."""

import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused
from helpers.targets import Conjugate, logistic_rows, sums_of
from modicum.ledger import Ledger
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import Posterior

TARGET = Conjugate(n=400, d=3)


def posterior(n=600, shift=0.0, scale=1.0, seed=1):
    """Return exact draws of the conjugate posterior, or wrong draws."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n, 4)) @ np.linalg.cholesky(TARGET.cov).T
    t = TARGET.mean + shift * np.sqrt(np.diag(TARGET.cov)) + scale * noise
    draws = {"beta": t[None, :, :3], "intercept": t[None, :, 3]}
    return Posterior(draws, {}, Ledger(rows=400), predictor=ModelPredictor(TARGET.model))


def measure(post, **kwargs):
    return post.stein_discrepancy(TARGET.rows, draws=600, progressbar=False, **kwargs)


def test_exact_draws_are_at_the_floor_and_wrong_ones_above():
    right = measure(posterior())
    assert right.value == pytest.approx(right.floor, rel=0.1)
    assert (right.draws, right.subsample) == (600, None)
    for wrong in ({"shift": 0.5}, {"scale": 0.6}):
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
        draws = {"beta": t[None, :, :3], "intercept": t[None, :, 3]}
        predictor = ModelPredictor(mo.models.Logistic())
        return Posterior(draws, {}, Ledger(rows=len(rows)), predictor=predictor)

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
    refused(mo.SettingError, "the same value in all draws", measure, posterior(scale=0.0))
