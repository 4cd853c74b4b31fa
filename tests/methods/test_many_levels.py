"""Effects of a factor with many levels: an arrow-shaped Hessian instead of a dense one."""

import resource
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.quadrature import shares
from helpers.targets import means_apart, sums_of
from modicum.kernels.control_variates import control_variate, proxy
from modicum.linalg.arrow import ArrowCholesky, ArrowFactor, ArrowMatrix
from modicum.models import target as targets
from modicum.passes import anchor_at_mode
from modicum.passes import sums as sums_over_rows
from modicum.runtime import in_double_precision

M, P, G = mo.models, mo.priors, mo.models.GroupTerm
RUN = {"chains": 2, "random_seed": 1, "progressbar": False}


# Against dense matrices -------------------------------------------------------------------


def crossed():
    """Return two crossed factors, one with slopes correlated with its intercepts."""
    rng, n = np.random.default_rng(1), 1_500
    g, k, x = rng.integers(0, 30, n), rng.integers(0, 6, n), rng.normal(size=(n, 3))
    eta = 0.3 + x @ [0.5, -0.2, 0.1] + 0.6 * rng.normal(size=30)[g] + 0.3 * rng.normal(size=6)[k]
    eta += 0.4 * rng.normal(size=30)[g] * x[:, 0]
    y = rng.random(n) < 1 / (1 + np.exp(-eta))
    model = M.Logistic(groups=[G("g", ("1", "x0")), "k"])
    return model, mo.Rows(x=x, y=y.astype(float), codes={"g": g, "k": k})


