"""Taylor remainders keep their relative precision, however small the step."""

from functools import partial
from itertools import product
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.slow import slowly
from modicum.kernels.expansion import About, coefficients, remainder

M = mo.models
ETA = np.array([-3.0, -1.3, -0.2, 0.0, 0.4, 1.7, 2.9])
SIZES = np.concatenate([np.geomspace(1e-6, 0.09, 9), [0.11, 0.29, 0.31, 1.0, 3.0]])


def logistic(k, eta, y):
    p = 1 / (1 + np.exp(-eta))
    s, c = p * (1 - p), 1 - 2 * p
    return {1: y - p, 2: -s, 3: -s * c}[k]


def poisson(k, eta, y):
    return (y if k == 1 else 0.0) - np.exp(eta)


def gaussian(k, eta, y, scale=0.7):
    return {1: (y - eta) / scale**2, 2: -1 / scale**2 + 0 * eta, 3: 0 * eta}[k]


def student(k, eta, y, scale=0.7, nu=4.0):
    # d^k/d eta^k of -(nu + 1)/2 log(v + r^2), written with v + r^2 = |r + i sqrt(v)|^2
    return (nu + 1) * factorial(k - 1) * np.real((y - eta + 1j * scale * np.sqrt(nu)) ** -k)


FAMILIES = {
    "logistic": (M.Logistic(), logistic, 1.0),
    "poisson": (M.Poisson(), poisson, 2.0),
    "gaussian": (M.Gaussian(scale=0.7), gaussian, 0.6),
    "student": (M.StudentT(scale=0.7), student, 0.6),
}
families = pytest.mark.parametrize("family", FAMILIES)


def exact(derivative, order, e, eta, y):
    """Return the remainder and its slope as integrals, which are accurate for small e."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    s, w = (nodes + 1) / 2, weights / 2
    f = derivative(order + 1, eta + e * s[:, None, None], y)
    left = (e * (1 - s)[:, None, None]) ** order / factorial(order)
    value = e * np.einsum("i,i...->...", w, f * left)
    if order == 0:
        return value, derivative(1, eta + e, y)
    left = (e * (1 - s)[:, None, None]) ** (order - 1) / factorial(order - 1)
    return value, e * np.einsum("i,i...->...", w, f * left)


def ours(model, order, e, eta, y):
    """Return value and slope, by automatic differentiation."""

    def total(e):
        values = remainder(model, order, e, About(eta, y, coefficients(model, eta, y)))
        return values.sum(), values

    slope, values = jax.jit(jax.grad(total, has_aux=True))(e)
    return np.asarray(values), np.asarray(slope)


def grid(y):
    sizes = np.concatenate([-SIZES[::-1], SIZES])
    e, eta = np.meshgrid(sizes, ETA, indexing="ij")
    return e, eta, np.full(e.shape, y)


@pytest.mark.parametrize(
    ("family", "order"),
    [
        *product(("logistic", "student"), [0, 1, 2]),
        *product(("poisson", "gaussian"), [2]),
        *slowly(*product(("poisson", "gaussian"), [0, 1])),
    ],
)
def test_relative_precision_from_a_millionth_to_three(family, order, x64):
    model, derivative, y = FAMILIES[family]
    e, eta, outcome = grid(y)
    value, slope = ours(model, order, e, eta, outcome)
    right, right_slope = exact(derivative, order, *(np.asarray(a) for a in (e, eta, outcome)))
    # Relative to the leading term, which may vanish where a derivative does: hence the floor.
    e = np.abs(np.asarray(e))
    assert np.all(np.abs(value - right) <= 1e-6 * np.abs(right) + 1e-8 * e ** (order + 1))
    small = np.abs(right_slope) * 3e-6 + 1e-7 * e**order
    assert np.all(np.abs(slope - right_slope) <= small)


@partial(jax.jit, static_argnums=0)
def in_single(model, e, eta, y):
    """The remainder in float32, about coefficients that were computed in double precision."""
    taylor = coefficients(model, eta, y).astype("float32")
    e, eta, y = (a.astype("float32") for a in (e, eta, y))
    return remainder(model, 2, e, About(eta, y, taylor))


def small_steps(dtype):
    rng = np.random.default_rng(1)
    eta = rng.normal(0, 1.5, 4000)
    y = (rng.random(4000) < 0.4) * 1.0
    e = rng.normal(0, 0.01, 4000)
    return e, eta, y, [jnp.asarray(a, dtype) for a in (e, eta, y)]


def relative_rms(found, right):
    return np.sqrt(np.mean((np.asarray(found) - right) ** 2) / np.mean(right**2))


def test_float32_keeps_relative_precision_where_a_plain_difference_has_none(x64):
    model = M.Logistic()
    e, eta, y, single = small_steps("float32")
    right = exact(logistic, 2, e[None], eta[None], y[None])[0][0]
    found = in_single(model, e, eta, y)
    assert found.dtype == np.float32
    assert relative_rms(found, right) < 1e-5
    large = exact(logistic, 2, 40 * e[None], eta[None], y[None])[0][0]
    assert relative_rms(in_single(model, 40 * e, eta, y), large) < 1e-4  # beyond the series

    @jax.jit
    def directly(e, eta, y):
        """Negative control: f(eta + e) - f - f' e - f'' e^2 / 2, computed directly."""
        f, f1, f2, _ = model.derivatives(eta, y)
        return model.derivatives(e + eta, y)[0] - (f + f1 * e + f2 * e**2 / 2)

    plain = directly(*single)
    assert plain.dtype == np.float32
    assert relative_rms(plain, right) > 0.05


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_switch_knows_the_unit_of_the_outcome(scale, x64):
    # A Student-t regression in other units has the same residuals: the series must not be used
    # beyond its reach when the scale is small, nor the difference within it when it is large.
    e, eta, y = grid(0.6)
    small = jnp.abs(e) < 0.5
    once = ours(M.StudentT(scale=0.7), 2, e, eta, y)[0]
    other = ours(M.StudentT(scale=0.7 * scale), 2, e * scale, eta * scale, y * scale)[0]
    ok = np.asarray(small)
    np.testing.assert_allclose(other[ok], once[ok], rtol=1e-5, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_quadratic_leaves_nothing_over(dtype, x64):
    e, eta, y = (50 * a.astype(dtype) for a in grid(0.6))  # in units in which steps look large
    model = M.Gaussian(scale=35.0)
    taylor = coefficients(model, eta.astype("float64"), y.astype("float64")).astype(dtype)
    assert np.all(np.asarray(jax.jit(partial(remainder, model, 2))(e, About(eta, y, taylor))) == 0)
