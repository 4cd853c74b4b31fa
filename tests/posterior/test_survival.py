"""Chances of survival, of rows and on average, against scipy and the Kaplan-Meier estimate."""

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import modicum as mo
from helpers.command import done, failed
from helpers.posteriors import fixed, made
from helpers.refusals import refused
from modicum.posterior.ppc import kaplan_meier, survival_table

TIMES = [0.0, 0.5, 2.0, 7.0]


def _posterior(model, x, **fields):
    """Return a posterior of known coefficients, of these rows."""
    rows = mo.Rows(x=x, columns=["dose"], **fields)
    draws = fixed(9, beta=[0.5], shape=1.5) | {"intercept": np.linspace(0.9, 1.1, 9)[None]}
    return made(model.resolved(rows), rows, draws)


def _table(rng, n):
    """Return Weibull times, half of which are censored."""
    x = rng.normal(size=(n, 1))
    time, until = np.exp(1 + 0.5 * x[:, 0]) * rng.weibull(1.5, n), rng.exponential(3.0, n)
    return x, {"y": np.minimum(time, until), "event": (time < until) * 1.0}


def test_chances_of_rows_are_those_of_the_distribution():
    x, fields = _table(np.random.default_rng(1), 40)
    post = _posterior(mo.models.Weibull(), x, **fields)
    predicted = post.predict({"x": x}, kind="survival", times=TIMES)
    scales = np.exp(np.linspace(0.9, 1.1, 9)[:, None, None] + 0.5 * x)
    truth = stats.weibull_min(1.5, scale=scales).sf(TIMES)
    np.testing.assert_allclose(predicted.mean, truth.mean(axis=0), atol=1e-9)
    assert list(predicted.to_frame())[3] == "mean[0.5]"
    np.testing.assert_array_equal(predicted.mean[:, 0], 1)


@pytest.mark.parametrize(
    ("model", "eta", "truth"),
    [
        (mo.models.Poisson(), [0.4], stats.poisson(np.exp(0.4)).sf),
        (mo.models.NegativeBinomial(), [0.4, np.log(0.5)],
         stats.nbinom(2.0, 1 / (1 + 0.5 * np.exp(0.4))).sf),
        (mo.models.ZeroInflatedPoisson(), [0.4, 0.0],
         lambda t: np.where(np.array(t) < 0, 1, 0.5 * stats.poisson(np.exp(0.4)).sf(t))),
        (mo.models.Beta(), [0.0, np.log(3.0)], stats.beta(1.5, 1.5).sf),
    ],
)  # fmt: skip
def test_times_may_be_numbers_that_outcomes_are_not(model, eta, truth):
    """A count is beyond 1.5 if it is beyond 1, as often as beyond 1.9; no share is beyond 1."""
    times = [-1.0, -0.5, 0.0, 0.3, 0.9, 1.0, 1.5, 1.9, 4.7]
    found = jax.jit(model.answer)(np.array(eta), np.array(times))
    np.testing.assert_allclose(found, truth(times), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "survival"}, "give them, as in times="),
        ({"times": [1.0]}, "times are those of 'survival'"),
        ({"kind": "hazard", "times": [1.0]}, "must be 'mean' or 'survival'"),
    ],
)
def test_times_that_say_nothing_are_refused(arguments, words):
    x, fields = _table(np.random.default_rng(1), 5)
    with pytest.raises(mo.SettingError, match=words):
        _posterior(mo.models.Weibull(), x, **fields).predict({"x": x}, **arguments)
    angles = _posterior(mo.models.VonMises(), x, y=np.linspace(0.1, 0.9, 5))
    with pytest.raises(mo.SettingError, match="VonMises has no distribution function"):
        angles.predict({"x": x}, kind="survival", times=[0.5])


def test_the_average_curve_is_near_kaplan_meiers():
    """Which takes censored rows for what they are; without them it would be too low."""
    x, fields = _table(np.random.default_rng(2), 3000)
    table = survival_table(_posterior(mo.models.Weibull(), x, **fields), np.array(TIMES))
    assert np.abs(table["mean"] - table["kaplan_meier"]).max() < 0.04
    ones = np.ones(3000)
    ignored = kaplan_meier(fields["y"], ones == 1, ones, np.array(TIMES))
    assert np.abs(table["mean"] - ignored).max() > 0.1
    left = _posterior(mo.models.Weibull(), x, y=fields["y"], cens=-ones)
    refused(mo.DataError, "censored from the left", survival_table, left, np.array(TIMES))


def test_chances_on_the_command_line(tmp_path):
    x, fields = _table(np.random.default_rng(3), 200)
    trial, run = tmp_path / "trial.csv", tmp_path / "run"
    table = pd.DataFrame({"dose": x[:, 0], "days": fields["y"], "died": fields["event"]})
    table.to_csv(trial, index=False)
    settings = ["--family=exponential", "--draws=100", "--method=laplace", "--quiet"]
    done("fit", trial, "days | event(died) ~ dose", *settings, "--out", run)
    done("predict", run, trial, "--times=1,2.5", "--out", tmp_path / "chances.csv")
    chances = pd.read_csv(tmp_path / "chances.csv")
    assert list(chances)[::3] == ["mean[1]", "mean[2.5]"]
    assert np.all(chances["mean[1]"] > chances["mean[2.5]"])
    said = failed("predict", run, trial, "--times=soon", "--out", tmp_path / "b.csv")
    assert "must be numbers such as 30,90,365" in said
