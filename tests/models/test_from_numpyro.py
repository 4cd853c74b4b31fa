"""NumPyro models in Modicum: the same log-densities and posterior, and what is refused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from helpers.targets import disagreements, quick
from modicum.models import Target

numpyro = pytest.importorskip("numpyro")
dist = numpyro.distributions
RNG = np.random.default_rng(5)
X = RNG.normal(size=(1_500, 2))
COUNTS = RNG.negative_binomial(3, 3 / (3 + np.exp(0.5 + X @ [0.4, -0.3])))


def hmcecs_example(data, obs, subsample_size):
    """The model of NumPyro's page on HMCECS."""
    n, m = data.shape
    theta = numpyro.sample("theta", dist.Normal(jnp.zeros(m), 0.5 * jnp.ones(m)))
    with numpyro.plate("N", n, subsample_size=subsample_size):
        batch_feats = numpyro.subsample(data, event_dim=1)
        batch_obs = numpyro.subsample(obs, event_dim=0)
        numpyro.sample("obs", dist.Bernoulli(logits=theta @ batch_feats.T), obs=batch_obs)


def counts(x, y=None, subsample_size=None, outcome=dist.NegativeBinomial2):
    """Counts, by default negative binomial, that index rows by the plate's indices."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.0))
    with numpyro.plate("columns", x.shape[1]):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.5))
    numpyro.deterministic("overdispersion", 1 / concentration)
    with numpyro.plate("rows", x.shape[0], subsample_size=subsample_size) as ids:
        mean = jnp.exp(alpha + x[ids] @ beta)
        numpyro.deterministic("mean", mean)
        seen = None if y is None else y[ids]
        numpyro.sample("y", outcome(mean, concentration), obs=seen)


def every_support(y):
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    w = numpyro.sample("w", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    normals = dist.Normal(jnp.zeros(3), 1.0).to_event(1)
    in_order = dist.TransformedDistribution(normals, dist.transforms.OrderedTransform())
    cut = numpyro.sample("cut", in_order)
    L = numpyro.sample("L", dist.LKJCholesky(3, 2.0))
    u = numpyro.sample("u", dist.Uniform(-1.0, 2.0))
    t = numpyro.sample("t", dist.TruncatedNormal(0.0, 1.0, low=0.5))
    above = numpyro.sample("above", dist.TruncatedNormal(0.0, 1.0, low=jnp.array([0.5, 1.0])))
    centre = p + u + t + cut[1] + L[2, 0] + above + w[0]
    with numpyro.handlers.scale(scale=0.5), numpyro.plate("rows", y.shape[0]):
        numpyro.sample("obs", dist.Normal(centre, 1.0).to_event(1), obs=y)


def quotient(y):
    """Where the parameters are 0, as at the first starting point, the ratio is undefined."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.deterministic("ratio", a[0] / a[1])
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("obs", dist.Normal(a[0], 1.0), obs=y)


def test_an_undefined_site_is_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mo.from_numpyro(quotient, mo.Rows(y=X[:, 0]))


def density_of_numpyro(model, theta, **arguments):
    from numpyro.infer.util import log_density

    return log_density(model, (), arguments, theta)[0]


@cases(
    "model fields subsample",
    (hmcecs_example, {"data": X, "obs": X[:, 0] > 0}, True),
    (counts, {"x": X, "y": COUNTS}, True),
    (every_support, {"y": X}, False),
)
def test_log_densities_match_numpyro(model, fields, subsample, x64):
    rows = mo.Rows(**fields)
    ours = mo.from_numpyro(model, rows, **({"subsample_size": 100} if subsample else {}))
    target, _ = Target.of(ours, rows)
    layout, some_ids = target.model.layout, np.array([7, 7, 1_499])

    @jax.jit
    def evaluate(t, batch, some):
        theta = {name: target.report(t)[name] for name in layout.names}
        stretched = layout.log_jacobian(target.unravel(t)) if layout.bounded else 0.0
        arguments = {k: jnp.asarray(v) for k, v in fields.items()}
        arguments |= {"subsample_size": None} if subsample else {}
        theirs = density_of_numpyro(model, theta, **arguments)
        likelihood = target.log_likelihood(t, batch)
        back = jnp.concatenate([jnp.ravel(x) for x in target.model.restore(theta).values()])
        ours = target.log_prior(t) - stretched + likelihood.sum()
        return ours, theirs, likelihood, target.log_likelihood(t, some), back

    t = np.random.default_rng(1).normal(size=target.size)
    found = evaluate(t, rows.slice(0, len(rows)), rows.take(some_ids))
    density, theirs, likelihood, some, back = map(np.asarray, found)
    assert likelihood.shape == (len(rows),)
    assert density == pytest.approx(theirs, rel=1e-12)
    np.testing.assert_allclose(some, likelihood[some_ids], rtol=1e-10)  # the same in any batch
    np.testing.assert_allclose(back, t, rtol=1e-6, atol=1e-6)


