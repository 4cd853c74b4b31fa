"""Outcomes drawn by families have scipy's distributions for the same predictors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import modicum as mo
from modicum.errors import ModicumError

M = mo.models
N = 20_000
ETA, EXTRA, LAST, MOST = 0.4, -0.6, 0.3, -0.2  # the same for all rows: one distribution, many draws
TRIALS = 7
expit = special.expit


def _asymmetric(tau, s):
    kappa = np.sqrt(tau / (1 - tau))
    return stats.laplace_asymmetric(kappa, ETA, s / np.sqrt(tau * (1 - tau)))


class Smooth:
    """With v = (y - eta) / (s width): sigmoid(v) is Beta((1 - tau) width, tau width)."""

    def __init__(self, tau, width, s):
        self.low, self.high = (1 - tau) * width, tau * width
        self.scale = s * width

    def cdf(self, y):
        v = (y - ETA) / self.scale
        first, second = np.where(v < 0, [[self.low], [self.high]], [[self.high], [self.low]])
        share = special.betainc(first, second, expit(-np.abs(v)))
        return np.where(v < 0, share, 1 - share)

    def stats(self):
        v = np.linspace(-250, 500, 15_001)  # wide enough: the tails are exponential
        density = np.gradient(self.cdf(ETA + self.scale * v), v)
        mean = integrate.simpson(v * density, x=v)
        variance = integrate.simpson((v - mean) ** 2 * density, x=v)
        return ETA + self.scale * mean, self.scale**2 * variance


MU, E = np.exp(ETA), np.exp(EXTRA)
CONTINUOUS = {
    "gaussian": (M.Gaussian(), stats.norm(ETA, E)),
    "known scale": (M.Gaussian(scale=2.0), stats.norm(ETA, 2.0)),
    "student": (M.StudentT(df=3.0), stats.t(3.0, ETA, E)),
    "gamma": (M.Gamma(), stats.gamma(E, scale=MU / E)),
    "log link": (M.GaussianLog(), stats.norm(MU, E)),
    "lognormal": (M.Lognormal(), stats.lognorm(E, scale=MU)),
    "inverse gaussian": (M.InverseGaussian(), stats.invgauss(MU / E, scale=E)),
    "beta": (M.Beta(), stats.beta(E * expit(ETA), E * expit(-ETA))),
    "exponential": (M.Exponential(), stats.expon(scale=MU)),
    "weibull": (M.Weibull(), stats.weibull_min(E, scale=MU)),
    "loglogistic": (M.Loglogistic(), stats.fisk(E, scale=MU)),
    "quantile": (M.AsymmetricLaplace(quantile=0.8), _asymmetric(0.8, E)),
    "smooth": (M.AsymmetricLaplace(quantile=0.3, smoothing=0.2), Smooth(0.3, 0.2, E)),
}


COUNTS = {"poisson": stats.poisson(MU), "negative": stats.nbinom(1 / E, 1 / (1 + E * MU))}


def _inflated(kind, pi):
    return lambda y: pi * (y == 0) + (1 - pi) * COUNTS[kind].pmf(y)


def _hurdle(kind, pi):
    of = COUNTS[kind]
    return lambda y: np.where(y == 0, pi, (1 - pi) * of.pmf(y) / of.sf(0))


PI, LAST_PI = expit(EXTRA), expit(LAST)
DISCRETE = {
    "logistic": (M.Logistic(), stats.bernoulli(expit(ETA)).pmf),
    "probit": (M.Probit(), stats.bernoulli(stats.norm.cdf(ETA)).pmf),
    "cloglog": (M.Cloglog(), stats.bernoulli(-np.expm1(-MU)).pmf),
    "binomial": (M.Binomial(), stats.binom(TRIALS, expit(ETA)).pmf),
    "by probit": (M.Binomial(link="probit"), stats.binom(TRIALS, stats.norm.cdf(ETA)).pmf),
    "beta-binomial": (
        M.BetaBinomial(),
        stats.betabinom(TRIALS, E * expit(ETA), E * expit(-ETA)).pmf,
    ),
    "poisson": (M.Poisson(), COUNTS["poisson"].pmf),
    "negative binomial": (M.NegativeBinomial(), COUNTS["negative"].pmf),
    "zero-inflated": (M.ZeroInflatedPoisson(), _inflated("poisson", PI)),
    "inflated, negative": (M.ZeroInflatedNegativeBinomial(), _inflated("negative", LAST_PI)),
    "hurdle": (M.HurdlePoisson(), _hurdle("poisson", PI)),
    "beyond a hurdle": (M.HurdleNegativeBinomial(), _hurdle("negative", LAST_PI)),
    "ordinal": (
        M.Ordinal(classes=3),
        lambda y: np.array([expit(-ETA), expit(E - ETA) - expit(-ETA), expit(ETA - E)])[y],
    ),
    "ordinal, probit": (
        M.Ordinal(3, "probit"),
        lambda y: np.diff(stats.norm.cdf([-np.inf, -ETA, E - ETA, np.inf]))[y],
    ),
    "ordinal, cloglog": (
        M.Ordinal(3, "cloglog"),
        lambda y: -np.diff(np.exp(-np.exp([-np.inf, -ETA, E - ETA, np.inf])))[y],
    ),
    "stopping": (
        M.StoppingRatio(3),
        lambda y: np.r_[expit(-ETA), expit(ETA) * expit(np.r_[1, -1] * (EXTRA - ETA))][y],
    ),
    "adjacent": (M.AdjacentCategory(3), lambda y: special.softmax([0, ETA, 2 * ETA - EXTRA])[y]),
    "softmax": (M.Softmax(classes=3), lambda y: special.softmax([ETA, EXTRA, 0.0])[y]),
}
AMOUNTS = {"gamma": M.HurdleGamma(), "lognormal": M.HurdleLognormal()}


def _drawn(model, eta=ETA, count=N, seed=1):
    extras = 1 if isinstance(model, M.Softmax) else len(model.extras)
    one = [eta, EXTRA, LAST, MOST][: 1 + extras]
    predictors = np.tile(one, (2, count // 2, 1))  # two draws of all rows
    batch = {"trials": np.full(count // 2, TRIALS)}
    y = model.draw_outcomes(np.random.default_rng(seed), predictors, batch)
    assert y.shape == (2, count // 2)
    assert y.dtype == np.float64
    assert not model.outcome_fault(y)[0].any()
    return y.ravel()


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_outcomes_have_their_distribution(name):
    model, cdf = CONTINUOUS[name][0], CONTINUOUS[name][1].cdf
    assert stats.kstest(_drawn(model), cdf).pvalue > 1e-3
    assert stats.kstest(_drawn(model, eta=ETA + 0.3), cdf).pvalue < 1e-6  # the negative control


def _p_value(y, pmf):
    seen = np.bincount(y.astype(int), minlength=4)
    size = 3 if np.sum(pmf(np.arange(3))) > 1 - 1e-9 else len(seen)  # classes, or counts
    expected = N * np.r_[pmf(np.arange(size))]
    few = expected < 5
    seen = np.r_[seen[:size][~few], seen[:size][few].sum()]
    expected = np.r_[expected[~few], N - expected[~few].sum()]
    kept = expected > 1e-6
    assert seen[~kept].sum() == 0
    return stats.chisquare(seen[kept], expected[kept] * (seen.sum() / expected[kept].sum())).pvalue


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_outcomes_have_their_distribution(name):
    model, pmf = DISCRETE[name]
    assert _p_value(_drawn(model), pmf) > 1e-3
    assert _p_value(_drawn(model, eta=ETA + 0.3), pmf) < 1e-6  # the negative control


@pytest.mark.parametrize("name", AMOUNTS)
def test_amounts_beyond_a_hurdle(name, x64):
    y, other = _drawn(AMOUNTS[name]), CONTINUOUS[name][1]
    assert abs(np.mean(y == 0) - LAST_PI) < 4 * np.sqrt(LAST_PI * (1 - LAST_PI) / N)
    assert stats.kstest(y[y > 0], other.cdf).pvalue > 1e-3
    mean, variance = other.stats()
    mixed = (1 - LAST_PI) * mean, (1 - LAST_PI) * (variance + LAST_PI * mean**2)
    np.testing.assert_allclose(_moments(AMOUNTS[name]), mixed, rtol=1e-9)


def test_sums_of_amounts(x64):
    """Tweedie outcomes of power 1.5: an exponential amount has the mean dispersion mu^0.5 / 2."""
    y, rate, unit = _drawn(M.Tweedie()), 2 * np.exp(ETA / 2) / E, E * np.exp(ETA / 2) / 2
    none, j = np.exp(-rate), np.arange(1, 100)
    assert abs(np.mean(y == 0) - none) < 4 * np.sqrt(none * (1 - none) / N)

    def cdf(t):
        return stats.gamma.cdf(t[:, None], j, scale=unit) @ stats.poisson.pmf(j, rate) / (1 - none)

    assert stats.kstest(y[y > 0], cdf).pvalue > 1e-3
    assert stats.kstest(1.1 * y[y > 0], cdf).pvalue < 1e-6  # the negative control
    np.testing.assert_allclose(_moments(M.Tweedie()), [MU, E * MU**1.5], rtol=1e-9)


def test_directions():
    """Turned back by the mean direction."""
    y, away = _drawn(M.VonMises()), 2 * np.arctan([ETA, ETA + 0.3])
    turned = (y[:, None] - away + np.pi) % (2 * np.pi) - np.pi
    assert stats.kstest(turned[:, 0], stats.vonmises(E).cdf).pvalue > 1e-3
    assert stats.kstest(turned[:, 1], stats.vonmises(E).cdf).pvalue < 1e-6  # the negative control


def test_shares_at_the_edges(x64):
    y, other, one = _drawn(M.ZeroOneInflatedBeta()), CONTINUOUS["beta"][1], expit(MOST)
    for edge, chance in ((0, LAST_PI * (1 - one)), (1, LAST_PI * one)):
        assert abs(np.mean(y == edge) - chance) < 4 * np.sqrt(chance * (1 - chance) / N)
    assert stats.kstest(y[(y > 0) & (y < 1)], other.cdf).pvalue > 1e-3
    (first, variance), rest = other.stats(), 1 - LAST_PI
    mean, square = LAST_PI * one + rest * first, LAST_PI * one + rest * (variance + first**2)
    ours = _moments(M.ZeroOneInflatedBeta())
    np.testing.assert_allclose(ours, [mean, square - mean**2], rtol=1e-9)


def _moments(model):
    eta = jnp.array([ETA, EXTRA, LAST, MOST][: 1 + max(1, len(model.extras))])
    return [float(part) for part in jax.jit(model.moments)(eta)]


@pytest.mark.parametrize("name", sorted(CONTINUOUS.keys() - {"loglogistic"}))
def test_moments_of_continuous_outcomes(name, x64):
    model, truth = CONTINUOUS[name]
    np.testing.assert_allclose(_moments(model), truth.stats(), rtol=1e-5)


def test_moments_of_loglogistic_times(x64):
    """Those of shapes up to 1, or 2, are infinite."""
    moments = jax.jit(jax.vmap(lambda e: jnp.stack(M.Loglogistic().moments(jnp.stack([ETA, e])))))
    ours = np.asarray(moments(jnp.log(jnp.array([0.9, 1.5, 2.5, 9.0]))))
    assert np.isinf(ours).tolist() == [[True, True], [False, True], [False] * 2, [False] * 2]
    truth = np.stack(stats.fisk(np.array([2.5, 9.0]), scale=MU).stats(), axis=1)
    np.testing.assert_allclose(ours[2:], truth, rtol=1e-9)


def test_the_spread_of_weibull_times_does_not_cancel(x64):
    """With a large shape k, times vary by pi / (sqrt(6) k) of their size."""
    shapes = np.array([0.2, 1.0, 7.0, 49.9, 50.1, 1e3, 1e5, 1e7])
    variance = jax.jit(jax.vmap(lambda e: M.Weibull().variance(jnp.stack([ETA, e]))))
    ours = np.asarray(variance(jnp.log(shapes)))
    np.testing.assert_allclose(ours[:4], stats.weibull_min(shapes[:4], scale=MU).var(), rtol=1e-9)
    np.testing.assert_allclose(ours[3] * 49.9**2, ours[4] * 50.1**2, rtol=2e-4)
    far = MU**2 * np.pi**2 / 6 / shapes[6:] ** 2
    np.testing.assert_allclose(ours[6:], far, rtol=1e-4)
    cancelled = MU**2 * (special.gamma(1 + 2e-7) - special.gamma(1 + 1e-7) ** 2)
    assert abs(cancelled / far[1] - 1) > 1e-3  # negative control


def test_a_family_without_a_variance_says_so():
    with pytest.raises(ModicumError, match="does not define the variance"):
        M.Softmax(classes=3).variance(jnp.zeros(2))


@pytest.mark.parametrize("name", list(DISCRETE)[6:12])
def test_moments_of_counts(name, x64):
    model, pmf = DISCRETE[name]
    y = np.arange(400)
    mean, square = pmf(y) @ y, pmf(y) @ y**2
    np.testing.assert_allclose(_moments(model), [mean, square - mean**2], rtol=1e-9)


def test_every_family_draws_outcomes():
    drawn = {type(model) for model, _ in (*CONTINUOUS.values(), *DISCRETE.values())}
    drawn |= {M.HurdleGamma, M.HurdleLognormal, M.Tweedie, M.VonMises, M.ZeroOneInflatedBeta}
    drawn |= {M.Multinomial, M.SkewNormal}  # in files of their own
    assert drawn == set(M.FAMILIES.values())


@pytest.mark.parametrize("family", M.FAMILIES.values())
@pytest.mark.parametrize("far", [-800.0, 800.0])
@pytest.mark.filterwarnings("error")
def test_predictors_far_out_give_numbers(family, far):
    model = family(classes=3) if hasattr(family, "classes") else family()
    width = 2 if isinstance(model, M.Softmax) else 1 + len(model.extras)
    for extra in (-800.0, 0.0, 800.0):
        eta = np.tile([far, extra, extra, extra][:width], (4, 1))
        batch = {"trials": np.full(4, TRIALS)}
        y = model.draw_outcomes(np.random.default_rng(1), eta, batch)
        assert np.all(np.isfinite(y))


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ModicumError, match="give the field 'trials'"):
        M.Binomial().draw_outcomes(np.random.default_rng(1), np.zeros((3, 1)), {})
