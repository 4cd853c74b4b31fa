"""NUTS on all rows agrees with NumPyro's NUTS, family by family."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.targets import (
    all_of,
    class_rows,
    disagreements,
    flat_draws,
    gaussian_rows,
    logistic_rows,
    poisson_rows,
)

M = mo.models
RUN = {"draws": 2_000, "tune": 500, "chains": 2, "random_seed": 11, "progressbar": False}


def numpyro_draws(model, names, seed=3, draws=2_000):
    """Sample the same posterior with NumPyro."""
    import numpyro
    from numpyro.infer import MCMC, NUTS

    sampler = MCMC(
        NUTS(model), num_warmup=500, num_samples=draws, num_chains=2,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    with numpyro.validation_enabled(False):
        sampler.run(jax.random.key(seed))
    found = sampler.get_samples(group_by_chain=True)
    parts = [np.asarray(found[name], float) for name in names]
    return np.concatenate([a.reshape(*a.shape[:2], -1) for a in parts], axis=2)


def linear_in_numpyro(rows, outcome, scales=(), classes=0):
    """Normal priors on beta and the intercept, like the families' defaults."""
    import numpyro
    import numpyro.distributions as dist

    batch = {name: jnp.asarray(values) for name, values in all_of(rows).items()}
    columns = batch["x"].shape[1]

    def model():
        extra = (classes - 1,) if classes else ()
        beta = numpyro.sample("beta", dist.Normal(0, 2.5).expand((*extra, columns)))
        intercept = numpyro.sample("intercept", dist.Normal(0, 10.0).expand(extra))
        named = [numpyro.sample(name, dist.LogNormal(0, 2.5)) for name in scales]
        eta = batch["x"] @ beta.T + intercept + batch.get("offset", 0.0)
        y = batch["y"].astype(int) if classes else batch["y"]
        numpyro.sample("y", outcome(dist, eta, *named), obs=y)

    return model


RAW = {"prior_scale": 2.5, "intercept_scale": 10.0}  # as written out for NumPyro above
ONES = {"scale_prior": 2.5}  # of the scale, as written out for NumPyro above
FAMILIES = {  # model, rows, distribution of the outcome in NumPyro, names of scales
    "logistic": (M.Logistic(**RAW), logistic_rows(), lambda d, e: d.BernoulliLogits(e)),
    "poisson": (M.Poisson(**RAW), poisson_rows(), lambda d, e: d.Poisson(jnp.exp(e))),
    "gaussian": (
        M.Gaussian(**RAW, **ONES), gaussian_rows(60), lambda d, e, s: d.Normal(e, s), "scale"),
    "student": (
        M.StudentT(**RAW, **ONES, df=3.0), gaussian_rows(60),
        lambda d, e, s: d.StudentT(3.0, e, s), "scale"),
    "softmax": (M.Softmax(**RAW), class_rows(), lambda d, e: d.Categorical(
        logits=jnp.concatenate([e, jnp.zeros((len(e), 1))], axis=1))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_nuts_agrees_with_numpyro(family, x64):
    model, rows, outcome, *scales = FAMILIES[family]
    posterior = mo.sample(model, rows, method="nuts", **RUN)
    names = ["beta", "intercept", *scales]
    assert list(posterior.draws) == names
    classes = 3 if family == "softmax" else 0
    theirs = numpyro_draws(linear_in_numpyro(rows, outcome, scales, classes), names)
    ours, sd = flat_draws(posterior), theirs.std(axis=(0, 1))
    assert disagreements(ours, theirs) == []
    assert disagreements(ours + 0.2 * sd, theirs) != []  # the comparison has teeth
