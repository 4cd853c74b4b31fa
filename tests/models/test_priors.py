"""The distributions of `mo.priors`, what their keys mean, and how they are saved."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats

import modicum as mo
from helpers.quadrature import moments
from helpers.refusals import refused
from helpers.targets import gaussian_rows, numpyro_draws, sums_of
from modicum.models.over_draws import ModelPredictor, rebuild
from modicum.models.priors.distributions import as_tree
from modicum.passes import anchor_at_mode

M, P = mo.models, mo.priors

DENSITIES = {
    "normal": (P.Normal(1, 2), stats.norm(1, 2)),
    "student": (P.StudentT(3, 1, 2), stats.t(3, 1, 2)),
    "laplace": (P.Laplace(1, 2), stats.laplace(1, 2)),
    "half-normal": (P.HalfNormal(2), stats.halfnorm(0, 2)),
    "half-cauchy": (P.HalfCauchy(2), stats.halfcauchy(0, 2)),
    "exponential": (P.Exponential(2), stats.expon(0, 0.5)),
    "gamma": (P.Gamma(3, 2), stats.gamma(3, 0, 0.5)),
    "log-normal": (P.LogNormal(1, 2), stats.lognorm(2, 0, np.exp(1))),
}


@pytest.mark.parametrize("name", DENSITIES)
def test_densities_match_scipy(name, x64):
    prior, truth = DENSITIES[name]
    value = np.array([0.3, 1.0, 4.0])
    other = type(prior)(*(1.1 * number for number in prior.numbers))
    each, elsewhere = jax.jit(lambda x: (prior.density(x), other.density(x).sum()))(value)
    np.testing.assert_allclose(each, truth.logpdf(value), rtol=1e-6, atol=1e-6)
    assert abs(float(elsewhere) - truth.logpdf(value).sum()) > 1e-3


def test_draws_of_two_kinds_of_shrinkage_are_restored(x64):
    rng = np.random.default_rng(1)
    rows = mo.Rows(x=rng.normal(size=(30, 3)), y=rng.integers(0, 2, 30))
    priors = {"common": P.Horseshoe(), rows.columns[2]: P.R2D2(cons_D2=1)}
    target, _ = M.Target.of(M.Logistic(priors=priors), rows)
    point = np.linspace(-1, 1, target.size)
    restored = target.model.restore(target.report(point))
    np.testing.assert_allclose(target.ravel(restored), point, atol=1e-12)


horseshoe = jax.jit(lambda prior, value, tau: prior.density(value, tau))


@pytest.mark.parametrize("beta", [0.0, 0.02, 0.3, 3.0])
def test_the_horseshoe_is_its_mixture(beta, x64):
    """Compare it with the integral over the local scale, by adaptive quadrature."""
    slab, resolution, tau = 2.0, 0.01, 0.2

    def integrand(v):
        free = tau * np.exp(v)
        sd = np.sqrt((slab * free) ** 2 / (slab**2 + free**2) + resolution**2)
        return stats.norm.pdf(beta, 0, sd) / (np.pi * np.cosh(v))

    truth = integrate.quad(integrand, -40, 40, limit=400, points=[-5, 0, 5])[0]
    prior = as_tree(P.Horseshoe(1.0, slab, 1.0, resolution))
    ours, wrong = (np.exp(horseshoe(prior, beta, scale)) for scale in (tau, 1.2 * tau))
    assert ours == pytest.approx(truth, rel=1e-3)
    assert wrong != pytest.approx(truth, rel=1e-2)


@pytest.mark.parametrize("name", ["student", "laplace"])
def test_the_approximating_normal_has_the_slope_of_the_density(name, x64):
    """The normal approximation has precision w(r) = -(log p)'(r) / r about the centre."""
    prior = DENSITIES[name][0]
    r = np.array([0.1, 1.0, 5.0])
    step = 1e-5
    density = jax.jit(prior.density)
    up, down = (np.asarray(density(prior.centre + r + sign * step)) for sign in (1, -1))
    np.testing.assert_allclose(prior.precision(r**2), -(up - down) / (2 * step) / r, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: P.Normal(0, -1), "sd of Normal must be a positive number, not -1"),
        (lambda: M.Logistic(priors={"common": 2.5}), "must be a distribution such as"),
        (lambda: M.Logistic(priors=[P.Normal(0, 1)]), "map names to distributions.* not list"),
        (lambda: M.Gaussian(priors={"scale": P.Normal(0, 1)}), "positive number; use for example"),
        (lambda: M.Logistic(prior_scale=1.0, priors={"common": P.Flat()}), "given twice"),
        (lambda: M.Logistic(priors={"intercept": P.Horseshoe()}), "a prior of many coefficients"),
    ],
)
def test_what_is_not_a_prior_is_refused_with_a_reason(make, says):
    refused(mo.SettingError, says, make)


