"""Scores of predictions equal NumPy's, with weights, signs and chunks."""

import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax
from scipy.stats import norm

import modicum as mo
from helpers.posteriors import at_nodes, bare
from helpers.targets import class_rows, gaussian_rows, logistic_rows
from modicum.posterior import Posterior

ROWS = logistic_rows(301)
X, Y = ROWS.slice(0, 301)["x"], ROWS.slice(0, 301)["y"]
RNG = np.random.default_rng(1)
BETA = RNG.normal(np.linspace(-0.8, 0.8, 3), 0.3, size=(3, 50, 3))
INTERCEPT = RNG.normal(0.3, 0.3, size=(3, 50))


def make(weights=None, model=None, **draws):
    draws = draws or {"beta": BETA, "intercept": INTERCEPT}
    return bare(model or mo.models.Logistic(), draws, weights=weights)


def by_hand(y=Y):
    """Return probabilities of a one and log-densities, (chain, draw, row)."""
    p = expit(BETA @ X.T + INTERCEPT[..., None])
    return p, np.log(np.where(y > 0, p, 1 - p))


def test_averaged_and_single_predictions_are_those_by_hand():
    p, density = by_hand()
    found = make().score(ROWS, draws=10_000)
    assert (found.rows, found.draws) == (301, 150)
    assert found.accuracy == pytest.approx(np.mean((p.mean(axis=(0, 1)) > 0.5) == Y))
    averaged = logsumexp(density, axis=(0, 1)) - np.log(150)
    assert found.log_density == pytest.approx(averaged.mean())
    single = ((p > 0.5) == Y).mean(axis=(1, 2))
    np.testing.assert_allclose(found.accuracy_by_chain, single)
    np.testing.assert_allclose(found.log_density_by_chain, density.mean(axis=(1, 2)))
    assert found.single_log_density < found.log_density  # Jensen
    assert "301 rows" in repr(found)


def test_chunks_change_nothing():
    whole, longer = make().score(ROWS), make().score({"x": np.tile(X, (9, 1)), "y": np.tile(Y, 9)})
    assert longer.log_density == pytest.approx(whole.log_density)
    np.testing.assert_allclose(longer.accuracy_by_chain, whole.accuracy_by_chain)


def test_signs_and_weights_of_draws_and_rows_count():
    p, density = by_hand()
    weights = np.where(RNG.random((3, 50)) < 0.1, -1.0, 1.0)
    mass = RNG.integers(0, 3, size=301) * 1.0
    found = make(weights).score({"x": X, "y": Y, "weight": mass}, draws=150)
    share = weights / weights.sum()
    right = np.log(np.einsum("cd,cdr->r", share, np.exp(density)))
    assert found.log_density == pytest.approx(np.average(right, weights=mass))
    bets = np.einsum("cd,cdr->r", share, p) > 0.5
    assert found.accuracy == pytest.approx(np.average(bets == Y, weights=mass))
    each = np.average(density, axis=2, weights=mass)
    by_chain = (weights * each).sum(axis=1) / weights.sum(axis=1)
    np.testing.assert_allclose(found.log_density_by_chain, by_chain)
    assert found.single_log_density == pytest.approx((share * each).sum())
    # negative control: signs ignored
    assert abs(make().score(ROWS, draws=150).log_density - found.log_density) > 1e-4


def test_signs_that_cancel_are_warned_of():
    weights = np.ones((3, 50))
    weights[:, ::2] = -0.99
    with pytest.warns(mo.ModicumWarning, match="signs of the draws cancel"):
        make(weights).score(ROWS, draws=150)


def test_classes_and_real_outcomes():
    rows = class_rows(120)
    batch = rows.slice(0, 120)
    beta, intercept = RNG.normal(size=(2, 9, 2, 2)), RNG.normal(size=(2, 9, 2))
    found = make(model=mo.models.Softmax(classes=3), beta=beta, intercept=intercept).score(rows)
    eta = np.einsum("cdkj,rj->cdrk", beta, batch["x"]) + intercept[:, :, None]
    chances = softmax(np.concatenate([eta, np.zeros((2, 9, 120, 1))], axis=-1), axis=-1)
    assert found.accuracy == np.mean(chances.mean(axis=(0, 1)).argmax(axis=-1) == batch["y"])
    rows = gaussian_rows(50)
    real = make(model=mo.models.Gaussian(scale=1.0)).score(rows)
    assert np.isnan(real.accuracy)
    assert np.isfinite(real.log_density)
    assert "accuracy" not in repr(real)


def test_a_custom_model_need_not_predict():
    model = mo.Model(
        log_prior=lambda th: 0.0,
        log_likelihood=lambda th, batch: -0.5 * (batch["y"] - th["level"]) ** 2,
        init={"level": 0.0},
    )
    found = make(model=model, level=np.zeros((1, 5))).score({"y": np.full(4, 2.0)})
    assert found.log_density == pytest.approx(-2.0)
    assert np.isnan(found.accuracy)


def test_saved_networks_predict_and_score(tmp_path):
    net = mo.models.CNN(channels=(2,), kernel=3, hidden=(4,), start_seed=3)
    pixels = RNG.integers(0, 256, size=(20, 36))
    rows = mo.Rows(x=pixels, y=np.arange(20) % 3, dtype="uint8")
    draws = {k: np.asarray(v)[None, None] for k, v in net.report(net.start(rows)).items()}
    post = make(model=net, **draws)
    post.save(tmp_path / "net")
    loaded = Posterior.load(tmp_path / "net")
    assert loaded.score(rows).log_density == post.score(rows).log_density
    assert loaded.predictor.model == net


def test_the_error_of_few_draws_is_told():
    post = make()
    whole, few = post.score(ROWS), post.score(ROWS, draws=30)
    assert (whole.draws, few.draws) == (150, 30)
    ratio = np.exp(by_hand()[1].reshape(150, -1))
    by_draw = (ratio / ratio.mean(axis=0)).mean(axis=1)
    assert whole.mcse_log_density == pytest.approx(by_draw.std() / np.sqrt(150), rel=0.5)
    assert abs(few.log_density - whole.log_density) < 4.5 * few.mcse_log_density
    assert few.mcse_log_density > 1.3 * whole.mcse_log_density


def test_integrated_groups_have_their_own_effects():
    """Rows were scored as if every row were in a new group, unlike predictions."""
    n, tau, noise = 60, 1.5, 0.7
    clinic = np.arange(n) % 6
    y = RNG.normal(size=6)[clinic] * tau + noise * RNG.normal(size=n)
    rows = mo.Rows(x=np.zeros((n, 1)), y=y, clinic=clinic)
    model = mo.models.IntegratedEffects(mo.models.Gaussian(scale=noise), "clinic").resolved(rows)
    ones = np.ones((2, 1000))
    draws = {"beta": 0 * ones[..., None], "intercept": 0 * ones, "group_sd": tau * ones[..., None]}
    post = make(model=at_nodes(model, rows, draws), **draws)
    post.rows = rows
    variance = 1 / (1 / tau**2 + 10 / noise**2)
    mean = np.array([variance * y[clinic == j].sum() / noise**2 for j in range(6)])
    density = norm.logpdf(y, mean[clinic], np.sqrt(variance + noise**2))
    found = post.score(rows)
    assert found.log_density == pytest.approx(density.mean(), abs=0.005)
    alone = norm.logpdf(y, 0.0, np.hypot(tau, noise))
    assert alone.mean() < density.mean() - 0.3
    assert post.score({"x": np.zeros((n, 1)), "y": y}).log_density == pytest.approx(alone.mean())
