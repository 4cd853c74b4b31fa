"""Links and special functions: six derivatives, and both tails."""

from functools import cache

import jax
import numpy as np
import pytest
from scipy import special

from modicum.models.families.links import LINKS, log1m_exp, log_gamma, log_rising, stirling_rest

# log p and its six derivatives, with 60 digits
FAR = {
    ("probit", -30.0): [
        -454.3212439563432, 30.033259667433676, -0.9988962284881099, 7.309993015784438e-05,
        7.245937210980342e-06, 9.555654977815648e-07, 1.5717585784191678e-07,
    ],
    ("probit", -8.0): [
        -35.01343715991455, 8.121368112236112, -0.9856751165566591, 0.0032918765663441357,
        0.0011052920954551628, 0.0004820640164648541, 0.00025595769931701897,
    ],
    ("cloglog", -30.0): [
        -30.000000000000046, 0.9999999999999533, -4.6788114844199416e-14, -4.678811484419795e-14,
        -4.6788114844195037e-14, -4.67881148441892e-14, -4.6788114844177524e-14,
    ],
    ("cloglog", -0.7): [
        -0.9380388107358797, 0.7721731295264159, -0.20752804054164184, -0.16742734053042435,
        -0.08919444997114138, 0.05951227807347812, 0.3265715346248345,
    ],
    ("cloglog", 3.0): [
        -1.8921786966284627e-09, 3.800542511235663e-08, -7.253539457077387e-07,
        1.3080410198943997e-05, -0.00022127176632050636, 0.0034778533648589073,
        -0.05011810169109117,
    ],
}  # fmt: skip


@cache
def successes(name):
    return jax.jit(lambda eta: LINKS[name].success(eta, 6))


@pytest.mark.parametrize(("name", "eta"), FAR)
def test_derivatives_far_out(name, eta, x64):
    got = successes(name)(np.array([eta]))
    np.testing.assert_allclose(np.ravel(got), FAR[name, eta], rtol=1e-11)


def test_chances_add_to_one(x64):
    eta = np.linspace(-8.0, 4.0, 25)
    for link in LINKS.values():
        functions = (link.log_success, link.log_failure, link.chance)
        success, failure, chance = jax.jit(lambda e, each=functions: [f(e) for f in each])(eta)
        np.testing.assert_allclose(np.exp(success) + np.exp(failure), 1.0, rtol=1e-14)
        np.testing.assert_allclose(np.exp(success), chance, rtol=1e-13)


@pytest.mark.parametrize(("name", "eta"), [("probit", 1e5), ("cloglog", 700.0), ("logit", 1e5)])
def test_numbers_stay_numbers_at_both_ends(name, eta, x64):
    ends, link = np.array([-eta, eta]), LINKS[name]
    for side in jax.jit(lambda e: (link.success(e, 6), link.failure(e, 6)))(ends):
        assert np.all(np.isfinite(side))


def test_special_functions_are_scipys(x64):
    x = np.array([1e-12, 1e-3, 0.5, 1.5, 3.0, 9.99, 10.01, 100.0, 1e6, 1e200])
    np.testing.assert_allclose(jax.jit(log_gamma)(x), special.gammaln(x), rtol=1e-13, atol=1e-14)
    second = jax.jit(jax.vmap(jax.grad(jax.grad(log_gamma))))(x[:9])
    np.testing.assert_allclose(second, special.polygamma(1, x[:9]), rtol=1e-11)
    np.testing.assert_allclose(jax.jit(stirling_rest)(1e9), 1 / 12e9, rtol=1e-12)
    gaps = np.array([1e-20, 1e-3, 0.69, 0.7, 40.0])
    truth = np.log(-np.expm1(-gaps))
    logs = np.asarray(jax.jit(log1m_exp)(gaps))
    np.testing.assert_allclose(logs[:4], truth[:4], rtol=1e-13)
    np.testing.assert_allclose(logs[4], -np.exp(-40.0), rtol=1e-13)
    np.testing.assert_array_equal(log1m_exp(gaps), logs)


@pytest.mark.parametrize(("x", "y"), [(1e8, 3), (1e12, 50), (0.3, 2), (1e-9, 4), (5.0, 0)])
def test_rising_factorial_does_not_cancel(x, y, x64):
    truth = np.sum(np.log(x + np.arange(y)))
    np.testing.assert_allclose(jax.jit(log_rising)(x, float(y)), truth, rtol=1e-14)
