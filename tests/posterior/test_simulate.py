"""Outcomes drawn by `mo.Model`s and by NumPyro models."""

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from scipy.special import expit

import modicum as mo
from helpers.posteriors import made
from helpers.refusals import refused
from modicum.errors import SettingError

mpl.use("Agg")

RNG = np.random.default_rng(2)
N, S = 30, 3000
MACHINE = RNG.integers(0, 3, N)
LEVEL, NOISE = np.array([0.0, 1.0, 5.0]), 0.7
WEAR = LEVEL[MACHINE] + NOISE * RNG.normal(size=N)
ROWS = mo.Rows(machine=MACHINE, wear=WEAR)
SPREAD = 0.4  # sd of the draws of `level`


def log_prior(th):
    return -0.5 * jnp.sum(th["level"] ** 2) - th["noise"]


def log_likelihood(th, batch):
    gap = (batch["wear"] - th["level"][batch["machine"]]) / th["noise"]
    return -0.5 * gap**2 - jnp.log(th["noise"])


def simulate(th, row, key):
    return th["level"][row["machine"]] + th["noise"] * jax.random.normal(key)


def simulate_prior(key):
    one, other = jax.random.split(key)
    return {"level": jax.random.normal(one, (3,)), "noise": jax.random.exponential(other)}


def model(**changed):
    settings = {
        "constraints": {"noise": mo.positive},
        "init": {"level": np.zeros(3), "noise": 1.0},
        "simulate": simulate,
        "simulate_prior": simulate_prior,
        "outcome": "wear",
    }
    return mo.Model(log_prior, log_likelihood, **settings | changed)


