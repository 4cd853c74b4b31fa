"""Control variates: both forms agree, and their sums over all rows are exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.expansion import LINEAR, OTHERS, Expansion, expanded
from helpers.targets import TIMES, all_of, logistic_rows, poisson_rows, sums_of
from modicum.kernels.control_variates import AutodiffTaylor, LinearTaylor, control_variate
from modicum.kernels.designs import Uniform, UniformTables, Weighted, weight_tables
from modicum.kernels.energy_conserving import EnergyConservingContext, EnergyConservingKernel
from modicum.kernels.likelihood_estimates import Perturbed
from modicum.kernels.moves import HMCMove
from modicum.passes.curvature import expanded_prior

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


@pytest.mark.parametrize(
    "family",
    [
        f if f in ("logistic", "softmax") else pytest.param(f, marks=pytest.mark.slow)
        for f in (*LINEAR, *OTHERS)
    ],
)
def test_where_the_whitened_hessian_is_minus_one_it_is_left_out(family):
    e = expanded(family, 2)
    mended = any("not concave" in note for note in map(str, e.anchor.notes))
    assert (e.proxy.B is not None) is mended
    assert not (mended and family in ("logistic", "poisson", "gaussian"))
    size = len(e.anchor.point)
    L, hessian = e.anchor.factor, e.anchor.B + expanded_prior(e.target, e.anchor.point)[2]
    spelled_out = e.proxy._replace(B=L.T @ hessian @ L)
    log_proxy = jax.jit(jax.value_and_grad(e.cv.log_proxy))
    for z in (somewhere(size), somewhere(size, seed=4, scale=3.0)):
        one, other = (log_proxy(z, proxy) for proxy in (e.proxy, spelled_out))
        np.testing.assert_allclose(one[0], other[0], rtol=1e-9)
        np.testing.assert_allclose(one[1], other[1], rtol=1e-8, atol=1e-9)


def test_where_it_is_not_it_stays():
    for order in (0, 1):  # the prior alone is curved
        assert expanded("logistic", order).proxy.B is not None
    rows = poisson_rows(40)
    own = mo.Model(  # its prior may be any function and is not part of the quadratic
        lambda th: -0.5 * th["rate"] ** 2,
        lambda th, b: -((b["y"] - th["rate"]) ** 2),
        {"rate": 0.0},
    )
    assert Expansion(own, mo.Rows(y=all_of(rows)["y"]), 2).proxy.B is not None


@linear
def test_residuals_vanish_at_the_anchor_and_higher_orders_are_smaller(family):
    sizes = []
    for order in (0, 1, 2):
        e = expanded(family, order)
        assert np.all(e.residuals(np.zeros(len(e.anchor.point))) == 0)
        sizes.append(np.abs(e.residuals(somewhere(len(e.anchor.point), scale=0.1))).mean())
    assert sizes[0] > 5 * sizes[1] > 25 * sizes[2]


def test_frequency_weights_are_repeated_rows():
    once = all_of(poisson_rows(40))
    count = np.random.default_rng(1).integers(1, 4, 40)
    weighted = mo.Rows(**once, weight=count * 1.0)
    repeated = mo.Rows(**{k: np.repeat(v, count, axis=0) for k, v in once.items()})
    starts, z = np.cumsum(count) - count, somewhere(4)
    for form in (LinearTaylor, AutodiffTaylor):
        a = Expansion(mo.models.Poisson(), weighted, 2, form=form)
        b = Expansion(mo.models.Poisson(), repeated, 2, form=form)
        np.testing.assert_allclose(a.anchor.B, b.anchor.B, rtol=1e-12)
        found = np.add.reduceat(b.residuals(z), starts)
        np.testing.assert_allclose(a.residuals(z), found, rtol=1e-8, atol=1e-14)


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


def test_the_cheap_form_is_taken_where_it_fits():
    forms = {}
    for name, (model, make) in (LINEAR | OTHERS).items():
        forms[name] = type(control_variate(sums_of(model, make(60))[0].target, 2))
    assert {name for name, form in forms.items() if form is LinearTaylor} == set(LINEAR)


# The density of a subsample ----------------------------------------------------------------


def fourth_order_differences(function, z, h=2e-4):
    steps = np.eye(len(z)) * h
    ahead = [function(z + k * s) for s in steps for k in (-2, -1, 1, 2)]
    a, b, c, d = np.reshape(ahead, (len(z), 4)).T
    return (a - 8 * b + 8 * c - d) / (12 * h)


@every
def test_the_gradient_of_the_density_is_its_slope(family, order):
    e = expanded(family, order)
    ddof = 0 if family == "poisson" else 1
    kernel = EnergyConservingKernel(e.cv, Perturbed(ddof), Uniform(), HMCMove(), 60, 5, 1)
    rng = np.random.default_rng(5)
    picked = rng.integers(0, e.n, 60)
    # unequal probabilities, so that omitting them would show
    subsample = e.cache(rng.uniform(0.5, 2.0, 60) / e.n, picked)
    z = somewhere(len(e.anchor.point), scale=0.5)

    @jax.jit
    def both(z, subsample, proxy):
        density = kernel.log_density(
            subsample, jnp.ones(5, bool), EnergyConservingContext(proxy, (), (), jnp.zeros(()))
        )
        (value, _), slope = jax.value_and_grad(density, has_aux=True)(z)
        return value, slope

    value = lambda z: float(both(z, subsample, e.proxy)[0])  # noqa: E731
    slope = np.asarray(both(z, subsample, e.proxy)[1])
    right = fourth_order_differences(value, z)
    assert np.linalg.norm(slope - right) < 1e-6 * np.linalg.norm(right)


@pytest.mark.parametrize("design", [pytest.param("uniform", marks=pytest.mark.slow), "weighted"])
def test_the_estimate_is_unbiased(design):
    e = Expansion(mo.models.Logistic(), logistic_rows(300), 1, form=LinearTaylor)
    z = somewhere(4)
    d = e.residuals(z)
    tables = UniformTables(e.n)
    if design == "weighted":
        tables = weight_tables(np.abs(d) + 0.1 * np.abs(d).mean())
    kind = Uniform() if design == "uniform" else Weighted()
    drawn = jax.jit(lambda key, tables: kind.draw(key, 40_000, tables))(jax.random.key(1), tables)
    picked = np.asarray(drawn.row_ids)
    D = e.values(e.cache(drawn.probability, picked), z)
    np.testing.assert_allclose(D, d[picked] / np.asarray(drawn.probability), rtol=1e-9)
    assert abs(D.mean() - d.sum()) < TIMES * D.std() / np.sqrt(len(D))
    if design == "weighted":
        # negative control: without the probabilities it is not
        careless = e.n * d[picked]
        error = careless.std() / np.sqrt(len(D))
        assert abs(careless.mean() - d.sum()) > 10 * error
