"""Models of NumPyro's documentation, by NumPyro's HMCECS and through `mo.from_numpyro`, in one run.

The logistic regression is that of NumPyro's page on HMCECS; the negative binomial is its analogue
for counts. Both libraries sample the same functions. HMCECS has the settings of its page: a Taylor
proxy about a given point (here the posterior mean of Modicum's run, better than the page's), ten
blocks, and the page's subsample. Seconds are those of sampling, without compilation.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import modicum as mo
from modicum.diagnostics import ess
from modicum_lab.bench.tables import Table

SUBSAMPLE, BLOCKS, TUNE = 1_300, 10, 300
Draws = dict[str, np.ndarray]  # of every site, (chain, draw, *shape)


class Outcome(NamedTuple):
    """Draws, and the seconds that they took."""

    draws: Draws
    seconds: float
    method: str

    @property
    def effective(self) -> float:
        """Effective draws of the worst scalar."""
        return min(float(np.min(ess(values))) for values in self.draws.values())


def logistic(data: Any, obs: Any, subsample_size: int) -> None:
    """The model of NumPyro's page on HMCECS."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    n, m = data.shape
    theta = numpyro.sample("theta", dist.Normal(jnp.zeros(m), 0.5 * jnp.ones(m)))
    with numpyro.plate("N", n, subsample_size=subsample_size):
        batch_feats = numpyro.subsample(data, event_dim=1)
        batch_obs = numpyro.subsample(obs, event_dim=0)
        numpyro.sample("obs", dist.Bernoulli(logits=theta @ batch_feats.T), obs=batch_obs)


def negative_binomial(data: Any, obs: Any, subsample_size: int) -> None:
    """The analogous model for counts, with a concentration."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    n, m = data.shape
    theta = numpyro.sample("theta", dist.Normal(jnp.zeros(m), 0.5 * jnp.ones(m)))
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.5))
    with numpyro.plate("N", n, subsample_size=subsample_size):
        batch_feats = numpyro.subsample(data, event_dim=1)
        batch_obs = numpyro.subsample(obs, event_dim=0)
        mean = jnp.exp(theta @ batch_feats.T)
        numpyro.sample("obs", dist.NegativeBinomial2(mean, concentration), obs=batch_obs)


MODELS: dict[str, Callable[..., None]] = {
    "logistic": logistic,
    "negative binomial": negative_binomial,
}


def simulated(name: str, rows: int, columns: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate columns, the first of ones, and outcomes of the model."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns))
    x[:, 0] = 1
    eta = x @ (0.5 / np.sqrt(columns) * rng.standard_normal(columns))
    if name == "logistic":
        return x, (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(np.int64)
    return x, rng.poisson(np.exp(eta) * rng.gamma(3, 1 / 3, rows))


def by_modicum(name: str, x: np.ndarray, y: np.ndarray, draws: int, method: str) -> Outcome:
    """Sample the NumPyro model by a method of Modicum; the seconds exclude compilation."""
    rows = mo.Rows(data=x, obs=y)
    model = mo.from_numpyro(MODELS[name], rows, subsample_size=SUBSAMPLE)
    settings: dict[str, Any] = {} if method == "auto" else {"tune": TUNE}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)
        for _ in range(2):
            started = time.perf_counter()
            post = mo.sample(
                model, rows, method=method, draws=draws, chains=1, random_seed=1,
                progressbar=False, **settings,
            )  # fmt: skip
            seconds = time.perf_counter() - started
            chosen = str(post.settings["method"])
            if chosen != "laplace":  # Laplace draws without a chain, so its whole run is timed
                seconds = float(post.settings["sampling_seconds"])
                break
    return Outcome(post.draws, seconds, chosen)


def by_numpyro(name: str, x: np.ndarray, y: np.ndarray, draws: int, point: Draws) -> Outcome:
    """Sample one chain of HMCECS about `point`, by the kernel's `init` and `sample`.

    `MCMC.run` initialises the kernel on every call, and HMCECS can be initialised only once, so
    that compiled code could not be run a second time for timing.
    """
    import jax
    from numpyro.infer import HMCECS, NUTS

    reference = {site: values.mean(axis=(0, 1)) for site, values in point.items()}
    proxy = HMCECS.taylor_proxy(reference, degree=2)
    kernel = HMCECS(NUTS(MODELS[name]), num_blocks=BLOCKS, proxy=proxy)
    data = x, y, SUBSAMPLE

    def step(state: Any, _: None) -> tuple[Any, Any]:
        after = kernel.sample(state, data, {})
        return after, {site: after.z[site] for site in reference}

    with jax.enable_x64(True):
        state = kernel.init(jax.random.PRNGKey(1), TUNE, None, data, {})
        state, _ = jax.jit(lambda s: jax.lax.scan(step, s, None, TUNE))(state)
        chain = jax.jit(lambda s: jax.lax.scan(step, s, None, draws)).lower(state).compile()
        started = time.perf_counter()
        _, free = jax.block_until_ready(chain(state))
        seconds = time.perf_counter() - started
        named = jax.vmap(kernel.postprocess_fn(data, {}))(free)
    return Outcome({site: np.asarray(named[site])[None] for site in reference}, seconds, "HMCECS")


def run(quick: bool = False) -> list[Table]:
    """Compare effective draws per second of one chain, for both models and libraries."""
    table = Table(
        "Models of NumPyro's documentation: effective draws per second of one chain",
        ["model", "rows", "parameters", "HMC-ECS through mo.from_numpyro", "by default", "taken",
         "NumPyro's HMCECS", "HMC-ECS over HMCECS"],
    )  # fmt: skip
    n, columns, draws = (5_000, 3, 100) if quick else (100_000, 10, 1_000)
    for name in MODELS:
        x, y = simulated(name, n, columns)
        ours, default = (by_modicum(name, x, y, draws, m) for m in ("hmc-ecs", "auto"))
        theirs = by_numpyro(name, x, y, draws, ours.draws)
        speeds = [result.effective / result.seconds for result in (ours, default, theirs)]
        size = sum(int(np.prod(v.shape[2:])) for v in ours.draws.values())
        table.rows.append([name, n, size, *speeds[:2], default.method, speeds[2],
                           speeds[0] / speeds[2]])  # fmt: skip
    return [table]


if __name__ == "__main__":
    for result in run():
        print(result.markdown())
