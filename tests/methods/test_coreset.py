"""The lower bound of the signed method must follow l - sum q, or chains get lost."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.expansion import Expansion
from helpers.interrupted import planned, task_of
from helpers.pilots import small_pilots
from helpers.targets import logistic_rows
from modicum.kernels.control_variates import LinearTaylor
from modicum.kernels.designs import Weighted
from modicum.kernels.energy_conserving import (
    EnergyConservingContext,
    EnergyConservingKernel,
    certain_rows,
    with_coreset,
)
from modicum.kernels.likelihood_estimates import BlockPoisson
from modicum.kernels.moves import HMCMove
from modicum.methods.ecs.composition import cached_coreset
from modicum.methods.ecs.signed_products import LowerBound
from modicum.methods.pilot.coreset import FarOut
from modicum.methods.pilot.pilot_residuals import reweighted

Z = np.array([0.7, -1.2, 0.4, 0.9])
BY_HAND = {"certainty": 0, "batch": 5, "products": 60}


def separated_rows(n=4_000, level=300):
    """One level has no successes, so its coefficient has a long tail and a steep side."""
    rng = np.random.default_rng(3)
    x = np.c_[rng.normal(size=n), np.arange(n) < level]
    y = (rng.random(n) < 1 / (1 + np.exp(-x[:, 0]))) & (x[:, 1] == 0)
    return mo.Rows(x=x, y=y * 1.0)


METHOD = mo.SignedHMCECS(**BY_HAND, expert=mo.ECSExpert(levels=False))


@pytest.fixture(scope="module")
def examined():
    with small_pilots():
        return METHOD.examine(task_of(mo.models.Logistic(prior_scale=3.0), separated_rows()))


@pytest.fixture(scope="module")
def plan(examined):
    return METHOD.compose(examined)


@pytest.fixture(scope="module")
def study(examined):
    return examined.study


def test_a_few_rows_follow_the_difference(study, x64):
    coreset, pilot = study.coreset_with(0), study.pilot_with(0)
    assert 2 <= len(coreset) <= 32
    assert np.all(coreset.weights > 0)
    following, constant = (LowerBound(pilot, None, some) for some in (coreset, None))
    misses = [np.sqrt(pilot.share @ (pilot.mean - b.at_draws) ** 2) for b in (following, constant)]
    assert misses[0] < 0.1 * misses[1]
    # for all rows, not only those it was fitted to
    rng = np.random.default_rng(8)
    points = rng.standard_normal((50, len(study.about.centre)))
    cv, proxy = study.about.control_variate, study.about.proxy

    @jax.jit
    def sums(cached):
        return jax.vmap(lambda z: jnp.sum(cv.values(cached, z, proxy)))(jnp.asarray(points))

    everything = study.task.rows.slice(0, 4_000) | {"probability": np.ones(4_000)}
    difference = np.asarray(sums(jax.jit(lambda batch: cv.cache(batch, proxy))(everything)))
    found = np.asarray(sums(cached_coreset(study, coreset))) + following.middle
    assert np.abs(found - difference).max() < 0.3 + 0.2 * np.abs(difference).max()
    assert np.std(found - difference) < 0.2 * np.std(difference)


def test_a_constant_bound_has_mass_where_the_posterior_has_none(study):
    """Negative control: the same lambda and rows, with a constant bound of equal height."""
    coreset, pilot, batch = study.coreset_with(0), study.pilot_with(0), BY_HAND["batch"]
    far, following = coreset.far, LowerBound(pilot, None, coreset)
    products = following.products_far_out(batch, 20)
    assert products < 100
    centre = following.middle + coreset.at_points
    assert far.is_negligible(far.mini_batches(batch), products, centre)
    everywhere = study.far_out  # including points where the coreset cannot go wrong
    factor, weight = reweighted(everywhere[0].probability, study.probability(0))
    far = FarOut(everywhere[0].values * factor, weight, everywhere[1])
    constant = np.full(len(everywhere[1]), LowerBound(pilot, None, None).middle)
    for more in (1, 2, 5):
        assert not far.is_negligible(far.mini_batches(batch), more * products, constant)


@pytest.fixture(scope="module")
def six():
    with jax.enable_x64(True):
        return Expansion(mo.models.Logistic(), logistic_rows(6), 2, form=LinearTaylor)


@pytest.mark.parametrize(("of_the_subsample", "right"), [(False, True), (True, False)])
def test_the_estimate_is_unbiased_whatever_the_coreset(six, of_the_subsample, right, x64):
    """Uses the kernel's own log-density. A bound that depends on the drawn rows is biased."""
    probability = np.array([0.3, 0.1, 0.15, 0.2, 0.05, 0.2])
    D = six.values(six.cache(probability, range(6)), Z)
    estimator = BlockPoisson(4, 1, 1)
    kernel = EnergyConservingKernel(six.cv, estimator, Weighted(), HMCMove(), estimator.rows, 1, 1)
    log_proxy = float(six.cv.log_proxy(jnp.asarray(Z), six.proxy))

    @jax.jit
    def log(coreset, subsample, present):
        tables = jnp.asarray(-0.1)
        context = EnergyConservingContext(six.proxy, (), tables, jnp.zeros(()), coreset=coreset)
        rows = with_coreset(subsample, context)
        return kernel.log_density(rows, present, context)(jnp.asarray(Z))[0]

    def centre_of(rows):
        return -0.1 + 2 * six.residuals(Z)[rows].sum()

    total = 0.0
    for number in range(4):
        mean = 0.0
        for u in product(range(6), repeat=number):
            drawn = [*u] + [0] * (estimator.parts - number)
            rows = [u[0]] if of_the_subsample and number else [1, 4]
            coreset = six.cache(np.full(len(rows), 0.5), rows)  # each counts twice
            present = jnp.arange(estimator.parts) < number
            estimate = float(log(coreset, six.cache(probability[drawn], drawn), present))
            factors = 1 + (D[list(u)] - centre_of(rows)) / 4
            mean += probability[list(u)].prod() * np.prod(np.sign(factors)) * np.exp(estimate)
        each = 1 + (D @ probability - centre_of([1, 4])) / 4
        expected = np.exp(log_proxy + centre_of([1, 4])) * each**number
        total += abs(mean - expected)
    assert bool(total < 1e-8) is right
    # the log of the Poisson average
    exact = centre_of([1, 4]) + 4 * (each - 1)
    assert exact == pytest.approx(six.residuals(Z).sum(), rel=1e-10)


def test_the_coreset_is_reported(plan, study):
    count = len(study.coreset_with(0))
    assert plan.tuning["coreset"]["value"] == count
    assert f"{count} rows of the coreset" in plan.tuning["rows per evaluation"]


def test_as_in_the_paper_the_bound_is_constant():
    plan, _ = planned(mo.models.Logistic(), logistic_rows(3_000), mo.SignedHMCECS(centre=0.0))
    assert plan.context.coreset is None
    assert "coreset" not in plan.tuning
    assert certain_rows(plan.context) == plan.tuning["certainty"]["value"]
