"""Modes of every family equal statsmodels' or scipy's fits, under nearly flat priors."""

import warnings

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import optimize, special, stats
from statsmodels.discrete.discrete_model import NegativeBinomial
from statsmodels.discrete.truncated_model import (
    TruncatedLFNegativeBinomialP,
    TruncatedLFPoisson,
)
from statsmodels.miscmodels.ordinal_model import OrderedModel
from statsmodels.othermod.betareg import BetaModel

from helpers.outcomes import DRAWN, family, family_rows
from helpers.targets import all_of, sums_of
from modicum.passes import anchor_at_mode

FLAT = {"prior_scale": 1e4, "intercept_scale": 1e4}
NEAR = 0.04  # posterior sds: effect of the priors of extra parameters with 400 rows
MORE = {"ZeroInflatedNegativeBinomial": 4_000}  # rows, where they say little about a parameter
SLOW = {
    "ZeroInflatedNegativeBinomial", "HurdleNegativeBinomial", "HurdleGamma", "BetaBinomial",
    "ZeroOneInflatedBeta", "Lognormal", "StoppingRatio", "AdjacentCategory", "Tweedie", "VonMises",
}  # fmt: skip


FINE = {"xatol": 1e-7, "fatol": 1e-9, "maxiter": 4000}


def _glm(b, kind, y=None):
    return sm.GLM(b["y"] if y is None else y, b["x1"], kind).fit(tol=1e-12).params


def _binomial(b):
    return _glm(b, sm.families.Binomial(), np.c_[b["y"], b["trials"] - b["y"]])


def _von_mises(b):
    def negative(theta):
        mean = 2 * np.arctan(b["x1"] @ theta[:3])
        return -np.sum(stats.vonmises.logpdf(b["y"], np.exp(theta[3]), mean))

    return optimize.minimize(negative, np.zeros(4), options={"gtol": 1e-6}).x


def _beta_binomial(b):
    def negative(theta):
        mean, phi = special.expit(b["x1"] @ theta[:3]), np.exp(theta[3])
        return -np.sum(stats.betabinom.logpmf(b["y"], b["trials"], phi * mean, phi * (1 - mean)))

    return optimize.minimize(negative, np.zeros(4), method="Nelder-Mead", options=FINE).x


def _zero_one_inflated(b):
    inside = (b["y"] > 0) & (b["y"] < 1)
    of_edges = 1 - inside.mean(), b["y"][~inside].mean()
    return [*_beta({k: v[inside] for k, v in b.items()}), *special.logit(of_edges)]


def _log_link(b):
    coefficients = _glm(b, sm.families.Gaussian(sm.families.links.Log()))
    return [*coefficients, np.log(np.std(b["y"] - np.exp(b["x1"] @ coefficients)))]


def _tweedie(b):
    """Of power 1.5: the density of a sum of j exponential amounts is that of a gamma variable."""
    kind = sm.families.Tweedie(sm.families.links.Log(), var_power=1.5)
    coefficients = _glm(b, kind)
    root, y, j = np.exp(b["x1"] @ coefficients / 2), b["y"], np.arange(1, 80)[:, None]

    def negative(log_dispersion):
        rate, unit = 2 * root / np.exp(log_dispersion), root * np.exp(log_dispersion) / 2
        each = stats.poisson.logpmf(j, rate) + stats.gamma.logpdf(np.maximum(y, 1e-9), j, 0, unit)
        return -np.sum(np.where(y == 0, -rate, special.logsumexp(each, axis=0)))

    return [*coefficients, optimize.minimize_scalar(negative, bounds=(-3, 3)).x]


def _lognormal(b):
    coefficients = np.linalg.lstsq(b["x1"], np.log(b["y"]))[0]
    return [*coefficients, np.log(np.std(np.log(b["y"]) - b["x1"] @ coefficients))]


def _gamma(b):
    coefficients = _glm(b, sm.families.Gamma(sm.families.links.Log()))
    ratio = b["y"] / np.exp(b["x1"] @ coefficients)
    excess = np.mean(ratio - 1 - np.log(ratio))
    root = optimize.brentq(lambda k: np.log(k) - special.digamma(k) - excess, 0.1, 100)
    return [*coefficients, np.log(root)]


def _inverse_gaussian(b):
    coefficients = _glm(b, sm.families.InverseGaussian(sm.families.links.Log()))
    mu = np.exp(b["x1"] @ coefficients)
    return [*coefficients, -np.log(np.mean((b["y"] - mu) ** 2 / (mu**2 * b["y"])))]


def _negative_binomial(b):
    *coefficients, alpha = NegativeBinomial(b["y"], b["x1"]).fit(disp=0, gtol=1e-8).params
    return [*coefficients, np.log(alpha)]


def _zero_inflated(b, kind=sm.ZeroInflatedPoisson):
    fit = kind(b["y"], b["x1"]).fit(disp=0, maxiter=500, gtol=1e-8)
    logit, *coefficients = fit.params
    return [*coefficients, logit]


def _zero_inflated_negative_binomial(b):
    *coefficients, alpha, logit = _zero_inflated(b, sm.ZeroInflatedNegativeBinomialP)
    return [*coefficients, np.log(alpha), logit]