# Keys ------------------------------------------------------------------------------------------


def table_rows():
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"y": rng.integers(0, 2, 60), "age": rng.normal(size=60)})
    table["town"] = rng.choice(["a", "b", "c"], 60)
    return mo.Rows.from_table(table, outcome="y", categorical=["town"])


def test_a_key_means_a_column_also_by_its_name_in_the_summary_or_all():
    given = {"town[c]": P.Flat(), "town": P.Laplace(0, 1), "common": P.Normal(1, 2)}
    priors = M.Logistic(priors=given).resolved(table_rows()).resolved_priors.coefficients
    assert priors == (P.Normal(1, 2), P.Laplace(0, 1), P.Flat())
    given = {"beta[town[c]]": P.Flat(), "beta[age]": P.Normal(0, 3), "town": P.Laplace(0, 1)}
    priors = M.Logistic(priors=given).resolved(table_rows()).resolved_priors.coefficients
    assert priors == (P.Normal(0, 3), P.Laplace(0, 1), P.Flat())
    twice = M.Logistic(priors={"age": P.Flat(), "beta[age]": P.Normal(0, 3)})
    refused(mo.SettingError, "'age' is given twice", twice.resolved, table_rows())
    with pytest.raises(mo.SettingError, match="nothing called 'beta\\[twon\\]'"):
        M.Logistic(priors={"beta[twon]": P.Flat()}).resolved(table_rows())


def test_defaults_are_shown_beside_what_is_given():
    shown = mo.priors.default(table_rows(), M.Logistic(priors={"age": P.Laplace(0, 1)}))
    assert shown["beta[age]"] == "laplace(0, 1)"
    assert shown["beta[town[b]]"].startswith("normal(0, ")
    assert mo.priors.default(gaussian_rows(50), "gaussian")["log_scale"].startswith("normal(")
    refused(mo.SettingError, "no family 'logits'", mo.priors.default, table_rows(), "logits")


def test_models_are_hashable_shown_and_kept_with_their_priors():
    given = {"common": P.Horseshoe(0.1), "age": P.StudentT(4), "intercept": P.Flat()}
    model = M.Logistic(priors=given).resolved(table_rows())
    assert "StudentT(df=4.0, mean=0.0, scale=1.0)" in repr(model)
    kept = rebuild(ModelPredictor(model).to_dict()).model
    assert kept == model
    assert hash(kept) == hash(model)


# The anchor ------------------------------------------------------------------------------------


def test_normal_priors_with_means_have_their_closed_form():
    rows = gaussian_rows(100)
    priors = {"common": P.Normal(2, 0.1), "intercept": P.Flat()}
    sums, start = sums_of(M.Gaussian(scale=0.7, priors=priors), rows)
    assert sums.target.exact_prior is None
    batch = rows.slice(0, 100)
    x = np.c_[batch["x"], np.ones(100)]
    precision = np.diag([100.0] * 3 + [0.0])
    cov = np.linalg.inv(x.T @ x / 0.49 + precision)
    mean = cov @ (x.T @ batch["y"] / 0.49 + precision @ [2, 2, 2, 0])
    anchor = anchor_at_mode(sums, start)
    np.testing.assert_allclose(anchor.point, mean, rtol=1e-8)
    np.testing.assert_allclose(anchor.factor @ anchor.factor.T, cov, rtol=1e-8)


