"""Monotonic effects in `mo.fit`, against integrals over the shares of their steps, and NumPyro."""

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.quadrature import away, mixed, normal_given
from helpers.refusals import refused, unwarned
from helpers.targets import numpyro_draws
from modicum import plots
from modicum.errors import DataError, SettingError
from modicum.models.constraints import monotonic_steps

NAMES = ["low", "mid", "high", "top"]
NOISE = 0.5
GAUSSIAN = mo.models.Gaussian(scale=NOISE)
PRIORS = {"mo(size)": mo.priors.Normal(0, 1), "intercept": mo.priors.Normal(0, 5)}


def made(steps, n=600):
    rng = np.random.default_rng(3)
    k = rng.integers(0, 4, n)
    y = 1 + np.r_[0, np.cumsum(steps)][k] + NOISE * rng.normal(size=n)
    size = pd.Categorical.from_codes(k, NAMES, ordered=True)
    return pd.DataFrame({"size": size, "k": k, "y": y, "z": rng.normal(size=n)})


@pytest.fixture(scope="module")
def table():
    return made([0.3, 0.6, 0.4])


def fitted(formula, table, family=GAUSSIAN, **settings):
    settings = {"priors": PRIORS, "method": "laplace", "random_seed": 1} | settings
    return mo.fit(formula, table, family, progressbar=False, **settings)


@pytest.fixture(scope="module")
def post(table):
    return fitted("y ~ mo(size)", table, draws=2_000)


def exact(table, concentration=1.0, points=60):
    """Posterior means and sds of the mean step, the shares and the levels above the lowest.

    Given the shares, intercept and mean step are normal; shares are summed over a grid.
    """
    k, y = table["k"].to_numpy(), table["y"].to_numpy()
    at = (np.arange(points) + 0.5) / points
    first, second = (a.ravel() for a in np.meshgrid(at, at))
    inside = first + second < 1
    shares = np.stack([first, second, 1 - first - second], axis=1)[inside]
    heights = 3 * np.cumsum(np.c_[np.zeros(len(shares)), shares], axis=1)
    counts, sums = np.bincount(k), np.bincount(k, y)
    X = np.stack([np.ones_like(heights), heights], axis=-1)  # of each point of the grid
    XX = np.einsum("pki,k,pkj->pij", X, counts, X) / NOISE**2
    pull = np.einsum("pki,k->pi", X, sums) / NOISE**2
    logs, mean, V = normal_given(XX, pull, np.tile([0.04, 1.0], (len(X), 1)))
    logs += (concentration - 1) * np.log(shares).sum(axis=1)
    step, heights, variance = mean[:, 1:], heights[:, 1:], V[:, 1, 1:]
    means = np.c_[step, shares, step * heights]
    return mixed(logs, means, np.c_[variance, 0 * shares, variance * heights**2])


def error(post, table, **how):
    """Return how far our means and sds are from the exact ones, in posterior sds."""
    ours = [post.summary([f"{k}"]) for k in ("mean_step", "step_share")]
    rows = pd.concat([*ours, post.effects("mo(size)").iloc[1:]])
    return away(rows, *exact(table, **how))


def test_steps_are_those_of_an_integral(post, table):
    assert error(post, table) < 0.12  # of 2,000 weighted draws, 0.03 is one Monte Carlo error
    assert error(post, table, concentration=3.0) > 0.3


@pytest.mark.slow
def test_skewed_effects_and_those_of_either_sign_are_those_of_an_integral():
    skewed = made([0.05, 0.6, 0.0])
    assert error(fitted("y ~ mo(size)", skewed, draws=2_000, method="auto"), skewed) < 0.12
    flat = made([0.0, 0.02, 0.0], n=120)
    post = fitted("y ~ mo(size)", flat, draws=2_000, method="auto")
    assert post.settings["method"] == "nuts"  # no normal describes both signs
    steps = post["mean_step"]
    assert (steps > 0).any()
    assert (steps < 0).any()
    assert error(post, flat) < 0.12


