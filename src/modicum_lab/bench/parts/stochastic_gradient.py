"""SGLD and SGHMC beside BlackJAX's: steps a second on the same model, rows and batch.

One chain in float64, a fresh batch for every gradient, every position kept. BlackJAX leaves the
loop to its user: it gets a compiled scan with the batch drawn inside. Its SGHMC is its diffusion
with the momentum carried along; its ready-made sampler, which makes ten steps with one batch and so
reads a tenth of the rows, is shown beside it. Modicum's time is that of its sampling loop, records
and chunks included.
"""

import time
import warnings
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

from modicum_lab.bench.tables import Table, verdict

COLUMNS, BATCH, INNER = 28, 100, 10
STEP = 1e-6


def data(n):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, COLUMNS))
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ (0.3 * rng.standard_normal(COLUMNS))))) * 1.0
    return x, y


def ours(x, y, method, steps):
    """Seconds of `steps` steps."""
    import modicum as mo

    rows, model = mo.Rows(x=x, y=y), mo.models.Logistic(prior_scale=2.5, intercept=False)

    def run():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mo.ModicumWarning)  # it is too short to converge
            post = mo.sample(
                model, rows, method=method, draws=steps, tune=200,
                chains=1, random_seed=1, progressbar=False,
            )  # fmt: skip
        return post.settings["sampling_seconds"]

    return run


def blackjaxs(x, y, name, steps):
    """The same by BlackJAX, compiled."""
    import blackjax

    n = len(x)

    def log_prior(t):
        return -0.5 * jnp.sum((t / 2.5) ** 2)

    def log_likelihood(t, row):
        eta = row[0] @ t
        return row[1] * eta - jnp.logaddexp(0.0, eta)

    gradient = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, n)
    step, start, calls = _stepper(blackjax, name, gradient, steps)

    @jax.jit
    def scan(key, x, y):
        def one(state, key):
            rows_key, step_key = jax.random.split(key)
            some = jax.random.randint(rows_key, (BATCH,), 0, n)
            state = step(step_key, state, (x[some], y[some]))
            return state, state[0]

        return jax.lax.scan(one, start(), jax.random.split(key, calls))[1]

    def run():
        with jax.enable_x64(True):
            given = jax.random.key(1), jnp.asarray(x), jnp.asarray(y)
            started = time.perf_counter()
            jax.block_until_ready(scan(*given))
            return time.perf_counter() - started

    return run


def _stepper(blackjax, name, gradient, steps):
    """One call of BlackJAX's, the state it starts from, and how many calls make `steps` steps."""

    def zeros():
        return (jnp.zeros(COLUMNS),)

    if name == "sgld":
        sampler = blackjax.sgld(gradient)
        return (lambda key, s, batch: (sampler.step(key, s[0], batch, STEP),)), zeros, steps
    if name == "sghmc, ten steps a batch":
        sampler = blackjax.sghmc(gradient, num_integration_steps=INNER)
        return (
            (lambda key, s, batch: (sampler.step(key, s[0], batch, STEP),)),
            zeros,
            steps // INNER,
        )
    diffusion = blackjax.sgmcmc.diffusions.sghmc(alpha=2.0)

    def step(key, state, batch):
        return diffusion(key, *state, gradient(state[0], batch), STEP)

    return step, lambda: 2 * zeros(), steps


def run(quick=False):
    import modicum as mo

    n, steps = (10_000, 2_000) if quick else (100_000, 10_000)
    x, y = data(n)
    settings = {"step_size": STEP, "batch": BATCH, "whiten": False, "start": "zero"}
    methods = {"sgld": mo.SGLD(**settings), "sghmc": mo.SGHMC(**settings)}
    table = Table(
        f"Steps a second, logistic, {n:,} x {COLUMNS}, batch {BATCH}",
        ["method", "Modicum", "BlackJAX", "ratio", "at least", "kept"],
    )
    for name, method in methods.items():
        timed = {"Modicum": ours(x, y, method, steps), name: blackjaxs(x, y, name, steps)}
        if name == "sghmc":
            other = "sghmc, ten steps a batch"
            timed[other] = blackjaxs(x, y, other, steps)
        for function in timed.values():
            function()  # compile
        times = {who: [] for who in timed}
        for _ in range(3 if quick else 5):
            for who, function in timed.items():  # in turns
                times[who].append(function())
        rate = {who: steps / median(seconds) for who, seconds in times.items()}
        for who in list(rate)[1:]:
            ratio = rate["Modicum"] / rate[who]
            judged = (1.0, verdict(1.0, ratio)) if who == name else ("", "")
            table.rows.append([who, rate["Modicum"], rate[who], ratio, *judged])
    return [table]