def test_names_and_predictions():
    def poisson(mean, concentration):  # whose density compiles in a fifth of the time
        del concentration
        return dist.Poisson(mean)

    rows = mo.Rows(x=X, y=COUNTS)
    model = mo.from_numpyro(counts, rows, subsample_size=100, outcome=poisson)
    post = quick(model, rows, starts=1)
    assert set(post.draws) == {"alpha", "beta", "concentration", "overdispersion"}
    np.testing.assert_allclose(post["overdispersion"], 1 / post["concentration"])
    mean = post.predict({"x": X[:3]}, draws=80).mean
    eta = post["alpha"][..., None] + post["beta"] @ X[:3].T
    np.testing.assert_allclose(mean, np.exp(eta).mean(axis=(0, 1)), rtol=1e-6)
    assert np.isfinite(post.score({"x": X[:9], "y": COUNTS[:9]}).log_density)


@pytest.mark.slow
def test_posterior_is_that_of_numpyros_nuts():
    from numpyro.infer import MCMC, NUTS

    rows = mo.Rows(x=X, y=COUNTS)
    model = mo.from_numpyro(counts, rows, subsample_size=100)
    post = mo.sample(
        model, rows, method="hmc-ecs", draws=700, tune=400, random_seed=1, progressbar=False
    )
    assert post.warnings == []
    with jax.enable_x64(True):
        chains = MCMC(NUTS(counts), num_warmup=400, num_samples=700, num_chains=4,
                      chain_method="vectorized", progress_bar=False)  # fmt: skip
        chains.run(jax.random.key(2), jnp.asarray(X), jnp.asarray(COUNTS))
        theirs = {k: np.asarray(v) for k, v in chains.get_samples(group_by_chain=True).items()}
    names = ("alpha", "beta", "concentration", "overdispersion")

    def side_by_side(draws):
        return np.concatenate([draws[n].reshape(*draws[n].shape[:2], -1) for n in names], axis=-1)

    ours, known = side_by_side(post.draws), side_by_side(theirs)
    assert disagreements(ours, known) == []
    assert "mean" in disagreements(ours + 0.4 * known.std(axis=(0, 1)), known)


def local(y):
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("obs", dist.Normal(z, 1.0), obs=y)


def no_plate(y):
    numpyro.sample("obs", dist.Normal(numpyro.sample("a", dist.Normal()), 1.0), obs=y)


def two_plates(y):
    a = numpyro.sample("a", dist.Normal())
    for name in ("one", "two"):
        with numpyro.plate(name, y.shape[0]):
            numpyro.sample(f"obs_{name}", dist.Normal(a, 1.0), obs=y)


def normal(*numbers):
    return numpyro.sample("a", dist.Normal(*numbers))


def observed(centre, outcome=lambda y: y):
    """Return a model whose rows are normal about `centre(y)`."""

    def model(y):
        mean = centre(y)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("obs", dist.Normal(mean, 1.0), obs=outcome(y))

    return model


def penalised(y):
    a = normal()
    numpyro.factor("penalty", -(a**2))
    return a


def within_another(y):
    return numpyro.sample("b", dist.Uniform(0.0, numpyro.sample("a", dist.Exponential(1.0))))


@cases(
    "model word",
    (local, "the latent site 'z', one value per row"),
    (no_plate, "no plate over the rows .it has none"),
    (two_plates, "2 plates over the rows"),
    (observed(penalised), "the factor site 'penalty' lies outside"),
    (observed(lambda y: normal(y.mean(), 1.0)), "the prior changes with the rows"),
    (observed(lambda y: numpyro.sample("k", dist.Bernoulli(0.5))), "'k' is discrete"),
    (observed(within_another), "the support of 'b' depends"),
    (observed(lambda y: numpyro.param("a", 1.0)), "numpyro.param, which has no prior"),
    (observed(lambda y: normal() * jnp.asarray(X[:, 0])), "nothing may be as long as all"),
    ("model", "a function"),
    (hmcecs_example, "which is not an argument of the model"),
)
def test_refusals(model, word):
    rows = mo.Rows(y=X[:, 0])
    refused(mo.SettingError, word, mo.from_numpyro, model, rows)


def test_refusals_of_arguments():
    rows = mo.Rows(data=X, obs=X[:, 0] > 0)
    refused(mo.SettingError, "takes 'subsample_size'", mo.from_numpyro, hmcecs_example, rows)
    with pytest.raises(mo.SettingError, match="give one"):
        mo.from_numpyro(hmcecs_example, rows, data=X, subsample_size=None)
    refused(mo.SettingError, r"must be mo\.Rows", mo.from_numpyro, hmcecs_example, X)


def test_a_plate_as_long_as_all_rows():
    def model(y, n):
        a = numpyro.sample("a", dist.Normal())
        with numpyro.plate("rows", n, subsample_size=10):
            numpyro.sample("obs", dist.Normal(a, 1.0), obs=numpyro.subsample(y, event_dim=0))

    rows = mo.Rows(y=X[:, 0])
    ours = mo.from_numpyro(model, rows, n=len(rows))
    batch = {"y": jnp.zeros(3)}
    np.testing.assert_allclose(
        ours.log_likelihood({"a": jnp.zeros(())}, batch), -0.5 * np.log(2 * np.pi), rtol=1e-5
    )
