"""Energy-conserving subsampling: distributions of subsample and chain, and what breaks them."""

from dataclasses import dataclass
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import poisson

import modicum as mo
from helpers import toy
from helpers.slow import slowly
from helpers.targets import TIMES, probabilities
from modicum.kernels.all_rows import DelayedAcceptanceKernel
from modicum.kernels.designs import Uniform, UniformTables, Weighted, weight_tables
from modicum.kernels.energy_conserving import EnergyConservingContext, EnergyConservingKernel
from modicum.kernels.likelihood_estimates import EMPTY, BlockPoisson, Perturbed
from modicum.kernels.moves import AdaptationFlags, HMCMove
from modicum.kernels.protocols import Proxy
from modicum.kernels.whitening import Whitening
from modicum.methods.ecs import hmc_ecs
from modicum.methods.ecs.subsample import refresh_acceptance

SLOW = pytest.mark.slow

# A subsample on its own: residuals are given numbers ----------------------------------------


@dataclass(frozen=True)
class Given:
    """Residuals read from the rows, times 1 + slope z; the proxy is standard normal."""

    slope: float = 0.0

    def cache(self, batch, proxy):
        return {"d": batch["d"] / batch["probability"]}

    def values(self, cached, z, proxy):
        return cached["d"] * (1 + self.slope * z[0])

    def log_proxy(self, z, proxy):
        return -0.5 * z @ z


QUIET = AdaptationFlags(*(jnp.asarray(False) for _ in AdaptationFlags._fields))


def kernel_of(m, blocks, refreshes, design=Uniform(), slope=0.0, **kwargs):  # noqa: B008
    parts = (Given(slope), Perturbed(), design, HMCMove(), m, blocks, refreshes)
    return EnergyConservingKernel(*parts, **kwargs)


def read(kernel, drawn, d, context):
    return kernel.prepare({"d": d[drawn.row_ids], "probability": drawn.probability}, context)


@partial(jax.jit, static_argnums=0)
def begin(kernel, key, d, context):
    start, init = jax.random.split(key)
    batch = read(kernel, kernel.initial_row_request(start, context), d, context)
    return kernel.init(init, batch, context)


def context_of(n, design=Uniform(), weights=None):  # noqa: B008
    tables = UniformTables(n) if design == Uniform() else weight_tables(weights)
    return EnergyConservingContext(
        proxy=Proxy(Whitening(np.zeros(1), np.eye(1)), np.zeros(1), -np.eye(1)),
        design=jax.tree.map(np.asarray, tables),
        estimator=np.asarray(0.2),
        constant=np.asarray(7.0),
    )


@partial(jax.jit, static_argnums=(0, 3))
def refresh_often(kernel, key, d, count, context, z, careless=False):
    """Run refreshes at a fixed z; return acceptances and the subsample's values.

    Refreshes that are `careless` ignore the pseudo-marginal ratio, which is a mistake.
    """
    start, go = jax.random.split(key)
    state = begin(kernel, start, d, context)

    def holding(subsample, owners):
        values = kernel.control_variate.values(subsample, z, None)
        log = kernel.estimator.combine(values, owners != EMPTY, context.estimator).log
        return state._replace(z=z, subsample=subsample, owners=owners, values=values, log=log)

    def one(state, key):
        rows_key, step_key = jax.random.split(key)
        batch = read(kernel, kernel.row_request(rows_key, context), d, context)
        chances = kernel.chances(step_key, context)
        log_uniform = jnp.where(careless, -jnp.inf, chances.refresh.log_uniform)
        chosen = chances.refresh._replace(log_uniform=log_uniform)
        subsample, owners, rate = kernel.refresh(chosen, state, batch, context)
        state = holding(subsample, owners)
        return state, (rate, state.values, owners != EMPTY)

    first = holding(state.subsample, state.owners)
    return jax.lax.scan(one, first, jax.random.split(go, count))[1]


@pytest.mark.parametrize(("variance", "refreshes"), [(1.0, 1), (4.0, 1), (4.0, 5)])
@SLOW
def test_refreshes_are_accepted_as_often_as_theory_says(variance, refreshes, x64):
    m, blocks, n = 400, 20, 4000
    d = np.random.default_rng(1).normal(size=n)
    d = jnp.asarray((d - d.mean()) / d.std() * np.sqrt(variance * m) / n)
    kernel = kernel_of(m, blocks, refreshes)
    keys = jax.random.split(jax.random.key(2), 32)
    run = jax.vmap(lambda key: refresh_often(kernel, key, d, 400, context_of(n), jnp.zeros(1))[0])
    accepted = np.asarray(run(keys))[:, 100:]
    error = accepted.mean(1).std() / np.sqrt(len(keys))
    # the variance estimate adds a term of order sigma^4 / m to the theory
    assert abs(accepted.mean() - refresh_acceptance(variance, blocks)) < TIMES * error + 0.005


