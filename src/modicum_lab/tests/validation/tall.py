"""Ten models of simulated tall data: families, and `mo.Model`s."""

import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
from jax.scipy.special import gammaln

import modicum as mo

M = mo.models


def _columns(rng, n, count=3):
    x = rng.standard_normal((n, count))
    return x, x @ np.linspace(0.6, -0.3, count)


def negative_binomial(rng, n):
    x, eta = _columns(rng, n)
    return M.NegativeBinomial(), {"x": x, "y": rng.poisson(np.exp(eta) * rng.gamma(2, 0.5, n))}


def ordinal(rng, n):
    x, eta = _columns(rng, n)
    latent = eta + rng.logistic(size=n)
    return M.Ordinal(), {"x": x, "y": np.digitize(latent, [-1.0, 0.3, 1.5])}


def heteroscedastic(rng, n):
    x = rng.standard_normal(n)
    y = 1 + 0.5 * x + np.exp(-0.3 + 0.4 * x) * rng.standard_normal(n)

    def log_likelihood(th, b):
        sd = jnp.exp(th["spread"] + th["growth"] * b["x"])
        return stats.norm.logpdf(b["y"], th["level"] + th["slope"] * b["x"], sd)

    names = ("level", "slope", "spread", "growth")
    model = mo.Model(
        lambda th: -0.5 * sum(th[k] ** 2 for k in names) / 25,
        log_likelihood,
        dict.fromkeys(names, 0.0),
    )
    return model, {"x": x, "y": y}


def student_t(rng, n):
    x = rng.standard_normal(n)
    y = 1 + 0.5 * x + 0.7 * rng.standard_t(5, n)

    def log_likelihood(th, b):
        z = (b["y"] - th["level"] - th["slope"] * b["x"]) / th["scale"]
        df = th["df"]
        norm = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * jnp.log(df * jnp.pi)
        return norm - jnp.log(th["scale"]) - (df + 1) / 2 * jnp.log1p(z**2 / df)

    def log_prior(th):
        return -0.02 * (th["level"] ** 2 + th["slope"] ** 2) - th["scale"] - 0.1 * th["df"]

    start = {"level": 0.0, "slope": 0.0, "scale": 1.0, "df": 10.0}
    positive = {"scale": mo.positive, "df": mo.positive}
    return mo.Model(log_prior, log_likelihood, start, constraints=positive), {"x": x, "y": y}


def mixture(rng, n):
    low = rng.random(n) < 0.3
    y = np.where(low, -1.5, 1.0) + 0.8 * rng.standard_normal(n)

    def log_likelihood(th, b):
        first, second = (stats.norm.logpdf(b["y"], th["mean"][k], th["sd"]) for k in (0, 1))
        return jnp.logaddexp(jnp.log(th["share"]) + first, jnp.log1p(-th["share"]) + second)

    def log_prior(th):
        return -0.02 * jnp.sum(th["mean"] ** 2) - th["sd"]

    start = {"mean": np.array([-1.0, 1.0]), "sd": 1.0, "share": 0.5}
    bounds = {"mean": mo.ordered, "sd": mo.positive, "share": mo.interval(0, 1)}
    return mo.Model(log_prior, log_likelihood, start, constraints=bounds), {"y": y}


def weibull(rng, n):
    x, eta = _columns(rng, n)
    time, end = np.exp(eta) * rng.weibull(1.5, n), rng.exponential(3.0, n)
    return M.Weibull(), {"x": x, "y": np.minimum(time, end), "event": time <= end}


def quantile(rng, n):
    x, eta = _columns(rng, n)
    return M.AsymmetricLaplace(quantile=0.8), {"x": x, "y": eta + rng.standard_t(4, n)}


def zero_inflated(rng, n):
    x, eta = _columns(rng, n)
    y = np.where(rng.random(n) < 0.2, 0, rng.poisson(np.exp(0.5 + eta)))
    return M.ZeroInflatedPoisson(), {"x": x, "y": y}


def horseshoe(rng, n):
    x = rng.standard_normal((n, 8))
    y = rng.random(n) < 1 / (1 + np.exp(1 - x[:, 0] + 0.5 * x[:, 1]))
    return M.Logistic(priors={"common": mo.priors.Horseshoe()}), {"x": x, "y": y}


def curve(rng, n):
    time = rng.uniform(0, 10, n)
    y = 3 / (1 + np.exp(-(time - 4) / 1.2)) + 0.3 * rng.standard_normal(n)

    def log_likelihood(th, b):
        growth = th["top"] / (1 + jnp.exp(-(b["time"] - th["middle"]) / th["pace"]))
        return stats.norm.logpdf(b["y"], growth, th["noise"])

    def log_prior(th):
        rest = th["pace"] + th["noise"]
        return -0.01 * (th["top"] ** 2 + th["middle"] ** 2) - rest

    start = {"top": 1.0, "middle": 5.0, "pace": 1.0, "noise": 1.0}
    bounds = {"top": mo.positive, "pace": mo.positive, "noise": mo.positive}
    return mo.Model(log_prior, log_likelihood, start, constraints=bounds), {"time": time, "y": y}


TALL = {
    "negative binomial": negative_binomial,
    "ordinal": ordinal,
    "heteroscedastic": heteroscedastic,
    "Student-t with df": student_t,
    "mixture": mixture,
    "Weibull, censored": weibull,
    "quantile": quantile,
    "zero-inflated": zero_inflated,
    "horseshoe logistic": horseshoe,
    "nonlinear curve": curve,
}


def tall(name, n=100_000, seed=1):
    """Return the model called `name` and the fields of `n` simulated rows."""
    return TALL[name](np.random.default_rng(seed), n)