def test_effects_may_fall(table):
    falling = table.assign(y=-table["y"])
    post = fitted("y ~ mo(size)", falling, draws=2_000)
    assert error(post, falling) < 0.12
    assert np.all(post["mean_step"] < 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nuts", "hmc-ecs"])
def test_chains_agree_with_the_integral(table, method):
    assert error(fitted("y ~ mo(size)", table, draws=1_500, method=method), table) < 0.12


@pytest.mark.slow
def test_logistic_effects_with_an_interaction_are_numpyros():
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    rng = np.random.default_rng(4)
    table = made([0.3, 0.1, 0.6], 2_000)
    logit = 2 * (table["y"] - 1.5) + 0.3 * table["k"] * table["z"]
    table["late"] = rng.random(2_000) < 1 / (1 + np.exp(-logit))
    normal = mo.priors.Normal(0, 1)
    keys = ("mo(size)", "mo(size):z", "common", "intercept")
    priors = dict.fromkeys(keys, normal)
    post = fitted("late ~ mo(size) * z", table, "logistic", priors=priors, method="nuts")

    k, z, late = (jnp.asarray(table[c].to_numpy()) for c in ("k", "z", "late"))

    def model(prior_of_shares=1.0):
        a, c, b, d = (numpyro.sample(name, dist.Normal(0, 1)) for name in "acbd")
        shares = [
            numpyro.sample(f"s{i}", dist.Dirichlet(prior_of_shares * jnp.ones(3))) for i in (1, 2)
        ]
        m, w = (3 * jnp.r_[0, jnp.cumsum(s)][k] for s in shares)
        eta = a + c * z + b * m + d * w * z
        numpyro.sample("late", dist.Bernoulli(logits=eta), obs=late)

    def off(**how):
        with jax.enable_x64(True):
            theirs = numpyro_draws(model, 1, warmup=500, draws=2_000, **how)
        columns = [theirs["b"], theirs["d"], *theirs["s1"].T, *theirs["s2"].T]
        ours = pd.concat([post.summary(["mean_step"]), post.summary(["step_share"])])
        gaps = [(o - t.mean()) / t.std() for o, t in zip(ours["mean"], columns, strict=True)]
        return np.abs(gaps).max()

    assert off() < 0.12
    assert off(prior_of_shares=4.0) > 0.3


def test_free_values_are_those_of_the_steps(x64):
    free = np.array([-0.7, 0.3, -1.2])
    steps = np.asarray(monotonic_steps.constrain(free))
    assert steps.mean() == pytest.approx(-0.7)
    np.testing.assert_allclose(monotonic_steps.free(steps), free, atol=1e-12)
    np.testing.assert_allclose(monotonic_steps.free(np.zeros(3)), np.zeros(3), atol=1e-12)


def test_default_priors_are_about_all_steps_together(table):
    priors = mo.priors.default("y > 1 ~ mo(size) + z", table)
    assert priors["mean_step[mo(size)]"] == "normal(0, 0.8333)"  # the highest from the lowest: 2.5
    assert priors["step_share[mo(size)]"] == "dirichlet(1)"
    common = {"common": mo.priors.Normal(0, 0.3)}
    prior = mo.priors.default("y > 1 ~ mo(size)", table, priors=common)["mean_step[mo(size)]"]
    assert prior == "normal(0, 0.3)"


def test_posteriors_are_saved_and_predict_new_tables(post, tmp_path):
    post.save(tmp_path / "post")
    again = mo.Posterior.load(tmp_path / "post")
    new = pd.DataFrame({"size": ["top", "low"]})
    assert np.array_equal(again.predict(new).mean, post.predict(new).mean)
    level = post.effects("mo(size)", levels=["top", "low"])["mean"].to_numpy()
    assert np.allclose(post.predict(new).mean, post.mean("intercept") + level)
    assert level[1] == 0
    refused(DataError, "'huge'", again.predict, pd.DataFrame({"size": ["huge"]}))
    assert plots.smooth(post, "mo(size)").lines
    prior = again.predictive(new, prior=True, draws=50, random_seed=1)
    assert np.shape(prior)[-1] == 2


@pytest.mark.slow
def test_other_predictors_and_terms_may_have_monotonic_effects(table):
    formula = ("y ~ mo(size):z + mo(k)", "scale ~ mo(size)")
    with unwarned():  # few draws of effects that may be 0
        post = fitted(formula, table, "gaussian", priors=None, draws=200)
    named = {"mean_step[mo(size):z]", "mean_step[mo(k)]", "mean_step[scale.mo(size)]"}
    assert named <= set(post.summary().index)
    assert list(post.effects("scale.mo(size)").index) == NAMES
    of_three = table.assign(k=(table["k"] + (table["y"] > 1.5)) // 2)
    with unwarned():
        classes = fitted("C(k) ~ mo(size)", of_three, "softmax", priors=None, draws=100)
        ordered = fitted("C(k) ~ mo(size)", of_three, "ordinal", priors=None, draws=100)
    assert "beta[0, mo(size)[mid]]" in classes.summary().index
    assert "mean_step[mo(size)]" in ordered.summary().index


def test_misuse_is_refused(table):
    def no(words, formula, table=table, error=SettingError, **settings):
        refused(error, words, fitted, formula, table, **settings)

    text = table.assign(size=table["size"].astype(str))
    no("text in no order that is known", "y ~ mo(size)", text, DataError)
    days = table.assign(day=pd.Timestamp("2026-01-01") + pd.to_timedelta(table["k"], unit="D"))
    no("holds dates.*count them first", "y ~ mo(day)", days, DataError)
    no("has 2 levels", "y ~ mo(c)", table.assign(c=table["k"] // 2), DataError, priors=None)
    no("cannot vary by group", "y ~ mo(size) + (mo(size) | k)")
    no("each of several", "y ~ mo(size):C(k)", priors=None)
    no("must be normal", "y ~ mo(size)", priors={"mo(size)": mo.priors.Laplace(0, 1)})
    no("have one prior", "y ~ mo(size)", priors={"mo(size)[top]": mo.priors.Normal(0, 1)})
    no("as it must be normal", "y ~ mo(size)", priors={"common": mo.priors.Laplace(0, 1)})
    no("may be any number", "y ~ mo(size)", method="flymc", family="logistic", error=SettingError,
       table=table.assign(y=table["y"] > 1), priors=None)  # fmt: skip
