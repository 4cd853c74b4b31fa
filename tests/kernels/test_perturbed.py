"""The perturbed estimate equals its formula, for both divisors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from modicum.kernels.likelihood_estimates import Perturbed

D = np.random.default_rng(1).gamma(2.0, 3.0, 25) - 4


@pytest.mark.parametrize("ddof", [0, 1])
def test_combine_is_the_formula(ddof, x64):
    estimate = jax.jit(lambda D: Perturbed(ddof).combine(D, None, {}))(D)
    m = len(D)
    variance = ((D - D.mean()) ** 2).sum() / (m**2 if ddof == 0 else m * (m - 1))
    assert float(estimate.difference) == pytest.approx(D.mean(), rel=1e-14)
    assert float(estimate.variance) == pytest.approx(variance, rel=1e-14)
    assert float(estimate.log) == pytest.approx(D.mean() - variance / 2, rel=1e-14)


def test_the_unbiased_divisor_is_the_default_and_is_unbiased(x64):
    draws = np.random.default_rng(2).gamma(2.0, 1.0, (20_000, 8))  # variance 2

    def variances(ddof):
        combine = jax.vmap(lambda D: Perturbed(ddof).combine(D, None, {}).variance)
        return np.asarray(jax.jit(combine)(draws))

    found = variances(1)
    error = found.std() / np.sqrt(len(found))
    assert abs(found.mean() - 2 / 8) < 4.5 * error
    assert Perturbed() == Perturbed(1)
    assert abs(variances(0).mean() - 2 / 8) > 20 * error  # too small by a factor 1 - 1/m


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_gradient_needs_one_pass(ddof, x64):
    # grad (dhat - s2/2) = sum_i c_i x_i (1 - (D_i - Dbar) / (m - ddof)) / m
    rng = np.random.default_rng(3)
    x, t, m = rng.normal(size=(12, 3)), rng.normal(size=3), 12

    def log(t):
        return Perturbed(ddof).combine(jnp.sin(jnp.asarray(x) @ t) * 5, None, {}).log

    slope = jax.jit(jax.grad(log))(t)
    d, c = 5 * np.sin(x @ t), 5 * np.cos(x @ t)
    right = x.T @ (c * (1 - (d - d.mean()) / (m - ddof))) / m
    np.testing.assert_allclose(slope, right, rtol=1e-12)
