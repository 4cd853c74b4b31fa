"""Guards that must warn before and after a run, without contradicting each other.

A posterior far from normal (a mixture weight at its boundary, the neck of a funnel) once came with
a reassuring bias bound; the default now uses all rows there.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers import toy
from helpers.cases import cases
from helpers.compiling import optimised_chains
from helpers.interrupted import planned, task_of
from helpers.slow import slowly
from helpers.targets import TIMES, all_of, logistic_rows, mean_and_error, quick, sums_of
from modicum.errors import ModicumWarning
from modicum.methods.ecs.run_checks import (
    BOUND_FALLS,
    UNFIT,
    Case,
    check_pilot_chains,
    check_tails,
    withdraw_bound,
)
from modicum.methods.pilot.pilot_residuals import Tails
from modicum.methods.pilot.short_chains import PilotChains
from modicum.models import Target
from modicum.passes.curvature import expanded_prior

M = mo.models


def zero_inflated_log_likelihood(p, batch):
    eta = batch["x"] @ p["beta"] + p["intercept"]
    inflated, not_inflated = jax.nn.log_sigmoid(p["logit"]), jax.nn.log_sigmoid(-p["logit"])
    y = batch["y"]
    poisson = y * eta - jnp.exp(eta) - jax.scipy.special.gammaln(y + 1)
    zero = jnp.logaddexp(inflated, not_inflated - jnp.exp(eta))
    return jnp.where(y == 0, zero, not_inflated + poisson)


@cache
def zero_inflated(inflation, n=5_000):
    """Return counts with extra zeros; without any, the posterior of their share is at zero."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 2))
    y = rng.poisson(np.exp(1 + x @ [0.3, -0.2])) * (rng.random(n) >= inflation)

    def log_prior(p):
        slopes = jnp.sum(p["beta"] ** 2) + p["intercept"] ** 2
        return -0.5 * slopes / 2.5**2 - 0.5 * (p["logit"] / 5) ** 2

    start = {"beta": np.zeros(2), "intercept": 0.0, "logit": -2.0}
    model = mo.Model(log_prior=log_prior, log_likelihood=zero_inflated_log_likelihood, init=start)
    return model, mo.Rows(x=x, y=y.astype(float))


@cache
def centred_hierarchy(spread, n=1_000, groups=8):
    """Return a centred hierarchy; without a `spread`, its joint mode is at zero spread."""
    rng = np.random.default_rng(1)
    group = rng.integers(0, groups, n)
    y = (rng.normal(size=groups) * spread)[group] + 2 * rng.normal(size=n)

    def log_likelihood(p, batch):
        mean = p["theta"][batch["group"].astype(int)]
        return jax.scipy.stats.norm.logpdf(batch["y"], mean, jnp.exp(p["log_sigma"]))

    def log_prior(p):
        tau = jnp.exp(p["log_tau"])
        means = jax.scipy.stats.norm.logpdf(p["theta"], p["mu"], tau).sum() + p["log_tau"]
        rest = (p["mu"] / 5) ** 2 + (tau / 5) ** 2 + (p["log_sigma"] / 2) ** 2
        return means - 0.5 * rest

    start = {"theta": 0.01 * np.arange(groups), "mu": 0.0, "log_tau": 0.0, "log_sigma": 0.0}
    model = mo.Model(log_prior=log_prior, log_likelihood=log_likelihood, init=start)
    return model, mo.Rows(y=y, group=group.astype(float))


@cache
def positive_times(rare, n=2_500):
    """Return inverse Gaussian times; a reference level of few `rare` rows has a long tail."""
    rng = np.random.default_rng(1)
    x, level = rng.normal(size=n), rng.integers(1, 3, n)
    level[:rare] = 0
    y = rng.wald(np.exp(0.5 + 0.3 * x + 0.4 * (level == 1)), 2.0)
    return M.InverseGaussian(), mo.Rows(x=np.c_[x, level == 1, level == 2] * 1.0, y=y)


