"""Weighted normal draws against NUTS, their verdict, and the choice that knows its cost."""

import numpy as np
import pytest

import modicum as mo
from helpers.targets import flat_draws, logistic_rows, mean_and_error
from modicum.ledger import Ledger
from modicum.methods import choice
from modicum.methods.base import Task
from modicum.methods.laplace import Verdict
from modicum.methods.laplace import _doubts as doubts_of
from modicum.models import Target
from modicum.passes import LocalEngine, Sums
from modicum.posterior.weighted import weighted_mean

M = mo.models
RUN = {"random_seed": 3, "progressbar": False}
ROWS = logistic_rows(6_000)


def task_of(model, rows):
    target, start = Target.of(model, rows)
    sums = Sums(target, rows, LocalEngine(progressbar=False), Ledger(rows=len(rows)))
    names = tuple(f"t{i}" for i in range(target.size))
    return Task(target, start, rows, sums, names, 500, 500, 4, 3)


@pytest.fixture(scope="module")
def post():
    return mo.sample(M.Logistic(), ROWS, method=mo.Laplace(pool=3_000), draws=500, **RUN)


@pytest.fixture(scope="module")
def exact():
    return mo.sample(M.Logistic(), ROWS, method="nuts", draws=600, tune=300, **RUN)


def test_weighted_draws_have_the_posteriors_moments(post, exact):
    assert post.warnings == []
    assert post.weights.shape == (4, 500)
    assert post.settings["tune"] == 0
    assert "enough" in post.tuning["verdict"]
    assert post.ledger.by_purpose["weights"] == 3_000 * 2_000
    known, error = mean_and_error(flat_draws(exact))
    sd = flat_draws(exact).std(axis=(0, 1))
    found = np.concatenate([np.ravel(post.mean(name)) for name in post.draws])
    both = np.hypot(error, sd / np.sqrt(2_000))
    assert np.all(np.abs(found - known) < 4.5 * both)
    # negative control: a mean off by 0.4 posterior sd is noticed
    assert not np.all(np.abs(found + 0.4 * sd - known) < 4.5 * both)


def test_weights_are_those_of_all_rows_where_the_pool_holds_them():
    rows = logistic_rows(60)
    model = M.Logistic(prior_scale=1.0, intercept_scale=1.0)
    post = mo.sample(model, rows, method="laplace", draws=1_000, chains=1, **RUN)
    log_posterior = mo.LogPosterior(model, rows)
    mode = log_posterior.mode()
    points = flat_draws(post)[0]
    z = np.linalg.solve(mode.factor, (points - mode.point).T).T
    exact = log_posterior.values(points) + 0.5 * np.sum(z**2, axis=1)
    weights = np.exp(exact - exact.max())
    smooth = post.weights[0] / post.weights[0].sum()
    bulk = np.argsort(weights)[:800]  # the largest are smoothed
    ratio = np.log(smooth[bulk]) - np.log(weights[bulk])
    np.testing.assert_allclose(ratio, ratio[0], atol=2e-3)  # about the mode to within .01
    assert post.tuning["pool_noise"] == 0
    # the plain normal approximation is another distribution: weights matter
    plain = weighted_mean(points[None], np.ones((1, 1_000)))
    assert np.max(np.abs(plain - weighted_mean(points[None], smooth[None])) / points.std(0)) > 0.05


def test_the_verdict_and_the_doubts_that_follow_from_it():
    assert [doubt.code for doubt in doubts_of(Verdict(0.8, 0.1, 0.3), 100)] == [
        "laplace-far", "laplace-pool",
    ]  # fmt: skip
    assert doubts_of(Verdict(0.6, 0.3, 0.01), 100) == []
    assert not Verdict(0.2, 0.9, 0.2).enough
    assert "usable" in Verdict(0.6, 0.3, 0.0).text(100)
    assert "not to be relied on" in Verdict(0.8, 0.1, 0.0).text(100)


def seconds(**known):
    return lambda *_: {"hmc-ecs": 5.0, "nuts": 1_200.0, "laplace": 2.0} | known


def test_auto_takes_what_is_right_and_says_so(monkeypatch):
    monkeypatch.setattr(choice, "_seconds", seconds())  # machines differ
    post = mo.sample(M.Logistic(), ROWS, method="auto", draws=500, **RUN)
    assert post.settings["method"] == "laplace"
    assert post.tuning["choice"] == (
        "weighted normal draws: about 2 s; HMC-ECS, m = 40 would take about 5 s; NUTS on all rows "
        "would take about 20 minutes."
    )


def test_auto_takes_weighted_draws_only_where_they_will_do(monkeypatch):
    monkeypatch.setattr(choice, "_seconds", seconds())
    monkeypatch.setattr(choice, "_normal_enough", lambda *_: False)
    task = task_of(M.Logistic(), ROWS)
    method, plan = mo.Auto().decide(task)
    assert method.name == "hmc-ecs"
    assert plan.tuning["choice"].startswith("HMC-ECS, m = 40: about 5 s; NUTS on all rows would")
    monkeypatch.setattr(choice, "_seconds", seconds(nuts=1.0))
    assert mo.Auto().decide(task)[0].name == "nuts"


def test_auto_says_why_all_rows_are_taken():
    post = mo.sample(M.Logistic(), logistic_rows(60), method=mo.Auto(), draws=100, tune=100, **RUN)
    assert post.settings["method"] == "nuts"
    assert "too few for subsampling" in post.tuning["choice"]


def test_refusals():
    with pytest.raises(mo.SettingError, match="pool must be a whole number"):
        mo.Laplace(pool=1)
    images = mo.Rows(x=np.ones((9, 2)), y=np.arange(9) % 3)
    with pytest.raises(mo.SettingError, match="networks do not allow"):
        mo.sample(M.MLP(), images, method="laplace", **RUN)
