"""Several modes are found, weighted, and visited or reported; a single mode stays single."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.interrupted import planned
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import quick, same_draws, sums_of
from modicum.passes import NEAR, Modes, Starts, anchor_at_mode

SHORT = {"method": "hmc", "draws": 100, "tune": 100, "chains": 4}
SEARCH = Starts(dispersed=10)


def square(prior_mean=0.4, init=0.3):
    """y = t^2 x: both signs of t explain the data, and only the prior tells them apart.

    Most tests use one prior, so that chains are compiled once.
    """
    return mo.Model(
        lambda th: -0.5 * (th["t"] - prior_mean) ** 2,
        lambda th, b: -0.5 * (b["y"] - th["t"] ** 2 * b["x"]) ** 2,
        {"t": init},
    )


def square_rows(n=200):
    rng = np.random.default_rng(1)
    x = rng.normal(size=n)
    return mo.Rows(x=x, y=1.5 * x + rng.normal(size=n))


def mixture(init=(0.0, 0.1)):
    """Two normals whose labels may be switched."""

    def log_likelihood(th, b):
        parts = -0.5 * (b["y"][:, None] - th["mu"]) ** 2
        share = jnp.stack([-jnp.logaddexp(0.0, -th["w"]), -jnp.logaddexp(0.0, th["w"])])
        return jnp.logaddexp(*(parts + share).T)

    def log_prior(th):
        return -0.5 * jnp.sum(th["mu"] ** 2) / 25 - 0.5 * th["w"] ** 2

    return mo.Model(log_prior, log_likelihood, {"mu": np.array(init), "w": 0.0})


def mixture_rows(n=240):
    rng = np.random.default_rng(2)
    return mo.Rows(y=np.r_[rng.normal(-1, 1, n // 3), rng.normal(4, 1, n - n // 3)])


def line():
    """Return a model with one mode, reached from anywhere."""
    return mo.Model(
        lambda th: -0.5 * jnp.sum(th["b"] ** 2),
        lambda th, b: (
            b["y"] * (b["x"] * th["b"][0] + th["b"][1])
            - jnp.logaddexp(0.0, b["x"] * th["b"][0] + th["b"][1])
        ),
        {"b": np.zeros(2)},
    )


def line_rows(n=300):
    rng = np.random.default_rng(3)
    x = rng.normal(size=n)
    return mo.Rows(x=x, y=(rng.random(n) < 1 / (1 + np.exp(-x))) * 1.0)


def anchor_of(model, rows, starts=SEARCH, **kwargs):
    sums, start = sums_of(model, rows)
    return anchor_at_mode(sums, start, within=NEAR, starts=starts, **kwargs), sums


# What is found -----------------------------------------------------------------------------


@cases("n init", (200, 0.3), (5_000, -2.0), *slowly((200, -2.0), (5_000, 0.3)))
def test_both_signs_are_found_and_weighed(n, init):
    mean = 0.4
    anchor, _ = anchor_of(square(mean, init), square_rows(n), names=("t",))
    assert len(anchor.modes) == 2
    high, low = anchor.modes.points[:, 0]
    assert high > 1
    assert low < -1
    # The likelihood is symmetric: the odds are the prior's, up to the width of the modes.
    odds = np.exp(-0.5 * (high - mean) ** 2 + 0.5 * (low - mean) ** 2)
    assert anchor.modes.weights[0] == pytest.approx(odds / (1 + odds), abs=0.02)
    assert anchor.point[0] == high  # the heavier, wherever the search began
    (note,) = anchor.notes
    assert note.code == "other-modes"
    assert note.numbers["weight"] == pytest.approx(anchor.modes.weights[1])
    assert "t = -1.2" in str(note)


def test_a_mode_of_no_weight_is_not_warned_of():
    anchor, _ = anchor_of(square(prior_mean=10.0), square_rows())
    assert len(anchor.modes) == 1
    assert anchor.notes == []
    lost, _ = anchor_of(square(prior_mean=10.0, init=-2.0), square_rows())
    assert lost.point[0] == pytest.approx(anchor.point[0], abs=0.01)  # not the mode it began at


def test_switched_labels_are_found():
    anchor, _ = anchor_of(mixture(), mixture_rows())
    assert len(anchor.modes) == 2
    np.testing.assert_allclose(anchor.modes.weights, 0.5, atol=0.01)
    np.testing.assert_allclose(anchor.modes.points[0][:2], anchor.modes.points[1][1::-1], atol=0.01)


@pytest.mark.parametrize("n", [*slowly(300), 5_000])
def test_a_single_mode_stays_single_and_cheap(n):
    anchor, sums = anchor_of(line(), line_rows(n))
    plain, alone = anchor_of(line(), line_rows(n), starts=None)
    assert len(anchor.modes) == 1
    assert anchor.notes == []
    np.testing.assert_array_equal(anchor.point, plain.point)
    np.testing.assert_array_equal(anchor.factor, plain.factor)
    assert sums.ledger.sweeps == alone.ledger.sweeps  # no extra pass
    spent = sums.ledger.by_purpose["other modes"]
    assert 0 < spent < 500 * min(n, 1024)


def test_families_are_not_searched():
    rows = mo.Rows(x=np.ones((20, 1)) * np.arange(20)[:, None] % 3, y=np.arange(20) % 2)
    _, ledger = planned(mo.models.Logistic(), rows, mo.HMC())
    assert "mode" in ledger.by_purpose
    assert "other modes" not in ledger.by_purpose


def test_a_saddle_is_left_for_the_modes_beside_it():
    # a stationary point, but not a maximum
    anchor, _ = anchor_of(square(0.0, init=0.0), square_rows())
    assert len(anchor.modes) == 2
    assert abs(anchor.point[0]) > 1


# What runs do with them --------------------------------------------------------------------


def test_chains_start_at_every_mode_and_disagree_aloud():
    post = quick(square(0.4, -2.0), square_rows(), **SHORT)
    means = post.draws["t"].mean(axis=1)
    assert sorted(np.sign(means)) == [-1, 1, 1, 1]  # three in four of the weight, one in four
    codes = {warning.code for warning in post.warnings}
    assert {"modes-apart", "r-hat"} <= codes
    for warning in post.warnings:  # more draws would not bring the chains together
        assert "draw more" not in warning.remedy
    assert "other-modes" not in codes  # no mode is left out
    assert "2 modes" in post.tuning["modes"]


def test_modes_without_a_chain_are_warned_of():
    post = quick(square(0.4), square_rows(), **SHORT | {"chains": 1})
    assert "other-modes" in {warning.code for warning in post.warnings}
    assert post.draws["t"].mean() > 1  # the heavier


def test_chains_that_cross_are_not_complained_of():
    flat = mo.Model(  # two modes with a shallow valley between them
        lambda th: jnp.logaddexp(-0.5 * (th["t"] - 1.7) ** 2, -0.5 * (th["t"] + 1.7) ** 2),
        lambda th, b: 0.0 * b["y"] * th["t"],
        {"t": 1.0},
    )
    post = quick(flat, mo.Rows(y=np.zeros(4)), **SHORT | {"draws": 600})
    assert "2 modes" in post.tuning["modes"]
    assert "modes-apart" not in {warning.code for warning in post.warnings}
    assert abs(post.draws["t"].mean()) < 0.6


def test_the_default_goes_to_nuts_where_there_are_several():
    post = quick(square(), square_rows(), **SHORT | {"method": None})
    assert post.settings["method"] == "nuts"
    assert "2 modes" in post.tuning["method"]
    assert {-1.0, 1.0} == set(np.sign(post.draws["t"].mean(axis=1)))


def test_a_method_of_one_anchor_says_what_it_leaves_out():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mo.sample(
            square(), square_rows(), method="sgld", draws=5, tune=5, chains=2, random_seed=1,
            progressbar=False,
        )  # fmt: skip
    codes = [w.message.code for w in caught if isinstance(w.message, mo.ModicumWarning)]
    assert "other-modes" in codes


def test_a_resumed_run_starts_at_the_same_modes(tmp_path):
    first = quick(square(), square_rows(), checkpoint=tmp_path, **SHORT)
    again = quick(square(), square_rows(), checkpoint=tmp_path, **SHORT)
    assert same_draws(first, again)
    assert first.tuning["modes"] == again.tuning["modes"]


@pytest.mark.slow
def test_stacked_chains_start_at_every_mode_too():
    post = quick(square(0.0), square_rows(), parallel="stacked", **SHORT | {"chains": 6})
    assert sorted(np.sign(post.draws["t"].mean(axis=1))) == [-1, -1, -1, 1, 1, 1]


# Starts given by the user ------------------------------------------------------------------


def test_init_may_be_several_points():
    model = square(init=1.0)
    functions = (model._functions[name] for name in ("log_prior", "log_likelihood"))
    several = mo.Model(*functions, [{"t": 1.0}, {"t": -1.0}])
    assert len(several.points) == 2
    for made, starts in ((several, 1), (model, [{"t": -1.0}])):
        post = quick(made, square_rows(), starts=starts, **SHORT)
        assert set(np.sign(post.draws["t"].mean(axis=1))) == {-1.0, 1.0}
    alone = quick(model, square_rows(), starts=1, **SHORT)
    assert set(np.sign(alone.draws["t"].mean(axis=1))) == {1.0}


def test_a_list_that_is_the_parameters_stays_one_point():
    layers = [{"w": 1.0}, {"w": 2.0}]
    model = mo.Model(lambda th: -(th[0]["w"] ** 2) - th[1]["w"] ** 2, lambda th, b: b["y"], layers)
    assert len(model.points) == 1
    assert model.init == layers


def test_a_first_point_without_a_mode_does_not_end_the_search():
    model = mo.Model(
        lambda th: -0.5 * th["a"] ** 2,
        lambda th, b: jnp.log(th["a"] - 1.0) - b["y"] ** 2 * th["a"],
        [{"a": 0.0}, {"a": 3.0}],
    )
    post = quick(model, mo.Rows(y=np.ones(30)), **SHORT)
    assert post.draws["a"].mean() > 1


@cases(
    "starts words",
    (0, "whole number"),
    ("many", "whole number"),
    ([{"u": 1.0}], "names and shapes"),
    ([{"t": np.ones(2)}], "names and shapes"),
    ([{"t": np.nan}], "finite"),
)
def test_starts_that_make_no_sense(starts, words):
    refused(mo.SettingError, words, quick, square(), square_rows(), starts=starts)


@cases(
    "weights chains expected",
    ([0.5, 0.5], 4, [2, 2]),
    ([0.92, 0.08], 4, [3, 1]),
    ([0.6, 0.3, 0.1], 10, [6, 3, 1]),
    ([0.4, 0.3, 0.3], 2, [1, 1, 0]),
    ([0.97, 0.01, 0.02], 3, [1, 1, 1]),
)
def test_chains_are_shared_out_by_weight(weights, chains, expected):
    modes = Modes(np.zeros((len(weights), 1)), np.array(weights), np.ones((len(weights), 1, 1)))
    where = modes.chains_at(chains)
    assert len(where) == chains
    assert np.bincount(where, minlength=len(weights)).tolist() == expected


# A log-likelihood that is NaN near the mode ----------------------------------------------------


def test_a_log_likelihood_that_ends_near_the_mode_is_named():
    rng = np.random.default_rng(4)
    y = rng.exponential(size=3_000)
    edge = mo.Model(
        lambda th: -0.5 * th["rate"] ** 2,
        # NaN if the rate is above 1.03, two standard deviations from the mode
        lambda th, b: jnp.log(th["rate"]) - th["rate"] * b["y"]
        + b["odd"] * jnp.sqrt(1.03 - th["rate"]),
        {"rate": 0.9},
    )  # fmt: skip
    odd = np.zeros(3_000)
    odd[5] = 1e-6
    with pytest.raises(mo.ConvergenceError, match=r"log-likelihood of row \d+ .* few posterior"):
        quick(edge, mo.Rows(y=y, odd=odd), method="hmc-ecs", starts=1)
