"""Smooths in `mo.fit`, against posteriors that are known: integrals over the sd, and NUTS."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import BSpline

import modicum as mo
from helpers.quadrature import away, mixed, normal_given, shares
from helpers.refusals import refused, unwarned
from modicum import plots
from modicum.errors import DataError, SettingError
from modicum.methods import nested_draws
from modicum.rows.formula.smooths import learn_smooth, smooth_columns

GAUSSIAN = mo.models.Gaussian(scale=0.5)
PRIORS = {"common": mo.priors.Normal(0, 2), "intercept": mo.priors.Normal(0, 5)}
PRIORS["smooth_sd"] = mo.priors.HalfNormal(1)


def curve(x):
    return np.sin(2 * x) + 0.3 * x


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(8)
    x, g = rng.uniform(0, 4, 300), rng.integers(0, 6, 300)
    y = curve(x) + 0.5 * rng.normal(size=300)
    late = y + np.linspace(-1, 1, 6)[g] > 0.5
    return pd.DataFrame({"x": x, "y": y, "late": late, "g": [f"g{i}" for i in g]})


def fitted(formula, table, **settings):
    settings = {"method": "laplace", "priors": PRIORS, "random_seed": 1} | settings
    return mo.fit(formula, table, progressbar=False, **settings)


@pytest.fixture(scope="module")
def post(table):
    return fitted("y ~ s(x, k=8)", table, family=GAUSSIAN, draws=2_000)


def exact(table, at, k=8, size=None):
    """Posterior mean and sd of s(x) and of its sd, by an integral over the sd.

    Splines are SciPy's, and the coefficients are those of second differences.
    """
    x, y = table["x"].to_numpy(), table["y"].to_numpy()
    knots = x.min() + (x.max() - x.min()) / (k - 3) * np.arange(-3, k + 1)

    def splines(values):
        inside = np.clip(values, x.min(), x.max() - 1e-9)
        return BSpline.design_matrix(inside, knots, 3).toarray()

    differences = np.diff(np.eye(k), 2, axis=0)
    root = np.linalg.pinv(differences)
    wiggles = (splines(x) - splines(x).mean(axis=0)) @ root
    size = np.sqrt(np.sum(wiggles**2, axis=1).mean()) if size is None else size
    X = np.column_stack([np.ones(len(x)), x - x.mean(), wiggles / size])
    points = (splines(at) - splines(x).mean(axis=0)) @ root / size
    F = np.column_stack([np.zeros(len(at)), at - x.mean(), points])
    h = np.linspace(-4, 3, 400)  # logarithms of the sd
    plain, wiggly = np.tile([5.0**-2, 2.0**-2], (400, 1)), np.exp(-2 * h)[:, None]
    priors = np.column_stack([plain, *[wiggly] * (k - 2)])
    logs, means, V = normal_given(X.T @ X / 0.25, X.T @ y / 0.25, priors)
    logs += h - np.exp(2 * h) / 2
    of_curve = mixed(logs, means @ F.T, np.einsum("ij,pjk,ik->pi", F, V, F))
    return *of_curve, shares(logs) @ np.exp(h)


def error(post, table, **changes):
    """Return how far a curve is from the exact one, in posterior sds, and likewise its sd."""
    ours = post.effects("s(x)", levels=np.linspace(0.1, 3.9, 9))
    mean, sd, scale = exact(table, ours.index.to_numpy(), **changes)
    of_sd = abs(post.mean("smooth_sd")[0] - scale) / post.sd("smooth_sd")[0]
    return max(away(ours, mean, sd), of_sd)


def test_curves_are_those_of_an_integral(post, table):
    assert error(post, table) < 0.08  # of 2,000 draws, 0.022 is one Monte Carlo error
    assert error(post, table, size=0.2) > 0.15  # an integral of other wiggles


def test_a_large_curve_does_not_explain_the_noise_as_well():
    x = np.linspace(0, 3, 300)  # column by column, splines explain more than there is
    y = 2 * np.sin(4 * x) + 0.5 * np.random.default_rng(1).normal(size=300)
    table = pd.DataFrame({"x": x, "y": y})
    post = fitted("y ~ s(x, k=8)", table, family="gaussian", draws=1_000)
    assert post.settings["method"] == "laplace"
    assert abs(post.mean("scale") - 0.5) < 4 * 0.5 / np.sqrt(600)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nuts", "hmc-ecs"])
def test_chains_agree_with_the_integral(table, method):
    post = fitted("y ~ s(x, k=8)", table, family=GAUSSIAN, draws=1_000, tune=500, method=method)
    assert error(post, table) < 0.15


def surface():
    rng = np.random.default_rng(3)
    x, z = rng.uniform(0, 1, (2, 150))
    return pd.DataFrame({"x": x, "z": z, "y": x + z + 0.5 * rng.normal(size=150)})


@cache
def integrated_surface():
    """Posterior means and sds of the sds of te(x, z, k=5), by an integral over all three."""
    table = surface()
    variables, y = table[["x", "z"]].to_numpy(), table["y"].to_numpy()
    columns = smooth_columns(learn_smooth(variables, None, k=5), variables)
    X = np.column_stack([columns, np.ones(len(y))])
    sizes = (6, 6, 9)  # wiggles of z, of x and of both, after three lines
    log_sds = np.linspace(-6, 2.5, 16)
    grid = np.stack(np.meshgrid(*[log_sds] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    wiggly = np.repeat(np.exp(-2 * grid), sizes, axis=1)
    plain = np.full((len(grid), 3), 2.0**-2)
    priors = np.column_stack([plain, wiggly, np.full(len(grid), 5.0**-2)])
    logs, *_ = normal_given(X.T @ X / 0.25, X.T @ y / 0.25, priors)
    logs += grid.sum(axis=1) - np.exp(2 * grid).sum(axis=1) / 2
    return mixed(logs, np.exp(grid), 0.0)


def surface_error():
    """Return how far means and sds of the three sds are from the integral's, in posterior sds."""
    post = fitted("y ~ te(x, z, k=5)", surface(), family=GAUSSIAN, draws=1_000)
    return away(post.summary("smooth_sd"), *integrated_surface()), post


