"""Plots show the right data; how they look is not tested."""

import builtins

import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused
from modicum import plots


@pytest.fixture(autouse=True)
def no_window(monkeypatch):
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture
def post():
    rng = np.random.default_rng(1)
    draws = {"beta": rng.normal([0.0, 3.0], 0.5, size=(2, 200, 2)), "scale": np.ones((2, 200))}
    labels = {"beta": ("age", "dose")}
    return mo.Posterior(draws, {}, mo.Ledger(10), labels=labels, settings={"method": "nuts"})


def test_forest_draws_quantiles(post):
    ax = plots.forest(post, ["beta[dose]", "beta[age]"], transform=np.exp)
    middles = ax.lines[0].get_xdata()
    np.testing.assert_allclose(middles, np.exp(post.quantile("beta", 0.5)[::-1]))
    assert [t.get_text() for t in ax.get_yticklabels()] == ["beta[dose]", "beta[age]"]
    assert ax.lines[0].get_color() == plots.METHOD_COLOURS["nuts"]


def test_forest_takes_parameters_labels_and_axes(post):
    ax = plots.forest(post)
    assert len(ax.get_yticks()) == 3
    assert plots.forest(post, "beta", labels=["a", "b"], ax=ax) is ax


def test_marginal_respects_weights(post):
    post.weights = np.where(np.arange(400).reshape(2, 200) % 4 == 0, -1.0, 1.0)
    ax = plots.marginal(post, "beta[dose]")
    heights, edges, _ = ax.patches[0].get_data()
    assert np.isclose(np.sum(heights * np.diff(edges)), 1.0)
    assert np.isclose(ax.lines[0].get_xdata()[0], post.mean("beta")[1])


def test_what_cannot_be_drawn_is_explained(post):
    refused(mo.SettingError, "did you mean 'beta\\[dose\\]'", plots.forest, post, "beta[dos]")
    refused(mo.SettingError, "2 entries", plots.marginal, post, "beta")
    refused(mo.SettingError, "1 labels for 2", plots.forest, post, "beta", labels=["a"])
    with pytest.raises(mo.SettingError, match="bins must be a whole number"):
        plots.marginal(post, "beta[age]", bins=0)
    post.weights = np.where(np.arange(400).reshape(2, 200) % 2, 1.0, -1.0)
    refused(mo.SettingError, "signs cancel", plots.marginal, post, "beta[age]")


def test_cost_draws_passes_beside_those_of_all_rows(post):
    post.ledger.full_data = 100_000
    post.ledger.add("mode", 30, "hessian")
    post.ledger.add("sampling", 50, "gradient")
    ax = plots.cost({"this": post})
    assert [round(bar.get_width(), 6) for bar in ax.patches] == [3.0, 5.0]
    assert "8 passes; HMC on all rows: 10,000" in ax.texts[0].get_text()
    refused(mo.SettingError, "at least one posterior", plots.cost, {})


def test_rows_that_matter_come_first_in_the_picture_of_residuals():
    """A tenth of the rows have a large x, so their curvature changes; compare with NumPy."""
    rng = np.random.default_rng(1)
    x = np.where(np.arange(200) % 10 == 0, 20.0, 0.2)[:, None]
    rows = mo.Rows(x=x, y=1.0 * (rng.random(200) < 0.5))
    beta = rng.normal(0.1, 0.05, size=(2, 60, 1))
    model = mo.models.Logistic(intercept=False, prior_scale=1.0)
    post = mo.Posterior({"beta": beta}, {}, mo.Ledger(rows=200), rows=rows)
    post.predictor = mo.models.over_draws.ModelPredictor(model)
    ax = plots.residual_weights(post, draws=120)
    held = ax.lines[0].get_ydata()
    at, mean = beta.reshape(-1, 1) * x[:, 0], beta.mean() * x[:, 0]
    p = 1 / (1 + np.exp(-mean))
    gap = at - mean
    residual = np.logaddexp(0, at) - np.logaddexp(0, mean) - p * gap - p * (1 - p) * gap**2 / 2
    sizes = np.sort(np.sqrt((residual**2).mean(axis=0)))[::-1]
    np.testing.assert_allclose(held, 100 * np.cumsum(sizes) / sizes.sum(), atol=0.1)
    assert held[19] > 99
    quadratic = mo.models.Gaussian(scale=1.0, intercept=False, prior_scale=1.0)
    post.predictor = mo.models.over_draws.ModelPredictor(quadratic)
    refused(mo.SettingError, "all residuals are zero", plots.residual_weights, post)


def test_errors_match_running_means(post):
    touched = {"rows_touched": np.full((2, 200), 5)}
    ledger = mo.Ledger(10)
    ledger.add("mode", 40, "hessian")
    ledger.add("sampling", 2000, "gradient")
    run = mo.Posterior(post.draws, touched, ledger)
    rng = np.random.default_rng(2)
    right = {"beta": rng.normal([0.0, 3.0], 0.5, size=(2, 4000, 2)), "scale": np.ones((2, 4000))}
    reference = mo.Posterior(right, {}, mo.Ledger(10))
    ax = plots.error_against_cost({"run": run}, reference)
    passes, errors = ax.lines[0].get_data()
    assert (passes[0], passes[-1]) == (5.0, 204.0)
    away = np.abs(run.mean("beta") - reference.mean("beta")) / reference.sd("beta")
    assert errors[-1] == pytest.approx(away.max())
    run.weights = np.where(np.arange(400).reshape(2, 200) % 5 == 0, -1.0, 1.0)
    signed = plots.error_against_cost({"run": run}, reference).lines[0].get_ydata()
    away = np.abs(run.mean("beta") - reference.mean("beta")) / reference.sd("beta")
    assert signed[-1] == pytest.approx(away.max())
    with pytest.raises(mo.SettingError, match="'post' cannot be plotted"):
        plots.error_against_cost({"post": post}, reference)


def test_without_matplotlib(monkeypatch):
    known = builtins.__import__

    def missing(name, *arguments, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return known(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    refused(mo.SettingError, "pip install", plots.pyplot)
