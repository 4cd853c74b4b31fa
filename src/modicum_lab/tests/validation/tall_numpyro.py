"""The ten tall models as NumPyro models, and NumPyro's NUTS for them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import NUTS

from helpers.compiling import optimised

WARMUP = 200  # iterations of NumPyro's chain on all rows
SUBSET = 2_000  # rows from which it learns its start and mass matrix


def _normal_vector(name, size):
    return numpyro.sample(name, dist.Normal(jnp.zeros(size), 2.0).to_event(1))


def _in_order(name, size):
    free = dist.Normal(jnp.zeros(size), 2.0).to_event(1)
    ordered = dist.TransformedDistribution(free, dist.transforms.OrderedTransform())
    return numpyro.sample(name, ordered)


def negative_binomial(x, y):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.0))
    beta = _normal_vector("beta", x.shape[1])
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.5))
    with numpyro.plate("rows", x.shape[0]):
        mean = jnp.exp(alpha + x @ beta)
        numpyro.sample("y", dist.NegativeBinomial2(mean, concentration), obs=y)


def ordinal(x, y):
    beta = _normal_vector("beta", x.shape[1])
    cut = _in_order("cut", 3)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x @ beta, cut), obs=y)


def heteroscedastic(x, y):
    level, slope, spread, growth = (
        numpyro.sample(name, dist.Normal(0.0, 5.0))
        for name in ("level", "slope", "spread", "growth")
    )
    with numpyro.plate("rows", x.shape[0]):
        sd = jnp.exp(spread + growth * x)
        numpyro.sample("y", dist.Normal(level + slope * x, sd), obs=y)


def student_t(x, y):
    level, slope = (numpyro.sample(name, dist.Normal(0.0, 5.0)) for name in ("level", "slope"))
    scale = numpyro.sample("scale", dist.Exponential(1.0))
    df = numpyro.sample("df", dist.Gamma(2.0, 0.1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(df, level + slope * x, scale), obs=y)


def mixture(y):
    mean = _in_order("mean", 2)
    sd = numpyro.sample("sd", dist.Exponential(1.0))
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        which = dist.Categorical(probs=jnp.stack([share, 1 - share]))
        numpyro.sample("y", dist.MixtureSameFamily(which, dist.Normal(mean, sd)), obs=y)


def weibull(x, y, event):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.0))
    beta = _normal_vector("beta", x.shape[1])
    shape = numpyro.sample("shape", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        z = jnp.log(y) - alpha - x @ beta
        hazard = jnp.log(shape) + shape * z - jnp.log(y)  # log hazard
        numpyro.factor("lifetimes", jnp.where(event, hazard, 0.0) - jnp.exp(shape * z))


def quantile(x, y):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.0))
    beta = _normal_vector("beta", x.shape[1])
    scale = numpyro.sample("scale", dist.Exponential(1.0))
    with numpyro.plate("rows", x.shape[0]):
        at = alpha + x @ beta
        numpyro.sample("y", dist.AsymmetricLaplaceQuantile(at, scale, 0.8), obs=y)


def zero_inflated(x, y):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.0))
    beta = _normal_vector("beta", x.shape[1])
    gate = numpyro.sample("gate", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        rate = jnp.exp(alpha + x @ beta)
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate), obs=y)


def horseshoe(x, y):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(0.1))
    width = numpyro.sample("width", dist.HalfCauchy(jnp.ones(x.shape[1])).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0.0, tau * width).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha + x @ beta), obs=y)


def curve(time, y):
    top = numpyro.sample("top", dist.LogNormal(0.0, 1.0))
    middle = numpyro.sample("middle", dist.Normal(0.0, 7.0))
    pace, noise = (numpyro.sample(name, dist.Exponential(1.0)) for name in ("pace", "noise"))
    with numpyro.plate("rows", y.shape[0]):
        growth = top * jax.nn.sigmoid((time - middle) / pace)
        numpyro.sample("y", dist.Normal(growth, noise), obs=y)


TALL_NUMPYRO = {
    "negative binomial": negative_binomial,
    "ordinal": ordinal,
    "heteroscedastic": heteroscedastic,
    "Student-t with df": student_t,
    "mixture": mixture,
    "Weibull, censored": weibull,
    "quantile": quantile,
    "zero-inflated": zero_inflated,
    "horseshoe logistic": horseshoe,
    "nonlinear curve": curve,
}


def nuts_of_numpyro(model, fields, draws=500, seed=1):
    """Run a chain of NumPyro's NUTS; return draws by site, (1, draw, ...), and gradients per draw.

    Its start and mass matrix come from a chain on a few rows.
    """
    n = len(fields["y"])
    few = {name: values[:SUBSET] for name, values in fields.items()}
    first, _, _ = _run(NUTS(model, dense_mass=True), few, 400, 1, seed)
    share = SUBSET / n
    mass = {k: share * m for k, m in first.adapt_state.inverse_mass_matrix.items()}
    # The default regularisation would swamp variances of 1e-5.
    learned = {"inverse_mass_matrix": mass, "regularize_mass_matrix": False}
    kernel = NUTS(model, dense_mass=True, **learned)
    _, kept, steps = _run(kernel, fields, WARMUP, draws, seed, first.z)
    return {name: np.asarray(values)[None] for name, values in kept.items()}, float(steps.mean())


def _run(kernel, fields, warmup, draws, seed, start=None):
    fields = {name: jnp.asarray(values) for name, values in fields.items()}
    state = kernel.init(jax.random.key(seed), warmup, start, model_args=(), model_kwargs=fields)

    @optimised
    def run(state, fields):
        def step(state, _):
            state = kernel.sample(state, (), fields)
            kept = kernel.postprocess_fn((), fields)(state.z)
            return state, (kept, state.num_steps)

        state, _ = jax.lax.scan(step, state, None, warmup)
        return state, *jax.lax.scan(step, state, None, draws)[1]

    return run(state, fields)
