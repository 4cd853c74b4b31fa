"""Sums by NumPy equal the compiled ones."""

from functools import partial

import jax
import numpy as np
import pytest

import modicum as mo
from helpers.coded import crossed, pair
from helpers.targets import gaussian_rows, logistic_rows, poisson_rows, sums_of
from modicum.kernels.control_variates import control_variate
from modicum.kernels.control_variates import proxy as proxy_at
from modicum.kernels.residuals_by_numpy import NumPyRows
from modicum.linalg.columns import DenseMatrix
from modicum.methods import weights
from modicum.methods.ecs import pilot_residuals as gradient_noise
from modicum.methods.laplace import _block_values
from modicum.models import Target
from modicum.models.target import _log_priors
from modicum.passes import anchor_at, engine
from modicum.passes import sums as on_sums
from modicum.passes.curvature import _expanded_prior, expanded_prior, prior_slope
from modicum.passes.linear_sums import linear_hessian_sum
from modicum.passes.sums import _values_sum
from modicum.runtime import COMPILED, in_double_precision

M, P = mo.models, mo.priors


def weighted(n):
    return np.random.default_rng(8).integers(0, 4, n).astype(float)


def shifted_rows():
    """Return float32 rows with a column like a year, nearly collinear with the intercept."""
    rng = np.random.default_rng(9)
    x = np.column_stack([2_000 + rng.normal(size=300), rng.normal(size=300)]).astype(np.float32)
    return mo.Rows(x=x, y=(rng.random(300) < 0.4).astype(np.float32))


def trials_rows():
    rng = np.random.default_rng(10)
    trials = rng.integers(1, 9, 150)
    return mo.Rows(x=rng.normal(size=(150, 2)), y=rng.binomial(trials, 0.4), trials=trials)


CASES = {
    "columns": (M.Logistic(), lambda: logistic_rows(300, weight=weighted(300))),
    "without an intercept": (M.Logistic(intercept=False), lambda: logistic_rows(300)),
    "offset": (M.Poisson(), lambda: poisson_rows(300)),
    "not concave": (M.StudentT(scale=0.3, df=3.0), lambda: gaussian_rows(300)),
    "two fields": (M.Binomial(), trials_rows),
    "float32": (M.Logistic(), shifted_rows),
    "codes": (M.Poisson(), lambda: pair(outcome="count", weight=True).coded),
    "codes and no numbers": (M.Logistic(), lambda: pair(numbers=0).coded),
    "codes that overlap": (M.Logistic(intercept=False), lambda: crossed().coded),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """Return sums with chunks of 128 rows, the last one short, and a point."""
    model, rows = CASES[request.param]
    sums, start = sums_of(model, rows())
    assert sums.target.likelihood.on_numpy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "chunk_rows", lambda rows: 128)
        t = start + 0.1 * np.random.default_rng(7).normal(size=start.shape)
        t[0] = 1e-4 if request.param == "float32" else t[0]
        yield request.param, sums, t


@in_double_precision
def compiled_hessian(sums, t):
    function = jax.tree_util.Partial(linear_hessian_sum, sums.target.likelihood)
    return sums.engine.map_reduce(function, t, sums.rows)


def test_hessians_agree(case):
    name, sums, t = case
    ours, theirs = sums.hessian(t, "test"), compiled_hessian(sums, t)
    rtol = 3e-6 if name == "float32" else 1e-11
    for mine, yours in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, yours, rtol=rtol, atol=1e-11 * np.abs(yours).max())
    other = compiled_hessian(sums, t + 1e-3 * np.abs(t).mean())
    assert not np.allclose(ours[2], other[2], rtol=rtol)  # negative control
    value, gradient = sums.gradient(t, "test")
    assert value == pytest.approx(ours[0], rel=1e-14)
    np.testing.assert_allclose(gradient, ours[1], rtol=1e-14)


@in_double_precision
def compiled_values(sums, points):
    function = jax.tree_util.Partial(_values_sum, sums.target.likelihood)
    return sums.engine.map_reduce(function, points, sums.rows)[0]


def test_values_at_many_points_agree(case, monkeypatch):
    name, sums, t = case
    points = t + 0.1 * np.random.default_rng(3).normal(size=(5, len(t)))
    points[:, 0] = t[0] if name == "float32" else points[:, 0]
    known, compiled = compiled_values(sums, points), COMPILED.total
    np.testing.assert_allclose(sums.values(points, "test"), known, rtol=1e-11)
    assert COMPILED.total == compiled
    assert not np.allclose(sums.values(points + 1e-3, "test"), known, rtol=1e-11)
    monkeypatch.setattr(on_sums, "FEW_VALUES", 5 * len(sums.rows) - 1)  # more are compiled
    np.testing.assert_array_equal(sums.values(points, "test"), known)


