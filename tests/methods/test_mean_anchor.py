"""Control variates about the posterior mean if the mode is on a kink, against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.compiling import optimised_chains
from helpers.quadrature import moments
from helpers.targets import means_apart, quick, softplus
from modicum.methods import without_mode as mean_anchor

SHARP = 150.0  # rate of a Laplace prior; a posterior sd is a few times 1 / SHARP
RNG = np.random.default_rng(7)
X = RNG.standard_normal(12_000)
Y = RNG.random(12_000) < 1 / (1 + np.exp(0.5 - 0.01 * X))
ROWS = mo.Rows(x=X, y=Y)
RUN = {"draws": 800, "tune": 300, "chains": 2, "random_seed": 2, "progressbar": False}


def lasso(th):
    return -SHARP * jnp.abs(th["b"]) - 0.5 * th["a"] ** 2


def bernoulli(th, batch):
    eta = th["a"] + th["b"] * batch["x"]
    return jnp.where(batch["y"], eta, 0.0) - jax.nn.softplus(eta)


LASSO = mo.Model(lasso, bernoulli, {"a": 0.0, "b": 0.0})


def sampled(method):
    with optimised_chains():
        return quick(LASSO, ROWS, method=method, **RUN)


def moments_by_quadrature():
    """Return mean and variance of each parameter, on a grid."""
    a, b = np.linspace(-0.62, -0.4, 23)[:, None], np.linspace(-0.08, 0.1, 91)[None]
    successes, along = Y.sum(), X[Y].sum()
    logs = a * successes + b * along - SHARP * np.abs(b) - 0.5 * a**2
    for x in np.array_split(X, 60):
        logs -= softplus(a[..., None] + b[..., None] * x).sum(axis=2)
    means, sds = moments(logs, a, b)
    return dict(zip("ab", zip(means, sds**2, strict=True), strict=True))


def faults(post, known):
    found = []
    for name, (mean, variance) in known.items():
        if means_apart(post[name], mean, slack=0.05 * variance**0.5):
            found.append((name, "mean"))
        if means_apart((post[name] - mean) ** 2, variance, slack=0.05 * variance):
            found.append((name, "variance"))
    return found


@pytest.fixture(scope="module")
def chosen():
    return sampled("auto")


@pytest.mark.slow
def test_the_default_expands_about_the_mean_where_there_is_no_mode(chosen):
    assert chosen.settings["method"] == "hmc-ecs"
    assert "anchor='mean'" in chosen.settings["settings"]
    assert "the mean of 4 short chains on 2,000 rows" in chosen.tuning["anchor"]
    known = moments_by_quadrature()
    assert faults(chosen, known) == []
    # negative control: without the prior the mean of b is elsewhere
    wrong = {"b": (known["b"][0] + 0.5 * known["b"][1] ** 0.5, known["b"][1])}
    assert faults(chosen, wrong) != []
    assert not {"anchor-far", "mode-not-typical"} & {w.code for w in chosen.warnings}


@pytest.mark.slow
def test_an_anchor_that_stays_where_the_subset_put_it_is_noticed(monkeypatch):
    monkeypatch.setattr(mean_anchor, "ROWS", 150)
    with monkeypatch.context() as patch:
        patch.setattr(mean_anchor, "MOST_STEPS", 0)
        with pytest.raises(mo.ConvergenceError, match="posterior sd from that of all rows"):
            sampled(mo.HMCECS(anchor="mean"))
        patch.setattr(mean_anchor, "FAR", np.inf)  # not even then
        post = sampled(mo.HMCECS(anchor="mean"))
        assert {"anchor-far", "mode-not-typical"} & {w.code for w in post.warnings}
    post = sampled(mo.HMCECS(anchor="mean"))  # corrected by passes over all rows, it is right
    assert not {"anchor-far", "mode-not-typical"} & {w.code for w in post.warnings}


def test_what_has_no_such_mean_is_refused():
    few = mo.Rows(x=X[:900], y=Y[:900])
    with pytest.raises(mo.ConvergenceError, match="models of your own"):
        mo.sample(LASSO, few, method=mo.HMCECS(anchor="mean"), **RUN)
