"""Every method samples non-quadratic priors correctly, compared with quadrature."""

import numpy as np
import pytest

import modicum as mo
from helpers.quadrature import shares
from helpers.slow import slowly
from helpers.targets import TIMES, flat_draws, mean_and_error, means_apart, softplus

M, P = mo.models, mo.priors
PRIORS = {"a": P.Laplace(0, 0.02), "b": P.StudentT(2, 0, 0.02)}
RUN = {"chains": 2, "random_seed": 1, "progressbar": False}


def data():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2_000, 2))
    y = rng.random(2_000) < 1 / (1 + np.exp(-0.1 * x[:, 0] - 0.3 * x[:, 1]))
    return x, y * 1.0


def rows():
    x, y = data()
    return mo.Rows(x=x, y=y, columns=["a", "b"])


def model(**priors):
    return M.Logistic(intercept=False, priors=priors or PRIORS)


@pytest.fixture(scope="module")
def truth():
    """Return posterior means of a, b and their squares, on a grid."""
    x, y = data()
    a, b = np.meshgrid(np.linspace(-0.12, 0.25, 75), np.linspace(-0.05, 0.5, 56), indexing="ij")
    points = np.c_[a.ravel(), b.ravel()]
    log = np.empty(len(points))
    for part in np.array_split(np.arange(len(points)), 40):
        eta = points[part] @ x.T
        log[part] = eta @ y - softplus(eta).sum(1)
    log += -np.abs(points[:, 0]) / 0.02 - 1.5 * np.log1p((points[:, 1] / 0.02) ** 2 / 2)
    return shares(log) @ np.c_[points, points**2]


def faults(post, truth):
    """Whether means and second moments differ from the grid's beyond Monte Carlo error."""
    draws = flat_draws(post)
    return means_apart(np.concatenate([draws, draws**2], axis=2), truth)


OTHERS = ("nuts", "hmc-ecs-signed", "flymc", "hmc", mo.HMCECS(inner="nuts"))


@pytest.mark.parametrize("method", ["hmc-ecs", *slowly(*OTHERS)])
def test_a_kink_and_a_heavy_tail_are_sampled(method, truth):
    post = mo.sample(model(), rows(), method=method, draws=1_500, tune=300, **RUN)
    assert not faults(post, truth)
    if method == "hmc-ecs":
        assert float(post.summary()["ess_bulk"].min()) > 300
        corrected = post.correct(rows(), draws=500, progressbar=False)
        assert corrected.tuning["correction"]["largest_shift"] < 0.1
        assert np.ptp(corrected.stats["log_weight"]) < 1.0  # `lp` has the exact prior in it


def test_normal_priors_of_the_same_scale_are_distinguished(truth):
    """The negative control of the other tests."""
    other = model(a=P.Normal(0, 0.02 * np.sqrt(2)), b=P.Normal(0, 0.02 * np.sqrt(2)))
    with pytest.warns(mo.ModicumWarning):
        post = mo.sample(other, rows(), method=mo.Laplace(weighted=False), draws=500, **RUN)
    assert faults(post, truth)


@pytest.mark.slow
def test_stochastic_gradients_have_the_exact_prior(truth):
    post = mo.sample(model(), rows(), method=mo.SGLDCV(), draws=4_000, tune=500, thin=4, **RUN)
    draws = flat_draws(post)
    sd = np.sqrt(truth[2:] - truth[:2] ** 2)
    assert np.all(np.abs(draws.mean(axis=(0, 1)) - truth[:2]) < 0.3 * sd)


@pytest.mark.slow
def test_the_horseshoe_agrees_between_subsampling_and_all_rows():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3_000, 6))
    y = rng.random(3_000) < 1 / (1 + np.exp(0.5 - x[:, 0]))
    both = [
        mo.sample(
            M.Logistic(priors={"common": P.Horseshoe(0.1)}), mo.Rows(x=x, y=y), method=method,
            draws=2_000, tune=500, **RUN,
        )
        for method in ("hmc-ecs", "nuts")
    ]  # fmt: skip
    for name in ("beta", "intercept", "horseshoe_scale"):
        ours, theirs = (mean_and_error(post.draws[name]) for post in both)
        error = np.hypot(ours[1], theirs[1])
        assert np.all(np.abs(ours[0] - theirs[0]) < TIMES * error)
    assert np.all(np.abs(both[0].mean("beta")[1:]) < 0.06)  # shrunk: errors are .04
    assert both[0].mean("beta")[0] > 0.85  # free