def test_a_tight_laplace_prior_is_anchored_within_the_posterior():
    """By quadrature, for one coefficient whose prior has a kink within the posterior."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 1))
    y = 0.1 * x[:, 0] + rng.normal(size=400)
    model = M.Gaussian(scale=1.0, intercept=False, priors={"common": P.Laplace(0, 0.03)})
    sums, start = sums_of(model, mo.Rows(x=x, y=y))
    anchor = anchor_at_mode(sums, start, within=0.01)
    grid = np.linspace(-0.5, 0.5, 4001)
    log = -0.5 * ((y[:, None] - x * grid) ** 2).sum(0) - np.abs(grid) / 0.03
    (mean,), (sd,) = moments(log, grid)
    assert abs(anchor.point[0] - mean) < 0.5 * sd
    assert 0.7 < anchor.factor[0, 0] / sd < 1.4


@pytest.mark.parametrize("case", ["collinear", "separated", "no events"])
def test_flat_priors_without_a_posterior_are_refused(case):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 2))
    y = (rng.random(500) < 0.5) * 1.0
    model = M.Poisson if case == "no events" else M.Logistic
    if case == "collinear":
        x = np.c_[x, x[:, 0] - x[:, 1]]
    else:
        level = np.arange(500) < 40
        x = np.c_[x, level]
        y[level] = 0.0
    rows = mo.Rows(x=x, y=y)
    sums, start = sums_of(model(priors={"common": P.Flat(), "intercept": P.Flat()}), rows)
    with pytest.raises(mo.ConvergenceError, match="the posterior is improper"):
        anchor_at_mode(sums, start, within=0.01)
    sums, start = sums_of(model(), rows)
    anchor_at_mode(sums, start, within=0.01)  # the default priors keep it bounded


def r2_and_share(prior, count, counted, number=4_000):
    """Draw R^2 and the first share from the density of tau and local variances given tau."""
    rng, log_tau = np.random.default_rng(1), np.linspace(-9, 9, 20_001)
    log_scale = jax.jit(jax.vmap(lambda log: prior.log_scale(jnp.exp(log), counted)))
    density = np.exp(np.asarray(log_scale(log_tau)) + log_tau)
    below = np.cumsum(density) * (log_tau[1] - log_tau[0])
    tau = np.exp(np.interp(rng.random(number) * below[-1], below, log_tau))
    variances = tau[:, None] ** 2 * rng.gamma(prior.cons_D2, size=(number, count))
    total = variances.sum(axis=1)
    return below[-1], total / (1 + total), variances[:, 0] / total


@pytest.mark.parametrize(("arguments", "count"), [((0.5, 2, 0.5), 6), ((0.3, 5, 1), 3), ((), 2)])
def test_r2d2_is_a_beta_prior_of_r2_and_a_dirichlet_prior_of_shares(arguments, count, x64):
    prior = P.R2D2(*arguments)
    a, b = prior.mean_R2 * prior.prec_R2, (1 - prior.mean_R2) * prior.prec_R2
    mass, r2, share = r2_and_share(prior, count, count)
    assert mass == pytest.approx(1, abs=0.02)
    assert stats.kstest(r2, stats.beta(a, b).cdf).pvalue > 1e-3
    of_share = stats.beta(prior.cons_D2, (count - 1) * prior.cons_D2)
    assert stats.kstest(share, of_share.cdf).pvalue > 1e-3
    _, other, _ = r2_and_share(prior, count, count + 3)  # the tau of more coefficients
    assert stats.kstest(other, stats.beta(a, b).cdf).pvalue < 1e-3


def test_too_few_coefficients_for_r2d2_are_refused():
    says = "cons_D2 of at least .* here 1 / 1 = 1, not 0.5"
    model = M.Gaussian(priors={"common": P.R2D2()})
    refused(mo.SettingError, says, P.default, gaussian_rows(d=1), model)
    refused(mo.SettingError, "mean_R2 of R2D2 must be below 1", P.R2D2, 1.5)


@pytest.mark.slow
def test_r2d2_agrees_with_its_definition_in_numpyro():
    """Sample shares and R^2 explicitly, as brms does."""
    import numpyro
    import numpyro.distributions as dist

    rng = np.random.default_rng(1)
    x = rng.normal(size=(150, 6))
    y = x @ np.r_[0.6, 0.3, np.zeros(4)] + rng.normal(size=150)
    unit = 1 / x.std(axis=0)

    def by_definition():
        intercept = numpyro.sample("intercept", dist.Normal(0, 10))
        sigma = numpyro.sample("scale", dist.HalfCauchy(2))
        r2 = numpyro.sample("r2", dist.Beta(1, 1))
        phi = numpyro.sample("phi", dist.Dirichlet(np.full(6, 0.5)))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([6]))
        scale = sigma * jnp.sqrt(phi * r2 / (1 - r2))
        beta = numpyro.deterministic("beta", z * scale * unit)
        numpyro.sample("y", dist.Normal(intercept + x @ beta, sigma), obs=y)

    with jax.enable_x64(True):
        truth = numpyro_draws(by_definition, 1, warmup=1000, draws=4000, target=0.98)["beta"]
    priors = {"common": P.R2D2(), "intercept": P.Normal(0, 10), "scale": P.HalfCauchy(2)}
    rows = mo.Rows(x=x, y=y)

    def off(priors):
        post = mo.sample(M.Gaussian(priors=priors), rows, method="nuts", draws=2000, random_seed=1)
        beta = post["beta"].reshape(-1, 6)
        return max(np.abs(beta.mean(0) - truth.mean(0)) / truth.std(0)), beta.std(0) / truth.std(0)

    away, ratio = off(priors)
    assert away < 0.1
    assert np.all(np.abs(ratio - 1) < 0.1)
    away, ratio = off(priors | {"common": P.R2D2(cons_D2=5)})  # shares that are alike
    assert away > 0.1 or np.any(np.abs(ratio - 1) > 0.1)