WEIGHTS = np.array([1.0, 3.0, 2.0])


def check_law(kernel, d, context, z, outcome, right):
    """Compare how often each outcome occurs with its probability; careless refreshes must fail."""
    keys = jax.random.split(jax.random.key(3), 32)
    for careless in (False, True):
        run = jax.vmap(lambda key: refresh_often(kernel, key, d, 1500, context, z, careless))  # noqa: B023
        found = outcome(run(keys))[:, 200:]
        each = (found[..., None] == np.arange(len(right))).mean(1)
        off = np.abs(each.mean(0) - right) / (each.std(0) / np.sqrt(len(each)))
        assert off.max() > 2 * TIMES if careless else off.max() < TIMES


@pytest.mark.parametrize("design", [*slowly(Uniform()), Weighted()])
def test_the_subsample_has_its_conditional_law_exactly(design, x64):
    # three rows, two positions: nine subsamples with known probabilities given z
    d, z = jnp.asarray([0.4, -0.3, 0.9]), jnp.asarray([0.5])
    context = context_of(3, design, WEIGHTS)
    w = probabilities(weight_tables(WEIGHTS), 3) if design == Weighted() else np.full(3, 1 / 3)
    D = np.asarray(d) / w * 1.5
    pairs = np.array(list(product(range(3), repeat=2)))
    pair = D[pairs]
    right = w[pairs].prod(1) * np.exp(pair.mean(1) - pair.var(1, ddof=1) / 4)
    right /= right.sum()

    kernel = kernel_of(2, 2, 2, design, slope=1.0)

    def which(run):
        return np.abs(np.asarray(run[1])[..., None] - D).argmin(-1) @ [3, 1]

    check_law(kernel, d, context, z, which, right)


def test_block_poisson_subsamples_have_their_conditional_law_exactly(x64):
    # One row per factor, a few factors per block: the distribution of their number and mean.
    d, z = jnp.asarray([0.9, -0.6, 0.3]), jnp.asarray([0.5])
    context = context_of(3)
    estimator = BlockPoisson(products=2, batch=1, blocks=2)
    kernel = EnergyConservingKernel(
        Given(1.0), estimator, Uniform(), HMCMove(), estimator.rows, 2, 2
    )
    f = 1 + (np.asarray(d) * 3 * 1.5 - 0.2) / 2
    assert (f < 0).any()  # signs change along the chain
    # |Lhat| weights: each of N ~ Poisson(2) factors brings |f|, so N ~ Poisson(2 E|f|)
    right = poisson.pmf(np.arange(6), 2 * np.abs(f).mean())

    def number(run):
        return np.asarray(run[2]).sum(-1)

    check_law(kernel, d, context, z, number, right)


def test_parameters_and_subsample_together_have_their_joint_law(x64):
    # The same nine subsamples with a parameter: integrate the mixture for the marginal of z.
    d = jnp.asarray([0.5, -0.4, 0.3])
    context, kernel = context_of(3), kernel_of(2, 2, 2, slope=1.0)

    @jax.jit
    def chain(key):
        def one(state, key):
            rows_key, step_key = jax.random.split(key)
            batch = read(kernel, kernel.row_request(rows_key, context), d, context)
            return kernel.step(kernel.chances(step_key, context), state, QUIET, batch, context)

        start, go = jax.random.split(key)
        return jax.lax.scan(one, begin(kernel, start, d, context), jax.random.split(go, 2000))[1]

    drawn = jax.vmap(chain)(jax.random.split(jax.random.key(4), 32))
    z = np.asarray(drawn["position"])[:, 200:, 0]
    grid = np.linspace(-8, 8, 4001)
    D = 3 * np.asarray(d)[np.array(list(product(range(3), repeat=2)))]
    D = D[:, :, None] * (1 + grid)
    density = np.exp(D.mean(1) - D.var(1, ddof=1) / 4 - grid**2 / 2).sum(0)
    density /= density.sum()
    mean = grid @ density
    for power, right in ((1, mean), (2, grid**2 @ density)):
        each = (z**power).mean(1)
        assert abs(each.mean() - right) < TIMES * each.std() / np.sqrt(len(each))
    assert abs(mean) > 0.05  # the residuals matter, so a chain without them would be noticed