def test_sds_of_a_surface_are_those_of_an_integral():
    error, post = surface_error()  # of 4,000 draws, 0.02 is one Monte Carlo error
    assert error < 0.09
    assert post.tuning["pareto_k"] < 0.5  # 0.6 along the axes of the mode


def test_kernels_of_another_density_are_noticed(monkeypatch):
    right = nested_draws.ScaleKernels.draw

    def of_sds(kernels, rng, count):  # the density of the sds, as if it were that of their logs
        h, logs = right(kernels, rng, count)
        return h, logs - h.sum(axis=1)

    monkeypatch.setattr(nested_draws.ScaleKernels, "draw", of_sds)
    assert surface_error()[0] > 0.2


THIN = {"random_seed": 1, "progressbar": False}


@pytest.mark.slow
@pytest.mark.parametrize("formula", ["y ~ te(x, z)", "y ~ s(x) + (1 | g)"], ids=["surface", "thin"])
def test_smooths_of_a_binary_outcome_need_no_chain(formula):
    rng = np.random.default_rng(1)
    x, z = rng.uniform(0, 1, (2, 1_500))
    g = np.repeat(np.arange(300), 5)
    eta = np.sin(5 * x) * np.cos(4 * z) + x - 0.5
    if "g" in formula:
        eta = np.sin(6 * x) + rng.normal(size=300)[g]
    table = pd.DataFrame({"x": x, "z": z, "g": g, "y": rng.random(1_500) < 1 / (1 + np.exp(-eta))})
    post = mo.fit(formula, table, "logistic", **THIN)
    assert post.settings["method"] == "laplace"
    with unwarned():  # of an R-hat of 1.01
        chain = mo.fit(formula, table, "logistic", method=mo.NUTS(target_accept=0.97), **THIN)
    ours, theirs = post.summary(), chain.summary()
    error = np.hypot(ours["sd"] / np.sqrt(ours["ess_bulk"]), theirs["mcse_mean"])
    assert np.all(np.abs(ours["mean"] - theirs["mean"]) < 4 * error)


def test_summary_and_labels(post):
    assert list(post.summary().index) == [
        "beta[s(x)[linear]]",
        "intercept",
        "smooth_sd[s(x)]",
        *(f"s(x)[{j}]" for j in range(1, 7)),
    ]


