"""Shapes of noise that are estimated: the skewness of a normal one, degrees of freedom."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import skew, skewnorm, t

import modicum as mo
from helpers.quadrature import moments
from modicum.errors import SettingError
from modicum.models.coefficients import MOST_SKEW
from modicum.runtime import in_double_precision

MODEL = mo.models.SkewNormal()


def scipys(y, mean, sd, skewness):
    alpha = MODEL.alpha(skewness)
    shift = alpha / np.hypot(1, alpha) * np.sqrt(2 / np.pi)
    width = sd / np.sqrt(1 - shift**2)
    return skewnorm.logpdf(y, alpha, mean - width * shift, width)


@in_double_precision
def test_density_is_scipys_and_has_derivatives_without_skewness():
    y, v = np.linspace(-3, 5, 9), np.array([-6.0, -1.0, -1e-3, 2e-5, 0.0, 0.5, 3.0])
    eta = np.stack([np.full(len(v), 0.5), np.full(len(v), np.log(2)), v], axis=1)
    values = jax.vmap(lambda e: jax.vmap(lambda y: MODEL.log_density(e, y))(y))
    found = np.asarray(jax.jit(values)(eta))
    skewness = MOST_SKEW * np.tanh(v / 2)[:, None]
    np.testing.assert_allclose(found, scipys(y, 0.5, 2.0, skewness), rtol=1e-6)
    assert np.abs(found - scipys(y, 0.5, 2.0, -skewness))[v != 0].max() > 0.1
    wide = np.linspace(-15, 16, 400)
    share = np.exp(scipys(wide, 0.5, 2.0, 0.0)) * (wide[1] - wide[0])
    mean = jax.jit(lambda e: jax.vmap(lambda y: MODEL.log_density(e, y))(wide) @ share)
    information = -np.asarray(jax.hessian(mean)(eta[4]))
    true = np.diag([0.25, 2.0, (MOST_SKEW / 2) ** 2 / 6])  # in alpha it would be singular
    np.testing.assert_allclose(information, true, atol=1e-4)


def test_outcomes_have_mean_sd_and_skewness():
    eta = np.tile([0.5, np.log(2), 3.0], (200_000, 1))
    y = MODEL.draw_outcomes(np.random.default_rng(1), eta, {})
    moments = [y.mean(), y.std(), skew(y)]
    np.testing.assert_allclose(moments, [0.5, 2, MOST_SKEW * np.tanh(1.5)], atol=0.03)
    assert float(MODEL.mean(jnp.asarray(eta[0]))) == 0.5
    assert float(MODEL.variance(jnp.asarray(eta[0]))) == pytest.approx(4)


def students(y, mean, sd, log_df):
    return t.logpdf(y, np.exp(log_df), mean, sd)


def skews(y, mean, sd, v):
    return scipys(y, mean, sd, MOST_SKEW * np.tanh(v / 2))


SKEWED = mo.models.SkewNormal(), skews, "skewness", lambda s: 2 * np.arctanh(s / MOST_SKEW)
HEAVY = mo.models.StudentT(df=None), students, "df", np.log
LOG_DF = 1 - np.euler_gamma + np.log(10), np.sqrt(np.pi**2 / 6 - 1)  # where df is gamma(2, 0.1)
POSTERIORS = [  # family, outcomes, prior of the coordinate of the shape
    pytest.param(SKEWED, skewnorm(0), (0, 2), id="normal"),
    pytest.param(SKEWED, skewnorm(6), (0, 2), id="skewed"),
    pytest.param(HEAVY, t(3), LOG_DF, id="heavy"),
    pytest.param(HEAVY, t(30), LOG_DF, id="light"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "law", "prior"), POSTERIORS)
def test_posterior_is_that_of_quadrature(family, law, prior):
    model, density, shape, coordinate = family
    y = law.rvs(size=400, random_state=np.random.default_rng(1))
    priors = {"intercept": mo.priors.Normal(0, 5)}
    table = pd.DataFrame({"y": y})
    post = mo.fit("y ~ 1", table, model, priors=priors, random_seed=1, progressbar=False)
    draws = [post["intercept"], np.log(post["scale"]), coordinate(post[shape])]
    ends = [(x.mean() - 5 * x.std(), x.mean() + 5 * x.std()) for x in map(np.ravel, draws)]
    grid = [np.linspace(*end, size) for end, size in zip(ends, (15, 15, 41), strict=True)]
    m, s, v = (x[..., None] for x in np.meshgrid(*grid, indexing="ij"))
    log = density(y, m, np.exp(s), v).sum(axis=-1)
    m, s, v = m[..., 0], s[..., 0], v[..., 0]
    log += -(m**2) / 50 - (s - np.log(y.std())) ** 2 / (2 * 2.5**2)
    log += -((v - prior[0]) ** 2) / (2 * prior[1] ** 2)
    means, sds = moments(log, m, s, v)
    for drawn, mean, sd in zip(draws, means, sds, strict=True):
        assert abs(np.mean(drawn) - mean) < 0.12 * sd
        assert np.std(drawn) == pytest.approx(sd, rel=0.1)
    assert abs(np.mean(draws[2]) + means[2]) > 0.5 * np.std(draws[2])  # the other way


def test_noise_of_estimated_degrees_predicts_its_tails():
    y = t(3).rvs(size=300, random_state=np.random.default_rng(1))
    table = pd.DataFrame({"y": y})
    post = mo.fit("y ~ 1", table, HEAVY[0], random_seed=1, draws=200, progressbar=False)
    assert post["df"].mean() == pytest.approx(3, abs=1.5)
    ours = post.predict(table[:1], kind="survival", times=[-2.0, 0.3, 40.0])
    own = [np.ravel(post[name]) for name in ("df", "intercept", "scale")]
    each = t.sf(np.array([[-2.0], [0.3], [40.0]]), *own)
    np.testing.assert_allclose(np.ravel(ours.mean), each.mean(axis=1), rtol=1e-3)


def test_what_needs_known_degrees_is_refused():
    y = np.random.default_rng(1).normal(size=50)
    table = pd.DataFrame({"y": y, "c": np.where(y > 1, "right", "none")})
    with pytest.raises(SettingError, match="cannot be estimated from outcomes that are known in"):
        mo.fit("y | cens(c) ~ 1", table, HEAVY[0], progressbar=False)
    with pytest.raises(SettingError, match="known degrees of freedom"):
        mo.fit("y ~ 1", table, HEAVY[0], method="flymc", progressbar=False)


@dataclass(frozen=True, repr=False)
class Unordered(mo.models.Gaussian):
    extras = ("log_scale", "log_df")


def test_extra_parameters_stand_in_the_order_in_which_jax_flattens_them():
    with pytest.raises(SettingError, match="in alphabetical order"):
        Unordered()