@in_double_precision
def anchored(model, rows, limit):
    """Return the anchor if dense matrices may have up to `limit` parameters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "DENSE_LIMIT", limit)
        sums, start = sums_of(model, rows)
        layout = sums.target.arrow  # which is kept
        assert (layout is None) == (limit > sums.target.size)
        return sums.target, anchor_at_mode(sums, start)


@pytest.fixture(scope="module")
def both():
    """Return target and anchor, with dense matrices and with arrows."""
    return anchored(*crossed(), 2_000), anchored(*crossed(), 3)


def test_mode_and_hessian_match_dense_matrices(both):
    (_, dense), (_, arrow) = both
    assert np.abs(arrow.point - dense.point).max() < 1e-9
    formed = np.column_stack([arrow.B @ unit for unit in np.eye(len(dense.point))])
    assert np.allclose(formed, dense.B, rtol=1e-11, atol=1e-9)
    assert np.allclose(arrow.sd, dense.sd, rtol=1e-9)
    whole = np.column_stack([arrow.factor @ unit for unit in np.eye(len(dense.point))])
    assert np.allclose(whole @ whole.T, dense.factor @ dense.factor.T, rtol=1e-9, atol=1e-12)


@in_double_precision
def test_compiled_sums_by_level_are_those_by_numpy(both, monkeypatch):
    target, anchor = both[1]
    sums, _ = sums_of(*crossed())
    sums = replace(sums, target=target)
    assert sums.gradient_on_numpy
    by_numpy = sums.curvature(anchor.point, "mode")
    monkeypatch.setattr(sums_over_rows, "FEW_ROWS", 0)
    compiled = sums.curvature(anchor.point, "mode")
    assert np.allclose(compiled[0], by_numpy[0], rtol=1e-12)
    assert np.allclose(compiled[1], by_numpy[1], rtol=1e-9, atol=1e-9)
    assert np.allclose(compiled[2].dense(), by_numpy[2].dense(), rtol=1e-9, atol=1e-9)
    elsewhere = sums.curvature(anchor.point + 0.01, "mode")  # a control: it is about the point
    assert not np.allclose(elsewhere[2].dense(), by_numpy[2].dense(), rtol=1e-9, atol=1e-9)


def test_products_with_the_factor_are_right_and_a_broken_border_is_noticed(both):
    arrow = both[1][1]
    F, z = arrow.factor, np.random.default_rng(2).normal(size=len(arrow.point))
    whole = np.column_stack([F @ unit for unit in np.eye(len(z))])
    assert np.allclose(F.T @ z, whole.T @ z)
    assert np.allclose(F.whitened(F @ z), z)
    assert np.allclose(F @ np.stack([z, -z]).T, whole @ np.stack([z, -z]).T)
    precision = np.linalg.inv(whole @ whole.T)
    blocks, cross, corner = _parts(precision, F)

    def faults(cross):
        """Whether solutions or the determinant differ from those of the dense matrix."""
        factored = ArrowCholesky.of(ArrowMatrix(F.big, F.border, blocks, cross, corner))
        right = np.allclose(factored.solve(z), np.linalg.solve(precision, z))
        return not right or not np.isclose(
            2 * factored.half_log_det, np.linalg.slogdet(precision)[1]
        )

    assert not faults(cross)
    assert faults(0.9 * cross)


def _parts(matrix, F: ArrowFactor):
    blocks = matrix[F.big[:, :, None], F.big[:, None, :]]
    return blocks, matrix[F.big[:, :, None], F.border], matrix[np.ix_(F.border, F.border)]


@in_double_precision
def density(target, anchor, t, cut=1.0):
    """Return log density and gradient at r = t* + L z: proxy, residuals, log-Jacobian."""
    batch = crossed()[1].take(np.arange(64)) | {"probability": np.full(64, 0.1)}
    form = proxy(anchor, target, 2)
    if form.where.arrow is not None:
        form = form._replace(B=form.B * cut)
    value, slope = _density(control_variate(target, 2), anchor.whiten(t), form, batch)
    L = np.column_stack([anchor.factor @ unit for unit in np.eye(len(t))])
    return float(value), np.linalg.solve(L.T, slope)


@partial(jax.jit, static_argnums=0)
def _density(cv, z, form, batch):
    def log(z):
        s, growth = form.where.straighten(z)
        residuals = cv.values(cv.cache(batch, form), s, form)
        return cv.log_proxy(s, form) + jnp.sum(residuals) + growth

    return jax.value_and_grad(log)(z)


def test_the_density_and_its_gradient_match_dense_matrices(both):
    dense, arrow = both
    t = dense[1].point + 0.5 * dense[1].sd * np.random.default_rng(3).normal(size=len(dense[1].sd))
    value, slope = density(*dense, t)
    its_value, its_slope = density(*arrow, t)
    assert np.isclose(its_value, value, rtol=1e-9)
    assert np.allclose(its_slope, slope, rtol=1e-6, atol=1e-6)
    assert not np.isclose(density(*arrow, t, cut=0.9)[0], value, rtol=1e-9)


# Against the exact posterior --------------------------------------------------------------


def many(levels, columns, per_level, seed=3):
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(levels), per_level)
    x = rng.normal(size=(len(g), columns)).astype(np.float32)
    beta = 0.1 * rng.normal(size=columns)
    y = 0.5 + x @ beta + 0.7 * rng.normal(size=levels)[g] + rng.normal(size=len(g))
    return mo.Rows(x=x, y=y, codes={"g": g})


def many_model():
    priors = {"common": P.Normal(0, 1), "intercept": P.Normal(0, 1), "g": P.HalfNormal(1)}
    return M.Gaussian(scale=1.0, groups="g", priors=priors)


def exactly(rows):
    """Return E tau and means of beta and the first effects; all but tau is integrated exactly.

    Within a level y has the covariance I + tau^2 11', whose inverse is I - c 11'.
    """
    batch = rows.slice(0, len(rows))
    X, y = np.c_[batch["x"], np.ones(len(rows))].astype(float), np.asarray(batch["y"])
    size = np.bincount(batch["g"])
    per, levels = size[0], len(size)
    mean_x, mean_y = X.reshape(levels, per, -1).sum(1), y.reshape(levels, per).sum(1)
    XX, Xy, yy, SS = X.T @ X, X.T @ y, y @ y, mean_x.T @ mean_x
    Sy, ss = mean_x.T @ mean_y, mean_y @ mean_y
    grid, logs, means = np.linspace(-0.45, -0.27, 121), [], []
    for h in grid:
        tau2 = np.exp(2 * h)
        c = tau2 / (1 + per * tau2)
        A, b = XX - c * SS + np.eye(X.shape[1]), Xy - c * Sy
        beta = np.linalg.solve(A, b)
        log = -0.5 * levels * np.log1p(per * tau2) - 0.5 * np.linalg.slogdet(A)[1]
        log += 0.5 * (b @ beta) - 0.5 * (yy - c * ss) - 0.5 * tau2 + h
        effect = c * (mean_y[:3] - mean_x[:3] @ beta)
        logs.append(log)
        means.append(np.r_[np.exp(h), beta[:4], effect])
    return shares(logs) @ np.array(means)


def wrong(post, truth):
    """Whether means differ from the exact ones beyond Monte Carlo error."""
    held = np.concatenate([post["group_sd"], post["beta"][..., :4], post["1|g"][..., :3]], axis=-1)
    return means_apart(held, truth)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")  # so few draws
def test_more_levels_than_a_dense_hessian_holds_are_sampled_right():
    rows = many(2_100, 4, 8)
    truth = exactly(rows)
    post = mo.sample(many_model(), rows, method="hmc-ecs", draws=300, tune=150, **RUN)
    assert post["1|g"].shape[-1] == 2_100
    assert not wrong(post, truth)
    assert wrong(post, truth * 1.2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")  # so few draws
def test_ten_thousand_levels_beside_500_columns_take_memory_linear_in_the_levels():
    """A single dense Hessian of 10,502 parameters would take 880 MB, and several are needed.

    Linear are the rows, in float32 and chunk by chunk in float64, and some forty borders of
    500 x 10,000 numbers.
    """
    rows = many(10_000, 500, 12)
    truth = exactly(rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = {"draws": 150, "tune": 100, "chains": 1, "random_seed": 1, "progressbar": False}
    post = mo.sample(many_model(), rows, method="hmc-ecs", **run)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert not wrong(post, truth)
    assert grown < 3_300_000  # kB; 2.8 GB were measured, and four dense matrices would add 3.5 GB
