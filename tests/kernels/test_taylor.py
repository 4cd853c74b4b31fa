"""Control variates: both forms agree, and their sums over all rows are exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.expansion import LINEAR, OTHERS, Expansion, expanded
from modicum.kernels.control_variates import AutodiffTaylor
from modicum.kernels.expansion import bend

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
