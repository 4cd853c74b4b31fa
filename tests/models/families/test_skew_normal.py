"""The skew-normal family: its density, outcomes, and posterior with little and with much skew."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import skew, skewnorm

import modicum as mo
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


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 6.0])
def test_posterior_is_that_of_quadrature(alpha):
    y = skewnorm.rvs(alpha, size=400, random_state=np.random.default_rng(1))
    priors = {"intercept": mo.priors.Normal(0, 5)}
    table = pd.DataFrame({"y": y})
    post = mo.fit("y ~ 1", table, "skew_normal", priors=priors, random_seed=1, progressbar=False)
    draws = [post["intercept"], np.log(post["scale"]), 2 * np.arctanh(post["skewness"] / MOST_SKEW)]
    ends = [(x.mean() - 5 * x.std(), x.mean() + 5 * x.std()) for x in map(np.ravel, draws)]
    grid = [np.linspace(*end, size) for end, size in zip(ends, (15, 15, 41), strict=True)]
    m, s, v = (x[..., None] for x in np.meshgrid(*grid, indexing="ij"))
    log = scipys(y, m, np.exp(s), MOST_SKEW * np.tanh(v / 2)).sum(axis=-1)
    m, s, v = m[..., 0], s[..., 0], v[..., 0]
    log += -(m**2) / 50 - (s - np.log(y.std())) ** 2 / (2 * 2.5**2) - v**2 / 8
    share = np.exp(log - log.max())
    share /= share.sum()
    for drawn, true in zip(draws, (m, s, v), strict=True):
        mean = np.sum(share * true)
        sd = np.sqrt(np.sum(share * (true - mean) ** 2))
        assert abs(np.mean(drawn) - mean) < 0.12 * sd
        assert np.std(drawn) == pytest.approx(sd, rel=0.1)
    assert abs(np.mean(draws[2]) + np.sum(share * v)) > 0.5 * np.std(draws[2])  # the other way
