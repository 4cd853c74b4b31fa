"""FlyMC: every variant is right, reproducible, counted correctly and guarded."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers import toy
from helpers.interrupted import planned
from helpers.refusals import unwarned
from helpers.targets import class_rows, disagreements, flat_draws, gaussian_rows, logistic_rows
from models.test_bounds import Flat
from modicum.kernels import firefly as kernel
from modicum.kernels.bounds import BOUNDS
from modicum.kernels.firefly import implicit
from modicum.kernels.moves import HMCMove
from modicum.methods.flymc import look_back
from modicum.methods.method import Task
from modicum.random import chain_keys, words_at_start
from modicum.run.iterations import begin
from modicum.run.runner import History

M = mo.models
SLOW = pytest.mark.slow


@cache
def fly_toy(draws=2500, chains=2, seed=1, **settings):
    return toy.sample(mo.FlyMC(**settings), draws=draws, chains=chains, random_seed=seed)


# Right answers -----------------------------------------------------------------------------


def test_the_toy_posterior():
    post = fly_toy(tuned=True, update="implicit")
    assert toy.faults(post) == []
    assert post.stats["n_bright"].mean() / toy.N == pytest.approx(0.0002, rel=0.3)
    assert not post.stats["bright_refused"].any()


@SLOW
@pytest.mark.parametrize("tuned", [True, False])
@pytest.mark.parametrize("update", ["implicit", "explicit"])
def test_the_toy_posterior_at_length(tuned, update):
    post = fly_toy(draws=10_000, chains=4, seed=3, tuned=tuned, update=update)
    assert toy.faults(post) == []
    assert np.abs(toy.distance(post)[0]).max() < (0.05 if update == "implicit" else 0.12)
    bright = post.stats["n_bright"].mean() / toy.N
    assert bright == (pytest.approx(0.0002, rel=0.3) if tuned else pytest.approx(0.0485, rel=0.03))


@SLOW
@pytest.mark.parametrize(
    ("move", "rate"),
    [("mala", 0.574), ("random-walk", 0.234), ("nuts", 0.8), (HMCMove(1.5, jitter=0.3), 0.8)],
)
def test_other_moves_on_the_toy(move, rate):
    post = fly_toy(draws=6_000 if rate < 0.8 else 2_500, inner=move)
    assert toy.faults(post) == []
    assert post.stats["acceptance_rate"].mean() == pytest.approx(rate, abs=0.15)
    assert (post.stats["n_steps"] == 1).all() == (rate < 0.8)


@SLOW
def test_a_bound_above_the_likelihood_is_noticed(monkeypatch):
    monkeypatch.setitem(BOUNDS, M.Logistic, Flat)
    post = toy.sample(mo.FlyMC(tuned=False), draws=2500, chains=2, random_seed=1)
    assert toy.faults(post) != []


@SLOW
def test_lights_that_never_change_are_noticed(monkeypatch):
    def asleep(key, seen):
        return implicit(key, seen)._replace(possible=jnp.asarray(False))

    monkeypatch.setitem(kernel.UPDATES, "implicit", asleep)
    method = mo.FlyMC(tuned=False, capacity=602)
    post = toy.sample(method, draws=2500, chains=2, random_seed=1)
    assert toy.faults(post) != []


def with_everything():
    rng = np.random.default_rng(6)
    x, y = logistic_rows(1_000).slice(0, 1_000).values()
    offset, weight = 0.5 * rng.normal(size=1_000), rng.integers(0, 3, 1_000)
    return mo.Rows(x=x, y=y, offset=offset, weight=weight)


PROBLEMS = {
    "student": (M.StudentT(scale=0.6), gaussian_rows(1_000), True),
    "student, scale unknown": (M.StudentT(df=3.0), gaussian_rows(1_000), True),
    "student, untuned": (M.StudentT(df=3.0), gaussian_rows(400), False),
    "softmax": (M.Softmax(classes=3), class_rows(1_000), True),
    "softmax, untuned": (M.Softmax(classes=3), class_rows(400), False),
    "logistic, offset, weight": (M.Logistic(), with_everything(), True),
}


@SLOW
@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_family_against_all_rows(problem):
    model, rows, tuned = PROBLEMS[problem]
    run = {"draws": 4_000, "tune": 500, "chains": 2, "random_seed": 11, "progressbar": False}
    theirs = mo.sample(model, rows, method="nuts", **run)
    with unwarned():
        post = mo.sample(model, rows, method=mo.FlyMC(tuned=tuned), **run)
    assert disagreements(flat_draws(post), flat_draws(theirs)) == []


# Honest accounts ---------------------------------------------------------------------------


def test_every_choice_is_explained():
    post = fly_toy(tuned=True, update="implicit")
    for name in ("bound", "rate", "capacity", "step_size"):
        assert set(post.tuning[name]) == {"value", "why"}
        assert post.tuning[name]["why"]
    assert "rows expected" in post.tuning["bright"]
    assert post.tuning["rate"]["value"] == 32 / toy.N
    assert post.warnings == []


def test_the_ledger_adds_up():
    post = fly_toy(tuned=True, update="implicit")
    counts, stats = post.ledger.counts, post.stats
    assert counts["bound", "hessian"] == toy.N
    assert counts["sampling", "gradient"] == stats["rows_touched"].sum()
    # evaluations of the move and of the density before it, rows tried, rows bright before
    moved = stats["n_bright"] * (stats["n_steps"] + 1)
    lights = stats["rows_touched"] - moved
    before = stats["n_bright"][:, :-1]
    tried = lights[:, 1:] - before
    assert tried.min() >= 0
    error = np.sqrt(32 / tried.size)
    assert abs(tried.mean() - 32) < 4.5 * error + 0.1  # a few rows tried are bright already
    assert post.ledger.share < 0.01


def test_lights_start_where_they_belong():
    """Bright rows need no warm-up: given the start, each has its own probability."""
    plan, _ = planned(toy.MODEL, toy.rows(), mo.FlyMC(tuned=False))
    with jax.enable_x64(True):
        keys = words_at_start(chain_keys(2, 200))
        state = begin(plan.kernel, plan.context, plan.rows, None, keys).state
    t = plan.anchor.point + np.asarray(state.z) @ plan.anchor.factor.T
    eta, xi = t @ toy.X.T, 1.5
    a = np.tanh(xi / 2) / (4 * xi)
    gap = np.log(np.cosh(xi / 2) / np.cosh(eta / 2)) + a * (eta**2 - xi**2)
    chance = -np.expm1(-gap)
    on = (np.asarray(state.bright.number)[:, :, None] == np.arange(toy.N)).any(1)
    # chains share the candidates they choose from, so many chains are no better than one
    for rows in (np.ones(toy.N, bool), chance.mean(0) > 0.1):
        right = chance[:, rows].sum(1).mean()
        assert right > 30
        assert abs(on[:, rows].sum(1).mean() - right) < 4.5 * np.sqrt(right)
    assert on[:, chance.mean(0) < 1e-3].mean() < 2e-3


# Guards ------------------------------------------------------------------------------------


@SLOW
def test_a_small_capacity_is_warned_of():
    method = mo.FlyMC(tuned=False, capacity=240)
    post = toy.sample(method, tune=100, draws=200, chains=2, random_seed=1)
    assert any("raise `capacity`" in text for text in map(str, post.warnings))
    assert post.stats["n_bright"].max() <= 240
    assert post.stats["bright_refused"].any()


def test_guards_warn_of_refusals_and_slow_lights():
    rng = np.random.default_rng(1)
    slow = np.cumsum(rng.integers(-1, 2, (2, 400)), axis=1) + 1_000
    stats = {"n_bright": slow, "bright_refused": np.zeros((2, 400), bool)}
    history = History(np.zeros((2, 400, 1)), stats, {}, True)
    (doubt,) = look_back(7, history)
    assert doubt.code == "lights-slow"
    stats["n_bright"] = rng.poisson(30, (2, 400))
    assert look_back(7, history) == []
    stats["bright_refused"][0, :3] = True
    (doubt,) = look_back(7, history)
    assert str(doubt).startswith("3 of 800 updates")


def test_too_many_bright_rows_are_warned_of():
    few = gaussian_rows(60)
    plan, _ = planned(M.StudentT(df=2.0), few, mo.FlyMC(tuned=False))
    assert any("use tuned=True" in note for note in map(str, plan.notes))
    plan, _ = planned(toy.MODEL, toy.rows(), mo.FlyMC())
    assert plan.notes == []


def test_models_without_a_bound_are_refused_before_any_pass(monkeypatch):
    monkeypatch.setattr(Task, "anchor_at_mode", None)
    rows = gaussian_rows(50)
    with pytest.raises(mo.SettingError, match="not for Gaussian; use method='hmc-ecs'"):
        planned(M.Gaussian(), rows, mo.FlyMC())
