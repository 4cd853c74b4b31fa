"""Whitening rows of many columns, in blocks and float32, is accurate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.targets import Conjugate, flat_draws, normal_faults
from modicum.kernels import control_variates as module
from modicum.kernels.control_variates import relative_error, row_factor, share_of_work, whitened
from modicum.kernels.protocols import RowFactor
from modicum.methods.pilot import anchored_proxy

RUN = {"draws": 1_500, "tune": 300, "chains": 2, "random_seed": 1, "progressbar": False}


def rows_and_factor(mean=0.0, alike=0.0, n=64, d=40, seed=1):
    """Return rows with columns around `mean` that share a component, and the whitening factor."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * (1 - alike) + rng.normal(size=(n, 1)) * alike + mean
    x = np.c_[x, np.ones(n)]
    lower = np.linalg.cholesky(x.T @ x + 1e-8 * np.eye(d + 1))
    return x, np.triu(np.linalg.inv(lower).T)


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("mean", [0.0, 300.0])
def test_float32_will_do_and_takes_a_third_of_the_work(mean):
    x, factor = rows_and_factor(mean)
    mixed, error = row_factor(factor, x)
    assert [block.dtype for block in mixed.blocks] == [jnp.float32] * 7
    assert error < 1e-5
    np.testing.assert_allclose(whitened(jnp.asarray(x), mixed), x @ factor, atol=1e-5)
    assert 0.25 < share_of_work(mixed) < 0.32


def test_digits_that_cancel_are_taken_out_first():
    x, factor = rows_and_factor(mean=3e4)
    _, error = row_factor(factor, x)
    plain = RowFactor(jnp.zeros(41), jnp.zeros(41), (jnp.asarray(factor, jnp.float32),))
    assert error < 1e-5 < 1e-3 < relative_error(plain, factor, x)


def test_nearly_collinear_columns_are_whitened_in_float64():
    x, factor = rows_and_factor(alike=1 - 1e-7)
    exact, error = row_factor(factor, x)
    assert error > module.ACCURATE
    assert exact.blocks[0].dtype == jnp.float64
    assert relative_error(exact, factor, x) < 1e-12
    assert share_of_work(exact) < 0.6


def test_a_factor_that_is_not_triangular_is_one_block():
    x, factor = rows_and_factor()
    turned = factor @ np.linalg.qr(np.random.default_rng(2).normal(size=factor.shape))[0]
    mixed, error = row_factor(turned, x)
    assert len(mixed.blocks) == 1
    assert error < 1e-5


def sampled(target, monkeypatch, broken=None):
    """Draw with control variates of order 1, for which a normal likelihood has residuals too."""
    monkeypatch.setattr(anchored_proxy, "MANY", 2)
    if broken is not None:
        monkeypatch.setattr(anchored_proxy, "row_factor", broken)
    # refreshes that are set, so that right and wrong rows are sampled by one program
    method = mo.HMCECS(order=1, subsample=200, certainty=0, blocks=20, refreshes=6)
    return mo.sample(target.model, target.rows, method=method, **RUN)


def test_the_posterior_is_the_one_in_closed_form(monkeypatch):
    target = Conjugate(n=200)
    post = sampled(target, monkeypatch)
    assert post.tuning["whitening"]["value"] == "float32"
    assert normal_faults(flat_draws(post), target.mean, target.cov) == []


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_rows_that_are_not_put_back_give_another_posterior(monkeypatch):
    """Negative control: c L is left out."""
    target = Conjugate(n=200)

    def broken(factor, rows):
        mixed, error = row_factor(factor, rows)
        return mixed._replace(centre=mixed.centre + 0.1), error

    post = sampled(target, monkeypatch, broken)
    assert normal_faults(flat_draws(post), target.mean, target.cov) != []
