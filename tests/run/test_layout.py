"""The number of chains for "auto", and superchains, whose chains start together."""

from dataclasses import replace

import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused
from helpers.targets import logistic_rows, quick
from modicum.posterior import convergence_warnings
from modicum.run import chains as layout
from modicum.run.chains import Layout, auto_layout

SETTINGS = {"draws": 20, "tune": 30, "random_seed": 1, "progressbar": False, "method": "hmc-ecs"}


@pytest.fixture
def accelerator(monkeypatch):
    """Pretend that there is an accelerator with enough memory."""
    monkeypatch.setattr(layout, "on_accelerator", lambda: True)
    monkeypatch.setattr(layout, "free_memory", lambda: 2**37)
    monkeypatch.setattr(layout, "free_on_host", lambda: 2**37)


@pytest.fixture(scope="module")
def rows():
    return logistic_rows(n=4_000)


@pytest.fixture(scope="module")
def post(rows):
    return quick(mo.models.Logistic(), rows, chains=8, superchains=4, **SETTINGS)


def test_a_few_chains_on_a_cpu():
    assert auto_layout(1_000, 30) == Layout(4)


def test_many_on_an_accelerator_within_its_memory(accelerator, monkeypatch):
    assert auto_layout(1_000, 30) == Layout(1024, 16)
    monkeypatch.setattr(layout, "free_on_host", lambda: 2**30)
    some = auto_layout(1_000, 30)
    assert some.superchains == 16
    assert 16 < some.chains < 1024
    assert some.chains % 16 == 0
    assert 8 * some.chains * 1_000 * 30 < 2**30 / 3
    assert auto_layout(10_000_000, 30) == Layout(4)  # not even two chains per superchain


def test_the_door_takes_auto(accelerator, monkeypatch, rows, post):
    monkeypatch.setattr(layout, "MANY", 8)
    monkeypatch.setattr(layout, "SUPERCHAINS", 4)
    auto = quick(mo.models.Logistic(), rows, chains="auto", parallel="threads", **SETTINGS)
    assert (auto.chains, auto.settings["superchains"]) == (8, 4)
    assert np.array_equal(auto["beta"], post["beta"])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"chains": 10, "superchains": 4}, "10 chains cannot be divided into 4 superchains"),
        ({"chains": 8, "superchains": 4, "method": "nuts"}, "nuts may start chains at several"),
    ],
)
def test_impossible_layouts_are_refused_with_a_reason(rows, settings, sentence):
    logistic = mo.models.Logistic()
    assert sentence in refused(mo.SettingError, "chains", mo.sample, logistic, rows, **settings)


def test_the_summary_has_nested_r_hat(post):
    table = post.summary()
    assert list(table.columns)[-2:] == ["r_hat", "nested_r_hat"]
    assert (table["nested_r_hat"] < 1.2).all()
    assert len(set(post["beta"][:, 0, 0])) == 8  # from one start, each takes its own path
    assert "nested_r_hat" not in replace(post, settings={}).summary()


def test_the_guard_sees_a_start_that_is_not_forgotten():
    rng = np.random.default_rng(1)
    draws, start = rng.normal(size=(256, 8)), rng.normal(size=16).repeat(16)[:, None]

    def codes(x, superchains=16):
        return [w.code for w in convergence_warnings({"beta": x}, {}, superchains=superchains)]

    assert codes(draws) == []
    assert codes(draws + start) == ["nested-r-hat"]
    # negative control: chains of eight draws are too short for any other guard
    assert codes(draws + start, None) == []
    # separate starts for all chains show nothing: superchains must share theirs
    assert codes(draws + rng.normal(size=(256, 1))) == []


def test_short_chains_are_not_blamed_for_being_short():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for chains, superchains, draws in ((64, 16, 1), (1024, 16, 2), (32, 4, 5)):
            x = rng.normal(size=(chains, draws, 3))
            found = convergence_warnings({"beta": x}, {}, superchains=superchains)
            assert "nested-r-hat" not in [w.code for w in found]