# The chain against a known posterior ---------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "design", "order"),
    [
        ("hmc", "weighted", 2),
        *slowly(*product(["hmc"], ["weighted", "uniform"], [1])),
        *slowly(("hmc", "uniform", 2), *product(["nuts"], ["weighted", "uniform"], [1, 2])),
    ],
)
def test_the_toy_posterior(inner, design, order):
    post = toy.posterior(inner=inner, design=design, order=order)
    assert toy.faults(post) == []
    assert np.abs(toy.distance(post)[0]).max() < 0.1
    assert post.stats["acceptance_rate_u"].mean() > 0.5


@pytest.mark.slow
def test_uniform_rows_about_a_poor_anchor_are_noticed():
    # negative control: here the perturbed posterior is known to be off
    how = {"anchor": toy.poor_anchor(), "design": "uniform", **toy.POOR}
    post = toy.posterior(expert=mo.ECSExpert(estimator="paper"), **how)
    assert "mean" in toy.faults(post)
    off, error = toy.distance(post)
    predicted = np.array([0.13, -0.08, -0.15, -0.17])
    assert np.all(np.abs(off - predicted) < TIMES * error + 0.03)


@SLOW
def test_weighted_rows_about_the_same_anchor_are_right():
    post = toy.posterior(anchor=toy.poor_anchor(), design="weighted", **toy.POOR)
    assert toy.faults(post) == []
    assert post.stats["acceptance_rate"].mean() > 0.7


# The same runs, corrected by the likelihood of all rows ---------------------------------------


def test_a_good_chain_has_nothing_to_correct():
    post = toy.posterior(inner="hmc", design="weighted", order=2)
    fixed = post.correct(toy.rows(), draws=2000, progressbar=False)
    report = fixed.tuning["correction"]
    assert report["effective_share"] > 0.98
    assert "right to within" in report["verdict"]
    # log-weights are errors of the estimate, with the variance that the chain reports
    reported = post.stats["variance_estimate"].mean()
    assert report["weight_variance"] == pytest.approx(reported, rel=0.5)


# Delayed acceptance is exact, however poor the surrogate -------------------------------------


PAPER = mo.ECSExpert(estimator="paper")
POOR = {"anchor": toy.poor_anchor(), "design": "uniform", "expert": PAPER, **toy.POOR}
RUN = {"draws": 800, "chains": 2, "random_seed": 2, "long": False}


@pytest.fixture(scope="module")
def post():
    return toy.sample(mo.HMCECS(exact="delayed", **POOR), **RUN)


def test_it_is_exact_where_the_perturbed_chain_is_not(post):
    assert toy.faults(post) == []


def test_all_rows_decide(post):
    rate = post.stats["acceptance_rate_exact"].mean()
    assert 0.2 < rate < 0.95  # the surrogate is poor: measured .6
    stay = (np.diff(post["beta"][..., 0], axis=1) == 0).mean()
    assert stay > 0.5 * (1 - rate)


def test_the_log_density_is_that_of_all_rows(post):
    t = post["beta"][1, 7]
    eta = toy.X @ t
    prior = -0.5 * t @ t / 10 - 2 * np.log(2 * np.pi * 10)
    right = (toy.Y * eta - np.logaddexp(0, eta)).sum() + prior
    assert post.stats["lp"][1, 7] == pytest.approx(right, rel=1e-12)


def test_the_ledger_counts_a_pass_per_iteration(post):
    steps, m = post.stats["n_steps"], 100
    np.testing.assert_array_equal(post.stats["rows_touched"], toy.N + m + m * (steps + 2))
    assert post.ledger.by_purpose["sampling"] == post.stats["rows_touched"].sum()


class NoSecondThought(DelayedAcceptanceKernel):
    """A mistake: all proposals of the surrogate are accepted."""

    def _exact_log_density(self, z, context):
        return jnp.zeros(())


@pytest.mark.slow
def test_the_same_check_notices_a_missing_second_stage(monkeypatch):
    # accepted by the inverse of the surrogate's own ratio, without all rows
    monkeypatch.setattr(hmc_ecs, "DelayedAcceptanceKernel", NoSecondThought)
    post = toy.sample(mo.HMCECS(exact="delayed", **POOR), **RUN)
    assert toy.faults(post) != []