@cache
def times_of_few_events(share, n=5_000):
    """Return Weibull times of which a `share` ended in an event, and the others were censored."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 3))
    time = rng.weibull(1.5, n) * np.exp(0.5 + 0.3 * x[:, 0])
    end = np.quantile(time, share) * np.exp(0.3 * rng.normal(size=n))
    return M.Weibull(), mo.Rows(x=x, y=np.minimum(time, end), event=(time <= end) * 1.0)


def by_default(model, rows):
    """Return the method and plan that the default chooses for these rows."""
    with optimised_chains():
        return mo.Auto(laplace=False).decide(task_of(model, rows))


# What the pilot study shows ----------------------------------------------------------------


def test_a_share_at_its_boundary_goes_to_all_rows():
    method, plan = by_default(*zero_inflated(0.0))
    assert method.name == "nuts"
    why = plan.tuning["method"]  # the first reason found depends on the pilot's points
    assert "far from normal" in why or "away from the mode" in why


def test_a_share_away_from_its_boundary_is_subsampled():
    method, plan = by_default(*zero_inflated(0.3))
    assert method.name == "hmc-ecs"
    assert plan.notes == []


@cases("table few many", (positive_times, 10, 500), *slowly((times_of_few_events, 0.01, 0.2)))
def test_tails_where_estimates_are_noisy_go_to_all_rows(table, few, many, monkeypatch):
    method, plan = by_default(*table(few))
    assert method.name == "nuts"
    assert "the log-posterior has fallen by" in plan.tuning["method"]
    assert not any(note.code == "tails-noisy" for note in plan.notes)
    method, plan = by_default(*table(many))  # negative control
    assert method.name == "hmc-ecs"
    assert not any(note.code == "tails-noisy" for note in plan.notes)
    monkeypatch.setattr("modicum.methods.cost.AFFORDABLE", 0.0)  # as if there were many rows
    method, plan = by_default(*table(few))
    assert method.name == "hmc-ecs"
    assert any(note.code == "tails-noisy" for note in plan.notes)


def test_tails_are_noisy_by_their_fall():
    case = Case(mo.HMCECS().studied, sums_of(*logistic_rows_of_too_few())[0].target, 50)
    noisy = Tails(np.array([8.0, 10.0]), np.array([5.3, 5.9]), 40 * np.array([9.3, 28.8]))
    (note,) = check_tails(case, noisy, 40)
    assert note.numbers == pytest.approx({"distance": 10.0, "fall": 5.9, "noise": 28.8**0.5})
    assert check_tails(case, noisy, 400) == []  # ten times the rows
    assert check_tails(case, noisy._replace(fall=noisy.fall + 20), 40) == []  # out of reach
    assert check_tails(case, noisy._replace(variance=np.full(2, np.nan)), 40) == []


@pytest.mark.parametrize("units", ["rows", "groups"])
def test_short_chains_say_what_they_ran_on(units):
    """Groups whose effects are integrated out are drawn whole: a step has so many of them."""
    family = M.Logistic()
    model = family if units == "rows" else M.IntegratedEffects(family, "clinic", group_sd=1.0)
    rows = mo.Rows(x=np.eye(4), y=[0, 1, 1, 0], clinic=[0, 0, 1, 1])
    case = Case(mo.HMCECS().studied, Target.of(model, model.units(rows))[0], 1_000)
    size = case.target.size
    noisy = PilotChains(np.zeros((2, 3, size)), np.full((2, 3), 400.0), 512)
    for chains, said in (
        (noisy, f"with 40 {units}"),
        (noisy._replace(position=noisy.position + 9), "moved"),
    ):
        (note,) = check_pilot_chains(case, chains, 40)
        assert said in note.sentence
        assert f"on 512 {units}" in note.sentence


@pytest.mark.slow
def test_the_default_is_right_where_hmc_ecs_runs_off():
    model, rows = positive_times(10)
    run = {"tune": 1_000, "chains": 4}
    post = quick(model, rows, method=mo.Auto(laplace=False), draws=1_000, **run)
    ran_off = quick(model, rows, method="hmc-ecs", draws=1_000, **run)
    assert post.settings["method"] == "nuts"
    assert [doubt.code for doubt in post.warnings] == []
    known = quick(model, rows, method="auto", tune=None, draws=4_000)  # along a skewed axis
    assert known.settings["method"] == "laplace"

    def error(fit):
        own, other = (each.summary().loc["intercept"] for each in (fit, known))
        off = abs(own["mean"] - other["mean"])
        return off / np.hypot(own["mcse_mean"], other["mcse_mean"])

    assert error(post) < TIMES
    assert "anchor-far" in {doubt.code for doubt in ran_off.warnings}  # negative control


def no_counts(n=2_000):
    """Return counts that are all zero: the prior decides, cut off where a count is expected."""
    x = np.random.default_rng(1).normal(size=(n, 2))
    return M.Poisson(prior_scale=2.5, intercept_scale=10.0), mo.Rows(x=x, y=np.zeros(n))


@pytest.mark.slow
def test_counts_that_are_all_zero_go_to_all_rows_and_are_sampled_right():
    model, rows = no_counts()
    target, centre = Target.of(model, rows)
    precision = -expanded_prior(target, centre)[2]
    noise = np.random.default_rng(5).normal(size=(50_000, 3))
    prior = centre + noise / np.sqrt(np.diag(precision))
    x = np.c_[all_of(rows)["x"], np.ones(len(rows))].T
    with np.errstate(over="ignore"):
        logs = np.concatenate([-np.exp(part @ x).sum(axis=1) for part in np.split(prior, 50)])
    weight = np.exp(logs)
    known = weight @ prior[:, 2] / weight.sum()
    spread = np.sqrt(np.sum((weight * (prior[:, 2] - known)) ** 2)) / weight.sum()
    post = quick(model, rows, method="auto", draws=1_000, tune=1_000, chains=4)
    assert post.tuning["method"].startswith("NUTS on all rows")
    mean, error = mean_and_error(post["intercept"])
    assert abs(mean - known) < TIMES * np.hypot(error, spread)
    assert abs(mean + 0.5 * post["intercept"].std() - known) > TIMES * error  # negative control


def test_a_hierarchy_whose_mode_is_a_singularity_is_not_subsampled():
    # towards tau = 0 the density of a centred hierarchy grows without bound
    try:
        method, plan = by_default(*centred_hierarchy(0.01))
    except mo.ConvergenceError:
        return  # refused, because there is no mode
    assert method.name == "nuts"
    assert plan.tuning["method"].startswith("NUTS on all rows, since")


def test_an_anchor_in_the_neck_of_a_funnel_is_warned_about():
    model, rows = centred_hierarchy(1.0)
    log_sigma, log_tau, mu = np.log(2.0), -12.0, 0.0
    theta = mu + np.exp(log_tau) * np.array([1.0, -1.0] * 4)
    with optimised_chains():  # the code of the tests above
        plan, _ = planned(model, rows, mo.HMCECS(anchor=[log_sigma, log_tau, mu, *theta]))
    assert {note.code for note in plan.notes} & UNFIT


def test_groups_that_differ_are_subsampled():
    method, _ = by_default(*centred_hierarchy(1.0))
    assert method.name == "hmc-ecs"


def test_the_mode_is_looked_for_once_when_the_default_changes():
    model, rows = logistic_rows_of_too_few()
    task = task_of(model, rows)
    assert mo.Auto(laplace=False).decide(task)[0].name == "nuts"
    together = task.ledger.by_purpose["mode"]
    _, alone = planned(model, rows, mo.NUTS())
    assert together == alone.by_purpose["mode"]


def logistic_rows_of_too_few():
    return M.Logistic(), logistic_rows(50)


# Bias bounds are withdrawn -----------------------------------------------------------------


def test_the_bias_bound_is_withdrawn_when_a_guard_speaks():
    crude = mo.HMCECS(order=0, subsample=100)
    post = quick(toy.MODEL, toy.rows(), method=crude, draws=20, tune=20, chains=1)
    assert {doubt.code for doubt in post.warnings} & BOUND_FALLS
    assert post.tuning["bias_bound"]["value"] is None
    assert post.tuning["bias_bound"]["why"].startswith("withdrawn, since")


@cases("code value", ("variance-high", None), ("anchor-far", None), ("r-hat", None), ("ess", 0.01))
def test_some_doubts_take_the_bound_back_and_some_do_not(code, value):
    tuning = {"bias_bound": {"value": 0.01, "why": "by the pilot study"}}
    withdraw_bound(tuning, [ModicumWarning(code, "it went wrong")])
    assert tuning["bias_bound"]["value"] == value


# Announced before the run ------------------------------------------------------------------


def test_a_subsample_larger_than_the_data_set_is_reported():
    rows = logistic_rows(400)
    plan, _ = planned(M.Logistic(), rows, mo.HMCECS(subsample=1_000))
    (note,) = [note for note in plan.notes if note.code == "subsample-exceeds-rows"]
    assert note.numbers == {"subsample": 1_000, "rows": 400}
    plan, _ = planned(M.Logistic(), rows, mo.SignedHMCECS(products=40, batch=20))
    assert any(note.code == "subsample-exceeds-rows" for note in plan.notes)
    plan, _ = planned(M.Logistic(), rows, mo.HMCECS(subsample=400))
    assert not any(note.code == "subsample-exceeds-rows" for note in plan.notes)


def test_a_batch_larger_than_the_data_set_is_reported():
    rows = logistic_rows(60)
    plan, _ = planned(M.Logistic(), rows, mo.SGLD(step_size=0.01))
    (note,) = [note for note in plan.notes if note.code == "batch-exceeds-rows"]
    assert note.numbers == {"batch": 100, "rows": 60}
    plan, _ = planned(M.Logistic(), rows, mo.SGLD(step_size=0.01, batch=60))
    assert not any(note.code == "batch-exceeds-rows" for note in plan.notes)


@cases(
    "method words",
    (mo.NUTS(), "NUTS on all 3,000 rows"),
    *slowly((mo.HMC(), "HMC on all 3,000 rows")),
    (mo.HMCECS(exact="delayed"), "exact='delayed' on all 3,000 rows"),
    (mo.HMCECS(subsample=2_000), "2,000 rows per step"),
    # without a coreset
    *slowly((mo.SignedHMCECS(products=40, batch=20, centre=0.0), "800 rows per step")),
)
def test_a_run_of_minutes_is_announced(method, words, monkeypatch):
    # pretend that a row takes a millisecond
    monkeypatch.setattr("modicum.methods.cost.seconds_per_gradient", lambda task: 1e-3)
    plan, _ = planned(M.Logistic(), logistic_rows(3_000), method)
    (note,) = [note for note in plan.notes if note.code == "slow"]
    assert words in note.sentence
    assert "minutes" in note.sentence
    monkeypatch.setattr("modicum.methods.cost.seconds_per_gradient", lambda task: 1e-8)
    plan, _ = planned(M.Logistic(), logistic_rows(3_000), method)
    assert not any(note.code == "slow" for note in plan.notes)


def test_a_row_is_timed():
    from modicum.methods.cost import seconds_per_gradient

    own = mo.Model(
        lambda theta: -0.5 * theta["a"] ** 2,
        lambda theta, batch: -0.5 * (batch["y"] - theta["a"]) ** 2,
        {"a": 0.0},
    )
    task = task_of(own, mo.Rows(y=np.arange(500.0)))
    assert 0 < seconds_per_gradient(task) < 0.1
    assert task.ledger.evaluations == 0


def test_more_rows_than_there_are_is_never_asked_for():
    x = np.random.default_rng(3).normal(size=(600, 2)) * 30
    y = (np.random.default_rng(4).random(600) < 0.5) * 1.0
    with pytest.raises(mo.SettingError, match=r"than the 600 rows there are; use design=.weighted"):
        planned(M.Logistic(), mo.Rows(x=x, y=y), mo.HMCECS(order=0, design="uniform"))
