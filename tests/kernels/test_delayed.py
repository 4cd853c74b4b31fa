"""Delayed acceptance is exact, however poor the surrogate."""

import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers import toy
from modicum.kernels.all_rows import DelayedAcceptanceKernel
from modicum.methods.ecs import hmc_ecs

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
