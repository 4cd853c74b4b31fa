"""Outcomes drawn by families have scipy's distributions for the same predictors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import modicum as mo
from helpers.laws import TRUTH, WITH_SETTINGS, Distribution
from helpers.refusals import refused
from modicum.errors import ModicumError

M = mo.models
N = 20_000
ETA, EXTRAS = 0.4, [0.6, 0.3, -0.2]  # the same for all rows: one distribution, many draws
TRIALS = 7
MOST = {"Binomial": TRIALS + 1, "BetaBinomial": TRIALS + 1}  # whole outcomes are below
MOST |= dict.fromkeys(("Logistic", "Probit", "Cloglog"), 2)
MOST |= dict.fromkeys(("Ordinal", "StoppingRatio", "AdjacentCategory", "Softmax"), 3)
CASES = [(name, {}, density) for name, density in TRUTH.items()]
CASES += [case for case in WITH_SETTINGS if case[0] != "Tweedie"]
CASES += [
    ("Softmax", {}, lambda b, e, other: special.log_softmax([e[0], other, 0])[b["y"].astype(int)])
]
SHOWN = [f"{name} {settings or ''}".strip() for name, settings, _ in CASES]


def model_of(name, settings):
    classes = {"classes": 3} if MOST.get(name) == 3 else {}
    return getattr(M, name)(**classes, **settings)


def predictors_of(model, eta=ETA):
    extras = 1 if isinstance(model, M.Softmax) else len(model.extras)
    return [eta, *EXTRAS[:extras]]


def reported(model):
    """Return the further parameters on their own scale."""
    if isinstance(model, M.Softmax):
        return EXTRAS[:1]
    if model.has_order:  # the first cutpoint is 0, and only ordinal gaps are logarithms
        return [np.array([0, np.exp(EXTRAS[0]) if isinstance(model, M.Ordinal) else EXTRAS[0]])]
    natural = {"log": np.exp, "logit": special.expit}
    pairs = zip(model.extras, EXTRAS, strict=False)
    return [natural[name.partition("_")[0]](extra) for name, extra in pairs]


def law_of(name, model, density):
    def at(y):
        batch = {"y": y, "trials": np.full(len(y), TRIALS)}
        return density(batch, np.full(len(y), ETA), *reported(model))

    return Distribution(name, at, MOST.get(name, 500))


def drawn(model, eta=ETA):
    predictors = np.tile(predictors_of(model, eta), (2, N // 2, 1))  # two draws of all rows
    y = model.draw_outcomes(
        np.random.default_rng(1), predictors, {"trials": np.full(N // 2, TRIALS)}
    )
    assert y.shape == (2, N // 2)
    assert y.dtype == np.float64
    assert not model.support.excludes(y).any()
    return y.ravel()


def moments_of(name, model, law):
    """Return what the family says of its moments, as a function, and the truth."""
    if model.has_order or name == "Softmax":
        return model.mean, law.chances
    if name == "VonMises":
        return model.mean, 2 * np.arctan(ETA)
    if name == "Loglogistic" or getattr(model, "df", 4) is None:  # its variance is infinite here
        return model.mean, law.mean
    if "trials" in model.drawn_given:
        return model.mean, law.mean / TRIALS
    return model.moments, [law.mean, law.variance]


@pytest.mark.parametrize(("name", "settings", "density"), CASES, ids=SHOWN)
def test_outcomes_and_moments_are_those_of_the_distribution(name, settings, density, x64):
    model = model_of(name, settings)
    law, rng = law_of(name, model, density), np.random.default_rng(2)
    assert law.total == pytest.approx(1, abs=1e-6)
    assert stats.kstest(law.quantile_of(drawn(model), rng), "uniform").pvalue > 1e-3
    other = law.quantile_of(drawn(model, ETA + 0.3), rng)  # the negative control
    assert stats.kstest(other, "uniform").pvalue < 1e-6
    moments, truth = moments_of(name, model, law)
    found = jax.jit(moments)(jnp.array(predictors_of(model)))
    np.testing.assert_allclose(found, truth, rtol=1e-6)


def test_every_family_draws_outcomes():
    drawn = {getattr(M, name) for name, *_ in CASES}
    assert drawn | {M.Multinomial, M.SkewNormal} == set(M.FAMILIES.values())  # in their own files


def test_moments_of_loglogistic_times(x64):
    """Those of shapes up to 1, or 2, are infinite."""
    moments = jax.jit(jax.vmap(lambda e: jnp.stack(M.Loglogistic().moments(jnp.stack([ETA, e])))))
    ours = np.asarray(moments(jnp.log(jnp.array([0.9, 1.5, 2.5, 9.0]))))
    assert np.isinf(ours).tolist() == [[True, True], [False, True], [False] * 2, [False] * 2]
    truth = np.stack(stats.fisk(np.array([2.5, 9.0]), scale=np.exp(ETA)).stats(), axis=1)
    np.testing.assert_allclose(ours[2:], truth, rtol=1e-9)


def test_moments_of_noise_with_estimated_degrees(x64):
    """The variance is infinite up to two of them."""
    variance = jax.vmap(lambda v: M.StudentT(df=None).variance(jnp.stack([ETA, v, jnp.log(3.0)])))
    ours = np.asarray(variance(jnp.log(jnp.array([1.5, 2.0, 2.5, 9.0]))))
    assert np.isinf(ours).tolist() == [True, True, False, False]
    np.testing.assert_allclose(ours[2:], stats.t(np.array([2.5, 9.0]), scale=3).var(), rtol=1e-9)


def test_the_spread_of_weibull_times_does_not_cancel(x64):
    """With a large shape k, times vary by pi / (sqrt(6) k) of their size."""
    shapes, mu = np.array([0.2, 1.0, 7.0, 49.9, 50.1, 1e3, 1e5, 1e7]), np.exp(ETA)
    variance = jax.jit(jax.vmap(lambda e: M.Weibull().variance(jnp.stack([ETA, e]))))
    ours = np.asarray(variance(jnp.log(shapes)))
    np.testing.assert_allclose(ours[:4], stats.weibull_min(shapes[:4], scale=mu).var(), rtol=1e-9)
    np.testing.assert_allclose(ours[3] * 49.9**2, ours[4] * 50.1**2, rtol=2e-4)
    far = mu**2 * np.pi**2 / 6 / shapes[6:] ** 2
    np.testing.assert_allclose(ours[6:], far, rtol=1e-4)
    cancelled = mu**2 * (special.gamma(1 + 2e-7) - special.gamma(1 + 1e-7) ** 2)
    assert abs(cancelled / far[1] - 1) > 1e-3  # negative control


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


def test_what_a_family_cannot_say_is_refused():
    draw, rng = M.Binomial().draw_outcomes, np.random.default_rng(1)
    refused(ModicumError, "give the field 'trials'", draw, rng, np.zeros((3, 1)), {})
    variance = M.Softmax(classes=3).variance
    refused(ModicumError, "does not define the variance", variance, jnp.zeros(2))
