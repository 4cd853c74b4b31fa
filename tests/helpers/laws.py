"""The distribution of each family's outcomes by scipy, given predictor and reported parameters."""

import numpy as np
from scipy import integrate, special, stats

sigmoid = special.expit


def complementary(e):
    return 1 - np.exp(-np.exp(e))


def _asymmetric(tau):
    kappa = np.sqrt(tau / (1 - tau))
    return lambda e, s: stats.laplace_asymmetric(kappa, e, s / np.sqrt(tau * (1 - tau)))


# of e and the other parameters
LAWS = {
    "Logistic": lambda e, *_: stats.bernoulli(sigmoid(e)),
    "Probit": lambda e, *_: stats.bernoulli(stats.norm.cdf(e)),
    "Cloglog": lambda e, *_: stats.bernoulli(complementary(e)),
    "Poisson": lambda e, *_: stats.poisson(np.exp(e)),
    "NegativeBinomial": lambda e, a: stats.nbinom(1 / a, 1 / (1 + a * np.exp(e))),
    "Gaussian": lambda e, s: stats.norm(e, s),
    "StudentT": lambda e, s: stats.t(4, e, s),
    "GaussianLog": lambda e, s: stats.norm(np.exp(e), s),
    "AsymmetricLaplace": _asymmetric(0.5),
    "Beta": lambda e, phi: stats.beta(phi * sigmoid(e), phi * sigmoid(-e)),
    "Gamma": lambda e, k: stats.gamma(k, scale=np.exp(e) / k),
    "Lognormal": lambda e, s: stats.lognorm(s, scale=np.exp(e)),
    "InverseGaussian": lambda e, k: stats.invgauss(np.exp(e) / k, scale=k),
    "Exponential": lambda e, *_: stats.expon(scale=np.exp(e)),
    "Weibull": lambda e, k: stats.weibull_min(k, scale=np.exp(e)),
    "Loglogistic": lambda e, k: stats.fisk(k, scale=np.exp(e)),
    "VonMises": lambda e, k: stats.vonmises(k, 2 * np.arctan(e)),
}


def log_density(law, y):
    return law.logpmf(y) if hasattr(law.dist, "pmf") else law.logpdf(y)


def _simple(law):
    """The density, of a batch and its parameters; that of times that may be censored."""

    def density(b, e, *extras):
        at = law(e, *extras)
        seen = log_density(at, b["y"])
        return np.where(b["event"] == 1, seen, at.logsf(b["y"])) if "event" in b else seen

    return density


def _binomial(chance):
    return lambda b, e, *_: stats.binom.logpmf(b["y"], b["trials"], chance(e))


def _beta_binomial(success, failure):
    def density(b, e, phi):
        return stats.betabinom.logpmf(b["y"], b["trials"], phi * success(e), phi * failure(e))

    return density


SIMPLE = {name: _simple(law) for name, law in LAWS.items()}
AMOUNTS = ("Gamma", "Lognormal")  # which are never 0


def _zero_inflated(name):
    def density(b, e, *extras):
        *extras, pi = extras
        some = np.log1p(-pi) + SIMPLE[name](b, e, *extras)
        return np.where(b["y"] == 0, np.log(pi + np.exp(some)), some)

    return density


def _hurdle(name):
    def density(b, e, *extras):
        *extras, pi = extras
        law = LAWS[name](e, *extras)
        some = log_density(law, np.maximum(b["y"], 1e-9) if name in AMOUNTS else b["y"])
        some = some - (0 if name in AMOUNTS else law.logsf(0))
        return np.where(b["y"] == 0, np.log(pi), np.log1p(-pi) + some)

    return density


def _zero_one_inflated(b, e, phi, edge, one):
    y = b["y"]
    inside = np.log1p(-edge) + SIMPLE["Beta"]({"y": np.clip(y, 1e-300, 1 - 1e-16)}, e, phi)
    return np.select([y == 0, y == 1], [np.log(edge * (1 - one)), np.log(edge * one)], inside)


def _tweedie(power):
    def density(b, e, dispersion):
        """Sum over the number of amounts."""
        rate = np.exp((2 - power) * e) / (dispersion * (2 - power))
        shape, unit = (2 - power) / (power - 1), dispersion * (power - 1) * np.exp((power - 1) * e)
        y, j = b["y"][:, None], np.arange(1, 40 + int(4 * rate.max()))
        each = stats.poisson.logpmf(j, rate[:, None])
        each = each + stats.gamma.logpdf(np.maximum(y, 1e-9), j * shape, scale=unit[:, None])
        return np.where(b["y"] == 0, -rate, special.logsumexp(each, axis=1))

    return density


def _ordinal(cdf):
    def density(b, e, cuts):
        edges = np.r_[-np.inf, cuts, np.inf]
        k = b["y"].astype(int)
        return np.log(cdf(edges[k + 1] - e) - cdf(edges[k] - e))

    return density


def _stopping(cdf):
    def density(b, e, cuts):
        go = 1 - cdf(cuts - e[:, None])
        reached = np.c_[np.ones(len(e)), np.cumprod(go, axis=1)]
        return np.log(-np.diff(np.c_[reached, np.zeros(len(e))]))[range(len(e)), b["y"].astype(int)]

    return density


def _adjacent(b, e, cuts):
    odds = np.exp(np.c_[np.zeros(len(e)), np.cumsum(e[:, None] - cuts, axis=1)])
    return np.log(odds / odds.sum(axis=1, keepdims=True))[range(len(e)), b["y"].astype(int)]


