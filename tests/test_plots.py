"""Pictures show what they should; what they look like is for eyes."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

import modicum as mo
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
    with pytest.raises(mo.SettingError, match="did you mean 'beta\\[dose\\]'"):
        plots.forest(post, "beta[dos]")
    with pytest.raises(mo.SettingError, match="2 entries"):
        plots.marginal(post, "beta")
    with pytest.raises(mo.SettingError, match="1 labels for 2"):
        plots.forest(post, "beta", labels=["a"])
    with pytest.raises(mo.SettingError, match="between 0 and 1"):
        plots.forest(post, prob=90)
    with pytest.raises(mo.SettingError, match="bins must be a whole number"):
        plots.marginal(post, "beta[age]", bins=0)
    post.weights = np.where(np.arange(400).reshape(2, 200) % 2, 1.0, -1.0)
    with pytest.raises(mo.SettingError, match="signs cancel"):
        plots.marginal(post, "beta[age]")
    post.draws["beta"][1, 3] = np.nan
    with pytest.raises(mo.SettingError, match="beta is not finite from draw 3 of chain 1"):
        plots.marginal(post, "beta[age]")


def test_cost_draws_passes_beside_those_of_all_rows(post):
    post.ledger.full_data = 100_000
    post.ledger.add("mode", 30, "hessian")
    post.ledger.add("sampling", 50, "gradient")
    ax = plots.cost({"this": post})
    assert [round(bar.get_width(), 6) for bar in ax.patches] == [3.0, 5.0]
    assert "8 passes; HMC on all rows: 10,000" in ax.texts[0].get_text()
    with pytest.raises(mo.SettingError, match="no posterior"):
        plots.cost({})


def test_without_matplotlib(monkeypatch):
    known = builtins.__import__

    def missing(name, *arguments, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return known(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(mo.SettingError, match="pip install"):
        plots.pyplot()


def test_a_colour_for_every_method_and_for_others():
    assert len(set(plots.METHOD_COLOURS.values())) == len(plots.METHOD_COLOURS)
    assert plots.colour_of("unheard of") == plots.OTHER
