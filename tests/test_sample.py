"""`mo.sample`: right answers, reproducible draws, clear errors."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.patching import pretend_device
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import (
    Conjugate,
    all_of,
    flat_draws,
    gaussian_rows,
    normal_faults,
    quick,
    same_draws,
)
from modicum.methods import resolve
from modicum.methods.skewed_axes import TOGETHER
from modicum.passes.sums import Streamed
from modicum.sample import RunSettings

M = mo.models
RUN = {"draws": 2_000, "tune": 500, "chains": 2, "random_seed": 11, "progressbar": False}


@pytest.fixture(scope="module")
def conjugate():
    return Conjugate()


@pytest.fixture(scope="module", params=["nuts", "hmc"])
def conjugate_posterior(request, conjugate):
    return mo.sample(conjugate.model, conjugate.rows, method=request.param, **RUN)


# Right answers -----------------------------------------------------------------------------


def test_conjugate_regression_has_its_closed_form(conjugate, conjugate_posterior):
    draws = flat_draws(conjugate_posterior)
    assert normal_faults(draws, conjugate.mean, conjugate.cov) == []
    assert conjugate_posterior.warnings == []
    # negative controls: a dropped prior, and a slightly wrong spread
    prior = np.diag(np.r_[np.full(3, 0.3**-2), 0.5**-2])
    cov = np.linalg.inv(conjugate.precision - prior)
    assert "mean" in normal_faults(draws, cov @ conjugate.precision @ conjugate.mean, cov)
    wide = conjugate.mean + 1.15 * (draws - conjugate.mean)
    assert "covariance" in normal_faults(wide, conjugate.mean, conjugate.cov)


# Reproducible ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    rows = gaussian_rows(150, dtype="float32", columns=["a", "b", "c"])
    return M.Gaussian(scale=0.7), rows


@pytest.fixture(scope="module")
def first(small):
    return quick(*small)


def test_same_seed_same_draws(small, first):
    again = quick(*small)
    assert same_draws(first, again)
    for name, values in first.stats.items():
        np.testing.assert_array_equal(again.stats[name], values)
    assert not same_draws(first, quick(*small, random_seed=6))
    assert not np.array_equal(first["beta"][0], first["beta"][1])  # chains differ too


def test_every_bit_of_the_seed_counts(small):
    low, high = quick(*small, random_seed=1), quick(*small, random_seed=1 + 2**40)
    assert not same_draws(low, high)


def test_no_seed_is_a_fresh_seed(small):
    a, b = quick(*small, random_seed=None), quick(*small, random_seed=None)
    assert not same_draws(a, b)
    assert same_draws(a, quick(*small, random_seed=a.settings["seed"]))


def test_store_and_memory_give_the_same_draws(small, first, tmp_path):
    model, rows = small
    store = mo.rows.ingest(rows, tmp_path / "store", shard_rows=40, progressbar=False)
    assert same_draws(first, quick(model, store))


def test_streamed_and_resident_rows_give_the_same_draws(small, monkeypatch):
    from modicum.passes import engine, sums

    model, rows = small
    seed = {"random_seed": 6}  # one whose warm-up does not amplify the last digit of float32 sums
    at_once = quick(model, rows, **seed)
    for module in (engine, sums):
        monkeypatch.setattr(module, "chunk_rows", lambda rows: 64)  # three chunks, one partial
    resident = quick(model, rows, **seed)
    streamed = quick(model, rows, method=mo.HMC(memory_limit=0), **seed)
    assert resident.tuning["rows held"] == "in memory"
    assert streamed.tuning["rows held"] == "on disk"
    assert same_draws(resident, streamed)
    # other chunks: different rounding, the same answer
    np.testing.assert_allclose(flat_draws(resident), flat_draws(at_once), rtol=1e-3, atol=1e-4)


def test_numbers_of_64_bits_are_streamed_without_rounding():
    x = np.array([[1 + 1e-12], [1 / 3], [2.0]])
    source = Streamed(mo.Rows(x=x, y=np.zeros(3), dtype=None), 3)
    with jax.enable_x64(True):
        found, present = jax.jit(source.chunk)(0)
        np.testing.assert_array_equal(np.asarray(found["x"]), x)
        assert np.asarray(present).all()
    assert not np.array_equal(x.astype(np.float32), x)  # the negative control


def test_stacked_chains_agree_with_threads(conjugate):
    stacked = mo.sample(conjugate.model, conjugate.rows, method="hmc", parallel="stacked", **RUN)
    assert normal_faults(flat_draws(stacked), conjugate.mean, conjugate.cov) == []


def test_global_settings_of_jax_are_left_alone(small, first):
    assert first["beta"].dtype == np.float64
    assert jnp.zeros(1).dtype == jnp.float32


# What comes back ---------------------------------------------------------------------------


def test_the_posterior_has_names_cost_and_settings(small, first):
    assert list(first.summary().index) == ["beta[a]", "beta[b]", "beta[c]", "intercept"]
    assert first["beta"].shape == (2, 40, 3)
    assert first["intercept"].shape == (2, 40)
    steps = first.stats["n_steps"].sum()
    assert first.ledger.by_purpose["sampling"] == steps * 150
    assert first.ledger.by_purpose["mode"] % 150 == 0
    assert first.ledger.by_purpose["start"] == first.chains * 150
    assert first.ledger.by_purpose["skewness"] == TOGETHER * 150
    assert first.settings["complete"]
    assert first.settings["seed"] == 5


def test_a_doubtful_posterior_warns_and_remembers(small):
    model, rows = small
    batch = all_of(rows)
    twins = np.c_[batch["x"][:, :2], batch["x"][:, 0]]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        posterior = mo.sample(
            model, mo.Rows(x=twins, y=batch["y"], columns=["a", "b", "again"]), method="laplace",
            draws=40, chains=2, random_seed=5, progressbar=False,
        )  # fmt: skip
    texts = [str(w.message) for w in heard if issubclass(w.category, mo.ModicumWarning)]
    assert texts == [str(doubt) for doubt in posterior.warnings]
    assert "next to nothing about beta[a], beta[again] (or" in texts[0]


@pytest.mark.parametrize(("draws", "tune", "chains"), [(1, 0, 1), *slowly((3, 1, 1)), (2, 2, 3)])
def test_tiny_runs_come_back_whole(small, draws, tune, chains):
    posterior = quick(*small, draws=draws, tune=tune, chains=chains)
    assert posterior["beta"].shape == (chains, draws, 3)
    assert np.isfinite(posterior["beta"]).all()


# Mistakes ----------------------------------------------------------------------------------


WRONG = {
    "draws": (0, 10.0, "many", True),
    "tune": (-1,),
    "chains": (0, "many"),
    "random_seed": (-1, 1.5, "one", 2**70),
    "parallel": ("gpu",),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(small, name):
    for value in WRONG[name]:
        assert name in refused(mo.SettingError, name, quick, *small, **{name: value})


@pytest.mark.parametrize(
    ("method", "words"),
    [("nutz", "did you mean 'nuts'"), ("gibbs", "the methods are"), (3, "there is no method 3")],
)
def test_wrong_methods(small, method, words):
    refused(mo.SettingError, words, quick, *small, method=method)


def test_arrays_in_place_of_rows(small):
    model, _ = small
    refused(mo.SettingError, r"mo.Rows\(x=X, y=y\)", mo.sample, model, np.ones((3, 2)))


def test_a_method_may_be_named_in_any_way(small, first):
    for method in ("HMC", mo.HMC, mo.HMC()):
        assert same_draws(first, quick(*small, method=method))


@pytest.mark.parametrize(
    ("method", "chains", "n", "on_cpu"),
    [
        ("hmc-ecs", 4, 100_000, True),
        ("hmc-ecs", 64, 100, False),
        ("hmc-ecs", "auto", 100, False),
        ("auto", 4, 100_000, True),
        ("nuts", 4, 100, True),
        ("nuts", 4, 100_000, False),
    ],
)
def test_an_accelerator_is_for_many_chains_or_large_tables(monkeypatch, method, chains, n, on_cpu):
    rows = mo.Rows(x=np.ones((n, 3)), y=np.zeros(n))
    pretend_device(monkeypatch, "gpu")
    settings = RunSettings(method=resolve(method), chains=chains)
    with settings.place(settings.method, rows):
        assert (jax.config.jax_default_device is not None) == on_cpu
