"""NUTS and HMC without a useful mode: kinks, funnels, hierarchies, searches that fail."""

import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.interrupted import task_of
from helpers.quadrature import shares
from helpers.targets import (
    TIMES,
    Conjugate,
    all_of,
    logistic_rows,
    mean_and_error,
    means_apart,
    quick,
)
from modicum.methods import cost
from modicum.passes import mode

Y = np.r_[np.full(9, 0.1), -1.0, 1.0]


def kinked(th):
    return -3 * jnp.abs(th["a"]) - th["s"]


def absolute(th, batch):
    return -jnp.abs(batch["y"] - th["a"]) / th["s"] - jnp.log(th["s"])


KINKED = mo.Model(kinked, absolute, constraints={"s": mo.positive})


def moments_by_quadrature():
    a = np.linspace(-2, 2, 1_601)[:, None]
    s = np.exp(np.linspace(-4, 3, 1_401))[None]
    log = -3 * np.abs(a) - s - np.abs(Y[:, None, None] - a).sum(axis=0) / s - len(Y) * np.log(s)
    p = shares(log + np.log(s))  # the grid is even in log s
    return {name: [(p * x**k).sum() for k in (1, 2)] for name, x in (("a", a), ("s", s))}


def sampled(model, rows, **changes):
    given = {"method": "nuts", "draws": 1_000, "tune": 600, "chains": 4, "random_seed": 4}
    return quick(model, rows, **given | changes)


def faults(post, known):
    return [
        (name, power)
        for name, moments in known.items()
        for power, moment in enumerate(moments, 1)
        if means_apart(post[name] ** power, moment)
    ]


@pytest.fixture(scope="module")
def kink():
    return sampled(KINKED, mo.Rows(y=Y))


def test_a_posterior_with_kinks(kink):
    assert "chains start from dispersed points" in kink.tuning["mode"]
    assert kink.tuning["metric"] == "dense"
    assert faults(kink, moments_by_quadrature()) == []
    kink.draws["a"] = kink["a"] + 0.4 * kink["a"].std()  # negative control
    assert ("a", 1) in faults(kink, moments_by_quadrature())


def test_hmc_and_a_diagonal_metric():
    method = mo.HMC(jitter=0.3, metric="diagonal")
    post = sampled(KINKED, mo.Rows(y=Y), method=method, draws=2_000)
    assert post.tuning["metric"] == "diagonal"
    assert faults(post, moments_by_quadrature()) == []


def test_by_default_too_all_rows_are_used_and_a_fixed_step_is_refused():
    method, plan = mo.Auto(laplace=False).decide(task_of(KINKED, mo.Rows(y=np.tile(Y, 300))))
    assert method.name == "nuts"
    assert "no mode that could be found" in plan.tuning["method"]
    with pytest.raises(mo.ConvergenceError, match="no mode was found"):
        sampled(KINKED, mo.Rows(y=Y), method=mo.NUTS(step_size=0.1))


# A family's mode that is not found ---------------------------------------------------------


@pytest.fixture
def no_climb(monkeypatch):
    """Let the search for a mode stop where it starts."""
    monkeypatch.setattr(mode, "MAX_STEPS", 0)


def test_by_default_a_family_is_sampled_on_all_rows_with_one_warning(no_climb):
    # Columns in units of a millionth and a million: chains must start in the prior's units.
    exact = Conjugate()
    units = np.array([1e6, 1.0, 1e-6])
    fields = all_of(exact.rows)
    prior_scale = tuple(0.3 / units)
    model = mo.models.Gaussian(scale=0.7, prior_scale=prior_scale, intercept_scale=0.5)
    rows = mo.Rows(x=fields["x"] * units, y=fields["y"])
    post = sampled(model, rows, method="auto", draws=500)
    assert post.settings["method"] == "nuts"
    assert [doubt.code for doubt in post.warnings] == ["no-mode"]
    assert "NUTS runs on all rows from dispersed points" in str(post.warnings[0])
    assert "no mode that could be found" in post.tuning["method"]
    post.draws["beta"] = post["beta"] * units
    known = {"intercept": [exact.mean[3], exact.mean[3] ** 2 + exact.cov[3, 3]]}
    assert faults(post, known) == []
    for k in range(3):
        mean, error = mean_and_error(post["beta"][..., k])
        assert abs(mean - exact.mean[k]) < TIMES * error
        assert abs(mean + 0.5 * exact.cov[k, k] ** 0.5 - exact.mean[k]) > TIMES * error  # control


def test_other_methods_refuse_it_and_name_nuts(no_climb, monkeypatch):
    for method in ("hmc-ecs", "laplace"):
        with pytest.raises(mo.ConvergenceError, match=r"or use method='nuts', which needs no mode"):
            sampled(mo.models.Logistic(), logistic_rows(), method=method)
    monkeypatch.setattr(cost, "AFFORDABLE", 0.0)  # as if there were many rows
    with pytest.raises(mo.ConvergenceError, match=r"or use method='nuts', which needs no mode"):
        sampled(mo.models.Logistic(), logistic_rows(), method="auto")


def test_where_the_mode_would_show_that_there_is_no_posterior_it_is_required(no_climb):
    flat = {"common": mo.priors.Flat(), "intercept": mo.priors.Flat()}
    remote = mo.Rows(x=np.eye(40)[:, :2], y=1e12 + np.arange(40.0) % 7)
    logistic = mo.models.Logistic(priors=flat), logistic_rows()
    for given, method in (
        (logistic, "auto"),
        (logistic, "nuts"),
        ((mo.models.Gaussian(), remote), "nuts"),
    ):
        with pytest.raises(mo.ConvergenceError, match="no mode was found") as caught:
            sampled(*given, method=method)
        assert "nuts" not in str(caught.value)
