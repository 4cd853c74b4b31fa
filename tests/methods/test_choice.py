"""The default: which method is chosen, why, what it reports, and that no clock decides."""

import inspect

import numpy as np
import pytest

import modicum as mo
from helpers.interrupted import task_of
from helpers.pilots import small_pilots
from helpers.refusals import refused
from helpers.targets import logistic_rows
from modicum.cli.fitting import build_method
from modicum.methods import auto as choice
from modicum.methods import cost, laplace
from modicum.methods.skewed_axes import AxisMoments
from modicum.sklearn import LinearRegression, LogisticRegression, PoissonRegressor, Regressor

M = mo.models
RUN = {"random_seed": 3, "progressbar": False}
ROWS = logistic_rows(6_000)


@pytest.fixture(scope="module")
def heard():
    return []


@pytest.fixture(scope="module")
def post(heard):
    return mo.sample(M.Logistic(), ROWS, draws=500, random_seed=3, progressbar=heard.append)


def test_auto_is_the_default_of_every_door():
    doors = (mo.sample, mo.fit, Regressor, LogisticRegression, LinearRegression, PoissonRegressor)
    for door in doors:
        assert inspect.signature(door).parameters["method"].default == "auto"


def test_normal_draws_are_taken_where_they_are_enough_and_reported(post, heard):
    assert post.settings["method"] == "laplace"
    assert post.weights is None
    assert post.warnings == []
    line = post.tuning["method"]
    assert line.startswith("weighted normal draws: about ")
    assert "; NUTS on all rows would take about " in line
    assert line in [event.phase for event in heard]


def with_a_little_skewness(draws=1_000):
    """Fit forty levels of some 25 events; return the posterior, and errors by quadrature.

    These are errors of numbers that should be posterior means, in standard errors of the draws'.
    """
    levels, per = np.repeat(np.arange(40), 10), 10
    y = np.random.default_rng(0).poisson(2.5, len(levels))
    post = mo.fit("y ~ 0 + C(g)", {"y": y, "g": levels}, family="poisson",
                  priors={"C(g)": mo.priors.Normal(0, 3)}, **RUN, draws=draws)  # fmt: skip
    assert post.settings["method"] == "laplace"
    grid = np.linspace(-2, 3, 2_001)
    logs = np.bincount(levels, y)[:, None] * grid - per * np.exp(grid) - grid**2 / 18
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    mean = density @ grid
    error = np.sqrt((density @ grid**2 - mean**2) / post.summary(["beta"])["ess_bulk"])
    return post, lambda of: (of - mean) / error, grid[np.argmax(logs, axis=1)]


@pytest.mark.parametrize("learned", [True, False])
def test_many_axes_that_are_a_little_skewed_need_no_chain(learned, monkeypatch):
    """Their moments are learned, or each draw takes several of a normal."""
    if not learned:
        monkeypatch.setattr(laplace.NormalDensity, "_with_moments", lambda self, own, _: own)
    post, errors, mode = with_a_little_skewness()
    share = int(post.tuning["verdict"].split("% effective")[0].split()[-1])
    assert share > 90 if learned else 15 < share < 60
    assert ("the posterior's moments" in post.tuning["method"]) == learned
    mean = post.summary(["beta"])["mean"]
    assert np.abs(errors(mean)).max() < 4
    assert np.sqrt(np.mean(errors(mean) ** 2)) < 1.5
    # negative control: without weights the mean of draws would be the mode
    assert np.sqrt(np.mean(errors(mode) ** 2)) > 3


def test_draws_with_moments_are_weighted_by_their_density(monkeypatch):
    """Negative control: without the Jacobian of the map that bends them, means are wrong."""
    along = AxisMoments.along
    monkeypatch.setattr(AxisMoments, "along", lambda self, u: (along(self, u)[0], 0.0))
    post, errors, _ = with_a_little_skewness(draws=2_000)
    assert np.sqrt(np.mean(errors(post.summary(["beta"])["mean"]) ** 2)) > 3


def test_no_clock_decides(post, monkeypatch):
    monkeypatch.setattr(cost, "seconds_per_gradient", lambda task, busy: 1e-30)
    monkeypatch.setattr(cost, "COMPILING", 1e9)
    again = mo.sample(M.Logistic(), ROWS, draws=500, method="auto", **RUN)
    np.testing.assert_array_equal(again.draws["beta"], post.draws["beta"])
    assert again.tuning["method"] != post.tuning["method"]  # only the reported seconds differ


def test_predicted_times_know_of_a_busy_machine(monkeypatch):
    """Of a load of 8 on two cores, one is perhaps our own: three more wait for each of ours."""
    task, work = task_of(M.Logistic(), ROWS), cost.Work(rows=1e9, iterations=1e4, steps=1e5)
    monkeypatch.setattr(cost.os, "cpu_count", lambda: 2)

    def seconds(load):
        monkeypatch.setattr(cost.os, "getloadavg", lambda: (load, 0.0, 0.0))
        return cost.seconds_for(task, work)[0]

    idle = seconds(0.0)
    assert seconds(1.0) == idle  # that of this process
    assert seconds(8.0) == pytest.approx(4.5 * idle)


