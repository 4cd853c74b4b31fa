"""Sums over all rows agree with automatic differentiation, whatever the chunks."""

import jax
import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import all_of, class_rows, gaussian_rows, logistic_rows, poisson_rows, sums_of
from modicum.passes import engine

M = mo.models


@pytest.fixture
def small_chunks(monkeypatch):
    """Use chunks of 64 rows, the last one partial."""
    monkeypatch.setattr(engine, "chunk_rows", lambda rows: 64)


def at(start, seed=7):
    return start + 0.3 * np.random.default_rng(seed).normal(size=start.shape)


FAMILIES = {
    "logistic": (M.Logistic(), logistic_rows),
    "poisson": (M.Poisson(), poisson_rows),
    "gaussian": (M.Gaussian(scale=0.7), gaussian_rows),
    "softmax": (M.Softmax(), class_rows),
    "softmax, no intercept": (M.Softmax(intercept=False), class_rows),
    "gaussian, estimated": (M.Gaussian(), gaussian_rows),
    "gaussian, estimated, no intercept": (M.Gaussian(intercept=False), gaussian_rows),
    "student": (M.StudentT(scale=0.7), gaussian_rows),
    "student, estimated": (M.StudentT(), gaussian_rows),
}


@pytest.mark.parametrize(
    "family",
    [
        *("logistic", "poisson", "gaussian"),
        *("softmax", "gaussian, estimated", "student, estimated"),
        *slowly("softmax, no intercept", "gaussian, estimated, no intercept", "student"),
    ],
)
def test_sums_are_those_of_automatic_differentiation(family, small_chunks, x64):
    model, make = FAMILIES[family]
    weight = np.random.default_rng(1).integers(0, 4, 150) * 1.0
    rows = make(150, weight=weight)
    sums, start = sums_of(model, rows)
    t, batch = at(start), all_of(rows)

    def total(t):
        return sums.target.log_likelihood(t, batch).sum()

    orders = jax.jit(lambda t: (*jax.value_and_grad(total)(t), jax.hessian(total)(t)))(t)
    for ours, right in zip(sums.hessian(t, "test"), orders, strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-9, atol=1e-9)
    for ours, right in zip(sums.gradient(t, "test"), orders[:2], strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sums.values(t[None], "test"), orders[0], rtol=1e-12)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1_000])
def test_every_row_counts_once_whatever_the_chunks(n, small_chunks):
    count = mo.Model(lambda th: 0, lambda th, batch: batch["k"] + 0 * th["a"], {"a": 0.0})
    rows = mo.Rows(k=np.arange(n, dtype=float) + 1)
    assert sums_of(count, rows)[0].values(np.zeros((1, 1)), "t") == n * (n + 1) / 2


def test_the_ledger_counts_every_pass():
    rows = logistic_rows(100)
    sums, start = sums_of(M.Logistic(), rows)
    sums.values(start[None], "a")
    sums.gradient(start, "b")
    sums.hessian(start, "b")
    assert sums.ledger.counts == {("a", "density"): 100, ("b", "gradient"): 100,
                                  ("b", "hessian"): 100}  # fmt: skip
    assert sums.ledger.sweeps == 3


def test_an_error_in_a_chunk_reaches_the_caller(monkeypatch, small_chunks):
    sums, start = sums_of(M.Logistic(), logistic_rows(1_000))

    def broken(rows, index, size, **how):
        if index == 7:
            raise mo.DataError("row 500 cannot be read.")
        return real(rows, index, size, **how)

    real = mo.Rows.chunk
    monkeypatch.setattr(mo.Rows, "chunk", broken)
    refused(mo.DataError, "row 500", sums.gradient, start, "t")
