"""Coefficients within bounds: their densities, derivatives, draws, and what uses these."""

import jax
import numpy as np
import pytest
from scipy import stats

import modicum as mo
from helpers.cases import cases
from helpers.quadrature import moments
from helpers.refusals import refused
from helpers.targets import all_of, logistic_rows, sums_of
from modicum.kernels.control_variates import control_variate, proxy
from modicum.passes import anchor_at_mode

M, P = mo.models, mo.priors


@cases(
    "prior truth",
    (P.Normal(1, 2, lower=0), stats.truncnorm(-0.5, np.inf, 1, 2)),
    (P.Normal(0, 1, lower=-1, upper=0.5), stats.truncnorm(-1, 0.5)),
    (P.Normal(0, 1, lower=9), stats.truncnorm(9, np.inf)),  # far out in the tail
    (P.Laplace(0, 2, lower=0), stats.expon(0, 2)),
    (P.StudentT(1, 0, 3, lower=0), stats.halfcauchy(0, 3)),
    (P.Laplace(0, 2, upper=0), stats.loggamma(1e4)),  # not the same distribution
)
def test_bounds_cut_a_distribution_off(prior, truth, x64):
    draws = prior.draw(np.random.default_rng(1), (20_000,))
    inside = truth.ppf([0.2, 0.5, 0.9])
    ours = np.asarray(prior.density(inside)) - prior.log_mass
    alike = [
        np.allclose(ours, truth.logpdf(inside)),
        np.isclose(prior.centre, truth.median()),
        stats.kstest(draws, truth.cdf).pvalue > 1e-3,
    ]
    assert all(alike) if "loggamma" not in truth.dist.name else not any(alike)


@cases(
    "make says",
    (lambda: P.Normal(0, 1, lower=2, upper=1), "lower < upper, not 2.0 and 1.0"),
    (lambda: P.Normal(0, 1, lower="0"), "lower of Normal must be a number"),
    (lambda: P.Normal(0, 1, lower=100), "no mass between its bounds"),
    (lambda: M.Logistic(priors={"intercept": P.Normal(0, 1, lower=0)}), "only coefficients"),
    (lambda: M.Logistic(priors={"intercept": P.HalfNormal(1)}), "number on the whole line"),
)
def test_bounds_that_cannot_be_are_refused(make, says):
    refused(mo.SettingError, says, make)


def several():
    """A model with every kind of bound, whose intercept has a prior at the mean of the columns."""
    rows = logistic_rows(n=300, d=4, columns=list("abcd"))
    priors = {"a": P.Normal(0, 1, lower=0), "b": P.Exponential(1)}
    return M.Logistic(priors=priors | {"d": P.StudentT(4, 0, 1, lower=-2, upper=0.1)}), rows


def test_sums_and_expansions_are_those_of_free_values(x64):
    """Derivatives by the chain rule, and a proxy in the coefficients whose residuals make it up."""
    model, rows = several()
    sums, start = sums_of(model, rows)
    target, batch = sums.target, all_of(rows)

    def log_likelihood(t):
        return target.log_likelihood(t, batch).sum()

    expanded = jax.jit(lambda t: (log_likelihood(t), jax.grad(log_likelihood)(t)))
    t = start + 0.3
    value, slope, curved = sums.hessian(t, "test")
    np.testing.assert_allclose(value, expanded(t)[0], rtol=1e-10)
    np.testing.assert_allclose(slope, expanded(t)[1], rtol=1e-8, atol=1e-8)
    ahead, behind = (expanded(t + h)[1] for h in (1e-5, -1e-5))
    np.testing.assert_allclose(curved.sum(axis=1), (ahead - behind) / 2e-5, rtol=1e-5, atol=1e-4)

    anchor = anchor_at_mode(sums, start)
    form, about = control_variate(target, 2), proxy(anchor, target, 2)
    cached = jax.jit(form.cache)(batch | {"probability": np.ones(len(rows))}, about)

    @jax.jit
    def known(z):
        residuals = form.values(cached, z, about)
        t = anchor.point + anchor.factor @ z
        whole = log_likelihood(t) + target.log_prior(t)
        return residuals.sum() + form.log_proxy(z, about) - whole, abs(residuals).sum()

    off, sizes = zip(*[known(s * np.ones(target.size)) for s in (0.0, 0.5, 2.0)], strict=True)
    np.testing.assert_allclose(off, off[0], atol=1e-9)
    assert sizes[2] > 1e-2  # so that the proxy alone would not do


