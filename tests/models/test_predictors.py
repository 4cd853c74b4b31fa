"""Formulas for several parameters: every column enters one of the family's predictors."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.special import polygamma, psi

import modicum as mo
from helpers.refusals import refused
from modicum.errors import SettingError
from modicum.fit import model_for
from modicum.models import Target
from modicum.passes.hessians import linear_hessian_sum
from modicum.rows.reading import read_formula
from modicum.runtime import in_double_precision

RUN = {"random_seed": 1, "progressbar": False, "draws": 500, "chains": 4}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    d = pd.DataFrame({"x": rng.normal(size=600), "f": rng.choice(list("abc"), 600)})
    d["ward"] = rng.choice(list("uvwxyz"), 600)
    log_scale = 0.5 * d["x"] + (d["f"] == "b")
    return d.assign(y=1 + d["x"] + np.exp(log_scale) * rng.normal(size=600))


def read(formula, table, family="gaussian"):
    rows = read_formula(formula, table, progressbar=False)
    return Target.of(model_for(rows, family, groups=None).model, rows)[0], rows


@pytest.mark.parametrize("intercept", ["", "0 + "])
@in_double_precision
def test_predictors_are_sums_over_their_own_columns(table, intercept):
    target, rows = read(f"y ~ {intercept}x + f; scale ~ f + x", table)
    rng = np.random.default_rng(2)
    theta = target.unravel(rng.normal(size=target.size))
    first = target.model.coding.predictors[0][1]
    has_a = [] if not intercept else [table["f"] == "a"]
    levels = [*has_a, table["f"] == "b", table["f"] == "c"]
    X = np.column_stack([table["x"], *levels])
    Z = np.column_stack([table["f"] == "b", table["f"] == "c", table["x"]])
    mean = X @ theta["beta"][:first] + theta.get("intercept", 0.0)
    log_scale = Z @ theta["beta"][first:] + theta["log_scale"]
    predictors = target.model.predictor_vector(theta, rows.slice(0, 600))
    np.testing.assert_allclose(predictors, np.stack([mean, log_scale], axis=1), atol=1e-6)


@in_double_precision
def test_sums_over_pairs_of_predictors(table):
    target, rows = read("y ~ x + f; scale ~ f + (1 | ward)", table.head(100))
    t = 0.3 * np.random.default_rng(3).normal(size=target.size)
    batch = {name: jnp.asarray(x) for name, x in rows.slice(0, len(rows)).items()}
    _, _, hessian = linear_hessian_sum(target.likelihood, t, batch, np.ones(len(rows), bool))
    exact = jax.jit(jax.hessian(lambda t: target.likelihood.log_likelihood(t, batch).sum()))
    true = exact(t[: target.likelihood.size])
    np.testing.assert_allclose(hessian, true, rtol=1e-5, atol=1e-3)
    wrong = np.asarray(hessian).copy()  # as if the predictors did not interact
    of_scale = np.r_[target.model.entering[1], False, True]  # columns, and the two intercepts
    wrong[np.ix_(of_scale, ~of_scale)] = 0
    assert not np.allclose(wrong, true, rtol=1e-5, atol=1e-3)


FLAT = dict.fromkeys(["common", "intercept", "scale.common", "scale.intercept"], mo.priors.Flat())


def _log_scales(post):
    """Mean and sd of the log scale of each level of a factor."""
    draws = np.asarray(post["scale.beta"])
    if "scale.intercept" in post.draws:
        first = np.asarray(post["scale.intercept"])[..., None]
        draws = np.concatenate([first, first + draws], axis=-1)
    return draws.mean((0, 1)), draws.std((0, 1))


@pytest.mark.parametrize("intercept", ["", "0 + "])
def test_scales_of_levels_have_their_closed_form(table, intercept):
    """With flat priors and its own mean, the scale of a level has a known posterior."""
    rows = ["scale.beta[f[b]]", "scale.beta[f[c]]", "scale.intercept"]
    rows = ["scale.beta[f[a]]", *rows[:2]] if intercept else rows
    priors = {k: prior for k, prior in FLAT.items() if not intercept or k != "scale.intercept"}
    formulas = ("y ~ f", f"scale ~ {intercept}f")
    post = mo.fit(formulas, table, family="gaussian", priors=priors, **RUN)
    assert list(post.summary().index)[3:] == rows
    by_level = table.groupby("f")["y"]
    half = (by_level.size().to_numpy() - 1) / 2
    squares = by_level.var().to_numpy() * half
    mean, sd = (np.log(squares) - psi(half)) / 2, np.sqrt(polygamma(1, half)) / 2
    found, found_sd = _log_scales(post)
    np.testing.assert_allclose(found, mean, atol=4 * sd.max() / np.sqrt(1000))
    np.testing.assert_allclose(found_sd, sd, rtol=0.12)
    assert np.ptp(mean) > 5 * sd.max()  # so that one scale for all levels would fail
    spread = post.predictive(table, draws=200).std(0)[table["f"] == "b"].mean()
    assert spread == pytest.approx(np.exp(mean[1]), rel=0.1)


def test_saved_fits_and_digests_keep_all_predictors(table, tmp_path):
    formulas = ("y ~ x", "scale ~ x")
    post = mo.fit(formulas, table, family="gaussian", **RUN)
    post.save(tmp_path / "post")
    again = mo.Posterior.load(tmp_path / "post")
    np.testing.assert_allclose(again.predict(table).mean, post.predict(table).mean)
    from_digest = mo.fit(formulas, mo.digest(post, table), family="gaussian", **RUN)
    both = post.summary()["mean"], from_digest.summary()["mean"]
    np.testing.assert_allclose(*both, atol=0.02)


def test_priors_by_predictor(table):
    rows = read_formula("y ~ x + f; scale ~ x + f", table, progressbar=False)
    given = {
        "common": mo.priors.Normal(0, 1),
        "scale.common": mo.priors.Normal(0, 2),
        "scale.f": mo.priors.Normal(0, 3),
        "scale.beta[x]": mo.priors.StudentT(3, 0, 4),
        "scale.intercept": mo.priors.Normal(1, 5),
    }
    described = model_for(rows, "gaussian", given).model.resolved(rows).describe_priors(rows)
    assert described["beta[x]"] == described["beta[f[b]]"] == "normal(0, 1)"
    assert described["scale.beta[f[c]]"] == "normal(0, 3)"
    assert described["scale.beta[x]"].startswith("student")
    assert described["scale.intercept"] == "normal(1, 5)"
    default = model_for(rows, "gaussian").model.resolved(rows)
    sd = table["x"].std(ddof=0)
    (x_scale,) = [default.resolved_priors.coefficients[3].sd]
    assert x_scale == pytest.approx(2.5 / sd, rel=0.01)  # of the logarithm, whatever the unit of y
    assert "at the mean of the columns" in default.describe_priors(rows)["scale.intercept"]


@in_double_precision
def test_new_groups_vary_in_each_predictor():
    """The mean of a zero-inflated count, averaged over groups in both of its predictors."""
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"g": rng.integers(8, size=80).astype(str), "y": rng.poisson(2, 80)})
    target, _ = read("y ~ (1 | g); zero_inflation ~ (1 | g)", table, "zero-inflated-poisson")
    theta = jax.tree.map(jnp.asarray, target.unravel(np.zeros(target.size)))
    theta["variation.log_group_sd"] = jnp.log(jnp.array([0.5, 1.2]))
    u, v = rng.normal(size=(2, 200_000)) * np.array([[0.5], [1.2]])
    means = np.exp(u) / (1 + np.exp(v))
    batch = {"x": np.zeros((1, 0))}
    expected = float(target.model.expected(theta, batch)[0])
    assert expected == pytest.approx(means.mean(), abs=4 * means.std() / np.sqrt(means.size))
    alone = np.exp(u).mean() / 2  # without the variation of the zeros, or with that of the rate
    shared = (np.exp(u) / (1 + np.exp(1.2 / 0.5 * u))).mean()  # ... shared by both
    assert abs(alone - expected) < 0.01  # the logit is symmetric about 0
    assert abs(shared - expected) > 0.05


@pytest.mark.parametrize(
    ("formulas", "family", "words"),
    [
        (("y ~ x", "sigma ~ x"), "gaussian", "did you mean 'scale'"),
        (("y ~ x", "scale ~ x"), mo.models.Gaussian(scale=1.0), "given as numbers"),
        (("y ~ x", "scale ~ x", "scale ~ f"), "gaussian", "a parameter twice"),
        (("y ~ x", "scale ~ f + offset(x)"), "gaussian", "only that of the outcome"),
        (("y ~ x", "scale ~ 0"), "gaussian", "neither a term nor an intercept"),
        (("y ~ x", "log(scale) ~ f"), "gaussian", "where a parameter of the family"),
        (("y ~ x", 3), "gaussian", "must be text"),
    ],
)
def test_formulas_that_cannot_be_fitted(table, formulas, family, words):
    refused(SettingError, words, mo.fit, formulas, table, family=family, **RUN)


def test_integrating_and_flymc_are_refused(table):
    formulas = ("y ~ x + (1 | ward)", "scale ~ x")
    with pytest.raises(SettingError, match="cannot be integrated out where 'scale'"):
        mo.fit(formulas, table, family="gaussian", groups="integrate", **RUN)
    with pytest.raises(SettingError, match="FlyMC's bounds are those of a single scale"):
        mo.fit(("y ~ x", "scale ~ x"), table, family="student-t", method="flymc", **RUN)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "hmc-ecs"])
def test_groups_in_both_predictors_agree_with_nuts(method):
    rng = np.random.default_rng(5)
    n = 4000
    table = pd.DataFrame({"x": rng.normal(size=n), "g": rng.integers(20, size=n)})
    u, v = 0.5 * rng.normal(size=20), 0.4 * rng.normal(size=20)
    noise = np.exp(0.3 * table["x"] + v[table["g"]]) * rng.normal(size=n)
    table = table.assign(y=table["x"] + u[table["g"]] + noise, g=table["g"].astype(str))
    formulas = ("y ~ x + (1 | g)", "scale ~ x + (1 | g)")
    run = {"family": "gaussian", "random_seed": 1, "progressbar": False}
    fitted = mo.fit(formulas, table, method=method, **run)
    refused(SettingError, "'scale' differs between rows", fitted.icc, table)
    post = fitted.summary()
    reference = mo.fit(formulas, table, method="nuts", **run).summary()
    error = np.hypot(post["mcse_mean"], reference["mcse_mean"])
    assert (np.abs(post["mean"] - reference["mean"]) / error).max() < 5
    assert np.abs(np.log(post["sd"] / reference["sd"])).max() < 0.15
