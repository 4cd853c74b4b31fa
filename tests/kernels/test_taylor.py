"""Control variates: both forms agree, their sums are exact, and their remainders are accurate."""

from functools import partial
from itertools import product
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.expansion import LINEAR, OTHERS, Expansion, expanded
from helpers.slow import slowly
from modicum.kernels.control_variates import AutodiffTaylor
from modicum.kernels.expansion import About, bend, coefficients, remainder

pytestmark = pytest.mark.usefixtures("x64")
linear = pytest.mark.parametrize("family", LINEAR)


def orders_of(families, quick):
    """Pair every family with every order; most only with order 2 in the quick suite."""
    cases = [
        pytest.param(f, k, marks=[] if k == 2 or f in quick else pytest.mark.slow)
        for f in families
        for k in (0, 1, 2)
    ]
    return pytest.mark.parametrize(("family", "order"), cases)


every = orders_of([*LINEAR, *OTHERS], quick=("logistic",))


def somewhere(size, seed=3, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=size)


@orders_of(LINEAR, quick=())
def test_the_two_forms_agree_in_value_and_gradient(family, order):
    a, b = expanded(family, order), expanded(family, order, form=AutodiffTaylor)
    z = somewhere(len(a.anchor.point))
    mix = np.random.default_rng(4).normal(size=a.n)

    def mixed(e):
        def total(z):
            values = e.cv.values(e.cached, z, e.proxy)
            return values @ mix, values

        return jax.jit(jax.value_and_grad(total, has_aux=True))(z)

    (_, values), slope = mixed(a)
    (_, right), right_slope = mixed(b)
    np.testing.assert_allclose(values, right, rtol=1e-6, atol=1e-13)
    np.testing.assert_allclose(slope, right_slope, rtol=1e-6, atol=1e-11)


def log_prior_and_proxy(e, z):
    both = jax.jit(lambda t, z, proxy: (e.target.log_prior(t), e.cv.log_proxy(z, proxy)))
    return map(float, both(e.point(z), z, e.proxy))


@every
def test_residuals_and_proxies_add_up_to_the_log_posterior(family, order):
    e = expanded(family, order)
    z = somewhere(len(e.anchor.point))
    log_prior, log_proxy = log_prior_and_proxy(e, z)
    right = e.sums.value(e.point(z), "check") + log_prior
    proxies = e.anchor.C + e.prior_at_anchor + log_proxy
    assert proxies + e.residuals(z).sum() == pytest.approx(right, rel=1e-10)
    # with probabilities 1/n each residual counts n times, so the mean is the sum
    scaled = e.values(e.cache(np.full(e.n, 1 / e.n)), z)
    assert scaled.mean() == pytest.approx(e.residuals(z).sum(), rel=1e-9, abs=1e-12)


def test_derivatives_in_predictors_expand_rows_along_bent_paths_too():
    e = expanded("gaussian, scale estimated", 2)
    z = somewhere(len(e.anchor.point))
    in_precision = e.proxy._replace(bend=bend(e.target, e.anchor, [len(z) - 1], np.array([-2.0])))

    def values(proxy, cached):
        return np.asarray(jax.jit(e.cv.values)(cached, z, proxy))

    bare = e.cached._replace(taylor=None)  # of a model whose predictors are not known
    right = values(in_precision, bare)
    np.testing.assert_allclose(values(in_precision, e.cached), right, rtol=1e-9, atol=1e-12)
    assert np.abs(values(e.proxy, bare) - right).max() > 0.1  # a control: a straight path


@linear
def test_residuals_vanish_at_the_anchor_and_higher_orders_are_smaller(family):
    sizes = []
    for order in (0, 1, 2):
        e = expanded(family, order)
        assert np.all(e.residuals(np.zeros(len(e.anchor.point))) == 0)
        sizes.append(np.abs(e.residuals(somewhere(len(e.anchor.point), scale=0.1))).mean())
    assert sizes[0] > 5 * sizes[1] > 25 * sizes[2]


def test_rows_may_have_fields_of_any_name():
    # the cache of a control variate must not hide fields that the model reads
    n, rng = 50, np.random.default_rng(2)
    known = rng.uniform(0.5, 2.0, n)
    rows = mo.Rows(y=rng.normal(0.3, known), scale=known)
    model = mo.Model(
        log_prior=lambda th: -0.5 * th["mu"] ** 2,
        log_likelihood=lambda th, b: -jnp.log1p(((b["y"] - th["mu"]) / b["scale"]) ** 2),
        init={"mu": 0.1},
    )
    e = Expansion(model, rows, 2)
    z = np.array([0.7])
    log_prior, log_proxy = log_prior_and_proxy(e, z)
    right = e.sums.value(e.point(z), "check") + log_prior
    assert e.anchor.C + log_proxy + e.residuals(z).sum() == pytest.approx(right, rel=1e-10)


# Taylor remainders keep their relative precision, however small the step ---------------------


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
