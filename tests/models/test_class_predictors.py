"""Classes with predictors of their own: of all terms, or of those in cs(...)."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.special import log_expit, log_softmax, softmax
from scipy.stats import multinomial, norm

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from helpers.targets import numpyro_draws
from modicum.errors import ModicumError, SettingError
from modicum.fit import model_for
from modicum.models import Target
from modicum.rows.reading import read_formula
from modicum.runtime import in_double_precision

ROADS = ["tram", "walk", "bike"]  # not in the order of the alphabet
RUN = {"random_seed": 1, "progressbar": False}


def journeys(n, towns=12, seed=1):
    rng = np.random.default_rng(seed)
    d = pd.DataFrame({"x": rng.normal(size=n), "z": rng.random(n)})
    town = rng.integers(0, towns, n)
    u = rng.normal(size=(towns, 2)) * [1.0, 0.7]
    eta = np.column_stack([0.5 + d["x"] + u[town, 0], np.sin(6 * d["z"]) + u[town, 1], 0 * d["x"]])
    road = np.argmax(eta + rng.gumbel(size=eta.shape), axis=1)
    return d.assign(town=[f"t{k:02d}" for k in town], road=pd.Categorical.from_codes(road, ROADS))


@pytest.fixture(scope="module")
def table():
    return journeys(400)


def target_of(formula, table, family, priors=None):
    by_class = "" if family == "softmax" else None
    rows = read_formula(formula, table, progressbar=False, by_class=by_class)
    return Target.of(model_for(rows, family, priors).model, rows)[0], rows


@in_double_precision
def test_log_likelihood_is_that_of_a_predictor_per_class(table):
    target, rows = target_of("road ~ x + (1 | town) + s(z)", table, "softmax")
    theta = target.unravel(np.random.default_rng(2).normal(size=target.size))
    named = {name: np.asarray(value) for name, value in target.model.report(theta).items()}
    held = pd.DataFrame(rows.coding.densely(rows.slice(0, 400)), columns=rows.columns)
    eta = np.zeros((400, 3))
    for k, road in enumerate(["tram", "walk"]):
        own = held[[name for name in held if name.startswith(f"{road}.")]]
        beta = np.concatenate([named[f"{road}.beta"], named[f"{road}.s(z)"]])
        town = named[f"{road}.1|town"][pd.Categorical(table["town"]).codes]
        eta[:, k] = named[f"{road}.intercept"] + own @ beta + town
    found = np.asarray(jax.jit(target.model.log_likelihood)(theta, rows.slice(0, 400)))
    codes = table["road"].cat.codes
    np.testing.assert_allclose(found, log_softmax(eta, axis=1)[range(400), codes], rtol=1e-5)
    wrong = log_softmax(eta[:, [1, 0, 2]], axis=1)[range(400), codes]  # in alphabetical order
    assert np.abs(found - wrong).max() > 1


@in_double_precision
def test_two_classes_are_those_of_logistic_regression(table):
    two = table.assign(tram=pd.Categorical(table["road"] == "tram", [True, False]))
    two["event"] = 1.0 * (table["road"] == "tram")
    ours, rows = target_of("tram ~ x + (1 + x | town)", two, "softmax")
    t = np.random.default_rng(3).normal(size=(2, ours.size))

    def rises(target, rows):
        batch = rows.slice(0, len(rows))
        log = jax.jit(lambda at: target.log_prior(at) + target.log_likelihood(at, batch).sum())
        return float(log(t[1]) - log(t[0]))

    logistic, plain = target_of("event ~ x + (1 + x | town)", two, "logistic")
    found, true = rises(ours, rows), rises(logistic, plain)
    assert found == pytest.approx(true, rel=1e-6)
    narrow = {"group_sd": mo.priors.HalfNormal(0.5)}
    logistic, _ = target_of("event ~ x + (1 + x | town)", two, "logistic", narrow)
    assert abs(found - rises(logistic, plain)) > 0.1


def test_chances_in_new_groups_average_over_the_effects_of_all_classes():
    model = mo.models.Softmax(classes=4, modelled=("a", "b", "c"), intercept=False)
    eta, sd = np.array([[0.0, 1.0, -1.0, 0.5]]), np.array([[1.5, 0.5, 1.0]])
    found = np.asarray(model.mean_over(jnp.asarray(eta), sd, (1, 2, 3)))[0]
    drawn = np.zeros((200_000, 4))
    drawn[:, :3] = eta[0, 1:] + sd * np.random.default_rng(4).normal(size=(200_000, 3))
    chances = softmax(drawn, axis=1)
    np.testing.assert_allclose(found, chances.mean(axis=0), atol=2e-3)
    assert np.abs(np.asarray(model.mean(eta[0])) - chances.mean(axis=0)).max() > 0.01


def test_priors_of_all_classes_and_of_one(table):
    priors = {"common": mo.priors.Normal(0, 1), "walk.x": mo.priors.Normal(0, 2)}
    priors["group_sd[town]"] = mo.priors.HalfNormal(3)
    said = mo.priors.default("road ~ x + (1 | town)", table, "softmax", priors=priors)
    assert said["tram.beta[x]"] == "normal(0, 1)"
    assert said["walk.beta[x]"] == "normal(0, 2)"
    assert said["group_sd[tram.town]"] == said["group_sd[walk.town]"] == "half-normal(3)"


@cases(
    "formula words",
    ("road ~ x + (1 | town); walk ~ x", "one formula, that of the outcome"),
    ("number ~ x + (1 | town)", r"write C\(number\) ~ \.\.\., which makes them classes"),
    ("road ~ x + (1 | town) + offset(z)", "2 numbers .* leave the offset out"),
)
def test_what_is_no_model_of_classes_is_refused(table, formula, words):
    numbered = table.assign(number=table["road"].cat.codes)
    refused(ModicumError, words, mo.fit, formula, numbered, "softmax", **RUN)
    rows = mo.Rows(x=np.ones((4, 1)), y=[0, 1, 2, 0], codes={"g": [0, 1, 0, 1]})
    with pytest.raises(SettingError, match=r"fit a formula, as in mo\.fit"):
        mo.sample(mo.models.Softmax(groups="g"), rows)


def reference(table):
    """Draw by NUTS on all rows from the same model, written for NumPyro."""
    x, road = np.asarray(table["x"]), table["road"].cat.codes.to_numpy()
    town = pd.Categorical(table["town"])

    def model():
        beta = numpyro.sample("beta", dist.Normal(0, 2.5 / x.std()).expand([2]))
        level = numpyro.sample("level", dist.Normal(0, 10).expand([2]))  # at the mean of x
        sd = numpyro.sample("sd", dist.HalfNormal(2.5).expand([2]))
        u = numpyro.sample("u", dist.Normal(0, 1).expand([len(town.categories), 2]))
        total = level + beta * (x - x.mean())[:, None] + sd * u[town.codes]
        logits = jnp.concatenate([total, jnp.zeros((len(x), 1))], axis=1)
        numpyro.sample("y", dist.Categorical(logits=logits), obs=road)

    drawn = numpyro_draws(model, seed=5)
    sd = drawn["sd"]
    return np.column_stack([drawn["beta"], np.log(sd), (sd[:, None] * drawn["u"])[:, 0]])


@pytest.mark.slow
def test_posterior_is_that_of_nuts_on_all_rows(tmp_path):
    table = journeys(800)
    post = mo.fit("road ~ x + (1 | town)", table, "categorical", **RUN)
    parts = [post["tram.beta"][..., 0], post["walk.beta"][..., 0]]
    parts += [np.log(post["group_sd"][..., k]) for k in range(2)]
    parts += [post[f"{road}.1|town"][..., 0] for road in ("tram", "walk")]
    found = np.column_stack([np.ravel(part) for part in parts])
    true = reference(table)
    error = np.abs(found.mean(0) - true.mean(0)) / true.std(0)
    assert error.max() < 0.2  # four standard errors of 400 effective draws
    np.testing.assert_allclose(found.std(0), true.std(0), rtol=0.15)
    wrong = true[:, [1, 0, 3, 2, 5, 4]]  # classes in alphabetical order
    assert np.min(np.abs(found.mean(0) - wrong.mean(0)) / wrong.std(0)) > 0.3

    post.save(tmp_path / "post.nc")
    new = pd.DataFrame({"x": [0.0, 1.0], "town": ["t00", "elsewhere"]})
    again = mo.Posterior.load(tmp_path / "post.nc").predict(new, groups="any")
    np.testing.assert_allclose(again.mean, post.predict(new, groups="any").mean, rtol=1e-6)
    assert again.classes == tuple(ROADS)
    assert post.loo().elpd < -100
    assert post.ppc().p > 0.01
    digest = mo.fit("road ~ x + (1 | town)", mo.digest(post, table), "categorical", **RUN)
    assert np.abs(digest.mean("tram.beta") - post.mean("tram.beta")) < 0.02


COLOURS = ["red", "blue", "green"]


@pytest.fixture(scope="module")
def counted():
    rng = np.random.default_rng(6)
    d = pd.DataFrame({"x": rng.normal(size=50), "town": rng.choice(list("uvw"), 50)})
    d[COLOURS] = rng.multinomial(rng.integers(0, 9, 50), [0.5, 0.3, 0.2])
    return d


@pytest.mark.parametrize("right", ["x", "x + (1 | town)"])
@in_double_precision
def test_counts_are_rows_of_one_outcome_each(counted, right):
    long = counted.melt(["x", "town"], COLOURS, "colour", "times")
    long = long.loc[long.index.repeat(long["times"])]
    long["colour"] = pd.Categorical(long["colour"], COLOURS)
    t = np.random.default_rng(7).normal(size=(2, 20))

    def rise(formula, table, family):
        rows = read_formula(formula, table, progressbar=False, by_class="")
        target = Target.of(model_for(rows, family).model, rows)[0]
        batch = rows.slice(0, len(rows))
        log = jax.jit(lambda at: target.log_likelihood(at, batch).sum())
        return float(log(t[1, : target.size]) - log(t[0, : target.size]))

    found = rise(f"cbind(red, blue, green) ~ {right}", counted, "multinomial")
    assert found == pytest.approx(rise(f"colour ~ {right}", long, "softmax"), rel=1e-6)
    assert abs(found - rise(f"cbind(blue, red, green) ~ {right}", counted, "multinomial")) > 1


def test_counts_have_the_density_of_scipy_and_are_drawn_from_it():
    model, eta = mo.models.Multinomial(counts=("b", "c")), np.array([0.3, -0.7])
    chances = softmax([0.3, -0.7, 0.0])
    true = multinomial.logpmf([2, 0, 3], 5, chances)
    y = jnp.array([2.0, 5, 0, 3])  # the first count, their sum, the other counts
    assert float(model.log_density(jnp.asarray(eta), y)) == pytest.approx(true, rel=1e-5)
    assert float(model.log_density(jnp.asarray(eta[::-1]), y)) != pytest.approx(true, rel=1e-2)
    batch = {"trials": np.full(2, 5)}
    drawn = model.draw_outcomes(np.random.default_rng(8), np.tile(eta, (20_000, 2, 1)), batch)
    assert np.all(drawn.sum(axis=-1) == 5)
    np.testing.assert_allclose(drawn.mean(axis=(0, 1)), 5 * chances, atol=0.03)


def test_two_counts_are_successes_and_failures(counted):
    formulas = ["cbind(red, blue) ~ x", "red | trials(red + blue) ~ x"]
    rows = [read_formula(formula, counted, progressbar=False) for formula in formulas]
    for name in ("y", "trials"):
        np.testing.assert_array_equal(*(each.slice(0, 50)[name] for each in rows))


@cases(
    "formula family words",
    ("cbind(red, blue, green) ~ x", "binomial", "counts of 3 classes .* family='multinomial'"),
    ("red ~ x", "multinomial", r"write cbind\(a, b, c\)"),
    ("cbind(red, blue, x) ~ x", "multinomial", "whole numbers from 0"),
    ("cbind(red) ~ x", "multinomial", "two or more counts"),
    ("cbind(red, blue) | trials(green) ~ x", "binomial", "their sum is the number of trials"),
)
def test_what_are_no_counts_of_classes_is_refused(counted, formula, family, words):
    refused(ModicumError, words, mo.fit, formula, counted, family, **RUN)


STAGES = ["none", "some", "much", "all"]  # not in the order of the alphabet, nor are the cutpoints
BETWEEN = ["none|some", "some|much", "much|all"]
SLOPES, CUTS = np.array([0.9, -0.5, 0.2]), np.array([-0.5, 0.3, 1.0])


def stages(n, wards=8):
    """Return stages of which each is left with a chance that depends on z in its own way."""
    rng = np.random.default_rng(9)
    d = pd.DataFrame({"x": rng.normal(size=n), "z": rng.normal(1, 1, n)})
    d["f"], ward = rng.choice(["u", "v"], n), rng.integers(0, wards, n)
    level = 0.6 * d["x"] + rng.normal(0, 0.7, wards)[ward]
    eta = level.to_numpy()[:, None] + d[["z"]].to_numpy() * SLOPES - CUTS
    on = np.cumprod(rng.logistic(size=eta.shape) < eta, axis=1)
    stage = pd.Categorical.from_codes(on.sum(axis=1), STAGES, ordered=True)
    return d.assign(ward=[f"w{k}" for k in ward], stage=stage)


def log_chance(family, eta, y):
    """Log-probabilities of classes, by definition: eta_k is the predictor minus cutpoint k."""
    if family == "acat":
        return log_softmax(np.cumsum(np.c_[0 * y, eta], axis=1), axis=1)[range(len(y)), y]
    stopped = [log_expit(-eta[i, k]) if k < 3 else 0.0 for i, k in enumerate(y)]
    went_on = [log_expit(eta[i, :k]).sum() for i, k in enumerate(y)]
    return np.add(stopped, went_on)


@pytest.mark.parametrize("family", ["sratio", "acat"])
@in_double_precision
def test_effects_that_differ_between_classes_have_the_posterior_by_definition(family):
    table = stages(100)
    held = np.column_stack([table["z"], table["f"] == "v"])
    priors = {"common": mo.priors.Normal(0, 1), "z": mo.priors.Normal(0, 2)}
    rows = read_formula("stage ~ x + cs(z + f)", table, progressbar=False, by_class="cs")
    target = Target.of(model_for(rows, family, priors).model, rows)[0]
    x, y = table["x"].to_numpy(), table["stage"].cat.codes.to_numpy().astype(int)

    def by_definition(t, between):
        named = {k: np.asarray(v) for k, v in target.model.report(target.unravel(t)).items()}
        slopes = np.array([named[f"{name}.beta"] for name in between])
        eta = named["beta"] * x[:, None] + held @ slopes.T - named["cutpoint"]
        prior = norm(0, 10).logpdf(eta.mean(axis=0)).sum() + norm(0, 1).logpdf(named["beta"]).sum()
        prior += norm(0, [2, 1]).logpdf(slopes).sum()
        return log_chance(family, eta, y).sum() + prior

    said = target.model.describe_priors(rows)
    assert said["-cutpoint[none|some]"].startswith("normal(0, 10), of the predictor at the mean")
    assert said["some|much.beta[z]"] == "normal(0, 2)"
    a, b = np.random.default_rng(10).normal(size=(2, target.size))
    batch = rows.slice(0, 100)
    log = jax.jit(lambda t: target.log_prior(t) + target.log_likelihood(t, batch).sum())
    found = float(log(b) - log(a))
    assert found == pytest.approx(by_definition(b, BETWEEN) - by_definition(a, BETWEEN), rel=1e-6)
    wrong = sorted(BETWEEN)
    assert abs(found - (by_definition(b, wrong) - by_definition(a, wrong))) > 0.1
    named = target.model.report(target.unravel(a))
    back = target.model.restore({k: np.asarray(v) for k, v in named.items()})
    np.testing.assert_allclose(target.model.report(back)["cutpoint"], named["cutpoint"])


@cases(
    "formula family words",
    ("stage ~ cs(z)", "cumulative", "could cross.*use family='stopping-ratio'"),
    ("stage ~ cs(z) + (1 | ward)", "softmax", "Softmax has none such"),
    ("number ~ cs(z)", "acat", r"write C\(number\) ~ \.\.\., which makes them classes"),
    ("stage ~ z + cs(z)", "sratio", "z stands both in"),
    ("stage ~ x:cs(z)", "sratio", r"as in cs\(x \* f\), and no groups"),
    ("stage ~ x + (cs(z) | ward)", "sratio", "a term of its own.* and no groups"),
    ("stage ~ cs(1 | ward)", "sratio", "a term of its own.* and no groups"),
    ("stage ~ cs(1)", "sratio", "holds no column"),
    ("stage ~ cs(z, df=4)", "sratio", "a natural spline is cr"),
    ("stage ~ x - cs(z)", "sratio", "can only be added"),
    ("stage ~ 0 + cs(z)", "sratio", "cutpoints in place of an intercept"),
    ("stage ~ x; disc ~ cs(z)", "sratio", "formula of 'disc' has cs"),
    ("stage ~ cs(z); disc ~ x", "sratio", "leave out the formula of 'disc'"),
)
def test_effects_that_cannot_differ_between_classes_are_refused(formula, family, words):
    table = stages(50)
    table["number"] = table["stage"].cat.codes
    refused(ModicumError, words, mo.fit, formula, table, family, **RUN)


def reference_of_stages(table):
    """Draw by NUTS on all rows, from a binary regression for each stage that was reached."""
    x, z = np.asarray(table["x"]), np.asarray(table["z"])
    y, ward = table["stage"].cat.codes.to_numpy(), pd.Categorical(table["ward"])

    def model():
        beta = numpyro.sample("beta", dist.Normal(0, 2.5 / x.std()))
        slope = numpyro.sample("slope", dist.Normal(0, 2.5 / z.std()).expand([3]))
        level = numpyro.sample("level", dist.Normal(0, 10).expand([3]))  # at the means
        sd = numpyro.sample("sd", dist.HalfNormal(2.5))
        u = numpyro.sample("u", dist.Normal(0, 1).expand([len(ward.categories)]))
        common = beta * (x - x.mean()) + sd * u[ward.codes]
        for k in range(3):
            at = y >= k
            logits = level[k] + common[at] + slope[k] * (z - z.mean())[at]
            numpyro.sample(f"on_{k}", dist.Bernoulli(logits=logits), obs=1 * (y[at] > k))

    drawn = numpyro_draws(model, seed=11)
    cut = drawn["slope"] * z.mean() - drawn["level"] + drawn["beta"][:, None] * x.mean()
    return np.column_stack([drawn["beta"], np.log(drawn["sd"]), drawn["slope"], cut])


@pytest.mark.slow
def test_effects_that_differ_between_classes_are_those_of_nuts_on_all_rows(tmp_path):
    table = stages(1_000)
    post = mo.fit("stage ~ x + cs(z) + (1 | ward)", table, "sratio", **RUN)
    parts = [post["beta"][..., 0], np.log(post["group_sd"][..., 0])]
    parts += [post[f"{name}.beta"][..., 0] for name in BETWEEN]
    parts += list(np.moveaxis(post["cutpoint"], -1, 0))
    found, true = np.column_stack([np.ravel(part) for part in parts]), reference_of_stages(table)
    error = np.abs(found.mean(0) - true.mean(0)) / true.std(0)
    assert error.max() < 0.2  # four standard errors of 400 effective draws
    np.testing.assert_allclose(found.std(0), true.std(0), rtol=0.15)
    wrong = true[:, [0, 1, 4, 2, 3, 7, 5, 6]]  # cutpoints in alphabetical order
    assert np.min(np.abs(found.mean(0) - wrong.mean(0))[2:] / wrong.std(0)[2:]) > 1

    post.save(tmp_path / "post.nc")
    new = pd.DataFrame({"x": [0.0, 1.0], "z": [1.0, -1.0], "ward": ["w0", "elsewhere"]})
    again = mo.Posterior.load(tmp_path / "post.nc").predict(new, groups="any")
    np.testing.assert_allclose(again.mean, post.predict(new, groups="any").mean, rtol=1e-6)
    assert again.classes == tuple(STAGES)
    one = mo.fit("stage ~ x + z + (1 | ward)", table, "sratio", **RUN)
    assert post.loo().elpd > one.loo().elpd + 10
    digest = mo.fit("stage ~ x + cs(z) + (1 | ward)", mo.digest(post, table), "sratio", **RUN)
    assert np.abs(digest.mean("some|much.beta") - post.mean("some|much.beta")) < 0.02
