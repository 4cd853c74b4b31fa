"""Bayesian R-squared, against the definition by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import modicum as mo
from helpers import posteriors
from helpers.refusals import refused
from modicum.errors import DataError, SettingError

RNG = np.random.default_rng(8)
N = 300
X = RNG.normal(size=(N, 2))
ROWS = mo.Rows(x=X, y=np.zeros(N), columns=["dose", "age"])
DRAWS = {
    "beta": RNG.normal([0.8, -0.5], 0.1, size=(2, 100, 2)),
    "intercept": RNG.normal(0.3, 0.1, size=(2, 100)),
}
ETA = DRAWS["beta"].reshape(-1, 2) @ X.T + DRAWS["intercept"].reshape(-1, 1)


def explained(mean, noise):
    between = mean.var(axis=1)
    return between / (between + noise.mean(axis=1))


def test_a_normal_outcome_is_explained_by_the_variance_of_its_mean():
    scale = RNG.uniform(0.5, 2.0, size=(2, 100))
    post = posteriors.made(mo.models.Gaussian(), ROWS, DRAWS | {"scale": scale})
    right = explained(ETA, np.broadcast_to(scale.reshape(-1, 1) ** 2, ETA.shape))
    line = post.bayes_R2().loc["R2"]
    assert line["mean"] == pytest.approx(right.mean())
    assert line["sd"] == pytest.approx(right.std(ddof=1))
    np.testing.assert_allclose(line[["5%", "95%"]], np.quantile(right, [0.05, 0.95]), atol=0.02)
    # negative control: the R-squared of the average draw is another
    at_mean = explained(ETA.mean(axis=0)[None], np.full((1, N), (scale**2).mean()))
    assert abs(line["mean"] - at_mean.item()) > 0.01
    weights = np.where(scale > 1, 3.0, 1.0)
    post.weights = weights
    weighted = np.average(right, weights=weights.ravel())
    assert post.bayes_R2()["mean"].item() == pytest.approx(weighted)
    assert abs(weighted - right.mean()) > 0.02


def test_chances_have_the_variance_of_a_coin():
    post = posteriors.made(mo.models.Logistic(), ROWS, DRAWS)
    p = expit(ETA)
    assert post.bayes_R2()["mean"].item() == pytest.approx(explained(p, p * (1 - p)).mean())
    times = np.arange(N) % 3
    rows = mo.Rows(x=X, y=np.zeros(N), weight=1.0 * times, columns=["dose", "age"])
    weighted = posteriors.made(mo.models.Logistic(), rows, DRAWS).bayes_R2()["mean"].item()
    p = np.repeat(p, times, axis=1)
    assert weighted == pytest.approx(explained(p, p * (1 - p)).mean())


def test_a_sample_of_rows_adds_its_error(monkeypatch):
    rng = np.random.default_rng(9)
    x = rng.gamma(1.0, size=(4_000, 1))
    rows = mo.Rows(x=x, y=np.zeros(4_000), columns=["dose"])
    known = posteriors.fixed(50, beta=[0.4], intercept=0.1)
    post = posteriors.made(mo.models.Poisson(), rows, known)
    truth = post.bayes_R2()
    assert truth["sd"].item() < 1e-9
    tables = [post.bayes_R2(subsample=800, random_seed=seed) for seed in range(20)]
    away = np.array([(t["mean"] - truth["mean"]).item() / t["sd"].item() for t in tables])
    monkeypatch.setattr("modicum.posterior.outcomes.CHUNK_BYTES", 8 * 50 * 30)
    in_blocks = post.bayes_R2(subsample=800, random_seed=0)  # of 30 rows
    pd.testing.assert_frame_equal(in_blocks, tables[0], rtol=1e-9)
    assert 0.5 < np.sqrt(np.mean(away**2)) < 1.6  # 20 squares of normal numbers, at 4.5 sd


def test_group_effects_explain_too():
    ward = RNG.integers(0, 3, N)
    rows = mo.Rows(x=X, y=np.zeros(N), codes={"ward": ward}, columns=["dose", "age"])
    model = mo.models.Gaussian(scale=1.0, groups=("ward",)).resolved(rows)
    effects = RNG.normal(0, 2, size=(2, 100, 3))
    draws = DRAWS | {"1|ward": effects, "group_sd": np.ones((2, 100, 1))}
    post = posteriors.made(model, rows, draws)
    right = explained(ETA + effects.reshape(-1, 3)[:, ward], np.ones((1, N)))
    assert post.bayes_R2()["mean"].item() == pytest.approx(right.mean())
    assert abs(explained(ETA, np.ones((1, N))).mean() - right.mean()) > 0.1  # without the effects


def test_families_without_a_variance_are_refused():
    post = posteriors.made(mo.models.Softmax(classes=3), ROWS, posteriors.fixed(
        50, beta=np.zeros((2, 2)), intercept=np.zeros(2)))  # fmt: skip
    refused(SettingError, "Softmax does not define the variance", post.bayes_R2)
    angles = posteriors.made(mo.models.VonMises(), ROWS, posteriors.fixed(
        50, beta=np.zeros(2), intercept=0.0, concentration=1.0))  # fmt: skip
    refused(SettingError, r"VonMises does not define .* angles have none", angles.bayes_R2)


@pytest.mark.parametrize("field", ["se", "added_se"])
def test_known_errors_of_outcomes_are_noise(field):
    scale, known = RNG.uniform(0.5, 2.0, size=(2, 100)), RNG.uniform(0.5, 2.0, N)
    rows = mo.Rows(x=X, y=np.zeros(N), columns=["dose", "age"], **{field: known})
    own = {} if field == "se" else {"scale": scale}
    model = replace(mo.models.Gaussian(), observed=(field,))
    post = posteriors.made(model, rows, DRAWS | own)
    noise = known**2 + (scale.reshape(-1, 1) ** 2 if own else np.zeros((200, 1)))
    right = explained(ETA, noise).mean()
    assert post.bayes_R2()["mean"].item() == pytest.approx(right)
    assert abs(explained(ETA, noise - known**2 + 1e-9).mean() - right) > 0.1  # negative control
    refused(DataError, f"depend on the field '{field}'", post.bayes_R2, ROWS)
