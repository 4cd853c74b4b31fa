"""The perturbed posterior by quadrature, and the rates of eq. 4.6."""

from itertools import product

import numpy as np
import pytest

from modicum_lab.papers.hmc_ecs.perturbation import distance, log_average, one_slope, power

M = [20, 40, 80]


@pytest.mark.parametrize("ddof", [0, 1, None])
def test_the_average_is_that_over_all_subsamples(ddof):
    d, m = np.array([0.3, -0.5, 0.2, 0.05]), 3
    D = len(d) * d[np.array(list(product(range(len(d)), repeat=m)))]
    variance = 0.0 if ddof is None else D.var(axis=1, ddof=ddof) / m
    exact = np.log(np.exp(D.mean(1) - variance / 2).mean())
    assert log_average(d, m, ddof) == pytest.approx(exact, abs=1e-10)


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_perturbation_falls_with_the_square_of_m(ddof):
    table = one_slope(300, np.random.default_rng(1))
    off = np.array([distance(table, m, ddof) for m in M])
    assert power(M, off) == pytest.approx(-2, abs=0.1)


def test_without_the_correction_it_falls_with_m_alone():
    table = one_slope(300, np.random.default_rng(1))
    off = np.array([distance(table, m, None) for m in M])
    assert power(M, off) == pytest.approx(-1, abs=0.1)


def test_the_perturbation_falls_at_least_with_n():
    rng, rows = np.random.default_rng(1), [100, 1_600]
    off = [np.mean([distance(one_slope(n, rng), 20, 0) for _ in range(6)]) for n in rows]
    assert power(rows, np.array(off)) < -0.8