@pytest.mark.parametrize("setting", [{"thin": 2}, {"parallel": "stacked"}])
def test_who_asks_for_chains_gets_chains(setting, monkeypatch):
    asked = []

    def decide(self, task):
        asked.append(self)
        raise mo.SettingError("enough of this.")

    monkeypatch.setattr(mo.Auto, "decide", decide)
    refused(mo.SettingError, "enough", mo.sample, M.Logistic(), ROWS, draws=20, **setting, **RUN)
    refused(mo.SettingError, "enough", mo.sample, M.Logistic(), ROWS, draws=20, **RUN)
    assert asked == [mo.Auto(laplace=False), mo.Auto()]


def test_a_warm_up_by_habit_asks_for_no_chain(post):
    same = mo.sample(M.Logistic(), ROWS, draws=500, tune=700, **RUN)
    np.testing.assert_array_equal(same.draws["beta"], post.draws["beta"])
    assert same.tuning["method"].endswith(" They need no warm-up: tune=700 is not used.")
    assert same.settings["tune"] == 0
    assert "tune" not in post.tuning["method"]


def test_settings_of_a_method_on_the_command_line_say_which_is_meant():
    assert build_method("auto", []) == mo.Auto()
    assert build_method("auto", ["subsample=400"]) == mo.HMCECS(subsample=400)
    assert build_method("auto", ["exact=delayed"]) == mo.HMCECS(exact="delayed")
    assert build_method("auto", ["target_accept=0.9"]) == mo.HMCECS(target_accept=0.9)
    assert build_method("auto", ["pool=3000"]) == mo.Laplace(pool=3000)
    assert build_method("auto", ["max-depth=5"]) == mo.NUTS(max_depth=5)
    assert build_method("nuts", ["target_accept=0.9"]) == mo.NUTS(target_accept=0.9)
    refused(mo.SettingError, "not a setting of hmc-ecs", build_method, "auto", ["subsampel=400"])


def test_a_posterior_that_is_not_normal_is_subsampled_if_rows_are_many(monkeypatch):
    y = np.zeros(3_000)
    y[:4] = 1  # four events: the intercept's posterior is skewed
    rows = mo.Rows(x=np.asarray(ROWS.slice(0, 3_000)["x"]), y=y)
    assert mo.Auto().decide(task_of(M.Logistic(prior_scale=1.0), rows))[0].name == "laplace"
    monkeypatch.setattr(laplace, "skewed_places", lambda *_: [])  # which others follow
    monkeypatch.setattr(laplace.NormalDensity, "_with_moments", lambda self, own, _: own)
    method, plan = mo.Auto().decide(task_of(M.Logistic(prior_scale=1.0), rows))
    assert method.name == "nuts"
    assert "3,000 rows are few" in plan.tuning["method"]
    monkeypatch.setattr(cost, "SHORT", 0.0)
    with small_pilots():
        method, plan = mo.Auto().decide(task_of(M.Logistic(prior_scale=1.0), rows))
    assert method.name == "hmc-ecs"
    assert plan.tuning["normal draws"].startswith("not taken: Pareto k ")
    assert "skewed axes" not in plan.tuning  # there is no wall, so no curves are needed
    m = plan.tuning["subsample"]["value"]
    assert plan.tuning["method"].startswith(f"HMC-ECS, m = {m:,}: about ")
    assert "NUTS on all rows would take about" in plan.tuning["method"]


def test_all_rows_are_used_where_subsampling_is_refused_or_dearer(monkeypatch):
    few = task_of(M.Logistic(), logistic_rows(60))
    method, plan = mo.Auto(laplace=False).decide(few)
    assert method.name == "nuts"
    assert "too few for subsampling" in plan.tuning["method"]
    task = task_of(M.Logistic(), ROWS)
    assert mo.Auto(laplace=False).decide(task)[0].name == "hmc-ecs"
    all_rows = cost.Work.of_chains(task, 40.0, 1.0)  # pretend that a pass takes as long as 40 rows
    monkeypatch.setattr(cost.Work, "of_chains", lambda *_: all_rows)
    weights, cheap = choice._weights(task, all_rows), cost.Work(all_rows.gradients - 1)
    with pytest.raises(choice.SubsamplingError, match="which costs more"):
        choice._plan_subsampling(mo.HMCECS(), weights, cheap)


def test_groups_need_no_chain_and_chains_of_few_rows_take_all_of_them(monkeypatch):
    rng = np.random.default_rng(4)
    group, x = rng.integers(0, 30, 2_400), rng.normal(size=(2_400, 1))
    y = x[:, 0] + rng.normal(size=30)[group] + rng.normal(size=2_400)
    task = task_of(M.Gaussian(scale=1.0, groups="g"), mo.Rows(x=x, y=y, codes={"g": group}))
    method, plan = mo.Auto().decide(task)
    assert method.name == "laplace"
    assert "given the scales of pooled terms: " in plan.tuning["method"]
    method, plan = mo.Auto(laplace=False).decide(task)
    assert method.name == "nuts"
    assert "since scales of groups are sampled" in plan.tuning["method"]
    assert "2,400 rows are few" in plan.tuning["method"]
    monkeypatch.setattr(cost, "SHORT", 0.0)  # with many rows, subsampling would be fine
    assert mo.Auto(laplace=False).decide(task)[0].name == "hmc-ecs"