def test_predictions_are_intercept_plus_curve(post, table):
    at = pd.DataFrame({"x": [0.5, 2.0, 3.5]})
    both = post.effects("s(x)", levels=at["x"])["mean"] + post.mean("intercept")
    np.testing.assert_allclose(post.predict(at).mean, both, atol=1e-6)
    refused(DataError, "extrapolation=", post.predict, pd.DataFrame({"x": [9.0]}))
    refused(DataError, "known from", post.effects, "s(x)", levels=[9.0])


def test_a_saved_fit_is_the_same(post, table, tmp_path):
    post.save(tmp_path / "fit.nc")
    again = mo.Posterior.load(tmp_path / "fit.nc")
    pd.testing.assert_frame_equal(again.effects("s(x)"), post.effects("s(x)"))
    new = table.head(4)
    np.testing.assert_allclose(again.predict(new).mean, post.predict(new).mean)


def test_lines_and_ends_beyond_the_range(table):
    beyond = pd.DataFrame({"x": [table["x"].max(), 5.0, 6.0]})
    for how, slopes in (("clip", (0.0, 0.0)), ("extend", None)):
        term = f"y ~ s(x, k=6, extrapolation='{how}')"
        mean = fitted(term, table, family=GAUSSIAN).predict(beyond).mean
        first, second = np.diff(mean) / np.diff(beyond["x"])
        if slopes is None:
            assert first == pytest.approx(second, rel=1e-6)
            assert abs(first) > 0.1
        else:
            assert (first, second) == pytest.approx(slopes, abs=1e-9)


def test_priors_by_key(table):
    def sd(**priors):
        keys = {key.replace("_of_x", "[s(x)]"): prior for key, prior in priors.items()}
        given = fitted("y ~ s(x, k=6)", table, family=GAUSSIAN, priors=keys)
        return given.mean("smooth_sd")[0]

    tight = mo.priors.HalfNormal(0.01)
    assert sd(smooth_sd=tight) < 0.2
    assert sd(smooth_sd_of_x=tight, smooth_sd=mo.priors.HalfNormal(1)) < 0.2
    assert sd(smooth_sd=mo.priors.HalfNormal(1)) > 0.5
    with pytest.raises(SettingError, match="positive"):
        fitted("y ~ s(x)", table, family=GAUSSIAN, priors={"s(x)": mo.priors.Normal(0, 1)})


def test_smooths_beside_groups(table):
    post = fitted("late ~ s(x, k=6) + (1 | g)", table, family="logistic", priors=None)
    assert {"group_sd", "smooth_sd"} <= set(post.draws)
    assert list(post.effects("g").index) == [f"g{i}" for i in range(6)]
    new = post.predict(table.head(3).drop(columns="g"))
    assert np.all((new.mean > 0) & (new.mean < 1))
    refused(SettingError, r"g, s\(x\)", post.effects)


def test_too_few_splines_are_told(post, table):
    assert [doubt.code for doubt in post.warnings] == []
    quick = table.assign(y=table["y"] + np.sin(6 * table["x"]))
    with pytest.warns(mo.ModicumWarning, match=r"s\(x\) has k=6 .* such as k=12"):
        fitted("y ~ s(x, k=6)", quick, family=GAUSSIAN)
    enough = fitted("y ~ s(x, k=16)", quick, family=GAUSSIAN)
    assert enough.warnings == []


@pytest.mark.slow
def test_other_parameters_have_smooths(table):
    quiet = table.assign(y=table["y"] * np.exp(0.5 * table["x"]))
    post = fitted("y ~ s(x, k=6); scale ~ s(x, k=5)", quiet, family="gaussian", priors=None)
    assert {"smooth_sd[s(x)]", "smooth_sd[scale.s(x)]"} <= set(post.summary().index)
    slope = post.effects("scale.s(x)", levels=[0.5, 3.5])["mean"].diff().iloc[-1] / 3
    assert slope == pytest.approx(0.5, abs=0.12)


def test_picture(post):
    pytest.importorskip("matplotlib")
    ax = plots.smooth(post)
    assert ax.get_xlabel() == "x"
    line = ax.get_lines()[0].get_xydata()
    np.testing.assert_allclose(line[:, 1], post.effects("s(x)")["mean"])