def _smooth(tau, width):
    """With v = (y - eta) / (s width): sigmoid(v) is Beta((1 - tau) width, tau width)."""
    low, high = (1 - tau) * width, tau * width

    def density(b, e, s):
        v = (b["y"] - e) / (s * width)
        shape = low * special.log_expit(v) + high * special.log_expit(-v)
        return shape - special.betaln(low, high) - np.log(s * width)

    return density


# log-density of outcomes, as a function of (batch, eta, reported extra parameters)
TRUTH = {name: SIMPLE[name] for name in SIMPLE} | {
    "Binomial": _binomial(sigmoid),
    "BetaBinomial": _beta_binomial(sigmoid, lambda e: sigmoid(-e)),
    "ZeroOneInflatedBeta": _zero_one_inflated,
    "ZeroInflatedPoisson": _zero_inflated("Poisson"),
    "ZeroInflatedNegativeBinomial": _zero_inflated("NegativeBinomial"),
    "HurdlePoisson": _hurdle("Poisson"),
    "HurdleNegativeBinomial": _hurdle("NegativeBinomial"),
    "HurdleGamma": _hurdle("Gamma"),
    "HurdleLognormal": _hurdle("Lognormal"),
    "Tweedie": _tweedie(1.5),
    "Ordinal": _ordinal(sigmoid),
    "StoppingRatio": _stopping(sigmoid),
    "AdjacentCategory": _adjacent,
}
WITH_SETTINGS = [  # family, settings, density
    ("Gaussian", {"scale": 0.7}, lambda b, e, *_: SIMPLE["Gaussian"](b, e, 0.7)),
    ("StudentT", {"df": 3.0}, _simple(lambda e, s: stats.t(3, e, s))),
    ("StudentT", {"df": None}, _simple(lambda e, nu, s: stats.t(nu, e, s))),
    ("Binomial", {"link": "probit"}, _binomial(stats.norm.cdf)),
    ("Binomial", {"link": "cloglog"}, _binomial(complementary)),
    (
        "BetaBinomial",
        {"link": "cloglog"},
        _beta_binomial(complementary, lambda e: np.exp(-np.exp(e))),
    ),
    ("Ordinal", {"link": "probit"}, _ordinal(stats.norm.cdf)),
    ("Ordinal", {"link": "cloglog"}, _ordinal(lambda x: -np.exp(-np.exp(x)))),
    ("StoppingRatio", {"link": "cloglog"}, _stopping(complementary)),
    *(("Tweedie", {"power": power}, _tweedie(power)) for power in (1.05, 1.2, 1.8, 1.95)),
    ("AsymmetricLaplace", {"quantile": 0.8}, _simple(_asymmetric(0.8))),
    ("AsymmetricLaplace", {"quantile": 0.3, "smoothing": 0.2}, _smooth(0.3, 0.2)),
]

# where outcomes may lie, as a function of a number on the whole line, and its derivative
REAL = (lambda u: np.sinh(u / 2), lambda u: np.cosh(u / 2) / 2)
POSITIVE = (np.exp, np.exp)
SHARE = (sigmoid, lambda u: sigmoid(u) * sigmoid(-u))
ANGLE = (lambda u: np.pi * np.tanh(u / 2), lambda u: np.pi / 2 / np.cosh(u / 2) ** 2)
CONTINUOUS = {
    **dict.fromkeys(("Gaussian", "StudentT", "GaussianLog", "SkewNormal"), REAL),
    "AsymmetricLaplace": REAL,
    **dict.fromkeys(("Gamma", "Lognormal", "InverseGaussian", "Exponential", "Weibull"), POSITIVE),
    **dict.fromkeys(("Loglogistic", "HurdleGamma", "HurdleLognormal", "Tweedie"), POSITIVE),
    **dict.fromkeys(("Beta", "ZeroOneInflatedBeta"), SHARE),
    "VonMises": ANGLE,
}
ATOMS = dict.fromkeys(("HurdleGamma", "HurdleLognormal", "Tweedie"), 1) | {"ZeroOneInflatedBeta": 2}


class Distribution:
    """The distribution function and moments of a family's outcomes, from their density."""

    def __init__(self, name, density, most):
        """Take the log-density at an array of outcomes; whole ones are those below `most`."""
        self.atoms = np.arange(ATOMS.get(name, 0) if name in CONTINUOUS else most, dtype=float)
        self.chances = np.exp(density(self.atoms)) if len(self.atoms) else np.empty(0)
        moments = self.chances @ self.atoms[:, None] ** np.arange(3)
        self.points, self.below = np.zeros(1), np.zeros(1)
        if name in CONTINUOUS:
            u, (place, slope) = np.linspace(-36, 36, 30_001), CONTINUOUS[name]
            self.points = place(u)
            mass = np.exp(density(self.points)) * slope(u)
            self.below = integrate.cumulative_simpson(mass, x=u, initial=0)
            powers = self.points ** np.arange(3)[:, None]
            moments = moments + integrate.simpson(mass * powers, x=u)
        self.total, self.mean, square = moments
        self.variance = square - self.mean**2

    def quantile_of(self, y, rng):
        """Return the chance of less than each outcome, plus a random part of its own chance."""
        at = np.searchsorted(self.atoms, y)
        own = np.where(np.append(self.atoms, np.nan)[at] == y, np.append(self.chances, 0)[at], 0)
        less = np.append(0, np.cumsum(self.chances))[at]
        return less + np.interp(y, self.points, self.below) + own * rng.random(len(y))
