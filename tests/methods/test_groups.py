"""Explicit group effects, compared with quadrature and with NUTS on all rows."""

import numpy as np
import pytest

import modicum as mo
from helpers.quadrature import normal_given, shares
from helpers.targets import TIMES, mean_and_error, means_apart, quick, sums_of
from modicum.kernels.moves import HMCMove
from modicum.kernels.whitening import Whitening
from modicum.passes import anchor_at_mode

M, P, G = mo.models, mo.priors, mo.models.GroupTerm
RUN = {"chains": 2, "random_seed": 1, "progressbar": False}
CAREFUL = mo.HMCECS(target_accept=0.9)
LEVELS, PER_LEVEL, TAU_PRIOR = 10, 60, 0.5


def thin():
    """Return level means with standard error .13, and even smaller effects."""
    rng = np.random.default_rng(7)
    group = np.repeat(np.arange(LEVELS), PER_LEVEL)
    y = 0.3 + 0.08 * rng.normal(size=LEVELS)[group] + rng.normal(size=len(group))
    x = rng.normal(size=(len(group), 1))
    return mo.Rows(x=x, y=y, codes={"g": group})


def thin_model():
    priors = {"common": P.Normal(0, 1), "intercept": P.Normal(0, 1)}
    return M.Gaussian(scale=1.0, groups="g", priors=priors | {"g": P.HalfNormal(TAU_PRIOR)})


@pytest.fixture(scope="module")
def truth():
    return exactly(TAU_PRIOR)


def exactly(tau_prior):
    """Return means of tau, its square, its root and u_0, with all else integrated out exactly."""
    batch = thin().slice(0, LEVELS * PER_LEVEL)
    Z = np.zeros((len(batch["y"]), LEVELS))
    Z[np.arange(len(Z)), batch["g"]] = 1
    X = np.c_[batch["x"], np.ones(len(Z)), Z]
    h = np.linspace(np.log(1e-4), np.log(3), 1500)
    precisions = np.column_stack([np.ones((1500, 2)), *[np.exp(-2 * h)] * LEVELS])
    logs, mean, _ = normal_given(X.T @ X, X.T @ batch["y"], precisions)
    logs += h - 0.5 * (np.exp(h) / tau_prior) ** 2
    tau = np.exp(h)
    return shares(logs) @ np.c_[tau, tau**2, np.sqrt(tau), mean[:, 2]]


def faults(post, truth):
    tau = post["group_sd"][..., 0]
    return means_apart(np.stack([tau, tau**2, np.sqrt(tau), post["1|g"][..., 0]], axis=-1), truth)


@pytest.fixture(scope="module")
def posterior():
    with pytest.warns(mo.ModicumWarning, match=r"hardly distinguish group_sd\[g\] from 0"):
        return mo.sample(thin_model(), thin(), method=CAREFUL, draws=2_500, tune=500, **RUN)


def test_a_scale_that_data_hardly_tell_from_0_is_right(posterior, truth):
    assert not faults(posterior, truth)
    assert faults(posterior, exactly(0.1 * TAU_PRIOR))  # another prior is noticed
    assert float(posterior.summary()["ess_bulk"].min()) > posterior.draws["beta"].size / 4


@pytest.mark.slow
def test_a_map_without_its_volume_is_noticed(truth, monkeypatch):
    """Negative control: scaled effects without the Jacobian in the density."""
    right = Whitening.straighten
    monkeypatch.setattr(Whitening, "straighten", lambda own, z: (right(own, z)[0], 0.0 * z[0]))
    wrong = mo.HMCECS(target_accept=0.9, inner=HMCMove(1.1999))  # compiled separately
    post = quick(thin_model(), thin(), method=wrong, draws=2_000, tune=500)
    assert faults(post, truth)


def test_the_density_that_is_sampled_is_that_of_all_rows(posterior):
    """`lp` excludes the Jacobian; with a quadratic likelihood there is nothing to correct."""
    corrected = posterior.correct(thin(), draws=400, progressbar=False)
    assert np.ptp(corrected.stats["log_weight"]) < 1e-6


def test_few_levels_and_a_scale_near_zero_are_named():
    rng = np.random.default_rng(2)
    fields = {"x": rng.normal(size=(400, 1)), "y": rng.normal(size=400)}

    def codes_of(levels):
        held = mo.Rows(**fields, codes={"g": np.arange(400) % levels})
        sums, start = sums_of(M.Gaussian(scale=1.0, groups="g"), held)
        return [note.code for note in anchor_at_mode(sums, start, within=0.01).notes]

    assert codes_of(3) == ["groups-few"]
    assert codes_of(40) == ["group-sd-near-zero"]
    fields["y"] += rng.normal(size=40)[np.arange(400) % 40]
    assert codes_of(40) == []


# Against NUTS on all rows ------------------------------------------------------------------------


def crossed(n=6_000):
    rng = np.random.default_rng(3)
    g, h = rng.integers(0, 12, n), rng.integers(0, 25, n)
    x = rng.normal(size=(n, 2))
    u = rng.multivariate_normal([0, 0], [[0.25, 0.1], [0.1, 0.16]], size=12)
    v = 0.3 * rng.normal(size=25)
    eta = -0.5 + 0.4 * x[:, 0] + u[g, 0] + u[g, 1] * x[:, 0] + v[h]
    y = rng.random(n) < 1 / (1 + np.exp(-eta))
    return mo.Rows(x=x, y=y * 1.0, columns=["a", "b"], codes={"g": g, "h": h})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["hmc-ecs", "hmc-ecs-signed"])
def test_crossed_groups_with_correlated_slopes_agree_with_all_rows(method):
    model = M.Logistic(groups=[G("g", ("1", "a")), "h"])
    run = RUN | {"draws": 2_000, "tune": 700}
    both = [mo.sample(model, crossed(), method=m, **run) for m in (method, "nuts")]
    for name in ("beta", "intercept", "group_sd", "group_cor", "1|g", "a|g", "1|h"):
        ours, theirs = (mean_and_error(post.draws[name]) for post in both)
        spread = both[1].draws[name].std(axis=(0, 1))
        error = np.hypot(ours[1], theirs[1])
        assert np.all(np.abs(ours[0] - theirs[0]) < TIMES * error + 0.1 * spread), name
    scales = both[1]["group_sd"]
    assert np.all(scales.mean(axis=(0, 1)) > 2 * scales.std(axis=(0, 1)))  # more than the prior
