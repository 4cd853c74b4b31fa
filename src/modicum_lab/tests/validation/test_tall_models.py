"""Ten models of tall data: HMC-ECS agrees with NUTS on all rows, or is refused with a reason."""

import numpy as np
import pytest

import modicum as mo
from helpers.compiling import optimised_chains
from helpers.refusals import unwarned
from helpers.targets import TIMES, flat_draws, mean_and_error
from modicum.diagnostics import ess
from modicum_lab.tests.validation.tall import TALL, tall

RUN = {"draws": 500, "tune": 400, "chains": 2, "random_seed": 1, "progressbar": False}
ROWS = 100_000
DRAWS = 500  # draws of NumPyro's chain
BIAS = 0.05  # posterior sds that the perturbation may cause


def sampled(model, rows, method, **changes):
    with unwarned(), optimised_chains():
        return mo.sample(model, rows, method=method, **RUN | changes)


def cost_of(post):
    """Return the rows evaluated per effective draw, including all passes."""
    return post.ledger.evaluations / np.min(ess(flat_draws(post)))


def apart(post, exact):
    """Return what has other means than exact draws, beyond Monte Carlo error and the bias."""
    found = []
    for name, values in exact.items():
        mean, error = mean_and_error(post[name])
        known, its_error = mean_and_error(values)
        allowed = TIMES * np.hypot(error, its_error) + BIAS * values.std(axis=(0, 1))
        if not np.all(np.abs(mean - known) < allowed):
            found.append(name)
    return found


def shifted(draws):
    """Return draws half a posterior sd off: the negative control."""
    return {name: values + 0.5 * values.std(axis=(0, 1)) for name, values in draws.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", TALL)
def test_chains_on_few_rows_have_the_answer_of_all_rows_and_cost_no_more(name):
    model, fields = tall(name, ROWS)
    rows = mo.Rows(**fields)
    exact = sampled(model, rows, "nuts")
    chosen = sampled(model, rows, mo.Auto(laplace=False))  # HMC-ECS or NUTS
    if chosen.settings["method"] == "nuts":
        assert ", since " in chosen.tuning["method"]
    else:
        assert cost_of(chosen) < cost_of(exact)
    assert apart(chosen, exact.draws) == []
    assert apart(chosen, shifted(exact.draws)) != []


@pytest.mark.slow
@pytest.mark.parametrize("name", TALL)
def test_the_default_is_right_by_the_log_posterior_of_all_rows(name):
    model, fields = tall(name, ROWS)
    rows = mo.Rows(**fields)
    post = sampled(model, rows, "auto", tune=None)
    if post.settings["method"] == "nuts":
        assert ", since " in post.tuning["method"]
        return
    report = post.correct(rows, draws=400, progressbar=False).tuning["correction"]
    assert report["largest_shift"] < BIAS
    assert report["effective_share"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", TALL)
def test_custom_models_have_the_answer_of_numpyro_and_cost_no_more(name, x64):
    pytest.importorskip("numpyro")
    from modicum_lab.tests.validation.tall_numpyro import TALL_NUMPYRO, nuts_of_numpyro

    function, (_, fields) = TALL_NUMPYRO[name], tall(name, ROWS)
    exact, gradients = nuts_of_numpyro(function, fields, DRAWS)
    rows = mo.Rows(**fields)
    model = mo.from_numpyro(function, rows)
    chosen = sampled(model, rows, "auto")
    assert apart(chosen, exact) == []
    assert apart(chosen, shifted(exact)) != []
    # Rows per effective draw, including all passes and warm-up, against NumPyro's sampling alone,
    # which gets its start and mass matrix for free.
    its_cost = gradients * ROWS * DRAWS / least_ess(exact)
    if chosen.settings["method"] != "nuts":
        assert cost_of(chosen) < its_cost
        return
    assert ", since " in chosen.tuning["method"]
    assert chosen.stats["n_steps"].mean() < 2 * gradients
    assert refused_doubted_or_right(model, rows, exact)


def least_ess(draws):
    return min(np.min(ess(v.reshape(*v.shape[:2], -1))) for v in draws.values())


def refused_doubted_or_right(model, rows, exact):
    """Whether HMC-ECS, if not chosen, raises, warns, or still gives the right answer."""
    try:
        post = sampled(model, rows, "hmc-ecs")
    except mo.ModicumError as refusal:
        return bool(str(refusal))
    return bool(post.warnings) or apart(post, exact) == []