def test_an_intercept_is_as_far_from_its_prior_as_the_predictor_at_the_mean(x64):
    """Distance and slopes are those of the coefficients, not of the logarithms that are sampled."""
    model, rows = several()
    target, centre = sums_of(model, rows)[0].target, np.mean(all_of(rows)["x"], axis=0, dtype=float)
    t = 0.3 + np.arange(target.size) / 7
    place = target.size - 1
    free = {"a": t[0], "b": t[1], "c": t[2], "d": t[3]}
    share = 1 / (1 + np.exp(-free["d"]))
    beta = np.array([np.exp(free["a"]), np.exp(free["b"]), free["c"], -2 + 2.1 * share])
    steps = np.array([beta[0], beta[1], 1.0, 2.1 * share * (1 - share)])
    away, slope = target.prior_distances(t, np.array([place]))
    np.testing.assert_allclose(away, (t[place] + centre @ beta) / 10, rtol=1e-6)
    assert not np.allclose(away, (t[place] + centre @ t[:4]) / 10, rtol=1e-3)  # negative control
    np.testing.assert_allclose(slope, [[0.1]], rtol=1e-6)
    _, whole = target.prior_distances(t)
    np.testing.assert_allclose(whole[place], [*(centre * steps / 10), 0.1], rtol=1e-5, atol=1e-9)


@pytest.fixture(scope="module")
def pressed():
    """A coefficient whose likelihood has its maximum two sds beyond the bound."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=800)
    y = (rng.random(800) < 1 / (1 + np.exp(0.15 * x))).astype(float)
    model = M.Logistic(intercept=False, priors={"x": P.Normal(0, 1, lower=0)})
    rows = mo.Rows(x=x[:, None], y=y, columns=["x"])
    post = mo.sample(model, rows, draws=1000, chains=4, random_seed=1, progressbar=False)
    return x, y, rows, post


def quadrature(x, y, extra=0.0):
    """Mean and sd of the posterior on a grid; `extra` multiplies its density by beta^extra."""
    beta = np.linspace(1e-6, 0.6, 4_000)
    eta = beta[:, None] * x
    log = (y * eta - np.logaddexp(0, eta)).sum(axis=1) - beta**2 / 2 + extra * np.log(beta)
    return [found.item() for found in moments(log, beta)]


def test_a_coefficient_pressed_against_its_bound_is_right(pressed):
    x, y, _, post = pressed
    beta, mean, sd = post["beta"], *quadrature(x, y)
    error = 5 * post.summary().loc["beta[x]", "mcse_mean"]
    assert beta.min() > 0
    assert abs(post.mean("beta")[0] - mean) < error < 0.3 * mean
    assert post.sd("beta")[0] == pytest.approx(sd, rel=0.1)
    assert abs(post.mean("beta")[0] - quadrature(x, y, extra=1.0)[0]) > error  # a Jacobian too many


def test_a_bounded_posterior_is_used_and_kept_like_any_other(pressed, tmp_path):
    x, y, rows, post = pressed
    assert post.tuning["priors"]["beta"] == "normal(0, 1, lower=0)"
    post.save(tmp_path / "post")
    again = mo.Posterior.load(tmp_path / "post")
    expected = 1 / (1 + np.exp(-post["beta"].reshape(-1, 1) * x[:3]))
    weights = None if post.weights is None else post.weights.ravel()
    expected = np.average(expected, axis=0, weights=weights)
    np.testing.assert_allclose(again.predict({"x": x[:3, None]}).mean, expected, rtol=1e-6)
    assert -len(y) < post.loo(rows).elpd < 0.65 * -len(y)
    prior = again.predictive(rows, prior=True, draws=20, random_seed=1)
    assert np.shape(prior)[-1] == len(y)
    refused(mo.SettingError, "may be any number, and the prior of one has", mo.digest, post, rows)
    refused(
        mo.SettingError,
        "FlyMC's bounds are quadratic",
        mo.sample,
        *(several()[0], several()[1]),
        method="flymc",
        progressbar=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", [mo.HMCECS(target_accept=0.98), "nuts"])
def test_chains_stay_within_bounds(method, pressed):
    x, y, rows, post = pressed
    chains = mo.sample(post.fitted_model(), rows, method=method, random_seed=1, progressbar=False)
    mean, sd = quadrature(x, y)
    assert chains["beta"].min() > 0
    assert abs(chains.mean("beta")[0] - mean) < 0.15 * sd


@pytest.mark.slow
def test_groups_beside_bounds_have_explicit_effects():
    rng = np.random.default_rng(3)
    ward, x = rng.integers(0, 30, 3_000), rng.normal(size=3_000)
    y = 0.5 * rng.normal(size=30)[ward] - 0.01 * x + rng.normal(size=3_000)
    table = {"y": y, "x": x, "ward": ward.astype(str)}
    priors = {"x": P.Normal(0, 1, lower=0)}
    both = [
        mo.fit("y ~ x + (1 | ward)", table, "gaussian", priors=priors, random_seed=1, **settings)
        for settings in ({}, {"method": "nuts"})
    ]
    ours, theirs = (post.summary() for post in both)
    assert abs(ours["mean"] - theirs["mean"]).max() < 0.02
    assert both[0]["beta"].min() > 0
    refused(
        mo.SettingError,
        "coefficients within bounds, or monotonic ones, cannot be combined",
        mo.fit,
        *("y ~ x + (1 | ward)", table, "gaussian"),
        priors=priors,
        groups="integrate",
    )
