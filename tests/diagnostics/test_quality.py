"""Distances from a known answer: closed forms, rates, and samples that are deliberately wrong."""

from functools import cache

import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from helpers.refusals import refused
from modicum.diagnostics import (
    kernel_stein_discrepancy,
    kl_nearest_neighbours,
    kl_to_gaussian,
    mse,
    squared_stein_discrepancy,
)
from modicum.errors import SettingError

MEAN = np.array([1.0, -2.0])
COV = np.array([[2.0, 0.6], [0.6, 0.5]])
P = np.linalg.inv(COV)
L = np.linalg.cholesky(COV)


def exact(n, seed=1, scale=1.0, shift=0.0):
    noise = np.random.default_rng(seed).normal(size=(n, 2))
    return MEAN + shift + scale * noise @ L.T


def score(x):
    return -(x - MEAN) @ P


# Kernel Stein discrepancy ----------------------------------------------------------------------


def test_stein_kernel_is_the_one_of_its_definition(x64):
    """By automatic differentiation of the kernel, summed without blocks."""
    import jax.numpy as jnp

    x = exact(6)
    s = score(x)

    def k(a, b):
        return (1.3**2 + jnp.sum((a - b) ** 2)) ** -0.4

    def pair(a, b, sa, sb):
        mixed = jnp.trace(jax.jacfwd(jax.grad(k, 0), 1)(a, b))
        return k(a, b) * sa @ sb + sa @ jax.grad(k, 1)(a, b) + sb @ jax.grad(k, 0)(a, b) + mixed

    over = jax.vmap(jax.vmap(pair, (None, 0, None, 0)), (0, None, 0, None))
    right = np.asarray(jax.jit(over)(x, x, s, s))
    settings = {"c": 1.3, "beta": -0.4}
    assert kernel_stein_discrepancy(x, s, **settings) ** 2 == pytest.approx(right.mean())
    off = right.sum() - np.trace(right)
    assert squared_stein_discrepancy(x, score, **settings) == pytest.approx(off / 30)
    w = np.array([1.0, -1.0, 2.0, 1.0, 0.0, 1.0])
    weighted = kernel_stein_discrepancy(x, s, weights=w, **settings) ** 2
    assert weighted == pytest.approx(w @ right @ w / w.sum() ** 2)


def test_exact_draws_fall_like_the_square_root_and_wrong_ones_level_off():
    @cache
    def at(n, **wrong):
        seeds = range(2 if wrong else 5)  # wrong draws differ by a factor, not by 15 per cent
        return np.mean([kernel_stein_discrepancy(exact(n, s, **wrong), score) for s in seeds])

    assert at(60) / at(960) == pytest.approx(4.0, rel=0.15)
    for wrong in ({"shift": 0.4}, {"scale": 1.5}, {"scale": 0.6}):
        assert at(60, **wrong) / at(960, **wrong) < 2.5
        assert at(960, **wrong) > 2 * at(960)


def test_units_do_not_matter_with_a_scale():
    x, units = exact(300), np.array([1000.0, 0.01])
    plain = kernel_stein_discrepancy(x, score, scale=np.sqrt(np.diag(COV)))
    other = kernel_stein_discrepancy(
        x * units, score(x) / units, scale=np.sqrt(np.diag(COV)) * units
    )
    assert other == pytest.approx(plain)
    whitened = kernel_stein_discrepancy(x, score, scale=L)
    z = np.linalg.solve(L, (x - MEAN).T).T
    assert whitened == pytest.approx(kernel_stein_discrepancy(z, lambda t: -t))


def test_noisy_scores_leave_the_squared_discrepancy_unbiased():
    rng = np.random.default_rng(3)
    x, found = exact(150), []
    for _ in range(60):
        found.append(squared_stein_discrepancy(x, score(x) + 2 * rng.normal(size=x.shape)))
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    right = squared_stein_discrepancy(x, score)
    assert abs(np.mean(found) - right) < 4.5 * error
    # negative control: noise shared by all draws is bias
    shared = squared_stein_discrepancy(x, score(x) + 2 * rng.normal(size=2))
    assert abs(shared - right) > 4.5 * np.std(found, ddof=1)


def test_stein_refusals():
    x = exact(10)
    for wrong, word in (
        ({"score": x[:5]}, "one gradient per draw"),
        ({"score": score, "c": 0}, "kernel needs"),
        ({"score": score, "beta": -1}, "kernel needs"),
        ({"score": x * np.nan}, "finite"),
        ({"score": score, "weights": -np.ones(10)}, "weights"),
    ):
        refused(SettingError, word, kernel_stein_discrepancy, x, **wrong)
    refused(SettingError, "at least two", squared_stein_discrepancy, x[:1], score)


