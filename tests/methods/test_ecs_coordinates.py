"""Control variates in coordinates other than the sampled ones."""

import jax
import numpy as np
import pytest

import modicum as mo
from helpers.interrupted import task_of
from helpers.targets import sums_of
from modicum.kernels.control_variates import control_variate, proxy
from modicum.kernels.expansion import POWERS, bend
from modicum.methods.pilot.anchored_proxy import with_coordinates
from modicum.passes import anchor_at_mode
from modicum.runtime import in_double_precision

N = 600


def weakly_overdispersed(n=N, seed=3):
    """Nearly Poisson counts, whose overdispersion is known to a factor of two or so."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1))
    rate = np.exp(1.0 + 0.4 * x[:, 0]) * rng.gamma(20, 1 / 20, n)
    return mo.Rows(x=x, y=rng.poisson(rate) * 1.0)


@pytest.fixture(scope="module")
def case():
    @in_double_precision
    def made():
        sums, start = sums_of(mo.models.NegativeBinomial(), weakly_overdispersed())
        anchor = anchor_at_mode(sums, start)
        return sums.target, anchor, control_variate(sums.target, 2), proxy(anchor, sums.target, 2)

    return made()


def whole(rows):
    return rows.slice(0, len(rows)) | {"probability": np.ones(len(rows))}


@in_double_precision
def test_proxies_and_residuals_add_up_to_the_log_likelihood(case):
    """sum q + sum (l - q) = l in every coordinate, whatever q is."""
    target, anchor, variate, plain = case
    rows = whole(weakly_overdispersed())
    places = target.places["log_overdispersion"]
    z = np.array([0.6, -0.4, 0.9])

    @jax.jit
    def total(bent):
        residuals = variate.values(variate.cache(rows, bent), z, bent)
        return residuals.sum(), variate.log_proxy(z, bent)

    def parts(power):
        return np.array(total(plain._replace(bend=bend(target, anchor, places, np.array([power])))))

    apart = {name: parts(power) for name, power in POWERS.items()}
    np.testing.assert_allclose([sum(both) for both in apart.values()], sum(apart["log"]), rtol=1e-9)
    as_sampled = total(plain)
    np.testing.assert_allclose(apart["log"], as_sampled, rtol=1e-9, atol=1e-9)
    for name in ("identity", "reciprocal"):  # the coordinates do differ
        assert abs(apart[name][0] - apart["log"][0]) > 0.01
    crossed = apart["identity"][0] + apart["log"][1]  # the negative control
    assert abs(crossed - sum(apart["log"])) > 0.01


@in_double_precision
def test_a_weak_overdispersion_is_expanded_as_it_is(case):
    _, anchor, variate, plain = case
    task = task_of(mo.models.NegativeBinomial(), weakly_overdispersed())
    draws = np.random.default_rng(1).normal(size=(8, 3))
    made, tuning = with_coordinates(task, variate, anchor, plain, draws)
    assert tuning["coordinates"]["value"] == "log_overdispersion: identity"
    assert "times less variance" in tuning["coordinates"]["why"]
    assert made.bend.power.tolist() == [1.0]
    assert task.ledger.by_purpose["pilot"] == 8 * N * len(POWERS)
