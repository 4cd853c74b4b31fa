"""Simulated rows for every family: one design, with outcomes drawn from a known model."""

import numpy as np
from scipy import stats

import modicum as mo

SLOPES, INTERCEPT = np.array([0.5, -0.3]), 0.3
CUTS = np.array([-0.5, 0.4, 1.5])


def _count_above_zero(rng, mu):
    return stats.poisson.ppf(rng.uniform(np.exp(-mu), 1), mu)


def _overdispersed(rng, mu, above=-1):
    """Counts of overdispersion a half above a number, by their quantiles."""
    counts = stats.nbinom(2, 1 / (1 + mu / 2))
    return counts.ppf(rng.uniform(counts.cdf(above), 1))


def _censored(rng, time):
    until = rng.exponential(3.0, len(time))
    return {"y": np.minimum(time, until), "event": (time < until) * 1.0}


def _binomial(rng, chance):
    trials = rng.integers(1, 9, len(chance))
    return {"y": rng.binomial(trials, chance), "trials": trials}


def _sigmoid(eta):
    return 1 / (1 + np.exp(-eta))


DRAWN = {
    "Probit": lambda rng, eta: rng.random(len(eta)) < stats.norm.cdf(eta),
    "Cloglog": lambda rng, eta: rng.random(len(eta)) < 1 - np.exp(-np.exp(eta)),
    "Binomial": lambda rng, eta: _binomial(rng, _sigmoid(eta)),
    "BetaBinomial": lambda rng, eta: _binomial(
        rng, rng.beta(8 * _sigmoid(eta), 8 * _sigmoid(-eta))
    ),
    "Beta": lambda rng, eta: rng.beta(8 * _sigmoid(eta), 8 * _sigmoid(-eta)),
    "ZeroOneInflatedBeta": lambda rng, eta: np.where(
        rng.random(len(eta)) < 0.2,
        rng.random(len(eta)) < 0.6,
        rng.beta(8 * _sigmoid(eta), 8 * _sigmoid(-eta)),
    ),
    "GaussianLog": lambda rng, eta: np.exp(eta) + 0.5 * rng.normal(size=len(eta)),
    "NegativeBinomial": lambda rng, eta: rng.poisson(np.exp(eta) * rng.gamma(2, 0.5, len(eta))),
    "ZeroInflatedPoisson": lambda rng, eta: rng.poisson(np.exp(eta)) * (rng.random(len(eta)) > 0.3),
    "HurdlePoisson": lambda rng, eta: (
        _count_above_zero(rng, np.exp(eta)) * (rng.random(len(eta)) > 0.3)
    ),
    "ZeroInflatedNegativeBinomial": lambda rng, eta: (
        _overdispersed(rng, np.exp(eta)) * (rng.random(len(eta)) > 0.3)
    ),
    "HurdleNegativeBinomial": lambda rng, eta: (
        _overdispersed(rng, np.exp(eta), above=0) * (rng.random(len(eta)) > 0.3)
    ),
    "Gamma": lambda rng, eta: rng.gamma(3.0, np.exp(eta) / 3),
    "InverseGaussian": lambda rng, eta: rng.wald(np.exp(eta), 2.0),
    "Lognormal": lambda rng, eta: np.exp(eta + 0.7 * rng.normal(size=len(eta))),
    "HurdleGamma": lambda rng, eta: rng.gamma(3.0, np.exp(eta) / 3) * (rng.random(len(eta)) > 0.3),
    "HurdleLognormal": lambda rng, eta: (
        np.exp(eta + 0.7 * rng.normal(size=len(eta))) * (rng.random(len(eta)) > 0.3)
    ),
    "Tweedie": lambda rng, eta: (  # of power 1.5: amounts are exponential, here of mean mu^0.5 / 2
        rng.standard_gamma(rng.poisson(2 * np.exp(eta / 2))) * np.exp(eta / 2) / 2
    ),
    "Ordinal": lambda rng, eta: np.searchsorted(CUTS, eta + rng.logistic(size=len(eta))),
    "StoppingRatio": lambda rng, eta: np.cumprod(
        rng.logistic(size=(len(eta), 3)) > CUTS - eta[:, None], axis=1
    ).sum(axis=1),
    "AdjacentCategory": lambda rng, eta: np.argmax(
        np.arange(4) * eta[:, None] - np.r_[0, CUTS.cumsum()] + rng.gumbel(size=(len(eta), 4)),
        axis=1,
    ),
    "Exponential": lambda rng, eta: _censored(rng, rng.exponential(np.exp(eta))),
    "Weibull": lambda rng, eta: _censored(rng, np.exp(eta) * rng.weibull(1.5, len(eta))),
    "VonMises": lambda rng, eta: rng.vonmises(2 * np.arctan(eta), 3.0),
    "AsymmetricLaplace": lambda rng, eta: eta + rng.laplace(size=len(eta)),
}


def family_rows(name, n=400, seed=1):
    """Return rows whose outcomes are drawn from the family called `name`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    drawn = DRAWN[name](rng, INTERCEPT + x @ SLOPES)
    fields = drawn if isinstance(drawn, dict) else {"y": drawn}
    return mo.Rows(x=x, **{name: values * 1.0 for name, values in fields.items()})


def family(name, **settings):
    return getattr(mo.models, name)(**settings)