# Kullback-Leibler divergence -------------------------------------------------------------------


def gaussian_kl(m, S):
    gap = m - MEAN
    return 0.5 * (np.trace(P @ S) - 2 - np.linalg.slogdet(P @ S)[1] + gap @ P @ gap)


@pytest.mark.parametrize("wrong", [{}, {"shift": 0.5}, {"scale": 1.4}])
def test_kl_is_the_closed_form(wrong):
    n, seeds = 400, range(300)
    right = gaussian_kl(MEAN + wrong.get("shift", 0), wrong.get("scale", 1.0) ** 2 * COV)
    found = [kl_to_gaussian(exact(n, s, **wrong), MEAN, COV, corrected=True) for s in seeds]
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert abs(np.mean(found) - right) < 4.5 * error + 0.01 * right
    # negative control: without the correction the bias d (d + 3) / (4 n) shows
    plain = [kl_to_gaussian(exact(n, s, **wrong), MEAN, COV) for s in seeds]
    assert np.mean(plain) - np.mean(found) == pytest.approx(10 / (4 * n), rel=0.02)
    assert abs(np.mean(plain) - right) > 4.5 * error or wrong


def test_kl_of_a_series_and_its_refusals():
    x = np.stack([exact(50, s) for s in range(3)], axis=1)
    each = [kl_to_gaussian(x[:, i], MEAN, COV) for i in range(3)]
    np.testing.assert_allclose(kl_to_gaussian(x, MEAN, COV), each)
    for wrong, word in (
        ((x[:3, 0], MEAN, COV), "are too few in"),
        ((x, MEAN, np.eye(3)), "covariance"),
        ((x, MEAN, -COV), "positive definite"),
    ):
        refused(SettingError, word, kl_to_gaussian, *wrong)


def test_kl_by_neighbours_sees_what_moments_do_not():
    rng = np.random.default_rng(4)
    shifted = kl_nearest_neighbours(exact(5000, 1, shift=0.7), exact(5000, 2))
    assert shifted == pytest.approx(gaussian_kl(MEAN + 0.7, COV), rel=0.15)
    # two humps with the moments of a standard normal
    sign = rng.choice([-1, 1], size=(5000, 1))
    humps = 0.95 * sign + np.sqrt(1 - 0.95**2) * rng.normal(size=(5000, 1))
    one, other = (multivariate_normal(0.95 * s, 1 - 0.95**2).pdf(humps) for s in (-1, 1))
    right = np.mean(np.log((one + other) / 2) - multivariate_normal(0, 1).logpdf(humps))
    found = kl_nearest_neighbours(humps, rng.normal(size=(5000, 1)))
    assert found == pytest.approx(right, abs=0.07)
    assert right > 0.4
    assert abs(kl_to_gaussian(humps, [0.0], np.eye(1))) < 0.01
    with pytest.raises(SettingError, match="coincide"):
        kl_nearest_neighbours(np.repeat(humps[:100], 2, axis=0), humps, k=1)
    refused(SettingError, "k must", kl_nearest_neighbours, humps[:5], humps, k=5)


# Mean squared error ----------------------------------------------------------------------------


def test_mse_is_bias_and_variance():
    x = np.random.default_rng(5).normal(0.5, 2.0, size=(4000, 25, 2))
    found = mse(x, 0.0)
    right = 0.25 + 4 / 25
    assert np.all(np.abs(found.value - right) < 4.5 * found.error)
    np.testing.assert_allclose(found.value, found.bias**2 + found.variance)
    curve = mse(x, 0.5, at=[1, 5, 25])
    np.testing.assert_allclose(curve.value, 4 / np.array([[1], [5], [25]]) * [1, 1], rtol=0.12)
    assert isinstance(mse(x[..., 0], 0.0, np.square, at=10).value, float)
    # signs: the mean of the draws that are left
    w = np.where(np.arange(25) < 5, -0.2, 1.0) * np.ones((4000, 1))
    signed = mse(x[..., 0], 0.5, weights=w)
    share = w[0] / w[0].sum()
    assert abs(signed.value - 4 * (share @ share)) < 4.5 * signed.error
    # negative control: the wrong truth
    assert abs(mse(x[..., 0], 0.3).value - 4 / 25) > 4.5 * mse(x[..., 0], 0.3).error
    for wrong in ({"at": 26}, {"at": 0}, {"weights": w[:, :3]}):
        with pytest.raises(SettingError):
            mse(x, 0.0, **wrong)
