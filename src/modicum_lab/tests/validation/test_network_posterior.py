"""Posteriors of networks: weights are not identified, so predictions are compared."""

import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.targets import TIMES, quick
from modicum.diagnostics import mcse

RNG = np.random.default_rng(5)
X = RNG.uniform(-2, 2, size=(60, 1))
Y = np.sin(2 * X[:, 0]) + 0.3 * RNG.normal(size=60)
AT = np.linspace(-2.5, 2.5, 11)[:, None]


def outputs(th, x):
    h = jnp.tanh(x @ th["dense_0"]["kernel"] + th["dense_0"]["bias"])
    return (h @ th["dense_1"]["kernel"] + th["dense_1"]["bias"])[:, 0]


def model_by_hand(prior_scale=1.0):
    """Return the posterior of the MLP as an `mo.Model`."""

    def log_prior(th):
        layers = [th[name][part] for name in ("dense_0", "dense_1") for part in ("kernel", "bias")]
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in layers) / prior_scale**2

    def log_likelihood(th, batch):
        return -0.5 * ((batch["y"] - outputs(th, batch["x"])) / 0.3) ** 2

    init = mo.models.MLP(hidden=(3,), activation="tanh", likelihood="gaussian").start(
        mo.Rows(x=X, y=Y)
    )
    return mo.Model(log_prior, log_likelihood, init, lambda th, batch: outputs(th, batch["x"]))


def predictions(post):
    """Return predicted means at AT, (chain, draw, point)."""
    flat = {k: v.reshape(-1, *v.shape[2:]) for k, v in post.draws.items()}
    return post.predictor(flat, {"x": AT}).reshape(post.chains, post.num_draws, -1)


def sampled(model, seed):
    run = {"method": "nuts", "draws": 1000, "tune": 500, "chains": 4, "random_seed": seed}
    return quick(model, mo.Rows(x=X, y=Y), **run)  # weights of a network never agree


@pytest.mark.slow
def test_predictions_match_the_same_model_by_hand():
    net = mo.models.MLP(hidden=(3,), activation="tanh", likelihood="gaussian", noise_scale=0.3)
    ours = predictions(sampled(net, 1))
    theirs = predictions(sampled(model_by_hand(), 2))
    error = np.hypot(mcse(ours), mcse(theirs))
    assert np.all(np.abs(ours.mean(axis=(0, 1)) - theirs.mean(axis=(0, 1))) < TIMES * error)
    # negative control: another prior is another posterior
    wide = predictions(sampled(model_by_hand(prior_scale=3.0), 3))
    error = np.hypot(mcse(ours), mcse(wide))
    assert np.any(np.abs(ours.mean(axis=(0, 1)) - wide.mean(axis=(0, 1))) > TIMES * error)


@pytest.mark.slow
def test_a_network_with_kinks_is_sampled_from_bytes_and_from_a_store(tmp_path):
    pixels = RNG.integers(0, 256, size=(60, 2))
    y = (pixels.sum(axis=1) > 255) * 1
    rows = mo.Rows(x=pixels, y=y, dtype="uint8")
    net = mo.models.MLP(hidden=(2,), prior_scale=3.0)
    post = quick(net, rows, draws=30, tune=50)
    assert post.score(rows).accuracy > 0.9
    stored = mo.rows.ingest(rows, tmp_path / "store", dtype=None, progressbar=False)
    assert stored.dtype == np.uint8
    assert stored.fingerprint() == rows.fingerprint()
    streamed = quick(net, stored, draws=30, tune=50, method=mo.HMC(memory_limit=0))
    np.testing.assert_array_equal(streamed["dense_0.kernel"], post["dense_0.kernel"])
    # negative control: random outcomes cannot be predicted
    shuffled = mo.Rows(x=pixels, y=RNG.permutation(y), dtype="uint8")
    assert post.score(shuffled).accuracy < 0.7