def posterior(**changed):
    level = LEVEL + SPREAD * np.random.default_rng(3).normal(size=(2, S // 2, 3))
    draws = {"level": level, "noise": np.full((2, S // 2), NOISE)}
    return made(model(**changed).resolved(ROWS), ROWS, draws)


@pytest.fixture(scope="module")
def post():
    return posterior()


def moments_off(drawn):
    """Return the largest z-scores of moments, and of correlations between rows of a draw."""
    variance = NOISE**2 + SPREAD**2
    means = (drawn.mean(axis=0) - LEVEL[MACHINE]) / np.sqrt(variance / S)
    variances = (drawn.var(axis=0) / variance - 1) / np.sqrt(2 / S)
    # rows of one machine share only the error of its level
    shared = (MACHINE[:, None] == MACHINE) * SPREAD**2 / variance
    apart = ~np.eye(N, dtype=bool)
    correlations = (np.corrcoef(drawn.T) - shared)[apart] * np.sqrt(S)
    return [np.abs(z).max() for z in (means, variances, correlations)]


def test_outcomes_have_the_moments_of_the_model_and_rows_noise_of_their_own(post):
    drawn = post.predictive(draws=S)
    assert drawn.shape == (S, N)
    assert max(moments_off(drawn)) < 5
    np.testing.assert_array_equal(drawn, post.predictive(draws=S))
    assert not np.array_equal(drawn[0], post.predictive(draws=1, random_seed=1)[0])

    # negative controls: no noise, and noise that all rows share
    def silent(th, row, key):
        return th["level"][row["machine"]] + 0 * th["noise"]

    def shared(th, row, key):
        return th["level"][row["machine"]] + th["noise"] * jax.random.normal(jax.random.key(1))

    for broken in (silent, shared):
        assert max(moments_off(posterior(simulate=broken).predictive(draws=S))) > 5


def test_draws_do_not_depend_on_how_rows_are_batched(post, monkeypatch):
    drawn = post.predictive(draws=20)
    many = {"machine": np.tile(MACHINE, 40)}  # two pieces
    np.testing.assert_allclose(post.predictive(many, draws=20)[:, :N], drawn, rtol=1e-12)
    monkeypatch.setattr("modicum.models.over_draws.BUDGET", N)
    np.testing.assert_allclose(post.predictive(draws=20), drawn, rtol=1e-12)


def test_the_prior_predictive_is_that_of_the_prior(post):
    drawn = post.predictive({"machine": [0, 2]}, draws=S, prior=True)
    # level ~ N(0, 1), noise ~ exponential: E noise^2 = 2, and the fourth moment is 3 + 12 + 72
    assert np.abs(drawn.mean(axis=0)).max() < 4.5 * np.sqrt(3 / S)
    assert np.abs(drawn.var(axis=0) - 3).max() < 4.5 * np.sqrt((87 - 9) / S)
    # the prior does not know the third machine's level, 5
    assert post.ppc(prior=True).outside > 0.3


def test_checks_report_and_arviz_take_them(post, tmp_path):
    check = post.ppc()
    assert check.kind == "quantiles"
    assert check.outside < 0.3
    wrong = posterior(simulate=lambda th, row, key: 9 + jax.random.normal(key))
    assert wrong.ppc().outside > 0.5
    by = post.ppc(by="machine").table
    seen = [WEAR[k == MACHINE].mean() for k in range(3)]
    np.testing.assert_allclose(by["observed"], seen)
    tree = post.to_datatree(sample=10)
    drawn = tree["posterior_predictive"]["wear"]
    assert drawn.dims == ("chain", "draw", "row")
    assert tree["prior_predictive"]["wear"].sizes["row"] == 10
    ids = tree["observed_data"]["row"].to_numpy()
    np.testing.assert_allclose(tree["observed_data"]["wear"], WEAR[ids])
    page = post.report(tmp_path / "own.html").read_text()
    assert "does not say how outcomes are drawn" not in page


def test_zeros_and_ones_are_checked_for_calibration_where_chances_are_predicted():
    x = RNG.normal(size=500)
    rows = mo.Rows(x=x, y=RNG.random(500) < expit(x))

    def of(slope, **changed):
        settings = {
            "init": {"b": 0.0},
            "predict": lambda th, batch: jax.nn.sigmoid(th["b"] * batch["x"]),
            "simulate": lambda th, row, key: jax.random.bernoulli(
                key, jax.nn.sigmoid(th["b"] * row["x"])
            ),
        }
        own = mo.Model(lambda th: 0.0, lambda th, b: 0.0 * b["y"], **settings | changed)
        return made(own.resolved(rows), rows, {"b": np.full((1, 200), slope)})

    right = of(1.0).ppc()
    assert (right.kind, right.outside <= 0.3) == ("calibration", True)
    assert of(4.0).ppc().outside > 0.3
    assert of(1.0, predict=None).ppc().kind == "counts"


def test_outcomes_may_be_vectors():
    rows = mo.Rows(y=RNG.normal(size=(12, 2)))
    own = mo.Model(
        lambda th: 0.0,
        lambda th, b: -0.5 * jnp.sum((b["y"] - th["m"]) ** 2, axis=1),
        init={"m": np.zeros(2)},
        simulate=lambda th, row, key: th["m"] + jax.random.normal(key, (2,)),
    )
    own.check(rows)
    post = made(own.resolved(rows), rows, {"m": np.tile([0.0, 9.0], (1, 500, 1))})
    drawn = post.predictive(draws=500)
    assert drawn.shape == (500, 12, 2)
    np.testing.assert_allclose(drawn.mean(axis=(0, 1)), [0, 9], atol=4.5 / np.sqrt(6000))
    assert post.to_datatree()["posterior_predictive"]["y"].shape == (1, 500, 12, 2)
    refused(SettingError, r"has the shape \(2,\)", post.ppc)


def test_a_posterior_without_it_takes_a_model_that_has_it(tmp_path):
    posterior(simulate=None).save(tmp_path / "wear.npz")
    loaded = mo.Posterior.load(tmp_path / "wear.npz", model=model())
    assert loaded.predictive(ROWS, draws=20).shape == (20, N)


def test_what_cannot_be_drawn_is_said(post):
    refused(SettingError, "give it `simulate=`", posterior(simulate=None).predictive)
    # not `predict=`, which would not be enough
    refused(SettingError, "give it `simulate=`", posterior(simulate=None, predict=None).ppc)
    with pytest.raises(SettingError, match="give it `simulate_prior=`"):
        posterior(simulate_prior=None).predictive(prior=True)
    refused(SettingError, r"mo.Model\(outcome=...\)", posterior(outcome="y").ppc)
    unfit = {r"simulate must be a function": {"simulate": 3}, r"name of a field": {"outcome": 3}}
    for sentence, changed in unfit.items():
        refused(SettingError, sentence, model, **changed)
    tried = {
        r"asks for 'wear'.*is what is drawn": {"simulate": lambda th, row, key: row["wear"]},
        r"fails on a row .*function of \(theta, row, key\)": {"simulate": lambda th, batch: 0.0},
        r"of one row, with the shape \(\)": {"simulate": lambda th, r, key: th["level"]},
        r"fails on a JAX key": {"simulate_prior": lambda key: float(jax.random.normal(key))},
        r"names and shapes": {"simulate_prior": lambda key: {"level": jnp.zeros(2)}},
        r"'weer', which the rows do not hold": {"outcome": "weer"},
    }
    for sentence, changed in tried.items():
        refused(SettingError, sentence, model(**changed).check, ROWS)


def test_networks_draw_numbers_about_their_mean():
    rows = mo.Rows(x=RNG.normal(size=(8, 2)), y=RNG.normal(size=8))
    net = mo.models.MLP(hidden=(2,), likelihood="gaussian", noise_scale=0.3)
    theta = net.report(net.start(rows))
    draws = {name: np.tile(x, (1, 1000, *[1] * np.ndim(x))) for name, x in theta.items()}
    post = made(net.resolved(rows), rows, draws)
    drawn = post.predictive(draws=1000)
    np.testing.assert_allclose(drawn.mean(axis=0), post.predict(rows).mean, atol=4.5 * 0.01)
    np.testing.assert_allclose(drawn.std(axis=0), 0.3, rtol=4.5 * np.sqrt(0.5 / 1000))


# NumPyro -----------------------------------------------------------------------------------


def test_models_of_numpyro_draw_by_the_distribution_of_what_they_observe():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def line(x, seen, copy, log_seen=False):
        slope = numpyro.sample("slope", dist.Normal(1.0, 0.5))
        with numpyro.plate("rows", x.shape[0]) as ids:
            value = jnp.log(seen) if log_seen else seen[ids]
            numpyro.sample("number", dist.Laplace(slope * x + 0 * copy, 2.0), obs=value)

    x = np.array([0.0, 1.0, -1.0, 0.5])
    seen = np.array([2.0, 5.0, 1.0, 3.0])
    rows = mo.Rows(x=x, seen=seen, copy=seen)  # two equal fields
    of = mo.from_numpyro(line, rows)
    assert of.outcome_field == "seen"
    assert mo.from_numpyro(line, rows, log_seen=True).outcome_field == ""
    post = made(of.resolved(rows), rows, {"slope": np.full((1, 2000), 3.0)})
    drawn = post.predictive({"x": x, "copy": seen}, draws=2000)
    z = (drawn - 3 * x) / 2  # whose variance is 2, and whose fourth moment is 24
    assert np.abs(z.mean(axis=0)).max() < 4.5 * np.sqrt(2 / 2000)
    error = np.sqrt((24 - 4) / 2000)
    assert np.abs(z.var(axis=0) - 2).max() < 4.5 * error
    assert np.abs(z.var(axis=0) - 1).max() > 4.5 * error  # negative control: a normal's
    assert post.ppc().kind == "quantiles"
    prior = post.to_datatree()["prior"]["slope"].to_numpy()
    assert prior.mean() == pytest.approx(1.0, abs=4.5 * 0.5 / np.sqrt(prior.size))
    assert prior.std() == pytest.approx(0.5, rel=4.5 * np.sqrt(0.5 / prior.size))


def test_two_observed_sites_are_sampled_and_not_drawn():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def two(y, z):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("first", dist.Normal(m, 1.0), obs=y)
            numpyro.sample("second", dist.Normal(m, 1.0), obs=z)

    rows = mo.Rows(y=RNG.normal(size=5), z=RNG.normal(size=5))
    of = mo.from_numpyro(two, rows)
    of.check(rows)
    post = made(of.resolved(rows), rows, {"m": np.zeros((1, 10))})
    refused(SettingError, "observes 2 sites", post.predictive)
    refused(SettingError, "not known which field holds the outcomes", post.ppc)
