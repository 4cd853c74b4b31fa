"""Stochastic-gradient methods in `mo.sample`: budgets, coordinates, guards, resuming."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.compiling import optimised_chains
from helpers.refusals import refused, unwarned
from helpers.slow import slowly
from helpers.targets import (
    TIMES,
    Conjugate,
    flat_draws,
    location,
    mean_and_error,
    quick,
    same_draws,
)
from modicum.run import runner

RAW = {"whiten": False, "step_size": 0.005, "batch": 2}


def sample(method, target=None, **settings):
    target = target or location()
    given = {"tune": 0, "draws": 30, "chains": 3, "random_seed": 4} | settings
    if "passes" in settings:
        del given["draws"]
    with unwarned():
        return mo.sample(target.model, target.rows, method=method, progressbar=False, **given)


# Budgets -----------------------------------------------------------------------------------


@cases(
    "method passes rows iterations",
    (mo.SGLD(batch=1), 30, 20, 600),
    (mo.EWSG(batch=1), 30, 20, 300),
    (mo.EWSG(batch=1, index_steps=9), 30, 20, 60),
    (mo.EWSGLD(batch=1, weights="linear"), 30, 20, 200),
    (mo.SGHMC(batch=50), 1, 464_809, 9296),
    (mo.SVRGLD(batch=1, every=20), 30, 20, 200),  # 20 a snapshot, 2 a step: 60 a round
    (mo.SVRGLD(batch=1, every=20), 2, 20, 10),
    (mo.SVRGLD(batch=1, every=20), 1, 20, 0),
    (mo.EWSGSVRG(batch=2, every=5), 4, 30, 7),  # a round of 30 + 5 * 8, then 30 + 2 * 8
)
def test_gradients_are_counted_as_in_the_ewsg_paper(method, passes, rows, iterations):
    assert method.iterations(passes, rows) == iterations


def test_a_budget_in_passes_is_kept_to_the_row():
    post = sample(mo.EWSGSVRG(**RAW, every=4), passes=13)
    # a round: a snapshot of 20 rows, then 4 steps of 2 batches of 2 rows at 2 points
    assert post.num_draws == 4 * (13 * 20 // 52)
    assert post.ledger.by_purpose["sampling"] == 3 * 260
    assert post.stats["rows_touched"][0, :5].tolist() == [28, 8, 8, 8, 28]
    assert 0 < post.tuning["index_acceptance"] <= 1


@cases(
    "settings word",
    ({"passes": 3}, "differ in cost"),
    ({"method": "sgld", "passes": 3, "draws": 10}, "either draws or passes"),
    ({"method": "sgld", "passes": 0.01}, "are too few for a single draw"),
)
def test_budgets_that_cannot_be(settings, word):
    target = location()
    with pytest.raises(mo.SettingError, match=word):
        mo.sample(target.model, target.rows, progressbar=False, **settings)


def test_thinning_keeps_every_kth_draw_and_counts_all_rows(monkeypatch):
    method = mo.SGLD(**RAW)
    every = sample(method, draws=28, tune=8)
    for capacity in (None, 5):  # also windows that span chunks
        if capacity:
            monkeypatch.setattr(
                sys.modules["modicum.sample"], "capacity_for", lambda *_, c=capacity: c
            )
        fourth = sample(method, draws=7, tune=7, thin=4)  # warm-up is rounded up to 8
        np.testing.assert_array_equal(fourth["theta"], every["theta"][:, 3::4])
        assert fourth.stats["rows_touched"].tolist() == [[8] * 7] * 3
        assert fourth.ledger.by_purpose == every.ledger.by_purpose


# The same draws, whatever happens -----------------------------------------------------------

SVRG = mo.SVRGLD(**RAW, every=7)


@pytest.fixture(scope="module")
def whole():
    return sample(SVRG, thin=3)


@pytest.mark.parametrize("chunk", [0.0, *slowly(1e9)])
def test_snapshots_do_not_depend_on_chunks(whole, monkeypatch, chunk):
    monkeypatch.setattr(runner, "CHUNK_SECONDS", chunk)
    assert same_draws(sample(SVRG, thin=3), whole)


def test_snapshots_make_gradients_exact_here(whole):
    # gradients of the location model differ between rows by constants only
    assert whole.tuning["gradient_noise"]["value"] < 1e-20
    assert sample(mo.SGLD(**RAW)).tuning["gradient_noise"]["value"] > 0.05


# Right answers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [mo.SGHMCCV(batch=10, design="uniform"), *slowly(mo.SGLDCV())],
    ids=lambda method: method.name,
)
def test_the_chosen_step_gives_the_posterior_to_its_stated_bias(method):
    target = Conjugate()
    post = sample(method, target, draws=4000, chains=4, tune=200)
    h = post.tuning["step_size"]["value"]
    known = method.parts().integrator.response(h).variance()  # gradients are exact here
    assert 1.03 < known <= 1.05
    whiten = np.linalg.inv(np.linalg.cholesky(target.cov)).T
    white = (flat_draws(post) - target.mean) @ whiten
    at, error = mean_and_error(white)
    assert np.all(np.abs(at) <= TIMES * error)
    at, error = mean_and_error(white**2)
    assert np.all(np.abs(at - known) <= TIMES * error)


@cases(
    "method known",
    (mo.SVRGLD(step_size=0.02, batch=5, every=20, whiten=False), 1.111),
    *slowly((mo.EWSGSVRG(step_size=0.01, friction=10.0, batch=1, every=10, whiten=False), 1.026)),
    ids=lambda value: getattr(value, "name", None),
)
def test_snapshots_leave_only_the_integrators_error(method, known):
    target = location()
    exact = target.n * method.parts().integrator.response(method.step_size).variance(20.0)
    assert exact == pytest.approx(known, abs=0.01)
    start = tuple(target.mean)
    method = replace(method, start=start)
    with optimised_chains():
        post = sample(method, target, draws=10, thin=20, tune=300, chains=600)
    squares = target.n * (post["theta"] - target.mean) ** 2
    by_chain = squares.mean(axis=(1, 2))  # chains are independent, their draws are not
    error = by_chain.std(ddof=1) / np.sqrt(len(by_chain))
    assert abs(by_chain.mean() - exact) <= TIMES * error
    uniform = method.parts().integrator.response(method.step_size)
    noisy = target.n * uniform.variance(20.0, target.gradient_noise(method.batch))
    assert abs(by_chain.mean() - noisy) > TIMES * error  # unlike plain batches


def test_step_sizes_follow_a_schedule():
    schedule = mo.Decay(first=0.01, power=0.5, delay=10)
    post = sample(mo.SGLD(**RAW | {"step_size": schedule}), draws=12, tune=3)
    np.testing.assert_allclose(post.stats["step_size"][0], [schedule(k) for k in range(3, 15)])
    with pytest.raises(mo.SettingError, match="a positive number for every iteration"):
        sample(mo.SGLD(**RAW | {"step_size": lambda k: 1.0 - k}))


def test_a_checkpoint_wants_a_schedule_it_can_recognise(tmp_path):
    with pytest.raises(mo.SettingError, match="cannot tell one function from another"):
        sample(mo.SGLD(**RAW | {"step_size": lambda k: 0.1}), checkpoint=tmp_path)


# Coordinates and starts --------------------------------------------------------------------


def test_raw_parameters_need_no_mode(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("no mode is needed")

    monkeypatch.setattr("modicum.methods.method.anchor_at_mode", never)
    post = sample(mo.SGLD(**RAW, start=[3.0, -3.0]), draws=2)
    assert np.abs(post["theta"][:, 0] - [3.0, -3.0]).max() < 1.0
    assert post.ledger.by_purpose.keys() == {"sampling", "pilot"}


def test_many_parameters_in_single_precision():
    d = 2500  # more than a Hessian is formed for
    model = mo.Model(
        lambda th: -0.5 * (th["w"] ** 2).sum(),
        lambda th, batch: -0.5 * (batch["y"] - batch["x"] * th["w"][:3].sum()) ** 2,
        init={"w": np.linspace(-1, 1, d)},
    )
    x = np.linspace(0, 1, 50)
    target = type("Target", (), {"model": model, "rows": mo.Rows(x=x, y=2 * x)})
    post = sample(mo.SGHMC(step_size=0.01, batch=5, precision="float32"), target, draws=3, thin=5)
    assert post["w"].dtype == np.float32
    assert post["w"].shape == (3, 3, d)
    assert abs(post["w"][:, 0, -1] - 1).max() < 0.5  # the model's own start
    for settings, word in (
        ({}, "give step_size"),
        ({"step_size": 0.1, "whiten": True}, "whiten=True needs the Hessian"),
        ({"step_size": 0.1, "design": "weighted"}, "design='weighted' needs the Hessian"),
    ):
        refused(mo.SettingError, word, sample, mo.SGLD(**settings), target)


@cases(
    "make word",
    (lambda: mo.EWSG(x="zero", weights="linear"), "all equal"),
    (lambda: mo.SGHMC(period=5), 'belong to form="friction"'),
    (lambda: mo.StochasticGradient(estimator="tailor"), "did you mean 'taylor'"),
    (
        lambda: mo.StochasticGradient(
            integrator="langevin", selector=mo.kernels.stochastic_gradient.Exponential(x="rest")
        ),
        "needs a momentum",
    ),
)
def test_settings_that_make_no_sense_are_refused(make, word):
    refused(mo.SettingError, word, make)


@cases(
    "method word",
    (mo.SGLD(whiten=False), "in raw parameters; give step_size"),
    (mo.PSGLD(), "without knowing the curvature; give step_size"),
    (mo.SGLD(**RAW, start=[1.0]), "the start has 1 entries"),
    (mo.CPSGHMC(**RAW, clusters=5), "cannot hold one row of each of 5 groups"),
    (mo.CPSGHMC(**RAW, clusters=500), "cannot make 500 clusters"),
)
def test_what_only_the_rows_can_tell_is_refused_too(method, word):
    refused(mo.SettingError, word, sample, method)


# Guards ------------------------------------------------------------------------------------


def test_gradient_noise_beyond_the_dynamics_is_warned_of():
    target = location()
    with pytest.warns(mo.ModicumWarning, match="times too large"):
        post = mo.sample(
            target.model, target.rows, method=mo.SGLD(**RAW | {"step_size": 0.04}),
            draws=10, tune=0, random_seed=1, progressbar=False,
        )  # fmt: skip
    ratio = post.tuning["gradient_noise"]["value"]
    worst = 20**2 * target.c.var(axis=0).max()
    assert ratio == pytest.approx(0.04 / 4 * worst / RAW["batch"], rel=0.5)
    calm = sample(mo.SGLD(**RAW | {"step_size": 0.00025}), draws=10)
    assert not any("stochastic gradient" in text for text in map(str, calm.warnings))


def test_a_step_that_is_too_large_is_reported_and_the_draws_before_it_are_kept():
    post = sample(mo.SGLD(**RAW | {"step_size": 1.0}), draws=400)
    (doubt,) = [doubt for doubt in post.warnings if doubt.code == "chains-diverged"]
    assert "smaller step_size" in doubt.remedy
    assert np.isfinite(post["theta"][:, :50]).all()


# Learning curves ---------------------------------------------------------------------------


def test_a_learning_curve_follows_realisations_along_passes():
    target = location()
    post = sample(mo.SGLD(**RAW, start="zero"), passes=6, chains=40)
    curve = post.learning_curve(lambda now: np.abs(now["theta"].mean(axis=0)).max())
    assert curve.index[-1] == pytest.approx(6.0)
    assert len(curve) == 50
    at = post.learning_curve(lambda now: {"kl": target.kl(now["theta"]), "n": 1}, at=[0.1, 3, 6])
    assert list(at.columns) == ["kl", "n"]
    assert at["kl"].iloc[0] > at["kl"].iloc[-1]
    assert at["kl"].iloc[1] == pytest.approx(target.kl(post["theta"][:, 29]))
    with pytest.raises(mo.SettingError, match="no draw was made by 0"):
        post.learning_curve(lambda now: 0.0, at=[0.05])
    refused(mo.SettingError, "must be a function of draws by name", post.learning_curve, "theta")
    warm = sample(mo.SGLD(**RAW), draws=10, tune=30)
    assert warm.learning_curve(lambda now: 0.0).index[0] == pytest.approx(31 * 2 / 20)


@pytest.mark.slow
def test_chains_of_a_network_start_apart():
    """After one step too small to move them, weights of the first layer are still the first."""
    rows = mo.Rows(x=np.random.default_rng(1).normal(size=(12, 16)), y=np.arange(12) % 3)
    method = mo.SGHMC(whiten=False, step_size=1e-12, batch=2)
    post = quick(mo.models.MLP(hidden=(400,)), rows, method=method, draws=1, tune=0, chains=3)
    own = post["dense_0.kernel"][:, 0]
    assert np.allclose(own.std(axis=(1, 2)), np.sqrt(2 / 16), rtol=0.05)  # He's rule
    assert np.all(np.abs(np.corrcoef(own.reshape(3, -1)) - np.eye(3)) < 0.1)