@in_double_precision
def sizes_and_values(sums, t):
    """Return expected residuals by NumPy and compiled, and residuals of some rows and draws."""
    variate = control_variate(sums.target, 2)
    proxy = proxy_at(anchor_at(sums, t), sums.target, 2)
    centre = np.full((1, len(t)), 0.3)
    ours = weights.expected_residuals(sums, variate, proxy, centre)
    posterior = weights._predictor_posterior(variate, proxy, centre[0])
    compiled = (
        partial(weights._residuals_compiled, variate)
        if sums.target.coding is None
        else partial(weights._compiled, weights._residuals_from_predictors, variate)
    )
    arguments = (proxy, centre[0]) if sums.target.coding is None else posterior
    theirs = sums.engine.map_rows(compiled, arguments, sums.rows)
    batch = sums.rows.take(np.arange(64)) | {"probability": np.full(64, 0.5)}
    z = np.random.default_rng(3).normal(size=(16, len(t)))
    kept = weights.cached_rows(variate, batch, proxy)
    plain = NumPyRows(variate, batch, proxy)
    values = (plain.values(z), np.asarray(_block_values(variate, kept, z, proxy)))
    share = np.linspace(0.1, 1.0, 64)
    slopes = (
        gradient_noise._slopes_by_numpy(map(plain.gradients, z), share, share),
        np.asarray(gradient_noise._slopes_of_rows(variate, batch, proxy, z, share, share)),
    )
    return (ours, theirs), values, slopes


def test_residuals_agree(case):
    name, sums, t = case
    sizes, values, slopes = sizes_and_values(sums, t)
    rtol = 1e-3 if name == "float32" else 1e-5  # sizes are float32
    np.testing.assert_allclose(*sizes, rtol=rtol)
    np.testing.assert_allclose(*values, rtol=1e-6, atol=1e-9 * np.abs(values[1]).max())
    np.testing.assert_allclose(*slopes, rtol=1e-6)
    assert np.ptp(values[0]) > 0


@pytest.mark.parametrize("columns", ["far from zero", "nearly collinear", "one huge number"])
def test_leverages_keep_their_digits(columns):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(5_000, 3))
    if columns == "far from zero":
        x[:, 0] += 1e6
    elif columns == "nearly collinear":
        x[:, 1] = x[:, 0] + 1e-8 * x[:, 1]
    else:
        x[17, 0] = 1e60  # beyond the range of float32
    wide = np.column_stack([x, np.ones(len(x))])
    # by the singular values: squaring them would lose half of the digits
    _, scale, axes = np.linalg.svd(wide / 2, full_matrices=False)
    L = axes.T / scale
    with np.errstate(over="ignore", invalid="ignore"):  # as in passes
        lengths = DenseMatrix(x, ones=True).quadratic(L @ L.T, L)
    exact = np.sum((wide.astype(np.longdouble) @ L) ** 2, axis=1).astype(float)
    np.testing.assert_allclose(lengths, exact, rtol=2e-3)
    with np.errstate(over="ignore", invalid="ignore"):
        careless = np.sum((wide.astype(np.float32) @ L.astype(np.float32)) ** 2, axis=1)
    assert not np.allclose(careless, exact, rtol=2e-3)


@pytest.mark.parametrize(
    "model",
    [
        M.Logistic(),
        M.Logistic(prior_scale=(1.0, 2.0, 3.0), intercept_scale=4.0),
        M.Poisson(priors={"common": P.Normal(0.4, 2.0), "x1": P.Flat(), "intercept": P.Flat()}),
    ],
)
@in_double_precision
def test_normal_priors_agree(model):
    target, start = Target.of(model, poisson_rows() if model == M.Poisson else logistic_rows())
    t = start + np.linspace(-1, 1, len(start))
    assert target.normal_prior is not None
    ours, traced = expanded_prior(target, t), _expanded_prior(target, t)
    for a, b in zip((*ours, *prior_slope(target, t)), (*traced, *traced[:2]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    points = np.stack([t, start])
    np.testing.assert_allclose(target.log_priors(points), _log_priors(target, points), rtol=1e-12)


@pytest.mark.parametrize("name", ["columns", "codes"])
def test_weighted_normal_draws_compile_nothing(name):
    model, rows = CASES[name]
    held = rows()
    before = COMPILED.total
    post = mo.sample(model, held, method="laplace", draws=50, random_seed=1, progressbar=False)
    assert COMPILED.total == before
    assert post.mean("beta").shape == (len(held.columns),)
    jax.jit(lambda x: x + 1)(1.0)
    assert COMPILED.total > before  # negative control: compilation is counted