def _hurdle(above_zero):
    """The outcomes above 0 have a fit of their own."""

    def fit(b):
        some = b["y"] > 0
        return [
            *above_zero({k: v[some] for k, v in b.items()}),
            special.logit(1 - some.mean()),
        ]

    return fit


def _above_zero(b, kind=TruncatedLFPoisson):
    return kind(b["y"], b["x1"]).fit(disp=0, maxiter=500, gtol=1e-8).params


def _negative_binomial_above_zero(b):
    *coefficients, alpha = _above_zero(b, TruncatedLFNegativeBinomialP)
    return [*coefficients, np.log(alpha)]


def _beta(b):
    return BetaModel(b["y"], b["x1"]).fit(disp=0, gtol=1e-8).params  # log-precision last


def _ordinal(b):
    fit = OrderedModel(b["y"].astype(int), b["x"], distr="logit").fit(
        method="bfgs", disp=0, gtol=1e-8
    )
    first, *gaps = fit.params[2:]  # statsmodels has the log distances too
    return [*fit.params[:2], -first, *gaps]


def _by_classes(log_chances):
    """The fit, given the log-probability of each class at eta - cutpoints, (rows, cutpoints)."""

    def fit(b):
        def negative(theta):
            cuts = np.r_[0, theta[3:]]
            logs = log_chances((b["x1"] @ theta[:3])[:, None] - cuts)
            return -np.sum(logs[range(len(logs)), b["y"].astype(int)])

        return optimize.minimize(negative, np.zeros(5), options={"gtol": 1e-6}).x

    return fit


def _stopping(at):
    none = np.zeros((len(at), 1))
    stop, go = special.log_expit(-at), special.log_expit(at)
    return np.c_[stop, none] + np.c_[none, np.cumsum(go, axis=1)]


def _adjacent(at):
    return special.log_softmax(np.c_[np.zeros(len(at)), np.cumsum(at, axis=1)], axis=1)


def _exponential(b):
    """A Poisson model of the event with time as exposure has the negative coefficients."""
    kind = sm.families.Poisson()
    return -sm.GLM(b["event"], b["x1"], kind, offset=np.log(b["y"])).fit(tol=1e-12).params


def _weibull(b):
    def negative(theta):
        """The hazard is k t^k / y and its integral t^k, where t = y / scale."""
        log_t = np.log(b["y"]) - b["x1"] @ theta[:3]
        log_hazard = theta[3] + np.exp(theta[3]) * log_t - np.log(b["y"])
        return -np.sum(b["event"] * log_hazard - np.exp(np.exp(theta[3]) * log_t))

    return optimize.minimize(negative, np.zeros(4), method="Nelder-Mead", options=FINE).x


FITS = {
    "Probit": lambda b: _glm(b, sm.families.Binomial(sm.families.links.Probit())),
    "Cloglog": lambda b: _glm(b, sm.families.Binomial(sm.families.links.CLogLog())),
    "Binomial": _binomial,
    "BetaBinomial": _beta_binomial,
    "Beta": _beta,
    "ZeroOneInflatedBeta": _zero_one_inflated,
    "GaussianLog": _log_link,
    "NegativeBinomial": _negative_binomial,
    "ZeroInflatedPoisson": _zero_inflated,
    "ZeroInflatedNegativeBinomial": _zero_inflated_negative_binomial,
    "HurdlePoisson": _hurdle(_above_zero),
    "HurdleNegativeBinomial": _hurdle(_negative_binomial_above_zero),
    "Gamma": _gamma,
    "Lognormal": _lognormal,
    "HurdleGamma": _hurdle(_gamma),
    "HurdleLognormal": _hurdle(_lognormal),
    "InverseGaussian": _inverse_gaussian,
    "Tweedie": _tweedie,
    "Ordinal": _ordinal,
    "StoppingRatio": _by_classes(_stopping),
    "AdjacentCategory": _by_classes(_adjacent),
    "Exponential": _exponential,
    "Weibull": _weibull,
    "VonMises": _von_mises,
}


@pytest.mark.parametrize(
    "name", [pytest.param(f, marks=[pytest.mark.slow] if f in SLOW else []) for f in FITS]
)
def test_mode_is_the_maximum_likelihood_fit(name):
    rows = family_rows(name, MORE.get(name, 400))
    sums, start = sums_of(family(name, **FLAT), rows)
    anchor = anchor_at_mode(sums, start)
    batch = all_of(rows)
    batch["x1"] = np.c_[batch["x"], np.ones(len(rows))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsmodels' own
        truth = np.asarray(FITS[name](batch))
    away = np.abs(anchor.whiten(truth))
    assert away.max() < NEAR
    assert anchor.record.passes < 25
    # Negative control: other rows have another fit.
    other = all_of(family_rows(name, len(rows), seed=2))
    other["x1"] = np.c_[other["x"], np.ones(len(rows))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.abs(anchor.whiten(np.asarray(FITS[name](other)))).max() > 5 * NEAR


def test_every_new_family_has_a_fit():
    assert set(DRAWN) == {*FITS, "AsymmetricLaplace"}
