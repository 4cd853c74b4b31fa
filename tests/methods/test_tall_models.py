"""Ten models of tall data: HMC-ECS beside NUTS on all rows, or refused with a reason."""

import warnings

import numpy as np
import pytest

import modicum as mo
from helpers.tall import TALL, tall
from helpers.targets import TIMES, flat_draws, mean_and_error
from modicum.diagnostics import ess

RUN = {"draws": 500, "tune": 400, "chains": 2, "random_seed": 1, "progressbar": False}
ROWS = 100_000
BIAS = 0.05  # posterior sds that the perturbation may cause


def sampled(name, method, **changes):
    model, rows = tall(name, ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)
        return mo.sample(model, rows, method=method, **RUN | changes)


def moments(post):
    draws = flat_draws(post)
    return *mean_and_error(draws), draws.reshape(-1, draws.shape[2]).std(axis=0)


def cost_of(post):
    """Rows evaluated per effective draw, all passes included."""
    return post.ledger.evaluations / np.min(ess(flat_draws(post)))


@pytest.mark.slow
@pytest.mark.parametrize("name", TALL)
def test_chains_on_few_rows_have_the_answer_of_all_rows_and_cost_no_more(name):
    exact = sampled(name, "nuts")
    known, error, sd = moments(exact)
    chosen = sampled(name, "auto")  # with a warm-up: HMC-ECS or NUTS
    if chosen.settings["method"] == "nuts":
        assert ", since " in chosen.tuning["method"]
    else:
        assert cost_of(chosen) < cost_of(exact)
    found, its_error, _ = moments(chosen)
    allowed = TIMES * np.hypot(error, its_error) + BIAS * sd
    assert np.all(np.abs(found - known) < allowed)
    # negative control: half a posterior sd more is noticed
    assert not np.all(np.abs(found + 0.5 * sd - known) < allowed)


@pytest.mark.slow
@pytest.mark.parametrize("name", TALL)
def test_the_default_is_right_by_the_log_posterior_of_all_rows(name):
    _, rows = tall(name, ROWS)
    post = sampled(name, "auto", tune=None)
    if post.settings["method"] == "nuts":
        assert ", since " in post.tuning["method"]
        return
    report = post.correct(rows, draws=400, progressbar=False).tuning["correction"]
    assert report["largest_shift"] < BIAS
    assert report["effective_share"] > 0.8
